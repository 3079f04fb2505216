// One autoscaler: its chart, the story of the decision that is chosen, and its tables.

import { Chart, SIGNS, legend } from "./chart.js";
import { badge, replicasOf } from "./list.js";
import { constraint, head, sentences, turn, when } from "./story.js";
import { age, element, fill, metricName, moment, plain, setText } from "./text.js";

const SPANS = [["15 min", 900], ["1 h", 3_600], ["6 h", 21_600], ["All", null]];
// As many as the server sends.
const MOST = 2_000;
const FIRST_DECISIONS = 20;
const MORE_DECISIONS = 100;

const find = (id) => document.getElementById(id);

export class One {
  #decisions = [];
  #places = new Map();
  #object = null;
  #chosen = null;
  #metric = null;
  #span = 900;
  #limit = FIRST_DECISIONS;
  #isComplete = false;
  #frame = null;
  #chart;

  constructor() {
    this.#chart = new Chart(find("chart"), (index) => this.#choose(index));
    for (const [title, seconds] of SPANS) {
      const button = element("button", { type: "button", "aria-pressed": String(seconds === this.#span) }, title);
      button.addEventListener("click", () => this.#setSpan(seconds, button));
      find("spans").append(button);
    }
    for (const { name, title, sign } of legend()) {
      const key = element("span", { class: `${sign ? "sign" : "key"} ${name}`, "aria-hidden": "true" }, sign);
      find("legend").append(element("li", {}, key, ` ${title}`));
    }
    find("metric").addEventListener("change", (event) => { this.#metric = event.target.value; this.#draw(); });
    find("chart").addEventListener("keydown", (event) => this.#key(event));
    find("older").addEventListener("click", () => this.#showOlder());
    setInterval(() => { if (!find("one").hidden) this.#later(); }, 10_000);
  }

  show({ namespace, kind, name }) {
    this.#metric = null;
    this.#chosen = null;
    this.#limit = FIRST_DECISIONS;
    setText(find("one-title"), `${name} in ${namespace}`);
    find("one-title").dataset.kind = kind;
    this.reset();
    this.#draw();
  }

  reset() {
    this.#decisions = [];
    this.#places.clear();
    this.#object = null;
    this.#isComplete = false;
  }

  // Takes in what a line of the stream changes.
  change({ autoscaler, decisions = [], complete, again }) {
    if (again) {
      this.#decisions = [];
      this.#places.clear();
    }
    if (autoscaler !== undefined) this.#object = autoscaler;
    if (complete) this.#isComplete = true;
    for (const decision of decisions) this.#put(decision);
    if (this.#decisions.length > MOST) {
      this.#decisions.splice(0, this.#decisions.length - MOST);
      this.#places = new Map(this.#decisions.map((one, index) => [one.metadata.name, index]));
    }
    this.#later();
  }

  #put(decision) {
    const { name } = decision.metadata;
    const place = this.#places.get(name) ?? this.#decisions.length;
    this.#decisions[place] = decision;
    this.#places.set(name, place);
  }

  #later() {
    this.#frame ??= requestAnimationFrame(() => { this.#frame = null; this.#draw(); });
  }

  // The index of the decision that is chosen: the last, as long as none is.
  #index() {
    const place = this.#chosen === null ? undefined : this.#places.get(this.#chosen);
    return place ?? this.#decisions.length - 1;
  }

  #choose(index) {
    const last = this.#decisions.length - 1;
    if (last < 0) return;
    const place = Math.min(Math.max(index, 0), last);
    // One who looks at the last sees the next one, too.
    this.#chosen = place === last ? null : this.#decisions[place].metadata.name;
    this.#tell();
  }

  #key(event) {
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.#choose(this.#index() + move);
  }

  #setSpan(seconds, pressed) {
    this.#span = seconds;
    for (const button of find("spans").children) button.setAttribute("aria-pressed", String(button === pressed));
    this.#draw();
  }

  #showOlder() {
    const before = this.#limit;
    this.#limit += MORE_DECISIONS;
    this.#drawDecisions();
    find("decisions").tBodies[0].rows[before]?.querySelector("button")?.focus();
  }

  #draw() {
    this.#drawObject();
    this.#drawMetrics();
    this.#chart.show(this.#decisions, this.#metric, this.#span);
    this.#tell();
    this.#drawDecisions();
  }

  #drawObject() {
    const row = this.#object;
    const { kind } = find("one-title").dataset;
    if (row === null) {
      setText(find("one-state"), this.#isComplete ? `There is no ${kind} of this name.` : "Reading…");
      find("facts").replaceChildren();
      fill(find("conditions"), ["Type", "Status", "Reason", "Message", "Since"], [], "None.");
      return;
    }
    find("one-state").replaceChildren(badge(row.state), row.why ? ` ${row.why}` : "");
    const facts = [["Kind", kind], ["Target", row.target], ["Replicas", replicasOf(row)], ["Bounds", `${row.min} to ${row.max}`],
      ["Metrics", row.metrics || "none yet"], ["Last scaled", row.scaled === null ? "never" : age(row.scaled)]];
    find("facts").replaceChildren(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    const conditions = row.conditions.map((one) => [one.type, one.status, one.reason, one.message, moment(one.lastTransitionTime)]);
    fill(find("conditions"), ["Type", "Status", "Reason", "Message", "Since"], conditions, "None.");
  }

  // The metrics to choose from: those of the last decision that has any.
  #drawMetrics() {
    const latest = this.#decisions.findLast((one) => one.metrics?.length);
    const metrics = latest?.metrics ?? [];
    const names = [...new Set(metrics.map((one) => one.name))];
    if (!names.includes(this.#metric)) this.#metric = (metrics.find((one) => one.status === "Used") ?? metrics[0])?.name ?? null;
    const select = find("metric");
    if ([...select.options].map((one) => one.value).join("\n") !== names.join("\n")) {
      const isOnly = (short) => names.filter((name) => metricName(name) === short).length === 1;
      const shown = (name) => (isOnly(metricName(name)) ? metricName(name) : name);
      select.replaceChildren(...names.map((name) => element("option", { value: name }, shown(name))));
    }
    if (this.#metric !== null) select.value = this.#metric;
  }

  // The story of the decision that is chosen, and its tables.
  #tell() {
    const index = this.#index();
    const decision = this.#decisions[index];
    const slider = find("chart");
    slider.setAttribute("aria-valuemax", String(Math.max(0, this.#decisions.length - 1)));
    slider.setAttribute("aria-valuenow", String(Math.max(0, index)));
    this.#chart.choose(index);
    if (!decision) {
      const none = this.#isComplete ? "No decision is known." : "Reading decisions…";
      slider.setAttribute("aria-valuetext", none);
      setText(find("story-when"), "");
      setText(find("story-head"), none);
      find("story-text").replaceChildren();
    } else {
      const told = sentences(decision);
      slider.setAttribute("aria-valuetext", `${when(decision)}. ${head(decision)}. ${told.join(" ")}`);
      setText(find("story-when"), when(decision));
      setText(find("story-head"), head(decision));
      const list = find("story-text");
      if (list.dataset.told !== told.join("\n")) {
        list.dataset.told = told.join("\n");
        list.replaceChildren(...told.map((sentence) => element("li", {}, sentence)));
      }
    }
    this.#drawOfDecision(decision);
    for (const row of find("decisions").tBodies[0]?.rows ?? []) {
      const isChosen = row.dataset.name === decision?.metadata.name;
      if (isChosen) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }

  #drawOfDecision(decision) {
    const of = (metric) => (metric.targetType === "Utilization" ? " %" : "");
    const pods = ({ ready, unready, missing, ignored }) => {
      const others = [[unready, "unready"], [missing, "missing"], [ignored, "ignored"]].filter(([count]) => count > 0);
      return [`${ready} ready`, ...others.map(([count, name]) => `${count} ${name}`)].join(", ");
    };
    const metrics = (decision?.metrics ?? []).map((one) => [
      metricName(one.name), one.value === undefined ? (one.message ?? one.reason ?? "") : plain(one.value, of(one)), plain(one.target, of(one)),
      one.proposedReplicas === undefined ? "" : String(one.proposedReplicas), one.status, one.pods ? pods(one.pods) : "", one.newestSampleAge ?? "", one.query ? element("code", {}, one.query) : "",
    ]);
    fill(find("metrics"), ["Metric", "Value", "Target", "Proposes", "Status", "Pods", "Age of the newest sample", "Query"], metrics, "None was evaluated.");
    const constraints = (decision?.constraints ?? []).map((one) => [constraint(one), String(one.replicasBefore), String(one.replicasAfter), one.until ? moment(one.until) : ""]);
    fill(find("constraints"), ["Constraint", "Replicas before", "Replicas after", "Until"], constraints, "None changed the recommendation.");
  }

  #drawDecisions() {
    const newest = this.#decisions.slice(-this.#limit).reverse();
    const table = find("decisions");
    const focused = table.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.name : null;
    const rows = newest.map((decision) => {
      const button = element("button", { type: "button", class: "link" }, moment(decision.lastTime));
      button.addEventListener("click", () => this.#choose(this.#places.get(decision.metadata.name) ?? -1));
      const used = (decision.metrics ?? []).find((one) => one.name === this.#metric);
      const value = used?.value === undefined ? "" : `${plain(used.value)} / ${plain(used.target)}`;
      const outcome = turn(decision);
      return [button, element("span", {}, element("span", { "aria-hidden": "true", class: `sign ${outcome}` }, SIGNS[outcome]), ` ${head(decision)}`), decision.reason, value, String(decision.count)];
    });
    fill(table, ["Time", "Decision", "Reason", "Value / target", "In a row"], rows, this.#isComplete ? "None is known." : "Reading…");
    const chosen = this.#decisions[this.#index()]?.metadata.name;
    newest.forEach((decision, at) => {
      const row = table.tBodies[0].rows[at];
      row.dataset.name = decision.metadata.name;
      if (decision.metadata.name === chosen) row.setAttribute("aria-current", "true");
      if (decision.metadata.name === focused) row.querySelector("button").focus();
    });
    const left = this.#decisions.length - newest.length;
    find("older").hidden = left <= 0;
    setText(find("older"), `Show ${Math.min(left, MORE_DECISIONS)} older decisions`);
  }
}
