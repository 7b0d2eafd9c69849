// The changes that the console offers, with their costs.
import type { Action, Field } from "./actions";
import { change, part } from "./api";
import { bytes, lasting, list, some, utc } from "./format";
import { typed } from "./report";
import type { BaselineView, ChangeView, NodeView, ResourceView, ServiceView, StatusView } from "./types";

type Said = { message?: string };

const away = (last: ChangeView | undefined): string =>
  last?.took_ms != null
    ? `The last change of its primary took ${lasting(last.took_ms)} until the service ran.`
    : "How long that takes depends on the programs of the service, for example on the recovery of its database.";

/** Nodes with a replica, the ones in sync first. */
function targets(resource: ResourceView | undefined, except: string | null | undefined): [string, string][] {
  const replicas = (resource?.replicas ?? []).filter((replica) => replica.node !== except);
  const sorted = [...replicas].sort((a, b) => Number(b.in_sync) - Number(a.in_sync));
  return sorted.map((replica) => [replica.node, replica.in_sync ? replica.node : `${replica.node} (not in sync)`]);
}

export function moveService(service: ServiceView, resource: ResourceView | undefined, last?: ChangeView): Action {
  const options = targets(resource, service.node);
  return {
    title: `Move service ${service.name}`,
    verb: "Move",
    right: "operate",
    fields: [{ name: "to", label: "To node", options: options.length ? options : [["", "no other node has a replica"]] }],
    costs: ({ to }) => [
      `The service stops on ${service.node ?? "its node"} and starts on ${to || "the other node"}. Clients lose their connections and connect again.`,
      away(last),
      "No acknowledged write is lost.",
    ],
    command: ({ to }) => `mainstay service move ${service.name} --to ${to}`,
    run: ({ to }) => change<Said>("POST", `/v1/services/${part(service.name)}/move`, { to, force: false }),
  };
}

export function stopService(service: ServiceView): Action {
  return {
    title: `Stop service ${service.name}`,
    verb: "Stop",
    right: "operate",
    isDangerous: true,
    costs: () => ["All processes of the service end, and its address goes away. It stays stopped, on every node, until it is started.", "Its data stays, and is replicated as before."],
    command: () => `mainstay service stop ${service.name}`,
    run: () => change<Said>("PUT", `/v1/services/${part(service.name)}/wanted`, { run: false, force: false }),
  };
}

export function startService(service: ServiceView): Action {
  return {
    title: `Start service ${service.name}`,
    verb: "Start",
    right: "operate",
    costs: () => ["The service starts on the primary's node. Failures that were counted are cleared."],
    command: () => `mainstay service start ${service.name}`,
    run: () => change<Said>("PUT", `/v1/services/${part(service.name)}/wanted`, { run: true, force: false }),
  };
}

export function restartService(service: ServiceView): Action {
  return {
    title: `Restart service ${service.name}`,
    verb: "Restart",
    right: "operate",
    costs: () => [`All processes stop and start again on ${service.node ?? "their node"}. Clients lose their connections.`, "No failure is counted."],
    command: () => `mainstay service restart ${service.name}`,
    run: () => change<Said>("POST", `/v1/services/${part(service.name)}/restart`, {}),
  };
}

const FOREVER = "";
const LENGTHS: [string, string][] = [
  ["1800000", "30 minutes"],
  ["7200000", "2 hours"],
  ["28800000", "8 hours"],
  [FOREVER, "Until you end it"],
];
const SHORT: Record<string, string> = { "1800000": " --for 30m", "7200000": " --for 2h", "28800000": " --for 8h" };

/** Begins or ends a maintenance of a service, a node or the cluster. */
export function maintenance(kind: "service" | "node" | "cluster", name: string, isOn: boolean): Action {
  const path = kind === "cluster" ? "/v1/cluster/maintenance" : `/v1/${kind}s/${part(name)}/maintenance`;
  const what = kind === "cluster" ? "the cluster" : `${kind} ${name}`;
  const words = kind === "cluster" ? "cluster maintenance" : `${kind} maintenance`;
  const object = kind === "cluster" ? "" : ` ${name}`;
  const fields: Field[] = isOn ? [] : [{ name: "for", label: "For", options: LENGTHS, value: "7200000" }];
  return {
    title: isOn ? `End the maintenance of ${what}` : `Begin maintenance of ${what}`,
    verb: isOn ? "End maintenance" : "Begin maintenance",
    right: "operate",
    fields,
    costs: () =>
      isOn
        ? ["Mainstay mends at once what it has seen meanwhile, for example a process that ended, and fails over again."]
        : [
            "Nothing fails over until it ends: Mainstay does not start, restart, stop or move these services. If the node dies, they are down until it is back.",
            "What runs goes on running and is watched.",
          ],
    command: (values) => `mainstay ${words}${object} ${isOn ? "--off" : "--on"}${isOn ? "" : (SHORT[values.for ?? ""] ?? "")}`,
    run: (values) => change<Said>("PUT", path, { on: !isOn, for_ms: isOn || !values.for ? null : Number(values.for) }),
  };
}

