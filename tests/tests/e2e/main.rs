//! End-to-end tests: real processes, a real database, a real kernel, in a lab of three nodes. They
//! run one after the other in one lab, each under the load of the ledger. After each, no
//! acknowledged row is missing and all replicas are equal. Needs root.
//!
//! A test that only missed a time limit ([`NotInTime`]) is run once more, in a new lab, and the end
//! of the output names it: a machine may be slow for a moment. What a test finds out about data, or
//! any other failure, is never asked twice.
//!
//! One test: `make e2e ARGS=kill_a_secondary`. With `MAINSTAY_E2E_KEEP=1` the lab stays up
//! afterwards. After a failure it stays as it is, and the later tests fail without running. Some
//! tests need a cluster of their own. They make it in a lab of their own, whose name begins with
//! that of the lab, `e2e-witness` for example.

mod acknowledged;
mod clients;
mod cluster;
mod directories;
mod encryption;
mod failover;
mod filling;
mod grow;
mod idle;
mod limits;
mod metrics;
mod min_copies;
mod modes;
mod nodes;
mod order;
mod partitions;
mod processes;
mod replicas;
mod router;
mod scrub;
mod settings;
mod slow;
mod snapshots;
mod thin;
mod troubles;
mod witness;
mod wrong_input;

use cluster::{Cluster, under_load};
use libtest_mimic::{Arguments, Failed, Trial};
use mainstay_tests::NotInTime;
use mainstay_tests::lab::Lab;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

type Scenario = fn(&Cluster) -> anyhow::Result<()>;
type LoadScenario = fn(&Cluster, &mainstay_tests::proof::Ledger) -> anyhow::Result<()>;

/// Makes a cluster that only one test needs.
type Maker = fn() -> anyhow::Result<Cluster>;

type Body = Box<dyn Fn(&Cluster) -> anyhow::Result<()> + Send>;

/// In this order: from the mildest to the hardest, so that the first failure says most.
const UNDER_LOAD: &[(&str, LoadScenario)] = &[
    ("kill_the_agent_alone", processes::kill_the_agent_alone),
    ("kill_a_secondary", failover::kill_a_secondary),
    ("cut_the_primary_from_one_secondary", partitions::cut_the_primary_from_one_secondary),
    ("kill_the_engine_alone", processes::kill_the_engine_alone),
    (
        "a_database_that_stands_still_is_started_again",
        processes::a_database_that_stands_still_is_started_again,
    ),
    ("a_service_sees_no_error_of_a_dying_engine", acknowledged::a_service_sees_no_error_of_a_dying_engine),
    ("a_volume_grows_under_load", grow::a_volume_grows_under_load),
    ("a_database_runs_on_a_clone_of_a_snapshot", snapshots::a_database_runs_on_a_clone_of_a_snapshot),
    ("a_resource_is_made_of_a_snapshot", snapshots::a_resource_is_made_of_a_snapshot),
    ("damaged_blocks_are_found_and_repaired", scrub::damaged_blocks_are_found_and_repaired),
    ("a_scheduled_scrub_finds_and_repairs_rot", scrub::a_scheduled_scrub_finds_and_repairs_rot),
    ("remove_and_add_a_replica", replicas::remove_and_add_a_replica),
    ("two_replicas_and_a_witness", replicas::two_replicas_and_a_witness),
    ("move_the_replica_of_the_primary", replicas::move_the_replica_of_the_primary),
    ("metrics_follow_a_failover", metrics::metrics_follow_a_failover),
    ("isolate_the_primary", partitions::isolate_the_primary),
    ("kill_the_primary_that_leads_the_control_plane", failover::kill_the_primary_that_leads),
    ("kill_all_three_and_start_them_again", failover::kill_all_three),
    ("kill_the_primary_ten_times_in_a_row", failover::kill_the_primary_ten_times),
];

/// Under load too, each in a cluster of its own, which ends with the test.
const APART: &[(&str, Maker, LoadScenario)] = &[
    (
        "a_witness_without_an_engine_lets_the_other_take_over",
        witness::cluster,
        witness::lets_the_other_take_over,
    ),
    (
        "snapshots_where_files_cannot_be_cloned",
        snapshots::cluster_without_reflink,
        snapshots::where_files_cannot_be_cloned,
    ),
];

