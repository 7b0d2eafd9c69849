//! Tokens of the API, and the authorities by which clients know the nodes.

use super::extract::{JsonRequest, Path, Query};
use super::nodes::propose;
use super::pages::{self, Paged, Paging};
use super::{ApiResult, App, Refused, blocking};
use crate::agent::certificates::{authorities_of, problem_of};
use crate::agent::{PROPOSE_TIMEOUT, READ_PATIENCE};
use crate::clock::wall_ms;
use crate::error::settle;
use crate::raft::ConsensusLog;
use axum::extract::State as AppState;
use axum::http::Uri;
use mainstay_api::rest::{Accepted, ApiTokenCreate, ApiTokenMade, ApiTokenView, AuthoritiesView};
use mainstay_control::api_tokens::{API_TOKEN_LIFE_MS, ApiToken as Known};
use mainstay_control::state::Command;
use mainstay_trust::{ApiToken, TrustError, pem};

pub(super) async fn list(
    AppState(agent): App,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Paged<Vec<ApiTokenView>>, Refused> {
    let all = move || {
        let (view, now_ms) = (agent.member()?.log.confirmed_view(READ_PATIENCE), wall_ms());
        Ok(view.state.api_tokens.iter().map(|(name, token)| shown(name, token, now_ms)).collect())
    };
    pages::listed(uri, paging, |token: &ApiTokenView| token.name.clone(), all).await
}

fn shown(name: &str, token: &Known, now_ms: u64) -> ApiTokenView {
    ApiTokenView {
        name: name.to_owned(),
        id: format!("{:016x}", token.id),
        access: token.access,
        made_ms: token.made_ms,
        until_ms: token.until_ms,
        ended: now_ms >= token.until_ms,
        used_ms: token.used_ms,
    }
}

pub(super) async fn create(
    AppState(agent): App,
    JsonRequest(request): JsonRequest<ApiTokenCreate>,
) -> ApiResult<ApiTokenMade> {
    blocking(move || {
        let member = agent.member()?;
        let token = ApiToken::make().map_err(|error| problem_of(&error))?;
        // A life that is too long stays too long.
        let life_ms = request.life_ms.min(API_TOKEN_LIFE_MS + 1);
        let (name, access, until_ms) = (request.name, request.access, wall_ms().saturating_add(life_ms));
        let command = Command::CreateApiToken {
            name: name.clone(),
            id: token.id(),
            hash: token.hash(),
            access,
            until_ms,
        };
        settle(member.log.propose(command, PROPOSE_TIMEOUT))?;
        Ok(ApiTokenMade { name, token: token.text().to_string(), access, until_ms })
    })
    .await
}

pub(super) async fn revoke(AppState(agent): App, Path(name): Path<String>) -> ApiResult<Accepted> {
    blocking(move || {
        let message = format!("the token {name} is revoked: no node takes it any more");
        propose(&agent, &Command::RevokeApiToken { name }, message)
    })
    .await
}

pub(super) async fn authorities(AppState(agent): App) -> ApiResult<AuthoritiesView> {
    blocking(move || {
        let state = agent.member()?.log.confirmed_view(READ_PATIENCE).state;
        let issuing = state.identities.issuing().ok_or_else(|| problem_of(&TrustError::NotSealedHere))?;
        Ok(AuthoritiesView {
            fingerprint: issuing.fingerprint.to_string(),
            certificates: authorities_of(&state).iter().map(pem::of_certificate).collect(),
        })
    })
    .await
}
