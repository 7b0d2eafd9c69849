//! `mainstay bench …`: the cases of `make bench` on a user's own devices and directories. It
//! measures whatever storage is there, and asks an agent only where a resource lies.

use crate::cli::{BenchArgs, BenchCommand};
use crate::failure::{Code, Context, Failure, Outcome, exit, remedy_of};
use crate::output::{Output, Progress, table};
use crate::sys;
use mainstay_agent::service::place::{needed, resolve};
use mainstay_api::rest::{ResourceView, StatusView};
use mainstay_bench::cpu::Process;
use mainstay_bench::database::Temporary;
use mainstay_bench::fio::{self, Target};
use mainstay_bench::machine::Machine;
use mainstay_bench::report::{Description, Report, Row};
use mainstay_bench::stats::number;
use mainstay_bench::target::Place;
use mainstay_bench::turns::{self, Log, Plan, SetUp, Terms};
use mainstay_bench::{Case, Error, Figures, command, sysbench};
use mainstay_cli::connect::checked_name;
use mainstay_client::Client;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Load before sysbench is measured, in seconds.
const WARM_UP_S: u64 = 2;
/// Time by which a program may run longer than asked.
const SPARE: Duration = Duration::from_secs(120);
/// Longest time for filling one MiB of a target: at least 5 MiB a second.
const FILL_PER_MIB: Duration = Duration::from_millis(200);

pub fn run(command: BenchCommand, connect: impl Fn() -> Outcome<Client>, output: Output) -> Outcome<u8> {
    let (targets, run) = match command {
        BenchCommand::List => return list(output).map(|()| 0),
        BenchCommand::Fio { targets, size, overwrite, engine, run } => {
            let mib = size >> 20;
            if mib < 64 {
                let remedy = "Give --size 64MiB or more.";
                return Err(Failure::new(Code::BenchSize, "fio needs 64 MiB at least", remedy));
            }
            let plan = plan(&run, "fio")?;
            // Ctrl-C only leaves a note, so the command can remove its files on the way out.
            sys::note_interrupts();
            let open = |name: &String| {
                let path = path_of(name, &connect)?;
                refuse_system_directory(&path)?;
                let place = Place::open(&path, mib, overwrite).map_err(failed)?;
                filled(name, On::Place { place, mib, engine: engine.clone() })
            };
            let targets = targets.iter().map(open).collect::<Outcome<Vec<_>>>()?;
            return measure(&plan, &targets, mib, &run, output);
        }
        BenchCommand::Sysbench { directories, run } => (directories, run),
    };
    let plan = plan(&run, "sysbench")?;
    sys::note_interrupts();
    targets.iter().try_for_each(|dir| refuse_system_directory(dir))?;
    let targets = targets.iter().map(|dir| database(dir)).collect::<Outcome<Vec<_>>>()?;
    measure(&plan, &targets, 0, &run, output)
}

/// Whether `mainstay bench` can run a case. The big ones need labs: their set-ups differ in the
/// file system and in the settings of the database.
fn borne(case: &Case) -> bool {
    !matches!(case, Case::Big(_))
}

fn list(output: Output) -> Outcome<()> {
    #[derive(Serialize)]
    struct Entry {
        name: String,
        title: String,
        measure: &'static str,
    }
    let entry = |case: Case| Entry { name: case.name(), title: case.title(), measure: case.measure().unit() };
    let list: Vec<Entry> = Case::all().filter(borne).map(entry).collect();
    output.result(&list, |list| {
        let row = |entry: &Entry| vec![entry.name.clone(), entry.measure.into(), entry.title.clone()];
        table(&["CASE", "MEASURES", "WHAT IT IS"], &list.iter().map(row).collect::<Vec<_>>())
    })
}

/// Returns the failure that an error of the benchmark is to the user.
fn failed(error: Error) -> Failure {
    let (code, remedy) = match &error {
        Error::NoCase { .. } => (Code::BenchCase, "`mainstay bench list` shows them."),
        Error::Occupied { .. } => {
            (Code::BenchOccupied, "Give another target, or --overwrite if all of it may be lost.")
        }
        Error::Unusable { .. } => (
            Code::BenchTarget,
            "Name a block device, a file or a directory of this machine that may be written.",
        ),
        Error::Samples { .. } => (Code::BenchOut, "Give another directory, or remove its samples.jsonl."),
        Error::System { doing, source } => {
            let is_program = doing.starts_with("start") && source.kind() == std::io::ErrorKind::NotFound;
            let install = "Install the program: fio, sysbench and mariadb-server are packages of their own.";
            (Code::BenchSystem, if is_program { install } else { remedy_of(source) })
        }
        _ => (
            Code::BenchFailed,
            "Mend what the message says, and run the command again; with --out it goes on where it ended.",
        ),
    };
    let source = std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
    Failure::new(code, format!("{error}{source}"), remedy)
}