/// Run only when asked for by name and with `--ignored`: they take minutes to hours.
const LONG: &[(&str, LoadScenario)] =
    &[("kill_the_primary_again_and_again", failover::kill_the_primary_again_and_again)];

const ALONE: &[(&str, Scenario)] = &[
    (
        "clients_of_a_router_commit_again_after_a_power_cut",
        router::clients_of_a_router_commit_again_after_a_power_cut,
    ),
    ("wrong_input_to_the_command_line", wrong_input::command_line),
    ("wrong_service_files", wrong_input::service_files),
    ("dependent_writes_to_two_volumes", order::dependent_writes),
    (
        "an_idle_node_wakes_up_seldom_and_takes_little_memory",
        idle::an_idle_node_wakes_up_seldom_and_takes_little_memory,
    ),
    ("a_full_journal", limits::full_journal),
    ("a_full_pool", limits::full_pool),
    ("filling_a_replica_yields_to_clients", filling::filling_a_replica_yields_to_clients),
    ("fstrim_shrinks_every_replica", thin::fstrim_shrinks_every_replica),
    ("one_replica_throttled_to_a_hundredth", slow::one_replica_throttled_to_a_hundredth),
    (
        "the_last_whole_state_of_a_replica_is_kept_while_it_is_copied_to",
        snapshots::the_last_whole_state_of_a_replica_is_kept_while_it_is_copied_to,
    ),
    ("a_resource_is_rolled_back_to_a_snapshot", snapshots::a_resource_is_rolled_back_to_a_snapshot),
    ("a_client_goes_on_with_the_next_primary", clients::a_client_goes_on_with_the_next_primary),
    ("one_client_at_a_time", clients::one_client_at_a_time),
    (
        "a_dead_node_is_replaced_and_told_so_when_it_returns",
        nodes::a_dead_node_is_replaced_and_told_so_when_it_returns,
    ),
    ("a_lab_whose_disks_are_directories", directories::a_lab_whose_disks_are_directories),
    (
        "settings_are_chosen_for_one_resource_and_for_all",
        settings::settings_are_chosen_for_one_resource_and_for_all,
    ),
    (
        "replication_is_encrypted_unless_the_cluster_says_otherwise",
        encryption::replication_is_encrypted_unless_the_cluster_says_otherwise,
    ),
    ("mode_a_and_a_forced_promotion", modes::mode_a_and_a_forced_promotion),
    ("mode_b_loses_nothing_with_its_primary", modes::mode_b_loses_nothing_with_its_primary),
    (
        "no_write_rests_on_one_machine_if_two_are_wanted",
        min_copies::no_write_rests_on_one_machine_if_two_are_wanted,
    ),
];

/// A test's error, and what the nodes logged meanwhile.
type Failure = (anyhow::Error, String);

/// Runs a test, and a second time if only a time limit was missed.
#[derive(Clone)]
struct Twice {
    /// The lab is to stay as a failure leaves it, so nothing is run again.
    keep: bool,
    /// The tests that failed, with their errors.
    failed: Arc<Mutex<Vec<String>>>,
    /// The tests that passed at the second attempt, with the limit that the first one missed.
    again: Arc<Mutex<Vec<String>>>,
}

