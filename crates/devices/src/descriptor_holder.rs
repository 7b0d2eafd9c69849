//! Descriptors that have to outlive the engine. They make its devices hang when it dies; the
//! devices fail only after their users were killed.
//!
//! The kernel ends a FUSE connection with the last descriptor of its `/dev/fuse`, and a loop device
//! with its last user. The engine hands duplicates of them to the agent, which holds them for as
//! long as the engine lives and does nothing with them.
//!
//! ```text
//!   engine, device thread                 agent, a thread per engine
//!   KEEP resource + descriptor ─────────▶ held
//!   RELEASE resource ───────────────────▶ closed
//!                    ◀────────── RELEASED
//!   (dies) ────────────────────── the end ▶ the users of all that is held are killed, then it is closed
//!
//!   LEAVE until ────────────────────────▶ held for a successor
//!                    ◀────────────── LEFT
//!   (ends) ────────────────────── the end ▶ at `until`, unless taken: as for an engine that died
//!   the next one: TAKE ─────────────────▶ held for that one from now on
//!       ◀── GIVEN resource + descriptor …, END
//! ```
//!
//! Guarantees:
//! - A descriptor that was handed over is held from the moment it was sent: until the agent takes
//!   it, the kernel keeps it in the socket.
//! - When the engine ends, SIGKILL is sent to the services on every resource of which something is
//!   held ([`Users`]). Only then is anything closed, FUSE before the loop devices over it, whose
//!   last user would otherwise wait for an answer.
//! - A descriptor that the engine releases is closed, and no service is killed: the engine has seen
//!   to that before it withdraws a device.
//! - What an engine has left for a successor is given to one engine, and before `until`. That is
//!   when the guard of the node would act: so the users are killed before the lease ends (R19).
//! - An agent that does not answer holds up the device thread for [`ANSWER_WAIT`] at most, and no
//!   other thread.
//!
//! Not guaranteed: anything while there is no agent. A restarted one is handed
//! everything again when it has said hello.

use crate::Fd;
use crate::clock::boot_now;
use crate::users::Users;
use mainstay_types::{ResourceId, Time};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Below the run directory.
const SOCKET: &str = "keeper.sock";
/// How long the engine waits for the agent to take or to release something.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Engines that are served at once: the present one, and those before it whose end is being dealt
/// with.
const BACKLOG: i32 = 8;

const KEEP: u8 = 1;
const RELEASE: u8 = 2;
const RELEASED: u8 = 3;
/// Says a time instead of a resource.
const LEAVE: u8 = 4;
const LEFT: u8 = 5;
const TAKE: u8 = 6;
const GIVEN: u8 = 7;
const END: u8 = 8;
/// In place of a resource where none is meant.
const NONE: ResourceId = ResourceId(0);

/// Descriptors of the devices of each resource, in the order in which they were handed over.
type Kept<F> = BTreeMap<ResourceId, Vec<F>>;

/// One packet: what is said, and of which resource.
const PACKET_BYTES: usize = 9;

fn packet(kind: u8, resource: ResourceId) -> [u8; PACKET_BYTES] {
    let mut bytes = [kind; PACKET_BYTES];
    bytes[1..].copy_from_slice(&resource.0.to_le_bytes());
    bytes
}

fn parse(bytes: [u8; PACKET_BYTES]) -> (u8, ResourceId) {
    let [kind, resource @ ..] = bytes;
    (kind, ResourceId(u64::from_le_bytes(resource)))
}