fn plan(args: &BenchArgs, family: &str) -> Outcome<Plan> {
    let cases: Vec<Case> = Case::select(&args.only)
        .map_err(failed)?
        .into_iter()
        .filter(|case| case.family() == family)
        .collect();
    if cases.is_empty() {
        let remedy = "`mainstay bench list` shows all cases.";
        return Err(Failure::new(Code::BenchCase, format!("none of these is a case of {family}"), remedy)
            .with_exit(exit::USAGE));
    }
    Ok(Plan { cases, rounds: args.rounds as usize, seconds: u64::from(args.seconds) })
}

/// Something to measure, whatever keeps it there, and a name.
struct Measured {
    name: String,
    on: On,
}

enum On {
    Place { place: Place, mib: u64, engine: Option<String> },
    Database(Temporary),
}

fn path_of(name: &str, connect: &impl Fn() -> Outcome<Client>) -> Outcome<PathBuf> {
    match name.strip_prefix("resource:") {
        Some(resource) => device_of(resource, &connect()?),
        None => Ok(PathBuf::from(name)),
    }
}

/// Refuses to make files in a directory that only the system uses. A directory with room for
/// others, such as /home, is allowed.
fn refuse_system_directory(path: &Path) -> Outcome<()> {
    if !path.is_dir() {
        return Ok(());
    }
    let found = std::path::absolute(path).and_then(|path| resolve(&path));
    let found = found.or_fail(Code::BenchTarget, || format!("look at {}", path.display()))?;
    let Some(why) = needed(&found.join("mainstay-bench"), &[]) else { return Ok(()) };
    let remedy =
        "Name a directory on the file system that is to be measured, for example where a volume is mounted.";
    Err(Failure::new(Code::BadDirectory, format!("what is made in {} {why}", path.display()), remedy))
}

fn filled(name: &str, on: On) -> Outcome<Measured> {
    let measured = Measured { name: name.into(), on };
    let run = measured.run(0, 0).map_err(failed)?;
    let mut progress = Progress::new();
    progress
        .show(&format!("writing {} MiB of {name}, so that no later write pays for finding space", run.mib));
    let limit = SPARE + FILL_PER_MIB * u32::try_from(run.mib).unwrap_or(u32::MAX);
    started(&run.fill_words(), limit).map_err(failed)?;
    Ok(measured)
}

/// The device of the first volume, if it is on this node.
fn device_of(resource: &str, client: &Client) -> Outcome<PathBuf> {
    let view: ResourceView = client.get(&format!("/v1/resources/{}", checked_name(resource)?))?;
    let status: StatusView = client.get("/v1/status")?;
    let here = status.cluster.map(|cluster| cluster.this_node);
    let elsewhere =
        |why: String| Failure::new(Code::BenchResource, why, "Run the benchmark on the node of the primary.");
    if view.primary.is_none() || view.primary != here {
        let primary = view.primary.unwrap_or_else(|| "none".into());
        return Err(elsewhere(format!("the primary of {resource} is not on this node (it is {primary})")));
    }
    let mut devices =
        view.replicas.iter().filter_map(|replica| replica.live.as_ref()).flat_map(|live| &live.devices);
    let device = devices.find(|device| device.volume == 0);
    device
        .map(|device| device.path.clone().into())
        .ok_or_else(|| elsewhere(format!("{resource} has no device yet")))
}

fn database(dir: &Path) -> Outcome<Measured> {
    let mut progress = Progress::new();
    progress.show(&format!("making a database in {}", dir.display()));
    let database = Temporary::start(dir).map_err(failed)?;
    started(&database.server().prepare(), SPARE).map_err(failed)?;
    Ok(Measured { name: dir.display().to_string(), on: On::Database(database) })
}

fn started(words: &[String], limit: Duration) -> mainstay_bench::Result<String> {
    if sys::interrupted() {
        return Err(Error::SetUp("interrupted".into()));
    }
    command::output(Command::new(&words[0]).args(&words[1..]), limit)
}

impl Measured {
    fn run(&self, seconds: u64, seed: u64) -> mainstay_bench::Result<fio::Run> {
        match &self.on {
            On::Place { place, mib, engine } => {
                let target = Target::Path(place.path.clone());
                Ok(fio::Run { target, mib: *mib, seconds, seed, engine: engine.clone() })
            }
            On::Database(_) => Err(Error::SetUp(format!("{} is a database and no device", self.name))),
        }
    }

    fn once(&self, case: &Case, seconds: u64, seed: u64) -> mainstay_bench::Result<Figures> {
        let limit = Duration::from_secs(seconds) + SPARE;
        match (case, &self.on) {
            (Case::Fio(load), _) => fio::parse(load, &started(&self.run(seconds, seed)?.words(load), limit)?),
            (Case::Sysbench(load), On::Database(database)) => {
                let text = started(&database.server().run(*load, seconds), limit)?;
                Ok(sysbench::parse_summary(&text)?.figures())
            }
            (Case::Big(_), _) => Err(Error::SetUp("big cases run in labs only: make bench-big".into())),
            (Case::Sysbench(_), On::Place { .. }) => {
                Err(Error::SetUp(format!("{} has no database", self.name)))
            }
        }
    }
}

