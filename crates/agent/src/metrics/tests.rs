//! The page is read back by a parser that takes nothing but what the text format allows; the
//! documents name what there is.

use super::families::{Family, GROUPS, Kind};
use super::noted::Cause;
use super::process::ProcessSeen;
use super::text::{ENTRIES, Format, LATENCY, Page};
use super::*;
use mainstay_api::engine::{DeviceStatus, PeerStatus, ReplicaStatus, SnapshotStatus};
use mainstay_api::metrics::{DamageCounts, PeerCounts, ReplicaCounts, ScrubCounts, StepCounts, VolumeCounts};
use mainstay_control::State;
use mainstay_control::state::{Command, Entry, Outcome, ResourceSpec, Settings};
use mainstay_types::{
    Choices, CopyStatus, Histogram, Incarnation, Index, Key, LagLimits, Mode, PeerState, ResourceId, Role,
    ScrubState, ScrubSummary, SlowStatus, SnapshotId, SnapshotState, StoreState, VolumeId,
};
use std::fmt::Write as _;
use std::path::PathBuf;

mod parser;
use parser::{Parsed, parse};

fn all() -> impl Iterator<Item = &'static Family> {
    GROUPS.iter().flat_map(|group| group.families.iter().copied())
}

/// When scrubs ended, and what time it is: the next is late.
const SCRUBBED_MS: u64 = 1_790_000_000_000;
const WALL_MS: u64 = SCRUBBED_MS + 60 * 86_400_000;

