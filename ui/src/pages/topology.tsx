// Nodes and the replication between them, as a drawing and as a table.
import { useEffect, useRef, useState } from "preact/hooks";
import { some } from "../format";
import { lag, primaryPeers } from "../happens";
import { Empty, Head, Section, Table, Tag, useMore, type Tone } from "../parts";
import { go, to, type Route } from "../route";
import { useStore } from "../store";
import type { NodeView, ResourceView, StatusView } from "../types";

/** Replication from a primary's node to another node. */
interface Link {
  from: string;
  to: string;
  inSync: number;
  behind: number;
  away: number;
  /** How far the worst one is behind, in words. */
  lag: string;
}

function linksOf(resources: ResourceView[]): Link[] {
  const links = new Map<string, Link>();
  for (const resource of resources) {
    if (!resource.primary) continue;
    const peers = primaryPeers(resource);
    for (const replica of resource.replicas) {
      if (replica.node === resource.primary) continue;
      const key = `${resource.primary} ${replica.node}`;
      const link = links.get(key) ?? { from: resource.primary, to: replica.node, inSync: 0, behind: 0, away: 0, lag: "" };
      links.set(key, link);
      const peer = peers.find((one) => one.node === replica.node);
      if (replica.broken || !peer || peer.state === "disconnected" || peer.state === "failed") {
        link.away += 1;
        if (peer) link.lag = lag(peer);
      } else if (peer.state === "in-sync" || peer.state === "following") link.inSync += 1;
      else {
        link.behind += 1;
        link.lag = lag(peer);
      }
    }
  }
  return [...links.values()].sort((a, b) => (a.from + a.to < b.from + b.to ? -1 : 1));
}

const linkTone = (link: Link): Tone => (link.away > 0 ? "bad" : link.behind > 0 ? "info" : "ok");

function linkWords(link: Link): string {
  const words = [link.inSync ? `${link.inSync} in sync` : "", link.behind ? `${link.behind} behind` : "", link.away ? `${link.away} not connected` : ""];
  return words.filter(Boolean).join(", ");
}

interface Spot {
  node: NodeView;
  x: number;
  y: number;
}

function nodeTone(node: NodeView): Tone {
  if (node.status !== "alive") return "bad";
  return node.connected && node.log_lag_ms == null && !node.cordon && !node.maintenance ? "ok" : "warn";
}

function nodeWord(node: NodeView): string {
  if (node.status !== "alive") return "dead";
  if (node.candidate) return "joins";
  if (!node.connected) return "not reached";
  if (node.cordon) return node.cordon.drain ? "drained" : "cordoned";
  return node.maintenance ? "maintenance" : "alive";
}

const SIGNS: Record<string, string> = { ok: "✓", info: "↻", warn: "!", bad: "✕", quiet: "–" };

function Drawing({ nodes, resources, links }: { nodes: NodeView[]; resources: ResourceView[]; links: Link[] }) {
  const place = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setWidth(Math.max(300, element.clientWidth)));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const isNarrow = width < 620;
  const [boxWidth, boxHeight] = isNarrow ? [112, 74] : [168, 74];
  const height = nodes.length <= 2 && !isNarrow ? 190 : isNarrow ? 430 : Math.min(640, 320 + Math.max(0, nodes.length - 3) * 40);
  const [radiusX, radiusY] = [Math.min(width / 2 - boxWidth / 2 - 6, 330), height / 2 - boxHeight / 2 - 8];
  const spots: Spot[] = nodes.map((node, at) => {
    if (nodes.length === 1) return { node, x: width / 2, y: height / 2 };
    const angle = (2 * Math.PI * at) / nodes.length - Math.PI / (nodes.length === 2 ? 1 : 2);
    return { node, x: width / 2 + radiusX * Math.cos(angle), y: height / 2 + radiusY * Math.sin(angle) };
  });
  // Three nodes, for example, do not reach the lower edge by themselves.
  const [top, bottom] = [Math.min(...spots.map((one) => one.y)), Math.max(...spots.map((one) => one.y))];
  for (const one of spots) if (bottom > top) one.y = boxHeight / 2 + 8 + ((one.y - top) / (bottom - top)) * (height - boxHeight - 16);
  const spot = (name: string) => spots.find((one) => one.node.name === name);
  return (
    <div ref={place} class="drawing">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label="Nodes and the replication between them; the table below says the same">
        <defs>
          {["ok", "info", "bad"].map((tone) => (
            <marker key={tone} id={`arrow-${tone}`} viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
              <path d="M0 0L10 5L0 10z" class={`fill-${tone}`} />
            </marker>
          ))}
        </defs>
        {links.map((link) => {
          const [from, other] = [spot(link.from), spot(link.to)];
          if (!from || !other) return null;
          return <Arrow key={`${link.from} ${link.to}`} from={from} to={other} link={link} box={[boxWidth, boxHeight]} isNarrow={isNarrow} />;
        })}
        {spots.map(({ node, x, y }) => {
          const tone = nodeTone(node);
          const primaries = resources.filter((resource) => resource.primary === node.name).length;
          const replicas = resources.filter((resource) => resource.replicas.some((replica) => replica.node === node.name)).length;
          return (
            <a key={node.id} href={to("nodes", node.name)}>
              <rect x={x - boxWidth / 2} y={y - boxHeight / 2} width={boxWidth} height={boxHeight} rx="8" class={`node ${tone}`} />
              <text x={x} y={y - 14} text-anchor="middle" class="node-name">
                {node.name}
              </text>
              <text x={x} y={y + 6} text-anchor="middle" class={`node-word fill-${tone}`}>
                {SIGNS[tone]} {nodeWord(node)}
              </text>
              <text x={x} y={y + 25} text-anchor="middle" class="node-count">
                {node.witness ? "witness" : isNarrow ? `${primaries} of ${replicas} primary` : `primary of ${primaries}, ${replicas} replicas`}
              </text>
            </a>
          );
        })}
      </svg>
    </div>
  );
}

