//! The audit log: each change that somebody asked an agent for.
//!
//! Guarantees
//! - A change is asked for twice in the log: before anything is done, and with its result. So a
//!   change whose agent died in between stands there without a result, and none is missing (R24).
//! - Numbers rise by one. The log keeps the last [`AUDIT_MAX`] records, and a reader that asks for
//!   an older one learns that there is a gap.
//! - A result belongs to the request of its id, and is recorded once.
//!
//! The agent decides which requests are changes, and refuses a change whose record cannot be
//! written. A record never contains what may be a secret: the agent leaves such fields out.

use crate::state::{Outcome, State, cut, cut_code};
use mainstay_types::{Access, Code, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Records that are kept.
pub const AUDIT_MAX: usize = 1000;

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AuditLog {
    /// The last [`AUDIT_MAX`], oldest first.
    pub records: VecDeque<AuditRecord>,
    /// Number of the newest record; the first is 1.
    pub last: u64,
}

impl AuditLog {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last == 0
    }
}

/// A request, as the agent that took it has seen it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// Random id of the request.
    pub id: u64,
    /// Wall clock of the agent when the request came, for display.
    pub at_ms: u64,
    /// User who asked, by name, or by number where the machine knows no name; or `token` and the
    /// name of a token.
    pub who: String,
    /// Address from which the request came, if it came over TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// User who logged in, if that is another one: somebody who became root with `sudo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Right that the user has.
    pub access: Access,
    /// The node's agent that was asked.
    pub on: NodeId,
    /// Method and path, with the query.
    pub action: String,
    /// Body of the request as JSON without secrets, cut.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditRecord {
    pub number: u64,
    #[serde(flatten)]
    pub asked: Asked,
    /// `None`: nothing is known of the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<AuditResult>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditResult {
    /// From the request to its answer, as the agent has measured it, in milliseconds.
    pub took_ms: u64,
    /// HTTP status of the answer.
    pub status: u16,
    /// Code of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

impl State {
    pub(crate) fn audit_begun(&mut self, asked: Asked) -> Outcome {
        if self.audit.records.iter().any(|record| record.asked.id == asked.id) {
            return Outcome::Unchanged;
        }
        let (who, login, from) = (cut(asked.who), asked.login.map(cut), asked.from.map(cut));
        let (action, body) = (cut(asked.action), cut(asked.body));
        let asked = Asked { who, login, from, action, body, ..asked };
        self.audit.last += 1;
        if self.audit.records.len() >= AUDIT_MAX {
            self.audit.records.pop_front();
        }
        let number = self.audit.last;
        self.audit.records.push_back(AuditRecord { number, asked, result: None });
        Outcome::Done
    }

    pub(crate) fn audit_ended(&mut self, id: u64, result: AuditResult) -> Outcome {
        // The request is one of the newest.
        let found = self.audit.records.iter_mut().rev().find(|record| record.asked.id == id);
        let Some(record) = found.filter(|record| record.result.is_none()) else { return Outcome::Unchanged };
        record.result = Some(AuditResult { code: result.code.map(cut_code), ..result });
        Outcome::Done
    }
}
