// The list of services.
import { list } from "../format";
import { ListPage } from "../listpage";
import { PhaseTag, Tag } from "../parts";
import { to, type Route } from "../route";
import { useStore } from "../store";
import type { ServiceView } from "../types";

const ORDER = ["failed", "killing", "backing-off", "starting", "stopping", "stopped", "running"];

function Notes({ service }: { service: ServiceView }) {
  return (
    <span class="row">
      {service.maintenance && <Tag tone="warn">maintenance</Tag>}
      {service.stopped_ms != null && <Tag tone="quiet">stopped by an operator</Tag>}
      {service.hindrances.length > 0 && <Tag tone="bad">hindered</Tag>}
      {service.failures.length > 0 && <Tag tone="warn">failed on {list(service.failures.map((failure) => failure.node))}</Tag>}
    </span>
  );
}

export function Services({ route }: { route: Route }) {
  const { services } = useStore();
  return (
    <ListPage
      route={route}
      list={{
        page: "services",
        title: "Services",
        noun: "service",
        items: [...services.values()],
        key: (service) => service.name,
        words: (service) => `${service.name} ${service.node ?? ""} ${service.vip ?? ""}`,
        search: "Name, node or address",
        choice: { name: "state", label: "State", options: ORDER, of: (service) => service.phase },
        rank: (service) => ORDER.indexOf(service.phase),
        create: "create-service",
        none: "There is no service yet. A service is what runs on a resource: file system, programs and address.",
        columns: [
          { head: "Name", cell: (service) => <a href={to("services", service.name)}>{service.name}</a> },
          { head: "State", cell: (service) => <PhaseTag phase={service.phase} /> },
          { head: "Node", cell: (service) => service.phase_node ?? service.node ?? "none" },
          { head: "Address", isWide: true, cell: (service) => service.vip ?? "none" },
          { head: "Resource", isWide: true, cell: (service) => <a href={to("resources", service.resource)}>{service.resource}</a> },
          { head: "Notes", cell: (service) => <Notes service={service} /> },
        ],
      }}
    />
  );
}
