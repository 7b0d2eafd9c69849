// One report: sentences, plots, tables. Times are in UTC, as in the sentences.
import { useMemo, useState } from "preact/hooks";
import { bytes, bytesPerSecond, count, lasting, micros, millis, rate, some, utc } from "../format";
import { Empty, Section, SeverityTag, Table, Tag, useMore } from "../parts";
import { Plot, type Line } from "../plot";
import { borders, lines, middles, ofNodes, pair, perSecond, range, shares, together, waiting, waits } from "../report";
import { to } from "../route";
import type { NodeReport, Report, RequestLoad, ResourceReport } from "../types";
import { CAUSES } from "./failovers";

/** Areas of a stack: there are eight colours. */
const AREAS = 8;
const EVENTS = 20;

export function ReportBody({ report }: { report: Report }) {
  return (
    <>
      <p class="note">
        {report.baseline && `Baseline ${report.baseline}: `}Cluster {report.cluster}, {utc(report.from_ms)} to {utc(report.to_ms)} ({lasting(report.to_ms - report.from_ms)}). All times of a report are in UTC.
      </p>
      <Section title="What stands out">
        {report.findings.length === 0 ? (
          <Empty>Nothing stands out.</Empty>
        ) : (
          <ul class="list">
            {report.findings.map((text) => (
              <li key={text} class="line">
                {text}
              </li>
            ))}
          </ul>
        )}
      </Section>
      {report.resources.length === 0 ? (
        <Section title="Resources">
          <Empty>No replica did anything in this time, as far as it is recorded.</Empty>
        </Section>
      ) : (
        <>
          {report.compared && <Compared now={report} then={report.compared} />}
          <Plots report={report} />
          <Top report={report} />
        </>
      )}
      <Failovers report={report} />
      <Copies report={report} />
      <Nodes report={report} />
      <Warnings report={report} />
    </>
  );
}

const requests = (resource: ResourceReport) => resource.total.reads.count + resource.total.writes.count;
const p99 = (load: RequestLoad) => (load.count > 0 ? micros(load.p99_us) : "–");

function Top({ report }: { report: Report }) {
  const { shown, more } = useMore(report.resources.length, 20);
  return (
    <Section title="Top resources" note="The resource whose requests waited most comes first. Waiting is the mean number of requests that waited.">
      <Table label="Top resources" head={["Resource", ["Reads/s", "wide"], ["Writes/s", "wide"], ["Throughput", "wide"], ["Reads 99 %", "wide"], "Writes 99 %", "Waiting", "Mostly for", ["Primary", "wide"]]}>
        {report.resources.slice(0, shown).map((resource) => {
          const { total } = resource;
          const [first] = shares(total);
          const errors = (total.reads.errors ?? 0) + (total.writes.errors ?? 0);
          return (
            <tr key={resource.resource}>
              <td>
                <a href={to("resources", resource.resource)}>{resource.resource}</a> {errors > 0 && <Tag tone="bad">{some(errors, "error")}</Tag>}
              </td>
              <td class="wide">{rate(perSecond(total, total.reads.count))}</td>
              <td class="wide">{rate(perSecond(total, total.writes.count))}</td>
              <td class="wide">{bytesPerSecond(perSecond(total, (total.reads.bytes ?? 0) + (total.writes.bytes ?? 0)))}</td>
              <td class="wide">{p99(total.reads)}</td>
              <td>{p99(total.writes)}</td>
              <td>{rate(waiting(total))}</td>
              <td>{first && first[1] > 0 ? `${first[0]}, ${Math.round(first[1])} %` : "–"}</td>
              <td class="wide">{Object.keys(resource.primaries).join(", ") || "–"}</td>
            </tr>
          );
        })}
      </Table>
      {more}
    </Section>
  );
}

