//! The thread that feeds the watchdog of this machine (R19). What it does when is decided by
//! [`mainstay_silence::Watchdog`]; this file has the thread and the device.
//!
//! Guarantees
//! - The device is opened when the engine starts and kept open, so that no other program takes it
//!   meanwhile. One that another program has open is left alone, and that program is named.
//! - While the node serves nothing the watchdog is stopped, if the device can be stopped. An engine
//!   that ends in order stops it and says so to the kernel (magic close).
//! - An engine that is killed while its node serves leaves the watchdog running: the machine is
//!   reset unless the next engine takes over in time.

// The kernel's interface is ioctl.
#![allow(unsafe_code)]

mod device;

use crate::guard::{GuardView, prefer_this_thread};
use crate::ring::now;
pub use device::Opened;
use device::{Device, Kernel};
use mainstay_api::engine::{WatchdogChoice, WatchdogStatus};
use mainstay_silence::{GUARD_MARGIN_MS, WATCHDOG_LOOKS_MS, Watchdog, WatchdogDoes, WatchdogSees};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Where the kernel has the first watchdog.
pub const DEVICE: &str = "/dev/watchdog";
/// Pause before a device that could not be opened is tried again.
const OPEN_AGAIN: Duration = Duration::from_secs(10);

/// How long every lease has to be too short before that is told.
const SHORT_FOR: Duration = Duration::from_secs(3);
const TOO_SLOW: &str = "its shortest time is longer than the lease: choose a longer lease";

/// Choice of the operator.
#[derive(Clone, Debug)]
pub struct WatchdogOptions {
    pub choice: WatchdogChoice,
    pub device: PathBuf,
}

impl Default for WatchdogOptions {
    fn default() -> Self {
        Self { choice: WatchdogChoice::Off, device: PathBuf::from(DEVICE) }
    }
}

/// A handle of the thread. Clones share it.
#[derive(Clone)]
pub struct WatchdogThread {
    state: Arc<Mutex<State>>,
}

struct State {
    options: WatchdogOptions,
    device: Option<(Box<dyn Device>, Watchdog)>,
    identity: String,
    problem: Option<String>,
    tried: Option<Instant>,
    /// Since when every lease was too short for the device.
    short_since: Option<Instant>,
    ended: bool,
}

impl WatchdogThread {
    /// Starts the thread, unless the operator wants no watchdog. `view` is what the guard knows.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub fn start(options: WatchdogOptions, view: GuardView) -> io::Result<Self> {
        Self::start_with(
            options,
            move || view.sees(now()),
            |options| {
                Kernel::open(&options.device)
                    .map(|opened| opened.map(|kernel| Box::new(kernel) as Box<dyn Device>))
            },
        )
    }

    fn start_with(
        options: WatchdogOptions,
        sees: impl Fn() -> WatchdogSees + Send + 'static,
        open: impl Fn(&WatchdogOptions) -> Result<Opened<Box<dyn Device>>, String> + Send + 'static,
    ) -> io::Result<Self> {
        let off = options.choice == WatchdogChoice::Off;
        let state = State {
            options,
            device: None,
            identity: String::new(),
            problem: None,
            tried: None,
            short_since: None,
            ended: false,
        };
        let thread = Self { state: Arc::new(Mutex::new(state)) };
        if off {
            return Ok(thread);
        }
        // A device that is missing is known before the agent asks.
        thread.state().open(&open);
        let worker = thread.clone();
        thread::Builder::new().name("watchdog".into()).spawn(move || {
            prefer_this_thread();
            loop {
                thread::sleep(Duration::from_millis(WATCHDOG_LOOKS_MS));
                let seen = sees();
                let mut state = worker.state();
                if state.ended {
                    return;
                }
                state.open(&open);
                state.look(seen);
            }
        })?;
        Ok(thread)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine ends in order, and nothing of any service is left: stops the watchdog.
    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        if let Some((mut device, watchdog)) = state.device.take() {
            let stopped = if watchdog.armed().is_some() { device.disarm() } else { Ok(()) };
            if let Err(error) = stopped.and_then(|()| device.release()) {
                tracing::error!(%error, "cannot stop the watchdog: this machine is reset unless another program feeds it");
            }
        }
    }

    /// `None` if the operator wants no watchdog.
    #[must_use]
    pub fn status(&self) -> Option<WatchdogStatus> {
        let state = self.state();
        if state.options.choice == WatchdogChoice::Off {
            return None;
        }
        let watchdog = state.device.as_ref().map(|(_, watchdog)| watchdog);
        Some(WatchdogStatus {
            choice: state.options.choice,
            device: state.options.device.to_string_lossy().into_owned(),
            identity: state.identity.clone(),
            armed: watchdog.is_some_and(|watchdog| watchdog.armed().is_some()),
            timeout_ms: watchdog.and_then(Watchdog::armed).map_or(0, |seconds| u64::from(seconds) * 1000),
            fires_at_us: watchdog.and_then(Watchdog::fires_at).unwrap_or_default(),
            problem: state.problem.clone(),
        })
    }
}

