//! Units of systemd as a service file names them, and what follows from their state.
//!
//! | unit | is |
//! |---|---|
//! | not started, its job waits | starting |
//! | `activating` | starting, but after an end of its own: ended |
//! | `active`, `reloading` | running |
//! | `deactivating` | ending |
//! | `inactive` | ended: stopped by somebody, or never begun because of a condition |
//! | `failed` | ended, with the result that systemd gives |
//!
//! Guarantees
//! - A unit that Mainstay has not started is never stopped: its control group is not below
//!   [`unit_slice`] (R27).
//! - A unit that could start without the lease is refused: one that is enabled, or that systemd
//!   starts again by itself (R19).

use crate::spec::SpecError;
use std::fmt::{self, Write};
use std::path::Path;

/// Longest name of a unit, in bytes; as systemd has it.
const UNIT_NAME_BYTES_MAX: usize = 255;
/// First words of the drop-in that Mainstay makes.
const MADE_FOR: &str = "# Made by Mainstay for service ";
const DIRECTORY_TOO: &str = "# Its directory was made by Mainstay too.";
/// Number of the signal that no orderly stop sends to a main process.
const SIGKILL: i32 = 9;
/// Units on which Mainstay itself depends.
const OWN_UNITS: [&str; 4] =
    ["mainstay-agent.service", "mainstay-engine.service", "dbus.service", "dbus-broker.service"];
/// Controllers whose names systemd keeps free in the names of control groups.
const CONTROLLERS: [&str; 12] = [
    "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids", "hugetlb", "rdma", "misc",
    "cgroup",
];

/// State of a unit as systemd tells it. Texts are those of its properties.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UnitState {
    /// Name of the unit itself; another one than the name that was asked for if that is an alias.
    pub id: String,
    pub load: String,
    pub active: String,
    pub sub: String,
    /// `enabled`, `disabled`, `static` and the like.
    pub file: String,
    /// A start or a stop waits or is under way.
    pub has_job: bool,
    /// The last start was left out because a `Condition…=` or `Assert…=` did not hold.
    pub condition_failed: bool,
    /// Conditions that the start looked at, or its asserts if all conditions held.
    pub conditions: Vec<UnitCondition>,
    /// `Type=`
    pub kind: String,
    /// `Restart=`
    pub restart: String,
    pub slice: String,
    /// Path within the hierarchy of control groups; empty if the unit has none.
    pub control_group: String,
    /// `Result=`
    pub result: String,
    pub main_pid: u32,
    /// How the last main process has ended: 1 exited, 2 killed, 3 dumped.
    pub exit_code: i32,
    /// Exit status, or number of the signal.
    pub exit_status: i32,
}

/// One `Condition…=` or `Assert…=` of a unit, with its outcome at the last start.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UnitCondition {
    /// For example `ConditionPathExists`.
    pub name: String,
    /// Written with `|`: one of those that are must hold.
    pub is_trigger: bool,
    /// Written with `!`.
    pub is_negated: bool,
    pub parameter: String,
    /// Above 0: held, below 0: did not hold, 0: not looked at.
    pub outcome: i32,
}

impl fmt::Display for UnitCondition {
    /// Writes the condition as the unit has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trigger = if self.is_trigger { "|" } else { "" };
        let negated = if self.is_negated { "!" } else { "" };
        write!(f, "{}={trigger}{negated}{}", self.name, self.parameter)
    }
}

/// Meaning of a state of a unit for its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnitFound {
    Starting,
    Running,
    /// Its end is under way. Another look tells how it ends.
    Ending,
    Ended {
        words: String,
        /// Whether another attempt on this node would end alike.
        is_permanent: bool,
    },
}

/// Reason why a unit cannot be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitFault {
    pub problem: String,
    pub remedy: String,
}

