// The story of a decision, from its fields (docs/decisions.md).

import { moment, plain, utc, zone } from "./text.js";

const REASONS = {
  MetricRecommendation: "The metric that asks for most proposes it.",
  WithinTolerance: "The metrics ask for the replicas that there are.",
  Stabilized: "A stabilization window holds the replicas.",
  PolicyLimited: "Policies limit how fast it may change.",
  ReplicaLimit: "minReplicas or maxReplicas limits it.",
  Schedule: "A schedule's bound limits it.",
  InvalidMetrics: "Metrics failed, and no replica is removed on a guess.",
  RecommendationFailed: "No decision was possible.",
  Fallback: "The metrics failed for a while, and the fallback applies.",
  Forecast: "The forecast asks for it.",
  Frozen: "An administrator has frozen all scales.",
  Observed: "It is only shown: Plimsoll does not execute it.",
};

const CONSTRAINTS = {
  ScaleUpStabilized: "The scale-up stabilization window",
  ScaleDownStabilized: "The scale-down stabilization window",
  ScaleUpLimit: "The scale-up policies",
  ScaleDownLimit: "The scale-down policies",
  TooFewReplicas: "minReplicas",
  TooManyReplicas: "maxReplicas",
  ScheduleMinReplicas: "minReplicas of a schedule",
  ScheduleMaxReplicas: "maxReplicas of a schedule",
  PodsNotKnown: "Pods that are not known yet",
  MetricsWereAway: "Metrics without values until lately",
  RollingOut: "A rollout",
  Fallback: "The fallback",
};

// Constraints whose sentence says all: the reason of a decision has no word of its own for them.
const HOLDS = ["PodsNotKnown", "MetricsWereAway", "RollingOut"];

const NOT_CARRIED_OUT = {
  NoDecision: "there was no decision",
  WriteFailed: "the scale could not be written",
  Frozen: "all scales are frozen",
  Preview: "the mode is Preview",
  Paused: "the autoscaler is paused",
  Observed: "kube-controller-manager executes this autoscaler",
};

// What tells a metric from others, at whatever place of the spec.
export function identity({ name, scope, targetType }) {
  return JSON.stringify([name, scope, targetType]);
}

// The metric of a generated name (METRIC_HASH_NAMESPACE_AUTOSCALER), or the name as it is. The decisions of a report have
// no autoscaler.
function metricName(name, { metadata }) {
  if (!metadata) return /^(.+?)_[0-9a-f]{12}_/.exec(name)?.[1] ?? name;
  const end = `_${metadata.namespace}_${metadata.name.split(".").slice(0, -2).join(".")}`;
  const start = name.endsWith(end) ? name.slice(0, -end.length) : "";
  return /^(.+)_[0-9a-f]{12}$/.exec(start)?.[1] ?? name;
}

// The name of a metric as its owner wrote it, with what tells it from another of that name, as in the commands.
export function nameOf(metric, decision) {
  const short = metricName(metric.name, decision);
  const isShared = decision.metrics.filter((one) => metricName(one.name, decision) === short).length > 1;
  if (!isShared) return short;
  return metric.scope ? `${short} of ${metric.scope}` : metric.name;
}

export function constraint(one) {
  const name = CONSTRAINTS[one.type] ?? one.type;
  return one.schedule ? `${name} ${one.schedule}` : name;
}

// What became of a decision: up, down, held (it stays although a metric asks for a change), same or failed.
export function turn(decision) {
  const { currentReplicas: from, desiredReplicas: to, recommendedReplicas: asked } = decision;
  if (to === undefined || from === undefined) return "failed";
  if (to > from) return "up";
  if (to < from) return "down";
  return asked !== undefined && asked !== to ? "held" : "same";
}

// One line: what was decided.
export function head(decision) {
  const { currentReplicas: from, desiredReplicas: to, carriedOut } = decision;
  const how = turn(decision);
  if (how === "failed") return "No decision";
  if (how === "same" || how === "held") return `Stays at ${replicas(to)}`;
  const done = carriedOut?.written ? "Scaled" : "Would scale";
  return `${done} ${how} from ${from} to ${replicas(to)}`;
}

