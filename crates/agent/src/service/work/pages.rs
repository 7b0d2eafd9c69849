//! Arguments of a process that count only while no page of its files can tear: when the question is
//! asked, and what follows from the answer (ADR 56).
//!
//! Guarantees
//! - A process has the arguments only if a check said yes in this start, after the mount. A check
//!   that fails or ends late is a no.
//! - No process gets the arguments while it runs. If a later check says no, the machine is told
//!   until the process is started again without them.
//! - A check that hangs keeps one thread of its own, and neither a stop nor a kill waits for it.
//! - While a process runs without the arguments, that is told with the reason.

use super::Work;
use crate::service::bounded::Bounded;
use crate::service::hindrances::Part;
use crate::service::instance::{Done, OnDone};
use crate::service::lane::CALLED_OFF;
use crate::service::runners::Note;
use crate::threads::{lock, spawn};
use mainstay_control::labels::quoted;
use mainstay_control::stalls::Hindrance;
use mainstay_devices::atomic::verdict::{Answer, Writes};
use mainstay_devices::atomic::{AtomicError, Question, check_while};
use mainstay_ha::{Event, Pages, ServiceSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// From the start of a process to its first repeated check: by then a new database has its files.
const FIRST: Duration = Duration::from_secs(60);
/// Pause before a check is tried again that could not be made.
const AGAIN: Duration = Duration::from_secs(60);
/// Checks in a row that could not be made, after which the answer counts as no.
const UNSEEN_MAX: u32 = 3;
/// How long a repeated check may take.
const REPEAT_LIMIT: Duration = Duration::from_secs(600);
/// How often a process that runs is looked after; also how often a warning is renewed.
const TICK: Duration = Duration::from_secs(5);
/// How soon a check that is not wanted any more is left alone.
const POLL: Duration = Duration::from_millis(50);

static CHECKS: Bounded = Bounded::new();

/// The check that answers a question, while its second argument says that it is wanted.
type Check = dyn Fn(&Question, &dyn Fn() -> bool) -> Result<Answer, AtomicError> + Send + Sync;

/// Why a process does not have its arguments for whole pages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Doubt {
    why: String,
    remedy: String,
    /// The check itself could not be made.
    unseen: bool,
}

/// Start of a process that has `pages`: with its arguments for whole pages or without.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::service) struct Reliance {
    /// The process runs with the arguments.
    relies: bool,
    doubt: Option<Doubt>,
    /// The process ran with the arguments on this node before a check said no.
    turned: bool,
}

/// Answers about the processes of one service, and the check that gives them.
pub(super) struct PageChecks {
    known: Mutex<BTreeMap<usize, Reliance>>,
    check: Arc<Check>,
    first: Duration,
    again: Duration,
    tick: Duration,
}

impl Default for PageChecks {
    fn default() -> Self {
        Self { known: Mutex::default(), check: Arc::new(check_while), first: FIRST, again: AGAIN, tick: TICK }
    }
}

impl PageChecks {
    pub fn known(&self) -> BTreeMap<usize, Reliance> {
        lock(&self.known).clone()
    }

    pub fn adopt(&self, known: BTreeMap<usize, Reliance>) {
        *lock(&self.known) = known;
    }

    /// Whether a process runs without its arguments, or soon will, and why; `None` for a process
    /// without `pages`.
    fn words(&self, spec: &ServiceSpec, process: usize) -> Option<String> {
        let arguments = spec.processes.get(process)?.pages.as_ref()?.words();
        let known = lock(&self.known);
        Some(match &known.get(&process)?.doubt {
            None => format!(" with {arguments}: no page can tear"),
            Some(doubt) => format!(" without {arguments}: {}", doubt.why),
        })
    }
}

