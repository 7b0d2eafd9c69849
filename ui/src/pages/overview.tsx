// What is wrong, what happens by itself, and what to do.
import { ActionButton } from "../actions";
import { some } from "../format";
import { happenings } from "../happens";
import { maintenance } from "../orders";
import { Advice, Command, Empty, Head, Meter, Section, Tag, useMore, type Tone } from "../parts";
import { to } from "../route";
import { useStore } from "../store";
import type { StatusView } from "../types";
import { EventRows } from "./events";

export function Overview() {
  const { status, events } = useStore();
  if (!status) return null;
  const cluster = status.cluster;
  if (!cluster) {
    return (
      <>
        <Head title="No cluster" />
        <ul class="list">
          {status.advice.map((text) => (
            <Advice key={text} text={text} />
          ))}
        </ul>
      </>
    );
  }
  const wrong = status.advice.length;
  return (
    <>
      <Head title={wrong === 0 ? "All is well" : wrong === 1 ? "One thing needs attention" : `${wrong} things need attention`}>
        <Tag tone={wrong === 0 ? "ok" : worst(status)}>cluster {cluster.name}</Tag>
      </Head>
      {cluster.maintenance && (
        <p class="box warn">
          The whole cluster is in maintenance: nothing fails over. To end it: <Command text={cluster.maintenance.end} />
        </p>
      )}
      {cluster.sends_clear && (
        <p class="box warn">
          Data goes from node to node without encryption, because the setting <code>data-encryption</code> is off.
        </p>
      )}
      <Counts status={status} />
      <What status={status} />
      <Now status={status} />
      <Section title="Latest events" actions={<a href={to("events")}>All events</a>}>
        {events.length === 0 ? <Empty>Nothing has happened yet.</Empty> : <EventRows events={events.slice(-8).reverse()} />}
      </Section>
      <Section title="Maintenance of the cluster" note="In maintenance, Mainstay leaves all services where they are, whatever happens.">
        <ActionButton action={maintenance("cluster", cluster.name, cluster.maintenance != null)} />
      </Section>
    </>
  );
}

function worst(status: StatusView): Tone {
  const isDown = status.resources.some((resource) => resource.health === "down") || status.services.some((service) => service.phase === "failed") || (status.cluster?.nodes ?? []).some((node) => node.status === "dead");
  return isDown ? "bad" : "warn";
}

interface Card {
  page: string;
  noun: string;
  total: number;
  parts: [Tone, number, string, Record<string, string>][];
}

function Counts({ status }: { status: StatusView }) {
  const nodes = status.cluster?.nodes ?? [];
  const of = (health: string) => status.resources.filter((resource) => resource.health === health).length;
  const running = status.services.filter((service) => service.phase === "running").length;
  const stopped = status.services.filter((service) => service.stopped_ms != null && service.phase === "stopped").length;
  const dead = nodes.filter((node) => node.status !== "alive").length;
  const cards: Card[] = [
    {
      page: "nodes",
      noun: "node",
      total: nodes.length,
      parts: [
        ["bad", dead, "dead", {}],
        ["ok", nodes.length - dead, "alive", {}],
      ],
    },
    {
      page: "resources",
      noun: "resource",
      total: status.resources.length,
      parts: [
        ["bad", of("down"), "down", { health: "down" }],
        ["warn", of("degraded"), "degraded", { health: "degraded" }],
        ["info", of("changing"), "changing", { health: "changing" }],
        ["ok", of("ok"), "ok", { health: "ok" }],
      ],
    },
    {
      page: "services",
      noun: "service",
      total: status.services.length,
      parts: [
        ["bad", status.services.length - running - stopped, "not running", {}],
        ["quiet", stopped, "stopped by you", {}],
        ["ok", running, "running", {}],
      ],
    },
  ];
  return (
    <ul class="cards" aria-label="Counts">
      {cards.map((card) => (
        <li key={card.page}>
          <a class="number" href={to(card.page)}>
            {some(card.total, card.noun)}
          </a>
          <span class="row">
            {card.parts
              .filter(([, number]) => number > 0)
              .map(([tone, number, word, query]) => (
                <a key={word} href={to(card.page, "", query)}>
                  <Tag tone={tone}>
                    {number} {word}
                  </Tag>
                </a>
              ))}
          </span>
        </li>
      ))}
    </ul>
  );
}

function What({ status }: { status: StatusView }) {
  const { shown, more } = useMore(status.advice.length, 20);
  return (
    <Section title="What is wrong, and what to do">
      <div aria-live="polite">
        {status.advice.length === 0 ? (
          <Empty>Nothing needs your attention.</Empty>
        ) : (
          <ul class="list">
            {status.advice.slice(0, shown).map((text) => (
              <Advice key={text} text={text} />
            ))}
          </ul>
        )}
        {more}
      </div>
    </Section>
  );
}

function Now({ status }: { status: StatusView }) {
  const all = happenings(status);
  const { shown, more } = useMore(all.length, 20);
  return (
    <Section title="What happens by itself now">
      {all.length === 0 ? (
        <Empty>Nothing moves, fills, starts or stops at the moment.</Empty>
      ) : (
        <ul class="list">
          {all.slice(0, shown).map(({ page, name, text, percent }) => (
            <li key={`${page}${name}${text}`} class="line">
              <a href={to(page, name)}>{name}</a> {text} {percent !== undefined && <Meter percent={percent} label={`Filled: ${name}`} />}
            </li>
          ))}
        </ul>
      )}
      {more}
    </Section>
  );
}
