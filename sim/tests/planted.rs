//! Every planted bug is caught, but for a few that are named. First the test tries the seeds that
//! caught the bug when `planted_seeds.txt` was written. Every change of the simulator or of a core
//! gives its seeds other runs. So the test then tries the first few hundred seeds. `make sim-bugs`
//! writes the file.

use mainstay_control::State;
use mainstay_control::members::{Genuine, genuine, is_recorded_here};
use mainstay_control::state::{Command, Entry};
use mainstay_ha::{Guard, Wanted};
use mainstay_silence::{Fate, WATCHDOG_LOOKS_MS, Watchdog, WatchdogCan, WatchdogSees, fate};
use mainstay_sim::agent::initial_state;
use mainstay_sim::campaign::{Extent, Mode, hunt};
use mainstay_sim::coverage::bug_told_by;
use mainstay_sim::plan::{
    ClientOp, Deed, DiskFault, DiskOp, Fault, Moment, Operator, Proposed, Rests, ServiceFault, Shape, Tie,
};
use mainstay_sim::record;
use mainstay_sim::run::{RunOptions, run};
use mainstay_sim::scenario::{Scenario, n};
use mainstay_types::settings::parse_change;
use mainstay_types::simulation::{BUGS, Bug, BugInfo, plant};
use mainstay_types::{ConfigVersion, Epoch, Incarnation, NodeId, NodeStatus, ResourceId, Time};
use std::collections::BTreeSet;

const SEEDS: &str = include_str!("planted_seeds.txt");
/// Seeds that are tried when the recorded ones say nothing any more.
const SEARCHED: u64 = 400;

/// Stands for S18, beyond the numbers of the rules.
const CLIENTS: u32 = 100;

/// Bugs that the simulator does not see, each a defect of the simulator. There are to be none.
const BLIND: &[&str] = &[];

/// Bugs that tests of one store catch at once, and seeds seldom: `each_rule_of_filling_is_needed`
/// of `crates/store/tests/all/fill.rs`.
const IN_STORE: &[Bug] = &[
    Bug::CutLeavesFilled,
    Bug::RecoveryLeavesFilled,
    Bug::FilledReadEarly,
    Bug::FilledBeforeHeader,
    Bug::FilledUnderOlder,
    Bug::SumsBeforeCommit,
    Bug::UndoneBeforeCut,
    Bug::FilledUnannounced,
    Bug::FilledNotFlushed,
    Bug::FoundFillsNotFlushed,
    Bug::FilledOverwritten,
    Bug::SumsReadAcrossRollback,
    Bug::FilledBesideSnapshot,
];

/// Invariants that no other bug makes fire first, each with the bug that does.
const ORACLES: &[(Bug, &str)] = &[
    (Bug::CopyFromEnd, "S11"),
    (Bug::DigestOfMoving, "S13"),
    (Bug::ErrorsNotHeld, "H11"),
    (Bug::SnapshotLeavesOut, "S14"),
    (Bug::ScrubSeesLater, "L4"),
    (Bug::TriedAgainAtOnce, "H6"),
    (Bug::WriteCut, "R26"),
];

/// A bug, its first symptom, and the name and function of the story. The symptom is an invariant,
/// or an expectation that the story waits for in vain.
type Story = (Bug, &'static str, &'static str, fn());

