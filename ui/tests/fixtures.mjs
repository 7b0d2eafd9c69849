// Answers of an imagined cluster, in the forms of docs/http-api.md.

export const NOW = Date.now();
const GIB = 2 ** 30;

function node(id, name, more = {}) {
  return {
    id,
    name,
    agent_address: `10.213.0.${id}:7400`,
    engine_address: `10.213.0.${id}:7401`,
    status: "alive",
    generation: 1,
    voter: true,
    witness: false,
    candidate: false,
    leader: id === 1,
    connected: true,
    pool_free_bytes: 400 * GIB + id * 7 * GIB,
    log_lag_ms: null,
    log_lag_entries: 0,
    level: 3,
    maintenance: null,
    cordon: null,
    ...more,
  };
}

function peer(name, more = {}) {
  return {
    node: name,
    state: "in-sync",
    lag_entries: 0,
    lag_bytes: 0,
    lag_ms: 0,
    lag_more: false,
    progress_percent: null,
    latency_us: 412,
    copy_bytes_per_s: null,
    copy_left_ms: null,
    slow: null,
    ...more,
  };
}

function live(role, peers, at) {
  return {
    role,
    data: "consistent",
    epoch: 4,
    version: 12,
    commit: at,
    end: at,
    durable: at,
    journal_latency_us: 187,
    allocated: [3 * GIB, GIB / 2],
    no_space: null,
    unreadable: null,
    waiting_for: [],
    caches: false,
    devices: role === "primary" ? [{ volume: 0, path: "/dev/mainstay/db/0" }, { volume: 1, path: "/dev/mainstay/db/1" }] : [],
    peers,
  };
}

const scrubs = (more = {}) => ({
  now_ms: NOW,
  interval_ms: 7 * 86_400_000,
  repair: "proven",
  rate: 0,
  running: false,
  whole: { at_ms: NOW - 2 * 86_400_000, took_ms: 312_000, end: "whole", lacking: [], different: 0, repaired: 0, overwritten: 0, unrepaired: 0 },
  failed: null,
  due_ms: NOW + 5 * 86_400_000,
  late_ms: null,
  waits_for: null,
  ...more,
});

export function resource(id, name, nodes, more = {}) {
  const [primary, ...others] = nodes;
  const at = 1_482_113 + id;
  return {
    id,
    name,
    health: "ok",
    deleting: false,
    volumes: [20 * GIB, 5 * GIB],
    journal_bytes: GIB / 4,
    epoch: 4,
    version: 12,
    primary,
    preferred: [primary],
    replicas: nodes.map((one) => ({ node: one, in_sync: true, broken: null, live: live(one === primary ? "primary" : "secondary", one === primary ? others.map((other) => peer(other)) : [], at) })),
    growing: [],
    snapshots: [],
    rollback: null,
    rolled_back: null,
    origin: null,
    scrubs: scrubs(),
    moves: [],
    primary_moves_to: null,
    leaving: [],
    mode: "c",
    min_copies: 1,
    suspend_ms: 0,
    lag_bytes: 0,
    lag_ms: 0,
    takeover: false,
    failover_ready: [],
    memory: [],
    forced: null,
    attached: null,
    detaching: [],
    failure: null,
    advice: [],
    ...more,
  };
}

export function service(name, of, on, more = {}) {
  return {
    name,
    resource: of,
    node: on,
    phase: "running",
    phase_node: on,
    doing: "",
    current: true,
    vip: `10.213.0.${100 + (name.length % 50)}/24`,
    deleting: false,
    failures: [],
    advice: [],
    stopped_ms: null,
    restarting: false,
    maintenance: null,
    // Left out when it is empty, as by an agent.
    ...more,
  };
}

function status(nodes, resources, services, advice = []) {
  return {
    cluster: {
      id: 7,
      name: "prod",
      revision: 912,
      leader: "n1",
      this_node: "n1",
      lease_ms: 2000,
      heartbeat_ms: 200,
      level: 3,
      as_of_ms: 0,
      joining_ms: null,
      maintenance: null,
      sends_clear: false,
      nodes,
    },
    engine: { connected: true, message: "connected", frontend: { kind: "ublk", reason: "the kernel has it" }, watchdog: null },
    lease_left_ms: 1800,
    resources,
    services,
    advice,
  };
}

const three = () => [node(1, "n1"), node(2, "n2"), node(3, "n3")];

function healthy() {
  const db = resource(1, "db", ["n1", "n2", "n3"], {
    snapshots: [
      { id: 1, name: "before-upgrade", at_ms: NOW - 9 * 3_600_000, deleting: false, nodes: [1, 2, 3].map((n) => ({ node: `n${n}`, index: 1_400_000, state: "held" })) },
      { id: 2, name: "nightly", at_ms: NOW - 3 * 3_600_000, deleting: false, nodes: [{ node: "n1", index: 1_470_000, state: "held" }, { node: "n2", index: 0, state: "missing" }] },
    ],
  });
  const resources = [db, resource(2, "mail", ["n2", "n1", "n3"]), resource(3, "wiki", ["n3", "n2", "n1"]), resource(4, "spare", ["n1", "n2"])];
  const services = [service("db", "db", "n1"), service("mail", "mail", "n2"), service("wiki", "wiki", "n3")];
  return status(three(), resources, services);
}

