"""Compares a journal with the places of data files: `journal.py ENTRIES EXTENTS PAGE`.

ENTRIES is the answer of `mainstay inspect --entries --json`, EXTENTS that of `filefrag -v -b4096`. Prints how many entries the
journal has, how many of its writes touch data files, how many of those begin or end within a page, and how many more do so with
nothing but zeroes. Names the first of those that have content.

MySQL makes a file longer by writing a MiB of zeroes at once. A kernel cuts that where the memory has more pieces than the device takes
(`max_segments`), in the middle of a page that has no content before and after.
"""

import bisect
import functools
import json
import re
import sys

BLOCK = 4096
TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


@functools.cache
def crc_of_zeroes(length):
    """The CRC-32C of so many zeroes, as the journal has it of a payload."""
    crc = 0xFFFFFFFF
    for _ in range(length):
        crc = (crc >> 8) ^ TABLE[crc & 255]
    return f"{crc ^ 0xFFFFFFFF:08x}"


def extents(path):
    """The stretches of the device that belong to data files, in bytes, in order, with the names of the files."""
    found, name = [], ""
    for line in open(path):
        if line.startswith("File size of "):
            name = line.removeprefix("File size of ").rsplit(" is ", 1)[0]
        line = re.match(r" *\d+: +\d+\.\. +\d+: +(\d+)\.\. +(\d+):", line)
        if line:
            found.append((int(line[1]) * BLOCK, (int(line[2]) + 1) * BLOCK, name))
    return sorted(found)


def main():
    inspected, page = json.load(open(sys.argv[1])), int(sys.argv[3])
    files = extents(sys.argv[2])
    starts = [start for start, _, _ in files]
    entries = [entry for batch in inspected["batches"] for entry in batch["entries"]]
    writes, off = 0, []
    for entry in entries:
        if entry["kind"] != "write" or entry["volume"] != 0:
            continue
        start, end = entry["offset"], entry["offset"] + entry["len"]
        # The files that hold the first and the last byte. A stretch between them has no end within a page.
        ends = [(start, start), (end, end - 1)]
        held = [(edge, files[at]) for edge, byte in ends
                if (at := bisect.bisect(starts, byte) - 1) >= 0 and byte < files[at][1]]
        writes += bool(held)
        off += [(entry, name) for edge, (_, _, name) in held if edge % page][:1]
    zeroes = [cut for cut in off if cut[0]["payload"][1] == crc_of_zeroes(cut[0]["len"])]
    off = [cut for cut in off if cut not in zeroes]
    print(len(entries), writes, len(off), len(zeroes))
    for entry, name in off[:3]:
        print(f"entry {entry['index']}: {entry['len']} bytes at {entry['offset']}, in {name}", file=sys.stderr)


main()
