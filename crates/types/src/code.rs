//! The codes of problems: one table with the text, the HTTP status, the exit code and the page of
//! the manual of each.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Exit codes of the command line; its help text documents the same list.
pub mod exit {
    /// The request was refused or failed.
    pub const FAILED: u8 = 1;
    /// The command line is wrong. Clap uses the same number.
    pub const USAGE: u8 = 2;
    /// No agent answered, or not in time.
    pub const UNREACHABLE: u8 = 3;
    /// `status` found something that needs attention, or `service check` a node where the service
    /// could not run.
    pub const ATTENTION: u8 = 4;
    /// `resource scrub` found replicas that differ.
    pub const UNEQUAL: u8 = 5;
    /// The agent must not run on the files of its state directory; a restart does not help.
    pub const STATE_LOST: u8 = 6;
    /// `lab exec` could not start the command; otherwise it passes the command's own code.
    pub const EXEC: u8 = 125;
}

/// Everything that follows from a code, besides its text.
struct Traits {
    status: u16,
    exit: u8,
    page: Option<&'static str>,
}

/// Traits of most codes, and of those that this version does not know.
const USUAL: Traits = Traits { status: 422, exit: exit::FAILED, page: None };

macro_rules! codes {
    ($($name:ident $text:literal $(, $field:ident: $value:expr)*;)*) => {
        /// Code of a [`Problem`](crate::Problem): stable, lower case with dashes. The variants are
        /// named like their texts.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum Code {
            $($name,)*
            /// Code of a newer node or engine. It is passed on and shown as it came. Empty where an
            /// earlier release gave none.
            Unknown(String),
        }

        impl Code {
            /// Every code that this version knows, in the order of their texts.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown(text) => text,
                }
            }

            #[allow(clippy::needless_update, reason = "a row may name every trait")]
            fn traits(&self) -> Traits {
                match self {
                    $(Self::$name => Traits { $($field: $value,)* ..USUAL },)*
                    Self::Unknown(_) => USUAL,
                }
            }
        }

        impl From<String> for Code {
            fn from(text: String) -> Self {
                match text.as_str() {
                    $($text => Self::$name,)*
                    _ => Self::Unknown(text),
                }
            }
        }
    };
}

