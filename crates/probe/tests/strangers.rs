//! Probes of pages, ports and programs, and of servers that speak no protocol.

mod support;

use mainstay_probe::Outcome;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Certificates, LIMIT, SHORT, free_port, healthy, look, look_within, unhealthy};

/// A server that does the same to every connection. It lasts as long as the test's process.
fn server(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream);
        }
    });
    address
}

/// A server of one page, which reads the request first.
fn page(answer: &'static str) -> String {
    server(move |mut stream| {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => request.push(byte[0]),
                _ => return,
            }
        }
        let _ = stream.write_all(answer.as_bytes());
    })
}

#[test]
fn a_port_is_healthy_if_the_program_sends_what_is_expected() {
    let address = server(|mut stream| {
        let _ = stream.write_all(b"SSH-2.0-x\r\n");
        let _ = stream.read(&mut [0; 8]);
    });
    healthy(&look(&format!(r#"{{"tcp":"{address}"}}"#)));
    healthy(&look(&format!(r#"{{"tcp":{{"address":"{address}","expect":"SSH-2.0"}}}}"#)));
    let other = format!(r#"{{"tcp":{{"address":"{address}","expect":"220 mail"}}}}"#);
    unhealthy(&look(&other), &["sent `SSH-2.0-`", "`220 mail`"]);
    // Nothing listens there any more.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    unhealthy(&look(&format!(r#"{{"tcp":"{gone}"}}"#)), &["nothing listens there"]);
}

#[test]
fn a_port_that_is_looked_at_sees_an_orderly_end() {
    let (tell, told) = std::sync::mpsc::channel();
    let address = server(move |mut stream| {
        let _ = stream.write_all(b"hello, and more than is expected");
        let _ = tell.send(stream.read(&mut [0; 8]).map_err(|error| error.kind()));
    });
    healthy(&look(&format!(r#"{{"tcp":{{"address":"{address}","expect":"hello"}}}}"#)));
    assert_eq!(told.recv_timeout(LIMIT).unwrap(), Ok(0), "the end of the stream, and no reset");
}

#[test]
fn a_page_is_healthy_by_its_status_and_its_text() {
    let fine = page("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nall is fine");
    healthy(&look(&format!(r#"{{"http":"http://{fine}/health"}}"#)));
    healthy(&look(&format!(r#"{{"http":{{"url":"http://{fine}/","status":"200","expect":"is fine"}}}}"#)));
    let other = format!(r#"{{"http":{{"url":"http://{fine}/","expect":"is bad"}}}}"#);
    unhealthy(&look(&other), &["`is bad`", "`all is fine`"]);
    let chunked = page("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfi ne\r\n0\r\n\r\n");
    unhealthy(&look(&format!(r#"{{"http":{{"url":"http://{chunked}/","expect":"fine"}}}}"#)), &["broke off"]);
    let chunked =
        page("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nfi\r\n2\r\nne\r\n0\r\n\r\n");
    healthy(&look(&format!(r#"{{"http":{{"url":"http://{chunked}/","expect":"fine"}}}}"#)));
    let away = page("HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n");
    healthy(&look(&format!(r#"{{"http":"http://{away}/"}}"#)));
    let broken = page("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
    unhealthy(&look(&format!(r#"{{"http":"http://{broken}/"}}"#)), &["status is 503", "200-399"]);
    let none = page("hello\r\n");
    unhealthy(&look(&format!(r#"{{"http":"http://{none}/"}}"#)), &["not HTTP"]);
}

/// A server of pages through TLS, ended with the test.
struct Pages(Child);

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_page_is_asked_for_through_tls() {
    let certificates = Certificates::make();
    let (certificate, key) = certificates.for_server();
    let address = format!("127.0.0.1:{}", free_port("127.0.0.1"));
    let mut server = Command::new("openssl");
    server.args(["s_server", "-quiet", "-www", "-accept", &address, "-cert", &certificate, "-key", &key]);
    let quiet = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Pages(quiet.spawn().unwrap());
    let began = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(began.elapsed() < LIMIT, "openssl does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let page = |more: &str| look(&format!(r#"{{"http":{{"url":"https://{address}/"{more}}}}}"#));
    let ca = |name: &str| page(&format!(r#","ca_file":"{}""#, certificates.path(name)));
    healthy(&page(""));
    healthy(&page(r#","expect":"Secure Renegotiation""#));
    healthy(&ca("ca.pem"));
    unhealthy(&ca("other-ca.pem"), &["certificate is refused", "other-ca.pem"]);
    unhealthy(&look(&format!(r#"{{"http":"http://{address}/"}}"#)), &["not HTTP"]);
    let plain = self::page("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let probe = format!(r#"{{"http":"https://{plain}/"}}"#);
    unhealthy(&look_within(&probe, SHORT), &["TLS handshake"]);
}

#[test]
fn a_page_without_an_end_is_read_up_to_64_kib() {
    let endless = server(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let probe = format!(r#"{{"http":{{"url":"http://{endless}/","expect":"y"}}}}"#);
    unhealthy(&look(&probe), &["65536 bytes"]);
}

#[test]
fn a_program_is_healthy_if_it_ends_with_0() {
    healthy(&look(r#"{"command":["/bin/sh","-c","echo fine"]}"#));
    unhealthy(
        &look(r#"{"command":["/bin/sh","-c","echo first; echo it is ill >&2; exit 3"]}"#),
        &["ended with 3: it is ill"],
    );
    unhealthy(&look(r#"{"command":["/bin/sh","-c","kill -9 $$"]}"#), &["signal 9"]);
    unhealthy(&look(r#"{"command":["/nowhere/at/all"]}"#), &["cannot be run"]);
    // A child that holds the output open does not hold up the probe.
    healthy(&look_within(r#"{"command":["/bin/sh","-c","sleep 20 & exit 0"]}"#, SHORT));
}

#[test]
fn a_program_that_does_not_end_is_killed_with_its_children() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pids").display().to_string();
    let script = format!("sleep 1000 & echo $! $$ >{path}; wait");
    let probe = format!(r#"{{"command":["/bin/sh","-c","{script}"]}}"#);
    unhealthy(&look_within(&probe, SHORT), &["not done after 1 s", "did not end"]);
    let pids = std::fs::read_to_string(path).unwrap();
    assert_eq!(pids.split_whitespace().count(), 2);
    for pid in pids.split_whitespace() {
        let lives = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !status.is_empty() && !status.contains(") Z ")
        };
        assert!((0..250).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            !lives()
        }));
    }
}

const KINDS: [&str; 2] = ["mariadb", "postgresql"];

#[test]
fn a_server_that_never_ends_its_answer_holds_a_probe_only_for_its_limit() {
    let silent = server(std::mem::forget);
    // A packet of 65,280 bytes, byte by byte.
    let slow = server(|mut stream| {
        let _ = stream.write_all(b"\0\xff\0\0\x0a");
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    // A greeting of MariaDB, a login that succeeds, and columns without end.
    let endless = server(|mut stream| {
        let mut greeting =
            b"\x4d\0\0\0\x0a5.5.5-10.11.19\0\x07\0\0\0abcdefgh\0\xfe\xf7\x2d\x02\0\xff\x81\x15".to_vec();
        greeting.extend_from_slice(&[0; 10]);
        greeting.extend_from_slice(b"ijklmnopqrst\0mysql_native_password\0");
        greeting[0] = u8::try_from(greeting.len() - 4).unwrap();
        let _ = stream.write_all(&greeting);
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"\x07\0\0\x02\0\0\0\x02\0\0\0");
        let _ = stream.read(&mut [0; 1024]);
        let mut rows = b"\x01\0\0\x01\x01".to_vec();
        rows.extend_from_slice(&b"\x04\0\0\x02\x03def".repeat(1000));
        while stream.write_all(&rows).is_ok() {}
    });
    for kind in KINDS {
        let probe = format!(r#"{{"{kind}":{{"address":"{silent}"}}}}"#);
        unhealthy(&look_within(&probe, SHORT), &["not done after 1 s"]);
    }
    unhealthy(
        &look_within(&format!(r#"{{"mariadb":{{"address":"{slow}"}}}}"#), SHORT),
        &["not done after 1 s"],
    );
    let outcome = look_within(&format!(r#"{{"mariadb":{{"address":"{endless}"}}}}"#), SHORT);
    unhealthy(&outcome, &["not done after 1 s", "did not answer the statement"]);
}

#[test]
fn a_server_that_sends_noise_makes_a_probe_unhealthy() {
    // A generator of its own makes the noise the same in every run.
    let state = std::sync::atomic::AtomicU64::new(1);
    let noisy = server(move |mut stream| {
        let mut x =
            state.fetch_add(1, std::sync::atomic::Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut noise = Vec::new();
        for _ in 0..512 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            noise.push(x.to_le_bytes()[3]);
        }
        // Small lengths and letters of real messages, so that some noise passes the first checks.
        if x.is_multiple_of(2) {
            noise[..5].copy_from_slice(b"\x20\0\0\0\x0a");
        } else {
            noise[..5].copy_from_slice(b"R\0\0\0\x10");
        }
        let _ = stream.write_all(&noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = stream.read(&mut [0; 1024]);
    });
    for _ in 0..100 {
        for kind in KINDS {
            let outcome = look(&format!(r#"{{"{kind}":{{"address":"{noisy}"}}}}"#));
            assert!(matches!(outcome, Outcome::Unhealthy(_)), "{outcome:?}");
        }
    }
}