impl UnitFault {
    fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

pub(crate) fn validate(field: &str, unit: &str) -> Result<(), SpecError> {
    let refused = |problem: String, remedy: &str| Err(SpecError::new(field, problem, remedy));
    let Some(base) = unit.strip_suffix(".service") else {
        return refused(
            format!("{unit:?} is no unit with the ending .service"),
            "name a service unit, for example \"mariadb.service\"; a mount is written as [mount]",
        );
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '.' | '\\' | '@');
    if base.is_empty()
        || unit.len() > UNIT_NAME_BYTES_MAX
        || base.starts_with(['.', '@'])
        || !base.chars().all(plain)
    {
        return refused(
            format!("{unit:?} is not the name of a unit"),
            "write it as `systemctl list-unit-files` shows it, for example \"mariadb.service\"",
        );
    }
    if base.ends_with('@') {
        return refused(
            format!("{unit} is a template without an instance"),
            "name the instance too, for example \"postgresql@15-main.service\"",
        );
    }
    if OWN_UNITS.contains(&unit) {
        return refused(format!("{unit} is a unit that Mainstay itself needs"), "name another unit");
    }
    Ok(())
}

/// Slice in which the units of a service run.
#[must_use]
pub fn unit_slice(service: &str) -> String {
    // A dash would make a slice within a slice.
    format!("mainstay-{}.slice", service.replace('-', "\\x2d"))
}

/// Path of a unit's control group below the one of systemd itself, while it runs for `service`.
#[must_use]
pub fn unit_cgroup(service: &str, unit: &str) -> String {
    let first = unit.split('.').next().unwrap_or_default();
    let escape = if unit.starts_with(['_', '.']) || CONTROLLERS.contains(&first) { "_" } else { "" };
    format!("mainstay.slice/{}/{escape}{unit}", unit_slice(service))
}

/// Program that tells a unit, just before it starts, whether it may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitGate<'a> {
    pub program: &'a Path,
    pub run_dir: &'a Path,
}

/// Text of the drop-in under which a unit runs for `service`.
#[must_use]
pub fn unit_drop_in(
    service: &str,
    stop_timeout_s: u64,
    mount: Option<&Path>,
    gate: Option<&UnitGate<'_>>,
    made_directory: bool,
) -> String {
    let escaped = |path: &Path| path.display().to_string().replace('%', "%%");
    let mut text = format!("{MADE_FOR}{service}. It goes when the service has stopped on this node.\n");
    if made_directory {
        let _ = writeln!(text, "{DIRECTORY_TOO}");
    }
    // Mainstay counts restarts itself, and ends a start that takes too long.
    text += "[Unit]\nStartLimitIntervalSec=0\n";
    if let Some(path) = mount {
        let _ = writeln!(text, "AssertPathIsMountPoint={}", escaped(path));
    }
    let slice = unit_slice(service);
    let _ = write!(
        text,
        "[Service]\nSlice={slice}\nRestart=no\nTimeoutStartSec=infinity\nTimeoutStopSec={stop_timeout_s}\n"
    );
    if let Some(UnitGate { program, run_dir }) = gate {
        let quoted =
            |path: &Path| escaped(path).replace('\\', "\\\\").replace('"', "\\\"").replace('$', "$$");
        let _ = writeln!(
            text,
            "ExecStartPre=+\"{}\" may-start --run-dir \"{}\"",
            quoted(program),
            quoted(run_dir)
        );
    }
    text
}

/// Service for which a drop-in was made; `None` if Mainstay has not made it.
#[must_use]
pub fn drop_in_owner(text: &str) -> Option<&str> {
    text.strip_prefix(MADE_FOR)?.split('.').next()
}

/// Whether the directory of a drop-in of Mainstay is Mainstay's too.
#[must_use]
pub fn drop_in_made_directory(text: &str) -> bool {
    text.lines().any(|line| line == DIRECTORY_TOO)
}

/// Whether a unit with this `UnitFileState=` is started at boot.
pub(crate) fn is_enabled(file: &str) -> bool {
    matches!(file, "enabled" | "enabled-runtime" | "linked-runtime-enabled")
}

/// Returns the command that disables a unit which is enabled.
fn remedy_of_enabled(unit: &str, file: &str) -> String {
    if file == "enabled" {
        return format!("run `systemctl disable {unit}` there");
    }
    // Debian makes the link for a cluster of PostgreSQL at each boot, from this file.
    let cluster = unit.strip_prefix("postgresql@").and_then(|rest| rest.strip_suffix(".service"));
    match cluster.and_then(|instance| instance.split_once('-')) {
        Some((version, name)) => {
            let name = name.replace("\\x2d", "-");
            format!(
                "write `manual` into /etc/postgresql/{version}/{name}/start.conf there, and run `systemctl daemon-reload`"
            )
        }
        None => format!("run `systemctl disable --runtime {unit}` there"),
    }
}

