//! The decisions of the router: where a new session goes, when a port is listened on, and when
//! sessions are reset. Pure: news in, effects out, time is a parameter.
//!
//! Guarantees
//! - A port is listened on only while it has a destination: a primary whose service runs in the
//!   epoch of the record, or a node whose copy can be read. Otherwise a client is refused at once.
//! - When the epoch, the node or its address changes, every session of the place before is reset,
//!   whether its node lives or has died without a word.
//! - News never go back: a page with a lower revision than one that is known changes nothing.
//! - A route that is about to have no destination because its service stops is drained: no new
//!   sessions, those that are idle are reset, and at the end of [`Limits::drain_ms`] all.
//! - When no agent has confirmed the news for [`Limits::max_age_ms`], no session begins any more.
//!   Those that there are go on: each is bound to the process that accepted it, and a node that has
//!   lost its lease has killed that process (R19). A new one could reach another program that
//!   listens there now.
//!
//! States of the sessions of one place ([`State`]): `Serving → Parked → Serving` while the service
//! starts or fails, `Serving → Draining → Serving` when it stops and runs again in the same epoch,
//! and `Resetting` at the end, until the last session is gone.

use mainstay_api::rest::{DestinationView, DestinationsPage, NodePlace};
use mainstay_types::{ServicePhase, Time};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time that a drain takes, in milliseconds.
    pub drain_ms: u64,
    /// Age of the news up to which new sessions begin, in milliseconds.
    pub max_age_ms: u64,
}

/// Object in the cluster whose clients a route serves.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Followed {
    Service(String),
    Resource(String),
}

/// Kind of destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    Primary,
    Readers,
}

/// Place of a route in the list that the switch was made with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RouteId(pub usize);

/// Number of one place's sessions, never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupId(pub u64);

/// A destination. A later epoch is another place, also on the same node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// 0 for a reader: its copy is of no epoch.
    pub epoch: u64,
    pub node: String,
    pub address: String,
}

/// Reason why sessions are reset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// Another epoch, another node or another address.
    Moved,
    /// The service or the resource does not exist any more.
    Gone,
    /// The route is drained, and the session is idle ([`Effect::Drain`]).
    Idle,
    /// A drain came to its end.
    DrainOver,
    /// The router was told a second time to end.
    Ending,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    Listen(RouteId),
    StopListening(RouteId),
    /// Reset those of these sessions that are idle, from now on.
    Drain(GroupId),
    /// Reset idle sessions no longer: their service runs again.
    Keep(GroupId),
    /// Reset all of these sessions.
    Reset(RouteId, GroupId, Why),
    /// End the router: nothing is left to do.
    End,
}

/// Answer to a client that has connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    Admitted(GroupId, Place),
    Refused(Refusal),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// The route has as many sessions as it may.
    Full,
    /// The destination went while the client connected.
    NoDestination,
}

/// Judgement of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Taken,
    /// Older than what is known.
    Old,
    /// Another cluster's than the first page.
    OtherCluster,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// New sessions go there.
    Serving,
    /// The service starts or has failed. No new sessions; those that there are end with the process
    /// that they belong to.
    Parked,
    Draining {
        until: Time,
    },
    Resetting,
}

/// The sessions of one place.
#[derive(Debug)]
struct Group {
    id: GroupId,
    place: Place,
    state: State,
    sessions: u32,
}

#[derive(Debug)]
struct Route {
    followed: Followed,
    door: Door,
    sessions_max: u32,
    listening: bool,
    groups: Vec<Group>,
}

impl Route {
    fn sessions(&self) -> u32 {
        self.groups.iter().map(|group| group.sessions).sum()
    }
}

/// State of a route, for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteView {
    pub followed: Followed,
    pub door: Door,
    /// Whether the cluster has this service or resource.
    pub known: bool,
    pub listening: bool,
    pub sessions: u32,
    /// Destinations of new sessions.
    pub places: Vec<Place>,
}

#[derive(Debug)]
pub struct Switch {
    limits: Limits,
    routes: Vec<Route>,
    cluster: Option<u64>,
    revision: u64,
    /// Last time at which the news are known to have been the present state.
    confirmed: Option<Time>,
    known: BTreeMap<Followed, DestinationView>,
    groups: u64,
    /// End of the drain after which the router ends.
    ending: Option<Time>,
    ended: bool,
}

