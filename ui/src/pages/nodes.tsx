// Nodes, their pools and certificates.
import { ActionButton } from "../actions";
import { bytes, count, lasting, list, moment, some } from "../format";
import { drain, maintenance, undrain } from "../orders";
import { Command, Empty, Facts, Head, HealthTag, PhaseTag, Ready, Section, Table, Tag, useAsk } from "../parts";
import { to } from "../route";
import { useStore } from "../store";
import type { CertificatesView, NodeView, ProgramsView, StatusView } from "../types";

export function NodeState({ node }: { node: NodeView }) {
  if (node.status !== "alive") return <Tag tone="bad">dead</Tag>;
  if (node.candidate) return <Tag tone="info">joins</Tag>;
  if (!node.connected) return <Tag tone="warn">alive, not reached from here</Tag>;
  if (node.log_lag_ms != null) return <Tag tone="warn">behind in the record since {lasting(node.log_lag_ms)}</Tag>;
  return <Tag tone="ok">alive</Tag>;
}

function roles(node: NodeView): string {
  const words = [node.leader ? "leads the record" : "", node.voter ? "votes" : "", node.witness ? "witness, holds no data" : ""];
  return words.filter(Boolean).join(", ") || "no vote";
}

const taken = (status: StatusView, node: string) =>
  status.resources.reduce((sum, resource) => sum + (resource.replicas.find((replica) => replica.node === node)?.live?.allocated.reduce((all, one) => all + one, 0) ?? 0), 0);

export function Nodes() {
  const { status } = useStore();
  const nodes = status?.cluster?.nodes ?? [];
  if (!status) return null;
  const primaries = (node: string) => status.resources.filter((resource) => resource.primary === node).length;
  return (
    <>
      <Head title="Nodes and pools" />
      {nodes.length === 0 ? (
        <Empty>This agent is no member of a cluster.</Empty>
      ) : (
        <Table label="Nodes" head={["Node", "State", "Primaries", ["Roles", "wide"], ["Volumes take", "wide"], "Free in the pool", ["Address", "wide"]]}>
          {nodes.map((node) => (
            <tr key={node.id}>
              <td>
                <a href={to("nodes", node.name)}>{node.name}</a>
              </td>
              <td>
                <span class="row">
                  <NodeState node={node} />
                  {node.cordon && <Tag tone="warn">{node.cordon.drain ? "drained" : "cordoned"}</Tag>}
                  {node.maintenance && <Tag tone="warn">maintenance</Tag>}
                </span>
              </td>
              <td>{count(primaries(node.name))}</td>
              <td class="wide">{roles(node)}</td>
              <td class="wide">{bytes(taken(status, node.name))}</td>
              <td>{node.pool_free_bytes != null ? bytes(node.pool_free_bytes) : "not known"}</td>
              <td class="wide">{node.agent_address}</td>
            </tr>
          ))}
        </Table>
      )}
      <Certificates />
    </>
  );
}

function Certificates() {
  const asked = useAsk<CertificatesView>("/v1/cluster/certificates");
  return (
    <Section title="Certificates">
      <Ready loaded={asked}>
        {(certificates) => (
          <>
            {certificates.rotation && (
              <p class="box warn">
                The cluster's authority is being replaced since {moment(certificates.rotation.since_ms)}.{certificates.rotation.waits_for.length > 0 && ` It waits for ${list(certificates.rotation.waits_for)}.`}
              </p>
            )}
            <Table label="Certificates" head={["Node", "Good until", ["Key (SHA-256)", "wide"]]}>
              {certificates.nodes.map((one) => (
                <tr key={one.node}>
                  <td>{one.node}</td>
                  <td>{one.until_ms != null ? moment(one.until_ms) : "it has none yet"}</td>
                  <td class="wide mono">{one.key}</td>
                </tr>
              ))}
            </Table>
          </>
        )}
      </Ready>
    </Section>
  );
}

