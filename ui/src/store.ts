// What the page knows of the cluster, and since when. One copy for all pages.
//
// Guarantees
// - `lost_ms` is set as soon as the connection is lost, and `at_ms` says of when the state is.
// - A page that nobody looks at asks for nothing but signs of life. One that is looked at loads the state when something has
//   happened, and otherwise the more seldom, the longer an answer takes.
import { useEffect, useState } from "preact/hooks";
import * as api from "./api";
import { Problem } from "./api";
import { follow } from "./live";
import type { ApiTokenView, EventView, EventsPage, ResourceView, ServiceView, StatusView } from "./types";

/** Events that are kept. */
const EVENTS_MAX = 2_000;
/** Shortest and longest time between two questions for the state without a reason. */
const RELOAD_MS = 5_000;
const RELOAD_MAX_MS = 30_000;
/** Share of its time for which the page may keep the node busy: one in this. */
const SHARE = 200;
/** Shortest time between two questions when things happen. */
const SOON_MS = 700;

export interface State {
  /** Why there is no token, or why it is not good. */
  phase: "token" | "loading" | "open";
  denial: Problem | null;
  status: StatusView | null;
  /** When `status` came. */
  at_ms: number;
  /** Since when nothing is heard; null while the connection stands. */
  lost_ms: number | null;
  /** Why the last question for the state was refused, if it was. */
  problem: Problem | null;
  events: EventView[];
  /** The token's right. */
  token: ApiTokenView | null;
  resources: Map<string, ResourceView>;
  services: Map<string, ServiceView>;
  /** Service of each resource. */
  serviceOf: Map<string, ServiceView>;
}

const empty: State = {
  phase: "token",
  denial: null,
  status: null,
  at_ms: 0,
  lost_ms: null,
  problem: null,
  events: [],
  token: null,
  resources: new Map(),
  services: new Map(),
  serviceOf: new Map(),
};

let state: State = empty;
const readers = new Set<(state: State) => void>();

function set(change: Partial<State>) {
  state = { ...state, ...change };
  for (const reader of readers) reader(state);
}

export function useStore(): State {
  const [known, setKnown] = useState(state);
  useEffect(() => {
    readers.add(setKnown);
    setKnown(state);
    return () => void readers.delete(setKnown);
  }, []);
  return known;
}

const RANK = { metrics: 0, read: 1, operate: 2, admin: 3 };

/** Whether the token has this right. */
export function may(known: State, right: api.Access): boolean {
  const has = known.token?.access as api.Access | undefined;
  return has !== undefined && RANK[has] >= RANK[right];
}

let stop: (() => void) | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
let loading: Promise<void> | null = null;
let isAgain = false;
let loadedAt = 0;
let took = 0;

function heard() {
  if (state.lost_ms !== null) {
    set({ lost_ms: null });
    soon();
  }
}

function lost() {
  if (state.lost_ms === null) set({ lost_ms: Date.now() });
}

/** Loads the state after something has happened. */
export function soon() {
  if (loading) {
    isAgain = true;
    return;
  }
  clearTimeout(timer);
  timer = setTimeout(() => void load(), Math.max(0, loadedAt + Math.max(SOON_MS, took * 2) - Date.now()));
}

function later() {
  clearTimeout(timer);
  if (document.visibilityState === "hidden") return;
  timer = setTimeout(() => void load(), Math.min(Math.max(RELOAD_MS, took * SHARE), RELOAD_MAX_MS));
}

async function load(): Promise<void> {
  if (state.phase === "token") return;
  loading ??= loadNow().finally(() => {
    loading = null;
    loadedAt = Date.now();
    if (isAgain) {
      isAgain = false;
      soon();
    } else {
      later();
    }
  });
  return loading;
}

async function loadNow() {
  const began = performance.now();
  try {
    const { body } = await api.get<StatusView>("/v1/status");
    took = performance.now() - began;
    // Empty lists are left out of the answer.
    for (const service of body.services) service.hindrances ??= [];
    const services = new Map(body.services.map((service) => [service.name, service]));
    set({
      phase: "open",
      status: body,
      at_ms: Date.now(),
      problem: null,
      lost_ms: null,
      resources: new Map(body.resources.map((resource) => [resource.name, resource])),
      services,
      serviceOf: new Map(body.services.map((service) => [service.resource, service])),
    });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    // Whether the connection is lost is for `live.ts` to say: a node may answer and not know its state in time.
    if (error.status !== 401) set({ problem: error });
  }
}

function denied(problem: Problem) {
  stop?.();
  stop = null;
  clearTimeout(timer);
  api.useToken(null, false);
  set({ ...empty, denial: problem });
}

/** Begins with a token. */
export async function open(token: string, isKept: boolean) {
  api.useToken(token, isKept);
  set({ ...empty, phase: "loading" });
  await start();
}

async function start() {
  await Promise.all([load(), loadToken()]);
  if (state.phase === "token") return;
  let last = 0;
  try {
    const { body } = await api.get<EventsPage>("/v1/events?after=0&wait_ms=0");
    last = body.last;
    set({ events: body.events.slice(-EVENTS_MAX) });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) return;
    if (error.isSilence) lost();
  }
  stop?.();
  stop = follow(last, {
    onHeard: heard,
    onLost: lost,
    onEvents: (events) => set({ events: [...state.events, ...events].slice(-EVENTS_MAX) }),
    onChange: (isGap) => {
      if (isGap) void reloadEvents();
      soon();
    },
  });
}

async function reloadEvents() {
  try {
    const { body } = await api.get<EventsPage>("/v1/events?after=0&wait_ms=0");
    set({ events: body.events.slice(-EVENTS_MAX) });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
  }
}

async function loadToken() {
  try {
    const { body } = await api.get<ApiTokenView[]>("/v1/tokens");
    set({ token: body.find((token) => token.id === api.tokenId()) ?? null });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 403) denied(error);
  }
}

/** Forgets the token and everything that is known. */
export function leave() {
  stop?.();
  stop = null;
  clearTimeout(timer);
  api.useToken(null, false);
  set(empty);
}

export function begin() {
  // Only the node itself says that it is there: an answer to any request does.
  api.listen(heard, denied);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && state.phase !== "token") soon();
  });
  if (api.storedToken() !== null) {
    set({ phase: "loading" });
    void start();
  }
}