/// A cluster of two nodes with a resource and a service; this is n1.
fn view() -> View {
    let mut state = State::default();
    let apply = |state: &mut State, command| {
        let outcome = state.apply(Entry { at_ms: SCRUBBED_MS, command });
        assert!(outcome.is_ok(), "{outcome:?}");
        outcome
    };
    apply(&mut state, Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
    for (name, nonce) in [("n1", 1), ("n2", 2)] {
        let (agent_addr, engine_addr) = (format!("{name}:7400"), format!("{name}:7401"));
        let (voter, witness) = (true, false);
        let name = name.into();
        apply(&mut state, Command::AddNode { name, agent_addr, engine_addr, voter, witness, nonce });
        if nonce == 1 {
            apply(&mut state, Command::VotersSeen { node: NodeId(1), voters_version: 1 });
        }
    }
    let (volumes, replicas) = (vec![1 << 30, 1 << 30], vec![NodeId(1), NodeId(2)]);
    let spec = ResourceSpec { volumes, journal_bytes: 64 << 20, replicas, preferred: vec![] };
    let created = apply(
        &mut state,
        Command::CreateResource { name: "db".into(), spec, choices: Choices::default(), origin: None },
    );
    assert!(matches!(created, Outcome::ResourceCreated { resource: ResourceId(1) }), "{created:?}");
    let service = "name = \"web\"\nresource = \"db\"\n[[process]]\nname = \"a\"\ncommand = [\"/bin/true\"]\n";
    apply(
        &mut state,
        Command::ApplyService { spec: mainstay_ha::ServiceSpec::parse(service).expect("a service file") },
    );
    apply(
        &mut state,
        Command::ServiceStatus {
            name: "web".into(),
            node: NodeId(1),
            phase: mainstay_types::ServicePhase::Running,
            epoch: mainstay_types::Epoch(0),
            round: 0,
            detail: String::new(),
            failures: 2,
            passes: false,
            last_failure: String::new(),
        },
    );
    for node in [NodeId(1), NodeId(2)] {
        let version = state.resources[&ResourceId(1)].record.version;
        let incarnation = Incarnation(u64::from(node.0));
        apply(&mut state, Command::ReplicaReady { resource: ResourceId(1), version, node, incarnation });
    }
    let expect_version = state.resources[&ResourceId(1)].record.version;
    let (resource, by, to) = (ResourceId(1), NodeId(1), NodeId(1));
    apply(&mut state, Command::Promote { resource, expect_version, by, to, reason: "test".into() });
    let version = state.resources[&resource].record.version;
    let (mode, lag) = (Mode::A, LagLimits { bytes: 8 << 20, ms: 2500 });
    let values =
        [(Key::Mode, mode as u64), (Key::LagBytes, lag.bytes), (Key::LagTime, lag.ms), (Key::Takeover, 1)];
    let changes = values.map(|(key, value)| (key, Some(value))).into();
    apply(&mut state, Command::ChangeSettings { resource: Some(resource), version: Some(version), changes });
    // One that was whole, and one after it that was not.
    for (ordinal, second) in [(1, 40), (2, 39)] {
        let seen = ScrubSummary {
            state: ScrubState::Done,
            done: 40,
            compared: vec![(NodeId(1), 40), (NodeId(2), second)],
            different: 3,
            repaired: 2,
            ..ScrubSummary::running(state.resources[&resource].record.epoch, ordinal)
        };
        apply(&mut state, Command::ScrubEnded { resource, node: NodeId(1), seen });
    }
    let voters = [NodeId(1), NodeId(2)].into();
    View { state: Arc::new(state), leader: Some(NodeId(2)), voters, term: 7, applied: 99, ..View::default() }
}

fn histogram(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    values.iter().for_each(|value| histogram.note(*value));
    histogram
}

fn snapshot(id: u32, state: SnapshotState) -> SnapshotStatus {
    SnapshotStatus { id: SnapshotId(id), at: Index(9), state }
}

fn primary(name: &str) -> ReplicaMetrics {
    let peer = PeerStatus {
        node: NodeId(2),
        state: PeerState::Copying,
        lag_bytes: 4096,
        lag_entries: 3,
        lag_since_us: Time(7_500_000),
        copied_permille: 250,
        slow: Some(SlowStatus { since_us: Time(0), latency_us: 0, returns_us: Time(0) }),
        copy: Some(CopyStatus { bytes_per_s: 1000, left_ms: 1500 }),
        ..PeerStatus::default()
    };
    let device = |volume| DeviceStatus {
        volume: VolumeId(volume),
        path: format!("/dev/loop{volume}"),
        ..DeviceStatus::default()
    };
    let status = ReplicaStatus {
        name: name.into(),
        role: Role::Primary,
        volumes: vec![1 << 30, 2 << 30],
        allocated: vec![4096, 8192],
        requests: 5,
        waiting_for: vec!["room in the journal".into()],
        peers: vec![peer],
        devices: vec![device(0), device(1)],
        snapshots: vec![snapshot(1, SnapshotState::Held), snapshot(2, SnapshotState::Missing)],
        ..ReplicaStatus::default()
    };
    let mut volume = VolumeCounts::default();
    volume.requests[1].count = 12;
    volume.requests[1].bytes = 12 * 4096;
    let counts = ReplicaCounts {
        volumes: vec![volume, VolumeCounts::default()],
        requests_us: std::array::from_fn(|_| histogram(&[100, 200, 90_000_000])),
        read_us: histogram(&[0, 1, 16, 17]),
        journal_us: histogram(&[50]),
        commit_us: histogram(&[60]),
        batch_entries: histogram(&[1, 2, 96]),
        peers: vec![PeerCounts {
            node: NodeId(2),
            acknowledged_us: histogram(&[300]),
            times_slow: 1,
            ..PeerCounts::default()
        }],
        required: 2,
        copies: 1,
        min_copies: 2,
        cached_bytes: Some(12_288),
        damage: DamageCounts { found: 2, mended: 1, unreadable: 1, copied: 1 },
        scrubs: ScrubCounts { extents: 40, different: 3, repaired: 2, running: false, unrepaired: Some(1) },
        promotions: [StepCounts { count: 1, sum_us: 1500 }; 4],
        ..ReplicaCounts::default()
    };
    ReplicaMetrics { status, counts }
}

/// Everything that there can be, at least once.
fn gathered() -> Gathered {
    let mut noted = Noted::default();
    noted.promotions.insert((ResourceId(1), Cause::Failover), 2);
    noted.starts.insert("web".into(), StepCounts { count: 1, sum_us: 2_500_000 });
    let process = ProcessSeen { cpu_us: 1_500_000, resident_bytes: 1 << 20, open_fds: 9, threads: 4 };
    let link = |node| LinkCounts { node, outgoing: true, incoming: false, queued_bytes: 17 };
    Gathered {
        took_us: 1234,
        wall_ms: WALL_MS,
        member: Some(MemberSeen {
            node: NodeId(1),
            name: "n1".into(),
            cluster: "c".into(),
            view: view(),
            lease_left_us: 1_900_000,
            connected: [NodeId(2)].into(),
        }),
        names: [(NodeId(1), "n1".to_owned()), (NodeId(2), "n2".to_owned())].into(),
        engine: Some(EngineSeen {
            now: Time(9_000_000),
            fenced: false,
            turns: 77,
            polled_us: 2_500_000,
            links: vec![link(NodeId(2))],
            replicas: vec![primary("db")],
            clients: vec![client("files")],
        }),
        frontend: Some(mainstay_types::FrontendKind::Fuse),
        pool: Some((1 << 40, 1 << 39)),
        processes: vec![("agent", process), ("engine", process)],
        noted,
    }
}

/// Its request waits for a primary.
fn client(name: &str) -> ClientStatus {
    ClientStatus {
        resource: ResourceId(9),
        name: name.into(),
        requests: 3,
        waits_since_us: Time(7_500_000),
        streams: 2,
        volumes: vec![1 << 30],
        devices: vec![DeviceStatus {
            volume: VolumeId(0),
            path: "/dev/loop7".into(),
            ..DeviceStatus::default()
        }],
        ..ClientStatus::default()
    }
}

fn page(seen: &Gathered) -> Parsed {
    page_of(seen, Names::Mainstay)
}

fn page_of(seen: &Gathered, names: Names) -> Parsed {
    parse(&render(seen, names, Format::Prometheus)).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that a page has these families and no others, each with its help, type and labels.
fn check_families(parsed: &Parsed, families: &[&'static Family]) {
    for family in families {
        let found = parsed.families.get(family.name);
        let found = found.unwrap_or_else(|| panic!("{} is never written", family.name));
        assert_eq!(found.help, family.help, "{}", family.name);
        let kind = format!("{:?}", family.kind).to_lowercase();
        assert_eq!(found.kind, kind, "{}", family.name);
        for sample in &found.samples {
            let labels = sample.labels.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "le");
            assert_eq!(labels.collect::<Vec<_>>(), family.labels, "{}", family.name);
        }
    }
    assert_eq!(parsed.families.len(), families.len(), "a family is written that is not described");
}

#[test]
fn every_family_is_written_as_it_is_described() {
    check_families(&page(&gathered()), &all().collect::<Vec<_>>());
}

#[test]
fn metrics_have_the_values_that_were_gathered() {
    let parsed = page(&gathered());
    let value = |name: &str, labels: &[(&str, &str)]| {
        parsed.value(name, labels).unwrap_or_else(|| panic!("{name} {labels:?}"))
    };
    let db = ("resource", "db");
    assert_eq!(value("mainstay_engine_up", &[]), 1.0);
    assert_eq!(value("mainstay_lease_remaining_seconds", &[]), 1.9);
    assert_eq!(value("mainstay_engine_polled_seconds_total", &[]), 2.5);
    assert_eq!(value("mainstay_control_applied_index", &[]), 99.0);
    assert_eq!(value("mainstay_requests_total", &[db, ("volume", "0"), ("op", "write")]), 12.0);
    assert_eq!(value("mainstay_requests_total", &[db, ("volume", "1"), ("op", "write")]), 0.0);
    assert_eq!(value("mainstay_replica_role", &[db, ("role", "primary")]), 1.0);
    assert_eq!(value("mainstay_replica_io_suspended", &[db]), 1.0);
    let peer = [db, ("peer", "n2")];
    assert_eq!(value("mainstay_peer_lag_seconds", &peer), 1.5);
    assert_eq!(value("mainstay_copy_progress_ratio", &peer), 0.25);
    assert_eq!(value("mainstay_copy_remaining_seconds", &peer), 1.5);
    assert_eq!(value("mainstay_peer_state", &[db, ("peer", "n2"), ("state", "copying")]), 1.0);
    assert_eq!(value("mainstay_promotions_total", &[db, ("cause", "failover")]), 2.0);
    assert_eq!(value("mainstay_service_start_duration_seconds_sum", &[("service", "web")]), 2.5);
    assert_eq!(value("mainstay_service_phase", &[("service", "web"), ("phase", "running")]), 1.0);
    // 0, 1 and 16 µs are in the first bucket, 17 in the second.
    let read = |le| value("mainstay_read_duration_seconds_bucket", &[db, ("le", le)]);
    assert_eq!(["0.000016", "0.000032", "+Inf"].map(read), [3.0, 4.0, 4.0]);
    // The request that took 90 s is in no bucket but the last.
    let write = |le| value("mainstay_request_duration_seconds_bucket", &[db, ("op", "write"), ("le", le)]);
    assert_eq!(["0.000128", "0.000256", "16.777216", "+Inf"].map(write), [1.0, 2.0, 2.0, 3.0]);
    let entries = |le| value("mainstay_batch_entries_bucket", &[db, ("le", le)]);
    assert_eq!(["1.0", "2.0", "64.0", "128.0"].map(entries), [1.0, 2.0, 2.0, 3.0]);
    assert_eq!(value("mainstay_batch_entries_sum", &[db]), 99.0);
}

#[test]
fn a_dead_engine_and_no_cluster_leave_a_page_that_says_so() {
    let seen = Gathered { engine: None, ..gathered() };
    let parsed = page(&seen);
    assert_eq!(parsed.value("mainstay_engine_up", &[]), Some(0.0));
    let gone = ["mainstay_replica_role", "mainstay_requests_total", "mainstay_engine_turns_total"];
    assert!(
        gone.iter().all(|name| !parsed.families.contains_key(*name)),
        "of a dead engine nothing is known"
    );
    assert_eq!(parsed.value("mainstay_resource_in_sync_replicas", &[("resource", "db")]), Some(1.0));
    assert_eq!(parsed.value("mainstay_lease_remaining_seconds", &[]), Some(1.9));
    let parsed = page(&Gathered::default());
    assert_eq!(parsed.value("mainstay_engine_up", &[]), Some(0.0));
    assert!(!parsed.families.contains_key("mainstay_node_info"));
}

#[test]
fn openmetrics_differs_in_counter_names_and_its_end() {
    let seen = gathered();
    let [plain, open] =
        [Format::Prometheus, Format::OpenMetrics].map(|format| render(&seen, Names::Mainstay, format));
    assert!(open.ends_with("\n# EOF\n") && !plain.contains("# EOF"));
    assert!(plain.contains("# TYPE mainstay_requests_total counter\n"));
    assert!(
        open.contains("# TYPE mainstay_requests counter\n") && open.contains("\nmainstay_requests_total{")
    );
    let samples = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(&plain), samples(&open));
    let accepts =
        "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    assert_eq!(Format::wanted(Some(accepts)), Format::OpenMetrics);
    assert_eq!([None, Some("*/*"), Some("text/plain")].map(Format::wanted), [Format::Prometheus; 3]);
}

#[test]
fn labels_and_help_are_escaped() {
    static ODD: Family = Family {
        name: "odd",
        kind: Kind::Gauge,
        labels: &["a", "b"],
        help: "back\\slash \"quoted\"\nsecond",
    };
    let mut page = Page::new(Format::Prometheus);
    let odd = "\\n \"x\"\n{},=é";
    page.family(&ODD, |out| out.add(&[odd, ""], 1_u64));
    let text = page.finish();
    let expected = "# HELP odd back\\\\slash \"quoted\"\\nsecond\n# TYPE odd gauge\nodd{a=\"\\\\n \\\"x\\\"\\n{},=é\",b=\"\"} 1\n";
    assert_eq!(text, expected);
    let parsed = parse(&text).expect("what was written");
    assert_eq!(parsed.families["odd"].help, ODD.help);
    assert_eq!(parsed.value("odd", &[("a", odd), ("b", "")]), Some(1.0));
    let mut page = Page::new(Format::Prometheus);
    page.family(&ODD, |_| ());
    assert_eq!(page.finish(), "", "a family without samples is not named");
}

#[test]
fn the_parser_takes_nothing_else() {
    let good = "# HELP a b\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} +Inf\n";
    parse(good).expect("as it should be");
    for (bad, what) in [
        ("# HELP a b\n# TYPE a gauge\na 1", "no end of line"),
        ("a 1\n", "no head"),
        ("# TYPE a gauge\na 1\n", "no help"),
        ("# HELP a b\n# TYPE a gauge\nb 1\n", "a sample of another family"),
        ("# HELP a b\n# TYPE a gauge\na 1\na 1\n", "a sample twice"),
        (
            "# HELP a b\n# TYPE a gauge\na 1\n# HELP c d\n# TYPE c gauge\nc 1\n# HELP a b\n# TYPE a gauge\na{x=\"1\"} 1\n",
            "a family twice",
        ),
        ("# HELP a b\n# TYPE a gauge\na{x=1} 1\n", "no quotes"),
        ("# HELP a b\n# TYPE a gauge\na{x=\"1\" } 1\n", "a space too many"),
        ("# HELP a b\n# TYPE a gauge\na{x=\"1\\q\"} 1\n", "an unknown escape"),
        ("# HELP a b\n# TYPE a gauge\na one\n", "no number"),
        ("# HELP a b\n# TYPE a gauge\n1a 1\n", "no name"),
        ("# HELP a b\n# TYPE a counter\na 1\n", "a counter without _total"),
        (
            "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1.0\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
            "not cumulative",
        ),
        ("# HELP a b\n# TYPE a histogram\na_bucket{le=\"1.0\"} 1\na_sum 1\na_count 1\n", "no +Inf"),
        ("# HELP a b\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 1\n", "another count"),
    ] {
        assert!(parse(bad).is_err(), "{what}: {bad}");
    }
}

#[test]
fn names_end_with_their_units() {
    for family in all() {
        let name = family.name;
        assert!(name.starts_with("mainstay_") && !name.contains("__"), "{name}");
        assert_eq!(family.kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let base = name.strip_suffix("_total").unwrap_or(name);
        for (unit, wrong) in [("seconds", ["_ms", "_us"]), ("bytes", ["_kib", "_mib"])] {
            let has = base.split('_').any(|word| word == unit);
            assert!(
                !has || base.ends_with(unit) || base.ends_with("bytes_per_second"),
                "{name}: the unit comes last"
            );
            assert!(wrong.iter().all(|end| !base.ends_with(end)), "{name}");
        }
        assert!(family.labels.iter().all(|label| !["le", "job", "instance"].contains(label)), "{name}");
        assert!(family.help.ends_with('.'), "{name}: {}", family.help);
    }
}

/// Cost of a page of a thousand resources that have all been primary here. The time is printed; the
/// size is bounded.
#[test]
fn a_page_of_a_thousand_resources_is_bounded() {
    let mut seen = gathered();
    if let Some(engine) = &mut seen.engine {
        engine.replicas = (0..1000).map(|number| primary(&format!("resource-{number:04}"))).collect();
    }
    let began = Instant::now();
    let text = render(&seen, Names::Mainstay, Format::Prometheus);
    let took = began.elapsed();
    let lines = text.lines().count();
    println!("1000 resources of 2 volumes and a peer: {lines} lines, {} KiB, {took:?}", text.len() >> 10);
    assert!(lines < 400_000 && text.len() < 32 << 20, "{lines} lines, {} bytes", text.len());
    parse(&text).unwrap_or_else(|error| panic!("{error}"));
}

fn document(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// The tables of docs/metrics.md.
fn tables() -> String {
    let mut text = String::new();
    let groups = GROUPS.iter().map(|group| (group.title, group.families));
    for (title, families) in groups.chain([("Names of DRBD, with `names=drbd`", drbd::FAMILIES)]) {
        let _ = write!(text, "\n### {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
        for family in families {
            let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let kind = format!("{:?}", family.kind).to_lowercase();
            let (name, help) = (family.name, family.help.replace('|', "\\|"));
            let _ = writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(" "));
        }
    }
    text
}

/// `MAINSTAY_BLESS=1 cargo test -p mainstay-agent --lib the_page_lists` writes the tables anew.
#[test]
fn the_page_lists_every_metric() {
    let path = document("metrics.md");
    let text = std::fs::read_to_string(&path).expect("docs/metrics.md");
    let (begin, end) = ("<!-- metrics: written by a test -->\n", "<!-- end of metrics -->");
    let (head, rest) = text.split_once(begin).expect("the mark where the tables begin");
    let (found, tail) = rest.split_once(end).expect("the mark where they end");
    let expected = format!("{}\n", tables());
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        std::fs::write(&path, format!("{head}{begin}{expected}{end}{tail}")).expect("written");
    } else {
        assert!(found == expected, "docs/metrics.md is not what the code says: see the comment of this test");
    }
}

/// Names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("mainstay_")).map(str::to_owned).collect()
}

/// Names of everything that a page may hold.
fn written() -> BTreeSet<String> {
    let of = |family: &Family| match family.kind {
        Kind::Histogram => vec!["_bucket", "_sum", "_count"],
        Kind::Summary => vec!["_sum", "_count"],
        Kind::Counter | Kind::Gauge => vec![""],
    };
    all().flat_map(|family| of(family).into_iter().map(|end| format!("{}{end}", family.name))).collect()
}

/// The alert rules, each from its name on.
fn rules() -> Vec<String> {
    let text = std::fs::read_to_string(document("alerts.yml")).expect("docs/alerts.yml");
    text.split("- alert:").skip(1).map(|rule| rule.trim().to_owned()).collect()
}

/// Every alert has an entry of the manual, to which it leads, and a case in which promtool sees it.
#[test]
fn every_alert_leads_to_its_runbook_and_is_tried() {
    let runbooks = std::fs::read_to_string(document("alerts.md")).expect("docs/alerts.md");
    let headings: BTreeSet<&str> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let cases = std::fs::read_to_string(document("../tests/prometheus/alerts.yml")).expect("the cases");
    let rules = rules();
    let names: BTreeSet<&str> = rules.iter().filter_map(|rule| rule.lines().next()).collect();
    assert!(names.len() == rules.len() && names.len() > 15, "{names:?}");
    for (name, rule) in names.iter().zip(names.iter().map(|name| rule_of(&rules, name))) {
        assert!(headings.contains(name), "docs/alerts.md has no heading {name}");
        let link = format!("runbook_url: \"docs/alerts.md#{}\"", name.to_lowercase());
        assert!(rule.contains(&link), "{name} does not lead to its heading: {rule}");
        let severity = ["{severity: warning}", "{severity: critical}"].iter().any(|one| rule.contains(one));
        assert!(severity, "{name} has no severity: {rule}");
        let tried = cases.matches(&format!("alertname: {name}\n")).count();
        assert!(tried >= 2, "tests/prometheus/alerts.yml tries {name} {tried} times: once firing, once not");
    }
    assert_eq!(headings, names, "docs/alerts.md has an entry of no alert");
}

fn rule_of<'a>(rules: &'a [String], name: &str) -> &'a str {
    rules.iter().find(|rule| rule.lines().next() == Some(name)).expect("a rule of this name")
}

