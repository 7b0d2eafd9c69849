//! The router at work: news and clients go to the [`Switch`], and what it decides is done here.
//!
//! One task decides. Threads ask the agents ([`agents`]) and copy ([`Lane`]).

use crate::agents::{self, Answer};
use crate::copy::Meter;
use crate::doors::{Arrival, Door};
use crate::lane::{Lane, Session, SessionId, reset_on_close};
use crate::proxy;
use crate::settings::{Fault, Limits, Settings};
use crate::status::{self, AgentState, Counts, Snapshot};
use crate::switch::{self, Admission, Effect, Followed, GroupId, Place, RouteId, Switch, Verdict, Why};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_gettime};
use socket2::{SockRef, TcpKeepalive};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use mainstay_types::Time;

/// How often drained sessions are looked at, and ports that could not be opened are tried again. A
/// session that moved no byte between two looks is idle.
const LOOK: Duration = Duration::from_millis(500);
/// Clients that have connected and wait for the task that decides.
const ARRIVALS_MAX: usize = 64;
const KEEPALIVE_PROBES: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("cannot listen on {address} for {what}: {source}")]
    Listen {
        address: SocketAddr,
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot {doing}: {source}")]
    System {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

/// News for the task that decides.
pub enum Input {
    News(usize, Answer),
    Connected(SessionId, io::Result<TcpStream>),
    Over(SessionId, GroupId),
    Ask(oneshot::Sender<Snapshot>),
}

/// Runs a router until it has been told to end and is drained. `stops` tells it so; told a second
/// time, it resets all sessions at once.
///
/// # Errors
/// When the settings have a fault, or an address cannot be had.
pub fn run(settings: Settings, stops: UnboundedReceiver<()>) -> Result<(), RouterError> {
    settings.check()?;
    allow_descriptors(settings.descriptors());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RouterError::System { doing: "start", source })?;
    runtime.block_on(async { Router::start(settings)?.work(stops).await })
}

/// Raises the limit of descriptors as far as this process may.
fn allow_descriptors(needed: u64) {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = needed.max(soft).min(hard);
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).map(|()| wanted)
    });
    match allowed {
        Ok(allowed) if allowed < needed => tracing::warn!(
            allowed,
            needed,
            "this process may not have as many descriptors as all its sessions need: raise the limit (LimitNOFILE=), or lower max-sessions"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of descriptors cannot be raised"),
    }
}

