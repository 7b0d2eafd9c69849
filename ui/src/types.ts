// Made by types.mjs from docs/http-api.md. Do not edit.

export interface StatusView {
  /** `None` while the agent is not a member of a cluster. */
  cluster?: ClusterView | null;
  engine: EngineView;
  /** How long this node's lease lasts from now on, in milliseconds; 0 when it has none. */
  lease_left_ms: number;
  resources: ResourceView[];
  services: ServiceView[];
  /** Actions to take next, most urgent first; empty when all is well. */
  advice: string[];
}

export interface ClusterView {
  id: number;
  name: string;
  revision: number;
  /** Name of the node that leads the control plane, as far as the asked node knows. */
  leader?: string | null;
  /** Name of the node that answered. */
  this_node: string;
  lease_ms: number;
  heartbeat_ms: number;
  /** Feature level that the cluster uses. It rises when the build of every node has it. */
  level: number;
  /** Age of this answer: 0 if a majority of the voters confirmed it just now, else the milliseconds since the asked node knew that it was the present one; nothing if that is unknown. */
  as_of_ms?: number | null;
  /** Milliseconds for which the asked node has been joining the cluster without its state; nothing once it has received that. */
  joining_ms?: number | null;
  maintenance?: MaintenanceView | null;
  /** Whether data goes from node to node without encryption, because the setting `data-encryption` is off. */
  sends_clear: boolean;
  nodes: NodeView[];
}

export interface MaintenanceView {
  /** For example `service db`, `node n1`. A service also rests when its node or cluster is in maintenance, or a service that it depends on. */
  of: string;
  /** Wall clock of the order, in milliseconds since 1970. */
  since_ms: number;
  /** How much is left, in milliseconds, as it was last recorded; none if it does not end by itself. */
  left_ms?: number | null;
  /** The command that ends it. */
  end: string;
}

export interface NodeView {
  id: number;
  name: string;
  agent_address: string;
  engine_address: string;
  status: string;
  generation: number;
  voter: boolean;
  /** Whether the node votes and holds no data. */
  witness: boolean;
  /** Whether the node is still joining. It receives the state of the cluster, and votes and holds data when it has proven itself. */
  candidate: boolean;
  leader: boolean;
  /** Whether the asked agent has a connection to this node's agent; true for itself. */
  connected: boolean;
  /** Free bytes of the node's default pool; `None` when it could not be asked. */
  pool_free_bytes?: number | null;
  /** Time for which the node has confirmed no entry of the control plane's log although it lacks some, in milliseconds, as the leader reports it. `None` unless the node lives and that time is long. */
  log_lag_ms?: number | null;
  /** Entries of that log that the node lacks; 0 while `log_lag_ms` is `None`. */
  log_lag_entries: number;
  /** Feature level of the build that the node runs, as it told. */
  level: number;
  maintenance?: MaintenanceView | null;
  cordon?: CordonView | null;
}

export interface CordonView {
  /** Wall clock of the order, in milliseconds since 1970. */
  since_ms: number;
  drain: boolean;
  /** Resources whose primary is still there. */
  primaries: string[];
}

export interface EngineView {
  connected: boolean;
  message: string;
  /** How it makes devices, as far as it has said so. */
  frontend?: string | null;
  /** Its watchdog, as far as it has said so; `None` if it was started without one. */
  watchdog?: string | null;
}

export interface ResourceView {
  id: number;
  name: string;
  health: Health;
  deleting: boolean;
  volumes: number[];
  journal_bytes: number;
  epoch: number;
  version: number;
  primary?: string | null;
  preferred: string[];
  replicas: ReplicaView[];
  /** Volumes that are to be larger, and are not yet. */
  growing: GrowingView[];
  snapshots: SnapshotView[];
  rollback?: RollbackView | null;
  rolled_back?: RolledBackView | null;
  /** Snapshot that the resource is being made of. The resource cannot be used before it is complete. */
  origin?: OriginView | null;
  scrubs: ScrubsView;
  /** Replicas that go when the one at the new place is in sync. */
  moves: MoveView[];
  /** The node to which an operator moves the primary, until it is there. */
  primary_moves_to?: string | null;
  /** Replicas that were removed and whose files are not known to be gone. */
  leaving: LeavingView[];
  /** When writes are acknowledged. */
  mode: string;
  /** How many copies there have to be. Does not count in mode A. */
  min_copies: number;
  /** How long requests wait while there are fewer, in milliseconds. */
  suspend_ms: number;
  /** Limits of the lag in mode A. */
  lag_bytes: number;
  lag_ms: number;
  /** In mode A, whether a follower takes over by itself, and which could now. */
  takeover: boolean;
  failover_ready: string[];
  /** Members whose memory the record counts on: all that are in sync when mode B is in force. In another mode, members whose memory may hold writes that are not durable yet. */
  memory: string[];
  /** The last forced promotion. */
  forced?: ForcedView | null;
  /** The node without a replica that has the devices. */
  attached?: AttachedView | null;
  /** Nodes that had them and still have to take them away. */
  detaching: string[];
  /** Why the last operation on the resource failed, if it did. */
  failure?: string | null;
  advice: string[];
}

