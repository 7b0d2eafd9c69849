//! Real service machines over simulated services. With any fault, a service that is reported as
//! stopped is gone, and every stop keeps its order.

use mainstay_ha::{Effect, Event, Machine, Saved, ServiceSpec, Step};
use mainstay_sim::oracle::ha::HaOracle;
use mainstay_sim::plan::ServiceFault;
use mainstay_sim::random::Random;
use mainstay_sim::service::{Footing, Services};
use mainstay_types::{Epoch, NodeId, ResourceId, ServicePhase, Time};
use std::collections::BTreeMap;

const NAME: &str = "s0";
const RESOURCE: ResourceId = ResourceId(1);
const NODE: NodeId = NodeId(1);
const SECOND_US: u64 = 1_000_000;

fn spec() -> ServiceSpec {
    ServiceSpec::parse(
        "name = 's0'\nresource = 'r0'\n[mount]\npath = '/srv/s0'\n[[process]]\nname = 'db'\ncommand = ['/bin/db']\n\
         prepare = ['/bin/init']\nstart_timeout_s = 20\nstop_timeout_s = 5\nready = { tcp = '127.0.0.1:1' }\n\
         [vip]\naddress = '10.0.0.7/24'\n",
    )
    .unwrap()
}

/// Every other seed has a hook before each start.
fn machine(seed: u64, mut machine: Machine) -> Machine {
    machine.run_hook(seed.is_multiple_of(2));
    machine
}

struct Lab {
    seed: u64,
    now_us: u64,
    machine: Machine,
    saved: Option<Saved>,
    services: Services,
    oracle: HaOracle,
    /// Ends that are due: of a step by its id, or of processes as `None`.
    due: BTreeMap<(u64, u64), Option<u64>>,
    sequence: u64,
    device_ok: bool,
}

impl Lab {
    fn new(seed: u64) -> Self {
        let mut oracle = HaOracle::new();
        oracle.role(0, NODE, RESOURCE, Epoch(1), true);
        Self {
            now_us: SECOND_US,
            machine: machine(seed, Machine::new(spec())),
            seed,
            saved: None,
            services: Services::new(NODE, Random::new(seed)),
            oracle,
            due: BTreeMap::new(),
            sequence: 0,
            device_ok: true,
        }
    }

    fn after(&mut self, delay_us: u64, what: Option<u64>) {
        self.sequence += 1;
        self.due.insert((self.now_us + delay_us, self.sequence), what);
    }

