//! Metrics that the agent knows without the engine: node, control plane, records, services,
//! processes.

use super::Gathered;
use super::families as f;
use super::text::{Page, seconds};
use mainstay_control::State;
use mainstay_control::state::{Resource, Service};
use mainstay_pool::replica_bytes;
use mainstay_types::{Mode, NodeId, NodeStatus, ServicePhase};

/// The node and the control plane.
pub fn node(page: &mut Page, seen: &Gathered) {
    page.family(&f::BUILD_INFO, |out| out.add(&[env!("CARGO_PKG_VERSION")], 1_u64));
    page.one(&f::ENGINE_UP, seen.engine.is_some());
    page.one(&f::SCRAPE_SECONDS, seconds(seen.took_us));
    if let Some((size, free)) = seen.pool {
        page.one(&f::POOL_SIZE, size);
        page.one(&f::POOL_FREE, free);
    }
    if let Some(kind) = &seen.frontend {
        page.family(&f::FRONTEND_INFO, |out| out.add(&[&kind.to_string()], 1_u64));
    }
    let Some(member) = &seen.member else { return };
    let (view, state, own) = (&member.view, &*member.view.state, member.node);
    let witness = state.nodes.get(&own).is_some_and(|node| node.witness);
    let witness = if witness { "true" } else { "false" };
    page.family(&f::NODE_INFO, |out| {
        out.add(&[&member.cluster, &member.name, witness], 1_u64);
    });
    page.one(&f::LEASE_REMAINING, seconds(member.lease_left_us));
    if let Some(node) = state.nodes.get(&own) {
        page.one(&f::GENERATION, node.generation);
    }
    page.one(&f::CONTROL_LEADER, view.leader.is_some());
    page.one(&f::CONTROL_LEADS, view.is_leader);
    page.one(&f::CONTROL_VOTERS, view.voters.len());
    page.one(&f::CONTROL_TERM, view.term);
    page.one(&f::CONTROL_APPLIED, view.applied);
    page.one(&f::CONTROL_EVENTS, state.last_event);
    page.family(&f::NODE_ALIVE, |out| {
        for node in state.nodes.values() {
            out.add(&[&node.name], node.status == NodeStatus::Alive);
        }
    });
    page.family(&f::NODE_CONNECTED, |out| {
        for node in state.nodes.values().filter(|node| node.id != own) {
            out.add(&[&node.name], member.connected.contains(&node.id));
        }
    });
    page.one(&f::POOL_PROMISED, promised(state, own));
}

/// Bytes that the replicas on a node take at most.
fn promised(state: &State, own: NodeId) -> u64 {
    let here = state.resources.values().filter(|resource| resource.spec.replicas.contains(&own));
    here.map(|resource| replica_bytes(&resource.spec.volumes, resource.spec.journal_bytes)).sum()
}

/// The records of resources with a replica on this node, and promotions to here.
pub fn resources(page: &mut Page, seen: &Gathered) {
    let Some(member) = &seen.member else { return };
    let state = &*member.view.state;
    let own = member.node;
    let here: Vec<&Resource> =
        state.resources.values().filter(|resource| resource.spec.replicas.contains(&own)).collect();
    page.family(&f::RESOURCE_PRIMARY, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], one.record.primary.is_some()));
    });
    page.family(&f::RESOURCE_MODE, |out| {
        for one in &here {
            out.add(&[&one.name, &one.record.policy.mode().to_string()], 1_u64);
        }
    });
    modes(page, &here);
    scrubs(page, &here, seen.wall_ms);
    page.family(&f::RESOURCE_EPOCH, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], one.record.epoch.0));
    });
    page.family(&f::RESOURCE_REPLICAS, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], one.spec.replicas.len()));
    });
    page.family(&f::RESOURCE_IN_SYNC, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], one.record.iss.len()));
    });
    page.family(&f::RESOURCE_BROKEN, |out| {
        let broken =
            |one: &Resource| one.spec.replicas.iter().filter(|node| one.broken(**node).is_some()).count();
        here.iter().for_each(|one| out.add(&[&one.name], broken(one)));
    });
    page.family(&f::RESOURCE_FAILED, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], one.failure.is_some()));
    });
    page.family(&f::IN_SYNC, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], one.record.iss_member(own).is_some()));
    });
    page.family(&f::PROMOTIONS, |out| {
        for ((resource, cause), count) in &seen.noted.promotions {
            if let Some(resource) = state.resources.get(resource) {
                out.add(&[&resource.name, cause.name()], *count);
            }
        }
    });
}

