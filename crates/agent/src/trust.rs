//! The keys and certificates of this node, in `<state>/trust.json`, which only root reads.
//!
//! Guarantees
//! - The file is replaced as a whole and durably. It is made with mode 0600, before it has content.
//! - A node that belongs to no cluster has a key and nothing else here. The key stays the same for
//!   all attempts to join.
//! - A member without its key, its certificate or the seal does not run: no other node would talk
//!   to it.

use crate::error::AgentError;
use mainstay_control::identities::{self, Identities};
use mainstay_pool::durable::write_private;
use mainstay_trust::{
    Authority, CertificateDer, Credentials, Issued, Key, SealKey, Trust, TrustError, Zeroizing,
    fingerprint_of,
};
use mainstay_types::HexBytes;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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
    /// Number of the authority that gave the certificate; 0 if it is not known.
    #[serde(default)]
    authority: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<StoredNext>,
}

#[derive(Serialize, Deserialize)]
struct StoredNext {
    authority: identities::Authority,
    seal: HexBytes,
}

impl StoredNext {
    fn read(self) -> Result<Next, TrustError> {
        let seal = SealKey::read(&Zeroizing::new(self.seal.0))?;
        Ok(Next { authority: self.authority, seal })
    }
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
    /// Number of the authority that gave the certificate; 0 until the record says it.
    pub number: u32,
    /// An authority that is to take the place of the present one.
    pub next: Option<Next>,
}

/// An authority that is announced or that this node wants to announce, with the key that opens it.
#[derive(Clone)]
pub struct Next {
    pub authority: identities::Authority,
    pub seal: SealKey,
}

impl Membership {
    /// The key that opens this authority of the record, as far as this node knows.
    #[must_use]
    pub fn seal_of(&self, authority: &identities::Authority) -> Option<&SealKey> {
        let is_it = |next: &&Next| next.authority.fingerprint == authority.fingerprint;
        let next = self.next.as_ref().filter(is_it).map(|next| &next.seal);
        let own = || (self.number == 0 || self.number == authority.number).then_some(&self.seal);
        next.or_else(own)
    }

    /// The number of an authority, by the record and by what this node has in its own file.
    #[must_use]
    pub fn number_of(&self, authority: &CertificateDer<'_>, known: &Identities) -> Option<u32> {
        let fingerprint = fingerprint_of(authority);
        let next = self.next.iter().map(|next| &next.authority);
        let mut known = known.authorities.values().chain(next);
        let found = known.find(|known| known.fingerprint == fingerprint).map(|known| known.number);
        let is_own = self.authorities.first().is_some_and(|own| own == authority) && self.number > 0;
        found.or_else(|| is_own.then_some(self.number))
    }