/// Bugs that a story catches.
const STORIES: &[Story] = &[
    (
        Bug::SessionOutlivesReplica,
        "L2: ",
        "a_replica_that_is_opened_anew_is_fed_again",
        a_replica_that_is_opened_anew_is_fed_again,
    ),
    (
        Bug::LabelNotCompared,
        "not within 10000 ms: another node than n1 is primary",
        "files_of_another_replica_are_not_used",
        files_of_another_replica_are_not_used,
    ),
    (
        Bug::CopyTakenForReplica,
        "S4: ",
        "a_copy_of_a_directory_is_not_used_after_a_power_cut",
        a_copy_of_a_directory_is_not_used_after_a_power_cut,
    ),
    (
        Bug::OlderCopyBelieved,
        "S19: ",
        "an_older_copy_that_is_put_back_does_not_lead",
        an_older_copy_that_is_put_back_does_not_lead,
    ),
    (
        Bug::MovedDirectoryStays,
        "not within 10000 ms: another node than n1 is primary",
        "a_primary_whose_directory_is_moved_away_hands_over",
        a_primary_whose_directory_is_moved_away_hands_over,
    ),
    (
        Bug::MissedMadeAnew,
        "not within 15000 ms: there is a device",
        "directories_that_were_moved_away_are_waited_for",
        directories_that_were_moved_away_are_waited_for,
    ),
    (
        Bug::OldConfirmationCounts,
        "a process may begin while its node is being silenced",
        "nothing_begins_on_a_confirmation_given_before_the_engine_silenced_its_node",
        nothing_begins_on_a_confirmation_given_before_the_engine_silenced_its_node,
    ),
    (
        Bug::VotesUnproven,
        "n4 votes, and no member has found it at its addresses",
        "a_node_that_no_member_has_found_at_its_addresses_does_not_vote",
        a_node_that_no_member_has_found_at_its_addresses_does_not_vote,
    ),
    (
        Bug::RemovedWithLastCopy,
        "n1 is removed, and only it has what was acknowledged",
        "a_node_with_the_last_complete_copy_is_not_removed",
        a_node_with_the_last_complete_copy_is_not_removed,
    ),
    (
        Bug::RemovalBreaksMajority,
        "n2 is removed, and one of two voters lives",
        "a_node_whose_vote_is_needed_is_not_removed",
        a_node_whose_vote_is_needed_is_not_removed,
    ),
    (
        Bug::FirstHeardIsNode,
        "the copy at 10.9.0.9 keeps the place of n2",
        "a_node_takes_its_place_back_from_a_copy_of_its_disk",
        a_node_takes_its_place_back_from_a_copy_of_its_disk,
    ),
    (
        Bug::CopyElsewhereRuns,
        "the copy at 10.9.0.9 runs as n2",
        "a_copy_of_a_nodes_disk_does_not_run_at_another_address",
        a_copy_of_a_nodes_disk_does_not_run_at_another_address,
    ),
    (
        Bug::FailedWriteKept,
        "S3: ",
        "a_write_that_failed_does_not_come_later",
        a_write_that_failed_does_not_come_later,
    ),
    (
        Bug::AddressOrderedOnce,
        "H5: ",
        "an_address_that_stays_is_ordered_away_again",
        an_address_that_stays_is_ordered_away_again,
    ),
    (
        Bug::KeptAddressForgotten,
        "H4: ",
        "an_address_kept_for_a_restart_goes_first_in_a_stop",
        an_address_kept_for_a_restart_goes_first_in_a_stop,
    ),
    (
        Bug::FoundAddressTaken,
        "H8: ",
        "an_address_that_was_there_before_stays",
        an_address_that_was_there_before_stays,
    ),
    (
        Bug::OneInterfaceSearched,
        "H",
        "an_address_on_an_interface_that_came_late_is_found",
        an_address_on_an_interface_that_came_late_is_found,
    ),
    (
        Bug::GuardActsLate,
        "the silencer had to act",
        "a_node_that_is_cut_off_twice_is_silenced_twice_by_its_guard",
        a_node_that_is_cut_off_twice_is_silenced_twice_by_its_guard,
    ),
    (
        Bug::GuardActsOnce,
        "not within 10000 ms: 2 times: R19 the guard silenced services",
        "a_node_that_is_cut_off_twice_is_silenced_twice_by_its_guard",
        a_node_that_is_cut_off_twice_is_silenced_twice_by_its_guard,
    ),
    (
        Bug::OtherDevicesGoOn,
        "H17: ",
        "a_service_begins_anew_on_other_devices_than_those_it_began_on",
        a_service_begins_anew_on_other_devices_than_those_it_began_on,
    ),
    (
        Bug::KeptServiceStays,
        "H1: ",
        "a_service_that_waits_for_an_engine_stops_when_it_is_moved",
        a_service_that_waits_for_an_engine_stops_when_it_is_moved,
    ),
    (
        Bug::OtherPrimaryIgnored,
        "H12: ",
        "a_left_device_is_given_up_when_another_node_was_primary",
        a_left_device_is_given_up_when_another_node_was_primary,
    ),
    (
        Bug::StartsNotBarred,
        "H3: a process of s0 begins on n1 after its node was silenced",
        "a_process_whose_start_is_under_way_does_not_begin_after_the_kill",
        a_process_whose_start_is_under_way_does_not_begin_after_the_kill,
    ),
    (
        Bug::MissingEpochIgnored,
        "a device of the past is taken over",
        "a_left_device_is_given_up_when_an_epoch_is_missing",
        a_left_device_is_given_up_when_an_epoch_is_missing,
    ),
    (
        Bug::NobodyOutlivesBoth,
        "H1: ",
        "a_node_without_engine_and_agent_is_silenced",
        a_node_without_engine_and_agent_is_silenced,
    ),
    (
        Bug::WatchdogOutlastsLease,
        "the watchdog fires after the lease",
        "a_watchdog_fires_before_another_node_may_serve",
        a_watchdog_fires_before_another_node_may_serve,
    ),
    (
        Bug::FenceNotAwaited,
        "another node takes over before n1 is switched off",
        "a_node_takes_over_only_after_the_former_primary_is_switched_off",
        a_node_takes_over_only_after_the_former_primary_is_switched_off,
    ),
    (
        Bug::StandstillKept,
        "not within 7000 ms: another node than n1 is primary",
        "a_primary_whose_engine_stands_still_hands_over",
        a_primary_whose_engine_stands_still_hands_over,
    ),
    (
        Bug::StandstillAlone,
        "the lease of n1 ends although no other node could take over",
        "a_primary_that_is_alone_keeps_its_lease_while_its_engine_stands_still",
        a_primary_that_is_alone_keeps_its_lease_while_its_engine_stands_still,
    ),
    (
        Bug::ForeignMountTaken,
        "H10: ",
        "a_file_system_that_an_operator_mounted_stays",
        a_file_system_that_an_operator_mounted_stays,
    ),
    (
        Bug::MaintenanceFailsOver,
        "H16: ",
        "a_primary_in_maintenance_that_dies_leads_again_where_it_was",
        a_primary_in_maintenance_that_dies_leads_again_where_it_was,
    ),
    (
        Bug::MaintenanceMends,
        "H16: ",
        "a_process_that_dies_in_maintenance_is_left_alone",
        a_process_that_dies_in_maintenance_is_left_alone,
    ),
    (
        Bug::OutdatedInMaintenance,
        "H16: ",
        "a_process_in_maintenance_keeps_its_arguments",
        a_process_in_maintenance_keeps_its_arguments,
    ),
    (
        Bug::OutdatedGoesOn,
        "not within 5000 ms: the service runs on n1",
        "a_process_whose_pages_can_tear_is_started_again",
        a_process_whose_pages_can_tear_is_started_again,
    ),
    (
        Bug::MaintenanceForgotten,
        "H16: ",
        "an_agent_that_is_restarted_in_maintenance_starts_nothing",
        an_agent_that_is_restarted_in_maintenance_starts_nothing,
    ),
    (
        Bug::ApartIgnored,
        "H15: ",
        "services_that_are_apart_do_not_meet_on_the_last_node",
        services_that_are_apart_do_not_meet_on_the_last_node,
    ),
    (
        Bug::ProbesOnlyTell,
        "not within 20000 ms: the service runs on n",
        "a_process_that_stands_still_is_replaced",
        a_process_that_stands_still_is_replaced,
    ),
    (
        Bug::OneProbeDecides,
        "H13: ",
        "a_process_whose_probe_fails_once_is_left_alone",
        a_process_whose_probe_fails_once_is_left_alone,
    ),
    (
        Bug::RecoveryIsUnhealthy,
        "H13: ",
        "a_process_that_recovers_is_left_alone",
        a_process_that_recovers_is_left_alone,
    ),
    (
        Bug::MountNotChecked,
        "H9: ",
        "a_process_waits_for_its_file_system",
        a_process_waits_for_its_file_system,
    ),
    (
        Bug::AbsentAlwaysLeaves,
        "not within 15000 ms: n2 serves",
        "a_member_wanted_as_a_copy_is_retained_and_serves",
        a_member_wanted_as_a_copy_is_retained_and_serves,
    ),
    (
        Bug::SuspendedWithoutEnd,
        "L5: ",
        "a_write_that_waits_for_copies_fails_in_the_end",
        a_write_that_waits_for_copies_fails_in_the_end,
    ),
    (
        Bug::LeaseNotAskedOfWrites,
        "S17: ",
        "a_write_that_outlives_the_lease_is_not_acknowledged",
        a_write_that_outlives_the_lease_is_not_acknowledged,
    ),
    (
        Bug::UnreadyBeforeKnown,
        "S17: ",
        "writes_wait_for_an_absent_follower_that_may_take_over",
        writes_wait_for_an_absent_follower_that_may_take_over,
    ),
    (
        Bug::LeadsOnAfterLease,
        "S2: ",
        "a_primary_that_stood_still_does_not_lead_by_a_new_lease",
        a_primary_that_stood_still_does_not_lead_by_a_new_lease,
    ),
    (
        Bug::LossNotSeen,
        "S18: ",
        "a_client_does_not_go_on_where_an_answered_write_is_lost",
        a_client_does_not_go_on_where_an_answered_write_is_lost,
    ),
    (
        Bug::OldSessionAdmitted,
        "S18: ",
        "a_client_that_lost_the_devices_writes_no_more",
        a_client_that_lost_the_devices_writes_no_more,
    ),
    (
        Bug::StaleExtent,
        "S4: ",
        "an_extent_read_for_an_earlier_copy_is_not_sent_in_a_later_one",
        an_extent_read_for_an_earlier_copy_is_not_sent_in_a_later_one,
    ),
    (
        Bug::DigestOfMoving,
        "S13: ",
        "a_write_during_a_digest_is_not_in_it",
        a_write_during_a_digest_is_not_in_it,
    ),
    (
        Bug::SpentEpochForgotten,
        "H3: ",
        "a_silenced_service_is_not_made_new_by_another_definition",
        a_silenced_service_is_not_made_new_by_another_definition,
    ),
    (
        Bug::GivenUpServes,
        "not within 0 ms: the service runs on n2",
        "a_node_that_gave_its_role_up_starts_nothing_on_that_record",
        a_node_that_gave_its_role_up_starts_nothing_on_that_record,
    ),
];

