//! Scrubs of resources (R17): begun, watched and ended where the primary is.

use super::extract::Path;
use super::operations::Look;
use super::{
    ApiResult, App, JsonRequest, SCRUB_ATTEMPTS, SCRUB_PAUSE, SCRUB_TIMEOUT, blocking, find_resource,
};
use crate::agent::Agent;
use crate::error::OTHER_RELEASE;
use crate::member::Member;
use crate::messages::{Call, CallReply};
use crate::raft::ConsensusLog;
use axum::extract::State as AppState;
use mainstay_api::engine::{self, Reply, Request};
use mainstay_api::rest::{Accepted, ScrubFindingView, ScrubReplica, ScrubReport, ScrubStart};
use mainstay_control::state::{Resource, State};
use mainstay_types::{Code, NodeId, Problem, ResourceId, ScrubFinding, ScrubRepair, ScrubState};
use std::sync::Arc;

pub(super) async fn start(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(ScrubStart { repair, rate }): JsonRequest<ScrubStart>,
) -> ApiResult<Accepted> {
    blocking(move || {
        let repair = if repair { ScrubRepair::All } else { ScrubRepair::Off };
        let request = |resource| Request::Scrub { resource, repair, rate, after: None };
        let (node, _) = ask_primary(&agent, &name, request)?;
        let view = agent.member()?.log.view();
        let message =
            format!("the replicas of resource {name} are compared by {}", view.state.node_name(node));
        Ok(Accepted { revision: view.state.revision, message })
    })
    .await
}

pub(super) async fn stop(AppState(agent): App, Path(name): Path<String>) -> ApiResult<Accepted> {
    blocking(move || {
        let (_, reply) = ask_primary(&agent, &name, |resource| Request::ScrubStatus { resource })?;
        let runs = |status: &engine::ScrubStatus| status.state == ScrubState::Running;
        if !matches!(&reply, Reply::Scrub { status: Some(status) } if runs(status)) {
            return Err(Problem::new(
                Code::NoScrubRuns,
                format!("the replicas of resource {name} are not being compared"),
                format!("`mainstay resource scrub {name} --report` says how the last comparison ended."),
            ));
        }
        ask_primary(&agent, &name, |resource| Request::StopScrub { resource })?;
        let revision = agent.member()?.log.view().state.revision;
        let message = format!("the replicas of resource {name} are not compared any more");
        Ok(Accepted { revision, message })
    })
    .await
}

pub(super) async fn report(AppState(agent): App, Path(name): Path<String>) -> ApiResult<ScrubReport> {
    blocking(move || {
        let (primary, reply) = ask_primary(&agent, &name, |resource| Request::ScrubStatus { resource })?;
        let view = agent.member()?.log.view();
        match reply {
            Reply::Scrub { status: Some(status) } => {
                let resource = find_resource(&view, &name)?;
                Ok(told(&view.state, resource, primary, &status))
            }
            _ => Err(Problem::new(
                Code::NoScrub,
                format!(
                    "the replicas of resource {name} were not compared since {} opened its replica",
                    view.state.node_name(primary)
                ),
                format!("Run `mainstay resource scrub {name}` to compare them."),
            )),
        }
    })
    .await
}

/// How far a scrub is that `by` began, with the share that is done. `None` if the primary does not
/// tell it now.
pub(super) fn look(agent: &Arc<Agent>, name: &str, by: Option<NodeId>) -> Option<(Look, Option<u8>)> {
    let (primary, reply) = ask_primary(agent, name, |resource| Request::ScrubStatus { resource }).ok()?;
    let Reply::Scrub { status } = reply else { return None };
    Some(judged(name, by.is_none_or(|by| by == primary), status.as_ref()))
}

/// `is_same`: the primary is the one that began it.
fn judged(name: &str, is_same: bool, status: Option<&engine::ScrubStatus>) -> (Look, Option<u8>) {
    match status {
        Some(status) if is_same => look_at(name, status),
        // Another primary, or one that has opened its replica anew, knows nothing of this scrub.
        _ => (interrupted(name), None),
    }
}

fn interrupted(name: &str) -> Look {
    Look::Failed(Problem::new(
        Code::ScrubInterrupted,
        format!("the comparison of the replicas of resource {name} ended early: its primary has changed"),
        format!("Run `mainstay resource scrub {name}` again."),
    ))
}

fn look_at(name: &str, status: &engine::ScrubStatus) -> (Look, Option<u8>) {
    let percent = (status.done * 100).checked_div(status.extents).map(|percent| percent.min(100) as u8);
    let look = match status.state {
        ScrubState::Running => Look::Runs(format!("the replicas of resource {name} are being compared")),
        ScrubState::Done => Look::Done(format!(
            "the replicas of resource {name} are compared: {} blocks differed, {} were repaired; `mainstay resource scrub {name} --report` has more",
            status.different, status.repaired
        )),
        ScrubState::Stopped => {
            Look::Cancelled(format!("the replicas of resource {name} are not compared any more"))
        }
        ScrubState::Interrupted => interrupted(name),
    };
    (look, percent)
}

