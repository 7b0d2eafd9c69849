#!/bin/sh
# Starts corosync and Pacemaker in a node of a lab: node.sh DIRECTORY AGENT. The directory has
# corosync.conf, and is where fence_lab leaves its requests. Everything that this mounts and starts ends with the node.
set -e
directory=$1 agent=$2
here=/run/pacemaker-test
mkdir -p "$here/ocf/mainstay" /run/crm /var/lib/corosync /srv/db
install -m 755 "$agent" "$here/ocf/mainstay/resource"
install -D -m 755 tests/pacemaker/fence_lab "$here/sbin/fence_lab"
ln -s "$directory" "$here/directory"
# The nodes of a lab share /dev/shm, where corosync and Pacemaker have their queues, by process
# number. And no node may write to the agents of this machine.
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t overlay -o "lowerdir=$here/ocf:/usr/lib/ocf/resource.d" overlay /usr/lib/ocf/resource.d
mount -t overlay -o "lowerdir=$here/sbin:/usr/sbin" overlay /usr/sbin
chown hacluster:haclient /run/crm
corosync -c "$directory/corosync.conf"
export PCMK_logfile="$here/pacemaker.log" PCMK_logfacility=none
setsid pacemakerd -f </dev/null >"$here/pacemakerd.out" 2>&1 &
