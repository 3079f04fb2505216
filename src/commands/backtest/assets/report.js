// The page of a backtest: the data of the file, its charts, and the account of each decision.

const page = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);

const HEIGHT = 380;
const HEIGHT_OF_DIFFERENCE = 140;
const LANE = 6;
const FIRST_ROWS = 100;
const MORE_ROWS = 100;
const DIFFERENCES = 10;

const slots = page.candidates[0].wanted.length;
const times = Array.from({ length: slots }, (_, index) => page.from + index * page.step);
const names = page.candidates.map((one) => one.name);
const shown = page.candidates.map(() => true);

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: "UTC" });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", timeZone: "UTC" });
const whole = new Intl.DateTimeFormat("en", { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZone: "UTC" });
const written = (seconds) => `${whole.format(seconds * 1000)} UTC`;
const iso = (seconds) => new Date(seconds * 1000).toISOString();

// The last index whose value is not greater.
function before(length, value, at) {
  let [low, high] = [-1, length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (at(middle) <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

const slotOf = (time) => Math.min(Math.max(Math.floor((time - page.from) / page.step), 0), slots - 1);

// A decision as the API of decisions shows it, from a row of the data.
function decisionOf(candidate, row) {
  const [after, basis, current, recommended, desired, reason, metrics, constraints, message] = row;
  const bounds = candidate.bases[basis];
  const absent = (value) => value ?? undefined;
  const quantity = (value, metric) => (value === null ? undefined : metric.type === "Utilization" ? `${value}%` : `${value}m`);
  // Without replicas a value is a total, which has none.
  const ratio = (value, metric) => (value === null || current === 0 ? undefined : number(quantity(value, metric)) / number(metric.target));
  return {
    firstTime: iso(page.from + after),
    lastTime: iso(page.from + after),
    count: 1,
    currentReplicas: absent(current),
    recommendedReplicas: absent(recommended),
    desiredReplicas: absent(desired),
    reason: page.reasons[reason],
    message: page.texts[message],
    metrics: metrics.map(([status, proposed, value, ready, unready, missing, ignored, why], index) => {
      const metric = candidate.metrics[index];
      return {
        name: metric.name, scope: absent(metric.scope), status: page.statuses[status], targetType: metric.type, target: metric.target,
        value: quantity(value, metric), ratio: ratio(value, metric), proposedReplicas: absent(proposed), message: page.texts[why],
        pods: { ready, unready, missing, ignored },
      };
    }),
    constraints: constraints.map(([kind, from, to, until]) => ({
      type: page.constraints[kind], replicasBefore: from, replicasAfter: to,
      schedule: absent({ ScheduleMinReplicas: bounds.schedules[0], ScheduleMaxReplicas: bounds.schedules[1] }[page.constraints[kind]]),
      until: until === null ? undefined : iso(page.from + until),
    })),
    basis: { minReplicas: bounds.min, maxReplicas: bounds.max },
  };
}

const PODS = [["ready", "ready"], ["unready", "not ready yet"], ["missing", "without a sample"], ["ignored", "ignored"]];

function podsOf(decision) {
  const pods = decision.metrics[0]?.pods;
  const counts = PODS.filter(([name]) => pods?.[name] > 0).map(([name, words]) => `${pods[name]} ${words}`);
  return counts.length === 0 ? [] : [`Pods that it was measured of: ${counts.join(", ")}.`];
}

const did = (decision) => head(decision).replace("Would scale", "Scaled");

function why(decision) {
  return [...sentences(decision), ...podsOf(decision)];
}

// The changes of all candidates, in their order.
const changes = page.candidates.flatMap((candidate, of) =>
  candidate.decisions.filter((row) => row[4] !== null && row[4] !== row[2]).map((row) => ({ time: page.from + row[0], of, row })));
changes.sort((a, b) => a.time - b.time || a.of - b.of);

// The parts in which candidates want other replicas than the first one.
function parts(of) {
  const [first, other] = [page.candidates[0].wanted, page.candidates[of].wanted];
  const found = [];
  let part = null;
  for (let index = 0; index < slots; index += 1) {
    const difference = other[index] - first[index];
    if (part && Math.sign(difference) !== Math.sign(part.most)) part = null;
    if (difference === 0) continue;
    if (!part) found.push((part = { of, from: index, to: index, most: 0, podHours: 0, at: index }));
    part.to = index;
    part.podHours += (difference * page.step) / 3600;
    if (Math.abs(difference) > Math.abs(part.most)) Object.assign(part, { most: difference, at: index });
  }
  return found;
}

function timeOfDay(split, index, splits) {
  const date = new Date(split * 1000);
  const isNewDay = index === 0 || new Date(splits[index - 1] * 1000).getUTCDate() !== date.getUTCDate();
  const isMidnight = date.getUTCHours() === 0 && date.getUTCMinutes() === 0;
  if (isMidnight) return day.format(date);
  return isNewDay ? `${day.format(date)} ${clock.format(date)}` : clock.format(date);
}

const signed = (value) => (value > 0 ? `+${value}` : String(value));

class Report {
  #plot = null;
  #difference = null;
  #metric = 0;
  #time = page.from;
  #span = null;
  #limit = FIRST_ROWS;
  #frame = null;

  constructor() {
    this.#controls();
    this.#legend();
    this.#make();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#make());
    new ResizeObserver(() => this.#resize()).observe(find("chart"));
    find("chart").addEventListener("keydown", (event) => this.#key(event));
    find("more").addEventListener("click", () => this.#showMore());
    this.#tellDifferences();
    this.#choose(changes[0]?.time ?? page.from);
    this.#tellChanges();
  }

  #controls() {
    names.forEach((name, of) => {
      const button = element("button", { type: "button", "aria-pressed": "true" }, element("span", { class: `swatch of${of}`, "aria-hidden": "true" }), name);
      button.addEventListener("click", () => {
        shown[of] = !shown[of];
        button.setAttribute("aria-pressed", String(shown[of]));
        this.#make();
        this.#choose(this.#time);
        this.#tellChanges();
      });
      find("shown").append(button);
    });
    const zooms = [["Zoom in", () => this.#zoom(0.5)], ["Zoom out", () => this.#zoom(2)], ["Earlier", () => this.#move(-0.5)],
      ["Later", () => this.#move(0.5)], ["All", () => this.#setSpan(null)]];
    for (const [title, act] of zooms) {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", act);
      find("zoom").append(button);
    }
    page.loads.forEach(({ name }, index) => find("metric").append(element("option", { value: index }, name)));
    find("metric-choice").hidden = page.loads.length < 2;
    find("metric").addEventListener("change", (event) => { this.#metric = Number(event.target.value); this.#make(); });
  }

  #legend() {
    const keys = [["key area", "Load (left axis)"], ...names.flatMap((name, of) => [[`key of${of}`, `${name}: ready (right axis)`], [`key dashed of${of}`, `${name}: wanted`]]),
      ["key dashed", page.isNeedShared ? "Needed pods (right axis)" : "Needed pods of each (right axis, thin)"],
      ...(page.was.length > 0 ? [["key was", "Replicas that there were (right axis)"]] : []),
      ["key short", "Fewer ready than needed (marks at the bottom, in the color of each)"], ["key low", "Low confidence"]];
    for (const [classes, title] of keys) {
      find("legend").append(element("li", {}, element("span", { class: classes, "aria-hidden": "true" }), ` ${title}`));
    }
  }

  #width() {
    return Math.max(240, find("chart").clientWidth);
  }

  #resize() {
    this.#plot?.setSize({ width: this.#width(), height: HEIGHT });
    this.#difference?.setSize({ width: this.#width(), height: HEIGHT_OF_DIFFERENCE });
  }

  // The columns of the chart with how each is drawn; those of hidden candidates are left out.
  #series() {
    const stepped = uPlot.paths.stepped({ align: 1 });
    const replicas = { scale: "replicas", points: { show: false }, paths: stepped, spanGaps: false };
    const load = page.loads[this.#metric];
    const [line, area, text] = ["line-of-load", "area", "text"].map(color);
    const all = [
      [load.high, { scale: "load", stroke: line, width: 1, fill: area, points: { show: false } }],
      [load.low, { scale: "load", stroke: line, width: 1, points: { show: false } }],
    ];
    page.candidates.forEach((candidate, of) => {
      if (!shown[of]) return;
      const stroke = color(`c${of}`);
      if (!page.isNeedShared) all.push([candidate.needed, { ...replicas, stroke, width: 1, dash: [1, 3] }]);
      all.push([candidate.wanted, { ...replicas, stroke, width: 1.25, dash: [6, 4] }]);
      all.push([candidate.ready, { ...replicas, stroke, width: 2 }]);
    });
    if (page.was.length > 0) all.push([page.was, { ...replicas, stroke: text, width: 3 }]);
    if (page.isNeedShared) all.push([page.candidates[0].needed, { ...replicas, stroke: text, width: 1.25, dash: [2, 3] }]);
    return all;
  }

  #axes() {
    const [text, grid] = ["muted", "grid"].map(color);
    return { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  }

  #make() {
    const axis = this.#axes();
    const none = { show: false };
    const fromZero = (plot, low, high) => [Math.min(0, low ?? 0), high === null || high <= 0 ? 1 : high * 1.08];
    const integers = (plot, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : ""));
    const x = { time: true, range: (plot, low, high) => this.#span ?? [times[0], times[slots - 1] + page.step] };
    const tzDate = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
    const splitsOfTime = { ...axis, space: 80, values: (plot, splits) => splits.map(timeOfDay) };
    const all = this.#series();
    this.#plot?.destroy();
    this.#plot = new uPlot({
      width: this.#width(), height: HEIGHT, tzDate, legend: none,
      cursor: { drag: { x: true, y: false, setScale: false }, points: none, y: false, bind: { dblclick: () => () => this.#setSpan(null) } },
      scales: { x, load: { range: fromZero }, replicas: { range: fromZero } },
      axes: [splitsOfTime, { ...axis, scale: "load", size: 60, grid: none }, { ...axis, scale: "replicas", side: 1, size: 45, values: integers }],
      series: [{}, ...all.map(([, series]) => series)],
      hooks: {
        drawClear: [(plot) => this.#shade(plot)],
        draw: [(plot) => { this.#lanes(plot); this.#cursor(plot); }],
        setCursor: [(plot) => this.#pointed(plot)],
        setSelect: [(plot) => this.#selected(plot)],
      },
    }, [times, ...all.map(([values]) => values)], find("chart"));
    this.#plot.root.setAttribute("aria-hidden", "true");
    this.#makeDifference(axis, x, tzDate, splitsOfTime, integers);
  }

  #makeDifference(axis, x, tzDate, splitsOfTime, integers) {
    this.#difference?.destroy();
    this.#difference = null;
    const others = page.candidates.map((_, of) => of).filter((of) => of > 0 && shown[of]);
    find("difference").hidden = others.length === 0;
    if (others.length === 0) return;
    const none = { show: false };
    const paths = uPlot.paths.stepped({ align: 1 });
    const first = page.candidates[0].wanted;
    const data = others.map((of) => page.candidates[of].wanted.map((wanted, index) => wanted - first[index]));
    const range = (plot, low, high) => [Math.min(low ?? 0, -1), Math.max(high ?? 0, 1)];
    this.#difference = new uPlot({
      width: this.#width(), height: HEIGHT_OF_DIFFERENCE, tzDate, legend: none,
      cursor: { drag: { x: true, y: false, setScale: false }, points: none, y: false, bind: { dblclick: () => () => this.#setSpan(null) } },
      scales: { x, pods: { range } },
      // The scale of the chart above has an axis on each side.
      axes: [splitsOfTime, { ...axis, scale: "pods", size: 60, values: integers }, { ...axis, scale: "pods", side: 1, size: 45, grid: none, values: integers }],
      series: [{}, ...others.map((of) => ({ scale: "pods", stroke: color(`c${of}`), fill: color("area"), fillTo: 0, width: 1.5, paths, points: none }))],
      hooks: { draw: [(plot) => this.#cursor(plot)], setCursor: [(plot) => this.#pointed(plot)], setSelect: [(plot) => this.#selected(plot)] },
    }, [times, ...data], find("difference"));
    this.#difference.root.setAttribute("aria-hidden", "true");
  }

  // The parts of low confidence, below the lines.
  #shade(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = color("low");
    for (const [from, to] of page.low) {
      const [left, right] = [from, to].map((time) => Math.min(Math.max(plot.valToPos(time, "x", true), bbox.left), bbox.left + bbox.width));
      if (right > left) ctx.fillRect(left, bbox.top, Math.max(right - left, 1), bbox.height);
    }
    ctx.restore();
  }

  // Where fewer pods are ready than needed: a row of marks for each candidate.
  #lanes(plot) {
    const { ctx, bbox } = plot;
    const height = LANE * uPlot.pxRatio;
    const { min, max } = plot.scales.x;
    ctx.save();
    page.candidates.filter((_, of) => shown[of]).forEach((candidate, row) => {
      ctx.fillStyle = color(`c${page.candidates.indexOf(candidate)}`);
      const top = bbox.top + bbox.height - (row + 1) * height;
      for (let index = slotOf(min); index <= slotOf(max); index += 1) {
        if (!(candidate.short[index] > 0)) continue;
        const start = index;
        while (index < slots - 1 && candidate.short[index + 1] > 0) index += 1;
        const left = Math.max(plot.valToPos(times[start], "x", true), bbox.left);
        const right = Math.min(plot.valToPos(times[index] + page.step, "x", true), bbox.left + bbox.width);
        if (right > left) ctx.fillRect(left, top, Math.max(right - left, uPlot.pxRatio), height - uPlot.pxRatio);
      }
    });
    ctx.restore();
  }

  // The time that is chosen.
  #cursor(plot) {
    const { ctx, bbox } = plot;
    const left = plot.valToPos(this.#time, "x", true);
    if (left < bbox.left || left > bbox.left + bbox.width) return;
    ctx.save();
    ctx.setLineDash([]);
    ctx.strokeStyle = color("text");
    ctx.lineWidth = uPlot.pxRatio;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  #pointed(plot) {
    const { left } = plot.cursor;
    // A programmatic move of the cursor has no event.
    if (left < 0 || !plot.cursor.event) return;
    this.#choose(plot.posToVal(left, "x"));
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const span = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#setSpan(span);
  }

  #range() {
    return this.#span ?? [times[0], times[slots - 1] + page.step];
  }

  // Shows a part of the time; null is all of it.
  #setSpan(span) {
    const [first, last] = [times[0], times[slots - 1] + page.step];
    if (span !== null) {
      const width = Math.min(Math.max(span[1] - span[0], 4 * page.step), last - first);
      const from = Math.min(Math.max(span[0], first), last - width);
      this.#span = width >= last - first ? null : [from, from + width];
    } else {
      this.#span = null;
    }
    for (const plot of [this.#plot, this.#difference]) {
      const [min, max] = this.#range();
      plot?.setScale("x", { min, max });
    }
    this.#limit = FIRST_ROWS;
    this.#frame ??= requestAnimationFrame(() => { this.#frame = null; this.#tellChanges(); });
  }

  #zoom(by) {
    const [from, to] = this.#range();
    const middle = this.#time >= from && this.#time <= to ? this.#time : (from + to) / 2;
    this.#setSpan([middle - (middle - from) * by, middle + (to - middle) * by]);
  }

  #move(by) {
    const [from, to] = this.#range();
    this.#setSpan([from + (to - from) * by, to + (to - from) * by]);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const all = changes.filter(({ of }) => shown[of]);
    const next = () => all.find(({ time }) => time > this.#time + 0.001);
    const last = () => all.findLast(({ time }) => time < this.#time - 0.001);
    const moves = { ArrowLeft: last, ArrowDown: last, ArrowRight: next, ArrowUp: next, Home: () => all[0], End: () => all.at(-1) };
    const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
    if (zooms[event.key]) this.#zoom(zooms[event.key]);
    else if (moves[event.key]) this.#goTo(moves[event.key]()?.time);
    else return;
    event.preventDefault();
  }

  // Chooses a time, and shows it.
  #goTo(time) {
    if (time === undefined) return;
    const [from, to] = this.#range();
    if (time < from || time > to) this.#setSpan([time - (to - from) / 2, time + (to - from) / 2]);
    this.#choose(time);
  }

  #choose(time) {
    this.#time = Math.min(Math.max(time, times[0]), times[slots - 1] + page.step);
    const slot = slotOf(this.#time);
    const was = page.was[slot] ?? null;
    setText(find("story-when"), written(this.#time) + (was === null ? "" : `; there were ${replicas(was)}`));
    const of = [];
    const spoken = [written(this.#time)];
    page.candidates.forEach((candidate, index) => {
      if (!shown[index]) return;
      const { decisions } = candidate;
      const at = before(decisions.length, this.#time - page.from + 0.0005, (row) => decisions[row][0]);
      const decision = at < 0 ? null : decisionOf(candidate, decisions[at]);
      const needed = candidate.needed[slot] ?? "unknown";
      const state = `At this time: ${needed} needed, ${candidate.ready[slot]} ready, ${candidate.wanted[slot]} desired`;
      const title = element("h3", {}, element("span", { class: `swatch of${index}`, "aria-hidden": "true" }), candidate.name);
      of.push(title, element("p", { class: "state" }, `${state}.`));
      if (decision === null) {
        of.push(element("p", {}, "No decision yet."));
        return;
      }
      const said = `${written(page.from + decisions[at][0])}: ${did(decision)}`;
      of.push(element("p", { class: "head" }, said), element("ul", {}, ...why(decision).map((sentence) => element("li", {}, sentence))));
      spoken.push(`${candidate.name}: ${state}; ${did(decision)}`);
    });
    find("story-of").replaceChildren(...of);
    const chart = find("chart");
    chart.setAttribute("aria-valuemin", Math.round(times[0]));
    chart.setAttribute("aria-valuemax", Math.round(times[slots - 1] + page.step));
    chart.setAttribute("aria-valuenow", Math.round(this.#time));
    chart.setAttribute("aria-valuetext", spoken.join(". "));
    this.#plot?.redraw(false, false);
    this.#difference?.redraw(false, false);
  }

  #tellDifferences() {
    if (page.candidates.length < 2) {
      setText(find("difference-title"), "Difference of replicas");
      setText(find("difference-none"), "There is one candidate: give -f another one to compare it with.");
      find("differences").parentElement.hidden = true;
      return;
    }
    setText(find("difference-title"), `Difference of desired replicas against ${names[0]}`);
    const all = page.candidates.flatMap((_, of) => (of > 0 ? parts(of) : []));
    all.sort((a, b) => Math.abs(b.podHours) - Math.abs(a.podHours));
    const most = all.slice(0, DIFFERENCES);
    const rows = most.map(({ of, from, to, most, podHours, at }) => [
      this.#button(`${written(times[from])}`, times[at], [times[from] - (to - from + 10) * page.step, times[to] + (to - from + 10) * page.step]),
      written(times[to] + page.step), names[of], signed(most), signed(Math.round(podHours * 10) / 10)]);
    fill(find("differences"), ["From", "To", "Candidate", "Most replicas", "Replica-hours"], rows, "None: they want the same replicas all the time.");
    const note = all.length > DIFFERENCES ? `The ${DIFFERENCES} parts of ${all.length} with the largest difference in replica-hours:` : "";
    setText(find("difference-none"), note);
  }

  // A time that leads into the chart.
  #button(text, time, span) {
    const button = element("button", { type: "button", class: "link" }, text);
    button.addEventListener("click", () => {
      if (span) this.#setSpan(span);
      this.#goTo(time);
      find("chart").focus();
    });
    return button;
  }

  #tellChanges() {
    const [from, to] = this.#range();
    const all = changes.filter(({ time, of }) => shown[of] && time >= from && time <= to);
    const rows = all.slice(0, this.#limit).map(({ time, of, row }) => {
      const decision = decisionOf(page.candidates[of], row);
      return [this.#button(written(time), time), names[of], did(decision), why(decision).join(" ")];
    });
    fill(find("changes"), ["Time", "Candidate", "Change", "Why"], rows, "None.");
    setText(find("changes-count"), `${Math.min(this.#limit, all.length)} of ${all.length} changes, from ${written(from)} to ${written(to)}${page.isThinned ? " (some of the changes are left out: see Assumptions)" : ""}`);
    find("more").hidden = all.length <= this.#limit;
  }

  #showMore() {
    const shownBefore = this.#limit;
    this.#limit += MORE_ROWS;
    this.#tellChanges();
    find("changes").tBodies[0].rows[shownBefore]?.querySelector("button")?.focus();
  }
}

new Report();
