//! Every fault and every way of a step to end.

use super::*;

const START: Step = Step::StartProcess { process: 0 };
const READY: Step = Step::CheckReady { process: 0 };
const ALL: Presence = Presence { mounted: true, running: true, address: true };
const TIMEOUT_MS: u64 = 40_000;

struct Lab {
    services: Services,
    tickets: u64,
}

fn run(step: Step) -> Effect {
    Effect::Run { ticket: 0, step, timeout_ms: TIMEOUT_MS }
}

fn undo(step: Step, force: bool) -> Effect {
    Effect::Undo { ticket: 0, step, force, timeout_ms: TIMEOUT_MS }
}

impl Lab {
    fn new(seed: u64) -> Self {
        Self { services: Services::new(NodeId(1), Random::new(seed)), tickets: 0 }
    }

    fn up(seed: u64) -> Self {
        let mut lab = Self::new(seed);
        for step in [Step::ProbeAddress, Step::Mount, START, READY, Step::AddAddress] {
            lab.done(&run(step)).unwrap();
        }
        assert_eq!(lab.presence(), ALL);
        lab
    }

    fn presence(&self) -> Presence {
        self.services.presence("s0")
    }

    fn begin(&mut self, effect: &Effect) -> (Option<u64>, u64) {
        self.services.start("s0", effect, Footing { device_ok: true, barred: false })
    }

    /// Begins and ends it; how long it took is checked elsewhere.
    fn done(&mut self, effect: &Effect) -> Result<(), String> {
        self.timed(effect).1
    }

    fn timed(&mut self, effect: &Effect) -> (u64, Result<(), String>) {
        self.tickets += 1;
        let (delay, id) = self.begin(effect);
        (delay.expect("it ends by itself"), self.services.finish(id).expect("an answer").result)
    }
}

#[test]
fn parts_are_there_from_the_beginning_of_a_step_to_the_end_of_its_undo() {
    let mut lab = Lab::new(1);
    assert!(lab.presence().is_silent());
    let (_, mount) = lab.begin(&run(Step::Mount));
    assert!(lab.presence().mounted, "what is under way counts");
    lab.services.finish(mount).unwrap().result.unwrap();
    lab.begin(&run(START));
    assert!(lab.presence().running);
    let (_, address) = lab.begin(&run(Step::AddAddress));
    assert!(lab.presence().address);
    lab.services.finish(address).unwrap();
    let (_, removal) = lab.begin(&undo(Step::AddAddress, false));
    assert!(lab.presence().address, "what is being removed counts");
    lab.services.finish(removal).unwrap().result.unwrap();
    assert_eq!(lab.presence(), Presence { address: false, ..ALL });
    lab.done(&Effect::Kill { ticket: 1 }).unwrap();
    assert_eq!(lab.presence(), Presence { mounted: true, ..Presence::default() });
    lab.done(&undo(Step::Mount, true)).unwrap();
    assert!(lab.presence().is_silent());
}

#[test]
fn a_process_is_not_begun_where_an_operator_has_unmounted_the_file_system() {
    let mut lab = Lab::up(1);
    lab.services.inject("s0", ServiceFault::Unmounted);
    assert!(!lab.services.stands("s0") && lab.services.lost("s0").is_some());
    assert!(lab.done(&run(Step::Mount)).is_err(), "it is not mounted under a process that runs");
    lab.done(&undo(START, false)).unwrap();
    assert!(lab.done(&run(START)).is_err(), "there is no file system to run on");
    lab.done(&undo(START, false)).unwrap();
    lab.done(&undo(Step::Mount, false)).unwrap();
    lab.done(&run(Step::Mount)).unwrap();
    lab.done(&run(START)).unwrap();
    assert!(lab.services.stands("s0"));
    assert_eq!(lab.services.violation(), None);
}

