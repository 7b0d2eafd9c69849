//! `make bench`: the same loads on a plain device, on Mainstay and on its peers, each between two
//! runs on the plain device. What is run and how to read the results is in bench/README.md.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use mainstay_bench::machine::Machine;
use mainstay_bench::report::{Description, Report};
use mainstay_bench::turns::{self, Failure, Log, Plan, SetUp, Terms};
use mainstay_bench::{Case, command};
use mainstay_tests::bench::big::{Pages, tables};
use mainstay_tests::bench::mainstay::{self, Copies};
use mainstay_tests::bench::peers::{self, Peer};
use mainstay_tests::bench::ready::PLAIN_ONCE;
use mainstay_tests::bench::{NODES, Needs, Ready};
use mainstay_tests::interrupt;
use mainstay_tests::lab::Lab;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs the benchmarks on this machine, in labs of three nodes. Needs root.
#[derive(Parser, Debug)]
#[command(name = "bench")]
struct Args {
    /// Cases: names, beginnings like `rw4k-j8-*`, `fio`, `sysbench`, `big`. All but the big ones if
    /// not given.
    #[arg(long, value_delimiter = ',', value_name = "CASES")]
    only: Vec<String>,
    /// Set-ups of Mainstay: `single`, `two` and `three` replicas in mode C; `two-a`, `three-a`,
    /// `two-b`, `three-b` in modes A and B; for the big cases also `single-once`, `two-once`,
    /// `three-once` and the unsafe `plain-once`, without doublewrite. `plain`, the baseline, is
    /// always there.
    #[arg(long, value_delimiter = ',', default_value = "plain,single,three", value_name = "SET-UPS")]
    set_ups: Vec<String>,
    /// Peers: `qemu`, `qemu-fuse`, `ceph`, `gluster`, `galera`, `semisync`, or `all`. `make
    /// bench-deps` installs them.
    #[arg(long, value_delimiter = ',', value_name = "PEERS")]
    peers: Vec<String>,
    /// How often each case is run on each set-up.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long each run is measured.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Size of what fio writes to.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Directory of the results; one that an interrupted run has left is continued. A new one if
    /// not given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// List the cases and end.
    #[arg(long)]
    list: bool,
    /// Remove what an interrupted run has left of its labs, and end.
    #[arg(long)]
    down: bool,
}

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Work that the arguments choose.
struct Chosen {
    plan: Plan,
    needs: Needs,
    plain_once: bool,
    copies: Vec<Copies>,
    peers: Vec<&'static Peer>,
}

impl Args {
    fn run(&self) -> Result<ExitCode> {
        if self.list {
            for case in Case::all() {
                println!("{:<16} {}", case.name(), case.title());
            }
            return Ok(ExitCode::SUCCESS);
        }
        let (own, others) = (Arc::new(Lab::new(mainstay::LAB)?), Arc::new(Lab::new(peers::LAB)?));
        if self.down {
            own.down().and(others.down()).and(tables::remove())?;
            return Ok(ExitCode::SUCCESS);
        }
        let chosen = self.chosen()?;
        let used = [(chosen.with_own(), &own), (!chosen.peers.is_empty(), &others)];
        let labs = used.into_iter().filter(|(used, _)| *used).map(|(_, lab)| lab.clone()).collect();
        interrupt::remove(labs, "make bench-down")?;
        let start = Instant::now();
        let bench = Bench::new(self, &chosen)?;
        println!("{}\nresults: {}", chosen.estimate(), bench.dir.display());
        let failed = bench.run(&own, &others, &chosen)?;
        println!(
            "The benchmark took {:.0} s; the report is {}/report.md",
            start.elapsed().as_secs_f64(),
            bench.dir.display()
        );
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn chosen(&self) -> Result<Chosen> {
        ensure!(self.rounds > 0 && self.seconds > 0, "at least one round of one second");
        ensure!(self.mib >= 64, "fio needs 64 MiB at least");
        let cases = Case::select(&self.only)?;
        for name in &self.set_ups {
            let names: Vec<_> = mainstay::ALL.iter().map(|copies| copies.name).collect();
            let names = [&["plain", PLAIN_ONCE], &names[..]].concat();
            ensure!(names.contains(&&**name), "there is no set-up `{name}`; there are {}", names.join(", "));
        }
        let needs = Needs::of(&cases, self.mib);
        // Without doublewrite there is nothing but MariaDB's big cases.
        let wanted = |copies: &Copies| {
            let bears = copies.pages == Pages::Twice || needs.big.mariadb;
            bears && self.set_ups.iter().any(|name| name == copies.name)
        };
        let peers = match &self.peers[..] {
            [all] if all == "all" => peers::ALL.iter().map(|peer| peer.name).collect(),
            names => names.iter().map(String::as_str).collect::<Vec<_>>(),
        };
        Ok(Chosen {
            needs,
            plain_once: self.set_ups.iter().any(|name| name == PLAIN_ONCE) && needs.big.mariadb,
            plan: Plan { cases, rounds: self.rounds, seconds: self.seconds },
            copies: mainstay::ALL.into_iter().filter(wanted).collect(),
            peers: peers.into_iter().map(Peer::named).collect::<Result<_>>()?,
        })
    }
}

impl Chosen {
    fn estimate(&self) -> String {
        let peers = self.peers.len() as f64 * self.plan.estimate_s(2);
        let set_ups = 1 + usize::from(self.plain_once) + self.copies.len();
        let own = if self.with_own() { self.plan.estimate_s(set_ups) } else { 0.0 };
        format!(
            "{} cases, {} rounds of {} s each; about {:.0} minutes and what building the set-ups takes",
            self.plan.cases.len(),
            self.plan.rounds,
            self.plan.seconds,
            (own + peers) / 60.0
        )
    }

