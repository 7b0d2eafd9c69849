//! Parts of the cluster that stand still without an error, as measured, and since when (R28).
//!
//! A disk that hangs, an engine that is stopped and a link that loses large packets report no
//! error. Every write waits, and heartbeats go on. So the agents measure the age of the oldest
//! request without an answer, and tell it from [`STALL_MS`] on.

use crate::advice::{Advice, or_move};
use crate::labels::quoted;
use crate::state::State;
use mainstay_types::{Copies, MacAddress, NodeId, ResourceId, Severity};
use serde::{Deserialize, Serialize};

/// A request without an answer for this time stands still. A slow disk takes less.
pub const STALL_MS: u64 = 3000;

/// A voter that lacks entries of the control plane's log for this time is told.
const VOTER_MS: u64 = 12_000;

/// Something that gives no answer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stalled {
    /// The engine of a node.
    Engine(NodeId),
    /// The disk with the control plane's log of a node.
    LogDisk(NodeId),
    /// A voter gets no entries of the control plane's log, and its heartbeats arrive.
    Voter(NodeId),
    /// The first node has no connection to the second one, which counts as alive.
    Unheard(NodeId, NodeId),
    /// Small answers of the second node reach the first one, and large ones do not.
    Cropped(NodeId, NodeId),
    /// The journal of a primary.
    Journal(ResourceId, NodeId),
    /// A replica that writes wait for.
    Replica(ResourceId, NodeId),
    /// Writes that wait for copies, or fail for want of them.
    Copies(ResourceId, Copies),
    /// A service that runs on a node, and its hindrance there.
    Service(String, NodeId, Hindrance),
}

/// Something that keeps a service from being of use, although it runs and none of its steps fails.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hindrance {
    /// The file system that is mounted at this path is frozen.
    Frozen { path: String },
    /// The file system that is mounted at this path has no room left.
    Full { path: String, volume: u16 },
    /// The file system that is mounted at this path does not answer.
    Silent { path: String },
    /// The interface that has the service's address has no carrier.
    NoCarrier { interface: String, address: String },
    /// The host with this hardware address answers for the service's address too.
    Contested { address: String, by: MacAddress },
    /// A page of this process can tear, or this is not known, so the process runs without the
    /// arguments that need whole pages.
    PagesTear {
        process: String,
        arguments: String,
        why: String,
        remedy: String,
        /// The process ran with the arguments on this node before.
        turned: bool,
        /// The process still runs with the arguments, until its restart.
        relies: bool,
    },
}

/// The same with its age.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stall {
    pub what: Stalled,
    /// Age of the oldest request without an answer, in milliseconds. 0 if that is not known.
    pub ms: u64,
}

impl Stalled {
    /// The resource whose writes wait, if the stall is about one.
    #[must_use]
    pub fn resource(&self) -> Option<ResourceId> {
        match self {
            Self::Journal(resource, _) | Self::Replica(resource, _) | Self::Copies(resource, _) => {
                Some(*resource)
            }
            Self::Engine(_)
            | Self::LogDisk(_)
            | Self::Voter(_)
            | Self::Unheard(..)
            | Self::Cropped(..)
            | Self::Service(..) => None,
        }
    }
}

impl Stall {
    /// Whether it has lasted long enough to be told.
    #[must_use]
    pub fn counts(&self) -> bool {
        match self.what {
            Stalled::Copies(..) => true,
            // By then a cause such as a hanging disk or a link is known.
            Stalled::Voter(_) => self.ms >= VOTER_MS,
            _ => self.ms >= STALL_MS,
        }
    }

    /// The object as events and advice name it.
    #[must_use]
    pub fn subject(&self, state: &State) -> String {
        match &self.what {
            Stalled::Service(name, ..) => format!("service {name}"),
            Stalled::Engine(node)
            | Stalled::LogDisk(node)
            | Stalled::Voter(node)
            | Stalled::Unheard(node, _)
            | Stalled::Cropped(node, _) => {
                format!("node {}", state.node_name(*node))
            }
            Stalled::Journal(resource, _) | Stalled::Replica(resource, _) | Stalled::Copies(resource, _) => {
                let name = state.resources.get(resource).map(|resource| resource.name.clone());
                format!("resource {}", name.unwrap_or_else(|| resource.to_string()))
            }
        }
    }