#[test]
fn rules_and_dashboard_name_only_existing_metrics() {
    let page = std::fs::read_to_string(document("metrics.md")).expect("docs/metrics.md");
    let rules = rules();
    let dashboard = std::fs::read_to_string(document("grafana.json")).expect("docs/grafana.json");
    let json: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = json["panels"].as_array().expect("panels");
    let expressions: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().expect("an expression"))
        .collect();
    assert!(expressions.len() >= 10, "{} expressions", expressions.len());
    let written = written();
    for text in rules.iter().map(String::as_str).chain(expressions.iter().copied()) {
        let names = named(text);
        assert!(!names.is_empty(), "names no metric: {text}");
        let unknown: Vec<&String> = names.difference(&written).collect();
        assert!(unknown.is_empty(), "no such metric: {unknown:?} in {text}");
    }
    // In the rest of the page a family may also stand for its samples.
    let families: BTreeSet<String> = all().map(|family| family.name.to_owned()).collect();
    let unknown: Vec<String> =
        named(&page).into_iter().filter(|name| !written.contains(name) && !families.contains(name)).collect();
    assert!(unknown.is_empty(), "no such metric: {unknown:?}");
}

#[test]
fn scales_show_every_bucket_of_their_histogram() {
    let bounds = |scale: &super::text::Scale| {
        static ANY: Family = Family { name: "any", kind: Kind::Histogram, labels: &[], help: "Any." };
        let mut page = Page::new(Format::Prometheus);
        page.family(&ANY, |out| out.histogram(&[], &Histogram::default(), scale));
        page.finish().matches("any_bucket").count()
    };
    assert_eq!((bounds(&LATENCY), bounds(&ENTRIES)), (22, 9));
}

