# Runs inside the machine: the kernel's nbd driver as a client of an engine, and a node with such a device, whose engine is killed
# under load.
. /node.sh

start_node nbd
device=$(readlink -f /run/mainstay/dev/db/0)
case "$device" in
    /dev/nbd*) ;;
    *) fail "the device is $device" ;;
esac
mainstay status | grep 'devices of this node: nbd (asked for; ' || fail "status does not say what was asked for"
grows "$device"
killed_under_load nbd "$device"
fails_if_an_epoch_is_missing nbd "$device"

step "nobody serves it again: what is left fails within 30 s, and is gone"
device=$(readlink -f /run/mainstay/dev/db/0)
touch /tmp/stay-away
kill_engine
dd if="$device" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null &
reader=$!
ended() {
    ! kill -0 "$reader" 2>/dev/null
}
sleep 20
ended && fail "it does not wait for the next engine"
wait_for 20 ended
wait "$reader" && fail "there is nobody who could have answered"
wait_for 10 test ! -e "/sys/block/$(basename "$device")/backend"
rm /tmp/stay-away
wait_for 60 serves

service_starts_again
wait_for 60 serves
gives_up_for_another_frontend "/sys/block/$(basename "$(readlink -f /run/mainstay/dev/db/0)")/backend"

step "the resource deleted, then the engine's own test"
mainstay resource delete db --yes || fail "cannot delete"
wait_for 30 test ! -e /run/mainstay/dev/db/0
touch /tmp/stay-away
kill_engine
TMPDIR=/var/lib/mainstay nbd --ignored --nocapture --test-threads=1 || fail "the driver as a client"
dmesg | grep -iE 'blocked for more|kernel bug|call trace' && fail "the kernel has complained"
step "done"
exit 0
