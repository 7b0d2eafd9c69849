// One service: state, where and why, what it is made of, output, history.
import { useState } from "preact/hooks";
import { ActionButton } from "../actions";
import { part } from "../api";
import { ago, moment, some } from "../format";
import { maintenance, moveService, restartService, startService, stopService } from "../orders";
import { Advice, Command, Empty, Facts, Head, PhaseTag, Ready, Section, Table, Tag, useAsk, Words } from "../parts";
import { to } from "../route";
import { may, useStore } from "../store";
import type { HistoryPage, ServiceExplained, ServiceFile, ServiceHistory, ServiceLogs, ServiceView } from "../types";
import { EventRows } from "./events";
import { Changes } from "./failovers";

export function Service({ name }: { name: string }) {
  const { services, resources } = useStore();
  const history = useAsk<HistoryPage>(`/v1/history?name=${part(name)}&lines=5`);
  const service = services.get(name);
  if (!service) {
    return (
      <>
        <Head title={name} up={[to("services"), "Services"]} />
        <Empty>There is no service {name} any more. It was deleted, or the name is another one.</Empty>
      </>
    );
  }
  const resource = resources.get(service.resource);
  const changes = history.data?.changes ?? [];
  const isStopped = service.stopped_ms != null;
  return (
    <>
      <Head
        title={name}
        up={[to("services"), "Services"]}
        actions={
          <>
            <ActionButton action={moveService(service, resource, changes[changes.length - 1])} />
            {isStopped ? null : <ActionButton action={restartService(service)} />}
            {isStopped ? <ActionButton action={startService(service)} /> : <ActionButton action={stopService(service)} />}
            <ActionButton action={maintenance("service", name, service.maintenance?.of === `service ${name}`)} />
          </>
        }
      >
        <PhaseTag phase={service.phase} />
      </Head>
      <Notes service={service} />
      <Facts
        facts={[
          ["Node", service.phase_node ?? service.node ?? "none"],
          ["Address", service.vip ?? "none"],
          ["Resource", <a href={to("resources", service.resource)}>{service.resource}</a>],
          ["Should run on", service.node ?? "no node: the resource has no primary"],
          ...(service.doing ? ([["Step", service.doing]] as [string, string][]) : []),
          ...(isStopped ? ([["Stopped", `by an operator, ${ago(service.stopped_ms!)}`]] as [string, string][]) : []),
          ...(service.current ? [] : ([["Specification", "the node has not taken up the newest one yet"]] as [string, string][])),
        ]}
      />
      <Places service={service} />
      {service.failures.length > 0 && (
        <Section title="Failures that count">
          <Table label="Failures" head={["Node", "How many", "Last", "Why"]}>
            {service.failures.map((failure) => (
              <tr key={failure.node}>
                <td>{failure.node}</td>
                <td>{failure.count}</td>
                <td class="time">{failure.at_ms ? moment(failure.at_ms) : "not known"}</td>
                <td class="text">{failure.reason}</td>
              </tr>
            ))}
          </Table>
        </Section>
      )}
      <Section title="Last changes of its node" actions={<a href={to("failovers", "", { name })}>All changes</a>}>
        <Ready loaded={history}>{(page) => <Changes changes={[...page.changes].reverse()} />}</Ready>
      </Section>
      <Output service={service} />
      <File name={name} />
      <History name={name} />
    </>
  );
}

function Notes({ service }: { service: ServiceView }) {
  return (
    <div aria-live="polite">
      {service.maintenance && (
        <p class="box warn">
          In maintenance since {moment(service.maintenance.since_ms)} (that of {service.maintenance.of}): Mainstay leaves it alone. To end it: <Command text={service.maintenance.end} />
        </p>
      )}
      {service.hindrances.map((text) => (
        <p key={text} class="box bad">
          <Words text={text} />
        </p>
      ))}
      {service.advice.length > 0 && (
        <ul class="list">
          {service.advice.map((text) => (
            <Advice key={text} text={text} />
          ))}
        </ul>
      )}
    </div>
  );
}

