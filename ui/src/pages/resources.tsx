// The list of resources. A thousand of them stay quick: rows are made for what is shown.
import { list, some } from "../format";
import { lag, primaryPeers } from "../happens";
import { Empty, Head, HealthTag, PhaseTag, Table, Tag, useMore } from "../parts";
import { go, to, type Route } from "../route";
import { useStore } from "../store";
import type { ResourceView } from "../types";

const WORST = ["down", "degraded", "changing", "ok"];

function worstLag(resource: ResourceView): string {
  const behind = primaryPeers(resource).filter((peer) => peer.state !== "in-sync");
  if (behind.length === 0) return "none";
  const most = behind.reduce((one, other) => (other.lag_bytes > one.lag_bytes ? other : one));
  return most.state === "disconnected" ? `${most.node} is away` : `${most.node}: ${lag(most)}`;
}

export function Resources({ route }: { route: Route }) {
  const { resources, serviceOf } = useStore();
  const words = route.query.get("q") ?? "";
  const health = route.query.get("health") ?? "";
  const found = [...resources.values()]
    .filter((resource) => (!health || resource.health === health) && `${resource.name} ${resource.primary ?? ""} ${serviceOf.get(resource.name)?.name ?? ""}`.includes(words))
    .sort((a, b) => WORST.indexOf(a.health) - WORST.indexOf(b.health) || (a.name < b.name ? -1 : 1));
  const { shown, more } = useMore(found.length, 100);
  const filter = (change: Record<string, string>) => go(to("resources", "", { q: words, health, ...change }), true);
  return (
    <>
      <Head
        title="Resources"
        actions={
          <a class="button" href={to("create-resource")}>
            Create a resource
          </a>
        }
      />
      {resources.size === 0 ? (
        <Empty>
          There is no resource yet. <a href={to("create-resource")}>Create the first one.</a>
        </Empty>
      ) : (
        <>
          <div class="row filters">
            <label>
              Name, node or service <input type="search" value={words} onInput={(event) => filter({ q: event.currentTarget.value })} />
            </label>
            <label>
              Health{" "}
              <select value={health} onChange={(event) => filter({ health: event.currentTarget.value })}>
                <option value="">all</option>
                {WORST.map((word) => (
                  <option key={word} value={word}>
                    {word}
                  </option>
                ))}
              </select>
            </label>
            <span role="status">{some(found.length, "resource")} found, the worst first</span>
          </div>
          {found.length === 0 ? (
            <Empty>No resource is like that.</Empty>
          ) : (
            <Table label="Resources" head={["Name", "Health", "Primary", ["In sync", "wide"], ["Behind", "wide"], "Service"]}>
              {found.slice(0, shown).map((resource) => {
                const service = serviceOf.get(resource.name);
                const inSync = resource.replicas.filter((replica) => replica.in_sync);
                return (
                  <tr key={resource.id}>
                    <td>
                      <a href={to("resources", resource.name)}>{resource.name}</a>
                    </td>
                    <td>
                      <HealthTag health={resource.health} />
                    </td>
                    <td>{resource.primary ?? <Tag tone="bad">none</Tag>}</td>
                    <td class="wide">
                      {inSync.length} of {resource.replicas.length} <span class="small">{list(inSync.map((replica) => replica.node))}</span>
                    </td>
                    <td class="wide">{worstLag(resource)}</td>
                    <td>
                      {service ? (
                        <>
                          <a href={to("services", service.name)}>{service.name}</a> <PhaseTag phase={service.phase} />
                        </>
                      ) : (
                        <span class="small">none</span>
                      )}
                    </td>
                  </tr>
                );
              })}
            </Table>
          )}
          {more}
        </>
      )}
    </>
  );
}
