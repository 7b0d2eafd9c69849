//! `mainstay resource …`.

use super::attached::{self, attach};
use super::pace::{Pace, copied};
use super::{advice_lines, checked_name, follow, modes, scrub, settings, watch};
use crate::cli::{CreateArgs, ResourceCommand, WaitArgs};
use crate::failure::{Code, Failure, Outcome, exit};
use crate::interrupt::GoesOn;
use crate::output::{Output, Progress, table};
use mainstay_api::rest::{
    Accepted, Health, Mode, OriginView, PeerView, PrimaryMove, PrimaryMoves, ReplicaAdd, ReplicaMove,
    ReplicaView, ResourceAttach, ResourceCreate, ResourceView, Role, ScrubStart, SettingsChange,
    VolumeResize,
};
use mainstay_cli::list::{Cell, List};
use mainstay_client::Client;
use mainstay_types::Key;
use mainstay_types::size;
use std::io::IsTerminal;

pub fn run(command: ResourceCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        ResourceCommand::Create(args) => create(args, client, output)?,
        ResourceCommand::List(args) => {
            let ask = || Ok(client.get::<Vec<ResourceView>>("/v1/resources")?);
            watch::list(args, output, ask, |list| overview(list))?;
        }
        ResourceCommand::Status { name, watch } => {
            let path = path(&name)?;
            watch::show(watch, output, || Ok(client.get::<ResourceView>(&path)?), details)?;
        }
        ResourceCommand::AddReplica { name, node, wait } => {
            let path = path(&name)?;
            let request = ReplicaAdd { node: checked_name(&node)?.to_owned() };
            let accepted = client.post(&format!("{path}/replicas"), &request)?;
            let there = |now: &ResourceView| is_in_sync(now, &node);
            let undo = format!("mainstay resource remove-replica {name} {node}");
            settle(
                accepted,
                (&name, &format!("adding a replica on {node}"), &undo),
                wait,
                client,
                output,
                there,
            )?;
        }
        ResourceCommand::RemoveReplica { name, node, wait } => {
            let path = path(&name)?;
            let accepted = client.delete(&format!("{path}/replicas/{}", checked_name(&node)?))?;
            let gone = |now: &ResourceView| is_gone(now, &node);
            settle(
                accepted,
                (&name, &format!("removing the replica on {node}"), ""),
                wait,
                client,
                output,
                gone,
            )?;
        }
        ResourceCommand::MoveReplica { name, node, to, wait } => {
            let path = path(&name)?;
            let request = ReplicaMove { to: checked_name(&to)?.to_owned() };
            let path = format!("{path}/replicas/{}/move", checked_name(&node)?);
            let accepted = client.post(&path, &request)?;
            let moved = |now: &ResourceView| is_in_sync(now, &to) && is_gone(now, &node);
            settle(
                accepted,
                (
                    &name,
                    &format!("moving the replica on {node} to {to}"),
                    &format!("mainstay resource remove-replica {name} {to}"),
                ),
                wait,
                client,
                output,
                moved,
            )?;
        }
        ResourceCommand::Move { name, to, wait } => relocate(&name, to, wait, client, output)?,
        ResourceCommand::Resize { name, size, volume, wait } => {
            let path = format!("{}/volumes/{volume}/resize", path(&name)?);
            let accepted = client.post(&path, &VolumeResize { bytes: size })?;
            let grown = |now: &ResourceView| !now.growing.iter().any(|growing| growing.volume == volume);
            settle(accepted, (&name, &format!("growing volume {volume}"), ""), wait, client, output, grown)?;
        }
        ResourceCommand::Set { name, settings: chosen } => {
            settings::set(&path(&name)?, chosen, client, output)?;
        }
        ResourceCommand::Settings { name } => settings::show(&path(&name)?, client, output)?,
        ResourceCommand::SetMode { name, mode, lag_bytes, lag_s, takeover } => {
            let changes = modes::mode_change(&mode, (lag_bytes, lag_s), takeover);
            settings::change(&path(&name)?, &changes, client, output)?;
        }
        ResourceCommand::SetMinCopies { name, copies, suspend } => {
            let copies = Some((Key::MinCopies, copies.into()));
            let suspend = suspend.suspend_io.map(|ms| (Key::SuspendIo, ms));
            settings::change(&path(&name)?, &changed(copies.into_iter().chain(suspend)), client, output)?;
        }
        ResourceCommand::ForcePromote { name, node, accept_loss, wait } => {
            let url = format!("{}/force/{}", path(&name)?, checked_name(&node)?);
            let accepted = modes::force_promote(&url, (&name, &node), accept_loss, client)?;
            let serves =
                |now: &ResourceView| now.primary.as_ref() == Some(&node) && modes::serves(now, &node);
            settle(accepted, (&name, &format!("going on from {node}"), ""), wait, client, output, serves)?;
        }
        ResourceCommand::Scrub { report: true, name, .. } => return scrub::report(&name, client, output),
        ResourceCommand::Scrub { stop: true, name, .. } => scrub::stop(&name, client, output)?,
        ResourceCommand::Scrub { name, repair, rate, no_wait, .. } => {
            let start = ScrubStart { repair, rate: rate.unwrap_or(0) };
            return scrub::run(&name, start, no_wait, client, output);
        }
        ResourceCommand::SetScrub { name, scrub } => {
            let changes = changed(scrub.settings());
            if changes.is_empty() {
                return Err(Failure::new(
                    Code::NothingToChange,
                    "no setting to change is given",
                    "Give --scrub-interval, --scrub-repair or --scrub-rate.",
                ));
            }
            settings::change(&path(&name)?, &changes, client, output)?;
        }
        ResourceCommand::Attach { name, node, wait_ms, take_over, wait } => {
            let request = ResourceAttach { node: checked_name(&node)?.to_owned(), wait_ms, take_over };
            let accepted = client.put(&format!("{}/attachment", path(&name)?), &request)?;
            attach(accepted, (&name, &node), wait, client, output)?;
        }
        ResourceCommand::Detach { name, wait } => {
            let accepted = client.delete(&format!("{}/attachment", path(&name)?))?;
            let gone =
                |now: &ResourceView| now.attached.is_none() && now.detaching.is_empty() && has_devices(now);
            settle(accepted, (&name, "detaching", ""), wait, client, output, gone)?;
        }
        ResourceCommand::Delete { name, yes, wait } => {
            let path = path(&name)?;
            if !yes {
                let resource: ResourceView = client.get(&path)?;
                confirm(&resource)?;
            }
            delete(&name, wait, client, output)?;
        }
    }
    Ok(0)
}

