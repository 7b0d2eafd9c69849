//! The history of primaries.

use super::extract::Query;
use super::{ApiResult, App, blocking};
use crate::agent::READ_PATIENCE;
use crate::raft::ConsensusLog;
use axum::extract::State as AppState;
use mainstay_api::rest::{ChangeView, HistoryPage, StageView};
use mainstay_control::State;
use mainstay_control::facts::PrimaryChange;
use serde::Deserialize;

const LINES: usize = 100;

#[derive(Deserialize)]
pub struct HistoryQuery {
    /// Name of a resource or of a service.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    lines: Option<usize>,
}

pub async fn history(
    AppState(agent): App,
    Query(HistoryQuery { name, lines }): Query<HistoryQuery>,
) -> ApiResult<HistoryPage> {
    blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        Ok(page(&view.state, name.as_deref(), lines.unwrap_or(LINES)))
    })
    .await
}

/// Returns the newest changes of primaries, oldest first.
pub fn page(state: &State, name: Option<&str>, lines: usize) -> HistoryPage {
    let wanted = |change: &PrimaryChange<'_>| {
        name.is_none_or(|name| change.resource == name || change.service == Some(name))
    };
    let all = state.primary_changes();
    let mut newest: Vec<ChangeView> =
        all.iter().rev().filter(|change| wanted(change)).take(lines).map(shown).collect();
    newest.reverse();
    HistoryPage { changes: newest, since_ms: state.events_since_ms() }
}

fn shown(change: &PrimaryChange<'_>) -> ChangeView {
    let stage = |event: &&mainstay_control::state::EventRecord| StageView {
        after_ms: event.at_ms.saturating_sub(change.at_ms),
        text: event.text.clone(),
    };
    ChangeView {
        resource: change.resource.to_owned(),
        service: change.service.map(str::to_owned),
        from: change.from.map(str::to_owned),
        to: change.to.map(str::to_owned),
        epoch: change.epoch.0,
        cause: change.cause.word().to_owned(),
        decided_by: change.cause.decided_by().word().to_owned(),
        at_ms: change.at_ms,
        took_ms: change.running_ms.map(|running| running.saturating_sub(change.at_ms)),
        stages: change.stages.iter().map(stage).collect(),
    }
}