impl State {
    fn open(&mut self, open: &impl Fn(&WatchdogOptions) -> Result<Opened<Box<dyn Device>>, String>) {
        if self.device.is_some() || self.tried.is_some_and(|tried| tried.elapsed() < OPEN_AGAIN) {
            return;
        }
        self.tried = Some(Instant::now());
        match open(&self.options) {
            Ok(Opened { device, identity, can, runs }) => {
                tracing::info!(
                    device = %self.options.device.display(), identity, least_s = can.seconds.0,
                    can_stop = can.stop, "this machine has a watchdog"
                );
                self.device = Some((device, Watchdog::new(can, runs)));
                self.identity = identity;
                self.problem = None;
            }
            Err(problem) => self.fails(problem),
        }
    }

    fn look(&mut self, sees: WatchdogSees) {
        let at = now();
        let Some((device, watchdog)) = &mut self.device else { return };
        let left_ms = sees.lease_until.ms_since(at);
        let short = watchdog.is_too_slow(left_ms);
        let done = match watchdog.look(at, sees) {
            WatchdogDoes::Nothing => Ok(()),
            WatchdogDoes::Arm { seconds } => device.arm(seconds),
            WatchdogDoes::Feed => device.feed(),
            WatchdogDoes::Disarm => device.disarm(),
        };
        match done {
            Err(error) => {
                watchdog.failed();
                self.fails(error.to_string());
            }
            Ok(()) if watchdog.armed().is_some() => self.problem = None,
            Ok(()) => {}
        }
        // A lease that is not renewed is short as well, and says nothing.
        if !short {
            self.short_since = None;
            self.problem.take_if(|problem| problem == TOO_SLOW);
        } else if left_ms > GUARD_MARGIN_MS {
            let since = *self.short_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= SHORT_FOR {
                self.fails(TOO_SLOW.into());
            }
        } else {
            self.short_since = None;
        }
    }

    fn fails(&mut self, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            tracing::error!(device = %self.options.device.display(), problem, "the watchdog cannot be used");
            self.problem = Some(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_silence::WatchdogCan;
    use mainstay_types::Time;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    struct Fake(Arc<Told>);

    impl Fake {
        fn tell(&self, what: impl Into<String>) -> io::Result<()> {
            let mut told = self.0.0.lock().unwrap();
            let what = what.into();
            if told.last() != Some(&what) {
                told.push(what);
            }
            Ok(())
        }
    }

    impl Device for Fake {
        fn arm(&mut self, seconds: u32) -> io::Result<()> {
            self.tell(format!("arm {seconds}"))
        }

        fn feed(&mut self) -> io::Result<()> {
            self.tell("feed")
        }

        fn disarm(&mut self) -> io::Result<()> {
            self.tell("disarm")
        }

        fn release(&mut self) -> io::Result<()> {
            self.tell("release")
        }
    }

    fn until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn the_watchdog_is_fed_while_the_node_serves_and_released_in_order() {
        let told = Arc::new(Told::default());
        let serves = Arc::new(AtomicBool::new(true));
        let (device, asked) = (told.clone(), serves.clone());
        let options = WatchdogOptions { choice: WatchdogChoice::Automatic, ..WatchdogOptions::default() };
        let sees = move || WatchdogSees {
            lease_until: now().plus_ms(60_000),
            serves: asked.load(Ordering::SeqCst),
            silent: Time(0),
            guarded: true,
            ended: false,
        };
        let thread = WatchdogThread::start_with(options, sees, move |_| {
            let device: Box<dyn Device> = Box::new(Fake(device.clone()));
            Ok(Opened { device, identity: "fake".into(), can: WatchdogCan::ALL, runs: false })
        })
        .expect("a thread");
        let said = || told.0.lock().unwrap().clone();
        until("it is armed and fed", || said() == ["arm 59", "feed"]);
        let status = thread.status().expect("it is wanted");
        assert!(status.armed && status.timeout_ms == 59_000 && status.problem.is_none(), "{status:?}");
        assert_eq!(status.identity, "fake");
        serves.store(false, Ordering::SeqCst);
        until("it is stopped", || said().last().is_some_and(|last| last == "disarm"));
        serves.store(true, Ordering::SeqCst);
        until("it is armed again", || said().last().is_some_and(|last| last == "feed"));
        thread.end();
        assert_eq!(said()[3..], ["arm 59", "feed", "disarm", "release"]);
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_told() {
        let options = WatchdogOptions {
            choice: WatchdogChoice::Required,
            device: PathBuf::from("/dev/mainstay-has-no-such-watchdog"),
        };
        let guard = crate::guard::Guard::start(|_| ()).expect("a guard");
        let thread = WatchdogThread::start(options, guard.view()).expect("a thread");
        let problem = thread.status().and_then(|status| status.problem).expect("it is told");
        assert!(problem.contains("there is no /dev/mainstay-has-no-such-watchdog"), "{problem}");
        thread.end();
        let off = WatchdogThread::start(WatchdogOptions::default(), guard.view()).expect("no thread");
        assert_eq!(off.status(), None);
    }
}
