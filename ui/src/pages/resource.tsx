// One resource: health, replicas, measurements, snapshots, comparisons, settings.
import { useMemo } from "preact/hooks";
import { ActionButton } from "../actions";
import { part } from "../api";
import { ago, bytes, bytesPerSecond, count, lasting, list, micros, millis, moment, rate, some } from "../format";
import { lag, primaryPeers } from "../happens";
import { useMeasured } from "../measure";
import { dropSnapshot, movePrimary, rollBack, startScrub, stopScrub, takeSnapshot } from "../orders";
import { Advice, Command, Empty, Facts, Head, HealthTag, Meter, PhaseTag, ProblemBox, Ready, Section, Table, Tag, useAsk, type Tone } from "../parts";
import { Plot } from "../plot";
import { joined, range, SPANS, useRecorded, type Recorded, type Series } from "../recorded";
import { go, to, type Route } from "../route";
import { useStore } from "../store";
import type { PeerView, ReplicaView, ResourceView, ScrubReport, SettingView, SnapshotFiles } from "../types";

const MODES: Record<string, string> = {
  a: "A: when the primary's journal has it; the others follow",
  b: "B: when every replica in sync has it in memory",
  c: "C: when the journal of every replica in sync has it",
};

export function Resource({ name, route }: { name: string; route: Route }) {
  const { resources, serviceOf, status } = useStore();
  const resource = resources.get(name);
  if (!resource) {
    return (
      <>
        <Head title={name} up={[to("resources"), "Resources"]} />
        <Empty>There is no resource {name} any more. It was deleted, or the name is another one.</Empty>
      </>
    );
  }
  const service = serviceOf.get(name);
  const here = status?.cluster?.this_node;
  return (
    <>
      <Head
        title={name}
        up={[to("resources"), "Resources"]}
        actions={
          <>
            {!service && <ActionButton action={movePrimary(resource)} />}
            <ActionButton action={takeSnapshot(resource)} />
          </>
        }
      >
        <HealthTag health={resource.health} />
      </Head>
      {resource.failure && <p class="box bad">The last operation failed: {resource.failure}</p>}
      {resource.advice.length > 0 && (
        <ul class="list" aria-label="What to do">
          {resource.advice.map((text) => (
            <Advice key={text} text={text} />
          ))}
        </ul>
      )}
      {resource.forced && <Forced resource={resource} />}
      <Facts
        facts={[
          ["Primary", resource.primary ?? <Tag tone="bad">none</Tag>],
          [
            "Service",
            service ? (
              <>
                <a href={to("services", service.name)}>{service.name}</a> <PhaseTag phase={service.phase} />
              </>
            ) : (
              "none"
            ),
          ],
          ["A write is acknowledged", MODES[resource.mode] ?? resource.mode],
          ["Volumes", list(resource.volumes.map((size) => bytes(size)))],
          ["Journal", bytes(resource.journal_bytes)],
          ["Preferred", resource.preferred.length ? list(resource.preferred) : "no node"],
          ["Copies needed", String(resource.min_copies)],
          ["Epoch", count(resource.epoch)],
        ]}
      />
      <Replicas resource={resource} />
      <Measurements resource={resource} here={here ?? ""} route={route} />
      <Volumes resource={resource} />
      <Snapshots resource={resource} />
      <Scrubs resource={resource} />
      <Settings name={name} />
    </>
  );
}

function Forced({ resource }: { resource: ResourceView }) {
  const forced = resource.forced!;
  const lost = forced.lost ? ` Entries ${forced.lost[0]} to ${forced.lost[1]} were lost.` : "";
  return (
    <p class="box warn">
      {moment(forced.at_ms)}: {forced.node} took over although it may have lacked acknowledged writes.{lost}
    </p>
  );
}

const PEERS: Record<string, [Tone, string]> = {
  "in-sync": ["ok", "in sync"],
  following: ["ok", "follows"],
  joining: ["info", "joins"],
  copying: ["info", "is filled"],
  "catching-up": ["info", "catches up"],
  attaching: ["info", "is compared"],
  disconnected: ["bad", "not connected"],
  failed: ["bad", "refuses"],
};

