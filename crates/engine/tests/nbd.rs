//! Volumes over NBD: whole engines against clients that others wrote (libnbd's and QEMU's tools,
//! fio), against clients that lie and die, and through a change of the primary.
//!
//! Needs root, and the packages that `make deps` installs.

#[path = "support/exports.rs"]
mod exports;
mod support;

use exports::{
    Client, VOLUME_BYTES, content, end, free_addr, nbd, run, run_in_vain, run_while, serve, serve_with,
    socket, turn, uri,
};
use mainstay_api::engine::{DeviceUser, Request};
use mainstay_codec::nbd::handshake::GREETING_BYTES;
use mainstay_codec::nbd::{Command as Ask, REQUEST_BYTES, Request as NbdRequest};
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::frontend::nbd::{CLIENTS_MAX, NetworkOptions};
use mainstay_types::{ResourceId, Role};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Engine, RESOURCE, assert_equal, fresh_dir, record, wait};

#[test]
fn libnbds_tools_see_and_copy_volumes() {
    let _turn = turn();
    let (mut engine, base) = serve("nbd-tools", 11);
    let (first, second) = (uri(&engine, "db/0"), uri(&engine, "db/1"));

    let all = uri(&engine, "");
    let list = run(&mut engine, "nbdinfo", &["--list", &all]);
    for line in
        ["export=\"db/0\":", "export=\"db/1\":", "volume 1 of resource db", "export-size: 67108864 (64M)"]
    {
        assert!(list.contains(line), "{line} is missing:\n{list}");
    }
    let info = run(&mut engine, "nbdinfo", &["--json", &first]);
    for line in
        ["\"is_read_only\": false", "\"can_multi_conn\": true", "base:allocation", "\"can_fast_zero\": true"]
    {
        assert!(info.contains(line), "{line} is missing:\n{info}");
    }
    assert_eq!(run(&mut engine, "nbdinfo", &["--size", &second]).trim(), "1048576");
    let map = run(&mut engine, "nbdinfo", &["--map", &first]);
    assert!(map.contains("hole,zero") && map.lines().count() == 1, "{map}");

    let (from, to) = (base.join("from"), base.join("to"));
    // Data, a hole of some megabytes, data.
    let mut bytes = content(1, VOLUME_BYTES as usize);
    bytes[10 << 20..30 << 20].fill(0);
    std::fs::write(&from, &bytes).expect("written");
    let (from, to) = (from.display().to_string(), to.display().to_string());
    run(&mut engine, "nbdcopy", &["--flush", "--connections=4", "--requests=64", &from, &first]);
    run(&mut engine, "nbdcopy", &["--connections=4", &first, &to]);
    assert!(std::fs::read(&to).expect("a copy") == bytes, "nbdcopy got something else than it gave");
    let map = run(&mut engine, "nbdinfo", &["--map", &first]);
    assert!(map.contains("data"), "{map}");

    // A proxy made of nbdkit and libnbd, which asks for all that there is.
    let proxy = ["-U", "-", "nbd", &format!("uri={first}"), "--run", &format!("nbdcopy \"$uri\" {to}")];
    run(&mut engine, "nbdkit", &proxy);
    assert!(std::fs::read(&to).expect("a copy") == bytes, "nbdkit got something else");
    end(engine, &base);
}

#[test]
fn libnbd_agrees_with_an_array_of_bytes() {
    let _turn = turn();
    for seed in 1..=2u32 {
        let (engine, base) = serve("nbd-model", 20 + seed);
        let mut engines = [engine];
        let mut command = Command::new("nbdsh");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nbd/model.py");
        command.env("NBD_URI", uri(&engines[0], "db/0")).env("NBD_SEED", seed.to_string());
        // The system's Python has the module, whichever other one the user has.
        command.env("PATH", "/usr/bin:/bin");
        command.args(["-n", "-c", &format!("exec(open({:?}).read())", script.display().to_string())]);
        let output = run_while(&mut engines, &mut command, |_| {});
        assert!(output.contains("the model and the volume agree"), "{output}");
        let [engine] = engines;
        end(engine, &base);
    }
}

