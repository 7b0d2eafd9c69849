//! `mainstay-sim`: runs seeds, explains one, hunts planted bugs. The library does the work. This
//! file has the arguments, the time of day and the pages that people read.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the tool around the simulation reads the time, starts git and writes the record; no run sees any of it"
)]

mod meter;

use clap::{Args, Parser, Subcommand};
use mainstay_sim::campaign::{self, Extent, Hunt, Mode, Tally};
use mainstay_sim::explain::{self, PARTS, View};
use mainstay_sim::oracle::Violation;
use mainstay_sim::plan::Plan;
use mainstay_sim::record::{self, days, thousands};
use mainstay_sim::run::{Outcome, RunOptions, run};
use mainstay_sim::trace::Part;
use mainstay_sim::{coverage, prose, shrink};
use mainstay_types::simulation::{self, BUGS, Bug, BugInfo};
use meter::{Meter, deadline};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints a line. When the reader has closed the output, as `head` does, ends the program quietly.
macro_rules! say {
    ($($part:tt)*) => {
        if writeln!(std::io::stdout(), $($part)*).is_err() {
            std::process::exit(1);
        }
    };
}

/// Runs that a shrunk plan may cost.
const SHRINK_RUNS: usize = 2000;
/// The same when a plan is made smaller unasked, and the time that it may take.
const SHRINK_RUNS_UNASKED: usize = 500;
const SHRINK_MINUTES_UNASKED: f64 = 3.0;
/// Number of violations that end a campaign: more of the same say nothing new.
const VIOLATIONS_MAX: u64 = 20;

/// Runs whole clusters of Mainstay's cores in one thread, from a seed.
///
/// The same seed and the same commit give the same run. See docs/internals/simulator.md.
#[derive(Parser)]
#[command(name = "mainstay-sim", args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Args)]
struct Runs {
    /// Run this one seed
    #[arg(long, value_name = "N", required_unless_present = "seeds", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print the run as columns, one for each node
    #[arg(long, requires = "seed")]
    explain: bool,
    /// Make the plan of a seed that fails as small as possible; without --explain it is made
    /// smaller in any case
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Say what went wrong, and leave the plan as it is
    #[arg(long, requires = "seed", conflicts_with = "shrink")]
    no_shrink: bool,
    /// Leave a rule out: a planted bug's name, see `mainstay-sim bugs --list`
    #[arg(long, requires = "seed", value_name = "NAME", value_parser = bug_named)]
    bug: Option<&'static BugInfo>,
    /// The seed's plan with damage that no cluster survives: the only right end is correct data or
    /// a clear stop
    #[arg(long, requires = "seed")]
    unsurvivable: bool,
    /// The seed's plan with disks that lie, which is not promised to be survived
    #[arg(long, requires = "seed", conflicts_with = "unsurvivable")]
    beyond: bool,
    /// With --explain: lines from this time on
    #[arg(long, requires = "explain", value_name = "MS", default_value_t = 0)]
    from_ms: u64,
    /// With --explain: lines up to this time
    #[arg(long, requires = "explain", value_name = "MS", default_value_t = u64::MAX, hide_default_value = true)]
    to_ms: u64,
    /// With --explain: only these parts (faults and verdicts are always shown)
    #[arg(long, requires = "explain", value_name = "PART,...", value_delimiter = ',', value_parser = part_named)]
    parts: Option<Vec<Part>>,
    /// With --explain: what engines say to each other, too; as does naming the part `message`
    #[arg(long, requires = "explain")]
    messages: bool,
    /// With --explain: characters in a line
    #[arg(long, requires = "explain", value_name = "N", default_value_t = 160)]
    width: usize,
    /// Run so many seeds on all cores; every tenth has damage that no cluster survives
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    #[command(flatten)]
    many: Many,
}

#[derive(Args)]
struct Many {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Begin no further run after so many minutes
    #[arg(long, value_name = "M", conflicts_with = "seed")]
    minutes: Option<f64>,
    /// Threads; all cores if not given
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    threads: Option<usize>,
}

