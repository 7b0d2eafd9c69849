//! Services: what applying one would change, what nodes lack for it, and doing it.

use super::extract::{IfMatch, JsonRequest, changed_meanwhile};
use super::{ApiResult, App, blocking, service_view, users};
use crate::agent::{Agent, PROPOSE_TIMEOUT, READ_PATIENCE};
use crate::clock::wall_ms;
use crate::error::settle;
use crate::member::Member;
use crate::raft::{ConsensusLog, View};
use crate::service::lacks::Lack;
use axum::extract::State as AppState;
use mainstay_api::rest::{ServiceApplied, ServiceApply, ServiceChange, ServiceEffect};
use mainstay_control::state::{Command, Entry, Outcome};
use mainstay_ha::{Change, ServiceSpec, SpecError};
use mainstay_types::{Code, NodeId, NodeStatus, Problem, ServicePhase};
use std::collections::BTreeMap;
use std::sync::Arc;

pub async fn apply(
    AppState(agent): App,
    IfMatch(tag): IfMatch,
    JsonRequest(request): JsonRequest<ServiceApply>,
) -> ApiResult<ServiceApplied> {
    blocking(move || {
        let member = agent.member()?;
        let Tried { spec, view, trial, outcome } = try_out(&member, &request.toml)?;
        let name = spec.name.clone();
        if tag.is_some_and(|tag| tag != edition(&view, &name).to_string()) {
            return Err(changed_meanwhile(&format!("service {name}")));
        }
        refuse_changed(&view, &name, request.edition)?;
        if let Some(resource) = view.state.resource_by_name(&spec.resource) {
            if !view.state.services.contains_key(&name) {
                refuse_small(&spec, &resource.spec.volumes)?;
            }
            users::refuse_place(&agent, &view, &spec, &resource.spec.replicas)?;
        }
        let before = view.state.services.get(&name);
        let changes = before.map(|service| service.spec.changes(&spec)).unwrap_or_default();
        let restarts = changes.iter().any(|change| change.restarts);
        if restarts && !request.dry_run && !request.force {
            let doing = format!("service {name} is not changed, because that would restart it");
            let or = "To change it all the same, add `--force` to the command.";
            users::refuse_held(&agent, &view, &name, &doing, or)?;
        }
        let warnings = check_nodes(&agent, &member, &view, &spec, restarts)?;
        let effect = match (before, outcome) {
            (None, _) => ServiceEffect::Created,
            (_, Outcome::Unchanged) => ServiceEffect::Unchanged,
            _ if changes.is_empty() => ServiceEffect::FailuresCleared,
            _ if restarts => ServiceEffect::Restarted,
            _ => ServiceEffect::ChangedInPlace,
        };
        let places = match request.dry_run {
            true => super::placement::fits(&agent, &member, &view, &trial, &spec),
            false => Vec::new(),
        };
        let service = if request.dry_run {
            service_view(if before.is_some() { &view } else { &trial }, &name)?
        } else {
            settle(member.log.propose(Command::ApplyService { spec }, PROPOSE_TIMEOUT))?;
            if restarts && request.force {
                users::disregard(&agent, &name);
            }
            service_view(&member.log.view(), &name)?
        };
        let changes = changes.into_iter().map(shown).collect();
        Ok(ServiceApplied { service, effect, changes, warnings, dry_run: request.dry_run, places })
    })
    .await
}

/// A service file, and what the cluster would make of it now.
pub(super) struct Tried {
    pub spec: ServiceSpec,
    pub view: View,
    /// The view with the file applied.
    pub trial: View,
    pub outcome: Outcome,
}

/// Tries the change as the cluster would take it now. A change that the cluster refuses is refused
/// before any node is asked. Hidden values stay as they are.
pub(super) fn try_out(member: &Member, toml: &str) -> Result<Tried, Problem> {
    let wrong = |error: SpecError| Problem::new(Code::BadServiceFile, error.to_string(), error.remedy);
    let mut spec = ServiceSpec::parse(toml).map_err(wrong)?;
    let view = member.log.confirmed_view(READ_PATIENCE);
    spec.keep_hidden(view.state.services.get(&spec.name).map(|known| &known.spec)).map_err(wrong)?;
    let mut trial = view.clone();
    let entry = Entry { at_ms: wall_ms(), command: Command::ApplyService { spec: spec.clone() } };
    let outcome = settle(Ok(Arc::make_mut(&mut trial.state).apply(entry)))?;
    Ok(Tried { spec, view, trial, outcome })
}

/// Whether the service has to be started again for `spec`.
pub(super) fn restarts(view: &View, spec: &ServiceSpec) -> bool {
    view.state.services.get(&spec.name).is_some_and(|known| known.spec.needs_restart(spec))
}

/// The edition of a service's file; 0 without one.
fn edition(view: &View, name: &str) -> u64 {
    view.state.services.get(name).map_or(0, |known| known.edition)
}

/// Refuses a change of a file of which another edition is in force by now.
fn refuse_changed(view: &View, name: &str, edition: Option<u64>) -> Result<(), Problem> {
    let now = self::edition(view, name);
    if edition.is_none_or(|edition| edition == now) {
        return Ok(());
    }
    Err(Problem::new(
        Code::Changed,
        format!("service {name} is not changed: it has been changed by another operator meanwhile"),
        format!("Look at it with `mainstay service show {name}`, and make your change again."),
    ))
}