    /// Without a set-up and without a peer the baseline is measured alone.
    fn with_own(&self) -> bool {
        !self.copies.is_empty() || self.plain_once || self.peers.is_empty()
    }
}

/// A run and where its results go.
struct Bench {
    dir: PathBuf,
    terms: Terms,
    machine: Machine,
    command: String,
}

impl Bench {
    fn new(args: &Args, chosen: &Chosen) -> Result<Self> {
        let dir = match &args.out {
            Some(dir) => dir.clone(),
            None => new_dir()?,
        };
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let mut programs: Vec<&[&str]> =
            vec![&["fio", "--version"], &["sysbench", "--version"], &["mariadbd", "--version"]];
        if chosen.needs.big.postgresql {
            programs.push(&["pgbench", "--version"]);
        }
        programs.extend(chosen.peers.iter().map(|peer| peer.version));
        let binary = mainstay_tests::lab::built("mainstay")?;
        let version = command::output(Command::new(&binary).arg("--version"), Duration::from_secs(10))?;
        let words: Vec<String> = std::env::args().skip(1).collect();
        Ok(Self {
            dir,
            terms: Terms { seconds: args.seconds, mib: args.mib, version: version.trim().into() },
            machine: Machine::describe(Path::new("/var/tmp"), &programs),
            command: format!("make bench ARGS=\"{}\"", words.join(" ")),
        })
    }

    /// Runs everything. Returns whether a set-up gave no figures.
    fn run(&self, own: &Lab, others: &Lab, chosen: &Chosen) -> Result<bool> {
        let mut log = Log::open(&self.dir.join("samples.jsonl"), self.terms.clone())?;
        let mut texts: Vec<Description> = Vec::new();
        let mut without = Vec::new();
        let _tables = tables::make(chosen.needs.big)?;
        if chosen.with_own() {
            let result = self.own(own, chosen, &mut log, &mut texts);
            interrupt::give_way();
            own.down()?;
            result?;
        }
        for peer in &chosen.peers {
            println!("\n── {}", peer.name);
            let result = self.peer(others, peer, chosen, &mut log, &mut texts);
            interrupt::give_way();
            others.down()?;
            if let Err(error) = result {
                eprintln!("{}: {error:#}", peer.name);
                let why = format!("{error:#}");
                without.push(Failure { set_up: peer.name.into(), case: "-".into(), round: 0, why });
            }
        }
        let mut report = self.write(&log, &texts)?;
        let failed = !without.is_empty() || !report.failures.is_empty();
        if !without.is_empty() {
            report.failures.extend(without);
            report.write(&self.dir)?;
        }
        Ok(failed)
    }

    fn own(&self, lab: &Lab, chosen: &Chosen, log: &mut Log, texts: &mut Vec<Description>) -> Result<()> {
        println!("\n── mainstay");
        lab.up_with(NODES.len() as u8, &["--directories"])?;
        let mut ready = vec![Ready::plain(lab, chosen.needs)?];
        if chosen.plain_once {
            ready.push(Ready::plain_once(lab, chosen.needs)?);
        }
        for copies in &chosen.copies {
            ready.push(copies.start(lab, chosen.needs)?);
        }
        self.measure(&ready, chosen, log, texts)
    }

    fn peer(
        &self,
        lab: &Lab,
        peer: &Peer,
        chosen: &Chosen,
        log: &mut Log,
        texts: &mut Vec<Description>,
    ) -> Result<()> {
        lab.up_with(NODES.len() as u8, &["--directories", "--plain"])?;
        let ready = vec![Ready::plain(lab, chosen.needs)?, peer.start(lab, chosen.needs)?];
        if !chosen.plan.cases.iter().any(|case| ready[1].bears(case)) {
            bail!("bears none of the chosen cases");
        }
        self.measure(&ready, chosen, log, texts)
    }

    fn measure(
        &self,
        ready: &[Ready<'_>],
        chosen: &Chosen,
        log: &mut Log,
        texts: &mut Vec<Description>,
    ) -> Result<()> {
        for ready in ready
            .iter()
            .filter(|ready| !texts.iter().any(|text| text.name == ready.name()))
            .collect::<Vec<_>>()
        {
            texts.push(Description { name: ready.name().into(), text: ready.text.clone() });
        }
        let set_ups: Vec<&dyn SetUp> = ready.iter().map(|ready| ready as &dyn SetUp).collect();
        // One round at a time, so that a report of the finished rounds is there at any moment.
        for rounds in 1..=chosen.plan.rounds {
            let plan = Plan { rounds, ..chosen.plan.clone() };
            turns::run(&plan, &set_ups, log, &mut |line| println!("round {rounds}: {line}"))?;
            self.write(log, texts)?;
        }
        Ok(())
    }

    fn write(&self, log: &Log, texts: &[Description]) -> Result<Report> {
        let report = Report::new(self.command.clone(), self.machine.clone(), texts.to_vec(), log);
        report.write(&self.dir)?;
        Ok(report)
    }
}

/// Beside what the build has left, named after the time.
fn new_dir() -> Result<PathBuf> {
    let own = std::env::current_exe().context("path of this program")?;
    let target = own.ancestors().nth(2).context("the build's directory")?;
    let now = command::output(Command::new("date").args(["-u", "+%Y%m%d-%H%M%S"]), Duration::from_secs(10))?;
    Ok(target.join("bench").join(now.trim()))
}
