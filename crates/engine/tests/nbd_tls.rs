//! Volumes over NBD with TLS: clients that others wrote, with the certificates of an authority made
//! by openssl; and clients that have none, or send something else.
//!
//! Needs root, and the packages that `make deps` installs.

#[path = "support/exports.rs"]
mod exports;
mod support;

use exports::{
    Client, VOLUME_BYTES, content, end, free_addr, nbd, run, run_in_vain, run_while, serve_with, turn,
};
use mainstay_codec::nbd::Command as Ask;
use mainstay_codec::nbd::handshake::GREETING_BYTES;
use mainstay_engine::frontend::nbd::server::{PROOF_MS, STRANGERS_MAX};
use mainstay_engine::frontend::nbd::{NetworkOptions, TlsError, TlsFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};
use support::{Engine, fresh_dir, wait};

const VALID: [&str; 2] = ["20200101000000Z", "20990101000000Z"];
const EXPIRED: [&str; 2] = ["20200101000000Z", "20210101000000Z"];
/// User and group without rights. libnbd looks for certificates in the home directory of such a
/// user.
const NOBODY: u32 = 65534;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().expect("no thread panics with it").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps what the engines say.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init());
    LOG.lock().expect("no thread panics with it").clear();
}

/// Waits until an engine has said it.
fn said(words: &str) {
    let log = || String::from_utf8_lossy(&LOG.lock().expect("no thread panics with it")).into_owned();
    let end = Instant::now() + Duration::from_secs(10);
    while !log().contains(words) {
        assert!(Instant::now() < end, "no line said {words:?}:\n{}", log());
        thread::sleep(Duration::from_millis(5));
    }
}