fn send(link: &OwnedFd, kind: u8, resource: ResourceId, file: Option<&Fd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let bytes = packet(kind, resource);
    sendmsg(link, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next packet, and what came with it; `None` at the end.
fn receive(link: &OwnedFd) -> io::Result<Option<(u8, ResourceId, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; PACKET_BYTES];
    let received = recvmsg(link, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            files.extend(found);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        tracing::error!("too many open files: a device is not kept, and fails if its engine dies");
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let (kind, resource) = parse(bytes);
    Ok(Some((kind, resource, files)))
}

/// The engine's side, on the device thread.
pub struct DescriptorHolder {
    socket: PathBuf,
    kept: Kept<Fd>,
    link: Option<OwnedFd>,
}

impl DescriptorHolder {
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(SOCKET), kept: BTreeMap::new(), link: None }
    }

    /// The holder of an engine that is the successor of another one, and what that one has left:
    /// for each resource the connection of its devices, and then the devices by volume.
    ///
    /// # Errors
    /// When no agent answers. Then nothing was taken.
    pub fn taking_over(run_dir: &Path) -> io::Result<(Self, Kept<Fd>)> {
        let mut holder = Self::new(run_dir);
        let link = holder.hand_over()?;
        send(&link, TAKE, NONE, None)?;
        let end = Instant::now() + ANSWER_WAIT;
        while Instant::now() < end {
            match receive(&link)? {
                Some((GIVEN, resource, files)) => {
                    holder.kept.entry(resource).or_default().extend(files.into_iter().map(Arc::new));
                }
                Some((END, ..)) => {
                    holder.link = Some(link);
                    let kept = holder.kept.clone();
                    return Ok((holder, kept));
                }
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Leaves everything that is held to a successor, which may come until that time. This engine
    /// ends now.
    ///
    /// # Errors
    /// When no agent holds it for one.
    pub fn leave(&mut self, until: Time) -> io::Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let link = self.link.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        asked(link, (LEAVE, ResourceId(until.0)), (LEFT, ResourceId(until.0)))
    }

    /// Has a descriptor held from now on; one that is held already is not sent again.
    pub fn keep(&mut self, resource: ResourceId, file: Fd) {
        let files = self.kept.entry(resource).or_default();
        if files.iter().any(|known| Arc::ptr_eq(known, &file)) {
            return;
        }
        files.push(Arc::clone(&file));
        match self.link.as_ref().map(|link| send(link, KEEP, resource, Some(&file))) {
            Some(Ok(())) => {}
            // It stands still. To close the link would mean that this engine has died.
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                tracing::warn!(%resource, "the agent does not take a device to keep");
            }
            Some(Err(_)) | None => {
                self.link = None;
                self.connect();
            }
        }
    }

    /// An agent has said hello, which may be another process than before.
    pub fn again(&mut self) {
        let Some(before) = self.link.take() else { return self.connect() };
        self.connect();
        if self.link.is_none() && !self.kept.is_empty() {
            // The agent at the other end holds what it was given. If this link closed, the agent
            // would take this engine for dead.
            self.link = Some(before);
            return;
        }
        for resource in self.kept.keys() {
            // The process before is gone, or this one, which holds everything twice now.
            let _ = send(&before, RELEASE, *resource, None);
        }
    }

    /// Ends the keeping of all descriptors of a resource. Returns when the agent has confirmed it,
    /// or has not answered in time.
    pub fn release(&mut self, resource: ResourceId) {
        if self.kept.remove(&resource).is_none() {
            return;
        }
        let Some(link) = &self.link else { return };
        if let Err(error) = asked(link, (RELEASE, resource), (RELEASED, resource)) {
            tracing::debug!(%resource, %error, "no connection says that a device is kept no more");
        }
    }

    /// Connects to the agent that listens now, and hands everything over to it.
    fn connect(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        match self.hand_over() {
            Ok(link) => self.link = Some(link),
            Err(error) => {
                tracing::warn!(socket = %self.socket.display(), %error, "no agent keeps the devices: until one has connected they fail if this engine dies");
            }
        }
    }

    fn hand_over(&self) -> io::Result<OwnedFd> {
        let link = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&link, direction, Some(ANSWER_WAIT))?;
        }
        connect(&link, &SocketAddrUnix::new(&self.socket)?)?;
        let all =
            self.kept.iter().flat_map(|(resource, files)| files.iter().map(move |file| (*resource, file)));
        for (resource, file) in all {
            match send(&link, KEEP, resource, Some(file)) {
                Ok(()) => {}
                // As in `keep`: the agent must not let go of what it has taken so far.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tracing::warn!(%resource, "the agent does not take all devices to keep");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(link)
    }
}

fn asked(link: &OwnedFd, question: (u8, ResourceId), answer: (u8, ResourceId)) -> io::Result<()> {
    send(link, question.0, question.1, None)?;
    let end = Instant::now() + ANSWER_WAIT;
    while Instant::now() < end {
        match receive(link)? {
            Some((kind, of, _)) if (kind, of) == answer => return Ok(()),
            // The answer to an earlier one, which came too late.
            Some(_) => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Descriptors that an engine has left for its successor.
#[derive(Default)]
struct Left {
    slot: Mutex<Slot>,
    taken: Condvar,
}

#[derive(Default)]
struct Slot {
    held: Kept<OwnedFd>,
    until: Time,
}

impl Left {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what an engine before has left and none has taken.
    #[must_use]
    fn put(&self, held: Kept<OwnedFd>, until: Time) -> Kept<OwnedFd> {
        std::mem::replace(&mut *self.slot(), Slot { held, until }).held
    }

    /// Takes everything that a successor may have at this moment.
    fn take(&self) -> Kept<OwnedFd> {
        let mut slot = self.slot();
        if boot_now() >= slot.until {
            return Kept::new();
        }
        self.taken.notify_all();
        std::mem::take(&mut slot.held)
    }

    /// Waits until a successor has taken everything. Returns what none has taken in time.
    fn wait(&self, until: Time) -> Kept<OwnedFd> {
        let mut slot = self.slot();
        loop {
            let now = boot_now();
            if slot.until != until || slot.held.is_empty() {
                return Kept::new();
            }
            if now >= until {
                return std::mem::take(&mut slot.held);
            }
            let pause = Duration::from_micros(until.0 - now.0);
            let waited = self.taken.wait_timeout(slot, pause);
            (slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The agent's side: holds what engines hand over for as long as this process lives, on threads of
/// its own.
///
/// # Errors
/// When the socket cannot be made.
pub fn start(run_dir: &Path) -> io::Result<()> {
    let listener = listen_at(&run_dir.join(SOCKET))?;
    let (users, left) = (Users::new(run_dir), Arc::new(Left::default()));
    thread::Builder::new().name("holder".into()).spawn(move || {
        loop {
            match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(link) => {
                    let (users, left) = (users.clone(), Arc::clone(&left));
                    let held = thread::Builder::new().name("kept".into());
                    let held = held.spawn(move || hold(&link, &users, &left));
                    if let Err(error) = held {
                        tracing::error!(%error, "cannot keep the devices of an engine");
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an engine's devices");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    })?;
    Ok(())
}

fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    // Made under another name, so that no engine finds the socket before its permissions are right.
    let fresh = path.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    bind(&listener, &SocketAddrUnix::new(&fresh)?)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
    listen(&listener, BACKLOG)?;
    fs::rename(&fresh, path)?;
    Ok(listener)
}

/// Holds what one engine hands over, until its end.
fn hold(link: &OwnedFd, users: &Users, left: &Left) {
    let mut held: Kept<OwnedFd> = Kept::new();
    let mut leaves = None;
    loop {
        match receive(link) {
            Ok(Some((KEEP, resource, files))) => held.entry(resource).or_default().extend(files),
            Ok(Some((RELEASE, resource, _))) => {
                held.remove(&resource);
                // If the engine has ended meanwhile it needs no answer, and its end shows next.
                let _ = send(link, RELEASED, resource, None);
            }
            Ok(Some((LEAVE, ResourceId(until), _))) => {
                tracing::info!(resources = held.len(), "the engine leaves its devices to a successor");
                end(left.put(std::mem::take(&mut held), Time(until)), users);
                leaves = Some(Time(until));
                let _ = send(link, LEFT, ResourceId(until), None);
            }
            Ok(Some((TAKE, ..))) => {
                held = left.take();
                tracing::info!(resources = held.len(), "a successor takes the devices of the engine before");
                give(link, &held);
            }
            Ok(Some(_)) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) | Err(_) => break,
        }
    }
    end(held, users);
    if let Some(until) = leaves {
        end(left.wait(until), users);
    }
}

fn give(link: &OwnedFd, held: &Kept<OwnedFd>) {
    let files = held.iter().flat_map(|(resource, files)| files.iter().map(move |file| (*resource, file)));
    let mut given = Ok(());
    for (resource, file) in files {
        let file = file.try_clone().map(Arc::new);
        given = given.and(file.and_then(|file| send(link, GIVEN, resource, Some(&file))));
    }
    // An engine that is not told of the end takes nothing, and what it was given is held until it
    // ends.
    if let Err(error) = given.and_then(|()| send(link, END, NONE, None)) {
        tracing::error!(%error, "cannot give the devices of the engine before to its successor");
    }
}

/// No engine serves these any more.
fn end(held: Kept<OwnedFd>, users: &Users) {
    for resource in held.keys() {
        tracing::warn!(%resource, "the engine has ended: its device hangs until its users are killed, and then fails");
        users.kill(*resource);
    }
    for file in held.into_values().flatten() {
        drop(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::engine::GuardEntry;
    use std::io::Read;
    use std::sync::mpsc;

    const R: ResourceId = ResourceId(7);

    /// A run directory whose agent keeps what it is given, with a service on the resource. Its
    /// cgroup is a directory, in which what is written stays to be seen.
    struct Lab {
        dir: PathBuf,
        killed: PathBuf,
    }

    impl Lab {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("mainstay-keeper-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            let cgroup = dir.join("cgroup");
            fs::create_dir_all(&cgroup).expect("a directory");
            let cgroups = vec![cgroup.to_str().expect("text").into()];
            let entry = GuardEntry { resource: R, cgroups, ..GuardEntry::default() };
            Users::new(&dir).note(&[entry]).expect("noted");
            Self { killed: cgroup.join("cgroup.kill"), dir }
        }

        fn with_agent(name: &str) -> Self {
            let lab = Self::new(name);
            start(&lab.dir).expect("an agent");
            lab
        }

        fn killed(&self) -> bool {
            self.killed.exists()
        }
    }

    impl Drop for Lab {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    /// Stands for a device: it is there until every duplicate of the descriptor is closed. Then it
    /// tells whether a service had been killed by then.
    struct Device {
        file: Option<Fd>,
        ended: mpsc::Receiver<bool>,
    }

    impl Device {
        fn new(lab: &Lab) -> Self {
            let (mut reader, writer) = io::pipe().expect("a pipe");
            let file: Fd = Arc::new(OwnedFd::from(writer));
            let (tell, ended) = mpsc::channel();
            let killed = lab.killed.clone();
            thread::spawn(move || {
                let end = reader.read(&mut [0]).expect("the end");
                assert_eq!(end, 0);
                let _ = tell.send(killed.exists());
            });
            Self { file: Some(file), ended }
        }

        fn file(&self) -> Fd {
            Arc::clone(self.file.as_ref().expect("not closed by its engine"))
        }

        /// The engine's own descriptor is closed.
        fn close(&mut self) {
            self.file = None;
        }

        fn is_there(&self) -> bool {
            self.ended.recv_timeout(Duration::from_millis(100)).is_err()
        }

        /// Whether a service had been killed when it ended.
        fn ended_after_a_kill(&self) -> bool {
            self.ended.recv_timeout(Duration::from_secs(10)).expect("it ends")
        }
    }

    #[test]
    fn when_the_engine_ends_users_are_killed_before_anything_is_closed() {
        let lab = Lab::with_agent("death");
        let mut device = Device::new(&lab);
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, device.file());
        holder.keep(R, device.file());
        assert_eq!(holder.kept[&R].len(), 1);
        assert!(device.is_there() && !lab.killed());
        device.close();
        // As the kernel does with all that a killed engine had open, the link first.
        let DescriptorHolder { link, kept, .. } = holder;
        drop(kept);
        assert!(device.is_there() && !lab.killed(), "the agent holds it");
        drop(link);
        assert!(device.ended_after_a_kill());
    }

    #[test]
    fn a_sent_descriptor_is_held_before_the_agent_takes_it() {
        let lab = Lab::new("sent");
        let listener = listen_at(&lab.dir.join(SOCKET)).expect("a socket");
        let mut device = Device::new(&lab);
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, device.file());
        device.close();
        drop(holder);
        assert!(device.is_there(), "an agent that stands still");
        let link = accept_with(&listener, SocketFlags::CLOEXEC).expect("it goes on");
        hold(&link, &Users::new(&lab.dir), &Left::default());
        assert!(device.ended_after_a_kill());
    }

    #[test]
    fn a_released_descriptor_is_closed_and_no_service_is_killed() {
        let lab = Lab::with_agent("release");
        let (mut first, mut second) = (Device::new(&lab), Device::new(&lab));
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, first.file());
        holder.keep(ResourceId(8), second.file());
        first.close();
        second.close();
        holder.release(R);
        assert!(!first.ended_after_a_kill() && second.is_there());
        drop(holder);
        assert!(!second.ended_after_a_kill(), "no service on that one");
        assert!(!lab.killed());
    }

    #[test]
    fn a_restarted_agent_is_handed_every_descriptor_and_no_service_is_killed() {
        let lab = Lab::new("restart");
        let mut device = Device::new(&lab);
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, device.file());
        assert!(holder.link.is_none(), "there is no agent");
        start(&lab.dir).expect("an agent");
        holder.again();
        // The same one has lost its connection to the engine, and says hello again.
        holder.again();
        device.close();
        holder.kept.values_mut().for_each(Vec::clear);
        assert!(device.is_there() && !lab.killed());
        drop(holder);
        assert!(device.ended_after_a_kill());
    }

    /// To the agent, the end of a link means that this engine has died.
    #[test]
    fn a_link_is_not_given_up_while_there_can_be_no_other() {
        let lab = Lab::with_agent("gone");
        let mut device = Device::new(&lab);
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, device.file());
        fs::remove_file(lab.dir.join(SOCKET)).expect("removed");
        holder.again();
        device.close();
        holder.kept.values_mut().for_each(Vec::clear);
        assert!(device.is_there() && !lab.killed());
    }

    /// More than the socket has room for: what was taken stays held.
    #[test]
    fn an_agent_that_takes_only_some_descriptors_keeps_those() {
        let lab = Lab::new("some");
        let listener = listen_at(&lab.dir.join(SOCKET)).expect("a socket");
        let device = Device::new(&lab);
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.kept = (0..600).map(|number| (ResourceId(number), vec![device.file()])).collect();
        holder.connect();
        assert!(holder.link.is_some());
        let link = accept_with(&listener, SocketFlags::CLOEXEC).expect("it goes on");
        assert!(matches!(receive(&link), Ok(Some((KEEP, ..)))));
    }

    #[test]
    fn an_agent_that_does_not_answer_is_not_waited_for_for_long() {
        let lab = Lab::new("deaf");
        let _listener = listen_at(&lab.dir.join(SOCKET)).expect("a socket");
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, Device::new(&lab).file());
        let start = Instant::now();
        holder.release(R);
        assert!(start.elapsed() >= ANSWER_WAIT && start.elapsed() < ANSWER_WAIT * 3);
    }

    /// R19: the users are killed at the time that the engine has named, before anything is closed.
    #[test]
    fn devices_are_held_for_a_successor_until_a_time_and_then_fail_after_a_kill() {
        let lab = Lab::with_agent("late");
        let mut device = Device::new(&lab);
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, device.file());
        let until = boot_now().plus_ms(400);
        holder.leave(until).expect("an agent holds it");
        device.close();
        drop(holder);
        assert!(device.is_there() && !lab.killed(), "it is held for a successor");
        assert!(device.ended_after_a_kill() && boot_now() >= until);
        let (_, taken) = DescriptorHolder::taking_over(&lab.dir).expect("an agent");
        assert!(taken.is_empty(), "too late");
    }

    #[test]
    fn a_successor_takes_the_devices_once_and_no_service_is_killed() {
        let lab = Lab::with_agent("successor");
        let mut device = Device::new(&lab);
        let mut holder = DescriptorHolder::new(&lab.dir);
        holder.keep(R, device.file());
        holder.leave(boot_now().plus_ms(300)).expect("an agent holds it");
        device.close();
        drop(holder);
        let (mut next, taken) = DescriptorHolder::taking_over(&lab.dir).expect("an agent");
        assert_eq!(taken[&R].len(), 1);
        let (third, none) = DescriptorHolder::taking_over(&lab.dir).expect("an agent");
        assert!(none.is_empty(), "it was taken");
        drop(third);
        thread::sleep(Duration::from_millis(400));
        assert!(device.is_there() && !lab.killed(), "the successor has it");
        // A restarted agent is handed it again.
        next.again();
        drop(taken);
        assert!(device.is_there() && !lab.killed());
        drop(next);
        assert!(device.ended_after_a_kill(), "a successor that dies is an engine that dies");
    }
}
