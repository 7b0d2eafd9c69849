// Changes of primaries, with their stages as bars.
import { part } from "../api";
import { lasting, moment } from "../format";
import { Empty, Head, Ready, Tag, useAsk } from "../parts";
import { go, to, type Route } from "../route";
import type { ChangeView, HistoryPage } from "../types";

export const CAUSES: Record<string, string> = {
  first: "it had no primary before",
  operator: "an operator asked for it",
  drained: "an operator drains the node",
  "node-dead": "the node died or lost its lease",
  "stepped-down": "the node gave the role up",
  "disk-lost": "the disk of the primary is a new one",
  "replica-broken": "the replica of the primary cannot be used",
  "memory-lost": "the primary may lack acknowledged writes",
  "service-failed": "the service failed there",
  failback: "the preferred node is in sync again",
  placement: "its placement ties it to other services",
  restarted: "the same node is primary again",
};

export function Failovers({ route }: { route: Route }) {
  const name = route.query.get("name") ?? "";
  const asked = useAsk<HistoryPage>(`/v1/history?lines=50${name ? `&name=${part(name)}` : ""}`);
  return (
    <>
      <Head title="Failovers" />
      <p class="note">Each change of the primary of a resource, the newest first, with what was told on the way.</p>
      <form class="row filters" onSubmit={(event) => event.preventDefault()}>
        <label>
          Resource or service <input type="search" value={name} onChange={(event) => go(to("failovers", "", { name: event.currentTarget.value.trim() }), true)} />
        </label>
      </form>
      <Ready loaded={asked}>
        {(page) => (
          <>
            <Changes changes={[...page.changes].reverse()} />
            {page.since_ms != null && <p class="note">Changes before {moment(page.since_ms)} are not kept.</p>}
          </>
        )}
      </Ready>
    </>
  );
}

export function Changes({ changes }: { changes: ChangeView[] }) {
  if (changes.length === 0) return <Empty>No primary has changed yet.</Empty>;
  return (
    <ol class="changes">
      {changes.map((change) => (
        <Change key={`${change.resource}-${change.epoch}`} change={change} />
      ))}
    </ol>
  );
}

function Change({ change }: { change: ChangeView }) {
  const total = Math.max(change.took_ms ?? 0, ...change.stages.map((stage) => stage.after_ms), 1);
  const percent = (ms: number) => `${(100 * ms) / total}%`;
  return (
    <li class="change">
      <p class="change-head">
        <a href={to("resources", change.resource)}>{change.resource}</a>{" "}
        <b>
          {change.from ?? "no node"} → {change.to ?? "no node"}
        </b>{" "}
        <span class="small">
          {moment(change.at_ms)}, {change.decided_by === "operator" ? "by an operator" : "by the cluster"}: {CAUSES[change.cause] ?? change.cause}
        </span>{" "}
        {change.took_ms != null ? <Tag tone="ok">service ran after {lasting(change.took_ms)}</Tag> : change.service ? <Tag tone="warn">service did not run</Tag> : null}
      </p>
      <ol class="stages">
        {change.stages.map((stage, at) => {
          const from = at === 0 ? 0 : change.stages[at - 1]!.after_ms;
          return (
            <li key={at}>
              <span class="stage-text">{stage.text}</span>
              <span class="stage-bar" aria-hidden="true">
                <span style={{ left: percent(Math.min(from, stage.after_ms)), width: percent(Math.abs(stage.after_ms - from)) }} />
              </span>
              <span class="stage-time">{lasting(stage.after_ms)}</span>
            </li>
          );
        })}
      </ol>
    </li>
  );
}