/// Asks the engine of the primary, also while the role moves.
fn ask_primary(
    agent: &Arc<Agent>,
    name: &str,
    request: impl Fn(ResourceId) -> Request,
) -> Result<(NodeId, Reply), Problem> {
    let member: Arc<Member> = agent.member()?;
    let mut refused = None;
    for attempt in 0..SCRUB_ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(SCRUB_PAUSE);
        }
        let view = member.log.view();
        let resource = find_resource(&view, name)?;
        let Some(primary) = resource.record.primary else { continue };
        match agent.ask(&member, primary, Call::Engine(request(resource.id)), SCRUB_TIMEOUT) {
            Ok(CallReply::Error(error)) | Err(error) if error.code == Code::NotPrimary => {
                refused = Some(error)
            }
            Ok(CallReply::Error(error)) | Err(error) => return Err(error),
            Ok(CallReply::Engine(reply)) => return Ok((primary, reply)),
            Ok(other) => {
                return Err(Problem::new(
                    Code::PeerAnswer,
                    format!("the primary's agent answered {other:?}"),
                    OTHER_RELEASE,
                ));
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        let text = format!("resource {name} has no primary, and only a primary compares replicas");
        Problem::new(
            Code::NoPrimary,
            text,
            "Look at `mainstay status`, which says why there is none, and try again when there is one.",
        )
    }))
}

fn told(state: &State, resource: &Resource, primary: NodeId, status: &engine::ScrubStatus) -> ScrubReport {
    let name = |node: &NodeId| state.node_name(*node);
    let extents =
        |node: &NodeId| status.compared.iter().find(|(of, _)| of == node).map_or(0, |(_, extents)| *extents);
    let replicas: Vec<ScrubReplica> = resource
        .spec
        .replicas
        .iter()
        .map(|node| ScrubReplica { node: name(node), extents: extents(node) })
        .collect();
    let unrepaired = status.different - status.repaired - status.overwritten;
    let all = replicas.iter().all(|replica| replica.extents == status.done);
    let complete = status.state == ScrubState::Done && all;
    let finding = |found: &ScrubFinding| {
        let groups: Vec<Vec<String>> =
            found.groups.iter().map(|group| group.iter().map(name).collect()).collect();
        ScrubFindingView {
            volume: found.volume.0,
            block: found.block,
            blocks: found.blocks,
            index: found.at.0,
            right: found.right.and_then(|right| groups.get(right).cloned()).unwrap_or_default(),
            groups,
            damaged: found.damaged.iter().map(name).collect(),
            proven: found.proven,
            outcome: found.outcome,
        }
    };
    ScrubReport {
        resource: resource.name.clone(),
        primary: name(&primary),
        state: status.state,
        repair: status.repair,
        complete,
        equal: complete && unrepaired == 0,
        from: status.from.0,
        index: status.to.0,
        extents: status.extents,
        done: status.done,
        took_ms: status.took_ms,
        left_ms: status.left_ms,
        different: status.different,
        repaired: status.repaired,
        overwritten: status.overwritten,
        unrepaired,
        replicas,
        findings: status.findings.iter().map(finding).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::Index;

    #[test]
    fn a_scrub_tells_its_share_and_how_it_ended() {
        let status = |state, done| engine::ScrubStatus { state, done, extents: 8, ..scrub_of_nothing() };
        let (look, percent) = look_at("db", &status(ScrubState::Running, 2));
        assert!(matches!(look, Look::Runs(_)) && percent == Some(25), "{look:?} {percent:?}");
        assert!(matches!(look_at("db", &status(ScrubState::Done, 8)), (Look::Done(_), Some(100))));
        assert!(matches!(look_at("db", &status(ScrubState::Stopped, 3)).0, Look::Cancelled(_)));
        assert!(matches!(look_at("db", &status(ScrubState::Interrupted, 3)).0, Look::Failed(_)));
        assert_eq!(look_at("db", &scrub_of_nothing()).1, None);
        // A primary that did not begin it may have ended another one earlier.
        let another = status(ScrubState::Done, 8);
        assert!(matches!(judged("db", true, Some(&another)).0, Look::Done(_)));
        assert!(matches!(judged("db", false, Some(&another)).0, Look::Failed(_)));
        assert!(matches!(judged("db", true, None).0, Look::Failed(_)));
    }

    fn scrub_of_nothing() -> engine::ScrubStatus {
        engine::ScrubStatus {
            state: ScrubState::Running,
            repair: ScrubRepair::Off,
            rate: 0,
            took_ms: 0,
            extents: 0,
            done: 0,
            compared: Vec::new(),
            uncompared: 0,
            different: 0,
            repaired: 0,
            overwritten: 0,
            findings: Vec::new(),
            from: Index(0),
            to: Index(0),
            left_ms: None,
        }
    }
}
