// A server that answers as an agent would, from fixtures. Tests change its state and break it while pages look at it.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import * as fixtures from "./fixtures.mjs";
import * as recorded from "./recorded.mjs";

const here = new URL(".", import.meta.url);
/** The policy of the program itself, so that the tests run under it. */
const rust = readFileSync(new URL("../../crates/agent/src/https/console.rs", here), "utf8");
export const POLICY = /const POLICY: &str = "([^"]+)"/.exec(rust)[1];
export const FILES = {
  "/console/": ["index.html", "text/html; charset=utf-8"],
  "/console/console.js": ["console.js", "text/javascript; charset=utf-8"],
  "/console/console.css": ["console.css", "text/css; charset=utf-8"],
  "/console/icon.svg": ["icon.svg", "image/svg+xml"],
};
export const TOKEN = "mst_api_00112233445566aa_0123456789abcdef0123456789abcdef012345";

export class Mock {
  /** `ok`, `silent` (connections stay and say nothing) or `closed`. */
  mode = "ok";
  access = "admin";
  hasStream = true;
  /** Requests for changes that came. */
  changes = [];
  /** Path to problem: what is refused. */
  refusals = new Map();
  requests = 0;
  /** Questions for reports and records that came, with their parameters. */
  asked = [];
  #streams = new Set();

