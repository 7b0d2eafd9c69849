//! Volumes as disks of virtual machines: whole engines against a monitor and a driver of a few
//! lines, against those that lie, and through engines that stop serving in the midst of requests.
//! Real machines are in `tests/vm/vhost.sh`.

#[path = "support/machine.rs"]
mod machine;
mod support;

use machine::{Machine, SLOT_BYTES};
use mainstay_api::engine::{DeviceUser, Request};
use mainstay_codec::vhost_user::{MemoryRegion, Message, RingAddresses};
use mainstay_codec::virtio_blk::{CONFIG_BYTES, Kind, Range};
use mainstay_engine::EngineOptions;
use mainstay_engine::frontend::DeviceOption;
use mainstay_engine::ring::now;
use mainstay_types::{
    Attachment, ConfigVersion, Epoch, FrontendKind, NodeId, ResourceId, ResourceRecord, Role, SessionId, Time,
};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use support::{Engine, fresh_dir, member, wait};

const VOLUME_BYTES: u64 = 64 << 20;
const SECTOR: u64 = 512;
const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Engines share the machine, so the tests of this file take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn vhost_user(options: &mut EngineOptions) {
    options.device = DeviceOption::Only(FrontendKind::VhostUser);
}

/// One engine with one resource, `db`, of two volumes, the socket of the first, and the directory
/// of all that.
fn serve(name: &str, node: u32) -> (Engine, PathBuf, PathBuf) {
    let base = fresh_dir(name);
    let mut engine = Engine::start_with(node, &base, vhost_user);
    engine.serve_alone(ResourceId(1), "db", vec![VOLUME_BYTES, 1 << 20]);
    let path = served(&mut engine);
    (engine, path, base)
}

fn served(engine: &mut Engine) -> PathBuf {
    let status = engine.until("a socket", |status| {
        status.role == Role::Primary && status.devices.len() == status.volumes.len()
    });
    PathBuf::from(&status.devices[0].path)
}

