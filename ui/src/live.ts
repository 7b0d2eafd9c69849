// What happens, as it happens. Reads `GET /v1/stream`; an agent without that route is asked by long polls of `GET /v1/events`.
//
// Guarantees
// - `onLost` is called as soon as a request fails, or when nothing was heard for SILENT_MS and a question is not answered.
// - It goes on trying until it is stopped, at most every RETRY_MAX_MS.
// - No event is reported twice; after a gap the caller is told to load everything again.
import { get, Problem, send } from "./api";
import type { EventsPage, EventView } from "./types";

/** Silence after which the node is asked whether it is there. */
const SILENT_MS = 3_000;
/** Time for the answer to that. */
const ALIVE_MS = 3_000;
/** Longest silence of a stream: the node sends a line every 15 s. */
const STREAM_SILENT_MS = 40_000;
const POLL_WAIT_MS = 2_500;
const RETRY_MS = 1_000;
const RETRY_MAX_MS = 5_000;

export interface Listener {
  /** Something was heard of the node. */
  onHeard(): void;
  onLost(): void;
  onEvents(events: EventView[]): void;
  /** The state has changed; after a gap, events are missing too. */
  onChange(isGap: boolean): void;
}

const pause = (ms: number, signal: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

/** Follows the cluster from an event on. Returns what ends it. */
export function follow(after: number, listener: Listener): () => void {
  const stop = new AbortController();
  let heardAt = Date.now();
  let last = after;
  let hasStream = true;

  const heard = () => {
    heardAt = Date.now();
    listener.onHeard();
  };
  const take = (events: EventView[]) => {
    const news = events.filter((event) => event.index > last);
    if (news.length === 0) return;
    last = news[news.length - 1]!.index;
    listener.onEvents(news);
  };

  const poll = async () => {
    const { body } = await get<EventsPage>(`/v1/events?after=${last}&wait_ms=${POLL_WAIT_MS}`, { signal: stop.signal, patience_ms: POLL_WAIT_MS + ALIVE_MS });
    heard();
    if (body.gap || body.last < last) {
      last = body.last;
      listener.onChange(true);
    } else if (body.events.length > 0) {
      take(body.events);
      listener.onChange(false);
    }
  };

  const stream = async () => {
    const end = new AbortController();
    const ended = () => end.abort();
    stop.signal.addEventListener("abort", ended, { once: true });
    let silence = setTimeout(ended, STREAM_SILENT_MS);
    try {
      const answer = await send(`/v1/stream?after=${last}`, { signal: end.signal, patience_ms: Infinity });
      const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        heard();
        clearTimeout(silence);
        silence = setTimeout(ended, STREAM_SILENT_MS);
        const messages = (rest + value).split(/\r?\n\r?\n/);
        rest = messages.pop() ?? "";
        for (const message of messages) told(message);
      }
    } finally {
      clearTimeout(silence);
      stop.signal.removeEventListener("abort", ended);
    }
  };

  const told = (message: string) => {
    let [kind, data] = ["", ""];
    for (const line of message.split(/\r?\n/)) {
      if (line.startsWith("event:")) kind = line.slice(6).trim();
      if (line.startsWith("data:")) data += line.slice(5).trim();
    }
    if (kind === "event") {
      take([JSON.parse(data) as EventView]);
    } else if (kind === "resync") {
      last = (JSON.parse(data) as { last: number }).last;
      listener.onChange(true);
    } else if (kind === "change") {
      listener.onChange(false);
    }
  };

  const run = async () => {
    let wait = RETRY_MS;
    while (!stop.signal.aborted) {
      const began = Date.now();
      try {
        const isStream = hasStream;
        await (isStream ? stream() : poll());
        if (!isStream) {
          wait = RETRY_MS;
          continue;
        }
        // A stream that ends without an error ends with its agent: the next try says whether that is there.
        if (Date.now() - began > RETRY_MAX_MS) {
          wait = 0;
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Problem && error.status === 404 && hasStream) {
          hasStream = false;
          continue;
        }
        if (error instanceof Problem && error.status === 401) return;
        // A node that refuses is there.
        if (!(error instanceof Problem) || error.isSilence) listener.onLost();
      }
      await pause(wait, stop.signal);
      wait = Math.min(Math.max(wait * 1.5, RETRY_MS), RETRY_MAX_MS);
    }
  };

  /** Asks when nothing is heard, because a connection can end without a word. */
  const watch = async () => {
    while (!stop.signal.aborted) {
      await pause(1_000, stop.signal);
      if (stop.signal.aborted || Date.now() - heardAt < SILENT_MS) continue;
      try {
        await get<boolean>("/v1/alive", { signal: stop.signal, patience_ms: ALIVE_MS });
        heard();
      } catch (error) {
        if (stop.signal.aborted || (error instanceof Problem && error.status === 401)) return;
        if (error instanceof Problem && !error.isSilence) heard();
        else listener.onLost();
      }
    }
  };

  void run();
  void watch();
  return () => stop.abort();
}
