//! The words that the runner of units exchanges with systemd over D-Bus.
//!
//! Guarantees
//! - Every call ends within its patience, also when D-Bus or systemd stands still.
//! - Signals are subscribed to before a job is begun, so its end is not missed.
//! - A unit whose start was begun is not forgotten by systemd as long as the conversation lasts: a
//!   state read in it tells also why a unit was not started.

use super::activation::{PLACES, names_that_start};
use futures_util::StreamExt;
use mainstay_ha::{Starts, UNIT_NEEDS, UnitCondition, UnitStarter, UnitState};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use zbus::proxy::SignalStream;
use zbus::zvariant::{ObjectPath, OwnedObjectPath, OwnedValue};
use zbus::{Connection, Proxy};

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Exists where systemd is the first process.
const BOOTED: &str = "/run/systemd/system";
/// Most units that are asked whether they start another one.
pub(super) const STARTERS_MAX: usize = 64;
/// How often it is looked whether a job is gone whose end was not told: systemd loses jobs when
/// it reads its configuration anew.
const JOB_LOOK: Duration = Duration::from_millis(200);

/// Part of systemd that a runner needs.
pub(super) trait Systemd: Send {
    /// Loads a unit if it is not loaded, and returns its state.
    fn state(&self, unit: &str) -> Result<UnitState, String>;
    /// Returns the names of D-Bus and the other units that start `unit`, the units as far as
    /// systemd has loaded them; the first [`STARTERS_MAX`] of them.
    fn starters(&self, unit: &str) -> Result<Vec<UnitStarter>, String>;
    /// Reads all units and drop-ins anew.
    fn reload(&self) -> Result<(), String>;
    /// Begins a start, and returns its job. systemd remembers the unit until the conversation ends.
    fn start(&self, unit: &str) -> Result<String, String>;
    /// Begins a stop, which takes the place of a start under way, and returns its job.
    fn stop(&self, unit: &str) -> Result<String, String>;
    /// Waits for the end of a job. Returns its result, or `None` if it is not known after
    /// `patience`, is not `wanted` any more, or was not told.
    fn job_end(&self, unit: &str, job: &str, patience: Duration, wanted: &dyn Fn() -> bool)
    -> Option<String>;
    /// Kills all processes of a unit.
    fn kill(&self, unit: &str) -> Result<(), String>;
    /// Takes the mark of a failure away.
    fn forget_failure(&self, unit: &str);
}

/// Whether systemd runs here and listens on D-Bus; the reason if not.
pub(super) fn absence() -> Option<String> {
    if !Path::new(BOOTED).is_dir() {
        return Some("systemd is not the first process of this node".into());
    }
    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").is_ok();
    let socket = ["/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"];
    let listens = address || socket.iter().any(|path| Path::new(path).exists());
    (!listens).then(|| "D-Bus does not run on this node".into())
}

/// A conversation over the system's bus.
pub(super) struct Bus {
    runtime: Runtime,
    patience: Duration,
    connection: Option<Connection>,
    jobs: RefCell<Option<SignalStream<'static>>>,
}

impl Drop for Bus {
    fn drop(&mut self) {
        // The end of a stream is told to the bus by a task.
        let _inside = self.runtime.enter();
        drop(self.jobs.borrow_mut().take());
        drop(self.connection.take());
    }
}

fn words(error: zbus::Error) -> String {
    match error {
        zbus::Error::MethodError(_, Some(said), _) => format!("systemd says: {said}"),
        error => format!("D-Bus: {error}"),
    }
}

impl Bus {
    /// Opens a conversation. `patience` is for each call.
    ///
    /// # Errors
    /// When systemd cannot be reached, in words for the operator.
    pub(super) fn open(patience: Duration) -> Result<Self, String> {
        if let Some(why) = absence() {
            return Err(why);
        }
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let mut bus = Self { runtime, patience, connection: None, jobs: RefCell::new(None) };
        let connection = bus.within(async { Connection::system().await.map_err(words) })?;
        bus.connection = Some(connection);
        Ok(bus)
    }