function ReplicaState({ resource, replica, peer }: { resource: ResourceView; replica: ReplicaView; peer: PeerView | undefined }) {
  if (replica.broken) return <Tag tone="bad">cannot be used</Tag>;
  if (!replica.live && !peer) return <Tag tone={replica.in_sync ? "warn" : "bad"}>{replica.in_sync ? "in sync, not heard" : "not heard"}</Tag>;
  if (replica.node === resource.primary) {
    const isServing = replica.live?.role === "primary";
    return <Tag tone={isServing ? "ok" : "info"}>{isServing ? "primary" : "becomes primary"}</Tag>;
  }
  if (peer) {
    const [tone, word] = PEERS[peer.state] ?? ["quiet", peer.state];
    return <Tag tone={tone}>{word}</Tag>;
  }
  return <Tag tone={replica.in_sync ? "ok" : "warn"}>{replica.in_sync ? "in sync" : "behind"}</Tag>;
}

function Replicas({ resource }: { resource: ResourceView }) {
  const peers = primaryPeers(resource);
  return (
    <Section title="Replicas">
      {resource.replicas.length === 0 ? (
        <Empty>No replica is there yet.</Empty>
      ) : (
        <Table label="Replicas" head={["Node", "State", "Behind the primary", ["Last answer", "wide"], ["Log: durable, end", "wide"], ["Space", "wide"]]}>
          {resource.replicas.map((replica) => {
            const peer = peers.find((other) => other.node === replica.node);
            const live = replica.live;
            return (
              <tr key={replica.node}>
                <td>
                  <a href={to("nodes", replica.node)}>{replica.node}</a>
                </td>
                <td>
                  <ReplicaState resource={resource} replica={replica} peer={peer} />
                  {replica.broken && <div class="small">{replica.broken}</div>}
                  {live?.no_space && <div class="small">{live.no_space}</div>}
                  {live?.unreadable && <div class="small">{live.unreadable}</div>}
                  {live?.waiting_for.map((why) => (
                    <div key={why} class="small">
                      Waits: {why}
                    </div>
                  ))}
                  {peer?.progress_percent != null && <Meter percent={peer.progress_percent} label={`Filled on ${replica.node}`} />}
                </td>
                <td>{peer ? lag(peer) : replica.node === resource.primary ? "is the primary" : "not known"}</td>
                <td class="wide">{peer && peer.latency_us > 0 ? micros(peer.latency_us) : live && replica.node === resource.primary ? `journal ${micros(live.journal_latency_us)}` : "–"}</td>
                <td class="wide">{live ? `${count(live.durable)}, ${count(live.end)}` : "–"}</td>
                <td class="wide">{live ? bytes(live.allocated.reduce((sum, one) => sum + one, 0)) : "–"}</td>
              </tr>
            );
          })}
        </Table>
      )}
    </Section>
  );
}

/** The longest times of which nothing is recorded, in words. */
function Gaps({ recorded }: { recorded: Recorded }) {
  const { gaps, missing } = recorded;
  const words = gaps.slice(0, 3).map(([from, to]) => `from ${moment(from)} to ${moment(to)}`);
  return (
    <>
      {gaps.length > 0 && (
        <p class="note">
          Nothing is recorded {list(words)}
          {gaps.length > words.length && `, and at ${some(gaps.length - words.length, "more time")}`}: no node was primary, its agent or engine did not run, or its record begins later.
        </p>
      )}
      {missing.map((text) => (
        <p key={text} class="box warn">
          No record came from {text}
        </p>
      ))}
    </>
  );
}

const lacking = (value: number) => bytes(Math.round(value));
const SPAN_WORDS = SPANS.map(([key]) => key);

