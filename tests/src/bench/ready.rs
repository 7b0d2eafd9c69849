//! A set-up that stands: somewhere to write to, or a database, or both.

use crate::bench::big::{self, Addresses, Engine, Pages};
use crate::bench::{ADDRESSES, FIRST};
use crate::lab::Lab;
use crate::local::{DISK, Device, Server};
use crate::plain::Plain;
use crate::{sysbench, wait_for};
use anyhow::{Context, Result, ensure};
use mainstay_bench::bytes::Counters;
use mainstay_bench::cpu::Process;
use mainstay_bench::fio::{self, Target};
use mainstay_bench::turns::SetUp;
use mainstay_bench::{Case, Error, Figures};
use std::process::Child;
use std::time::Duration;

/// Load before sysbench is measured, in seconds. fio needs none: its target was written whole.
const WARM_UP_S: u64 = 2;
/// Longest time for a database to answer.
const LIMIT: Duration = Duration::from_secs(120);
const PLAIN_PORT: u16 = 3307;
/// Name of the plain device without a doublewrite buffer.
pub const PLAIN_ONCE: &str = "plain-once";
/// Size of a volume with a database on it; tables and redo log take about 300 MiB.
pub const DATABASE_MIB: u64 = 1024;

/// Demands of the chosen cases on a set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    pub fio: bool,
    pub database: bool,
    pub big: BigNeeds,
    /// Size of the region that fio writes to, in MiB.
    pub mib: u64,
}

/// Demands of the chosen big cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BigNeeds {
    pub mariadb: bool,
    pub postgresql: bool,
    /// A table is loaded into space that was never used. So all space has to be written before.
    pub fill: bool,
}

impl BigNeeds {
    fn of(cases: &[Case]) -> Self {
        use mainstay_bench::big::Load;
        let mut needs = Self::default();
        for case in cases {
            match case {
                Case::Big(Load::Pgbench) => needs.postgresql = true,
                Case::Big(load) => (needs.mariadb, needs.fill) = (true, needs.fill | (*load == Load::Table)),
                Case::Fio(_) | Case::Sysbench(_) => {}
            }
        }
        needs
    }

    #[must_use]
    pub fn any(self) -> bool {
        self.mariadb || self.postgresql
    }

    /// The databases that a set-up needs. PostgreSQL has no doublewrite buffer to do without.
    pub fn engines(self, pages: Pages) -> impl Iterator<Item = Engine> {
        let postgresql = self.postgresql && pages == Pages::Twice;
        let all = [(Engine::MariaDb, self.mariadb), (Engine::PostgreSql, postgresql)];
        all.into_iter().filter(|(_, wanted)| *wanted).map(|(engine, _)| engine)
    }
}

impl Needs {
    #[must_use]
    pub fn of(cases: &[Case], mib: u64) -> Self {
        let any = |family: &str| cases.iter().any(|case| case.family() == family);
        Self { fio: any("fio"), database: any("sysbench"), big: BigNeeds::of(cases), mib }
    }
}

/// See the top of this file.
pub struct Ready<'a> {
    pub(super) lab: &'a Lab,
    pub(super) name: String,
    /// Description of the set-up, so that a reader can build it again.
    pub text: String,
    target: Option<Target>,
    mib: u64,
    /// Address of the database, as `address:port`.
    database: Option<String>,
    /// Databases ten times as large as their buffer pool.
    pub(super) big: Addresses,
    /// Words before fio's own.
    fio_front: Vec<String>,
    held: Vec<Held<'a>>,
}