export function Node({ name }: { name: string }) {
  const { status } = useStore();
  const node = status?.cluster?.nodes.find((other) => other.name === name);
  const isHere = status?.cluster?.this_node === name;
  if (!status || !node) {
    return (
      <>
        <Head title={name} up={[to("nodes"), "Nodes and pools"]} />
        <Empty>There is no node {name}.</Empty>
      </>
    );
  }
  const held = status.resources.filter((resource) => resource.replicas.some((replica) => replica.node === name));
  const services = status.services.filter((service) => service.node === name);
  return (
    <>
      <Head
        title={name}
        up={[to("nodes"), "Nodes and pools"]}
        actions={
          <>
            {node.cordon ? (
              <ActionButton action={undrain(node)} />
            ) : (
              <>
                <ActionButton action={drain(node, status, true)} />
                <ActionButton action={drain(node, status, false)} />
              </>
            )}
            <ActionButton action={maintenance("node", name, node.maintenance != null)} />
          </>
        }
      >
        <NodeState node={node} />
      </Head>
      {node.cordon && (
        <p class="box warn">
          {node.cordon.drain ? "Drained" : "Cordoned"} since {moment(node.cordon.since_ms)}: nothing comes to it.
          {node.cordon.primaries.length > 0 && ` It still has ${some(node.cordon.primaries.length, "primary")}: ${list(node.cordon.primaries.slice(0, 10))}.`}
        </p>
      )}
      {node.maintenance && (
        <p class="box warn">
          In maintenance since {moment(node.maintenance.since_ms)}: nothing fails over from or to it. To end it: <Command text={node.maintenance.end} />
        </p>
      )}
      <Facts
        facts={[
          ["Roles", roles(node)],
          ["Agent", node.agent_address],
          ["Engine", node.witness ? "none" : node.engine_address],
          ["Free in the pool", node.pool_free_bytes != null ? bytes(node.pool_free_bytes) : "not known"],
          ["Volumes take", bytes(taken(status, name))],
          ["Feature level of its build", String(node.level)],
        ]}
      />
      {isHere && <Here status={status} />}
      <Section title="Services that should run here">
        {services.length === 0 ? (
          <Empty>None.</Empty>
        ) : (
          <Table label="Services" head={["Service", "State", "Address"]}>
            {services.map((service) => (
              <tr key={service.name}>
                <td>
                  <a href={to("services", service.name)}>{service.name}</a>
                </td>
                <td>
                  <PhaseTag phase={service.phase} />
                </td>
                <td>{service.vip ?? "none"}</td>
              </tr>
            ))}
          </Table>
        )}
      </Section>
      <Section title="Replicas here" note={held.length > 100 ? "The first 100 are shown." : undefined}>
        {held.length === 0 ? (
          <Empty>None.</Empty>
        ) : (
          <Table label="Replicas" head={["Resource", "Role", "In sync", ["Health of the resource", "wide"]]}>
            {held.slice(0, 100).map((resource) => {
              const replica = resource.replicas.find((one) => one.node === name)!;
              return (
                <tr key={resource.id}>
                  <td>
                    <a href={to("resources", resource.name)}>{resource.name}</a>
                  </td>
                  <td>{resource.primary === name ? "primary" : "secondary"}</td>
                  <td>{replica.broken ? <Tag tone="bad">cannot be used</Tag> : <Tag tone={replica.in_sync ? "ok" : "warn"}>{replica.in_sync ? "yes" : "no"}</Tag>}</td>
                  <td class="wide">
                    <HealthTag health={resource.health} />
                  </td>
                </tr>
              );
            })}
          </Table>
        )}
      </Section>
    </>
  );
}

/** What only the node itself can say. */
function Here({ status }: { status: StatusView }) {
  const asked = useAsk<ProgramsView>("/v1/programs");
  const { engine } = status;
  return (
    <Section title="This node" note="You are connected to this node.">
      <Facts
        facts={[
          ["Engine", engine.connected ? "connected" : engine.message],
          ["Lease", status.lease_left_ms > 0 ? `lasts ${lasting(status.lease_left_ms)} from the answer on` : "none"],
          ["Agent", asked.data?.agent ? `process ${asked.data.agent.pid}${asked.data.agent.replaced ? ", its file was replaced: restart it" : ""}` : "not known"],
          ["Engine process", asked.data?.engine ? `process ${asked.data.engine.pid}${asked.data.engine.replaced ? ", its file was replaced: restart it" : ""}` : "none"],
        ]}
      />
    </Section>
  );
}
