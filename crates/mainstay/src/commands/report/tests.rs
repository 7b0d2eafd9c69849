use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;
use mainstay_agent::report::gather::of_pages;
use mainstay_agent::report::{Interval, findings};
use mainstay_api::rest::{
    ChangeView, EventView, LoadPage, LoadPoint, PeerLoad, RequestLoad, ResourceLoad, Severity, StageLoad,
    WaitClass, WaitLoad,
};
use std::os::unix::fs::PermissionsExt;

/// 29 November 2025, 13:30.
const FROM_MS: u64 = 1_764_423_000_000;
const MINUTE_MS: u64 = 60_000;
const HOUR: Interval = Interval { from_ms: FROM_MS, to_ms: FROM_MS + 60 * MINUTE_MS };

fn stage(count: u64, mean_us: u64) -> StageLoad {
    StageLoad { count, time_us: count * mean_us }
}

/// A minute of db on its primary n1: 6000 writes that take 300 µs each, or longer because the
/// journal of n3 does.
fn primary(journal_of_n3_us: u64) -> ResourceLoad {
    let answer_us = journal_of_n3_us + 100;
    let mean_us = answer_us + 50;
    let mut histogram = vec![0; mean_us.next_power_of_two().ilog2() as usize];
    histogram.push(6000);
    let time_us = 6000 * mean_us;
    let writes =
        RequestLoad { count: 6000, bytes: 6000 * 16_384, time_us, histogram, ..RequestLoad::default() };
    let peer = |node: &str, mean_us| PeerLoad {
        node: node.into(),
        acknowledged: stage(3000, mean_us),
        ..PeerLoad::default()
    };
    let wait =
        |class, node: Option<&str>, time_us| WaitLoad { class, node: node.map(str::to_owned), time_us };
    ResourceLoad {
        resource: "db".into(),
        primary_ms: MINUTE_MS,
        writes,
        journal: stage(3000, 90),
        commit: stage(3000, answer_us),
        peers: vec![peer("n2", 200), peer("n3", answer_us)],
        waits: vec![
            wait(WaitClass::Queue, None, 6000 * 50),
            wait(WaitClass::Peer, Some("n3"), 6000 * answer_us),
        ],
        journal_permille: 850,
        ..ResourceLoad::default()
    }
}

fn page(node: &str, load: impl Fn(u64) -> ResourceLoad) -> LoadPage {
    let point = |number| LoadPoint {
        at_ms: FROM_MS + number * MINUTE_MS,
        covered_ms: MINUTE_MS,
        engine_cpu_us: 6_000_000,
        pool_size_bytes: 100 << 30,
        pool_free_bytes: (50_u64 << 30) - (number << 26),
        resources: vec![load(number)],
        ..LoadPoint::default()
    };
    let (from_ms, to_ms) = (HOUR.from_ms, HOUR.to_ms);
    let points = (0..60).map(point).collect();
    LoadPage { node: node.into(), from_ms, to_ms, step_ms: MINUTE_MS, since_ms: Some(0), points }
}

/// From 14:02 to 14:20 the journal of n3 takes 20 ms.
fn journal_of_n3(number: u64) -> u64 {
    if (32..50).contains(&number) { 20_000 } else { 150 }
}

fn secondary(mean_us: u64) -> ResourceLoad {
    ResourceLoad { resource: "db".into(), journal: stage(3000, mean_us), ..ResourceLoad::default() }
}

fn report() -> Report {
    let pages = [
        page("n1", |number| primary(journal_of_n3(number))),
        page("n2", |_| secondary(100)),
        page("n3", |number| secondary(journal_of_n3(number))),
    ];
    let mut report = of_pages(&pages, HOUR, HOUR.step_ms());
    report.cluster = "shop".into();
    report.changes = vec![ChangeView {
        resource: "db".into(),
        service: Some("db".into()),
        from: Some("n2".into()),
        to: Some("n1".into()),
        epoch: 4,
        cause: "node-dead".into(),
        decided_by: "cluster".into(),
        at_ms: FROM_MS + 5000,
        took_ms: Some(4100),
        stages: Vec::new(),
    }];
    report.events = vec![EventView {
        index: 9,
        at_ms: FROM_MS + 5000,
        severity: Severity::Critical,
        subject: "node/n2".into(),
        text: "node n2 is dead <b>".into(),
    }];
    report.missing = vec!["n4: the node is dead".into()];
    report.findings = findings::of(&report);
    report
}

