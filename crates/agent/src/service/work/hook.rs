//! Hooks of an operator about one service: the one before its start, and those for its addresses.
//!
//! Guarantees
//! - The hook before a start runs in the cgroup of the service, and on the footing of a process. So
//!   it does not begin on a node that is being silenced, and guard and silencer end it with the
//!   service (R19).
//! - An address that a hook was told to be here is told to be gone when it is, also by the next
//!   agent. Nothing waits for these hooks.

use super::{KILL_PATIENCE, Work, words};
use crate::clock::wall_ms;
use crate::service::cgroup;
use crate::service::command::{self, ProcessPlan, Role};
use crate::service::footing::Footing;
use crate::service::lane::Haste;
use crate::threads::lock;
use mainstay_control::hooks::{AddressChange, STARTING, of_address, starting};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Name in the place of a process; no process has it.
const HOOK: &str = "_hook";
/// The machine ends the step earlier.
const LIMIT: Duration = Duration::from_secs(60);

impl Work {
    fn hook_cgroup(&self) -> PathBuf {
        self.dirs.role(HOOK, Role::Prepare)
    }

    /// Runs the hook before a start to its end, if there is one.
    pub(super) fn run_start_hook(&self, number: u64) -> Result<(), String> {
        lock(&self.hook_said).clear();
        let Some(hooks) = &self.places.hooks else { return Ok(()) };
        let Some((file, (node, name))) = hooks.before_start() else { return Ok(()) };
        let hook = starting(&self.neighbours.state(), hooks.node(), &self.name, wall_ms());
        let env = hook.environment.into_iter().chain([(node, name.to_owned())]);
        let plan = ProcessPlan {
            name: HOOK.into(),
            command: vec![file.to_string_lossy().into_owned()],
            user: None,
            env: env.map(|(name, value)| (name.to_owned(), value)).collect(),
            output: None,
        };
        let begin = || {
            cgroup::kill(&[self.hook_cgroup()], KILL_PATIENCE).map_err(words)?;
            // The file system is not mounted yet.
            let footing = Footing::of(&self.places.run_dir, None).map_err(words)?;
            command::ask(&self.dirs, &plan, Role::Prepare, footing).map_err(words)
        };
        let revoke = || {
            if let Err(error) = cgroup::kill(&[self.hook_cgroup()], KILL_PATIENCE) {
                tracing::warn!(service = self.name, %error, "a hook that is not wanted any more still runs");
            }
        };
        let asked = self.processes.make(number, begin, revoke)?;
        let wanted = || self.processes.is_newest(number);
        let (code, said) = command::answer(&self.dirs, &plan, asked, LIMIT, &wanted).map_err(words)?;
        if code == 0 {
            *lock(&self.hook_said) = said;
            return Ok(());
        }
        let ended = match code {
            -1 => "a signal ended it".to_owned(),
            code => format!("it ended with exit code {code}"),
        };
        let said = if said.is_empty() { said } else { format!(", its last words: \"{said}\"") };
        Err(format!("{}: {ended}{said}", file.display()))
    }

    /// Ends the hook before a start. `number` is the undo's on [`Work::processes`].
    pub(super) fn end_start_hook(&self, number: u64, patience: Duration) -> Result<(), String> {
        let end = || cgroup::kill(&[self.hook_cgroup()], KILL_PATIENCE).map_err(words);
        self.processes.undo(number, Haste::AtOnce, patience, end)
    }

    /// Tells the last line of the hook, as an event for the operator.
    pub(super) fn hook_said(&self) -> Option<String> {
        let said = lock(&self.hook_said);
        (!said.is_empty()).then(|| format!("hook {STARTING}: {said}"))
    }

    /// Goes on with the addresses that an earlier agent told to be here.
    pub(in crate::service) fn adopt_addresses(&self, told: std::collections::BTreeMap<String, String>) {
        *lock(&self.told_addresses) = told;
    }

    /// Has the hooks run for an address that is here now.
    pub(super) fn address_added(&self, address: &str, interface: &str) {
        if self.places.hooks.is_none() {
            return;
        }
        let before = lock(&self.told_addresses).insert(address.to_owned(), interface.to_owned());
        if before.as_deref() == Some(interface) {
            return;
        }
        self.save(None);
        if let Some(before) = before {
            self.tell_address(address, &before, false);
        }
        self.tell_address(address, interface, true);
    }

    /// Has the hooks run for an address that is gone from here.
    pub(super) fn address_removed(&self, address: &str) {
        let Some(interface) = lock(&self.told_addresses).remove(address) else { return };
        self.save(None);
        self.tell_address(address, &interface, false);
    }

