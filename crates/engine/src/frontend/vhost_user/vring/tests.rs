//! Rings as drivers make them, and as liars do.

use super::*;
use crate::frontend::vhost_user::memory::tests::memfd;
use mainstay_codec::vhost_user::MemoryRegion;

const SIZE: u16 = 8;
const BYTES: u64 = 1 << 20;
const PARTS: Parts = Parts { descriptors: 0, available: 4096, used: 8192 };
const DATA: u64 = 65536;
const TABLE: u64 = 16384;

fn memory() -> Memory {
    let region = MemoryRegion { guest: 0, bytes: BYTES, user: 0, offset: 0 };
    Memory::map(&[region], vec![memfd(BYTES, true)]).expect("mapped")
}

fn ring(memory: &Memory, event_idx: bool) -> Vring {
    Vring::new(memory, SIZE, PARTS, event_idx, 0).expect("a ring")
}

fn describe(memory: &Memory, at: u64, address: u64, bytes: u32, flags: u16, next: u16) {
    let mut descriptor = [0; 16];
    descriptor[..8].copy_from_slice(&address.to_le_bytes());
    descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
    descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
    descriptor[14..].copy_from_slice(&next.to_le_bytes());
    memory.write(at, &descriptor).expect("in memory");
}

/// Offers a head, as a driver does.
fn offer(memory: &Memory, head: u16) {
    let index = memory.load(PARTS.available + 2, Ordering::Relaxed).expect("in memory");
    let place = PARTS.available + 4 + 2 * u64::from(index % SIZE);
    memory.store(place, head, Ordering::Relaxed).expect("in memory");
    memory.store(PARTS.available + 2, index.wrapping_add(1), Ordering::Release).expect("in memory");
}

fn follow(memory: &Memory, ring: &Vring, head: u16) -> Result<Chain, Fault> {
    let mut chain = Chain::default();
    ring.follow(memory, head, &mut chain).map(|()| chain)
}

