"""The pages that a MySQL with `innodb_doublewrite=DETECT_ONLY` looks at when it recovers: `noted.py look|tear DATA`.

Such a server notes in `#ib_*.bdblwr` which pages it is about to write, batch by batch, and not what they hold. It takes a noted page
that is all zeroes for a corrupted one. That is what a new page is whose first write never came: it is absent, and not torn, and the
redo log makes it again. `look` removes the notes of such pages, and prints how many notes are left and how many it removed.

`tear` plants a torn page: in the middle of a noted one 4 KiB become those of the page before, as in a page that was written in part.
It prints which page that is.

A batch takes 8 KiB: its number, the CRC-32C of its entries, their bytes, its type, and unused bytes, 4 + 4 + 2 + 1 + 9. An entry has
the number of a tablespace, that of a page, and a position in the redo log, 4 + 4 + 8 bytes (`storage/innobase/buf/buf0dblwr.cc`).
"""

import glob
import os
import struct
import sys

PAGE, PART, BATCH, HEADER, ENTRY = 16384, 4096, 8192, 20, 16
# Where the first page of a file has the number of its tablespace.
SPACE = 34


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def files(data):
    """The files with pages, each under the number of its tablespace."""
    found = {}
    for path in sorted(sum((glob.glob(data + end) for end in ("/*.ibd", "/*/*.ibd", "/ibdata1", "/undo_*")), [])):
        with open(path, "rb") as file:
            first = file.read(PAGE)
        found[struct.unpack_from(">I", first, SPACE)[0]] = path
    return found


def batches(data):
    """The batches with their files, places and entries."""
    for path in glob.glob(data + "/#ib_*.bdblwr"):
        file = open(path, "rb").read()
        for batch in range(0, len(file), BATCH):
            crc, length = struct.unpack_from(">IH", file, batch + 4)
            entries = file[batch + HEADER:batch + HEADER + length]
            if crc32c(entries) != crc:
                sys.exit(f"the batch at {batch} of {path} has another checksum")
            yield path, batch, [entries[at:at + ENTRY] for at in range(0, length, ENTRY)]


def page_of(entry):
    return struct.unpack_from(">II", entry)


def is_written(paths, entry):
    space, page = page_of(entry)
    if space not in paths:
        return True
    with open(paths[space], "rb") as file:
        file.seek(page * PAGE)
        return any(file.read(PAGE))


def look(data):
    paths, kept, removed = files(data), 0, 0
    for path, batch, entries in list(batches(data)):
        written = [entry for entry in entries if is_written(paths, entry)]
        kept, removed = kept + len(written), removed + len(entries) - len(written)
        if len(written) == len(entries):
            continue
        left = b"".join(written)
        with open(path, "r+b") as file:
            file.seek(batch + 4)
            file.write(struct.pack(">IH", crc32c(left), len(left)))
            file.seek(batch + HEADER)
            file.write(left.ljust(ENTRY * len(entries), b"\0"))
            file.flush()
            os.fsync(file.fileno())
    return f"{kept} {removed}"


def tear(data):
    noted = {page_of(entry) for _, _, entries in batches(data) for entry in entries}
    for space, path in files(data).items():
        if "/sbtest/" not in path:
            continue
        with open(path, "r+b") as file:
            for page in range(4, os.path.getsize(path) // PAGE):
                if (space, page) not in noted:
                    continue
                file.seek((page - 1) * PAGE + PART)
                other = file.read(PART)
                file.seek(page * PAGE + PART)
                if file.read(PART) == other:
                    continue
                file.seek(page * PAGE + PART)
                file.write(other)
                file.flush()
                os.fsync(file.fileno())
                return f"page {page} of {path}, tablespace {space}"
    sys.exit(f"none of the noted pages lies in a table: {sorted(noted)}")


act, data = sys.argv[1:]
print({"look": look, "tear": tear}[act](data))