codes! {
    Address "address";
    AddressElsewhere "address-elsewhere", page: Some("docs/cluster.md#addresses");
    AddressInUse "address-in-use", page: Some("docs/services.md#the-floating-address");
    AddressOfANode "address-of-a-node", page: Some("docs/services.md#the-floating-address");
    AddressOfAService "address-of-a-service", page: Some("docs/services.md#the-floating-address");
    AddressTaken "address-taken", page: Some("docs/cluster.md#addresses");
    AddressUnreachable "address-unreachable", page: Some("docs/cluster.md#addresses");
    AgentAnswerUnreadable "agent-answer-unreadable";
    AgentCgroup "agent-cgroup", page: Some("docs/install.md#before-you-start-mainstay-doctor");
    AgentEnded "agent-ended";
    AgentFatal "agent-fatal";
    AgentFile "agent-file";
    AgentForbidden "agent-forbidden", exit: exit::UNREACHABLE, page: Some("docs/status.md#errors");
    AgentInternal "agent-internal";
    AgentRuns "agent-runs", page: Some("docs/nodes.md#when-the-majority-is-lost");
    AgentStore "agent-store", page: Some("docs/cluster.md#the-disk-of-the-control-plane");
    AgentTimeout "agent-timeout", exit: exit::UNREACHABLE, page: Some("docs/status.md#exit-codes");
    AgentTransport "agent-transport";
    AgentUnreachable "agent-unreachable", exit: exit::UNREACHABLE, page: Some("docs/status.md#errors");
    AlreadyAMember "already-a-member", status: 409, page: Some("docs/cluster.md#how-a-node-joins");
    AlreadyVotes "already-votes";
    Ambiguous "ambiguous", page: Some("docs/snapshots.md#before-copy-the-last-whole-state-of-a-replica-that-is-being-filled");
    ApiAddress "api-address", page: Some("docs/access.md#from-other-machines");
    ApiCertificate "api-certificate", page: Some("docs/access.md#the-certificate-of-the-server");
    ApiUnavailable "api-unavailable", status: 503, exit: exit::UNREACHABLE, page: Some("docs/access.md#from-other-machines");
    Attached "attached", page: Some("docs/attach.md#before-you-attach");
    AttachedElsewhere "attached-elsewhere", page: Some("docs/attach.md");
    AuditUnwritten "audit-unwritten", status: 503, exit: exit::UNREACHABLE, page: Some("docs/access.md#the-audit-log");
    AuthorityExists "authority-exists", page: Some("docs/identities.md");
    BadAddress "bad-address", page: Some("docs/cluster.md#addresses");
    BadBackup "bad-backup", page: Some("docs/nodes.md#backup-of-the-record");
    BadConfiguration "bad-configuration", exit: exit::USAGE, page: Some("docs/install.md#configuration");
    BadCursor "bad-cursor", page: Some("docs/http-api.md#long-lists");
    BadDirectory "bad-directory", exit: exit::USAGE;
    BadMinCopies "bad-min-copies", page: Some("docs/copies-and-quorum.md#when-no-write-may-rest-on-one-machine");
    BadMode "bad-mode", page: Some("docs/modes.md#mode-a");
    BadMountPath "bad-mount-path", page: Some("docs/services.md#the-mount");
    BadName "bad-name";
    BadPlacement "bad-placement", page: Some("docs/placement.md#constraints");
    BadPreferred "bad-preferred", page: Some("docs/placement.md#constraints");
    BadRequest "bad-request", page: Some("docs/http-api.md");
    BadResource "bad-resource";
    BadRouter "bad-router", exit: exit::USAGE, page: Some("docs/router.md#options");
    BadServer "bad-server", exit: exit::USAGE, page: Some("docs/access.md#the-command-line-on-another-machine");
    BadService "bad-service", page: Some("docs/services.md#templates");
    BadServiceFile "bad-service-file", page: Some("docs/service-file.md");
    BadSettings "bad-settings", page: Some("docs/settings.md#all-settings");
    BadSize "bad-size", page: Some("docs/volumes.md#limits");
    BadToken "bad-token", exit: exit::USAGE, page: Some("docs/identities.md#tokens");
    BadTokenFile "bad-token-file", exit: exit::USAGE, page: Some("docs/access.md#the-command-line-on-another-machine");
    BadTokenLife "bad-token-life", exit: exit::USAGE, page: Some("docs/identities.md#tokens");
    BadWait "bad-wait", page: Some("docs/attach.md");
    BeingCloned "being-cloned", page: Some("docs/snapshots.md#a-resource-made-from-a-snapshot");
    BeingDeleted "being-deleted", page: Some("docs/services.md#moves-and-deletion");
    BeingMade "being-made", page: Some("docs/snapshots.md#a-resource-made-from-a-snapshot");
    BeingRemoved "being-removed", page: Some("docs/replicas.md#replicas-come-and-go");
    BenchCase "bench-case";
    BenchFailed "bench-failed";
    BenchOccupied "bench-occupied";
    BenchOut "bench-out";
    BenchResource "bench-resource";
    BenchSize "bench-size", exit: exit::USAGE;
    BenchSystem "bench-system";
    BenchTarget "bench-target";
    BuildTooOld "build-too-old", page: Some("docs/upgrade.md#feature-levels");
    Busy "busy";
    CertificateLost "certificate-lost", exit: exit::STATE_LOST, page: Some("docs/identities.md#files");
    CertificateRefused "certificate-refused", page: Some("docs/identities.md#certificates");
    Changed "changed";
    Clone "clone", page: Some("docs/snapshots.md#clone-files-to-try-something-on");
    ClusterExists "cluster-exists";
    Conflict "conflict", status: 409;
    ControlPlaneBusy "control-plane-busy", status: 503;
    Corrupt "corrupt", page: Some("docs/replica-directories.md#what-to-do-first");
    CreationUnfinished "creation-unfinished";
    Deleted "deleted";
    DeviceInUse "device-in-use", page: Some("docs/services.md#moves-and-deletion");
    DeviceUnavailable "device-unavailable", page: Some("docs/devices.md#which-one-to-choose");
    DirectoryGone "directory-gone", page: Some("docs/replica-directories.md#what-to-do-first");
    Disk "disk", page: Some("docs/replica-directories.md#what-to-do-first");
    EarlierReplica "earlier-replica", page: Some("docs/replica-directories.md#which-directories-mainstay-uses");
    Editor "editor", page: Some("docs/services.md#daily-verbs");
    EngineEnded "engine-ended";
    EngineInUse "engine-in-use";
    EngineTimeout "engine-timeout";
    EngineUnreachable "engine-unreachable", status: 503;
    Exists "exists", page: Some("docs/snapshots.md");
    FeatureLevel "feature-level", page: Some("docs/upgrade.md#feature-levels");
    Forbidden "forbidden", status: 403, page: Some("docs/access.md");
    Guard "guard";
    HasNotJoined "has-not-joined";
    HasPrimary "has-primary", page: Some("docs/modes.md#going-on-without-the-replicas-that-have-everything");
    HasReplica "has-replica", page: Some("docs/replicas.md#replicas-come-and-go");
    HistoryFiles "history-files", page: Some("docs/reports.md");
    Http "http";
    IdempotencyKeyInUse "idempotency-key-in-use", status: 409, page: Some("docs/http-api.md#changes-that-are-sent-twice");
    IdempotencyKeyReused "idempotency-key-reused", page: Some("docs/http-api.md#changes-that-are-sent-twice");
    IdentityElsewhere "identity-elsewhere", page: Some("docs/cluster.md#copies-of-a-machine");
    IdentityInUse "identity-in-use", page: Some("docs/cluster.md#copies-of-a-machine");
    InMaintenance "in-maintenance", page: Some("docs/maintenance.md#maintenance");
    InUse "in-use";
    InspectInUse "inspect-in-use", page: Some("docs/replica-directories.md#looking-into-a-replica");
    InspectOpen "inspect-open", page: Some("docs/replica-directories.md#looking-into-a-replica");
    InspectUnreadable "inspect-unreadable", page: Some("docs/replica-directories.md#looking-into-a-replica");
    Interrupted "interrupted";
    Io "io";
    IsPrimary "is-primary", page: Some("docs/nodes.md#removing-a-node");
    IsWitness "is-witness", page: Some("docs/replicas.md#a-witness");
    JoinBusy "join-busy", page: Some("docs/cluster.md#how-a-node-joins");
    JoinFailed "join-failed", page: Some("docs/cluster.md#how-a-node-joins");
    JoinUnfinished "join-unfinished", page: Some("docs/cluster.md#how-a-node-joins");
    JoinWithdrawn "join-withdrawn", page: Some("docs/cluster.md#how-a-node-joins");
    JoinsNothing "joins-nothing", page: Some("docs/cluster.md#how-a-node-joins");
    JournalDirectory "journal-directory", page: Some("docs/journal-devices.md#set-it-up");
    JournalMissing "journal-missing", page: Some("docs/journal-devices.md#what-mainstay-refuses");
    LabBusy "lab-busy", page: Some("docs/lab.md");
    LabCgroup "lab-cgroup", page: Some("docs/lab.md");
    LabCluster "lab-cluster", page: Some("docs/lab.md");
    LabCut "lab-cut", exit: exit::USAGE, page: Some("docs/lab.md");
    LabDirForeign "lab-dir-foreign", page: Some("docs/lab.md");
    LabDisk "lab-disk", page: Some("docs/lab.md");
    LabDiskBusy "lab-disk-busy", page: Some("docs/lab.md");
    LabDiskSmall "lab-disk-small", exit: exit::USAGE, page: Some("docs/lab.md");
    LabDown "lab-down", page: Some("docs/lab.md");
    LabExec "lab-exec", page: Some("docs/lab.md");
    LabFuse "lab-fuse", page: Some("docs/lab.md");
    LabIsUp "lab-is-up", page: Some("docs/lab.md");
    LabNeedsRoot "lab-needs-root", page: Some("docs/lab.md");
    LabNetwork "lab-network", page: Some("docs/lab.md");
    LabNoLog "lab-no-log", page: Some("docs/lab.md");
    LabNode "lab-node", page: Some("docs/lab.md");
    LabNodeDown "lab-node-down", page: Some("docs/lab.md");
    LabNodePaused "lab-node-paused", page: Some("docs/lab.md");
    LabNodeRuns "lab-node-runs", page: Some("docs/lab.md");
    LabNodeStart "lab-node-start", page: Some("docs/lab.md");
    LabNodeUnknown "lab-node-unknown", exit: exit::USAGE, page: Some("docs/lab.md");
    LabProcessStuck "lab-process-stuck", page: Some("docs/lab.md");
    LabProgramMissing "lab-program-missing", page: Some("docs/lab.md");
    LabRemains "lab-remains", page: Some("docs/lab.md");
    LabState "lab-state", page: Some("docs/lab.md");
    LabStateUnreadable "lab-state-unreadable", page: Some("docs/lab.md");
    LabSysctl "lab-sysctl", page: Some("docs/lab.md");
    LabToolFailed "lab-tool-failed", page: Some("docs/lab.md");
    LabToolMissing "lab-tool-missing", page: Some("docs/lab.md");
    LabTwice "lab-twice", exit: exit::USAGE, page: Some("docs/lab.md");
    LabUnknown "lab-unknown", page: Some("docs/lab.md");
    LabWitness "lab-witness", exit: exit::USAGE, page: Some("docs/lab.md");
    LackingEverywhere "lacking-everywhere", page: Some("docs/services.md#applying-a-file");
    LackingWhereItRuns "lacking-where-it-runs", page: Some("docs/services.md#applying-a-file");
    LastCopy "last-copy", page: Some("docs/modes.md#going-on-without-the-replicas-that-have-everything");
    LastNode "last-node", page: Some("docs/nodes.md#removing-a-node");
    LastReplica "last-replica", page: Some("docs/replicas.md#replicas-come-and-go");
    Lease "lease";
    LedAsOlderCopy "led-as-older-copy", page: Some("docs/replica-directories.md#an-older-copy-in-the-place-of-its-replica");
    Listen "listen";
    LogUnwritable "log-unwritable";
    LoopbackAddress "loopback-address", page: Some("docs/cluster.md#addresses");
    LossNotAccepted "loss-not-accepted", page: Some("docs/modes.md#going-on-without-the-replicas-that-have-everything");
    MembershipSettling "membership-settling";
    MethodNotAllowed "method-not-allowed", status: 405, page: Some("docs/http-api.md");
    MetricsAddress "metrics-address", page: Some("docs/metrics.md");
    MetricsBusy "metrics-busy", status: 503, page: Some("docs/metrics.md");
    MetricsTimeout "metrics-timeout", status: 503, page: Some("docs/metrics.md");
    MovingAlready "moving-already", page: Some("docs/replicas.md#replicas-come-and-go");
    NameTaken "name-taken", status: 409;
    NbdCertificates "nbd-certificates", page: Some("docs/devices.md#nbd-with-tls");
    NoCluster "no-cluster", page: Some("docs/cluster.md");
    NoDevice "no-device", page: Some("docs/attach.md#how-it-behaves");
    NoHello "no-hello";
    NoLabel "no-label", page: Some("docs/replica-directories.md#what-to-do-first");
    NoMajority "no-majority", exit: exit::UNREACHABLE, page: Some("docs/nodes.md#when-the-majority-is-lost");
    NoPrimary "no-primary";
    NoReplicaHere "no-replica-here", page: Some("docs/replicas.md#replicas-come-and-go");
    NoScrub "no-scrub", page: Some("docs/scrub.md#what-a-scrub-does");
    NoScrubRuns "no-scrub-runs", page: Some("docs/scrub.md#what-a-scrub-does");
    NoSpace "no-space", page: Some("docs/volumes.md#make-room-in-a-full-pool");
    NodeAlive "node-alive", page: Some("docs/nodes.md#replacing-a-dead-node");
    NodeDead "node-dead";
    NodeRemoved "node-removed", exit: exit::STATE_LOST, page: Some("docs/nodes.md#removing-a-node");
    NodeUnreachable "node-unreachable";
    NodesNotNamed "nodes-not-named", page: Some("docs/nodes.md#when-the-majority-is-lost");
    NotAMember "not-a-member", status: 409, page: Some("docs/cluster.md");
    NotAllowed "not-allowed";
    NotCalled "not-called", page: Some("docs/modes.md#mode-a");
    NotCancelled "not-cancelled", status: 409, page: Some("docs/http-api.md#long-work");
    NotConfirmed "not-confirmed", exit: exit::USAGE;
    NotDeleting "not-deleting";
    NotEligible "not-eligible", page: Some("docs/placement.md#what-explain-says");
    NotForOneCopy "not-for-one-copy", page: Some("docs/copies-and-quorum.md#when-no-write-may-rest-on-one-machine");
    NotForThisMode "not-for-this-mode", page: Some("docs/modes.md#mode-a");
    NotFound "not-found", status: 404, page: Some("docs/http-api.md");
    NotHeld "not-held", page: Some("docs/snapshots.md");
    NotHere "not-here", page: Some("docs/snapshots.md#clone-files-to-try-something-on");
    NotInPlace "not-in-place", page: Some("docs/upgrade.md#in-place");
    NotNeeded "not-needed", page: Some("docs/modes.md#going-on-without-the-replicas-that-have-everything");
    NotPrimary "not-primary";
    NotReady "not-ready";
    NotRolledBack "not-rolled-back", page: Some("docs/snapshots.md#rollback");
    NotTaken "not-taken", page: Some("docs/snapshots.md#what-a-snapshot-is");
    NotTheAgent "not-the-agent";
    NothingToChange "nothing-to-change", exit: exit::USAGE;
    Occupied "occupied", page: Some("docs/replica-directories.md#which-directories-mainstay-uses");
    OlderCopy "older-copy", page: Some("docs/replica-directories.md#an-older-copy-in-the-place-of-its-replica");
    OptionWithoutEffect "option-without-effect", exit: exit::USAGE, page: Some("docs/status.md#refusals");
    OtherCluster "other-cluster";
    OtherNode "other-node";
    OtherResource "other-resource", page: Some("docs/replica-directories.md#what-to-do-first");
    Output "output";
    PagesUnseen "pages-unseen", page: Some("docs/pages-that-cannot-tear.md");
    PathInUse "path-in-use", page: Some("docs/services.md#the-mount");
    PeerAnswer "peer-answer";
    PeerUnproven "peer-unproven", page: Some("docs/identities.md");
    PoolFiles "pool-files", page: Some("docs/replica-directories.md#what-to-do-first");
    PoolTooSmall "pool-too-small", page: Some("docs/volumes.md#space");
    PreconditionFailed "precondition-failed", status: 412, page: Some("docs/http-api.md#changes-of-what-you-have-read");
    Recover "recover", page: Some("docs/replica-directories.md#what-to-do-first");
    ReplicaBroken "replica-broken";
    ResourceChanged "resource-changed";
    ResourceFailed "resource-failed";
    ResourceInUse "resource-in-use", page: Some("docs/attach.md#before-you-attach");
    ResultUnknown "result-unknown", status: 503, exit: exit::UNREACHABLE, page: Some("docs/status.md#exit-codes");
    RollingBack "rolling-back", page: Some("docs/snapshots.md#rollback");
    RotationRuns "rotation-runs", page: Some("docs/identities.md#replace-the-authority");
    RotationState "rotation-state", page: Some("docs/identities.md#replace-the-authority");
    RouterAddress "router-address", page: Some("docs/router.md#what-it-listens-on");
    RouterEnded "router-ended", page: Some("docs/router.md");
    RunDir "run-dir";
    ScrubInterrupted "scrub-interrupted", page: Some("docs/scrub.md#what-a-scrub-does");
    ScrubRunning "scrub-running", page: Some("docs/scrub.md#what-a-scrub-does");
    ServerUnproven "server-unproven", exit: exit::UNREACHABLE, page: Some("docs/access.md#the-command-line-on-another-machine");
    ServiceExists "service-exists", page: Some("docs/services.md#templates");
    ServiceFailed "service-failed", page: Some("docs/services.md#when-a-service-fails");
    ServiceFileTooLarge "service-file-too-large", page: Some("docs/service-file.md");
    ServiceFileUnreadable "service-file-unreadable", page: Some("docs/service-file.md");
    ServiceInUse "service-in-use", page: Some("docs/placement.md#constraints");
    ServiceNotRunning "service-not-running", exit: exit::UNREACHABLE, page: Some("docs/services.md#when-a-service-fails");
    ServiceStopped "service-stopped", page: Some("docs/services.md#daily-verbs");
    Shrink "shrink", page: Some("docs/volumes.md#volumes-grow");
    SilencerEnded "silencer-ended";
    Size "size";
    StateLost "state-lost", exit: exit::STATE_LOST, page: Some("docs/lost-state.md");
    TokenRefused "token-refused", page: Some("docs/identities.md#tokens");
    TooFewNodes "too-few-nodes";
    TooFewReplicas "too-few-replicas", page: Some("docs/replicas.md#replicas-come-and-go");
    TooMany "too-many", page: Some("docs/snapshots.md#limits");
    TooManyApiTokens "too-many-api-tokens", page: Some("docs/access.md#tokens");
    TooManyAttempts "too-many-attempts", status: 429, exit: exit::UNREACHABLE, page: Some("docs/access.md#from-other-machines");
    TooManyBaselines "too-many-baselines", page: Some("docs/reports.md#baselines");
    TooManyNodes "too-many-nodes", page: Some("docs/limits.md#nodes");
    TooManyOperations "too-many-operations", status: 503, page: Some("docs/http-api.md#long-work");
    TooManyReplicas "too-many-replicas", page: Some("docs/replicas.md#limits");
    TooManyResources "too-many-resources", page: Some("docs/limits.md");
    TooManyServices "too-many-services", page: Some("docs/limits.md");
    TooManyStreams "too-many-streams", status: 503, page: Some("docs/http-api.md#the-stream");
    TooManyTokens "too-many-tokens", page: Some("docs/identities.md#tokens");
    Unauthenticated "unauthenticated", status: 401, page: Some("docs/access.md#tokens");
    UnknownApiToken "unknown-api-token", status: 404, page: Some("docs/access.md#tokens");
    UnknownBaseline "unknown-baseline", status: 404, page: Some("docs/reports.md#baselines");
    UnknownNode "unknown-node", status: 404;
    UnknownOperation "unknown-operation", status: 404, page: Some("docs/http-api.md#long-work");
    UnknownProcess "unknown-process", page: Some("docs/services.md#daily-verbs");
    UnknownResource "unknown-resource", status: 404;
    UnknownService "unknown-service", status: 404;
    UnknownSnapshot "unknown-snapshot", page: Some("docs/snapshots.md");
    UnknownToken "unknown-token", page: Some("docs/identities.md#tokens");
    UnknownVolume "unknown-volume", page: Some("docs/volumes.md");
    Unreachable "unreachable";
    UsersUnknown "users-unknown";
    VolatileJournal "volatile-journal", page: Some("docs/journal-devices.md#what-mainstay-refuses");
    VolumeTooSmall "volume-too-small", page: Some("docs/services.md#the-mount");
    VoteNeeded "vote-needed", page: Some("docs/nodes.md#removing-a-node");
    WaitOver "wait-over", exit: exit::UNREACHABLE, page: Some("docs/status.md#commands-that-wait");
    WrongDisk "wrong-disk", page: Some("docs/replica-directories.md#what-to-do-first");
    WrongJournal "wrong-journal", page: Some("docs/journal-devices.md#what-mainstay-refuses");
}

