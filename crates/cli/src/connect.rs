//! Choice of the agent that a command talks to.

use crate::failure::{Code, Failure, Outcome};
use crate::members::{self, Members, Node, lab_name};
use crate::{interrupt, output};
use clap::Args;
use mainstay_client::{BadServer, Client, Knows, Method, OnWait, Server, Stale};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Longest files with a token and with certificates, in bytes.
const TOKEN_BYTES_MAX: u64 = 4096;
const CA_BYTES_MAX: u64 = 1 << 20;
/// Mode bits that a file with a secret must not have: all access of others, and writing by its
/// group.
const SECRET_MODE_FORBIDDEN: u32 = 0o027;

/// Options that choose the agent to ask and the form of the answer.
#[derive(Args, Debug)]
pub struct Target {
    /// Print answers and errors as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Socket of the agent to ask.
    #[arg(
        long,
        global = true,
        env = "MAINSTAY_SOCKET",
        default_value = "/run/mainstay/agent.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// Ask an agent inside this lab instead of the one behind --socket. With `mainstay lab` it
    /// means the same as --name.
    #[arg(long, global = true, value_name = "NAME", value_parser = lab_name)]
    pub lab: Option<String>,
    /// Agent on another machine to ask over TLS, as https://HOST:PORT, instead of the one behind
    /// --socket. Needs --token-file.
    #[arg(long, global = true, env = "MAINSTAY_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// File with the token for --server, as `mainstay token create` printed it. Other users must
    /// not be able to read the file.
    #[arg(long, global = true, env = "MAINSTAY_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the authority of the server's certificate, PEM. Default: the authorities that this
    /// machine trusts.
    #[arg(long, global = true, env = "MAINSTAY_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// SHA-256 of the server's certificate, or of its authority's, instead of --ca: 64 hexadecimal
    /// digits.
    #[arg(long, global = true, env = "MAINSTAY_FINGERPRINT", value_name = "SHA256")]
    pub fingerprint: Option<String>,
    /// With --lab: the node whose agent is asked. Default: the first node that runs.
    #[arg(long = "node", id = "lab_node", global = true, requires = "lab", value_name = "NODE")]
    pub node: Option<String>,
}

impl Target {
    /// Advice to run a command of this machine inside a node of the lab.
    pub fn inside(&self, verb: &str) -> String {
        let node = self.node.as_deref().unwrap_or("NODE");
        let name = self.lab.as_deref().unwrap_or("NAME");
        format!(
            "To run it inside a node of the lab: `mainstay lab exec {node} --name {name} -- mainstay {verb}`."
        )
    }
}

/// Failure of an option that does nothing for a command. Without it the command would act on
/// another place than the operator means.
pub fn idle(option: &str, why: &str, remedy: impl Into<String>) -> Failure {
    Failure::new(Code::OptionWithoutEffect, format!("{option} has no effect here: {why}"), remedy)
}

/// A client for `--socket`, for an agent inside a lab, or for one on another machine.
pub fn client(target: &Target) -> Outcome<Client> {
    let Some(name) = &target.lab else {
        return Ok(told(match &target.server {
            Some(address) => Client::of_server(server(address, target)?),
            None => Client::new(&target.socket),
        }));
    };
    let lab: Members = members::read(&members::base_dir(None).join(name))?;
    let node = match &target.node {
        Some(node) => lab.node(node)?,
        None => lab.nodes.iter().find(|node| answers(&lab, node)).ok_or_else(|| {
            Failure::new(
                Code::LabDown,
                format!("no node of lab `{name}` runs"),
                format!("`mainstay lab status --name {name}` shows them; start or resume one"),
            )
        })?,
    };
    lab.awake(&node.name)?;
    Ok(told(Client::new(lab.agent_socket(node)?)))
}

const SERVER_REMEDY: &str = "Write the server as `--server https://HOST:PORT`, with --token-file FILE, and --ca FILE or --fingerprint SHA256.";

/// The server that the options name.
fn server(address: &str, target: &Target) -> Outcome<Server> {
    let bad = |why: String| Failure::new(Code::BadServer, why, SERVER_REMEDY);
    let knows = match (&target.ca, &target.fingerprint) {
        (Some(_), Some(_)) => return Err(bad("--ca and --fingerprint are given both".to_owned())),
        (None, Some(digits)) => Knows::Fingerprint(digits.clone()),
        (None, None) => Knows::Machine,
        (Some(path), None) => {
            let text = read_bounded(path, CA_BYTES_MAX);
            Knows::Authorities(text.map_err(|error| bad(format!("{}: {error}", path.display())))?)
        }
    };
    let token = token(target.token_file.as_deref())?;
    Server::new(address, knows, &token).map_err(|error| match error {
        BadServer::Token(why) => bad_token(format!("the token for {address} cannot be used: {why}")),
        error => bad(error.to_string()),
    })
}

fn bad_token(why: String) -> Failure {
    let remedy = "Put the token into a file that only you can read, and name the file with --token-file. `mainstay token create NAME --scope read` on a node prints a new one.";
    Failure::new(Code::BadTokenFile, why, remedy)
}

