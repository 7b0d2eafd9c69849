//! Beginning and end of a program that measures something in a lab of its own.

use crate::interrupt;
use crate::lab::Lab;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::sync::Arc;

/// Rounds that are measured unless the argument gives another number.
const ROUNDS: u32 = 3;

/// Measures in a lab of this name, and removes the lab in any case, unless a failure is to be
/// looked at: with `MAINSTAY_BENCH_KEEP` the lab of a failure stays.
///
/// # Errors
/// Errors of `measure`, and when the lab cannot be removed.
pub fn in_lab(name: &str, measure: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let lab = Arc::new(Lab::new(name)?);
    interrupt::remove(vec![lab.clone()], &format!("mainstay lab --name {name} down"))?;
    let end = measure(&lab);
    interrupt::give_way();
    if end.is_err() && std::env::var_os("MAINSTAY_BENCH_KEEP").is_some() {
        eprintln!("the lab is left as it is: `mainstay lab --name {name} down` removes it");
        return end;
    }
    lab.down()?;
    end
}

/// Measures like [`in_lab`], as many rounds as the only argument of the program says.
///
/// # Errors
/// As above, and when the arguments are others.
pub fn in_rounds(name: &str, measure: impl FnOnce(&Lab, u32) -> Result<()>) -> Result<()> {
    let rounds = rounds(std::env::args().skip(1)).with_context(|| format!("usage: {name} [ROUNDS]"))?;
    in_lab(name, |lab| measure(lab, rounds))
}

/// Figures of a run of writes.
pub struct Writes {
    pub iops: f64,
    pub mean_us: f64,
    /// 99.9th percentile.
    pub most_us: f64,
    pub longest_ms: f64,
}

/// Writes blocks of 4 KiB at random places of a device for `seconds`, 32 at a time, with fio.
///
/// # Errors
/// When that fails, or when fio reports other figures than it should.
pub fn random_writes(lab: &Lab, node: &str, device: &str, seconds: u32, seed: u32) -> Result<Writes> {
    let (file, seed) = (format!("--filename={device}"), format!("--randseed={seed}"));
    let runtime = format!("--runtime={seconds}");
    let job = ["fio", "--name=write", &file, "--rw=randwrite", "--bs=4k", "--direct=1", &seed, &runtime];
    let more = ["--time_based", "--ioengine=libaio", "--iodepth=32", "--output-format=json"];
    let said = lab.exec(node, &[&job[..], &more].concat())?;
    let said: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let number = |path: &str| {
        let found = said.pointer(&format!("/jobs/0/write/{path}")).and_then(Value::as_f64);
        found.with_context(|| format!("fio does not tell {path}"))
    };
    let us = |path: &str| number(path).map(|ns| ns / 1000.0);
    Ok(Writes {
        iops: number("iops")?,
        mean_us: us("clat_ns/mean")?,
        most_us: us("clat_ns/percentile/99.900000")?,
        longest_ms: us("clat_ns/max")? / 1000.0,
    })
}

fn rounds(words: impl IntoIterator<Item = String>) -> Result<u32> {
    let mut words = words.into_iter();
    let rounds = match words.next() {
        None => ROUNDS,
        Some(word) => word.parse().with_context(|| format!("`{word}` is no number of rounds"))?,
    };
    if let Some(more) = words.next() {
        bail!("`{more}` is one argument too many");
    }
    if rounds == 0 {
        bail!("no rounds measure nothing");
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    #[test]
    fn rounds_are_a_number() {
        let of = |words: &[&str]| super::rounds(words.iter().map(|word| (*word).to_owned())).ok();
        assert_eq!([of(&[]), of(&["5"])], [Some(3), Some(5)]);
        assert_eq!([of(&["0"]), of(&["many"]), of(&["1", "2"])], [None; 3]);
    }
}
