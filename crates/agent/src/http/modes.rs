//! Replication modes, how many copies there have to be, and promotion outside the in-sync set
//! (R11).

use super::{
    Answer, App, Asked, blocking, change, change_what_is_now, find_node, find_resource, unknown_resource,
};
use crate::agent::Agent;
use crate::messages::{Call, CallReply};
use crate::raft::{ConsensusLog, View};
use crate::views;
use axum::extract::{Path, State as Shared};
use mainstay_api::engine::{Reply, Request};
use mainstay_api::rest::{Accepted, ForceView, MinCopiesSet, Mode, ModeSet};
use mainstay_control::state::Command;
use mainstay_types::{Code, Index, LagLimits, MinCopies, Problem};
use std::sync::Arc;
use std::time::Duration;

/// How long a replica has to promise the epoch that is to begin.
const PROMISE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) async fn set_mode(
    Shared(agent): App,
    Path(name): Path<String>,
    Asked(request): Asked<ModeSet>,
) -> Answer<Accepted> {
    let limits = request.lag_bytes.is_some() || request.lag_ms.is_some();
    if request.mode != Mode::A && (limits || request.takeover) {
        let what = if limits { "limits of the lag" } else { "a takeover within limits of the lag" };
        let message = format!("{what} can be set together with mode A only");
        return Err(
            Problem::new(Code::NotForThisMode, message, "Leave that option out, or set mode A.").into()
        );
    }
    change_what_is_now(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let record = &resource.record;
        // A limit that the request does not name has to fit the journal.
        let before = LagLimits { bytes: record.lag.bytes.min(resource.spec.journal_bytes / 2), ..record.lag };
        let lag = LagLimits {
            bytes: request.lag_bytes.unwrap_or(before.bytes),
            ms: request.lag_ms.unwrap_or(before.ms),
        };
        let message = match request.mode {
            Mode::A => format!("resource {name} is in mode A: its primary alone acknowledges writes"),
            Mode::B => {
                format!(
                    "resource {name} is to be in mode B: all that are in sync acknowledge writes from memory"
                )
            }
            Mode::C => format!("resource {name} is in mode C: all that are in sync acknowledge writes"),
        };
        let (resource, version) = (resource.id, record.version);
        let (mode, takeover) = (request.mode, request.takeover);
        let command = Command::SetMode { resource, version, mode, lag, takeover };
        Ok((command, message))
    })
    .await
}

/// Returns the minimum of copies after a request. Fields that the request does not name stay as
/// they are.
pub(super) fn min_copies(before: MinCopies, request: MinCopiesSet) -> MinCopies {
    MinCopies {
        copies: request.copies.unwrap_or(before.copies),
        suspend_ms: request.suspend_ms.unwrap_or(before.suspend_ms),
    }
}

/// A time that counts for nothing is not kept for later.
pub(super) fn refuse_idle_suspension(min_copies: MinCopies, request: MinCopiesSet) -> Result<(), Problem> {
    if request.suspend_ms.is_none() || min_copies.copies > 1 {
        return Ok(());
    }
    Err(Problem::new(
        Code::NotForOneCopy,
        "requests wait for copies only where more than one copy is wanted",
        "Ask for more copies with --min-copies, or leave --suspend-io out.",
    ))
}

pub(super) async fn set_min_copies(
    Shared(agent): App,
    Path(name): Path<String>,
    Asked(request): Asked<MinCopiesSet>,
) -> Answer<Accepted> {
    change_what_is_now(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let (resource, record) = (resource.id, &resource.record);
        let min_copies = min_copies(record.min_copies, request);
        refuse_idle_suspension(min_copies, request)?;
        let message = match min_copies.copies {
            1 => format!("writes to resource {name} are acknowledged with one copy, if there are no more"),
            copies => {
                format!("writes to resource {name} are acknowledged with {copies} copies at least")
            }
        };
        Ok((Command::SetMinCopies { resource, version: record.version, min_copies }, message))
    })
    .await
}

/// Returns the cost of a forced promotion of `node`, if the promotion is possible.
fn cost_of_force(agent: &Arc<Agent>, view: &View, name: &str, node: &str) -> Result<ForceView, Problem> {
    let (resource, node) = (find_resource(view, name)?, find_node(view, node)?);
    if let Some(refusal) = view.state.cannot_force(resource.id, node) {
        // Without a majority, the cluster cannot know about deaths since then, and that is the
        // cause.
        let doing = format!("resource {name} does not go on from {}", view.state.node_name(node));
        super::require_majority(agent, &doing)?;
        return Err(refusal);
    }
    let live = agent.ask_all(&*agent.member()?, view);
    views::force(&view.state, resource, node, &live)
        .map_err(|why| Problem::new(Code::NotEligible, why, "Choose another node, or bring its engine up."))
}

pub(super) async fn force_cost(
    Shared(agent): App,
    Path((name, node)): Path<(String, String)>,
) -> Answer<ForceView> {
    blocking(move || cost_of_force(&agent, &agent.member()?.log.view(), &name, &node)).await
}

pub(super) async fn force_promote(
    Shared(agent): App,
    Path((name, node)): Path<(String, String)>,
    Asked(accepted): Asked<ForceView>,
) -> Answer<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let (resource, holder) = (find_resource(view, &name)?, find_node(view, &node)?);
        if let Some(refusal) = view.state.cannot_force(resource.id, holder) {
            return Err(refusal);
        }
        let doing = format!("resource {name} does not go on from {node}");
        super::require_majority(&asked, &doing)?;
        super::users::refuse_used(&asked, view, resource, &doing, super::users::PASSING)?;
        // From then on, a primary that is cut off and does not know that it is replaced cannot
        // change the replica. The cost is compared after that.
        let promise = Request::Promise { resource: resource.id, epoch: resource.record.epoch.next() };
        match asked.ask(&*asked.member()?, holder, Call::Engine(promise), PROMISE_TIMEOUT)? {
            CallReply::Error(error) | CallReply::Engine(Reply::Error(error)) => return Err(error),
            _ => {}
        }
        let now = cost_of_force(&asked, view, &name, &node)?;
        if now != accepted {
            return Err(Problem::new(
                Code::Conflict,
                "what the promotion costs has changed since it was accepted",
                "Ask again what it costs.",
            ));
        }
        let to = resource.record.replica(holder).ok_or_else(|| unknown_resource(&name))?;
        let message = format!("resource {name} goes on from {}", now.node);
        let command = Command::ForcePromote {
            resource: resource.id,
            version: resource.record.version,
            to,
            end: Index(now.end),
            heard: Index(now.heard),
        };
        Ok((command, message))
    })
    .await
}