export function replicas(count) {
  return `${count} ${count === 1 ? "replica" : "replicas"}`;
}

// When it was, and how often in a row.
export function when(decision) {
  const { count, firstTime, lastTime } = decision;
  const at = `${moment(lastTime)} ${zone(lastTime)}`;
  // In UTC, too, as the commands tell it.
  const all = (first) => (zone(lastTime) === "UTC" ? "" : ` (${first}${utc(lastTime)})`);
  if (count > 1) return `${moment(firstTime)} to ${at}${all(`${utc(firstTime).slice(0, 8)} to `)}, ${count} times in a row`;
  return `${at}${all("")}`;
}

function unit(metric) {
  return metric.targetType === "Utilization" ? " %" : "";
}

function measured(metric) {
  const of = unit(metric);
  const isRange = metric.minValue !== undefined && metric.minValue !== metric.maxValue;
  const range = isRange ? ` (${plain(metric.minValue, of)} to ${plain(metric.maxValue, of)} in this run)` : "";
  const isAverage = metric.targetType === "AverageValue";
  // Without a ratio it is a total that there were no replicas to divide by.
  const isTotal = isAverage && metric.ratio === undefined;
  const average = isTotal ? " in all" : isAverage ? " per pod" : "";
  const target = metric.target === undefined ? "" : `, target ${plain(metric.target, of)}${isTotal ? " per pod" : ""}`;
  return `${plain(metric.value, of)}${average}${target}${range}`;
}

function ofMetric(metric, decision) {
  const name = nameOf(metric, decision);
  if (metric.status === "Invalid") {
    return `${name} failed: ${metric.message ?? metric.reason ?? "no reason was given"}`;
  }
  const asks = metric.proposedReplicas === undefined ? "" : `; it asks for ${replicas(metric.proposedReplicas)}`;
  return `${name} was ${measured(metric)}${asks}.`;
}

function ofSchedule(bound, schedule) {
  return schedule ? `${bound} of the schedule ${schedule}` : bound;
}

// What prevents other replicas, in the words of `kubectl plimsoll explain`.
function prevented(turn, isMore, decision) {
  const { basis, metrics = [] } = decision;
  const direction = isMore ? "scaleUp" : "scaleDown";
  const metric = metrics.find((one) => one.metricIndex === turn.preventedByMetric);
  switch (turn.preventedBy) {
    case "maxReplicas": return `${ofSchedule("maxReplicas", basis?.maxReplicasSchedule)} is ${basis?.maxReplicas}`;
    case "minReplicas": return `${ofSchedule("minReplicas", basis?.minReplicasSchedule)} is ${basis?.minReplicas}`;
    case "selectPolicy": return `selectPolicy of ${direction} is Disabled`;
    case "tolerance": return `no value leaves the tolerance of ${direction}`;
    case "metric":
      if (!metric) return "another metric asks for as many";
      if (metric.proposedReplicas === undefined) return `${nameOf(metric, decision)} fails, and no pod is removed on a guess`;
      return `${nameOf(metric, decision)} asks for ${metric.proposedReplicas}`;
    case "RollingOut": return "not during a rollout (spec.rollouts)";
    case "PodsNotKnown": return "not while the pods are not known yet";
    case "MetricsWereAway": return "not until the metrics have been available for as long as they were not";
    case "ScaleUpLimit":
    case "ScaleDownLimit": return `not while the policies of ${direction} allow none`;
    case "Frozen": return "not while all scales are frozen";
    default: return turn.preventedBy;
  }
}

// Decisions that want other replicas until they are carried out.
const OPEN = ["Preview", "WriteFailed", "Observed"];

// What is wanted already in a direction, in the words of `kubectl plimsoll explain`.
function wanted(isMore, { currentReplicas: from, desiredReplicas: to, recommendedReplicas: asked, carriedOut }) {
  const isSo = (count) => count !== undefined && (isMore ? count > from : count < from);
  if (!OPEN.includes(carriedOut?.reason) || from === undefined || !isSo(to)) return null;
  return isSo(asked) ? `the metrics ask for ${asked} already` : `${to} are desired already`;
}