impl Code {
    /// Status of an HTTP answer that refuses a request with this code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.traits().status
    }

    /// Exit code of a command that fails with this code, from [`exit`].
    #[must_use]
    pub fn exit(&self) -> u8 {
        self.traits().exit
    }

    /// The code in words, for example "Unknown node".
    #[must_use]
    pub fn title(&self) -> String {
        let words = self.as_str().replace('-', " ");
        let mut letters = words.chars();
        match letters.next() {
            Some(first) => first.to_uppercase().chain(letters).collect(),
            None => "Unknown".to_owned(),
        }
    }

    /// Page of the manual that says more about the subject, or a section of that page: path from
    /// the root of the source tree on, and anchor. [`Code::entry`] leads to the code's own entry.
    #[must_use]
    pub fn page(&self) -> Option<&'static str> {
        self.traits().page
    }
}

impl Default for Code {
    fn default() -> Self {
        Self::Unknown(String::new())
    }
}

impl From<Code> for String {
    fn from(code: Code) -> Self {
        match code {
            Code::Unknown(text) => text,
            known => known.as_str().to_owned(),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, exit};
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn texts_are_unique_well_formed_and_in_order() {
        let texts: Vec<&str> = Code::ALL.iter().map(Code::as_str).collect();
        assert!(texts.is_sorted_by(|a, b| a < b), "{texts:?}");
        for code in Code::ALL {
            let text = code.as_str();
            assert!(text.split('-').all(|word| !word.is_empty()), "{text}");
            assert!(text.bytes().all(|b| b == b'-' || b.is_ascii_lowercase()), "{text}");
            let named = format!("{code:?}").to_lowercase();
            assert_eq!(text.replace('-', ""), named, "a variant is named like its text");
        }
    }

    #[test]
    fn every_code_is_the_same_after_json() {
        let unknown = Code::Unknown("of-a-newer-node".into());
        for code in Code::ALL.iter().chain([&unknown, &Code::default()]) {
            let text = serde_json::to_string(code).unwrap();
            assert_eq!(text, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), *code);
        }
        assert_eq!((unknown.status(), unknown.exit(), unknown.page()), (422, exit::FAILED, None));
    }

