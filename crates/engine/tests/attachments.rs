//! Clients: an engine has the devices of a resource, and another one its only replica.
//!
//! Needs root, and the packages that `make deps` installs.

#[path = "support/exports.rs"]
mod exports;
#[path = "support/machine.rs"]
#[allow(dead_code, reason = "this program uses a part of that module")]
mod machine;
mod support;

use exports::{VOLUME_BYTES, content, nbd, run_while, turn, uri};
use machine::Machine;
use mainstay_api::engine::{ClientStatus, Reply, Request};
use mainstay_codec::virtio_blk::Kind;
use mainstay_engine::EngineOptions;
use mainstay_engine::frontend::DeviceOption;
use mainstay_types::{
    Attachment, ClientOver, Code, ConfigVersion, FrontendKind, Index, Instance, NodeId, ResourceRecord, Role,
    SessionId,
};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Engine, RESOURCE, fresh_dir, member, record, wait};

const INSTANCE: Instance = Instance(9);

fn fuse(options: &mut EngineOptions) {
    options.device = DeviceOption::Only(FrontendKind::Fuse);
}

/// Record of a resource with one replica, on node 1. With a `session` the resource is attached to
/// node 2 under this session.
fn of_one(version: u64, session: Option<u64>) -> ResourceRecord {
    let attached = session.map(|session| Attachment {
        node: NodeId(2),
        session: SessionId(session),
        instance: Some(INSTANCE),
        wait_ms: 60_000,
    });
    ResourceRecord {
        replicas: vec![member(1)],
        version: ConfigVersion(version),
        attached,
        ..record(version, 1, 1, &[1])
    }
}

/// A primary that has offered its devices, and a client that has them instead.
fn attached(name: &str, configure: fn(&mut EngineOptions)) -> (PathBuf, [Engine; 2]) {
    let base = fresh_dir(name);
    let [mut primary, mut client] = [1, 2].map(|node| Engine::start_with(node, &base, configure));
    primary.create(RESOURCE, "db", vec![VOLUME_BYTES]);
    primary.ask(Request::Record { record: of_one(1, None) });
    primary.until("its own device", |status| status.role == Role::Primary && !status.devices.is_empty());
    primary.ask(Request::Record { record: of_one(2, Some(2)) });
    primary.until("no device", |status| status.attached && status.devices.is_empty());
    attach(&mut client, of_one(2, Some(2)));
    until(&mut client, "its devices", |status| !status.devices.is_empty());
    (base, [primary, client])
}

fn attach(engine: &mut Engine, record: ResourceRecord) {
    engine.ask(Request::AttachClient { name: "db".into(), record: Box::new(record), instance: INSTANCE });
}

fn until(engine: &mut Engine, what: &str, is: impl Fn(&ClientStatus) -> bool) -> ClientStatus {
    wait(what, || {
        engine.listen();
        engine.client.clone().filter(&is)
    })
}

fn code(reply: Reply) -> Code {
    let Reply::Error(error) = reply else { panic!("{reply:?}") };
    error.code
}

