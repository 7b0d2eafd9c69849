//! Stories of one route, and a model: after any sequence of news, clients and time, ports and
//! sessions are what the newest page asks for.

use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits { drain_ms: 10_000, max_age_ms: 60_000 };
const DB: RouteId = RouteId(0);

fn place(node: u64) -> NodePlace {
    NodePlace { node: format!("n{node}"), address: format!("10.0.0.{node}") }
}

fn view(epoch: u64, node: Option<u64>, phase: ServicePhase) -> DestinationView {
    DestinationView {
        resource: "db".into(),
        service: Some("db".into()),
        epoch,
        primary: node.map(place),
        phase: Some(phase),
        readers: Vec::new(),
    }
}

fn page(revision: u64, as_of_ms: Option<u64>, views: Vec<DestinationView>) -> DestinationsPage {
    DestinationsPage { cluster: 7, revision, as_of_ms, destinations: views }
}

/// A switch with one route, and the news that it is told.
struct Story {
    switch: Switch,
    now: Time,
    revision: u64,
}

impl Story {
    fn new() -> Self {
        let routes = [(Followed::Service("db".into()), Door::Primary, 3)];
        Self { switch: Switch::new(LIMITS, routes), now: Time(1_000_000_000), revision: 0 }
    }

    fn told(&mut self, epoch: u64, node: u64, phase: ServicePhase) -> Vec<Effect> {
        self.revision += 1;
        let page = page(self.revision, Some(0), vec![view(epoch, Some(node), phase)]);
        let (verdict, effects) = self.switch.news(self.now, page);
        assert_eq!(verdict, Verdict::Taken);
        effects
    }

    fn admitted(&mut self) -> (GroupId, Place) {
        match self.switch.admit(DB) {
            Admission::Admitted(group, place) => (group, place),
            Admission::Refused(refusal) => panic!("refused: {refusal:?}"),
        }
    }

    fn after_ms(&mut self, ms: u64) -> Vec<Effect> {
        self.now = self.now.plus_ms(ms);
        self.switch.tick(self.now)
    }
}

#[test]
fn a_port_is_listened_on_only_while_its_service_runs() {
    let mut story = Story::new();
    assert_eq!(story.switch.admit(DB), Admission::Refused(Refusal::NoDestination));
    assert_eq!(story.told(1, 1, ServicePhase::Starting), []);
    assert_eq!(story.told(1, 1, ServicePhase::Running), [Effect::Listen(DB)]);
    assert_eq!(story.admitted().1, Place { epoch: 1, node: "n1".into(), address: "10.0.0.1".into() });
    assert_eq!(story.told(1, 1, ServicePhase::BackingOff), [Effect::StopListening(DB)]);
    assert_eq!(story.switch.admit(DB), Admission::Refused(Refusal::NoDestination));
}

#[test]
fn an_epoch_change_resets_every_session_of_the_old_primary() {
    let mut story = Story::new();
    story.told(1, 1, ServicePhase::Running);
    let (old, _) = story.admitted();
    // The node has died without a word: what it said last is that the service runs.
    let effects = story.told(2, 2, ServicePhase::Stopped);
    assert_eq!(effects, [Effect::Reset(DB, old, Why::Moved), Effect::StopListening(DB)]);
    assert_eq!(story.told(2, 2, ServicePhase::Running), [Effect::Listen(DB)]);
    assert_eq!(story.admitted().1.node, "n2");
    // The same node again is another place in another epoch.
    let (second, _) = story.admitted();
    let effects = story.told(3, 2, ServicePhase::Running);
    assert_eq!(effects, [Effect::Reset(DB, second, Why::Moved)]);
}

#[test]
fn a_planned_stop_is_drained_and_its_end_resets_what_is_left() {
    let mut story = Story::new();
    story.told(1, 1, ServicePhase::Running);
    let (group, _) = story.admitted();
    let effects = story.told(1, 1, ServicePhase::Stopping);
    assert_eq!(effects, [Effect::Drain(group), Effect::StopListening(DB)]);
    assert_eq!(story.after_ms(LIMITS.drain_ms - 1), []);
    assert_eq!(story.switch.deadline(), Some(story.now.plus_ms(1)));
    assert_eq!(story.after_ms(1), [Effect::Reset(DB, group, Why::DrainOver)]);
    assert_eq!(story.after_ms(60_000), [], "a group is reset once");
}

