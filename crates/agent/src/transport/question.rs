//! Questions to other agents, each on a connection of its own.

use super::tls::TlsWire;
use super::{
    CONNECT_TIMEOUT, Kind, Known, Transport, TransportError, TransportShared, dial, greeting_of, invalid,
    parse, read_frame, write_json,
};
use crate::level;
use crate::messages::{Call, CallReply, Greeting, LaneKind};
use crate::threads::{read, spawn};
use mainstay_trust::{CertificateDer, Expect, Peer};
use mainstay_types::{Code, NodeId};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// An answer, and the certificates of the agent that gave it.
pub struct Answer {
    pub reply: CallReply,
    pub peer: Option<Peer>,
    pub chain: Vec<CertificateDer<'static>>,
}

impl Transport {
    /// Asks the agent at `address` as the node that this agent is, and waits for its answer.
    ///
    /// # Errors
    /// When no agent answers there within `timeout`, or another one than is expected.
    pub fn call(
        &self,
        address: &str,
        expect: Expect,
        question: &Call,
        timeout: Duration,
    ) -> Result<CallReply, TransportError> {
        let identity = *read(&self.shared.identity);
        self.call_as(identity, address, expect, question, timeout).map(|answer| answer.reply)
    }

    /// The same as a node of this number in this cluster, or as one of none.
    ///
    /// # Errors
    /// As [`Transport::call`].
    pub fn call_as(
        &self,
        identity: Option<(u64, NodeId)>,
        address: &str,
        expect: Expect,
        question: &Call,
        timeout: Duration,
    ) -> Result<Answer, TransportError> {
        let greeting = match identity {
            Some(identity) => greeting_of(identity, LaneKind::Call, &self.shared),
            None => {
                let (node, level) = (NodeId(0), level::own());
                Greeting { cluster: 0, node, lane: LaneKind::Call, run: 0, address: None, level }
            }
        };
        call_with(&self.shared, (address, expect), &greeting, question, timeout)
    }

    /// Asks these agents what they know of the node that this process is to be.
    #[must_use]
    pub fn ask_about(&self, identity: (u64, NodeId), agents: &[String]) -> Known {
        let (sender, answers) = sync_channel(agents.len());
        for address in agents {
            let (sender, address, this) = (sender.clone(), address.clone(), self.clone());
            spawn("agent-twin", move || {
                let answer =
                    this.call_as(Some(identity), &address, Expect::Member, &Call::AmI, CONNECT_TIMEOUT);
                drop(sender.send(answer.map(|answer| answer.reply)));
            });
        }
        drop(sender);
        let mut known = Known::default();
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        while let Ok(reply) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            match reply {
                Ok(CallReply::Other { address: Some(address), .. }) => {
                    known.twin = Some(address);
                    return known;
                }
                Ok(CallReply::Other { recorded, .. }) => known.recorded.extend(recorded),
                Ok(CallReply::Error(problem)) if problem.code == Code::NodeRemoved => {
                    known.gone = Some(problem);
                }
                Ok(CallReply::Error(problem)) if problem.code == Code::BuildTooOld => {
                    known.too_old = Some(problem);
                }
                _ => {}
            }
        }
        known
    }
}

fn call_with(
    shared: &TransportShared,
    (address, expect): (&str, Expect),
    greeting: &Greeting,
    question: &Call,
    timeout: Duration,
) -> Result<Answer, TransportError> {
    let exchange = || -> io::Result<Answer> {
        let proofs = shared.proofs().ok_or(io::ErrorKind::NotConnected)?;
        let (mut wire, outcome) = TlsWire::connect(dial(address)?, &proofs, expect)?;
        wire.set_read_timeout(Some(timeout))?;
        write_json(&mut wire, Kind::Greeting, greeting)?;
        write_json(&mut wire, Kind::Call, question)?;
        let (kind, body) = read_frame(&mut wire)?;
        if kind != Kind::Reply {
            return Err(invalid("an answer was expected"));
        }
        Ok(Answer { reply: parse(&body)?, peer: outcome.peer(), chain: outcome.chain() })
    };
    exchange().map_err(|source| {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::InvalidData => TransportError::Unproven { address, source },
            _ => TransportError::Unreachable { address, source },
        }
    })
}

/// The address of this node that the agent at `address` sees.
///
/// # Errors
/// When no agent answers there.
pub fn local_address(address: &str) -> Result<IpAddr, TransportError> {
    dial(address)
        .and_then(|stream| stream.local_addr())
        .map(|local| local.ip().to_canonical())
        .map_err(|source| TransportError::Unreachable { address: address.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_node_learns_its_address_from_a_connection_to_a_peer() {
        let peer = TcpListener::bind("127.0.0.7:0").unwrap();
        let address = peer.local_addr().unwrap().to_string();
        assert_eq!(local_address(&address).unwrap(), IpAddr::from([127, 0, 0, 1]));
        drop(peer);
        assert!(matches!(local_address(&address), Err(TransportError::Unreachable { .. })));
    }
}
