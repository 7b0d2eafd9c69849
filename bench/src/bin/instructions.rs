//! Counts the instructions of fixed pieces of work and compares them with the recorded counts. Run
//! by `make instructions`, a part of `make test`. Arguments: the program that does the work, the
//! file of counts, and `--record` to write the file anew.

use mainstay_bench::instructions::{self, Record, Verdict};
use mainstay_bench::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (record, words): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word == "--record");
    let [program, file] = &words[..] else {
        eprintln!("usage: instructions PROGRAM FILE [--record]");
        return ExitCode::from(2);
    };
    match run(Path::new(program), Path::new(file), !record.is_empty()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let source =
                std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
            eprintln!("instructions: {error}{source}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether no count has become worse.
fn run(program: &Path, file: &Path, anew: bool) -> Result<bool> {
    let text = std::fs::read_to_string(file).map_err(Error::system(format!("read {}", file.display())))?;
    let record = Record::parse(&text)?;
    let tools = instructions::tools();
    let judged = tools == record.tools;
    let (mut counts, mut worse, mut better) = (BTreeMap::new(), Vec::new(), Vec::new());
    for work in &record.work {
        let (count, recorded) = (instructions::count(program, work)?, record.counts[&work.case]);
        let percent = (count / recorded - 1.0) * 100.0;
        println!("{:<22} {count:>9.0} instructions, recorded {recorded:>9.0} ({percent:+.2} %)", work.case);
        match instructions::verdict(recorded, count) {
            Verdict::Same => {}
            Verdict::Better => better.push(work.case.clone()),
            Verdict::Worse => worse.push(work.case.clone()),
        }
        counts.insert(work.case.clone(), count);
    }
    if anew {
        let written = std::fs::write(file, record.rewritten(&text, &tools, &counts));
        written.map_err(Error::system(format!("write {}", file.display())))?;
        println!("recorded in {}", file.display());
    } else if !judged {
        println!("Not judged: recorded with {}, counted with {tools}.", record.tools);
    } else if !worse.is_empty() {
        println!(
            "{} cost more than {} % above the record. If that is meant, record it and say why: make instructions-record",
            worse.join(", "),
            instructions::TOLERANCE_PERCENT
        );
        return Ok(false);
    } else if !better.is_empty() {
        println!("{} got cheaper: make instructions-record keeps it so.", better.join(", "));
    }
    Ok(true)
}