/** Where the way from the middle of a box leaves it. */
function edge(from: Spot, toward: Spot, [width, height]: [number, number]): [number, number] {
  const [dx, dy] = [toward.x - from.x, toward.y - from.y];
  const scale = Math.min(width / 2 / Math.max(Math.abs(dx), 1e-6), height / 2 / Math.max(Math.abs(dy), 1e-6));
  return [from.x + dx * scale, from.y + dy * scale];
}

function Arrow({ from, to: other, link, box, isNarrow }: { from: Spot; to: Spot; link: Link; box: [number, number]; isNarrow: boolean }) {
  const tone = linkTone(link);
  const length = Math.hypot(other.x - from.x, other.y - from.y) || 1;
  // The ways there and back lie beside each other.
  const [sideX, sideY] = [(-(other.y - from.y) / length) * 9, ((other.x - from.x) / length) * 9];
  const [x1, y1] = edge(from, other, box);
  const [x2, y2] = edge(other, from, box);
  const words = isNarrow ? `${SIGNS[tone]} ${link.inSync}/${link.inSync + link.behind + link.away}` : `${SIGNS[tone]} ${linkWords(link)}`;
  // Beside the line, by as much as the words are wide in its direction.
  const [normalX, normalY] = [sideX / 9, sideY / 9];
  const away = 18 + Math.abs(normalX) * words.length * 3.4;
  const [midX, midY] = [(x1 + x2) / 2 + normalX * away, (y1 + y2) / 2 + normalY * away];
  return (
    <g>
      <line x1={x1 + sideX} y1={y1 + sideY} x2={x2 + sideX} y2={y2 + sideY} class={`link ${tone}`} marker-end={`url(#arrow-${tone})`} />
      <text x={midX} y={midY + 4} text-anchor="middle" class={`link-word fill-${tone}`}>
        {words}
      </text>
    </g>
  );
}

export function Topology({ route }: { route: Route }) {
  const { status } = useStore();
  if (!status) return null;
  const nodes = status.cluster?.nodes ?? [];
  const chosen = route.query.get("resource") ?? "";
  const resources = chosen ? status.resources.filter((resource) => resource.name === chosen) : status.resources;
  const links = linksOf(resources);
  return (
    <>
      <Head title="Topology" />
      <div class="row filters">
        <label>
          Resource{" "}
          <input type="search" list="resource-names" placeholder="all" value={chosen} onChange={(event) => go(to("topology", "", { resource: event.currentTarget.value.trim() }), true)} />
        </label>
        <datalist id="resource-names">
          {status.resources.slice(0, 200).map((resource) => (
            <option key={resource.id} value={resource.name} />
          ))}
        </datalist>
        <span role="status">{chosen && resources.length === 0 ? `There is no resource ${chosen}.` : `${some(resources.length, "resource")} drawn`}</span>
      </div>
      <Drawing nodes={nodes} resources={resources} links={links} />
      <p class="note">An arrow leads from the node of a primary to a node with another replica. Its words count resources.</p>
      <Section title="Replication by link">
        {links.length === 0 ? (
          <Empty>No resource has a primary and a further replica.</Empty>
        ) : (
          <Table label="Links" head={["Primary on", "Replica on", "State", "Worst lag"]}>
            {links.map((link) => (
              <tr key={`${link.from} ${link.to}`}>
                <td>{link.from}</td>
                <td>{link.to}</td>
                <td>
                  <Tag tone={linkTone(link)}>{linkWords(link)}</Tag>
                </td>
                <td>{link.lag || "none"}</td>
              </tr>
            ))}
          </Table>
        )}
      </Section>
      <Grid status={status} resources={resources} />
    </>
  );
}

function cell(resource: ResourceView, node: string): [Tone, string] | null {
  const replica = resource.replicas.find((one) => one.node === node);
  if (!replica) return null;
  if (replica.broken) return ["bad", "broken"];
  if (resource.primary === node) return ["ok", "primary"];
  const peer = primaryPeers(resource).find((one) => one.node === node);
  if (peer && peer.state !== "in-sync" && peer.state !== "following") return [peer.state === "disconnected" || peer.state === "failed" ? "bad" : "info", peer.state.replace(/-/g, " ")];
  if (!peer && !replica.live) return replica.in_sync ? ["warn", "in sync, not heard"] : ["bad", "not heard"];
  return replica.in_sync ? ["ok", "in sync"] : ["warn", "behind"];
}

function Grid({ status, resources }: { status: StatusView; resources: ResourceView[] }) {
  const nodes = (status.cluster?.nodes ?? []).filter((node) => !node.witness);
  const { shown, more } = useMore(resources.length, 50);
  if (resources.length === 0) return null;
  return (
    <Section title="Replicas by node">
      <Table label="Replicas by node" head={["Resource", ...nodes.map((node) => node.name)]}>
        {resources.slice(0, shown).map((resource) => (
          <tr key={resource.id}>
            <td>
              <a href={to("resources", resource.name)}>{resource.name}</a>
            </td>
            {nodes.map((node) => {
              const found = cell(resource, node.name);
              return <td key={node.id}>{found ? <Tag tone={found[0]}>{found[1]}</Tag> : <span class="small">none</span>}</td>;
            })}
          </tr>
        ))}
      </Table>
      {more}
    </Section>
  );
}
