//! `mainstay node remove`, `replace` and `set-address`, and the commands that save a cluster.

use crate::cli::StateArgs;
use crate::connect::checked_name;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Output};
use mainstay_agent::recovery;
use mainstay_api::rest::{
    Accepted, ClusterBackup, NodeAddress, NodeRemoval, NodeRemove, NodeReplace, Problem,
};
use mainstay_client::Client;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Largest backup that is read.
const BACKUP_BYTES_MAX: u64 = 64 << 20;

fn accepted(accepted: &Accepted, output: Output) -> Outcome<()> {
    output.result(accepted, |accepted| accepted.message.clone())
}

pub fn remove(name: &str, force: bool, client: &Client, output: Output) -> Outcome<()> {
    let path = format!("/v1/nodes/{}/removal", checked_name(name)?);
    let mut request = NodeRemove::default();
    if force {
        let removal: NodeRemoval = client.get(&path)?;
        if !removal.lost.is_empty() {
            output::say(&format!("lost with {name}: the data of {}", removal.lost.join(", ")));
        }
        request.lost = removal.lost;
    }
    accepted(&client.post(&path, &request)?, output)
}

pub fn replace(name: &str, with: &str, client: &Client, output: Output) -> Outcome<()> {
    let path = format!("/v1/nodes/{}/replacement", checked_name(name)?);
    accepted(&client.post(&path, &NodeReplace { with: with.to_owned() })?, output)
}

pub fn set_address(name: &str, request: &NodeAddress, client: &Client, output: Output) -> Outcome<()> {
    let path = format!("/v1/nodes/{}/address", checked_name(name)?);
    accepted(&client.put(&path, request)?, output)
}

fn file_failure(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        Code::Io,
        format!("{}: {error}", file.display()),
        "Name another file, or put this one right.",
    )
}

pub fn backup(file: &Path, client: &Client, output: Output) -> Outcome<()> {
    let backup: ClusterBackup = client.get("/v1/cluster/backup")?;
    let text = serde_json::to_string(&backup)
        .map_err(|error| Failure::new(Code::Io, error.to_string(), "Try again."))?;
    let failed = |error: std::io::Error| file_failure(file, &error);
    // Passwords are in files of their own, but environment and commands of services are in it.
    let mut written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(failed)?;
    written.write_all(text.as_bytes()).and_then(|()| written.sync_all()).map_err(failed)?;
    let said = Accepted {
        revision: backup.revision,
        message: format!("the record of cluster {} is in {}", backup.cluster, file.display()),
    };
    accepted(&said, output)
}

fn failure(problem: Problem) -> Failure {
    Failure::new(problem.code, problem.message, problem.remedy)
}

pub fn recover(state: &StateArgs, dead: &[String], output: Output) -> Outcome<u8> {
    let outcome = recovery::recover(&state.state_dir, dead).map_err(failure)?;
    tell(&outcome, output)?;
    if !outcome.done {
        output.note(&format!(
            "nothing was changed. To do it: `mainstay cluster recover --i-know-that-these-are-dead {}`",
            outcome.refused.join(",")
        ));
    }
    Ok(0)
}

pub fn restore(file: &Path, node: &str, state: &StateArgs, output: Output) -> Outcome<u8> {
    let failed = |error: std::io::Error| file_failure(file, &error);
    if fs::metadata(file).map_err(failed)?.len() > BACKUP_BYTES_MAX {
        let message = format!("{} is larger than a backup can be", file.display());
        return Err(Failure::new(Code::BadBackup, message, "Name a file that `cluster backup` wrote."));
    }
    let text = fs::read_to_string(file).map_err(failed)?;
    let outcome = recovery::restore(&state.state_dir, &text, node).map_err(failure)?;
    tell(&outcome, output)?;
    Ok(0)
}

fn tell(outcome: &recovery::Outcome, output: Output) -> Outcome<()> {
    output.result(outcome, |outcome| {
        let (done, will) = if outcome.done { ("begins", "are") } else { ("would begin", "would be") };
        let mut lines = vec![format!("cluster {} {done} anew on {}", outcome.cluster, outcome.node)];
        if !outcome.refused.is_empty() {
            lines.push(format!(
                "refused {will} from then on: {}. Each can join again as a new machine with `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN --replace`",
                outcome.refused.join(", ")
            ));
        }
        if !outcome.lacking.is_empty() {
            lines.push(format!(
                "this node may lack the last writes of {}, and serves them only if you force it: `mainstay resource force-promote NAME NODE`",
                outcome.lacking.join(", ")
            ));
        }
        lines.push("changes of the record that only other nodes knew are lost".to_owned());
        if outcome.done {
            lines.push("start the agent now".to_owned());
        }
        lines.join("\n")
    })
}
