// What `mainstay report` says, with plots: the sentences that stand out first.
import { useRef, useState } from "preact/hooks";
import { ActionButton } from "../actions";
import { save, standalone } from "../download";
import { dropBaseline, saveBaseline } from "../orders";
import { bytes, lasting, list, utc } from "../format";
import { Command, Empty, Head, Ready, Section, Table, useAsk, type Loaded } from "../parts";
import { chosen, command, fault, LAST, path, typed, type Chosen } from "../report";
import { go, to, type Route } from "../route";
import { printed } from "../theme";
import type { BaselinesPage, BaselineView, Report } from "../types";
import { ReportBody } from "./report";

/** The node asks all others, and has a time for each. */
const PATIENCE_MS = 40_000;

type Change = Record<string, string>;

export function Reports({ route }: { route: Route }) {
  // The end of a span that ends now. Each choice is about the time at which it is made.
  const [now, setNow] = useState(Date.now());
  const one = chosen(route.query, now);
  const why = fault(one);
  const asked = useAsk<Report>(why === "" ? path(one) : null, true, PATIENCE_MS);
  const baselines = useAsk<BaselinesPage>("/v1/baselines", true);
  const body = useRef<HTMLDivElement>(null);
  const choose = (change: Change) => {
    setNow(Date.now());
    go(to("reports", "", { ...Object.fromEntries(route.query), ...change }), true);
  };
  const report = asked.data;
  const name = report ? `report-${utc(report.from_ms)}-to-${utc(report.to_ms)}`.replace(/[: ]/g, "-") : "report";
  return (
    <>
      <Head
        title="Reports"
        actions={
          <span class="row screen">
            <button type="button" disabled={!report} onClick={() => body.current && save(standalone(body.current, `Report of cluster ${report?.cluster}`), "text/html", `${name}.html`)}>
              Download
            </button>
            <button type="button" disabled={!report} onClick={() => report && save(JSON.stringify(report, null, 1), "application/json", `${name}.json`)}>
              Download JSON
            </button>
            <button type="button" disabled={!report} onClick={printed}>
              Print
            </button>
          </span>
        }
      />
      <Choice one={one} choose={choose} baselines={baselines.data?.baselines ?? []} />
      {why !== "" && <Empty>{why}</Empty>}
      {why === "" && (
        <>
          <p class="screen">
            <span class="label">The same as a command:</span> <Command text={command(one)} />
          </p>
          <div ref={body}>
            <Ready loaded={asked}>{(report) => <ReportBody report={report} />}</Ready>
          </div>
          <Baselines one={one} report={report} asked={baselines} choose={choose} />
        </>
      )}
    </>
  );
}

/** A point in time, typed in UTC. */
function Moment({ label, ms, set }: { label: string; ms: number; set: (ms: number) => void }) {
  const changed = (text: string) => {
    const at = Date.parse(`${text}Z`);
    if (!Number.isNaN(at) && at >= 0) set(at);
  };
  return (
    <label>
      {label} <input type="datetime-local" value={typed(ms)} onChange={(event) => changed(event.currentTarget.value)} />
    </label>
  );
}