#[test]
fn a_client_says_how_long_its_requests_wait_and_its_primary_serves_without_devices() {
    let mut seen = gathered();
    let engine = seen.engine.as_mut().expect("an engine");
    engine.replicas[0].status.devices.clear();
    let value = |seen: &Gathered, name: &str, resource: &str| {
        page(seen).value(name, &[("resource", resource)]).unwrap_or_else(|| panic!("{name} {resource}"))
    };
    assert_eq!(value(&seen, "mainstay_replica_serving", "db"), 0.0);
    seen.engine.as_mut().expect("an engine").replicas[0].status.attached = true;
    assert_eq!(value(&seen, "mainstay_replica_serving", "db"), 1.0);
    let shown = [
        ("mainstay_client_ready", 1.0),
        ("mainstay_client_connected", 0.0),
        ("mainstay_client_requests_in_flight", 3.0),
        ("mainstay_client_waiting_seconds", 1.5),
        ("mainstay_client_connections_total", 2.0),
    ];
    for (name, expected) in shown {
        assert_eq!(value(&seen, name, "files"), expected, "{name}");
    }
}

#[test]
fn modes_snapshots_and_scrubs_are_told() {
    let seen = page(&gathered());
    type Line<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);
    let shown: [Line<'_>; 13] = [
        ("mainstay_resource_mode_in_force", &[], 1.0),
        ("mainstay_resource_unproven_replicas", &[], 0.0),
        ("mainstay_resource_near_followers", &[], 0.0),
        ("mainstay_resource_lag_limit_bytes", &[], 8_388_608.0),
        ("mainstay_resource_lag_limit_seconds", &[], 2.5),
        ("mainstay_replica_cached_bytes", &[], 12_288.0),
        ("mainstay_replica_snapshots", &[("state", "held")], 1.0),
        ("mainstay_replica_snapshots", &[("state", "taking")], 0.0),
        ("mainstay_replica_snapshots", &[("state", "missing")], 1.0),
        ("mainstay_scrub_whole_timestamp_seconds", &[], 1_790_000_000.0),
        ("mainstay_scrub_outcome", &[("outcome", "partial")], 1.0),
        ("mainstay_scrub_left_blocks", &[], 1.0),
        ("mainstay_scrub_failures", &[], 1.0),
    ];
    for (name, labels, expected) in shown {
        let labels: Vec<_> = [("resource", "db")].into_iter().chain(labels.iter().copied()).collect();
        assert_eq!(seen.value(name, &labels), Some(expected), "{name} {labels:?}");
    }
    let late = seen.value("mainstay_scrub_late_seconds", &[("resource", "db")]).expect("it is told");
    assert!(late > 0.25 * 30.0 * 86_400.0 && late < 60.0 * 86_400.0, "{late}");
}