#[test]
fn a_foreign_mount_stays_whatever_ends() {
    let mut lab = Lab::up(1);
    lab.services.inject("s0", ServiceFault::Replaced);
    lab.services.silence("s0");
    assert!(lab.presence().is_silent());
    assert!(lab.done(&run(Step::Mount)).is_err(), "it is still there");
    lab.done(&undo(Step::Mount, true)).unwrap();
    assert!(lab.done(&run(Step::Mount)).is_err(), "and still");
    lab.services.inject("s0", ServiceFault::Well);
    lab.done(&run(Step::Mount)).unwrap();
    assert_eq!(lab.services.violation(), None);
}

#[test]
fn durations_are_those_of_a_machine() {
    let (mut probe, mut start, mut mount) = (0, 0, 0);
    for seed in 0..200 {
        let mut lab = Lab::new(seed);
        probe += lab.timed(&run(Step::ProbeAddress)).0;
        mount += lab.timed(&run(Step::Mount)).0;
        start += lab.timed(&run(START)).0 + lab.timed(&run(READY)).0;
    }
    assert!((170 * MS..400 * MS).contains(&(probe / 200)));
    assert!((5 * MS..50 * MS).contains(&(mount / 200)));
    assert!((20 * MS..500 * MS).contains(&(start / 200)));
}

#[test]
fn a_failed_step_still_counts_as_there() {
    let mut lab = Lab::new(1);
    let (_, id) = lab.services.start("s0", &run(Step::Mount), Footing { device_ok: false, barred: false });
    assert!(lab.services.finish(id).unwrap().result.is_err(), "there is no device");
    assert!(lab.presence().mounted);
    lab.done(&undo(Step::Mount, false)).unwrap();
    assert!(lab.presence().is_silent());
}

#[test]
fn an_address_that_was_set_by_hand_is_not_taken_and_stays() {
    let mut lab = Lab::new(1);
    lab.services.inject("s0", ServiceFault::AddressByHand);
    assert!(lab.done(&run(Step::ProbeAddress)).is_err());
    assert!(lab.done(&run(Step::AddAddress)).is_err());
    assert!(!lab.presence().address);
    lab.done(&undo(Step::AddAddress, true)).unwrap();
    lab.services.silence("s0");
    assert!(!lab.services.was_robbed());
    assert!(lab.done(&run(Step::ProbeAddress)).is_err(), "it is still there");
    lab.services.inject("s0", ServiceFault::Well);
    lab.done(&run(Step::ProbeAddress)).unwrap();
}

#[test]
fn an_address_on_a_late_interface_goes_when_the_node_is_silenced() {
    let mut lab = Lab::new(1);
    lab.services.inject("s0", ServiceFault::LateInterface);
    lab.done(&run(Step::AddAddress)).unwrap();
    lab.services.inject("s0", ServiceFault::Well);
    lab.services.silence("s0");
    assert!(lab.presence().is_silent());
}

#[test]
fn a_process_that_ignores_the_signal_is_killed_at_the_end_of_its_time() {
    let mut lab = Lab::up(1);
    lab.services.inject("s0", ServiceFault::IgnoreStop);
    let (delay, result) = lab.timed(&undo(START, false));
    result.unwrap();
    assert!(delay > TIMEOUT_MS * MS - KILL_RESERVE_US && delay < TIMEOUT_MS * MS);
    let mut lab = Lab::up(1);
    lab.services.inject("s0", ServiceFault::IgnoreStop);
    assert!(lab.timed(&undo(START, true)).0 < 200 * MS, "force does not ask");
    assert!(!lab.presence().running);
    assert!(Lab::up(1).timed(&undo(START, false)).0 < 2_000 * MS, "a well one hears the signal");
}

#[test]
fn a_step_that_hangs_never_answers_and_its_undo_gets_rid_of_it() {
    for step in [Step::ProbeAddress, Step::Mount, START, READY, Step::AddAddress] {
        let mut lab = Lab::new(1);
        lab.services.inject("s0", ServiceFault::Hang);
        assert_eq!(lab.begin(&run(step)).0, None, "{step:?}");
        lab.done(&undo(step, true)).unwrap();
        assert!(lab.presence().is_silent() && lab.services.jobs.is_empty(), "{step:?}");
        lab.done(&run(Step::Mount)).unwrap();
    }
}

