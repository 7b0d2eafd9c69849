use super::*;
use crate::service::command;
use crate::service::mount::cgroup2_mount;
use crate::service::output::Outputs;

const SECOND: Duration = Duration::from_secs(1);

/// An agent that runs a program which ignores SIGTERM, and fails as its parameters say.
const AGENT: &str = r#"#!/bin/sh
# What the other actions were told.
[ "$1" = meta-data ] || env >>"$OCF_RESKEY_dir/env.$1"
pid() { cat "$OCF_RESKEY_dir/pid" 2>/dev/null; }
case $1 in
meta-data)
    cat <<XML
<?xml version="1.0"?>
<resource-agent name="x"><parameters>
<parameter name="dir" required="1"></parameter>
<parameter name="start"></parameter><parameter name="stop"></parameter><parameter name="monitor"></parameter>
</parameters><actions><action name="start" timeout="20s"/></actions></resource-agent>
XML
    ;;
start)
    command -v su >"$OCF_RESKEY_dir/su"
    [ -z "$OCF_RESKEY_start" ] || { echo "no such program" >&2; exit "$OCF_RESKEY_start"; }
    setsid sh -c 'trap "" TERM; while :; do sleep 0.05; done' >/dev/null 2>&1 &
    echo $! >"$OCF_RESKEY_dir/pid"
    ;;
monitor)
    [ -z "$OCF_RESKEY_monitor" ] || exit "$OCF_RESKEY_monitor"
    [ -n "$(pid)" ] && [ -d "/proc/$(pid)" ] || exit 7
    ;;
stop)
    [ "$OCF_RESKEY_stop" != hangs ] || sleep 1000
    [ -z "$OCF_RESKEY_stop" ] || exit 1
    [ -z "$(pid)" ] || kill -9 "$(pid)"
    rm -f "$OCF_RESKEY_dir/pid"
    ;;
*) exit 3 ;;
esac
"#;

/// A service with one agent; its cgroup is gone when dropped.
struct Lab {
    spec: ServiceSpec,
    dirs: ServiceDirs,
    outputs: Outputs,
    root: PathBuf,
    dir: tempfile::TempDir,
}

impl Lab {
    /// `None` where there is no writable cgroup hierarchy.
    fn new(name: &str, params: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let agents = dir.path().join("resource.d/test");
        fs::create_dir_all(&agents).unwrap();
        fs::write(agents.join("x"), AGENT).unwrap();
        fs::set_permissions(agents.join("x"), Permissions::from_mode(0o755)).unwrap();
        let shown = dir.path().display();
        let params = format!("dir = '{shown}'{params}");
        let entry = format!(
            "ocf = {{ agent = 'ocf:test:x', params = {{ {params} }} }}\nenv = {{ OCF_ROOT = '{shown}' }}\n"
        );
        Self::of(name, &entry, dir)
    }

    fn of(name: &str, entry: &str, dir: tempfile::TempDir) -> Option<Self> {
        let text = format!("name='s'\nresource='db'\n[[process]]\nname='p'\nstop_timeout_s = 1\n{entry}");
        let spec = ServiceSpec::parse(&text).unwrap();
        let root = format!("mainstay-test-{}-ocf-{name}", std::process::id());
        let root = cgroup2_mount().map(|mount| mount.join(root))?;
        if fs::create_dir_all(&root).is_err() {
            eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
            return None;
        }
        let logs = dir.path().join("logs");
        fs::create_dir_all(&logs).unwrap();
        let dirs = ServiceDirs { cgroup: root.join("s"), logs, log_writer: Vec::new() };
        Some(Self { spec, dirs, outputs: Outputs::default(), root, dir })
    }

    fn here(&self) -> ProcessHere<'_> {
        ProcessHere::of(&self.spec, 0, &self.dirs, &self.outputs).unwrap()
    }

    fn monitor(&self) -> Finding {
        let plan = OcfAgent.monitor(&self.here()).unwrap().unwrap();
        let asked = command::ask(&self.dirs, &plan, Role::Probe, Footing::default()).unwrap();
        let (code, said) = command::answer(&self.dirs, &plan, asked, SECOND * 20, &|| true).unwrap();
        OcfAgent.judged(code, said)
    }

    /// Starts, and waits until the start has ended.
    fn started(&self) -> Started {
        let started = OcfAgent.start(&self.here(), Footing::default()).unwrap();
        let begun: Begun = started.note.read().unwrap();
        let deadline = Instant::now() + SECOND * 20;
        while begun.start.is_alive() {
            assert!(Instant::now() < deadline, "the start does not end");
            std::thread::sleep(LOOK);
        }
        started
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn is_populated(&self) -> bool {
        cgroup::is_populated(&self.dirs.cgroup)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(cgroup::kill(&[&self.root], SECOND * 5));
        cgroup::remove(&self.root);
    }
}