#[derive(Subcommand)]
enum Command {
    /// Plant each bug and count in how many seeds it is caught
    Bugs {
        /// Only these
        #[arg(value_name = "NAME", value_parser = bug_named)]
        names: Vec<&'static BugInfo>,
        /// Only list them
        #[arg(long)]
        list: bool,
        /// Most seeds for each
        #[arg(long, value_name = "N", default_value_t = 2000)]
        seeds: u64,
        /// Catches after which the next bug's turn comes
        #[arg(long, value_name = "N", default_value_t = 3)]
        enough: u64,
        /// Write the table into this page
        #[arg(long, value_name = "PAGE")]
        record: Option<PathBuf>,
        /// Write the seeds that caught each into this file, for the test of planted bugs
        #[arg(long, value_name = "FILE")]
        record_seeds: Option<PathBuf>,
        #[command(flatten)]
        many: SubMany,
    },
    /// Run seeds for a long time, and record what came of it
    Soak {
        #[arg(long, value_name = "M")]
        minutes: f64,
        /// Append a row to this page
        #[arg(long, value_name = "PAGE")]
        record: Option<PathBuf>,
        /// The first seed; otherwise the one after the last in the record
        #[arg(long, value_name = "N")]
        from: Option<u64>,
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
        /// Most seeds for each planted bug; 0: none are hunted
        #[arg(long, value_name = "N", default_value_t = 1000)]
        bug_seeds: u64,
        /// Today, if not what the machine says
        #[arg(long, value_name = "YYYY-MM-DD")]
        date: Option<String>,
    },
    /// Run plans with clients and faults on clusters of one size, one after the other, and say how
    /// fast that goes
    Speed {
        /// Nodes of a cluster
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=5))]
        nodes: u32,
        /// The first so many seeds whose clusters are of this size
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        /// The first seed
        #[arg(long, value_name = "N", default_value_t = 0)]
        from: u64,
    },
    /// Run seeds and list which marks of the cores were never reached
    Coverage {
        /// Only this mark: say which seeds, the first three, come to it
        #[arg(long, value_name = "MARK", conflicts_with = "threads")]
        of: Option<String>,
        #[arg(long, value_name = "N", default_value_t = 200)]
        seeds: u64,
        #[command(flatten)]
        many: SubMany,
    },
}