/// Only a message can tell the primary that the session of a replica has ended, because the node's
/// connections stay.
fn a_replica_that_is_opened_anew_is_fed_again() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.write(1);
    sim.disk(s, DiskFault::Copied);
    for block in 0..100 {
        sim.write_without_waiting(block % 16);
        sim.run_ms(10);
    }
    sim.expect_iss_within_ms(&[1, 2, 3], 15_000);
    sim.settle();
}

/// R19, seed 2418267: a replica cannot be opened. The report of its node is under way for seconds,
/// and meanwhile the replica can be opened after all. The node cannot know whether it is still
/// primary. So it asks to be promoted before it starts the service. Otherwise the report, when it
/// comes, takes the role away under the service, which then goes to another node.
fn a_node_that_gave_its_role_up_starts_nothing_on_that_record() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.trap(Moment::Propose(Proposed::ReplicaBroken), Deed::Late { ms: 6_000 });
    sim.power_cut(p);
    sim.until_epoch(2, 8_000);
    sim.kill_engine(s);
    sim.disk(s, DiskFault::WriteError);
    sim.until_count("F47 proposal late", 1, 5_000);
    sim.kill_engine(s);
    sim.expect_service_on_within_ms(s, 4_000);
    sim.run_ms(8_000);
    sim.expect_service_on_within_ms(s, 0);
    assert_eq!(sim.epoch(), 3);
    sim.power_on(p);
    sim.settle();
}

/// In mode A, a forced promotion costs the last write that the client was told of. The client goes
/// on only under another session.
fn a_client_does_not_go_on_where_an_answered_write_is_lost() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.attach(w);
    sim.write(1);
    sim.run_ms(500);
    sim.cut(p, s);
    sim.write(2);
    sim.power_cut(p);
    sim.run_ms(8_000);
    sim.force();
    sim.until_primary_is_not(p, 15_000);
    sim.heal();
    sim.run_ms(3_000);
    sim.write(4);
    sim.power_on(p);
    sim.settle();
}

/// The first copy's read of its first extent ends only after a second copy has asked for the
/// extent, too. Meanwhile a client writes a block of it. The log after the second copy's beginning
/// does not have this write.
fn an_extent_read_for_an_earlier_copy_is_not_sent_in_a_later_one() {
    let mut sim = Scenario::lazy_journal(256, 1);
    let [p, s, t] = sim.cast();
    sim.power_cut(s);
    for block in 100..300 {
        sim.write(block);
    }
    sim.write(3);
    sim.write(5);
    // These blocks are in the journal, and not in memory any more.
    for block in 300..320 {
        sim.write(block);
    }
    sim.disk(p, DiskFault::Late { what: DiskOp::Read, ms: 3_000 });
    sim.power_on(s);
    sim.expect_copy_within_ms(s, 10_000);
    sim.write(3);
    sim.fault(Fault::Reset(n(p), n(s)));
    sim.disk(p, DiskFault::Late { what: DiskOp::Read, ms: 6_000 });
    sim.expect_iss_within_ms(&[p, s, t], 30_000);
    sim.settle();
}

/// The primary has the devices again, and a client that has not heard of it goes on asking.
fn a_client_that_lost_the_devices_writes_no_more() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.attach(w);
    sim.write(9);
    sim.fault(Fault::CutAgents(n(w), n(p)));
    sim.fault(Fault::CutAgents(n(w), n(s)));
    sim.detach();
    for _ in 0..3 {
        sim.write_without_waiting(9);
        sim.run_ms(300);
    }
    sim.heal();
    sim.run_ms(3_000);
    sim.read(9);
    sim.settle();
}