function Measurements({ resource, here, route }: { resource: ResourceView; here: string; route: Route }) {
  const isHere = resource.primary === here && here !== "";
  const chosen = route.query.get("span") ?? "";
  const span = SPANS[Math.max(SPAN_WORDS.indexOf(chosen), 0)]!;
  const measured = useMeasured(resource.name, isHere);
  const { recorded, problem } = useRecorded(resource.name, resource.replicas.map((replica) => replica.node), span[1]);
  const newest = measured.times[measured.times.length - 1];
  const plots = useMemo(() => {
    if (!recorded) return null;
    const of = (prefix: string) => joined(prefix, recorded, measured);
    return { range: range(recorded, measured), iops: of("iops "), bytes: of("bytes "), stages: of("stage "), shares: of("share "), latency: of("ms "), lags: of("lag ") };
  }, [recorded, newest]);
  const choose = (
    <label>
      Time{" "}
      <select value={span[0]} onChange={(event) => go(to("resources", resource.name, { span: event.currentTarget.value }), true)}>
        {SPANS.map(([key, , word]) => (
          <option key={key} value={key}>
            {word}
          </option>
        ))}
      </select>
    </label>
  );
  const each = lasting(1000 * (recorded?.step_s ?? 60));
  const end = isHere ? "The end is measured every two seconds while this page is open." : `Requests and throughput follow each minute, because ${resource.primary ? `the primary is on ${resource.primary}` : "there is no primary"}. The rest is measured every two seconds.`;
  const note = `Recorded by the nodes: each value is the mean of ${each}. ${end}`;
  const plot = (title: string, { times, lines }: Series, least: number, say: (value: number) => string) => lines.length > 0 && <Plot title={title} times={times} lines={lines} range={plots!.range} least={least} say={say} isBytes={say === bytesPerSecond || say === lacking} />;
  const isEmpty = plots !== null && [plots.iops, plots.latency, plots.lags].every(({ lines }) => lines.length === 0);
  return (
    <Section title="Measurements" note={note} actions={choose}>
      {problem && <ProblemBox problem={problem} />}
      {!plots ? (
        <p class="note">Loading…</p>
      ) : isEmpty ? (
        <Empty>Nothing is recorded of this time, and nothing is measured yet. Nodes record each minute.</Empty>
      ) : (
        <div class="plots">
          {plot("Requests per second", plots.iops, 10, rate)}
          {plot("Throughput", plots.bytes, 1024, bytesPerSecond)}
          {plot("Latency that 50 and 99 % did not exceed", plots.shares, 1, millis)}
          {plot("Mean latency by stage", plots.stages, 1, millis)}
          {plot("Mean latency of journal and replicas", plots.latency, 1, millis)}
          {plot("Bytes that replicas lack", plots.lags, 4096, lacking)}
        </div>
      )}
      {recorded && <Gaps recorded={recorded} />}
    </Section>
  );
}

function Volumes({ resource }: { resource: ResourceView }) {
  const primary = resource.replicas.find((replica) => replica.node === resource.primary);
  return (
    <Section title="Volumes">
      <Table label="Volumes" head={["Volume", "Size", "Device on the primary", "Takes there"]}>
        {resource.volumes.map((size, at) => (
          <tr key={at}>
            <td>{at}</td>
            <td>{bytes(size)}</td>
            <td>{primary?.live?.devices.find((device) => device.volume === at)?.path ?? "none"}</td>
            <td>{primary?.live?.allocated[at] !== undefined ? bytes(primary.live.allocated[at]!) : "not known"}</td>
          </tr>
        ))}
      </Table>
    </Section>
  );
}

