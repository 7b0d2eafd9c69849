# Run by nbdsh (libnbd) against a volume of zeroes: random requests of any alignment on connections that agreed on
# different things, against an array of bytes.
import os
import random

uri, seed = os.environ["NBD_URI"], int(os.environ["NBD_SEED"])
rng = random.Random(seed)
AREA = 6 << 20


def connect(structured, sizes):
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    # Without it the server may be asked for payloads of up to 32 MiB.
    handle.set_request_block_size(sizes)
    if structured:
        handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    # The server is to refuse, not the library.
    handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle


handles = [connect(True, True), connect(False, False), connect(True, False)]
size = handles[0].get_size()
first = handles[0]
assert handles[1].get_structured_replies_negotiated() is False
assert first.get_structured_replies_negotiated() is True
for able in ("can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_multi_conn", "can_df"):
    assert getattr(first, able)(), able
assert not first.is_read_only() and not first.is_rotational() and not handles[1].can_df()
sizes = (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)
assert [first.get_block_size(size) for size in sizes] == [1, 4096, 1 << 20]

model = bytearray(AREA)
for step in range(1500):
    handle = rng.choice(handles)
    offset = rng.randrange(AREA)
    length = rng.choice([1, 511, 512, 4096, rng.randrange(1, 70000), rng.randrange(1, 3 << 20)])
    length = min(length, AREA - offset)
    if rng.random() < 0.5:
        offset, length = offset & ~4095, (length + 4095) & ~4095
        length = min(length, AREA - offset)
    kind = rng.choice(["write", "write", "write", "read", "read", "zero", "trim", "flush"])
    if kind == "write":
        data = rng.randbytes(length)
        handle.pwrite(data, offset, nbd.CMD_FLAG_FUA if rng.random() < 0.2 else 0)
        model[offset : offset + length] = data
    elif kind == "read":
        assert handle.pread(length, offset) == model[offset : offset + length], (step, offset, length)
    elif kind == "zero":
        flags = rng.choice([0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FAST_ZERO, nbd.CMD_FLAG_FUA])
        handle.zero(length, offset, flags)
        model[offset : offset + length] = bytes(length)
    elif kind == "trim":
        handle.trim(length, offset)
        # What it left is not promised; it is looked at, so that the model goes on from there.
        found = handle.pread(length, offset)
        for at in range(0, length, 512):
            piece = found[at : at + 512]
            assert piece == bytes(len(piece)) or piece == model[offset + at : offset + at + len(piece)] or (
                any(piece[i] in (0, model[offset + at + i]) for i in range(len(piece)))
            ), (step, "trim")
        model[offset : offset + length] = found
    else:
        handle.flush()

# Neighbours in one block, on different connections, at the same time.
for step in range(300):
    block = rng.randrange(AREA // 4096) * 4096
    cuts = sorted(rng.sample(range(1, 4096), len(handles) - 1))
    edges = list(zip([0] + cuts, cuts + [4096]))
    cookies = []
    for handle, (start, end) in zip(handles, edges):
        data = rng.randbytes(end - start)
        model[block + start : block + end] = data
        cookies.append((handle, handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), block + start)))
    for handle, cookie in cookies:
        while not handle.aio_command_completed(cookie):
            handle.poll(-1)
    assert first.pread(4096, block) == model[block : block + 4096], (step, block)

for handle in handles:
    assert handle.pread(AREA, 0) == model

# Payloads that are longer than the log takes in one piece.
data = rng.randbytes((32 << 20) - 4096 - 1)
handles[2].pwrite(data, 8 << 20 | 1)
for handle in handles:
    assert handle.pread(len(data), 8 << 20 | 1) == data
# Not to be fragmented: one chunk as long as the limit allows, an error beyond it.
chunks = []
buffer = bytearray(1 << 20)
first.pread_structured(1 << 20, 0, lambda data, offset, status, error: chunks.append(offset), nbd.CMD_FLAG_DF)
assert chunks == [0], chunks


def refused(errno, request):
    try:
        request()
    except nbd.Error as error:
        assert error.errno == errno, error
    else:
        raise AssertionError("not refused")


refused("EOVERFLOW", lambda: first.pread_structured(2 << 20, 0, lambda *_: 0, nbd.CMD_FLAG_DF))
for handle in handles:
    refused("EINVAL", lambda: handle.pread(2, size - 1))
    refused("ENOSPC", lambda: handle.pwrite(b"ab", size - 1))
    refused("ENOSPC", lambda: handle.zero(2, size - 1))
    refused("EINVAL", lambda: handle.trim(2, size - 1))
    # The connection goes on.
    assert handle.pread(1, size - 1) == b"\0"

# What was never written is a hole; what was, is not.
extents = []
first.block_status(size, 0, lambda context, offset, entries, error: extents.extend(entries))
lengths, states = extents[::2], extents[1::2]
assert sum(lengths) == size and states[0] == 0, extents
assert states[-1] == nbd.STATE_HOLE | nbd.STATE_ZERO, extents
one = []
first.block_status(5000, size - 5000, lambda c, o, entries, e: one.extend(entries), nbd.CMD_FLAG_REQ_ONE)
assert one == [5000, nbd.STATE_HOLE | nbd.STATE_ZERO], one
refused("EINVAL", lambda: handles[1].block_status(4096, 0, lambda *_: 0))
for handle in handles:
    handle.shutdown()
print("the model and the volume agree")