#[test]
fn qemu_reads_back_its_own_writes() {
    let _turn = turn();
    let (mut engine, base) = serve("nbd-qemu", 13);
    let uri = uri(&engine, "db/0");
    let image = base.join("image");
    let bytes = content(2, VOLUME_BYTES as usize);
    std::fs::write(&image, &bytes).expect("written");
    let image = image.display().to_string();
    let info = run(&mut engine, "qemu-img", &["info", &uri]);
    assert!(info.contains("virtual size: 64 MiB"), "{info}");
    run(&mut engine, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-t", "none", &image, &uri]);
    run(&mut engine, "qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri]);
    let back = base.join("back").display().to_string();
    run(&mut engine, "qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &back]);
    run(&mut engine, "qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &image, &back]);
    let output = run(
        &mut engine,
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "write -P 0x5a 512 1024",
            "-c",
            "write -z 1M 1M",
            "-c",
            "discard 4M 2M",
            "-c",
            "aio_write -P 0x11 8M 1M",
            "-c",
            "aio_write -P 0x22 9M 64k",
            "-c",
            "aio_flush",
            "-c",
            "flush",
            "-c",
            "read -P 0x5a 512 1024",
            "-c",
            "read -P 0 1M 1M",
            "-c",
            "read -P 0x11 8M 1M",
            "-c",
            "read -P 0x22 9M 64k",
            &uri,
        ],
    );
    assert!(!output.contains("failed") && !output.contains("rror"), "{output}");
    let mut found = vec![0; 4096];
    let mut client = Client::at(&engine, "db/0");
    client.read(0, &mut found);
    assert!(
        found[..512] == bytes[..512] && found[1536..] == bytes[1536..4096],
        "the rest of the block is kept"
    );
    drop(client);
    end(engine, &base);
}

#[test]
fn fio_verifies_its_own_writes() {
    let _turn = turn();
    let (mut engine, base) = serve("nbd-fio", 14);
    let uri = uri(&engine, "db/0").replace('?', "\\?");
    let uri = format!("--uri={}", uri.replace("\\?", "?"));
    for (sizes, job) in [("--bs=4k", "a"), ("--bsrange=512-64k", "b")] {
        run(
            &mut engine,
            "fio",
            &[
                &format!("--name={job}"),
                "--ioengine=nbd",
                &uri,
                "--rw=randwrite",
                sizes,
                "--blockalign=512",
                "--iodepth=32",
                "--size=48m",
                "--io_size=32m",
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
                "--randseed=7",
            ],
        );
    }
    end(engine, &base);
}

#[test]
fn clients_that_lie_or_die_harm_only_themselves() {
    let _turn = turn();
    let (mut engine, base) = serve("nbd-hostile", 15);
    let mut good = Client::at(&engine, "db/0");
    let block = content(3, 4096);
    good.write(0, &block);

    // Dies in the middle of a payload: nothing of it is written, or all of the part that came
    // whole.
    for cut in [0, 1, 100, 4095] {
        let mut client = Client::at(&engine, "db/0");
        client.ask(Ask::Write, 8192, 4096, &block[..cut]);
        drop(client);
    }
    // In the middle of a request, and of the handshake.
    let mut client = Client::at(&engine, "db/0");
    client.stream.write_all(&[0x25, 0x60, 0x95]).expect("sent");
    drop(client);
    let mut stream = UnixStream::connect(socket(&engine)).expect("the server's socket");
    stream.write_all(b"\0\0\0\x03IHAVEO").expect("sent");
    drop(stream);
    // Dies with answers on their way.
    let mut client = Client::at(&engine, "db/0");
    for _ in 0..16 {
        client.ask(Ask::Read { whole: false }, 0, 1 << 20, &[]);
        client.ask(Ask::Write, 1 << 20 | 5, 4096, &block);
    }
    drop(client);

    // Lies.
    let mut client = Client::at(&engine, "db/0");
    client.stream.write_all(&[7; REQUEST_BYTES]).expect("sent");
    assert!(client.is_cut_off());
    let mut client = Client::at(&engine, "db/0");
    client.ask(Ask::Write, 0, u32::MAX, &[]);
    assert!(client.is_cut_off());
    let mut stream = UnixStream::connect(socket(&engine)).expect("the server's socket");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut greeting = Vec::new();
    assert!(stream.read_to_end(&mut greeting).is_err() || greeting.len() == GREETING_BYTES);
    // Beyond the end, with its payload: refused, and the connection goes on.
    let mut client = Client::at(&engine, "db/0");
    client.ask(Ask::Write, VOLUME_BYTES - 4096, 8192, &[0; 8192]);
    assert_eq!(client.reply().0, 28);
    client.write(VOLUME_BYTES - 4096, &block);
    // Says goodbye with requests under way: they are answered first.
    client.ask(Ask::Write, 4096, 4096, &block);
    client.ask(Ask::Disconnect, 0, 0, &[]);
    assert_eq!(client.reply(), (0, 4096));
    assert!(client.is_cut_off());

    let mut found = vec![0; 4096];
    good.read(0, &mut found);
    assert!(found == block);
    good.read(VOLUME_BYTES - 4096, &mut found);
    assert!(found == block);

    // More than there is place for: the last ones are cut off, the others go on.
    let mut crowd: Vec<_> = (1..CLIENTS_MAX).map(|_| Client::at(&engine, "db/1")).collect();
    let mut late = Client::at(&engine, "db/1");
    assert!(late.is_cut_off());
    crowd.iter_mut().for_each(|client| client.write(0, &block));
    drop(crowd);
    let mut client = wait("a place", || {
        let mut client = Client::at(&engine, "db/1");
        client.ask(Ask::Flush, 0, 0, &[]);
        (client.stream.read(&mut [0; 16]).ok()? == 16).then_some(client)
    });
    client.write(0, &block);
    drop((client, good));
    engine.until("the engine to be well", |status| status.role == Role::Primary);
    end(engine, &base);
}

/// R18: a client that asks and does not listen is read no further, and others are served meanwhile.
#[test]
fn a_client_that_does_not_listen_is_read_no_further() {
    let _turn = turn();
    let (engine, base) = serve("nbd-slow", 16);
    let mut deaf = Client::at(&engine, "db/0");
    deaf.stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let request = NbdRequest {
        command: Ask::Read { whole: false },
        cookie: 1,
        offset: 0,
        len: 1 << 20,
        bad_flags: false,
    };
    let mut asked = 0u64;
    // More than the socket's buffers hold, as answers of 1 MiB each.
    while asked < 1 << 20 && deaf.stream.write_all(&request.encode()).is_ok() {
        asked += 1;
    }
    assert!(asked < 1 << 20, "the server read {asked} requests whose answers no client took");
    let mut good = Client::at(&engine, "db/0");
    let block = content(4, 4096);
    for at in 0..100 {
        good.write(at * 4096, &block);
    }
    drop((deaf, good));
    end(engine, &base);
}

#[test]
fn clients_of_the_network_get_in_when_the_operator_says_so() {
    let _turn = turn();
    let addr = free_addr();
    let (mut engine, base) = serve_with(fresh_dir("nbd-tcp"), 17, |options| {
        nbd(options);
        options.nbd_network = Some(NetworkOptions { addr, tls: None });
    });
    let uri = format!("nbd://{addr}/db/0");
    assert_eq!(run(&mut engine, "nbdinfo", &["--size", &uri]).trim(), VOLUME_BYTES.to_string());
    let mut client = Client::go(TcpStream::connect(addr).expect("the server"), "db/0");
    client.write(4096, &content(5, 65536));
    let mut found = vec![0; 65536];
    client.read(4096, &mut found);
    assert!(found == content(5, 65536));
    // S295: the kernel does not know of them, and nothing is to be taken away from them.
    let near = Client::at(&engine, "db/0");
    let other_volume = Client::at(&engine, "db/1");
    let local = client.stream.local_addr().expect("an address");
    let user = |what: String, process| DeviceUser { what, process, follows: true };
    let named = [
        user(format!("an NBD client at {local}"), None),
        user("an NBD client".into(), Some(std::process::id())),
    ];
    let mut users = engine.users();
    users.sort_by_key(|user| user.process);
    assert_eq!(users, named);
    drop((client, near, other_volume));
    wait("no user", || engine.users().is_empty().then_some(()));
    // A client that wants TLS does not get in without it, where there are no certificates.
    run_in_vain(&mut engine, Command::new("nbdinfo").arg(format!("nbds://{addr}/db/0")));
    end(engine, &base);
}

/// R19, and what it means for a client that reconnects: no write fails, and none that was
/// acknowledged is lost.
#[test]
fn qemu_goes_on_at_the_next_primary() {
    let _turn = turn();
    let base = fresh_dir("nbd-failover");
    let mut engines: Vec<_> = (1..=3).map(|node| Engine::start_with(node, &base, nbd)).collect();
    for engine in &mut engines {
        engine.create(RESOURCE, "db", vec![VOLUME_BYTES]);
        engine.ask(Request::Record { record: record(1, 1, 1, &[1, 2, 3]) });
    }
    let is_primary = |engine: &mut Engine| {
        engine.until("an export", |status| status.role == Role::Primary && !status.devices.is_empty());
    };
    is_primary(&mut engines[0]);
    // The link stands in for an address that moves in a network.
    let current = base.join("current.sock");
    let point = |engine: &Engine| {
        let next = base.join("next.sock");
        std::os::unix::fs::symlink(socket(engine), &next).expect("a link");
        std::fs::rename(&next, base.join("current.sock")).expect("a link");
    };
    point(&engines[0]);
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export=db/0,reconnect-delay=60,open-timeout=10",
        current.display()
    );
    let mut command = Command::new("qemu-io");
    command.args(["--image-opts", &image]);
    let writes = 3000u64;
    for at in 0..writes {
        command.args(["-c", &format!("write -q -P {} {} 4k", at % 251 + 1, at * 4096)]);
    }
    for at in (0..writes).step_by(7) {
        command.args(["-c", &format!("read -q -P {} {} 4k", at % 251 + 1, at * 4096)]);
    }
    let (start, mut moves) = (Instant::now(), 0);
    let output = run_while(&mut engines, &mut command, |engines| {
        // Twice in the middle of it: to the second, and, without a word to the second, to the
        // third.
        let due = [Duration::from_millis(300), Duration::from_millis(1500)];
        if moves < due.len() && start.elapsed() > due[moves] {
            moves += 1;
            let (from, to) = (moves - 1, moves);
            if moves == 1 {
                engines[from].ask(Request::Demote { resource: RESOURCE });
                engines[from].until("the old primary", |status| status.role == Role::Secondary);
            }
            let epoch = 1 + moves as u64;
            for engine in engines.iter_mut() {
                engine.ask(Request::Record { record: record(epoch, epoch, to as u32 + 1, &[1, 2, 3]) });
            }
            is_primary(&mut engines[to]);
            point(&engines[to]);
        }
    });
    assert!(!output.contains("failed") && !output.contains("rror"), "{output}");
    assert_eq!(moves, 2, "the client had ended before the primary moved");
    assert_equal(&mut engines);
    for engine in &mut engines {
        engine.ask(Request::Drop { resource: RESOURCE });
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

/// Setting of a device's queue, as the kernel states it.
fn queue(device: &str, setting: &str) -> String {
    let path = device.replacen("/dev", "/sys/block", 1) + "/queue/" + setting;
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

#[test]
#[ignore = "needs a kernel with the nbd driver: make vm ARGS=nbd"]
fn the_kernels_driver_is_a_client() {
    let _turn = turn();
    let (mut engine, base) = serve("nbd-kernel", 30);
    let device = engine.device();
    let path = engine.status.as_ref().expect("a report").devices[0].path.clone();
    assert!(path.starts_with("/dev/nbd"), "the device is {path}");
    for (setting, value) in [
        ("logical_block_size", "4096"),
        ("write_cache", "write through"),
        ("max_sectors_kb", "1024"),
        ("scheduler", "[none]"),
    ] {
        assert!(queue(&path, setting).contains(value), "{setting} is {}", queue(&path, setting));
    }
    // Requests that are longer than the log takes are cut by the block layer.
    let bytes = content(6, 4 << 20);
    let mut buffer = BufferPool::new(0).get(bytes.len());
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
    device.write_all_at(&buffer.as_slice()[..bytes.len()], 8 << 20).expect("written");
    buffer.as_mut_slice().fill(0);
    device.read_exact_at(&mut buffer.as_mut_slice()[..bytes.len()], 8 << 20).expect("read");
    assert!(buffer.as_slice()[..bytes.len()] == bytes);
    // Zeroes on the exact range, by discard and by write-zeroes; another client sees what this one
    // did.
    for (option, at) in [("-f", 8u64 << 20), ("-zf", (8 << 20) + 65536)] {
        let (offset, len) = (format!("--offset={at}"), "--length=8192");
        run(&mut engine, "/usr/bin/blkdiscard", &[option, &offset, len, &path]);
    }
    let mut found = vec![0; bytes.len()];
    let mut client = Client::at(&engine, "db/0");
    client.read(8 << 20, &mut found);
    let mut expected = bytes;
    expected[..8192].fill(0);
    expected[65536..65536 + 8192].fill(0);
    assert!(found == expected, "zeroes where they belong and nowhere else");
    drop(client);
    run(
        &mut engine,
        "fio",
        &[
            "--name=kernel",
            &format!("--filename={path}"),
            "--ioengine=libaio",
            "--direct=1",
            "--rw=randwrite",
            "--bsrange=4k-64k",
            "--blockalign=4k",
            "--iodepth=16",
            "--size=16m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ],
    );
    // R19, R20: the device fails, though it is open, and then it is gone.
    engine.ask(Request::Detach { resource: ResourceId(1) });
    wait("the device to fail", || {
        engine.listen();
        device.write_all_at(&buffer.as_slice()[..4096], 0).is_err().then_some(())
    });
    drop(device);
    let backend = path.replacen("/dev", "/sys/block", 1) + "/backend";
    end(engine, &base);
    wait("the device to go", || {
        let left = std::fs::read_to_string(&backend).unwrap_or_default();
        (!left.contains("mainstay")).then_some(())
    });
}
