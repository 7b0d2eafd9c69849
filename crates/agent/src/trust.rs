//! The keys and certificates of this node, in `<state>/trust.json`, which only root reads.
//!
//! Guarantees
//! - The file is replaced as a whole and durably. It is made with mode 0600, before it has content.
//! - A node that belongs to no cluster has a key and nothing else here. The key stays the same for
//!   all attempts to join.
//! - A member without its key, its certificate or the seal does not run: no other node would talk
//!   to it.

use crate::error::AgentError;
use mainstay_control::identities::Identities;
use mainstay_pool::durable::write_private;
use mainstay_trust::{
    Authority, CertificateDer, Credentials, Issued, Key, SealKey, Trust, TrustError, Zeroizing,
};
use mainstay_types::HexBytes;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const FILE: &str = "trust.json";

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Private key, in PKCS #8.
    key: HexBytes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    membership: Option<StoredMembership>,
}

#[derive(Serialize, Deserialize)]
struct StoredMembership {
    certificate: HexBytes,
    until_ms: u64,
    /// Certificates of the cluster's authorities as of when this was written, the one that gave the
    /// certificate first.
    authorities: Vec<HexBytes>,
    /// Key with which the authority's key is sealed in the record.
    seal: HexBytes,
}

/// See the top of this file.
pub struct OwnTrust {
    state_dir: PathBuf,
    pub key: Key,
    pub membership: Option<Membership>,
}

/// Certificates of a member.
#[derive(Clone)]
pub struct Membership {
    pub certificate: CertificateDer<'static>,
    /// End of the certificate, in milliseconds since 1970.
    pub until_ms: u64,
    /// The authority that gave the certificate is the first.
    pub authorities: Vec<CertificateDer<'static>>,
    pub seal: SealKey,
}

