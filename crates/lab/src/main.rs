//! `mainstay-lab`: a whole cluster on one machine, and loads for measuring storage.

use std::process::ExitCode;

fn main() -> ExitCode {
    mainstay_lab::main()
}
