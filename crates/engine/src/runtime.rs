//! The engine process: its threads and how they hear of each other.
//!
//! The shard has the main thread. The guard, the devices, the lifecycle of replicas and the agent's
//! socket have threads of their own, which reach the shard through one channel and the ring's
//! waker.

use crate::buffer::BufferPool;
use crate::devices::DeviceAdmin;
use crate::disk::SnapshotJob;
use crate::frontend::nbd::{NbdServer, ServerError};
use crate::frontend::{self, ChoiceError};
use crate::guard::{Guard, GuardEnder, GuardNotice};
use crate::ipc::{IpcMessage, IpcServer};
use crate::lease_file::{self, LeaseFile};
use crate::left_devices::LeftDevices;
use crate::lifecycle::Lifecycle;
use crate::options::EngineOptions;
use crate::ring::{Ring, RingError, Spin, now};
use crate::shard::{Inbound, Parts, Shard, Successor};
use crate::signals;
use crate::silencer;
use crate::watchdog::WatchdogThread;
use mainstay_devices::descriptor_holder::DescriptorHolder;
use mainstay_devices::succession::Succession;
use mainstay_devices::supervisor;
use mainstay_devices::users::Users;
use mainstay_types::FrontendKind;
use std::convert::Infallible;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use thiserror::Error;