impl UnitState {
    /// Whether the unit, as it stands, was started for `service`.
    #[must_use]
    pub fn is_of(&self, service: &str) -> bool {
        self.slice == unit_slice(service)
    }

    /// Whether some of the unit runs, or may run.
    #[must_use]
    pub fn is_up(&self) -> bool {
        !matches!(self.active.as_str(), "inactive" | "failed")
    }

    /// Returns the reason why `service` cannot run the unit `named` on this node.
    #[must_use]
    pub fn fault(&self, named: &str, service: &str) -> Option<UnitFault> {
        let unit = named;
        match self.load.as_str() {
            "loaded" => {}
            "not-found" => {
                return Some(UnitFault::new(
                    format!("systemd has no unit {unit}"),
                    "install its package there, or correct the name; `systemctl list-unit-files` shows all",
                ));
            }
            "masked" => {
                let remedy = format!("run `systemctl unmask {unit}` there");
                return Some(UnitFault::new(format!("the unit {unit} is masked"), remedy));
            }
            load => {
                return Some(UnitFault::new(
                    format!("systemd cannot load the unit {unit} ({load})"),
                    format!("run `systemd-analyze verify {unit}` there to see why"),
                ));
            }
        }
        if self.id != unit {
            return Some(UnitFault::new(
                format!("{unit} is another name of the unit {}", self.id),
                format!("write unit = {:?}", self.id),
            ));
        }
        if self.kind == "oneshot" {
            return Some(UnitFault::new(
                format!("{unit} is a unit of Type=oneshot, which runs nothing that could be watched"),
                "write its command as `prepare` of a process, or use a resource agent",
            ));
        }
        if is_enabled(&self.file) {
            return Some(UnitFault::new(
                format!("the unit {unit} is enabled: systemd would start it at boot, without a lease"),
                remedy_of_enabled(unit, &self.file),
            ));
        }
        if self.is_up() && !self.is_of(service) {
            return Some(UnitFault::new(
                format!("the unit {unit} runs already, and service {service} has not started it"),
                format!(
                    "stop it there with `systemctl stop {unit}`; Mainstay does not stop what it has not started"
                ),
            ));
        }
        None
    }

    /// Returns the reason why the unit cannot be started for `service`, although the drop-in is in
    /// force.
    #[must_use]
    pub fn fault_of_settings(&self, service: &str) -> Option<UnitFault> {
        let unit = &self.id;
        let cat = format!("find the drop-in with `systemctl cat {unit}` there, and remove the line");
        if !self.is_of(service) {
            let problem =
                format!("a drop-in of {unit} sets Slice={}, and Mainstay's does not count", self.slice);
            return Some(UnitFault::new(problem, cat));
        }
        if self.restart != "no" {
            let problem =
                format!("a drop-in of {unit} sets Restart={}, and Mainstay's does not count", self.restart);
            return Some(UnitFault::new(problem, cat));
        }
        None
    }

    /// Meaning of the state after the unit was started.
    #[must_use]
    pub fn found(&self) -> UnitFound {
        match self.active.as_str() {
            // Restart=no excludes it. If it comes nevertheless, the unit has ended before.
            "activating" if self.sub.starts_with("auto-restart") => self.ended(),
            "activating" => UnitFound::Starting,
            "deactivating" => UnitFound::Ending,
            "inactive" | "failed" if self.has_job => UnitFound::Starting,
            "inactive" | "failed" => self.ended(),
            // Also states of later releases: what is not known counts as running (R19).
            _ => UnitFound::Running,
        }
    }

    /// Returns the conditions for which the last start was left out; none if systemd has forgotten
    /// them.
    fn unmet(&self) -> Vec<String> {
        let unmet = self.conditions.iter().filter(|condition| condition.outcome < 0);
        let (of_several, alone): (Vec<_>, Vec<_>) = unmet.partition(|condition| condition.is_trigger);
        // One that must hold decides before those of which one must.
        let decided = if alone.is_empty() { of_several } else { alone };
        decided.into_iter().map(ToString::to_string).collect()
    }