#[test]
fn heads_go_round_the_ring() {
    let memory = memory();
    // Close to where positions wrap.
    memory.store(PARTS.available + 2, 65534, Ordering::Relaxed).expect("in memory");
    memory.store(PARTS.used + 2, 65534, Ordering::Relaxed).expect("in memory");
    let mut ring = Vring::new(&memory, SIZE, PARTS, true, 65534).expect("a ring");
    for round in 0..40u16 {
        assert_eq!(ring.take(&memory), Ok(None));
        offer(&memory, round % SIZE);
        assert_eq!(ring.take(&memory), Ok(Some(round % SIZE)));
        ring.put(&memory, round % SIZE, 7).expect("put back");
        let mut entry = [0; 8];
        let place = u64::from(65534u16.wrapping_add(round) % SIZE);
        memory.read(PARTS.used + 4 + 8 * place, &mut entry).expect("in memory");
        assert_eq!(entry, [(round % SIZE) as u8, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(ring.used(), 65534u16.wrapping_add(round + 1));
        assert_eq!(memory.load(PARTS.used + 2, Ordering::Relaxed), Ok(ring.used()));
    }
}

#[test]
fn driver_and_device_are_woken_only_when_they_asked() {
    let memory = memory();
    let mut events = ring(&memory, true);
    assert_eq!(events.listen(&memory), Ok(false));
    offer(&memory, 1);
    assert_eq!(events.listen(&memory), Ok(true), "it came before it was listened for");
    assert_eq!(memory.load(PARTS.used + 4 + 8 * u64::from(SIZE), Ordering::Relaxed), Ok(0));
    events.take(&memory).expect("a head");
    assert_eq!(events.listen(&memory), Ok(false));
    assert_eq!(memory.load(PARTS.used + 4 + 8 * u64::from(SIZE), Ordering::Relaxed), Ok(1));
    let wants = |position| {
        memory
            .store(PARTS.available + 4 + 2 * u64::from(SIZE), position, Ordering::Relaxed)
            .expect("in memory");
    };
    wants(5);
    events.put(&memory, 1, 0).expect("put back");
    assert_eq!(events.must_call(&memory), Ok(true), "the first time always");
    for _ in 1..5 {
        events.put(&memory, 1, 0).expect("put back");
        assert_eq!(events.must_call(&memory), Ok(false));
    }
    events.put(&memory, 1, 0).expect("put back");
    events.put(&memory, 1, 0).expect("put back");
    assert_eq!(events.must_call(&memory), Ok(true), "the sixth was among them");
    assert_eq!(events.must_call(&memory), Ok(false), "nothing more was put");

    let mut flags = ring(&memory, false);
    flags.listen(&memory).expect("in memory");
    assert_eq!(memory.load(PARTS.used, Ordering::Relaxed), Ok(0));
    memory.store(PARTS.available, NO_INTERRUPT, Ordering::Relaxed).expect("in memory");
    assert_eq!(flags.must_call(&memory), Ok(false));
    memory.store(PARTS.available, 0, Ordering::Relaxed).expect("in memory");
    assert_eq!(flags.must_call(&memory), Ok(true));
}

#[test]
fn chains_are_followed_directly_and_through_tables() {
    let memory = memory();
    let ring = ring(&memory, true);
    describe(&memory, 48, DATA, 16, FLAG_NEXT, 7);
    describe(&memory, 112, DATA + 4096, 0, FLAG_NEXT, 0);
    describe(&memory, 0, DATA + 8192, 512, FLAG_NEXT | FLAG_WRITE, 1);
    describe(&memory, 16, DATA + 16384, 1, FLAG_WRITE, 99);
    let direct = follow(&memory, &ring, 3).expect("a chain");
    assert_eq!(direct.readable, [Piece { address: DATA, bytes: 16 }]);
    let writable = [Piece { address: DATA + 8192, bytes: 512 }, Piece { address: DATA + 16384, bytes: 1 }];
    assert_eq!(direct.writable, writable);
    // The same in a table that is longer than the ring.
    for entry in 0..20 {
        let flags = if entry < 19 { FLAG_NEXT } else { FLAG_WRITE };
        describe(&memory, TABLE + 16 * entry, DATA + entry * 4096, 16, flags, entry as u16 + 1);
    }
    describe(&memory, 80, TABLE, 20 * 16, FLAG_INDIRECT, 0);
    let indirect = follow(&memory, &ring, 5).expect("a chain");
    assert_eq!((indirect.readable.len(), indirect.writable.len()), (19, 1));
}

#[test]
fn pieces_are_copied_over_their_borders() {
    let memory = memory();
    let pieces = [
        Piece { address: 100, bytes: 3 },
        Piece { address: 200, bytes: 4 },
        Piece { address: 300, bytes: 5 },
    ];
    copy_in(&memory, &pieces, 1, b"abcdefgh").expect("in memory");
    let mut found = [0; 8];
    copy_out(&memory, &pieces, 1, &mut found).expect("in memory");
    assert_eq!(&found, b"abcdefgh");
    let mut middle = [0; 4];
    memory.read(200, &mut middle).expect("in memory");
    assert_eq!(&middle, b"cdef");
    let far = [Piece { address: BYTES - 1, bytes: 2 }];
    assert_eq!(copy_out(&memory, &far, 0, &mut [0; 2]), Err(Outside));
    copy_out(&memory, &pieces, 12, &mut []).expect("nothing");
}

#[test]
fn rings_of_liars_are_at_fault() {
    let memory = memory();
    for (size, parts) in [
        (0, PARTS),
        (7, PARTS),
        (2048, PARTS),
        (SIZE, Parts { descriptors: 8, ..PARTS }),
        (SIZE, Parts { available: 4097, ..PARTS }),
        (SIZE, Parts { used: 8194, ..PARTS }),
        (SIZE, Parts { used: BYTES - 8, ..PARTS }),
        (SIZE, Parts { descriptors: u64::MAX - 15, ..PARTS }),
    ] {
        assert!(Vring::new(&memory, size, parts, true, 0).is_err(), "{size} {parts:?}");
    }
    let mut ring = ring(&memory, true);
    memory.store(PARTS.available + 2, SIZE + 1, Ordering::Relaxed).expect("in memory");
    assert!(ring.take(&memory).is_err(), "more than it has places");
    memory.store(PARTS.available + 2, 1, Ordering::Relaxed).expect("in memory");
    memory.store(PARTS.available + 4, SIZE, Ordering::Relaxed).expect("in memory");
    assert!(ring.take(&memory).is_err(), "a head that is not there");

    let mut fault = |what: &str, describe: &dyn Fn()| {
        describe();
        assert!(follow(&memory, &ring, 0).is_err(), "{what}");
        ring.set_available(0);
    };
    let at = |at, address, bytes, flags, next| describe(&memory, at, address, bytes, flags, next);
    fault("a circle", &|| at(0, DATA, 16, FLAG_NEXT, 0));
    fault("a next that is not there", &|| at(0, DATA, 16, FLAG_NEXT, SIZE));
    fault("outside", &|| at(0, BYTES, 16, 0, 0));
    fault("over the end", &|| at(0, BYTES - 8, 16, 0, 0));
    fault("a sum that wraps", &|| at(0, u64::MAX, u32::MAX, 0, 0));
    fault("a table of no whole descriptors", &|| at(0, TABLE, 24, FLAG_INDIRECT, 0));
    fault("an empty table", &|| at(0, TABLE, 0, FLAG_INDIRECT, 0));
    fault("a table that is too long", &|| at(0, TABLE, 1025 * 16, FLAG_INDIRECT, 0));
    fault("a table outside", &|| at(0, BYTES, 16, FLAG_INDIRECT, 0));
    fault("a table with a next", &|| at(0, TABLE, 16, FLAG_INDIRECT | FLAG_NEXT, 1));
    fault("a table in a table", &|| {
        at(0, TABLE, 16, FLAG_INDIRECT, 0);
        at(TABLE, TABLE, 16, FLAG_INDIRECT, 0);
    });
    fault("to be read after to be written", &|| {
        at(0, DATA, 16, FLAG_NEXT | FLAG_WRITE, 1);
        at(16, DATA, 16, 0, 0);
    });
    at(0, DATA, 16, 0, 0);
    assert!(follow(&memory, &ring, 0).is_ok());
}

/// R25: whatever stands in the rings and in the tables, nothing panics or goes on without end, and
/// what is found lies in memory.
#[test]
fn random_rings_do_no_harm() {
    let memory = memory();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let (mut followed, mut faults) = (0, 0);
    for round in 0..4000 {
        for _ in 0..12 {
            let tables = [0, TABLE, 2 * TABLE, DATA];
            let at = tables[below(4) as usize] + 16 * below(16);
            let address = [tables[below(4) as usize], below(BYTES), BYTES - below(64), u64::MAX - below(64)];
            let bytes = [16 * below(20), below(8192), u64::from(u32::MAX)];
            let flags = if below(4) == 0 { below(8) } else { below(4) };
            let address = address[[0, 1, 1, 1, 2, 3][below(6) as usize]];
            let bytes = bytes[[0, 1, 1, 1, 1, 2][below(6) as usize]];
            describe(&memory, at, address, bytes as u32, flags as u16, below(20) as u16);
        }
        let mut ring = ring(&memory, round % 2 == 0);
        ring.set_available(below(1 << 16) as u16);
        let ahead = ring.available().wrapping_add(below(12) as u16);
        memory.store(PARTS.available + 2, ahead, Ordering::Relaxed).expect("in memory");
        for place in 0..SIZE {
            let head = if below(10) == 0 { below(1 << 16) } else { below(SIZE.into()) };
            memory
                .store(PARTS.available + 4 + 2 * u64::from(place), head as u16, Ordering::Relaxed)
                .expect("in memory");
        }
        for _ in 0..=SIZE {
            let Ok(Some(head)) = ring.take(&memory) else { break };
            match follow(&memory, &ring, head) {
                Ok(chain) => {
                    followed += 1;
                    for piece in chain.readable.iter().chain(&chain.writable) {
                        assert!(piece.bytes > 0 && memory.holds(piece.address, piece.bytes), "{piece:?}");
                    }
                }
                Err(_) => faults += 1,
            }
            ring.put(&memory, head, 1).expect("put back");
            ring.must_call(&memory).expect("in memory");
        }
    }
    assert!(followed > 1000 && faults > 1000, "{followed} followed, {faults} at fault");
}