    /// Returns the stall in words, with its age.
    #[must_use]
    pub fn words(&self, state: &State) -> String {
        let seconds = self.ms / 1000;
        match &self.what {
            Stalled::Service(_, node, hindrance) => hindrance.words(state, *node, seconds),
            Stalled::Engine(_) => {
                format!("its engine has not answered for {seconds} s: reads and writes there stand still")
            }
            Stalled::LogDisk(_) => format!(
                "its disk has not completed a write of the control plane's log for {seconds} s and reports no error"
            ),
            Stalled::Voter(_) => format!(
                "it has received no entries of the control plane's log for {seconds} s, although its heartbeats arrive: it does not count towards a majority"
            ),
            Stalled::Unheard(_, other) => {
                format!("it has had no connection to {} for {seconds} s", state.node_name(*other))
            }
            Stalled::Cropped(_, other) => format!(
                "large packets from {} have not reached it for {seconds} s, although small ones do: replicas are neither fed nor shown on this link",
                state.node_name(*other)
            ),
            Stalled::Journal(_, node) => format!(
                "the journal of the primary on {} has not completed a write for {seconds} s: all writes wait",
                state.node_name(*node)
            ),
            Stalled::Replica(_, node) => format!(
                "the replica on {} has not acknowledged a write for {seconds} s: all writes wait for it",
                state.node_name(*node)
            ),
            Stalled::Copies(_, Copies::Refusing) => {
                "writes fail: fewer copies exist than --min-copies wants".into()
            }
            Stalled::Copies(..) => "writes wait: fewer copies exist than --min-copies wants".into(),
        }
    }

    fn remedy(&self, state: &State) -> String {
        match &self.what {
            Stalled::Service(name, node, hindrance) => hindrance.remedy(state, name, *node),
            Stalled::Engine(node) => format!(
                "look at the process of the engine of {0} and at its log; if it hangs, restart it",
                state.node_name(*node)
            ),
            Stalled::LogDisk(node) | Stalled::Journal(_, node) => {
                let what_else = if state.resources.values().any(|one| one.record.primary == Some(*node)) {
                    "cut the power of the node, so that another one takes over"
                } else {
                    "restart the node; nothing that runs elsewhere waits for it any more"
                };
                format!(
                    "look at the disk of {} and at its kernel's log; if it does not come back, {what_else}",
                    state.node_name(*node)
                )
            }
            Stalled::Voter(node) => format!(
                "check that large packets reach {}: run {} on another node",
                state.node_name(*node),
                large_ping(state, *node)
            ),
            Stalled::Unheard(node, other) => format!(
                "check the network between {} and {}",
                state.node_name(*node),
                state.node_name(*other)
            ),
            Stalled::Cropped(node, other) => format!(
                "compare the MTU of both nodes and of the network between them, and their firewalls: {} on {} shows whether large packets arrive",
                large_ping(state, *node),
                state.node_name(*other)
            ),
            Stalled::Replica(_, node) => {
                format!("look at the disk of {} and at the network to it", state.node_name(*node))
            }
            Stalled::Copies(resource, _) => {
                let name = state.resources.get(resource).map(|resource| resource.name.clone());
                let name = name.unwrap_or_else(|| resource.to_string());
                format!(
                    "bring the other replicas back; or go on with fewer: `mainstay resource set-min-copies {name} 1`"
                )
            }
        }
    }

    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self.what {
            Stalled::Voter(_)
            | Stalled::Unheard(..)
            | Stalled::Cropped(..)
            | Stalled::Service(
                _,
                _,
                Hindrance::Contested { .. } | Hindrance::PagesTear { turned: true, relies: false, .. },
            ) => Severity::Warning,
            // The process protects its pages itself, which is safe and slower.
            Stalled::Service(_, _, Hindrance::PagesTear { relies: false, .. }) => Severity::Info,
            _ => Severity::Critical,
        }
    }

    /// Returns the stall as advice to the operator.
    #[must_use]
    pub fn advice(&self, state: &State) -> Advice {
        let severity = self.severity();
        Advice { severity, subject: self.subject(state), what: self.words(state), remedy: self.remedy(state) }
    }
}

