// The time that a report is about, as the address of the page has it, and the lines of its plots. The agent computes all figures
// and sentences (`GET /v1/report`), so they are those of `mainstay report`.
import type { Line } from "./plot";
import { utc } from "./format";
import type { Report, ReportPoint, RequestLoad, ResourceReport } from "./types";

const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;

/** Spans that end now: their words in the address and on the command line, lengths and names. */
export const LAST: [string, number, string][] = [
  ["1h", 3_600_000, "the last hour"],
  ["8h", 8 * 3_600_000, "the last 8 hours"],
  ["1d", DAY_MS, "the last day"],
  ["7d", 7 * DAY_MS, "the last week"],
];

/** A choice of a time, from the address. */
export interface Chosen {
  /** One of `LAST`, `own` or `baseline`. */
  span: string;
  from_ms: number;
  to_ms: number;
  baseline: string;
  /** Empty, `before`, `day`, `week`, `own`, or a baseline after `b:`. */
  compare: string;
  compare_from_ms: number;
}

/** The choice in an address. `now_ms` is the end of a span that ends now. */
export function chosen(query: URLSearchParams, now_ms: number): Chosen {
  const number = (name: string, none: number) => {
    const value = Number(query.get(name));
    return query.has(name) && Number.isSafeInteger(value) && value >= 0 ? value : none;
  };
  const baseline = query.get("baseline") ?? "";
  const last = LAST.find(([word]) => word === query.get("span"));
  const isOwn = query.get("span") === "own";
  const span = baseline ? "baseline" : isOwn ? "own" : (last ?? LAST[0]!)[0];
  const length = (last ?? LAST[0]!)[1];
  const to_ms = isOwn ? number("to", now_ms) : now_ms;
  const from_ms = isOwn ? number("from", to_ms - length) : to_ms - length;
  return { span, from_ms, to_ms, baseline, compare: query.get("compare") ?? "", compare_from_ms: number("compare_from", from_ms - DAY_MS) };
}

/** Begin of the interval to compare with; null for none, and for a baseline. */
function comparedFrom(one: Chosen): number | null {
  if (one.span === "baseline") return one.compare === "own" ? one.compare_from_ms : null;
  if (one.compare === "before") return one.from_ms - (one.to_ms - one.from_ms);
  if (one.compare === "day") return one.from_ms - DAY_MS;
  if (one.compare === "week") return one.from_ms - 7 * DAY_MS;
  return one.compare === "own" ? one.compare_from_ms : null;
}

const baselineOf = (compare: string) => (compare.startsWith("b:") ? compare.slice(2) : "");

/** Why the choice cannot be asked for; empty if it can. */
export function fault(one: Chosen): string {
  if (one.span !== "own") return "";
  return one.to_ms - one.from_ms < MINUTE_MS ? "The end has to be at least a minute after the begin." : "";
}

export function path(one: Chosen): string {
  const words = new URLSearchParams(one.span === "baseline" ? { baseline: one.baseline } : { from_ms: String(one.from_ms), to_ms: String(one.to_ms) });
  const from = comparedFrom(one);
  const baseline = baselineOf(one.compare);
  if (baseline) words.set("compare_baseline", baseline);
  else if (from !== null && one.span !== "baseline") words.set("compare_from_ms", String(Math.max(from, 0)));
  return `/v1/report?${words}`;
}

/** A point in time as the command line takes it. */
export const typed = (ms: number) => utc(ms).replace(" ", "T");

/** The same on the command line. */
export function command(one: Chosen): string {
  const span = one.span === "baseline" ? ` --baseline ${one.baseline}` : one.span === "own" ? ` --from ${typed(one.from_ms)} --to ${typed(one.to_ms)}` : ` --last ${one.span}`;
  const baseline = baselineOf(one.compare);
  const from = comparedFrom(one);
  const compare = baseline ? ` --compare ${baseline}` : one.span === "baseline" || from === null ? "" : one.compare === "before" ? " --compare" : ` --compare ${typed(from)}`;
  return `mainstay report${span}${compare}`;
}

/** Number of points, recorded or not. */
function points(report: Report): number {
  return Math.ceil((report.to_ms - report.from_ms) / report.step_ms);
}

/** Begins of the points in seconds, and the end of the last one. */
export function borders(report: Report): number[] {
  const at = (number: number) => Math.min(report.from_ms + number * report.step_ms, report.to_ms) / 1000;
  return Array.from({ length: points(report) + 1 }, (_none, number) => at(number));
}

/** Middles of the points, in seconds. */
export function middles(report: Report): number[] {
  const all = borders(report);
  return all.slice(1).map((end, at) => (all[at]! + end) / 2);
}

export const range = (report: Report): [number, number] => [report.from_ms / 1000, report.to_ms / 1000];

/** One value for each point; null where no node was recorded as primary. */
export function values(report: Report, resource: ResourceReport, of: (point: ReportPoint) => number | null): (number | null)[] {
  return Array.from({ length: points(report) }, (_none, number) => {
    const point = resource.points[number];
    return point && point.primary_ms > 0 ? of(point) : null;
  });
}

const seconds = (point: ReportPoint) => point.covered_ms / 1000;
export const perSecond = (point: ReportPoint, count: number) => (point.covered_ms > 0 ? count / seconds(point) : 0);
export const waited = (point: ReportPoint) => Object.values(point.waits).reduce((sum, us) => sum + us, 0);
/** Mean number of requests that waited. */
export const waiting = (point: ReportPoint) => (point.covered_ms > 0 ? waited(point) / (point.covered_ms * 1000) : 0);
const percentile = (requests: RequestLoad, us: number) => (requests.count > 0 ? us / 1000 : null);

