"""Compares a journal with the places of data files: `journal.py ENTRIES EXTENTS PAGE`.

ENTRIES is the answer of `mainstay inspect --entries --json`, EXTENTS that of `filefrag -v -b4096`. Prints how many entries the
journal has, of how many the payload is in the volume, how many of its writes touch data files, and how many of those begin or end
within a page. Names the first of those.
"""

import bisect
import json
import re
import sys

BLOCK = 4096


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
    filled = sum(bool(entry["payload"]) and entry["payload"][0] is None for entry in entries)
    print(len(entries), filled, writes, len(off))
    for entry, name in off[:3]:
        print(f"entry {entry['index']}: {entry['len']} bytes at {entry['offset']}, in {name}", file=sys.stderr)


main()