/// Settings that are to have these values.
fn changed(values: impl IntoIterator<Item = (Key, u64)>) -> SettingsChange {
    let named = values.into_iter().map(|(key, value)| settings::named(key, value));
    named.map(|(name, value)| (name, Some(value))).collect()
}

pub fn path(name: &str) -> Outcome<String> {
    Ok(format!("/v1/resources/{}", checked_name(name)?))
}

fn create(args: CreateArgs, client: &Client, output: Output) -> Outcome<()> {
    let path = path(&args.name)?;
    let copies = args.min_copies.map(|copies| (Key::MinCopies, copies.into()));
    let suspend = args.suspend.suspend_io.map(|ms| (Key::SuspendIo, ms));
    let short = args.scrub.settings().chain(copies).chain(suspend);
    let short = short.map(|(key, value)| settings::named(key, value));
    let short = short.map(|(name, value)| (name, Some(value)));
    let settings = settings::collected(short.chain(args.settings.into_iter().map(settings::typed)))?;
    // A new resource has no choice that could be taken back.
    let settings = settings.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let request = ResourceCreate {
        name: args.name.clone(),
        volumes: args.sizes,
        journal_bytes: args.journal,
        replicas: args.replicas,
        replica_count: args.replica_count,
        preferred: args.preferred,
        settings,
        from: args.from,
    };
    let name = &args.name;
    let (look, undo) =
        (format!("mainstay resource status {name}"), format!("mainstay resource delete {name}"));
    let mut resource: ResourceView = {
        let unknown = format!(
            "making resource {name} goes on in the cluster if it was recorded already. To see whether it was, run `{look}`. To undo it, run `{undo}`."
        );
        let _told = GoesOn::tell(unknown);
        client.post("/v1/resources", &request)?
    };
    let _told = GoesOn::work(&format!("making resource {name}"), &look, &undo);
    if !args.wait.no_wait {
        let (mut progress, mut pace) = (Progress::new(), Pace::default());
        resource = follow(&format!("resource {}", args.name), args.wait.wait_s, || {
            let now: ResourceView = client.get(&path)?;
            if let Some(reason) = &now.failure {
                let remedy = now.advice.first().cloned().unwrap_or_default();
                return Err(Failure::new(Code::ResourceFailed, reason.clone(), remedy));
            }
            progress.show(&under_way("creating", &now, &mut pace));
            let done = now.health == Health::Ok && now.primary.is_some() && now.origin.is_none();
            Ok(done.then_some(now))
        })?;
    }
    output.result(&resource, details)
}

