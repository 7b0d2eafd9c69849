//! Callers of the API's socket, and their rights (R24).
//!
//! Guarantees
//! - The kernel says which user is at the other end of a connection; nothing that the caller sends
//!   counts.
//! - `root` has every right. Another user has those of the groups that the agent was started with,
//!   and none without such a group.
//! - The groups of a user are asked for when a request comes, and remembered for
//!   [`REMEMBERED`]: a user who leaves a group loses its rights without a restart.
//! - Other users than `root` share [`PLACES`] connections. However many they open, `root` is
//!   served.

use crate::placed::Placed;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use mainstay_types::Access;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// How long the rights of a user are remembered.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Users that are remembered at once.
const USERS_MAX: usize = 256;
/// Connections of users other than `root`.
const PLACES: usize = 64;
/// After a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);
/// `loginuid` of a process that no login has started.
const NO_LOGIN: u32 = u32::MAX;

/// Groups whose members may use the API. `root` may always.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Groups {
    /// Members may look.
    pub read: Option<String>,
    /// Members may operate.
    pub operate: Option<String>,
    /// Members may do everything.
    pub admin: Option<String>,
}

impl Groups {
    fn rights(&self) -> impl Iterator<Item = (Access, &String)> {
        let all =
            [(Access::Admin, &self.admin), (Access::Operate, &self.operate), (Access::Read, &self.read)];
        all.into_iter().filter_map(|(access, name)| Some((access, name.as_ref()?)))
    }

    /// Whether any user but `root` may ask.
    #[must_use]
    pub fn any(&self) -> bool {
        self.rights().next().is_some()
    }

    /// Sentence on how a user gets rights.
    #[must_use]
    pub fn remedy(&self) -> String {
        let groups: Vec<String> =
            self.rights().map(|(access, name)| format!("`{name}` ({access})")).collect();
        if groups.is_empty() {
            return "Run the command as root.".to_owned();
        }
        format!("Run the command as root, or as a member of the group {}.", groups.join(" or "))
    }
}

/// Other end of a connection, as the kernel knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    /// `None` if the process is in another namespace of processes.
    pub pid: Option<i32>,
}

impl Peer {
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// A user or the holder of a token who asks, with its rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Name, or number without one; of a token `token` and its name. No name of a user has a space.
    pub who: String,
    /// User who logged in and then became this one, as `sudo` does. For display: it decides
    /// nothing.
    pub login: Option<String>,
    /// Address of the other machine, for a caller by a token.
    pub from: Option<String>,
    pub access: Option<Access>,
}

/// Rights by user and group id, each with the time when they were looked up.
type Known = HashMap<(u32, u32), (Instant, Option<Access>)>;

/// Finds out the rights of callers.
#[derive(Debug, Default)]
pub struct Callers {
    pub groups: Groups,
    known: Mutex<Known>,
}

impl Callers {
    #[must_use]
    pub fn new(groups: Groups) -> Self {
        Self { groups, known: Mutex::default() }
    }

    /// The caller behind a connection. Asks the machine's user database, which may take long: call
    /// it where waiting is allowed.
    #[must_use]
    pub fn caller(&self, peer: &Peer) -> Caller {
        let who = if peer.is_root() { "root".to_owned() } else { name_of(peer.uid) };
        let access = if peer.is_root() { Some(Access::Admin) } else { self.access(peer) };
        Caller { who, login: login_of(peer), from: None, access }
    }

    fn access(&self, peer: &Peer) -> Option<Access> {
        let key = (peer.uid, peer.gid);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, access)) = known().get(&key)
            && at.elapsed() < REMEMBERED
        {
            return *access;
        }
        let access = self.look_up(peer);
        let mut known = known();
        if known.len() >= USERS_MAX {
            known.clear();
        }
        known.insert(key, (Instant::now(), access));
        access
    }

    fn look_up(&self, peer: &Peer) -> Option<Access> {
        let mut groups = vec![Gid::from_raw(peer.gid)];
        if let Ok(Some(user)) = User::from_uid(Uid::from_raw(peer.uid))
            && let Ok(name) = CString::new(user.name)
        {
            groups.extend(getgrouplist(&name, user.gid).unwrap_or_default());
        }
        let is_in = |name: &str| match Group::from_name(name) {
            Ok(Some(group)) => groups.contains(&group.gid),
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(group = name, %error, "cannot look up a group: its members have no rights");
                false
            }
        };
        self.groups.rights().find(|(_, name)| is_in(name)).map(|(access, _)| access)
    }
}

