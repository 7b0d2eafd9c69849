// What the nodes recorded of one resource, minute by minute (`GET /v1/load`), and one series of that and of what is measured
// while the page is open.
//
// Guarantees
// - A time of which no node has a record as primary is null: a gap, and no zero.
// - A node that does not tell its record costs its own part, and is named.
import { useEffect, useState } from "preact/hooks";
import * as api from "./api";
import { Problem } from "./api";
import type { Measured } from "./measure";
import type { Line } from "./plot";
import type { LoadPage, RequestLoad, ResourceLoad, StageLoad } from "./types";

const MINUTE_MS = 60_000;
/** Points of a span, unless they would be shorter than a minute. */
const POINTS = 240;
/** Nodes record each minute. */
const RELOAD_MS = 60_000;

export const SPANS: [string, number, string][] = [
  ["1h", 3_600_000, "1 hour"],
  ["8h", 8 * 3_600_000, "8 hours"],
  ["1d", 86_400_000, "1 day"],
  ["8d", 8 * 86_400_000, "8 days"],
];

type Values = Record<string, number | null>;

export interface Recorded {
  /** The span that was asked for, in seconds. */
  range: [number, number];
  step_s: number;
  /** Ends of the points, in seconds. */
  times: number[];
  /** By line; each has one value for each time. */
  lines: Map<string, (number | null)[]>;
  /** Times without a record, from and to in milliseconds, the longest first. */
  gaps: [number, number][];
  /** Nodes that did not tell their record, with the reason. */
  missing: string[];
}

interface Sum {
  primary_ms: number;
  loads: ResourceLoad[];
  lags: Map<string, number>;
}

const mean = (stages: (StageLoad | undefined)[]): number | null => {
  const [count, time] = stages.reduce(([count, time], one) => [count + (one?.count ?? 0), time + (one?.time_us ?? 0)], [0, 0]);
  return count > 0 ? time / count / 1000 : null;
};

function valuesOf({ primary_ms, loads, lags }: Sum): Values {
  const values: Values = {};
  const per_second = (of: (load: ResourceLoad) => number) => loads.reduce((sum, load) => sum + of(load), 0) / (primary_ms / 1000);
  const kinds: [string, (load: ResourceLoad) => RequestLoad | undefined][] = [
    ["read", (load) => load.reads],
    ["write", (load) => load.writes],
    ["flush", (load) => load.flushes],
  ];
  for (const [kind, of] of kinds) values[`iops ${kind}`] = per_second((load) => of(load)?.count ?? 0);
  for (const [kind, of] of kinds.slice(0, 2)) values[`bytes ${kind}`] = per_second((load) => of(load)?.bytes ?? 0);
  const peers = loads.flatMap((load) => load.peers ?? []);
  values["stage write, from request to answer"] = mean(loads.map((load) => load.writes));
  values["stage read, from request to answer"] = mean(loads.map((load) => load.reads));
  values["stage journal"] = mean(loads.map((load) => load.journal));
  values["stage network and journal of peers"] = mean(peers.map((peer) => peer.acknowledged));
  values["stage commit"] = mean(loads.map((load) => load.commit));
  values["ms journal of the primary"] = mean(loads.map((load) => load.journal));
  for (const node of new Set(peers.map((peer) => peer.node))) values[`ms answer of ${node}`] = mean(peers.filter((peer) => peer.node === node).map((peer) => peer.acknowledged));
  for (const [node, lag] of lags) values[`lag ${node}`] = lag;
  // A point of one node has percentiles; if the primary moved within it, the node with more requests has them.
  const busiest = (of: (load: ResourceLoad) => RequestLoad | undefined) => loads.map(of).reduce((one, other) => ((other?.count ?? 0) > (one?.count ?? 0) ? other : one), undefined);
  for (const [kind, of] of kinds.slice(0, 2)) {
    const requests = busiest(of);
    for (const [share, us] of [["50", requests?.p50_us], ["99", requests?.p99_us]] as const) values[`share ${kind}s, ${share} %`] = us === undefined ? null : us / 1000;
  }
  return values;
}

/** One record of those of all nodes. `to_ms` may be later than now: the last point is under way. */
export function gathered(pages: LoadPage[], from_ms: number, to_ms: number, step_ms: number, now_ms: number): Omit<Recorded, "missing"> {
  const step = Math.max(step_ms, ...pages.map((page) => page.step_ms));
  const total = Math.ceil((to_ms - from_ms) / step);
  const sums = new Map<number, Sum>();
  for (const page of pages) {
    for (const point of page.points) {
      const number = Math.floor((point.at_ms - from_ms) / step);
      for (const load of point.resources) {
        if (!load.primary_ms) continue;
        const sum: Sum = sums.get(number) ?? { primary_ms: 0, loads: [], lags: new Map() };
        sums.set(number, sum);
        sum.primary_ms += load.primary_ms;
        sum.loads.push(load);
        for (const peer of load.peers ?? []) sum.lags.set(peer.node, Math.max(peer.lag_bytes ?? 0, sum.lags.get(peer.node) ?? 0));
      }
    }
  }
  const end = (number: number) => Math.min(from_ms + (number + 1) * step, to_ms, now_ms);
  const points = Array.from({ length: total }, (_none, number) => sums.get(number));
  // The minute that is under way has no record yet, and neither has the one before it for a moment.
  const last = Math.max(...sums.keys());
  if (last >= 0 && now_ms - end(last) < 3 * MINUTE_MS) points.length = last + 1;
  const known = points.map((sum) => (sum ? valuesOf(sum) : null));
  const names = new Set(known.flatMap((values) => Object.keys(values ?? {})));
  return {
    range: [from_ms / 1000, Math.min(to_ms, now_ms) / 1000],
    step_s: step / 1000,
    times: points.map((_sum, number) => end(number) / 1000),
    lines: new Map([...names].map((name) => [name, known.map((values) => values?.[name] ?? null)])),
    gaps: gapsOf(points, (number) => from_ms + number * step, end),
  };
}

