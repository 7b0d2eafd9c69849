use super::*;
use std::cell::{Cell, RefCell};

/// A systemd that has one unit, and notes what it is told.
#[derive(Default)]
struct Fake {
    state: RefCell<UnitState>,
    told: RefCell<Vec<String>>,
    /// The unit does not end when it is stopped.
    stubborn: Cell<bool>,
    /// A drop-in of somebody else wins against Mainstay's.
    restart_wins: Cell<bool>,
    starters: RefCell<Vec<UnitStarter>>,
}

impl Fake {
    fn new(active: &str, slice: &str) -> Self {
        let text = |text: &str| text.to_owned();
        let state = UnitState {
            id: text("a.service"),
            load: text("loaded"),
            active: text(active),
            file: text("disabled"),
            restart: text("always"),
            slice: text(slice),
            ..UnitState::default()
        };
        Self { state: RefCell::new(state), ..Self::default() }
    }

    fn tell(&self, what: &str) {
        self.told.borrow_mut().push(what.to_owned());
    }

    fn told(&self) -> Vec<String> {
        self.told.borrow().clone()
    }
}

impl Systemd for Fake {
    fn state(&self, _: &str) -> Result<UnitState, String> {
        Ok(self.state.borrow().clone())
    }

    fn starters(&self, _: &str) -> Result<Vec<UnitStarter>, String> {
        Ok(self.starters.borrow().clone())
    }

    fn reload(&self) -> Result<(), String> {
        self.tell("reload");
        let mut state = self.state.borrow_mut();
        state.slice = mainstay_ha::unit_slice("s");
        if !self.restart_wins.get() {
            state.restart = "no".into();
        }
        Ok(())
    }

    fn start(&self, _: &str) -> Result<String, String> {
        self.tell("start");
        self.state.borrow_mut().active = "active".into();
        Ok("/job/1".into())
    }

    fn stop(&self, _: &str) -> Result<String, String> {
        self.tell("stop");
        if !self.stubborn.get() {
            self.state.borrow_mut().active = "inactive".into();
        }
        Ok("/job/2".into())
    }

    fn job_end(&self, _: &str, _: &str, _: Duration, _: &dyn Fn() -> bool) -> Option<String> {
        Some("done".into())
    }

    fn kill(&self, _: &str) -> Result<(), String> {
        self.tell("kill");
        Ok(())
    }

    fn forget_failure(&self, _: &str) {
        self.tell("forget");
    }
}

fn named(root: &Path) -> Named {
    Named {
        unit: "a.service".into(),
        service: "s".into(),
        cgroup: None,
        gate: None,
        drop_ins: root.to_owned(),
    }
}

const OURS: &str = "mainstay-s.slice";

#[test]
fn a_unit_is_started_under_a_drop_in_that_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (named, systemd) = (named(dir.path()), Fake::new("inactive", "system.slice"));
    assert_eq!(named.begin(&systemd, 7, &Footing::default()).as_deref(), Ok("/job/1"));
    assert_eq!(systemd.told(), ["reload", "start"], "the drop-in counts before the start");
    let text = fs::read_to_string(dir.path().join("a.service.d").join(DROP_IN)).unwrap();
    assert!(text.contains("TimeoutStopSec=7\n") && text.contains("Restart=no\n"), "{text}");
    named.stop(&systemd, 7).unwrap();
    named.silence(&systemd, Instant::now() + REST_PATIENCE).unwrap();
    assert!(!dir.path().join("a.service.d").exists(), "Mainstay had made the directory");
    assert_eq!(systemd.told()[2..], ["stop", "reload"]);
}

/// R27
#[test]
fn what_mainstay_has_not_made_is_neither_stopped_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("a.service.d");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("10-own.conf"), "").unwrap();
    let named = named(dir.path());
    // It runs, and another one has started it.
    for slice in ["system.slice", "mainstay-other.slice"] {
        let systemd = Fake::new("active", slice);
        let refused = named.begin(&systemd, 7, &Footing::default()).unwrap_err();
        assert!(refused.contains("runs already"), "{refused}");
        named.stop(&systemd, 7).unwrap();
        named.silence(&systemd, Instant::now() + REST_PATIENCE).unwrap();
        assert!(systemd.told().iter().all(|told| told == "reload"), "{:?}", systemd.told());
    }
    // The drop-in has the name of Mainstay's, or is of another service.
    let others = ["[Service]\n".to_owned(), unit_drop_in("other", 1, None, None, true)];
    for text in &others {
        fs::write(directory.join(DROP_IN), text).unwrap();
        let systemd = Fake::new("inactive", "system.slice");
        assert!(named.begin(&systemd, 7, &Footing::default()).is_err());
        assert_eq!(systemd.told(), Vec::<String>::new());
        named.drop_in().remove("s").unwrap();
        assert_eq!(&fs::read_to_string(directory.join(DROP_IN)).unwrap(), text);
        fs::remove_file(directory.join(DROP_IN)).unwrap();
    }
    // The directory was there before.
    let systemd = Fake::new("inactive", "system.slice");
    named.begin(&systemd, 7, &Footing::default()).unwrap();
    named.silence(&systemd, Instant::now() + REST_PATIENCE).unwrap();
    let left: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["10-own.conf"]);
}