function degraded() {
  const nodes = three();
  nodes[2] = node(3, "n3", { status: "dead", connected: false, pool_free_bytes: null });
  nodes[1] = node(2, "n2", { cordon: { since_ms: NOW - 600_000, drain: true, primaries: ["mail"] } });
  const db = resource(1, "db", ["n1", "n2", "n3"], { health: "degraded", advice: ["resource db: only 2 of 3 replicas are in sync; bring n3 back; it rejoins by itself"] });
  db.replicas[2] = { node: "n3", in_sync: false, broken: null, live: null };
  db.replicas[0].live.peers = [peer("n2"), peer("n3", { state: "disconnected", lag_entries: 1200, lag_bytes: 734_003_200, lag_ms: 184_000, lag_more: true, latency_us: 0 })];
  const mail = resource(2, "mail", ["n2", "n1"], { health: "degraded", primary_moves_to: "n1", scrubs: scrubs({ running: true, late_ms: 86_400_000 }) });
  mail.replicas[1].in_sync = false;
  mail.replicas[0].live.peers = [peer("n1", { state: "copying", progress_percent: 42, copy_bytes_per_s: 187_000_000, copy_left_ms: 95_000, lag_bytes: 6_200_000_000, lag_entries: 90, lag_ms: 60_000 })];
  const wiki = resource(3, "wiki", ["n3", "n1"], {
    health: "down",
    primary: null,
    failure: "no replica that is in sync is alive",
    advice: ["resource wiki: has no primary: its only replica in sync is on n3, which is dead; bring n3 back, or run `mainstay resource force-promote wiki --on n1` and lose what n1 lacks"],
  });
  wiki.replicas[0] = { node: "n3", in_sync: true, broken: null, live: null };
  wiki.replicas[1] = { node: "n1", in_sync: false, broken: "its files are damaged: the journal has a gap at entry 4711", live: null };
  const services = [
    service("db", "db", "n1", { maintenance: { of: "service db", since_ms: NOW - 1_800_000, left_ms: 5_400_000, end: "mainstay service maintenance db --off" } }),
    service("mail", "mail", "n2", { phase: "stopping", doing: "waits for process postfix to end" }),
    service("wiki", "wiki", null, {
      phase: "failed",
      phase_node: "n3",
      failures: [{ node: "n3", count: 4, at_ms: NOW - 200_000, reason: "process web: exit code 1: cannot bind to 10.213.0.104:80: Address already in use" }],
      hindrances: ["the file system at /srv/wiki is frozen since 34 s; run `fsfreeze --unfreeze /srv/wiki`"],
      advice: ["service wiki: cannot run: its resource has no primary; see resource wiki"],
    }),
  ];
  return status(nodes, [db, mail, wiki], services, [
    "node n3: is dead: it does not answer and its lease has ended; bring n3 back; it rejoins by itself; if its agent does not start, the agent's log on n3 says why",
    wiki.advice[0],
    "service db: is in maintenance since 30 min; to end it, run `mainstay service maintenance db --off`",
    "node n2: is drained, and mail is still there; see `mainstay node drain n2`",
  ]);
}

function many(total) {
  const resources = [];
  const services = [];
  for (let at = 0; at < total; at += 1) {
    const nodes = ["n1", "n2", "n3"].map((_one, place, all) => all[(at + place) % 3]);
    const name = `db-${String(at).padStart(4, "0")}`;
    const made = resource(at + 1, name, nodes);
    if (at % 97 === 5) made.health = "degraded";
    resources.push(made);
    if (at % 2 === 0) services.push(service(name, name, nodes[0]));
  }
  return status(three(), resources, services);
}

function unconfirmed() {
  const known = healthy();
  known.cluster.as_of_ms = 93_000;
  known.advice = ["cluster: no majority of the voters can be reached; bring n2 or n3 back, or their network"];
  known.engine = { connected: false, message: "the engine of this node does not answer", frontend: null, watchdog: null };
  for (const one of known.resources) one.replicas.forEach((replica) => (replica.live = null));
  for (const one of known.cluster.nodes.slice(1)) one.connected = false;
  return known;
}

export const SCENARIOS = {
  healthy,
  degraded,
  empty: () => status(three(), [], []),
  many: () => many(1000),
  unconfirmed,
};

export function events(isEmpty) {
  if (isEmpty) return [];
  const list = [
    ["info", "cluster", "the cluster prod was made on n1"],
    ["info", "node/n2", "node n2 joined"],
    ["info", "resource/db", "n1 is primary of db (epoch 1)"],
    ["warning", "node/n3", "node n3 does not answer"],
    ["critical", "node/n3", "node n3 is dead: a majority does not hear it and its lease has ended"],
    ["warning", "resource/db", "the replica on n3 left the replicas in sync of db"],
    ["info", "resource/db", "n1 is primary of db (epoch 4)"],
    ["info", "service/db", "service db starts on n1"],
    ["info", "service/db", "service db runs on n1 after 1.2 s"],
  ];
  return list.map(([severity, subject, text], at) => ({ index: at + 1, at_ms: NOW - (list.length - at) * 47_000, severity, subject, text }));
}

