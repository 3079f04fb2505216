// The list of all autoscalers.

import { age, element, setText } from "./text.js";

// In the order in which they need a person.
export const STATES = {
  failing: ["✕", "Failing"],
  atMax: ["▲", "At max"],
  flapping: ["⇅", "Flapping"],
  moving: ["→", "Moving"],
  waiting: ["…", "Waiting"],
  paused: ["Ⅱ", "Paused"],
  steady: ["✓", "Steady"],
};
const RANK = Object.fromEntries(Object.keys(STATES).map((state, rank) => [state, rank]));

const COLUMNS = [
  { id: "state", title: "State", by: (row) => RANK[row.state] },
  { id: "name", title: "Name", by: (row) => row.name },
  { id: "namespace", title: "Namespace", by: (row) => row.namespace },
  { id: "target", title: "Target", by: (row) => row.target },
  { id: "replicas", title: "Replicas", by: (row) => row.current ?? -1, number: true },
  { id: "bounds", title: "Bounds", by: (row) => row.max, number: true },
  { id: "metrics", title: "Metrics: value/target", by: (row) => row.metrics },
  { id: "scaled", title: "Last scaled", by: (row) => -(row.scaled ?? 0) },
];
const FIRST_ROWS = 50;
const MORE_ROWS = 100;
// The least time between two orderings of a list that changes.
const REORDER_MS = 1_000;
// How long rows stay where they are below a pointer that was moved.
const STAND_MS = 1_500;
// How long the rows of an earlier connection are shown while they are read again.
const EXCHANGE_MS = 10_000;

export function badge(state) {
  const [sign, name] = STATES[state] ?? STATES.waiting;
  return element("span", { class: `badge ${state}` }, element("span", { "aria-hidden": "true" }, sign), ` ${name}`);
}

export function address(row) {
  return `#/${[row.namespace, row.kind, row.name].map(encodeURIComponent).join("/")}`;
}

export function replicasOf(row) {
  const current = row.current ?? "?";
  return row.desired === null || row.desired === row.current ? `${current}` : `${current} → ${row.desired}`;
}

// A row as the server sends it (row.rs).
function read([namespace, kind, name, target, current, desired, min, max, state, why, metrics, scaled]) {
  const key = `${namespace}/${kind}/${name}`;
  const words = [namespace, name, target, metrics, why, STATES[state]?.[1], kind].join(" ").toLowerCase();
  return { key, namespace, kind, name, target, current, desired, min, max, state, why, metrics, scaled, words };
}

export class List {
  #rows = new Map();
  // The rows of a new connection, until they are complete.
  #next = null;
  #exchangeAt = 0;
  #pointedAt = -Infinity;
  #shown = new Map();
  #limit = FIRST_ROWS;
  #column = COLUMNS[0];
  #isReversed = false;
  #states = new Set();
  #words = [];
  #isComplete = false;
  #ordered = [];
  #timer = null;
  #last = 0;
  #nodes;