#[test]
fn sessions_that_are_drained_stay_when_the_service_runs_again() {
    let mut story = Story::new();
    story.told(1, 1, ServicePhase::Running);
    let (group, _) = story.admitted();
    story.told(1, 1, ServicePhase::Stopping);
    let effects = story.told(1, 1, ServicePhase::Running);
    assert_eq!(effects, [Effect::Keep(group), Effect::Listen(DB)]);
    assert_eq!(story.after_ms(LIMITS.drain_ms), []);
    assert_eq!(story.admitted().0, group);
}

#[test]
fn without_agents_sessions_go_on_and_new_ones_are_refused_after_the_longest_age() {
    let mut story = Story::new();
    story.told(1, 1, ServicePhase::Running);
    story.admitted();
    assert_eq!(story.after_ms(LIMITS.max_age_ms), []);
    let due = story.switch.deadline().unwrap();
    assert_eq!(due.us_since(story.now), 1);
    story.now = due;
    assert_eq!(story.switch.tick(due), [Effect::StopListening(DB)]);
    assert_eq!(story.switch.routes()[0].sessions, 1);
    // An agent without a majority has nothing newer to say.
    let stale = page(story.revision, Some(70_000), vec![view(1, Some(1), ServicePhase::Running)]);
    assert_eq!(story.switch.news(story.now, stale).1, []);
    assert_eq!(story.told(1, 1, ServicePhase::Running), [Effect::Listen(DB)]);
}

#[test]
fn an_agent_that_lags_behind_changes_nothing() {
    let mut story = Story::new();
    story.told(1, 1, ServicePhase::Running);
    story.told(2, 2, ServicePhase::Running);
    let old = page(1, Some(0), vec![view(1, Some(1), ServicePhase::Running)]);
    assert_eq!(story.switch.news(story.now, old), (Verdict::Old, Vec::new()));
    assert_eq!(story.admitted().1.node, "n2");
    let mut other = page(9, Some(0), vec![view(9, Some(3), ServicePhase::Running)]);
    other.cluster = 8;
    assert_eq!(story.switch.news(story.now, other), (Verdict::OtherCluster, Vec::new()));
}

#[test]
fn a_route_has_no_more_sessions_than_it_may() {
    let mut story = Story::new();
    story.told(1, 1, ServicePhase::Running);
    let (group, _) = story.admitted();
    story.admitted();
    story.admitted();
    assert_eq!(story.switch.admit(DB), Admission::Refused(Refusal::Full));
    assert_eq!(story.switch.ended(story.now, group), []);
    story.admitted();
}

#[test]
fn a_router_that_is_to_end_drains_first_and_does_not_when_told_again() {
    let mut story = Story::new();
    story.told(1, 1, ServicePhase::Running);
    let (group, _) = story.admitted();
    assert_eq!(story.switch.end(story.now), [Effect::Drain(group), Effect::StopListening(DB)]);
    assert_eq!(story.told(1, 1, ServicePhase::Running), [], "it does not begin again");
    assert_eq!(story.switch.end(story.now), [Effect::Reset(DB, group, Why::Ending)]);
    assert_eq!(story.switch.ended(story.now, group), [Effect::End]);

    let mut idle = Story::new();
    idle.told(1, 1, ServicePhase::Running);
    assert_eq!(idle.switch.end(idle.now), [Effect::StopListening(DB), Effect::End]);
}

