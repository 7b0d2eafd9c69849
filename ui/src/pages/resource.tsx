// One resource: health, replicas, measurements, snapshots, comparisons, settings.
import { useMemo } from "preact/hooks";
import { ActionButton } from "../actions";
import { part } from "../api";
import { ago, bytes, count, lasting, list, micros, moment, some } from "../format";
import { lag, primaryPeers } from "../happens";
import { useMeasured } from "../measure";
import { dropSnapshot, movePrimary, rollBack, startScrub, stopScrub, takeSnapshot } from "../orders";
import { Advice, Command, Empty, Facts, Head, HealthTag, Meter, PhaseTag, Ready, Section, Table, Tag, useAsk, type Tone } from "../parts";
import { Plot } from "../plot";
import { to } from "../route";
import { useStore } from "../store";
import type { PeerView, ReplicaView, ResourceView, ScrubReport, SettingView, SnapshotFiles } from "../types";

const MODES: Record<string, string> = {
  a: "A: when the primary's journal has it; the others follow",
  b: "B: when every replica in sync has it in memory",
  c: "C: when the journal of every replica in sync has it",
};

export function Resource({ name }: { name: string }) {
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
      <Measurements resource={resource} here={here ?? ""} />
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

const perSecond = (value: number) => (value >= 10 || value === 0 ? count(Math.round(value)) : value.toFixed(1));
const milliseconds = (value: number) => (value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(value < 1 ? 2 : 1)} ms`);
const bytesPerSecond = (value: number) => `${bytes(Math.round(value))}/s`;

function Measurements({ resource, here }: { resource: ResourceView; here: string }) {
  const isHere = resource.primary === here && here !== "";
  const measured = useMeasured(resource.name, isHere);
  const lines = (prefix: string) => measured.names(prefix).map((name) => ({ label: name.slice(prefix.length), values: measured.line(name) })).filter((line) => line.values.some((value) => value !== null));
  const plots = useMemo(
    () => ({
      entries: [{ label: "entries of the log", values: measured.line("entries") }],
      latency: lines("ms "),
      lags: lines("lag "),
      iops: lines("iops "),
      bytes: lines("bytes "),
      stages: lines("stage "),
    }),
    [measured.times.length, measured.times[measured.times.length - 1]],
  );
  const note = isHere
    ? "Since you opened this page, every two seconds."
    : `Since you opened this page, every two seconds. Requests, throughput and stages are measured on the primary's node: open its own console to see them.`;
  return (
    <Section title="Measurements" note={note}>
      {measured.times.length < 2 ? (
        <Empty>The first values come in a few seconds.</Empty>
      ) : (
        <div class="plots">
          {plots.iops.length > 0 && <Plot title="Requests per second" times={measured.times} lines={plots.iops} least={10} say={perSecond} />}
          {plots.bytes.length > 0 && <Plot title="Throughput" times={measured.times} lines={plots.bytes} least={1024} say={bytesPerSecond} />}
          {plots.stages.length > 0 && <Plot title="Mean latency by stage" times={measured.times} lines={plots.stages} least={1} say={milliseconds} />}
          <Plot title="Committed entries per second" times={measured.times} lines={plots.entries} least={10} say={perSecond} />
          {plots.latency.length > 0 && <Plot title="Last latency" times={measured.times} lines={plots.latency} least={1} say={milliseconds} />}
          {plots.lags.length > 0 && <Plot title="Bytes that replicas lack" times={measured.times} lines={plots.lags} least={4096} say={(value) => bytes(Math.round(value))} />}
        </div>
      )}
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