function Places({ service }: { service: ServiceView }) {
  const asked = useAsk<ServiceExplained>(`/v1/services/${part(service.name)}/explain`);
  return (
    <Section title="Where it can run, and why">
      <Ready loaded={asked}>
        {(explained) => (
          <>
            {explained.waits && <p class="box warn">{explained.waits}</p>}
            <Table label="Nodes" head={["Node", "Verdict", "Why"]}>
              {explained.nodes.map((fit) => (
                <tr key={fit.node}>
                  <td>
                    <a href={to("nodes", fit.node)}>{fit.node}</a>
                  </td>
                  <td>{fit.chosen ? <Tag tone="ok">chosen</Tag> : fit.can ? <Tag tone="ok">could take over</Tag> : <Tag tone="warn">cannot</Tag>}</td>
                  <td class="text">{fit.why}</td>
                </tr>
              ))}
            </Table>
          </>
        )}
      </Ready>
    </Section>
  );
}

function Output({ service }: { service: ServiceView }) {
  const store = useStore();
  const allowed = may(store, "operate");
  const [isOpen, setOpen] = useState(false);
  const [node, setNode] = useState("");
  const nodes = (store.status?.cluster?.nodes ?? []).filter((other) => !other.witness).map((other) => other.name);
  const asked = useAsk<ServiceLogs>(allowed && isOpen ? `/v1/services/${part(service.name)}/logs?lines=100${node ? `&node=${part(node)}` : ""}` : null);
  return (
    <Section
      title="Output of its processes"
      actions={
        allowed && (
          <>
            <label>
              Node{" "}
              <select value={node} onChange={(event) => setNode(event.currentTarget.value)}>
                <option value="">where it runs</option>
                {nodes.map((name) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
            <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              {isOpen ? "Hide" : "Show"}
            </button>
          </>
        )
      }
    >
      {!allowed ? (
        <Empty>The output needs a token with the right operate.</Empty>
      ) : !isOpen ? (
        <p class="note">The newest 100 lines of each process.</p>
      ) : (
        <Ready loaded={asked}>
          {(logs) =>
            logs.logs.length === 0 ? (
              <Empty>There is no output on {logs.node}.</Empty>
            ) : (
              <>
                {logs.logs.map((log) => (
                  <div key={log.process}>
                    <h3>
                      {log.process} on {logs.node}
                    </h3>
                    {log.notice && <p class="note">{log.notice}</p>}
                    <pre tabIndex={0} aria-label={`Output of ${log.process}`}>
                      {log.text || "No output."}
                    </pre>
                  </div>
                ))}
              </>
            )
          }
        </Ready>
      )}
    </Section>
  );
}

function File({ name }: { name: string }) {
  const allowed = may(useStore(), "operate");
  const asked = useAsk<ServiceFile>(allowed ? `/v1/services/${part(name)}/file` : null);
  return (
    <Section
      title="Service file: processes, probes, addresses"
      actions={
        <a class="button" href={to("create-service", "", { name })}>
          Change it
        </a>
      }
    >
      {!allowed ? (
        <Empty>The service file needs a token with the right operate.</Empty>
      ) : (
        <Ready loaded={asked}>
          {(file) => (
            <details>
              <summary>Show the file, with all defaults ({some(file.toml.trim().split("\n").length, "line")})</summary>
              <pre tabIndex={0} aria-label="Service file">
                {file.toml}
              </pre>
            </details>
          )}
        </Ready>
      )}
    </Section>
  );
}

function History({ name }: { name: string }) {
  const asked = useAsk<ServiceHistory>(`/v1/services/${part(name)}/history?lines=30`);
  return (
    <Section title="History">
      <Ready loaded={asked}>{(history) => (history.events.length === 0 ? <Empty>Nothing has happened yet.</Empty> : <EventRows events={[...history.events].reverse()} />)}</Ready>
    </Section>
  );
}