impl Twice {
    /// # Errors
    /// The last attempt's error with the logs of its nodes.
    fn run(&self, name: &str, mut test: impl FnMut() -> Result<(), Failure>) -> Result<(), Failed> {
        let mut timed = || {
            let start = std::time::Instant::now();
            let result = test();
            eprintln!("  took {:.1} s", start.elapsed().as_secs_f64());
            result
        };
        let first = match timed() {
            Ok(()) => return Ok(()),
            Err(first) => first,
        };
        let late = !self.keep && first.0.downcast_ref::<NotInTime>().is_some();
        let last = if late {
            eprintln!("{name} is run again: {:#}\n{}", first.0, first.1);
            let missed = format!("{name}, whose first attempt missed a limit: {:#}", first.0);
            match timed() {
                Ok(()) => {
                    self.again.lock().unwrap_or_else(PoisonError::into_inner).push(missed);
                    return Ok(());
                }
                Err(last) => last,
            }
        } else {
            first
        };
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{name}: {:#}", last.0));
        Err(format!("{:#}\n{}", last.0, last.1).into())
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One lab, one scenario at a time.
    arguments.test_threads = Some(1);
    let keep = std::env::var_os("MAINSTAY_E2E_KEEP").is_some();
    let cluster = Arc::new(Mutex::new(None::<Cluster>));
    let failed = Arc::new(Mutex::new(Vec::new()));
    let again = Arc::new(Mutex::new(Vec::new()));
    let may_run = {
        let failed = failed.clone();
        move || {
            let left = keep && !failed.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            if left { Err("not run: the lab is kept as the failed test has left it") } else { Ok(()) }
        }
    };
    let twice = Twice { keep, failed: failed.clone(), again: again.clone() };
    let trial = |name: &str, run: Body| {
        let (cluster, twice, may_run) = (cluster.clone(), twice.clone(), may_run.clone());
        let test = name.to_string();
        Trial::test(name, move || {
            may_run()?;
            let mut held = cluster.lock().unwrap_or_else(PoisonError::into_inner);
            twice.run(&test, || {
                let ready = Cluster::ready(held.take())
                    .map_err(|error| (error.context("no cluster to test"), String::new()))?;
                // A failure shows the logs of the nodes. After it the next test makes a new lab.
                run(&ready).map_err(|error| (error, ready.logs()))?;
                *held = Some(ready);
                Ok(())
            })
        })
    };
    let apart = APART.iter().map(|&(name, make, run)| {
        let (twice, may_run) = (twice.clone(), may_run.clone());
        Trial::test(name, move || {
            may_run()?;
            twice.run(name, || {
                let own = make().map_err(|error| (error.context("no cluster to test"), String::new()))?;
                let result = under_load(&own, run).map_err(|error| (error, own.logs()));
                if !keep && let Err(error) = own.lab.down() {
                    result?;
                    return Err((error.context("the lab could not be removed"), String::new()));
                }
                result
            })
        })
    });
    let loaded =
        |&(name, run): &(&str, LoadScenario)| trial(name, Box::new(move |cluster| under_load(cluster, run)));
    let alone = ALONE.iter().map(|(name, run)| trial(name, Box::new(run)));
    let long = LONG.iter().map(|long| loaded(long).with_ignored_flag(true));
    let troubled = Arc::new(Mutex::new(None::<Lab>));
    let troubled_trial = |&(name, run): &(&'static str, troubles::Trouble)| {
        let (troubled, twice, may_run) = (troubled.clone(), twice.clone(), may_run.clone());
        Trial::test(name, move || {
            may_run()?;
            let mut held = troubled.lock().unwrap_or_else(PoisonError::into_inner);
            twice.run(name, || {
                let lab = troubles::ready(held.take())
                    .map_err(|error| (error.context("no lab to test"), String::new()))?;
                run(&lab).map_err(|error| (error, troubles::logs(&lab)))?;
                *held = Some(lab);
                Ok(())
            })
        })
    };
    let troubles = troubles::ALL.iter().copied().flatten().map(troubled_trial);
    let long_troubles = troubles::LONG.iter().map(|long| troubled_trial(long).with_ignored_flag(true));
    let trials = UNDER_LOAD
        .iter()
        .map(loaded)
        .chain(alone)
        .chain(apart)
        .chain(troubles)
        .chain(long)
        .chain(long_troubles)
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    for line in again.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        eprintln!("passed at the second attempt: {line}");
    }
    // Repeated here, because the logs of the nodes are long.
    for line in failed.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        eprintln!("failed: {line}");
    }
    let held = cluster.lock().unwrap_or_else(PoisonError::into_inner).take().map(|cluster| cluster.lab);
    let troubled = troubled.lock().unwrap_or_else(PoisonError::into_inner).take();
    if keep {
        return conclusion.exit_code();
    }
    for lab in held.into_iter().chain(troubled) {
        if let Err(error) = lab.down() {
            eprintln!("the lab could not be removed: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}