function Plots({ report }: { report: Report }) {
  const [name, setName] = useState("");
  const first = report.resources[0]!;
  const isAll = name === "*";
  const resource = useMemo(() => (isAll ? together(report) : (report.resources.find((one) => one.resource === name) ?? first)), [report, name]);
  const plots = useMemo(() => ({ ...lines(report, resource), waits: waits(report, resource, AREAS), middles: middles(report), borders: borders(report) }), [report, resource]);
  const plot = (title: string, of: Line[], least: number, say: (value: number) => string) => of.length > 0 && <Plot title={title} times={plots.middles} lines={of} range={range(report)} least={least} say={say} isBytes={say === bytesPerSecond} isUtc />;
  const choose = report.resources.length > 1 && (
    <label class="screen">
      Of{" "}
      <select value={isAll ? name : resource.resource} onChange={(event) => setName(event.currentTarget.value)}>
        {report.resources.map((one) => (
          <option key={one.resource} value={one.resource}>
            {one.resource}
          </option>
        ))}
        <option value="*">all resources</option>
      </select>
    </label>
  );
  const isEmpty = plots.requests.length === 0;
  return (
    <Section title={isAll ? "All resources over time" : `Resource ${resource.resource} over time`} actions={choose} note={`One point is ${lasting(report.step_ms)}. A gap is a time of which no primary has a record.${isAll ? " Latencies that a share of the requests did not exceed are known of single resources only." : ""}`}>
      {isEmpty ? (
        <Empty>No node was recorded as primary in this time.</Empty>
      ) : (
        <div class="plots">
          {plot("Requests per second", plots.requests, 1, rate)}
          {plot("Throughput", plots.throughput, 1024, bytesPerSecond)}
          {!isAll && plot("Latency that 50, 95 and 99 % did not exceed", plots.latency, 1, millis)}
          {plots.waits.length > 0 && <Plot title="Waiting requests, by what they waited for" times={plots.borders} lines={plots.waits} range={range(report)} least={0.1} say={rate} isStack isUtc />}
          {plot("Copied to replicas that had been away", plots.copied, 1024, bytesPerSecond)}
        </div>
      )}
    </Section>
  );
}

function Compared({ now, then }: { now: Report; then: Report }) {
  const title = then.baseline ? `Compared with the baseline ${then.baseline}` : "Compared with an earlier time";
  const before = new Map(then.resources.map((resource) => [resource.resource, resource]));
  const { shown, more } = useMore(now.resources.length, 10);
  return (
    <Section title={title} note={`${utc(then.from_ms)} to ${utc(then.to_ms)} → ${utc(now.from_ms)} to ${utc(now.to_ms)}`}>
      {then.missing.map((text) => (
        <p key={text} class="box warn">
          For this comparison no history came from {text}
        </p>
      ))}
      <Table label={title} head={["Resource", "Requests/s", "Writes 99 %", "Waiting"]}>
        {now.resources.slice(0, shown).map((resource) => {
          const earlier = before.get(resource.resource);
          return (
            <tr key={resource.resource}>
              <td>
                <a href={to("resources", resource.resource)}>{resource.resource}</a>
              </td>
              {earlier && earlier.total.primary_ms > 0 ? (
                <>
                  <td>{pair(perSecond(earlier.total, requests(earlier)), perSecond(resource.total, requests(resource)), rate)}</td>
                  <td>{pair(earlier.total.writes.p99_us / 1000, resource.total.writes.p99_us / 1000, millis)}</td>
                  <td>{pair(waiting(earlier.total), waiting(resource.total), rate)}</td>
                </>
              ) : (
                <td colSpan={3}>nothing is recorded of then</td>
              )}
            </tr>
          );
        })}
      </Table>
      {more}
    </Section>
  );
}

function Failovers({ report }: { report: Report }) {
  const { shown, more } = useMore(report.changes.length, 20);
  return (
    <Section title="Changes of primaries" actions={<a class="screen" href={to("failovers")}>All, with their stages</a>}>
      {report.changes.length === 0 ? (
        <Empty>No primary changed in this time.</Empty>
      ) : (
        <Table label="Changes of primaries" head={["Time (UTC)", "Resource", "From, to", ["Why", "wide"], "Service ran after"]}>
          {report.changes.slice(0, shown).map((change) => (
            <tr key={`${change.resource}-${change.epoch}`}>
              <td class="time">{utc(change.at_ms)}</td>
              <td>
                <a href={to("resources", change.resource)}>{change.resource}</a>
              </td>
              <td>
                {change.from ?? "no node"} → {change.to ?? "no node"}
              </td>
              <td class="wide">{CAUSES[change.cause] ?? change.cause}</td>
              <td>{change.took_ms != null ? lasting(change.took_ms) : change.service ? <Tag tone="warn">it did not run</Tag> : "no service"}</td>
            </tr>
          ))}
        </Table>
      )}
      {more}
    </Section>
  );
}

