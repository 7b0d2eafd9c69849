//! Commands that show the newest entries of a list, asked for none of them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

/// Answers every request with this JSON, as an agent does.
fn answers(socket: &Path, json: &'static str) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
            write!(stream, "{head}Content-Length: {}\r\n\r\n{json}", json.len()).unwrap();
        }
    });
}

fn run(words: &[&str], json: &'static str) -> Output {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("agent.sock");
    answers(&socket, json);
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.arg("--socket").arg(&socket).args(words).output().unwrap()
}

#[test]
fn nothing_is_printed_of_a_list_of_which_no_line_is_wanted() {
    let audit = r#"{"records":[],"last":9,"gap":false}"#;
    let event = r#"{"events":[{"index":1,"at_ms":0,"severity":"info","subject":"node n1","text":"is back"}],"last":1,"gap":false}"#;
    let logs = r#"{"node":"n1","logs":[{"process":"p","text":"","next":"1","cut":false}]}"#;
    for (words, json, empty) in [
        (&["audit"][..], audit, "nobody has asked for a change\n"),
        (&["events"], event, "     1  1970-01-01 00:00:00.000Z  info     node n1           is back\n"),
        (&["history"], r#"{"changes":[],"since_ms":null}"#, "no primary has changed\n"),
        (&["service", "history", "db"], r#"{"name":"db","events":[],"since_ms":null}"#, "no events\n"),
        (&["service", "logs", "db"], logs, "no output\n"),
    ] {
        let said = run(words, json);
        assert_eq!(String::from_utf8_lossy(&said.stdout), empty, "{words:?}: {said:?}");
        let none = run(&[words, &["--lines", "0"]].concat(), json);
        assert_eq!((none.status.code(), none.stdout.len()), (Some(0), 0), "{words:?}: {none:?}");
    }
}