    /// Scripts of operators rely on these.
    #[test]
    fn statuses_and_exit_codes_stay_as_they_are() {
        let of = |wanted: &dyn Fn(&Code) -> bool| -> BTreeSet<&str> {
            Code::ALL.iter().filter(|code| wanted(code)).map(Code::as_str).collect()
        };
        for (status, codes) in [
            (401, &["unauthenticated"][..]),
            (403, &["forbidden"]),
            (
                404,
                &[
                    "not-found",
                    "unknown-api-token",
                    "unknown-baseline",
                    "unknown-node",
                    "unknown-operation",
                    "unknown-resource",
                    "unknown-service",
                ],
            ),
            (405, &["method-not-allowed"]),
            (
                409,
                &[
                    "already-a-member",
                    "conflict",
                    "idempotency-key-in-use",
                    "name-taken",
                    "not-a-member",
                    "not-cancelled",
                ],
            ),
            (412, &["precondition-failed"]),
            (429, &["too-many-attempts"]),
            (
                503,
                &[
                    "api-unavailable",
                    "audit-unwritten",
                    "control-plane-busy",
                    "engine-unreachable",
                    "metrics-busy",
                    "metrics-timeout",
                    "result-unknown",
                    "too-many-operations",
                    "too-many-streams",
                ],
            ),
        ] {
            assert_eq!(of(&|code| code.status() == status), codes.iter().copied().collect(), "{status}");
        }
        assert_eq!(
            of(&|code| ![401, 403, 404, 405, 409, 412, 422, 429, 503].contains(&code.status())),
            BTreeSet::new()
        );
        for (exit, codes) in [
            (
                exit::USAGE,
                &[
                    "bad-configuration",
                    "bad-directory",
                    "bad-router",
                    "bad-server",
                    "bad-token",
                    "bad-token-file",
                    "bad-token-life",
                    "bench-size",
                    "lab-cut",
                    "lab-disk-small",
                    "lab-node-unknown",
                    "lab-twice",
                    "lab-witness",
                    "not-confirmed",
                    "nothing-to-change",
                    "option-without-effect",
                ][..],
            ),
            (
                exit::UNREACHABLE,
                &[
                    "agent-forbidden",
                    "agent-timeout",
                    "agent-unreachable",
                    "api-unavailable",
                    "audit-unwritten",
                    "no-majority",
                    "result-unknown",
                    "server-unproven",
                    "service-not-running",
                    "too-many-attempts",
                    "wait-over",
                ],
            ),
            (exit::STATE_LOST, &["certificate-lost", "node-removed", "state-lost"]),
        ] {
            assert_eq!(of(&|code| code.exit() == exit), codes.iter().copied().collect(), "{exit}");
        }
        let known = [exit::FAILED, exit::USAGE, exit::UNREACHABLE, exit::STATE_LOST];
        assert_eq!(of(&|code| !known.contains(&code.exit())), BTreeSet::new());
    }

    #[test]
    fn every_page_of_the_manual_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for page in Code::ALL.iter().filter_map(Code::page) {
            let file = page.split('#').next().unwrap();
            assert!(root.join(file).is_file(), "{page}");
        }
    }
}
