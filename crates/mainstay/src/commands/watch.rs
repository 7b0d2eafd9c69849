//! `--watch`: the same question again and again, and its answer when it has changed.
//!
//! Guarantees
//! - An answer that cannot be renewed is never shown as the present one: what failed stands above
//!   it, with its age.

use crate::cli::WatchArgs;
use crate::failure::{Code, Context, Outcome};
use crate::output::{self, Output, for_people};
use mainstay_cli::list::List;
use mainstay_cli::screen::Screen;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often the question is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Shows the answer to a question and returns it. With `--watch` it does not return, unless the
/// first question fails.
pub fn show<T: Serialize>(
    WatchArgs { watch }: WatchArgs,
    output: Output,
    ask: impl Fn() -> Outcome<T>,
    words: impl Fn(&T) -> String,
) -> Outcome<T> {
    let answer = ask()?;
    if !watch {
        output.result(&answer, words)?;
        return Ok(answer);
    }
    again(answer, output, ask, words)
}

/// Shows a list, in the form that the user wants. See [`show`].
pub fn list<T: Serialize>(
    WatchArgs { watch }: WatchArgs,
    output: Output,
    ask: impl Fn() -> Outcome<T>,
    list: impl Fn(&T) -> List,
) -> Outcome<T> {
    let answer = ask()?;
    if !watch {
        output.list(&answer, list)?;
        return Ok(answer);
    }
    again(answer, output, ask, |answer| list(answer).text(output.form, output::columns()))
}

/// Shows an answer, and each one that follows it.
fn again<T: Serialize>(
    answer: T,
    output: Output,
    ask: impl Fn() -> Outcome<T>,
    words: impl Fn(&T) -> String,
) -> Outcome<T> {
    let mut screen = Screen::new();
    let mut last = (text(&answer, output, &words)?, Instant::now());
    loop {
        screen.draw(&last.0);
        std::thread::sleep(EVERY);
        match ask() {
            Ok(answer) => last = (text(&answer, output, &words)?, Instant::now()),
            Err(failure) if output.json => {
                let json = serde_json::to_string(&failure.problem);
                screen.draw(&json.or_fail(Code::Output, || "write an error as JSON".into())?);
            }
            Err(failure) => {
                let old = old(&failure.to_string(), &last.0, last.1.elapsed());
                screen.draw(&for_people(&old, output::columns()));
            }
        }
    }
}

fn text<T: Serialize>(answer: &T, output: Output, words: impl Fn(&T) -> String) -> Outcome<String> {
    if output.json {
        return serde_json::to_string(answer).or_fail(Code::Output, || "write the answer as JSON".into());
    }
    let columns = output::columns().filter(|_| !output.form.is_for_programs());
    Ok(for_people(&words(answer), columns))
}

/// The last answer under the failure because of which it is old.
fn old(failure: &str, answer: &str, age: Duration) -> String {
    format!("{failure}\n\nThis is what it was {} s ago:\n{answer}", age.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_not_renewed_is_shown_with_its_age_under_the_failure() {
        let shown = old("error: no agent answers", "all is well", Duration::from_millis(3_900));
        assert_eq!(shown, "error: no agent answers\n\nThis is what it was 3 s ago:\nall is well");
    }

    #[test]
    fn an_answer_of_a_watch_is_one_line_of_json() {
        let json = Output { json: true, ..Output::new(false) };
        assert_eq!(text(&["a", "b"], json, |_| "words".into()).unwrap(), r#"["a","b"]"#);
        assert_eq!(text(&["a"], Output::new(false), |_| "words".into()).unwrap(), "words");
    }
}