/// Why an engine cannot run.
#[derive(Debug, Error)]
pub enum EngineError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Device(#[from] ChoiceError),
    #[error(transparent)]
    Nbd(#[from] ServerError),
    #[error("{what}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
}

fn failed<T>(what: impl Into<String>, result: io::Result<T>) -> Result<T, EngineError> {
    result.map_err(|source| EngineError::System { what: what.into(), source })
}

/// How long an engine that was told to end waits until this node is silent.
const END_PATIENCE: Duration = Duration::from_secs(8);
/// How long an engine whose successor comes waits until it has left its devices. Users of devices
/// wait as long.
const LEAVE_PATIENCE: Duration = Duration::from_millis(1500);
/// How long the agent has then to hear of it.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Runs the engine for as long as the process lives.
pub fn run(options: EngineOptions) -> Result<Infallible, EngineError> {
    let run_dir = &options.run_dir;
    failed(format!("cannot make {}", run_dir.display()), std::fs::create_dir_all(run_dir))?;
    let (mut noted, mut presence, mut known) = (None, None, Vec::new());
    if options.stands_alone {
        // Before there are other threads: they inherit that these signals wait.
        signals::block();
        presence = Some(failed("cannot say that there is an engine", silencer::engine_is_here(run_dir))?);
        noted = Some(failed("cannot note the lease", LeaseFile::open(run_dir))?);
        if !lease_file::is_in_memory(run_dir) {
            tracing::warn!(
                run_dir = %run_dir.display(),
                "the run directory is on a disk: the guard waits for that disk if it hangs; use a tmpfs, for example below /run"
            );
        }
        // A list that cannot be read is the silencer's, which looks again.
        known = silencer::targets_of(&Users::new(run_dir)).map(|(targets, _)| targets).unwrap_or_default();
    }
    let (holder, mut left) = take_left(&options);
    clear_stale_mounts(&options, &left);
    let choice = frontend::choose(options.device, frontend::probe)?;
    match choice.kind {
        Some(kind) => tracing::info!(device = %kind, reason = choice.reason, "frontend chosen"),
        None => {
            tracing::error!(reason = choice.reason, "no frontend can be used here: resources get no devices")
        }
    }
    let mut ring = Ring::new()?;
    if options.poll {
        let spin = Spin::while_idle();
        tracing::info!(
            polls = spin.polls(),
            "before it sleeps the shard polls while processors are idle, if there are enough"
        );
        ring.set_spin(spin);
    }
    let pool = BufferPool::new(options.idle_memory_bytes);
    let nbd = if choice.kind == Some(FrontendKind::Nbd) {
        Some(NbdServer::new(pool.clone(), &frontend::nbd_socket(run_dir), options.nbd_network.clone())?)
    } else {
        if let Some(network) = &options.nbd_network {
            tracing::warn!(addr = %network.addr, "the engine does not listen for NBD clients: the device is not nbd");
        }
        None
    };
    let (sender, inbox) = mpsc::channel();
    let waker = ring.waker();
    let tell = move |inbound| {
        // Fails only while the process ends.
        if sender.send(inbound).is_ok() {
            waker.wake();
        }
    };

    let to_shard = tell.clone();
    let guard = Guard::start_noting(noted, known, move |told| {
        to_shard(match told {
            GuardNotice::Silenced(_) => Inbound::Fence,
            GuardNotice::Killed(resource) => Inbound::Killed(resource),
            GuardNotice::Ends => Inbound::Ends,
        });
    });
    let guard = failed("cannot start the guard", guard)?;
    let watchdog = WatchdogThread::start(options.watchdog.clone(), guard.view());
    let watchdog = failed("cannot start the thread of the watchdog", watchdog)?;
    let successor = Successor::default();
    if options.stands_alone {
        failed("cannot start the silencer", silencer::keep(run_dir.clone()))?;
        let waits = end_when_told(guard.ender(), watchdog.clone(), successor.clone(), tell.clone());
        failed("cannot wait for signals", waits)?;
    }
    let to_shard = tell.clone();
    let devices =
        DeviceAdmin::start(choice.kind, run_dir, holder, move |outcome| to_shard(Inbound::Device(outcome)));
    let devices = failed("cannot start the device thread", devices)?;
    if choice.kind != Some(FrontendKind::Fuse) {
        left.give_up_all(&devices, run_dir);
    }
    let to_shard = tell.clone();
    let lifecycle = Lifecycle::start(pool.clone(), options.preallocate, move |opened| {
        to_shard(Inbound::Opened(Box::new(opened)));
    });
    let lifecycle = failed("cannot start the lifecycle thread", lifecycle)?;
    let to_shard = tell.clone();
    let snapshots = Box::new(move |job: SnapshotJob| {
        let to_shard = to_shard.clone();
        job.start(move |done| to_shard(Inbound::Snapshot(done)));
    });
    let (to_shard, stands_alone) = (tell.clone(), options.stands_alone);
    let socket = run_dir.join("engine.sock");
    let ipc = IpcServer::start(&socket, move |message| {
        tell(match message {
            IpcMessage::Connected(client) => Inbound::Connected(client),
            IpcMessage::Request { client, request, reply } => {
                let request = Box::new(request);
                Inbound::Request { client, request, answer: Box::new(move |answer| reply.send(answer)) }
            }
        });
    });
    let ipc = failed(format!("cannot listen at {}", socket.display()), ipc)?;
    tracing::info!(listen = %options.listen, run_dir = %run_dir.display(), "engine started");
    let parts = Parts {
        options,
        choice,
        nbd,
        ring,
        pool,
        inbox,
        ipc,
        guard,
        watchdog,
        devices,
        lifecycle,
        snapshots,
        left,
        successor,
    };
    // An engine that ends by itself ends like one that is killed. To drop the shard would take the
    // devices away before their users are killed, see `mainstay_devices::users`. The process ends
    // now, and the kernel closes everything.
    let mut shard = ManuallyDrop::new(Shard::new(parts));
    if stands_alone {
        supervisor::ready("serves");
        failed("cannot start a thread", supervisor::keep_asking(move || to_shard(Inbound::Alive)))?;
    }
    let ended = shard.run();
    drop(presence);
    Ok(ended?)
}

/// Makes a stop an orderly one: when this process is told to end, it leaves its devices to a
/// successor that was announced. Otherwise it first sees that nothing of any service is left on
/// this node (R19).
fn end_when_told(
    guard: GuardEnder,
    watchdog: WatchdogThread,
    successor: Successor,
    tell: impl Fn(Inbound) + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new().name("signals".into()).spawn(move || {
        signals::wait();
        supervisor::stopping();
        if successor.is_announced(now()) {
            let (answer, left) = mpsc::sync_channel(1);
            tell(Inbound::Leave(answer));
            match left.recv_timeout(LEAVE_PATIENCE) {
                Ok(Ok(())) => std::process::exit(0),
                Ok(Err(error)) => tracing::error!(%error, "the devices cannot be left to a successor"),
                Err(_) => {
                    tracing::error!("the devices cannot be left to a successor: not all is answered in time")
                }
            }
            tell(Inbound::Stay);
        }
        guard.end(END_PATIENCE);
        watchdog.end();
        thread::sleep(LAST_WORDS);
        std::process::exit(0);
    })?;
    Ok(())
}

/// Takes the devices that an engine before this one has left for it, if there are any.
fn take_left(options: &EngineOptions) -> (DescriptorHolder, LeftDevices) {
    let run_dir = &options.run_dir;
    let noted = options.stands_alone.then(|| Succession::take(run_dir, now())).flatten();
    let Some(noted) = noted.filter(|noted| !noted.resources.is_empty()) else {
        return (DescriptorHolder::new(run_dir), LeftDevices::default());
    };
    match DescriptorHolder::taking_over(run_dir) {
        Ok((holder, files)) => (holder, LeftDevices::new(now(), noted, files)),
        Err(error) => {
            tracing::error!(%error, "the agent does not give the devices of the engine before: they fail");
            (DescriptorHolder::new(run_dir), LeftDevices::default())
        }
    }
}

/// An engine that was killed leaves dead mounts, on which every access fails.
fn clear_stale_mounts(options: &EngineOptions, left: &LeftDevices) {
    let Ok(entries) = std::fs::read_dir(options.run_dir.join("fuse")) else { return };
    let goes_on = |entry: &std::fs::DirEntry| left.names().any(|name| *name == *entry.file_name());
    for entry in entries.flatten().filter(|entry| !goes_on(entry)) {
        crate::frontend::unmount_stale(&entry.path());
    }
}