/** Classes of waiting with their shares in percent, the greatest first. */
export function shares(total: ReportPoint): [string, number][] {
  const all = waited(total);
  return Object.entries(total.waits)
    .map(([name, us]): [string, number] => [name, all > 0 ? (100 * us) / all : 0])
    .sort((a, b) => b[1] - a[1]);
}

/** All resources as one. Percentiles of several cannot be had from theirs. */
export function together(report: Report): ResourceReport {
  const nothing = (): ReportPoint => ({ covered_ms: 0, primary_ms: 0, reads: none(), writes: none(), waits: {}, copied_bytes: 0, times_slow: 0, lag_bytes: 0, journal_permille: 0, journal_node: "" });
  const add = (sum: ReportPoint, point: ReportPoint) => {
    sum.covered_ms = Math.max(sum.covered_ms, point.covered_ms);
    sum.primary_ms += point.primary_ms;
    for (const kind of ["reads", "writes"] as const) {
      sum[kind].count += point[kind].count;
      sum[kind].bytes = (sum[kind].bytes ?? 0) + (point[kind].bytes ?? 0);
    }
    for (const [name, us] of Object.entries(point.waits)) sum.waits[name] = (sum.waits[name] ?? 0) + us;
    return sum;
  };
  const sums: Record<string, ReportPoint> = {};
  for (const { points } of report.resources) for (const [number, point] of Object.entries(points)) sums[number] = add(sums[number] ?? nothing(), point);
  return { resource: "all resources", primaries: {}, total: report.resources.reduce((sum, { total }) => add(sum, total), nothing()), points: sums };
}

const none = (): RequestLoad => ({ count: 0, bytes: 0, errors: 0, time_us: 0, p50_us: 0, p95_us: 0, p99_us: 0, histogram: [] });

/** Lines of one resource by plot. */
export function lines(report: Report, resource: ResourceReport): Record<"requests" | "throughput" | "latency" | "copied", Line[]> {
  const line = (label: string, of: (point: ReportPoint) => number | null): Line => ({ label, values: values(report, resource, of) });
  const known = (all: Line[]) => all.filter((one) => one.values.some((value) => value !== null));
  const some = (all: Line[]) => known(all).filter((one) => one.values.some((value) => (value ?? 0) > 0));
  return {
    requests: known([line("reads", (point) => perSecond(point, point.reads.count)), line("writes", (point) => perSecond(point, point.writes.count))]),
    throughput: known([line("reads", (point) => perSecond(point, point.reads.bytes ?? 0)), line("writes", (point) => perSecond(point, point.writes.bytes ?? 0))]),
    latency: some(
      (["writes", "reads"] as const).flatMap((kind) => [
        line(`${kind}, 50 %`, (point) => percentile(point[kind], point[kind].p50_us)),
        line(`${kind}, 95 %`, (point) => percentile(point[kind], point[kind].p95_us)),
        line(`${kind}, 99 %`, (point) => percentile(point[kind], point[kind].p99_us)),
      ]),
    ),
    copied: some([line("bytes copied to replicas", (point) => perSecond(point, point.copied_bytes))]),
  };
}

/** Areas of a stack: the classes of waiting, the greatest first and the rest as one. */
export function waits(report: Report, resource: ResourceReport, most: number): Line[] {
  const all = shares(resource.total).filter(([, share]) => share > 0);
  const first = all.slice(0, all.length > most ? most - 1 : most);
  const names = new Set(first.map(([name]) => name));
  const number = (point: ReportPoint, us: number) => (point.covered_ms > 0 ? us / (point.covered_ms * 1000) : 0);
  const area = (label: string, share: number, of: (point: ReportPoint) => number): Line => {
    const each = values(report, resource, (point) => number(point, of(point)));
    // A value holds up to the next border, so the last one stands twice.
    return { label, values: [...each, each[each.length - 1] ?? null], note: `${Math.round(share)} %` };
  };
  const areas = first.map(([name, share]) => area(name, share, (point) => point.waits[name] ?? 0));
  const rest = all.slice(first.length);
  if (rest.length === 0) return areas;
  const other = (point: ReportPoint) => Object.entries(point.waits).reduce((sum, [name, us]) => sum + (names.has(name) ? 0 : us), 0);
  return [...areas, area(`${rest.length} others`, rest.reduce((sum, [, share]) => sum + share, 0), other)];
}

/** Lines of the nodes: free space of the pools, and processor time of the engines in percent. */
export function ofNodes(report: Report): Record<"free" | "processor", Line[]> {
  const line = (of: (point: [number, number]) => number | null) =>
    report.nodes
      .map((node): Line => ({ label: node.node, values: Array.from({ length: points(report) }, (_none, number) => (node.points[number] ? of(node.points[number]!) : null)) }))
      .filter((one) => one.values.some((value) => value !== null));
  return { free: line(([, free]) => (free > 0 ? free : null)), processor: line(([permille]) => permille / 10) };
}

/** Both values, with the growth in percent. */
export function pair(then: number, now: number, say: (value: number) => string): string {
  const growth = then > 0 ? (100 * (now - then)) / then : 0;
  const words = Math.abs(growth) >= 0.5 ? ` (${growth > 0 ? "+" : ""}${Math.round(growth)} %)` : "";
  return `${say(then)} → ${say(now)}${words}`;
}
