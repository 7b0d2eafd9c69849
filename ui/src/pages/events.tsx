// Events, and who asked for what.
import { useState } from "preact/hooks";
import { lasting, moment } from "../format";
import { Empty, Head, Ready, Section, SeverityTag, Table, Tag, useAsk, useMore } from "../parts";
import { to } from "../route";
import { may, useStore } from "../store";
import type { AuditPage, EventView } from "../types";

/** The page of the object that an event is about. */
function about(subject: string): string | null {
  const [kind = "", name = ""] = subject.split("/");
  if (kind === "resource") return to("resources", name);
  if (kind === "service") return to("services", name);
  return kind === "node" ? to("nodes", name) : null;
}

export function EventRows({ events }: { events: EventView[] }) {
  return (
    <Table label="Events" head={["Time", "Weight", ["About", "wide"], "What happened"]}>
      {events.map((event) => {
        const page = about(event.subject);
        return (
          <tr key={event.index}>
            <td class="time">{moment(event.at_ms)}</td>
            <td>
              <SeverityTag severity={event.severity} />
            </td>
            <td class="wide">{page ? <a href={page}>{event.subject}</a> : event.subject}</td>
            <td class="text">
              <div class="narrow">{page ? <a href={page}>{event.subject}</a> : event.subject}</div>
              {event.text}
            </td>
          </tr>
        );
      })}
    </Table>
  );
}

const WEIGHTS = ["info", "warning", "critical"];

export function Events() {
  const store = useStore();
  const [least, setLeast] = useState("info");
  const [words, setWords] = useState("");
  const weight = (word: string) => (WEIGHTS.includes(word) ? WEIGHTS.indexOf(word) : WEIGHTS.length);
  const has = (event: EventView) => weight(event.severity) >= weight(least) && `${event.subject} ${event.text}`.toLowerCase().includes(words.toLowerCase());
  const found = store.events.filter(has).reverse();
  const { shown, more } = useMore(found.length, 100);
  return (
    <>
      <Head title="Events and audit" />
      <Section title="Events">
        <div class="row filters">
          <label>
            Weight{" "}
            <select value={least} onChange={(event) => setLeast(event.currentTarget.value)}>
              <option value="info">all</option>
              <option value="warning">warnings and worse</option>
              <option value="critical">critical</option>
            </select>
          </label>
          <label>
            With the words <input type="search" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
          </label>
          <span role="status">{found.length} found</span>
        </div>
        {found.length === 0 ? <Empty>{store.events.length === 0 ? "Nothing has happened yet." : "No event is like that."}</Empty> : <EventRows events={found.slice(0, shown)} />}
        {more}
      </Section>
      <Audit />
    </>
  );
}

function Audit() {
  const store = useStore();
  const allowed = may(store, "operate");
  const asked = useAsk<AuditPage>(allowed ? "/v1/audit?lines=200" : null);
  return (
    <Section title="Audit log" note="Each request for a change: when, who, where, what, and the result.">
      {!allowed ? (
        <Empty>The audit log needs a token with the right operate.</Empty>
      ) : (
        <Ready loaded={asked}>
          {(page) =>
            page.records.length === 0 ? (
              <Empty>Nobody has asked for a change yet.</Empty>
            ) : (
              <Table label="Audit log" head={["Time", "Who", ["Node", "wide"], "What", "Result"]}>
                {[...page.records].reverse().map((record) => (
                  <tr key={record.number}>
                    <td class="time">{moment(record.at_ms)}</td>
                    <td>
                      {record.who}
                      {record.from && <span class="small"> from {record.from}</span>}
                    </td>
                    <td class="wide">{record.node}</td>
                    <td class="text">
                      <code>{record.action}</code>
                      {record.body && record.body !== "{}" && <div class="small mono">{record.body}</div>}
                    </td>
                    <td>
                      {record.status == null ? (
                        <Tag tone="warn">not known</Tag>
                      ) : record.status < 300 ? (
                        <Tag tone="ok">done{record.took_ms != null && ` in ${lasting(record.took_ms)}`}</Tag>
                      ) : (
                        <Tag tone="bad">{record.code ?? record.status}</Tag>
                      )}
                    </td>
                  </tr>
                ))}
              </Table>
            )
          }
        </Ready>
      )}
    </Section>
  );
}
