//! Marks and planted bugs that seeds seldom or never reach, because moments must meet that chance
//! does not bring together. Each is listed with the story in `tests/reached.rs` that reaches it. A
//! test proves that the story does.

/// The mark, and the story.
pub(super) const TOLD: &[(&str, &str)] = &[
    ("control: a first promotion comes too early", "a_node_comes_back_before_the_first_promotion_counts"),
    ("control: a promotion by a dead node", "a_promotion_whose_node_died_again_does_not_count"),
    (
        "control: a promotion of what is not eligible",
        "a_promotion_of_a_replica_that_broke_meanwhile_does_not_count",
    ),
    ("control: the files of a replica are not what its label says", "files_of_another_replica_are_not_used"),
    ("control: a directory has the label of another one", "a_copy_of_a_directory_is_no_replica"),
    ("store: the files are an older copy", "an_older_copy_is_put_in_the_place_of_a_replica"),
    (
        "replica: a peer knows to be committed what the own log lacks",
        "an_older_copy_leads_until_it_hears_of_entries_that_it_lacks",
    ),
    ("control: a snapshot too many", "more_snapshots_are_asked_for_than_there_may_be"),
    ("control: no room for the mark of a rollback", "a_rollback_needs_room_for_its_mark"),
    ("ha: a kill is adopted after a restart", "an_agent_that_ends_in_the_midst_of_a_kill_goes_on_with_it"),
    ("ha: an undo took too long", "an_undo_that_hangs_is_repeated_with_force"),
    (
        "host: what is damaged is not mended for want of copies",
        "a_read_of_damage_fails_while_a_copy_is_missing",
    ),
    ("replica: nothing is mended for want of copies", "nothing_is_mended_while_a_copy_is_missing"),
    ("replica: what is mended is given up for want of copies", "a_mend_is_given_up_when_a_copy_is_missing"),
    ("host: what is to repair others is damaged too", "a_block_for_a_repair_rots_before_it_is_read"),
    ("replica: what is to repair others is not what it was", "a_rotten_block_repairs_no_replica"),
    ("host: others may have what is damaged", "a_replica_with_damage_that_another_may_have_fails"),
    ("replica: a cut ends in a later session", "a_cut_outlasts_the_connection_that_it_was_asked_on"),
    (
        "replica: a primary goes on in a session of an earlier instance",
        "a_replica_that_is_opened_again_hears_no_primary_before_an_attach",
    ),
    ("replica: a flush is refused for want of copies", "a_flush_fails_when_its_writes_lack_a_copy"),
    ("replica: a record that is not newer", "a_record_is_told_again_when_the_engine_stood_still"),
    ("replica: blocks cannot be read for a primary", "a_restarted_replica_cannot_read_for_a_repair"),
    (
        "replica: the replica with the content for a repair is asked again",
        "a_restarted_replica_is_asked_again_for_the_content_of_a_repair",
    ),
    (
        "replica: sessions: the log lost what a client was told",
        "a_client_is_told_that_an_answered_write_is_lost",
    ),
    (
        "replica: another replica may have the damaged block",
        "a_primary_gives_up_a_block_that_another_replica_may_have",
    ),
    ("replica: the list of epochs is full", "a_replica_is_promoted_more_often_than_its_log_lists_epochs"),
    ("store: a rollback finds no space", "a_full_disk_is_not_rolled_back_yet"),
    ("store: a pass is due because the journal is full", "a_pass_that_ends_at_a_snapshot_leaves_no_room"),
    ("store: a batch waits because the overlay is full", "a_slow_secondary_is_given_many_discards"),
    (
        "store: the queue waits for a cut, a restart or a checkpoint",
        "entries_stopped_by_a_full_overlay_wait_for_a_checkpoint",
    ),
    ("store: the journal does not give back what was written", "decayed_journal_content_is_not_read"),
    ("codec: blocks are damaged on their way", "the_content_for_a_repair_is_damaged_on_its_way"),
    (
        "host: a read waits for damage to be mended when the role ends",
        "a_read_that_waits_for_a_repair_ends_with_the_role",
    ),
    ("replica: client: no replica has what was to be read", "a_client_is_told_that_no_replica_has_the_block"),
    ("replica: sessions: a read that no replica can answer", "a_primary_says_that_no_replica_has_the_block"),
    (
        "host: a copy waits at an extent that no replica has whole",
        "a_copy_waits_for_blocks_that_have_rotted_everywhere",
    ),
    ("replica: no replica has the content for a repair", "no_replica_has_the_content_for_a_repair_any_more"),
    (
        "replica: a replica that must have the damaged block is asked again",
        "a_replica_that_must_have_the_damaged_block_is_asked_again",
    ),
    (
        "replica: content to mend with could not be had, and is looked for again",
        "a_block_that_no_replica_can_give_any_more_is_looked_for_again",
    ),
    (
        "control: a resource is to be made of a snapshot where no replica holds it",
        "a_resource_is_to_be_made_where_the_snapshot_is_not",
    ),
    ("host: the log began anew while an extent was scrubbed", "a_scrub_is_read_while_the_log_begins_anew"),
    (
        "store: a restart waits for what waits for a rollback",
        "entries_wait_for_a_rollback_when_the_log_begins_anew",
    ),
    (
        "store: what is not applied yet is listed as changed",
        "entries_that_wait_for_a_rollback_are_copied_as_well",
    ),
    ("host: a client asks for what cannot be", "a_client_asks_a_primary_that_hands_over"),
    (
        "replica: a repair ends while copies are wanted",
        "a_repair_does_not_wait_for_the_copies_that_wait_for_it",
    ),
    ("store: a rollback waits for a scrub", "a_rollback_comes_while_a_scrub_reads"),
    (
        "store: a record lies at the start of the ring that had room before its end",
        "a_record_lies_where_the_ring_begins",
    ),
];

