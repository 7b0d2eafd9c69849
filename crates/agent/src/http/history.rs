//! The history of primaries.

use super::extract::Query;
use super::pages::{self, Paged, Part};
use super::{App, Refused, blocking};
use crate::agent::READ_PATIENCE;
use crate::raft::ConsensusLog;
use axum::Json;
use axum::extract::State as AppState;
use axum::http::Uri;
use mainstay_api::rest::{ChangeView, HistoryPage, StageView};
use mainstay_control::State;
use mainstay_control::facts::PrimaryChange;
use mainstay_types::Problem;
use serde::Deserialize;

#[derive(Deserialize)]
pub struct HistoryQuery {
    /// Name of a resource or of a service.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    lines: Option<usize>,
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    after: Option<String>,
}

pub async fn history(
    AppState(agent): App,
    Query(HistoryQuery { name, lines, limit, after }): Query<HistoryQuery>,
    uri: Uri,
) -> Result<Paged<HistoryPage>, Refused> {
    let paging = pages::part(lines, limit, after)?;
    let path = uri.path().to_owned();
    let Json((page, next)) = blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        page(&view.state, &path, name.as_deref(), &paging)
    })
    .await?;
    Ok(Paged::new(page, &uri, next))
}

/// Returns the newest changes of primaries, oldest first.
pub fn newest(state: &State, lines: usize) -> HistoryPage {
    let all = state.primary_changes();
    let skipped = all.len().saturating_sub(lines);
    HistoryPage { changes: all.iter().skip(skipped).map(shown).collect(), since_ms: state.events_since_ms() }
}

fn page(
    state: &State,
    path: &str,
    name: Option<&str>,
    part: &Part,
) -> Result<(HistoryPage, Option<String>), Problem> {
    let wanted = |change: &PrimaryChange<'_>| {
        name.is_none_or(|name| change.resource == name || change.service == Some(name))
    };
    let all = state.primary_changes().into_iter().filter(wanted).collect();
    let (changes, next) = part.of(path, all, index_of)?;
    Ok((
        HistoryPage { changes: changes.iter().map(shown).collect(), since_ms: state.events_since_ms() },
        next,
    ))
}

/// Index of the event that tells a change.
fn index_of(change: &PrimaryChange<'_>) -> u64 {
    change.stages.first().map_or(0, |event| event.index)
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
