// What the nodes of the imagined cluster recorded: their work, reports of it and baselines.
import { NOW, history, events } from "./fixtures.mjs";

const MINUTE = 60_000;
const CELLS_MAX = 7_000;
/** Nobody recorded this time, in milliseconds before now. */
export const GAP = [25 * MINUTE, 18 * MINUTE];
/** The record of a node begins so long ago. */
const KEPT = 5 * 86_400_000;

const wave = (at, period) => (1 + Math.sin((2 * Math.PI * at) / period)) / 2;
const isRecorded = (end, now) => end > now - KEPT && end <= now && !(end > now - GAP[0] && end <= now - GAP[1]);

/** Work of a primary in a step; `size` says how busy it is. */
function work(at_ms, step_ms, size, others) {
  const seconds = step_ms / 1000;
  // From 40 to 30 minutes ago the journal of the last replica was slow.
  const isSlow = at_ms > NOW - 40 * MINUTE && at_ms <= NOW - 30 * MINUTE;
  const writes = Math.round(size * (900 + 700 * wave(at_ms, 37 * MINUTE)) * seconds);
  const reads = Math.round(size * (400 + 500 * wave(at_ms, 61 * MINUTE)) * seconds);
  const mean = isSlow ? 9_400 : 620 + Math.round(90 * wave(at_ms, 11 * MINUTE));
  const slowest = mean - 120;
  const load = (count, bytes, mean_us) => ({ count, bytes: count * bytes, time_us: count * mean_us, p50_us: Math.round(mean_us * 0.8), p95_us: Math.round(mean_us * 1.6), p99_us: Math.round(mean_us * 2.4), histogram: [0, 0, count] });
  const stage = (mean_us) => ({ count: Math.round(writes / 3), time_us: Math.round(writes / 3) * mean_us });
  const last = others[others.length - 1];
  return {
    primary_ms: step_ms,
    reads: load(reads, 16_384, 210),
    writes: load(writes, 16_384, mean),
    flushes: load(Math.round(writes / 6), 0, 12),
    journal: stage(180),
    commit: stage(slowest),
    read: stage(205),
    peers: others.map((node) => ({ node, acknowledged: stage(node === last ? slowest : 390), lag_bytes: isSlow && node === last ? 3_400_000 : undefined })),
    isSlow,
    waits: { [`journal of ${last}`]: writes * (isSlow ? 8_900 : 170), [`network to ${last}`]: writes * 210, queue: writes * 90, commit: writes * 30, "reads of the disk of n1": reads * 190, "reads behind writes": reads * 20 },
  };
}

/** Answer to `GET /v1/load`. */
export function load(query, status) {
  const [from_ms, to_ms, step_ms] = ["from_ms", "to_ms", "step_ms"].map((name) => Number(query.get(name)));
  const now = Date.now();
  const node = query.get("node");
  const wanted = query.get("resources")?.split(",") ?? [];
  const points = [];
  for (let at_ms = from_ms; at_ms < to_ms; at_ms += step_ms) {
    const ends = Array.from({ length: step_ms / MINUTE }, (_none, number) => at_ms + (number + 1) * MINUTE);
    const minutes = ends.filter((end) => isRecorded(end, now)).length;
    if (minutes === 0) continue;
    const resources = status.resources.filter((one) => wanted.includes(one.name) && one.primary === node).map((one) => ({ resource: one.name, ...work(at_ms, minutes * MINUTE, 1, one.replicas.map((other) => other.node).filter((other) => other !== node)), waits: [] }));
    points.push({ at_ms, covered_ms: minutes * MINUTE, agent_cpu_us: 1, engine_cpu_us: 2, agent_memory_bytes: 3, engine_memory_bytes: 4, pool_size_bytes: 5, pool_free_bytes: 5, resources });
  }
  return { node, from_ms, to_ms, step_ms, since_ms: now - KEPT, points };
}

const nothing = () => ({ count: 0, time_us: 0, p50_us: 0, p95_us: 0, p99_us: 0, histogram: [] });

function sum(points) {
  const add = (kind) => {
    const all = points.map((point) => point[kind]);
    const total = (of) => all.reduce((one, load) => one + (load[of] ?? 0), 0);
    const most = (of) => Math.max(0, ...all.map((load) => load[of]));
    return { ...nothing(), count: total("count"), bytes: total("bytes"), time_us: total("time_us"), p50_us: most("p50_us"), p95_us: most("p95_us"), p99_us: most("p99_us") };
  };
  const waits = {};
  for (const point of points) for (const [name, us] of Object.entries(point.waits)) waits[name] = (waits[name] ?? 0) + us;
  const all = (of) => points.reduce((one, point) => one + point[of], 0);
  return { covered_ms: all("covered_ms"), primary_ms: all("primary_ms"), reads: add("reads"), writes: add("writes"), waits, copied_bytes: all("copied_bytes"), times_slow: all("times_slow"), lag_bytes: Math.max(0, ...points.map((point) => point.lag_bytes)), journal_permille: 412, journal_node: "n1" };
}

