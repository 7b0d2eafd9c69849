//! TLS 1.3 on the connections between agents (R23).
//!
//! Guarantees
//! - Nothing is read or written before the handshake has proven both ends. There is no other way
//!   in.
//! - A peer that is slow to prove itself holds one thread for at most [`PROVE_WITHIN`]. So many
//!   such connections are served at a time, [`UNPROVEN_MAX`] in all and [`UNPROVEN_OF_HOST_MAX`] of
//!   one host; more are closed at once. They take no place of a member.
//! - A certificate that ends cuts no connection. Certificates are judged when a connection begins.

use super::{Wire, invalid};
use crate::threads::lock;
use mainstay_trust::tls::{AGENT_PROTOCOL, accept, connect};
use mainstay_trust::{CertificateDer, Credentials, Expect, Outcome, Peer, Refusal, Trust, TrustError};
use rustls::Connection;
use rustls::time_provider::DefaultTimeProvider;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for a handshake.
pub(super) const PROVE_WITHIN: Duration = Duration::from_secs(3);
/// Connections without a proven member at the other end: in all, and of one host.
const UNPROVEN_MAX: usize = 96;
const UNPROVEN_OF_HOST_MAX: usize = 24;
/// A larger frame is not sent on the sender's own thread.
const SENT_NOW_BYTES_MAX: usize = 32 << 10;

/// Credentials of this agent, and what it believes.
#[derive(Clone)]
pub struct Proofs {
    pub own: Credentials,
    pub trust: Arc<Trust>,
    /// Authorities that this node believes although its record may be behind, with their numbers.
    pub ahead: Vec<(u32, CertificateDer<'static>)>,
}

/// A connection with both ends proven.
pub(super) struct TlsWire {
    stream: TcpStream,
    tls: Connection,
}

impl TlsWire {
    /// Opens a connection to the peer that is expected.
    pub(super) fn connect(stream: TcpStream, proofs: &Proofs, expect: Expect) -> io::Result<(Self, Outcome)> {
        let clock = Arc::new(DefaultTimeProvider);
        let (client, outcome) =
            connect(proofs.trust.clone(), &proofs.own, expect, clock, AGENT_PROTOCOL).map_err(internal)?;
        let mut wire = Self { stream, tls: Connection::Client(client) };
        wire.prove(&outcome, PROVE_WITHIN)?;
        Ok((wire, outcome))
    }

    /// Takes a connection that another node has opened.
    pub(super) fn accept(stream: TcpStream, proofs: &Proofs) -> io::Result<(Self, Peer)> {
        let clock = Arc::new(DefaultTimeProvider);
        let (server, outcome) =
            accept(proofs.trust.clone(), &proofs.own, clock, AGENT_PROTOCOL).map_err(internal)?;
        let mut wire = Self { stream, tls: Connection::Server(server) };
        wire.prove(&outcome, PROVE_WITHIN)?;
        let peer = outcome.peer().ok_or_else(|| invalid("the peer showed no certificate"))?;
        Ok((wire, peer))
    }

    fn prove(&mut self, outcome: &Outcome, within: Duration) -> io::Result<()> {
        let deadline = Instant::now() + within;
        while self.tls.is_handshaking() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            if let Err(error) = self.handshake_step() {
                return Err(worded(error, outcome.refusal()));
            }
        }
        if self.tls.alpn_protocol() != Some(AGENT_PROTOCOL) {
            return Err(invalid("the peer speaks another protocol than agents do"));
        }
        self.stream.set_read_timeout(None)
    }

    /// Sends what is to be sent, and reads once. A peer that sends byte by byte gets no more time
    /// by that.
    fn handshake_step(&mut self) -> io::Result<()> {
        self.send_held()?;
        if self.tls.is_handshaking() && self.tls.wants_read() {
            match self.tls.read_tls(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
                Err(error) => return Err(error),
            }
            let processed = self.tls.process_new_packets();
            // Says why in an alert, if the connection takes it.
            while self.tls.wants_write() && self.tls.write_tls(&mut self.stream).is_ok_and(|sent| sent > 0) {}
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        Ok(())
    }

    pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)
    }

    /// Sends what TLS holds ready.
    fn send_held(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut self.stream)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Sends what TLS holds ready, as far as that goes without a wait.
    fn flush_now(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Now(&self.stream)) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Writes to a socket without a wait.
