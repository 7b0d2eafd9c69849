//! Nodes that join: the addresses that they state, and how one that has joined comes to vote (R29).
//!
//! Guarantees:
//! - an address that cannot lead to the node that states it is refused before anything is recorded;
//! - a node that joins receives the log and does not vote: no majority needs it. It votes from the
//!   entry on that the leader proposes when the node has answered, at the address that it stated,
//!   with all entries in its log;
//! - a node that cannot prove itself is withdrawn, and nothing is left of it.

use crate::apply::NAME_REMEDY;
use crate::identities::Admission;
use crate::level::build_too_old;
use crate::state::{Links, NODES_MAX, Node, Outcome, State, refused};
use crate::votes::voters_wanted;
use mainstay_ha::valid_name;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, NodeId, NodeStatus, Problem, Severity};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Port of agents when none is named.
pub const AGENT_PORT: u16 = 7400;
/// Port of engines when none is named.
pub const ENGINE_PORT: u16 = 7401;

/// Where a node says that others find its agent and its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    pub agent: SocketAddr,
    pub engine: SocketAddr,
}

/// The request of a node that wants to join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Newcomer {
    pub name: String,
    pub agent_addr: String,
    pub engine_addr: String,
    pub witness: bool,
    /// Random per attempt, to recognise a repeated request.
    pub nonce: u64,
    /// The node of this name is dead, and this one takes its place; see `replacement.rs`.
    pub replace: bool,
    /// Feature level of its build; see `level.rs`.
    pub level: u32,
    /// See `identities.rs`.
    pub by: Option<Admission>,
}

fn bad(what: &str, text: &str, why: &str) -> Problem {
    Problem::new(
        Code::BadAddress,
        format!("`{text}` cannot be the address of {what}: {why}"),
        "give an IP address that this node has and that all other nodes reach, with or without a port, for example 10.0.0.1:7400",
    )
}

/// The same address, and an IPv4 address where it is one that is written as IPv6
/// (`::ffff:10.0.0.1`).
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether this is an IP address, followed by a colon and something that is no port.
fn has_bad_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, _)| {
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        host.parse::<Ipv4Addr>().is_ok() || bracketed.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
    })
}

/// Reads an address that a node states for itself.
///
/// # Errors
/// When it is no IP address, or one that does not lead to a certain node.
fn read(what: &str, text: &str, default_port: u16) -> Result<SocketAddr, Problem> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
        (Ok(address), _) => canonical(address),
        (Err(_), Ok(ip)) => canonical(SocketAddr::new(ip, default_port)),
        (Err(_), Err(_)) if has_bad_port(text) => {
            return Err(bad(what, text, "its port is not a number from 1 to 65535"));
        }
        (Err(_), Err(_)) => return Err(bad(what, text, "it is no IP address")),
    };
    let ip = address.ip();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    };
    let why = if ip.is_unspecified() {
        "it means every address of a machine"
    } else if ip.is_multicast() {
        "it is a multicast address"
    } else if matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()) {
        "it is the broadcast address"
    } else if link_local {
        "it is valid on one link only"
    } else if address.port() == 0 {
        "no program listens on port 0"
    } else {
        return Ok(address);
    };
    Err(bad(what, text, why))
}

impl Addresses {
    /// Reads both. Without `engine` it is the agent's host and [`ENGINE_PORT`].
    ///
    /// # Errors
    /// When one of them cannot be the address of a node, or both are the same.
    pub fn read(agent: &str, engine: Option<&str>) -> Result<Self, Problem> {
        let agent_text = agent;
        let agent = read("the agent", agent, AGENT_PORT)?;
        let (engine_text, engine) = match engine {
            Some(text) => (text.to_owned(), read("the engine", text, ENGINE_PORT)?),
            None => {
                let engine = SocketAddr::new(agent.ip(), ENGINE_PORT);
                (engine.to_string(), engine)
            }
        };
        if agent == engine {
            let why = format!(
                "it is that of the engine, `{engine_text}`, and each of them needs a port of its own"
            );
            return Err(bad("the agent", agent_text, &why));
        }
        Ok(Self { agent, engine })
    }
}

/// The host of an address with or without a port.
fn host_of(text: &str) -> Option<IpAddr> {
    let host = text.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| text.parse());
    host.ok().map(|host: IpAddr| host.to_canonical())
}

