//! Proofs that the engine of this node shows to other engines, and the members that it believes
//! (R23). The engine has no files of its own for them: its agent states them, and again whenever
//! the record or the certificate of this node changes.

use crate::trust::{OwnTrust, believed};
use mainstay_api::engine::Proofs;
use mainstay_control::State;
use mainstay_types::HexBytes;

/// Everything but the private key. `None` while this node has no certificate, or the record no
/// members.
#[must_use]
pub fn engine_proofs(own: &OwnTrust, cluster: u64, state: &State) -> Option<Proofs> {
    let member = own.membership.as_ref().filter(|_| !state.identities.is_empty())?;
    let trust = believed(cluster, &state.identities, &member.ahead());
    let chain = std::iter::once(&member.certificate).chain(member.authorities.first());
    Some(Proofs {
        key: HexBytes::default(),
        chain: chain.map(|der| HexBytes(der.to_vec())).collect(),
        cluster,
        authorities: trust.authorities.iter().map(|der| HexBytes(der.to_vec())).collect(),
        members: trust.members.unwrap_or_default().into_iter().collect(),
        allows_clear: state.sends_clear(),
    })
}