fn openssl(dir: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").current_dir(dir).args(arguments).output().expect("openssl");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority in a directory of its own, which has `ca-cert.pem`.
struct Authority {
    dir: PathBuf,
}

const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

impl Authority {
    fn new(base: &Path, name: &str) -> Self {
        let dir = base.join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let config = "[ca]\ndefault_ca = d\n[d]\nnew_certs_dir = .\ndatabase = index\nserial = serial\n\
            default_md = sha256\npolicy = p\nunique_subject = no\n[p]\ncommonName = supplied\n\
            [req]\ndistinguished_name = n\n[n]\n\
            [authority]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign\n\
            [server]\nsubjectAltName = IP:127.0.0.1\nextendedKeyUsage = serverAuth\n\
            [client]\nextendedKeyUsage = clientAuth\n";
        for (file, content) in [("config", config), ("index", ""), ("serial", "01\n")] {
            fs::write(dir.join(file), content).expect("written");
        }
        let subject = format!("/CN={name}");
        let request = ["req", "-config", "config", "-x509", "-extensions", "authority", "-days", "30"];
        let files = ["-keyout", "ca-key.pem", "-out", "ca-cert.pem", "-subj", &subject];
        openssl(&dir, &[&request[..], &KEY, &files].concat());
        Self { dir }
    }

    /// A certificate for a `client` or a `server`, in the form in which libnbd and QEMU look for
    /// it, in a directory of its own.
    fn certify(&self, name: &str, role: &str, [from, until]: [&str; 2]) -> PathBuf {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let file = |what: &str| format!("{name}/{role}-{what}.pem");
        let (key, request, certificate) = (file("key"), file("request"), file("cert"));
        let subject = format!("/CN={name}");
        let files = ["-keyout", &key, "-out", &request, "-subj", &subject];
        openssl(&self.dir, &[&["req", "-config", "config", "-new"][..], &KEY, &files].concat());
        let sign = [
            "ca",
            "-batch",
            "-notext",
            "-config",
            "config",
            "-keyfile",
            "ca-key.pem",
            "-cert",
            "ca-cert.pem",
        ];
        let what = [
            "-extensions",
            role,
            "-startdate",
            from,
            "-enddate",
            until,
            "-in",
            &request,
            "-out",
            &certificate,
        ];
        openssl(&self.dir, &[&sign[..], &what].concat());
        fs::copy(self.dir.join("ca-cert.pem"), dir.join("ca-cert.pem")).expect("copied");
        dir
    }
}

/// TLS files of a server whose certificate is in `server` and whose clients are certified by
/// `clients`.
fn files(server: &Path, clients: &Authority) -> TlsFiles {
    TlsFiles {
        certificate: server.join("server-cert.pem"),
        key: server.join("server-key.pem"),
        client_ca: clients.dir.join("ca-cert.pem"),
    }
}

struct Setup {
    engine: Engine,
    base: PathBuf,
    addr: SocketAddr,
    authority: Authority,
    /// Directory with the certificates of a client that is let in.
    client: PathBuf,
}

fn serve(name: &str, node: u32) -> Setup {
    listen();
    let base = fresh_dir(name);
    let authority = Authority::new(&base, "authority");
    let server = authority.certify("server", "server", VALID);
    let client = authority.certify("client", "client", VALID);
    let addr = free_addr();
    let tls = Some(files(&server, &authority));
    let (engine, base) = serve_with(base, node, |options| {
        nbd(options);
        options.nbd_network = Some(NetworkOptions { addr, tls });
    });
    Setup { engine, base, addr, authority, client }
}

fn nbds(addr: SocketAddr, export: &str, certificates: &Path) -> String {
    format!("nbds://{addr}/{export}?tls-certificates={}", certificates.display())
}

#[test]
fn foreign_nbd_clients_get_in_with_a_certificate() {
    let _turn = turn();
    let Setup { mut engine, base, addr, client, .. } = serve("tls-clients", 40);
    let uri = nbds(addr, "db/0", &client);
    let info = run(&mut engine, "nbdinfo", &["--json", &uri]);
    for line in ["\"TLS\": true", "\"structured\": true", "base:allocation", "\"can_multi_conn\": true"] {
        assert!(info.contains(line), "{line} is missing:\n{info}");
    }
    let (from, to) = (base.join("from"), base.join("to"));
    let bytes = content(11, VOLUME_BYTES as usize);
    fs::write(&from, &bytes).expect("written");
    let (from, to) = (from.display().to_string(), to.display().to_string());
    run(&mut engine, "nbdcopy", &["--flush", "--connections=4", "--requests=64", &from, &uri]);
    run(&mut engine, "nbdcopy", &["--connections=4", &uri, &to]);
    assert!(fs::read(&to).expect("a copy") == bytes, "nbdcopy got something else than it gave");

    let second = content(15, VOLUME_BYTES as usize);
    fs::write(&from, &second).expect("written");
    let credentials = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", client.display());
    let image = format!("driver=nbd,host=127.0.0.1,port={},export=db/0,tls-creds=tls", addr.port());
    let convert =
        ["convert", "-n", "-f", "raw", "--object", &credentials, "--target-image-opts", &from, &image];
    run(&mut engine, "qemu-img", &convert);
    run(&mut engine, "nbdcopy", &[&uri, &to]);
    assert!(fs::read(&to).expect("a copy") == second, "qemu-img wrote something else than it was given");
    let qemu = ["--object", &credentials, "--image-opts"];
    let asks =
        ["-c", "write -P 0x5a 512 1M", "-c", "flush", "-c", "read -P 0x5a 512 1M", "-c", "read 16M 16M"];
    let output = run(&mut engine, "qemu-io", &[&qemu[..], &[&image], &asks].concat());
    assert!(!output.contains("failed") && !output.contains("rror"), "{output}");

    // Its engine does not let a URI name files, so it finds them where libnbd looks by itself.
    let home = base.join("home");
    let place = home.join(".config/pki/libnbd");
    fs::create_dir_all(&place).expect("a directory");
    for entry in fs::read_dir(&client).expect("certificates").flatten() {
        let copy = place.join(entry.file_name());
        fs::copy(entry.path(), &copy).expect("copied");
        chown(&copy, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    chown(&home, Some(NOBODY), Some(NOBODY)).expect("given away");
    let mut fio = Command::new("fio");
    fio.env("HOME", &home).current_dir(&home).uid(NOBODY).gid(NOBODY);
    fio.args(["--name=tls", "--ioengine=nbd", "--rw=randwrite", "--bsrange=512-64k", "--blockalign=512"]);
    fio.args(["--iodepth=32", "--size=48m", "--io_size=32m", "--verify=crc32c", "--verify_fatal=1"]);
    fio.args(["--verify_state_save=0", &format!("--uri=nbds://{addr}/db/0")]);
    run_while(std::slice::from_mut(&mut engine), &mut fio, |_| {});
    end(engine, &base);
}

#[test]
fn a_client_without_a_valid_certificate_is_refused_with_the_reason() {
    let _turn = turn();
    let Setup { mut engine, base, addr, authority, client } = serve("tls-refused", 41);
    let info = |uri: &str| {
        let mut command = Command::new("nbdinfo");
        command.args(["--size", uri]);
        command
    };
    let output = run_in_vain(&mut engine, &mut info(&format!("nbd://{addr}/db/0")));
    assert!(output.contains("TLS"), "{output}");

    let nobody = base.join("nobody");
    fs::create_dir_all(&nobody).expect("a directory");
    fs::copy(client.join("ca-cert.pem"), nobody.join("ca-cert.pem")).expect("copied");
    run_in_vain(&mut engine, &mut info(&nbds(addr, "db/0", &nobody)));
    said("it has no certificate");

    // The same name, and another key.
    let other = Authority::new(&base.join("elsewhere"), "authority");
    let stranger = other.certify("client", "client", VALID);
    fs::copy(client.join("ca-cert.pem"), stranger.join("ca-cert.pem")).expect("copied");
    run_in_vain(&mut engine, &mut info(&nbds(addr, "db/0", &stranger)));
    said("its certificate is not of the clients' authority");

    let expired = authority.certify("expired", "client", EXPIRED);
    run_in_vain(&mut engine, &mut info(&nbds(addr, "db/0", &expired)));
    said("its certificate has expired");

    let server = authority.certify("not-a-client", "server", VALID);
    for what in ["key", "cert"] {
        let file = |role: &str| server.join(format!("{role}-{what}.pem"));
        fs::copy(file("server"), file("client")).expect("copied");
    }
    run_in_vain(&mut engine, &mut info(&nbds(addr, "db/0", &server)));
    said("its certificate was not made for clients");

    // A client that does not trust this server.
    fs::copy(client.join("client-cert.pem"), stranger.join("client-cert.pem")).expect("copied");
    fs::copy(client.join("client-key.pem"), stranger.join("client-key.pem")).expect("copied");
    fs::copy(other.dir.join("ca-cert.pem"), stranger.join("ca-cert.pem")).expect("copied");
    run_in_vain(&mut engine, &mut info(&nbds(addr, "db/0", &stranger)));
    said("an NBD client was refused");

    assert_eq!(
        run(&mut engine, "nbdinfo", &["--size", &nbds(addr, "db/0", &client)]).trim(),
        VOLUME_BYTES.to_string()
    );
    end(engine, &base);
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

const LIST: u32 = 3;
const STARTTLS: u32 = 5;
const ACK: u32 = 1;
const TLS_REQUIRED: u32 = 1 << 31 | 5;

/// A connection that has greeted.
fn greeted(addr: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(addr).expect("the server");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.read_exact(&mut [0; GREETING_BYTES]).expect("a greeting");
    stream.write_all(&3u32.to_be_bytes()).expect("sent");
    stream
}

/// The kind of the answer to an option.
fn kind(stream: &mut impl Read) -> u32 {
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("an answer");
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    stream.read_exact(&mut vec![0; number(16) as usize]).expect("words");
    number(12)
}

fn is_cut_off(stream: &mut impl Read) -> bool {
    !matches!(stream.read(&mut [0]), Ok(1))
}

fn asked_for_tls(addr: SocketAddr) -> TcpStream {
    let mut stream = greeted(addr);
    stream.write_all(&option(STARTTLS, b"")).expect("sent");
    assert_eq!(kind(&mut stream), ACK);
    stream
}

#[test]
fn requests_without_tls_get_nothing_and_do_not_count() {
    let _turn = turn();
    let Setup { engine, base, addr, .. } = serve("tls-plain", 42);
    let mut stream = greeted(addr);
    stream.write_all(&option(LIST, b"")).expect("sent");
    assert_eq!(kind(&mut stream), TLS_REQUIRED);
    // An attacker on the way has put a request behind STARTTLS, to have it taken for one that came
    // through TLS.
    stream.write_all(&[option(STARTTLS, b""), option(LIST, b"")].concat()).expect("sent");
    assert!(is_cut_off(&mut stream));
    said("something came behind STARTTLS");
    // A moment later: it is no TLS.
    let mut stream = asked_for_tls(addr);
    stream.write_all(&option(LIST, b"")).expect("sent");
    let mut alert = Vec::new();
    let _ = stream.read_to_end(&mut alert);
    assert!(!alert.starts_with(b"\0\x03\xe8\x89"), "an option was answered without TLS");
    said("what it sent is not TLS");
    // The old way to ask for an export has no answer but the end.
    let mut stream = greeted(addr);
    stream.write_all(&option(1, b"db/0")).expect("sent");
    assert!(is_cut_off(&mut stream));
    end(engine, &base);
}

#[test]
fn a_client_slow_in_its_tls_handshake_is_cut_off_and_holds_up_no_other() {
    let _turn = turn();
    let Setup { engine, base, addr, .. } = serve("tls-slow", 43);
    let begin = Instant::now();
    let mut idle = asked_for_tls(addr);
    let mut drip = asked_for_tls(addr);
    // As many as there are places: no other client of the network gets in, but clients of this
    // machine do.
    let crowd: Vec<_> = (2..STRANGERS_MAX).map(|_| TcpStream::connect(addr).expect("the server")).collect();
    let mut good = wait("the crowd to be there", || {
        let mut late = TcpStream::connect(addr).ok()?;
        late.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        is_cut_off(&mut late).then(|| Client::at(&engine, "db/0"))
    });
    good.write(0, &content(12, 4096));
    // The beginning of a record of TLS, one byte after the other.
    let mut record = [0x16, 3, 1, 2, 0].into_iter().chain(std::iter::repeat(0));
    drip.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    loop {
        let ended = drip.write_all(&[record.next().expect("endless")]).is_err();
        match drip.read(&mut [0; 64]) {
            _ if ended => break,
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
            _ => assert!(begin.elapsed() < Duration::from_millis(2 * PROOF_MS), "it is not cut off"),
        }
    }
    assert!(is_cut_off(&mut idle));
    assert!(begin.elapsed() >= Duration::from_millis(PROOF_MS), "cut off after {:?}", begin.elapsed());
    said("it went, or took too long, before TLS was up");
    good.write(4096, &content(13, 4096));
    drop((crowd, good));
    end(engine, &base);
}

/// TLS by the library, so that the client's behaviour is this test's.
fn connect(addr: SocketAddr, client: &Path) -> StreamOwned<ClientConnection, TcpStream> {
    let certificates = |file: &str| -> Vec<_> {
        let found = CertificateDer::pem_file_iter(client.join(file)).expect("a file");
        found.map(|certificate| certificate.expect("a certificate")).collect()
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates("ca-cert.pem"));
    let key = PrivateKeyDer::from_pem_file(client.join("client-key.pem")).expect("a key");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates("client-cert.pem"), key)
        .expect("a configuration");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    StreamOwned::new(tls, asked_for_tls(addr))
}

/// R18: through TLS as without it.
#[test]
fn a_client_with_tls_that_does_not_listen_is_read_no_further() {
    let _turn = turn();
    let Setup { engine, base, addr, client, .. } = serve("tls-deaf", 44);
    let choose = |stream: &mut StreamOwned<ClientConnection, TcpStream>| {
        stream.write_all(&option(1, b"db/0")).expect("sent");
        stream.read_exact(&mut [0; 10]).expect("an export");
    };
    let mut deaf = connect(addr, &client);
    choose(&mut deaf);
    let mut deaf = Client { stream: deaf };
    deaf.stream.sock.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let mut asked = 0u64;
    let refused = loop {
        let request = mainstay_codec::nbd::Request {
            command: Ask::Read { whole: false },
            cookie: 1,
            offset: 0,
            len: 1 << 20,
            bad_flags: false,
        };
        if deaf.stream.write_all(&request.encode()).is_err() {
            break true;
        }
        asked += 1;
        if asked == 1 << 20 {
            break false;
        }
    };
    assert!(refused, "the server read {asked} requests whose answers no client took");
    let mut good = connect(addr, &client);
    choose(&mut good);
    let mut good = Client { stream: good };
    let block = content(14, 4096);
    for at in 0..100 {
        good.write(at * 4096, &block);
    }
    // Says goodbye, and hears it.
    good.ask(Ask::Flush, 0, 0, &[]);
    good.ask(Ask::Disconnect, 0, 0, &[]);
    assert_eq!(good.reply(), (0, 0));
    assert!(good.is_cut_off());
    drop((deaf, good));
    end(engine, &base);
}

#[test]
fn unusable_tls_files_are_refused_with_words() {
    let base = fresh_dir("tls-files");
    let authority = Authority::new(&base, "authority");
    let server = authority.certify("server", "server", VALID);
    let good = files(&server, &authority);
    good.load().expect("all is well");
    let refused = |files: &TlsFiles, words: &str| {
        let error = files.load().expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
        error
    };
    let missing = base.join("missing.pem");
    for files in [
        TlsFiles { certificate: missing.clone(), ..good.clone() },
        TlsFiles { key: missing.clone(), ..good.clone() },
        TlsFiles { client_ca: missing.clone(), ..good.clone() },
    ] {
        refused(&files, "missing.pem: put the ");
    }
    let second = authority.certify("second", "server", VALID);
    refused(
        &TlsFiles { key: second.join("server-key.pem"), ..good.clone() },
        "is not that of the certificate",
    );
    let expired = authority.certify("expired", "server", EXPIRED);
    let error = refused(&files(&expired, &authority), "has expired: renew it");
    assert!(error.is_of_time());
    let client = authority.certify("client", "client", VALID);
    fs::rename(client.join("client-cert.pem"), client.join("server-cert.pem")).expect("renamed");
    fs::rename(client.join("client-key.pem"), client.join("server-key.pem")).expect("renamed");
    refused(&files(&client, &authority), "was not made for servers");
    // The server's authority may be another one than that of the clients.
    let other = Authority::new(&base, "other");
    files(&server, &other).load().expect("all is well");

    let noise = base.join("noise.pem");
    fs::write(&noise, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("written");
    assert!(matches!(
        TlsFiles { client_ca: noise.clone(), ..good.clone() }.load(),
        Err(TlsError::Unusable { .. })
    ));
    assert!(matches!(
        TlsFiles { certificate: noise.clone(), ..good.clone() }.load(),
        Err(TlsError::Unusable { .. })
    ));
    fs::write(&noise, "nothing of the kind").expect("written");
    refused(&TlsFiles { client_ca: noise.clone(), ..good.clone() }, "holds no certificate");
    fs::set_permissions(&noise, fs::Permissions::from_mode(0o600)).expect("its mode");
    refused(&TlsFiles { key: noise, ..good.clone() }, "holds no private key");

    let key = &good.key;
    for (mode, exposed) in [(0o600, false), (0o640, false), (0o400, false), (0o644, true), (0o660, true)] {
        fs::set_permissions(key, fs::Permissions::from_mode(mode)).expect("its mode");
        let result = good.load();
        assert_eq!(matches!(result, Err(TlsError::Exposed { .. })), exposed, "{mode:o}: {:?}", result.err());
    }
    refused(&good, "chmod 600 it");
    fs::remove_dir_all(&base).expect("removed");
}