/// Whether two addresses, each with or without a port, are on one host.
#[must_use]
pub fn same_host(a: &str, b: &str) -> bool {
    host_of(a).is_some_and(|a| host_of(b) == Some(a))
}

/// Whether this machine is the one that is `recorded` as a node, judged by its addresses. `own` are
/// its addresses without those of services, and its agent listens on `listens`. If the answer is
/// no, the machine has to reach itself at the recorded address. Otherwise it may be a copy.
#[must_use]
pub fn is_recorded_here(recorded: &str, own: &[IpAddr], listens: &str) -> bool {
    if planted(Bug::CopyElsewhereRuns) {
        return true;
    }
    let Some(host) = host_of(recorded) else { return true };
    // All of 127.0.0.0/8 is on every machine.
    let loopback = |listens: IpAddr| host.is_loopback() && (listens.is_unspecified() || listens == host);
    own.contains(&host) || host_of(listens).is_some_and(loopback)
}

/// Which of two machines with the identity of a node is the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Genuine {
    /// The one that the members hear.
    Heard,
    /// The one that begins to speak: it alone stands at the recorded address.
    Newcomer,
}

/// Judges between the machine that is `heard` as a node and a `newcomer` with the same identity.
#[must_use]
pub fn genuine(recorded: Option<&str>, heard: &str, newcomer: &str) -> Genuine {
    match recorded {
        _ if planted(Bug::FirstHeardIsNode) => Genuine::Heard,
        Some(recorded) if same_host(newcomer, recorded) && !same_host(heard, recorded) => Genuine::Newcomer,
        _ => Genuine::Heard,
    }
}

/// Words for the operator about two machines with the identity of a node. The members go on with
/// the one at `heard`.
#[must_use]
pub fn twin_words(recorded: Option<&str>, heard: &str, other: &str) -> String {
    let stands = match recorded {
        Some(recorded) if same_host(heard, recorded) => {
            ", where the node is recorded and which is the member".to_owned()
        }
        Some(recorded) => format!(", with which the cluster goes on; the node is recorded at {recorded}"),
        None => ", with which the cluster goes on".to_owned(),
    };
    format!(
        "two machines have this identity: {other}, which is refused, and {heard}{stands}. \
         Find out which of the two is the copy; stop that one and empty its state directory"
    )
}

/// Words for the operator about two machines with the identity of a node and the same address.
#[must_use]
pub fn twins_in_place_words(address: &str) -> String {
    format!(
        "two machines have this identity and the same address, {address}, so the other nodes hear now one and now the other. \
         Find out which of the two is the copy; stop that one and empty its state directory"
    )
}

/// Whether a recorded `host:port` is on the loopback interface; no for what is no address.
fn is_loopback(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok_and(|address| canonical(address).ip().is_loopback())
}

impl State {
    /// Why a node with this request cannot join, if that is known from the record.
    #[must_use]
    pub fn cannot_admit(&self, at_ms: u64, new: &Newcomer) -> Option<Problem> {
        self.check_newcomer(new).and_then(|()| self.check_admission(at_ms, new)).err()
    }

    fn check_newcomer(&self, new: &Newcomer) -> Result<(), Problem> {
        let refuse = |code: Code, message: String, remedy: &str| Err(Problem::new(code, message, remedy));
        if !valid_name(&new.name) {
            return refuse(Code::BadName, format!("'{}' is not a valid name", new.name), NAME_REMEDY);
        }
        if new.level < self.level {
            return Err(build_too_old(&new.name, new.level, self.level));
        }
        let addresses = Addresses::read(&new.agent_addr, Some(&new.engine_addr))?;
        let Addresses { agent, engine } = addresses;
        let repeated = self.nodes.values().find(|node| node.name == new.name && node.nonce == new.nonce);
        let known = repeated.or_else(|| self.node_by_name(&new.name));
        let replaced = match known.filter(|node| node.nonce != new.nonce) {
            Some(_) if new.replace => Some(self.replaceable(&new.name)?),
            None if new.replace && repeated.is_none() => Some(self.replaceable(&new.name)?),
            _ => None,
        };
        if let Some(node) = known.filter(|node| node.nonce != new.nonce && replaced.is_none()) {
            let message = format!(
                "there is a node {} already, and it is another one: it has the agent's address {} and the engine's {}, and the one \
                 that asks has {agent} and {engine}",
                new.name, node.agent_addr, node.engine_addr
            );
            return refuse(
                Code::NameTaken,
                message,
                "choose another name with --as; `mainstay node list` shows the names that are taken. If this machine is to take the \
                 place of a dead node of this name, add --replace",
            );
        }
        if let Some(other) = self.nodes.values().find(|node| {
            replaced.is_some() && node.candidate && node.name == new.name && node.nonce != new.nonce
        }) {
            return refuse(
                Code::NameTaken,
                format!("another machine, at {}, is joining as {} already", other.agent_addr, new.name),
                "wait for its end; see `mainstay node list`",
            );
        }
        if known.is_none() && self.nodes.len() >= NODES_MAX {
            return refuse(
                Code::TooManyNodes,
                format!("a cluster has at most {NODES_MAX} nodes"),
                "make another cluster of the further nodes",
            );
        }
        // The addresses of the machine that is replaced are free with it.
        self.check_addresses(addresses, |node| node.name == new.name)
    }