    fn within<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let patience = self.patience;
        self.runtime.block_on(async {
            let late = || format!("systemd did not answer on D-Bus within {} ms", patience.as_millis());
            tokio::time::timeout(patience, work).await.unwrap_or_else(|_| Err(late()))
        })
    }

    fn connection(&self) -> Result<&Connection, String> {
        self.connection.as_ref().ok_or_else(|| "D-Bus: not connected".into())
    }

    async fn manager(&self) -> Result<Proxy<'static>, String> {
        Proxy::new(self.connection()?, SYSTEMD, MANAGER_PATH, MANAGER).await.map_err(words)
    }

    /// Asks to be told of the end of jobs, once.
    async fn subscribe(&self) -> Result<(), String> {
        if self.jobs.borrow().is_some() {
            return Ok(());
        }
        let manager = self.manager().await?;
        let ends = manager.receive_signal("JobRemoved").await.map_err(words)?;
        manager.call::<_, _, ()>("Subscribe", &()).await.map_err(words)?;
        *self.jobs.borrow_mut() = Some(ends);
        Ok(())
    }

    async fn properties(
        &self,
        path: &ObjectPath<'_>,
        interface: &str,
    ) -> Result<HashMap<String, OwnedValue>, String> {
        let properties = Proxy::new(self.connection()?, SYSTEMD, path, "org.freedesktop.DBus.Properties")
            .await
            .map_err(words)?;
        properties.call("GetAll", &(interface,)).await.map_err(words)
    }

    /// Loads a unit if it is not loaded, and returns the properties that every kind of unit has.
    async fn unit(&self, unit: &str) -> Result<(OwnedObjectPath, HashMap<String, OwnedValue>), String> {
        let path: OwnedObjectPath = self.manager().await?.call("LoadUnit", &(unit,)).await.map_err(words)?;
        let properties = self.properties(&path, "org.freedesktop.systemd1.Unit").await?;
        Ok((path, properties))
    }

    fn begin(&self, call: &'static str, unit: &str) -> Result<String, String> {
        self.within(async {
            self.subscribe().await?;
            let job: OwnedObjectPath =
                self.manager().await?.call(call, &(unit, "replace")).await.map_err(words)?;
            Ok(job.to_string())
        })
    }
}

impl Systemd for Bus {
    fn state(&self, unit: &str) -> Result<UnitState, String> {
        self.within(async {
            let (path, mut unit) = self.unit(unit).await?;
            let mut service = self.properties(&path, "org.freedesktop.systemd1.Service").await?;
            let job = unit.remove("Job").and_then(|job| <(u32, OwnedObjectPath)>::try_from(job).ok());
            let happened = |table: &mut HashMap<String, OwnedValue>, what: &str| {
                let at = table.remove(&format!("{what}Timestamp")).and_then(|at| u64::try_from(at).ok());
                let well =
                    table.remove(&format!("{what}Result")).and_then(|result| bool::try_from(result).ok());
                at.is_some_and(|at| at > 0) && well == Some(false)
            };
            // Asserts are looked at when all conditions hold, so their outcome may be that of an
            // earlier start.
            let failed = ["Condition", "Assert"].into_iter().find(|what| happened(&mut unit, what));
            let conditions = failed.and_then(|what| unit.remove(&format!("{what}s")));
            Ok(UnitState {
                id: text(&mut unit, "Id"),
                load: text(&mut unit, "LoadState"),
                active: text(&mut unit, "ActiveState"),
                sub: text(&mut unit, "SubState"),
                file: text(&mut unit, "UnitFileState"),
                has_job: job.is_some_and(|(number, _)| number != 0),
                condition_failed: failed.is_some(),
                conditions: conditions.map(conditions_of).unwrap_or_default(),
                kind: text(&mut service, "Type"),
                restart: text(&mut service, "Restart"),
                slice: text(&mut service, "Slice"),
                control_group: text(&mut service, "ControlGroup"),
                result: text(&mut service, "Result"),
                main_pid: service.remove("MainPID").and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
                exit_code: number(&mut service, "ExecMainCode"),
                exit_status: number(&mut service, "ExecMainStatus"),
            })
        })
    }