#[test]
fn the_devices_are_on_one_side_and_a_replica_and_a_client_exclude_each_other() {
    let _turn = turn();
    let (base, [mut primary, mut client]) = attached("client-fuse", fuse);
    let path =
        until(&mut client, "a primary", |status| status.primary == Some(NodeId(1))).devices[0].path.clone();
    let open = || OpenOptions::new().read(true).write(true).open(&path).expect("the device");
    let device = open();
    device.write_all_at(&[7; 8192], 4096).expect("written");
    device.sync_all().expect("durable");

    let there =
        Request::AttachClient { name: "db".into(), record: Box::new(of_one(2, Some(2))), instance: INSTANCE };
    assert_eq!(code(primary.reply(there)), Code::HasReplica);
    let dir = client.replica_dir();
    assert_eq!(
        code(client.reply(Request::Open {
            resource: RESOURCE,
            name: "db".into(),
            dir,
            incarnation: None,
            held: Index(0)
        })),
        Code::Attached
    );

    // Another session: this one is over, and its devices fail.
    let over = of_one(3, Some(3));
    let over = ResourceRecord {
        attached: over.attached.map(|attached| Attachment { instance: Some(Instance(10)), ..attached }),
        ..over
    };
    attach(&mut client, over.clone());
    primary.ask(Request::Record { record: over });
    until(&mut client, "the end of the session", |status| {
        status.over == Some(ClientOver::Detached) && status.devices.is_empty()
    });
    let failed = device.write_all_at(&[8; 4096], 4096).and_then(|()| device.sync_all());
    assert!(failed.is_err(), "a client that lost the devices writes no more");
    drop(device);
    client.ask(Request::DetachClient { resource: RESOURCE });
    wait("no client", || {
        client.listen();
        client.client.is_none().then_some(())
    });

    primary.ask(Request::Record { record: of_one(4, None) });
    let device = primary.device();
    let mut block = mainstay_engine::buffer::BufferPool::new(0).get(4096);
    device.read_exact_at(block.as_mut_slice(), 4096).expect("read");
    assert!(block.as_slice().iter().all(|byte| *byte == 7), "another content than the client wrote");
    drop(device);
    primary.ask(Request::Drop { resource: RESOURCE });
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

#[test]
fn an_export_of_a_client_is_that_of_its_primary() {
    let _turn = turn();
    let (base, mut engines) = attached("client-nbd", nbd);
    let export = |engine: &Engine| uri(engine, "db/0");
    let (from, to) = (base.join("from"), base.join("to"));
    let bytes = content(1, VOLUME_BYTES as usize);
    std::fs::write(&from, &bytes).expect("written");
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let run = |engines: &mut [Engine; 2], program: &str, words: &[&str]| {
        run_while(engines, Command::new(program).args(words), |_| ())
    };
    let of_client = export(&engines[1]);
    run(&mut engines, "nbdcopy", &["--flush", "--connections=4", "--requests=64", &from, &of_client]);
    let map = run(&mut engines, "nbdinfo", &["--map", &of_client]);
    assert!(map.contains("data") && map.lines().count() == 1, "everything may be written: {map}");
    run(&mut engines, "nbdcopy", &["--connections=4", "--requests=64", &of_client, &to]);
    assert!(std::fs::read(&to).expect("a copy") == bytes, "the client reads something else than it wrote");

    let [primary, client] = &mut engines;
    client.ask(Request::DetachClient { resource: RESOURCE });
    primary.ask(Request::Record { record: of_one(3, None) });
    primary.until("its own export", |status| !status.devices.is_empty());
    let of_primary = export(primary);
    run(&mut engines, "nbdcopy", &["--connections=4", &of_primary, &to]);
    assert!(
        std::fs::read(&to).expect("a copy") == bytes,
        "the primary has something else than the client wrote"
    );
    let [primary, _] = &mut engines;
    primary.ask(Request::Drop { resource: RESOURCE });
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

/// Between two sessions others may write, so what a machine has in flight, and in its caches, is of
/// the past in the next one.
#[test]
fn a_virtual_machine_of_a_session_that_is_over_gets_errors_in_the_next_one() {
    const OK: u8 = 0;
    const IO_ERROR: u8 = 1;
    let _turn = turn();
    let vhost_user =
        |options: &mut EngineOptions| options.device = DeviceOption::Only(FrontendKind::VhostUser);
    let (base, [mut primary, mut client]) = attached("client-vhost", vhost_user);
    let path = until(&mut client, "a socket", |status| !status.devices.is_empty()).devices[0].path.clone();
    let path = Path::new(&path);
    let mut machine = Machine::start(path, 1);
    assert_eq!(machine.do_it(0, Kind::Out, 0, &[7; 512], 0).0, OK);
    machine.reconnect(path);
    assert_eq!(
        machine.do_it(0, Kind::Out, 8, &[8; 512], 0).0,
        OK,
        "the session goes on, with the same machine"
    );

    // The primary does not serve for a moment, and requests of that time are never done.
    primary.ask(Request::Pause { resource: RESOURCE });
    machine.request(0, Kind::Out, 0, &[1; 512], 0);
    client.ask(Request::DetachClient { resource: RESOURCE });
    assert!(machine.is_cut_off());
    wait("no client", || {
        client.listen();
        client.client.is_none().then_some(())
    });
    let next = of_one(3, Some(3));
    let instance = Instance(10);
    let next = ResourceRecord {
        attached: next.attached.map(|attached| Attachment { instance: Some(instance), ..attached }),
        ..next
    };
    primary.ask(Request::Record { record: next.clone() });
    primary.ask(Request::Resume { resource: RESOURCE });
    client.ask(Request::AttachClient { name: "db".into(), record: Box::new(next), instance });
    until(&mut client, "its devices", |status| !status.devices.is_empty());
    machine.reconnect(path);
    assert_eq!(machine.wait(0).status, IO_ERROR);
    assert_eq!(machine.do_it(0, Kind::In, 8, &[], 512).0, IO_ERROR);
    drop(machine);
    let mut fresh = Machine::start(path, 1);
    let read = fresh.do_it(0, Kind::In, 8, &[], 512);
    assert!(read.0 == OK && read.1 == [8; 512], "what was acknowledged is there");
    drop(fresh);
    client.ask(Request::DetachClient { resource: RESOURCE });
    primary.ask(Request::Drop { resource: RESOURCE });
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}