export type Health = "ok" | "degraded" | "changing" | "down";

export interface ReplicaView {
  node: string;
  /** Whether the replica is in the in-sync set of the record, and has not lost entries that it had only in memory (mode B). */
  in_sync: boolean;
  /** Why its node cannot use it, for example because what is on its disk is damaged. */
  broken?: string | null;
  /** State of the replica, as its engine reports it; `None` when the node could not be asked. */
  live?: ReplicaLive | null;
}

export interface ReplicaLive {
  role: string;
  data: string;
  epoch: number;
  version: number;
  commit: number;
  end: number;
  durable: number;
  /** How long the journal of a primary took when it last had something to write, in microseconds. */
  journal_latency_us: number;
  /** Bytes of the pool that each volume takes. */
  allocated: number[];
  /** Why no write to its volumes is possible, if its pool has no space for one. */
  no_space?: string | null;
  /** A block that no replica in sync had whole when this primary last read it. Every read of it fails. Names the first such block, and how many more there are. */
  unreadable?: string | null;
  /** Reasons that keep the replica from its work as a primary, one sentence each. */
  waiting_for: string[];
  /** Users of its devices flush writes that must not be lost, and learn when other writes are lost. Without that, mode B acknowledges no write from memory. */
  caches: boolean;
  /** Paths of the block devices, by volume; only on the primary. */
  devices: DeviceView[];
  /** How the primary sees the other replicas; empty elsewhere. */
  peers: PeerView[];
}

export interface DeviceView {
  volume: number;
  path: string;
  /** Longest write that is whole or absent on every replica, in bytes, if it reaches the device as one request of whole blocks. 0: no write is promised to be whole. */
  atomic_write_max: number;
  /** Reason why no write is promised to be whole. `None` if one is, or if the engine does not say. */
  not_atomic?: string | null;
}

export interface PeerView {
  node: string;
  state: string;
  lag_entries: number;
  lag_bytes: number;
  /** Age of the oldest entry that it lacks. */
  lag_ms: number;
  /** Whether the lag is only a lower bound, because the primary does not know it exactly. */
  lag_more: boolean;
  /** Share of an extent copy that is done, in percent; `None` when none runs. */
  progress_percent?: number | null;
  /** How long its last acknowledgement took, in microseconds; 0 if that is not known. */
  latency_us: number;
  /** How fast an extent copy has gone lately, in bytes per second, and how long the rest takes at that rate, in milliseconds. `None` when none runs or that is not known yet. */
  copy_bytes_per_s?: number | null;
  copy_left_ms?: number | null;
  /** `None` unless it is out of the in-sync set because it was slow. */
  slow?: SlowView | null;
}

export interface SlowView {
  /** For how long it has been out, in milliseconds. */
  out_ms: number;
  /** How long it took to acknowledge when it left, in microseconds. */
  latency_us: number;
  /** Time until the replica is asked to return, in milliseconds, if it keeps up until then. */
  returns_in_ms: number;
}

export interface GrowingView {
  volume: number;
  /** Its size to be. */
  bytes: number;
}

export interface SnapshotView {
  id: number;
  name: string;
  /** When it was asked for, in milliseconds since 1970. */
  at_ms: number;
  deleting: boolean;
  nodes: SnapshotOnView[];
}

export interface SnapshotOnView {
  node: string;
  /** The entry of the log that it is as of; 0 if that is not known. */
  index: number;
  state: string;
}

export interface RollbackView {
  snapshot: string;
  /** The snapshot that is to hold the state of before. */
  keep?: string | null;
}

export interface RolledBackView {
  snapshot: string;
  /** Entry of the log from which on the volumes held the content of `snapshot`. `None`: the rollback could not be done, and changed nothing. */
  index?: number | null;
  /** In milliseconds since 1970. */
  at_ms: number;
}

export interface OriginView {
  /** Names. */
  resource: string;
  snapshot: string;
}

export interface ScrubsView {
  /** Present time of the node that answers. */
  now_ms: number;
  interval_ms: number;
  repair: string;
  rate: number;
  /** The schedule has begun one, or is about to. */
  running: boolean;
  /** The last one that compared all replicas. */
  whole?: ScrubbedView | null;
  /** One after that, which did not. */
  failed?: ScrubbedView | null;
  /** When the next one is due. */
  due_ms?: number | null;
  /** Time by which the next scrub is late, in milliseconds. `None` unless that is more than a quarter of the interval. */
  late_ms?: number | null;
  /** Why none could begin now. */
  waits_for?: string | null;
}

export interface ScrubbedView {
  at_ms: number;
  took_ms: number;
  end: string;
  /** Nodes whose replicas were not compared everywhere. */
  lacking: string[];
  /** Blocks that differed, and what became of them, as in `ScrubReport`. */
  different: number;
  repaired: number;
  overwritten: number;
  unrepaired: number;
}

