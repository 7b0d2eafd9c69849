# shellcheck shell=bash
# The blocks of commands of each page: see run.sh.

page_access() {
    elsewhere docs/access 1 "a part of a configuration file"
    elsewhere docs/access 2 "a part of a configuration file: agent tests of https"
    play docs/access 3
    play docs/access 4
    on n1 "printf 'Authorization: Bearer %s' \"\$(cat ci.token)\" >ci.header"
    play docs/access 5 "s/10.0.0.1/10.213.0.1/"
    on n1 "mainstay token revoke ci" >/dev/null
    elsewhere docs/access 6 "a part of a configuration file: agent own_files_are_read_again_when_they_are_replaced_and_used_only_if_they_fit"
    play docs/access 7
}

page_attach() {
    resource db
    play docs/attach 1
    gone db
}

page_fencing() {
    elsewhere docs/fencing 1 "long tests/vm/watchdog.sh"
    resource db
    play docs/fencing 2 "1~an option of the agent: e2e tests of fencing"
    on n1 "mainstay cluster set fencing=default" >/dev/null
    gone db
}

page_hooks() {
    resource db
    play docs/hooks 1
    gone db
}

page_install() {
    on n1 "nft add table inet filter; nft add chain inet filter input"
    play docs/install 1
    elsewhere docs/install 2 "long tests/systemd/package.sh"
    elsewhere docs/install 3 "mainstay a_doctor_that_listens_says_which_ports_it_reaches"
    play docs/install 4 "2=mainstay config default >own.toml; mainstay config check own.toml" "3~long tests/systemd/package.sh"
    elsewhere docs/install 5 "long tests/systemd/package.sh"
}

page_identities() {
    play docs/identities 1 "s/n4/n8/" \
        "4=mainstay cluster token revoke \"\$(mainstay --json cluster token create n9 | sed -n 's/.*\"id\": *\"\([^\"]*\)\".*/\1/p')\""
    play docs/identities 2
    play docs/identities 3 "3~it gives certificates within seconds: control a_rotation_is_cancelled_until_the_new_authority_issues" \
        "4~no node is dead: agent a_node_that_was_left_out_of_a_rotation_is_believed_no_more_and_joins_anew"
    play docs/identities 4
    on n1 "mainstay cluster set data-encryption=default" >/dev/null
}

page_maintenance() {
    resource db
    service db
    play docs/maintenance 1 "5=mainstay node maintenance n1 --off; mainstay cluster maintenance --on" \
        "6=mainstay cluster maintenance --off; mainstay node drain n1"
    gone db
}

page_modes() {
    resource db n1,n2,n3 256MiB
    play docs/modes 1 "6~the primary lives: e2e tests of modes" "7~the primary lives: e2e tests of modes"
    gone db
}

page_placement() {
    resource app
    service app
    play docs/placement 1
    elsewhere docs/placement 2 "an answer"
    gone app
}

page_replicas() {
    resource db
    in_sync db
    play docs/replicas 1 "3=mainstay resource move-replica db n1 --to n2" "4=mainstay resource move db --to n4" \
        "5=mainstay cluster token create n8" "6~a new witness: e2e tests of witnesses"
    play docs/replicas 2
    play docs/replicas 3
    on n1 "mainstay cluster set c-max-rate=default slow-factor=default slow-for=default" >/dev/null
    gone db
}

page_reports() {
    resource db
    play docs/reports 1
    gone db
}

page_scrub() {
    resource db
    play docs/scrub 1 "6=mainstay resource create other --size 64MiB --replica-count 2 --scrub-interval 7d"
    gone db other
}

page_settings() {
    play docs/settings 1 "s/4GiB/256MiB/"
    on n1 "mainstay cluster set slow-ack=default" >/dev/null
    gone db
}

page_snapshots() {
    resource db
    service db
    play docs/snapshots 1
    on n1 "mainstay snapshot create db seen; mainstay snapshot clone db seen /var/lib/mainstay/pools/default/seen" >/dev/null
    play docs/snapshots 2 "s|DIRECTORY|/var/lib/mainstay/pools/default/seen|" "1~another node: e2e tests of snapshots"
    on n1 "umount /mnt" || true
    elsewhere docs/snapshots 3 "e2e the_last_whole_state_of_a_replica_is_kept_while_it_is_copied_to"
    gone trial db
}

page_status() {
    resource db
    service db
    play docs/status 1
    elsewhere docs/status 2 "an answer"
    play docs/status 3 "2=timeout 3 mainstay operation list --watch" "2!124" \
        "3~agent an_operation_ends_when_its_work_is_done" "4~agent a_drain_is_cancelled_and_a_move_is_not"
    play docs/status 4
    play docs/when-something-goes-wrong 1
    play docs/metrics 1 "2~an option of the agent: agent metrics_are_served_and_say_when_the_engine_does_not_answer"
    elsewhere docs/metrics 2 "an expression of Prometheus"
    play docs/http-api 1
    play docs/http-api 2 "1=timeout 3 curl -N --unix-socket /run/mainstay/agent.sock 'http://mainstay/v1/stream?after=0'" "1!124"
    elsewhere docs/health 1 "agent load_balancers_find_the_primary_and_the_replicas_by_the_status_alone"
    elsewhere docs/health 2 "a part of a configuration file"
    on n1 "cp -a --sparse=always /var/lib/mainstay/pools/default/db-* /run/manual/copy"
    play docs/replica-directories 1 "s|DIRECTORY|/run/manual/copy|" "s|FILE|/run/manual/copy/journal|"
    gone db
}