#[test]
fn a_unit_that_systemd_would_start_again_by_itself_is_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let (named, systemd) = (named(dir.path()), Fake::new("inactive", "system.slice"));
    systemd.restart_wins.set(true);
    let refused = named.begin(&systemd, 7, &Footing::default()).unwrap_err();
    assert!(refused.contains("Restart=always"), "{refused}");
    assert_eq!(systemd.told(), ["reload", "reload"]);
    assert!(!dir.path().join("a.service.d").exists());
}

/// R19
#[test]
fn a_unit_that_another_unit_would_start_is_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let (named, systemd) = (named(dir.path()), Fake::new("inactive", "system.slice"));
    let socket = UnitStarter {
        id: "a.socket".into(),
        how: mainstay_ha::Starts::OnTrigger,
        load: "loaded".into(),
        active: "active".into(),
        file: "enabled".into(),
        is_needed: false,
    };
    systemd.starters.borrow_mut().push(socket.clone());
    let refused = named.begin(&systemd, 7, &Footing::default()).unwrap_err();
    assert!(refused.contains("systemctl disable --now a.socket"), "{refused}");
    assert_eq!(systemd.told(), Vec::<String>::new(), "nothing is started");
    assert!(!dir.path().join("a.service.d").exists());
    // Another unit of the same service wants this one.
    let own = UnitStarter {
        id: "b.service".into(),
        how: mainstay_ha::Starts::WithItself,
        file: "static".into(),
        ..socket
    };
    *systemd.starters.borrow_mut() = vec![own];
    assert!(named.begin(&systemd, 7, &Footing::default()).is_err());
    let drop_in = dir.path().join("b.service.d");
    fs::create_dir(&drop_in).unwrap();
    fs::write(drop_in.join(DROP_IN), unit_drop_in("s", 7, None, None, true)).unwrap();
    assert_eq!(named.begin(&systemd, 7, &Footing::default()).as_deref(), Ok("/job/1"));
}

/// R19
#[test]
fn a_unit_that_does_not_end_counts_as_running_and_keeps_its_drop_in() {
    let dir = tempfile::tempdir().unwrap();
    let (named, systemd) = (named(dir.path()), Fake::new("inactive", "system.slice"));
    named.begin(&systemd, 7, &Footing::default()).unwrap();
    systemd.stubborn.set(true);
    let silenced = named.silence(&systemd, Instant::now() + LOOK);
    assert!(silenced.is_err_and(|why| why.contains("still active")));
    assert!(systemd.told().contains(&"kill".to_owned()));
    assert!(named.drop_in().is_of("s"), "systemd must not start it again");
    systemd.stubborn.set(false);
    systemd.state.borrow_mut().active = "failed".into();
    named.silence(&systemd, Instant::now() + REST_PATIENCE).unwrap();
    assert!(systemd.told().contains(&"forget".to_owned()), "the failure was Mainstay's kill");
    assert!(!named.drop_in().is_of("s"));
}

#[test]
fn a_unit_whose_condition_does_not_hold_has_ended_for_good_with_the_condition_named() {
    let dir = tempfile::tempdir().unwrap();
    let condition = mainstay_ha::UnitCondition {
        name: "ConditionPathExists".into(),
        parameter: "/nowhere".into(),
        outcome: -1,
        ..Default::default()
    };
    let systemd = Fake::new("inactive", OURS);
    let state =
        UnitState { condition_failed: true, conditions: vec![condition], ..systemd.state("").unwrap() };
    // As the look in the conversation of the start has found it; a later one would find nothing.
    let Ended { status, is_permanent } = named(dir.path()).ended(Some(state), &|| true);
    assert!(is_permanent && status.contains("ConditionPathExists=/nowhere does not hold"), "{status}");
}

#[test]
fn the_cgroup_of_a_unit_is_the_one_of_its_service() {
    let dirs = ServiceDirs { cgroup: "/x/s".into(), logs: "/y".into(), log_writer: Vec::new() };
    let Some(cgroup) = cgroup_of("a.service", &dirs) else { return };
    assert!(cgroup.ends_with(format!("mainstay.slice/{OURS}/a.service")), "{}", cgroup.display());
}