export interface MoveView {
  from: string;
  to: string;
}

export interface LeavingView {
  node: string;
  /** The files go when the node returns. */
  dead: boolean;
}

export interface ForcedView {
  node: string;
  epoch: number;
  at_ms: number;
  /** Last entry that the replica held when the operator was told. `None`: the replica took over by itself, within the limits of mode A. */
  end?: number | null;
  /** Entries that were lost: from, to. `None` until a replica that had every acknowledged write has returned. */
  lost?: [number, number] | null;
}

export interface AttachedView {
  node: string;
  /** The only session that may write. */
  session: number;
  wait_ms: number;
  /** State of that session, as the node's engine reports it. `None` if the engine does not answer, or has not opened a client. */
  live?: ClientView | null;
}

export interface ClientView {
  /** Node that answers the client's requests; `None` while they wait. */
  primary?: string | null;
  /** Requests that are not answered, and for how long the oldest of them has waited. */
  requests: number;
  waits_ms: number;
  /** How often it was connected to a primary: once, and once more after each failover or broken connection. */
  streams: number;
  /** Why it is of no use any more; it is opened anew. */
  over?: string | null;
  devices: DeviceView[];
  /** Why there are no devices, if they could not be made. */
  failure?: string | null;
}

export interface ServiceView {
  name: string;
  resource: string;
  /** Node that should run it now: the primary's. */
  node?: string | null;
  /** Phase that was reported last. */
  phase: string;
  phase_node?: string | null;
  /** Step that the node takes, or waits for, while the service starts or stops. */
  doing: string;
  /** Whether `phase` is about the specification that was applied last. False until the node that should run the service has taken that up. */
  current: boolean;
  vip?: string | null;
  deleting: boolean;
  failures: ServiceFailure[];
  advice: string[];
  /** Wall clock of the operator's order to stop, in milliseconds since 1970; none if the service is to run. */
  stopped_ms?: number | null;
  /** An operator wants the service restarted, and that is not done yet. */
  restarting: boolean;
  /** The maintenance because of which Mainstay leaves the service alone, its own or another's. */
  maintenance?: MaintenanceView | null;
  /** Hindrances of a service that runs and is of no use, as its node has just measured them, with their age and what to do. Not in the answers to changes, and not in `GET /v1/services`. */
  hindrances: string[];
}

export interface ServiceFailure {
  node: string;
  count: number;
  /** Wall clock of the last one in milliseconds since 1970; none if it was not recorded. */
  at_ms?: number | null;
  reason: string;
}

export interface ClusterInit {
  name: string;
  /** Name of this node. */
  node: string;
  /** Address under which other agents reach this one, with or without a port (7400 if none). */
  address: string;
  /** Address under which other engines reach this node's engine; the host of `address` and port 7401 if none. */
  engine_address?: string | null;
  lease_ms?: number | null;
  heartbeat_ms?: number | null;
}

export interface ClusterJoin {
  /** Address of the agent of any member. */
  peer: string;
  node: string;
  /** See `ClusterInit::address`; if none, that on which the agent listens, or, if it listens on all, the local one of a connection to `peer`. */
  address?: string | null;
  engine_address?: string | null;
  /** The node votes and holds no data. It needs no engine. */
  witness: boolean;
  /** The node of this name is dead, and this one takes its place. */
  replace: boolean;
  /** The token that a member made for a node of this name. Secret. */
  token: string;
}

export interface SettingView {
  name: string;
  value: string;
  from: SettingSource;
  default: string;
  /** The values that it takes, in words. */
  values: string;
  /** First release that has it. */
  since: string;
  help: string;
}

export type SettingSource = "default" | "cluster" | "resource";

export interface Accepted {
  /** Revision of the cluster state that contains the change. */
  revision: number;
  message: string;
}

export interface ClusterBackup {
  /** Version of this form. */
  format: number;
  cluster: string;
  /** Name of the node that answered. */
  node: string;
  /** In milliseconds since 1970. */
  at_ms: number;
  /** Revision of the record. */
  revision: number;
  /** The record as JSON. */
  state: string;
  /** CRC-32C of `state`. */
  sum: number;
}

export interface CertificatesView {
  authorities: AuthorityView[];
  nodes: CertificateView[];
  /** Another authority takes the place of the present one. */
  rotation?: RotationView | null;
}

export interface AuthorityView {
  number: number;
  /** New certificates come from this authority. */
  issues: boolean;
  /** The use that the cluster makes of it; `null` from an agent of an earlier release. */
  phase?: AuthorityPhase | null;
  /** SHA-256 of its certificate. */
  fingerprint: string;
}

export type AuthorityPhase = "announced" | "issues" | "believed";

export interface CertificateView {
  node: string;
  /** SHA-256 of the node's key. */
  key: string;
  /** End of the certificate, in milliseconds since 1970. `None`: the node has none yet. */
  until_ms?: number | null;
  /** Number of the authority that gave it. */
  authority?: number | null;
}