    /// Checks that no node but those that are `own` has these addresses, and that others reach
    /// them.
    pub(crate) fn check_addresses(
        &self,
        Addresses { agent, engine }: Addresses,
        is_own: impl Fn(&Node) -> bool,
    ) -> Result<(), Problem> {
        let refuse = |code: Code, message: String, remedy: &str| Err(Problem::new(code, message, remedy));
        let (agent_text, engine_text) = (agent.to_string(), engine.to_string());
        if let Some(refusal) = self.address_of_a_service(&[&agent_text, &engine_text]) {
            return Err(refusal);
        }
        for node in self.nodes.values().filter(|node| !is_own(node)) {
            for stated in [&agent_text, &engine_text] {
                let engine_counts = !node.witness;
                if node.agent_addr == *stated || engine_counts && node.engine_addr == *stated {
                    return refuse(
                        Code::AddressTaken,
                        format!("node {} has the address {stated}", node.name),
                        "give an address of the node that joins",
                    );
                }
            }
            // On one machine all nodes may be on its loopback interface, each with an address of
            // its own. On separate machines, a node that connects to a loopback address reaches
            // itself.
            let recorded = is_loopback(&node.agent_addr);
            if recorded && !agent.ip().is_loopback() {
                return refuse(
                    Code::LoopbackAddress,
                    format!(
                        "node {} has the address {}, which other machines cannot reach",
                        node.name, node.agent_addr
                    ),
                    "stop agent and engine of that node, empty its state directory, and make the cluster there again \
                     with an `--address` that all nodes reach",
                );
            }
            if !recorded && (agent.ip().is_loopback() || engine.ip().is_loopback()) {
                return Err(bad("a member", &agent_text, "other machines cannot reach a loopback address"));
            }
        }
        Ok(())
    }

    /// Adds a node that receives the log and does not vote yet. Repeated with the same nonce it
    /// answers the same node.
    pub(crate) fn admit_node(&mut self, at_ms: u64, new: Newcomer) -> Outcome {
        if let Some(refusal) = self.cannot_admit(at_ms, &new) {
            return Outcome::Refused(refusal);
        }
        let replaces = if new.replace { self.replaceable(&new.name).ok() } else { None };
        let Newcomer { name, agent_addr, engine_addr, witness, nonce, level, by, .. } = new;
        let is_repeated = |node: &&mut Node| node.name == name && node.nonce == nonce;
        if let Some(node) = self.nodes.values_mut().find(is_repeated) {
            // An earlier attempt may have stated other addresses. The addresses of a voter are in
            // use.
            if node.candidate {
                (node.agent_addr, node.engine_addr, node.witness) = (agent_addr, engine_addr, witness);
                node.level = level;
            }
            return Outcome::NodeAdded { node: node.id, generation: node.generation };
        }
        self.last_node += 1;
        let id = NodeId(self.last_node);
        let node = Node {
            id,
            name: name.clone(),
            agent_addr,
            engine_addr,
            status: NodeStatus::Alive,
            generation: 1,
            voter: false,
            witness,
            candidate: true,
            replaces,
            voters_seen: self.voters_version,
            nonce,
            level,
            links: Links::default(),
            maintenance: None,
            cordon: None,
        };
        self.nodes.insert(id, node);
        if let Some(by) = by {
            self.identities.admit(id, nonce, by);
        }
        self.note(
            at_ms,
            Severity::Info,
            format!("node {name}"),
            "asks to join, and receives the state of the cluster",
        );
        Outcome::NodeAdded { node: id, generation: 1 }
    }