/// Least size of a volume on which mkfs.xfs makes a file system since version 5.19.
const XFS_BYTES_MIN: u64 = 300 << 20;

/// Refuses a new service whose XFS could not be made because its volume is too small.
/// `volumes`: sizes in bytes.
pub(super) fn refuse_small(spec: &ServiceSpec, volumes: &[u64]) -> Result<(), Problem> {
    let Some(mount) = spec.mount.as_ref().filter(|mount| mount.mkfs && mount.fstype == "xfs") else {
        return Ok(());
    };
    let bytes = volumes.get(usize::from(mount.volume)).copied().unwrap_or(u64::MAX);
    if bytes >= XFS_BYTES_MIN {
        return Ok(());
    }
    let (name, volume, size) = (&spec.resource, mount.volume, format!("{}MiB", XFS_BYTES_MIN >> 20));
    let resize = match volume {
        0 => format!("`mainstay resource resize {name} {size}`"),
        _ => format!("`mainstay resource resize {name} {size} --volume {volume}`"),
    };
    let message = format!(
        "mount.mkfs: volume {volume} of resource {name} has {} MiB, and mkfs.xfs makes no file system on less than {size}",
        bytes >> 20
    );
    let remedy = format!(
        "Run {resize} first, or write `fstype = \"ext4\"`. If the volume has a file system already, write `mkfs = false`."
    );
    Err(Problem::new(Code::VolumeTooSmall, message, remedy))
}

fn shown(change: Change) -> ServiceChange {
    let Change { field, from, to, restarts } = change;
    ServiceChange { field, from, to, restarts }
}

/// Asks the nodes that may run the service whether they can. What some lack is said as a warning.
///
/// # Errors
/// When all that answer lack the same thing, or the node that runs the service now could not start
/// it again.
fn check_nodes(
    agent: &Arc<Agent>,
    member: &Member,
    view: &View,
    spec: &ServiceSpec,
    restarts: bool,
) -> Result<Vec<String>, Problem> {
    let state = &view.state;
    let Some(resource) = state.resource_by_name(&spec.resource) else { return Ok(Vec::new()) };
    let nodes = &resource.spec.replicas;
    let lacks = agent.ask_lacks(member, view, nodes, spec);
    let names =
        |nodes: &[NodeId]| nodes.iter().map(|node| state.node_name(*node)).collect::<Vec<_>>().join(", ");
    let mut by_lack: BTreeMap<&Lack, Vec<NodeId>> = BTreeMap::new();
    for (node, lacks) in &lacks {
        lacks.iter().for_each(|lack| by_lack.entry(lack).or_default().push(*node));
    }
    let runs_on = state.services.get(&spec.name).and_then(|service| {
        let mut running = service.nodes.iter().filter(|(_, on)| on.phase == ServicePhase::Running);
        running.next().map(|(node, _)| *node)
    });
    let mut warnings = Vec::new();
    for (Lack { field, problem, remedy }, on) in by_lack {
        let message = format!("{field}: {problem} on {}", names(&on));
        if on.len() == lacks.len() {
            return Err(Problem::new(Code::LackingEverywhere, message, format!("{remedy}.")));
        }
        if let Some(node) = runs_on.filter(|node| restarts && on.contains(node)) {
            let remedy = format!(
                "{remedy}; or move the service first, to a node that has it. It runs on {} now and could not start again there.",
                state.node_name(node)
            );
            return Err(Problem::new(Code::LackingWhereItRuns, message, remedy));
        }
        warnings.push(format!("{message}: the service cannot run there; {remedy}"));
    }
    let silent: Vec<NodeId> = nodes.iter().copied().filter(|node| !lacks.contains_key(node)).collect();
    let (living, dead): (Vec<NodeId>, Vec<NodeId>) = silent
        .into_iter()
        .partition(|node| state.nodes.get(node).is_some_and(|node| node.status == NodeStatus::Alive));
    for (nodes, why) in [(living, "did not answer in time"), (dead, "is dead")] {
        warnings.extend(nodes.iter().map(|node| {
            format!("{} {why}: whether it has what the service needs is not known", names(&[*node]))
        }));
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xfs_that_cannot_be_made_is_refused_with_the_command_that_makes_room() {
        let spec = |more: &str| {
            ServiceSpec::parse(&format!("name='db'\nresource='db'\n[mount]\npath='/srv/db'\n{more}")).unwrap()
        };
        let refused = refuse_small(&spec("mkfs=true\n"), &[128 << 20]).unwrap_err();
        assert!(refused.message.contains("128 MiB"), "{refused:?}");
        assert!(refused.remedy.contains("`mainstay resource resize db 300MiB`"), "{refused:?}");
        let second = refuse_small(&spec("mkfs=true\nvolume=1\n"), &[1 << 30, 64 << 20]).unwrap_err();
        assert!(second.remedy.contains("300MiB --volume 1`"), "{second:?}");
        for more in ["mkfs=true\nfstype='ext4'\n", "mkfs=false\n", ""] {
            assert_eq!(refuse_small(&spec(more), &[128 << 20]), Ok(()), "{more}");
        }
        assert_eq!(refuse_small(&spec("mkfs=true\n"), &[300 << 20]), Ok(()));
    }
}
