#!/usr/bin/env python3
"""How often large sequential writes have to be written: three ways on a file system, without Mainstay.

large-writes.py DIRECTORY MODE MIB   DIRECTORY is on XFS with reflink; MODE is one of
  twice    each MiB durably to a ring of 256 MiB, then, in groups of 32, to a volume of 1 GiB and fdatasync
  clone    the same, but the ring's extents are cloned into the volume
  fill     each MiB durably to a place of the volume that was never written, then a block of 4 KiB durably to the ring
  volume   each MiB to the volume alone, fdatasync after 32: the limit of any way that writes once
  small    durable writes of 8 KiB to a ring of 64 MiB of its own extents, and to one whose extents a volume shares;
           here MIB is the number of rounds

Prints MiB/s, milliseconds of this process's processor time for each MiB, and percentiles of a write in microseconds.
One write is under way at a time. ADR 57 says what came of it.
"""
import fcntl
import mmap
import os
import struct
import sys
import time

MIB = 1 << 20
BLOCK = 4096
RING_MIB = 256
VOLUME_MIB = 1024
GROUP = 32
FICLONERANGE = 0x4020940D
SMALL_MIB = 64
SMALL_WRITES = 1500
MODES = ("twice", "clone", "fill", "volume", "small")


def prepared(path, mib, content):
    """A file of `mib` MiB that has been written once."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    if os.fstat(fd).st_size < mib * MIB:
        os.posix_fallocate(fd, 0, mib * MIB)
        for at in range(mib):
            os.pwrite(fd, content, at * MIB)
        os.fsync(fd)
    os.close(fd)


def percentiles(times):
    times.sort()
    return [1e6 * times[len(times) * share // 100] for share in (50, 99)]


def small(directory, payload, rounds):
    paths = [os.path.join(directory, name) for name in ("small-ring", "small-volume")]
    for shared in [False, True] * rounds:
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)
            prepared(path, SMALL_MIB, payload)
        ring, volume = (os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC) for path in paths)
        for at in range(0, SMALL_MIB * MIB if shared else 0, MIB):
            fcntl.ioctl(volume, FICLONERANGE, struct.pack("qQQQ", ring, at, MIB, at))
        os.fdatasync(volume)
        times = []
        for number in range(SMALL_WRITES):
            since = time.monotonic()
            os.pwrite(ring, payload[: 2 * BLOCK], number * 2 * BLOCK)
            times.append(time.monotonic() - since)
        os.close(ring)
        os.close(volume)
        median, late = percentiles(times)
        print(f"{'shared' if shared else 'own'} extents: median {median:.0f} us, 99 in 100 {late:.0f} us")


def main():
    if len(sys.argv) != 4 or sys.argv[2] not in MODES:
        sys.exit(__doc__)
    directory, mode, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
    memory = mmap.mmap(-1, MIB + BLOCK)
    memory.write(os.urandom(MIB + BLOCK))
    entry = memoryview(memory)
    payload, head = entry[:MIB], entry[:BLOCK]
    if mode == "small":
        return small(directory, payload, mib)

    ring_path, volume_path = os.path.join(directory, "ring"), os.path.join(directory, "volume")
    prepared(ring_path, RING_MIB + 2, payload)
    if mode == "fill":
        volume_path = os.path.join(directory, "fresh")
        if os.path.exists(volume_path):
            os.unlink(volume_path)
        fd = os.open(volume_path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, VOLUME_MIB * MIB)
        os.fsync(fd)
        os.close(fd)
    else:
        prepared(volume_path, VOLUME_MIB, payload)
    ring = os.open(ring_path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
    volume = os.open(volume_path, os.O_RDWR | os.O_DIRECT | (os.O_DSYNC if mode == "fill" else 0))

    places = RING_MIB * MIB // len(entry)
    waiting, times = [], []

    def destage():
        for source, target in waiting:
            if mode == "twice":
                os.pwrite(volume, payload, target)
            elif mode == "clone":
                fcntl.ioctl(volume, FICLONERANGE, struct.pack("qQQQ", ring, source + BLOCK, MIB, target))
        os.fdatasync(volume)
        waiting.clear()

    began, cpu = time.monotonic(), time.process_time()
    for number in range(mib):
        since = time.monotonic()
        place, target = number % places, number % VOLUME_MIB * MIB
        if mode == "fill":
            os.pwrite(volume, payload, target)
            os.pwrite(ring, head, place * BLOCK)
        elif mode == "volume":
            os.pwrite(volume, payload, target)
            waiting.append((0, target))
        else:
            os.pwrite(ring, entry, place * len(entry))
            waiting.append((place * len(entry), target))
        if len(waiting) == GROUP:
            destage()
        times.append(time.monotonic() - since)
    destage()
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    median, late = percentiles(times)
    print(f"{mode}: {mib / seconds:.0f} MiB/s, {1000 * cpu / mib:.3f} ms/MiB, median {median:.0f} us, 99 in 100 {late:.0f} us")


main()
