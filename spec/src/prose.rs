//! A counterexample as sentences.

use crate::check::Counterexample;
use crate::log::Log;
use crate::model::Step;
use crate::state::{Back, NOBODY, Nodes, Out, State, has};
use std::fmt::Write;

/// The steps, one a line, and how it ended.
#[must_use]
pub fn tell(nodes: u8, found: &Counterexample) -> String {
    let mut text = String::new();
    let start = found.initial.record;
    let _ = writeln!(
        text,
        "At first every log is empty; the record names {} primary of epoch 1, ISS {}.",
        name(start.primary),
        members(start.iss)
    );
    let mut before = &found.initial;
    for (number, (step, after)) in found.steps.iter().enumerate() {
        let _ = writeln!(text, "{:3}. {}", number + 1, sentence(*step, before, after));
        before = after;
    }
    let _ = writeln!(text, "Broken: {}.", found.property);
    let _ = write!(text, "Acknowledged: {:?}. Record: epoch {}, ", before.done, before.record.epoch);
    let _ = writeln!(text, "primary {}, ISS {}.", name(before.record.primary), members(before.record.iss));
    for node in 0..nodes {
        let replica = before.node(node);
        let _ = writeln!(
            text,
            "{}: log {:?}, durable to {}, promised {}{}{}.",
            name(node),
            replica.log,
            replica.durable,
            replica.promised,
            if replica.leads > 0 { format!(", leads epoch {}", replica.leads) } else { String::new() },
            if replica.whole { "" } else { ", inconsistent" },
        );
    }
    let _ = writeln!(text, "A log is shown by the epochs of its entries.");
    text
}

fn name(node: u8) -> String {
    if node == NOBODY { "nobody".into() } else { char::from(b'A' + node).to_string() }
}

fn members(nodes: Nodes) -> String {
    let names: Vec<String> = (0..NOBODY).filter(|node| has(nodes, *node)).map(name).collect();
    format!("{{{}}}", names.join(","))
}

fn version(version: u8) -> String {
    members(version & 15)
}

fn committed(before: &State, after: &State) -> String {
    let (old, new) = (before.done, after.done);
    if new.end() > old.end() {
        format!(" It commits and acknowledges up to index {}.", new.end())
    } else {
        String::new()
    }
}

fn now(after: &State) -> String {
    format!(
        "epoch {}, primary {}, ISS {}",
        after.record.epoch,
        name(after.record.primary),
        members(after.record.iss)
    )
}

fn entry(log: Log, index: u8) -> String {
    format!("({}, {index})", log.epoch_at(index))
}

fn sentence(step: Step, before: &State, after: &State) -> String {
    match step {
        Step::Begin { epoch, ahead } => {
            let era = before.era(epoch);
            let node = era.node;
            let known = version(era.versions[usize::from(ahead)]);
            let log = after.node(node).log;
            let end = entry(log, log.end());
            format!(
                "{} learns that it is primary of epoch {epoch} with ISS {known}, promises it, and appends its epoch start {end}.",
                name(node)
            )
        }
        Step::Learn { node, ahead } => {
            let known = version(before.era(before.node(node).leads).versions[usize::from(ahead)]);
            format!("{} learns that the ISS is {known}.{}", name(node), committed(before, after))
        }
        Step::Renounce { node } => format!("{} learns that it is primary no more.", name(node)),
        Step::Demote { node } => format!("{} is asked to stop being primary, and does.", name(node)),
        Step::Write { node } => {
            let log = after.node(node).log;
            format!("{} takes a write and appends it as {}.", name(node), entry(log, log.end()))
        }
        Step::Flush { node } => {
            format!("{}'s journal has everything.{}", name(node), committed(before, after))
        }
        Step::Attach { node, peer } => {
            format!(
                "{} connects to {} and sends Attach in epoch {}.",
                name(node),
                name(peer),
                before.node(node).leads
            )
        }
        Step::Deliver { node, epoch } => heard(before, after, epoch, node),
        Step::Answered { epoch, peer } => answered(before, after, epoch, peer),
        Step::AskShrink { node, peer } => {
            format!(
                "{} proposes to remove {} from the ISS.{}",
                name(node),
                name(peer),
                committed(before, after)
            )
        }
        Step::Join { node, peer } => format!("{} lets {} join: commits wait for it.", name(node), name(peer)),
        Step::AskGrow { node, peer } => {
            format!("{} proposes to record {} in the ISS.", name(node), name(peer))
        }
        Step::GiveUpJoin { node, peer } => {
            format!("{} gives up the join of {}.{}", name(node), name(peer), committed(before, after))
        }
        Step::BeginCopy { node, peer } => format!(
            "{} begins a copy to {}, whose log now starts after index {}.",
            name(node),
            name(peer),
            after.node(peer).log.end()
        ),
        Step::EndCopy { node, peer } => format!("{} ends the copy to {}.", name(node), name(peer)),
        Step::LandShrink { .. } => format!("The proposed removal happens: {}.", now(after)),
        Step::LandGrow { .. } => format!("The proposed entry happens: {}.", now(after)),
        Step::DropMember { node } => format!("{} is declared dead: {}.", name(node), now(after)),
        Step::FailOver { .. } => {
            format!("{} is declared dead: {}.", name(before.record.primary), now(after))
        }
        Step::Vacate => format!(
            "{} is declared dead and no other node is alive: {}.",
            name(before.record.primary),
            now(after)
        ),
        Step::PromoteIdle { .. } => format!("A member is alive: {}.", now(after)),
        Step::HandOver { .. } => format!("{} hands over: {}.", name(before.record.primary), now(after)),
        Step::Register { node } => format!("{}'s new disk is registered: {}.", name(node), now(after)),
        Step::Crash { node } => {
            format!("{} crashes and restarts with log {:?}.", name(node), after.node(node).log)
        }
        Step::LoseDisk { node } => format!("{} loses its disk and has an empty one.", name(node)),
    }
}

fn heard(before: &State, after: &State, epoch: u8, node: u8) -> String {
    let from = name(before.era(epoch).node);
    let log = after.node(node).log;
    let to = name(node);
    match before.talk(epoch, node).out {
        Out::Attach => {
            format!("{to} hears {from}'s Attach, promises epoch {epoch} and shows its log {log:?}.")
        }
        Out::Cut(index) => format!("{to} cuts its log after index {index}, as {from} says."),
        _ => format!("{to} appends {from}'s entry {} and acknowledges it.", entry(log, log.end())),
    }
}

fn answered(before: &State, after: &State, epoch: u8, peer: u8) -> String {
    let primary = name(before.era(epoch).node);
    let what = match before.talk(epoch, peer).back {
        Back::AttachReply { common, end, .. } => {
            format!("log, which ends at {end} and is like its own up to {common}")
        }
        Back::CutReply(to) => format!("answer that it has cut after {to}"),
        Back::Ack(durable) => format!("acknowledgement up to {durable}"),
        Back::Nothing => "silence".into(),
    };
    format!("{primary} hears {}'s {what}.{}", name(peer), committed(before, after))
}