fn token(path: Option<&Path>) -> Outcome<String> {
    let Some(path) = path else {
        return Err(bad_token("--server needs a token, and there is no --token-file".to_owned()));
    };
    let unread = |error: io::Error| bad_token(format!("{}: {error}", path.display()));
    let mode = path.metadata().map_err(unread)?.permissions().mode() & 0o777;
    if mode & SECRET_MODE_FORBIDDEN != 0 {
        return Err(bad_token(format!(
            "{} can be read or changed by others (mode {mode:o})",
            path.display()
        )));
    }
    let text = read_bounded(path, TOKEN_BYTES_MAX).map_err(unread)?;
    String::from_utf8(text).map_err(|_| bad_token(format!("{} is no text", path.display())))
}

fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    Ok(text)
}

/// Names go into request paths; the API allows only these characters in them.
pub fn checked_name(name: &str) -> Outcome<&str> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=32).contains(&name.len()) && name.chars().all(fits) {
        return Ok(name);
    }
    let what = match name {
        "" => "a name is empty".to_owned(),
        name => format!("`{}` is not a name", name.chars().take(80).collect::<String>()),
    };
    Err(Failure::new(Code::BadName, what, "Names have 1 to 32 characters out of a-z, 0-9 and the dash."))
}

/// Tells what the operator should know while requests are under way.
fn told(client: Client) -> Client {
    client.with_on_stale(say_age).with_on_wait(OnWait {
        change: interrupt::change_begins,
        slow: say_slow,
        goes_on: interrupt::goes_on_as,
    })
}

fn say_slow(method: &Method, path: &str) {
    output::waits_for(long_step(method, path));
}

/// Returns words for the work of the agent while a request is under way, such as `for …`.
fn long_step(method: &Method, path: &str) -> &'static str {
    match (method.as_str(), path) {
        ("GET", _) => "for the agent's answer: it asks the other nodes, and those that are dead cost time",
        (_, "/v1/cluster/init") => "for the agent to make the cluster",
        (_, "/v1/cluster/join") => {
            "for a member of the cluster to reach this node, and for the cluster's state to arrive here"
        }
        ("POST", "/v1/resources") => "for the nodes to make their replicas, and for the devices",
        ("PUT", "/v1/services") => "for the nodes to say whether they can run the service",
        (_, path) if path.starts_with("/v1/services/") && path.ends_with("/move") => {
            "for the service's file system to be let go by other programs"
        }
        _ => "for a majority of the nodes to record the change",
    }
}

/// Says once how old the answers are: on standard error, because standard output may be read by a
/// program.
fn say_age(stale: &Stale) {
    static SAID: Once = Once::new();
    SAID.call_once(|| output::say(&age(stale)));
}

fn age(Stale { node, age_ms }: &Stale) -> String {
    let shown = match age_ms {
        Some(ms) => format!("what it shows is as of {} s ago", ms / 1000),
        None => "the age of what it shows is unknown".to_owned(),
    };
    format!("warning: {node} could not confirm its state with a majority of the voters; {shown}")
}

/// Whether a node has power and is not paused.
fn answers(lab: &Members, node: &Node) -> bool {
    lab.init_pid(node).is_some() && lab.awake(&node.name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_answer_names_its_node_and_its_age() {
        let of = |age_ms| age(&Stale { node: "n3".into(), age_ms });
        assert!(
            of(Some(12_400)).contains("n3 could not confirm") && of(Some(12_400)).ends_with("as of 12 s ago")
        );
        assert!(of(None).ends_with("is unknown"));
    }

    #[test]
    fn a_name_cannot_leave_its_path() {
        assert!(checked_name("db-1").is_ok());
        for name in ["", "../nodes", "a b", "DB", "a?b", &"x".repeat(33)] {
            assert!(checked_name(name).is_err(), "{name}");
        }
    }
    fn target(words: &[&str]) -> Target {
        #[derive(clap::Parser, Debug)]
        struct Line {
            #[command(flatten)]
            target: Target,
        }
        <Line as clap::Parser>::parse_from(["x"].iter().chain(words)).target
    }

    fn refused(words: &[&str]) -> Failure {
        client(&target(words)).map(|_| ()).expect_err("no client")
    }

    #[test]
    fn a_server_needs_a_token_in_a_file_that_others_cannot_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let file = path.to_str().expect("text");
        let print = "ab".repeat(32);
        let whole = ["--server", "https://n1", "--fingerprint", &print, "--token-file", file];
        assert_eq!(refused(&whole[..4]).problem.code, Code::BadTokenFile);
        assert!(refused(&whole).problem.message.contains("No such file"));
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        write("hunter2", 0o600);
        let failure = refused(&whole);
        assert!(failure.problem.message.contains("begins with mst_api_"), "{failure}");
        assert!(!failure.to_string().contains("hunter2"), "{failure}");
        for mode in [0o644, 0o660, 0o604] {
            write("mst_api_x", mode);
            assert!(refused(&whole).problem.message.contains("by others"), "{mode:o}");
        }
        write(&"x".repeat(5000), 0o600);
        assert!(refused(&whole).problem.message.contains("more than 4096 bytes"));
    }

    #[test]
    fn a_server_is_known_in_one_way() {
        let both = ["--server", "https://n1", "--ca", "/x", "--fingerprint", "ab"];
        let failure = refused(&both);
        assert_eq!(failure.problem.code, Code::BadServer);
        assert_eq!(refused(&both[..4]).problem.code, Code::BadServer);
    }
}
