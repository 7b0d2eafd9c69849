# Runs inside the machine: the kernel's nbd driver as a client of an engine.
. /node.sh

step "an engine whose volumes are devices of the driver, on Linux $(uname -r)"
mkdir -p /var/lib/mainstay
mkfs.xfs -q /dev/vda && mount -t xfs /dev/vda /var/lib/mainstay || fail "no disk for the pool"
TMPDIR=/var/lib/mainstay nbd --ignored --nocapture --test-threads=1 || fail "the driver as a client"
dmesg | grep -iE 'blocked for more|kernel bug|call trace' && fail "the kernel has complained"
step "done"
