//! Certificates of the cluster, and tokens to join it.

use super::extract::{JsonRequest, Path, Query};
use super::nodes::propose_as;
use super::pages::{self, Paged, Paging};
use super::{ApiResult, App, Refused, blocking, find_node};
use crate::agent::{Agent, READ_PATIENCE};
use crate::clock::wall_ms;
use crate::raft::ConsensusLog;
use axum::extract::State as AppState;
use axum::http::Uri;
use mainstay_api::rest::{
    Accepted, AuthorityPhase, AuthorityView, CertificateView, CertificatesView, LeaveOut, RotationView,
    TokenCreate, TokenMade, TokenStatus, TokenView,
};
use mainstay_control::State;
use mainstay_control::identities::{JoinToken, Phase, TokenState};
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{Code, Problem};

pub(super) async fn certificates(AppState(agent): App) -> ApiResult<CertificatesView> {
    blocking(move || Ok(certificates_of(&agent.member()?.log.confirmed_view(READ_PATIENCE).state))).await
}

fn certificates_of(state: &State) -> CertificatesView {
    let authorities = state.identities.authorities.values().map(|authority| AuthorityView {
        number: authority.number,
        issues: authority.phase == Phase::Issues,
        phase: Some(phase_of(authority.phase)),
        fingerprint: authority.fingerprint.to_string(),
    });
    let nodes = state.identities.members.iter().map(|(node, known)| CertificateView {
        node: state.node_name(*node),
        key: known.key.to_string(),
        until_ms: known.certificate.map(|certificate| certificate.until_ms),
        authority: known.certificate.map(|certificate| certificate.authority),
    });
    let (authorities, nodes) = (authorities.collect(), nodes.collect());
    CertificatesView { authorities, nodes, rotation: rotation_of(state) }
}

fn phase_of(phase: Phase) -> AuthorityPhase {
    match phase {
        Phase::Announced => AuthorityPhase::Announced,
        Phase::Issues => AuthorityPhase::Issues,
        Phase::Believed => AuthorityPhase::Believed,
    }
}

fn rotation_of(state: &State) -> Option<RotationView> {
    let (rotation, new) = state.identities.rotates()?;
    let waits = state.rotation_waits_for();
    let names = |dead: bool| {
        let waits = waits.iter().filter(|node| !dead || !state.alive(**node));
        waits.map(|node| state.node_name(*node)).collect()
    };
    let (phase, since_ms) = (phase_of(new.phase), rotation.since_ms);
    Some(RotationView { to: rotation.to, phase, since_ms, waits_for: names(false), dead: names(true) })
}

/// The answer to an order that was carried out.
fn accepted(agent: &Agent, message: String) -> Result<Accepted, Problem> {
    Ok(Accepted { revision: agent.member()?.log.view().state.revision, message })
}

pub(super) async fn rotate(AppState(agent): App) -> ApiResult<Accepted> {
    blocking(move || {
        let (number, dead) = agent.rotate_authority()?;
        let waits = match dead.is_empty() {
            true => String::new(),
            false => format!("; this waits for {}, because the cluster counts them as dead", dead.join(", ")),
        };
        accepted(
            &agent,
            format!("authority {number} is announced, and replaces the present one by itself{waits}"),
        )
    })
    .await
}

pub(super) async fn cancel_rotation(AppState(agent): App) -> ApiResult<Accepted> {
    blocking(move || {
        let number = agent.cancel_rotation()?;
        accepted(&agent, format!("authority {number} is withdrawn, and the present one stays"))
    })
    .await
}

pub(super) async fn leave_out(
    AppState(agent): App,
    JsonRequest(request): JsonRequest<LeaveOut>,
) -> ApiResult<Accepted> {
    blocking(move || {
        let view = agent.member()?.log.view();
        let nodes = request.nodes.iter().map(|name| find_node(&view, name)).collect::<Result<_, _>>()?;
        agent.leave_out(nodes)?;
        let names = request.nodes.join(", ");
        accepted(&agent, format!("the rotation goes on without {names}, which must join anew"))
    })
    .await
}

pub(super) async fn tokens(
    AppState(agent): App,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Paged<Vec<TokenView>>, Refused> {
    let all = move || {
        let (view, now_ms) = (agent.member()?.log.confirmed_view(READ_PATIENCE), wall_ms());
        let tokens = view.state.identities.tokens.iter();
        let mut shown: Vec<TokenView> = tokens.map(|(id, token)| shown(*id, token, now_ms)).collect();
        shown.sort_by_key(age_of);
        Ok(shown)
    };
    pages::listed(uri, paging, age_of, all).await
}

/// Place of a token in the list of all, oldest first.
fn age_of(token: &TokenView) -> (u64, String) {
    (token.made_ms, token.id.clone())
}

fn shown(id: u64, token: &JoinToken, now_ms: u64) -> TokenView {
    let status = match token.state {
        TokenState::Used(_) => TokenStatus::Used,
        TokenState::Revoked => TokenStatus::Revoked,
        TokenState::Superseded => TokenStatus::Superseded,
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

/// The number of a token by its public half.
fn number_of(id: &str) -> Option<u64> {
    Some(id).filter(|id| id.len() == 16).and_then(|id| u64::from_str_radix(id, 16).ok())
}

/// The purpose of a token, in words.
pub(super) fn about_token(state: &State, id: &str) -> Option<String> {
    let token = state.identities.tokens.get(&number_of(id)?)?;
    Some(format!("the token by which node {} may join", token.node))
}

pub(super) async fn revoke_token(AppState(agent): App, Path(id): Path<String>) -> ApiResult<Accepted> {
    blocking(move || {
        let number = number_of(&id).ok_or_else(|| {
            let message = format!("there is no token {id}");
            Problem::new(Code::UnknownToken, message, "See `mainstay cluster token list`.")
        })?;
        let known = || {
            let view = agent.member().ok()?.log.view();
            Some(view.state.identities.tokens.get(&number)?.state)
        };
        propose_as(&agent, &Command::RevokeToken { id: number }, |outcome| match (outcome, known()) {
            (Outcome::Unchanged, Some(TokenState::Superseded)) => {
                format!("nothing is changed: token {id} is of an earlier authority, and no node joins by it")
            }
            (Outcome::Unchanged, _) => format!("nothing is changed: token {id} was revoked already"),
            _ => format!("token {id} is revoked"),
        })
    })
    .await
}
