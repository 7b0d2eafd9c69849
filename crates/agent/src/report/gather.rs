//! Making one report of the records of all nodes.

use super::Interval;
use mainstay_api::rest::{
    LoadPage, LoadPoint, NodeReport, Report, ReportPoint, RequestLoad, ResourceLoad, ResourceReport,
    StageLoad, WaitClass, WaitLoad, ratio,
};
use mainstay_history::percentile;
use std::collections::BTreeMap;

/// Times of journals by node, resource and point.
type Journals<'a> = BTreeMap<(&'a str, &'a str, u64), StageLoad>;

/// Returns the report of an interval without its sentences. `step_ms`: least length of a point.
#[must_use]
pub fn of_pages(pages: &[LoadPage], Interval { from_ms, to_ms }: Interval, step_ms: u64) -> Report {
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
                for sum in [resource.points.entry(number(point)).or_default(), &mut resource.total] {
                    add(sum, &page.node, load, &waits);
                }
            }
        }
    }
    let mut resources: Vec<ResourceReport> = resources
        .into_iter()
        .map(|(name, mut resource)| {
            name.clone_into(&mut resource.resource);
            resource.total.covered_ms = covered_all;
            for (number, point) in &mut resource.points {
                point.covered_ms = covered.get(number).copied().unwrap_or(0);
            }
            set_percentiles(&mut resource.total);
            for point in resource.points.values_mut() {
                set_percentiles(point);
                // Histograms of single points are most of the bytes, and `GET /v1/load` has them.
                (point.reads.histogram, point.writes.histogram) = (Vec::new(), Vec::new());
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

fn add(sum: &mut ReportPoint, node: &str, load: &ResourceLoad, waits: &[(String, u64)]) {
    sum.primary_ms += load.primary_ms;
    add_requests(&mut sum.reads, &load.reads);
    for kind in [&load.writes, &load.discards, &load.write_zeroes] {
        add_requests(&mut sum.writes, kind);
    }
    for (class, us) in waits.iter().filter(|(_, us)| *us > 0) {
        *sum.waits.entry(class.clone()).or_default() += us;
    }
    sum.copied_bytes += load.copied_bytes;
    for peer in &load.peers {
        sum.times_slow += peer.times_slow;
        sum.lag_bytes = sum.lag_bytes.max(peer.lag_bytes);
    }
    if load.journal_permille > sum.journal_permille {
        sum.journal_permille = load.journal_permille;
        node.clone_into(&mut sum.journal_node);
    }
}

fn add_requests(sum: &mut RequestLoad, load: &RequestLoad) {
    sum.count += load.count;
    sum.bytes += load.bytes;
    sum.errors += load.errors;
    sum.time_us += load.time_us;
    if sum.histogram.len() < load.histogram.len() {
        sum.histogram.resize(load.histogram.len(), 0);
    }
    sum.histogram.iter_mut().zip(&load.histogram).for_each(|(sum, count)| *sum += count);
}

fn set_percentiles(point: &mut ReportPoint) {
    for requests in [&mut point.reads, &mut point.writes] {
        let at = |permille| percentile(&requests.histogram, permille).unwrap_or(0);
        (requests.p50_us, requests.p95_us, requests.p99_us) = (at(500), at(950), at(990));
    }
}