#[test]
fn the_journal_of_a_peer_is_named_with_its_share_and_its_time() {
    let report = report();
    let db = &report.resources[0];
    assert_eq!(db.primaries, [("n1".to_owned(), 60 * MINUTE_MS)].into());
    assert_eq!(db.total.waited_us(), db.total.writes.time_us, "all waiting is the time of all requests");
    // 20,000 of 20,150 µs are the journal there, 100 the network and 50 the queue.
    let minute = &db.points[&40];
    let near = |class: &str, us: u64| {
        let found = minute.waits[class];
        assert!(found.abs_diff(us) <= 1, "{class}: {found}");
    };
    near("journal of n3", 6000 * 20_000);
    near("network to n3", 6000 * 100);
    near("queue", 6000 * 50);
    assert!((minute.waiting() - 6000.0 * 20_150.0 / 60e6).abs() < 1e-6);
    let said = report.findings.join("\n");
    for part in [
        "The journal of n3 took 99 % of the waiting of db between 14:02 and 14:20, when 2.0 requests waited",
        "The primary of db changed once. Its service ran again after 4.1 s at most.",
        "Writes of db were slowest at 14:",
        "The journal of db on n1 was 85 % full.",
        "The pool of n1 has 46.3 GiB free",
        "No history came from n4: the node is dead.",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
}

#[test]
fn the_text_fits_eighty_columns_and_has_every_part() {
    let mut report = report();
    report.compared = Some(Box::new(of_pages(&[page("n1", |_| primary(150))], HOUR, MINUTE_MS)));
    report.findings = findings::of(&report);
    let shown = output::fold(&text::words(&report, Some(80)), Some(80));
    println!("{shown}");
    for line in shown.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for part in [
        "report of cluster shop, 2025-11-29 13:30 to 2025-11-29 14:30 UTC (1h)",
        "\nWhat stands out\n",
        "RESOURCE  READS/s  MiB/s  WRITES/s  MiB/s  ERRORS  PRIMARY\ndb        0        0      100       1.56   0       n1",
        "db        -        -   -",
        "journal of n3 98 %",
        "db from 13:30 to 14:30, at most 2.0",
        "▁▁▁██████████████████▁▁▁",
        "n2    10.0 %",
        "from n2 to n1",
        "node n2 is dead",
        "Compared with 2025-11-29 13:30 to 2025-11-29 14:30 UTC (1h)",
    ] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    let nothing = of_pages(&[], HOUR, MINUTE_MS);
    assert!(text::words(&nothing, None).contains("no replica did anything"));
}

#[test]
fn the_page_stands_alone_and_shows_names_as_text() {
    let mut report = report();
    report.resources[0].resource = "<script>".into();
    let shown = page::html(&report);
    if let Some(path) = std::env::var_os("MAINSTAY_REPORT_PAGE") {
        std::fs::write(path, &shown).unwrap();
    }
    assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script"), "a name is no markup");
    assert!(shown.contains("node n2 is dead &lt;b&gt;"));
    for elsewhere in ["http:", "https:", "src=", "href=", "url(", "@import", "NaN", "inf "] {
        assert!(!shown.contains(elsewhere), "{elsewhere}");
    }
    for part in ["prefers-color-scheme: dark", "<svg", "journal of n3", "Changes of primaries", "14:00"] {
        assert!(shown.contains(part), "{part}");
    }
    let nothing = page::html(&of_pages(&[], HOUR, MINUTE_MS));
    assert!(nothing.contains("Nothing."));
}

#[test]
fn a_time_without_the_record_of_a_primary_is_a_gap_and_no_zero() {
    let mut primary = page("n1", |_| primary(150));
    primary.points.retain(|point| !(20..30).contains(&((point.at_ms - FROM_MS) / MINUTE_MS)));
    // n3 has recorded meanwhile what it wrote to its journal.
    let report = of_pages(&[primary, page("n3", |_| secondary(150))], HOUR, MINUTE_MS);
    assert_eq!(report.resources[0].points[&25].primary_ms, 0);
    let shown = page::html(&report);
    let writes = shown.split("<path class=\"line c1\" d=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(writes.matches('M').count(), 2, "{writes}");
}

#[test]
fn an_interval_without_the_record_of_the_primary_is_not_compared_as_zero() {
    let mut now = of_pages(&[page("n1", |_| primary(150))], HOUR, MINUTE_MS);
    // The node that was primary then is dead, and its history with it.
    let then = of_pages(&[page("n3", |_| secondary(150))], HOUR, MINUTE_MS);
    assert_eq!(then.resources.len(), 1);
    now.compared = Some(Box::new(then));
    let found = findings::of(&now).join(" ");
    assert!(!found.contains("requests a second, and"), "{found}");
    let shown = text::words(&now, Some(80));
    assert!(shown.contains("not recorded → 100"), "{shown}");
    assert!(page::html(&now).contains("not recorded → 100"));
}

#[test]
fn pages_with_longer_steps_are_put_together_with_those_of_shorter_ones() {
    let mut long = page("n3", |_| secondary(150));
    long.step_ms = 4 * MINUTE_MS;
    let mut points: Vec<LoadPoint> = Vec::new();
    for (at, point) in long.points.into_iter().enumerate() {
        match points.last_mut() {
            Some(last) if at % 4 > 0 => last.covered_ms += point.covered_ms,
            _ => points.push(point),
        }
    }
    long.points = points;
    let report = of_pages(&[page("n1", |_| primary(150)), long], HOUR, MINUTE_MS);
    assert_eq!((report.step_ms, report.resources[0].points.len()), (4 * MINUTE_MS, 15));
    let total = &report.resources[0].total;
    assert_eq!((total.writes.count, total.covered_ms), (60 * 6000, 60 * MINUTE_MS));
    assert!((total.per_second(total.writes.count) - 100.0).abs() < 1e-9);
}

#[test]
fn the_report_that_is_asked_for_is_of_the_interval_that_was_named() {
    let now = 100 * 3_600_000;
    let asked = |words: &[&str]| {
        let line = ["mainstay", "report"].iter().chain(words);
        let Ok(Cli { command: Command::Report(args), .. }) = Cli::try_parse_from(line) else {
            panic!("{words:?}");
        };
        path(&args, now).map_err(|failure| failure.problem.code)
    };
    let hour = "/v1/report?from_ms=356400000&to_ms=360000000";
    assert_eq!(asked(&[]).unwrap(), hour);
    let named = ["--from", "1970-01-01T00:01", "--to", "1970-01-01T00:02"];
    assert_eq!(asked(&named).unwrap(), "/v1/report?from_ms=60000&to_ms=120000");
    assert_eq!(asked(&["--compare"]).unwrap(), format!("{hour}&compare_from_ms=352800000"));
    let day = asked(&["--compare", "1970-01-02"]).unwrap();
    assert_eq!(day, format!("{hour}&compare_from_ms=86400000"));
    let friday = asked(&["--compare", "friday"]).unwrap();
    assert_eq!(friday, format!("{hour}&compare_baseline=friday"));
    let of_friday = asked(&["--baseline", "friday", "--compare", "monday"]).unwrap();
    assert_eq!(of_friday, "/v1/report?baseline=friday&compare_baseline=monday");
    assert_eq!(asked(&["--baseline", "friday", "--compare"]), Err(Code::OptionWithoutEffect));
    assert_eq!(asked(&["--baseline", "fri&day"]), Err(Code::BadName));
    assert_eq!(asked(&["--resource", "db"]).unwrap(), format!("{hour}&resource=db"));
    assert_eq!(asked(&["--resource", "d&b"]), Err(Code::BadName));
    let of_db = Report { resource: Some("db".into()), ..report() };
    assert!(title_of(&of_db).starts_with("resource db, 2025-11-29 13:30"), "{}", title_of(&of_db));
    // The agent says what is wrong with an interval.
    assert!(asked(&["--from", "1970-01-04", "--to", "1970-01-03"]).is_ok());
}

#[test]
fn a_report_is_never_written_over_a_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("report.html");
    write_new(&path, "one").ok().unwrap();
    assert!(write_new(&path, "two").is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it is for its owner alone");
    // `-o` names the form of a list elsewhere.
    let form = write_new(Path::new("table"), "three").map_err(|failure| failure.problem.code);
    assert_eq!(form, Err(Code::OptionWithoutEffect));
    assert!(!Path::new("table").exists());
}
