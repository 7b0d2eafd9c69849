// Pieces that all pages are made of.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import * as api from "./api";
import { Problem, type Unconfirmed } from "./api";
import { lasting, moment } from "./format";
import { useStore } from "./store";

export type Tone = "ok" | "info" | "warn" | "bad" | "quiet";

/** Sign of each tone, so that no meaning is in a colour alone. */
const SIGNS: Record<Tone, string> = { ok: "✓", info: "↻", warn: "!", bad: "✕", quiet: "–" };

export function Tag({ tone, children, title }: { tone: Tone; children: ComponentChildren; title?: string }) {
  return (
    <span class={`tag ${tone}`} title={title}>
      <span aria-hidden="true">{SIGNS[tone]}</span> {children}
    </span>
  );
}

const HEALTH: Record<string, [Tone, string]> = {
  ok: ["ok", "ok"],
  degraded: ["warn", "degraded"],
  changing: ["info", "changing"],
  down: ["bad", "down"],
};

export function HealthTag({ health }: { health: string }) {
  const [tone, word] = HEALTH[health] ?? ["quiet", health];
  return <Tag tone={tone}>{word}</Tag>;
}

const PHASES: Record<string, Tone> = {
  running: "ok",
  starting: "info",
  stopping: "info",
  stopped: "quiet",
  "backing-off": "warn",
  killing: "warn",
  failed: "bad",
};

export function phaseTone(phase: string): Tone {
  return PHASES[phase] ?? "quiet";
}

export function PhaseTag({ phase }: { phase: string }) {
  return <Tag tone={phaseTone(phase)}>{phase.replace(/-/g, " ")}</Tag>;
}

const SEVERITIES: Record<string, Tone> = { info: "quiet", warning: "warn", critical: "bad", error: "bad" };

export function SeverityTag({ severity }: { severity: string }) {
  return <Tag tone={SEVERITIES[severity] ?? "quiet"}>{severity}</Tag>;
}

/** A part of a page with a heading. */
export function Section(props: { title: string; children: ComponentChildren; actions?: ComponentChildren; note?: ComponentChildren }) {
  const id = `s-${props.title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return (
    <section aria-labelledby={id} class="section">
      <div class="section-head">
        <h2 id={id}>{props.title}</h2>
        {props.actions && <div class="row">{props.actions}</div>}
      </div>
      {props.note && <p class="note">{props.note}</p>}
      {props.children}
    </section>
  );
}

export function Head(props: { title: string; children?: ComponentChildren; actions?: ComponentChildren; up?: [string, string] }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${props.title} · Mainstay`;
  }, [props.title]);
  // Readers of the screen learn that the page is another one.
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  return (
    <header class="head">
      {props.up && (
        <a class="up" href={props.up[0]}>
          ← {props.up[1]}
        </a>
      )}
      <div class="head-line">
        <h1 ref={heading} tabIndex={-1}>
          {props.title}
        </h1>
        {props.children}
        {props.actions && <div class="row actions">{props.actions}</div>}
      </div>
    </header>
  );
}