export interface RotationView {
  /** Number of the new authority. */
  to: number;
  /** Phase of the new authority: `announced`, then `issues`. */
  phase: AuthorityPhase;
  /** Beginning of this phase: wall clock, in milliseconds since 1970. */
  since_ms: number;
  /** Names of the nodes that it waits for. */
  waits_for: string[];
  /** The dead ones of them. */
  dead: string[];
}

export interface LeaveOut {
  /** Names of the nodes. */
  nodes: string[];
}

export interface TokenView {
  /** Public half, 16 hexadecimal digits. */
  id: string;
  node: string;
  status: TokenStatus;
  /** Wall clock, in milliseconds since 1970. */
  made_ms: number;
  until_ms: number;
}

export type TokenStatus = "open" | "used" | "revoked" | "ended" | "superseded";

export interface TokenCreate {
  /** Name of the node that is to join. */
  node: string;
  /** Time for which it is good, at most 24 h. */
  life_ms: number;
}

export interface TokenMade {
  /** Public half, 16 hexadecimal digits. */
  id: string;
  node: string;
  /** The whole token. Secret. */
  token: string;
  /** End, in milliseconds since 1970. */
  until_ms: number;
  /** Address of the agent that made it. */
  peer: string;
}

export interface AuthoritiesView {
  /** SHA-256 of the certificate of the authority that gives certificates now. */
  fingerprint: string;
  /** Certificates in PEM form, the one that gives certificates now first. */
  certificates: string[];
}

export interface ApiTokenView {
  name: string;
  /** Public half, 16 hexadecimal digits. */
  id: string;
  access: string;
  made_ms: number;
  until_ms: number;
  /** The token has ended. */
  ended: boolean;
  /** Last use, to the hour; none if it was not used yet. */
  used_ms?: number | null;
}

export interface ApiTokenCreate {
  /** Name, which the audit log shows. */
  name: string;
  /** Right of its holder. */
  access: string;
  /** Time for which it is good, at most 366 days. 90 days if nothing is said. */
  life_ms: number;
}

export interface ApiTokenMade {
  name: string;
  /** The whole token. Secret. */
  token: string;
  access: string;
  /** End, in milliseconds since 1970. */
  until_ms: number;
}

export interface NodeRemoval {
  /** Names of the resources whose only replica is on the node: their data is lost. */
  lost: string[];
  /** Names of the resources of which a replica goes. Others have everything. */
  replicas: string[];
}

export interface NodeRemove {
  /** The resources that the operator gives up: `NodeRemoval::lost`, as it was shown. */
  lost: string[];
}

export interface NodeReplace {
  /** Name of the member. */
  with: string;
}

export interface NodeAddress {
  /** Address of the agent, with or without a port (7400 if none). */
  address: string;
  /** Address of the engine; the host of `address` and port 7401 if none. */
  engine_address?: string | null;
  /** Records the address although the node does not answer there. */
  unseen: boolean;
}

export interface ResourceCreate {
  name: string;
  /** Bytes of each volume. For a resource that is made of a snapshot: empty for the sizes of its origin, or at least as many bytes each. */
  volumes: number[];
  /** 256 MiB if none, or what the origin has. */
  journal_bytes?: number | null;
  /** Names of the nodes. Empty: `replica_count` nodes are chosen. Nodes that hold the snapshot that the resource is made of come first, then those with the most free space. */
  replicas: string[];
  replica_count?: number | null;
  /** Names of nodes that should be primary, best first. */
  preferred: string[];
  /** Settings for this resource, by name. Those of the cluster and the defaults count for the others. */
  settings: Record<string, SettingValue>;
  /** The volumes hold the content of this snapshot from the beginning. */
  from?: OriginView | null;
}

export type SettingValue = string | number | boolean;

export interface ScrubReport {
  resource: string;
  /** Node whose replica leads the scrub. */
  primary: string;
  state: string;
  repair: string;
  /** All replicas were compared in all extents. */
  complete: boolean;
  /** Whether the scrub is complete and no block differs any more. */
  equal: boolean;
  /** Entries of the log of the first and the last extent. */
  from: number;
  index: number;
  extents: number;
  done: number;
  took_ms: number;
  /** How long the rest takes, if that is known. */
  left_ms?: number | null;
  /** Blocks of 4096 bytes that differed. Of these: written anew, overwritten by clients before that, and left as they are. */
  different: number;
  repaired: number;
  overwritten: number;
  unrepaired: number;
  replicas: ScrubReplica[];
  /** The first findings; neighbouring blocks are one finding. */
  findings: ScrubFindingView[];
}

export interface ScrubReplica {
  node: string;
  /** Extents in which this replica was compared. */
  extents: number;
}

export interface ScrubFindingView {
  volume: number;
  block: number;
  blocks: number;
  index: number;
  /** Nodes whose replicas agree, the largest group first. */
  groups: string[][];
  /** Nodes whose own checksums say that theirs are damaged. */
  damaged: string[];
  /** Nodes whose replicas are taken to be right; empty if that is not known. */
  right: string[];
  /** More than half of the replicas that are not damaged say so. */
  proven: boolean;
  outcome: string;
}