export function history(isEmpty) {
  if (isEmpty) return { changes: [], since_ms: null };
  const stages = (...all) => all.map(([after_ms, text]) => ({ after_ms, text }));
  return {
    since_ms: NOW - 9 * 86_400_000,
    changes: [
      { resource: "spare", service: null, from: null, to: "n1", epoch: 1, cause: "first", decided_by: "cluster", at_ms: NOW - 8 * 86_400_000, took_ms: null, stages: stages([4, "n1 is primary of spare"]) },
      {
        resource: "db",
        service: "db",
        from: "n2",
        to: "n1",
        epoch: 3,
        cause: "operator",
        decided_by: "operator",
        at_ms: NOW - 3_600_000,
        took_ms: 940,
        stages: stages([0, "service db stops on n2"], [310, "n1 is primary of db (epoch 3)"], [330, "service db starts on n1"], [940, "service db runs on n1"]),
      },
      {
        resource: "db",
        service: "db",
        from: "n3",
        to: "n1",
        epoch: 4,
        cause: "node-dead",
        decided_by: "cluster",
        at_ms: NOW - 400_000,
        took_ms: 2310,
        stages: stages([0, "node n3 is dead: a majority does not hear it and its lease has ended"], [45, "n1 is primary of db (epoch 4)"], [160, "the file system is mounted at /srv/db"], [420, "process mysqld starts"], [2180, "process mysqld answers its probe"], [2310, "service db runs on n1"]),
      },
      { resource: "wiki", service: "wiki", from: "n3", to: null, epoch: 5, cause: "node-dead", decided_by: "cluster", at_ms: NOW - 300_000, took_ms: null, stages: stages([0, "no node can take over wiki"]) },
    ],
  };
}

export const settings = [
  { name: "mode", value: "c", from: "default", default: "c", values: "a, b, c", since: "0.1.0", help: "When a write is acknowledged." },
  { name: "min-copies", value: "2", from: "cluster", default: "1", values: "1 to 32", since: "0.1.0", help: "Copies that a write needs before it is acknowledged. Fewer copies suspend writes." },
  { name: "scrub-interval", value: "7d", from: "resource", default: "off", values: "off, or a time from 1h on", since: "0.1.0", help: "Time from one comparison of all replicas to the next." },
];

export const tokens = (access) => [{ name: "console", id: "00112233445566aa", access, made_ms: NOW - 86_400_000, until_ms: NOW + 80 * 86_400_000, ended: false, used_ms: NOW }];

export const scrub = (name) => ({
  resource: name,
  primary: "n1",
  state: "done",
  repair: "off",
  complete: true,
  equal: name !== "mail",
  from: 1,
  index: 1_482_000,
  extents: 25_000,
  done: 25_000,
  took_ms: 312_000,
  left_ms: null,
  different: name === "mail" ? 3 : 0,
  repaired: 0,
  overwritten: 0,
  unrepaired: name === "mail" ? 3 : 0,
  replicas: ["n1", "n2", "n3"].map((one) => ({ node: one, extents: 25_000 })),
  findings: name === "mail" ? [{ volume: 0, block: 81_920, blocks: 3, index: 1_481_000, groups: [["n1", "n2"], ["n3"]], damaged: ["n3"], right: ["n1", "n2"], proven: true, outcome: "found" }] : [],
});

export const file = (name) => ({
  name,
  edition: 3,
  toml: `name = "${name}"\nresource = "${name}"\n\n[mount]\nvolume = 0\npath = "/srv/${name}"\nfstype = "xfs"\n\n[[process]]\nname = "mysqld"\ncommand = ["/usr/sbin/mysqld", "--datadir=/srv/${name}"]\nuser = "mysql"\nprobe = { mariadb = { socket = "/run/mysqld/mysqld.sock" } }\n\n[vip]\naddress = "10.213.0.102/24"\n`,
});

export const audit = {
  last: 3,
  gap: false,
  records: [
    { number: 1, at_ms: NOW - 7_200_000, who: "root", from: null, login: "alice", access: "admin", node: "n1", action: "POST /v1/resources", body: '{"name":"db","volumes":[21474836480]}', request: "a1", took_ms: 41, status: 200, code: null },
    { number: 2, at_ms: NOW - 3_600_000, who: "token console", from: "192.0.2.9", login: null, access: "operate", node: "n2", action: "POST /v1/services/db/move", body: '{"force":false,"to":"n1"}', request: "a2", took_ms: 23, status: 200, code: null },
    { number: 3, at_ms: NOW - 60_000, who: "token ci", from: "192.0.2.17", login: null, access: "operate", node: "n1", action: "POST /v1/services/wiki/move", body: '{"force":false,"to":"n2"}', request: "a3", took_ms: 5, status: 409, code: "not-eligible" },
  ],
};