struct Now<'a>(&'a TcpStream);

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket2::SockRef::from(self.0).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TlsWire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            // The end of the stream is told by the reader.
            self.tls.read_tls(&mut self.stream)?;
            let processed = self.tls.process_new_packets();
            self.send_held()?;
            processed.map_err(|error| worded(io::Error::new(io::ErrorKind::InvalidData, error), None))?;
        }
    }
}

impl Write for TlsWire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_held()?;
        let taken = self.tls.writer().write(bytes)?;
        self.send_held()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_held()
    }
}

impl Wire for TlsWire {
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush_now()?;
        if self.tls.wants_write() || bytes.len() > SENT_NOW_BYTES_MAX {
            return Ok(0);
        }
        // TLS takes the frame as a whole: it is no larger than what TLS holds ready at most.
        let taken = self.tls.writer().write(bytes)?;
        self.flush_now()?;
        Ok(taken)
    }

    fn is_held(&self) -> bool {
        self.tls.wants_write()
    }
}

fn internal(error: TrustError) -> io::Error {
    io::Error::other(error)
}

/// The reason for a failed handshake in words: this node's own verdict, or that of the peer.
fn worded(error: io::Error, refusal: Option<Refusal>) -> io::Error {
    use rustls::{AlertDescription as Alert, Error as Tls};
    if let Some(refusal) = refusal {
        return io::Error::new(io::ErrorKind::InvalidData, refusal);
    }
    let tls = error.get_ref().and_then(|source| source.downcast_ref::<Tls>());
    let words = match tls {
        Some(Tls::AlertReceived(Alert::CertificateExpired)) => {
            "it refuses this node's certificate as not valid at this time: compare the clocks of the two machines"
        }
        Some(Tls::AlertReceived(Alert::UnknownCA)) => "it knows no authority of this node's certificate",
        Some(Tls::AlertReceived(_)) => "it refuses this node's certificate, and its log says why",
        Some(Tls::InvalidMessage(_)) => "it does not speak TLS",
        Some(Tls::PeerIncompatible(_)) => "it does not speak TLS 1.3 with a certificate",
        _ => return error,
    };
    io::Error::new(io::ErrorKind::InvalidData, words)
}

/// Connections without a proven member at the other end, by host.
#[derive(Clone, Default)]
pub(super) struct Unproven(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One of them, until it is dropped.
pub(super) struct OneUnproven {
    all: Unproven,
    host: IpAddr,
}

impl Unproven {
    /// Takes a place for a connection; `None` if there is none.
    pub(super) fn take(&self, host: IpAddr) -> Option<OneUnproven> {
        let mut all = lock(&self.0);
        let total: usize = all.values().sum();
        let of_host = all.entry(host).or_default();
        if total >= UNPROVEN_MAX || *of_host >= UNPROVEN_OF_HOST_MAX {
            return None;
        }
        *of_host += 1;
        Some(OneUnproven { all: self.clone(), host })
    }
}

impl Drop for OneUnproven {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        if let Some(count) = all.get_mut(&self.host) {
            *count -= 1;
        }
        all.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_their_own_places_only() {
        let (unproven, host) = (Unproven::default(), |last: u8| IpAddr::from([10, 0, 0, last]));
        let mut held: Vec<OneUnproven> = Vec::new();
        held.extend((0..100).filter_map(|_| unproven.take(host(1))));
        assert_eq!(held.len(), UNPROVEN_OF_HOST_MAX);
        held.extend((2..100).filter_map(|last| unproven.take(host(last))));
        assert_eq!(held.len(), UNPROVEN_MAX);
        held.truncate(1);
        assert!(unproven.take(host(2)).is_some());
        drop(held);
        assert!(lock(&unproven.0).is_empty());
    }
}