impl Doubt {
    fn of(answer: &Answer, path: &Path, page: u64) -> Option<Self> {
        if answer.atomic {
            return None;
        }
        let Some(first) = answer.findings.first() else {
            return Some(Self::unseen("the check gave no reason".into(), path, page));
        };
        let example = first.examples.first().map(|file| format!(", such as {file}")).unwrap_or_default();
        let more = match answer.findings.len() {
            1 => String::new(),
            count => format!(" ({} more reasons)", count - 1),
        };
        let why = format!("{}{example}{more}", first.found);
        Some(Self { why, remedy: first.remedy.clone(), unseen: false })
    }

    /// `path`, and `page` in bytes: what was to be checked.
    fn unseen(why: String, path: &Path, page: u64) -> Self {
        let path = quoted(&path.to_string_lossy());
        let remedy = format!("Run `mainstay check atomic {path} --page {page}`, which says more.");
        Self { why, remedy, unseen: true }
    }
}

impl Work {
    /// Asks whether pages can tear, for at most `limit`. Returns `None` when the answer is not
    /// `wanted` any more.
    fn ask_pages(
        &self,
        spec: &ServiceSpec,
        pages: &Pages,
        limit: Duration,
        wanted: &dyn Fn() -> bool,
    ) -> Option<Result<(), Doubt>> {
        let mount = PathBuf::from(&spec.mount.as_ref()?.path);
        let path = pages.path.as_ref().map_or_else(|| mount.clone(), PathBuf::from);
        let shown = path.clone();
        let unseen = |why| Some(Err(Doubt::unseen(why, &shown, pages.size)));
        let mut question = Question {
            path,
            page: pages.size,
            writes: if pages.buffered { Writes::Buffered } else { Writes::Direct },
            files: Vec::new(),
            run_dir: self.places.run_dir.clone(),
        };
        let (deadline, check) = (Instant::now() + limit, Arc::clone(&self.pages.check));
        let given_up = Arc::new(AtomicBool::new(false));
        let left = Arc::clone(&given_up);
        let (answer, answers) = sync_channel(1);
        spawn("agent-pages", move || {
            let asked = CHECKS.ask(&mount.clone(), deadline, move || {
                // A database that was never started has no files. Its file system decides.
                if matches!(question.path.try_exists(), Ok(false)) {
                    question.path = mount;
                }
                check(&question, &|| !left.load(Ordering::Relaxed) && Instant::now() < deadline)
            });
            let _ = answer.send(asked);
        });
        loop {
            match answers.recv_timeout(POLL) {
                Ok(Some(Ok(answer))) => {
                    return Some(Doubt::of(&answer, &shown, pages.size).map_or(Ok(()), Err));
                }
                Ok(None | Some(Err(AtomicError::GivenUp))) => {
                    return unseen(format!("the check did not end within {} s", limit.as_secs()));
                }
                Ok(Some(Err(error))) => {
                    return unseen(format!("the check failed: {}", chain(&error)));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return unseen("the check ended without an answer".into());
                }
                Err(RecvTimeoutError::Timeout) if wanted() => {}
                Err(RecvTimeoutError::Timeout) => {
                    given_up.store(true, Ordering::Relaxed);
                    return None;
                }
            }
        }
    }