    /// Authorities that this node believes already if its record is behind: it has confirmed that
    /// it does, or shows a certificate of them.
    #[must_use]
    pub fn ahead(&self) -> Vec<(u32, CertificateDer<'static>)> {
        let own = self.authorities.first().filter(|_| self.number > 0);
        let own = own.map(|own| (self.number, own.clone()));
        let next = self.next.as_ref().map(|next| &next.authority);
        let next = next.map(|next| (next.number, CertificateDer::from(next.certificate.0.clone())));
        own.into_iter().chain(next).collect()
    }
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
                number: stored.authority,
                next: stored.next.map(StoredNext::read).transpose()?,
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
                authority: member.number,
                next: member.next.as_ref().map(|next| StoredNext {
                    authority: next.authority.clone(),
                    seal: HexBytes(next.seal.bytes().to_vec()),
                }),
            }),
        };
        let path = self.state_dir.join(FILE);
        let text = serde_json::to_vec(&stored).map(Zeroizing::new).map_err(io::Error::other);
        // The copies of the keys in `stored` are wiped, too.
        drop(Zeroizing::new(stored.key.0));
        if let Some(member) = stored.membership {
            drop(Zeroizing::new(member.seal.0));
            drop(member.next.map(|next| Zeroizing::new(next.seal.0)));
        }
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

    /// Takes a new certificate that authority `number` has given, and keeps it durably. With the
    /// first one of the next authority, that is the authority of this node.
    ///
    /// # Errors
    /// When the certificate is not for this node's key, or the disk fails. Nothing has changed
    /// then.
    pub fn renew(
        &mut self,
        issued: Issued,
        authorities: Vec<CertificateDer<'static>>,
        number: u32,
    ) -> Result<(), AgentError> {
        let Issued { certificate, until_ms } = issued;
        self.change(|own| {
            (own.certificate, own.until_ms, own.authorities, own.number) =
                (certificate, until_ms, authorities, number);
            if let Some(next) = own.next.take_if(|next| next.authority.number == number) {
                own.seal = next.seal;
            }
        })
    }

    /// Changes what this node has as a member, durably.
    ///
    /// # Errors
    /// When the certificate is not for this node's key, or the disk fails. Nothing has changed
    /// then.
    pub fn change(&mut self, change: impl FnOnce(&mut Membership)) -> Result<(), AgentError> {
        let Some(known) = self.membership.clone() else { return Ok(()) };
        if let Some(own) = self.membership.as_mut() {
            change(own);
        }
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

/// The same if the record of this node may be behind: `ahead` are the authorities that the node
/// believes already, with their numbers.
#[must_use]
pub fn believed(cluster: u64, known: &Identities, ahead: &[(u32, CertificateDer<'static>)]) -> Trust {
    let mut trust = recorded_trust(cluster, known);
    let last = known.last_number();
    trust.authorities.extend(ahead.iter().filter(|(number, _)| *number > last).map(|(_, der)| der.clone()));
    trust
}

/// An authority of the record, opened with its seal.
///
/// # Errors
/// When it was sealed with another key.
pub fn open_authority(
    cluster: u64,
    recorded: &identities::Authority,
    seal: &SealKey,
) -> Result<Authority, TrustError> {
    let key = seal.open(cluster, recorded.number, &recorded.sealed_key.0)?;
    let certificate = CertificateDer::from(recorded.certificate.0.clone());
    Authority::open(cluster, recorded.number, certificate, key)
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
        let seal = SealKey::generate().unwrap();
        Membership { certificate, until_ms, authorities, seal, number: 1, next: None }
    }

    /// An authority as the record has it, with its seal.
    fn next(number: u32) -> Next {
        let (authority, seal) = (Authority::make(7, number, NOW_MS).unwrap(), SealKey::generate().unwrap());
        let phase = identities::Phase::Announced;
        let authority = crate::agent::certificates::recorded_authority(7, number, &authority, &seal, phase);
        Next { authority: authority.unwrap(), seal }
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
        assert!(own.renew(issued, other.authorities, 1).is_err());
        assert_eq!(own.membership.as_ref().unwrap().until_ms, first.until_ms);
        let next = membership(&own.key);
        let issued = Issued { certificate: next.certificate.clone(), until_ms: next.until_ms + 1 };
        own.renew(issued, next.authorities, 1).unwrap();
        let kept = OwnTrust::load(state.path(), false).unwrap().membership.unwrap();
        assert_eq!((kept.certificate, kept.until_ms), (next.certificate, next.until_ms + 1));
    }
    /// The record without any authority, with the last number that one had.
    fn record(authorities: &[&identities::Authority], last_authority: u32) -> Identities {
        let authorities = authorities.iter().map(|known| (known.number, (*known).clone())).collect();
        Identities { authorities, last_authority, ..Identities::default() }
    }

    #[test]
    fn the_seal_of_the_next_authority_is_kept_until_its_first_certificate_replaces_the_present_one() {
        let state = tempfile::tempdir().unwrap();
        let mut own = OwnTrust::load(state.path(), false).unwrap();
        own.membership = Some(membership(&own.key));
        own.save().unwrap();
        let (next, other) = (next(2), next(2));
        let kept = next.clone();
        own.change(|own| own.next = Some(kept)).unwrap();
        let mut own = OwnTrust::load(state.path(), true).unwrap();
        let known = own.membership.clone().unwrap();
        let opens = |member: &Membership, recorded: &identities::Authority| {
            member.seal_of(recorded).is_some_and(|seal| open_authority(7, recorded, seal).is_ok())
        };
        assert!(opens(&known, &next.authority) && !opens(&known, &other.authority));
        let der = CertificateDer::from(next.authority.certificate.0.clone());
        assert_eq!(known.number_of(&der, &Identities::default()), Some(2));
        // Until it is the present one, a renewal by the present one leaves it.
        let issued = Issued { certificate: known.certificate.clone(), until_ms: 1 };
        own.renew(issued.clone(), known.authorities.clone(), 1).unwrap();
        assert!(opens(own.membership.as_ref().unwrap(), &next.authority));
        own.renew(issued, vec![der], 2).unwrap();
        let own = OwnTrust::load(state.path(), true).unwrap().membership.unwrap();
        assert!(own.next.is_none() && opens(&own, &next.authority));
        assert_eq!(own.seal.bytes(), next.seal.bytes(), "the seal of the earlier authority is gone");
    }

    #[test]
    fn a_node_whose_record_is_behind_believes_what_it_has_confirmed_and_nothing_that_is_gone() {
        let key = Key::generate().unwrap();
        let mut own = membership(&key);
        own.next = Some(next(2));
        let second = own.next.clone().unwrap().authority;
        let behind = believed(7, &record(&[], 1), &own.ahead());
        assert_eq!(behind.authorities.len(), 1, "authority 2 alone is ahead of this record");
        assert_eq!(believed(7, &record(&[&second], 2), &own.ahead()).authorities.len(), 1);
        assert!(believed(7, &record(&[], 2), &own.ahead()).authorities.is_empty(), "it was withdrawn");
    }

    /// An earlier build wrote no numbers.
    #[test]
    fn a_file_without_numbers_of_authorities_is_read() {
        let state = tempfile::tempdir().unwrap();
        let mut own = OwnTrust::load(state.path(), false).unwrap();
        own.membership = Some(membership(&own.key));
        own.save().unwrap();
        let path = state.path().join(FILE);
        let mut kept: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        kept["membership"].as_object_mut().unwrap().remove("authority").unwrap();
        fs::write(&path, kept.to_string()).unwrap();
        let own = OwnTrust::load(state.path(), true).unwrap().membership.unwrap();
        assert!(own.number == 0 && own.next.is_none() && own.ahead().is_empty());
        let first = next(1).authority;
        assert!(own.seal_of(&first).is_some(), "the only seal that it has");
    }
}
