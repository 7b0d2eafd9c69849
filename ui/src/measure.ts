// Measurements of one resource while its page is open: what the state tells of it on every node, and, from the node that served
// the page, the metrics of its replica.
import { useEffect, useState } from "preact/hooks";
import * as api from "./api";
import { Problem } from "./api";
import { primaryPeers } from "./happens";
import type { ResourceView } from "./types";

/** Time from one measurement to the next, and how many are kept. */
const EVERY_MS = 2_000;
const KEPT = 300;
/** Time without a measurement after which those before it are left out. */
const PAUSE_MS = 30_000;

/** One measurement: names of lines with their values. */
interface Sample {
  at_s: number;
  values: Record<string, number | null>;
}

export interface Measured {
  times: number[];
  line: (name: string) => (number | null)[];
  /** Names that begin with this. */
  names: (prefix: string) => string[];
}

/** Counters of a scrape, by name and labels. */
export function parseMetrics(text: string, resource: string): Map<string, number> {
  const found = new Map<string, number>();
  const wanted = `resource="${resource}"`;
  for (const line of text.split("\n")) {
    if (line.startsWith("#") || !line.includes(wanted)) continue;
    const space = line.lastIndexOf(" ");
    found.set(line.slice(0, space), Number(line.slice(space + 1)));
  }
  return found;
}

/** Sum of all counters of a name whose labels contain a word. */
function total(metrics: Map<string, number>, name: string, label = ""): number {
  let sum = 0;
  for (const [key, value] of metrics) if (key.startsWith(`${name}{`) && key.includes(label)) sum += value;
  return sum;
}

interface Seen {
  at_ms: number;
  metrics: Map<string, number> | null;
}

function derive(resource: ResourceView, now: Seen, before: Seen | null): Record<string, number | null> {
  const values: Record<string, number | null> = {};
  const seconds = before ? (now.at_ms - before.at_ms) / 1000 : 0;
  const primary = resource.replicas.find((replica) => replica.node === resource.primary);
  values["ms journal of the primary"] = primary?.live ? primary.live.journal_latency_us / 1000 : null;
  for (const peer of primaryPeers(resource)) {
    values[`ms answer of ${peer.node}`] = peer.latency_us > 0 ? peer.latency_us / 1000 : null;
    values[`lag ${peer.node}`] = peer.state === "disconnected" && peer.lag_more ? null : peer.lag_bytes;
  }
  if (now.metrics && before?.metrics) {
    const [newer, older] = [now.metrics, before.metrics];
    const since = (name: string, label = "") => total(newer, name, label) - total(older, name, label);
    const perSecond = (name: string, label = "") => {
      const difference = since(name, label);
      return seconds > 0 && difference >= 0 ? difference / seconds : null;
    };
    for (const op of ["read", "write", "flush"]) values[`iops ${op}`] = perSecond("mainstay_requests_total", `op="${op}"`);
    for (const op of ["read", "write"]) values[`bytes ${op}`] = perSecond("mainstay_request_bytes_total", `op="${op}"`);
    const mean = (name: string, label = "") => {
      const count = since(`${name}_count`, label);
      return count > 0 ? (since(`${name}_sum`, label) / count) * 1000 : null;
    };
    values["stage write, from request to answer"] = mean("mainstay_request_duration_seconds", `op="write"`);
    values["stage read, from request to answer"] = mean("mainstay_request_duration_seconds", `op="read"`);
    values["stage journal"] = mean("mainstay_journal_write_duration_seconds");
    values["stage network and journal of peers"] = mean("mainstay_peer_acknowledgement_duration_seconds");
    values["stage commit"] = mean("mainstay_commit_duration_seconds");
  }
  return values;
}

/** Measures for as long as the page shows this resource. `isHere`: its primary is on the node that served the page. */
export function useMeasured(name: string, isHere: boolean): Measured {
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => {
    let isOver = false;
    let before: Seen | null = null;
    let timer: ReturnType<typeof setTimeout>;
    setSamples([]);
    const measure = async () => {
      const began = performance.now();
      try {
        if (document.visibilityState === "visible") {
          const [{ body: resource }, metrics] = await Promise.all([api.get<ResourceView>(`/v1/resources/${api.part(name)}`), isHere ? api.text("/metrics") : null]);
          if (isOver) return;
          const now = { at_ms: Date.now(), metrics: metrics === null ? null : parseMetrics(metrics, name) };
          const sample = { at_s: now.at_ms / 1000, values: derive(resource, now, before) };
          // After a pause the record of the nodes has the time before it.
          const goesOn = before && now.at_ms - before.at_ms < PAUSE_MS;
          if (before) setSamples((known) => [...(goesOn ? known : []), sample].slice(-KEPT));
          before = now;
        }
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        // The page says that the connection is lost. The plots go on when it is back.
        before = null;
      }
      if (!isOver) timer = setTimeout(() => void measure(), Math.max(EVERY_MS, (performance.now() - began) * 20));
    };
    void measure();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [name, isHere]);
  const all = new Set(samples.flatMap((sample) => Object.keys(sample.values)));
  return {
    times: samples.map((sample) => sample.at_s),
    line: (line) => samples.map((sample) => sample.values[line] ?? null),
    names: (prefix) => [...all].filter((key) => key.startsWith(prefix)),
  };
}