impl Switch {
    /// A route for each of these, with the most sessions that it may have.
    #[must_use]
    pub fn new(limits: Limits, routes: impl IntoIterator<Item = (Followed, Door, u32)>) -> Self {
        let route = |(followed, door, sessions_max)| Route {
            followed,
            door,
            sessions_max,
            listening: false,
            groups: Vec::new(),
        };
        Self {
            limits,
            routes: routes.into_iter().map(route).collect(),
            cluster: None,
            revision: 0,
            confirmed: None,
            known: BTreeMap::new(),
            groups: 0,
            ending: None,
            ended: false,
        }
    }

    /// An agent has answered.
    pub fn news(&mut self, now: Time, page: DestinationsPage) -> (Verdict, Vec<Effect>) {
        if *self.cluster.get_or_insert(page.cluster) != page.cluster {
            return (Verdict::OtherCluster, Vec::new());
        }
        if page.revision < self.revision {
            return (Verdict::Old, Vec::new());
        }
        self.revision = page.revision;
        if let Some(age_ms) = page.as_of_ms {
            let confirmed = Time(now.0.saturating_sub(age_ms.saturating_mul(1000)));
            self.confirmed = self.confirmed.max(Some(confirmed));
        }
        let followed = |view: &DestinationView| match &view.service {
            Some(service) => Followed::Service(service.clone()),
            None => Followed::Resource(view.resource.clone()),
        };
        self.known = page.destinations.into_iter().map(|view| (followed(&view), view)).collect();
        (Verdict::Taken, self.settle(now))
    }

    /// A client has connected to a route.
    pub fn admit(&mut self, route: RouteId) -> Admission {
        let Some(route) = self.routes.get_mut(route.0).filter(|route| route.listening) else {
            return Admission::Refused(Refusal::NoDestination);
        };
        if route.sessions() >= route.sessions_max {
            return Admission::Refused(Refusal::Full);
        }
        let serving = route.groups.iter_mut().filter(|group| group.state == State::Serving);
        match serving.min_by_key(|group| group.sessions) {
            Some(group) => {
                group.sessions += 1;
                Admission::Admitted(group.id, group.place.clone())
            }
            None => Admission::Refused(Refusal::NoDestination),
        }
    }

    /// A session that was admitted is over.
    pub fn ended(&mut self, now: Time, id: GroupId) -> Vec<Effect> {
        let groups = self.routes.iter_mut().flat_map(|route| route.groups.iter_mut());
        for group in groups.filter(|group| group.id == id) {
            group.sessions = group.sessions.saturating_sub(1);
        }
        self.settle(now)
    }

    /// The router is to end: it drains all routes first, and does not when it is told again.
    pub fn end(&mut self, now: Time) -> Vec<Effect> {
        match self.ending {
            None => self.ending = Some(now.plus_ms(self.limits.drain_ms)),
            Some(_) => {
                let mut effects = Vec::new();
                for (at, route) in self.routes.iter_mut().enumerate() {
                    for group in &mut route.groups {
                        reset(RouteId(at), group, Why::Ending, &mut effects);
                    }
                }
                effects.extend(self.settle(now));
                return effects;
            }
        }
        self.settle(now)
    }

    /// Time has passed; see [`Switch::deadline`].
    pub fn tick(&mut self, now: Time) -> Vec<Effect> {
        self.settle(now)
    }