fn name_of(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => format!("uid {uid}"),
    }
}

/// The user whose login began the caller's session, if that is another one.
fn login_of(peer: &Peer) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{}/loginuid", peer.pid?)).ok()?;
    let uid: u32 = text.trim().parse().ok()?;
    (uid != NO_LOGIN && uid != peer.uid).then(|| name_of(uid))
}

/// The API's socket.
pub struct Socket {
    listener: UnixListener,
    places: Arc<Semaphore>,
}

impl Socket {
    #[must_use]
    pub fn new(listener: UnixListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(PLACES)) }
    }
}

impl Listener for Socket {
    type Io = Placed<UnixStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Placed<UnixStream>, Peer) {
        loop {
            let accepted = self.listener.accept().await;
            let with_peer = accepted.and_then(|(stream, _)| stream.peer_cred().map(|peer| (stream, peer)));
            match with_peer {
                Ok((stream, cred)) => {
                    let peer = Peer { uid: cred.uid(), gid: cred.gid(), pid: cred.pid() };
                    if peer.is_root() {
                        return (Placed::new(stream, None), peer);
                    }
                    // Without a place the connection is closed at once.
                    if let Ok(place) = self.places.clone().try_acquire_owned() {
                        return (Placed::new(stream, Some(place)), peer);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer { uid: Uid::effective().as_raw(), gid: Gid::effective().as_raw(), pid: None })
    }
}

impl Connected<IncomingStream<'_, Socket>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Socket>) -> Self {
        *stream.remote_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of_group(gid: u32) -> String {
        Group::from_gid(Gid::from_raw(gid)).unwrap().expect("every machine has it").name
    }

    #[test]
    fn root_may_do_everything_and_others_what_their_groups_may() {
        let nobody = User::from_name("nobody").unwrap().expect("every machine has it");
        let peer = Peer { uid: nobody.uid.as_raw(), gid: nobody.gid.as_raw(), pid: None };
        let root = Peer { uid: 0, gid: 0, pid: None };
        let closed = Callers::default();
        assert_eq!(closed.caller(&root).access, Some(Access::Admin));
        let caller = closed.caller(&peer);
        assert_eq!((caller.who.as_str(), caller.access), ("nobody", None));
        assert!(!closed.groups.any());

        let group = name_of_group(nobody.gid.as_raw());
        let with = |groups| Callers::new(groups).caller(&peer).access;
        let read = Groups { read: Some(group.clone()), ..Groups::default() };
        assert_eq!(with(read.clone()), Some(Access::Read));
        // The greatest right counts.
        let both = Groups { operate: Some(group.clone()), ..read };
        assert_eq!(with(both), Some(Access::Operate));
        assert_eq!(with(Groups { admin: Some(group), ..Groups::default() }), Some(Access::Admin));
        // The group of root, and one that does not exist, give nothing to others.
        let others = Groups {
            read: Some("no-such-group".into()),
            operate: Some(name_of_group(0)),
            ..Groups::default()
        };
        assert_eq!(with(others), None);
    }

    #[test]
    fn a_process_has_the_rights_of_the_group_that_it_runs_with() {
        let users = name_of_group(0);
        let callers = Callers::new(Groups { operate: Some(users), ..Groups::default() });
        let unknown = Peer { uid: 3_999_999, gid: 0, pid: None };
        let caller = callers.caller(&unknown);
        assert_eq!((caller.who.as_str(), caller.access), ("uid 3999999", Some(Access::Operate)));
        assert_eq!(callers.caller(&Peer { gid: 3_999_999, ..unknown }).access, None);
    }

    #[test]
    fn the_remedy_names_the_groups_that_there_are() {
        assert_eq!(Groups::default().remedy(), "Run the command as root.");
        let groups = Groups { read: Some("dba".into()), ..Groups::default() };
        assert!(groups.any());
        let remedy = groups.remedy();
        assert_eq!(remedy, "Run the command as root, or as a member of the group `dba` (read).");
    }
}
