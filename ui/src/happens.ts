// What the cluster is doing by itself, read from the state.
import { bytes, lasting, some } from "./format";
import type { PeerView, ResourceView, StatusView } from "./types";

export interface Happening {
  /** Address of the page that shows it. */
  page: string;
  name: string;
  text: string;
  percent?: number;
}

export function primaryPeers(resource: ResourceView): PeerView[] {
  const primary = resource.replicas.find((replica) => replica.node === resource.primary);
  return primary?.live?.peers ?? [];
}

export function lag(peer: PeerView): string {
  if (peer.lag_entries === 0 && peer.lag_bytes === 0) return peer.lag_more ? "not known" : "none";
  const more = peer.lag_more ? "at least " : "";
  return `${more}${bytes(peer.lag_bytes)}, ${lasting(peer.lag_ms)}`;
}

function ofPeer(resource: ResourceView, peer: PeerView): Happening | null {
  const about = { page: "resources", name: resource.name };
  if (peer.state === "copying") {
    const rate = peer.copy_bytes_per_s ? `, ${bytes(peer.copy_bytes_per_s)}/s` : "";
    const left = peer.copy_left_ms != null ? `, ${lasting(peer.copy_left_ms)} left` : "";
    return { ...about, text: `The replica on ${peer.node} is being filled${rate}${left}.`, percent: peer.progress_percent ?? undefined };
  }
  if (peer.state === "catching-up") return { ...about, text: `The replica on ${peer.node} catches up; it lacks ${lag(peer)}.` };
  if (peer.state === "joining") return { ...about, text: `The replica on ${peer.node} joins the replicas in sync.` };
  if (peer.slow) return { ...about, text: `The replica on ${peer.node} was slow and is asked to return in ${lasting(peer.slow.returns_in_ms)}.` };
  return null;
}

function ofResource(resource: ResourceView): Happening[] {
  const about = { page: "resources", name: resource.name };
  const list: Happening[] = [];
  const add = (text: string) => list.push({ ...about, text });
  for (const peer of primaryPeers(resource)) {
    const happening = ofPeer(resource, peer);
    if (happening) list.push(happening);
  }
  if (resource.primary_moves_to) add(`The primary moves to ${resource.primary_moves_to}.`);
  if (resource.deleting) add("It is being deleted.");
  if (resource.origin) add(`It is being made of the snapshot ${resource.origin.snapshot} of ${resource.origin.resource}.`);
  if (resource.rollback) add(`Its volumes go back to the snapshot ${resource.rollback.snapshot}.`);
  if (resource.scrubs.running) add("Its replicas are being compared.");
  for (const move of resource.moves) add(`The replica of ${move.from} moves to ${move.to}.`);
  for (const growing of resource.growing) add(`Volume ${growing.volume} grows to ${bytes(growing.bytes)}.`);
  for (const leaving of resource.leaving) add(`The files of the replica on ${leaving.node} are removed${leaving.dead ? " when that node returns" : ""}.`);
  for (const snapshot of resource.snapshots) {
    if (snapshot.deleting) add(`The snapshot ${snapshot.name} is being deleted.`);
    else if (snapshot.nodes.some((on) => on.state === "taking")) add(`The snapshot ${snapshot.name} is being taken.`);
  }
  return list;
}

export function happenings(status: StatusView): Happening[] {
  const list = status.resources.flatMap(ofResource);
  for (const service of status.services) {
    const about = { page: "services", name: service.name };
    const doing = service.doing ? `: ${service.doing}` : "";
    const on = service.phase_node ?? service.node ?? "its node";
    if (service.deleting) list.push({ ...about, text: "It is being stopped and deleted." });
    else if (service.restarting) list.push({ ...about, text: `It is being restarted on ${on}${doing}.` });
    else if (service.phase === "starting") list.push({ ...about, text: `It starts on ${on}${doing}.` });
    else if (service.phase === "stopping") list.push({ ...about, text: `It stops on ${on}${doing}.` });
    else if (service.phase === "backing-off") list.push({ ...about, text: `It failed on ${on} and is tried again after a pause.` });
    else if (service.phase === "killing") list.push({ ...about, text: `The lease of ${on} has ended, so it is being killed there.` });
  }
  for (const node of status.cluster?.nodes ?? []) {
    const about = { page: "nodes", name: node.name };
    if (node.candidate) list.push({ ...about, text: "It joins the cluster and receives its state." });
    if (node.cordon?.drain && node.cordon.primaries.length > 0) list.push({ ...about, text: `It is being drained, and still has ${some(node.cordon.primaries.length, "primary")}.` });
  }
  return list;
}