/** A report, with figures that look like those of a cluster. */
function reportOf(status, from_ms, to_ms, { isEmpty, baseline, scale = 1 }) {
  const now = baseline ? Infinity : Date.now();
  let step_ms = Math.max(MINUTE, Math.ceil((to_ms - from_ms) / 60 / MINUTE) * MINUTE);
  while ((status.resources.length * (to_ms - from_ms)) / step_ms > CELLS_MAX) step_ms *= 2;
  const begins = [];
  for (let at = from_ms; at < to_ms; at += step_ms) begins.push(at);
  const recorded = (at) => (baseline ? true : isRecorded(Math.min(at + step_ms, to_ms), now + MINUTE));
  const resources = (isEmpty ? [] : status.resources).flatMap((one, place) => {
    const primary = one.primary;
    if (!primary) return [];
    const others = one.replicas.map((replica) => replica.node).filter((node) => node !== primary);
    const points = {};
    begins.forEach((at, number) => {
      if (!recorded(at)) return;
      const { reads, writes, waits, isSlow } = work(at, step_ms, (scale * 1) / (1 + place), others);
      const point = { covered_ms: step_ms, primary_ms: step_ms, reads: { ...reads, histogram: [] }, writes: { ...writes, histogram: [] }, waits, copied_bytes: isSlow && place === 0 ? 21_000_000 : 0, times_slow: 0, lag_bytes: 0, journal_permille: 0, journal_node: "" };
      points[number] = point;
    });
    const total = sum(Object.values(points));
    if (place === 0 && total.copied_bytes > 0) total.times_slow = 1;
    return [{ resource: one.name, primaries: { [primary]: to_ms - from_ms }, total, points }];
  });
  const nodes = (isEmpty ? [] : status.cluster.nodes)
    .filter((node) => node.status === "alive")
    .map((node, place) => {
      const points = {};
      const free = (number) => Math.round((400 - 30 * place - (number / begins.length) * 6) * 2 ** 30);
      begins.forEach((at, number) => recorded(at) && (points[number] = [Math.round(80 + 60 * wave(at, 37 * MINUTE)) + 40 * place, free(number)]));
      return { node: node.name, covered_ms: to_ms - from_ms, engine_cpu_permille: 120, agent_cpu_permille: 8, engine_memory_bytes: 310 * 2 ** 20, agent_memory_bytes: 31 * 2 ** 20, pool_size_bytes: 800 * 2 ** 30, pool_free_bytes_first: free(0), pool_free_bytes: free(begins.length), points };
    });
  const missing = isEmpty
    ? status.cluster.nodes.map((node) => `${node.name}: it has no record of this time, and makes one a minute`)
    : status.cluster.nodes.filter((node) => node.status !== "alive").map((node) => `${node.name}: the node is dead`);
  const inside = ({ at_ms }) => at_ms > from_ms && at_ms <= to_ms;
  return { cluster: status.cluster.name, ...(baseline ? { baseline } : {}), from_ms, to_ms, step_ms, findings: [], resources, nodes, missing, changes: history(isEmpty).changes.filter(inside), events: events(isEmpty).filter((one) => one.severity !== "info" && inside(one)) };
}

const clock = (ms) => new Date(ms).toISOString().slice(11, 16);

function findings(report) {
  const first = report.resources[0];
  const found = [];
  if (first && report.to_ms - report.from_ms <= 86_400_000) {
    found.push(`The journal of n3 took 94 % of the waiting of ${first.resource} between ${clock(NOW - 40 * MINUTE)} and ${clock(NOW - 30 * MINUTE)}, when 12.6 requests waited on average.`);
    found.push(`Writes of ${first.resource} were slowest at ${clock(NOW - 34 * MINUTE)}: 99 % took at most 23 ms, and 1.6 ms as a rule.`);
    found.push(`A replica of ${first.resource} left the in-sync set once because it was slow.`);
  }
  for (const node of report.nodes.slice(0, 1)) found.push(`The pool of ${node.node} has 394 GiB free and lost 6 GiB: at this rate it is full in 2.7 days.`);
  found.push(...report.missing.map((text) => `No history came from ${text}.`));
  if (report.compared?.resources.length) found.push(`${first?.resource} had 2,014 requests a second, and 1,410 ${report.compared.baseline ? `in the baseline ${report.compared.baseline}` : "in the interval before"}.`);
  return found;
}

/** Answer to `GET /v1/report`; null for a baseline that there is not. */
export function report(query, status, isEmpty, baselines) {
  const kept = (name) => baselines.find((one) => one.name === name);
  const of = (name, from, to, scale) => {
    if (name === null) return reportOf(status, from, to, { isEmpty, scale });
    const one = kept(name);
    return one ? reportOf(status, one.from_ms, one.to_ms, { isEmpty: false, baseline: name, scale }) : null;
  };
  const [from, to] = [Number(query.get("from_ms")), Number(query.get("to_ms"))];
  const made = of(query.get("baseline"), from, to);
  if (!made) return null;
  const other = query.get("compare_from_ms");
  if (query.has("compare_baseline")) made.compared = of(query.get("compare_baseline"), 0, 0, 0.7);
  else if (other !== null) made.compared = of(null, Number(other), Number(other) + to - from, 0.7);
  if (made.compared === null) return null;
  made.findings = findings(made);
  return made;
}

export const baselines = (isEmpty) =>
  isEmpty
    ? []
    : [
        { name: "before-11-8", from_ms: NOW - 21 * 86_400_000, to_ms: NOW - 20 * 86_400_000, made_ms: NOW - 20 * 86_400_000, nodes: ["n1", "n2", "n3"], bytes: 1_730_000 },
        { name: "friday", from_ms: NOW - 3 * 86_400_000, to_ms: NOW - 3 * 86_400_000 + 3_600_000, made_ms: NOW - 2 * 86_400_000, nodes: ["n1", "n2"], bytes: 61_440 },
      ];