  async start(scenario) {
    this.set(scenario);
    this.server = createServer((request, response) => void this.#answer(request, response));
    await new Promise((done) => this.server.listen(0, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${this.server.address().port}/console/`;
    this.ticks = setInterval(() => this.#tick(), 500);
    return this;
  }

  set(scenario) {
    this.scenario = scenario;
    this.status = fixtures.SCENARIOS[scenario]();
    this.events = fixtures.events(scenario === "empty");
    this.baselines = recorded.baselines(scenario === "empty");
    this.tell("change", { revision: 1 });
  }

  stop() {
    clearInterval(this.ticks);
    this.server.closeAllConnections();
    this.server.close();
  }

  break(mode) {
    this.mode = mode;
    if (mode === "closed") this.server.closeAllConnections();
  }

  tell(event, data, id) {
    for (const stream of this.#streams) if (this.mode === "ok") stream.write(`${id ? `id: ${id}\n` : ""}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  happen(severity, subject, text) {
    const event = { index: this.events.length + 1, at_ms: Date.now(), severity, subject, text };
    this.events.push(event);
    this.tell("event", event, event.index);
    this.tell("change", { revision: event.index });
  }

  /** Writes go on, so that plots have something to show. */
  #tick() {
    for (const resource of this.status.resources.slice(0, 10)) {
      for (const { live } of resource.replicas) {
        if (!live) continue;
        live.commit += 700 + Math.round(400 * Math.sin(Date.now() / 4000));
        live.end = live.durable = live.commit;
        live.journal_latency_us = 180 + Math.round(60 * Math.random());
        for (const peer of live.peers) if (peer.state === "in-sync") peer.latency_us = 380 + Math.round(140 * Math.random());
      }
    }
  }

  async #answer(request, response) {
    const url = new URL(request.url, "http://mock");
    const file = FILES[url.pathname];
    if (this.mode === "closed") return void request.socket.destroy();
    if (this.mode === "silent") return;
    if (file) {
      response.writeHead(200, { "content-type": file[1], "content-encoding": "gzip", "content-security-policy": POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache" });
      return void response.end(readFileSync(new URL(`../dist/${file[0]}.gz`, here)));
    }
    this.requests += 1;
    const text = await new Promise((done) => {
      let all = "";
      request.on("data", (piece) => (all += piece)).on("end", () => done(all));
    });
    const path = decodeURIComponent(url.pathname);
    const say = (body, status = 200, more = {}) => {
      response.writeHead(status, { "content-type": status < 300 ? "application/json" : "application/problem+json", ...more });
      response.end(JSON.stringify(body));
    };
    const refuse = (status, code, message, remedy) => say({ code, message, remedy }, status);
    if (request.headers.authorization !== `Bearer ${TOKEN}`) {
      return refuse(401, "unauthenticated", "the cluster does not know this token; it may have been revoked", "Send `Authorization: Bearer TOKEN`. On a node, root makes a token with `mainstay token create NAME --scope read`.");
    }
    if (path === "/v1/report" || path === "/v1/load") this.asked.push(url);
    const refusal = this.refusals.get(`${request.method} ${path} ${url.searchParams.get("node")}`) ?? this.refusals.get(`${request.method} ${path}`);
    if (refusal) return refuse(...refusal);
    if (request.method !== "GET" && path !== "/v1/service-check") {
      this.changes.push({ method: request.method, path, body: text ? JSON.parse(text) : null });
    }
    const age = this.status.cluster.as_of_ms ? { "mainstay-as-of-ms": String(this.status.cluster.as_of_ms), "mainstay-node": "n1" } : {};
    const parts = path.split("/").slice(2);
    const isEmpty = this.scenario === "empty";
    if (path === "/metrics") {
      response.writeHead(200, { "content-type": "text/plain" });
      return void response.end(this.#metrics());
    }
    if (request.method === "GET") {
      if (path === "/v1/alive") return say(true);
      if (path === "/v1/status") return say(this.status);
      if (path === "/v1/tokens") return say(fixtures.tokens(this.access));
      if (path === "/v1/stream") return this.#stream(url, request, response, refuse);
      if (path === "/v1/events") return void this.#poll(url, say);
      if (path === "/v1/load") return say(isEmpty ? { ...recorded.load(url.searchParams, this.status), points: [] } : recorded.load(url.searchParams, this.status));
      if (path === "/v1/report") {
        const made = recorded.report(url.searchParams, this.status, isEmpty, this.baselines);
        return made ? say(made, 200, age) : refuse(404, "unknown-baseline", "there is no such baseline", "See `mainstay report baseline list`.");
      }
      if (path === "/v1/baselines") return say({ baselines: this.baselines, missing: this.status.cluster.nodes.filter((one) => one.status !== "alive").map((one) => `${one.name}: the node is dead`) }, 200, age);
      if (path === "/v1/history") return say(this.#history(url.searchParams.get("name"), isEmpty), 200, age);
      if (path === "/v1/audit") return say(isEmpty ? { records: [], last: 0, gap: false } : fixtures.audit, 200, age);
      if (path === "/v1/programs") return say({ agent: { pid: 812, path: "/usr/bin/mainstay", replaced: false }, engine: { pid: 807, path: "/usr/bin/mainstay", replaced: false } });
      if (path === "/v1/cluster/certificates") return say({ authorities: [], nodes: this.status.cluster.nodes.map((one) => ({ node: one.name, key: "3f".repeat(32), until_ms: Date.now() + 60 * 86_400_000, authority: 1 })), rotation: null }, 200, age);
      if (parts[0] === "resources" && parts[2] === "settings") return say(fixtures.settings, 200, age);
      if (parts[0] === "resources" && parts[2] === "scrub") return say(fixtures.scrub(parts[1]), 200, age);
      if (parts[0] === "resources" && parts[2] === "snapshots") return say({ snapshot: {}, files: [], space: { bytes: 3 * 2 ** 30, own_bytes: 191_000_000 }, own: [], pool: "/" }, 200, age);
      if (parts[0] === "resources" && parts[1]) {
        const found = this.status.resources.find((one) => one.name === parts[1]);
        return found ? say(found, 200, age) : refuse(404, "unknown-resource", `there is no resource ${parts[1]}`, "See `mainstay resource list`.");
      }
      if (parts[0] === "services" && parts[2] === "explain") {
        const found = this.status.services.find((one) => one.name === parts[1]);
        const nodes = this.status.cluster.nodes.map((one) => ({ node: one.name, chosen: one.name === found?.node, can: one.status === "alive", why: one.name === found?.node ? "the primary of its resource is there" : one.status === "alive" ? "its replica is in sync" : "the node is dead" }));
        return say({ name: parts[1], resource: found?.resource, nodes, waits: "", maintenance: null }, 200, age);
      }
      if (parts[0] === "services" && parts[2] === "file") return say(fixtures.file(parts[1]));
      if (parts[0] === "services" && parts[2] === "logs") return say({ node: "n1", logs: [{ process: "mysqld", text: "2026-11-29 14:03:01 0 [Note] /usr/sbin/mysqld: ready for connections.\n2026-11-29 14:03:09 5 [Warning] Aborted connection 5 to db: 'app' user: 'app' host: '10.213.0.9'\n", next: "x", cut: false, notice: null }] });
      if (parts[0] === "services" && parts[2] === "history") return say({ name: parts[1], events: this.events.filter((one) => one.subject.endsWith(`/${parts[1]}`)), since_ms: null }, 200, age);
      return refuse(404, "not-found", "there is no such route", "See the API's description.");
    }
    if (path === "/v1/service-check") {
      return say({ name: "db", resource: "db", nodes: [{ node: "n1", silent: null, problems: [] }, { node: "n2", silent: null, problems: [{ field: "process[0].user", problem: "there is no user mysql on n2", remedy: "Install the package of the database there." }] }, { node: "n3", silent: "it does not answer", problems: [] }] });
    }
    if (path === "/v1/services" && request.method === "PUT") {
      const asked = JSON.parse(text);
      return say({ ...fixtures.service("db", "db", "n1"), effect: "restarted", dry_run: asked.dry_run, warnings: ["n2 lacks the user mysql"], ...(asked.dry_run ? { places: [{ node: "n1", chosen: true, can: true, why: "it is the primary" }] } : {}), changes: [{ field: "process[0].command", from: "[mysqld]", to: "[mysqld, --big]", restarts: true }] });
    }
    if (path === "/v1/resources" && request.method === "POST") {
      const made = fixtures.resource(99, JSON.parse(text).name, ["n1", "n2", "n3"], { health: "changing" });
      this.status.resources.push(made);
      this.tell("change", { revision: 2 });
      return say(made);
    }
    if (parts[0] === "baselines") {
      const { from_ms, to_ms } = text ? JSON.parse(text) : {};
      this.baselines = this.baselines.filter((one) => one.name !== parts[1]);
      if (request.method === "PUT") this.baselines.push({ name: parts[1], from_ms, to_ms, made_ms: Date.now(), nodes: ["n1", "n2", "n3"], bytes: 40_960 });
    }
    return say({ revision: 913, message: `asked: ${request.method} ${path}` });
  }

  #history(name, isEmpty) {
    const page = fixtures.history(isEmpty);
    return { ...page, changes: page.changes.filter((one) => !name || one.resource === name || one.service === name) };
  }

  #metrics() {
    const t = Date.now() / 1000;
    return [
      `mainstay_requests_total{resource="db",volume="0",op="read"} ${Math.round(t * 900)}`,
      `mainstay_requests_total{resource="db",volume="0",op="write"} ${Math.round(t * 1700 + 800 * Math.sin(t / 4))}`,
      `mainstay_requests_total{resource="db",volume="0",op="flush"} ${Math.round(t * 300)}`,
      `mainstay_request_bytes_total{resource="db",volume="0",op="read"} ${Math.round(t * 14_000_000)}`,
      `mainstay_request_bytes_total{resource="db",volume="0",op="write"} ${Math.round(t * 28_000_000)}`,
      `mainstay_request_duration_seconds_sum{resource="db",op="write"} ${t * 1.1}`,
      `mainstay_request_duration_seconds_count{resource="db",op="write"} ${Math.round(t * 1700)}`,
      `mainstay_journal_write_duration_seconds_sum{resource="db"} ${t * 0.3}`,
      `mainstay_journal_write_duration_seconds_count{resource="db"} ${Math.round(t * 1500)}`,
      `mainstay_request_duration_seconds_sum{resource="db",op="read"} ${t * 0.2}`,
      `mainstay_request_duration_seconds_count{resource="db",op="read"} ${Math.round(t * 900)}`,
      `mainstay_peer_acknowledgement_duration_seconds_sum{resource="db",peer="n2"} ${t * 0.7}`,
      `mainstay_peer_acknowledgement_duration_seconds_count{resource="db",peer="n2"} ${Math.round(t * 1500)}`,
      `mainstay_commit_duration_seconds_sum{resource="db"} ${t * 0.8}`,
      `mainstay_commit_duration_seconds_count{resource="db"} ${Math.round(t * 1500)}`,
      "",
    ].join("\n");
  }

  #stream(url, request, response, refuse) {
    if (!this.hasStream) return refuse(404, "not-found", "there is no such route", "");
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write("retry: 1000\n\nevent: change\ndata: {\"revision\":1}\n\n");
    const after = Number(url.searchParams.get("after") ?? 0);
    for (const event of this.events.filter((one) => one.index > after)) response.write(`id: ${event.index}\nevent: event\ndata: ${JSON.stringify(event)}\n\n`);
    this.#streams.add(response);
    request.on("close", () => this.#streams.delete(response));
  }

  async #poll(url, say) {
    const [after, wait] = [Number(url.searchParams.get("after")), Number(url.searchParams.get("wait_ms"))];
    const until = Date.now() + wait;
    while (this.events.length <= after && Date.now() < until) await new Promise((done) => setTimeout(done, 50));
    const events = this.events.filter((one) => one.index > after);
    say({ events, last: this.events.length, gap: false });
  }
}
