//! Keys of nodes and authorities: ECDSA on the curve P-256.

use crate::TrustError;
use mainstay_types::Fingerprint;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::pki_types::CertificateDer;
use std::fmt;
use zeroize::Zeroizing;

/// Beginning of every public key on this curve, as certificates contain it (RFC 5480): the names of
/// the algorithm and the curve. The point follows.
const PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Bytes of an uncompressed point.
const POINT_BYTES: usize = 65;
/// First byte of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// SHA-256 of these bytes.
#[must_use]
pub fn fingerprint_of(bytes: &[u8]) -> Fingerprint {
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest(&SHA256, bytes).as_ref());
    Fingerprint(fingerprint)
}

/// The public half of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey {
    point: [u8; POINT_BYTES],
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

impl PublicKey {
    /// Reads a key as a certificate contains it (`SubjectPublicKeyInfo`). `None` if it is on
    /// another curve or of another kind.
    #[must_use]
    pub fn read(spki: &[u8]) -> Option<Self> {
        let point: [u8; POINT_BYTES] = spki.strip_prefix(&PREFIX)?.try_into().ok()?;
        (point[0] == UNCOMPRESSED).then_some(Self { point })
    }

    /// The key that a certificate is for.
    #[must_use]
    pub fn in_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
        Self::read(&certificate.subject_public_key_info())
    }

    /// SHA-256 of the key as a certificate contains it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint_of(&[PREFIX.as_slice(), &self.point].concat())
    }
}

impl rcgen::PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// A private key. Its encoding is wiped from memory when this is dropped; the copy that `ring`
/// computes with is freed without that.
pub struct Key {
    pkcs8: Zeroizing<Vec<u8>>,
    pair: EcdsaKeyPair,
    public: PublicKey,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(of {:?})", self.public)
    }
}

impl Key {
    /// Makes a new key.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn generate() -> Result<Self, TrustError> {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random);
        let made = made.map_err(|_| TrustError::Randomness)?;
        Self::read(Zeroizing::new(made.as_ref().to_vec()))
    }

    /// Reads a key as [`Key::pkcs8`] wrote it.
    ///
    /// # Errors
    /// When it is no such key.
    pub fn read(pkcs8: Zeroizing<Vec<u8>>) -> Result<Self, TrustError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &pkcs8, &SystemRandom::new());
        let pair = pair.map_err(|_| TrustError::BadKey)?;
        let point = pair.public_key().as_ref().try_into().map_err(|_| TrustError::BadKey)?;
        Ok(Self { pkcs8, pair, public: PublicKey { point } })
    }

    /// The key in PKCS #8. Secret: goes only into files of mode 0600, or sealed.
    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl rcgen::PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.public.point
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature = self.pair.sign(&SystemRandom::new(), message);
        signature.map(|signature| signature.as_ref().to_vec()).map_err(|_| rcgen::Error::RingUnspecified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::PublicKeyData;

    #[test]
    fn a_key_is_read_as_it_was_written_and_shows_nothing_secret() {
        let key = Key::generate().unwrap();
        let same = Key::read(Zeroizing::new(key.pkcs8().to_vec())).unwrap();
        assert_eq!(same.public(), key.public());
        assert_ne!(Key::generate().unwrap().public(), key.public());
        let shown = format!("{key:?}");
        assert!(shown.contains(&key.public().fingerprint().to_string()), "{shown}");
        assert!(Key::read(Zeroizing::new(key.pkcs8()[1..].to_vec())).is_err());
        assert!(Key::read(Zeroizing::new(Vec::new())).is_err());
    }

    #[test]
    fn a_public_key_is_read_only_in_the_one_form_that_is_used() {
        let key = Key::generate().unwrap();
        let spki = key.subject_public_key_info();
        assert_eq!(PublicKey::read(&spki), Some(key.public()));
        assert_eq!(fingerprint_of(&spki), key.public().fingerprint());
        for length in 0..spki.len() {
            assert_eq!(PublicKey::read(&spki[..length]), None);
        }
        let mut compressed = spki.clone();
        compressed[26] = 2;
        assert_eq!(PublicKey::read(&compressed), None);
        assert_eq!(PublicKey::read(&[spki.as_slice(), &[0]].concat()), None);
    }
}
