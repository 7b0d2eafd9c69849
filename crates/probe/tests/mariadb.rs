//! Probes of a real MariaDB server.

mod support;

use mainstay_probe::Outcome;
use nix::sys::signal::Signal;
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::{
    Certificates, SHORT, Server, free_port, healthy, look, look_within, mariadb, own_address, unhealthy,
};

const ACCOUNTS: &str = "CREATE DATABASE mainstay;
CREATE USER probe@'%' IDENTIFIED BY 'secret';
CREATE USER writer@'%' IDENTIFIED BY 'secret';
GRANT CREATE, INSERT, DELETE ON mainstay.probe TO writer@'%';
INSTALL SONAME 'auth_ed25519';
CREATE USER modern@'%' IDENTIFIED VIA ed25519 USING PASSWORD('secret');
";

/// A probe through the socket.
fn through(server: &Server, more: &str) -> String {
    format!(r#"{{"mariadb":{{"socket":"{}"{more}}}}}"#, server.path("sock"))
}

#[test]
fn a_login_to_mariadb_through_tls_checks_the_certificate_if_it_has_an_authority() {
    let certificates = Certificates::make();
    let (certificate, key) = certificates.for_server();
    let port = free_port("127.0.0.1");
    let options = [
        "--bind-address=127.0.0.1".into(),
        format!("--port={port}"),
        "--skip-name-resolve".into(),
        format!("--ssl-cert={certificate}"),
        format!("--ssl-key={key}"),
    ];
    let accounts = "CREATE USER probe@'%' IDENTIFIED BY 'secret' REQUIRE SSL;\n";
    let Some(server) = mariadb(accounts, &options) else { return };
    let secret = server.password_file("secret", "secret");
    let probe = |host: &str, more: &str| {
        look(&format!(
            r#"{{"mariadb":{{"address":"{host}:{port}","user":"probe","password_file":"{secret}"{more}}}}}"#
        ))
    };
    let ca = |name: &str| format!(r#","tls":true,"ca_file":"{}""#, certificates.path(name));
    healthy(&probe("127.0.0.1", r#","tls":true"#));
    healthy(&probe("127.0.0.1", &ca("ca.pem")));
    let seen = look(&format!(
        r#"{{"mariadb":{{"address":"127.0.0.1:{port}","user":"probe","password_file":"{secret}","tls":true,
        "statement":"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'x'"}}}}"#
    ));
    unhealthy(&seen, &["the statement failed", "1644"]);
    // The account wants TLS.
    unhealthy(&probe("127.0.0.1", ""), &["1045"]);
    unhealthy(&probe("127.0.0.1", &ca("other-ca.pem")), &["certificate is refused", "other-ca.pem"]);
    unhealthy(&probe("localhost", &ca("ca.pem")), &["certificate is refused", "names"]);
    healthy(&probe("localhost", r#","tls":true"#));
    unhealthy(&probe("127.0.0.1", &ca("key.pem")), &["none in PEM form"]);
    unhealthy(&probe("127.0.0.1", &ca("nowhere.pem")), &["nowhere.pem", "cannot be used"]);
}

#[test]
fn a_mariadb_without_tls_is_told_as_such() {
    let port = free_port("127.0.0.1");
    let options = ["--bind-address=127.0.0.1".into(), format!("--port={port}"), "--skip-ssl".into()];
    let Some(server) = mariadb("", &options) else { return };
    let secret = server.password_file("secret", "secret");
    let probe = format!(
        r#"{{"mariadb":{{"address":"127.0.0.1:{port}","user":"probe","password_file":"{secret}","tls":true}}}}"#
    );
    unhealthy(&look(&probe), &["offers no TLS", "ssl_cert"]);
}

#[test]
fn mariadb_is_healthy_by_the_user_of_the_system_and_by_a_password() {
    let port = free_port("127.0.0.1");
    let options = ["--bind-address=127.0.0.1".into(), format!("--port={port}"), "--skip-name-resolve".into()];
    let Some(server) = mariadb(ACCOUNTS, &options) else { return };
    let secret = server.password_file("secret", "secret");
    let by_password = format!(r#","user":"probe","password_file":"{secret}""#);
    let outcome = look(&through(&server, ""));
    healthy(&outcome);
    assert!(outcome.words().starts_with("mariadb 1") && outcome.words().contains(" at /"), "{outcome:?}");
    healthy(&look(&through(&server, &by_password)));
    healthy(&look(&format!(r#"{{"mysql":{{"address":"127.0.0.1:{port}"{by_password}}}}}"#)));
    // A result of many rows and of long ones.
    for statement in
        ["SELECT * FROM mysql.seq_1_to_100000", "SELECT REPEAT('x', 5000000)", "DO 1", "SELECT 1 LIMIT 0"]
    {
        healthy(&look(&through(&server, &format!(r#","statement":"{statement}""#))));
    }
    unhealthy(&look(&through(&server, r#","statement":"SELEKT 1""#)), &["the statement failed", "1064"]);

    // Refused logins say what to do.
    let other = server.password_file("other", "other");
    let wrong = format!(r#","user":"probe","password_file":"{other}""#);
    unhealthy(&look(&through(&server, &wrong)), &["1045", &other, "\"probe\""]);
    let missing = r#","user":"probe""#;
    unhealthy(
        &look(&through(&server, missing)),
        &["1045", "CREATE USER probe@localhost IDENTIFIED VIA unix_socket"],
    );
    let modern = format!(r#","user":"modern","password_file":"{secret}""#);
    unhealthy(
        &look(&through(&server, &modern)),
        &["\"modern\"", "client_ed25519", "not know yet", "unix_socket"],
    );
    let socket = server.path("none");
    unhealthy(&look(&format!(r#"{{"mariadb":{{"socket":"{socket}"}}}}"#)), &["no such socket"]);
}

#[test]
fn a_probe_of_a_mariadb_that_stands_still_ends_within_its_limit() {
    let port = free_port("127.0.0.1");
    let Some(server) = mariadb("", &["--bind-address=127.0.0.1".into(), format!("--port={port}")]) else {
        return;
    };
    let (by_socket, by_address) =
        (through(&server, ""), format!(r#"{{"mariadb":{{"address":"127.0.0.1:{port}"}}}}"#));
    server.signal(Signal::SIGSTOP);
    for probe in [&by_socket, &by_address] {
        unhealthy(&look_within(probe, SHORT), &["not done after 1 s", "sent no greeting"]);
    }
    // The kernel takes connections for it, which is all that this kind sees.
    healthy(&look_within(&format!(r#"{{"tcp":"127.0.0.1:{port}"}}"#), SHORT));
    server.signal(Signal::SIGCONT);
    healthy(&look(&by_socket));
    // A statement that does not end.
    unhealthy(
        &look_within(&through(&server, r#","statement":"DO SLEEP(60)""#), SHORT),
        &["did not answer the statement"],
    );
}

#[test]
fn a_mariadb_that_cannot_write_is_unhealthy_only_for_a_probe_that_writes() {
    let Some(server) = mariadb(ACCOUNTS, &["--skip-networking".into()]) else { return };
    let secret = server.password_file("secret", "secret");
    let as_user = |user: &str| format!(r#","user":"{user}","password_file":"{secret}""#);
    let writes =
        |user: &str, table: &str| through(&server, &format!(r#"{},"write_table":"{table}""#, as_user(user)));
    let outcome = look(&writes("writer", "mainstay.probe"));
    healthy(&outcome);
    assert!(outcome.words().contains("wrote to mainstay.probe"), "{outcome:?}");
    healthy(&look(&writes("writer", "mainstay.probe")));
    // More than one row, or none, would make the inner query fail.
    let one = "SELECT 1 / (SELECT IF(COUNT(*) = 1, 1, (SELECT 1 UNION SELECT 2)) FROM mainstay.probe)";
    healthy(&look(&through(&server, &format!(r#","statement":"{one}""#))));

    unhealthy(&look(&writes("probe", "mainstay.probe")), &["GRANT CREATE, INSERT, DELETE ON mainstay.probe"]);
    let no_database = through(&server, r#","write_table":"nowhere.probe""#);
    unhealthy(&look(&no_database), &["CREATE DATABASE nowhere"]);

    healthy(&look(&through(&server, r#","statement":"SET GLOBAL read_only = 1""#)));
    unhealthy(&look(&writes("writer", "mainstay.probe")), &["read-only", "1290"]);
    healthy(&look(&through(&server, &as_user("writer"))));

    // A session that locks the row holds the probe up, which says where it waited.
    healthy(&look(&through(&server, r#","statement":"SET GLOBAL read_only = 0""#)));
    let locks = through(&server, r#","statement":"SELECT SLEEP(1000) FROM mainstay.probe FOR UPDATE""#);
    let session = std::thread::spawn(move || look_within(&locks, Duration::from_secs(15)));
    let began = Instant::now();
    loop {
        let outcome = look_within(&writes("writer", "mainstay.probe"), SHORT);
        if !matches!(outcome, Outcome::Healthy(_)) {
            unhealthy(&outcome, &["did not write to mainstay.probe"]);
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(12), "the row is not locked");
    }
    unhealthy(&session.join().unwrap(), &["did not answer the statement"]);
}

#[test]
fn two_hundred_probes_do_not_make_mariadb_block_the_host() {
    // MariaDB counts only hosts that it does not reach by loopback.
    let Some(host) = own_address() else { return };
    let port = free_port(&host);
    let options =
        [format!("--bind-address={host}"), format!("--port={port}"), "--max-connect-errors=5".into()];
    let Some(server) = mariadb(ACCOUNTS, &options) else { return };
    let (secret, other) = (server.password_file("secret", "secret"), server.password_file("other", "other"));
    let probe = |user: &str, file: &str| {
        format!(r#"{{"mariadb":{{"address":"{host}:{port}","user":"{user}","password_file":"{file}"}}}}"#)
    };
    // Refused logins and unknown plugins come first, because a login that succeeds forgives others.
    for _ in 0..20 {
        unhealthy(&look(&probe("probe", &other)), &["1045"]);
        unhealthy(&look(&probe("modern", &secret)), &["not know yet"]);
        let without = format!(r#"{{"mariadb":{{"address":"{host}:{port}","user":"probe"}}}}"#);
        unhealthy(&look(&without), &["1045", "name a password file"]);
    }
    for _ in 0..200 {
        healthy(&look(&probe("probe", &secret)));
    }
    // Connections that break off are counted: so the host could have been blocked.
    for _ in 0..10 {
        let mut stream = TcpStream::connect((host.as_str(), port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.read(&mut [0; 4]);
    }
    // The server counts a connection only when it sees its end.
    let mut after = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        look(&probe("probe", &other))
    });
    let blocked = after.find(|outcome| outcome.words().contains("1129"));
    unhealthy(&blocked.expect("the host is blocked"), &["FLUSH HOSTS", "socket"]);
}