/// Has the operator type the name of a resource whose data is about to be deleted.
fn confirm(resource: &ResourceView) -> Outcome<()> {
    let (name, size) = (&resource.name, sizes(resource));
    let remedy = format!("To delete it without a question, run `mainstay resource delete {name} --yes`.");
    if !std::io::stdin().is_terminal() {
        let message =
            format!("deleting resource {name} destroys its data, and there is no terminal to ask on");
        return Err(Failure::new(Code::NotConfirmed, message, remedy));
    }
    eprint!("Deleting resource {name} destroys its data ({size}) on all nodes. Type its name to go on: ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    if read.is_ok() && answer.trim() == name {
        return Ok(());
    }
    Err(Failure::new(Code::NotConfirmed, format!("resource {name} is left as it is"), remedy)
        .with_exit(exit::FAILED))
}

fn delete(name: &str, wait: WaitArgs, client: &Client, output: Output) -> Outcome<()> {
    let path = path(name)?;
    let mut accepted: Accepted = client.delete(&path)?;
    if !wait.no_wait {
        let _told = GoesOn::work(&format!("deleting resource {name}"), "mainstay resource list", "");
        let mut progress = Progress::new();
        follow(&format!("deleting resource {name}"), wait.wait_s, || {
            let list: Vec<ResourceView> = client.get("/v1/resources")?;
            let left = list.iter().find(|resource| resource.name == name);
            if let Some(left) = left {
                progress.show(&format!("deleting: {} replicas left", left.replicas.len()));
            }
            Ok(left.is_none().then_some(()))
        })?;
        accepted.message = format!("resource {name} is deleted");
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}

/// Moves the primary of a resource without a service.
fn relocate(name: &str, to: Option<String>, wait: WaitArgs, client: &Client, output: Output) -> Outcome<()> {
    let path = path(name)?;
    let to = to.map(|to| checked_name(&to).map(str::to_owned)).transpose()?;
    let mut moves: PrimaryMoves = client.post(&format!("{path}/move"), &PrimaryMove { to })?;
    let to = &moves.to;
    if !wait.no_wait {
        let what = format!("moving the primary of resource {name} to {to}");
        let _told = GoesOn::work(&what, &format!("mainstay resource status {name}"), "");
        let (mut progress, mut pace) = (Progress::new(), Pace::default());
        follow(&what, wait.wait_s, || {
            let now: ResourceView = client.get(&path)?;
            progress.show(&under_way("moving", &now, &mut pace));
            let there = now.primary.as_ref() == Some(to);
            if !there && now.primary_moves_to.as_ref() != Some(to) {
                return Err(Failure::new(
                    Code::NotEligible,
                    format!("the move of the primary of resource {name} to {to} was given up"),
                    "See why with `mainstay events`.",
                ));
            }
            Ok((there && modes::serves(&now, to) && has_devices(&now)).then_some(()))
        })?;
        moves.accepted.message = format!("the primary of resource {name} is on {to}");
    }
    output.result(&moves, |moves| moves.accepted.message.clone())
}

/// Whether the primary has devices, as far as it says anything.
fn has_devices(resource: &ResourceView) -> bool {
    let primary = resource.replicas.iter().find(|replica| Some(&replica.node) == resource.primary.as_ref());
    primary.and_then(|replica| replica.live.as_ref()).is_none_or(|live| !live.devices.is_empty())
}

fn is_in_sync(resource: &ResourceView, node: &str) -> bool {
    resource.replicas.iter().any(|replica| replica.node == node && replica.in_sync)
}

/// Whether the replica on a node is gone. The files of a dead node go when it returns, and the
/// command does not wait for that.
fn is_gone(resource: &ResourceView, node: &str) -> bool {
    let kept = resource.replicas.iter().any(|replica| replica.node == node);
    let leaves = resource.leaving.iter().any(|leaving| leaving.node == node && !leaving.dead);
    !kept && !leaves
}

/// Follows a change of the replicas until `done`. The arguments name the resource, the work in
/// words, and the command that undoes it.
fn settle(
    accepted: Accepted,
    (name, doing, undo): (&str, &str, &str),
    wait: WaitArgs,
    client: &Client,
    output: Output,
    done: impl Fn(&ResourceView) -> bool,
) -> Outcome<()> {
    if wait.no_wait {
        return output.result(&accepted, |accepted| accepted.message.clone());
    }
    let path = path(name)?;
    let what = format!("{doing} of resource {name}");
    let _told = GoesOn::work(&what, &format!("mainstay resource status {name}"), undo);
    let (mut progress, mut pace) = (Progress::new(), Pace::default());
    let resource = follow(&what, wait.wait_s, || {
        let now: ResourceView = client.get(&path)?;
        progress.show(&under_way(doing, &now, &mut pace));
        Ok(done(&now).then_some(now))
    })?;
    output.result(&resource, details)
}

/// How far the primary is with those it fills.
fn copying(resource: &ResourceView) -> String {
    let live = resource.replicas.iter().filter_map(|replica| replica.live.as_ref());
    let peers = live.flat_map(|live| &live.peers);
    let one = |peer: &PeerView| Some(format!(", {} {}", peer.node, copied(peer)?));
    peers.filter_map(one).collect()
}

/// Milliseconds as people read them.
pub(super) fn duration(ms: u64) -> String {
    match ms.div_ceil(1000) {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s.div_ceil(60)),
        s @ 7_200..172_800 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        s => format!("{} days", s / 86_400),
    }
}