/// The primary's engine stands still. Meanwhile its node is declared dead and another one is
/// promoted. Then the node is taken back and has a lease again.
///
/// The engine gets that lease before it gets the record, because its agent still waits for the
/// answer to an earlier record.
fn a_primary_that_stood_still_does_not_lead_by_a_new_lease() {
    for back_ms in (100..1_500).step_by(100) {
        let mut sim = Scenario::three();
        let [p, s, t] = sim.cast();
        sim.make_leader(s);
        sim.write(1);
        sim.fault(Fault::PauseEngine { target: n(p), ms: 9_000 + back_ms });
        sim.remove_replica(t);
        sim.run_ms(500);
        sim.isolate(p);
        sim.run_ms(7_500);
        sim.write(1);
        sim.heal();
        sim.run_ms(back_ms);
        sim.fault(Fault::PauseAgent { target: n(p), ms: 2_500 });
        for _ in 0..50 {
            sim.run_ms(50);
            sim.client(ClientOp::Read { volume: 0, block: 1, blocks: 1 });
        }
        sim.run_ms(3_000);
        sim.settle();
    }
}

/// The machine stands still while a write is under way, and another history begins meanwhile.
fn a_write_that_outlives_the_lease_is_not_acknowledged() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.write(1);
    sim.run_ms(500);
    // No other replica gets the write, so the other history is one without it.
    sim.cut(p, s);
    sim.cut(p, t);
    sim.disk(p, DiskFault::Late { what: DiskOp::JournalWrite, ms: 50 });
    sim.write_without_waiting(2);
    sim.run_ms(10);
    sim.pause_machine(p, 12_000);
    sim.run_ms(4_000);
    sim.force();
    sim.expect_primary_within_ms(s, 8_000);
    sim.run_ms(10_000);
}

/// A primary that is cut off from all other nodes cannot record that its followers are far. So it
/// writes no more than they may lack when one of them takes over.
fn writes_wait_for_an_absent_follower_that_may_take_over() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_a_with_takeover(16, 5_000);
    sim.write(1);
    sim.run_ms(2_000);
    sim.cut(p, s);
    sim.cut(p, t);
    for block in 2..60 {
        sim.write_without_waiting(block);
        sim.run_ms(20);
    }
    sim.power_cut(p);
    sim.heal();
    sim.until_primary_is_not(p, 15_000);
    sim.run_ms(3_000);
}

/// A write waits for the journal of a primary that loses its lease, and a client writes the block
/// anew elsewhere. Then the first node becomes primary again.
fn a_write_that_failed_does_not_come_later() {
    let mut sim = Scenario::new(Shape::small(3, 2, false), 1);
    let [p, s, _] = sim.cast();
    sim.write(3);
    sim.disk(p, DiskFault::Late { what: DiskOp::JournalWrite, ms: 8_000 });
    sim.write_without_waiting(2);
    sim.run_ms(5);
    sim.write_without_waiting(3);
    sim.isolate(p);
    sim.until_primary_is_not(p, 15_000);
    sim.write(3);
    sim.read(3);
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2], 20_000);
    sim.power_cut(s);
    sim.expect_primary_within_ms(p, 15_000);
    sim.run_ms(500);
    sim.read(3);
    sim.power_on(s);
    sim.settle();
}

/// An administrator sets the service's address by hand on the node where the service is to run
/// next. The service then runs elsewhere, and the address stays.
fn an_address_that_was_there_before_stays() {
    let mut sim = Scenario::with_service();
    let [p, s, t] = sim.cast();
    sim.service(s, ServiceFault::AddressByHand);
    sim.service(t, ServiceFault::AddressByHand);
    sim.move_service(s);
    sim.run_ms(20_000);
    sim.move_service(p);
    sim.expect_service_on_within_ms(p, 40_000);
    sim.settle();
}

/// The address on the primary is in trouble, and one of its two processes stands still while the
/// node is isolated.
fn isolated_with(trouble: ServiceFault, stands_still: Fault, then_ms: u64) {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, trouble);
    sim.fault(stands_still);
    sim.isolate(p);
    sim.until_primary_is_not(p, 15_000);
    sim.run_ms(then_ms);
    sim.settle();
}

/// The agent stands still, so only the guard is there to remove the address.
fn an_address_on_an_interface_that_came_late_is_found() {
    let [p, ..] = Scenario::with_service().cast();
    let agent = Fault::PauseAgent { target: n(p), ms: 20_000 };
    isolated_with(ServiceFault::LateInterface, agent, 5_000);
}

/// Both processes of the primary's node are killed, and started again much later.
fn a_node_without_engine_and_agent_is_silenced() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.fault(Fault::KillAgent { target: n(p), restart_after_ms: 15_000 });
    sim.fault(Fault::KillEngine { target: n(p), restart_after_ms: 15_000 });
    sim.until_primary_is_not(p, 15_000);
    sim.run_ms(5_000);
    assert!(sim.primary().is_some_and(|now| now != p));
    sim.settle();
}

/// The engine stands still, and with it the guard. So only the agent can remove the address, and
/// its first attempt fails.
fn an_address_that_stays_is_ordered_away_again() {
    let [p, ..] = Scenario::with_service().cast();
    let engine = Fault::PauseEngine { target: n(p), ms: 20_000 };
    isolated_with(ServiceFault::KeepAddress, engine, 10_000);
}

/// The process ends twice, so the second restart waits, and the address stays meanwhile. An
/// operator stops the service then.
fn an_address_kept_for_a_restart_goes_first_in_a_stop() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Dies);
    sim.run_ms(1_000);
    sim.expect_service_on_within_ms(p, 10_000);
    sim.service(p, ServiceFault::Dies);
    sim.run_ms(300);
    sim.stop_service();
    sim.expect_service_gone_within_ms(p, 10_000);
    sim.start_service();
    sim.expect_service_on_within_ms(p, 15_000);
    sim.settle();
}

/// An operator mounts a file system of another kind in the place of the service's. The service
/// fails here and goes to another node.
fn a_file_system_that_an_operator_mounted_stays() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Replaced);
    sim.until_primary_is_not(p, 60_000);
    sim.expect_service_gone_within_ms(p, 0);
    sim.settle();
}

/// The file system is unmounted under the process, and the process ends. The file system is mounted
/// again before the process starts again.
fn a_process_waits_for_its_file_system() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Unmounted);
    sim.service(p, ServiceFault::Dies);
    sim.run_ms(50);
    sim.expect_service_on_within_ms(p, 15_000);
    sim.settle();
}

/// The node of a service in maintenance loses its power. Nothing takes over, and the service runs
/// again when the maintenance ends.
fn a_primary_in_maintenance_that_dies_leads_again_where_it_was() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.maintain(Rests::Service);
    sim.power_cut(p);
    sim.run_ms(10_000);
    sim.power_on(p);
    sim.run_ms(10_000);
    sim.expect_service_gone_within_ms(p, 0);
    sim.end_maintenance();
    sim.expect_service_on_within_ms(p, 15_000);
    sim.settle();
}