    /// The node that is to vote next, among those that join and have `proven` themselves. A dead
    /// one waits until it is back, and holds up no other.
    #[must_use]
    pub fn next_seat(&self, proven: impl Fn(&NodeId) -> bool) -> Option<NodeId> {
        let joining = self.nodes.values().filter(|node| node.candidate && self.alive(node.id));
        joining.map(|node| node.id).find(|node| proven(node) || planted(Bug::VotesUnproven))
    }

    /// The node has answered at its address with all entries in its log: from now on it votes. One
    /// after the other, so that any two majorities in use intersect (R10).
    pub(crate) fn seat_node(&mut self, at_ms: u64, id: NodeId) -> Outcome {
        let Some(node) = self.nodes.get(&id).filter(|node| node.candidate) else { return Outcome::Unchanged };
        if node.status != NodeStatus::Alive {
            return refused(
                Code::NodeDead,
                format!("node {} is dead", node.name),
                "it votes when it is back",
            );
        }
        let (subject, witness) = (format!("node {}", node.name), node.witness);
        if let Some(old) = node.replaces.filter(|old| self.nodes.contains_key(old)) {
            let outcome = self.take_place(at_ms, id, old);
            if outcome.is_ok() {
                self.note(at_ms, Severity::Info, subject, "joined the cluster in place of a dead node");
            }
            return outcome;
        }
        if let Some(behind) = self.unaware_of_voters() {
            return settling(&behind.name);
        }
        let members = self.nodes.values().filter(|node| !node.candidate).count() + 1;
        let votes = self.voters().len() < voters_wanted(members);
        self.voters_version += u64::from(votes);
        let Some(node) = self.nodes.get_mut(&id) else { return Outcome::Unchanged };
        node.voter = votes;
        (node.candidate, node.replaces) = (false, None);
        let text = match (witness, votes) {
            (true, true) => "joined the cluster as a witness",
            (true, false) => "joined the cluster as a witness, and stands by: enough other nodes vote",
            (false, true) => "joined the cluster",
            (false, false) => "joined the cluster without a vote: enough other nodes vote",
        };
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }

    /// Forgets a node that has not come to vote.
    pub(crate) fn withdraw_node(&mut self, at_ms: u64, nonce: u64) -> Outcome {
        let Some(node) = self.nodes.values().find(|node| node.nonce == nonce) else {
            return Outcome::Unchanged;
        };
        if !node.candidate {
            return refused(
                Code::AlreadyVotes,
                format!("node {} is a full member", node.name),
                "see `mainstay node list`",
            );
        }
        let (id, name) = (node.id, node.name.clone());
        self.nodes.remove(&id);
        self.identities.withdraw(id, nonce);
        self.note(
            at_ms,
            Severity::Warning,
            format!("node {name}"),
            "did not finish joining, and was removed",
        );
        Outcome::Done
    }

    /// A living node that has not yet received the last change of voters.
    pub(crate) fn unaware_of_voters(&self) -> Option<&Node> {
        let version = self.voters_version;
        self.nodes.values().find(|node| node.status == NodeStatus::Alive && node.voters_seen < version)
    }
}

