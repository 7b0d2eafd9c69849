//! Sentences that say what stands out.

use mainstay_api::rest::{NodeReport, Report, ReportPoint, RequestLoad, ResourceReport, ratio};
use mainstay_types::clock::{clock, time_words};
use mainstay_types::size_words;
use std::collections::BTreeMap;

/// Resources that sentences are made about.
const RESOURCES_MAX: usize = 10;
/// Share of the waiting at which one class stands out, in percent.
const SHARE: f64 = 50.0;
/// Mean number of waiting requests that is worth a sentence.
const WAITING_MIN: f64 = 0.1;
/// Factor by which latencies and waiting stand out.
const FACTOR: f64 = 2.0;
/// Change of the load that stands out, in percent.
const LOAD_CHANGE: f64 = 30.0;
/// Fill of a journal that stands out, in thousandths.
const JOURNAL_PERMILLE: u64 = 800;
/// A pool that is full within this time stands out, in milliseconds: 30 days.
const FULL_WITHIN_MS: f64 = 30.0 * 86_400_000.0;
/// Part of the interval that must be recorded for a rate of filling, in milliseconds.
const RATE_MS_MIN: u64 = 600_000;

/// Requests of one direction.
type OfKind = fn(&ReportPoint) -> &RequestLoad;

/// All sentences, most important first.
pub fn of(report: &Report) -> Vec<String> {
    let mut found = Vec::new();
    let resources = || report.resources.iter().take(RESOURCES_MAX);
    resources().for_each(|resource| errors(resource, &mut found));
    failovers(report, &mut found);
    resources().for_each(|resource| waits(report, resource, &mut found));
    resources().for_each(|resource| slow(report, resource, &mut found));
    resources().for_each(|resource| troubles(resource, &mut found));
    report.nodes.iter().for_each(|node| space(report, node, &mut found));
    gaps(report, &mut found);
    if let Some(before) = &report.compared {
        compare(report, before, &mut found);
    }
    found
}

fn errors(resource: &ResourceReport, found: &mut Vec<String>) {
    let errors = resource.total.reads.errors + resource.total.writes.errors;
    if errors > 0 {
        found.push(format!("{errors} requests of {} were answered with an error.", resource.resource));
    }
}

fn failovers(report: &Report, found: &mut Vec<String>) {
    let mut by_resource = BTreeMap::<&str, Vec<u64>>::new();
    for change in report.changes.iter().filter(|change| change.from.is_some()) {
        by_resource.entry(&change.resource).or_default().push(change.took_ms.unwrap_or(0));
    }
    for (resource, took) in by_resource {
        let times = if took.len() == 1 { "once".to_owned() } else { format!("{} times", took.len()) };
        let longest = took.iter().max().copied().unwrap_or(0);
        let ran = if longest > 0 {
            format!(" Its service ran again after {} at most.", time_words(longest * 1000))
        } else {
            String::new()
        };
        found.push(format!("The primary of {resource} changed {times}.{ran}"));
    }
}

/// Runs of points of which a class has most of the waiting.
fn waits(report: &Report, resource: &ResourceReport, found: &mut Vec<String>) {
    let leading = |numbers: &ReportPoint| {
        let (class, share) = numbers.shares().first().map(|(class, share)| ((*class).to_owned(), *share))?;
        (share >= SHARE && numbers.waiting() >= WAITING_MIN).then_some(class)
    };
    let mut runs: Vec<(String, u64, u64)> = Vec::new();
    for (number, numbers) in &resource.points {
        let Some(class) = leading(numbers) else { continue };
        match runs.last_mut() {
            Some((last, _, end)) if *last == class && *end + 1 == *number => *end = *number,
            _ => runs.push((class, *number, *number)),
        }
    }
    // The greatest run of each class; the sentence adds up its points.
    let of_run = |(class, first, last): (String, u64, u64)| {
        let (mut part, mut all, mut covered) = (0, 0, 0);
        for numbers in resource.points.range(first..=last).map(|(_, numbers)| numbers) {
            part += numbers.waits.get(&class).copied().unwrap_or(0);
            all += numbers.waited_us();
            covered += numbers.covered_ms;
        }
        (part, all, covered, class, first, last)
    };
    let mut greatest = BTreeMap::new();
    for run in runs.into_iter().map(of_run) {
        let most = greatest.entry(run.3.clone()).or_insert_with(|| run.clone());
        if run.0 > most.0 {
            *most = run;
        }
    }
    let mut greatest: Vec<_> = greatest.into_values().collect();
    greatest.sort_by_key(|run| std::cmp::Reverse(run.0));
    for (part, all, covered, class, first, last) in greatest.into_iter().take(2) {
        found.push(format!(
            "{} took {:.0} % of the waiting of {} between {} and {}, when {:.1} requests waited on average.",
            subject(&class),
            100.0 * ratio(part, all),
            resource.resource,
            report.point_clock(first),
            report.point_clock(last + 1),
            ratio(all, covered.saturating_mul(1000))
        ));
    }
}