export function movePrimary(resource: ResourceView): Action {
  const options = targets(resource, resource.primary);
  return {
    title: `Move the primary of ${resource.name}`,
    verb: "Move primary",
    right: "operate",
    fields: [{ name: "to", label: "To node", options: [["", "the best one"], ...options] }],
    costs: () => [`The devices of ${resource.name} on ${resource.primary ?? "the primary"} go away, and appear on the other node. Programs that use them must be ended before.`, "No acknowledged write is lost."],
    command: ({ to }) => `mainstay resource move ${resource.name}${to ? ` --to ${to}` : ""}`,
    run: ({ to }) => change<Said>("POST", `/v1/resources/${part(resource.name)}/move`, { to: to || null }),
  };
}

function now(): string {
  const at = new Date();
  const two = (value: number) => String(value).padStart(2, "0");
  return `at-${two(at.getMonth() + 1)}${two(at.getDate())}-${two(at.getHours())}${two(at.getMinutes())}`;
}

const NAME = "[a-z0-9\\-]{1,32}";

export function takeSnapshot(resource: ResourceView): Action {
  return {
    title: `Take a snapshot of ${resource.name}`,
    verb: "Take snapshot",
    right: "operate",
    fields: [{ name: "name", label: "Name", value: now(), pattern: NAME, help: "1 to 32 characters out of a-z, 0-9 and the dash" }],
    costs: () => ["It needs no space at first, and more as the volumes change.", "Nothing waits for it. Its content is what was written at that moment, as after a power cut."],
    command: ({ name }) => `mainstay snapshot create ${resource.name} ${name}`,
    run: ({ name }) => change<Said>("POST", `/v1/resources/${part(resource.name)}/snapshots`, { name }),
  };
}

export function dropSnapshot(resource: ResourceView, snapshot: string): Action {
  return {
    title: `Delete snapshot ${snapshot} of ${resource.name}`,
    verb: "Delete snapshot",
    right: "admin",
    isDangerous: true,
    costs: () => ["The content of the snapshot is lost on all nodes. This cannot be undone.", "Clones that were made of it stay."],
    command: () => `mainstay snapshot delete ${resource.name} ${snapshot}`,
    run: () => change<Said>("DELETE", `/v1/resources/${part(resource.name)}/snapshots/${part(snapshot)}`),
  };
}

export function rollBack(resource: ResourceView, snapshot: string, service: ServiceView | undefined): Action {
  return {
    title: `Roll ${resource.name} back to ${snapshot}`,
    verb: "Roll back",
    right: "admin",
    isDangerous: true,
    costs: () => [
      `Everything that was written to ${resource.name} after ${snapshot} is gone from the volumes. A further snapshot keeps it.`,
      ...(service ? [`The service ${service.name} stops for this and starts again. Clients lose their connections.`] : []),
    ],
    command: () => `mainstay snapshot rollback ${resource.name} ${snapshot}${service ? " --restart-service" : ""}`,
    run: () =>
      change<Said>("POST", `/v1/resources/${part(resource.name)}/snapshots/${part(snapshot)}/rollback`, {
        keep: null,
        discard: false,
        restart_service: service !== undefined,
      }),
  };
}