function Choice({ one, choose, baselines }: { one: Chosen; choose: (change: Change) => void; baselines: BaselineView[] }) {
  const isBaseline = one.span === "baseline";
  const span = (value: string) => {
    if (value.startsWith("b:")) choose({ span: "", baseline: value.slice(2), compare: one.compare.startsWith("b:") ? one.compare : "" });
    else if (value === "own") choose({ span: value, baseline: "", from: String(minute(one.from_ms)), to: String(minute(one.to_ms)) });
    else choose({ span: value, baseline: "", from: "", to: "" });
  };
  const compare = (value: string) => choose({ compare: value, compare_from: value === "own" ? String(minute(one.compare_from_ms)) : "" });
  const known = (name: string) => name === "" || baselines.some((baseline) => baseline.name === name);
  const named = one.compare.startsWith("b:") ? one.compare.slice(2) : "";
  return (
    <form class="row filters screen" onSubmit={(event) => event.preventDefault()}>
      <label>
        Time{" "}
        <select value={isBaseline ? `b:${one.baseline}` : one.span} onChange={(event) => span(event.currentTarget.value)}>
          {LAST.map(([word, , words]) => (
            <option key={word} value={word}>
              {words}
            </option>
          ))}
          <option value="own">from … to …</option>
          {[...baselines.map(({ name }) => name), ...(known(one.baseline) ? [] : [one.baseline])].map((name) => (
            <option key={name} value={`b:${name}`}>
              baseline {name}
            </option>
          ))}
        </select>
      </label>
      {one.span === "own" && (
        <>
          <Moment label="From (UTC)" ms={one.from_ms} set={(ms) => choose({ from: String(ms) })} />
          <Moment label="To (UTC)" ms={one.to_ms} set={(ms) => choose({ to: String(ms) })} />
        </>
      )}
      <label>
        Compare with{" "}
        <select value={one.compare} onChange={(event) => compare(event.currentTarget.value)}>
          <option value="">nothing</option>
          {!isBaseline && (
            <>
              <option value="before">the same time before</option>
              <option value="day">a day earlier</option>
              <option value="week">a week earlier</option>
              <option value="own">from …</option>
            </>
          )}
          {[...baselines.map(({ name }) => name), ...(known(named) ? [] : [named])].map((name) => (
            <option key={name} value={`b:${name}`}>
              baseline {name}
            </option>
          ))}
        </select>
      </label>
      {one.compare === "own" && !isBaseline && <Moment label="Begin of that (UTC)" ms={one.compare_from_ms} set={(ms) => choose({ compare_from: String(ms) })} />}
      <button type="button" onClick={() => choose({})}>
        Load again
      </button>
    </form>
  );
}

const minute = (ms: number) => Math.floor(ms / 60_000) * 60_000;

function Baselines({ one, report, asked, choose }: { one: Chosen; report: Report | null; asked: Loaded<BaselinesPage>; choose: (change: Change) => void }) {
  const note = "A baseline keeps the figures of a time for as long as you want. The records of the nodes are gone after 8 days.";
  const canSave = report && one.span !== "baseline" && report.nodes.length > 0;
  return (
    <div class="screen">
      <Section title="Baselines" note={note} actions={canSave && <ActionButton action={saveBaseline(report.from_ms, report.to_ms, asked.reload)} word="Keep this time as a baseline" />}>
        <Ready loaded={asked}>
          {(page) => (
            <>
              {page.missing.map((text) => (
                <p key={text} class="box warn">
                  The baselines of one node are not known. {text}
                </p>
              ))}
              {page.baselines.length === 0 ? (
                <Empty>No baseline is kept yet.</Empty>
              ) : (
                <Table label="Baselines" head={["Name", "Time (UTC)", ["On", "wide"], ["Size", "wide"], "Actions"]}>
                  {page.baselines.map((baseline) => (
                    <tr key={baseline.name}>
                      <td>{baseline.name}</td>
                      <td>
                        {utc(baseline.from_ms)} <span class="small">for {lasting(baseline.to_ms - baseline.from_ms)}</span>
                      </td>
                      <td class="wide">{list(baseline.nodes)}</td>
                      <td class="wide">{bytes(baseline.bytes)}</td>
                      <td>
                        <span class="row">
                          <button type="button" onClick={() => choose({ compare: `b:${baseline.name}`, compare_from: "" })}>
                            Compare with it
                          </button>
                          <button type="button" onClick={() => choose({ span: "", baseline: baseline.name, compare: "", compare_from: "" })}>
                            Show
                          </button>
                          <ActionButton action={dropBaseline(baseline, asked.reload)} word="Delete" />
                        </span>
                      </td>
                    </tr>
                  ))}
                </Table>
              )}
            </>
          )}
        </Ready>
      </Section>
    </div>
  );
}
