//! Making one report of the records of all nodes.

use super::{NodeReport, Numbers, Report, Requests, ResourceReport, ratio};
use crate::failure::Outcome;
use mainstay_api::rest::{
    ClusterView, EventsPage, HistoryPage, LoadPage, LoadPoint, RequestLoad, ResourceLoad, Severity,
    StageLoad, WaitClass, WaitLoad,
};
use mainstay_client::Client;
use mainstay_types::NodeStatus;
use std::collections::BTreeMap;

/// Points of a report.
const POINTS: u64 = 60;
/// Most changes of primaries that are asked for.
const CHANGES_MAX: usize = 1000;

#[derive(Clone, Copy)]
pub struct Interval {
    pub from_ms: u64,
    pub to_ms: u64,
}

/// Asks every living node for its history. A node that does not answer is named in the report.
pub fn report(client: &Client, Interval { from_ms, to_ms }: Interval) -> Outcome<Report> {
    let cluster: ClusterView = client.get("/v1/cluster")?;
    let step_ms = ((to_ms - from_ms) / POINTS).next_multiple_of(60_000).max(60_000);
    let (mut pages, mut missing) = (Vec::new(), Vec::new());
    for node in &cluster.nodes {
        if node.witness {
            continue;
        }
        if node.status == NodeStatus::Dead {
            missing.push(format!("{}: the node is dead", node.name));
            continue;
        }
        let path = format!("/v1/load?from_ms={from_ms}&to_ms={to_ms}&step_ms={step_ms}&node={}", node.name);
        match client.get::<LoadPage>(&path) {
            Ok(page) if page.points.is_empty() => {
                missing.push(format!("{}: it has no record of this time, and makes one a minute", node.name));
            }
            Ok(page) => pages.push(page),
            Err(error) => missing.push(format!("{}: {error}", node.name)),
        }
    }
    let mut report = of_pages(&pages, Interval { from_ms, to_ms }, step_ms);
    (report.cluster, report.missing) = (cluster.name, missing);
    Ok(report)
}

/// Adds what happened in the interval.
pub fn add_events(client: &Client, report: &mut Report) -> Outcome<()> {
    let inside = |at_ms| at_ms > report.from_ms && at_ms <= report.to_ms;
    let history: HistoryPage = client.get(&format!("/v1/history?lines={CHANGES_MAX}"))?;
    let changes = history.changes.into_iter().filter(|change| inside(change.at_ms)).collect();
    let page: EventsPage = client.get("/v1/events?after=0")?;
    let is_told = |severity| severity != Severity::Info;
    let events = page.events.into_iter().filter(|event| is_told(event.severity) && inside(event.at_ms));
    let events = events.collect();
    (report.changes, report.events) = (changes, events);
    Ok(())
}

/// Times of journals by node, resource and point.
type Journals<'a> = BTreeMap<(&'a str, &'a str, u64), StageLoad>;

pub(super) fn of_pages(pages: &[LoadPage], Interval { from_ms, to_ms }: Interval, step_ms: u64) -> Report {
    // A node with many resources answers with longer steps: these times a power of two.
    let step_ms = pages.iter().map(|page| page.step_ms).chain([step_ms]).max().unwrap_or(step_ms);
    let number = |point: &LoadPoint| point.at_ms.saturating_sub(from_ms) / step_ms;
    let mut journals = Journals::new();
    let (mut covered, mut covered_all) = (BTreeMap::<u64, u64>::new(), 0);
    for page in pages {
        let mut of_node = BTreeMap::<u64, u64>::new();
        for point in &page.points {
            *of_node.entry(number(point)).or_default() += point.covered_ms;
            for load in &point.resources {
                let sum = journals.entry((&page.node, &load.resource, number(point))).or_default();
                sum.count += load.journal.count;
                sum.time_us += load.journal.time_us;
            }
        }
        covered_all = covered_all.max(of_node.values().sum());
        for (number, ms) in of_node {
            let most = covered.entry(number).or_default();
            *most = ms.max(*most);
        }
    }
    let mut resources = BTreeMap::<&str, ResourceReport>::new();
    for page in pages {
        for point in &page.points {
            for load in &point.resources {
                let resource = resources.entry(&load.resource).or_default();
                if load.primary_ms > 0 {
                    *resource.primaries.entry(page.node.clone()).or_default() += load.primary_ms;
                }
                let waits = waits_of(&page.node, load, number(point), &journals);
                for numbers in [resource.points.entry(number(point)).or_default(), &mut resource.total] {
                    add(numbers, &page.node, load, &waits);
                }
            }
        }
    }
    let mut resources: Vec<ResourceReport> = resources
        .into_iter()
        .map(|(name, mut resource)| {
            name.clone_into(&mut resource.resource);
            resource.total.covered_ms = covered_all;
            for (number, numbers) in &mut resource.points {
                numbers.covered_ms = covered.get(number).copied().unwrap_or(0);
            }
            resource
        })
        .collect();
    resources.sort_by_key(|resource| std::cmp::Reverse(resource.total.waited_us()));
    let nodes = pages.iter().map(|page| node_report(page, &number)).collect();
    Report { from_ms, to_ms, step_ms, resources, nodes, ..Report::default() }
}

