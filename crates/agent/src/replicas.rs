//! The replicas whose files are on this node: where they are, and how the steps of a job are done
//! to them and to the engine. `mainstay_control::reconciler::job` decides which steps, and in which
//! order.
//!
//! Guarantees
//! - A directory named as a replica holds a whole one with its label. It gets that name when both
//!   are durable, and loses it before anything in it is removed. So the remains of a making or a
//!   removing after a crash have names of their own ([`mainstay_pool`]). Only by these names does
//!   the agent remove files when it starts.
//! - A journal that lies elsewhere exists only while a directory in the pool names it, and is
//!   removed before that directory ([`mainstay_pool::journals`]).
//! - Mainstay did not leave a replica's directory without a label. It neither uses, writes nor
//!   removes it. The same holds for a replica that was copied or renamed ([`labels`]), and for one
//!   that this node has not made ([`held`]).
//! - A job runs on a thread of its own: formatting and recovery take as long as they take.

use crate::engine_link::EngineLink;
use crate::held::{self, Held};
use crate::messages::random_u64;
use crate::threads::{lock, spawn};
use mainstay_api::engine::{ContentSource, FileId, Reply, Request};
use mainstay_control::labels::{self, Found, Label, Notice, Stands};
use mainstay_control::origin::{CONTENT, SnapshotOf};
use mainstay_control::reconciler::job::{Ended, Job, Order, Step, StepAnswer, Trouble};
use mainstay_control::scrubs::ScrubTask;
use mainstay_control::snapshots::Keep;
use mainstay_control::state::Resource;
use mainstay_pool::journals::Journals;
use mainstay_pool::{Pool, ROOM_BYTES_MIN, Replica};
use mainstay_types::{Code, Incarnation, Index, Instance, Problem, ResourceId, StoreState};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NOT_OURS: &str = "it belongs to no resource of the cluster, or this node uses another replica instead";
/// Longer between two looks at how far replicas reach, for each replica.
const WATCH_EACH_MS: u64 = 10;
/// Formatting allocates the journal; recovery reads it.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
/// The other requests of the engine that are answered after little work.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Replicas that are stored on this node, shared between the reconciler and the jobs.
pub struct Replicas {
    state_dir: PathBuf,
    pool: Arc<dyn Pool>,
    room: Arc<Room>,
    journals: Journals,
    engine: EngineLink,
    stored: Mutex<BTreeMap<ResourceId, (Label, PathBuf)>>,
    /// Why the last attempt to make a replica failed.
    failures: Mutex<BTreeMap<ResourceId, Problem>>,
    held: Held,
    /// Why open replicas are not in their place any more, as of the last look.
    gone: Mutex<BTreeMap<ResourceId, (Incarnation, String)>>,
    /// Held while a label is written again, and while one is taken away.
    labelling: Mutex<()>,
    /// Number of the pool's storage when the agent started.
    storage: Option<u64>,
    /// Events for the cluster that the reconciler has not taken yet: resource and text.
    events: Mutex<Vec<(String, String)>>,
}

/// A replica that the engine has open.
struct Open {
    label: Label,
    files: BTreeMap<String, FileId>,
}

/// Whether the pool has space, as far as is known.
#[derive(Default)]
struct Room {
    is_there: AtomicBool,
    /// The question is under way.
    asked: AtomicBool,
}