/// The command that shows whether packets of full size reach a node.
pub(crate) fn large_ping(state: &State, node: NodeId) -> String {
    let address = state.nodes.get(&node).map_or("", |node| node.agent_addr.as_str());
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let bytes = if host.contains(':') { 1452 } else { 1472 };
    format!("`ping -M do -c 3 -s {bytes} {host}`")
}

impl Hindrance {
    fn words(&self, state: &State, node: NodeId, seconds: u64) -> String {
        let node = state.node_name(node);
        match self {
            Self::PagesTear { process, arguments, why, relies: true, .. } => {
                format!(
                    "its process {process} on {node} still runs with {arguments}, but a page can tear: {why}"
                )
            }
            Self::PagesTear { process, arguments, why, turned, .. } => {
                let since = if *turned { ", and no longer with it" } else { "" };
                format!(
                    "its process {process} on {node} runs without {arguments}{since}, which is safe and slower: {why}"
                )
            }
            Self::Frozen { path } => format!(
                "its file system at {path} on {node} has been frozen for {seconds} s: all writes to it wait"
            ),
            Self::Full { path, .. } => format!(
                "its file system at {path} on {node} has been full for {seconds} s: writes to it fail for want of space"
            ),
            Self::Silent { path } => format!(
                "its file system at {path} on {node} has not answered for {seconds} s: after a minute the service leaves the node"
            ),
            Self::NoCarrier { interface, address } => format!(
                "the interface {interface} of {node} has had no carrier for {seconds} s: no other host reaches the address {address} through it"
            ),
            Self::Contested { address, by } => {
                let holder = match state.nodes.values().find(|other| other.links.macs.contains(by)) {
                    Some(other) => format!("node {} ({by})", other.name),
                    None => format!("a host with the hardware address {by}"),
                };
                format!(
                    "{holder} has answered for its address {address} for {seconds} s, beside {node}: some clients may reach that host instead"
                )
            }
        }
    }