page_console() {
    elsewhere docs/console 1 "a part of a configuration file: agent tests of https"
    play docs/console 2
    on n1 "mainstay token revoke console" >/dev/null
}

page_monitoring() {
    resource db
    service db
    in_sync db
    play docs/monitoring 1 "2![01]" "3![01]" "5=timeout 3 mainstay status --watch" "5!124"
    elsewhere docs/monitoring 2 "an answer"
    elsewhere docs/monitoring 3 "an answer"
    elsewhere docs/monitoring 4 "an answer"
    play docs/when-something-goes-wrong 2
    gone db
}

page_pages() {
    resource db
    service db "options = 'noatime'"
    in_sync db
    play docs/pages-that-cannot-tear 1 "1!1" "2!1" "3!1"
    elsewhere docs/pages-that-cannot-tear 2 "an answer"
    elsewhere docs/pages-that-cannot-tear 3 "engine a_page_is_one_request_on_ext4_with_clusters"
    gone db
}

page_volumes() {
    play docs/volumes 1 "s/100GiB/256MiB/" "s/200GiB/320MiB/" "s/20GiB/128MiB/" "s/10GiB/64MiB/" "6~an option of the engine"
    elsewhere docs/volumes 2 "an answer"
    gone db
}

page_services() {
    resource db
    play docs/services 1 "s|10.0.0.7/24|10.213.0.100/24 --memory 256MiB|" \
        "14=mainstay resource delete db --yes"
    on n1 "rm db.toml"
    resource db
    resource shop
    resource files
    play docs/services 2 "s|10.0.0.7/24|10.213.0.101/24|" "s/8GiB/256MiB/" "s|/etc/mainstay/||"
    gone db postgresql shop
    on n1 "cat >reactor.toml <<EOF
[[promoter]]
[promoter.resources.db]
start = ['ocf:heartbeat:Filesystem fs_db device=/dev/drbd1000 directory=/srv/db fstype=xfs', 'postgresql@15-main.service']
EOF"
    play docs/services 3 "s|/etc/drbd-reactor.d/db.toml|reactor.toml|"
    gone db
    resource db
    service db
    play docs/services 4 "6=EDITOR=true mainstay service edit db"
    for number in 5 6 7 8 9 10 11; do elsewhere docs/services "$number" "long tests/systemd/database-units-inside.sh"; done
    gone db files
}

# What is run elsewhere, or is no command.
page_elsewhere() {
    elsewhere README 1 "make demo, make test"
    elsewhere README 2 "an answer"
    elsewhere docs/introduction 1 "a picture"
    elsewhere docs/demo 1 "make demo, make e2e"
    elsewhere docs/demo 2 "an answer"
    elsewhere docs/demo 3 "make bench"
    elsewhere docs/cluster 1 "long tests/systemd/tutorial.sh, package.sh"
    elsewhere docs/router 1 "e2e clients_of_a_router_commit_again_after_a_power_cut"
    elsewhere docs/journal-devices 1 "make vm: tests/vm/dax.sh"
    elsewhere docs/journal-devices 2 "make vm: tests/vm/dax.sh"
    elsewhere docs/upgrade 1 "long tests/systemd/tutorial.sh, package.sh"
    elsewhere docs/pacemaker 1 "a part of a unit"
    elsewhere docs/pacemaker 2 "a part of a unit"
    for number in 1 2 3 4 5 6 7; do elsewhere docs/tutorial "$number" "long tests/systemd/tutorial.sh, word for word"; done
    for number in 1 2 3 4 5; do elsewhere docs/devices "$number" "make vm; engine tests of NBD and vhost-user"; done
}

# The last page of that lab, because nodes leave it.
page_zz_nodes() {
    on n1 "mkdir -p /srv/backup"
    play docs/nodes 5
    resource db
    in_sync db
    mainstay lab kill --name manual n3 >/dev/null
    until on n1 "mainstay node list" | grep -q "^n3 *dead"; do sleep 0.3; done
    play docs/nodes 3
    in_sync db
    play docs/nodes 1 "s/n3/n5/"
    elsewhere docs/nodes 2 "e2e a_dead_node_is_replaced_and_told_so_when_it_returns"
    elsewhere docs/nodes 4 "agent a_fourth_node_stands_by_and_a_node_gets_another_address"
    elsewhere docs/nodes 6 "agent a_backup_of_the_record_is_put_back_on_one_node_and_not_where_it_could_do_harm"
}

# Pages that make labs themselves, on this machine.
pages_of_other_labs() {
    local here=$work/here
    mkdir "$here"
    # The file that the page shows.
    sed -n '/^```toml$/,/^```$/{/^```/d;p}' README.md >"$here/db.toml"
    play README 3
    (cd "$here" && mainstay lab down >/dev/null)
    play docs/lab 1 "7~after the next block"
    play docs/lab 2 "1~needs a floating address and ping"
    line "mainstay lab down"
    elsewhere docs/lab 3 "long tests/systemd/lab.sh"
}
