//! Every metric: its name, type, labels and meaning. docs/metrics.md is written from here, and a
//! test sees to it.
//!
//! Names end with their unit (`_seconds`, `_bytes`), and counters with `_total`. Labels are few,
//! and each has few values: a resource, a volume, a peer (the name of another node), a kind of
//! request. A metric of 1 or 0 says yes or no. A metric with the name of a state as a label is 1
//! for the state that holds. The nodes that hold a replica of a resource show it.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Sum and count, without quantiles.
    Summary,
}

#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

/// Families under one heading.
pub struct Group {
    pub title: &'static str,
    pub families: &'static [&'static Family],
}

macro_rules! groups {
    ($($title:literal { $($id:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)* })*) => {
        $($(
            pub static $id: Family =
                Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*)*
        /// All of them, in the order in which they are documented.
        pub const GROUPS: &[Group] = &[$(Group { title: $title, families: &[$(&$id),*] }),*];
    };
}

groups! {
    "The node and the control plane" {
        BUILD_INFO: Gauge "mainstay_build_info" ["version"]
            "Always 1; the version of the agent.";
        NODE_INFO: Gauge "mainstay_node_info" ["cluster", "node", "witness"]
            "Always 1; name and id of this node. Absent while it is not a member of a cluster.";
        ENGINE_UP: Gauge "mainstay_engine_up" []
            "Whether the engine of this node answered this scrape in time. If not, nothing that it would say is shown.";
        SCRAPE_SECONDS: Gauge "mainstay_scrape_duration_seconds" []
            "How long it took to gather this page.";
        LEASE_REMAINING: Gauge "mainstay_lease_remaining_seconds" []
            "Until this node's lease ends; 0 without a lease. It serves nothing then.";
        FENCED: Gauge "mainstay_engine_fenced" []
            "Whether the engine has silenced this node because its lease ended, and it has no new one.";
        GENERATION: Gauge "mainstay_node_generation" []
            "Rises each time that this node is taken back after it was declared dead.";
        CONTROL_LEADER: Gauge "mainstay_control_leader_known" []
            "Whether this node knows a leader of the control plane. Without one nothing changes and nothing fails over.";
        CONTROL_LEADS: Gauge "mainstay_control_is_leader" []
            "Whether this node leads the control plane.";
        CONTROL_VOTERS: Gauge "mainstay_control_voters" []
            "Nodes whose agents make up the majority.";
        CONTROL_TERM: Gauge "mainstay_control_term" []
            "Raft term. It rises with every election.";
        CONTROL_APPLIED: Gauge "mainstay_control_applied_index" []
            "Last entry of the Raft log that was applied here.";
        CONTROL_EVENTS: Counter "mainstay_control_events_total" []
            "Events of the cluster, as `mainstay events` lists them.";
        NODE_ALIVE: Gauge "mainstay_node_alive" ["peer"]
            "Whether the control plane takes a node for alive, this one included.";
        NODE_CONNECTED: Gauge "mainstay_node_connected" ["peer"]
            "Whether this agent has a connection to the agent of another node.";
        LINK_UP: Gauge "mainstay_link_up" ["peer", "direction"]
            "Whether the connection between the engines is up: `outgoing` is the one that this node opened, on which its primaries speak.";
        LINK_QUEUED: Gauge "mainstay_link_queued_bytes" ["peer"]
            "Bytes that wait to be sent to the engine of another node.";
        POOL_SIZE: Gauge "mainstay_pool_size_bytes" []
            "Size of the file system that holds the pool.";
        POOL_FREE: Gauge "mainstay_pool_free_bytes" []
            "Bytes of the pool that replicas may still take.";
        POOL_PROMISED: Gauge "mainstay_pool_promised_bytes" []
            "Bytes that the replicas on this node take at most. More than the size of the pool: it may run full.";
        ENGINE_CLOCK: Gauge "mainstay_engine_clock_seconds" []
            "Clock of the engine when it counted what this page tells of it: time since the machine was started. Rates by it are exact although a page may serve several scrapes.";
        ENGINE_TURNS: Counter "mainstay_engine_turns_total" []
            "Turns of the engine's shard: how often it woke up for something.";
        ENGINE_POLLED: Counter "mainstay_engine_polled_seconds_total" []
            "Time that the engine's shard has polled on a processor that was left over, to save wake-ups.";
        FRONTEND_INFO: Gauge "mainstay_engine_frontend_info" ["kind"]
            "Always 1; how volumes become devices on this node.";
    }
    "Resources, as the control plane has recorded them" {
        RESOURCE_PRIMARY: Gauge "mainstay_resource_primary" ["resource"]
            "Whether some node is recorded as primary.";
        RESOURCE_MODE: Gauge "mainstay_resource_mode_info" ["resource", "mode"]
            "Always 1; when writes are acknowledged.";
        MODE_IN_FORCE: Gauge "mainstay_resource_mode_in_force" ["resource"]
            "Whether writes are acknowledged as the mode says. Not yet, on the way to mode B until the memory of all that are in sync counts, and on the way from it until none does.";
        UNPROVEN: Gauge "mainstay_resource_unproven_replicas" ["resource"]
            "Mode B: replicas in the in-sync set that were opened anew, and have not proven yet that they lack nothing.";
        FAILOVER_READY: Gauge "mainstay_resource_near_followers" ["resource"]
            "Mode A with takeover: followers that lack no more than the limits allow, and would take over. With none of them the loss of the primary waits for an operator.";
        LAG_LIMIT_BYTES: Gauge "mainstay_resource_lag_limit_bytes" ["resource"]
            "Mode A: writes wait for a follower that lacks more than this.";
        LAG_LIMIT_SECONDS: Gauge "mainstay_resource_lag_limit_seconds" ["resource"]
            "Mode A: writes wait for a follower that lacks something older than this.";
        RESOURCE_EPOCH: Gauge "mainstay_resource_epoch" ["resource"]
            "Rises by one with every promotion.";
        RESOURCE_REPLICAS: Gauge "mainstay_resource_replicas" ["resource"]
            "Replicas that there should be.";
        RESOURCE_IN_SYNC: Gauge "mainstay_resource_in_sync_replicas" ["resource"]
            "Size of the in-sync set: replicas that hold every acknowledged write. In mode A the primary and the replicas that join for a move.";
        RESOURCE_BROKEN: Gauge "mainstay_resource_broken_replicas" ["resource"]
            "Replicas that their nodes cannot use, because of a failed disk or damaged files.";
        RESOURCE_FAILED: Gauge "mainstay_resource_failed" ["resource"]
            "Whether there is no primary, or the last one could not go on, and no replica took over.";
        PROMOTIONS: Counter "mainstay_promotions_total" ["resource", "cause"]
            "Promotions of this node, since its agent was started: `failover` of a node that died, `handover`, `first`, `forced` by an operator, `takeover` of a follower in mode A.";
    }
    "The replica on this node" {
        ROLE: Gauge "mainstay_replica_role" ["resource", "role"]
            "1 for the role that it has: `primary`, `secondary`, `promoting` or `fenced`.";
        SERVING: Gauge "mainstay_replica_serving" ["resource"]
            "Whether it is primary and all its devices are there, or are those of a node without a replica.";
        IN_SYNC: Gauge "mainstay_replica_in_sync" ["resource"]
            "Whether it is recorded in the in-sync set.";
        CONSISTENT: Gauge "mainstay_replica_consistent" ["resource"]
            "Whether what it holds is whole: not half of a copy, and its store works.";
        SUSPENDED: Gauge "mainstay_replica_io_suspended" ["resource"]
            "Whether requests of its devices wait for more than disks and network do by themselves: a member of the in-sync set that is away, a pause, room in the journal. `mainstay status` says for what.";
        NO_SPACE: Gauge "mainstay_replica_no_space" ["resource"]
            "Whether the pool has no space for what is to be written to its volumes.";
        EPOCH: Gauge "mainstay_replica_epoch" ["resource"]
            "Highest epoch that it has promised.";
        COMMIT: Gauge "mainstay_replica_commit_index" ["resource"]
            "Last entry of the log that it knows to be committed.";
        DURABLE: Gauge "mainstay_replica_durable_index" ["resource"]
            "Last entry that is durable in its journal.";
        END: Gauge "mainstay_replica_end_index" ["resource"]
            "Last entry of its log.";
        COPIES: Gauge "mainstay_replica_copies" ["resource"]
            "As primary: members of the in-sync set that answer, itself included.";
        MIN_COPIES: Gauge "mainstay_replica_min_copies" ["resource"]
            "As primary: without so many copies, its own included, nothing is acknowledged.";
        REQUIRED: Gauge "mainstay_replica_required_members" ["resource"]
            "On a primary: replicas that a write waits for, itself among them.";
        IN_FLIGHT: Gauge "mainstay_requests_in_flight" ["resource"]
            "Requests of devices that are not answered.";
        DISK_OPERATIONS: Gauge "mainstay_disk_operations_in_flight" ["resource"]
            "Operations on its files that have not ended.";
        CACHED: Gauge "mainstay_replica_cached_bytes" ["resource"]
            "On a primary, mode B: bytes of the log that were acknowledged from memory and are not committed. The loss of all replicas that have them costs at most that.";
        SNAPSHOTS: Gauge "mainstay_replica_snapshots" ["resource", "state"]
            "Snapshots of its log: `held`, being `taking`, or `missing`, because it could not keep them or was filled later. Absent where there are none.";
        JOURNAL_SIZE: Gauge "mainstay_journal_size_bytes" ["resource"]
            "Size of the journal.";
        JOURNAL_USED: Gauge "mainstay_journal_used_bytes" ["resource"]
            "Part of the journal that cannot be used for new entries until it is destaged, the reserve for failovers included.";
        VOLUME_SIZE: Gauge "mainstay_volume_size_bytes" ["resource", "volume"]
            "Size of a volume.";
        VOLUME_ALLOCATED: Gauge "mainstay_volume_allocated_bytes" ["resource", "volume"]
            "Bytes of the pool that a volume takes.";
    }
    "Requests of devices" {
        REQUESTS: Counter "mainstay_requests_total" ["resource", "volume", "op"]
            "Requests that were answered: `read`, `write`, `discard`, `write-zeroes`, `flush`.";
        REQUEST_BYTES: Counter "mainstay_request_bytes_total" ["resource", "volume", "op"]
            "Bytes that they were about.";
        REQUEST_ERRORS: Counter "mainstay_request_errors_total" ["resource", "volume", "op"]
            "Of these requests, those that were answered with an error.";
    }
    "Latency by stage" {
        REQUEST_SECONDS: Histogram "mainstay_request_duration_seconds" ["resource", "op"]
            "Stage frontend: from the arrival of a request to its answer.";
        JOURNAL_SECONDS: Histogram "mainstay_journal_write_duration_seconds" ["resource"]
            "Stage journal: one durable write of the journal, on primaries and secondaries. A primary notices its end with the last acknowledgement, up to a millisecond later.";
        ACK_SECONDS: Histogram "mainstay_peer_acknowledgement_duration_seconds" ["resource", "peer"]
            "Stage network: from the sending of a batch to the acknowledgement that covers it; the peer's journal is in it. Noticed with the last that is required, up to a millisecond later. Begins anew with a promotion.";
        COMMIT_SECONDS: Histogram "mainstay_commit_duration_seconds" ["resource"]
            "Stage commit: from the sealing of a batch until all required replicas have it.";
        READ_SECONDS: Histogram "mainstay_read_duration_seconds" ["resource"]
            "Stage read: from when no write in flight is in the way of a read to its answer.";
        BATCH_ENTRIES: Histogram "mainstay_batch_entries" ["resource"]
            "Entries of the batches that a primary sealed: the sum is entries, the count is batches.";
    }
    "Disks" {
        DISK_WRITTEN: Counter "mainstay_disk_written_bytes_total" ["resource", "area"]
            "Bytes written to the `journal`, to the `volume` files (destaged, or copied to here), as `metadata` and for a `snapshot` (put aside before it was written over, where the pool cannot clone files). Divided by the bytes of write requests: write amplification.";
        DISK_READ: Counter "mainstay_disk_read_bytes_total" ["resource", "area"]
            "Bytes read from the `journal` and from the `volume` files.";
        ZEROED: Counter "mainstay_volume_zeroed_bytes_total" ["resource"]
            "Bytes of volumes that were made zero without being written.";
    }
    "Peers, as a primary on this node sees them" {
        PEER_STATE: Gauge "mainstay_peer_state" ["resource", "peer", "state"]
            "1 for the state that it has: `disconnected`, `attaching`, `catching-up`, `following`, `copying`, `joining`, `in-sync` or `failed`.";
        PEER_CONNECTED: Gauge "mainstay_peer_connected" ["resource", "peer"]
            "Whether there is a connection to it.";
        PEER_LAG_ENTRIES: Gauge "mainstay_peer_lag_entries" ["resource", "peer"]
            "Entries of the log that it lacks, in every mode.";
        PEER_LAG_BYTES: Gauge "mainstay_peer_lag_bytes" ["resource", "peer"]
            "Bytes of the journal that it lacks.";
        PEER_LAG_SECONDS: Gauge "mainstay_peer_lag_seconds" ["resource", "peer"]
            "Age of the oldest entry that it lacks.";
        PEER_LAG_INEXACT: Gauge "mainstay_peer_lag_inexact" ["resource", "peer"]
            "Whether it lacks at least that much, and the exact amount is not known.";
        PEER_SLOW: Gauge "mainstay_peer_slow" ["resource", "peer"]
            "Whether it is out of the in-sync set because it was slow.";
        PEER_SLOW_EXITS: Counter "mainstay_peer_slow_exits_total" ["resource", "peer"]
            "How often it left the in-sync set, or was not let into it, because it was slow. Begins anew with a promotion.";
        PEER_SENT: Counter "mainstay_peer_sent_bytes_total" ["resource", "peer"]
            "Bytes of the log that were sent to it, also to catch up.";
        PEER_BATCHES: Counter "mainstay_peer_sent_batches_total" ["resource", "peer"]
            "Batches of the log that were sent to it.";
    }
    "Filling and copying" {
        COPY_SENT: Counter "mainstay_copy_sent_bytes_total" ["resource", "peer"]
            "Bytes of extents that were copied to a peer. Extents of zeroes have none.";
        COPY_EXTENTS: Counter "mainstay_copy_sent_extents_total" ["resource", "peer"]
            "Extents that were copied to a peer, those of zeroes included.";
        COPY_RECEIVED: Counter "mainstay_copy_received_bytes_total" ["resource"]
            "Bytes of extents that were copied to this node.";
        COPY_RECEIVED_EXTENTS: Counter "mainstay_copy_received_extents_total" ["resource"]
            "Extents that were copied to this node, those of zeroes included.";
        COPY_PROGRESS: Gauge "mainstay_copy_progress_ratio" ["resource", "peer"]
            "Share of a copy that is done, from 0 to 1; only while one goes on.";
        COPY_RATE: Gauge "mainstay_copy_rate_bytes_per_second" ["resource", "peer"]
            "How fast it goes of late, in bytes of the volumes; only when that is known.";
        COPY_REMAINING: Gauge "mainstay_copy_remaining_seconds" ["resource", "peer"]
            "How long the rest takes at that.";
        FILLING_THROTTLED: Gauge "mainstay_filling_throttled" ["resource"]
            "Whether what fills replicas from here is slowed down now, for the sake of clients or by c-max-rate.";
    }
    "Scrubs" {
        SCRUB_EXTENTS: Counter "mainstay_scrub_extents_total" ["resource"]
            "Extents whose replicas were compared (`mainstay resource scrub NAME`), as primary.";
        SCRUB_DIFFERENT: Counter "mainstay_scrub_different_blocks_total" ["resource"]
            "Blocks of 4096 bytes that replicas held differently.";
        SCRUB_REPAIRED: Counter "mainstay_scrub_repaired_blocks_total" ["resource"]
            "Of these, written anew on all replicas.";
        SCRUB_RUNNING: Gauge "mainstay_scrub_running" ["resource"]
            "Whether they are being compared now.";
        SCRUB_UNREPAIRED: Gauge "mainstay_scrub_unrepaired_blocks" ["resource"]
            "Blocks that still differed when the last scrub of this primary ended.";
        SCRUB_INTERVAL: Gauge "mainstay_scrub_interval_seconds" ["resource"]
            "From one scrub of the schedule to the next; absent where none begins by itself.";
        SCRUB_WHOLE: Gauge "mainstay_scrub_whole_timestamp_seconds" ["resource"]
            "When the last scrub ended that compared all replicas, since 1970, under any primary; absent before the first.";
        SCRUB_OUTCOME: Gauge "mainstay_scrub_outcome" ["resource", "outcome"]
            "1 for how the last scrub ended, under any primary: `whole`, `partial` if a replica was not compared everywhere, `stopped` by an operator, or `interrupted` by a change of the primary.";
        SCRUB_LEFT: Gauge "mainstay_scrub_left_blocks" ["resource"]
            "Blocks that still differed when it ended.";
        SCRUB_FAILURES: Gauge "mainstay_scrub_failures" ["resource"]
            "Scrubs that were partial or interrupted since the last whole one.";
        SCRUB_LATE: Gauge "mainstay_scrub_late_seconds" ["resource"]
            "For how long the next one is overdue, if that is more than a quarter of the interval; otherwise 0.";
    }
    "Damaged blocks" {
        DAMAGE_FOUND: Counter "mainstay_damage_found_total" ["resource"]
            "Reads that have found a block on this node's disk that does not fit its checksum.";
        DAMAGE_MENDED: Counter "mainstay_damage_mended_blocks_total" ["resource"]
            "Blocks that were read from another replica and written anew for it, as primary.";
        DAMAGE_UNREADABLE: Counter "mainstay_damage_unreadable_total" ["resource"]
            "Reads that ended with an error, because no replica in sync has the block whole.";
        DAMAGE_COPIED: Counter "mainstay_damage_copied_blocks_total" ["resource"]
            "Blocks that were copied to another replica as damaged, as primary, because no replica has them whole.";
    }
    "Clients on this node" {
        CLIENT_READY: Gauge "mainstay_client_ready" ["resource"]
            "Whether all devices are there of a resource that is attached to this node, which holds no replica of it.";
        CLIENT_CONNECTED: Gauge "mainstay_client_connected" ["resource"]
            "Whether a primary answers their requests. Otherwise these wait.";
        CLIENT_REQUESTS: Gauge "mainstay_client_requests_in_flight" ["resource"]
            "Requests of these devices that are not answered.";
        CLIENT_WAITS: Gauge "mainstay_client_waiting_seconds" ["resource"]
            "For how long the oldest of them has waited. The devices fail when it has waited for longer than was given when attaching.";
        CLIENT_STREAMS: Counter "mainstay_client_connections_total" ["resource"]
            "How often they were connected to a primary: once, and once more after each failover or broken connection.";
    }
    "Promotions and services" {
        PROMOTION_STEPS: Summary "mainstay_promotion_step_duration_seconds" ["resource", "step"]
            "Parts of promotions on this node, one after the other: `promise` of the epoch, `begin` of it in the own log, `serve` when the other members have answered and that is committed, `device` when all devices are there.";
        SERVICE_PHASE: Gauge "mainstay_service_phase" ["service", "phase"]
            "1 for what this node last reported about the service: `stopped`, `starting`, `running`, `stopping`, `backing-off`, `killing` or `failed`.";
        SERVICE_WANTED: Gauge "mainstay_service_wanted" ["service"]
            "Whether the service should run on this node: it is where the primary is, and no operator has stopped it.";
        SERVICE_RUNNING: Gauge "mainstay_service_running" ["service"]
            "Whether it runs on this node.";
        SERVICE_FAILURES: Gauge "mainstay_service_failures" ["service"]
            "Failed attempts to run it on this node that count now.";
        SERVICE_HALTED: Gauge "mainstay_service_halted" ["service"]
            "Whether it has used up its attempts on all nodes and waits for an operator.";
        SERVICE_START: Summary "mainstay_service_start_duration_seconds" ["service"]
            "Starts of the service on this node that ended with it running, since the agent was started.";
    }
    "Processes" {
        PROCESS_CPU: Counter "mainstay_process_cpu_seconds_total" ["process"]
            "Processor time of the `agent` and of the `engine`.";
        PROCESS_MEMORY: Gauge "mainstay_process_resident_memory_bytes" ["process"]
            "Resident memory.";
        PROCESS_FDS: Gauge "mainstay_process_open_fds" ["process"]
            "Open file descriptors.";
        PROCESS_THREADS: Gauge "mainstay_process_threads" ["process"]
            "Threads.";
    }
}