#[test]
fn readers_are_listened_for_only_while_a_copy_can_be_read() {
    let followed = Followed::Service("db".into());
    let mut switch =
        Switch::new(LIMITS, [(followed.clone(), Door::Primary, 9), (followed, Door::Readers, 9)]);
    let now = Time(1);
    let mut told = |revision, readers: &[u64]| {
        let mut view = view(1, Some(1), ServicePhase::Running);
        view.readers = readers.iter().copied().map(place).collect();
        switch.news(now, page(revision, Some(0), vec![view])).1
    };
    let readers = RouteId(1);
    assert_eq!(told(1, &[]), [Effect::Listen(DB)]);
    assert_eq!(told(2, &[2, 3]), [Effect::Listen(readers)]);
    let nodes: Vec<String> = (0..4)
        .map(|_| match switch.admit(readers) {
            Admission::Admitted(_, place) => place.node,
            Admission::Refused(why) => panic!("{why:?}"),
        })
        .collect();
    assert_eq!(nodes, ["n2", "n3", "n2", "n3"], "each session goes where there are fewest");
    let effects = switch.news(now, page(3, Some(0), vec![view(1, Some(1), ServicePhase::Running)])).1;
    assert_eq!(effects.len(), 3, "{effects:?}");
    assert_eq!(effects[2], Effect::StopListening(readers));
}

#[test]
fn a_resource_without_a_service_is_served_by_its_primary() {
    let mut switch = Switch::new(LIMITS, [(Followed::Resource("db".into()), Door::Primary, 9)]);
    let mut bare = view(4, Some(2), ServicePhase::Running);
    (bare.service, bare.phase) = (None, None);
    assert_eq!(switch.news(Time(1), page(1, Some(0), vec![bare])).1, [Effect::Listen(DB)]);
    // Deleted.
    assert_eq!(switch.news(Time(1), page(2, Some(0), vec![])).1, [Effect::StopListening(DB)]);
}

#[test]
fn a_session_whose_question_is_being_answered_is_not_idle() {
    assert!(is_idle(70, 70, true, false), "the server has answered, and nothing moved since");
    assert!(is_idle(0, 0, false, false), "neither side has said anything");
    assert!(!is_idle(70, 70, false, false), "the server works on the last question");
    assert!(!is_idle(70, 71, true, false), "bytes moved");
    assert!(!is_idle(70, 70, true, true), "the client has not taken the whole answer");
}

/// One step of a random story.
#[derive(Clone, Debug)]
enum Step {
    /// Epochs and nodes change as the cluster would: a higher revision never has a lower epoch.
    Told {
        skip: bool,
        promoted: bool,
        node: Option<u64>,
        phase: usize,
        age_ms: Option<u64>,
        gone: bool,
    },
    Lagging,
    Admit,
    Ended,
    Wait(u64),
    End,
}

const PHASES: [ServicePhase; 7] = [
    ServicePhase::Stopped,
    ServicePhase::Starting,
    ServicePhase::Running,
    ServicePhase::Stopping,
    ServicePhase::BackingOff,
    ServicePhase::Killing,
    ServicePhase::Failed,
];

fn step() -> impl Strategy<Value = Step> {
    let age = prop_oneof![4 => Just(Some(0)), 1 => Just(Some(5_000)), 1 => Just(None)];
    let node = prop_oneof![6 => (1..=3u64).prop_map(Some), 1 => Just(None)];
    let phase = prop_oneof![3 => Just(2usize), 2 => 0..PHASES.len()];
    let told = (any::<bool>(), any::<bool>(), node, phase, age, prop::bool::weighted(0.05)).prop_map(
        |(skip, promoted, node, phase, age_ms, gone)| Step::Told {
            skip,
            promoted,
            node,
            phase,
            age_ms,
            gone,
        },
    );
    prop_oneof![
        6 => told,
        1 => Just(Step::Lagging),
        8 => Just(Step::Admit),
        4 => Just(Step::Ended),
        3 => (0..40_000u64).prop_map(Step::Wait),
        1 => prop::bool::weighted(0.1).prop_map(|end| if end { Step::End } else { Step::Wait(1) }),
    ]
}