impl OwnTrust {
    /// Reads the file. If there is none, a node that is no member gets a key.
    ///
    /// # Errors
    /// When the file is damaged or cannot be read or written.
    pub fn load(state_dir: &Path, is_member: bool) -> Result<Self, AgentError> {
        let path = state_dir.join(FILE);
        let damaged = |what: String| AgentError::TrustLost { path: path.clone(), what };
        let text = match fs::read(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_member => {
                return Err(damaged("is missing".to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = Key::generate().map_err(|error| damaged(error.to_string()))?;
                let own = Self { state_dir: state_dir.to_path_buf(), key, membership: None };
                own.save()?;
                return Ok(own);
            }
            Err(source) => return Err(AgentError::File { path, source }),
        };
        let stored: Stored =
            serde_json::from_slice(&text).map_err(|error| damaged(format!("is damaged: {error}")))?;
        let bad = |error: TrustError| damaged(format!("is damaged: {error}"));
        let key = Key::read(Zeroizing::new(stored.key.0)).map_err(bad)?;
        let membership = stored.membership.map(|stored| -> Result<Membership, TrustError> {
            Ok(Membership {
                certificate: CertificateDer::from(stored.certificate.0),
                until_ms: stored.until_ms,
                authorities: stored.authorities.into_iter().map(|der| CertificateDer::from(der.0)).collect(),
                seal: SealKey::read(&Zeroizing::new(stored.seal.0))?,
            })
        });
        let membership = membership.transpose().map_err(bad)?;
        let own = Self { state_dir: state_dir.to_path_buf(), key, membership };
        own.credentials().map_err(bad)?;
        Ok(own)
    }

    /// # Errors
    /// When the file may not survive a power cut.
    pub fn save(&self) -> Result<(), AgentError> {
        let stored = Stored {
            key: HexBytes(self.key.pkcs8().to_vec()),
            membership: self.membership.as_ref().map(|member| StoredMembership {
                certificate: HexBytes(member.certificate.to_vec()),
                until_ms: member.until_ms,
                authorities: member.authorities.iter().map(|der| HexBytes(der.to_vec())).collect(),
                seal: HexBytes(member.seal.bytes().to_vec()),
            }),
        };
        let path = self.state_dir.join(FILE);
        let text = serde_json::to_vec(&stored).map(Zeroizing::new).map_err(io::Error::other);
        // The copies of the keys in `stored` are wiped, too.
        let (_, _) =
            (Zeroizing::new(stored.key.0), stored.membership.map(|member| Zeroizing::new(member.seal.0)));
        text.and_then(|text| write_private(&path, &text)).map_err(|source| AgentError::File { path, source })
    }

    /// Key and certificates that this node shows.
    ///
    /// # Errors
    /// When the certificate is not for the key.
    pub fn credentials(&self) -> Result<Credentials, TrustError> {
        match &self.membership {
            None => Credentials::newcomer(&self.key),
            Some(member) => {
                let chain = std::iter::once(&member.certificate).chain(member.authorities.first());
                Credentials::new(&self.key, chain.cloned().collect())
            }
        }
    }

    /// Returns whom this node believes before it has the record. `cluster`: number of its cluster.
    #[must_use]
    pub fn first_trust(&self, cluster: Option<u64>) -> Trust {
        let authorities = self.membership.iter().flat_map(|member| member.authorities.clone()).collect();
        Trust { cluster, authorities, members: None }
    }

    /// Takes a new certificate, and keeps it durably.
    ///
    /// # Errors
    /// When the certificate is not for this node's key, or the disk fails. Nothing has changed
    /// then.
    pub fn renew(
        &mut self,
        issued: Issued,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<(), AgentError> {
        let Some(known) = self.membership.clone() else { return Ok(()) };
        let Issued { certificate, until_ms } = issued;
        self.membership = Some(Membership { certificate, until_ms, authorities, seal: known.seal.clone() });
        let kept = self
            .credentials()
            .map_err(|error| AgentError::Fatal(error.to_string()))
            .and_then(|_| self.save());
        if kept.is_err() {
            self.membership = Some(known);
        }
        kept
    }
}

/// Returns whom a node believes that has the record.
#[must_use]
pub fn recorded_trust(cluster: u64, known: &Identities) -> Trust {
    let der = |authority: &mainstay_control::identities::Authority| {
        CertificateDer::from(authority.certificate.0.clone())
    };
    Trust {
        cluster: Some(cluster),
        authorities: known.authorities.values().map(der).collect(),
        members: Some(known.members.iter().map(|(node, known)| (*node, known.key)).collect()),
    }
}

/// The authority of the record, opened with this node's seal.
///
/// # Errors
/// When the record has none, or it was sealed with another key.
pub fn open_authority(
    cluster: u64,
    known: &Identities,
    seal: &SealKey,
) -> Result<(u32, Arc<Authority>), TrustError> {
    let issuing = known.issuing().ok_or(TrustError::NotSealedHere)?;
    let key = seal.open(cluster, issuing.number, &issuing.sealed_key.0)?;
    let certificate = CertificateDer::from(issuing.certificate.0.clone());
    Ok((issuing.number, Arc::new(Authority::open(cluster, issuing.number, certificate, key)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_trust::Subject;
    use mainstay_types::NodeId;
    use std::os::unix::fs::PermissionsExt;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn membership(key: &Key) -> Membership {
        let authority = Authority::make(7, 1, NOW_MS).unwrap();
        let subject = Subject { cluster: 7, node: NodeId(1) };
        let Issued { certificate, until_ms } = authority.issue(subject, &key.public(), NOW_MS).unwrap();
        let authorities = vec![authority.certificate().clone()];
        Membership { certificate, until_ms, authorities, seal: SealKey::generate().unwrap() }
    }

    #[test]
    fn keys_are_kept_in_a_file_that_only_root_reads() {
        let state = tempfile::tempdir().unwrap();
        let mut own = OwnTrust::load(state.path(), false).unwrap();
        let mode = || state.path().join(FILE).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(), own.credentials().unwrap().chain().len()), (0o600, 1));
        let same = OwnTrust::load(state.path(), false).unwrap();
        assert_eq!(same.key.public(), own.key.public(), "each attempt to join has the same key");
        let member = membership(&own.key);
        own.membership = Some(member.clone());
        own.save().unwrap();
        let same = OwnTrust::load(state.path(), false).unwrap();
        assert_eq!((mode(), same.credentials().unwrap().chain().len()), (0o600, 2));
        let kept = same.membership.unwrap();
        assert_eq!((kept.until_ms, kept.seal.bytes()), (member.until_ms, member.seal.bytes()));
        assert_eq!((kept.certificate, kept.authorities), (member.certificate, member.authorities));
    }

    #[test]
    fn a_member_without_the_file_gets_no_new_key() {
        let state = tempfile::tempdir().unwrap();
        assert!(matches!(OwnTrust::load(state.path(), true), Err(AgentError::TrustLost { .. })));
        assert!(!state.path().join(FILE).exists());
    }

    #[test]
    fn a_damaged_file_is_told_and_not_replaced() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join(FILE);
        for bad in ["", "{}", "{\"key\":\"00\"}", "{\"key\":\"zz\"}"] {
            fs::write(&path, bad).unwrap();
            assert!(
                matches!(OwnTrust::load(state.path(), false), Err(AgentError::TrustLost { .. })),
                "{bad}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), bad);
        }
        // A certificate for another key.
        fs::remove_file(&path).unwrap();
        let mut own = OwnTrust::load(state.path(), false).unwrap();
        own.membership = Some(membership(&Key::generate().unwrap()));
        own.save().unwrap();
        assert!(matches!(OwnTrust::load(state.path(), false), Err(AgentError::TrustLost { .. })));
    }

    #[test]
    fn a_certificate_for_another_key_is_not_taken() {
        let state = tempfile::tempdir().unwrap();
        let mut own = OwnTrust::load(state.path(), false).unwrap();
        let first = membership(&own.key);
        own.membership = Some(first.clone());
        let other = membership(&Key::generate().unwrap());
        let issued = Issued { certificate: other.certificate, until_ms: 1 };
        assert!(own.renew(issued, other.authorities).is_err());
        assert_eq!(own.membership.as_ref().unwrap().until_ms, first.until_ms);
        let next = membership(&own.key);
        let issued = Issued { certificate: next.certificate.clone(), until_ms: next.until_ms + 1 };
        own.renew(issued, next.authorities).unwrap();
        let kept = OwnTrust::load(state.path(), false).unwrap().membership.unwrap();
        assert_eq!((kept.certificate, kept.until_ms), (next.certificate, next.until_ms + 1));
    }
}
