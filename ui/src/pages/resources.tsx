// The list of resources.
import { list } from "../format";
import { lag, primaryPeers } from "../happens";
import { ListPage } from "../listpage";
import { HealthTag, PhaseTag, Tag } from "../parts";
import { to, type Route } from "../route";
import { useStore } from "../store";
import type { ResourceView, ServiceView } from "../types";

const WORST = ["down", "degraded", "changing", "ok"];

function worstLag(resource: ResourceView): string {
  const behind = primaryPeers(resource).filter((peer) => peer.state !== "in-sync");
  if (behind.length === 0) return "none";
  const most = behind.reduce((one, other) => (other.lag_bytes > one.lag_bytes ? other : one));
  return most.state === "disconnected" ? `${most.node} is away` : `${most.node}: ${lag(most)}`;
}

function InSync({ resource }: { resource: ResourceView }) {
  const inSync = resource.replicas.filter((replica) => replica.in_sync);
  return (
    <>
      {inSync.length} of {resource.replicas.length} <span class="small">{list(inSync.map((replica) => replica.node))}</span>
    </>
  );
}

function Service({ service }: { service: ServiceView | undefined }) {
  if (!service) return <span class="small">none</span>;
  return (
    <>
      <a href={to("services", service.name)}>{service.name}</a> <PhaseTag phase={service.phase} />
    </>
  );
}

export function Resources({ route }: { route: Route }) {
  const { resources, serviceOf } = useStore();
  return (
    <ListPage
      route={route}
      list={{
        page: "resources",
        title: "Resources",
        noun: "resource",
        items: [...resources.values()],
        key: (resource) => resource.id,
        words: (resource) => `${resource.name} ${resource.primary ?? ""} ${serviceOf.get(resource.name)?.name ?? ""}`,
        search: "Name, node or service",
        choice: { name: "health", label: "Health", options: WORST, of: (resource) => resource.health },
        rank: (resource) => WORST.indexOf(resource.health),
        create: "create-resource",
        none: "There is no resource yet.",
        columns: [
          { head: "Name", cell: (resource) => <a href={to("resources", resource.name)}>{resource.name}</a> },
          { head: "Health", cell: (resource) => <HealthTag health={resource.health} /> },
          { head: "Primary", cell: (resource) => resource.primary ?? <Tag tone="bad">none</Tag> },
          { head: "In sync", isWide: true, cell: (resource) => <InSync resource={resource} /> },
          { head: "Behind", isWide: true, cell: worstLag },
          { head: "Service", cell: (resource) => <Service service={serviceOf.get(resource.name)} /> },
        ],
      }}
    />
  );
}
