//! How the authority's key lies in the record: sealed with a key that only the members have.
//!
//! The record goes into the log of every member, into snapshots of that log, into backups and into
//! what an operator sends to somebody for help. The seal's key lies in a file of mode 0600 on each
//! member and in none of those.

use crate::TrustError;
use crate::key::Key;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of the seal's key.
pub const SEAL_KEY_BYTES: usize = 32;
/// First byte of what is sealed.
const VERSION: u8 = 1;

/// Key with which the members of a cluster seal and open the key of their authority.
#[derive(Clone)]
pub struct SealKey(Zeroizing<[u8; SEAL_KEY_BYTES]>);

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(…)")
    }
}

impl SealKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn generate() -> Result<Self, TrustError> {
        let mut bytes = Zeroizing::new([0; SEAL_KEY_BYTES]);
        SystemRandom::new().fill(&mut *bytes).map_err(|_| TrustError::Randomness)?;
        Ok(Self(bytes))
    }

    /// Reads a key as [`SealKey::bytes`] gives it.
    ///
    /// # Errors
    /// When it has another length.
    pub fn read(bytes: &[u8]) -> Result<Self, TrustError> {
        bytes.try_into().map(|bytes| Self(Zeroizing::new(bytes))).map_err(|_| TrustError::BadKey)
    }

    /// Secret: goes only into files of mode 0600, and to a node that is let in.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }

    fn cipher(&self) -> Result<LessSafeKey, TrustError> {
        UnboundKey::new(&AES_256_GCM, &*self.0).map(LessSafeKey::new).map_err(|_| TrustError::BadKey)
    }

    /// Seals the key of an authority of this cluster. The result can be opened only for the same
    /// cluster and the same authority.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn seal(&self, cluster: u64, authority: u32, key: &Key) -> Result<Vec<u8>, TrustError> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| TrustError::Randomness)?;
        let mut text = Zeroizing::new(key.pkcs8().to_vec());
        let bound = Aad::from(binding(cluster, authority));
        let tag = self
            .cipher()?
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), bound, &mut text)
            .map_err(|_| TrustError::BadKey)?;
        Ok([&[VERSION], nonce.as_slice(), &text, tag.as_ref()].concat())
    }

    /// Opens what [`SealKey::seal`] made.
    ///
    /// # Errors
    /// When it was sealed with another key or for another authority, or was changed.
    pub fn open(&self, cluster: u64, authority: u32, sealed: &[u8]) -> Result<Key, TrustError> {
        let (&version, rest) = sealed.split_first().ok_or(TrustError::NotSealedHere)?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>().ok_or(TrustError::NotSealedHere)?;
        if version != VERSION {
            return Err(TrustError::NotSealedHere);
        }
        let mut text = Zeroizing::new(rest.to_vec());
        let bound = Aad::from(binding(cluster, authority));
        let opened = self.cipher()?.open_in_place(Nonce::assume_unique_for_key(*nonce), bound, &mut text);
        let length = opened.map_err(|_| TrustError::NotSealedHere)?.len();
        Key::read(Zeroizing::new(text[..length].to_vec()))
    }
}

/// Bytes that are authenticated with the key: what it is, and of which authority.
fn binding(cluster: u64, authority: u32) -> Vec<u8> {
    [b"mainstay authority key".as_slice(), &cluster.to_le_bytes(), &authority.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_key_opens_only_with_its_seal_and_for_its_authority() {
        let (seal, key) = (SealKey::generate().unwrap(), Key::generate().unwrap());
        let sealed = seal.seal(7, 1, &key).unwrap();
        assert_eq!(seal.open(7, 1, &sealed).unwrap().public(), key.public());
        let same = SealKey::read(seal.bytes()).unwrap();
        assert_eq!(same.open(7, 1, &sealed).unwrap().public(), key.public());
        assert!(seal.open(8, 1, &sealed).is_err(), "another cluster");
        assert!(seal.open(7, 2, &sealed).is_err(), "another authority");
        assert!(SealKey::generate().unwrap().open(7, 1, &sealed).is_err(), "another seal");
        assert_ne!(seal.seal(7, 1, &key).unwrap(), sealed, "each is sealed with a nonce of its own");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(seal.open(7, 1, &changed).is_err(), "byte {at}");
            assert!(seal.open(7, 1, &sealed[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn nothing_secret_is_in_what_is_sealed_or_shown() {
        let (seal, key) = (SealKey::generate().unwrap(), Key::generate().unwrap());
        let sealed = seal.seal(7, 1, &key).unwrap();
        let has = |secret: &[u8]| sealed.windows(8).any(|part| secret.windows(8).any(|other| part == other));
        assert!(!has(key.pkcs8()) && !has(seal.bytes()));
        assert_eq!(format!("{seal:?}"), "SealKey(…)");
        assert!(SealKey::read(&[0; 31]).is_err());
    }
}
