//! Tokens by which people and programs from elsewhere use the API of the agents (R24).
//!
//! Per token, as the state has it:
//!
//! | from | command | to |
//! |---|---|---|
//! | none, or ended | [`Command::CreateApiToken`] | made |
//! | made | [`Command::RevokeApiToken`] | none |
//!
//! Guarantees, after every command:
//! - a token has a name of its own, one right, and an end at most [`API_TOKEN_LIFE_MS`] after it
//!   was made;
//! - a token that was revoked is not in the state, and nothing brings it back: a new token of the
//!   same name has another public half and another hash;
//! - a cluster that begins anew on one node has no tokens (`era.rs`): the node may not know which
//!   were revoked;
//! - the state holds a hash of each token and no secret;
//! - there are at most [`API_TOKENS_MAX`] of them.
//!
//! Whether a token is good is judged by the clock of the node that is asked. A clock that is far
//! behind the time at which the token was made proves nothing, and so the token is refused.
//!
//! [`Command::CreateApiToken`]: crate::state::Command::CreateApiToken
//! [`Command::RevokeApiToken`]: crate::state::Command::RevokeApiToken

use crate::apply::NAME_REMEDY;
use crate::state::{Outcome, State, refused};
use mainstay_ha::valid_name;
use mainstay_types::{Access, Code, Fingerprint, Severity};
use serde::{Deserialize, Serialize};

const HOUR_MS: u64 = 60 * 60 * 1000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Longest life of a token.
pub const API_TOKEN_LIFE_MS: u64 = 366 * DAY_MS;
/// Most tokens, those that have ended included.
pub const API_TOKENS_MAX: usize = 256;
/// Clocks of nodes may differ by this much.
const CLOCKS_DIFFER_MS: u64 = HOUR_MS;
/// The state notes the use of a token at most this often.
pub const USE_NOTED_MS: u64 = HOUR_MS;

/// A token of the API, without its secret. Its name is its key in [`State::api_tokens`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiToken {
    /// Public half.
    pub id: u64,
    /// Hash of the token.
    pub hash: Fingerprint,
    pub access: Access,
    /// Wall clock when it was made.
    pub made_ms: u64,
    pub until_ms: u64,
    /// Wall clock of its last use that was noted, to [`USE_NOTED_MS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_ms: Option<u64>,
}

/// Reasons why a token that the record has is not good at this time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shut {
    Ended,
    /// The clock that judges is far behind the time at which the token was made.
    ClockBehind,
}

impl ApiToken {
    /// Why the token is not good now, if so. `now_ms`: wall clock of the node that is asked.
    #[must_use]
    pub fn is_shut(&self, now_ms: u64) -> Option<Shut> {
        if now_ms >= self.until_ms {
            return Some(Shut::Ended);
        }
        (now_ms.saturating_add(CLOCKS_DIFFER_MS) < self.made_ms).then_some(Shut::ClockBehind)
    }

    /// Whether a use at this time is to be noted.
    #[must_use]
    pub fn notes_use(&self, now_ms: u64) -> bool {
        self.used_ms.is_none_or(|used_ms| now_ms.saturating_sub(used_ms) >= USE_NOTED_MS)
    }
}

/// Fields of [`Command::CreateApiToken`](crate::state::Command::CreateApiToken).
pub(crate) struct NewApiToken {
    pub name: String,
    pub id: u64,
    pub hash: Fingerprint,
    pub access: Access,
    pub until_ms: u64,
}

fn subject(name: &str) -> String {
    format!("token {name}")
}

impl State {
    /// The token of this public half, with its name.
    #[must_use]
    pub fn api_token(&self, id: u64) -> Option<(&str, &ApiToken)> {
        let found = self.api_tokens.iter().find(|(_, token)| token.id == id);
        found.map(|(name, token)| (name.as_str(), token))
    }

    pub(crate) fn create_api_token(&mut self, at_ms: u64, new: NewApiToken) -> Outcome {
        let NewApiToken { name, id, hash, access, until_ms } = new;
        if !valid_name(&name) {
            return refused(Code::BadName, format!("'{name}' is not a valid name"), NAME_REMEDY);
        }
        if until_ms <= at_ms || until_ms - at_ms > API_TOKEN_LIFE_MS {
            return refused(
                Code::BadTokenLife,
                "a token of the API is good for at most 366 days, and for more than no time",
                "give a number of days with --days",
            );
        }
        if let Some((known, token)) = self.api_token(id) {
            let is_same = known == name && token.hash == hash;
            return if is_same { Outcome::Unchanged } else { Outcome::Conflict { record: None } };
        }
        match self.api_tokens.get(&name) {
            Some(known) if known.until_ms > at_ms => {
                return refused(
                    Code::NameTaken,
                    format!("there is a token named {name} already"),
                    format!("choose another name, or revoke it first: `mainstay token revoke {name}`"),
                );
            }
            Some(_) => {}
            None if self.api_tokens.len() >= API_TOKENS_MAX => {
                return refused(
                    Code::TooManyApiTokens,
                    format!("the cluster has {API_TOKENS_MAX} tokens of the API already"),
                    "revoke some: `mainstay token list` and `mainstay token revoke NAME`",
                );
            }
            None => {}
        }
        self.note(at_ms, Severity::Info, subject(&name), format!("was made, with the right `{access}`"));
        self.api_tokens.insert(name, ApiToken { id, hash, access, made_ms: at_ms, until_ms, used_ms: None });
        Outcome::Done
    }

    pub(crate) fn revoke_api_token(&mut self, at_ms: u64, name: &str) -> Outcome {
        if self.api_tokens.remove(name).is_none() {
            return refused(
                Code::UnknownApiToken,
                format!("there is no token named {name}"),
                "see `mainstay token list`",
            );
        }
        self.note(at_ms, Severity::Info, subject(name), "was revoked");
        Outcome::Done
    }

    /// A node was asked by this token.
    pub(crate) fn api_token_used(&mut self, at_ms: u64, id: u64) -> Outcome {
        let found = self.api_tokens.values_mut().find(|token| token.id == id);
        match found.filter(|token| token.notes_use(at_ms)) {
            Some(token) => {
                token.used_ms = Some(at_ms);
                Outcome::Done
            }
            None => Outcome::Unchanged,
        }
    }
}

#[cfg(test)]
mod tests;
