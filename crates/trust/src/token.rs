//! Tokens by which a node joins a cluster.
//!
//! A token is `mst_join_ID_REST`. ID is its public half: lists, events and the log show it. REST
//! holds the fingerprint of the authority, by which the node knows the cluster before it sends
//! anything, the secret, and a checksum, by which a mangled token is told from a wrong one. The
//! record keeps a hash: the secret has 160 random bits, so nobody finds it by trying.

use crate::TrustError;
use crate::key::fingerprint_of;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mainstay_types::Fingerprint;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use zeroize::Zeroizing;

/// Beginning of every token, by which programs that look for secrets know one.
pub const TOKEN_PREFIX: &str = "mst_join_";
const ID_DIGITS: usize = 16;
const SECRET_BYTES: usize = 20;
const CHECK_BYTES: usize = 4;
const REST_BYTES: usize = 32 + SECRET_BYTES + CHECK_BYTES;

/// A token. Its secret is wiped from memory when this is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: u64,
    authority: Fingerprint,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// The token without its secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TOKEN_PREFIX}{:016x}_…", self.id)
    }
}

/// Reasons why a text is no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadToken {
    #[error("a token begins with {TOKEN_PREFIX}")]
    Prefix,
    #[error("its checksum is wrong, so a part of it is missing or was changed")]
    Mangled,
}

/// The public half of a token, from the one form in which it is written.
pub(crate) fn read_id(digits: &str) -> Option<u64> {
    let is_written = digits.len() == ID_DIGITS && !digits.contains(['+', 'A', 'B', 'C', 'D', 'E', 'F']);
    is_written.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

impl Token {
    /// Makes a token for a cluster with this authority.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn make(authority: Fingerprint) -> Result<Self, TrustError> {
        let (random, mut id) = (SystemRandom::new(), [0; 8]);
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        random.fill(&mut id).and_then(|()| random.fill(&mut *secret)).map_err(|_| TrustError::Randomness)?;
        Ok(Self { id: u64::from_le_bytes(id), authority, secret })
    }

    /// Reads a token as an operator gives it. Space around it is left out.
    ///
    /// # Errors
    /// When it is none, or was mangled.
    pub fn read(text: &str) -> Result<Self, BadToken> {
        let rest = text.trim().strip_prefix(TOKEN_PREFIX).ok_or(BadToken::Prefix)?;
        let (id, rest) = rest.split_once('_').ok_or(BadToken::Mangled)?;
        let id = read_id(id).ok_or(BadToken::Mangled)?;
        // The decoder refuses what it has no room for.
        let mut bytes = Zeroizing::new([0; REST_BYTES]);
        let length = URL_SAFE_NO_PAD.decode_slice(rest, &mut *bytes).map_err(|_| BadToken::Mangled)?;
        let (authority, rest) = bytes.split_first_chunk::<32>().ok_or(BadToken::Mangled)?;
        let (secret, check) = rest.split_first_chunk::<SECRET_BYTES>().ok_or(BadToken::Mangled)?;
        let token = Self { id, authority: Fingerprint(*authority), secret: Zeroizing::new(*secret) };
        if length != REST_BYTES || token.check() != *check {
            return Err(BadToken::Mangled);
        }
        Ok(token)
    }

    /// The whole token. Secret: it is shown once, to the operator who made it.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let rest = Zeroizing::new([self.authority.0.as_slice(), &*self.secret, &self.check()].concat());
        let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(&*rest));
        Zeroizing::new(format!("{TOKEN_PREFIX}{:016x}_{}", self.id, *encoded))
    }

    /// Public half.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Fingerprint of the authority of the cluster that the token is for.
    #[must_use]
    pub fn authority(&self) -> Fingerprint {
        self.authority
    }

    /// Hash by which the record knows the token.
    #[must_use]
    pub fn hash(&self) -> Fingerprint {
        let parts =
            [b"mainstay join token".as_slice(), &self.id.to_le_bytes(), &self.authority.0, &*self.secret];
        fingerprint_of(&Zeroizing::new(parts.concat()))
    }

    fn check(&self) -> [u8; CHECK_BYTES] {
        let parts = [b"checksum".as_slice(), &self.id.to_le_bytes(), &self.authority.0, &*self.secret];
        let sum = fingerprint_of(&Zeroizing::new(parts.concat()));
        std::array::from_fn(|at| sum.0[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let token = Token::make(Fingerprint([9; 32])).unwrap();
        let text = token.text();
        assert!(text.starts_with(TOKEN_PREFIX) && text.len() == 9 + 16 + 1 + 75, "{}", text.len());
        assert_eq!(Token::read(&text).unwrap(), token);
        assert_eq!(Token::read(&format!(" {}\n", *text)).unwrap(), token);
        assert_eq!(
            (token.authority(), Token::read(&text).unwrap().hash()),
            (Fingerprint([9; 32]), token.hash())
        );
        let other = Token::make(Fingerprint([9; 32])).unwrap();
        assert!(other.id() != token.id() && other.hash() != token.hash());
    }

    #[test]
    fn a_mangled_token_is_told_as_such() {
        let text = Token::make(Fingerprint([9; 32])).unwrap().text();
        for at in TOKEN_PREFIX.len()..text.len() {
            let mut changed = text.as_bytes().to_vec();
            for byte in [b'0', b'f', b'F', b'_', b'-', b'+', b' ', 0] {
                changed[at] = byte;
                let changed = std::str::from_utf8(&changed).unwrap();
                if changed != *text {
                    assert_eq!(Token::read(changed), Err(BadToken::Mangled), "{changed:?}");
                }
            }
            assert_eq!(Token::read(&text[..at]), Err(BadToken::Mangled));
        }
        assert_eq!(Token::read(&format!("{}A", *text)), Err(BadToken::Mangled));
        for other in ["", "secret", "mst_", "mst_api_0000", "ghp_0000"] {
            assert_eq!(Token::read(other), Err(BadToken::Prefix), "{other}");
        }
    }

    #[test]
    fn what_is_shown_of_a_token_is_its_public_half() {
        let token = Token::make(Fingerprint([9; 32])).unwrap();
        let shown = format!("{token:?}");
        assert_eq!(shown, format!("{TOKEN_PREFIX}{:016x}_…", token.id()));
        let secret = URL_SAFE_NO_PAD.encode(*token.secret);
        assert!(!shown.contains(&secret[..6]));
    }
}
