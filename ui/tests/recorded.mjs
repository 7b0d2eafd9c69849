// What the nodes of the imagined cluster recorded: their work.
import { NOW } from "./fixtures.mjs";

const MINUTE = 60_000;
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