    /// Returns the arguments that a process gets in this start, beside those of its command.
    ///
    /// # Errors
    /// When the start was called off.
    pub(super) fn page_arguments(
        &self,
        spec: &ServiceSpec,
        process: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<String>, String> {
        let Some(pages) = spec.processes.get(process).and_then(|described| described.pages.as_ref()) else {
            lock(&self.pages.known).remove(&process);
            return Ok(Vec::new());
        };
        let limit = Duration::from_secs(pages.timeout_s);
        let asked = self.ask_pages(spec, pages, limit, wanted).ok_or(CALLED_OFF)?;
        let (relies, doubt) = (asked.is_ok(), asked.err());
        if let Some(doubt) = &doubt {
            let (service, arguments, why) = (&self.name, pages.words(), &doubt.why);
            tracing::warn!(
                service,
                arguments,
                why,
                remedy = doubt.remedy,
                "a page can tear, or this is not known: the process starts without these arguments"
            );
        }
        let mut known = lock(&self.pages.known);
        let turned = !relies && known.get(&process).is_some_and(|before| before.relies || before.turned);
        known.insert(process, Reliance { relies, doubt, turned });
        Ok(if relies { pages.arguments.clone() } else { Vec::new() })
    }

    /// Takes over what an earlier agent has noted.
    pub fn adopt_pages(&self, known: BTreeMap<usize, Reliance>) {
        self.pages.adopt(known);
    }

    /// Words about a process that was started, for the operator.
    pub(super) fn pages_words(&self, process: usize) -> String {
        self.pages.words(&self.spec(), process).unwrap_or_default()
    }

    /// Looks after a process with `pages` while it runs.
    pub(super) fn watch_pages(self: &Arc<Self>, process: usize, note: &Note, on_done: &OnDone) {
        if !lock(&self.pages.known).contains_key(&process) {
            return;
        }
        let (work, note, on_done) = (Arc::clone(self), note.clone(), on_done.clone());
        spawn("agent-pages", move || work.keep_pages(process, &note, &on_done));
    }

    fn keep_pages(&self, process: usize, note: &Note, on_done: &OnDone) {
        let runs = || lock(&self.running).get(&process) == Some(note);
        let (mut due, mut unseen) = (Instant::now() + self.pages.first, 0);
        while runs() {
            let spec = self.spec();
            let pages = spec.processes.get(process).and_then(|described| described.pages.as_ref());
            let known = lock(&self.pages.known).get(&process).cloned();
            let (Some(pages), Some(reliance)) = (pages, known) else { break };
            self.tell_pages(&spec, process, &reliance);
            match &reliance.doubt {
                Some(doubt) if reliance.relies => {
                    let why = format!("without {}, because pages can tear now: {}", pages.words(), doubt.why);
                    let event = Event::Outdated { process, why, remedy: doubt.remedy.clone() };
                    on_done(Done { service: self.name.clone(), event });
                }
                None if Instant::now() >= due => {
                    match self.ask_pages(&spec, pages, REPEAT_LIMIT, &runs) {
                        None => break,
                        Some(Ok(())) => {
                            unseen = 0;
                            due = Instant::now() + Duration::from_secs(pages.interval_s);
                        }
                        Some(Err(doubt)) if doubt.unseen && unseen + 1 < UNSEEN_MAX => {
                            unseen += 1;
                            due = Instant::now() + self.pages.again;
                        }
                        Some(Err(doubt)) => self.turn(process, doubt, &runs),
                    }
                    continue;
                }
                _ => {}
            }
            std::thread::sleep(self.pages.tick);
        }
        if !lock(&self.running).contains_key(&process) {
            self.places.hindrances.note(&self.name, Part::Pages(process), None, Instant::now());
        }
    }

    /// Notes that the answer about a process that runs with the arguments has turned to no.
    fn turn(&self, process: usize, doubt: Doubt, runs: &dyn Fn() -> bool) {
        {
            let mut known = lock(&self.pages.known);
            let Some(reliance) = known.get_mut(&process).filter(|reliance| reliance.relies && runs()) else {
                return;
            };
            let service = &self.name;
            tracing::warn!(
                service,
                why = doubt.why,
                remedy = doubt.remedy,
                "pages can tear now: the process is started again without the arguments for whole pages"
            );
            (reliance.doubt, reliance.turned) = (Some(doubt), true);
        }
        self.save(None);
    }

    fn tell_pages(&self, spec: &ServiceSpec, process: usize, reliance: &Reliance) {
        let Some(described) = spec.processes.get(process) else { return };
        let found = reliance.doubt.as_ref().map(|doubt| Hindrance::PagesTear {
            process: described.name.clone(),
            arguments: described.pages.as_ref().map(Pages::words).unwrap_or_default(),
            why: doubt.why.clone(),
            remedy: doubt.remedy.clone(),
            turned: reliance.turned,
            relies: reliance.relies,
        });
        self.places.hindrances.note(&self.name, Part::Pages(process), found, Instant::now());
    }
}

/// An error with its causes, in words for operators.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
