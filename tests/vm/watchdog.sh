# Runs inside the machine: a node whose engine feeds a software watchdog, and stands still at the end.
. /node.sh

start_agent fuse
wait_for 60 test -S /run/mainstay/engine.sock
watchdog_resets