/// A class of waiting at the begin of a sentence.
fn subject(class: &str) -> String {
    match class {
        "queue" => "The queue for the next batch".to_owned(),
        "commit" => "The rest of the commit".to_owned(),
        "flush" => "Flushes".to_owned(),
        "reads behind writes" => "Writes in flight that reads overlapped".to_owned(),
        class => match class.strip_prefix("reads of ") {
            Some(disk) => format!("Reads from {disk}"),
            None => format!("The {class}"),
        },
    }
}

/// The worst run of points whose latency is far above the usual one.
fn slow(report: &Report, resource: &ResourceReport, found: &mut Vec<String>) {
    let kinds: [(&str, OfKind); 2] =
        [("Writes", |numbers| &numbers.writes), ("Reads", |numbers| &numbers.reads)];
    for (name, of) in kinds {
        let points: Vec<(u64, u64)> = resource
            .points
            .iter()
            .filter(|(_, numbers)| of(numbers).count >= 100)
            .filter_map(|(number, numbers)| Some((*number, of(numbers).percentile_us(990)?)))
            .collect();
        let mut sorted: Vec<u64> = points.iter().map(|(_, p99)| *p99).collect();
        sorted.sort_unstable();
        let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
        let Some((at, worst)) = points.iter().max_by_key(|(_, p99)| *p99) else { continue };
        if points.len() >= 5 && ratio(*worst, usual) >= 2.0 * FACTOR && *worst >= 1000 {
            found.push(format!(
                "{name} of {} were slowest at {}: 99 % took at most {}, and {} as a rule.",
                resource.resource,
                report.point_clock(*at),
                time_words(*worst),
                time_words(usual)
            ));
        }
    }
}

fn troubles(resource: &ResourceReport, found: &mut Vec<String>) {
    let (name, total) = (&resource.resource, &resource.total);
    if total.journal_permille >= JOURNAL_PERMILLE {
        let (percent, node) = (total.journal_permille / 10, &total.journal_node);
        found.push(format!("The journal of {name} on {node} was {percent} % full."));
    }
    if total.times_slow > 0 {
        let times =
            if total.times_slow == 1 { "once".to_owned() } else { format!("{} times", total.times_slow) };
        found.push(format!("A replica of {name} left the in-sync set {times} because it was slow."));
    }
    if total.copied_bytes > 0 {
        found.push(format!(
            "{} were copied to replicas of {name} that had been away.",
            size_words(total.copied_bytes)
        ));
    }
}

fn space(report: &Report, node: &NodeReport, found: &mut Vec<String>) {
    let taken = node.pool_free_bytes_first.saturating_sub(node.pool_free_bytes);
    if taken == 0 || node.covered_ms < RATE_MS_MIN {
        return;
    }
    let length = report.to_ms - report.from_ms;
    let left = ratio(node.pool_free_bytes, taken) * ratio(length, 1);
    if left <= FULL_WITHIN_MS {
        found.push(format!(
            "The pool of {} has {} free and lost {}: at this rate it is full in {:.1} days.",
            node.node,
            size_words(node.pool_free_bytes),
            size_words(taken),
            left / 86_400_000.0
        ));
    }
}

fn gaps(report: &Report, found: &mut Vec<String>) {
    let length = report.to_ms - report.from_ms;
    for node in &report.nodes {
        let missing = length.saturating_sub(node.covered_ms);
        if missing * 10 > length && missing > 2 * report.step_ms {
            found.push(format!(
                "{} has recorded {:.0} % of this time: its agent or its engine did not run, or its history begins later.",
                node.node,
                100.0 * ratio(node.covered_ms, length)
            ));
        }
    }
    found.extend(report.missing.iter().map(|missing| format!("No history came from {missing}.")));
}

/// Growth in percent; `None` from nothing.
fn growth(now: f64, before: f64) -> Option<f64> {
    (before > 0.0).then(|| 100.0 * (now - before) / before)
}

/// The interval that a report is compared with, in a sentence.
fn when(report: &Report, before: &Report) -> String {
    if let Some(name) = &before.baseline {
        return format!("in the baseline {name}");
    }
    if before.to_ms == report.from_ms {
        return "in the interval before".to_owned();
    }
    format!("in the interval from {} on", clock(before.from_ms).get(..16).unwrap_or_default())
}

fn compare(report: &Report, before: &Report, found: &mut Vec<String>) {
    for now in report.resources.iter().take(RESOURCES_MAX) {
        let then = before.resources.iter().find(|then| then.resource == now.resource && then.is_recorded());
        let Some(then) = then else { continue };
        let name = &now.resource;
        let count = |resource: &ResourceReport| resource.total.reads.count + resource.total.writes.count;
        let rates = [now, then].map(|resource| resource.total.per_second(count(resource)));
        let change = growth(rates[0], rates[1]);
        if rates[0].max(rates[1]) >= 1.0 && change.is_none_or(|percent| percent.abs() >= LOAD_CHANGE) {
            found.push(format!(
                "{name} had {:.0} requests a second, and {:.0} {}.",
                rates[0],
                rates[1],
                when(report, before)
            ));
        }
        let p99 = [now, then].map(|resource| resource.total.writes.percentile_us(990).unwrap_or(0));
        if ratio(p99[0], p99[1]) >= FACTOR {
            found.push(format!(
                "99 % of the writes of {name} took at most {}, and {} {}.",
                time_words(p99[0]),
                time_words(p99[1]),
                when(report, before)
            ));
        }
    }
}