    fn remedy(&self, state: &State, service: &str, id: NodeId) -> String {
        let node = state.node_name(id);
        match self {
            Self::PagesTear { remedy, relies: true, .. } => format!(
                "on {node}: {remedy} Mainstay starts the process again without these arguments, in maintenance when that ends. To have it now, run `mainstay service restart {service}`"
            ),
            Self::PagesTear { remedy, .. } => format!(
                "on {node}: {remedy} Then run `mainstay service restart {service}`. To leave it so for good, remove `pages` from the service's file, which restarts the process once"
            ),
            Self::Frozen { path } => format!(
                "when the backup that froze it has ended, run `fsfreeze --unfreeze {}` on {node}",
                quoted(path)
            ),
            Self::Full { path, volume } => {
                let known = state.services.get(service);
                let resource = known.map_or(service, |known| known.spec.resource.as_str());
                let grows = known.and_then(|known| known.spec.mount.as_ref()).is_none_or(|mount| mount.grow);
                let then = if grows { "the file system grows with it" } else { "then grow the file system" };
                format!(
                    "remove files below {}, or make the volume larger: `mainstay resource resize {resource} SIZE --volume {volume}`; {then}",
                    quoted(path)
                )
            }
            Self::Silent { .. } => format!(
                "look at the kernel's log of {node}, at its engine and at its disks{}",
                state
                    .services
                    .get(service)
                    .map_or_else(String::new, |known| or_move(state, service, known, id))
            ),
            Self::NoCarrier { interface, .. } => format!(
                "check the cable, switch port or bridge of {interface}{}",
                state
                    .services
                    .get(service)
                    .map_or_else(String::new, |known| or_move(state, service, known, id))
            ),
            Self::Contested { address, by } => {
                match state.nodes.values().find(|other| other.links.macs.contains(by)) {
                    Some(other) => format!("if {0} hangs, cut the power of {0}", other.name),
                    None => format!("take {address} away there, or give the service another address"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Links, Node};
    use mainstay_types::NodeStatus;

    #[test]
    fn a_stall_of_some_seconds_is_reported_with_its_age() {
        let state = State::default();
        let stall = |ms| Stall { what: Stalled::Engine(NodeId(2)), ms };
        assert_eq!((stall(2999).counts(), stall(3000).counts()), (false, true));
        let advice = stall(12_700).advice(&state);
        assert!(advice.what.contains("has not answered for 12 s"), "{advice:?}");
        assert!(Stall { what: Stalled::Copies(ResourceId(1), Copies::Suspended), ms: 0 }.counts());
    }

    #[test]
    fn a_hindrance_of_a_running_service_is_reported_with_its_age_and_remedy() {
        let mut state = State::default();
        for (id, name) in [(1, "n1"), (2, "n2")] {
            let node = Node {
                id: NodeId(id),
                name: name.into(),
                agent_addr: String::new(),
                engine_addr: String::new(),
                status: NodeStatus::Alive,
                generation: 1,
                voter: true,
                witness: false,
                candidate: false,
                replaces: None,
                voters_seen: 0,
                nonce: 0,
                links: Links::default(),
                maintenance: None,
                level: 0,
                cordon: None,
            };
            state.nodes.insert(node.id, node);
        }
        let told = |state: &State, hindrance| {
            let what = Stalled::Service("web".into(), NodeId(1), hindrance);
            assert!(!Stall { what: what.clone(), ms: 2999 }.counts(), "a moment is not told");
            let stall = Stall { what, ms: 12_700 };
            assert!(stall.counts());
            let Advice { subject, what, remedy, .. } = stall.advice(state);
            assert_eq!(subject, "service web");
            format!("{what}; {remedy}")
        };
        let frozen = told(&state, Hindrance::Frozen { path: "/srv/my db".into() });
        assert!(frozen.contains("/srv/my db on n1 has been frozen for 12 s"), "{frozen}");
        assert!(frozen.contains("`fsfreeze --unfreeze '/srv/my db'` on n1"), "{frozen}");
        let full = told(&state, Hindrance::Full { path: "/srv/db".into(), volume: 1 });
        assert!(full.contains("/srv/db on n1 has been full for 12 s"), "{full}");
        assert!(full.contains("`mainstay resource resize web SIZE --volume 1`"), "{full}");
        let silent = told(&state, Hindrance::Silent { path: "/srv/db".into() });
        assert!(silent.contains("has not answered for 12 s"), "{silent}");
        let address = "10.0.0.7/24".to_owned();
        let down = told(&state, Hindrance::NoCarrier { interface: "eth1".into(), address: address.clone() });
        assert!(down.contains("eth1 of n1 has had no carrier for 12 s"), "{down}");
        let tear = |turned, relies| Hindrance::PagesTear {
            process: "mariadb".into(),
            arguments: "--innodb-doublewrite=OFF".into(),
            why: "XFS may cut pages".into(),
            remedy: "Make an ext4.".into(),
            turned,
            relies,
        };
        let severity =
            |what| Stall { what: Stalled::Service("web".into(), NodeId(1), what), ms: 3000 }.severity();
        assert_eq!(
            [severity(tear(true, true)), severity(tear(true, false)), severity(tear(false, false))],
            [Severity::Critical, Severity::Warning, Severity::Info]
        );
        let still = told(&state, tear(true, true));
        assert!(still.contains("mariadb on n1 still runs with --innodb-doublewrite=OFF, but"), "{still}");
        assert!(still.contains("Make an ext4. Mainstay starts the process again"), "{still}");
        let turned = told(&state, tear(true, false));
        assert!(turned.contains("mariadb on n1 runs without --innodb-doublewrite=OFF, and"), "{turned}");
        assert!(turned.contains("XFS may cut pages; on n1: Make an ext4. Then run `mainstay"), "{turned}");
        let by = MacAddress([2, 0, 0, 0, 0, 9]);
        let contested = || Hindrance::Contested { address: address.clone(), by };
        let stranger = told(&state, contested());
        assert!(stranger.contains("02:00:00:00:00:09 has answered for its address 10.0.0.7/24 for 12 s"));
        assert!(stranger.contains("take 10.0.0.7/24 away there"), "{stranger}");
        if let Some(node) = state.nodes.get_mut(&NodeId(2)) {
            node.links.macs.insert(by);
        }
        let node = told(&state, contested());
        assert!(node.contains("node n2 (02:00") && node.contains("cut the power of n2"), "{node}");
    }
}
