//! Runs the checker at given bounds, or shows how a left-out rule loses something.

use mainstay_spec::rules::MUTATIONS;
use mainstay_spec::{Bounds, Mutation, Spec, prose, run, shortest};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str =
    "mainstay-spec [--nodes N] [--writes N] [--epochs N] [--crashes N] [--changes N] [--disks N] [--copies N]
              [--reconnects] [--symmetry] [--states-max N] [--mutation NAME]
mainstay-spec --list";

struct Options {
    bounds: Bounds,
    symmetry: bool,
    states_max: Option<usize>,
    mutation: Option<Mutation>,
    list: bool,
}

fn options() -> Result<Options, String> {
    let bounds = Bounds {
        nodes: 2,
        writes: 2,
        epochs: 3,
        crashes: 1,
        changes: 2,
        disks: 0,
        copies: 0,
        reconnects: false,
    };
    let mut options = Options { bounds, symmetry: false, states_max: None, mutation: None, list: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let bounds = &mut options.bounds;
        let field = match word.as_str() {
            "--nodes" => &mut bounds.nodes,
            "--writes" => &mut bounds.writes,
            "--epochs" => &mut bounds.epochs,
            "--crashes" => &mut bounds.crashes,
            "--changes" => &mut bounds.changes,
            "--disks" => &mut bounds.disks,
            "--copies" => &mut bounds.copies,
            "--reconnects" => {
                bounds.reconnects = true;
                continue;
            }
            "--symmetry" => {
                options.symmetry = true;
                continue;
            }
            "--list" => {
                options.list = true;
                continue;
            }
            "--states-max" => {
                let value = words.next().and_then(|value| value.parse().ok());
                options.states_max = Some(value.ok_or("--states-max needs a number")?);
                continue;
            }
            "--mutation" => {
                let name = words.next().ok_or("--mutation needs a name")?;
                let info = Mutation::by_name(&name).ok_or(format!("no mutation {name}; see --list"))?;
                options.mutation = Some(info.mutation);
                continue;
            }
            _ => return Err(format!("unknown option {word}\n{USAGE}")),
        };
        *field = words.next().and_then(|value| value.parse().ok()).ok_or(format!("{word} needs a number"))?;
    }
    options.bounds.validate()?;
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if options.list {
        for info in MUTATIONS {
            println!("{:24} {:4} {}", info.name, info.rule, info.what.trim());
        }
        return ExitCode::SUCCESS;
    }
    let nodes = options.bounds.nodes;
    if let Some(mutation) = options.mutation {
        let info = mutation.info();
        println!("Without {}: {}", info.rule, info.what.trim());
        return match shortest(options.bounds, mutation) {
            Some(found) => {
                println!("{} steps.\n{}", found.steps.len(), prose::tell(nodes, &found));
                ExitCode::SUCCESS
            }
            None => {
                println!("Not noticed within {:?}.", options.bounds);
                ExitCode::FAILURE
            }
        };
    }
    println!("{:?}, symmetry {}", options.bounds, options.symmetry);
    let start = Instant::now();
    let spec = Spec::new(options.bounds, None, options.symmetry);
    let outcome = run(spec, options.states_max, Some(&mut std::io::stdout()));
    println!(
        "{} states generated, {} distinct, depth {}, {:.1} s",
        outcome.generated,
        outcome.distinct,
        outcome.depth,
        start.elapsed().as_secs_f64()
    );
    match outcome.found {
        Some(found) => {
            println!("VIOLATION in {} steps.\n{}", found.steps.len(), prose::tell(nodes, &found));
            ExitCode::FAILURE
        }
        None if options.states_max.is_some_and(|max| outcome.generated >= max) => {
            println!("No violation so far; not everything was explored.");
            ExitCode::SUCCESS
        }
        None => {
            println!("No violation; everything within the bounds was explored.");
            ExitCode::SUCCESS
        }
    }
}
