//! Baselines of the cluster: each node keeps its own part.

use super::extract::{JsonRequest, Path};
use super::{ApiResult, App, blocking};
use crate::clock::wall_ms;
use crate::history::baselines::{BaselineOrder, KeptBaseline, NAME_REMEDY, check};
use crate::messages::{Call, CallReply};
use crate::raft::ConsensusLog;
use crate::report::{Interval, ask_all, baselines, refusal, unknown_baseline};
use axum::extract::State as AppState;
use mainstay_api::rest::{Accepted, BaselineSave, BaselinesPage};
use mainstay_ha::valid_name;
use mainstay_types::{Code, Problem};

pub(super) async fn list(AppState(agent): App) -> ApiResult<BaselinesPage> {
    blocking(move || {
        let member = agent.member()?;
        Ok(baselines(&agent, &member, &member.log.view().state))
    })
    .await
}

/// A name begins with a letter, so that none is a point in time as well.
fn checked(name: &str) -> Result<(), Problem> {
    if valid_name(name) && name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(Problem::new(Code::BadName, "this is no name of a baseline", NAME_REMEDY))
}

pub(super) async fn save(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(BaselineSave { from_ms, to_ms }): JsonRequest<BaselineSave>,
) -> ApiResult<Accepted> {
    blocking(move || {
        checked(&name)?;
        let made_ms = wall_ms();
        let Interval { from_ms, to_ms } = Interval { from_ms, to_ms: to_ms.min(made_ms) }.checked()?;
        let member = agent.member()?;
        let state = member.log.view().state;
        let known = baselines(&agent, &member, &state).baselines;
        check(known.iter().map(|known| known.name.as_str()), &name)?;
        let asked = KeptBaseline { name: name.clone(), from_ms, to_ms, made_ms, step_ms: 0, bytes: 0 };
        let answers = ask_all(&agent, &member, &state, &Call::Baseline(BaselineOrder::Keep(asked)));
        let (mut kept, mut not, mut failure) = (Vec::new(), answers.silent, None);
        for (node, reply) in answers.replies {
            match reply {
                CallReply::Baselines(list) if list.is_empty() => {
                    drop(not.insert(node, "it has no record of this time".into()));
                }
                CallReply::Baselines(_) => kept.push(node),
                other => {
                    let problem = refusal(other);
                    not.insert(node, problem.message.clone());
                    failure = Some(problem);
                }
            }
        }
        let why: Vec<String> = not.iter().map(|(node, why)| format!("{node} keeps nothing: {why}")).collect();
        if kept.is_empty() {
            let remedy =
                "Name a time that `mainstay report` shows. Nodes keep 8 days, and record each minute.";
            return Err(failure.unwrap_or_else(|| {
                Problem::new(Code::BadRequest, format!("nothing is kept: {}", why.join("; ")), remedy)
            }));
        }
        let told = if why.is_empty() { String::new() } else { format!("; {}", why.join("; ")) };
        let message = format!("the baseline {name} is kept on {}{told}", kept.join(", "));
        Ok(Accepted { revision: state.revision, message })
    })
    .await
}

pub(super) async fn delete(AppState(agent): App, Path(name): Path<String>) -> ApiResult<Accepted> {
    blocking(move || {
        let member = agent.member()?;
        let state = member.log.view().state;
        let order = BaselineOrder::Delete { name: name.clone() };
        let answers = ask_all(&agent, &member, &state, &Call::Baseline(order));
        let (mut deleted, mut not) = (Vec::new(), answers.silent);
        for (node, reply) in answers.replies {
            match reply {
                CallReply::BaselineDeleted { deleted: true } => deleted.push(node),
                CallReply::BaselineDeleted { deleted: false } => {}
                other => drop(not.insert(node, refusal(other).message)),
            }
        }
        let left: Vec<String> = not
            .iter()
            .map(|(node, why)| format!("{node} may keep its part until you delete the baseline again: {why}"))
            .collect();
        if deleted.is_empty() {
            return Err(unknown_baseline(&baselines(&agent, &member, &state).baselines, &name));
        }
        let told = if left.is_empty() { String::new() } else { format!("; {}", left.join("; ")) };
        let message = format!("the baseline {name} is deleted on {}{told}", deleted.join(", "));
        Ok(Accepted { revision: state.revision, message })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_baseline_is_no_point_in_time() {
        for name in ["a", "before-8-4", "z".repeat(32).as_str()] {
            assert!(checked(name).is_ok(), "{name}");
        }
        for name in ["", "2026-11-29", "14", "-a", "A", "a.new", "../a", "z".repeat(33).as_str()] {
            assert_eq!(checked(name).unwrap_err().code, Code::BadName, "{name}");
        }
    }
}