pub fn health(resource: &ResourceView) -> &'static str {
    match resource.health {
        _ if resource.deleting => "deleting",
        Health::Ok => "ok",
        Health::Degraded => "degraded",
        Health::Changing => "changing",
        Health::Down => "DOWN",
    }
}

fn in_sync(resource: &ResourceView) -> String {
    let names = |wanted: bool| {
        let list = resource.replicas.iter().filter(|replica| replica.in_sync == wanted);
        list.map(|replica| replica.node.as_str()).collect::<Vec<_>>().join(" ")
    };
    let (inside, outside) = (names(true), names(false));
    let inside = if inside.is_empty() { "none".to_owned() } else { inside };
    if resource.mode == Mode::A {
        return format!("mode A, writes wait for {inside}");
    }
    if outside.is_empty() { format!("in sync {inside}") } else { format!("in sync {inside}, not {outside}") }
}

/// One line about a change of a resource that goes on.
fn under_way(doing: &str, resource: &ResourceView, pace: &mut Pace) -> String {
    pace.line(doing, resource, &summary(resource).replacen(&copying(resource), "", 1))
}

/// One line about a resource.
pub fn summary(resource: &ResourceView) -> String {
    let primary = resource.primary.as_deref().map_or("no primary".into(), |node| format!("primary {node}"));
    let (health, in_sync) = (health(resource), in_sync(resource));
    let notes = [
        made_of(resource),
        attached::note(resource),
        modes::following(resource),
        copying(resource),
        slow(resource),
        full(resource),
        lost(resource),
    ]
    .concat();
    format!("resource {}: {health}, {primary}, {in_sync}{notes}", resource.name)
}