fn node_report(page: &LoadPage, number: &impl Fn(&LoadPoint) -> u64) -> NodeReport {
    let covered_ms: u64 = page.points.iter().map(|point| point.covered_ms).sum();
    let sum = |of: fn(&LoadPoint) -> u64| page.points.iter().map(of).sum::<u64>();
    let most = |of: fn(&LoadPoint) -> u64| page.points.iter().map(of).max().unwrap_or(0);
    // Microseconds in a millisecond are thousandths.
    let permille = |us: u64| us.checked_div(covered_ms).unwrap_or(0);
    let spaces = || page.points.iter().filter(|point| point.pool_size_bytes > 0);
    let of_point = |point: &LoadPoint| {
        (
            number(point),
            (point.engine_cpu_us.checked_div(point.covered_ms).unwrap_or(0), point.pool_free_bytes),
        )
    };
    NodeReport {
        node: page.node.clone(),
        covered_ms,
        engine_cpu_permille: permille(sum(|point| point.engine_cpu_us)),
        agent_cpu_permille: permille(sum(|point| point.agent_cpu_us)),
        engine_memory_bytes: most(|point| point.engine_memory_bytes),
        agent_memory_bytes: most(|point| point.agent_memory_bytes),
        pool_size_bytes: spaces().next_back().map_or(0, |point| point.pool_size_bytes),
        pool_free_bytes_first: spaces().next().map_or(0, |point| point.pool_free_bytes),
        pool_free_bytes: spaces().next_back().map_or(0, |point| point.pool_free_bytes),
        points: page.points.iter().map(of_point).collect(),
    }
}

/// Waiting by classes that name nodes. Of the time that writes waited for a peer, its journal has
/// the part that its own history tells, and the network has the rest.
fn waits_of(node: &str, load: &ResourceLoad, number: u64, journals: &Journals<'_>) -> Vec<(String, u64)> {
    let mut waits = Vec::new();
    for WaitLoad { class, node: peer, time_us } in &load.waits {
        let peer = peer.as_deref().unwrap_or("?");
        let name = match class {
            WaitClass::Read => format!("reads of the disk of {node}"),
            WaitClass::Overlap => "reads behind writes".to_owned(),
            WaitClass::Queue => "queue".to_owned(),
            WaitClass::Journal => format!("journal of {node}"),
            WaitClass::Commit => "commit".to_owned(),
            WaitClass::Flush => "flush".to_owned(),
            WaitClass::Peer => {
                let there =
                    journals.get(&(peer, load.resource.as_str(), number)).copied().unwrap_or_default();
                let fed = load.peers.iter().find(|fed| fed.node == peer);
                let answer = fed.map(|fed| fed.acknowledged).unwrap_or_default();
                let mean = |stage: StageLoad| ratio(stage.time_us, stage.count);
                let journal = part(*time_us, mean(there), mean(answer));
                waits.push((format!("journal of {peer}"), journal));
                waits.push((format!("network to {peer}"), time_us - journal));
                continue;
            }
        };
        waits.push((name, *time_us));
    }
    waits
}

/// The part of a time that a stage has of another one that contains it.
fn part(time_us: u64, inner: f64, outer: f64) -> u64 {
    if outer <= 0.0 {
        return 0;
    }
    ((time_us as f64 * (inner / outer).clamp(0.0, 1.0)) as u64).min(time_us)
}

fn add(numbers: &mut Numbers, node: &str, load: &ResourceLoad, waits: &[(String, u64)]) {
    add_requests(&mut numbers.reads, &load.reads);
    for kind in [&load.writes, &load.discards, &load.write_zeroes] {
        add_requests(&mut numbers.writes, kind);
    }
    for (class, us) in waits.iter().filter(|(_, us)| *us > 0) {
        *numbers.waits.entry(class.clone()).or_default() += us;
    }
    numbers.copied_bytes += load.copied_bytes;
    for peer in &load.peers {
        numbers.times_slow += peer.times_slow;
        numbers.lag_bytes = numbers.lag_bytes.max(peer.lag_bytes);
    }
    if load.journal_permille > numbers.journal_permille {
        numbers.journal_permille = load.journal_permille;
        node.clone_into(&mut numbers.journal_node);
    }
}

fn add_requests(sum: &mut Requests, load: &RequestLoad) {
    sum.count += load.count;
    sum.bytes += load.bytes;
    sum.errors += load.errors;
    sum.time_us += load.time_us;
    if sum.histogram.len() < load.histogram.len() {
        sum.histogram.resize(load.histogram.len(), 0);
    }
    sum.histogram.iter_mut().zip(&load.histogram).for_each(|(sum, count)| *sum += count);
}