/** A table that can be scrolled sideways where it is wider than the page. */
export function Table({ label, head, children }: { label: string; head: (string | [string, string])[]; children: ComponentChildren }) {
  return (
    <div class="table" role="region" aria-label={`Table: ${label}`} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((cell) => {
              const [text, kind] = typeof cell === "string" ? [cell, ""] : cell;
              return (
                <th key={text} scope="col" class={kind}>
                  {text}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Copy({ text }: { text: string }) {
  const [word, setWord] = useState("Copy");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setWord("Copied");
    } catch {
      setWord("Select it and copy");
    }
    setTimeout(() => setWord("Copy"), 2_000);
  };
  return (
    <button type="button" class="copy" onClick={() => void copy()} aria-label={`Copy the command ${text}`}>
      <span aria-live="polite">{word}</span>
    </button>
  );
}

/** A command to paste. */
export function Command({ text }: { text: string }) {
  return (
    <span class="command">
      <code>{text}</code>
      <Copy text={text} />
    </span>
  );
}

/** A sentence of the API, whose commands are between backticks. */
export function Words({ text }: { text: string }) {
  return (
    <>
      {text.split("`").map((piece, at) =>
        at % 2 === 0 ? piece : piece.startsWith("mainstay ") || piece.startsWith("systemctl ") ? <Command key={at} text={piece} /> : <code key={at}>{piece}</code>,
      )}
    </>
  );
}

/** A piece of advice: subject, what is wrong, and what to do. */
export function Advice({ text }: { text: string }) {
  const colon = text.indexOf(": ");
  const subject = colon > 0 && colon < 60 && !text.slice(0, colon).includes("`") ? text.slice(0, colon) : "";
  const rest = subject ? text.slice(colon + 2) : text;
  const semicolon = rest.indexOf("; ");
  const [what, remedy] = semicolon > 0 ? [rest.slice(0, semicolon), rest.slice(semicolon + 2)] : [rest, ""];
  return (
    <li class="advice">
      <p>
        {subject && <strong>{subject} </strong>}
        <Words text={what} />
      </p>
      {remedy && (
        <p class="remedy">
          <span class="label">What to do:</span> <Words text={remedy} />
        </p>
      )}
    </li>
  );
}

export function ProblemBox({ problem, children }: { problem: Problem; children?: ComponentChildren }) {
  return (
    <div class="box bad" role="alert">
      <p>
        <strong>
          <Words text={problem.message} />
        </strong>
      </p>
      {problem.remedy && (
        <p>
          <span class="label">What to do:</span> <Words text={problem.remedy} />
        </p>
      )}
      <p class="small">
        Code: <code>{problem.code}</code>
      </p>
      {children}
    </div>
  );
}

/** Word that an answer is not confirmed by a majority. */
export function UnconfirmedBox({ unconfirmed }: { unconfirmed: Unconfirmed | null }) {
  if (!unconfirmed) return null;
  const age = unconfirmed.age_ms === null ? "and its age is unknown" : `and is ${lasting(unconfirmed.age_ms)} old`;
  return (
    <p class="box warn">
      No majority of the nodes confirmed this. It is what {unconfirmed.node || "this node"} knew last, {age}.
    </p>
  );
}

export interface Loaded<T> {
  data: T | null;
  problem: Problem | null;
  unconfirmed: Unconfirmed | null;
  reload: () => void;
}

/** An answer of the API, asked for again whenever the state has been loaded again. Null: nothing is asked. */
export function useAsk<T>(path: string | null, isOnce = false, patience_ms?: number): Loaded<T> {
  const { at_ms } = useStore();
  const [turn, setTurn] = useState(0);
  const [loaded, setLoaded] = useState<{ path: string; data: T | null; problem: Problem | null; unconfirmed: Unconfirmed | null } | null>(null);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    api
      .get<T>(path, { signal: stop.signal, patience_ms })
      .then(({ body, unconfirmed }) => setLoaded({ path, data: body, problem: null, unconfirmed }))
      .catch((error: unknown) => {
        if (stop.signal.aborted || !(error instanceof Problem)) return;
        // What was known stays on the page while the node does not answer.
        setLoaded((known) => ({ path, data: error.isSilence && known?.path === path ? known.data : null, problem: error, unconfirmed: null }));
      });
    return () => stop.abort();
  }, [path, isOnce ? 0 : at_ms, turn]);
  const is = loaded?.path === path ? loaded : null;
  return { data: is?.data ?? null, problem: is?.problem ?? null, unconfirmed: is?.unconfirmed ?? null, reload: () => setTurn((known) => known + 1) };
}

/** What was loaded, or word that it is not there. */
export function Ready<T>({ loaded, children }: { loaded: Loaded<T>; children: (data: T) => ComponentChildren }) {
  return (
    <>
      <UnconfirmedBox unconfirmed={loaded.unconfirmed} />
      {loaded.problem && !(loaded.problem.isSilence && loaded.data) && <ProblemBox problem={loaded.problem} />}
      {loaded.data !== null ? children(loaded.data) : !loaded.problem && <p class="note">Loading…</p>}
    </>
  );
}

/** The first of many rows, and a button for more. */
export function useMore(total: number, first: number) {
  const [shown, setShown] = useState(first);
  const more =
    total > shown ? (
      <p class="more">
        {shown} of {total} are shown.{" "}
        <button type="button" onClick={() => setShown(shown + 200)}>
          Show more
        </button>
      </p>
    ) : null;
  return { shown, more };
}

export function Time({ ms }: { ms: number }) {
  return <time dateTime={new Date(ms).toISOString()}>{moment(ms)}</time>;
}

export function Meter({ percent, label }: { percent: number; label: string }) {
  return (
    <span class="meter">
      <progress max={100} value={percent} aria-label={label} /> {percent} %
    </span>
  );
}