  constructor() {
    const find = (id) => document.getElementById(id);
    this.#nodes = { table: find("rows"), body: find("rows").tBodies[0], columns: find("columns"), search: find("search"), states: find("states"), count: find("count"), found: find("found"), more: find("more") };
    for (const column of COLUMNS) {
      const button = element("button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.#sort(column));
      this.#nodes.columns.append(element("th", { scope: "col", class: column.id }, button));
    }
    for (const [state, [, name]] of Object.entries(STATES)) {
      const button = element("button", { type: "button", "aria-pressed": "false", "data-state": state }, name);
      button.addEventListener("click", () => this.#toggle(state));
      this.#nodes.states.append(button);
    }
    this.#nodes.search.addEventListener("input", () => this.#search());
    this.#nodes.more.addEventListener("click", () => this.#showMore(true));
    const atEnd = (entries) => entries.some((entry) => entry.isIntersecting) && this.#showMore(false);
    new IntersectionObserver(atEnd, { rootMargin: "600px" }).observe(this.#nodes.more);
    document.addEventListener("keydown", (event) => this.#key(event));
    this.#nodes.body.addEventListener("mousemove", () => { this.#pointedAt = performance.now(); });
    this.#nodes.body.addEventListener("mouseleave", () => { this.#pointedAt = -Infinity; });
    setInterval(() => this.#tellAges(), 10_000);
    this.#mark();
  }

  // All rows follow again. What is shown stays until they are read.
  reset() {
    this.#next = this.#rows.size > 0 ? new Map() : null;
    this.#exchangeAt = performance.now() + EXCHANGE_MS;
    if (!this.#next) this.#isComplete = false;
  }

  // Takes in what a line of the stream changes.
  change({ rows = [], removed = [], complete }) {
    const into = this.#next ?? this.#rows;
    for (const row of rows.map(read)) into.set(row.key, row);
    for (const [namespace, kind, name] of removed) into.delete(`${namespace}/${kind}/${name}`);
    if (this.#next && (complete || performance.now() > this.#exchangeAt)) {
      this.#isComplete = Boolean(complete);
      this.#rows = this.#next;
      this.#next = null;
      this.draw();
    } else if (complete && !this.#isComplete) {
      this.#isComplete = true;
      this.draw();
      this.#say();
    } else if ((rows.length || removed.length) && !this.#next) {
      this.#later();
    }
  }

  get(key) {
    return this.#rows.get(key);
  }

  // Rows that changed are drawn at the next frame, the first at once.
  #later() {
    if (this.#timer !== null) return;
    const wait = Math.max(0, this.#last + REORDER_MS - performance.now());
    this.#timer = setTimeout(() => this.#redraw(), this.#last === 0 ? 0 : wait);
  }

  // A click is meant for the row that was there when the pointer came: its texts change, but not its place.
  #redraw() {
    if (performance.now() - this.#pointedAt > STAND_MS) return this.draw();
    this.#timer = null;
    this.#last = performance.now();
    for (const [key, shown] of this.#shown) {
      const row = this.#rows.get(key);
      if (row && row !== shown.row) this.#write(shown.node, row);
      shown.row = row ?? shown.row;
    }
    this.#later();
  }

  #sort(column) {
    this.#isReversed = this.#column === column && !this.#isReversed;
    this.#column = column;
    this.#mark();
    this.draw();
  }

  #mark() {
    COLUMNS.forEach((column, index) => {
      const cell = this.#nodes.columns.cells[index];
      if (column === this.#column) cell.setAttribute("aria-sort", this.#isReversed ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  }

  #toggle(state) {
    if (!this.#states.delete(state)) this.#states.add(state);
    for (const button of this.#nodes.states.children) {
      button.setAttribute("aria-pressed", String(this.#states.has(button.dataset.state)));
    }
    this.#limit = FIRST_ROWS;
    this.draw();
    this.#say();
  }

  #search() {
    this.#words = this.#nodes.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.#limit = FIRST_ROWS;
    this.draw();
    this.#say();
  }

  // A screen reader hears the count when it was asked for, and not whenever a row moves.
  #say() {
    setText(this.#nodes.found, this.#nodes.count.textContent);
  }

  #showMore(moveFocus) {
    const before = this.#limit;
    if (before >= this.#ordered.length) return;
    this.#limit += MORE_ROWS;
    this.draw();
    if (moveFocus) this.#nodes.body.rows[before]?.querySelector("a").focus();
  }

  #key(event) {
    if (document.getElementById("list").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = document.activeElement?.closest?.("#rows tbody tr");
    const isTyping = document.activeElement === this.#nodes.search;
    if (event.key === "/" && !isTyping) {
      this.#nodes.search.focus();
    } else if (event.key === "ArrowDown" && (at || isTyping)) {
      const next = at ? at.nextElementSibling : this.#nodes.body.rows[0];
      next?.querySelector("a").focus();
    } else if (event.key === "ArrowUp" && at) {
      (at.previousElementSibling?.querySelector("a") ?? this.#nodes.search).focus();
    } else {
      return;
    }
    event.preventDefault();
  }

  draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#last = performance.now();
    const isWanted = (row) => (this.#states.size === 0 || this.#states.has(row.state)) && this.#words.every((word) => row.words.includes(word));
    const { by } = this.#column;
    const sign = this.#isReversed ? -1 : 1;
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const found = [...this.#rows.values()].filter(isWanted);
    found.sort((a, b) => sign * compare(by(a), by(b)) || RANK[a.state] - RANK[b.state] || compare(a.key, b.key));
    this.#ordered = found;
    const shown = found.slice(0, this.#limit);
    // A row with the focus is not taken away.
    const focused = document.activeElement?.closest?.("#rows tbody tr")?.dataset.key;
    const kept = focused === undefined ? undefined : found.find((row) => row.key === focused);
    if (kept && !shown.includes(kept)) shown.push(kept);
    this.#place(shown);
    this.#count(found.length);
  }

  // Puts the rows in their order, and touches no row that is at its place: one with the focus keeps it.
  #place(rows) {
    const { body } = this.#nodes;
    const focused = document.activeElement?.closest?.("#rows tbody tr");
    const wanted = new Set(rows.map((row) => row.key));
    for (const [key, shown] of this.#shown) {
      if (!wanted.has(key)) {
        shown.node.remove();
        this.#shown.delete(key);
      }
    }
    let place = body.firstChild;
    for (const row of rows) {
      let shown = this.#shown.get(row.key);
      if (!shown) {
        shown = { node: this.#made(row), row: null };
        this.#shown.set(row.key, shown);
      }
      if (shown.row !== row) this.#write(shown.node, row);
      shown.row = row;
      if (shown.node === place) place = place.nextSibling;
      else body.insertBefore(shown.node, place);
    }
    if (focused?.isConnected && !focused.contains(document.activeElement)) focused.querySelector("a").focus();
  }

  #made(row) {
    const cells = COLUMNS.map((column) => element(column.id === "name" ? "th" : "td", { class: column.number ? `${column.id} number` : column.id, scope: column.id === "name" ? "row" : null }));
    const node = element("tr", { "data-key": row.key }, ...cells);
    cells[1].append(element("a", { href: address(row) }, row.name), element("span", { class: "narrow" }));
    return node;
  }

  #write(node, row) {
    const [state, name, namespace, target, replicas, bounds, metrics, scaled] = node.cells;
    node.className = row.state;
    state.replaceChildren(badge(row.state), ...(row.why ? [element("span", { class: "why" }, row.why)] : []));
    setText(name.lastChild, row.namespace);
    setText(namespace, row.namespace);
    setText(target, row.kind === "Autoscaler" ? row.target : `${row.target} (HPA)`);
    setText(replicas, replicasOf(row));
    setText(bounds, `${row.min}–${row.max}`);
    setText(metrics, row.metrics);
    setText(scaled, row.scaled === null ? "never" : age(row.scaled));
  }

  #tellAges() {
    for (const { node, row } of this.#shown.values()) {
      if (row.scaled !== null) setText(node.cells[7], age(row.scaled));
    }
  }

  #count(found) {
    const { count, more, states } = this.#nodes;
    const totals = {};
    for (const row of this.#rows.values()) totals[row.state] = (totals[row.state] ?? 0) + 1;
    for (const button of states.children) {
      const { state } = button.dataset;
      setText(button, `${STATES[state][1]} ${totals[state] ?? 0}`);
    }
    const shown = Math.min(this.#limit, found);
    const all = this.#rows.size;
    const known = this.#isComplete ? "" : " (listing)";
    if (all === 0) setText(count, this.#isComplete ? "There is no autoscaler here." : "Listing autoscalers…");
    else setText(count, `${shown} of ${found} shown${found === all ? "" : `, of ${all} in all`}${known}`);
    more.hidden = shown >= found;
    setText(more, `Show ${Math.min(MORE_ROWS, found - shown)} more`);
    this.#nodes.table.hidden = all === 0;
    if (all > 0 && this.#isComplete && performance.getEntriesByName("filled").length === 0) {
      // After the frame that has the rows.
      requestAnimationFrame(() => setTimeout(() => performance.mark("filled")));
    }
  }
}