fn a_process_that_dies_in_maintenance_is_left_alone() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.maintain(Rests::Cluster);
    sim.run_ms(3_000);
    sim.service(p, ServiceFault::Dies);
    sim.run_ms(20_000);
    sim.end_maintenance();
    sim.expect_service_on_within_ms(p, 20_000);
    sim.settle();
}

/// S726: a check finds that pages can tear while an operator works on the service. The process is
/// started again when the operator is done.
fn a_process_in_maintenance_keeps_its_arguments() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.maintain(Rests::Service);
    sim.run_ms(3_000);
    sim.service(p, ServiceFault::PagesTear);
    sim.run_ms(10_000);
    assert!(sim.is_outdated(p), "the process was started again in maintenance");
    sim.end_maintenance();
    sim.expect_service_on_within_ms(p, 15_000);
    sim.settle();
}

/// S726: a check finds that pages can tear while the process relies on the opposite.
fn a_process_whose_pages_can_tear_is_started_again() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::PagesTear);
    sim.run_ms(50);
    sim.expect_service_on_within_ms(p, 5_000);
    sim.settle();
}

/// The file system is unmounted while no agent runs. The next agent knows of the maintenance.
fn an_agent_that_is_restarted_in_maintenance_starts_nothing() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.maintain(Rests::Node);
    sim.run_ms(3_000);
    sim.fault(Fault::KillAgent { target: n(p), restart_after_ms: 300 });
    sim.run_ms(50);
    sim.service(p, ServiceFault::Unmounted);
    sim.run_ms(20_000);
    sim.end_maintenance();
    sim.expect_service_on_within_ms(p, 20_000);
    sim.settle();
}

/// Two services that are to be apart are left with one node that can run them. One of them waits.
fn services_that_are_apart_do_not_meet_on_the_last_node() {
    let mut shape = Shape::small(3, 2, true);
    shape.resources.push(shape.resources[0].clone());
    let mut sim = Scenario::new(shape, 1);
    sim.run_ms(10_000);
    sim.tie(1, 0, Tie::Apart);
    sim.run_ms(15_000);
    sim.power_cut(1);
    sim.run_ms(20_000);
    sim.power_on(1);
    sim.settle();
}

fn a_process_that_stands_still_is_replaced() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::StandsStill);
    sim.run_ms(50);
    sim.expect_service_on_within_ms(p, 20_000);
    sim.settle();
}

fn a_process_whose_probe_fails_once_is_left_alone() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::FailProbe);
    sim.run_ms(10_000);
    sim.expect_service_on_within_ms(p, 0);
    sim.settle();
}

fn a_process_that_recovers_is_left_alone() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Recovers);
    sim.run_ms(30_000);
    sim.expect_service_on_within_ms(p, 0);
    sim.settle();
}

/// No write was acknowledged after the secondary died, so the secondary may be the first to go on.
fn a_member_wanted_as_a_copy_is_retained_and_serves() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, _] = sim.cast();
    sim.write(1);
    sim.want_copies(2, 60_000);
    sim.power_cut(s);
    sim.write_without_waiting(2);
    sim.run_ms(5_000);
    sim.power_cut(p);
    sim.run_ms(3_000);
    sim.power_on(s);
    sim.expect_primary_within_ms(s, 15_000);
    sim.power_on(p);
    sim.settle();
}

/// The primary still reads its first extent when a client writes a block of the next one. By then
/// the other replicas have reported their digests, for the entry at which the primary began.
fn a_write_during_a_digest_is_not_in_it() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(1);
    // Enough writes that the first one is not in memory any more.
    for block in 300..320 {
        sim.write(block);
    }
    // All replicas have applied the writes.
    sim.run_ms(1_000);
    sim.disk(p, DiskFault::Late { what: DiskOp::Read, ms: 150 });
    sim.operator(Operator::Digest { resource: 0, hold_ms: 1_000 });
    sim.run_ms(50);
    sim.write(310);
    // First the digests of the two secondaries, and then those of all three with writes held.
    sim.until_count("digests compared", 3, 2_000);
    sim.settle();
}

/// The guard has silenced the service, and its node hears from the others before the lease ends. So
/// the node is still primary in that epoch. And an operator has just changed the definition of the
/// service.
fn a_silenced_service_is_not_made_new_by_another_definition() {
    let mut shape = Shape::small(3, 3, true);
    // The guard acts between two heartbeats, so some time passes before the lease goes on.
    shape.heartbeat_ms = 450;
    let mut sim = Scenario::new(shape, 1);
    let [p, s, _] = sim.cast();
    sim.expect_service_on_within_ms(p, 10_000);
    sim.make_leader(s);
    sim.isolate(p);
    sim.until_seen(p, "guard silences s0", 5_000);
    sim.heal();
    sim.operator(Operator::ApplyService { resource: 0, prefer: Some(0) });
    sim.until_epoch(2, 3_000);
    sim.expect_service_on_within_ms(p, 10_000);
    sim.settle();
}

fn a_write_that_waits_for_copies_fails_in_the_end() {
    let mut sim = Scenario::two_and_a_witness();
    let [_, s, _] = sim.cast();
    sim.want_copies(2, 3_000);
    sim.power_cut(s);
    sim.write_without_waiting(1);
    sim.run_ms(60_000);
    sim.settle();
}

fn files_of_another_replica_are_not_used() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(1);
    sim.disk(p, DiskFault::OtherFiles);
    sim.until_primary_is_not(p, 10_000);
}

/// The preferred node has a copy of its directory; then all lose power.
fn a_copy_of_a_directory_is_not_used_after_a_power_cut() {
    let mut sim = Scenario::three();
    let nodes = sim.cast();
    let [p, ..] = nodes;
    sim.write(7);
    sim.copy_directory(p);
    sim.write(7);
    nodes.into_iter().for_each(|node| sim.power_cut(node));
    nodes.into_iter().for_each(|node| sim.power_on(node));
    sim.expect_primary_within_ms(p, 10_000);
    sim.read(7);
    sim.settle();
}