function Snapshots({ resource }: { resource: ResourceView }) {
  const service = useStore().serviceOf.get(resource.name);
  return (
    <Section title="Snapshots">
      {resource.rolled_back && (
        <p class="note">
          {resource.rolled_back.index == null ? "The last rollback could not be done" : "The volumes went back"} to {resource.rolled_back.snapshot} at {moment(resource.rolled_back.at_ms)}.
        </p>
      )}
      {resource.snapshots.length === 0 ? (
        <Empty>There is no snapshot.</Empty>
      ) : (
        <Table label="Snapshots" head={["Name", "Taken", ["On", "wide"], ["Space here", "wide"], "Actions"]}>
          {resource.snapshots.map((snapshot) => (
            <tr key={snapshot.id}>
              <td>{snapshot.name}</td>
              <td class="time">{ago(snapshot.at_ms)}</td>
              <td class="wide">
                <span class="row">
                  {snapshot.nodes.map((on) => (
                    <Tag key={on.node} tone={on.state === "held" ? "ok" : on.state === "taking" ? "info" : "warn"}>
                      {on.node}: {on.state}
                    </Tag>
                  ))}
                </span>
              </td>
              <td class="wide">
                <SnapshotSize resource={resource.name} snapshot={snapshot.name} />
              </td>
              <td>
                {snapshot.deleting ? (
                  "is being deleted"
                ) : (
                  <span class="row">
                    <a class="button" href={to("create-resource", "", { from: resource.name, snapshot: snapshot.name })}>
                      Clone
                    </a>
                    <ActionButton action={rollBack(resource, snapshot.name, service)} />
                    <ActionButton action={dropSnapshot(resource, snapshot.name)} word="Delete" />
                  </span>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Section>
  );
}

function SnapshotSize({ resource, snapshot }: { resource: string; snapshot: string }) {
  const { data } = useAsk<SnapshotFiles>(`/v1/resources/${part(resource)}/snapshots/${part(snapshot)}`, true);
  return <>{data?.space ? `${bytes(data.space.own_bytes)} of its own` : "–"}</>;
}

function Scrubs({ resource }: { resource: ResourceView }) {
  const { scrubs } = resource;
  const asked = useAsk<ScrubReport>(`/v1/resources/${part(resource.name)}/scrub`);
  const report = asked.data;
  const isRunning = report?.state === "running";
  return (
    <Section title="Comparisons of replicas" actions={isRunning ? <ActionButton action={stopScrub(resource)} /> : <ActionButton action={startScrub(resource)} />}>
      <Facts
        facts={[
          ["Schedule", scrubs.interval_ms ? `every ${lasting(scrubs.interval_ms)}` : "none"],
          ["Next", scrubs.waits_for ? `waits: ${scrubs.waits_for}` : scrubs.due_ms ? moment(scrubs.due_ms) : "not planned"],
          ["Last complete one", scrubs.whole ? `${ago(scrubs.whole.at_ms)}, took ${lasting(scrubs.whole.took_ms)}` : "none"],
          ["Blocks that differed then", scrubs.whole ? count(scrubs.whole.different) : "–"],
        ]}
      />
      {scrubs.late_ms != null && <p class="box warn">The next comparison is late by {lasting(scrubs.late_ms)}.</p>}
      {report && (
        <div class="line">
          {isRunning ? (
            <>
              A comparison is under way{report.left_ms != null && `, ${lasting(report.left_ms)} left`}: <Meter percent={report.extents ? Math.floor((100 * report.done) / report.extents) : 0} label="Compared" />
            </>
          ) : report.equal ? (
            <Tag tone="ok">All replicas were equal when they were last compared</Tag>
          ) : (
            <Tag tone={report.unrepaired > 0 ? "bad" : "warn"}>{report.complete ? `${some(report.different, "block")} differed, ${count(report.repaired)} repaired` : "The last comparison is not complete"}</Tag>
          )}
        </div>
      )}
      {report && report.findings.length > 0 && (
        <Table label="Findings" head={["Volume", "Blocks", "Who agrees", "Outcome"]}>
          {report.findings.map((finding) => (
            <tr key={`${finding.volume}-${finding.block}`}>
              <td>{finding.volume}</td>
              <td>
                {count(finding.block)}
                {finding.blocks > 1 && ` to ${count(finding.block + finding.blocks - 1)}`}
              </td>
              <td>{finding.groups.map((group) => list(group)).join(" against ")}</td>
              <td>{finding.outcome}</td>
            </tr>
          ))}
        </Table>
      )}
    </Section>
  );
}

const SOURCES: Record<string, string> = { default: "the default", cluster: "the cluster", resource: "this resource" };

function Settings({ name }: { name: string }) {
  const asked = useAsk<SettingView[]>(`/v1/resources/${part(name)}/settings`);
  return (
    <Section title="Settings" note={<>To change one: <Command text={`mainstay resource set ${name} KEY=VALUE`} /></>}>
      <Ready loaded={asked}>
        {(settings) => (
          <Table label="Settings" head={["Setting", "Value", "From", ["Meaning", "wide"]]}>
            {settings.map((setting) => (
              <tr key={setting.name}>
                <td>
                  <code>{setting.name}</code>
                </td>
                <td>{setting.value}</td>
                <td>{SOURCES[setting.from] ?? setting.from}</td>
                <td class="wide text">{setting.help}</td>
              </tr>
            ))}
          </Table>
        )}
      </Ready>
    </Section>
  );
}
