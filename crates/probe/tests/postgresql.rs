//! Probes of a real PostgreSQL server.

mod support;

use mainstay_probe::Outcome;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use support::{
    Certificates, PostgresqlData, SHORT, Server, free_port, healthy, look, look_within, unhealthy,
};

/// A probe through the socket.
fn through(server: &Server, port: u16, more: &str) -> String {
    format!(r#"{{"postgresql":{{"socket":"{}","port":{port}{more}}}}}"#, server.directory.path().display())
}

/// Runs statements as the server's own user.
fn run(server: &Server, port: u16, statements: &[&str]) {
    for statement in statements {
        healthy(&look(&through(server, port, &format!(r#","statement":"{statement}""#))));
    }
}

#[test]
fn postgresql_is_healthy_by_the_user_of_the_system_and_by_every_kind_of_password() {
    let Some(data) = PostgresqlData::make() else { return };
    let port = free_port("127.0.0.1");
    let server = data.start(port, &[], "healthy");
    let outcome = look(&through(&server, port, ""));
    assert!(outcome.words().starts_with("postgresql 1") && outcome.words().contains(" at /"), "{outcome:?}");
    run(
        &server,
        port,
        &[
            "CREATE ROLE probe LOGIN PASSWORD 'secret'",
            "CREATE ROLE clear LOGIN PASSWORD 'secret'",
            "SET password_encryption = 'md5'; CREATE ROLE old LOGIN PASSWORD 'secret'",
            "SELECT * FROM generate_series(1, 100000)",
            "SELECT repeat('x', 5000000)",
            "SELECT 1 LIMIT 0",
            "COPY (SELECT generate_series(1, 1000)) TO STDOUT",
            "DO $$ BEGIN RAISE NOTICE 'aside'; END $$",
        ],
    );
    let (secret, other) = (server.password_file("secret", "secret"), server.password_file("other", "other"));
    for user in ["probe", "clear", "old"] {
        let by = |file: &str| format!(r#","user":"{user}","password_file":"{file}""#);
        healthy(&look(&through(&server, port, &by(&secret))));
        unhealthy(&look(&through(&server, port, &by(&other))), &["28P01", &other, "pg_hba.conf"]);
        let without = format!(r#","user":"{user}""#);
        unhealthy(&look(&through(&server, port, &without)), &["name a password file"]);
    }
    let address = |user: &str| {
        format!(
            r#"{{"postgresql":{{"address":"127.0.0.1:{port}","user":"{user}","password_file":"{secret}"}}}}"#
        )
    };
    healthy(&look(&address("probe")));
    unhealthy(&look(&address("nobody")), &["28P01", "\"nobody\""]);

    unhealthy(&look(&through(&server, port, r#","user":"postgres""#)), &["password"]);
    unhealthy(&look(&through(&server, port, r#","database":"nowhere""#)), &["3D000", "nowhere"]);
    unhealthy(
        &look(&through(&server, port, r#","statement":"SELEKT 1""#)),
        &["the statement failed", "42601"],
    );
    unhealthy(
        &look(&through(&server, port, r#","statement":"COPY pg_class FROM STDIN""#)),
        &["asks for data"],
    );
    unhealthy(&look(&through(&server, port - 1, "")), &["no such socket"]);
}

#[test]
fn a_login_to_postgresql_through_tls_checks_the_certificate_if_it_has_an_authority() {
    let Some(data) = PostgresqlData::make() else { return };
    let certificates = Certificates::make();
    data.write("server.crt", &certificates.read("cert.pem"));
    data.write("server.key", &certificates.read("key.pem"));
    let key = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(data.path("data/server.key"), key).unwrap();
    let rules = data.path("data/pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    // A login with the password itself, through TLS only.
    let first = "hostssl all clear 127.0.0.1/32 password\nhostnossl all clear 127.0.0.1/32 reject\n";
    data.write("pg_hba.conf", &format!("{first}{before}"));
    let port = free_port("127.0.0.1");
    let server = data.start(port, &["ssl=on"], "healthy");
    run(
        &server,
        port,
        &["CREATE ROLE clear LOGIN PASSWORD 'secret'", "CREATE ROLE probe LOGIN PASSWORD 'secret'"],
    );
    let secret = server.password_file("secret", "secret");
    let probe = |user: &str, more: &str| {
        look(&format!(
            r#"{{"postgresql":{{"address":"127.0.0.1:{port}","user":"{user}","password_file":"{secret}"{more}}}}}"#
        ))
    };
    let ca = |name: &str| format!(r#","tls":true,"ca_file":"{}""#, certificates.path(name));
    healthy(&probe("probe", r#","tls":true"#));
    healthy(&probe("probe", &ca("ca.pem")));
    healthy(&probe("clear", &ca("ca.pem")));
    unhealthy(&probe("clear", r#","tls":true"#), &["certificate is checked", "ca_file"]);
    unhealthy(&probe("clear", ""), &["28000"]);
    unhealthy(&probe("probe", &ca("other-ca.pem")), &["certificate is refused", "other-ca.pem"]);
}

#[test]
fn a_postgresql_without_tls_is_told_as_such() {
    let Some(data) = PostgresqlData::make() else { return };
    let port = free_port("127.0.0.1");
    let server = data.start(port, &[], "healthy");
    let secret = server.password_file("secret", "secret");
    let probe = format!(
        r#"{{"postgresql":{{"address":"127.0.0.1:{port}","user":"probe","password_file":"{secret}","tls":true}}}}"#
    );
    unhealthy(&look(&probe), &["offers no TLS", "ssl = on"]);
}

#[test]
fn a_probe_of_a_postgresql_that_stands_still_ends_within_its_limit() {
    let Some(data) = PostgresqlData::make() else { return };
    let port = free_port("127.0.0.1");
    let server = data.start(port, &[], "healthy");
    server.signal(Signal::SIGSTOP);
    unhealthy(
        &look_within(&through(&server, port, ""), SHORT),
        &["not done after 1 s", "did not answer the login"],
    );
    server.signal(Signal::SIGCONT);
    healthy(&look(&through(&server, port, "")));
    let sleeps = through(&server, port, r#","statement":"SELECT pg_sleep(60)""#);
    unhealthy(&look_within(&sleeps, SHORT), &["did not answer the statement"]);
}

#[test]
fn a_postgresql_that_starts_up_is_recovering() {
    let Some(data) = PostgresqlData::make() else { return };
    // The server fetches its first segment for as long as its directory is there.
    data.write("standby.signal", "");
    let fetch = format!("restore_command=while test -d {}; do sleep 1; done", data.path("data").display());
    let port = free_port("127.0.0.1");
    let server = data.start(port, &[&fetch], "recovering");
    let outcome = look(&through(&server, port, ""));
    assert!(matches!(&outcome, Outcome::Recovering(words) if words.contains("57P03")), "{outcome:?}");
}

#[test]
fn a_postgresql_that_shuts_down_is_unhealthy() {
    let Some(data) = PostgresqlData::make() else { return };
    let port = free_port("127.0.0.1");
    let server = data.start(port, &[], "healthy");
    let sleeps = through(&server, port, r#","statement":"SELECT pg_sleep(1000)""#);
    // A session that is open keeps the server from ending.
    let session = std::thread::spawn(move || look(&sleeps));
    let watch = through(
        &server,
        port,
        r#","statement":"SELECT 1 / count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'""#,
    );
    let began = Instant::now();
    while look(&watch).name() != "healthy" {
        assert!(began.elapsed() < Duration::from_secs(20), "the session is not open");
    }
    server.signal(Signal::SIGTERM);
    let outcome = loop {
        let outcome = look(&through(&server, port, ""));
        if !matches!(outcome, Outcome::Healthy(_)) {
            break outcome;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the server does not shut down");
    };
    unhealthy(&outcome, &["shutting down", "57P03"]);
    drop(server);
    unhealthy(&session.join().unwrap(), &[]);
}

#[test]
fn a_postgresql_that_cannot_write_is_unhealthy_only_for_a_probe_that_writes() {
    let Some(data) = PostgresqlData::make() else { return };
    let port = free_port("127.0.0.1");
    let server = data.start(port, &[], "healthy");
    let secret = server.password_file("secret", "secret");
    let roles = [
        "CREATE ROLE writer LOGIN PASSWORD 'secret'",
        "CREATE ROLE reader LOGIN PASSWORD 'secret'",
        "CREATE SCHEMA mainstay AUTHORIZATION writer",
    ];
    run(&server, port, &roles);
    let as_user = |user: &str| format!(r#","user":"{user}","password_file":"{secret}""#);
    let writes = |user: &str, table: &str| {
        through(&server, port, &format!(r#"{},"write_table":"{table}""#, as_user(user)))
    };
    for _ in 0..2 {
        let outcome = look(&writes("writer", "mainstay.probe"));
        healthy(&outcome);
        assert!(outcome.words().contains("wrote to mainstay.probe"), "{outcome:?}");
    }
    run(&server, port, &["SELECT 1 / (CASE count(*) WHEN 1 THEN 1 ELSE 0 END) FROM mainstay.probe"]);
    unhealthy(&look(&writes("reader", "mainstay.probe")), &["42501", "\"reader\""]);
    unhealthy(&look(&writes("writer", "nowhere.probe")), &["CREATE SCHEMA nowhere"]);

    run(&server, port, &["ALTER ROLE writer SET default_transaction_read_only = on"]);
    unhealthy(&look(&writes("writer", "mainstay.probe")), &["read-only", "25006"]);
    healthy(&look(&through(&server, port, &as_user("writer"))));
}
