//! Certificates of the cluster, and tokens to join it.

use super::nodes::propose;
use super::{ApiResult, App, JsonRequest, blocking};
use crate::agent::READ_PATIENCE;
use crate::clock::wall_ms;
use crate::raft::ConsensusLog;
use axum::extract::{Path, State as AppState};
use mainstay_api::rest::{
    Accepted, AuthorityView, CertificateView, CertificatesView, TokenCreate, TokenMade, TokenStatus,
    TokenView,
};
use mainstay_control::State;
use mainstay_control::identities::{JoinToken, Phase, TokenState};
use mainstay_control::state::Command;
use mainstay_types::{Code, Problem};

pub(super) async fn certificates(AppState(agent): App) -> ApiResult<CertificatesView> {
    blocking(move || Ok(certificates_of(&agent.member()?.log.confirmed_view(READ_PATIENCE).state))).await
}

fn certificates_of(state: &State) -> CertificatesView {
    let authorities = state.identities.authorities.values().map(|authority| AuthorityView {
        number: authority.number,
        issues: authority.phase == Phase::Issues,
        fingerprint: authority.fingerprint.to_string(),
    });
    let nodes = state.identities.members.iter().map(|(node, known)| CertificateView {
        node: state.node_name(*node),
        key: known.key.to_string(),
        until_ms: known.certificate.map(|certificate| certificate.until_ms),
        authority: known.certificate.map(|certificate| certificate.authority),
    });
    CertificatesView { authorities: authorities.collect(), nodes: nodes.collect() }
}

pub(super) async fn tokens(AppState(agent): App) -> ApiResult<Vec<TokenView>> {
    blocking(move || {
        let (view, now_ms) = (agent.member()?.log.confirmed_view(READ_PATIENCE), wall_ms());
        let tokens = view.state.identities.tokens.iter();
        let mut shown: Vec<TokenView> = tokens.map(|(id, token)| shown(*id, token, now_ms)).collect();
        shown.sort_by_key(|token| token.made_ms);
        Ok(shown)
    })
    .await
}

fn shown(id: u64, token: &JoinToken, now_ms: u64) -> TokenView {
    let status = match token.state {
        TokenState::Used(_) => TokenStatus::Used,
        TokenState::Revoked => TokenStatus::Revoked,
        TokenState::Open if token.until_ms <= now_ms => TokenStatus::Ended,
        TokenState::Open => TokenStatus::Open,
    };
    let (made_ms, until_ms) = (token.made_ms, token.until_ms);
    TokenView { id: format!("{id:016x}"), node: token.node.clone(), status, made_ms, until_ms }
}

pub(super) async fn create_token(
    AppState(agent): App,
    JsonRequest(request): JsonRequest<TokenCreate>,
) -> ApiResult<TokenMade> {
    blocking(move || {
        let (id, token, until_ms) = agent.create_token(&request.node, request.life_ms)?;
        let member = agent.member()?;
        let state = member.log.view().state;
        let own = state.nodes.get(&member.identity.node);
        Ok(TokenMade {
            id: format!("{id:016x}"),
            node: request.node,
            token: token.to_string(),
            until_ms,
            peer: own.map(|own| own.agent_addr.clone()).unwrap_or_default(),
        })
    })
    .await
}

pub(super) async fn revoke_token(AppState(agent): App, Path(id): Path<String>) -> ApiResult<Accepted> {
    blocking(move || {
        let number = Some(&id).filter(|id| id.len() == 16).and_then(|id| u64::from_str_radix(id, 16).ok());
        let number = number.ok_or_else(|| {
            let message = format!("there is no token {id}");
            Problem::new(Code::UnknownToken, message, "See `mainstay cluster token list`.")
        })?;
        propose(&agent, &Command::RevokeToken { id: number }, format!("token {id} is revoked"))
    })
    .await
}
