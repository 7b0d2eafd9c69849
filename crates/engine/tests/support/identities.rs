//! Keys and certificates of the nodes of a cluster that exists in one test process only.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use mainstay_api::engine::Proofs;
use mainstay_engine::transport::Identities;
use mainstay_trust::{Authority, Credentials, Key, Payloads, Subject, Trust};
use mainstay_types::{HexBytes, NodeId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of the cluster in the certificates.
const CLUSTER: u64 = 77;
const NOW_MS: u64 = 1_800_000_000_000;
const NODES: u32 = 99;

struct Made {
    authority: Authority,
    keys: BTreeMap<u32, Key>,
}

fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let authority = Authority::make(CLUSTER, 1, NOW_MS).expect("an authority");
        let keys = (1..=NODES).map(|node| (node, Key::generate().expect("a key"))).collect();
        Made { authority, keys }
    })
}

fn chain(node: u32) -> Vec<mainstay_trust::CertificateDer<'static>> {
    let made = made();
    let subject = Subject { cluster: CLUSTER, node: NodeId(node) };
    let issued = made.authority.issue(subject, &made.keys[&node].public(), NOW_MS).expect("a certificate");
    vec![issued.certificate, made.authority.certificate().clone()]
}

/// Proofs of a node, and the other nodes of the cluster as members.
pub fn identities(node: u32, allowed: Payloads) -> Identities {
    let made = made();
    let own = Credentials::new(&made.keys[&node], chain(node)).expect("its own certificate");
    let members = made.keys.iter().map(|(node, key)| (NodeId(*node), key.public().fingerprint()));
    let trust = Trust {
        cluster: Some(CLUSTER),
        authorities: vec![made.authority.certificate().clone()],
        members: Some(members.collect()),
    };
    Identities { own, trust: Arc::new(trust), allowed }
}

/// Whether engines that are told their proofs from now on may leave payloads unencrypted.
pub static ALLOWS_CLEAR: AtomicBool = AtomicBool::new(false);

/// The same, as an agent tells it to its engine.
pub fn proofs(node: u32) -> Proofs {
    let made = made();
    let trust = identities(node, Payloads::Encrypted).trust;
    Proofs {
        key: HexBytes(made.keys[&node].pkcs8().to_vec()),
        chain: chain(node).iter().map(|der| HexBytes(der.to_vec())).collect(),
        cluster: CLUSTER,
        authorities: trust.authorities.iter().map(|der| HexBytes(der.to_vec())).collect(),
        members: trust.members.clone().expect("listed").into_iter().collect(),
        allows_clear: ALLOWS_CLEAR.load(Ordering::Relaxed),
    }
}
