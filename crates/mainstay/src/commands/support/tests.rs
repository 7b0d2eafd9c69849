//! Bundles of an agent and a machine that hold a mark in every place where a secret can be.

use super::*;
use crate::failure::exit;
use flate2::read::GzDecoder;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

/// A secret that must not be in a bundle. Each place has one with a number of its own.
fn mark(number: usize) -> String {
    format!("MARK{number:02}hunter2")
}

const MARKS: usize = 30;

/// Answers of an agent that hides nothing.
fn answer(path: &str) -> Outcome<String> {
    let m = mark;
    let toml = format!(
        "name = \"db\"\nresource = \"db\"\n[[process]]\nname = \"app\"\n\
         command = [\"app\", \"--password\", \"{}\", \"--api-token={}\", \"-p{}\", \"--port\", \"80\"]\n\
         [process.env]\nDB_PASSWORD = \"{}\"\nHARMLESS = \"{}\"\n\
         [process.probe.mariadb]\nsocket = \"/run/db.sock\"\npassword = \"{}\"\n\
         [process.ocf.params]\npasswd = \"{}\"\nport = \"3306\"\n",
        m(0),
        m(1),
        m(2),
        m(3),
        m(4),
        m(5),
        m(6)
    );
    let body = match path {
        "/v1/status" => json!({
            "cluster": { "this_node": "n1", "name": "shop", "join_token": m(7) },
            "resources": [{ "name": "db" }, { "name": "../etc" }],
            "services": [{ "name": "db" }],
            "advice": [format!("run `mainstay cluster join --peer 10.0.0.1 --as n4 --token {}`", m(8))]
        }),
        "/v1/events?after=0" => json!({ "events": [
            { "text": format!("the probe says: Access denied, password={}", m(9)) },
            { "text": format!("cannot reach https://bob:{}@host/", m(10)) },
            { "text": format!("a token mst_join_0011_{} was used", m(11)) },
        ] }),
        "/v1/audit?lines=1000" => {
            json!({ "records": [{ "body": { "secret": m(12), "nested": [{ "api_key": m(13) }] } }] })
        }
        "/v1/cluster/settings" => json!([
            { "name": "fence-command", "value": format!("fence_ipmilan --password {} -a 10.0.0.9", m(14)) },
            { "name": "mail-password", "value": m(15) },
        ]),
        "/v1/cluster/certificates" => json!({ "nodes": [{ "private_key": m(16), "seal": m(17) }] }),
        "/v1/cluster/tokens" => json!([{ "id": "0011", "token": m(18) }]),
        "/v1/tokens" => json!([{ "name": "ci", "scope": "read", "secret": m(19) }]),
        "/v1/services/db/file" => json!({ "name": "db", "toml": toml, "edition": 3 }),
        "/metrics" => return Ok(format!("mainstay_engine_up 1\n# Bearer {}\n", m(20))),
        "/v1/resources/db/settings" => {
            return Err(Failure::new(Code::NotFound, format!("no route, token={}", m(21)), "x"));
        }
        _ => json!([]),
    };
    Ok(body.to_string())
}

/// Programs of a machine.
fn program(words: &[&str]) -> Result<String, String> {
    match words {
        ["journalctl", "--unit=mainstay-agent", ..] => Ok(format!(
            "agent: started with --api-key {}\nagent: Authorization: Bearer {}\nagent: -----BEGIN PRIVATE KEY-----\n{}\n\
             -----END PRIVATE KEY-----\nagent: took 3 s\n",
            mark(22),
            mark(23),
            mark(24)
        )),
        ["journalctl", ..] => Ok(String::new()),
        ["dmesg"] => Ok(format!("kernel: cmdline root=/dev/sda secret={}\nkernel: sda: hung\n", mark(25))),
        ["lsblk"] => Err("lsblk: No such file or directory".to_owned()),
        _ => Ok("x\n".to_owned()),
    }
}

/// A state directory with keys, and the configuration that names it.
fn machine(directory: &Path) -> PathBuf {
    let state = directory.join("state");
    std::fs::create_dir(&state).unwrap();
    for (number, name) in [(26, "trust.json"), (27, "api.key"), (28, "seal.key")] {
        std::fs::write(state.join(name), mark(number)).unwrap();
    }
    let config = directory.join("mainstay.toml");
    let text = format!(
        "# admin password {0}\nstate_dir = {1:?}\n[agent]\napi_token = {0:?}\nhttps_key = {0:?}\nlisten = \"10.0.0.1:7400\"\n",
        mark(29),
        state.display().to_string()
    );
    std::fs::write(&config, text).unwrap();
    config
}

fn unpacked(file: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(file).unwrap()));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let (directory, name) = path.split_once('/').unwrap();
        assert!(directory.starts_with("mainstay-support-"), "{path}");
        assert_eq!(entry.header().mode().unwrap(), 0o600);
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        files.insert(name.to_owned(), text);
    }
    files
}