/// Names the snapshot that an unfinished resource is being made of; empty for a finished one.
fn made_of(resource: &ResourceView) -> String {
    let one = |origin: &OriginView| format!("; being made of {}@{}", origin.resource, origin.snapshot);
    resource.origin.as_ref().map(one).unwrap_or_default()
}

/// Pools without space for what is to be written.
fn full(resource: &ResourceView) -> String {
    let full = |replica: &&ReplicaView| replica.live.as_ref().is_some_and(|live| live.no_space.is_some());
    let one = |replica: &ReplicaView| format!("; the pool of {} is full", replica.node);
    resource.replicas.iter().filter(full).map(one).collect()
}

/// Blocks that no replica has.
fn lost(resource: &ResourceView) -> String {
    let live = resource.replicas.iter().filter_map(|replica| replica.live.as_ref());
    let one = |block: &String| {
        format!(
            "; {block}, and no replica in sync has it whole: reading it is an error until it is written anew"
        )
    };
    live.filter_map(|live| live.unreadable.as_ref()).map(one).collect()
}

/// Lists the space that each replica takes in its pool, as a line of its own; empty when no node
/// tells it.
pub fn space(resource: &ResourceView) -> String {
    let one = |replica: &ReplicaView| Some(format!("{} {}", replica.node, taken(replica)?));
    let each: Vec<_> = resource.replicas.iter().filter_map(one).collect();
    let size = size::size_words(resource.volumes.iter().sum());
    if each.is_empty() {
        return String::new();
    }
    format!("\n  space taken in the pools, for {size} of volumes: {}", each.join(", "))
}

fn taken(replica: &ReplicaView) -> Option<String> {
    let allocated = &replica.live.as_ref()?.allocated;
    (!allocated.is_empty()).then(|| size::size_words(allocated.iter().sum()))
}

/// Replicas that are out because they were slow, and when they may return.
fn slow(resource: &ResourceView) -> String {
    let live = resource.replicas.iter().filter_map(|replica| replica.live.as_ref());
    // Another line tells of a full pool.
    let is_full = |peer: &PeerView| {
        let mut replicas = resource.replicas.iter().filter(|replica| replica.node == peer.node);
        replicas.any(|replica| replica.live.as_ref().is_some_and(|live| live.no_space.is_some()))
    };
    let one = |peer: &PeerView| {
        let slow = peer.slow.filter(|_| !is_full(peer))?;
        let returns = match slow.returns_in_ms.div_ceil(1000) {
            0 => "as soon as it has caught up".to_owned(),
            seconds => format!("in {seconds} s at the earliest, if it keeps up"),
        };
        let (out_s, latency) = (slow.out_ms / 1000, latency(slow.latency_us));
        // Entries without an acknowledgement went with their connection, so there is no time to
        // name.
        let why = match slow.latency_us {
            0 => "it did not acknowledge in time".to_owned(),
            _ => format!("it took {latency} to acknowledge"),
        };
        Some(format!(
            "; {} is out because it was slow: {why}, {out_s} s ago; it returns {returns}",
            peer.node
        ))
    };
    live.flat_map(|live| &live.peers).filter_map(one).collect()
}

/// Microseconds as people read them.
fn latency(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{} ms", us / 1000),
    }
}

fn sizes(resource: &ResourceView) -> String {
    resource.volumes.iter().map(|&bytes| size::size_words(bytes)).collect::<Vec<_>>().join(" + ")
}

pub(super) fn overview(list: &[ResourceView]) -> List {
    let row = |resource: &ResourceView| {
        let primary = resource.primary.clone().unwrap_or_else(|| "none".into());
        vec![
            Cell::from(resource.name.clone()),
            health(resource).to_owned().into(),
            primary.into(),
            in_sync(resource).into(),
            Cell::bytes(&resource.volumes),
            Key::Mode.setting().write(resource.mode as u64).into(),
            resource.min_copies.to_string().into(),
            Cell::bytes(&[resource.journal_bytes]),
            resource.epoch.to_string().into(),
            resource.preferred.join(" ").into(),
        ]
    };
    List::new(
        &["RESOURCE", "HEALTH", "PRIMARY", "REPLICAS", "VOLUMES"],
        &["MODE", "MIN COPIES", "JOURNAL", "EPOCH", "PREFERRED"],
        list.iter().map(row),
    )
}