/// The same copy, in the place of the replica: the cluster knows that its node held more.
fn an_older_copy_that_is_put_back_does_not_lead() {
    let mut sim = Scenario::three();
    let nodes = sim.cast();
    let [p, ..] = nodes;
    sim.write(7);
    sim.copy_directory(p);
    sim.write(7);
    sim.run_ms(100);
    nodes.into_iter().for_each(|node| sim.power_cut(node));
    sim.put_copy_back(p);
    nodes.into_iter().for_each(|node| sim.power_on(node));
    sim.until_primary_is_not(p, 10_000);
    sim.read(7);
    sim.settle();
}

/// R9: a write that it acknowledges from then on would not be found at its next start.
fn a_primary_whose_directory_is_moved_away_hands_over() {
    let mut sim = Scenario::three();
    let nodes = sim.cast();
    let [p, ..] = nodes;
    sim.write(7);
    sim.move_directory(p);
    sim.until_primary_is_not(p, 10_000);
    sim.run_ms(3_000);
    sim.write(7);
    // The replica is copied again, without an operator.
    sim.expect_iss_within_ms(&[1, 2, 3], 30_000);
    nodes.into_iter().for_each(|node| sim.power_cut(node));
    nodes.into_iter().for_each(|node| sim.power_on(node));
    sim.read(7);
    sim.settle();
}

/// R11: an operator moves all directories away while the nodes are off, and puts them back when the
/// nodes have started.
fn directories_that_were_moved_away_are_waited_for() {
    let mut sim = Scenario::three();
    let nodes = sim.cast();
    sim.write(7);
    nodes.into_iter().for_each(|node| sim.power_cut(node));
    nodes.into_iter().for_each(|node| sim.move_directory(node));
    nodes.into_iter().for_each(|node| sim.power_on(node));
    sim.run_ms(10_000);
    nodes.into_iter().for_each(|node| sim.put_directory_back(node));
    sim.write(8);
    sim.read(7);
    sim.settle();
}

/// R19: a node is cut off, serves again, and is cut off again. Its agent does nothing meanwhile.
fn a_node_that_is_cut_off_twice_is_silenced_twice_by_its_guard() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    for times in 1..=2 {
        sim.expect_service_on_within_ms(p, 40_000);
        sim.fault(Fault::PauseAgent { target: n(p), ms: 10_000 });
        sim.isolate(p);
        sim.until_count("R19 the guard silenced services", times, 10_000);
        assert!(sim.count("R19 the silencer acted") == 0, "the silencer had to act");
        sim.until_primary_is_not(p, 15_000);
        sim.heal();
        sim.run_ms(12_000);
        sim.move_service(p);
    }
    sim.settle();
}

/// R19: the process of the service ends for the second time, and two seconds later its agent starts
/// it again. At that moment the guard acts. The new process enters its cgroup before the kill or
/// after it.
fn a_process_whose_start_is_under_way_does_not_begin_after_the_kill() {
    let mut late = 0;
    for ms in (1_202..1_240).step_by(2) {
        let mut sim = Scenario::with_service();
        let [p, ..] = sim.cast();
        sim.service(p, ServiceFault::Dies);
        sim.run_ms(50);
        sim.expect_service_on_within_ms(p, 500);
        // The lease is renewed every 200 ms, and four times more.
        sim.until_guard_acts_in_ms(p, ms);
        sim.service(p, ServiceFault::Dies);
        sim.run_ms(500);
        sim.isolate(p);
        sim.run_ms(1_700);
        late += sim.count("R19 a process was to begin while its node was silenced");
    }
    assert!(late > 0, "the guard never acted while a process was being started");
}

/// R19: the lease of a node is not renewed any more, and its machine may stop at every moment after
/// that.
fn a_watchdog_fires_before_another_node_may_serve() {
    let ms = |ms: u64| Time(ms * 1000);
    let mut watchdog = Watchdog::new(WatchdogCan::ALL, false);
    for look in 0..60 {
        let now_ms = 10_000 + look * WATCHDOG_LOOKS_MS;
        let renewed_ms = (now_ms - now_ms % 200).min(12_000);
        let sees = WatchdogSees {
            lease_until: ms(renewed_ms + 2000),
            serves: true,
            silent: Time(0),
            guarded: true,
            ended: false,
        };
        watchdog.look(ms(now_ms), sees);
        let fires = watchdog.fires_at().expect("it is armed");
        assert!(fires <= sees.lease_until, "the watchdog fires after the lease");
    }
}

/// R19: the engine of the primary stands still, and its agent is well. Another node takes over
/// within the lease and five seconds, and the service is silent before that.
fn a_primary_whose_engine_stands_still_hands_over() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.pause_engine(p, 30_000);
    sim.until_primary_is_not(p, 7_000);
    sim.expect_service_gone_within_ms(p, 0);
    let next = sim.primary().expect("one of the others");
    sim.expect_service_on_within_ms(next, 3_000);
    sim.write_at(next, 7);
    sim.settle();
}

/// R19: nothing is gained if a node gives its lease up and no other one can go on.
fn a_primary_that_is_alone_keeps_its_lease_while_its_engine_stands_still() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.power_cut(s);
    sim.expect_iss_within_ms(&[p], 15_000);
    let epoch = sim.epoch();
    sim.pause_engine(p, 9_000);
    sim.run_ms(8_900);
    assert!(sim.lease_lasts(p), "the lease of n{p} ends although no other node could take over");
    assert_eq!((sim.primary(), sim.epoch()), (Some(p), epoch));
    sim.power_on(s);
    sim.settle();
}

/// R5: the primary's engine dies, and its agent with it. Another node takes over. The node is back,
/// and becomes primary again before its left device has waited for too long.
fn a_left_device_is_given_up_when_another_node_was_primary() {
    let mut sim = Scenario::two_and_a_witness();
    sim.keep_devices();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.write_without_waiting(7);
    sim.fault(Fault::KillAgent { target: n(p), restart_after_ms: 6_000 });
    sim.fault(Fault::KillEngine { target: n(p), restart_after_ms: 6_000 });
    sim.expect_primary_within_ms(s, 15_000);
    sim.write(7);
    sim.expect_iss_within_ms(&[p.min(s), p.max(s)], 15_000);
    sim.power_cut(s);
    sim.expect_primary_within_ms(p, 10_000);
    sim.run_ms(1_000);
    assert_eq!(sim.count("R20 a left device is given up"), 1);
    sim.read(7);
    sim.power_on(s);
    sim.settle();
}

