// Requests to the API of the node that served this page. The token is in memory and, if the person wants, in the storage of
// this window, which ends with it.

const KEY = "mainstay-token";
/** Time for an answer that waits for nothing but the node. */
const PATIENCE_MS = 15_000;

export type Access = "metrics" | "read" | "operate" | "admin";

/** A refusal or failure, in words. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly remedy: string,
  ) {
    super(message);
  }

  /** Whether no answer came at all. */
  get isSilence(): boolean {
    return this.status === 0;
  }
}

/** Age and sender of an answer that no majority has confirmed. */
export interface Unconfirmed {
  node: string;
  /** Milliseconds; null if unknown. */
  age_ms: number | null;
}

export interface Answer<T> {
  body: T;
  unconfirmed: Unconfirmed | null;
}

let token: string | null = null;
let heard: () => void = () => {};
let denied: (problem: Problem) => void = () => {};

/** Called at each answer, and when the token is refused. */
export function listen(onHeard: () => void, onDenied: (problem: Problem) => void) {
  heard = onHeard;
  denied = onDenied;
}

export function storedToken(): string | null {
  token ??= sessionStorage.getItem(KEY);
  return token;
}

export function useToken(text: string | null, isKept: boolean) {
  token = text;
  if (text !== null && isKept) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

/** Public half of the token, by which the list of tokens names it. */
export function tokenId(): string {
  return (token ?? "").split("_")[2] ?? "";
}

export interface Ask {
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
  patience_ms?: number;
}

/** Sends a request and returns the answer before its body is read. */
export async function send(path: string, ask: Ask = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json, text/event-stream, text/plain" };
  if (token !== null) headers.authorization = `Bearer ${token}`;
  if (ask.body !== undefined) headers["content-type"] = "application/json";
  const signals = ask.signal ? [ask.signal] : [];
  if (ask.patience_ms !== Infinity) signals.push(AbortSignal.timeout(ask.patience_ms ?? PATIENCE_MS));
  let answer: Response;
  try {
    answer = await fetch(path, {
      method: ask.method ?? "GET",
      headers,
      body: ask.body === undefined ? undefined : JSON.stringify(ask.body),
      signal: AbortSignal.any(signals),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (ask.signal?.aborted) throw error;
    throw new Problem(0, "no-answer", "The node does not answer.", "Check that its agent runs and that this machine reaches it.");
  }
  heard();
  if (answer.ok) return answer;
  const problem = await refusal(answer);
  if (problem.status === 401) denied(problem);
  throw problem;
}

async function refusal(answer: Response): Promise<Problem> {
  try {
    const { code, message, remedy } = await answer.json();
    return new Problem(answer.status, String(code), String(message), String(remedy ?? ""));
  } catch {
    return new Problem(answer.status, "no-answer", `The node answered with the status ${answer.status} and no reason.`, "");
  }
}

/** An answer in JSON. */
export async function get<T>(path: string, ask: Ask = {}): Promise<Answer<T>> {
  const answer = await send(path, ask);
  const age = answer.headers.get("mainstay-as-of-ms");
  let body: T;
  try {
    body = await answer.json();
  } catch {
    throw new Problem(0, "no-answer", "The answer of the node ended early.", "");
  }
  const node = answer.headers.get("mainstay-node") ?? "";
  const age_ms = age === null || age === "unknown" ? null : Number(age);
  return { body, unconfirmed: age === null ? null : { node, age_ms } };
}

export async function text(path: string): Promise<string> {
  return (await send(path)).text();
}

/** A change. Some wait until nodes have done it. */
export async function change<T>(method: string, path: string, body?: unknown): Promise<T> {
  return (await get<T>(path, { method, body: body ?? {}, patience_ms: 60_000 })).body;
}

export const part = encodeURIComponent;