#[test]
fn names_of_drbd_tell_what_they_mean_there() {
    let mut seen = gathered();
    let engine = seen.engine.as_mut().expect("an engine");
    let mut single = primary("logs");
    single.status.resource = ResourceId(7);
    single.status.role = Role::Secondary;
    single.status.volumes = vec![4096];
    single.counts.disk.volume_written = 77;
    engine.replicas[0].status.resource = ResourceId(1);
    engine.replicas.push(single);
    let parsed = page_of(&seen, Names::Drbd);
    check_families(&parsed, drbd::FAMILIES);
    let value = |name: &str, labels: &[(&str, &str)]| parsed.value(name, labels);
    let (db, volume) = (("name", "db"), ("volume", "1"));
    assert_eq!(value("drbd_resource_resources", &[]), Some(3.0));
    for (role, expected) in [("Primary", 1.0), ("Secondary", 0.0), ("Unknown", 0.0)] {
        assert_eq!(
            value("drbd_resource_role", &[db, ("drbd_resource_role", role)]),
            Some(expected),
            "{role}"
        );
    }
    let secondary = [("name", "logs"), ("drbd_resource_role", "Secondary")];
    assert_eq!(value("drbd_resource_role", &secondary), Some(1.0));
    // The request of the primary waits for room in its journal.
    assert_eq!(value("drbd_resource_suspended", &[db]), Some(1.0));
    assert_eq!(value("drbd_device_size_bytes", &[db, volume]), Some(2.0 * f64::from(1 << 30)));
    assert_eq!(value("drbd_device_quorum", &[db, volume]), Some(1.0));
    assert_eq!(value("drbd_device_client", &[db, volume]), Some(0.0));
    assert_eq!(value("drbd_device_client", &[("name", "files"), ("volume", "0")]), Some(1.0));
    // Bytes are counted for a resource. They are a volume's only if the resource has one volume.
    assert_eq!(value("drbd_device_written_bytes_total", &[db, ("volume", "0")]), None);
    assert_eq!(value("drbd_device_written_bytes_total", &[("name", "logs"), ("volume", "0")]), Some(77.0));
    let connection = |state| {
        let peer = [("conn_name", "n2"), ("peer_node_id", "2"), ("drbd_connection_state", state)];
        value("drbd_connection_state", &[[db].as_slice(), &peer].concat())
    };
    assert_eq!((connection("Connecting"), connection("Connected")), (Some(1.0), Some(0.0)));
}