    fn ended(&self) -> UnitFound {
        let unit = &self.id;
        let ended = |words: String, is_permanent| UnitFound::Ended { words, is_permanent };
        let journal = format!("see `journalctl -u {unit}`");
        if self.condition_failed {
            let unmet = self.unmet();
            let which = match unmet.as_slice() {
                [] => "one of its conditions does not hold".to_owned(),
                [one] => format!("{one} does not hold"),
                several => format!("none of {} holds", several.join(", ")),
            };
            let words =
                format!("the unit {unit} was not started, because {which}; see `systemctl cat {unit}`");
            return ended(words, true);
        }
        let status = self.exit_status;
        let how = match (self.result.as_str(), self.exit_code) {
            // For a unit with `ExecStart=-`, systemd tells the result of its `ExecStop=` instead.
            ("success", 3) | ("exit-code", 2 | 3) => format!("a process was ended by signal {status}"),
            ("success", 2) if status == SIGKILL => format!("a process was ended by signal {status}"),
            ("success", _) if self.active == "inactive" => {
                return ended(
                    format!(
                        "the unit {unit} is inactive: its process ended well, or somebody stopped it; {journal}"
                    ),
                    false,
                );
            }
            ("exit-code", _) => format!("a process ended with exit code {status}"),
            ("signal" | "core-dump", 2 | 3) => format!("a process was ended by signal {status}"),
            ("signal" | "core-dump", _) => "a process was ended by a signal".to_owned(),
            ("timeout", _) => "a time limit of the unit was over".to_owned(),
            ("watchdog", _) => "it did not feed its watchdog".to_owned(),
            ("oom-kill", _) => "the kernel ended it, because memory was short".to_owned(),
            ("protocol", _) => "it did not tell that it was ready, as its Type= asks for".to_owned(),
            ("exec-condition", _) => "its ExecCondition= does not hold".to_owned(),
            ("resources", _) => "systemd could not prepare its start".to_owned(),
            (result, _) => format!("result {result}"),
        };
        let is_permanent = self.result == "exec-condition";
        ended(format!("the unit {unit} is {}: {how}; {journal}", self.active), is_permanent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> UnitState {
        let text = |text: &str| text.to_owned();
        UnitState {
            id: text("a.service"),
            load: text("loaded"),
            active: text("inactive"),
            sub: text("dead"),
            file: text("disabled"),
            kind: text("simple"),
            restart: text("no"),
            slice: text("system.slice"),
            result: text("success"),
            ..UnitState::default()
        }
    }

    #[test]
    fn a_unit_is_named_as_systemd_names_it() {
        for good in ["a.service", "postgresql@15-main.service", "a_b:c.d.service", "x@y\\x2dz.service"] {
            assert_eq!(validate("unit", good), Ok(()), "{good}");
        }
        for (bad, word) in [
            ("mariadb", "ending"),
            ("srv-db.mount", "ending"),
            ("mariadb.socket", "ending"),
            (".service", "not the name"),
            ("../a.service", "not the name"),
            ("a/b.service", "not the name"),
            ("a b.service", "not the name"),
            ("a\n.service", "not the name"),
            ("a%i.service", "not the name"),
            ("a@.service", "without an instance"),
            ("mainstay-engine.service", "itself needs"),
        ] {
            let refused = validate("unit", bad).expect_err(bad);
            assert!(refused.problem.contains(word) && !refused.remedy.is_empty(), "{bad}: {refused}");
        }
        assert!(validate("unit", &format!("{}.service", "a".repeat(300))).is_err());
    }

    #[test]
    fn a_unit_that_could_run_without_the_lease_or_is_not_ours_is_refused_with_a_remedy() {
        let up = |slice: &str| UnitState { active: "active".into(), slice: slice.into(), ..loaded() };
        let with = |change: &dyn Fn(&mut UnitState)| {
            let mut state = loaded();
            change(&mut state);
            state
        };
        for (state, word) in [
            (with(&|state| state.load = "not-found".into()), Some("no unit a.service")),
            (with(&|state| state.load = "masked".into()), Some("masked")),
            (with(&|state| state.load = "bad-setting".into()), Some("cannot load")),
            (with(&|state| state.id = "b.service".into()), Some("another name of the unit b.service")),
            (with(&|state| state.kind = "oneshot".into()), Some("oneshot")),
            (with(&|state| state.file = "enabled".into()), Some("at boot")),
            (with(&|state| state.file = "enabled-runtime".into()), Some("at boot")),
            (up("system.slice"), Some("runs already")),
            (up(&unit_slice("other")), Some("runs already")),
            (UnitState { active: "deactivating".into(), ..loaded() }, Some("runs already")),
            (up(&unit_slice("db")), None),
            (with(&|state| state.file = "static".into()), None),
            (UnitState { active: "failed".into(), ..loaded() }, None),
            (loaded(), None),
        ] {
            let fault = state.fault("a.service", "db");
            assert_eq!(fault.is_some(), word.is_some(), "{state:?}: {fault:?}");
            if let (Some(fault), Some(word)) = (fault, word) {
                assert!(fault.problem.contains(word) && !fault.remedy.is_empty(), "{word}: {fault:?}");
            }
        }
    }

    #[test]
    fn what_disables_a_unit_depends_on_what_has_enabled_it() {
        for (unit, file, remedy) in [
            ("a.service", "enabled", "`systemctl disable a.service`"),
            ("a.service", "enabled-runtime", "`systemctl disable --runtime a.service`"),
            ("postgresql@15-main.service", "enabled", "`systemctl disable postgresql@15-main.service`"),
            ("postgresql@15-main.service", "enabled-runtime", "/etc/postgresql/15/main/start.conf"),
            ("postgresql@15-my\\x2ddb.service", "enabled-runtime", "/etc/postgresql/15/my-db/start.conf"),
        ] {
            let state = UnitState { id: unit.into(), file: file.into(), ..loaded() };
            let fault = state.fault(unit, "db").expect("it is enabled");
            assert!(fault.remedy.contains(remedy), "{remedy}: {fault:?}");
        }
    }

    #[test]
    fn a_drop_in_that_undoes_ours_is_named() {
        let ours = UnitState { slice: unit_slice("db"), ..loaded() };
        assert_eq!(ours.fault_of_settings("db"), None);
        let restarts = UnitState { restart: "always".into(), ..ours };
        assert!(
            restarts.fault_of_settings("db").is_some_and(|fault| fault.problem.contains("Restart=always"))
        );
        assert!(loaded().fault_of_settings("db").is_some_and(|fault| fault.problem.contains("Slice=")));
    }

    #[test]
    fn each_state_says_whether_the_unit_starts_runs_or_has_ended_and_how() {
        let state = |active: &str, sub: &str, result: &str, code: i32, status: i32| UnitState {
            active: active.into(),
            sub: sub.into(),
            result: result.into(),
            exit_code: code,
            exit_status: status,
            ..loaded()
        };
        for going in [
            (state("activating", "start-pre", "success", 0, 0), UnitFound::Starting),
            (UnitState { has_job: true, ..loaded() }, UnitFound::Starting),
            (UnitState { has_job: true, ..state("failed", "failed", "signal", 2, 9) }, UnitFound::Starting),
            (state("active", "running", "success", 0, 0), UnitFound::Running),
            (state("active", "exited", "success", 1, 0), UnitFound::Running),
            (state("reloading", "reload", "success", 0, 0), UnitFound::Running),
            (state("of-a-later-release", "x", "success", 0, 0), UnitFound::Running),
            (state("deactivating", "stop-sigterm", "success", 0, 0), UnitFound::Ending),
        ] {
            assert_eq!(going.0.found(), going.1, "{:?}", going.0);
        }
        for (ended, word, permanent) in [
            (state("inactive", "dead", "success", 1, 0), "inactive: its process ended well, or", false),
            (state("failed", "failed", "signal", 2, 9), "failed: a process was ended by signal 9", false),
            (state("failed", "failed", "exit-code", 1, 3), "failed: a process ended with exit code 3", false),
            (state("failed", "failed", "exit-code", 2, 9), "failed: a process was ended by signal 9", false),
            (state("inactive", "dead", "success", 2, 9), "inactive: a process was ended by signal 9", false),
            (
                state("inactive", "dead", "success", 3, 11),
                "inactive: a process was ended by signal 11",
                false,
            ),
            (state("inactive", "dead", "success", 2, 15), "inactive: its process ended well, or", false),
            (state("failed", "failed", "timeout", 0, 0), "time limit", false),
            (state("failed", "failed", "oom-kill", 2, 9), "memory", false),
            (state("failed", "failed", "protocol", 0, 0), "ready", false),
            (state("failed", "failed", "new-result", 0, 0), "result new-result", false),
            (state("inactive", "dead", "exec-condition", 1, 1), "ExecCondition", true),
            (state("activating", "auto-restart", "exit-code", 1, 1), "exit code 1", false),
            (
                UnitState { condition_failed: true, ..loaded() },
                "because one of its conditions does not hold",
                true,
            ),
        ] {
            let UnitFound::Ended { words, is_permanent } = ended.found() else { panic!("{ended:?}") };
            assert!(words.contains(word) && words.contains("a.service"), "{word}: {words}");
            assert_eq!(is_permanent, permanent, "{words}");
        }
    }

    #[test]
    fn a_condition_that_does_not_hold_is_named_as_the_unit_has_it() {
        let condition = |name: &str, mark: &str, parameter: &str, outcome| UnitCondition {
            name: name.into(),
            is_trigger: mark.contains('|'),
            is_negated: mark.contains('!'),
            parameter: parameter.into(),
            outcome,
        };
        let path = |mark, parameter, outcome| condition("ConditionPathExists", mark, parameter, outcome);
        for (conditions, words) in [
            (vec![path("", "/a", 1), path("!", "/b", -1)], "because ConditionPathExists=!/b does not hold;"),
            (
                vec![condition("AssertPathIsMountPoint", "", "/srv/db", -1)],
                "because AssertPathIsMountPoint=/srv/db does not hold;",
            ),
            (
                vec![path("|", "/a", -1), path("|!", "/b", -1)],
                "because none of ConditionPathExists=|/a, ConditionPathExists=|!/b holds;",
            ),
            // Those of which one must hold were looked at, and did not decide.
            (vec![path("|", "/a", -1), path("", "/b", -1)], "because ConditionPathExists=/b does not hold;"),
            (vec![path("", "/a", 0)], "because one of its conditions does not hold;"),
        ] {
            let state = UnitState { condition_failed: true, conditions, ..loaded() };
            let UnitFound::Ended { words: said, is_permanent: true } = state.found() else {
                panic!("{state:?}")
            };
            assert!(
                said.starts_with("the unit a.service was not started, ") && said.contains(words),
                "{said}"
            );
        }
    }

    #[test]
    fn a_drop_in_says_for_which_service_it_was_made_and_keeps_systemd_from_starting_anything_again() {
        let gate = UnitGate { program: Path::new("/usr/bin/main stay"), run_dir: Path::new("/run/a%b") };
        let text = unit_drop_in("my-db", 7, Some(Path::new("/srv/my db")), Some(&gate), true);
        for line in [
            "Restart=no",
            "TimeoutStopSec=7",
            "Slice=mainstay-my\\x2ddb.slice",
            "AssertPathIsMountPoint=/srv/my db",
            "ExecStartPre=+\"/usr/bin/main stay\" may-start --run-dir \"/run/a%%b\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(drop_in_owner(&text), Some("my-db"));
        assert!(drop_in_made_directory(&text));
        assert!(!drop_in_made_directory(&unit_drop_in("db", 7, None, None, false)));
        assert_eq!(drop_in_owner("[Service]\nRestart=no\n"), None);
    }

    #[test]
    fn the_control_group_of_a_unit_is_known_before_it_runs() {
        assert_eq!(unit_cgroup("db", "a.service"), "mainstay.slice/mainstay-db.slice/a.service");
        assert_eq!(
            unit_cgroup("my-db", "a@b.service"),
            "mainstay.slice/mainstay-my\\x2ddb.slice/a@b.service"
        );
        assert_eq!(unit_cgroup("db", "memory.service"), "mainstay.slice/mainstay-db.slice/_memory.service");
    }
}
