//! Tokens by which people and programs from elsewhere use the API of the agents.
//!
//! A token is `mst_api_ID_REST`. ID is its public half. REST holds the secret and a checksum, by
//! which a mangled token is told from a wrong one. The record keeps a hash: the secret has 192
//! random bits, so nobody finds it by trying.

use crate::TrustError;
use crate::key::fingerprint_of;
use crate::token::read_id;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mainstay_types::Fingerprint;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use zeroize::Zeroizing;

/// Beginning of every such token, by which programs that look for secrets know one.
pub const API_TOKEN_PREFIX: &str = "mst_api_";
const SECRET_BYTES: usize = 24;
const CHECK_BYTES: usize = 4;
const REST_BYTES: usize = SECRET_BYTES + CHECK_BYTES;

/// A token of the API. Its secret is wiped from memory when this is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiToken {
    id: u64,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// The token without its secret.
impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{API_TOKEN_PREFIX}{:016x}_…", self.id)
    }
}

/// Reasons why a text is no token of the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadApiToken {
    #[error("a token of the API begins with {API_TOKEN_PREFIX}")]
    Prefix,
    #[error("the checksum of the token is wrong, so a part of it is missing or was changed")]
    Mangled,
}

impl ApiToken {
    /// Makes a new token.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn make() -> Result<Self, TrustError> {
        let (random, mut id) = (SystemRandom::new(), [0; 8]);
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        random.fill(&mut id).and_then(|()| random.fill(&mut *secret)).map_err(|_| TrustError::Randomness)?;
        Ok(Self { id: u64::from_le_bytes(id), secret })
    }

    /// Makes a token with the public half of another one: for tests of refusals.
    ///
    /// # Errors
    /// As [`ApiToken::make`].
    #[doc(hidden)]
    pub fn forged(id: u64) -> Result<Self, TrustError> {
        Ok(Self { id, ..Self::make()? })
    }

    /// Reads a token. Space around it is left out.
    ///
    /// # Errors
    /// When it is none, or was mangled.
    pub fn read(text: &str) -> Result<Self, BadApiToken> {
        let rest = text.trim().strip_prefix(API_TOKEN_PREFIX).ok_or(BadApiToken::Prefix)?;
        let (id, rest) = rest.split_once('_').ok_or(BadApiToken::Mangled)?;
        let id = read_id(id).ok_or(BadApiToken::Mangled)?;
        // The decoder refuses what it has no room for.
        let mut bytes = Zeroizing::new([0; REST_BYTES]);
        let length = URL_SAFE_NO_PAD.decode_slice(rest, &mut *bytes).map_err(|_| BadApiToken::Mangled)?;
        let (secret, check) = bytes.split_first_chunk::<SECRET_BYTES>().ok_or(BadApiToken::Mangled)?;
        let token = Self { id, secret: Zeroizing::new(*secret) };
        if length != REST_BYTES || token.check() != *check {
            return Err(BadApiToken::Mangled);
        }
        Ok(token)
    }

    /// The whole token. Secret: it is shown once, to the operator who made it, and sent to agents.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let rest = Zeroizing::new([self.secret.as_slice(), &self.check()].concat());
        let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(&*rest));
        Zeroizing::new(format!("{API_TOKEN_PREFIX}{:016x}_{}", self.id, *encoded))
    }

    /// Public half.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Hash by which the record knows the token.
    #[must_use]
    pub fn hash(&self) -> Fingerprint {
        let parts = [b"mainstay api token".as_slice(), &self.id.to_le_bytes(), &*self.secret];
        fingerprint_of(&Zeroizing::new(parts.concat()))
    }

    fn check(&self) -> [u8; CHECK_BYTES] {
        let parts = [b"api checksum".as_slice(), &self.id.to_le_bytes(), &*self.secret];
        let sum = fingerprint_of(&Zeroizing::new(parts.concat()));
        std::array::from_fn(|at| sum.0[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BadToken, Token};

    #[test]
    fn a_token_of_the_api_is_read_as_it_was_written() {
        let token = ApiToken::make().unwrap();
        let text = token.text();
        assert!(text.starts_with(API_TOKEN_PREFIX) && text.len() == 8 + 16 + 1 + 38, "{}", text.len());
        assert_eq!(ApiToken::read(&text).unwrap(), token);
        assert_eq!(ApiToken::read(&format!(" {}\n", *text)).unwrap().hash(), token.hash());
        let other = ApiToken::make().unwrap();
        assert!(other.id() != token.id() && other.hash() != token.hash());
    }

    #[test]
    fn a_mangled_token_of_the_api_is_told_as_such() {
        let text = ApiToken::make().unwrap().text();
        for at in API_TOKEN_PREFIX.len()..text.len() {
            let mut changed = text.as_bytes().to_vec();
            for byte in [b'0', b'f', b'F', b'_', b'-', b'+', b' ', 0] {
                changed[at] = byte;
                let changed = std::str::from_utf8(&changed).unwrap();
                // Space at the end is left out, and then the token is too short.
                if changed != *text {
                    assert_eq!(ApiToken::read(changed), Err(BadApiToken::Mangled), "{changed:?}");
                }
            }
            assert_eq!(ApiToken::read(&text[..at]), Err(BadApiToken::Mangled));
        }
        assert_eq!(ApiToken::read(&format!("{}A", *text)), Err(BadApiToken::Mangled));
        for other in ["", "secret", "mst_", "mst_join_0000", "ghp_0000"] {
            assert_eq!(ApiToken::read(other), Err(BadApiToken::Prefix), "{other}");
        }
    }

    #[test]
    fn a_token_of_one_kind_is_none_of_the_other() {
        let api = ApiToken::make().unwrap().text();
        let join = Token::make(Fingerprint([9; 32])).unwrap().text();
        assert_eq!(Token::read(&api), Err(BadToken::Prefix));
        assert_eq!(ApiToken::read(&join), Err(BadApiToken::Prefix));
        let renamed = join.replacen("mst_join_", API_TOKEN_PREFIX, 1);
        assert_eq!(ApiToken::read(&renamed), Err(BadApiToken::Mangled));
    }

    #[test]
    fn what_is_shown_of_a_token_of_the_api_is_its_public_half() {
        let token = ApiToken::make().unwrap();
        assert_eq!(format!("{token:?}"), format!("{API_TOKEN_PREFIX}{:016x}_…", token.id()));
    }
}