#[test]
fn an_agent_starts_monitors_and_stops_in_a_cgroup_that_a_kill_reaches() {
    let Some(lab) = Lab::new("whole", ", ab = 'x'") else { return };
    assert!(matches!(lab.monitor(), Finding::Gone(_)), "it runs before its start");
    let started = lab.started();
    assert_eq!(lab.monitor(), Finding::Healthy);
    assert!(cgroup::is_populated(&lab.dirs.role("p", Role::Main)), "the program is elsewhere");
    let ready = OcfAgent.ready(&lab.here(), Some(&started.note), SECOND);
    assert!(matches!(ready, Ok(Readiness::Probe)));
    let (start, monitor) = (lab.read("env.start"), lab.read("env.monitor"));
    for line in [
        "OCF_RESOURCE_INSTANCE=s-p",
        "OCF_RESOURCE_TYPE=x",
        "OCF_RESOURCE_PROVIDER=test",
        "OCF_RA_VERSION_MAJOR=1",
        "OCF_RESKEY_ab=x",
        "OCF_RESKEY_CRM_meta_timeout=60000",
    ] {
        assert!(start.lines().any(|given| given == line), "{line} is not in {start}");
    }
    assert!(monitor.contains("OCF_RESKEY_CRM_meta_interval=10000"), "{monitor}");
    // A session of systemd-logind would take its program out of the cgroup.
    assert!(lab.read("su").starts_with(&*lab.dirs.logs.to_string_lossy()), "{}", lab.read("su"));
    OcfAgent.stop(&lab.here(), &started.note, Haste::Orderly).unwrap();
    assert!(!lab.is_populated() && !mark(&lab.here()).exists());
    assert!(matches!(lab.monitor(), Finding::Gone(_)));
    assert!(lab.read("env.stop").contains("OCF_RESKEY_CRM_meta_timeout=1000"));
}

#[test]
fn nothing_is_left_after_a_stop_that_fails_or_hangs_or_a_kill() {
    for (name, stop, haste) in [
        ("fails", "1", Some(Haste::Orderly)),
        ("hangs", "hangs", Some(Haste::Orderly)),
        ("once", "hangs", Some(Haste::AtOnce)),
        ("kill", "hangs", None),
    ] {
        let Some(lab) = Lab::new(name, &format!(", stop = '{stop}'")) else { return };
        let started = lab.started();
        let began = Instant::now();
        match haste {
            Some(haste) => OcfAgent.stop(&lab.here(), &started.note, haste).unwrap(),
            None => OcfAgent.kill(&lab.here(), SECOND * 4).unwrap(),
        }
        assert!(!lab.is_populated(), "{name}: something is left");
        assert!(mark(&lab.here()).exists(), "{name}: it counts as cleared up");
        assert!(began.elapsed() < SECOND * 30, "{name}: {:?}", began.elapsed());
    }
}

/// For example a state file that an earlier agent of this node has left.
#[test]
fn a_kill_has_the_agent_clear_up_what_is_no_process() {
    let Some(lab) = Lab::new("clear", "") else { return };
    lab.started();
    OcfAgent.kill(&lab.here(), SECOND * 8).unwrap();
    assert!(!lab.is_populated() && lab.read("pid").is_empty() && !mark(&lab.here()).exists());
    let stops = lab.read("env.stop").len();
    OcfAgent.kill(&lab.here(), SECOND * 8).unwrap();
    assert_eq!(lab.read("env.stop").len(), stops, "an agent that was not started was stopped");
}

#[test]
fn the_exit_code_of_a_start_says_whether_this_node_can_try_again() {
    for (code, is_permanent) in [(1, false), (7, false), (2, true), (5, true), (6, true)] {
        let Some(lab) = Lab::new(&format!("code{code}"), &format!(", start = '{code}'")) else { return };
        let started = lab.started();
        let ended = (started.watch)(&|| true);
        assert_eq!(ended.is_permanent, is_permanent, "{}", ended.status);
        assert!(
            ended.status.contains(&ocf_words(code)) && ended.status.contains("no such program"),
            "{}",
            ended.status
        );
    }
}

#[test]
fn the_end_of_all_processes_of_an_agent_is_noticed_without_a_monitor() {
    let Some(lab) = Lab::new("end", "") else { return };
    let started = lab.started();
    let here = lab.here();
    // The agent of this node may have been restarted meanwhile.
    for watch in [started.watch, OcfAgent.adopt(&here, &started.note)] {
        let end = std::thread::spawn(move || watch(&|| true));
        std::thread::sleep(SETTLED + SECOND / 2);
        assert!(!end.is_finished(), "it ended too early");
        kill_all(&here, SECOND * 5).unwrap();
        let ended = end.join().unwrap();
        assert!(ended.status.contains("ocf:test:x") && !ended.is_permanent, "{}", ended.status);
        drop(lab.started());
    }
    // An agent without processes is only asked.
    kill_all(&here, SECOND * 5).unwrap();
    let asked = std::cell::Cell::new(0);
    let wanted = || asked.replace(asked.get() + 1) < 20;
    OcfAgent.adopt(&here, &started.note)(&wanted);
    assert!(asked.get() > 20, "its end was told");
}