#[test]
fn a_courteous_unmount_waits_for_a_mount_that_hangs() {
    let mut lab = Lab::new(1);
    lab.services.inject("s0", ServiceFault::Hang);
    lab.begin(&run(Step::Mount));
    assert_eq!(lab.begin(&undo(Step::Mount, false)).0, None);
    assert!(lab.presence().mounted);
    lab.done(&undo(Step::Mount, true)).unwrap();
    assert!(lab.presence().is_silent() && lab.services.jobs.is_empty());
}

#[test]
fn a_stop_that_hangs_fails_and_force_helps() {
    for (step, later) in [(START, Some(STOP_KILL_PATIENCE_US)), (Step::Mount, None)] {
        let mut lab = Lab::up(1);
        lab.services.inject("s0", ServiceFault::Hang);
        let (delay, result) = lab.timed(&undo(step, false));
        assert!(result.is_err() && delay < TIMEOUT_MS * MS && later.is_none_or(|later| delay > later));
        assert_eq!(lab.presence(), ALL, "what is not proven gone is there");
        lab.done(&undo(step, true)).unwrap();
        assert_ne!(lab.presence(), ALL);
    }
    let mut lab = Lab::up(1);
    lab.services.inject("s0", ServiceFault::Hang);
    lab.done(&Effect::Kill { ticket: 1 }).unwrap();
    assert!(!lab.presence().running, "nothing holds up SIGKILL");
}

#[test]
fn a_busy_mount_stays() {
    let mut lab = Lab::up(1);
    assert!(lab.done(&undo(Step::Mount, false)).is_err());
    assert!(lab.presence().mounted);
}

#[test]
fn a_start_fails_until_the_service_is_well() {
    let mut mounts_failed = 0;
    for seed in 0..50 {
        let mut lab = Lab::new(seed);
        lab.services.inject("s0", ServiceFault::FailStart);
        lab.services.power_cut();
        mounts_failed += u32::from(lab.done(&run(Step::Mount)).is_err());
        assert!(lab.done(&run(START)).is_err());
        lab.done(&undo(START, false)).unwrap();
        lab.services.inject("s0", ServiceFault::Well);
        lab.done(&run(Step::Mount)).unwrap();
        lab.done(&run(START)).unwrap();
    }
    assert!((5..45).contains(&mounts_failed));
}

#[test]
fn an_address_is_kept_once() {
    let mut lab = Lab::up(1);
    lab.services.inject("s0", ServiceFault::KeepAddress);
    assert!(lab.done(&undo(Step::AddAddress, true)).is_err());
    assert!(lab.presence().address);
    lab.done(&undo(Step::AddAddress, true)).unwrap();
    assert!(!lab.presence().address);
}

#[test]
fn a_process_ends_by_itself_and_only_the_one_that_was_meant() {
    let mut lab = Lab::up(1);
    assert!(!lab.services.exits("s0"));
    lab.services.inject("s0", ServiceFault::Dies);
    assert!(lab.presence().running && lab.services.exits("s0"));
    assert!(!lab.presence().running);
    let (delay, id) = lab.begin(&run(READY));
    assert!(delay.is_some() && lab.services.finish(id).is_none(), "a test of nothing goes on for ever");
    lab.done(&run(START)).unwrap();
    lab.services.inject("s0", ServiceFault::Dies);
    lab.done(&undo(START, true)).unwrap();
    lab.done(&run(START)).unwrap();
    assert!(!lab.services.exits("s0") && lab.presence().running);
}