fn end(mut engine: Engine, base: &Path) {
    engine.ask(Request::Drop { resource: ResourceId(1) });
    std::fs::remove_dir_all(base).expect("nothing holds the files any more");
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

#[test]
fn a_driver_reads_back_its_own_writes() {
    let _turn = turn();
    let (engine, path, base) = serve("vhost-model", 40);
    assert_eq!(path, engine.run_dir.join("vhost-user/db/0.sock"));
    let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for the engine's user alone");
    let mut machine = Machine::start(&path, 2);
    let config = machine.ask(&Message::GetConfig { offset: 0, len: CONFIG_BYTES as u32 });
    assert_eq!(config.len(), 12 + CONFIG_BYTES);
    assert_eq!(machine::u64_of(&config[12..]), VOLUME_BYTES / SECTOR);
    assert_eq!(machine.ask(&Message::GetConfig { offset: 250, len: 7 }).len(), 12, "beyond its end");

    let sectors = 4096u64;
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut model = vec![0u8; (sectors * SECTOR) as usize];
    for round in 0..1500 {
        machine.indirect = round % 3 == 0;
        let queue = random.below(2) as u16;
        let sector = random.below(sectors - SLOT_BYTES / SECTOR);
        let long = random.below(4) == 0;
        let count = 1 + random.below(if long { SLOT_BYTES / SECTOR } else { 9 });
        let (from, to) = ((sector * SECTOR) as usize, ((sector + count) * SECTOR) as usize);
        let range = Range { sector, sectors: count as u32, unmap: false, unknown_flags: false };
        match random.below(8) {
            0..=2 => {
                let data = random.bytes(count * SECTOR);
                model[from..to].copy_from_slice(&data);
                assert_eq!(machine.do_it(queue, Kind::Out, sector, &data, 0).0, OK);
            }
            3..=5 => {
                let (status, data) = machine.do_it(queue, Kind::In, sector, &[], (count * SECTOR) as u32);
                assert!(status == OK && data == model[from..to], "round {round}");
            }
            6 => {
                let unmap = random.below(2) == 0;
                machine.range(queue, Kind::WriteZeroes, Range { unmap, ..range });
                model[from..to].fill(0);
                assert_eq!(machine.wait(queue).status, OK);
            }
            _ => {
                // Whole blocks inside become zeroes, which R15 says, and the rest stays.
                machine.range(queue, Kind::Discard, range);
                let (first, last) = (from.next_multiple_of(4096), to / 4096 * 4096);
                if first < last {
                    model[first..last].fill(0);
                }
                assert_eq!(machine.wait(queue).status, OK);
                assert_eq!(machine.do_it(queue, Kind::Flush, 0, &[], 0).0, OK);
            }
        }
    }
    drop(machine);
    end(engine, &base);
}

#[test]
fn many_simultaneous_and_long_requests() {
    let _turn = turn();
    let (engine, path, base) = serve("vhost-many", 41);
    let mut machine = Machine::start(&path, 2);
    let mut random = Random(7);
    let (mut sent, mut done, mut at) = (0, 0, 0);
    while done < 2000 {
        for queue in 0..2 {
            while sent < 2000 && machine.has_slot(queue) {
                let len = if sent % 50 == 0 { SLOT_BYTES } else { 4096 };
                machine.request(
                    queue,
                    Kind::Out,
                    at / SECTOR,
                    &vec![(at / 4096 % 251) as u8; len as usize],
                    0,
                );
                at = (at + len) % (32 << 20);
                sent += 1;
            }
            while let Some(answer) = machine.poll(queue) {
                assert_eq!((answer.status, answer.written), (OK, 1));
                done += 1;
            }
        }
    }
    for _ in 0..50 {
        let block = random.below(at / 4096);
        let (status, data) = machine.do_it(1, Kind::In, block * 8, &[], 4096);
        // Long ones have the value of their first block throughout.
        assert!(status == OK && data.iter().all(|byte| *byte == data[0]), "block {block}");
    }
    // Stopped and started again within one connection, as when a machine is paused.
    assert_eq!(machine.stop(0) + machine.stop(1), 2050);
    drop(machine);
    end(engine, &base);
}

#[test]
fn an_impossible_request_of_a_driver_gets_an_error() {
    let _turn = turn();
    let (engine, path, base) = serve("vhost-refused", 42);
    let mut machine = Machine::start(&path, 1);
    let last = VOLUME_BYTES / SECTOR;
    assert_eq!(machine.do_it(0, Kind::In, last, &[], 512).0, IO_ERROR);
    assert_eq!(machine.do_it(0, Kind::Out, last - 1, &[0; 1024], 0).0, IO_ERROR);
    assert_eq!(machine.do_it(0, Kind::In, u64::MAX / 2, &[], 512).0, IO_ERROR);
    assert_eq!(machine.do_it(0, Kind::Out, 0, &[0; 100], 0).0, IO_ERROR, "no whole sectors");
    assert_eq!(machine.do_it(0, Kind::Unknown(14), 0, &[], 0).0, UNSUPPORTED);
    let range = Range { sector: 0, sectors: 8, unmap: true, unknown_flags: false };
    machine.range(0, Kind::Discard, range);
    assert_eq!(machine.wait(0).status, UNSUPPORTED);
    machine.range(0, Kind::WriteZeroes, Range { unknown_flags: true, ..range });
    assert_eq!(machine.wait(0).status, UNSUPPORTED);
    machine.range(0, Kind::WriteZeroes, Range { sectors: u32::MAX, ..range });
    assert_eq!(machine.wait(0).status, IO_ERROR);
    machine.range(0, Kind::WriteZeroes, Range { sector: last - 1, ..range });
    assert_eq!(machine.wait(0).status, IO_ERROR);
    assert_eq!(machine.do_it(0, Kind::Discard, 0, &[0; 15], 0).0, IO_ERROR);
    let (status, name) = machine.do_it(0, Kind::GetId, 0, &[], 20);
    assert_eq!((status, &name[..5]), (OK, &b"db-0\0"[..]));
    assert_eq!(machine.do_it(0, Kind::Flush, 0, &[], 0).0, OK);
    // A driver may think that there is a cache.
    machine.tell(&Message::SetConfig { offset: 32, bytes: vec![1] }, &[]);
    assert_eq!(machine.ask(&Message::GetConfig { offset: 32, len: 1 })[12], 1);
    machine.send(&Message::SetConfig { offset: 0, bytes: vec![1] }, true, &[]);
    drop(machine);
    end(engine, &base);
}

/// Makes this node primary in this epoch.
fn promote(engine: &mut Engine, epoch: u64) {
    let me = member(engine.node.0);
    let record = ResourceRecord {
        resource: ResourceId(1),
        version: ConfigVersion(epoch),
        epoch: Epoch(epoch),
        primary: Some(me.node),
        iss: vec![me],
        replicas: vec![me],
        ..ResourceRecord::new(ResourceId(1))
    };
    engine.ask(Request::Record { record });
}

/// Ends what this node serves, with requests of the machine in flight, which is cut off without an
/// answer to them.
fn cut_off(engine: &mut Engine, machine: &mut Machine, fill: u8, stop: impl FnOnce(&mut Engine)) {
    engine.ask(Request::Pause { resource: ResourceId(1) });
    for block in 0..10u64 {
        machine.request(0, Kind::Out, (100 + block) * 8, &[fill + block as u8; 4096], 0);
        machine.request(1, Kind::In, (100 + block) * 8, &[], 4096);
    }
    assert!(machine.wait_for(0, Duration::from_millis(200)).is_none(), "writes are held");
    stop(engine);
    assert!(machine.is_cut_off());
    while machine.poll(1).is_some() {}
    assert!(machine.poll(0).is_none(), "what was held is not answered");
}

/// R5, R19: requests in flight when the devices were withdrawn are done when the volume is served
/// again, if no other node was primary. They fail if another node may have been.
#[test]
fn requests_in_flight_go_on_while_no_epoch_is_missing() {
    let _turn = turn();
    let (mut engine, path, base) = serve("vhost-epochs", 43);
    let mut machine = Machine::start(&path, 2);
    assert_eq!(machine.do_it(0, Kind::Out, 0, &[9; 512], 0).0, OK);
    // Promoted again twice, and once its lease runs out for a moment.
    for round in 2..5u8 {
        cut_off(&mut engine, &mut machine, round * 20, |engine| {
            if round < 4 {
                promote(engine, round.into());
            } else {
                engine.ask(Request::Lease { until_us: now().plus_ms(1000) });
            }
        });
        engine.ask(Request::Lease { until_us: Time(u64::MAX) });
        engine.ask(Request::Resume { resource: ResourceId(1) });
        served(&mut engine);
        machine.reconnect(&path);
        let mut slots: Vec<_> = (0..10).map(|_| machine.wait(0)).collect();
        assert!(slots.iter().all(|done| done.status == OK), "{slots:?}");
        slots.sort_by_key(|done| done.slot);
        assert_eq!(slots.iter().map(|done| done.slot).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        // Those that were in flight; the others were answered before.
        while machine.wait_for(1, Duration::from_millis(200)).is_some() {}
        for block in 0..10u64 {
            let (status, data) = machine.do_it(1, Kind::In, (100 + block) * 8, &[], 4096);
            assert!(
                status == OK && data.iter().all(|byte| *byte == round * 20 + block as u8),
                "block {block}"
            );
        }
    }
    // Another node may have been primary in 4.
    cut_off(&mut engine, &mut machine, 200, |engine| promote(engine, 5));
    served(&mut engine);
    machine.reconnect(&path);
    let slots: Vec<_> = (0..10).map(|_| machine.wait(0)).collect();
    assert!(slots.iter().all(|done| done.status == IO_ERROR), "{slots:?}");
    assert_eq!(machine.do_it(0, Kind::Out, 0, &[1; 512], 0).0, IO_ERROR);
    machine.reconnect(&path);
    assert_eq!(machine.do_it(0, Kind::In, 0, &[], 512).0, IO_ERROR, "still of the past");
    drop(machine);
    // One that is switched on anew is not, and finds what was acknowledged.
    let mut fresh = Machine::start(&path, 1);
    let (status, data) = fresh.do_it(0, Kind::In, 0, &[], 512);
    assert!(status == OK && data == [9; 512]);
    let (status, data) = fresh.do_it(0, Kind::In, 800, &[], 4096);
    assert!(status == OK && data.iter().all(|byte| *byte == 80), "what failed was not done: {}", data[0]);
    drop(fresh);
    end(engine, &base);
}

/// While the resource is attached elsewhere a client writes, in the same epoch: what was in flight
/// before fails, and so does all that the machine asks for until it is started again.
#[test]
fn requests_in_flight_fail_after_a_client_had_the_resource() {
    let _turn = turn();
    let (mut engine, path, base) = serve("vhost-attached", 44);
    let mut machine = Machine::start(&path, 2);
    assert_eq!(machine.do_it(0, Kind::Out, 0, &[9; 512], 0).0, OK);
    let attach = |engine: &mut Engine, version: u64, attached: Option<Attachment>| {
        let me = member(engine.node.0);
        let record = ResourceRecord {
            version: ConfigVersion(version),
            epoch: Epoch(1),
            primary: Some(me.node),
            iss: vec![me],
            replicas: vec![me],
            attached,
            ..ResourceRecord::new(ResourceId(1))
        };
        engine.ask(Request::Record { record });
    };
    cut_off(&mut engine, &mut machine, 20, |engine| {
        let (node, session) = (NodeId(9), SessionId(2));
        attach(engine, 2, Some(Attachment { node, session, instance: None, wait_ms: 60_000 }));
    });
    engine.until("no socket", |status| status.attached && status.devices.is_empty());
    engine.ask(Request::Resume { resource: ResourceId(1) });
    attach(&mut engine, 3, None);
    served(&mut engine);
    machine.reconnect(&path);
    let slots: Vec<_> = (0..10).map(|_| machine.wait(0)).collect();
    assert!(slots.iter().all(|done| done.status == IO_ERROR), "{slots:?}");
    assert_eq!(machine.do_it(0, Kind::In, 0, &[], 512).0, IO_ERROR, "it is of the past");
    drop(machine);
    let mut fresh = Machine::start(&path, 1);
    let (status, data) = fresh.do_it(0, Kind::In, 0, &[], 512);
    assert!(status == OK && data == [9; 512]);
    drop(fresh);
    end(engine, &base);
}

/// A monitor that dies with requests in flight makes room for the next one, which finds all of them
/// done or none.
#[test]
fn a_monitor_that_dies_makes_room() {
    let _turn = turn();
    let (mut engine, path, base) = serve("vhost-dies", 44);
    let mut machine = Machine::start(&path, 2);
    // S295: the kernel does not know of it.
    let named = DeviceUser {
        what: format!("a virtual machine at {}", path.display()),
        process: Some(std::process::id()),
        follows: false,
    };
    assert_eq!(engine.users(), [named]);
    engine.ask(Request::Pause { resource: ResourceId(1) });
    for block in 0..10 {
        machine.request(0, Kind::Out, block * 8, &[1; 4096], 0);
    }
    assert!(machine.wait_for(0, Duration::from_millis(100)).is_none());
    drop(machine);
    // Its requests are still held.
    let mut next = Machine::start(&path, 1);
    next.request(0, Kind::Out, 0, &[2; 4096], 0);
    engine.ask(Request::Resume { resource: ResourceId(1) });
    assert_eq!(next.wait(0).status, OK);
    let (status, data) = next.do_it(0, Kind::In, 0, &[], 4096);
    assert!(status == OK && data.iter().all(|byte| *byte == 2), "the later one counts");
    drop(next);
    end(engine, &base);
}

/// R18, R25.
#[test]
fn machines_that_lie_harm_only_themselves() {
    let _turn = turn();
    let (mut engine, path, base) = serve("vhost-lies", 45);
    let other = path.with_file_name("1.sock");
    let mut good = Machine::start(&other, 1);
    let mut random = Random(99);

    // Monitors that send what is no message, or none that makes sense.
    for round in 0..60 {
        let mut machine = Machine::start(&path, 1);
        match round % 12 {
            0 => std::io::Write::write_all(&mut machine.stream, &random.bytes(300)).expect("sent"),
            1 => machine.send(&Message::SetMemTable(vec![region(0, 4096)]), false, &[]),
            2 => {
                let file = std::fs::File::open("/etc/hostname").expect("a file");
                machine.send(&Message::SetMemTable(vec![region(0, 4096)]), false, &[file.as_fd()]);
            }
            3 => {
                machine.send(&Message::SetMemTable(vec![region(0, u64::MAX)]), false, &[machine.file.as_fd()])
            }
            4 => machine.send(&Message::SetRingSize { ring: 64, size: 8 }, false, &[]),
            5 => machine.send(&Message::SetRingSize { ring: 0, size: 3 }, false, &[]),
            6 => machine.send(&Message::SetRingKick { ring: 0, file: false }, false, &[]),
            7 => machine.send(&Message::SetRingCall { ring: 0, file: true }, false, &[machine.file.as_fd()]),
            8 => {
                machine.stop(0);
                let addresses = RingAddresses { descriptors: 1, used: 2, available: 3 };
                machine.tell(&Message::SetRingAddresses { ring: 0, addresses }, &[]);
                let kick =
                    rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("an eventfd");
                machine.send(&Message::SetRingKick { ring: 0, file: true }, false, &[kick.as_fd()]);
            }
            9 => machine.send(&Message::SetFeatures(u64::MAX), false, &[]),
            10 => {
                let (area, _) = machine.area.as_ref().expect("there");
                machine.send(&Message::SetInflight(*area), false, &[machine.file.as_fd()]);
            }
            _ => {
                let files = [machine.file.as_fd(); 8];
                for _ in 0..4 {
                    machine.send(&Message::GetFeatures, false, &files);
                }
                std::io::Write::write_all(&mut machine.stream, &[0xff; 12]).expect("sent");
            }
        }
        assert!(machine.is_cut_off(), "round {round}");
    }
    // One that says half a message and no more, and then goes.
    let mut half = Machine::start(&path, 1);
    std::io::Write::write_all(&mut half.stream, &Message::GetFeatures.encode(false).expect("one")[..7])
        .expect("sent");
    assert_eq!(good.do_it(0, Kind::Out, 0, &[3; 512], 0).0, OK);
    drop(half);

    // Drivers that break the rules lose their queue, and only it; their monitor can start it again.
    for round in 0..5 {
        let mut machine = Machine::start(&path, 2);
        let available = Machine::available(0);
        match round {
            0 => machine.store(available + 2, 1000),
            1 => {
                machine.store(available + 4, 9999);
                machine.store(available + 2, 1);
            }
            _ => {
                // A head whose descriptor is noise.
                let bytes: Vec<u8> = random.bytes(16).iter().map(|byte| byte | 0x81).collect();
                vm_memory::Bytes::write_slice(
                    &machine.memory,
                    &bytes,
                    vm_memory::GuestAddress(Machine::descriptors(0)),
                )
                .expect("in memory");
                machine.store(available + 4, 0);
                machine.store(available + 2, 1);
            }
        }
        machine.kick(0, true);
        assert_eq!(machine.do_it(1, Kind::Out, 0, &[round; 512], 0).0, OK, "the other queue goes on");
        machine.stop(0);
    }

    // One whose memory is taken away under the engine.
    let machine = Machine::start(&path, 1);
    rustix::fs::ftruncate(&machine.file, 0).expect("shorter");
    machine.kick(0, true);
    assert!(machine.is_cut_off());
    drop(machine);

    assert_eq!(good.do_it(0, Kind::Out, 0, &[3; 512], 0).0, OK);
    let (status, data) = good.do_it(0, Kind::In, 0, &[], 512);
    assert!(status == OK && data == [3; 512]);
    let mut last = wait("a place", || Some(Machine::start(&path, 1)));
    assert_eq!(last.do_it(0, Kind::In, 0, &[], 512).0, OK);
    drop((good, last));
    engine.until("the engine to be well", |status| status.role == Role::Primary);
    end(engine, &base);
}

fn region(guest: u64, bytes: u64) -> MemoryRegion {
    MemoryRegion { guest, bytes, user: guest, offset: 0 }
}
