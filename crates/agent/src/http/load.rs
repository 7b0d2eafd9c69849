//! The history of the work of this node, or of another one.

use super::extract::Query;
use super::{ApiResult, App, blocking, find_node};
use crate::clock::wall_ms;
use crate::error::OTHER_RELEASE;
use crate::history::LoadQuestion;
use crate::messages::{Call, CallReply};
use crate::raft::ConsensusLog;
use axum::extract::State as AppState;
use mainstay_api::rest::LoadPage;
use mainstay_types::{Code, Problem};
use serde::Deserialize;
use std::time::Duration;

/// Interval of a question that names no begin.
const INTERVAL_MS: u64 = 3_600_000;
/// How long a node may take to read its history.
const LOAD_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Deserialize, Default)]
pub struct LoadQuery {
    /// An hour before the end, if none.
    #[serde(default)]
    from_ms: Option<u64>,
    /// The present time, if none.
    #[serde(default)]
    to_ms: Option<u64>,
    /// One point for the whole interval, if none.
    #[serde(default)]
    step_ms: Option<u64>,
    /// Names with commas between them; all if none.
    #[serde(default)]
    resources: Option<String>,
    /// The node that answers, if none.
    #[serde(default)]
    node: Option<String>,
}

impl LoadQuery {
    fn question(&self, now_ms: u64) -> Result<LoadQuestion, Problem> {
        let to_ms = self.to_ms.unwrap_or(now_ms);
        let from_ms = self.from_ms.unwrap_or(to_ms.saturating_sub(INTERVAL_MS));
        if from_ms >= to_ms {
            return Err(Problem::new(
                Code::BadRequest,
                "from_ms: the interval ends before it begins",
                "Pass a `from_ms` that is less than `to_ms`, in milliseconds since 1970.",
            ));
        }
        let names = self.resources.iter().flat_map(|names| names.split(','));
        let resources = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Ok(LoadQuestion { from_ms, to_ms, step_ms: self.step_ms.unwrap_or(0), resources })
    }
}

pub async fn load(AppState(agent): App, Query(query): Query<LoadQuery>) -> ApiResult<LoadPage> {
    blocking(move || {
        let member = agent.member()?;
        let question = query.question(wall_ms())?;
        let node = match &query.node {
            Some(name) => find_node(&member.log.view(), name)?,
            None => member.identity.node,
        };
        match agent.ask(&member, node, Call::Load(question), LOAD_TIMEOUT)? {
            CallReply::Load(page) => Ok(*page),
            CallReply::Error(problem) => Err(problem),
            _ => {
                Err(Problem::new(Code::NodeUnreachable, "the node does not tell its history", OTHER_RELEASE))
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_without_an_interval_is_about_the_last_hour() {
        let question = LoadQuery::default().question(7_200_000).unwrap();
        assert_eq!((question.from_ms, question.to_ms, question.step_ms), (3_600_000, 7_200_000, 0));
        let named = LoadQuery { resources: Some("db,,log".into()), ..LoadQuery::default() };
        assert_eq!(named.question(1).unwrap().resources, ["db", "log"]);
        let backwards = LoadQuery { from_ms: Some(5), to_ms: Some(5), ..LoadQuery::default() };
        assert_eq!(backwards.question(1).unwrap_err().code, Code::BadRequest);
    }
}