/// Microseconds since the machine was started, also those of its sleep.
fn now() -> Time {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    Time(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// A session, from its admission to its end.
struct Entry {
    route: RouteId,
    group: GroupId,
    meter: Arc<Meter>,
    stage: Stage,
}

enum Stage {
    /// Being connected to its destination.
    Connecting { client: TcpStream, from: SocketAddr, task: AbortHandle },
    /// Carried by this lane.
    Carried(usize),
}

struct Router {
    settings: Settings,
    switch: Switch,
    doors: Vec<Door>,
    lanes: Vec<Lane>,
    /// Where the inputs go.
    sender: UnboundedSender<Input>,
    inputs: UnboundedReceiver<Input>,
    arrivals: (tokio::sync::mpsc::Sender<Arrival>, Receiver<Arrival>),
    agents: Vec<AgentState>,
    sessions: BTreeMap<SessionId, Entry>,
    next_session: u64,
    /// Bytes of each session at the last look, by the groups that are drained.
    drains: BTreeMap<GroupId, BTreeMap<SessionId, u64>>,
    counts: Vec<Counts>,
    /// Ports that are to be open, and cannot be for the reason that was told.
    closed: BTreeMap<RouteId, String>,
    /// Routes whose service or resource the cluster does not have, as was told.
    unknown: BTreeSet<RouteId>,
    ended: bool,
}

impl Router {
    fn start(settings: Settings) -> Result<Self, RouterError> {
        let Limits { drain, max_age, backlog, .. } = settings.limits;
        let mut kinds = Vec::new();
        let mut doors = Vec::new();
        for route in &settings.routes {
            for (door, address) in
                [(switch::Door::Primary, route.listen), (switch::Door::Readers, route.readers())]
            {
                let id = RouteId(kinds.len());
                let what = route.name().to_owned();
                let reserved = Door::reserve(address, id, backlog);
                doors.push(reserved.map_err(|source| RouterError::Listen { address, what, source })?);
                kinds.push((route.followed(), door, route.max_sessions));
            }
        }
        let (sender, inputs) = unbounded_channel();
        if let Some(address) = settings.status_listen {
            let failed = |source| RouterError::Listen { address, what: "its status".into(), source };
            let listener = std::net::TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
            tokio::spawn(status::serve(listener, sender.clone()));
        }
        let failed = |source| RouterError::System { doing: "start a thread", source };
        let mut lanes = Vec::new();
        for _ in 0..settings.limits.threads() {
            let over = sender.clone();
            let tell = move |id, group| drop(over.send(Input::Over(id, group)));
            lanes.push(Lane::start(Box::new(tell)).map_err(failed)?);
        }
        let mut states = Vec::new();
        for (at, agent) in settings.agents.iter().enumerate() {
            let address = agents::with_port(agent);
            states.push(AgentState { address: address.clone(), answers: false, trouble: None });
            let news = sender.clone();
            agents::ask(address, move |answer| news.send(Input::News(at, answer)).is_ok()).map_err(failed)?;
        }
        let limits = switch::Limits { drain_ms: drain.0, max_age_ms: max_age.0 };
        let counts = kinds.iter().map(|_| Counts::default()).collect();
        tracing::info!(routes = settings.routes.len(), agents = states.len(), "the router is up");
        Ok(Self {
            switch: Switch::new(limits, kinds),
            doors,
            lanes,
            sender,
            inputs,
            arrivals: channel(ARRIVALS_MAX),
            agents: states,
            sessions: BTreeMap::new(),
            next_session: 0,
            drains: BTreeMap::new(),
            counts,
            closed: BTreeMap::new(),
            unknown: BTreeSet::new(),
            ended: false,
            settings,
        })
    }

    async fn work(mut self, mut stops: UnboundedReceiver<()>) -> Result<(), RouterError> {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.ended {
            let until = self.switch.deadline().map(|at| Duration::from_micros(at.us_since(now())));
            let looks = !self.drains.is_empty() || !self.closed.is_empty();
            let effects = tokio::select! {
                // Resets come before new sessions.
                biased;
                Some(()) = stops.recv() => {
                    tracing::info!("the router ends: sessions are drained; told again, it resets them");
                    self.switch.end(now())
                }
                Some(input) = self.inputs.recv() => self.take(input),
                () = sleep(until.unwrap_or_default()), if until.is_some() => self.switch.tick(now()),
                _ = look.tick(), if looks => {
                    self.look();
                    Vec::new()
                }
                Some(arrival) = self.arrivals.1.recv() => {
                    self.admit(arrival);
                    Vec::new()
                }
            };
            for effect in effects {
                self.act(effect).await;
            }
        }
        tracing::info!("the router has ended");
        Ok(())
    }

    fn take(&mut self, input: Input) -> Vec<Effect> {
        match input {
            Input::News(agent, answer) => self.news(agent, answer),
            Input::Connected(id, server) => self.connected(id, server),
            Input::Over(id, group) => {
                self.forget(id);
                self.switch.ended(now(), group)
            }
            Input::Ask(reply) => {
                // The connection that asked may be gone.
                let _ = reply.send(self.snapshot());
                Vec::new()
            }
        }
    }

    fn news(&mut self, agent: usize, answer: Answer) -> Vec<Effect> {
        let (trouble, effects) = match answer {
            Err(why) => (Some(why), Vec::new()),
            Ok(page) => match self.switch.news(now(), page) {
                (Verdict::OtherCluster, _) => {
                    (Some("it is of another cluster than the agent that answered first".into()), Vec::new())
                }
                (Verdict::Taken | Verdict::Old, effects) => (None, effects),
            },
        };
        let state = &mut self.agents[agent];
        if trouble != state.trouble || state.answers != trouble.is_none() {
            let address = &state.address;
            match &trouble {
                None => tracing::info!(%address, "an agent answers"),
                Some(why) => tracing::warn!(
                    %address, %why,
                    "an agent does not answer and is asked again; its port for routers is that of its --router-listen, for example {}",
                    agents::PORT
                ),
            }
        }
        (state.answers, state.trouble) = (trouble.is_none(), trouble);
        self.tell_unknown();
        effects
    }

    /// Says once that a route leads nowhere because its name is not known.
    fn tell_unknown(&mut self) {
        for (at, route) in self.switch.routes().into_iter().enumerate() {
            let id = RouteId(at);
            let is_new = !route.known && self.switch.has_news() && self.unknown.insert(id);
            if route.known {
                self.unknown.remove(&id);
            } else if is_new && route.door == switch::Door::Primary {
                let (noun, name) = words(&route.followed);
                let list = match route.followed {
                    Followed::Service(_) => "`mainstay service list`",
                    Followed::Resource(_) => "`mainstay resource list`",
                };
                tracing::warn!(
                    "there is no {noun} {name} in the cluster: {list} shows all; the port opens when there is one"
                );
            }
        }
    }

    fn admit(&mut self, arrival: Arrival) {
        let Arrival { route, stream, from } = arrival;
        // This fails only for a connection that is gone.
        let Ok(client) = stream.into_std() else { return };
        match self.switch.admit(route) {
            Admission::Refused(refusal) => {
                *self.counts[route.0].refused.entry(refusal).or_default() += 1;
                reset_on_close(&client);
            }
            Admission::Admitted(group, place) => {
                self.counts[route.0].sessions += 1;
                self.next_session += 1;
                let id = SessionId(self.next_session);
                let task = self.connect(id, route, &place);
                let stage = Stage::Connecting { client, from, task };
                self.sessions.insert(id, Entry { route, group, meter: Arc::default(), stage });
            }
        }
    }

    /// Connects a session to its destination, in the background.
    fn connect(&self, id: SessionId, route: RouteId, place: &Place) -> AbortHandle {
        let host = self.settings.nodes.get(&place.node).unwrap_or(&place.address).clone();
        let port = self.settings.routes[route.0 / 2].port;
        let (within, sender) = (self.settings.limits.connect_timeout.0, self.sender.clone());
        let connect = async move {
            let connected = tokio::net::TcpStream::connect((host, port));
            let server = match tokio::time::timeout(Duration::from_millis(within), connected).await {
                Ok(connected) => connected.and_then(tokio::net::TcpStream::into_std),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            drop(sender.send(Input::Connected(id, server)));
        };
        tokio::spawn(connect).abort_handle()
    }

    fn connected(&mut self, id: SessionId, server: io::Result<TcpStream>) -> Vec<Effect> {
        // One that was reset meanwhile is not there any more.
        let Some(entry) = self.sessions.remove(&id) else { return Vec::new() };
        let Entry { route, group, meter, stage } = entry;
        let Stage::Connecting { client, from, .. } = stage else { return Vec::new() };
        let settings = &self.settings.routes[route.0 / 2];
        let prepared = server.and_then(|server| {
            for stream in [&client, &server] {
                prepare(stream, &self.settings.limits)?;
            }
            Ok((client.local_addr()?, server))
        });
        let (local, server) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                reset_on_close(&client);
                let counts = &mut self.counts[route.0];
                counts.failures += 1;
                if counts.trouble.replace(error.kind()) != Some(error.kind()) {
                    tracing::warn!(
                        route = settings.name(), %error,
                        "the database cannot be reached although its service runs: check that it listens on the node's address and on port {}",
                        settings.port
                    );
                }
                return self.switch.ended(now(), group);
            }
        };
        self.counts[route.0].trouble = None;
        let header = if settings.proxy_protocol { proxy::header(from, local) } else { Vec::new() };
        let lane = (id.0 % self.lanes.len() as u64) as usize;
        self.lanes[lane].carry(Session { id, group, client, server, header, meter: meter.clone() });
        self.sessions.insert(id, Entry { route, group, meter, stage: Stage::Carried(lane) });
        Vec::new()
    }

    /// A session is over: its bytes count from now on as bytes of the past.
    fn forget(&mut self, id: SessionId) {
        if let Some(entry) = self.sessions.remove(&id) {
            let counts = &mut self.counts[entry.route.0];
            counts.from_clients += entry.meter.from_client.load(Ordering::Relaxed);
            counts.from_servers += entry.meter.from_server.load(Ordering::Relaxed);
        }
    }

    async fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Listen(route) => self.open(route),
            Effect::StopListening(route) => {
                self.closed.remove(&route);
                self.doors[route.0].close().await;
                tracing::info!(route = self.name(route), address = %self.doors[route.0].address, "no destination: clients are refused");
            }
            Effect::Drain(group) => drop(self.drains.insert(group, BTreeMap::new())),
            Effect::Keep(group) => drop(self.drains.remove(&group)),
            Effect::Reset(route, group, why) => self.reset(route, group, why),
            Effect::End => self.ended = true,
        }
    }

    fn open(&mut self, route: RouteId) {
        let door = &mut self.doors[route.0];
        let address = door.address;
        match door.open(&self.arrivals.0) {
            Ok(()) => {
                self.closed.remove(&route);
                let places = self.switch.routes().swap_remove(route.0).places;
                let nodes: Vec<&str> = places.iter().map(|place| place.node.as_str()).collect();
                tracing::info!(route = self.name(route), %address, to = nodes.join(" "), "clients are served");
            }
            Err(error) => {
                let why = error.to_string();
                if self.closed.insert(route, why.clone()).as_ref() != Some(&why) {
                    tracing::error!(
                        route = self.name(route), %address, %error,
                        "cannot listen: end the program that has the port; it is tried again every {LOOK:?}"
                    );
                }
            }
        }
    }

    fn name(&self, route: RouteId) -> &str {
        self.settings.routes[route.0 / 2].name()
    }

    fn reset(&mut self, route: RouteId, group: GroupId, why: Why) {
        self.drains.remove(&group);
        let of_it = self.sessions.iter().filter(|(_, entry)| entry.group == group);
        let ids: Vec<SessionId> = of_it.map(|(id, _)| *id).collect();
        if !ids.is_empty() {
            tracing::info!(route = self.name(route), sessions = ids.len(), ?why, "sessions are reset");
        }
        *self.counts[route.0].resets.entry(why).or_default() += ids.len() as u64;
        self.lanes.iter().for_each(|lane| lane.reset_group(group));
        for id in ids {
            if let Some(Entry { stage: Stage::Connecting { client, task, .. }, .. }) = self.sessions.get(&id)
            {
                task.abort();
                reset_on_close(client);
                self.sessions.remove(&id);
                drop(self.sender.send(Input::Over(id, group)));
            }
        }
    }

    /// Resets drained sessions that are idle, and tries ports again that could not be opened.
    fn look(&mut self) {
        let groups: BTreeSet<GroupId> = self.sessions.values().map(|entry| entry.group).collect();
        self.drains.retain(|group, _| groups.contains(group));
        let mut idle: BTreeMap<usize, BTreeSet<SessionId>> = BTreeMap::new();
        for (group, before) in &mut self.drains {
            let mut seen = BTreeMap::new();
            for (id, entry) in self.sessions.iter().filter(|(_, entry)| entry.group == *group) {
                let Stage::Carried(lane) = entry.stage else { continue };
                let bytes = entry.meter.bytes();
                let answered = entry.meter.answered.load(Ordering::Relaxed);
                let holds = entry.meter.holds.load(Ordering::Relaxed);
                if before.get(id).is_some_and(|before| switch::is_idle(*before, bytes, answered, holds)) {
                    idle.entry(lane).or_default().insert(*id);
                    *self.counts[entry.route.0].resets.entry(Why::Idle).or_default() += 1;
                } else {
                    seen.insert(*id, bytes);
                }
            }
            *before = seen;
        }
        for (lane, ids) in idle {
            self.lanes[lane].reset(ids);
        }
        let routes: Vec<RouteId> = self.closed.keys().copied().collect();
        routes.into_iter().for_each(|route| self.open(route));
    }

    fn snapshot(&self) -> Snapshot {
        let now = now();
        let mut counts = self.counts.clone();
        for entry in self.sessions.values() {
            counts[entry.route.0].from_clients += entry.meter.from_client.load(Ordering::Relaxed);
            counts[entry.route.0].from_servers += entry.meter.from_server.load(Ordering::Relaxed);
        }
        let mut routes = self.switch.routes();
        // Listening is what was done, and not what was decided.
        for (route, door) in routes.iter_mut().zip(&self.doors) {
            route.listening &= door.is_open();
        }
        Snapshot {
            current: self.switch.is_current(now),
            ending: self.switch.is_ending(),
            age_ms: self.switch.age_ms(now),
            routes: routes.into_iter().zip(counts).collect(),
            agents: self.agents.clone(),
        }
    }
}

/// Noun of the command line and name of what a route follows.
pub fn words(followed: &Followed) -> (&'static str, &str) {
    match followed {
        Followed::Service(name) => ("service", name),
        Followed::Resource(name) => ("resource", name),
    }
}

/// Sets what a session needs of both its connections.
fn prepare(stream: &TcpStream, limits: &Limits) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    if limits.keepalive.0 > 0 {
        let silence = Duration::from_millis(limits.keepalive.0);
        let keepalive = TcpKeepalive::new().with_time(silence).with_retries(KEEPALIVE_PROBES);
        socket.set_tcp_keepalive(&keepalive.with_interval((silence / 3).max(Duration::from_secs(1))))?;
    }
    if limits.user_timeout.0 > 0 {
        socket.set_tcp_user_timeout(Some(Duration::from_millis(limits.user_timeout.0)))?;
    }
    Ok(())
}