#[test]
fn the_state_of_a_disk_is_told_in_words_of_drbd() {
    let state_of = |change: &dyn Fn(&mut Gathered)| {
        let mut seen = gathered();
        seen.engine.as_mut().expect("an engine").replicas[0].status.resource = ResourceId(1);
        change(&mut seen);
        let parsed = page_of(&seen, Names::Drbd);
        let found = &parsed.families["drbd_device_state"];
        let of_db = |(name, value): &(String, String)| name == "name" && value == "db";
        let holding = found.samples.iter().filter(|one| one.labels.iter().any(of_db) && one.value == 1.0);
        let states: BTreeSet<String> = holding
            .filter_map(|one| one.labels.iter().find(|(name, _)| name == "drbd_device_state"))
            .map(|(_, state)| state.clone())
            .collect();
        states.into_iter().collect::<Vec<_>>().join(" ")
    };
    let data = |seen: &mut Gathered, data| {
        seen.engine.as_mut().expect("an engine").replicas[0].status.data = data;
    };
    assert_eq!(state_of(&|_| ()), "UpToDate");
    assert_eq!(state_of(&|seen| data(seen, StoreState::Inconsistent)), "Inconsistent");
    assert_eq!(state_of(&|seen| data(seen, StoreState::Failed)), "Failed");
    // The other node is not in the in-sync set of mode A.
    assert_eq!(state_of(&|seen| seen.member.as_mut().expect("a member").node = NodeId(2)), "Outdated");
    // A client has no disk.
    let parsed = page_of(&gathered(), Names::Drbd);
    let client = [("name", "files"), ("volume", "0"), ("drbd_device_state", "Diskless")];
    assert_eq!(parsed.value("drbd_device_state", &client), Some(1.0));
}

/// Scrapes within half a second cost one look, whatever names and formats they ask for.
#[test]
fn pages_of_one_look_are_made_once_for_each_form() {
    let mut kept = Kept::of(gathered());
    let first = kept.text(Names::Mainstay, Format::Prometheus);
    let drbd = kept.text(Names::Drbd, Format::Prometheus);
    assert!(drbd.contains("drbd_resource_role{") && !drbd.contains("mainstay_"));
    assert!(!first.contains("drbd_"));
    assert!(Arc::ptr_eq(&first, &kept.text(Names::Mainstay, Format::Prometheus)));
}