/// The modes in force and the limits of mode A.
fn modes(page: &mut Page, here: &[&Resource]) {
    page.family(&f::MODE_IN_FORCE, |out| {
        for one in here {
            let (counted, in_sync) = (one.record.instances.len(), one.record.iss.len());
            let in_force =
                if one.record.policy.mode() == Mode::B { counted == in_sync } else { counted == 0 };
            out.add(&[&one.name], in_force);
        }
    });
    page.family(&f::UNPROVEN, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], one.reopened.len()));
    });
    let follows = || here.iter().filter(|one| one.record.policy.mode() == Mode::A);
    page.family(&f::FAILOVER_READY, |out| {
        let takes_over = follows().filter(|one| one.record.policy.takeover());
        takes_over.for_each(|one| out.add(&[&one.name], one.record.failover_ready.len()));
    });
    page.family(&f::LAG_LIMIT_BYTES, |out| {
        follows().for_each(|one| out.add(&[&one.name], one.record.policy.lag().bytes));
    });
    page.family(&f::LAG_LIMIT_SECONDS, |out| {
        follows().for_each(|one| out.add(&[&one.name], seconds(one.record.policy.lag().ms * 1000)));
    });
}

/// The last scrubs, and when the next one is due.
fn scrubs(page: &mut Page, here: &[&Resource], wall_ms: u64) {
    let last = |one: &Resource| one.scrubs.failed.clone().or_else(|| one.scrubs.whole.clone());
    page.family(&f::SCRUB_INTERVAL, |out| {
        for one in here.iter().filter(|one| one.record.policy.scrub.interval_ms > 0) {
            out.add(&[&one.name], seconds(one.record.policy.scrub.interval_ms * 1000));
        }
    });
    page.family(&f::SCRUB_WHOLE, |out| {
        for one in here {
            if let Some(whole) = &one.scrubs.whole {
                out.add(&[&one.name], seconds(whole.at_ms.saturating_mul(1000)));
            }
        }
    });
    page.family(&f::SCRUB_OUTCOME, |out| {
        for one in here {
            if let Some(last) = last(one) {
                out.add(&[&one.name, &last.end.to_string()], 1_u64);
            }
        }
    });
    page.family(&f::SCRUB_LEFT, |out| {
        for one in here {
            if let Some(last) = last(one) {
                out.add(&[&one.name], last.unrepaired());
            }
        }
    });
    page.family(&f::SCRUB_FAILURES, |out| {
        here.iter().for_each(|one| out.add(&[&one.name], u64::from(one.scrubs.failures)));
    });
    page.family(&f::SCRUB_LATE, |out| {
        let late = |one: &Resource| one.scrub_late_ms(wall_ms).unwrap_or(0).saturating_mul(1000);
        here.iter().for_each(|one| out.add(&[&one.name], seconds(late(one))));
    });
}

/// Services whose resource has a replica here.
pub fn services(page: &mut Page, seen: &Gathered) {
    let Some(member) = &seen.member else { return };
    let state = &*member.view.state;
    let own = member.node;
    let resource = |service: &Service| state.resource_by_name(&service.spec.resource);
    let here: Vec<(&String, &Service)> = state
        .services
        .iter()
        .filter(|(_, one)| resource(one).is_some_and(|resource| resource.spec.replicas.contains(&own)))
        .collect();
    page.family(&f::SERVICE_PHASE, |out| {
        for (name, one) in &here {
            if let Some(on) = one.nodes.get(&own) {
                out.add(&[name, &on.phase.to_string()], 1_u64);
            }
        }
    });
    page.family(&f::SERVICE_WANTED, |out| {
        for (name, one) in &here {
            let primary = resource(one).and_then(|resource| resource.record.primary);
            out.add(&[name], primary == Some(own) && one.is_wanted());
        }
    });
    page.family(&f::SERVICE_RUNNING, |out| {
        for (name, one) in &here {
            let phase = one.nodes.get(&own).map(|on| on.phase);
            out.add(&[name], phase == Some(ServicePhase::Running));
        }
    });
    page.family(&f::SERVICE_FAILURES, |out| {
        for (name, one) in &here {
            out.add(&[name], u64::from(one.nodes.get(&own).map_or(0, |on| on.failures)));
        }
    });
    page.family(&f::SERVICE_HALTED, |out| {
        here.iter().for_each(|(name, one)| out.add(&[name], one.halted.is_some()));
    });
    page.family(&f::SERVICE_START, |out| {
        for (name, starts) in &seen.noted.starts {
            out.summary(&[name], starts.count, starts.sum_us);
        }
    });
}

pub fn processes(page: &mut Page, seen: &Gathered) {
    page.family(&f::PROCESS_CPU, |out| {
        seen.processes.iter().for_each(|(name, one)| out.add(&[name], seconds(one.cpu_us)));
    });
    page.family(&f::PROCESS_MEMORY, |out| {
        seen.processes.iter().for_each(|(name, one)| out.add(&[name], one.resident_bytes));
    });
    page.family(&f::PROCESS_FDS, |out| {
        seen.processes.iter().for_each(|(name, one)| out.add(&[name], one.open_fds));
    });
    page.family(&f::PROCESS_THREADS, |out| {
        seen.processes.iter().for_each(|(name, one)| out.add(&[name], one.threads));
    });
}
