// One autoscaler: its chart, the story of the decision that is chosen, and its tables.

import { Chart, SIGNS, legend } from "./chart.js";
import { Change } from "./change.js";
import { badge, replicasOf } from "./list.js";
import { constraint, head, identity, isPresent, nameOf, sentences, turn, when } from "./story.js";
import { age, become, element, fill, moment, plain, setText, zone } from "./text.js";

const SPANS = [["15 min", 900], ["1 h", 3_600], ["6 h", 21_600], ["All", null]];
// As many as the server sends.
const MOST = 2_000;
const FIRST_DECISIONS = 20;
const MORE_DECISIONS = 100;
// The values of a run that are kept while they come.
const MOST_SEEN = 2_000;

const find = (id) => document.getElementById(id);

// Decisions in their order, by name.
class Decisions {
  all = [];
  #places = new Map();

  place(name) {
    return this.#places.get(name);
  }

  // Puts in one, or replaces it: `before` is what was known of it, whose value the chart keeps.
  put(decision, before) {
    const { name } = decision.metadata;
    const place = this.#places.get(name) ?? this.all.length;
    decision.seen = before?.seen ?? [];
    if (before && before.lastTime !== decision.lastTime) {
      decision.seen.push([before.lastTime, new Map((before.metrics ?? []).map((one) => [identity(one), one.value]))]);
      if (decision.seen.length > MOST_SEEN) decision.seen.shift();
    }
    this.all[place] = decision;
    this.#places.set(name, place);
  }

  // Forgets the oldest, except so many.
  keep(most) {
    if (this.all.length <= most) return;
    this.all.splice(0, this.all.length - most);
    this.#places = new Map(this.all.map((one, index) => [one.metadata.name, index]));
  }
}

export class One {
  #shown = null;
  #known = new Decisions();
  // The decisions of a new list, until it is complete.
  #next = null;
  #object = null;
  #isObjectRead = false;
  // How far the cluster's clock is ahead of the browser's, in ms.
  #ahead = 0;
  #chosen = null;
  #isHeld = false;
  // The identity of the metric that is shown.
  #metric = null;
  // The metric that was chosen, also while no decision has it.
  #wanted = null;
  #span = 900;
  #limit = FIRST_DECISIONS;
  #isComplete = false;
  #frame = null;
  #chart;
  #change = new Change();

