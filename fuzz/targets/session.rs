//! Bytes of a stranger at the engines' port, and a handshake between two members with bytes changed
//! on the way.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use mainstay_trust::session::RECORD_PAYLOAD_MAX;
use mainstay_trust::{Authority, Credentials, Key, Payloads, Session, SessionError, Subject, Trust};
use mainstay_types::NodeId;
use std::sync::{Arc, OnceLock};

const CLUSTER: u64 = 7;
const IDS: [NodeId; 2] = [NodeId(1), NodeId(2)];

/// A change on the way: in the flight of this number, at this place, these bits.
type Change = [u8; 4];

struct World {
    trust: Arc<Trust>,
    shown: [Credentials; 2],
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let authority = Authority::make(CLUSTER, 1, 0).expect("an authority");
        let keys = IDS.map(|_| Key::generate().expect("a key"));
        let shown = [0, 1].map(|at| {
            let subject = Subject { cluster: CLUSTER, node: IDS[at] };
            let issued = authority.issue(subject, &keys[at].public(), 0).expect("a certificate");
            let chain = vec![issued.certificate, authority.certificate().clone()];
            Credentials::new(&keys[at], chain).expect("credentials")
        });
        let members = [0, 1].map(|at| (IDS[at], keys[at].public().fingerprint())).into();
        let authorities = vec![authority.certificate().clone()];
        World {
            trust: Arc::new(Trust { cluster: Some(CLUSTER), authorities, members: Some(members) }),
            shown,
        }
    })
}

struct End {
    session: Session,
    received: Vec<u8>,
    sent: Vec<u8>,
    ended: bool,
}

impl End {
    fn new(session: Session) -> Self {
        Self { session, received: Vec::new(), sent: Vec::new(), ended: false }
    }

    fn both(allowed: [Payloads; 2]) -> [Self; 2] {
        let World { trust, shown } = world();
        let client = Session::connect(trust.clone(), &shown[0], IDS[1], allowed[0]).expect("a session");
        let server = Session::accept(trust.clone(), &shown[1], allowed[1]).expect("a session");
        [Self::new(client), Self::new(server)]
    }

    fn take(&mut self, wire: &[u8], step: usize) {
        for part in wire.chunks(step) {
            if self.ended {
                return;
            }
            let received = &mut self.received;
            let mut sink = |payload: &[u8]| {
                received.extend_from_slice(payload);
                Ok::<(), SessionError>(())
            };
            self.ended = self.session.open(&mut part.to_vec(), &mut sink).is_err();
        }
    }

    fn says(&mut self, payload: Option<&[u8]>) -> Vec<u8> {
        let mut out = BytesMut::from(&self.session.said().split()[..]);
        if let Some(payload) = payload.filter(|_| self.session.is_open() && !self.ended) {
            self.sent.extend_from_slice(payload);
            if self.session.sends_clear() {
                out.extend_from_slice(payload);
            } else {
                for part in payload.chunks(RECORD_PAYLOAD_MAX) {
                    let fill = |record: &mut BytesMut| record.extend_from_slice(part);
                    self.session.seal(&mut out, fill).expect("an open session seals");
                }
            }
        }
        out.to_vec()
    }
}

/// Bytes of a stranger, who proves nothing.
fn stranger(said: &[u8], step: usize, allowed: [Payloads; 2]) {
    for mut end in End::both(allowed) {
        end.take(said, step);
        assert!(!end.session.is_open() && end.received.is_empty() && end.session.peer().is_none());
    }
}

/// Two members, with these changes on the way between them.
fn members(changes: &[Change], step: usize, allowed: [Payloads; 2]) {
    let [mut client, mut server] = End::both(allowed);
    let mut flight = 0;
    let mut changed = false;
    let mut deliver = |from: &mut End, to: &mut End, payload: Option<&[u8]>| {
        let mut wire = from.says(payload);
        for [number, high, low, bits] in changes {
            let place = usize::from(u16::from_be_bytes([*high, *low]));
            if *number == flight
                && let Some(byte) = wire.get_mut(place)
            {
                *byte ^= bits;
                changed |= *bits != 0;
            }
        }
        flight += 1;
        to.take(&wire, step);
        !wire.is_empty()
    };
    while deliver(&mut client, &mut server, None) | deliver(&mut server, &mut client, None) {}
    for payload in [&b"one"[..], &[7; 20_000], b"three"] {
        deliver(&mut client, &mut server, Some(payload));
        deliver(&mut server, &mut client, Some(payload));
    }
    for (from, to) in [(&client, &server), (&server, &client)] {
        let clear = to.session.payloads() == Some(Payloads::Clear);
        assert!(!clear || allowed == [Payloads::Clear; 2], "clear payloads that one end has not allowed");
        assert!(clear || from.sent.starts_with(&to.received), "something was delivered that was not sent");
        assert!(changed || (!from.sent.is_empty() && from.sent == to.received), "what was sent is missing");
    }
}

fuzz_target!(|data: &[u8]| {
    let [mode, step, rest @ ..] = data else { return };
    let step = usize::from(*step) * 17 + 1;
    let allowed = [1, 2].map(|bit| if mode & bit == 0 { Payloads::Encrypted } else { Payloads::Clear });
    if mode & 4 == 0 {
        stranger(rest, step, allowed);
    } else {
        let (changes, _) = rest.as_chunks::<4>();
        members(&changes[..changes.len().min(8)], step, allowed);
    }
});