/// One change of voters at a time.
pub(crate) fn settling(behind: &str) -> Outcome {
    refused(
        Code::MembershipSettling,
        format!("node {behind} has not yet received the last change of voters"),
        "try again in a moment",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Command, Entry, ResourceSpec, Settings};
    use mainstay_types::Choices;

    fn apply(state: &mut State, command: Command) -> Outcome {
        state.apply(Entry { at_ms: 0, command })
    }

    /// One node, which votes.
    fn alone(agent_addr: &str, engine_addr: &str) -> State {
        let mut state = State::default();
        apply(&mut state, Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
        let added = Command::AddNode {
            name: "a".into(),
            agent_addr: agent_addr.into(),
            engine_addr: engine_addr.into(),
            voter: true,
            witness: false,
            nonce: 1,
        };
        apply(&mut state, added);
        state
    }

    /// Two members hear the second machine at the same moment.
    #[test]
    fn two_machines_with_one_identity_are_one_event_however_many_members_hear_them() {
        let mut state = alone("10.0.0.1:7400", "10.0.0.1:7401");
        let text = twin_words(Some("10.0.0.2:7400"), "10.0.0.2:1", "10.0.0.9:1");
        let tell = |at_ms| {
            let (severity, subject) = (mainstay_types::Severity::Critical, "node b".to_owned());
            Entry { at_ms, command: Command::Note { severity, subject, text: text.clone() } }
        };
        let count =
            |state: &State| state.events.iter().filter(|event| event.text.contains("two machines")).count();
        for (at_ms, events) in [(1_000, 1), (1_000, 1), (3_000, 1), (60_000, 2)] {
            state.apply(tell(at_ms));
            assert_eq!(count(&state), events, "at {at_ms} ms");
        }
    }

    fn newcomer(name: &str, agent_addr: &str, engine_addr: &str) -> Newcomer {
        Newcomer {
            name: name.into(),
            agent_addr: agent_addr.into(),
            engine_addr: engine_addr.into(),
            witness: false,
            nonce: 7,
            replace: false,
            level: 0,
            by: None,
        }
    }

    fn admit(state: &mut State, new: &Newcomer) -> Outcome {
        let Newcomer { name, agent_addr, engine_addr, witness, nonce, replace, level, by } = new.clone();
        apply(state, Command::AdmitNode { name, agent_addr, engine_addr, witness, nonce, replace, level, by })
    }

    #[test]
    fn a_floating_address_is_not_a_nodes() {
        let mut state = alone("10.0.0.1:7400", "10.0.0.1:7401");
        let create = Command::CreateResource {
            name: "db".into(),
            spec: ResourceSpec {
                volumes: vec![64 << 20],
                journal_bytes: 64 << 20,
                replicas: vec![NodeId(1)],
                preferred: Vec::new(),
            },
            choices: Choices::default(),
            origin: None,
        };
        assert!(apply(&mut state, create).is_ok());
        let text = "name='db'\nresource='db'\n[vip]\naddress='10.0.0.7/24'\n";
        let service = mainstay_ha::ServiceSpec::parse(text).expect("it is right");
        assert!(apply(&mut state, Command::ApplyService { spec: service }).is_ok());
        for (agent, engine) in [("10.0.0.7:7400", "10.0.0.2:7401"), ("10.0.0.2:7400", "10.0.0.7:7401")] {
            let refused = admit(&mut state, &newcomer("b", agent, engine));
            assert!(matches!(refused, Outcome::Refused(why) if why.code == Code::AddressOfAService));
        }
        assert_eq!(state.nodes.len(), 1);
    }

    #[test]
    fn an_address_that_leads_to_no_certain_node_is_refused() {
        for good in ["10.0.0.1", "10.0.0.1:9", "fd00::1", "[fd00::1]", "[fd00::1]:9", "127.0.0.1"] {
            assert!(Addresses::read(good, None).is_ok(), "{good}");
        }
        let bad = [
            "not an address",
            "",
            "host",
            "host:7400",
            "10.0.0.1:port",
            "10.0.0.1:70000",
            "10.0.0.1/24",
            "0.0.0.0",
            "[::]:7400",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "169.254.1.1",
            "fe80::1",
            "10.0.0.1:0",
            "10.0.0.1:7401",
        ];
        for bad in bad {
            let refusal = Addresses::read(bad, None).unwrap_err();
            assert_eq!(refusal.code, Code::BadAddress, "{bad}");
            assert!(refusal.message.contains(&format!("`{bad}`")), "{}", refusal.message);
        }
        for bad in ["0.0.0.0:7401", "10.0.0.1:7400", "10.0.0.2:0", "nowhere"] {
            assert!(Addresses::read("10.0.0.1", Some(bad)).is_err(), "{bad}");
        }
        for (bad, why) in [
            ("10.0.0.1:99999", "its port is not a number"),
            ("10.0.0.1:", "its port is not a number"),
            ("[fd00::1]:x", "its port is not a number"),
            ("host:7400", "it is no IP address"),
        ] {
            assert!(Addresses::read(bad, None).unwrap_err().message.contains(why), "{bad}");
        }
        let both = Addresses::read("10.0.0.1", Some("10.0.0.2")).unwrap();
        assert_eq!((both.agent.port(), both.engine.port()), (AGENT_PORT, ENGINE_PORT));
    }

    /// The disk of b was copied to d. The copy was started first, and now b returns.
    #[test]
    fn of_two_machines_with_one_identity_the_one_at_the_recorded_address_is_the_node() {
        let (b, d) = ("10.99.0.2", "10.99.0.4");
        let recorded = Some("10.99.0.2:7400");
        assert_eq!(genuine(recorded, d, b), Genuine::Newcomer);
        assert_eq!(genuine(recorded, d, "[::ffff:10.99.0.2]:7400"), Genuine::Newcomer);
        for (heard, newcomer) in [(b, d), (b, "10.99.0.2:7400"), (d, "10.99.0.5"), (d, "nowhere")] {
            assert_eq!(genuine(recorded, heard, newcomer), Genuine::Heard, "{heard} {newcomer}");
        }
        assert_eq!(genuine(None, d, b), Genuine::Heard);
        let told = twin_words(recorded, b, d);
        assert!(
            told.contains("10.99.0.4, which is refused, and 10.99.0.2, where the node is recorded"),
            "{told}"
        );
        assert!(
            told.ends_with(
                "Find out which of the two is the copy; stop that one and empty its state directory"
            )
        );
        assert!(twin_words(recorded, d, "10.99.0.5").contains("the node is recorded at 10.99.0.2:7400"));
    }

    #[test]
    fn a_machine_without_the_recorded_address_does_not_count_as_the_node() {
        let own: Vec<IpAddr> = ["127.0.0.1", "10.99.0.4"].map(|ip| ip.parse().unwrap()).to_vec();
        assert!(is_recorded_here("10.99.0.4:7400", &own, "0.0.0.0:7400"));
        assert!(is_recorded_here("[::ffff:10.99.0.4]:7400", &own, "0.0.0.0:7400"));
        assert!(!is_recorded_here("10.99.0.2:7400", &own, "0.0.0.0:7400"));
        assert!(!is_recorded_here("10.99.0.2:7400", &own, "10.99.0.4:7400"));
        // Clusters on one machine tell their nodes apart by where they listen.
        assert!(is_recorded_here("127.66.9.2:7400", &own, "127.66.9.2:7400"));
        assert!(is_recorded_here("127.66.9.2:7400", &own, "0.0.0.0:7400"));
        assert!(!is_recorded_here("127.66.9.2:7400", &own, "127.66.9.9:7400"));
    }

    #[test]
    fn an_ipv4_address_that_is_written_as_ipv6_is_checked_and_recorded_as_ipv4() {
        for bad in [
            "::ffff:0.0.0.0",
            "[::ffff:0.0.0.0]:7400",
            "::ffff:224.0.0.1",
            "::ffff:255.255.255.255",
            "::ffff:169.254.1.1",
        ] {
            assert!(Addresses::read(bad, None).is_err(), "{bad}");
            assert!(Addresses::read("10.0.0.1", Some(bad)).is_err(), "{bad}");
        }
        let mapped = Addresses::read("::ffff:10.0.0.1", Some("[::ffff:10.0.0.1]:9")).unwrap();
        assert_eq!(mapped, Addresses::read("10.0.0.1", Some("10.0.0.1:9")).unwrap());
        assert_eq!(mapped.agent.to_string(), "10.0.0.1:7400");
        let state = alone("10.0.0.1:7400", "10.0.0.1:7401");
        let loopback = newcomer("b", "[::ffff:127.0.0.1]:7400", "[::ffff:127.0.0.1]:7401");
        assert_eq!(state.cannot_admit(0, &loopback).map(|refusal| refusal.code), Some(Code::BadAddress));
        let taken = newcomer("b", "[::ffff:10.0.0.1]:7400", "10.0.0.2:7401");
        assert_eq!(state.cannot_admit(0, &taken).map(|refusal| refusal.code), Some(Code::AddressTaken));
    }

    #[test]
    fn a_newcomer_states_no_address_of_a_member_and_none_that_others_cannot_reach() {
        let state = alone("10.0.0.1:7400", "10.0.0.1:7401");
        let code = |state: &State, agent: &str, engine: &str| {
            state.cannot_admit(0, &newcomer("b", agent, engine)).map(|refusal| refusal.code)
        };
        assert_eq!(code(&state, "10.0.0.2:7400", "10.0.0.2:7401"), None);
        for (agent, engine) in [
            ("10.0.0.1:7400", "10.0.0.2:7401"),
            ("10.0.0.1:7401", "10.0.0.2:7401"),
            ("10.0.0.2:7400", "10.0.0.1:7400"),
            ("10.0.0.2:7400", "10.0.0.1:7401"),
        ] {
            assert_eq!(code(&state, agent, engine), Some(Code::AddressTaken), "{agent} {engine}");
        }
        for (agent, engine) in [("127.0.0.1:7400", "127.0.0.1:7401"), ("10.0.0.2:7400", "127.0.0.1:7401")] {
            assert_eq!(code(&state, agent, engine), Some(Code::BadAddress), "{agent} {engine}");
        }
        let state = alone("127.0.0.1:7400", "127.0.0.1:7401");
        assert_eq!(code(&state, "10.0.0.2:7400", "10.0.0.2:7401"), Some(Code::LoopbackAddress));
        assert_eq!(code(&state, "127.0.0.2:7400", "127.0.0.2:7401"), None, "all on one machine");
    }

    /// R29: no majority needs a node that has not been reached at its address.
    #[test]
    fn a_node_votes_only_after_it_has_proven_itself_and_a_failed_join_leaves_nothing() {
        let mut state = alone("10.0.0.1:7400", "10.0.0.1:7401");
        let (before, voters) = (state.clone(), state.voters());
        let new = newcomer("b", "10.0.0.2:7400", "10.0.0.2:7401");
        let added = admit(&mut state, &new);
        assert_eq!(added, Outcome::NodeAdded { node: NodeId(2), generation: 1 });
        assert_eq!(admit(&mut state, &new), added, "a repeated request adds one node");
        assert_eq!((state.voters(), state.voters_version), (voters.clone(), before.voters_version));
        assert_eq!(apply(&mut state, Command::WithdrawNode { nonce: 7 }), Outcome::Done);
        assert_eq!(state.nodes, before.nodes);
        assert_eq!(apply(&mut state, Command::WithdrawNode { nonce: 7 }), Outcome::Unchanged);
        assert_eq!(admit(&mut state, &new), Outcome::NodeAdded { node: NodeId(3), generation: 1 });
        assert_eq!(apply(&mut state, Command::SeatNode { node: NodeId(3) }), Outcome::Done);
        assert_eq!(state.voters().len(), 2);
        assert_eq!(apply(&mut state, Command::SeatNode { node: NodeId(3) }), Outcome::Unchanged);
        let Outcome::Refused(refusal) = apply(&mut state, Command::WithdrawNode { nonce: 7 }) else {
            panic!("a voter is not withdrawn");
        };
        assert_eq!(refusal.code, Code::AlreadyVotes);
    }

    #[test]
    fn a_dead_newcomer_that_answers_does_not_keep_others_from_their_vote() {
        let mut state = alone("10.0.0.1:7400", "10.0.0.1:7401");
        admit(&mut state, &newcomer("b", "10.0.0.2:7400", "10.0.0.2:7401"));
        admit(&mut state, &Newcomer { nonce: 8, ..newcomer("c", "10.0.0.3:7400", "10.0.0.3:7401") });
        assert_eq!(state.next_seat(|_| true), Some(NodeId(2)));
        state.nodes.get_mut(&NodeId(2)).unwrap().status = NodeStatus::Dead;
        assert_eq!(state.next_seat(|_| true), Some(NodeId(3)));
        assert_eq!(state.next_seat(|node| *node == NodeId(2)), None);
    }

    /// R10: voters change one at a time.
    #[test]
    fn a_second_newcomer_waits_until_all_have_taken_notice_of_the_first() {
        let mut state = alone("10.0.0.1:7400", "10.0.0.1:7401");
        let seen = |state: &mut State, node: u32| {
            let voters_version = state.voters_version;
            apply(state, Command::VotersSeen { node: NodeId(node), voters_version })
        };
        seen(&mut state, 1);
        admit(&mut state, &newcomer("b", "10.0.0.2:7400", "10.0.0.2:7401"));
        admit(&mut state, &Newcomer { nonce: 8, ..newcomer("c", "10.0.0.3:7400", "10.0.0.3:7401") });
        assert_eq!(apply(&mut state, Command::SeatNode { node: NodeId(2) }), Outcome::Done);
        let second = Command::SeatNode { node: NodeId(3) };
        for unaware in [1, 2, 3] {
            assert!(matches!(apply(&mut state, second.clone()), Outcome::Refused(_)), "{unaware}");
            seen(&mut state, unaware);
        }
        assert_eq!(apply(&mut state, second), Outcome::Done);
    }
}