// What the metric has to be for a turn: `metric` is the one that decides.
function turnOf(turn, isMore, metric, decision) {
  const isWanted = turn ? wanted(isMore, decision) : null;
  if (isWanted) return `One ${isMore ? "more" : "fewer"}: ${isWanted}.`;
  if (!turn || turn.replicas === undefined) {
    return turn?.preventedBy ? `One ${isMore ? "more" : "fewer"}: no, ${prevented(turn, isMore, decision)}.` : null;
  }
  const value = turn.value === undefined ? "" : ` if ${metric ? nameOf(metric, decision) : "the metric"} is ${plain(turn.value, metric ? unit(metric) : "")} or ${isMore ? "more" : "less"}`;
  const others = (metric?.pods?.unready ?? 0) + (metric?.pods?.missing ?? 0);
  if (others > 0) return `It would be ${replicas(turn.replicas)}${value}, once all pods are ready and have a sample.`;
  const soon = turn.earliest && new Date(turn.earliest) > Date.now() ? `, from ${moment(turn.earliest)}` : "";
  return `It would be ${replicas(turn.replicas)}${value}${soon}.`;
}

// What kube-controller-manager decided meanwhile.
function observation({ observed, desiredReplicas }) {
  const theirs = observed.desiredReplicas;
  if (theirs === undefined) return `kube-controller-manager could not decide: ${observed.conditions || "it does not say why"}.`;
  if (theirs === desiredReplicas) return `kube-controller-manager decided the same: ${replicas(theirs)}.`;
  const measured = observed.values ? `, as it measured ${observed.values}` : "";
  return `kube-controller-manager decided otherwise: ${replicas(theirs)}${measured}.`;
}

// Why the decision is as it is, if nothing else in the story says so.
function reason({ reason, carriedOut, constraints }) {
  // A workload at zero that only its owner scales is not paused: nothing was to be carried out.
  if (reason === "Paused") {
    return carriedOut?.reason === "Paused" ? "The autoscaler is paused." : "It stays at zero: only its owner scales it up from there.";
  }
  return HOLDS.includes(constraints?.at(-1)?.type) ? undefined : REASONS[reason];
}

// How old the last decision may be, in periods and at least in ms, to tell of the present: as in the commands.
const STALE_PERIODS = 4;
const STALE_MS = 300_000;

// Whether what would change the last decision would do so now: it is that of a moment ago.
export function isPresent({ lastTime }, now, period) {
  return now - new Date(lastTime) <= Math.max(STALE_PERIODS * period, STALE_MS);
}

// The sentences of the story, in the order of the decision. What would change it is told of the present alone: what
// would have changed an earlier one is not what would now.
export function sentences(decision, isNow) {
  const told = [];
  if (decision.message) told.push(decision.message);
  const metrics = decision.metrics ?? [];
  const used = metrics.filter((metric) => metric.status === "Used");
  const others = metrics.filter((metric) => metric.status !== "Used");
  told.push(...[...used, ...others].map((metric) => ofMetric(metric, decision)));
  if (decision.metricsLeftOut) told.push(`${decision.metricsLeftOut} more metrics are not shown here: kubectl plimsoll explain has them.`);
  const why = reason(decision);
  if (why) told.push(why);
  for (const one of decision.constraints ?? []) {
    const until = one.until ? `, until ${moment(one.until)}` : "";
    told.push(`${constraint(one)}: ${one.replicasAfter} instead of ${one.replicasBefore}${until}.`);
  }
  const { carriedOut, wouldChange, observed } = decision;
  if (carriedOut?.written) {
    told.push(`${carriedOut.by === "plimsoll" ? "Plimsoll" : carriedOut.by} wrote the scale.`);
  } else if (NOT_CARRIED_OUT[carriedOut?.reason]) {
    told.push(`Not written: ${NOT_CARRIED_OUT[carriedOut.reason]}.`);
  }
  if (observed) told.push(observation(decision));
  if (!isNow) return told;
  const metric = metrics.find((one) => one.metricIndex === wouldChange?.metricIndex);
  const turns = [turnOf(wouldChange?.more, true, metric, decision), turnOf(wouldChange?.fewer, false, metric, decision)];
  told.push(...turns.filter((sentence) => sentence !== null));
  return told;
}
