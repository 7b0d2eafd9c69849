// The list of services.
import { list } from "../format";
import { Empty, Head, PhaseTag, Table, Tag, useMore } from "../parts";
import { go, to, type Route } from "../route";
import { useStore } from "../store";

const ORDER = ["failed", "killing", "backing-off", "starting", "stopping", "stopped", "running"];

export function Services({ route }: { route: Route }) {
  const { services } = useStore();
  const words = route.query.get("q") ?? "";
  const found = [...services.values()]
    .filter((service) => `${service.name} ${service.node ?? ""} ${service.vip ?? ""}`.includes(words))
    .sort((a, b) => ORDER.indexOf(a.phase) - ORDER.indexOf(b.phase) || (a.name < b.name ? -1 : 1));
  const { shown, more } = useMore(found.length, 100);
  return (
    <>
      <Head
        title="Services"
        actions={
          <a class="button" href={to("create-service")}>
            Create a service
          </a>
        }
      />
      {services.size === 0 ? (
        <Empty>
          There is no service yet. A service is what runs on a resource: file system, programs and address. <a href={to("create-service")}>Create the first one.</a>
        </Empty>
      ) : (
        <>
          <div class="row filters">
            <label>
              Name, node or address <input type="search" value={words} onInput={(event) => go(to("services", "", { q: event.currentTarget.value }), true)} />
            </label>
            <span role="status">{found.length} found, the worst first</span>
          </div>
          <Table label="Services" head={["Name", "State", "Node", ["Address", "wide"], ["Resource", "wide"], "Notes"]}>
            {found.slice(0, shown).map((service) => (
              <tr key={service.name}>
                <td>
                  <a href={to("services", service.name)}>{service.name}</a>
                </td>
                <td>
                  <PhaseTag phase={service.phase} />
                </td>
                <td>{service.phase_node ?? service.node ?? "none"}</td>
                <td class="wide">{service.vip ?? "none"}</td>
                <td class="wide">
                  <a href={to("resources", service.resource)}>{service.resource}</a>
                </td>
                <td>
                  <span class="row">
                    {service.maintenance && <Tag tone="warn">maintenance</Tag>}
                    {service.stopped_ms != null && <Tag tone="quiet">stopped by an operator</Tag>}
                    {service.hindrances.length > 0 && <Tag tone="bad">hindered</Tag>}
                    {service.failures.length > 0 && <Tag tone="warn">failed on {list(service.failures.map((failure) => failure.node))}</Tag>}
                  </span>
                </td>
              </tr>
            ))}
          </Table>
          {more}
        </>
      )}
    </>
  );
}
