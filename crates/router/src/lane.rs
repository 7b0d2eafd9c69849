//! Threads that copy: each has an epoll instance and its share of the sessions.
//!
//! Guarantees
//! - A session that fails or is told to be reset is closed with a reset on both sides, so that
//!   neither end waits for the other. One that has ended in both directions is closed without.
//! - A busy session lets others have a turn after a bounded number of bytes.
//! - A thread sleeps while none of its sessions moves.

use crate::copy::{Direction, Meter, PIECE_BYTES, Turn, add};
use crate::switch::GroupId;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::SockRef;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Events that are taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// Token of the inbox. Sessions have the numbers below.
const INBOX: u64 = u64::MAX;

/// Number of a session, never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SessionId(pub u64);

/// Two connected, non-blocking connections.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub group: GroupId,
    pub client: TcpStream,
    pub server: TcpStream,
    /// Bytes for the server before those of the client.
    pub header: Vec<u8>,
    pub meter: Arc<Meter>,
}

/// Called with each session that is over, on the lane's thread; must not wait.
pub type OnOver = Box<dyn Fn(SessionId, GroupId) + Send>;

enum Command {
    Carry(Box<Session>),
    Reset(BTreeSet<SessionId>),
    ResetGroup(GroupId),
}

/// A thread that copies. It lasts as long as the process.
#[derive(Clone)]
pub struct Lane {
    inbox: Arc<Inbox>,
}

struct Inbox {
    commands: Mutex<Vec<Command>>,
    wake: EventFd,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Vec<Command>> {
        // The list is whole between any two operations on it.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// # Errors
    /// When the system has no more descriptors or threads.
    pub fn start(on_over: OnOver) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, INBOX))?;
        let inbox = Arc::new(Inbox { commands: Mutex::default(), wake });
        let mut carrier = Carrier {
            epoll,
            inbox: inbox.clone(),
            slots: Vec::new(),
            free: Vec::new(),
            more: VecDeque::new(),
            passage: vec![0; PIECE_BYTES].into_boxed_slice(),
            on_over,
        };
        thread::Builder::new().name("router-lane".into()).spawn(move || carrier.run())?;
        Ok(Self { inbox })
    }

    /// Copies for this session from now on.
    pub fn carry(&self, session: Session) {
        self.tell(Command::Carry(Box::new(session)));
    }

    /// Resets those of these sessions that it carries.
    pub fn reset(&self, ids: BTreeSet<SessionId>) {
        self.tell(Command::Reset(ids));
    }

    pub fn reset_group(&self, group: GroupId) {
        self.tell(Command::ResetGroup(group));
    }

    fn tell(&self, command: Command) {
        self.inbox.lock().push(command);
        // This fails only if the counter is full, and then the lane is awake already.
        let _ = self.inbox.wake.write(1);
    }
}

/// A session on its lane.
struct Slot {
    session: Session,
    up: Direction,
    down: Direction,
}

struct Carrier {
    epoll: Epoll,
    inbox: Arc<Inbox>,
    slots: Vec<Option<Box<Slot>>>,
    free: Vec<usize>,
    /// Directions that could go on and let others have a turn: the slot, and whether it is the
    /// client's direction.
    more: VecDeque<(usize, bool)>,
    passage: Box<[u8]>,
    on_over: OnOver,
}