function Copies({ report }: { report: Report }) {
  const copied = report.resources.filter(({ total }) => total.copied_bytes > 0 || total.times_slow > 0).sort((a, b) => b.total.copied_bytes - a.total.copied_bytes);
  const { shown, more } = useMore(copied.length, 20);
  return (
    <Section title="Resyncs">
      {copied.length === 0 ? (
        <Empty>Nothing was copied, and no replica was too slow.</Empty>
      ) : (
        <Table label="Resyncs" head={["Resource", "Copied to replicas", "Replicas too slow", ["Most that one lacked", "wide"], ["Fullest journal", "wide"]]}>
          {copied.slice(0, shown).map(({ resource, total }) => (
            <tr key={resource}>
              <td>
                <a href={to("resources", resource)}>{resource}</a>
              </td>
              <td>{bytes(total.copied_bytes)}</td>
              <td>{total.times_slow === 0 ? "never" : `${count(total.times_slow)} ${total.times_slow === 1 ? "time" : "times"}`}</td>
              <td class="wide">{bytes(total.lag_bytes)}</td>
              <td class="wide">{total.journal_permille > 0 ? `${Math.round(total.journal_permille / 10)} % on ${total.journal_node}` : "–"}</td>
            </tr>
          ))}
        </Table>
      )}
      {more}
    </Section>
  );
}

function Nodes({ report }: { report: Report }) {
  const plots = useMemo(() => ({ ...ofNodes(report), times: middles(report) }), [report]);
  const percent = (permille: number) => `${rate(permille / 10)} %`;
  const cpu = (node: NodeReport) => `${percent(node.engine_cpu_permille)}, ${percent(node.agent_cpu_permille)}`;
  return (
    <Section title="Nodes and space" note="Processor time is a share of one processor.">
      {report.nodes.length === 0 ? (
        <Empty>No node has a record of this time.</Empty>
      ) : (
        <>
          <Table label="Nodes and space" head={["Node", ["Processor: engine, agent", "wide"], ["Memory", "wide"], "Free in the pool", "Change"]}>
            {report.nodes.map((node) => {
              const change = node.pool_free_bytes - node.pool_free_bytes_first;
              return (
                <tr key={node.node}>
                  <td>
                    <a href={to("nodes", node.node)}>{node.node}</a>
                  </td>
                  <td class="wide">{cpu(node)}</td>
                  <td class="wide">{bytes(node.engine_memory_bytes + node.agent_memory_bytes)}</td>
                  <td>{node.pool_size_bytes > 0 ? `${bytes(node.pool_free_bytes)} of ${bytes(node.pool_size_bytes)}` : "not known"}</td>
                  <td>{change === 0 ? "none" : `${change > 0 ? "+" : "−"}${bytes(Math.abs(change))}`}</td>
                </tr>
              );
            })}
          </Table>
          <div class="plots after">
            {plots.free.length > 0 && <Plot title="Free space of the pools" times={plots.times} lines={plots.free} range={range(report)} least={1024} say={(value) => bytes(Math.round(value))} isBytes isUtc />}
            {plots.processor.length > 0 && <Plot title="Processor time of the engines" times={plots.times} lines={plots.processor} range={range(report)} least={10} say={(value) => `${rate(value)} %`} isUtc />}
          </div>
        </>
      )}
    </Section>
  );
}

function Warnings({ report }: { report: Report }) {
  const events = [...report.events].reverse();
  const { shown, more } = useMore(events.length, EVENTS);
  return (
    <Section title="Warnings and errors">
      {events.length === 0 ? (
        <Empty>The cluster told no warning and no error in this time, as far as it keeps its events.</Empty>
      ) : (
        <Table label="Warnings and errors" head={["Time (UTC)", "Weight", ["About", "wide"], "What happened"]}>
          {events.slice(0, shown).map((event) => (
            <tr key={event.index}>
              <td class="time">{utc(event.at_ms)}</td>
              <td>
                <SeverityTag severity={event.severity} />
              </td>
              <td class="wide">{event.subject}</td>
              <td class="text">{event.text}</td>
            </tr>
          ))}
        </Table>
      )}
      {more}
    </Section>
  );
}