function gapsOf(points: (Sum | undefined)[], begin: (number: number) => number, end: (number: number) => number): [number, number][] {
  const gaps: [number, number][] = [];
  points.forEach((sum, number) => {
    if (sum) return;
    const last = gaps[gaps.length - 1];
    if (last && last[1] === begin(number)) last[1] = end(number);
    else gaps.push([begin(number), end(number)]);
  });
  return gaps.sort((a, b) => b[1] - b[0] - (a[1] - a[0]));
}

export interface Loading {
  recorded: Recorded | null;
  problem: Problem | null;
}

/** The record of a resource on these nodes, up to now, loaded again each minute. */
export function useRecorded(name: string, nodes: string[], span_ms: number): Loading {
  const [loaded, setLoaded] = useState<{ key: string; loading: Loading } | null>(null);
  const key = `${name} ${span_ms} ${nodes.join()}`;
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    const load = async () => {
      if (document.visibilityState === "visible") {
        const step_ms = Math.max(MINUTE_MS, Math.ceil(span_ms / POINTS / MINUTE_MS) * MINUTE_MS);
        // The points of one minute and the next have the same borders.
        const to_ms = Math.ceil(Date.now() / step_ms) * step_ms;
        const from_ms = to_ms - span_ms;
        const missing: string[] = [];
        let problem: Problem | null = null;
        const ask = async (node: string) => {
          try {
            const words = new URLSearchParams({ from_ms: String(from_ms), to_ms: String(to_ms), step_ms: String(step_ms), resources: name, node });
            return [(await api.get<LoadPage>(`/v1/load?${words}`, { signal: stop.signal })).body];
          } catch (error) {
            if (stop.signal.aborted) return [];
            if (!(error instanceof Problem)) throw error;
            problem = error;
            missing.push(`${node}: ${error.message}`);
            return [];
          }
        };
        const pages = (await Promise.all(nodes.map(ask))).flat();
        if (stop.signal.aborted) return;
        const isSilent = problem !== null && (problem as Problem).isSilence;
        // What was known stays on the page while the node does not answer.
        if (!isSilent) setLoaded({ key, loading: { recorded: { ...gathered(pages, from_ms, to_ms, step_ms, Date.now()), missing: missing.sort() }, problem: pages.length === 0 ? problem : null } });
      }
      timer = setTimeout(() => void load(), RELOAD_MS);
    };
    void load();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key]);
  return loaded?.key === key ? loaded.loading : { recorded: null, problem: null };
}

/** Lines with one name and their times. */
export interface Series {
  times: number[];
  lines: Line[];
}

/** The span that is shown: it ends with the newest value. */
export function range(recorded: Recorded, measured: Measured): [number, number] {
  const [from, to] = recorded.range;
  const end = Math.max(to, measured.times[measured.times.length - 1] ?? 0);
  return [end - (to - from), end];
}

/** Lines whose names begin with this: the record as far as nothing is measured, then the measurements. What is not measured
 * here is recorded alone. */
export function joined(prefix: string, recorded: Recorded, measured: Measured): Series {
  const live = measured.names(prefix).filter((name) => measured.line(name).some((value) => value !== null));
  const names = [...new Set([...recorded.lines.keys(), ...live])].filter((name) => name.startsWith(prefix));
  const begin = live.length > 0 ? measured.times[0]! : Infinity;
  const kept = recorded.times.filter((time) => time < begin).length;
  const before = recorded.times.slice(0, kept);
  // Nothing is known of the time between a record that ended long ago and the first measurement.
  const isBroken = kept > 0 && begin < Infinity && begin - before[kept - 1]! > Math.max(2 * recorded.step_s, 150);
  const nothing = Array<null>(kept).fill(null);
  const line = (name: string): Line => ({
    label: name.slice(prefix.length),
    values: [...(recorded.lines.get(name)?.slice(0, kept) ?? nothing), ...(isBroken ? [null] : []), ...(begin < Infinity ? measured.line(name) : [])],
  });
  return {
    times: [...before, ...(isBroken ? [begin - 0.001] : []), ...(begin < Infinity ? measured.times : [])],
    lines: names.map(line).filter(({ values }) => values.some((value) => value !== null)),
  };
}
