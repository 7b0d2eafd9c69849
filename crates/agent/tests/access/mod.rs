//! Rights of callers, for every route, and the audit log. Other users are other processes, because
//! the kernel says who asks.

use crate::support::TestNode;
use mainstay_agent::access::Groups;
use mainstay_agent::http::routes;
use mainstay_api::rest::{AuditPage, AuditView};
use mainstay_api::routes::ROUTES;
use mainstay_types::Access;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Connections that a user opens in a test: more than all users but root may have.
const HELD: usize = 70;
const CHILD_VARIABLE: &str = "MAINSTAY_TEST_CALLER";
/// Group ids that every Linux has: no right, `read`, `operate`, `admin`.
const GROUPS: [(u32, &str, Option<Access>); 4] = [
    (65_533, "", None),
    (1, "daemon", Some(Access::Read)),
    (2, "bin", Some(Access::Operate)),
    (3, "sys", Some(Access::Admin)),
];

/// Groups of the agents of these tests.
pub fn groups() -> Groups {
    let name = |place: usize| Some(GROUPS[place].1.to_owned());
    Groups { read: name(1), operate: name(2), admin: name(3) }
}

/// A request with an empty object, and the status of its answer.
fn ask(socket: &Path, method: &str, path: &str) -> String {
    let path = ["{name}", "{node}", "{volume}", "{snapshot}", "{code}"]
        .into_iter()
        .fold(path.to_owned(), |path, part| path.replace(part, "1"));
    let mut stream = UnixStream::connect(socket).expect("everybody may connect");
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    .unwrap();
    let mut head = String::new();
    // A connection without a place is closed before an answer. That of the stream has no end.
    drop(BufReader::new(stream).read_line(&mut head));
    head.split(' ').nth(1).unwrap_or("closed").to_owned()
}

/// Process of a caller, and no test of its own: it asks every route and prints the answers.
#[test]
fn caller_process() {
    let Ok(socket) = std::env::var(CHILD_VARIABLE) else { return };
    for route in routes().table {
        let status = ask(Path::new(&socket), route.method, route.path);
        println!("answer {} {} {status}", route.method, route.path);
    }
}

/// Process of a user who holds connections, and no test of its own: it prints how many were closed
/// at once, and keeps the others until its input ends.
#[test]
fn holder_process() {
    let Ok(socket) = std::env::var(CHILD_VARIABLE) else { return };
    let held: Vec<UnixStream> = (0..HELD).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let is_closed = |stream: &&UnixStream| {
        let mut stream: &UnixStream = stream;
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        // Without an end, the time limit is an error.
        matches!(stream.read(&mut [0]), Ok(0)) || stream.write_all(b"x").is_err()
    };
    println!("closed {}", held.iter().filter(is_closed).count());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// One of these processes, as the user `nobody` with a group.
fn as_nobody(node: &TestNode, gid: u32, process: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", &format!("--regid={gid}"), "--clear-groups"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", process, "--nocapture"])
        .env(CHILD_VARIABLE, node.run_dir().join("agent.sock"));
    command
}

/// The answers to all routes for a user of a group: method, path and status.
fn answers(node: &TestNode, gid: u32) -> Vec<(String, String, String)> {
    let output = as_nobody(node, gid, "access::caller_process").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let answer = |line: &str| {
        let (_, rest) = line.split_once("answer ")?;
        let words: Vec<&str> = rest.split(' ').collect();
        Some((words[0].to_owned(), words[1].to_owned(), words[2].to_owned()))
    };
    text.lines().filter_map(answer).collect()
}

fn reachable(node: &TestNode) {
    let run = node.run_dir();
    for path in [run.as_path(), run.parent().unwrap()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// The records, once each has a result.
fn settled(node: &TestNode, wanted: usize) -> Vec<AuditView> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let page: AuditPage = node.client().get("/v1/audit?lines=1000").unwrap();
        if page.records.len() >= wanted && page.records.iter().all(|record| record.status.is_some()) {
            return page.records;
        }
        assert!(Instant::now() < deadline, "{page:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// R24
#[test]
fn every_route_is_open_to_its_right_alone_and_every_change_is_in_the_audit_log() {
    let mut node = TestNode::new(21, 1);
    node.start();
    reachable(&node);
    crate::init(&node);
    let first = settled(&node, 1);
    // The record has the environment of services in it.
    for file in ["agent.redb", "suspects.redb"] {
        let path = node.run_dir().parent().unwrap().join("state").join(file);
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
    assert_eq!((first[0].who.as_str(), first[0].action.as_str()), ("root", "POST /v1/cluster/init"));
    assert_eq!((first[0].node.as_str(), first[0].access, first[0].status), ("n1", Access::Admin, Some(200)));

    let table = routes().table;
    assert!(table.len() > 50, "{} routes", table.len());
    let mut changes = 0;
    for (gid, _, access) in GROUPS {
        let answers = answers(&node, gid);
        assert_eq!(answers.len(), table.len());
        for (route, (method, path, status)) in table.iter().zip(answers) {
            assert_eq!((method.as_str(), path.as_str()), (route.method, route.path));
            let may = access.is_some_and(|access| access >= route.access);
            assert_eq!(status != "403", may, "{method} {path} for {access:?}: {status}");
            assert_ne!(status, "closed", "{method} {path} for {access:?}");
            changes += usize::from(may && route.changes);
        }
    }
    let records = settled(&node, 1 + changes);
    assert_eq!(records.len(), 1 + changes, "questions and refused callers are not in the log");
    assert!(records[1..].iter().all(|record| record.who == "nobody"), "{records:#?}");
    let refused = records.iter().find(|record| record.action == "DELETE /v1/services/1").unwrap();
    assert_eq!(refused.code.as_ref().map(ToString::to_string).as_deref(), Some("unknown-service"));
    assert_eq!(refused.access, Access::Admin);
}

/// R18
#[test]
fn other_users_cannot_keep_root_from_being_served() {
    let mut node = TestNode::new(23, 1);
    node.start();
    reachable(&node);
    let mut holder = as_nobody(&node, 1, "access::holder_process");
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Kept open: the holder goes on to write there.
    let mut said = BufReader::new(holder.stdout.take().unwrap());
    let closed = said.by_ref().lines().map_while(Result::ok).find_map(|line| {
        let (_, number) = line.split_once("closed ")?;
        number.parse::<usize>().ok()
    });
    assert_eq!(closed, Some(HELD - 64));
    let status: serde_json::Value = node.client().get("/v1/status").unwrap();
    assert!(status.is_object());
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}

/// The rights that routes had when somebody last looked at them: a new route has to be added here
/// on purpose.
#[test]
fn no_route_has_another_right_than_this_list_says() {
    let list = include_str!("rights.txt");
    let row = |route: &&mainstay_api::routes::Route| {
        let changes = if route.changes { " changes" } else { "" };
        format!("{} {} {}{changes}\n", route.access, route.method, route.path)
    };
    let table: String = routes().table.iter().map(row).collect();
    assert_eq!(table, list, "see crates/agent/tests/access/rights.txt");
    let missing: Vec<_> = ROUTES.iter().filter(|route| !routes().table.contains(route)).collect();
    assert!(missing.is_empty(), "no handler: {missing:?}");
}
