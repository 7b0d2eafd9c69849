//! `mainstay metrics`: what Prometheus would be told, in the terminal.

use crate::failure::Outcome;
use crate::output::Output;
use mainstay_client::Client;

/// With `--json` the page is one string.
pub fn run(client: &Client, output: Output) -> Outcome<u8> {
    let page = client.get_text("/metrics")?;
    output.result(&page, Clone::clone)?;
    Ok(0)
}