fn gathered(config: &Path) -> Gathered {
    let mut found = Gathered::default();
    sources::of_agent(&answer, &mut found);
    sources::of_machine(config, 3600, &program, &mut found);
    found
}

#[test]
fn no_secret_of_an_agent_or_a_machine_is_in_a_bundle() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bundle.tar.gz");
    let bundle = finish(Some(&file), gathered(&machine(directory.path())), 0).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let files = unpacked(&file);
    assert_eq!(files.len(), bundle.parts);
    for (name, text) in &files {
        for number in 0..MARKS {
            assert!(!text.contains(&mark(number)), "{name} has the mark {number}: {text}");
        }
    }
    assert!(!words(&bundle).contains("hunter2"), "{}", words(&bundle));
    // The parts that help are there.
    let service = &files["services/db.toml"];
    assert!(
        service.contains("3306") && service.contains("\"80\"") && service.contains("/run/db.sock"),
        "{service}"
    );
    assert!(service.contains("HARMLESS = \"[struck out]\""), "{service}");
    assert!(files["mainstay.toml"].contains("10.0.0.1:7400"), "{}", files["mainstay.toml"]);
    assert!(files["journal.txt"].contains("took 3 s") && files["kernel.txt"].contains("sda: hung"));
    assert!(files["cluster-settings.json"].contains("-a 10.0.0.9"), "{}", files["cluster-settings.json"]);
    assert!(
        files["machine.txt"].contains("$ lsblk\n(lsblk: No such file") && files.contains_key("doctor.json")
    );
    let manifest: Value = serde_json::from_str(&files["manifest.json"]).unwrap();
    assert_eq!((&manifest["node"], &manifest["made"]), (&json!("n1"), &json!("1970-01-01 00:00:00.000Z")));
    assert_eq!(manifest["missing"][0]["name"], "resources/db-settings.json", "{manifest}");
    assert!(files.keys().all(|name| !name.contains("etc")), "{:?}", files.keys());
}

#[test]
fn a_file_that_exists_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("taken");
    std::fs::write(&file, "mine").unwrap();
    let refused = finish(Some(&file), Gathered::default(), 0).map(|_| ()).unwrap_err();
    assert!(refused.problem.message.contains("exists already"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let nowhere = directory.path().join("missing/bundle");
    assert!(finish(Some(&nowhere), Gathered::default(), 0).is_err());
}

#[test]
fn a_silent_agent_is_asked_once_and_named_in_the_manifest() {
    let asked = std::cell::Cell::new(0);
    let silent = |_: &str| -> Outcome<String> {
        asked.set(asked.get() + 1);
        Err(Failure::new(Code::AgentTimeout, "no answer within 10 s", "Look at it."))
    };
    let mut found = Gathered::default();
    sources::of_agent(&silent, &mut found);
    assert_eq!((asked.get(), found.parts.len(), found.missing.len()), (1, 0, 11));
    assert_eq!(Code::AgentTimeout.exit(), exit::UNREACHABLE);
    let file = tempfile::tempdir().unwrap();
    let bundle = finish(Some(&file.path().join("b")), found, 0).unwrap();
    assert_eq!(bundle.missing[0].name, "status.json");
    assert!(bundle.missing[0].why.contains("no answer within 10 s"), "{:?}", bundle.missing[0]);
}

#[test]
fn a_bundle_is_bounded_and_says_what_is_cut_or_left_out() {
    let mut found = Gathered::default();
    let long = |path: &str| -> Outcome<String> {
        Ok(if path == "/metrics" { "ä".repeat(sources::PART_BYTES_MAX) } else { "[]".to_owned() })
    };
    sources::of_agent(&long, &mut found);
    let metrics = found.parts.iter().find(|part| part.name == "metrics.txt").unwrap();
    assert!(metrics.is_cut && metrics.content.len() <= sources::PART_BYTES_MAX);
    let part = |n: usize| Part {
        name: format!("p{n}"),
        content: "x".repeat(sources::PART_BYTES_MAX),
        is_cut: false,
    };
    found.parts.extend((0..12).map(part));
    bound(&mut found);
    let bytes: usize = found.parts.iter().map(|part| part.content.len()).sum();
    assert!(bytes <= BYTES_MAX && !found.missing.is_empty(), "{bytes}");
}

#[test]
fn a_program_is_run_and_ended_when_it_says_too_much() {
    assert_eq!(sources::run(&["echo", "a"]).unwrap(), "a\n");
    assert!(sources::run(&["/does/not/exist"]).unwrap_err().contains("No such file"));
    assert!(sources::run(&["false"]).unwrap_err().contains("ended with"));
    assert!(sources::run(&["yes"]).unwrap().len() > sources::PART_BYTES_MAX);
}
