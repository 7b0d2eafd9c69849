//! The two long-running roles of the binary. The only place where the command line meets the runtimes.

use crate::cli::{AgentArgs, EngineArgs};
use crate::failure::{Failure, Outcome};

pub fn engine(args: EngineArgs) -> Outcome<()> {
    Err(absent("engine", &args.paths.run_dir))
}

pub fn agent(args: AgentArgs) -> Outcome<()> {
    Err(absent("agent", &args.paths.run_dir))
}

fn absent(role: &str, run_dir: &std::path::Path) -> Failure {
    let message = format!("this build has no {role} to run in {}", run_dir.display());
    Failure::new("role-absent", message, "")
}