    fn handle(&mut self, event: Event) {
        self.machine.handle(Time(self.now_us), event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll(true) {
            self.oracle.step(self.now_us, NODE, RESOURCE, &effect).unwrap();
            if let Effect::Persist(saved) = effect {
                self.oracle.address_stays(NODE, RESOURCE, saved.keeps_address());
                self.saved = Some(saved);
                continue;
            }
            let (delay, id) =
                self.services.start(NAME, &effect, Footing { device_ok: self.device_ok, barred: false });
            let presence = self.services.presence(NAME);
            self.oracle.observe(self.now_us, NODE, RESOURCE, presence).unwrap();
            if let Some(delay) = delay {
                self.after(delay, Some(id));
            }
        }
        self.look();
    }

    /// R19: silent means gone.
    fn look(&mut self) {
        let presence = self.services.presence(NAME);
        self.oracle.observe(self.now_us, NODE, RESOURCE, presence).unwrap();
        assert!(
            !self.machine.phase().is_silent() || presence.is_silent(),
            "{:?} at {} us, but there is {presence:?}",
            self.machine.phase(),
            self.now_us
        );
        assert_eq!(self.services.violation(), None, "at {} us", self.now_us);
    }

    fn run_for(&mut self, us: u64) {
        let until_us = self.now_us + us;
        loop {
            let tick_us = self.machine.next_deadline().map_or(u64::MAX, |at| at.0.max(self.now_us));
            let step = self.due.first_key_value().map(|(key, what)| (*key, *what));
            match step {
                Some((key, what)) if key.0 <= tick_us && key.0 <= until_us => {
                    self.due.remove(&key);
                    self.now_us = key.0;
                    self.ends(what);
                }
                _ if tick_us <= until_us => {
                    self.now_us = tick_us;
                    self.handle(Event::Tick);
                }
                _ => break,
            }
        }
        self.now_us = until_us;
    }

    fn ends(&mut self, what: Option<u64>) {
        match what {
            Some(id) => {
                if let Some(done) = self.services.finish(id) {
                    self.oracle.answered(NODE, RESOURCE, done.ticket, done.result.is_ok());
                    self.handle(Event::StepDone { ticket: done.ticket, result: done.result });
                }
            }
            None => {
                if self.services.exits(NAME) {
                    self.exited();
                }
            }
        }
        self.look();
    }

    fn exited(&mut self) {
        self.handle(Event::ProcessExited { process: 0, status: "exit 1".into() });
    }

    fn restart_agent(&mut self) {
        if let Some(saved) = self.saved.clone() {
            self.machine = machine(self.seed, Machine::restore(spec(), saved, Time(self.now_us)));
            self.carry_out();
        }
    }
}

#[test]
fn a_service_comes_up_and_goes_down() {
    let mut lab = Lab::new(1);
    lab.handle(Event::Start { epoch: Epoch(1), round: 1 });
    lab.run_for(10 * SECOND_US);
    assert_eq!(lab.machine.phase(), ServicePhase::Running);
    let there = lab.services.presence(NAME);
    assert!(there.mounted && there.running && there.address);
    lab.handle(Event::Stop);
    lab.run_for(10 * SECOND_US);
    assert_eq!(lab.machine.phase(), ServicePhase::Stopped);
}

#[test]
fn a_silent_service_has_left_nothing_whatever_goes_wrong() {
    const FAULTS: [ServiceFault; 9] = [
        ServiceFault::IgnoreStop,
        ServiceFault::Hang,
        ServiceFault::FailStart,
        ServiceFault::KeepAddress,
        ServiceFault::Dies,
        ServiceFault::Unmounted,
        ServiceFault::Replaced,
        ServiceFault::PagesTear,
        ServiceFault::Well,
    ];
    let mut phases: BTreeMap<ServicePhase, u32> = BTreeMap::new();
    for seed in 0..2_000 {
        let mut chance = Random::new(seed).stream("chance");
        let mut lab = Lab::new(seed);
        let mut round = 1;
        for _ in 0..30 {
            let us = chance.around(300_000);
            lab.run_for(us);
            *phases.entry(lab.machine.phase()).or_default() += 1;
            match chance.below(12) {
                0..=2 => {
                    round += chance.below(2);
                    // The cluster starts a service only where its devices are.
                    lab.device_ok = true;
                    let epoch = lab.machine.spent_epoch().map_or(Epoch(1), |spent| Epoch(spent.0 + 1));
                    lab.oracle.role(lab.now_us, NODE, RESOURCE, epoch, true);
                    lab.handle(Event::Start { epoch, round });
                }
                3 => lab.handle(Event::Stop),
                4 => {
                    // The guard and the agent act on the same lease, and neither relies on the
                    // other.
                    if chance.coin() && lab.services.silence(NAME) && chance.coin() {
                        lab.exited();
                    }
                    lab.handle(Event::LeaseLost);
                }
                5 => lab.restart_agent(),
                6 => {
                    lab.device_ok = false;
                    if let Some(delay) = lab.services.device_lost(NAME) {
                        lab.after(delay, None);
                    }
                }
                7 => lab.device_ok = true,
                _ => {
                    let fault = *chance.pick(&FAULTS).unwrap();
                    lab.services.inject(NAME, fault);
                    if fault == ServiceFault::Dies {
                        lab.after(0, None);
                    }
                }
            }
            lab.look();
            if let Some((why, mendable)) = lab.services.lost(NAME).filter(|_| chance.coin()) {
                lab.handle(Event::Lost { step: Step::Mount, why, mendable });
            }
            if let Some((process, why)) = lab.services.outdated(NAME).filter(|_| chance.coin()) {
                lab.handle(Event::Outdated { process, why, remedy: String::new() });
            }
        }
        lab.services.inject(NAME, ServiceFault::Well);
        lab.handle(Event::Stop);
        lab.run_for(120 * SECOND_US);
        assert!(lab.machine.phase().is_silent(), "seed {seed} ends as {:?}", lab.machine.phase());
    }
    // The run must have reached all of these phases, or the test proves nothing.
    for phase in [
        ServicePhase::Stopped,
        ServicePhase::Starting,
        ServicePhase::Running,
        ServicePhase::Stopping,
        ServicePhase::BackingOff,
        ServicePhase::Killing,
        ServicePhase::Failed,
    ] {
        assert!(phases.contains_key(&phase), "no seed was ever {phase:?}: {phases:?}");
    }
}