export function startScrub(resource: ResourceView): Action {
  return {
    title: `Compare the replicas of ${resource.name}`,
    verb: "Compare replicas",
    right: "admin",
    fields: [
      {
        name: "repair",
        label: "Blocks that differ",
        options: [
          ["no", "are reported only"],
          ["yes", "are written anew"],
        ],
      },
    ],
    costs: ({ repair }) => [
      `Each replica reads all its data once: ${bytes(resource.volumes.reduce((sum, size) => sum + size, 0))} at most. Clients go first.`,
      ...(repair === "yes" ? ["A block gets what more than half of the replicas hold, otherwise what the primary holds."] : []),
    ],
    command: ({ repair }) => `mainstay resource scrub ${resource.name}${repair === "yes" ? " --repair" : ""}`,
    run: ({ repair }) => change<Said>("POST", `/v1/resources/${part(resource.name)}/scrub`, { repair: repair === "yes", rate: 0 }),
  };
}

export function stopScrub(resource: ResourceView): Action {
  return {
    title: `End the comparison of ${resource.name}`,
    verb: "End comparison",
    right: "operate",
    costs: () => ["What was not compared yet stays uncompared. The report keeps what was found."],
    command: () => `mainstay resource scrub ${resource.name} --stop`,
    run: () => change<Said>("DELETE", `/v1/resources/${part(resource.name)}/scrub`),
  };
}

export function drain(node: NodeView, status: StatusView, isDrain: boolean): Action {
  const primaries = status.resources.filter((resource) => resource.primary === node.name);
  const services = status.services.filter((service) => service.node === node.name).map((service) => service.name);
  return {
    title: isDrain ? `Drain node ${node.name}` : `Cordon node ${node.name}`,
    verb: isDrain ? "Drain" : "Cordon",
    right: "operate",
    costs: () =>
      isDrain
        ? [
            services.length
              ? `${some(services.length, "service")} (${list(services.slice(0, 5))}${services.length > 5 ? ", …" : ""}) move to other nodes, one interruption each.`
              : "No service runs there, so nothing is interrupted.",
            `${some(primaries.length, "primary")} ${primaries.length === 1 ? "leaves" : "leave"} the node, as far as there is somewhere to go. Replicas stay and are kept in sync.`,
            "Nothing comes to the node until you let it.",
          ]
        : ["No service and no primary comes to the node until you let it. What is there stays."],
    command: () => `mainstay node ${isDrain ? "drain" : "cordon"} ${node.name}`,
    run: () => change<Said>("PUT", `/v1/nodes/${part(node.name)}/cordon`, { on: true, drain: isDrain }),
  };
}

export function undrain(node: NodeView): Action {
  return {
    title: `Let services come to ${node.name}`,
    verb: "Uncordon",
    right: "operate",
    costs: () => ["Services and primaries may come to the node again. A service whose file says failback moves back at once if it prefers this node, with an interruption."],
    command: () => `mainstay node uncordon ${node.name}`,
    run: () => change<Said>("PUT", `/v1/nodes/${part(node.name)}/cordon`, { on: false, drain: false }),
  };
}

/** `done` is called after the answer. */
export function saveBaseline(from_ms: number, to_ms: number, done: () => void): Action {
  const minute = (ms: number) => Math.floor(ms / 60_000) * 60_000;
  const [from, to] = [minute(from_ms), minute(to_ms)];
  return {
    title: "Keep this time as a baseline",
    verb: "Keep",
    right: "operate",
    fields: [{ name: "name", label: "Name", value: "", pattern: "[a-z][a-z0-9\\-]{0,31}", help: "1 to 32 characters out of a-z, 0-9 and the dash, beginning with a letter" }],
    costs: () => [`The nodes keep the figures from ${utc(from)} to ${utc(to)} UTC until you delete the baseline. That takes some 1 MiB at most on each node.`, "A node that is away now has no part of it."],
    command: ({ name }) => `mainstay report baseline save ${name || "NAME"} --from ${typed(from)} --to ${typed(to)}`,
    run: async ({ name }) => {
      const said = await change<Said>("PUT", `/v1/baselines/${part(name ?? "")}`, { from_ms: from, to_ms: to });
      done();
      return said;
    },
  };
}

export function dropBaseline(baseline: BaselineView, done: () => void): Action {
  return {
    title: `Delete baseline ${baseline.name}`,
    verb: "Delete baseline",
    right: "admin",
    isDangerous: true,
    costs: () => ["The kept figures are lost on all nodes. This cannot be undone once the history of that time is gone.", "A node that is away keeps its part. It shows the baseline again when it is back."],
    command: () => `mainstay report baseline delete ${baseline.name}`,
    run: async () => {
      const said = await change<Said>("DELETE", `/v1/baselines/${part(baseline.name)}`);
      done();
      return said;
    },
  };
}