#[test]
fn a_monitor_that_finds_nothing_running_is_told_apart_from_one_that_fails() {
    for (code, healthy) in [(0, true), (190, true), (1, false), (8, false)] {
        let finding = OcfAgent.judged(code, "words".into());
        assert_eq!(finding == Finding::Healthy, healthy, "{finding:?}");
        assert!(
            healthy || matches!(&finding, Finding::Unhealthy(why) if why.contains("words")),
            "{finding:?}"
        );
    }
    assert!(matches!(OcfAgent.judged(7, String::new()), Finding::Gone(_)));
}

#[test]
fn parameters_are_compared_with_the_meta_data_of_the_agent_on_this_node() {
    let fields = |lab: &Lab| {
        let lacks = OcfAgent.lacks(&lab.spec.processes[0], &lab.spec);
        lacks.into_iter().map(|lack| lack.field).collect::<Vec<_>>()
    };
    let Some(lab) = Lab::new("good", "") else { return };
    assert_eq!(fields(&lab), Vec::<String>::new());
    let Some(lab) = Lab::new("unknown", ", colour = 'red'") else { return };
    assert_eq!(fields(&lab), ["ocf.params.colour"]);
    let entry = |agent: &str, more: &str| format!("ocf = {{ agent = '{agent}'{more} }}\n");
    let missing = entry("ocf:none:x", "");
    let Some(lab) = Lab::of("missing", &missing, tempfile::tempdir().unwrap()) else { return };
    assert_eq!(fields(&lab), ["ocf.agent"]);
    if !Path::new(OCF_ROOT).join("resource.d/heartbeat/Dummy").exists() {
        eprintln!("skipped: the package resource-agents is not installed");
        return;
    }
    for (agent, more, expected) in [
        ("Dummy", "", vec![]),
        ("Dummy", ", params = { colour = 'red' }", vec!["ocf.params.colour"]),
        ("anything", "", vec!["ocf.params.binfile"]),
        ("pgsql", ", params = { pgdata = '/srv/s/data' }", vec![]),
        ("pgsql", ", params = { rep_mode = 'sync' }", vec!["ocf.agent"]),
        ("mysql", ", params = { datadir = '/srv/s/data' }", vec![]),
        ("redis", "", vec!["ocf.agent"]),
    ] {
        let entry = entry(&format!("ocf:heartbeat:{agent}"), more);
        let Some(lab) = Lab::of("debian", &entry, tempfile::tempdir().unwrap()) else { return };
        let found = fields(&lab);
        // A machine under load may not answer in time, and then nothing is told.
        assert!(found == expected || found.is_empty(), "{agent}{more}: {found:?}");
    }
}

#[test]
fn agents_of_debian_run_as_they_are() {
    if !Path::new(OCF_ROOT).join("resource.d/heartbeat/anything").exists() {
        eprintln!("skipped: the package resource-agents is not installed");
        return;
    }
    let dummy = "ocf = { agent = 'ocf:heartbeat:Dummy' }\n";
    let anything = "ocf = { agent = 'ocf:heartbeat:anything', params = { binfile = '/bin/sleep', cmdline_options = '1000', user = 'nobody' } }\n";
    for (name, entry, has_process) in [("dummy", dummy, false), ("anything", anything, true)] {
        let entry =
            format!("env = {{ HA_RSCTMP = '/run/mainstay-test-{}-{name}' }}\n{entry}", std::process::id());
        let files = format!("/run/mainstay-test-{}-{name}", std::process::id());
        fs::create_dir_all(&files).unwrap();
        let Some(lab) = Lab::of(name, &entry, tempfile::tempdir().unwrap()) else { return };
        let started = lab.started();
        let log = fs::read_to_string(lab.dirs.logs.join("p.log")).unwrap_or_default();
        assert_eq!(lab.monitor(), Finding::Healthy, "{name}: {log}");
        assert_eq!(cgroup::is_populated(&lab.dirs.role("p", Role::Main)), has_process, "{name}: {log}");
        OcfAgent.stop(&lab.here(), &started.note, Haste::Orderly).unwrap();
        assert!(matches!(lab.monitor(), Finding::Gone(_)), "{name}");
        assert!(!mark(&lab.here()).exists(), "{name}: its stop failed");
        drop(fs::remove_dir_all(&files));
    }
}
