//! The steps of a start: their order, how long each may take, and their names for the operator.

use crate::spec::ServiceSpec;
use crate::vip::listed;
use serde::{Deserialize, Serialize};

/// How long the address probe may take, in milliseconds.
pub(crate) const PROBE_TIMEOUT_MS: u64 = 5_000;
/// Pause before the machine asks again for an address that another host holds, in milliseconds.
pub(crate) const HELD_ADDRESS_MS: u64 = 2_000;
/// How long the hook before a start may take, in milliseconds.
pub(crate) const START_HOOK_TIMEOUT_MS: u64 = 30_000;
/// How long mounting, including the recovery of the file system's log, may take, in milliseconds.
pub(crate) const MOUNT_TIMEOUT_MS: u64 = 120_000;
/// How long adding or removing an address may take, in milliseconds.
pub(crate) const ADDRESS_TIMEOUT_MS: u64 = 5_000;
/// How long unmounting may take before it is forced, in milliseconds.
pub(crate) const UNMOUNT_TIMEOUT_MS: u64 = 15_000;
/// How long a process may take to vanish after SIGKILL, in milliseconds; also the limit of a forced
/// undo.
pub(crate) const KILL_TIMEOUT_MS: u64 = 10_000;

/// One step of a start. `process` counts within the specification.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Run the operator's hook to its end, which may refuse the start. Undo: kill it.
    StartHook,
    /// Ask whether another node answers for the address. Runs beside the following steps. Done =
    /// none does, or this node has added the address already. An address that is here and that
    /// Mainstay did not add is a failure.
    ProbeAddress,
    /// Make the file system if asked and blank, and mount. Undo: unmount; forced: detach lazily.
    Mount,
    /// Run the process's `prepare` command to its end. Undo: kill it.
    Prepare { process: usize },
    /// Start the process, or adopt it if it runs. Undo: stop signal, then SIGKILL of its cgroup,
    /// done when the cgroup is empty; forced: SIGKILL at once.
    StartProcess { process: usize },
    /// Repeat the readiness test until it succeeds.
    CheckReady { process: usize },
    /// Add the address and announce it. Undo: remove it, if Mainstay has added it.
    AddAddress,
}

impl Step {
    /// Whether a failure is one of the node and its network, and not of the service's programs.
    pub(crate) fn is_of_surroundings(self) -> bool {
        matches!(self, Self::StartHook | Self::ProbeAddress | Self::Mount | Self::AddAddress)
    }
}

impl ServiceSpec {
    /// How long `step` may take, in milliseconds.
    pub(crate) fn timeout_ms(&self, step: Step) -> u64 {
        match step {
            Step::StartHook => START_HOOK_TIMEOUT_MS,
            Step::ProbeAddress => PROBE_TIMEOUT_MS,
            Step::Mount => MOUNT_TIMEOUT_MS,
            Step::AddAddress => ADDRESS_TIMEOUT_MS,
            Step::StartProcess { process } => {
                let pages_s = self.processes[process].pages.as_ref().map_or(0, |pages| pages.timeout_s);
                KILL_TIMEOUT_MS.saturating_add(pages_s.saturating_mul(1000))
            }
            Step::Prepare { process } | Step::CheckReady { process } => {
                self.processes[process].start_timeout_s.saturating_mul(1000)
            }
        }
    }

    /// How long undoing `step` may take before it is forced, in milliseconds.
    pub(crate) fn undo_timeout_ms(&self, step: Step) -> u64 {
        match step {
            Step::ProbeAddress | Step::CheckReady { .. } => 0,
            Step::Mount => UNMOUNT_TIMEOUT_MS,
            Step::AddAddress => ADDRESS_TIMEOUT_MS,
            Step::StartHook | Step::Prepare { .. } => KILL_TIMEOUT_MS,
            Step::StartProcess { process } => {
                self.processes[process].stop_timeout_s.saturating_mul(1000).saturating_add(KILL_TIMEOUT_MS)
            }
        }
    }
}

/// The steps of a start, in order. `hooked`: the node has hooks.
pub(crate) fn steps_of(spec: &ServiceSpec, hooked: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    if hooked {
        steps.push(Step::StartHook);
    }
    if !spec.vips.is_empty() {
        steps.push(Step::ProbeAddress);
    }
    if spec.mount.is_some() {
        steps.push(Step::Mount);
    }
    for (process, described) in spec.processes.iter().enumerate() {
        if !described.prepare.is_empty() {
            steps.push(Step::Prepare { process });
        }
        steps.push(Step::StartProcess { process });
        if described.is_tested() {
            steps.push(Step::CheckReady { process });
        }
    }
    if !spec.vips.is_empty() {
        steps.push(Step::AddAddress);
    }
    steps
}

/// The step in words for the operator.
pub(crate) fn step_words(spec: &ServiceSpec, step: Step) -> String {
    let name = |process: usize| spec.processes[process].name.as_str();
    match step {
        Step::StartHook => "run the hook before the start".into(),
        Step::ProbeAddress => "probe the address".into(),
        Step::Mount => match &spec.mount {
            Some(mount) => format!("mount {}", mount.path),
            None => "mount".into(),
        },
        Step::Prepare { process } => format!("prepare {}", name(process)),
        Step::StartProcess { process } => format!("start {}", name(process)),
        Step::CheckReady { process } => format!("wait until {} is ready", name(process)),
        Step::AddAddress => format!("add address {}", listed(&spec.vips)),
    }
}