/// R5: the engine is to leave its devices, and cannot answer all in time. It ends, its devices with
/// it, and the agent keeps their service for the next one.
fn a_service_begins_anew_on_other_devices_than_those_it_began_on() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.run_ms(1_000);
    sim.disk(p, DiskFault::Stall { ms: 1_600 });
    sim.write_without_waiting(7);
    sim.fault(Fault::ReplaceEngine { target: n(p), gap_ms: 0 });
    sim.run_ms(5_000);
    assert_eq!(sim.count("S562 an engine could not leave its devices in time"), 1);
    sim.settle();
}

/// R19: an operator moves a service while the engine of its node is replaced.
fn a_service_that_waits_for_an_engine_stops_when_it_is_moved() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.run_ms(1_000);
    sim.service(p, ServiceFault::KeepAddress);
    sim.fault(Fault::ReplaceEngine { target: n(p), gap_ms: 300 });
    sim.run_ms(50);
    sim.move_service(s);
    sim.expect_service_on_within_ms(s, 15_000);
    sim.settle();
}

/// R5: an engine died in epoch 4, and this node is primary again in epoch 6.
fn a_left_device_is_given_up_when_an_epoch_is_missing() {
    let served = Epoch(4);
    assert!(fate(served, Epoch(5), true) == Fate::Follows, "a device of this node does not go on");
    assert!(fate(served, Epoch(6), true) == Fate::Past, "a device of the past is taken over");
}

/// R19: the engine was told to end, or its lease ended, and the cluster gives the resource another
/// epoch at once.
fn nothing_begins_on_a_confirmation_given_before_the_engine_silenced_its_node() {
    let now = Time(1_000_000);
    let mut guard = Guard::default();
    let Wanted::Ask { number, .. } = guard.want(now, ["s0"]) else { panic!("nothing was asked before") };
    guard.answered(number, true);
    guard.lease_taken(now.plus_ms(60_000));
    assert!(guard.may_run(now), "an engine that guards the service lets it begin");
    guard.forget();
    assert!(!guard.may_run(now), "a process may begin while its node is being silenced");
    assert!(matches!(guard.want(now, ["s0"]), Wanted::Ask { .. }), "the engine is not asked anew");
}

/// A cluster of three nodes, n1 to n3, at 10.1.0.1 to 10.1.0.3.
fn cluster() -> State {
    initial_state(&Shape::small(3, 3, false))
}

/// R19: the operator wants the fence command to have succeeded.
fn a_node_takes_over_only_after_the_former_primary_is_switched_off() {
    let mut state = cluster();
    let resource = *state.resources.keys().next().expect("a resource");
    let first = state.resources[&resource].record.version.0;
    let mut apply = |command: Command| {
        let outcome = state.apply(Entry { at_ms: 0, command: command.clone() });
        assert!(outcome.is_ok(), "{command:?}: {outcome:?}");
    };
    let n1 = NodeId(1);
    let fencing = parse_change("fencing", "required").expect("a setting");
    let changes = [fencing].into();
    apply(Command::ChangeSettings { resource: None, version: None, changes });
    for node in (1..=3).map(NodeId) {
        let (version, incarnation) =
            (ConfigVersion(first + u64::from(node.0)), Incarnation(u64::from(node.0)));
        apply(Command::ReplicaReady { resource, version, node, incarnation });
    }
    let (expect_version, reason) = (ConfigVersion(first + 4), "test".to_owned());
    apply(Command::Promote { resource, expect_version, by: n1, to: n1, reason });
    apply(Command::NodeDead { node: n1, generation: 1 });
    let primary = state.resources[&resource].record.primary;
    assert!(primary.is_none(), "another node takes over before n1 is switched off");
    let fenced = Command::Fenced { node: n1, generation: 1, result: Ok("n2".into()) };
    assert!(state.apply(Entry { at_ms: 0, command: fenced }).is_ok());
    assert!(state.resources[&resource].record.primary.is_some_and(|primary| primary != n1));
}

fn a_node_that_no_member_has_found_at_its_addresses_does_not_vote() {
    let mut state = cluster();
    let admit = Command::AdmitNode {
        name: "n4".into(),
        agent_addr: "10.1.0.4:7400".into(),
        engine_addr: "10.1.0.4:7401".into(),
        witness: false,
        nonce: 4,
        replace: false,
        level: state.level,
        by: None,
    };
    assert!(state.apply(Entry { at_ms: 0, command: admit }).is_ok());
    assert_eq!(state.next_seat(|node| *node == NodeId(4)), Some(NodeId(4)));
    assert!(state.next_seat(|_| false).is_none(), "n4 votes, and no member has found it at its addresses");
}

/// n1 alone has everything, and is dead; n2 has returned.
fn a_node_with_the_last_complete_copy_is_not_removed() {
    let mut state = Scenario::three().world.state().clone();
    let resource = ResourceId(1);
    // As the record is when the others have left the in-sync set.
    let known = state.resources.get_mut(&resource).expect("it is there");
    known.record.primary = None;
    known.record.iss.retain(|member| member.node == NodeId(1));
    state.nodes.get_mut(&NodeId(1)).expect("it is there").status = NodeStatus::Dead;
    let refused = state.cannot_remove(NodeId(1), &BTreeSet::new()).is_some();
    assert!(refused, "n1 is removed, and only it has what was acknowledged");
}

fn a_node_whose_vote_is_needed_is_not_removed() {
    let mut state = cluster();
    let dead = Command::NodeDead { node: NodeId(3), generation: 1 };
    assert!(state.apply(Entry { at_ms: 0, command: dead }).is_ok());
    let refused = state.cannot_remove(NodeId(2), &BTreeSet::new()).is_some();
    assert!(refused, "n2 is removed, and one of two voters lives");
}

/// The copy was started while the node was off, so the other nodes hear the copy.
fn a_node_takes_its_place_back_from_a_copy_of_its_disk() {
    let state = cluster();
    let recorded = Some(state.nodes[&NodeId(2)].agent_addr.as_str());
    let (node, copy) = ("10.1.0.2", "10.9.0.9");
    assert!(genuine(recorded, node, copy) == Genuine::Heard, "a copy takes the place of n2");
    assert!(genuine(recorded, copy, node) == Genuine::Newcomer, "the copy at {copy} keeps the place of n2");
}