  constructor() {
    this.#chart = new Chart(find("chart"), {
      point: (index) => { if (!this.#isHeld) this.#choose(index); },
      click: (index) => this.#click(index),
    });
    for (const [title, seconds] of SPANS) {
      const button = element("button", { type: "button", "aria-pressed": String(seconds === this.#span) }, title);
      button.addEventListener("click", () => this.#setSpan(seconds, button));
      find("spans").append(button);
    }
    for (const { name, title, sign } of legend()) {
      const key = element("span", { class: `${sign ? "sign" : "key"} ${name}`, "aria-hidden": "true" }, sign);
      find("legend").append(element("li", {}, key, ` ${title}`));
    }
    find("metric").addEventListener("change", (event) => { this.#wanted = event.target.value; this.#draw(); });
    find("chart").addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") this.#hold(false); });
    find("decisions").addEventListener("click", (event) => {
      const name = event.target.closest("button")?.closest("tr").dataset.key;
      if (name !== undefined) this.#choose(this.#known.place(name) ?? -1);
    });
    find("older").addEventListener("click", () => this.#showOlder());
    setInterval(() => { if (!find("one").hidden) this.#later(); }, 10_000);
  }

  show({ namespace, kind, name }) {
    const shown = JSON.stringify([namespace, kind, name]);
    // The connection is a new one: all stays until it tells something else.
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#wanted = null;
    this.#metric = null;
    this.#chosen = null;
    this.#isHeld = false;
    this.#limit = FIRST_DECISIONS;
    setText(find("one-title"), `${name} in ${namespace}`);
    find("one-title").dataset.kind = kind;
    this.#known = new Decisions();
    this.#next = null;
    this.#object = null;
    this.#isObjectRead = false;
    this.#isComplete = false;
    this.#change.show({ namespace, kind, name });
    this.#draw();
  }

  // Takes in what a line of the stream changes.
  change({ autoscaler, decisions = [], complete, again, canTry }) {
    if (canTry !== undefined) this.#change.can(canTry);
    if (again) this.#next = new Decisions();
    if (autoscaler !== undefined) {
      this.#object = autoscaler;
      this.#isObjectRead = true;
      if (autoscaler !== null) this.#ahead = autoscaler.now - Date.now();
    }
    const into = this.#next ?? this.#known;
    for (const decision of decisions) {
      const { name } = decision.metadata;
      const place = this.#known.place(name);
      into.put(decision, place === undefined ? undefined : this.#known.all[place]);
    }
    if (complete) {
      this.#isComplete = true;
      this.#known = into;
      this.#next = null;
    }
    this.#known.keep(MOST);
    this.#later();
  }

  #later() {
    this.#frame ??= requestAnimationFrame(() => { this.#frame = null; this.#draw(); });
  }

  // The index of the decision that is chosen: the last, as long as none is.
  #index() {
    const place = this.#chosen === null ? undefined : this.#known.place(this.#chosen);
    return place ?? this.#known.all.length - 1;
  }

  #choose(index) {
    const last = this.#known.all.length - 1;
    if (last < 0) return;
    const place = Math.min(Math.max(index, 0), last);
    // One who looks at the last sees the next one, too, unless it is held.
    this.#chosen = place === last && !this.#isHeld ? null : this.#known.all[place].metadata.name;
    this.#tell();
  }

  #click(index) {
    find("chart").focus({ preventScroll: true });
    const isHeld = !(this.#isHeld && index === this.#index());
    this.#isHeld = isHeld;
    this.#choose(index);
  }

  #hold(isHeld) {
    if (isHeld === this.#isHeld) return;
    this.#isHeld = isHeld;
    this.#choose(this.#index());
  }

  #key(event) {
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    if (event.key === "Enter") this.#hold(!this.#isHeld);
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
    this.#chart.show(this.#known.all, this.#metric, this.#span);
    this.#tell();
    this.#drawDecisions();
  }

  #drawObject() {
    const row = this.#object;
    const { kind } = find("one-title").dataset;
    const columns = ["Type", "Status", "Reason", "Message", `Since (${zone(Date.now())})`];
    if (row === null) {
      setText(find("one-state"), this.#isObjectRead ? `There is no ${kind} of this name.` : "Reading…");
      find("facts").replaceChildren();
      fill(find("conditions"), columns, [], "None.");
      return;
    }
    become(find("one-state"), badge(row.state), row.why ? ` ${row.why}` : "");
    const facts = [["Kind", kind], ["Target", row.target], ["Replicas", replicasOf(row)], ["Bounds", `${row.min} to ${row.max}`],
      ["Metrics", row.metrics || "none yet"], ["Last scaled", row.scaled === null ? "never" : age(row.scaled)]];
    become(find("facts"), ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    const conditions = row.conditions.map((one) => [one.type, one.status, one.reason, one.message, moment(one.lastTransitionTime)]);
    fill(find("conditions"), columns, conditions, "None.");
  }

  // The metrics to choose from: those of the last decision that has any.
  #drawMetrics() {
    const latest = this.#known.all.findLast((one) => one.metrics?.length);
    const metrics = latest?.metrics ?? [];
    const all = new Map(metrics.map((one) => [identity(one), nameOf(one, latest)]));
    if (all.has(this.#wanted)) this.#metric = this.#wanted;
    else if (!all.has(this.#metric)) {
      const first = metrics.find((one) => one.status === "Used") ?? metrics[0];
      this.#metric = first ? identity(first) : null;
    }
    const select = find("metric");
    if ([...select.options].map((one) => one.value).join("\n") !== [...all.keys()].join("\n")) {
      select.replaceChildren(...[...all].map(([value, name]) => element("option", { value }, name)));
    }
    if (this.#metric !== null) select.value = this.#metric;
  }

  // Whether the decision tells of the present: the autoscaler is still there, and no other decision is overdue.
  #isNow(index) {
    if (index !== this.#known.all.length - 1 || (this.#isObjectRead && this.#object === null)) return false;
    return isPresent(this.#known.all[index], Date.now() + this.#ahead, this.#object?.period ?? 0);
  }

  // The story of the decision that is chosen, and its tables.
  #tell() {
    const index = this.#index();
    const decision = this.#known.all[index];
    const slider = find("chart");
    slider.setAttribute("aria-valuemax", String(Math.max(0, this.#known.all.length - 1)));
    slider.setAttribute("aria-valuenow", String(Math.max(0, index)));
    this.#chart.choose(index);
    setText(find("story-title"), this.#isHeld ? "Decision (held: Esc lets go)" : "Decision");
    const none = this.#isComplete ? "No decision is known." : "Reading decisions…";
    const told = decision ? sentences(decision, this.#isNow(index)) : [];
    // A screen reader says it when another is chosen, and not at each evaluation of the same.
    const name = decision ? `${decision.metadata.name} ${head(decision)}` : none;
    if (document.activeElement !== slider || slider.dataset.told !== name) {
      slider.dataset.told = name;
      slider.setAttribute("aria-valuetext", decision ? `${when(decision)}. ${head(decision)}. ${told.join(" ")}` : none);
    }
    setText(find("story-when"), decision ? when(decision) : "");
    setText(find("story-head"), decision ? head(decision) : none);
    become(find("story-text"), ...told.map((sentence) => element("li", {}, sentence)));
    this.#drawOfDecision(decision);
    this.#mark(decision);
  }

  // Marks the row of the decision that is chosen.
  #mark(decision) {
    for (const row of find("decisions").tBodies[0]?.rows ?? []) {
      const isChosen = row.dataset.key === decision?.metadata.name;
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
      nameOf(one, decision), one.value === undefined ? (one.message ?? one.reason ?? "") : plain(one.value, of(one)), plain(one.target, of(one)),
      one.proposedReplicas === undefined ? "" : String(one.proposedReplicas), one.status, one.pods ? pods(one.pods) : "", one.newestSampleAge ?? "", one.query ? element("code", {}, one.query) : "",
    ]);
    fill(find("metrics"), ["Metric", "Value", "Target", "Proposes", "Status", "Pods", "Age of the newest sample", "Query"], metrics, "None was evaluated.");
    const constraints = (decision?.constraints ?? []).map((one) => [constraint(one), String(one.replicasBefore), String(one.replicasAfter), one.until ? moment(one.until) : ""]);
    fill(find("constraints"), ["Constraint", "Replicas before", "Replicas after", "Until"], constraints, "None changed the recommendation.");
  }

  #drawDecisions() {
    const table = find("decisions");
    const all = this.#known.all;
    // A row with the focus is shown also when newer ones have come.
    const focused = table.contains(document.activeElement) ? this.#known.place(document.activeElement.closest("tr")?.dataset.key) : undefined;
    if (focused !== undefined) this.#limit = Math.max(this.#limit, all.length - focused);
    const newest = all.slice(-this.#limit).reverse();
    const rows = newest.map((decision) => {
      const used = (decision.metrics ?? []).find((one) => identity(one) === this.#metric);
      const value = used?.value === undefined ? "" : `${plain(used.value)} / ${plain(used.target)}`;
      const outcome = turn(decision);
      const sign = element("span", { "aria-hidden": "true", class: `sign ${outcome}` }, SIGNS[outcome]);
      return [element("button", { type: "button", class: "link" }, moment(decision.lastTime)), element("span", {}, sign, ` ${head(decision)}`), decision.reason, value, String(decision.count)];
    });
    const columns = [`Time (${zone(Date.now())})`, "Decision", "Reason", "Value / target", "In a row"];
    fill(table, columns, rows, this.#isComplete ? "None is known." : "Reading…", newest.map((one) => one.metadata.name));
    this.#mark(all[this.#index()]);
    const left = all.length - newest.length;
    find("older").hidden = left <= 0;
    setText(find("older"), `Show ${Math.min(left, MORE_DECISIONS)} older decisions`);
  }
}