impl Replicas {
    /// Finds what is stored.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn open(state_dir: &Path, journals: Journals, engine: EngineLink) -> io::Result<Self> {
        let pool = mainstay_pool::of_node(state_dir);
        pool.make()?;
        let held = Held::load(state_dir);
        let mut found = labels::sort(pool.scan()?, &held.incarnations());
        held.adopt(found.replicas.iter().map(|(resource, (_, label))| (*resource, label.incarnation)));
        drop(held.save());
        found.keep(|resource, incarnation| held.has(resource, incarnation));
        for (directory, why) in &found.left {
            tracing::warn!(directory = %pool.place().join(directory).display(), "{why}; it is left alone");
        }
        pool.clear()?;
        journals.look(&*pool);
        let place = |(resource, (directory, label)): (ResourceId, (String, Label))| {
            (resource, (label, pool.place().join(directory)))
        };
        Ok(Self {
            state_dir: state_dir.to_path_buf(),
            room: Arc::default(),
            journals,
            engine,
            stored: Mutex::new(found.replicas.into_iter().map(place).collect()),
            failures: Mutex::new(BTreeMap::new()),
            held,
            gone: Mutex::default(),
            labelling: Mutex::default(),
            storage: pool.storage(),
            events: Mutex::default(),
            pool,
        })
    }

    /// Keeps up to date how far the replicas here reach, on a thread, as long as this is in use.
    pub fn watch(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        spawn("agent-held", move || {
            while let Some(replicas) = this.upgrade() {
                let count = replicas.note_held();
                replicas.look_at_places();
                drop(replicas);
                // Many replicas make a long answer, and the engine has other things to do.
                std::thread::sleep(Duration::from_millis(held::UPDATE_MS + WATCH_EACH_MS * count));
            }
        });
    }

    /// Asks the engine how far its replicas reach. Returns how many there are.
    fn note_held(&self) -> u64 {
        if !self.engine.is_connected() {
            return 0;
        }
        let Ok(Reply::Status(status)) = self.engine.request(Request::Status, REQUEST_TIMEOUT) else {
            return 0;
        };
        // The lock is held for all of it: a replica that is dropped meanwhile is to be forgotten
        // after this.
        let stored = lock(&self.stored);
        for replica in &status.replicas {
            let label = stored.get(&replica.resource).map(|(label, _)| label.incarnation);
            let ours = label == Some(replica.incarnation);
            // What is being copied to may begin its log anew, and does not lead before it is whole
            // (R16).
            if ours && replica.data == StoreState::Consistent {
                let index = replica.commit.min(replica.durable);
                self.held.note(replica.resource, replica.incarnation, index);
            }
        }
        drop(stored);
        drop(self.held.save());
        status.replicas.len() as u64
    }

    /// Whether the pool had space, for replicas that had none, when the agent last asked. Asks anew
    /// on a thread of its own, because a file system that hangs answers nothing.
    #[must_use]
    pub fn has_room(&self) -> bool {
        if !self.room.asked.swap(true, Ordering::AcqRel) {
            let (room, pool) = (Arc::clone(&self.room), Arc::clone(&self.pool));
            spawn("agent-room", move || {
                let found = pool.space().is_ok_and(|space| space.available >= ROOM_BYTES_MIN);
                room.is_there.store(found, Ordering::Release);
                room.asked.store(false, Ordering::Release);
            });
        }
        self.room.is_there.load(Ordering::Acquire)
    }

    /// Compares the files that the engine has open with those in the pool, and writes a label again
    /// that was lost under a running replica.
    fn look_at_places(&self) {
        let pool = self.pool.place().to_string_lossy();
        let mut gone = BTreeMap::new();
        for (label, stands) in self.places() {
            let own = labels::directory_name(label.resource, &label.name);
            if let Some(why) = stands.failure(&pool, &own) {
                gone.insert(label.resource, (label.incarnation, why));
            }
            if stands == Stands::Unlabelled {
                self.label_again(&label);
            }
        }
        let mut known = lock(&self.gone);
        for (resource, now) in gone.iter().filter(|(resource, now)| known.get(resource) != Some(now)) {
            tracing::error!(%resource, "{}", now.1);
        }
        *known = gone;
    }

    fn label_again(&self, label: &Label) {
        let _one = lock(&self.labelling);
        // A replica is closed before its label is taken away, so such a label stays away.
        if !self.places().contains(&(label.clone(), Stands::Unlabelled)) {
            return;
        }
        let replica = self.pool.replica_of(label.resource, &label.name);
        let file = replica.label_place();
        match replica.relabel(label) {
            Ok(()) => {
                let text =
                    format!("{} was lost under the running replica, and is written again", file.display());
                tracing::warn!(resource = %label.resource, "{text}");
                lock(&self.events).push((label.name.clone(), text));
            }
            Err(error) => tracing::debug!(file = %file.display(), %error, "cannot write a label again"),
        }
    }

    /// Where each replica stands that the engine has open and this node has stored.
    fn places(&self) -> Vec<(Label, Stands)> {
        let open = self.engine.replicas(|status| Open {
            label: Label {
                resource: status.resource,
                name: status.name.clone(),
                incarnation: status.incarnation,
            },
            files: status.files.clone(),
        });
        let stored = self.stored();
        let ours = |open: &Open| stored.get(&open.label.resource) == Some(&open.label.incarnation);
        let open = open.into_values().filter(|open| !open.files.is_empty() && ours(open));
        let look = |open: &Open| self.pool.look(&open.label, &open.files);
        open.map(|open| (open.label.clone(), labels::stands(&open.label, &look(&open)))).collect()
    }

    /// Why open replicas are not in their place any more.
    #[must_use]
    pub fn gone(&self) -> BTreeMap<ResourceId, String> {
        let stored = self.stored();
        let gone = lock(&self.gone);
        let now =
            gone.iter().filter(|(resource, (incarnation, _))| stored.get(resource) == Some(incarnation));
        now.map(|(resource, (_, why))| (*resource, why.clone())).collect()
    }

    /// Takes the events that have come up, as resource and text.
    #[must_use]
    pub fn take_events(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *lock(&self.events))
    }

    /// Paths of this node that are not as they should be, with what to do. They are looked at now.
    #[must_use]
    pub fn notices(&self) -> BTreeMap<String, Notice> {
        let Ok(found) = self.pool.scan() else { return BTreeMap::new() };
        let pool = self.pool.place();
        let root = pool.to_string_lossy();
        let of_running = self.places().into_iter().filter_map(|(label, stands)| {
            let own = labels::directory_name(label.resource, &label.name);
            let (name, notice) = stands.notice(&root, &own, &serde_json::to_string(&label).ok()?)?;
            Some((name, notice))
        });
        let mut notices: BTreeMap<String, Notice> = self.left(found);
        notices.extend(of_running);
        notices.into_iter().map(|(name, notice)| (pool.join(name).display().to_string(), notice)).collect()
    }

    /// Directories in the pool that are not used, by name.
    fn left(&self, found: Vec<(String, Found)>) -> BTreeMap<String, Notice> {
        let root = self.pool.place().to_string_lossy();
        let mut found = labels::sort(found, &self.held.incarnations());
        found.keep(|resource, incarnation| self.held.has(resource, incarnation));
        let stored = lock(&self.stored);
        let unknown = found.replicas.iter().filter(|(resource, _)| !stored.contains_key(resource));
        let not_ours =
            || Notice { what: format!("is not used: {NOT_OURS}"), remedy: labels::MOVE_OUT.into() };
        let unknown = unknown.map(|(_, (directory, _))| (directory.clone(), not_ours()));
        let left = found.left.iter().map(|(name, why)| (name.clone(), why.notice(&root, name)));
        left.chain(unknown).collect()
    }

    #[must_use]
    pub fn stored(&self) -> BTreeMap<ResourceId, Incarnation> {
        lock(&self.stored).iter().map(|(&resource, (label, _))| (resource, label.incarnation)).collect()
    }

    /// Why replicas could not be made here.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<ResourceId, Problem> {
        lock(&self.failures).clone()
    }

    /// Carries a job out; `wanted` is the resource as the cluster knows it.
    ///
    /// # Errors
    /// The error of the engine or the file system. Why a replica could not be made is also kept in
    /// [`Replicas::failures`].
    pub fn carry_out(
        &self,
        resource: ResourceId,
        wanted: Option<&Resource>,
        order: Order,
    ) -> Result<Ended, Problem> {
        let makes = matches!(order, Order::Make { .. });
        let place = match order {
            Order::Attach(_) | Order::Detach => Some(Self::of_client(resource, wanted)),
            _ => self.place(resource, wanted),
        };
        let Some(place) = place else { return Err(unknown(resource)) };
        let mut job = Job::new(order, || Incarnation(random_u64()));
        let end = loop {
            match job.step() {
                Some(step) => {
                    let result = self.step(&place, wanted, step);
                    job = job.answered(result);
                }
                None => match job.end() {
                    Ok(end) => break end,
                    Err(unfinished) => job = *unfinished,
                },
            }
        };
        let end = end.map_err(|trouble| match trouble {
            Trouble::Step(error) => error,
            Trouble::OtherDisk { found, label } => other_disk(&place.directory, found, label),
        });
        self.keep(place, makes, &end);
        end
    }

    /// Where the files of a replica are, or are to be.
    fn place(&self, resource: ResourceId, wanted: Option<&Resource>) -> Option<Place> {
        let stored = lock(&self.stored).get(&resource).cloned();
        let label = stored.as_ref().map(|(label, _)| label.incarnation);
        let place = |name: String, directory| Place { resource, name, directory, label };
        match (stored, wanted) {
            // The record names it, whatever labels say.
            (_, Some(wanted)) => {
                let replica = self.pool.replica_of(resource, &wanted.name);
                Some(place(wanted.name.clone(), replica.place().to_owned()))
            }
            (Some((label, directory)), None) => Some(place(label.name, directory)),
            (None, None) => None,
        }
    }

    /// Returns the place of a client. It has no files, and its resource may be gone.
    fn of_client(resource: ResourceId, wanted: Option<&Resource>) -> Place {
        let name = wanted.map(|wanted| wanted.name.clone()).unwrap_or_default();
        Place { resource, name, directory: PathBuf::new(), label: None }
    }

    /// Remembers what a job came to.
    fn keep(&self, place: Place, makes: bool, end: &Result<Ended, Problem>) {
        let Place { resource, name, directory, .. } = place;
        match end {
            Ok(Ended::Made(incarnation)) => {
                let label = Label { resource, name, incarnation: *incarnation };
                lock(&self.failures).remove(&resource);
                lock(&self.stored).insert(resource, (label, directory));
            }
            Ok(Ended::Gone) => {
                tracing::warn!(%resource, directory = %directory.display(), "the files of a replica were removed; it is made anew");
                lock(&self.stored).remove(&resource);
            }
            Ok(Ended::Found(incarnation)) => {
                tracing::warn!(%resource, %incarnation, directory = %directory.display(), "the files of a replica were exchanged");
                let label = Label { resource, name, incarnation: *incarnation };
                lock(&self.failures).remove(&resource);
                lock(&self.stored).insert(resource, (label, directory));
            }
            Ok(Ended::Dropped) => {
                lock(&self.stored).remove(&resource);
                // If an operator puts the files back, they are of a history that is over (R11), and
                // count as no replica.
                self.held.forget(resource);
                drop(self.held.save());
                lock(&self.failures).remove(&resource);
                self.engine.forget(resource);
            }
            Ok(Ended::Opened | Ended::Told) => {}
            Err(error) if makes => {
                lock(&self.failures).insert(resource, error.clone());
            }
            Err(_) => {}
        }
    }

    fn step(&self, place: &Place, wanted: Option<&Resource>, step: Step) -> Result<StepAnswer, Problem> {
        let Place { resource, name, directory, label } = place;
        let resource = *resource;
        let replica = self.pool.replica(directory);
        let dir = || directory.to_string_lossy().into_owned();
        let files = |result: io::Result<()>| {
            result.map(|()| StepAnswer::Done).map_err(|error| file_error(directory, &error))
        };
        match step {
            Step::RemoveFiles => files(replica.remove_rests()),
            Step::MakeFiles(..) if replica.is_there() => match replica.label() {
                Found::Label(found) if self.is_own(&found, resource, name) => {
                    Ok(StepAnswer::Holds(found.incarnation))
                }
                found => Err(self.no_label(place, &found, wanted)),
            },
            Step::MakeFiles(..) if self.is_missed(resource, wanted) => Err(self.missed(place)),
            Step::MakeFiles(incarnation, of) => {
                let content = of.map(|of| self.content(of)).transpose()?;
                let wanted = wanted.ok_or_else(|| unknown(resource))?;
                let request = Request::Create {
                    resource,
                    name: name.clone(),
                    volumes: wanted.first_sizes().to_vec(),
                    journal_bytes: wanted.spec.journal_bytes,
                    incarnation,
                    dir: replica.making().to_string_lossy().into_owned(),
                    journal: self.journals.place(directory, incarnation),
                    content,
                };
                self.ask(request, JOB_TIMEOUT)
            }
            Step::WriteLabel(incarnation) => {
                let label = Label { resource, name: name.clone(), incarnation };
                // The replica is on record before it can be found (R27).
                self.held.note(resource, incarnation, Index(0));
                files(self.held.save().and_then(|()| replica.publish(&label)))
            }
            Step::RemoveLabel => {
                let _one = lock(&self.labelling);
                files(self.withdraw(resource, &*replica, *label))
            }
            Step::Look if replica.was_removed() => {
                let same = self.pool.storage() == self.storage;
                if same { Ok(StepAnswer::Gone) } else { Err(other_pool(self.pool.place())) }
            }
            Step::Look => match replica.label() {
                Found::Label(found) if self.is_own(&found, resource, name) => {
                    Ok(if Some(found.incarnation) == *label {
                        StepAnswer::Done
                    } else {
                        StepAnswer::Holds(found.incarnation)
                    })
                }
                found => Err(self.no_label(place, &found, wanted)),
            },
            Step::Open => {
                let held = label.map_or(Index(0), |label| self.held.index(resource, label));
                let (name, incarnation) = (name.clone(), *label);
                self.ask(Request::Open { resource, name, dir: dir(), incarnation, held }, JOB_TIMEOUT)
            }
            Step::Close => match self.ask(Request::Drop { resource }, REQUEST_TIMEOUT) {
                Err(error) if error.code != Code::UnknownResource => Err(error),
                _ => {
                    // The engine's last status names files that it has closed since.
                    self.engine.forget(resource);
                    lock(&self.gone).remove(&resource);
                    Ok(StepAnswer::Done)
                }
            },
            Step::Tell(record) => self.ask(Request::Record { record }, REQUEST_TIMEOUT),
            Step::Demote => self.ask(Request::Demote { resource }, REQUEST_TIMEOUT),
            Step::Grow(volumes) => self.ask(Request::Grow { resource, volumes }, REQUEST_TIMEOUT),
            Step::Snapshots(Keep { snapshots: wanted, mark, to }) => {
                self.ask(Request::Snapshots { resource, wanted, mark, to }, REQUEST_TIMEOUT)
            }
            Step::Scrub(ScrubTask { repair, rate, after }) => {
                self.ask(Request::Scrub { resource, repair, rate, after: Some(after) }, REQUEST_TIMEOUT)
            }
            Step::Attach(record) => {
                let instance = Instance(random_u64().max(1));
                self.ask(
                    Request::AttachClient { name: name.clone(), record: Box::new(record), instance },
                    REQUEST_TIMEOUT,
                )
            }
            Step::Detach => self.ask(Request::DetachClient { resource }, REQUEST_TIMEOUT),
        }
    }

    /// Where the files are of which a replica is to be made.
    fn content(&self, of: SnapshotOf) -> Result<ContentSource, Problem> {
        let stored = lock(&self.stored);
        let (_, directory) = stored.get(&of.resource).ok_or_else(|| unknown(of.resource))?;
        let dir = directory.to_string_lossy().into_owned();
        Ok(ContentSource { dir, snapshot: of.snapshot, name: CONTENT })
    }

    /// Takes a replica's name from it, durably. A replica that no longer has its name is success.
    /// So is a directory that this node has not made, which is left as it is (R27).
    fn withdraw(
        &self,
        resource: ResourceId,
        replica: &dyn Replica,
        label: Option<Incarnation>,
    ) -> io::Result<()> {
        let ours = |found: &Label| {
            found.resource == resource
                && Some(found.incarnation) == label
                && self.held.has(resource, found.incarnation)
        };
        match replica.label() {
            Found::Label(found) if !ours(&found) => {}
            Found::Unreadable(_) => {}
            Found::NoLabel if !replica.is_left() => return replica.settle(),
            Found::Label(_) | Found::NoLabel => return replica.withdraw(),
        }
        tracing::warn!(directory = %replica.place().display(), "this node did not make this directory, and leaves it alone");
        Ok(())
    }

    /// Whether this is the label of a replica that this node has made.
    fn is_own(&self, label: &Label, resource: ResourceId, name: &str) -> bool {
        let named = label.resource == resource && label.name == name;
        named && self.held.has(resource, label.incarnation)
    }

    /// Whether the cluster counts on a replica that this node has made, and that is not there.
    fn is_missed(&self, resource: ResourceId, wanted: Option<&Resource>) -> bool {
        wanted.is_some_and(|wanted| wanted.counts_on(|made| self.held.has(resource, made)).is_some())
    }

    /// Why no new replica is made in the place of one that is missed.
    fn missed(&self, place: &Place) -> Problem {
        let own = labels::directory_name(place.resource, &place.name);
        let renamed = self.pool.scan().unwrap_or_default().into_iter().find_map(|(name, found)| {
            let Found::Label(label) = found else { return None };
            (self.is_own(&label, place.resource, &place.name) && name != own).then_some(name)
        });
        let back = renamed.map_or_else(String::new, |name| {
            let pool = self.pool.place().to_string_lossy();
            format!("; to put it back, run {}", labels::move_back(&pool, &name, &own))
        });
        Problem::new(
            Code::DirectoryGone,
            format!(
                "its directory, {}, is gone from the pool (moved or deleted){back}",
                place.directory.display()
            ),
            "Put the directory back; the agent notices it without a restart.",
        )
    }

    /// Why a directory is not used that is in the place of a replica. Only a label that is lost or
    /// damaged is to be written: another one may be the last that says whose files these are.
    fn no_label(&self, place: &Place, found: &Found, wanted: Option<&Resource>) -> Problem {
        let Place { resource, name, directory, .. } = place;
        let path = directory.display();
        let root = self.pool.place().to_string_lossy();
        let label_place = self.pool.replica(directory).label_place();
        let own = directory.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.state_dir.to_string_lossy();
        let again = format!(
            "To have the replica copied again, move the directory out of the pool: {}",
            labels::move_out(&root, &own, &aside)
        );
        let back = || {
            let known = self.held.incarnations().get(resource).copied();
            let label = known.zip(wanted).map(|(incarnation, wanted)| Label {
                resource: *resource,
                name: wanted.name.clone(),
                incarnation,
            });
            let label = label.and_then(|label| serde_json::to_string(&label).ok());
            label.map_or_else(
                // Without a record of its own the node takes no label for its own (R27).
                || {
                    format!(
                        "The node's record of its replicas, held.json, does not name it any more. {again}"
                    )
                },
                |label| {
                    let command = labels::write_label(&root, &own, &label);
                    format!("To use it, put its label back: {command}. {again}")
                },
            )
        };
        let message = match found {
            Found::Label(label) if label.resource == *resource && label.name == *name => format!(
                "{path} holds incarnation {} of {name}, which this node has not made, or has removed: \
                 it is a copy from another node, or its history may be over. {again}",
                label.incarnation
            ),
            Found::Label(label) => format!(
                "{path} is in the place of a replica, and its label is that of {} (resource {}). {again}",
                label.name, label.resource
            ),
            Found::NoLabel => {
                let label = label_place.file_name().unwrap_or_default().to_string_lossy();
                format!("{path} is named like a replica and has lost its label, {label}. {}", back())
            }
            Found::Unreadable(why) => {
                format!("{} cannot be read: {why}. {}", label_place.display(), back())
            }
        };
        Problem::new(
            Code::NoLabel,
            message,
            "Follow one of these ways; the agent notices it without a restart.",
        )
    }

    fn ask(&self, request: Request, timeout: Duration) -> Result<StepAnswer, Problem> {
        match self.engine.request(request, timeout) {
            Ok(Reply::Opened { incarnation }) => Ok(StepAnswer::Opened(incarnation)),
            Ok(_) => Ok(StepAnswer::Done),
            Err(error) => Err(error.into_problem()),
        }
    }
}

