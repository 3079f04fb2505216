// The chart of one autoscaler: load and target (left), replicas and bounds (right), and a mark for each decision.

import { number } from "./text.js";
import { identity, turn } from "./story.js";

const { uPlot } = window;
const HEIGHT = 320;

const SERIES = [
  { name: "load", title: "Load (metric, left axis)" },
  { name: "between", title: "Load between values that are not known one by one" },
  { name: "target", title: "Target (left axis)" },
  { name: "desired", title: "Desired replicas (right axis)" },
  { name: "current", title: "Replicas of the workload (right axis)" },
  { name: "bounds", title: "minReplicas and maxReplicas (right axis)" },
];
// The signs of what became of a decision; the marks of the chart have the same shapes.
export const SIGNS = { up: "▲", down: "▼", held: "■", same: "●", failed: "✕" };
const OUTCOMES = { up: "more replicas", down: "fewer replicas", held: "held", same: "unchanged", failed: "no decision" };

export function legend() {
  const marks = Object.entries(OUTCOMES).map(([name, title]) => ({ name, title, sign: SIGNS[name] }));
  return [...SERIES, ...marks];
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const days = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

function timeOfDay(split, index, splits) {
  const date = new Date(split * 1000);
  const isNewDay = index > 0 && new Date(splits[index - 1] * 1000).getDate() !== date.getDate();
  return (isNewDay ? days : hours).format(date) + (splits.every((one) => one % 60 === 0) ? "" : `:${String(date.getSeconds()).padStart(2, "0")}`);
}

const seconds = (time) => new Date(time).getTime() / 1000;

const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
// How long the time that is shown stands after the pointer was moved on the chart.
const STANDS_MS = 30_000;

// The first and last time of each decision, in their order. One that is dated later than the next was dated by a clock that
// was ahead: it stands at the time of that.
function spansOf(decisions) {
  let next = Infinity;
  const spans = [...decisions].reverse().map(({ firstTime, lastTime }) => {
    const last = Math.min(Math.max(seconds(lastTime), seconds(firstTime)), next);
    next = Math.min(seconds(firstTime), last);
    return [next, last];
  });
  return spans.reverse();
}

// The columns of the chart. A single decision has one point. A run has one at its beginning, whose value is not known, one
// for each value that came while the page was open (`seen`: its time, and the values by metric), and one at its end.
// `null` is a gap: the metric failed. `undefined` in `between` is not known. `metric` is the identity of one.
export function columns(decisions, metric) {
  const rows = { x: [], load: [], low: [], high: [], target: [], desired: [], min: [], max: [], between: [], current: [], of: [] };
  const spans = spansOf(decisions);
  decisions.forEach((decision, index) => {
    const shown = (decision.metrics ?? []).find((one) => identity(one) === metric);
    const value = number(shown?.value);
    const [first, last] = spans[index];
    const before = () => rows.x.at(-1) ?? -Infinity;
    const seen = (decision.seen ?? []).map(([time, values]) => [seconds(time), number(values.get(metric))]);
    const put = (x, known, between) => {
      rows.x.push(x);
      rows.load.push(known);
      rows.between.push(between);
      rows.low.push(number(shown?.minValue) ?? value);
      rows.high.push(number(shown?.maxValue) ?? value);
      rows.target.push(number(shown?.target));
      rows.desired.push(decision.desiredReplicas ?? decision.currentReplicas ?? null);
      rows.current.push(decision.currentReplicas ?? null);
      rows.min.push(decision.basis?.minReplicas ?? null);
      rows.max.push(decision.basis?.maxReplicas ?? null);
      rows.of.push(index);
    };
    const isFirstSeen = seen.length > 0 && seen[0][0] <= first;
    if (last > first && first > before() && !isFirstSeen) put(first, null, value === null ? null : undefined);
    for (const [x, known] of seen) if (x > before() && x < last) put(x, known, known);
    put(last, value, value);
  });
  return rows;
}

// The places of values that have no known one beside them, so that no line shows them.
export function alone(values) {
  const isKnown = (at) => values[at] !== null && values[at] !== undefined;
  return [...values.keys()].filter((at) => isKnown(at) && !isKnown(at - 1) && !isKnown(at + 1));
}

export class Chart {
  #node;
  #on;
  #pointer = null;
  #standsUntil = 0;
  #end = 0;
  #plot = null;
  #rows = columns([], "");
  #decisions = [];
  #chosen = -1;
  #span = null;

  // `on.point(index)` is called with the decision under a pointer that moves, `on.click(index)` with one that is clicked.
  constructor(node, on) {
    this.#node = node;
    this.#on = on;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#make());
    new ResizeObserver(() => this.#plot?.setSize({ width: this.#width(), height: HEIGHT })).observe(node);
  }

  show(decisions, metric, span) {
    const isFirst = this.#plot === null;
    this.#span = span;
    this.#decisions = decisions;
    this.#rows = columns(decisions, metric);
    if (isFirst) this.#make();
    else this.#plot.setData(this.#data());
  }

  choose(index) {
    this.#chosen = index;
    this.#plot?.redraw(false, false);
  }

  #width() {
    return Math.max(240, this.#node.clientWidth);
  }

  #data() {
    const { x, load, low, high, target, desired, min, max, between, current } = this.#rows;
    return [x, load, low, high, target, desired, min, max, between, current];
  }

  #range() {
    const { x } = this.#rows;
    const now = Date.now() / 1000;
    // Nothing moves away below a pointer.
    if (performance.now() > this.#standsUntil) this.#end = Math.max(now, x.at(-1) ?? now);
    const end = this.#end;
    // Nothing is shown of the time before the first decision.
    const start = Math.max(x[0] ?? end - 900, this.#span === null ? -Infinity : end - this.#span);
    return [Math.min(start, end - 60), end];
  }

  #make() {
    this.#plot?.destroy();
    const [text, grid, load, target, desired, current, bounds, band] = ["muted", "grid", "load", "target", "desired", "current", "bounds", "band"].map(color);
    const stepped = uPlot.paths.stepped({ align: 1 });
    const none = { show: false };
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const whole = (plot, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : ""));
    const fromZero = (plot, low, high) => [0, high === null || high <= 0 ? 1 : high * 1.1];
    this.#plot = new uPlot({
      width: this.#width(),
      height: HEIGHT,
      legend: none,
      cursor: { drag: { x: false, y: false }, points: none, y: false },
      scales: {
        x: { time: true, range: () => this.#range() },
        load: { range: (plot, low, high) => [Math.min(0, low ?? 0), fromZero(plot, low, high)[1]] },
        replicas: { range: fromZero },
      },
      axes: [
        { ...axis, space: 70, values: (plot, splits) => splits.map(timeOfDay) },
        { ...axis, scale: "load", size: 60, values: (plot, splits) => splits.map((value) => short.format(value)) },
        { ...axis, scale: "replicas", side: 1, grid: none, size: 45, values: whole },
      ],
      series: [
        {},
        { scale: "load", stroke: load, width: 2, points: { show: true, size: 5, fill: load, filter: (plot, series) => alone(plot.data[series]) } },
        { scale: "load", stroke: band, width: 0, points: none, paths: stepped },
        { scale: "load", stroke: band, width: 0, points: none, paths: stepped },
        { scale: "load", stroke: target, width: 2, dash: [6, 4], points: none, paths: stepped },
        { scale: "replicas", stroke: desired, width: 2, points: none, paths: stepped },
        { scale: "replicas", stroke: bounds, width: 1.5, dash: [2, 3], points: none, paths: stepped },
        { scale: "replicas", stroke: bounds, width: 1.5, dash: [2, 3], points: none, paths: stepped },
        { scale: "load", stroke: load, width: 1, dash: [1, 4], points: none },
        { scale: "replicas", stroke: current, width: 1, points: none, paths: stepped },
      ],
      bands: [{ series: [3, 2], fill: band }],
      hooks: {
        draw: [(plot) => this.#marks(plot)],
      },
    }, this.#data(), this.#node);
    // The slider's own name and value say what the picture shows.
    this.#plot.root.setAttribute("aria-hidden", "true");
    const { over } = this.#plot;
    over.addEventListener("mousemove", (event) => this.#pointed(event));
    over.addEventListener("mouseleave", () => { this.#standsUntil = 0; });
    over.addEventListener("click", (event) => {
      const index = this.#at(event);
      if (index !== undefined) this.#on.click(index);
    });
  }

  // The decision at the place of an event.
  #at(event) {
    const { left } = this.#plot.over.getBoundingClientRect();
    return this.#rows.of[this.#plot.posToIdx(event.clientX - left)];
  }

  // Browsers send such events for a pointer that rests, too, when something moves below it.
  #pointed(event) {
    const place = `${event.clientX} ${event.clientY}`;
    if (place === this.#pointer) return;
    this.#pointer = place;
    this.#standsUntil = performance.now() + STANDS_MS;
    const index = this.#at(event);
    if (index !== undefined && index !== this.#chosen) this.#on.point(index);
  }

  // A mark where each decision was first made, of another shape for each outcome.
  #marks(plot) {
    const { ctx } = plot;
    const { x, desired, of } = this.#rows;
    const size = 4.5 * uPlot.pxRatio;
    ctx.save();
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.rect(plot.bbox.left, plot.bbox.top - size, plot.bbox.width, plot.bbox.height + 2 * size);
    ctx.clip();
    for (let at = 0; at < x.length; at += 1) {
      const index = of[at];
      if (at > 0 && of[at - 1] === index) continue;
      const left = plot.valToPos(x[at], "x", true);
      const top = desired[at] === null ? plot.bbox.top + plot.bbox.height - size : plot.valToPos(desired[at], "replicas", true);
      const outcome = turn(this.#decisions[index]);
      ctx.strokeStyle = ctx.fillStyle = color(outcome);
      ctx.lineWidth = 2 * uPlot.pxRatio;
      ctx.beginPath();
      shape(ctx, outcome, left, top, size);
      if (index === this.#chosen) {
        ctx.beginPath();
        ctx.strokeStyle = color("text");
        ctx.arc(left, top, size * 2, 0, 7);
        ctx.moveTo(left, plot.bbox.top);
        ctx.lineTo(left, plot.bbox.top + plot.bbox.height);
        ctx.lineWidth = uPlot.pxRatio;
        ctx.stroke();
      }
    }
    ctx.restore();
  }
}

function shape(ctx, outcome, left, top, size) {
  const path = (points) => points.forEach(([x, y], index) => ctx[index ? "lineTo" : "moveTo"](left + x * size, top + y * size));
  if (outcome === "failed") {
    path([[-1, -1], [1, 1]]);
    path([[1, -1], [-1, 1]]);
    ctx.stroke();
    return;
  }
  if (outcome === "up") path([[-1.2, 1], [1.2, 1], [0, -1.2]]);
  else if (outcome === "down") path([[-1.2, -1], [1.2, -1], [0, 1.2]]);
  else if (outcome === "held") path([[-1, -1], [1, -1], [1, 1], [-1, 1]]);
  else ctx.arc(left, top, size * 0.8, 0, 7);
  ctx.fill();
}