export interface ScrubStart {
  /** Write anew blocks that differ. They get what more than half of the replicas hold, otherwise what the primary holds. */
  repair: boolean;
  /** Bytes per second that each replica reads; 0: no limit but that of background work. */
  rate: number;
}

export interface ResourceAttach {
  node: string;
  /** Time after which a waiting request of the devices fails, and the devices with it, in milliseconds; 60 s if not given. */
  wait_ms?: number | null;
  /** Even if another node has them, whose requests fail from then on. */
  take_over: boolean;
}

export interface FailoverExplained {
  resource: string;
  /** The service on the resource, if it has one. */
  service?: string | null;
  /** Node of the primary, whose death it is about; `null` if there is no primary now. */
  primary?: string | null;
  /** Node that would take over; `null` if none would. */
  to?: string | null;
  /** The fate in words, one line. */
  outcome: string;
  /** Every other node of the cluster. `chosen`: it takes over. `can`: it could. */
  nodes: FitView[];
}

export interface FitView {
  node: string;
  /** The service runs there, or would, as things are. */
  chosen: boolean;
  /** Whether the service could run there. */
  can: boolean;
  /** In words, one line. */
  why: string;
}

export interface ForceView {
  node: string;
  /** Version of the record that the cost was computed from. */
  version: number;
  /** Last entry that is durable there. */
  end: number;
  /** The highest commit index that it had heard of: everything up to there was acknowledged. */
  heard: number;
  /** Nodes whose replicas have every acknowledged write. */
  lost_with: string[];
  /** The cost in words. */
  cost: string;
}

export interface PrimaryMove {
  /** Name of the node. The server chooses the best one if none is given. */
  to?: string | null;
}

export interface PrimaryMoves extends Accepted {
  /** Name of the node that is to be primary. */
  to: string;
}

export interface ReplicaAdd {
  /** Name of the node. */
  node: string;
}

export interface ReplicaMove {
  /** Name of the node. */
  to: string;
}

export interface VolumeResize {
  bytes: number;
}

export interface SnapshotTake {
  /** 1 to 32 characters out of a-z, 0-9 and the dash. */
  name: string;
}

export interface SnapshotFiles {
  snapshot: SnapshotView;
  /** One for each volume, absolute. They are only to be read. Where the pool cannot clone files each is the map of what was put aside of the volume, `snapN-mapV`; `mainstay snapshot clone` makes files of the content. Empty if this node does not hold it. */
  files: string[];
  /** Space of the snapshot on this node. `None` if the node does not hold the snapshot, or its file system does not tell. */
  space?: SnapshotSpace | null;
  /** Directories of Mainstay on the node that was asked. A copy goes elsewhere, or into `pool`. */
  own: string[];
  /** The pool of the node that was asked. A copy may have a directory beside its replicas. */
  pool: string;
}

export interface SnapshotSpace {
  /** Bytes on the disk, those that it shares with volumes, clones and other snapshots included. */
  bytes: number;
  /** Bytes among these that nothing else shares or needs: the least that deleting the snapshot gives back. */
  own_bytes: number;
}

export interface SnapshotRollback {
  /** Name of the snapshot that keeps the content of the volumes from before the rollback. The server chooses a name if none is given. */
  keep?: string | null;
  /** Whether that content is discarded instead of kept. */
  discard: boolean;
  /** A service that runs on the resource is stopped for this and started again. */
  restart_service: boolean;
}

export interface ServiceApply {
  toml: string;
  /** Say what would change, and change nothing. */
  dry_run: boolean;
  /** Restart it although another program holds the file system. All data written to the file system is on the device before it is taken away. */
  force: boolean;
  /** Refuse if the service has another edition by now: see `ServiceFile`. */
  edition?: number | null;
}

export interface ServiceApplied extends ServiceView {
  effect: ServiceEffect;
  changes: ServiceChange[];
  /** Requirements of the service that single nodes do not meet, and nodes that could not be asked, one text each. */
  warnings: string[];
  dry_run: boolean;
  /** Each node, and whether the service would run there, in the answer to a dry run. */
  places: FitView[];
}

export type ServiceEffect = "created" | "unchanged" | "failures-cleared" | "changed-in-place" | "restarted";

export interface ServiceChange {
  /** Name of the field as in TOML, for example `process[0].command`. */
  field: string;
  /** `not set` for none. Values of environment variables are not told. */
  from: string;
  to: string;
  /** Whether the change stops and starts the running service. */
  restarts: boolean;
}

export interface ServiceMove {
  /** Name of the node. */
  to: string;
  /** Whether the service moves although another program holds the file system. All data written to the file system is on the device before it is taken away. */
  force: boolean;
}

