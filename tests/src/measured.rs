//! What a program that measures something in a lab of its own begins and ends with.

use crate::interrupt;
use crate::lab::Lab;
use anyhow::{Context, Result, bail};
use std::sync::Arc;

/// Without an argument so many rounds are measured.
const ROUNDS: u32 = 3;

/// Measures in a lab of this name, which is removed whatever happens.
///
/// # Errors
/// Those of `measure`, and when the lab cannot be removed.
pub fn in_lab(name: &str, measure: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let lab = Arc::new(Lab::new(name)?);
    interrupt::remove(vec![lab.clone()], &format!("mainstay lab --name {name} down"))?;
    let end = measure(&lab);
    interrupt::give_way();
    lab.down()?;
    end
}

/// The same so many times as the only argument of the program says.
///
/// # Errors
/// As above, and when the arguments are others.
pub fn in_rounds(name: &str, measure: impl FnOnce(&Lab, u32) -> Result<()>) -> Result<()> {
    let rounds = rounds(std::env::args().skip(1)).with_context(|| format!("usage: {name} [ROUNDS]"))?;
    in_lab(name, |lab| measure(lab, rounds))
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