impl SetUp for Measured {
    fn name(&self) -> &str {
        &self.name
    }

    fn bears(&self, case: &Case) -> bool {
        borne(case) && (case.family() == "fio") == matches!(self.on, On::Place { .. })
    }

    fn warm_up(&self, case: &Case) -> mainstay_bench::Result<u64> {
        let warms = case.family() == "sysbench";
        if warms { Ok(self.once(case, WARM_UP_S, 0)?.operations) } else { Ok(0) }
    }

    fn run(&self, case: &Case, seconds: u64, seed: u64) -> mainstay_bench::Result<Figures> {
        self.once(case, seconds, seed)
    }

    fn role(&self, process: &Process) -> Option<String> {
        if let On::Database(database) = &self.on
            && database.pid() == Some(process.pid)
        {
            return Some("mariadbd".into());
        }
        // Engines and agents of this machine, whichever resource they serve.
        let words = process.words();
        let own = words.first().is_some_and(|word| word.rsplit('/').next() == Some("mainstay"));
        let role = words.get(1).filter(|role| ["engine", "agent"].contains(&role.as_str()));
        role.filter(|_| own).cloned()
    }
}

fn measure(plan: &Plan, targets: &[Measured], mib: u64, args: &BenchArgs, output: Output) -> Outcome<u8> {
    let out = match &args.out {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("mainstay-bench.{}", std::process::id())),
    };
    std::fs::create_dir_all(&out).or_fail(Code::BenchOut, || format!("make {}", out.display()))?;
    let terms =
        Terms { seconds: plan.seconds, mib, version: concat!("mainstay ", env!("CARGO_PKG_VERSION")).into() };
    let mut log = Log::open(&out.join("samples.jsonl"), terms).map_err(failed)?;
    let set_ups: Vec<&dyn SetUp> = targets.iter().map(|target| target as &dyn SetUp).collect();
    let result = {
        let mut progress = Progress::new();
        progress.show(&format!("about {:.0} minutes", plan.estimate_s(set_ups.len()) / 60.0));
        turns::run(plan, &set_ups, &mut log, &mut |line| progress.show(line))
    };
    let describe = |target: &Measured| Description { name: target.name.clone(), text: target.text() };
    let programs: [&[&str]; 3] =
        [&["fio", "--version"], &["sysbench", "--version"], &["mariadbd", "--version"]];
    let disk = targets.first().map_or_else(|| Path::new("/").into(), Measured::path);
    let words: Vec<String> = std::env::args().skip(1).collect();
    let report = Report::new(
        format!("mainstay {}", words.join(" ")),
        Machine::describe(&disk, &programs),
        targets.iter().map(describe).collect(),
        &log,
    );
    match &args.out {
        Some(_) => report.write(&out).map_err(failed)?,
        None => {
            std::fs::remove_dir_all(&out).or_fail(Code::BenchOut, || format!("remove {}", out.display()))?
        }
    }
    result.map_err(failed)?;
    output.result(&report, |report| summary(&report.rows))?;
    Ok(u8::from(!report.failures.is_empty()))
}

impl Measured {
    fn path(&self) -> PathBuf {
        match &self.on {
            On::Place { place, .. } => place.path.clone(),
            On::Database(_) => PathBuf::from(&self.name),
        }
    }

    fn text(&self) -> String {
        match &self.on {
            On::Place { place, mib, .. } => format!("{mib} MiB of {}", place.path.display()),
            On::Database(_) => format!("MariaDB in {}", self.name),
        }
    }
}

fn summary(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let ratio = row.ratio.map_or("-".into(), |ratio| number(ratio.median));
        vec![
            row.case.clone(),
            row.set_up.clone(),
            format!("{} {}", number(row.value.median), row.measure.unit()),
            format!("{}-{}", number(row.value.min), number(row.value.max)),
            ratio,
            number(row.latency_mean_us.median),
            number(row.latency_max_us),
            number(row.cpu_us.median),
        ]
    };
    let head = ["CASE", "TARGET", "MEDIAN", "RANGE", "RATIO", "MEAN µs", "MAX µs", "CPU µs/OP"];
    table(&head, &rows.iter().map(line).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_cases_are_for_labs_only() {
        let args = |word: &str| BenchArgs { only: vec![word.into()], rounds: 1, seconds: 1, out: None };
        assert!(plan(&args("big"), "sysbench").is_err());
        assert_eq!(plan(&args("oltp-wo-t1"), "sysbench").unwrap().cases.len(), 1);
        assert!(Case::all().filter(borne).all(|case| case.family() != "big"));
    }
}