#[test]
fn without_its_device_a_process_dies_or_becomes_a_ghost() {
    let mut ghosts = 0;
    for seed in 0..200 {
        let mut lab = Lab::up(seed);
        match lab.services.device_lost("s0") {
            Some(delay) => {
                assert!((10 * MS..=DEVICE_LOST_US_MAX).contains(&delay));
                assert!(lab.services.exits("s0"));
            }
            None => {
                ghosts += 1;
                assert!(!lab.services.exits("s0") && lab.presence() == ALL);
            }
        }
        assert!(lab.presence().mounted);
        assert!(lab.done(&run(Step::Mount)).is_err(), "a dead mount is in the way");
        lab.done(&Effect::Kill { ticket: 1 }).unwrap();
        lab.done(&undo(Step::Mount, false)).unwrap();
        lab.done(&run(Step::Mount)).unwrap();
    }
    assert!((30..120).contains(&ghosts));
    assert_eq!(Lab::new(1).services.device_lost("s0"), None);
}

#[test]
fn a_mount_under_way_fails_when_its_device_goes() {
    let mut lab = Lab::new(1);
    let (_, id) = lab.begin(&run(Step::Mount));
    lab.services.device_lost("s0");
    assert!(lab.services.finish(id).unwrap().result.is_err());
}

#[test]
fn the_guard_and_a_power_cut_leave_nothing() {
    let mut lab = Lab::up(1);
    assert!(lab.services.silence("s0"), "the agent hears of the process");
    assert!(lab.presence().is_silent());
    assert!(!lab.services.silence("s0") && !lab.services.silence("s9"));
    let mut lab = Lab::up(1);
    let (_, id) = lab.begin(&run(READY));
    lab.services.power_cut();
    assert!(lab.presence().is_silent());
    assert_eq!(lab.services.finish(id), None, "no program is left to answer");
}

#[test]
fn a_late_undo_does_not_end_a_later_start() {
    let mut lab = Lab::up(1);
    let undos = [undo(Step::AddAddress, true), Effect::Kill { ticket: 1 }, undo(Step::Mount, true)];
    let ids: Vec<u64> = undos.iter().map(|effect| lab.begin(effect).1).collect();
    for step in [Step::Mount, START, Step::AddAddress] {
        lab.done(&run(step)).unwrap();
    }
    for id in ids {
        lab.services.finish(id).unwrap().result.unwrap();
    }
    assert_eq!(lab.presence(), ALL);
}

#[test]
fn an_undone_step_answers_that_it_was_called_off() {
    let mut lab = Lab::new(1);
    let (_, id) = lab.begin(&run(Step::Prepare { process: 0 }));
    assert!(lab.presence().running);
    lab.done(&undo(Step::Prepare { process: 0 }, false)).unwrap();
    assert!(lab.presence().is_silent());
    assert!(lab.services.finish(id).unwrap().result.is_err());
    assert!(lab.presence().is_silent());
}

#[test]
fn a_process_is_outdated_until_it_is_started_again() {
    let mut lab = Lab::up(16);
    assert_eq!(lab.services.outdated("s0"), None);
    lab.services.inject("s0", ServiceFault::PagesTear);
    assert!(lab.services.outdated("s0").is_some_and(|(process, _)| process == 0));
    assert!(!lab.services.stands("s0"));
    // Files that are mended make no earlier answer undone.
    lab.services.inject("s0", ServiceFault::Well);
    lab.done(&run(START)).unwrap();
    assert!(lab.services.outdated("s0").is_some(), "a process that runs is only adopted");
    lab.services.inject("s0", ServiceFault::PagesTear);
    lab.done(&undo(START, false)).unwrap();
    lab.done(&run(START)).unwrap();
    // The start found that pages can tear.
    lab.services.inject("s0", ServiceFault::PagesTear);
    assert_eq!(lab.services.outdated("s0"), None);
    assert!(lab.services.stands("s0"));
    lab.services.inject("s0", ServiceFault::Well);
    lab.done(&undo(START, false)).unwrap();
    lab.done(&run(START)).unwrap();
    lab.services.inject("s0", ServiceFault::PagesTear);
    assert!(lab.services.outdated("s0").is_some());
    lab.services.power_cut();
    assert_eq!(lab.services.outdated("s0"), None);
}