#[derive(Args)]
struct SubMany {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Begin no further run after so many minutes
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Threads; all cores if not given
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Runs {
    /// Whether messages between engines are to be shown.
    fn messages(&self) -> bool {
        self.messages || self.parts.as_ref().is_some_and(|parts| parts.contains(&Part::Message))
    }

    /// Tells whether a plan that fails is made smaller unasked. It is not when an operator reads
    /// the whole plan, or has said no.
    fn shrinks_unasked(&self) -> bool {
        !(self.shrink || self.no_shrink || self.explain)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match arguments.command {
        None => match arguments.runs.seed {
            Some(seed) => one(seed, &arguments.runs),
            None => Ok(many(arguments.runs.seeds.unwrap_or_default(), &arguments.runs.many)),
        },
        Some(Command::Bugs { list: true, .. }) => Ok(list_bugs()),
        Some(Command::Bugs { names, seeds, enough, record, record_seeds, many, .. }) => {
            bugs(&names, seeds, enough, (record.as_deref(), record_seeds.as_deref()), &many)
        }
        Some(Command::Soak { minutes, record, from, threads, bug_seeds, date }) => {
            soak(minutes, record.as_deref(), from, threads, bug_seeds, date)
        }
        Some(Command::Speed { nodes, seeds, from }) => Ok(speed(nodes, seeds, from)),
        Some(Command::Coverage { of: Some(mark), seeds, many }) => list_reaching_seeds(&mark, seeds, &many),
        Some(Command::Coverage { of: None, seeds, many }) => Ok(show_coverage(seeds, &many)),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("mainstay-sim: {why}");
            ExitCode::from(2)
        }
    }
}

/// One seed. `true`: nothing went wrong.
fn one(seed: u64, runs: &Runs) -> Result<bool, String> {
    let mode = match (runs.unsurvivable, runs.beyond) {
        (true, _) => Mode::Unsurvivable,
        (_, true) => Mode::Beyond,
        _ => Mode::Survivable,
    };
    let bug = runs.bug.map(|info| info.bug);
    let mut plan = mode.plan(seed);
    if runs.shrink {
        let mut count = 0;
        let mut once = |plan: &Plan| {
            count += 1;
            run(plan, &RunOptions { bug, ..RunOptions::default() }).violation
        };
        let steps = plan.steps.len();
        plan = shrink::shrink(&plan, &mut once, SHRINK_RUNS);
        if count == 1 {
            eprintln!("there is nothing to shrink: the run does not fail");
        } else {
            eprintln!("{steps} steps became {} in {count} runs", plan.steps.len());
        }
    }
    let outcome = run(&plan, &RunOptions { keep_lines: runs.explain, messages: runs.messages(), bug });
    if runs.explain {
        let mut parts = runs.parts.clone();
        if let Some(parts) = &mut parts
            && runs.messages
        {
            parts.push(Part::Message);
        }
        let view = View { width: runs.width, from_ms: runs.from_ms, to_ms: runs.to_ms, parts };
        say!("{}", explain::explain(&plan, &outcome, &view).trim_end());
    } else {
        if runs.shrink {
            say!("{}", prose::plan(&plan));
        }
        print_outcome(&outcome);
    }
    if outcome.violation.is_none() {
        return Ok(true);
    }
    let planted = runs.bug.map_or(String::new(), |info| format!(" --bug {}", info.name));
    let shrunk = if runs.shrink { " --shrink" } else { "" };
    say!("repeat it: mainstay-sim --seed {seed}{}{planted}{shrunk} --explain", mode.argument());
    if runs.shrinks_unasked() {
        print_shrunk("Made smaller", &plan, bug);
    }
    Ok(false)
}

fn print_outcome(outcome: &Outcome) {
    say!(
        "{} simulated, {} events, {} writes acknowledged, hash {:016x}",
        days(outcome.simulated_us),
        thousands(outcome.events),
        thousands(outcome.acknowledged),
        outcome.hash
    );
    match &outcome.violation {
        None => say!("nothing went wrong"),
        Some(violation) => say!("VIOLATION of {}: {}", violation.id, violation.text),
    }
}

fn many(seeds: u64, many: &Many) -> bool {
    let meter = Meter::start();
    let over = deadline(many.minutes);
    let extent = Extent { from: many.from, seeds, threads: threads(many.threads), over: &over };
    let tally = campaign::campaign(extent, VIOLATIONS_MAX, &run);
    print_tally(&tally, meter.core_seconds(extent.threads));
    report(&tally)
}

fn print_tally(tally: &Tally, core_seconds: f64) {
    for (name, count) in &tally.counters {
        say!("{:>12}  {name}", thousands(*count));
    }
    say!(
        "{} seeds ({} of them twice): {} simulated, {} simulated seconds per core-second, {} writes acknowledged",
        thousands(tally.seeds),
        thousands(tally.repeated),
        days(tally.simulated_us),
        thousands((tally.simulated_us as f64 / 1e6 / core_seconds.max(0.001)) as u64),
        thousands(tally.acknowledged),
    );
}

/// Says what was found, the first of it made small. `true`: nothing.
fn report(tally: &Tally) -> bool {
    for seed in &tally.differ {
        say!("NOT REPEATABLE: two runs of seed {seed} differ");
        say!("  repeat it: mainstay-sim --seeds 1 --from {seed}");
    }
    for found in &tally.found {
        say!("VIOLATION of {} in seed {}: {}", found.violation.id, found.seed, found.violation.text);
        say!("  repeat it: {}", found.command());
    }
    if let Some(first) = tally.found.first() {
        print_shrunk("The first of them, made smaller", &first.mode.plan(first.seed), None);
    }
    tally.found.is_empty() && tally.differ.is_empty()
}

fn print_shrunk(what: &str, plan: &Plan, bug: Option<Bug>) {
    let over = deadline(Some(SHRINK_MINUTES_UNASKED));
    let mut once = |plan: &Plan| run(plan, &RunOptions { bug, ..RunOptions::default() }).violation;
    let small = smaller(plan, &mut once, &over);
    say!("\n{what} (go on with --shrink):\n\n{}", prose::plan(&small));
}

/// Returns the smallest plan that still fails, as far as the shrinker finds one within
/// [`SHRINK_RUNS_UNASKED`] runs and before `over` says that time is up.
fn smaller(plan: &Plan, run: &mut dyn FnMut(&Plan) -> Option<Violation>, over: &dyn Fn() -> bool) -> Plan {
    let mut in_time = |plan: &Plan| if over() { None } else { run(plan) };
    shrink::shrink(plan, &mut in_time, SHRINK_RUNS_UNASKED)
}

fn list_bugs() -> bool {
    for info in BUGS {
        say!("{:<5} {:<28} {}", info.rule, info.name, info.what.trim());
    }
    true
}

fn bugs(
    names: &[&'static BugInfo],
    seeds: u64,
    enough: u64,
    (record, record_seeds): (Option<&Path>, Option<&Path>),
    many: &SubMany,
) -> Result<bool, String> {
    if (record.is_some() || record_seeds.is_some()) && !names.is_empty() {
        return Err("only a table of all bugs is recorded: leave the names or the record away".into());
    }
    let page = record.map(|path| read(path, record::HUNTS)).transpose()?;
    let meter = Meter::start();
    let over = deadline(many.minutes);
    let extent = Extent { from: many.from, seeds, threads: threads(many.threads), over: &over };
    let chosen: Vec<_> = if names.is_empty() { BUGS.iter().collect() } else { names.to_vec() };
    let hunts = hunt_all(&chosen, extent, enough);
    let missed = hunts.iter().filter(|hunt| hunt.is_missed()).count();
    say!(
        "{} of {} planted bugs are caught, in {:.0} s of processor time",
        hunts.len() - missed,
        hunts.len(),
        meter.core_seconds(extent.threads)
    );
    if let Some(path) = record_seeds {
        write(path, &record::seed_file(&hunts))?;
    }
    if let (Some(path), Some(page)) = (record, page) {
        write(path, &record::replace_table(&page, record::HUNTS, &record::hunt_table(&hunts))?)?;
    }
    Ok(missed == 0)
}

fn hunt_all(bugs: &[&'static BugInfo], extent: Extent<'_>, enough: u64) -> Vec<Hunt> {
    say!("{:<5} {:<28} {:>14}  {:>10}  by", "rule", "bug", "caught in", "first seed");
    let mut hunts = Vec::new();
    for info in bugs {
        if let Some(story) = coverage::bug_told_by(info.name) {
            say!("{:<5} {:<28} by the story {story}", info.rule, info.name);
            hunts.push(Hunt::told(info, story));
            continue;
        }
        let hunt = campaign::hunt(info, extent, enough, &run);
        let first = hunt.caught.first().map_or("-".to_owned(), |(seed, _)| seed.to_string());
        let caught = format!("{} of {}", hunt.caught.len(), hunt.seeds);
        let unclean = if hunt.unclean > 0 { format!(" ({} unclean)", hunt.unclean) } else { String::new() };
        let missed = if hunt.caught.is_empty() { "NOT CAUGHT" } else { "" };
        let by = hunt.by().join(", ");
        say!("{:<5} {:<28} {caught:>14}  {first:>10}  {by}{missed}{unclean}", info.rule, info.name);
        hunts.push(hunt);
    }
    hunts
}

fn soak(
    minutes: f64,
    record: Option<&Path>,
    from: Option<u64>,
    threads_wanted: Option<usize>,
    bug_seeds: u64,
    date: Option<String>,
) -> Result<bool, String> {
    let page = record.map(|path| read(path, record::SOAKS)).transpose()?;
    let from = from.or_else(|| page.as_deref().map(record::next_seed)).unwrap_or_default();
    let date = date.map_or_else(|| command("date", &["-u", "+%F"]), Ok)?;
    let commit = commit()?;
    let threads = threads(threads_wanted);
    let over = deadline(Some(minutes));
    // Planted bugs have a quarter of the time.
    let bugs_over = deadline(Some(minutes / 4.0));
    let extent = Extent { from, seeds: bug_seeds, threads, over: &bugs_over };
    let all: Vec<_> = BUGS.iter().collect();
    let hunts = if bug_seeds > 0 { hunt_all(&all, extent, 1) } else { Vec::new() };
    let hunted = hunts.iter().filter(|hunt| hunt.seeds > 0).count();
    let caught = hunts.iter().filter(|hunt| !hunt.caught.is_empty()).count();

    let meter = Meter::start();
    let tally =
        campaign::campaign(Extent { from, seeds: u64::MAX, threads, over: &over }, VIOLATIONS_MAX, &run);
    let core_seconds = meter.core_seconds(threads);
    print_tally(&tally, core_seconds);
    let soak = record::Soak {
        date: &date,
        commit: &commit,
        from,
        core_seconds,
        marks: &coverage::covered(),
        bugs: (hunted > 0).then_some((caught, hunted)),
    };
    let row = record::soak_row(&soak, &tally);
    match (record, page) {
        (Some(path), Some(page)) => write(path, &record::append_row(&page, record::SOAKS, &row)?)?,
        _ => say!("{}", row.trim_end()),
    }
    Ok(report(&tally))
}

/// Names the first seeds that come to a mark. `true`: there are any.
fn list_reaching_seeds(mark: &str, seeds: u64, many: &SubMany) -> Result<bool, String> {
    if !coverage::known().iter().any(|known| known == mark) {
        return Err(format!("there is no mark '{mark}'; `mainstay-sim coverage` lists them"));
    }
    let over = deadline(many.minutes);
    let count = || simulation::reached().get(mark).copied().unwrap_or(0);
    let (mut before, mut found) = (count(), 0);
    for seed in (many.from..many.from.saturating_add(seeds)).take_while(|_| !over()) {
        let mode = Mode::of(seed);
        let _ = run(&mode.plan(seed), &RunOptions::default());
        if count() > before {
            say!("mainstay-sim --seed {seed}{} --explain", mode.argument());
            (before, found) = (count(), found + 1);
            if found == 3 {
                break;
            }
        }
    }
    if found == 0 {
        say!("no seed comes to it");
    }
    Ok(found > 0)
}

fn show_coverage(seeds: u64, many: &SubMany) -> bool {
    let over = deadline(many.minutes);
    let extent = Extent { from: many.from, seeds, threads: threads(many.threads), over: &over };
    let tally = campaign::campaign(extent, VIOLATIONS_MAX, &run);
    let covered = coverage::covered();
    for (name, count) in &covered.reached {
        let explained = coverage::why_never(name).is_some();
        say!("{:>12}  {name}{}", thousands(*count), if explained { ": NOT AS EXPLAINED" } else { "" });
    }
    for name in &covered.never {
        say!("{:>12}  {name}: {}", "cannot be", coverage::why_never(name).unwrap_or_default());
    }
    for name in &covered.told {
        say!("{:>12}  {name}: {}", "by a story", coverage::told_by(name).unwrap_or_default());
    }
    for name in &covered.missed {
        say!("{:>12}  {name}", "NEVER");
    }
    let (told, never, missed) = (covered.told.len(), covered.never.len(), covered.missed.len());
    say!(
        "{} of {} marks were reached by {} seeds, {told} are by stories, {never} cannot be, {missed} were not",
        covered.reached.len(),
        covered.marks(),
        tally.seeds,
    );
    report(&tally) && missed == 0 && covered.not_as_explained().is_empty()
}

/// On one thread, so that nothing but the run itself is measured.
fn speed(nodes: u32, seeds: u64, from: u64) -> bool {
    let chosen: Vec<u64> = campaign::seeds_of(from, nodes).take(seeds as usize).collect();
    let meter = Meter::start();
    let tally = campaign::tally(&chosen, &run);
    print_tally(&tally, meter.core_seconds(1));
    say!(
        "{nodes} nodes each, seeds {} to {}: {} faults, {} events",
        chosen.first().copied().unwrap_or_default(),
        chosen.last().copied().unwrap_or_default(),
        thousands(record::faults(&tally.counters)),
        thousands(tally.events),
    );
    report(&tally)
}

fn bug_named(name: &str) -> Result<&'static BugInfo, String> {
    let found = BUGS.iter().find(|info| info.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| "there is no such bug: `mainstay-sim bugs --list` shows all".into())
}

fn part_named(name: &str) -> Result<Part, String> {
    let found = PARTS.iter().find(|(.., other, _)| *other == name);
    found.map(|(part, ..)| *part).ok_or_else(|| {
        let names: Vec<_> = PARTS.iter().map(|(.., name, _)| *name).collect();
        format!("the parts are {}", names.join(", "))
    })
}

fn threads(wanted: Option<usize>) -> usize {
    wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Reads the page and checks that it has the table: a soak of hours must not fail at its end.
fn read(path: &Path, head: &str) -> Result<String, String> {
    let page = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    record::append_row(&page, head, "").map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(page)
}

fn write(path: &Path, page: &str) -> Result<(), String> {
    std::fs::write(path, page).map_err(|why| format!("{}: {why}", path.display()))
}

/// The commit, with a `+` if the tree has changes on top.
fn commit() -> Result<String, String> {
    let commit = command("git", &["rev-parse", "--short", "HEAD"])?;
    let changed = command("git", &["status", "--porcelain", "--untracked-files=no"])?;
    Ok(if changed.is_empty() { commit } else { commit + "+" })
}

fn command(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = std::process::Command::new(program).args(arguments).output();
    let output = output.map_err(|why| format!("{program}: {why}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(line: &str) -> Result<Arguments, String> {
        let words = ["mainstay-sim"].into_iter().chain(line.split_whitespace());
        Arguments::try_parse_from(words).map_err(|why| why.to_string())
    }

    #[test]
    fn the_arguments_make_sense() {
        Arguments::command().debug_assert();
        for line in [
            "--seed 42 --explain",
            "--seed 42 --explain --parts agent,control --from-ms 100 --to-ms 9000 --width 120",
            "--seed 42 --explain --messages --parts engine",
            "--seed 42 --explain --parts message",
            "--seed 42 --shrink --unsurvivable --bug NoEpochCheck",
            "--seed 42 --no-shrink",
            "--seeds 2000 --from 7 --minutes 5",
            "bugs",
            "bugs --seeds 100 noepochcheck CommitAlone",
            "bugs --list",
            "soak --minutes 0.5 --record bench/simulator.md --date 2026-01-01",
            "coverage --seeds 10",
            "coverage --of mark --seeds 10",
            "speed",
            "speed --nodes 5 --seeds 7 --from 100",
        ] {
            if let Err(why) = parsed(line) {
                panic!("{line}: {why}");
            }
        }
    }

    #[test]
    fn wrong_arguments_are_told() {
        for (line, why) in [
            ("", "Usage"),
            ("--explain", "--seed"),
            ("--seed x", "invalid digit"),
            ("--seed 1 --seeds 2", "cannot be used with"),
            ("--seed 1 --bug Nonsense", "bugs --list"),
            ("--seed 1 --explain --parts kernel", "the parts are machine, engine"),
            ("--seed 1 --from-ms 3", "--explain"),
            ("--seed 1 --messages", "--explain"),
            ("--seed 1 --shrink --no-shrink", "cannot be used with"),
            ("--seed 1 bugs", "cannot be used with"),
            ("--seed 1 --minutes 4", "cannot be used with"),
            ("soak", "--minutes"),
            ("speed --nodes 6", "not in 1..=5"),
            ("speed --seeds 0", "not in 1.."),
        ] {
            match parsed(line) {
                Ok(_) => panic!("{line} is taken"),
                Err(text) => assert!(text.contains(why), "{line}: {text}"),
            }
        }
    }

    #[test]
    fn a_failing_seed_is_made_smaller_unless_the_options_forbid_it() {
        for (line, unasked) in [
            ("--seed 1", true),
            ("--seed 1 --unsurvivable --bug NoEpochCheck", true),
            ("--seed 1 --no-shrink", false),
            ("--seed 1 --shrink", false),
            ("--seed 1 --explain", false),
        ] {
            let arguments = parsed(line).unwrap_or_else(|why| panic!("{line}: {why}"));
            assert_eq!(arguments.runs.shrinks_unasked(), unasked, "{line}");
        }
        let plan = Mode::Survivable.plan(1);
        let small_in = |runs_in_time: usize| {
            let count = std::cell::Cell::new(0);
            let mut fails = |_: &Plan| {
                count.set(count.get() + 1);
                Some(Violation { id: "S1", text: String::new() })
            };
            let small = smaller(&plan, &mut fails, &|| count.get() >= runs_in_time);
            (small.steps.len(), count.get())
        };
        assert_eq!(small_in(usize::MAX).0, 0, "nothing is needed for it to fail");
        assert_eq!(small_in(1), (plan.steps.len(), 1), "time is over after the first run");
        assert_eq!(small_in(0), (plan.steps.len(), 0));
    }
}
