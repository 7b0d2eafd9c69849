//! Probes of a real MySQL server, run by `make mysql-test`: Debian 12 has no MySQL.

mod support;

use nix::sys::signal::Signal;
use support::{Certificates, SHORT, free_port, healthy, look, look_within, mysql, unhealthy};

const ACCOUNTS: &str = "CREATE DATABASE mainstay;
CREATE USER probe@'%' IDENTIFIED BY 'secret';
CREATE USER without@'%' IDENTIFIED BY '';
CREATE USER writer@'%' IDENTIFIED BY 'secret';
GRANT CREATE, INSERT, DELETE ON mainstay.probe TO writer@'%';
CREATE USER strict@'%' IDENTIFIED BY 'secret' REQUIRE SSL;
";

#[test]
#[ignore = "wants MySQL: make mysql-test"]
fn mysql_is_healthy_by_the_user_of_the_system_and_by_a_password() {
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
    let server = mysql(ACCOUNTS, &options);
    let (secret, other) = (server.password_file("secret", "secret"), server.password_file("other", "other"));
    let socket = server.path("sock");
    let at = |place: &str, user: &str, file: &str, more: &str| {
        look(&format!(r#"{{"mysql":{{{place},"user":"{user}","password_file":"{file}"{more}}}}}"#))
    };
    let local = format!(r#""socket":"{socket}""#);
    let remote = format!(r#""address":"127.0.0.1:{port}""#);
    let outcome = look(&format!(r#"{{"mysql":{{{local}}}}}"#));
    healthy(&outcome);
    assert!(outcome.words().contains("mysql") && outcome.words().contains(" at /"), "{outcome:?}");

    // The server wants the password itself as long as it does not know it from an earlier login.
    let ca = |name: &str| format!(r#","tls":true,"ca_file":"{}""#, certificates.path(name));
    unhealthy(&at(&remote, "probe", &secret, ""), &["ca_file", "socket"]);
    unhealthy(&at(&remote, "probe", &secret, r#","tls":true"#), &["ca_file"]);
    unhealthy(&at(&remote, "probe", &secret, &ca("other-ca.pem")), &["certificate is refused"]);
    unhealthy(&at(&remote, "probe", &other, &ca("ca.pem")), &["1045"]);
    healthy(&at(&remote, "probe", &secret, &ca("ca.pem")));
    healthy(&at(&remote, "probe", &secret, ""));
    healthy(&at(&remote, "strict", &secret, &ca("ca.pem")));
    unhealthy(&at(&remote, "strict", &secret, ""), &["1045"]);
    healthy(&at(&local, "writer", &secret, ""));
    let no_password = format!(r#"{{"mysql":{{{remote},"user":"without"}}}}"#);
    healthy(&look(&no_password));

    unhealthy(&at(&local, "probe", &other, ""), &["1045", &other]);
    let missing = look(&format!(r#"{{"mysql":{{{local},"user":"probe"}}}}"#));
    unhealthy(&missing, &["1045", "CREATE USER probe@localhost IDENTIFIED WITH auth_socket"]);
    unhealthy(&at(&local, "probe", &secret, r#","statement":"SELEKT 1""#), &["the statement failed", "1064"]);
    let long = r#","statement":"SELECT REPEAT('x', 5000000)""#;
    healthy(&at(&local, "probe", &secret, long));

    let writes = r#","write_table":"mainstay.probe""#;
    let outcome = at(&local, "writer", &secret, writes);
    healthy(&outcome);
    assert!(outcome.words().contains("wrote to mainstay.probe"), "{outcome:?}");
    unhealthy(&at(&local, "probe", &secret, writes), &["GRANT CREATE, INSERT, DELETE ON mainstay.probe"]);
    healthy(&look(&format!(r#"{{"mysql":{{{local},"statement":"SET GLOBAL read_only = 1"}}}}"#)));
    unhealthy(&at(&local, "writer", &secret, writes), &["read-only", "1290"]);

    server.signal(Signal::SIGSTOP);
    let hung = look_within(&format!(r#"{{"mysql":{{{local}}}}}"#), SHORT);
    unhealthy(&hung, &["not done after 1 s", "sent no greeting"]);
    server.signal(Signal::SIGCONT);
    healthy(&at(&local, "probe", &secret, ""));
}