/// A device, server or program that has to live as long as its set-up.
pub enum Held<'a> {
    Device(Device),
    Server(Server<'a>),
    Plain(Plain<'a>),
    Program(Program),
}

/// A program that ends with this.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'a> Ready<'a> {
    #[must_use]
    pub fn new(lab: &'a Lab, name: &str, text: impl Into<String>, needs: Needs) -> Self {
        Self {
            lab,
            name: name.into(),
            text: text.into(),
            target: None,
            mib: needs.mib,
            database: None,
            big: Addresses::default(),
            fio_front: vec![],
            held: vec![],
        }
    }

    /// The baseline: the node's own disk.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn plain(lab: &'a Lab, needs: Needs) -> Result<Self> {
        let text = "file on the node's disk (a directory of the machine's file system), loop device with direct I/O; the database on \
                    XFS on it";
        let mut ready = Self::new(lab, "plain", text, needs);
        if needs.fio {
            let image = format!("{DISK}/fio.img");
            crate::local::image(lab, FIRST, &image, needs.mib)?;
            let device = Device::attach(lab, FIRST, &image, "plain-device.log")?;
            ready.write_to(Target::Path(device.path.clone().into()))?;
            ready.hold(Held::Device(device));
        }
        if needs.database {
            let plain = Plain::start(lab, FIRST, ADDRESSES[0], PLAIN_PORT, DATABASE_MIB)?;
            let address = plain.address().to_owned();
            ready.hold(Held::Plain(plain));
            ready.serve(address)?;
        }
        big::plain(&mut ready, lab, needs.big, Pages::Twice)?;
        Ok(ready)
    }

    /// The same without a doublewrite buffer, for comparison: a power cut may tear a page there.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn plain_once(lab: &'a Lab, needs: Needs) -> Result<Self> {
        let text = "as plain, but the database without doublewrite and on ext4 with clusters of 16 KiB. UNSAFE, for comparison only";
        let mut ready = Self::new(lab, PLAIN_ONCE, text, needs);
        big::plain(&mut ready, lab, needs.big, Pages::Once)?;
        Ok(ready)
    }

    pub fn hold(&mut self, held: Held<'a>) {
        self.held.push(held);
    }

    /// Words that stand before fio's own, as `env NAME=VALUE`.
    pub fn fio_front(&mut self, words: &[&str]) {
        self.fio_front = words.iter().map(|&word| word.to_owned()).collect();
    }

    /// Lets fio work on this, after it has been written once from end to end.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_to(&mut self, target: Target) -> Result<()> {
        let run = self.fio_run(target.clone(), 0, 0);
        self.fio(&run.fill_words()).with_context(|| format!("{}: fill the device", self.name))?;
        self.target = Some(target);
        Ok(())
    }

    /// Starts a database on the first node with its data below `root`, and fills its tables.
    ///
    /// # Errors
    /// When it cannot be started or does not answer in time.
    pub fn serve_from(&mut self, root: &str, port: u16) -> Result<()> {
        let mut server = Server::prepare(self.lab, FIRST, root, port, &[])?;
        server.launch(&[])?;
        self.hold(Held::Server(server));
        self.serve(format!("{}:{port}", ADDRESSES[0]))
    }

    /// Waits for the database at this address and fills its tables.
    ///
    /// # Errors
    /// When it does not answer in time.
    pub fn serve(&mut self, address: String) -> Result<()> {
        wait_for(&self.name, LIMIT, || sysbench::prepare(self.lab, &address))?;
        self.database = Some(address);
        Ok(())
    }

    fn fio_run(&self, target: Target, seconds: u64, seed: u64) -> fio::Run {
        fio::Run { target, mib: self.mib, seconds, seed, engine: None }
    }

    fn fio(&self, words: &[String]) -> Result<String> {
        let words: Vec<&str> = self.fio_front.iter().chain(words).map(String::as_str).collect();
        self.lab.exec(FIRST, &words)
    }

    fn measure(&self, case: &Case, seconds: u64, seed: u64) -> Result<Figures> {
        match case {
            Case::Fio(load) => {
                let target = self.target.clone().context("no device")?;
                let text = self.fio(&self.fio_run(target, seconds, seed).words(load))?;
                Ok(fio::parse(load, &text)?)
            }
            Case::Sysbench(load) => {
                let address = self.database.as_deref().context("no database")?;
                let summary = sysbench::once(self.lab, address, *load, seconds)?;
                ensure!(summary.ignored_errors < summary.transactions, "more errors than transactions");
                Ok(summary.figures())
            }
            Case::Big(load) => big::run(self.lab, &self.big, *load, seconds),
        }
    }
}

fn set_up_error(error: anyhow::Error) -> Error {
    Error::SetUp(format!("{error:#}"))
}

impl SetUp for Ready<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn bears(&self, case: &Case) -> bool {
        match case {
            Case::Fio(_) => self.target.is_some(),
            Case::Sysbench(_) => self.database.is_some(),
            Case::Big(load) => self.big.bears(*load),
        }
    }

    fn warm_up(&self, case: &Case) -> mainstay_bench::Result<u64> {
        let warmed = match case {
            Case::Fio(_) => Ok(0),
            Case::Sysbench(_) => self.measure(case, WARM_UP_S, 0).map(|figures| figures.operations),
            Case::Big(load) => big::warm_up(self.lab, &self.big, *load),
        };
        warmed.map_err(set_up_error)
    }

    fn settle(&self, case: &Case) -> mainstay_bench::Result<()> {
        let Case::Big(load) = case else { return Ok(()) };
        big::settle(self.lab, &self.big, *load).map_err(set_up_error)
    }

    fn counters(&self, case: &Case) -> Option<Counters> {
        if let Case::Big(_) = case { big::counters(self.lab) } else { None }
    }

    fn run(&self, case: &Case, seconds: u64, seed: u64) -> mainstay_bench::Result<Figures> {
        self.measure(case, seconds, seed).map_err(set_up_error)
    }

    /// Everything in the lab's nodes has to do with it; set-ups that are up at the same time are
    /// idle.
    fn role(&self, process: &Process) -> Option<String> {
        let group = process.group();
        let inside = group.strip_prefix(&format!("/mainstay-lab-{}/", self.lab.name))?;
        let node = inside.split('/').next().unwrap_or_default();
        let words = process.words();
        let own = words.first().is_some_and(|word| word.rsplit('/').next() == Some("mainstay"));
        let name = if own { words.get(1).map_or("mainstay", String::as_str) } else { process.name.as_str() };
        Some(format!("{node} {name}"))
    }
}
