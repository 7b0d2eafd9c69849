//! Writes that depend on each other, on several devices in turn. `order write FROM DEVICE…` writes
//! FROM to the front of the first device, the next number to the front of the second, and so on. It
//! makes each number durable and prints it before it begins the next.
//!
//! `order read DEVICE…` prints the number on each device.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

const BLOCK_BYTES: usize = 4096;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["write", from, devices @ ..] if !devices.is_empty() => {
            write(from.parse().context("FROM is a number")?, devices)
        }
        ["read", devices @ ..] if !devices.is_empty() => read(devices),
        _ => bail!("order write FROM DEVICE… | order read DEVICE…"),
    }
}

fn open(device: &str) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(device).with_context(|| device.to_owned())
}

fn write(from: u64, devices: &[&str]) -> Result<()> {
    let files = devices.iter().map(|device| open(device)).collect::<Result<Vec<_>>>()?;
    let mut out = std::io::stdout();
    for number in from.. {
        let file = &files[(number % files.len() as u64) as usize];
        let block = number.to_le_bytes().repeat(BLOCK_BYTES / 8);
        file.write_all_at(&block, 0).and_then(|()| file.sync_data()).context("writing")?;
        // One system call for each number, so that a printed number stays printed when this process
        // is killed.
        out.write_all(format!("{number}\n").as_bytes())?;
    }
    Ok(())
}

fn read(devices: &[&str]) -> Result<()> {
    for device in devices {
        let mut block = [0; BLOCK_BYTES];
        open(device)?.read_exact_at(&mut block, 0).with_context(|| (*device).to_owned())?;
        let (number, _) = block.split_first_chunk().context("a block is longer than a number")?;
        if block.chunks(8).any(|other| other != number) {
            bail!("the front of {device} is torn");
        }
        println!("{}", u64::from_le_bytes(*number));
    }
    Ok(())
}