    fn starters(&self, unit: &str) -> Result<Vec<UnitStarter>, String> {
        self.within(async {
            let (_, mut table) = self.unit(unit).await?;
            let needs: Vec<String> = UNIT_NEEDS.iter().flat_map(|name| names(&mut table, name)).collect();
            let named = Starts::PROPERTIES.iter().flat_map(|(property, how)| {
                names(&mut table, property).into_iter().map(|id| (id, *how)).collect::<Vec<_>>()
            });
            let named: Vec<(String, Starts)> = named.take(STARTERS_MAX).collect();
            let mut called = names(&mut table, "Names");
            called.push(unit.to_owned());
            let mut found = names_that_start(&PLACES, &called);
            for (id, how) in named {
                // One that is gone meanwhile starts nothing.
                let Ok((_, mut table)) = self.unit(&id).await else { continue };
                found.push(UnitStarter {
                    how,
                    load: text(&mut table, "LoadState"),
                    active: text(&mut table, "ActiveState"),
                    file: text(&mut table, "UnitFileState"),
                    is_needed: needs.contains(&id),
                    id,
                });
            }
            Ok(found)
        })
    }

    fn reload(&self) -> Result<(), String> {
        self.within(async { self.manager().await?.call("Reload", &()).await.map_err(words) })
    }

    fn start(&self, unit: &str) -> Result<String, String> {
        let held: Result<(), String> =
            self.within(async { self.manager().await?.call("RefUnit", &(unit,)).await.map_err(words) });
        if let Err(error) = held {
            tracing::debug!(unit, error, "systemd may forget why this unit does not start");
        }
        self.begin("StartUnit", unit)
    }

    fn stop(&self, unit: &str) -> Result<String, String> {
        self.begin("StopUnit", unit)
    }

    fn job_end(
        &self,
        unit: &str,
        job: &str,
        patience: Duration,
        wanted: &dyn Fn() -> bool,
    ) -> Option<String> {
        let deadline = Instant::now() + patience;
        let mut ends = self.jobs.borrow_mut();
        let ends = ends.as_mut()?;
        while wanted() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let told =
                self.runtime.block_on(async { tokio::time::timeout(left.min(JOB_LOOK), ends.next()).await });
            match told {
                Ok(Some(message)) => {
                    let body = message.body();
                    let told = body.deserialize::<(u32, ObjectPath<'_>, &str, &str)>();
                    if let Ok((_, path, _, result)) = told
                        && path.as_str() == job
                    {
                        return Some(result.to_owned());
                    }
                }
                Ok(None) => return None,
                // An answer that does not come is no end of the job.
                Err(_) if self.state(unit).is_ok_and(|state| !state.has_job) => return None,
                Err(_) => {}
            }
        }
        None
    }

    fn kill(&self, unit: &str) -> Result<(), String> {
        self.within(async {
            let sent = self.manager().await?.call("KillUnit", &(unit, "all", 9_i32)).await;
            sent.map_err(words)
        })
    }

    fn forget_failure(&self, unit: &str) {
        let forgot: Result<(), String> = self
            .within(async { self.manager().await?.call("ResetFailedUnit", &(unit,)).await.map_err(words) });
        // A unit that is not loaded any more has no such mark.
        drop(forgot);
    }
}

fn conditions_of(value: OwnedValue) -> Vec<UnitCondition> {
    let rows = Vec::<(String, bool, bool, String, i32)>::try_from(value).unwrap_or_default();
    let condition = |(name, is_trigger, is_negated, parameter, outcome)| UnitCondition {
        name,
        is_trigger,
        is_negated,
        parameter,
        outcome,
    };
    rows.into_iter().map(condition).collect()
}

fn text(table: &mut HashMap<String, OwnedValue>, name: &str) -> String {
    table.remove(name).and_then(|value| String::try_from(value).ok()).unwrap_or_default()
}

fn names(table: &mut HashMap<String, OwnedValue>, name: &str) -> Vec<String> {
    table.remove(name).and_then(|value| Vec::try_from(value).ok()).unwrap_or_default()
}

fn number(table: &mut HashMap<String, OwnedValue>, name: &str) -> i32 {
    table.remove(name).and_then(|value| i32::try_from(value).ok()).unwrap_or(0)
}