export interface ServiceExplained {
  name: string;
  resource: string;
  /** Every node of the cluster. */
  nodes: FitView[];
  /** Why it does not run although its place is known; empty if it runs. */
  waits: string;
  maintenance?: MaintenanceView | null;
}

export interface MaintenanceSet {
  on: boolean;
  /** The maintenance ends by itself after this time, in milliseconds; if none, when an operator ends it. */
  for_ms?: number | null;
}

export interface CordonSet {
  on: boolean;
  /** Services and primaries that are there leave, as far as they have somewhere to go. */
  drain: boolean;
}

export interface ServiceWanted {
  /** `false`: the service stops, and stays stopped until it is wanted again. `true` also clears its failures. */
  run: boolean;
  /** Whether the service stops although another program holds the file system. All data written to the file system is on the device before it is taken away. */
  force: boolean;
}

export interface ServiceRestart {
  /** Name of the process that is restarted, with what was started after it; all processes if none. */
  process?: string | null;
}

export interface ServiceFile {
  name: string;
  /** With all defaults. Values of environment variables are hidden; in `ServiceApply` a hidden value stays as it is. */
  toml: string;
  /** Rises with every change. */
  edition: number;
}

export interface ServiceLogs {
  node: string;
  logs: ServiceLog[];
}

export interface ServiceLog {
  process: string;
  text: string;
  /** Pass this as `after` for what comes next. */
  next: string;
  /** Output before `text` was left out, because there is more than one answer may have, or because it is not there any more. */
  cut: boolean;
  /** Output of the process that cannot be read, and why. */
  notice?: string | null;
}

export interface ServiceHistory {
  name: string;
  events: EventView[];
  /** Time from which on events are known, in milliseconds since 1970; none if all are. */
  since_ms?: number | null;
}

export interface EventView {
  /** Rises with every event; give the highest one seen as `after`. */
  index: number;
  at_ms: number;
  severity: string;
  /** `node/n1`, `resource/db`, `service/db` or `cluster`. */
  subject: string;
  text: string;
}

export interface ServiceCheck {
  toml: string;
}

export interface ServiceChecked {
  name: string;
  resource: string;
  /** Every node that may run the service. */
  nodes: ServiceCheckedOn[];
}

export interface ServiceCheckedOn {
  node: string;
  /** Why the node could not be asked. */
  silent?: string | null;
  /** Parts of the file that would fail there. */
  problems: ServiceProblem[];
}

export interface ServiceProblem {
  /** The field as in TOML, for example `process[0].user`. */
  field: string;
  problem: string;
  remedy: string;
}

export interface OperationView {
  id: string;
  /** Method and path of the request. */
  action: string;
  /** User who asked, or `token` and the name of a token. */
  who: string;
  state: OperationState;
  /** When the request came, in milliseconds since 1970. */
  since_ms: number;
  /** When the operation ended, in milliseconds since 1970. */
  ended_ms?: number | null;
  /** Share of the work that is done, if that is known. */
  progress_percent?: number | null;
  /** Words about what is being done, or how it ended. */
  message: string;
  /** Right that is needed to cancel the operation. None if it cannot be cancelled. */
  cancel_needs?: string | null;
  /** Why it failed. */
  problem?: ProblemDocument | null;
}

export type OperationState = "running" | "succeeded" | "failed" | "cancelled";

export interface ProblemDocument {
  /** Path of the explanation of the code, which every node serves. It is the same for every problem with this code. */
  type: string;
  /** The code in words. */
  title: string;
  /** HTTP status. */
  status: number;
  /** Explanation of this occurrence, with the text of `message`. */
  detail: string;
  code: string;
  /** Words about what failed, and why. */
  message: string;
  /** Usual cause of problems with this code; empty if the node does not know the code. */
  cause: string;
  /** Advice; empty if there is none. */
  remedy: string;
  /** Number of the request, as in the header `x-request-id` and in the audit log. */
  request?: string | null;
}

export interface EventsPage {
  events: EventView[];
  /** Pass this as `after` next time. */
  last: number;
  /** Events after the asked position were dropped from the bounded list. */
  gap: boolean;
}

export interface HistoryPage {
  /** Oldest first. */
  changes: ChangeView[];
  /** Wall clock of the oldest event, if the cluster has forgotten earlier ones. */
  since_ms?: number | null;
}

export interface ChangeView {
  resource: string;
  /** The service that ran or failed on the new primary; none if the resource has none, or if it was stopped. */
  service?: string | null;
  from?: string | null;
  /** None if no node could take over. */
  to?: string | null;
  epoch: number;
  /** For example `node-dead`; the manual lists all. */
  cause: string;
  /** `operator` or `cluster`. */
  decided_by: string;
  at_ms: number;
  /** From the change until the service ran, in milliseconds; none if it did not run. */
  took_ms?: number | null;
  stages: StageView[];
}

export interface StageView {
  /** Time since the change, in milliseconds. */
  after_ms: number;
  text: string;
}