    fn tell_address(&self, address: &str, interface: &str, added: bool) {
        let Some(hooks) = &self.places.hooks else { return };
        let lease_ended = self.killed.load(Ordering::Acquire);
        let change = AddressChange { service: &self.name, address, interface, added, lease_ended };
        hooks.tell(of_address(&self.neighbours.state(), hooks.node(), change, wall_ms()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::made;
    use super::*;
    use crate::hooks::Hooks;
    use crate::service::command::ServiceDirs;
    use crate::service::mount::cgroup2_mount;
    use mainstay_ha::{ServiceSpec, Step};
    use mainstay_types::NodeId;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::time::Instant;

    /// A service of a node with hooks; its cgroup is gone when dropped.
    struct Hooked {
        work: Arc<Work>,
        root: PathBuf,
        dir: tempfile::TempDir,
    }

    impl Hooked {
        /// `None` where cgroups cannot be made.
        fn new(name: &str) -> Option<Self> {
            let root = format!("mainstay-test-{}-hook-{name}", std::process::id());
            let root = cgroup2_mount().map(|mount| mount.join(root))?;
            if std::fs::create_dir_all(&root).is_err() {
                eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
                return None;
            }
            let dir = tempfile::tempdir().expect("a directory");
            let spec = ServiceSpec::parse("name='s'\nresource='db'\n[vip]\naddress='10.9.0.7/24'\n");
            let dirs =
                ServiceDirs { cgroup: root.join("s"), logs: dir.path().join("logs"), log_writer: Vec::new() };
            let mut work = made(dir.path(), &spec.expect("it is right"), dirs);
            work.places.hooks = Some(Hooks::new(dir.path().to_owned(), NodeId(1), "n1".into()));
            Some(Self { work: Arc::new(work), root, dir })
        }

        fn script(&self, script: &str) {
            let file = self.dir.path().join(STARTING);
            std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("set");
        }

        fn run(&self) -> Result<(), String> {
            self.work.run_start_hook(self.work.processes.number())
        }

        fn told(&self) -> Vec<(&'static str, String, String)> {
            let told = self.work.places.hooks.as_ref().expect("hooks").take_told();
            let of = |hook: &mainstay_control::hooks::Hook, name| hook.environment[name].clone();
            let one = |hook| (of(&hook, "MAINSTAY_ADDRESS"), of(&hook, "MAINSTAY_INTERFACE"), hook.stage);
            told.into_iter().map(one).map(|(address, interface, stage)| (stage, address, interface)).collect()
        }
    }

    impl Drop for Hooked {
        fn drop(&mut self) {
            drop(cgroup::kill(std::slice::from_ref(&self.root), Duration::from_secs(5)));
            cgroup::remove(&self.root.join("s"));
            cgroup::remove(&self.root);
        }
    }

    #[test]
    fn a_hook_before_a_start_may_refuse_it_and_is_killed_with_its_service() {
        let Some(hooked) = Hooked::new("start") else { return };
        assert_eq!((hooked.run(), hooked.work.hook_said()), (Ok(()), None), "there is no hook");
        hooked.script("echo $MAINSTAY_STAGE of $MAINSTAY_SERVICE on $MAINSTAY_NODE");
        assert_eq!(hooked.run(), Ok(()));
        let said = hooked.work.stage(Step::StartHook);
        assert_eq!(said.as_deref(), Some("hook service-starting: service-starting of s on n1"));
        hooked.script("echo no licence >&2; exit 3");
        let why = hooked.run().expect_err("it refuses");
        assert!(
            why.ends_with("service-starting: it ended with exit code 3, its last words: \"no licence\""),
            "{why}"
        );
        assert_eq!(hooked.work.hook_said(), None);
        // The kill of the service reaches it, with what it has started, and so does its undo.
        hooked.script("sleep 300 & sleep 300");
        for undo in [false, true] {
            let (work, number) = (Arc::clone(&hooked.work), hooked.work.processes.number());
            let runs = std::thread::spawn(move || work.run_start_hook(number));
            let cgroup = hooked.work.hook_cgroup();
            while cgroup::pids(&cgroup).len() < 3 {
                std::thread::sleep(Duration::from_millis(10));
            }
            let (start, number) = (Instant::now(), hooked.work.processes.number());
            let ended = match undo {
                true => hooked.work.undo(Step::StartHook, Some(number), false, KILL_PATIENCE),
                false => hooked.work.kill(number),
            };
            assert_eq!((ended, cgroup::pids(&cgroup).len()), (Ok(()), 0));
            assert!(runs.join().expect("it ends").is_err() && start.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn an_address_is_told_once_when_it_is_here_and_once_when_it_is_gone() {
        let Some(hooked) = Hooked::new("address") else { return };
        let (address, work) = ("10.9.0.7/24", &hooked.work);
        let told = |stage, interface: &str| (stage, address.to_owned(), interface.to_owned());
        work.address_removed(address);
        assert_eq!(hooked.told(), [], "it was never here");
        work.address_added(address, "eth0");
        work.address_added(address, "eth0");
        assert_eq!(hooked.told(), [told("address-added", "eth0")]);
        work.address_added(address, "eth1");
        assert_eq!(hooked.told(), [told("address-removed", "eth0"), told("address-added", "eth1")]);
        // The next agent goes on from what was noted.
        work.adopt_addresses([(address.to_owned(), "eth1".to_owned())].into());
        work.address_added(address, "eth1");
        work.address_removed(address);
        work.address_removed(address);
        assert_eq!(hooked.told(), [told("address-removed", "eth1")]);
    }
}