fn a_copy_of_a_nodes_disk_does_not_run_at_another_address() {
    let state = cluster();
    let recorded = &state.nodes[&NodeId(2)].agent_addr;
    let runs = |own: &str| is_recorded_here(recorded, &[own.parse().expect("an address")], "0.0.0.0:7400");
    assert!(runs("10.1.0.2"), "n2 does not start");
    assert!(!runs("10.9.0.9"), "the copy at 10.9.0.9 runs as n2");
}

/// Whether the seed fails with the bug, and not without it.
fn catches(info: &BugInfo, seed: u64) -> bool {
    let plan = Mode::of(seed).plan(seed);
    let fails = |bug| run(&plan, &RunOptions { bug, ..RunOptions::default() }).violation.is_some();
    fails(Some(info.bug)) && !fails(None)
}

/// The number of the rule that it breaks, or [`CLIENTS`].
fn rule(info: &BugInfo) -> u32 {
    let Some(number) = info.rule.strip_prefix('R') else {
        assert_eq!(info.rule, "S18", "{}", info.name);
        return CLIENTS;
    };
    number.parse().expect("rules are numbers")
}

fn all_are_caught(rules: std::ops::RangeInclusive<u32>) {
    let recorded = record::seeds(SEEDS);
    let mut missed = Vec::new();
    for info in BUGS {
        let elsewhere = bug_told_by(info.name).is_some() || IN_STORE.contains(&info.bug);
        if !rules.contains(&rule(info)) || BLIND.contains(&info.name) || elsewhere {
            continue;
        }
        let seeds = recorded.get(info.name).map(Vec::as_slice).unwrap_or_default();
        if seeds.iter().any(|seed| catches(info, *seed)) {
            continue;
        }
        let extent = Extent { from: 0, seeds: SEARCHED, threads: 1, over: &|| false };
        if hunt(info, extent, 1, &run).caught.is_empty() {
            missed.push(format!("{} {}: {}", info.rule, info.name, info.what.trim()));
        } else {
            eprintln!("{} is no longer caught by its recorded seeds: make sim-bugs", info.name);
        }
    }
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}

#[test]
fn stories_catch_the_bugs_that_no_plan_catches() {
    let mut missed = Vec::new();
    for (bug, wrong, story, tell) in STORIES {
        let fails = |bug| {
            plant(bug);
            let failed = std::panic::catch_unwind(tell).err();
            plant(None);
            failed.map(|why| match why.downcast::<String>() {
                Ok(text) => *text,
                Err(why) => (*why.downcast::<&str>().expect("a panic with a text")).to_owned(),
            })
        };
        if let Some(text) = fails(None) {
            missed.push(format!("{story} fails without the bug: {text}"));
            continue;
        }
        match fails(Some(*bug)) {
            None => missed.push(format!("{story} does not catch {bug:?}")),
            Some(text) if text.starts_with(wrong) => {}
            Some(text) => {
                let first = text.lines().next().unwrap_or_default();
                missed.push(format!("{story} catches {bug:?}, not by {wrong} but by {first}"));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    let told = |name: &str| {
        STORIES.iter().find(|(bug, ..)| format!("{bug:?}") == name).map(|(_, _, story, _)| *story)
    };
    assert!(BUGS.iter().all(|info| bug_told_by(info.name) == told(info.name)));
}

#[test]
fn some_oracles_have_a_bug_of_their_own() {
    let recorded = record::seeds(SEEDS);
    for (bug, id) in ORACLES {
        // A story names its own symptom, and the test of stories checks it.
        let told = STORIES.iter().find(|(known, ..)| known == bug).map(|(_, wrong, ..)| *wrong);
        if let Some(wrong) = told {
            assert!(wrong.starts_with(&format!("{id}: ")), "{id} is not what catches {bug:?}");
            continue;
        }
        let info = BUGS.iter().find(|info| info.bug == *bug).expect("all bugs are listed");
        let caught = |seed: &u64| {
            let plan = Mode::of(*seed).plan(*seed);
            let of = |bug| run(&plan, &RunOptions { bug, ..RunOptions::default() }).violation;
            of(Some(*bug)).is_some_and(|violation| violation.id == *id) && of(None).is_none()
        };
        let seeds = recorded.get(info.name).map(Vec::as_slice).unwrap_or_default();
        if seeds.iter().any(caught) {
            continue;
        }
        let found = (0..SEARCHED).any(|seed| caught(&seed));
        assert!(found, "{id} is not what catches {}", info.name);
        eprintln!("{} is no longer caught by {id} in its recorded seeds: make sim-bugs", info.name);
    }
}

// Several tests, so that they run side by side.

#[test]
fn epochs_commits_and_members() {
    all_are_caught(1..=4);
}

#[test]
fn promotions_and_cuts() {
    all_are_caught(5..=9);
}

#[test]
fn leases() {
    all_are_caught(10..=11);
}

#[test]
fn disks_and_damage() {
    all_are_caught(12..=13);
}

#[test]
fn checkpoints_and_copies() {
    all_are_caught(14..=18);
}

#[test]
fn whole_writes() {
    all_are_caught(26..=26);
}

#[test]
fn services() {
    all_are_caught(19..=22);
    all_are_caught(27..=28);
}

#[test]
fn clients() {
    all_are_caught(CLIENTS..=CLIENTS);
}

#[test]
fn every_rule_belongs_to_a_test() {
    for info in BUGS {
        let others = [26, 27, 28, 29].contains(&rule(info));
        let known = (1..=22).contains(&rule(info)) || others;
        assert!(known || rule(info) == CLIENTS, "{} of {}", info.name, info.rule);
    }
}

/// There are to be 40, and one of each rule.
#[test]
fn every_rule_has_a_planted_bug() {
    assert!(BUGS.len() >= 40 + BLIND.len(), "{}", BUGS.len());
    assert!(BLIND.iter().all(|name| BUGS.iter().any(|info| info.name == *name)));
    for rule in 1..=22 {
        assert!(BUGS.iter().any(|info| info.rule == format!("R{rule}")), "R{rule} has no bug");
    }
}