export interface LoadPage {
  /** Name of the node whose history this is. */
  node: string;
  /** The interval: records count that end after `from_ms` and not after `to_ms`. */
  from_ms: number;
  to_ms: number;
  /** Time from one point to the next. Larger than asked for if the answer would be too large. */
  step_ms: number;
  /** End of the oldest record that the node keeps; none if it keeps none. */
  since_ms?: number | null;
  /** Points that have records, oldest first. */
  points: LoadPoint[];
}

export interface LoadPoint {
  /** Begin of the step. */
  at_ms: number;
  /** Time that records cover. Less than the step if agent or engine did not run for a part of it. */
  covered_ms: number;
  /** Processor time of the agent and the engine, in microseconds. */
  agent_cpu_us: number;
  engine_cpu_us: number;
  /** The most resident memory. */
  agent_memory_bytes: number;
  engine_memory_bytes: number;
  /** Size and free bytes of the pool at the end of the step; 0 if not known. */
  pool_size_bytes: number;
  pool_free_bytes: number;
  /** Replicas on the node that did anything, in the order of names. */
  resources: ResourceLoad[];
}

export interface ResourceLoad {
  resource: string;
  /** Time for which the replica was primary, in milliseconds. */
  primary_ms: number;
  reads: RequestLoad;
  writes: RequestLoad;
  discards: RequestLoad;
  write_zeroes: RequestLoad;
  flushes: RequestLoad;
  /** Writes of the replica's own journal. */
  journal: StageLoad;
  /** Batches, from sealing to commit. */
  commit: StageLoad;
  /** Reads, from when no write in flight overlapped them. */
  read: StageLoad;
  /** Replicas that this one fed. */
  peers: PeerLoad[];
  /** Waiting of the requests by class. All classes together are the time of all requests. */
  waits: WaitLoad[];
  /** Bytes that went to the replica's files, and came from them. */
  disk_written_bytes: number;
  disk_read_bytes: number;
  /** Bytes of extents that were copied to this replica. */
  copied_bytes: number;
  /** The most that the journal was filled, in thousandths. */
  journal_permille: number;
}

export interface RequestLoad {
  count: number;
  bytes: number;
  /** Requests among these that were answered with an error. */
  errors: number;
  /** Sum of the times from arrival to answer, in microseconds. Divided by the time that is covered, it is the mean number of requests that were open. */
  time_us: number;
  /** Times that 50 %, 95 % and 99 % of the requests did not exceed, in microseconds. They are off by less than half. */
  p50_us: number;
  p95_us: number;
  p99_us: number;
  /** Requests by their time: number n is for those above 2^(n-1) and not above 2^n microseconds. Zeroes at the end are left out. */
  histogram: number[];
}

export interface StageLoad {
  count: number;
  /** Sum of their times, in microseconds. */
  time_us: number;
}

export interface PeerLoad {
  node: string;
  /** Batches, from sending to the acknowledgement that covers them. */
  acknowledged: StageLoad;
  /** How often it left the in-sync set for being slow. */
  times_slow: number;
  sent_bytes: number;
  /** Bytes of extents that were copied to it. */
  copied_bytes: number;
  /** The most that it lacked, at the ends of minutes. */
  lag_bytes: number;
  lag_ms: number;
}

export interface WaitLoad {
  class: WaitClass;
  /** The other node, for `peer`. */
  node?: string | null;
  /** Sum over all requests, in microseconds. */
  time_us: number;
}

export type WaitClass = "read" | "overlap" | "queue" | "journal" | "peer" | "commit" | "flush";

export interface Report {
  /** Name of the cluster. */
  cluster: string;
  /** Name of the baseline whose kept figures these are; none for the histories of the nodes. */
  baseline?: string | null;
  /** Name of the resource that the report is limited to. Its nodes are those that have a replica now, or were primary in this time; its events are also those of its service and its nodes. */
  resource?: string | null;
  /** The interval: records count that end after `from_ms` and not after `to_ms`. */
  from_ms: number;
  to_ms: number;
  /** Length of a point. */
  step_ms: number;
  /** Sentences that say what stands out, most important first. */
  findings: string[];
  /** The resource whose requests waited most is the first. */
  resources: ResourceReport[];
  nodes: NodeReport[];
  /** Nodes without a history of this time, each with the reason. */
  missing: string[];
  /** Changes of primaries, oldest first. */
  changes: ChangeView[];
  /** Warnings and errors, oldest first. */
  events: EventView[];
  /** The same for the interval or baseline that was to be compared with, without events. */
  compared?: Report | null;
}

export interface ResourceReport {
  resource: string;
  /** For how long each node was primary, in milliseconds. */
  primaries: Record<string, number>;
  /** All of the interval. */
  total: ReportPoint;
  /** By their number in the interval. Nothing is known of requests in a point that is missing, or in which no node was recorded as primary. */
  points: Record<string, ReportPoint>;
}

