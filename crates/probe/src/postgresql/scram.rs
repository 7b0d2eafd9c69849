//! The login by SCRAM-SHA-256: RFC 5802 and RFC 7677.
//!
//! Both sides prove that they know the password. Passwords are taken byte by byte: those outside of
//! ASCII are not brought to a normal form (SASLprep).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use ring::hmac::{self, HMAC_SHA256, Key};
use ring::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use std::num::NonZeroU32;

pub const MECHANISM: &str = "SCRAM-SHA-256";
/// Most rounds that a server may ask for: they cost the probe time. PostgreSQL's default is 4096.
const ROUNDS_MAX: u32 = 1_000_000;
/// Bytes of the client's random number.
const NONCE_BYTES: usize = 18;
/// Base64 of "n,,": no channel binding.
const BINDING: &str = "biws";

/// A login that has begun.
#[derive(Clone)]
pub struct Scram {
    password: Vec<u8>,
    nonce: String,
    /// The signature that proves that the server knows the password.
    expected: Option<Vec<u8>>,
    is_proven: bool,
}

impl Scram {
    /// `None` if the system has no random numbers.
    pub fn begin(password: &[u8]) -> Option<Self> {
        let mut random = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut random).ok()?;
        Some(Self::with_nonce(password, STANDARD.encode(random)))
    }

    fn with_nonce(password: &[u8], nonce: String) -> Self {
        Self { password: password.to_vec(), nonce, expected: None, is_proven: false }
    }

    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// The user is in the first message of the connection, and the server takes it from there.
    fn first_bare(&self) -> String {
        format!("n=,r={}", self.nonce)
    }

    /// Body of the client's first message.
    pub fn first_message(&self) -> Vec<u8> {
        let first = format!("n,,{}", self.first_bare());
        let mut body = format!("{MECHANISM}\0").into_bytes();
        body.extend_from_slice(&u32::try_from(first.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend_from_slice(first.as_bytes());
        body
    }

    /// The next state and the answer to the server's first message.
    pub fn answer(&self, first: &[u8]) -> Result<(Self, Vec<u8>), &'static str> {
        const UNREADABLE: &str = "the server's part of the login by SCRAM is not readable";
        if self.expected.is_some() {
            return Err("the server repeats a part of the login by SCRAM");
        }
        let first = std::str::from_utf8(first).map_err(|_| UNREADABLE)?;
        let field = |name: &str| first.split(',').find_map(|part| part.strip_prefix(name)).ok_or(UNREADABLE);
        let nonce = field("r=")?;
        let salt = STANDARD.decode(field("s=")?).map_err(|_| UNREADABLE)?;
        let rounds: NonZeroU32 = field("i=")?.parse().map_err(|_| UNREADABLE)?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err("the server did not add a random number of its own to the login by SCRAM");
        }
        if rounds.get() > ROUNDS_MAX {
            return Err(
                "the password is stored with more than 1000000 rounds (scram_iterations), which takes a probe too long",
            );
        }
        let mut salted = [0; 32];
        pbkdf2::derive(PBKDF2_HMAC_SHA256, rounds, &salt, &self.password, &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&Key::new(HMAC_SHA256, key), text);
        let last_bare = format!("c={BINDING},r={nonce}");
        let signed = format!("{},{first},{last_bare}", self.first_bare());
        let client_key = sign(&salted, b"Client Key");
        let signature = sign(digest(&SHA256, client_key.as_ref()).as_ref(), signed.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        let expected = sign(sign(&salted, b"Server Key").as_ref(), signed.as_bytes());
        let next = Self { expected: Some(expected.as_ref().to_vec()), ..self.clone() };
        Ok((next, format!("{last_bare},p={}", STANDARD.encode(proof)).into_bytes()))
    }

    /// The state after the server's last message, if that proves that the server knows the
    /// password.
    pub fn proven(&self, last: &[u8]) -> Option<Self> {
        let signature =
            std::str::from_utf8(last).ok()?.split(',').find_map(|part| part.strip_prefix("v="))?;
        let signature = STANDARD.decode(signature).ok()?;
        (Some(&signature) == self.expected.as_ref()).then(|| Self { is_proven: true, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 7677, section 3, with the user's name left out as PostgreSQL wants it; computed with
    /// Python's hashlib.
    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const FIRST: &[u8] =
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn begun() -> Scram {
        Scram::with_nonce(b"pencil", NONCE.into())
    }

    #[test]
    fn both_sides_prove_that_they_know_the_password() {
        let (next, answer) = begun().answer(FIRST).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert_eq!(
            answer,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=qvT2SWdEH5Q06albL+hjSYuUhCG7VndFyzIb7CK4n9k="
        );
        assert!(
            next.proven(b"v=3HO6Qt1M4MKJrmlKaoOqLAI0/0TV0HZe7J9H3MBtSOg=")
                .is_some_and(|scram| scram.is_proven())
        );
        assert!(next.proven(b"v=AAAA").is_none() && next.proven(b"e=other-error").is_none());
        assert!(!next.is_proven() && next.answer(FIRST).is_err());
    }

    #[test]
    fn a_server_that_cheats_is_refused() {
        for first in [
            &b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"[..],
            b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=0",
            b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4000000000",
            b"r=rOprNGfwEbeRWgbNEkqOx,s=?,i=4096",
            b"",
            b"\xff",
        ] {
            assert!(begun().answer(first).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_bytes_of_a_server_panic(
            at in 0..FIRST.len(),
            with in any::<u8>(),
            noise in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut near = FIRST.to_vec();
            // The rounds stay few.
            near[at.min(FIRST.len() - 7)] = with;
            for bytes in [&near, &noise] {
                let _ = begun().answer(bytes);
                let _ = begun().proven(bytes);
            }
        }
    }
}
