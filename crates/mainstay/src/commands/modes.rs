//! Replication modes on the command line: choosing one, the lag of followers, and going on without
//! entries that no replica has any more (R11).

use super::settings;
use crate::failure::{Code, Failure, Outcome};
use crate::output;
use mainstay_api::rest::{
    Accepted, ForceView, Mode, PeerState, PeerView, ResourceView, Role, SettingValue, SettingsChange,
};
use mainstay_client::Client;
use mainstay_types::{Key, duration, size};

/// Changes made by `set-mode`. A limit that is not given stays as it is, and the takeover does not.
pub fn mode_change(
    mode: &str,
    (lag_bytes, lag_s): (Option<u64>, Option<u64>),
    takeover: bool,
) -> SettingsChange {
    let mode = mode.to_ascii_lowercase();
    let lag_ms = lag_s.map(|seconds| seconds.saturating_mul(1000));
    let limits = [(Key::LagBytes, lag_bytes), (Key::LagTime, lag_ms)];
    let limits = limits.into_iter().filter_map(|(key, value)| Some(settings::named(key, value?)));
    let mut changes: SettingsChange = limits.map(|(name, value)| (name, Some(value))).collect();
    changes.insert(Key::Takeover.setting().name.to_owned(), takeover.then_some(SettingValue::Switch(true)));
    changes.insert(Key::Mode.setting().name.to_owned(), Some(SettingValue::Text(mode)));
    changes
}

/// Says what a forced promotion costs, and does it if the operator accepts that. `url`: of the act.
pub fn force_promote(
    url: &str,
    (name, node): (&str, &str),
    accept_loss: bool,
    client: &Client,
) -> Outcome<Accepted> {
    let cost: ForceView = client.get(url)?;
    if !accept_loss {
        let remedy =
            format!("If that is so, run `mainstay resource force-promote {name} {node} --accept-loss`.");
        return Err(Failure::new(Code::LossNotAccepted, cost.cost, remedy));
    }
    output::say(&cost.cost);
    Ok(client.post(url, &cost)?)
}

/// Whether `node` says that it serves.
pub fn serves(resource: &ResourceView, node: &str) -> bool {
    let mut here = resource.replicas.iter().filter(|replica| replica.node == node);
    here.any(|replica| replica.live.as_ref().is_some_and(|live| live.role == Role::Primary))
}

/// How far a replica is behind.
pub fn lag(peer: &PeerView) -> String {
    let least = if peer.lag_more { "at least " } else { "" };
    format!("{least}{}", size::size_words(peer.lag_bytes))
}

/// Lists the lag of each follower of a resource in mode A.
pub fn following(resource: &ResourceView) -> String {
    if resource.mode != Mode::A {
        return String::new();
    }
    let live = resource.replicas.iter().filter_map(|replica| replica.live.as_ref());
    let one = |peer: &PeerView| match peer.lag_entries {
        0 if peer.state == PeerState::Following => format!("; {} lacks nothing", peer.node),
        entries => format!(
            "; {} ({}) lacks {} in {entries} entries, the oldest made {} ms ago",
            peer.node,
            peer.state,
            lag(peer),
            peer.lag_ms
        ),
    };
    live.flat_map(|live| &live.peers).map(one).collect()
}

/// Describes the present effect of mode B, or, in another mode, which members still make writes of
/// mode B durable.
fn memory(resource: &ResourceView) -> String {
    let counted = resource.memory.join(" ");
    let in_sync = resource.replicas.iter().filter(|replica| replica.in_sync).count();
    let primary = resource.replicas.iter().filter_map(|replica| replica.live.as_ref());
    let caches = primary.filter(|live| live.role == Role::Primary).all(|live| live.caches);
    match (resource.mode, resource.memory.len()) {
        (Mode::B, _) if !caches => {
            "\nmode B: writes wait for journals all the same. Devices that were in use before the mode was set take it up when they are attached \
             anew (mainstay service move); those that outlive an engine never do, because their users would not learn what was lost \
             with it (use --device fuse)"
                .to_owned()
        }
        (Mode::B, count) if count < in_sync => {
            format!("\nmode B: writes still wait for journals until the memory of all replicas in sync counts; so far: {}", if count == 0 { "none" } else { &counted })
        }
        (Mode::B, _) => "\nmode B: writes are acknowledged from memory, and a flush waits for journals".to_owned(),
        (_, 0) => String::new(),
        (..) => format!("\nwhat was acknowledged in mode B is being made durable on {counted}"),
    }
}

/// Limits of the lag, and what a forced promotion has cost.
pub fn details(resource: &ResourceView) -> String {
    let mut text = String::new();
    if resource.mode == Mode::A {
        text += &format!(
            "\nmode A: writes wait for a follower that lacks more than {} or something older than {}",
            size::size_words(resource.lag_bytes),
            duration::typed(resource.lag_ms)
        );
    }
    if resource.min_copies > 1 {
        text += &format!(
            "\nwrites are acknowledged with {} copies at least; with fewer they wait {}, and then fail",
            resource.min_copies,
            duration::typed(resource.suspend_ms)
        );
    }
    text += &memory(resource);
    if resource.takeover {
        text += &match resource.failover_ready.join(" or ") {
            none if none.is_empty() => "\nno follower lacks so little that it could take over now".to_owned(),
            ready => format!(
                "\nwhen the primary is lost, {ready} takes over, and the writes that it lacks are lost"
            ),
        };
    }
    if let Some(forced) = &resource.forced {
        let (node, epoch) = (&forced.node, forced.epoch);
        text += &match forced.end {
            Some(end) => {
                format!("\nforced to go on from {node} in epoch {epoch}, which held the log up to {end}")
            }
            None => format!("\n{node} took over in epoch {epoch} within the limits of mode A"),
        };
        text += &match forced.lost {
            Some((from, to)) => {
                format!("; lost were {} entries, {from} to {to}", (to + 1).saturating_sub(from))
            }
            None => "; the loss is known when a replica that had everything returns".to_owned(),
        };
    }
    text
}
