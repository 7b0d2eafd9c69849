//! The authority of a cluster, and the certificates that it gives to nodes.
//!
//! An authority is a key and a certificate of its own for it. A cluster has one, or two while the
//! second one replaces the first; its number tells them apart.

use crate::TrustError;
use crate::key::{Key, PublicKey, fingerprint_of};
use crate::subject::Subject;
use mainstay_types::Fingerprint;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Life of a node's certificate.
pub const LIFE_MS: u64 = 30 * DAY_MS;
/// Time before its end at which a node's certificate is to be renewed: after two thirds of its
/// life.
pub const RENEWAL_MS: u64 = LIFE_MS / 3;
/// Clocks of nodes may differ by this much: a certificate is valid from this long before it was
/// made.
pub const CLOCKS_DIFFER_MS: u64 = 60 * 60 * 1000;
/// Life of an authority's certificate. Nodes trust an authority because the record names it, and
/// do not look at this; other programs do.
const AUTHORITY_LIFE_MS: u64 = 20 * 365 * DAY_MS;
/// Name in the certificate that a node makes for itself until a cluster has let it in.
pub(crate) const NEWCOMER: &str = "mainstay:newcomer";

/// A certificate of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Issued {
    pub certificate: CertificateDer<'static>,
    /// End of its life, in milliseconds since 1970.
    pub until_ms: u64,
}

/// Whether a certificate that ends at `until_ms` is to be renewed at `now_ms`. A life that is
/// longer than any that this release gives is one of a wrong clock.
#[must_use]
pub fn is_due(until_ms: u64, now_ms: u64) -> bool {
    let left_ms = until_ms.saturating_sub(now_ms);
    left_ms <= RENEWAL_MS || left_ms > LIFE_MS + CLOCKS_DIFFER_MS
}

/// An authority with its key.
#[derive(Debug)]
pub struct Authority {
    cluster: u64,
    number: u32,
    certificate: CertificateDer<'static>,
    key: Key,
}

impl Authority {
    /// Makes an authority for a cluster. `now_ms`: wall clock, in milliseconds since 1970.
    ///
    /// # Errors
    /// When the kernel gives no randomness, or the clock is outside of what certificates can say.
    pub fn make(cluster: u64, number: u32, now_ms: u64) -> Result<Self, TrustError> {
        let key = Key::generate()?;
        let mut params = named(cluster, number);
        (params.not_before, params.not_after) = life(now_ms, AUTHORITY_LIFE_MS)?;
        params.serial_number = Some(serial()?);
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { cluster, number, certificate, key })
    }

    /// Takes up an authority whose certificate is in the record and whose key was sealed there.
    ///
    /// # Errors
    /// When the key is not that of the certificate.
    pub fn open(
        cluster: u64,
        number: u32,
        certificate: CertificateDer<'static>,
        key: Key,
    ) -> Result<Self, TrustError> {
        if PublicKey::in_certificate(&certificate) != Some(key.public()) {
            return Err(TrustError::NotSealedHere);
        }
        Ok(Self { cluster, number, certificate, key })
    }

    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint_of(&self.certificate)
    }

    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Gives a node a certificate for its key. The caller has seen that the node has the key: each
    /// handshake proves that.
    ///
    /// # Errors
    /// When the kernel gives no randomness, or the clock is outside of what certificates can say.
    pub fn issue(&self, subject: Subject, key: &PublicKey, now_ms: u64) -> Result<Issued, TrustError> {
        let mut params = node_params(&subject.to_string())?;
        (params.not_before, params.not_after) = life(now_ms, LIFE_MS)?;
        self.sign(params, key, now_ms + LIFE_MS)
    }

    pub(crate) fn sign(
        &self,
        params: CertificateParams,
        key: &PublicKey,
        until_ms: u64,
    ) -> Result<Issued, TrustError> {
        let own = named(self.cluster, self.number);
        let certificate = params.signed_by(key, &Issuer::from_params(&own, &self.key))?;
        Ok(Issued { certificate: certificate.der().clone(), until_ms })
    }

    /// Makes a certificate as no release of Mainstay makes it: for tests of refusals.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    #[doc(hidden)]
    pub fn issue_oddly(
        &self,
        name: &str,
        key: &PublicKey,
        now_ms: u64,
        uses: &[ExtendedKeyUsagePurpose],
    ) -> Result<CertificateDer<'static>, TrustError> {
        let mut params = node_params(name)?;
        params.extended_key_usages = uses.to_vec();
        (params.not_before, params.not_after) = life(now_ms, LIFE_MS)?;
        Ok(self.sign(params, key, 0)?.certificate)
    }
}

/// The certificate that a node makes for itself, until a cluster has let it in. It says nothing but
/// the key.
///
/// # Errors
/// When the kernel gives no randomness.
pub fn newcomer(key: &Key) -> Result<CertificateDer<'static>, TrustError> {
    Ok(node_params(NEWCOMER)?.self_signed(key)?.der().clone())
}

fn named(cluster: u64, number: u32) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("mainstay cluster {cluster:016x} authority {number}"));
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn node_params(name: &str) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(serial()?);
    Ok(params)
}

/// Beginning and end of a life that begins now.
pub(crate) fn life(now_ms: u64, life_ms: u64) -> Result<(OffsetDateTime, OffsetDateTime), TrustError> {
    let at = |ms: u64| {
        let seconds = i64::try_from(ms / 1000).map_err(|_| TrustError::Clock)?;
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| TrustError::Clock)
    };
    Ok((at(now_ms.saturating_sub(CLOCKS_DIFFER_MS))?, at(now_ms.saturating_add(life_ms))?))
}

pub(crate) fn serial() -> Result<SerialNumber, TrustError> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| TrustError::Randomness)?;
    // A positive number, without leading zeros.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::NodeId;

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn an_authority_is_taken_up_only_with_its_own_key() {
        let authority = Authority::make(7, 1, NOW_MS).unwrap();
        let key = |authority: &Authority| Key::read(authority.key().pkcs8().to_vec().into()).unwrap();
        let same = Authority::open(7, 1, authority.certificate().clone(), key(&authority)).unwrap();
        assert_eq!(same.fingerprint(), authority.fingerprint());
        let other = Authority::make(7, 1, NOW_MS).unwrap();
        assert_ne!(other.fingerprint(), authority.fingerprint());
        assert!(Authority::open(7, 1, authority.certificate().clone(), key(&other)).is_err());
    }

    #[test]
    fn a_certificate_is_due_after_two_thirds_of_its_life() {
        let authority = Authority::make(7, 1, NOW_MS).unwrap();
        let key = Key::generate().unwrap().public();
        let issued = authority.issue(Subject { cluster: 7, node: NodeId(1) }, &key, NOW_MS).unwrap();
        assert_eq!(issued.until_ms, NOW_MS + LIFE_MS);
        assert!(!is_due(issued.until_ms, NOW_MS) && !is_due(issued.until_ms, NOW_MS + 20 * DAY_MS - 1));
        assert!(
            is_due(issued.until_ms, NOW_MS + 20 * DAY_MS) && is_due(issued.until_ms, NOW_MS + LIFE_MS * 2)
        );
        // It was given by a clock that was a year ahead.
        assert!(is_due(issued.until_ms, NOW_MS - 365 * DAY_MS));
    }

    #[test]
    fn a_clock_that_certificates_cannot_say_is_an_error() {
        assert!(matches!(Authority::make(7, 1, u64::MAX), Err(TrustError::Clock)));
        assert!(Authority::make(7, 1, 0).is_ok());
    }
}