export interface ReportPoint {
  /** Time that is recorded. */
  covered_ms: number;
  /** Time for which nodes were recorded as primary. */
  primary_ms: number;
  /** Requests. Their histograms are left empty in single points. */
  reads: RequestLoad;
  /** Writes, discards and write-zeroes. */
  writes: RequestLoad;
  /** Sums of waiting by class, in microseconds. All classes together are the time of all requests. */
  waits: Record<string, number>;
  /** Bytes of extents that were copied to replicas. */
  copied_bytes: number;
  /** How often a replica left the in-sync set for being slow. */
  times_slow: number;
  /** The most that any replica lacked. */
  lag_bytes: number;
  /** The fullest journal, in thousandths, and its node. */
  journal_permille: number;
  journal_node: string;
}

export interface NodeReport {
  node: string;
  /** Time that is recorded. */
  covered_ms: number;
  /** Mean shares of one processor, in thousandths. */
  engine_cpu_permille: number;
  agent_cpu_permille: number;
  /** The most resident memory. */
  engine_memory_bytes: number;
  agent_memory_bytes: number;
  /** Size of the pool, and its free bytes at the first and the last record; 0 if not known. */
  pool_size_bytes: number;
  pool_free_bytes_first: number;
  pool_free_bytes: number;
  /** Processor time of the engine in thousandths, and free bytes of the pool, by point. */
  points: Record<string, [number, number]>;
}

export interface BaselinesPage {
  /** In the order of names. */
  baselines: BaselineView[];
  /** Nodes that did not tell theirs, each with the reason. */
  missing: string[];
}

export interface BaselineView {
  name: string;
  from_ms: number;
  to_ms: number;
  /** When it was saved. */
  made_ms: number;
  /** Nodes that keep a part of it. */
  nodes: string[];
  /** Bytes on the disks of all of them together. */
  bytes: number;
}

export interface BaselineSave {
  from_ms: number;
  to_ms: number;
}

export interface AuditPage {
  /** Oldest first. */
  records: AuditView[];
  /** Number of the newest record of the cluster. */
  last: number;
  /** Records after the asked number were dropped from the bounded log. */
  gap: boolean;
}

export interface AuditView {
  /** Rises by one with each record. */
  number: number;
  at_ms: number;
  /** User who asked, or `token` and the name of a token. */
  who: string;
  /** Address from which the request came, if it came over TCP. */
  from?: string | null;
  /** User who had logged in, if that is another one, as with `sudo`. */
  login?: string | null;
  /** Right that the user has. */
  access: string;
  /** Node whose agent was asked. */
  node: string;
  /** Method and path. */
  action: string;
  /** The request as JSON, without values that may be secrets; at most 512 bytes. If the path has the id of something and no name, `about` says what that is. */
  body: string;
  /** Random id of the request. */
  request: string;
  /** From the request to its answer, in milliseconds; none if the result is not known. */
  took_ms?: number | null;
  /** HTTP status of the answer; none if the agent ended before it wrote the result. */
  status?: number | null;
  /** Code of the refusal. */
  code?: string | null;
}

export interface ProgramsView {
  agent?: ProgramView | null;
  /** `None` if no engine runs there. */
  engine?: ProgramView | null;
}

export interface ProgramView {
  /** Process id, as the asked node counts. */
  pid: number;
  /** Path from which it was started. */
  path: string;
  /** Whether another file is at that path since then. */
  replaced: boolean;
  /** Version of the running program; only for one that was replaced, and only if it is known. */
  running?: string | null;
  /** Version of the file that is there now, likewise. */
  installed?: string | null;
}

export interface EngineSuccessor {
  /** Milliseconds, at most 60000. 0 takes an announcement back. */
  within_ms: number;
}

export interface DestinationsPage {
  /** Id of the cluster. */
  cluster: number;
  /** Revision of the cluster state that this is made of. The page with the highest one is the newest, whichever agent sent it. */
  revision: number;
  /** Age of that state: 0 if a majority of the voters confirmed it just now, else the milliseconds since the asked node knew that it was the present one; nothing if that is unknown. */
  as_of_ms?: number | null;
  /** One for each resource, and one for each service. */
  destinations: DestinationView[];
}

export interface DestinationView {
  resource: string;
  /** Name of the service; nothing if this is about the resource itself. */
  service?: string | null;
  epoch: number;
  /** The primary's node; nothing while there is none. */
  primary?: NodePlace | null;
  /** Phase of the service on the primary, in this epoch; nothing for a resource itself. */
  phase?: string | null;
  /** Nodes whose copies clients can read. Empty: secondaries cannot be read. */
  readers: NodePlace[];
}

export interface NodePlace {
  node: string;
  /** IP address or name, without a port. */
  address: string;
}

export interface CodeView {
  code: string;
  /** The code in words. */
  title: string;
  /** HTTP status of answers with this code. */
  status: number;
  /** Exit code of a command that fails with it. */
  exit: number;
  /** Message of one problem with this code. */
  example: string;
  cause: string;
  remedy: string;
  /** Entry in the manual: path in the source tree, and anchor. */
  entry: string;
  /** Page of the manual about the subject. */
  more?: string | null;
}