    /// Next time at which something happens without news.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let groups = self.routes.iter().flat_map(|route| &route.groups);
        let drains = groups.filter_map(|group| match group.state {
            State::Draining { until } => Some(until),
            _ => None,
        });
        let listens = self.routes.iter().any(|route| route.listening);
        // The first microsecond at which the news are too old.
        let too_old = self.confirmed.filter(|_| listens);
        let too_old = too_old.map(|at| Time(at.plus_ms(self.limits.max_age_ms).0.saturating_add(1)));
        drains.chain(too_old).min()
    }

    /// Whether new sessions may rest on the news.
    #[must_use]
    pub fn is_current(&self, now: Time) -> bool {
        self.confirmed.is_some_and(|at| now <= at.plus_ms(self.limits.max_age_ms))
    }

    /// Milliseconds since the news are known to have been the present state.
    #[must_use]
    pub fn age_ms(&self, now: Time) -> Option<u64> {
        self.confirmed.map(|at| now.ms_since(at))
    }

    /// Whether a page was taken.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.cluster.is_some()
    }

    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// All routes, in their order.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteView> {
        let places = |route: &Route| {
            let serving = route.groups.iter().filter(|group| group.state == State::Serving);
            serving.map(|group| group.place.clone()).collect()
        };
        let view = |route: &Route| RouteView {
            followed: route.followed.clone(),
            door: route.door,
            known: self.known.contains_key(&route.followed),
            listening: route.listening,
            sessions: route.sessions(),
            places: places(route),
        };
        self.routes.iter().map(view).collect()
    }

    /// Brings everything into the state that news and time ask for.
    fn settle(&mut self, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (is_current, ending, drain_ms) = (self.is_current(now), self.ending, self.limits.drain_ms);
        for (at, route) in self.routes.iter_mut().enumerate() {
            let id = RouteId(at);
            let known = self.known.get(&route.followed);
            let wanted = known.map_or_else(Wanted::default, |view| Wanted::of(view, route.door));
            for group in &mut route.groups {
                if group.sessions == 0 {
                    let stays = wanted.phase == Phase::Runs && wanted.places.contains(&group.place);
                    if !stays || ending.is_some() {
                        group.state = State::Parked;
                    }
                    continue;
                }
                if group.state == State::Resetting {
                    continue;
                }
                if !wanted.places.contains(&group.place) {
                    let why = if known.is_some() { Why::Moved } else { Why::Gone };
                    reset(id, group, why, &mut effects);
                    continue;
                }
                let until = match group.state {
                    State::Draining { until } => until,
                    _ => now.plus_ms(drain_ms),
                };
                let next = match (ending, wanted.phase) {
                    (Some(end), _) => State::Draining { until: until.min(end) },
                    (None, Phase::Runs) => State::Serving,
                    (None, Phase::Stops) => State::Draining { until },
                    (None, Phase::Other) => State::Parked,
                };
                let (drained, drains) = (is_draining(group.state), is_draining(next));
                match (drained, drains) {
                    (false, true) => effects.push(Effect::Drain(group.id)),
                    (true, false) => effects.push(Effect::Keep(group.id)),
                    _ => {}
                }
                group.state = next;
                if let State::Draining { until } = next
                    && now >= until
                {
                    reset(id, group, Why::DrainOver, &mut effects);
                }
            }
            if ending.is_none() && wanted.phase == Phase::Runs {
                for place in wanted.places {
                    let serves = |group: &Group| group.state == State::Serving && group.place == place;
                    if !route.groups.iter().any(serves) {
                        self.groups += 1;
                        let id = GroupId(self.groups);
                        route.groups.push(Group { id, place, state: State::Serving, sessions: 0 });
                    }
                }
            }
            route.groups.retain(|group| group.sessions > 0 || group.state == State::Serving);
            let listens = is_current && route.groups.iter().any(|group| group.state == State::Serving);
            if listens != route.listening {
                effects.push(if listens { Effect::Listen(id) } else { Effect::StopListening(id) });
                route.listening = listens;
            }
        }
        if ending.is_some() && !self.ended && self.routes.iter().all(|route| route.sessions() == 0) {
            self.ended = true;
            effects.push(Effect::End);
        }
        effects
    }
}

fn is_draining(state: State) -> bool {
    matches!(state, State::Draining { .. })
}

fn reset(route: RouteId, group: &mut Group, why: Why, effects: &mut Vec<Effect>) {
    if group.state != State::Resetting {
        group.state = State::Resetting;
        effects.push(Effect::Reset(route, group.id, why));
    }
}

/// Phase of a service, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    Runs,
    Stops,
    #[default]
    Other,
}

/// Where a route's sessions belong by the news.
#[derive(Default)]
struct Wanted {
    places: Vec<Place>,
    phase: Phase,
}

impl Wanted {
    fn of(view: &DestinationView, door: Door) -> Self {
        let place =
            |epoch, at: &NodePlace| Place { epoch, node: at.node.clone(), address: at.address.clone() };
        match door {
            Door::Primary => Self {
                places: view.primary.iter().map(|at| place(view.epoch, at)).collect(),
                phase: match view.phase {
                    None | Some(ServicePhase::Running) => Phase::Runs,
                    Some(ServicePhase::Stopping) => Phase::Stops,
                    Some(_) => Phase::Other,
                },
            },
            Door::Readers => {
                Self { places: view.readers.iter().map(|at| place(0, at)).collect(), phase: Phase::Runs }
            }
        }
    }
}

/// Whether a session is idle, as far as a router sees: in the whole time between two looks no byte
/// moved, the last ones came from the server, and the session holds none. A client whose question
/// is being answered is not idle, however long that takes. One that has never said anything is.
#[must_use]
pub fn is_idle(bytes_before: u64, bytes: u64, answered: bool, holds: bool) -> bool {
    bytes == bytes_before && (answered || bytes == 0) && !holds
}

#[cfg(test)]
mod tests;