/// The planted bug, and the story in `tests/planted.rs` that fails with it.
pub(super) const BUGS_TOLD: &[(&str, &str)] = &[
    ("AbsentAlwaysLeaves", "a_member_wanted_as_a_copy_is_retained_and_serves"),
    ("SuspendedWithoutEnd", "a_write_that_waits_for_copies_fails_in_the_end"),
    ("LabelNotCompared", "files_of_another_replica_are_not_used"),
    ("CopyTakenForReplica", "a_copy_of_a_directory_is_not_used_after_a_power_cut"),
    ("OlderCopyBelieved", "an_older_copy_that_is_put_back_does_not_lead"),
    ("MovedDirectoryStays", "a_primary_whose_directory_is_moved_away_hands_over"),
    ("MissedMadeAnew", "directories_that_were_moved_away_are_waited_for"),
    ("OldConfirmationCounts", "nothing_begins_on_a_confirmation_given_before_the_engine_silenced_its_node"),
    ("VotesUnproven", "a_node_that_no_member_has_found_at_its_addresses_does_not_vote"),
    ("FirstHeardIsNode", "a_node_takes_its_place_back_from_a_copy_of_its_disk"),
    ("CopyElsewhereRuns", "a_copy_of_a_nodes_disk_does_not_run_at_another_address"),
    ("FailedWriteKept", "a_write_that_failed_does_not_come_later"),
    ("FoundAddressTaken", "an_address_that_was_there_before_stays"),
    ("OneInterfaceSearched", "an_address_on_an_interface_that_came_late_is_found"),
    ("GuardActsLate", "a_node_that_is_cut_off_twice_is_silenced_twice_by_its_guard"),
    ("GuardActsOnce", "a_node_that_is_cut_off_twice_is_silenced_twice_by_its_guard"),
    ("MissingEpochIgnored", "a_left_device_is_given_up_when_an_epoch_is_missing"),
    ("NobodyOutlivesBoth", "a_node_without_engine_and_agent_is_silenced"),
    ("AddressOrderedOnce", "an_address_that_stays_is_ordered_away_again"),
    ("LeaseNotAskedOfWrites", "a_write_that_outlives_the_lease_is_not_acknowledged"),
    ("UnreadyBeforeKnown", "writes_wait_for_an_absent_follower_that_may_take_over"),
    ("LeadsOnAfterLease", "a_primary_that_stood_still_does_not_lead_by_a_new_lease"),
    ("LossNotSeen", "a_client_does_not_go_on_where_an_answered_write_is_lost"),
    ("OldSessionAdmitted", "a_client_that_lost_the_devices_writes_no_more"),
    ("StaleExtent", "an_extent_read_for_an_earlier_copy_is_not_sent_in_a_later_one"),
    ("DigestOfMoving", "a_write_during_a_digest_is_not_in_it"),
    ("SpentEpochForgotten", "a_silenced_service_is_not_made_new_by_another_definition"),
    ("ForeignMountTaken", "a_file_system_that_an_operator_mounted_stays"),
    ("MountNotChecked", "a_process_waits_for_its_file_system"),
    ("ProbesOnlyTell", "a_process_that_stands_still_is_replaced"),
    ("OneProbeDecides", "a_process_whose_probe_fails_once_is_left_alone"),
    ("RecoveryIsUnhealthy", "a_process_that_recovers_is_left_alone"),
    ("SessionOutlivesReplica", "a_replica_that_is_opened_anew_is_fed_again"),
    ("GivenUpServes", "a_node_that_gave_its_role_up_starts_nothing_on_that_record"),
];