fn other_pool(pool: &Path) -> Problem {
    Problem::new(
        Code::PoolFiles,
        format!("{} is on another file system than when the agent started", pool.display()),
        "Mount the pool's file system again, or restart the agent if this one is the pool now.",
    )
}

/// Where the files of one replica are.
struct Place {
    resource: ResourceId,
    name: String,
    directory: PathBuf,
    /// The incarnation of the label that was found or made; `None` without a label.
    label: Option<Incarnation>,
}

fn unknown(resource: ResourceId) -> Problem {
    Problem::new(Code::UnknownResource, format!("there is no resource {resource} any more"), String::new())
}

fn other_disk(directory: &Path, found: Incarnation, label: Incarnation) -> Problem {
    Problem::new(
        Code::WrongDisk,
        format!("{} holds incarnation {found}, and its label says {label}", directory.display()),
        "Put the right disk back, or remove the directory to have the replica copied again.",
    )
}

/// Whether an error of [`Replicas::carry_out`] is about what is on the disk, or about the disk
/// (R12, R13), and not about an engine that is not ready or does not answer. Only the former is
/// told to the cluster: another member takes over.
#[must_use]
pub fn stays_unusable(error: &Problem) -> bool {
    matches!(
        error.code,
        Code::Corrupt
            | Code::Recover
            | Code::Disk
            | Code::WrongDisk
            | Code::OtherResource
            | Code::OlderCopy
            | Code::NoLabel
            | Code::DirectoryGone
            | Code::JournalMissing
            | Code::WrongJournal
            | Code::VolatileJournal
    )
}

fn file_error(path: &Path, error: &io::Error) -> Problem {
    Problem::new(Code::PoolFiles, format!("{}: {error}", path.display()), "Look at the pool's file system.")
}

#[cfg(test)]
mod tests;