pub(super) fn details(resource: &ResourceView) -> String {
    let mut text = format!(
        "{}\nvolumes {}, journal {}, epoch {}, version {}",
        summary(resource),
        sizes(resource),
        size::size_words(resource.journal_bytes),
        resource.epoch,
        resource.version
    );
    let lag = |node: &str| {
        let mut peers = resource.replicas.iter().filter_map(|r| r.live.as_ref()).flat_map(|live| &live.peers);
        peers.find(|peer| peer.node == node)
    };
    let row = |replica: &ReplicaView| {
        let sync = match (&replica.broken, replica.in_sync) {
            (Some(_), _) => "cannot be used",
            (None, true) => "in sync",
            (None, false) if resource.mode == Mode::A => "follows",
            (None, false) => "not in sync",
        };
        let peer = lag(&replica.node).map_or(String::new(), |peer| {
            let copied = copied(peer).map_or(String::new(), |copied| format!(", {copied}"));
            let takes = match peer.latency_us {
                0 => String::new(),
                us => format!(", acknowledges in {}", latency(us)),
            };
            format!("{}, {} behind{takes}{copied}", peer.state, modes::lag(peer))
        });
        match &replica.live {
            None => {
                vec![
                    replica.node.clone(),
                    sync.into(),
                    "no answer".into(),
                    String::new(),
                    String::new(),
                    peer,
                ]
            }
            Some(live) => {
                let role = format!("{}, {}", live.role, live.data);
                vec![
                    replica.node.clone(),
                    sync.into(),
                    role,
                    format!("{} of {}", live.commit, live.end),
                    taken(replica).unwrap_or_default(),
                    peer,
                ]
            }
        }
    };
    let rows: Vec<_> = resource.replicas.iter().map(row).collect();
    text += &format!(
        "\n{}",
        table(&["NODE", "RECORDED", "ROLE", "COMMITTED", "TAKES", "SEEN BY THE PRIMARY"], &rows)
    );
    for replica in &resource.replicas {
        let waits = replica.live.as_ref().filter(|live| live.role != Role::Secondary);
        for what in waits.into_iter().flat_map(|live| &live.waiting_for) {
            text.push_str(&format!("\n{} waits: {what}", replica.node));
        }
        if let Some(reason) = replica.live.as_ref().and_then(|live| live.no_space.as_ref()) {
            text += &format!(
                "\nthe pool of {} is full, and it is tried again every second: {reason}",
                replica.node
            );
        }
        if let Some(block) = replica.live.as_ref().and_then(|live| live.unreadable.as_ref()) {
            text += &format!(
                "\n{block} on every replica in sync: reading it is an error until it is written anew or discarded; restore the file or table that it belongs to"
            );
        }
        if let Some(us) = replica.live.as_ref().map(|live| live.journal_latency_us).filter(|us| *us > 0) {
            text += &format!("\nthe journal of {} takes {}", replica.node, latency(us));
        }
    }
    for device in resource.replicas.iter().filter_map(|r| r.live.as_ref()).flat_map(|live| &live.devices) {
        text += &attached::device_line(device, "");
    }
    for one in &resource.growing {
        let waits = if resource.primary.is_none() { " as soon as there is a primary" } else { "" };
        text += &format!("\nvolume {} grows to {}{waits}", one.volume, size::size_words(one.bytes));
    }
    for one in &resource.moves {
        text += &format!("\nthe replica on {} goes when that on {} is in sync", one.from, one.to);
    }
    if let Some(to) = &resource.primary_moves_to {
        text += &format!("\nthe primary moves to {to}");
    }
    for one in &resource.leaving {
        let when = if one.dead { "when the node returns" } else { "now" };
        text += &format!("\nthe files of the removed replica on {} go {when}", one.node);
    }
    text += &attached::details(resource);
    text += &modes::details(resource);
    text += &scrub::details(&resource.scrubs);
    if let Some(reason) = &resource.failure {
        text += &format!("\nlast failure: {reason}");
    }
    text + &advice_lines(&resource.advice)
}
