"""Leaves free space of a file system only in pieces of 8 KiB, 24 KiB from each other: `scatter.py DIRECTORY`."""

import ctypes
import os
import sys

KEEP_SIZE, PUNCH_HOLE = 1, 2
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

space = os.statvfs(sys.argv[1])
length = (space.f_bavail - 1024) * space.f_frsize
file = os.open(sys.argv[1] + "/filler", os.O_CREAT | os.O_WRONLY)
os.posix_fallocate(file, 0, length)
for at in range(0, length, 24 << 10):
    if libc.fallocate(file, PUNCH_HOLE | KEEP_SIZE, at, 8 << 10):
        sys.exit(os.strerror(ctypes.get_errno()))
os.fsync(file)