impl Carrier {
    fn run(&mut self) {
        let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
        loop {
            let timeout = if self.more.is_empty() { EpollTimeout::NONE } else { EpollTimeout::ZERO };
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "a thread of the router cannot wait for its sessions");
                    thread::sleep(Duration::from_secs(1));
                    continue;
                }
            };
            for event in &events[..count] {
                match event.data() {
                    INBOX => self.take_commands(),
                    token => self.moves(token, event.events()),
                }
            }
            for _ in 0..self.more.len() {
                if let Some((at, up)) = self.more.pop_front() {
                    self.goes_on(at, up);
                }
            }
        }
    }

    fn take_commands(&mut self) {
        let _ = self.inbox.wake.read();
        let commands = std::mem::take(&mut *self.inbox.lock());
        for command in commands {
            match command {
                Command::Carry(session) => self.carry(*session),
                Command::Reset(ids) => self.reset_all(|session| ids.contains(&session.id)),
                Command::ResetGroup(group) => self.reset_all(|session| session.group == group),
            }
        }
    }

    fn carry(&mut self, mut session: Session) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let token = at as u64 * 2;
        let added = self.epoll.add(&session.client, EpollEvent::new(flags, token));
        let added = added.and_then(|()| self.epoll.add(&session.server, EpollEvent::new(flags, token + 1)));
        let up = Direction::beginning_with(std::mem::take(&mut session.header));
        self.slots[at] = Some(Box::new(Slot { session, up, down: Direction::default() }));
        if let Err(error) = added {
            tracing::warn!(%error, "a session cannot be carried: it is reset");
            self.end(at, true);
        }
    }

    fn reset_all(&mut self, wanted: impl Fn(&Session) -> bool) {
        for at in 0..self.slots.len() {
            if self.slots[at].as_ref().is_some_and(|slot| wanted(&slot.session)) {
                self.end(at, true);
            }
        }
    }

    /// A connection has bytes, or room for some. A session that has taken the slot of one that was
    /// reported has a turn too many, which changes nothing.
    fn moves(&mut self, token: u64, flags: EpollFlags) {
        let (at, is_client) = ((token / 2) as usize, token.is_multiple_of(2));
        let closing = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        let (from_here, to_here) =
            if is_client { (&mut slot.up, &slot.down) } else { (&mut slot.down, &slot.up) };
        from_here.closing |= flags.intersects(closing);
        let writes = flags.contains(EpollFlags::EPOLLOUT) && to_here.holds();
        // A direction that is over reads no more, so it would not see the error.
        if flags.contains(EpollFlags::EPOLLERR) && from_here.is_over() {
            return self.end(at, true);
        }
        if flags.intersects(EpollFlags::EPOLLIN | closing) {
            self.copy(at, is_client);
        }
        if writes {
            self.copy(at, !is_client);
        }
    }

    fn goes_on(&mut self, at: usize, up: bool) {
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) {
            if up {
                slot.up.queued = false
            } else {
                slot.down.queued = false
            }
            self.copy(at, up);
        }
    }

    fn copy(&mut self, at: usize, up: bool) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        let Slot { session: Session { client, server, meter, .. }, up: sent, down: received } = &mut **slot;
        let turn = if up {
            sent.copy(client, server, &mut self.passage, |bytes| {
                add(&meter.from_client, bytes);
                meter.answered.store(false, Ordering::Relaxed);
            })
        } else {
            received.copy(server, client, &mut self.passage, |bytes| {
                add(&meter.from_server, bytes);
                meter.answered.store(true, Ordering::Relaxed);
            })
        };
        meter.holds.store(sent.holds() || received.holds(), Ordering::Relaxed);
        match turn {
            Ok(Turn::Waits) => {}
            Ok(Turn::HasMore) => {
                let direction = if up { sent } else { received };
                if !std::mem::replace(&mut direction.queued, true) {
                    self.more.push_back((at, up));
                }
            }
            Ok(Turn::Over) if sent.is_over() && received.is_over() => self.end(at, false),
            Ok(Turn::Over) => {}
            Err(_) => self.end(at, true),
        }
    }

    fn end(&mut self, at: usize, reset: bool) {
        let Some(slot) = self.slots[at].take() else { return };
        self.free.push(at);
        let Session { id, group, client, server, .. } = slot.session;
        for stream in [client, server] {
            if reset {
                reset_on_close(&stream);
            }
            // Closing takes it out of the epoll instance.
            drop(stream);
        }
        (self.on_over)(id, group);
    }
}

/// Makes the close of this connection a reset.
pub fn reset_on_close(stream: &TcpStream) {
    // This fails only for a connection that is gone already.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