proptest! {
    #[test]
    fn ports_and_sessions_are_always_as_the_newest_page_wants(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut story = Story::new();
        let (mut epoch, mut primary) = (1, None);
        let mut newest: Option<DestinationView> = None;
        let mut confirmed: Option<Time> = None;
        let mut listening = false;
        let mut ends = 0;
        // Sessions as the effects leave them: their group, place, whether it is drained since when,
        // and whether it was reset.
        let mut open: Vec<(GroupId, Place)> = Vec::new();
        let mut reset: Vec<GroupId> = Vec::new();
        let mut draining: BTreeMap<GroupId, Time> = BTreeMap::new();
        for step in steps {
            let effects = match step {
                Step::Told { skip, promoted, node, phase, age_ms, gone } => {
                    story.revision += 1 + u64::from(skip);
                    if promoted || primary.is_none() {
                        epoch += 1;
                        primary = node;
                    }
                    let told = view(epoch, primary, PHASES[phase]);
                    newest = (!gone).then(|| told.clone());
                    let at = age_ms.map(|age| Time(story.now.0 - age * 1000));
                    confirmed = confirmed.max(at);
                    let views = newest.iter().cloned().collect();
                    story.switch.news(story.now, page(story.revision, age_ms, views)).1
                }
                Step::Lagging => {
                    let views = vec![view(epoch + 5, Some(3), ServicePhase::Running)];
                    let old = page(story.revision.saturating_sub(1), Some(0), views);
                    if story.revision == 0 { Vec::new() } else { story.switch.news(story.now, old).1 }
                }
                Step::Admit => {
                    match story.switch.admit(DB) {
                        Admission::Admitted(group, at) => {
                            let wanted = newest.as_ref().expect("a destination");
                            prop_assert_eq!(wanted.phase, Some(ServicePhase::Running));
                            prop_assert_eq!(&Some(place(at.node[1..].parse().unwrap())), &wanted.primary);
                            prop_assert_eq!(at.epoch, wanted.epoch);
                            prop_assert!(listening && !reset.contains(&group));
                            open.push((group, at));
                            prop_assert!(open.len() <= 3);
                        }
                        Admission::Refused(Refusal::Full) => prop_assert_eq!(open.len(), 3),
                        Admission::Refused(Refusal::NoDestination) => prop_assert!(!listening),
                    }
                    Vec::new()
                }
                Step::Ended if open.is_empty() => Vec::new(),
                Step::Ended => {
                    let (group, _) = open.remove(0);
                    story.switch.ended(story.now, group)
                }
                Step::Wait(ms) => story.after_ms(ms),
                Step::End => story.switch.end(story.now),
            };
            for effect in effects {
                match effect {
                    Effect::Listen(_) => {
                        prop_assert!(!listening);
                        listening = true;
                    }
                    Effect::StopListening(_) => {
                        prop_assert!(listening);
                        listening = false;
                    }
                    Effect::Drain(group) => prop_assert!(draining.insert(group, story.now).is_none()),
                    Effect::Keep(group) => prop_assert!(draining.remove(&group).is_some()),
                    Effect::Reset(_, group, _) => {
                        prop_assert!(!reset.contains(&group));
                        draining.remove(&group);
                        reset.push(group);
                    }
                    Effect::End => ends += 1,
                }
            }
            let current = confirmed.is_some_and(|at| story.now.us_since(at) <= LIMITS.max_age_ms * 1000);
            let runs = newest.as_ref().is_some_and(|view| {
                view.phase == Some(ServicePhase::Running) && view.primary.is_some()
            });
            prop_assert_eq!(listening, current && runs && !story.switch.is_ending());
            for (group, at) in &open {
                let stays = newest.as_ref().is_some_and(|view| {
                    view.epoch == at.epoch
                        && view.primary.as_ref().is_some_and(|primary| primary.node == at.node)
                });
                prop_assert!(stays || reset.contains(group), "{:?} outlives its place", at);
                let since = draining.get(group);
                let over = since.is_some_and(|since| story.now.us_since(*since) >= LIMITS.drain_ms * 1000);
                prop_assert!(!over, "a drain has no end");
            }
            prop_assert_eq!(story.switch.routes()[0].sessions as usize, open.len());
            prop_assert_eq!(ends, u32::from(story.switch.is_ending() && open.is_empty()).max(ends.min(1)));
        }
    }
}
