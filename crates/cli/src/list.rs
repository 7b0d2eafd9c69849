//! Lists in the form that the user wants: a table, or something for programs.
//!
//! A verb that lists something makes a [`List`] of its answer, and takes [`form_arg`]. All forms
//! are made here.

use crate::output::table_within;
use clap::builder::EnumValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, ValueEnum};
use mainstay_api::rest::size_words;

/// Id of the option.
const FORM: &str = "form";

/// Form of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Form {
    /// A table for people.
    #[default]
    Table,
    /// The table with more columns, where there are more.
    Wide,
    /// The answer of the API, as --json prints it.
    Json,
    /// All columns of `wide` with commas between them, and their names in the first line. Sizes are
    /// numbers of bytes.
    Csv,
    /// One name a line, for scripts.
    Name,
}

impl Form {
    /// Whether programs read the list, so that it is not folded and has no words around it.
    #[must_use]
    pub fn is_for_programs(self) -> bool {
        matches!(self, Self::Csv | Self::Name)
    }
}

/// The option of every verb that lists something.
#[must_use]
pub fn form_arg() -> Arg {
    Arg::new(FORM)
        .long("output")
        .short('o')
        .value_name("FORM")
        .value_parser(EnumValueParser::<Form>::new())
        .default_value("table")
        .help("Form of the list.")
}

/// The form that the command line names, if it does.
#[must_use]
pub fn named_form(matches: &ArgMatches) -> Option<Form> {
    if let Some((_, inner)) = matches.subcommand() {
        return named_form(inner);
    }
    let form = matches.try_get_one::<Form>(FORM).ok().flatten().copied()?;
    (matches.value_source(FORM) == Some(ValueSource::CommandLine)).then_some(form)
}

/// A cell of a list: words for people, and what programs get in their place if that is not the
/// same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    words: String,
    for_programs: Option<String>,
}

impl Cell {
    /// A cell whose value has one form for people and another one for programs.
    #[must_use]
    pub fn new(words: impl Into<String>, for_programs: impl Into<String>) -> Self {
        Self { words: words.into(), for_programs: Some(for_programs.into()) }
    }

    /// Byte counts: with a unit for people, and as whole numbers with spaces between them for
    /// programs.
    #[must_use]
    pub fn bytes(counts: &[u64]) -> Self {
        let joined = |text: fn(u64) -> String, between: &str| {
            counts.iter().map(|&bytes| text(bytes)).collect::<Vec<_>>().join(between)
        };
        Self::new(joined(size_words, " + "), joined(|bytes| bytes.to_string(), " "))
    }

    fn for_programs(&self) -> &str {
        self.for_programs.as_deref().unwrap_or(&self.words)
    }
}

impl From<String> for Cell {
    fn from(words: String) -> Self {
        Self { words, for_programs: None }
    }
}

/// Rows with the same columns. The first column is the name of what a row is about.
#[derive(Clone, Debug)]
pub struct List {
    head: &'static [&'static str],
    /// Columns that only the forms `wide` and `csv` have, after the others.
    wide: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
    /// Lines above and below a table.
    above: Vec<String>,
    below: Vec<String>,
    /// Words in the place of a table without rows.
    none: Option<String>,
}

impl List {
    /// `rows`: a cell for each column, those of `wide` last.
    #[must_use]
    pub fn new(
        head: &'static [&'static str],
        wide: &'static [&'static str],
        rows: impl IntoIterator<Item = Vec<impl Into<Cell>>>,
    ) -> Self {
        let rows = rows.into_iter().map(|row| row.into_iter().map(Into::into).collect()).collect();
        Self { head, wide, rows, above: Vec::new(), below: Vec::new(), none: None }
    }

    /// The same list, which says this if it is empty.
    #[must_use]
    pub fn or_say(mut self, none: &str) -> Self {
        self.none = Some(none.to_owned());
        self
    }

    /// The same list with one more line above the table.
    #[must_use]
    pub fn above(mut self, line: String) -> Self {
        self.above.push(line);
        self
    }

    /// The same list with one more line below the table.
    #[must_use]
    pub fn below(mut self, line: String) -> Self {
        self.below.push(line);
        self
    }

    /// Whether each row has a cell for each column.
    #[must_use]
    pub fn is_even(&self) -> bool {
        self.rows.iter().all(|row| row.len() == self.head.len() + self.wide.len())
    }

    /// The words around the table, which a form for programs does not have.
    #[must_use]
    pub fn notes(&self) -> String {
        [&self.above[..], &self.below[..]].concat().join("\n")
    }

    /// The list for a terminal with this number of columns, or for none. Empty if a form for
    /// programs has no line.
    #[must_use]
    pub fn text(&self, form: Form, columns: Option<usize>) -> String {
        match form {
            Form::Name => {
                lines(self.rows.iter().filter_map(|row| Some(row.first()?.for_programs().to_owned())))
            }
            Form::Csv => {
                let head =
                    self.head.iter().chain(self.wide).map(|name| name.to_lowercase().replace(' ', "_"));
                let head = csv(head);
                let rows = self.rows.iter().map(|row| csv(row.iter().map(Cell::for_programs)));
                lines([head].into_iter().chain(rows))
            }
            Form::Wide => self.table(&[self.head, self.wide].concat(), columns),
            Form::Table | Form::Json => self.table(self.head, columns),
        }
    }

    fn table(&self, head: &[&str], columns: Option<usize>) -> String {
        let cells = |row: &Vec<Cell>| row.iter().take(head.len()).map(|cell| cell.words.clone()).collect();
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        let table = match &self.none {
            Some(none) if rows.is_empty() => none.clone(),
            _ => table_within(head, &rows, columns),
        };
        lines(self.above.iter().cloned().chain([table]).chain(self.below.iter().cloned()))
    }
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

/// A line of values (RFC 4180).
fn csv(row: impl Iterator<Item = impl AsRef<str>>) -> String {
    let value = |cell: &str| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    row.map(|cell| value(cell.as_ref())).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    fn list(rows: &[[&str; 3]]) -> List {
        let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec());
        List::new(&["NAME", "LAST USED"], &["WHY"], rows)
    }

    #[test]
    fn a_list_has_the_same_rows_in_each_form() {
        let list = list(&[["n1", "never", "a \"b\", c"], ["n2", "1 h ago", ""]]);
        let of = |form| list.text(form, None);
        assert_eq!(of(Form::Table), "NAME  LAST USED\nn1    never\nn2    1 h ago");
        assert_eq!(of(Form::Wide), "NAME  LAST USED  WHY\nn1    never      a \"b\", c\nn2    1 h ago");
        assert_eq!(of(Form::Csv), "name,last_used,why\nn1,never,\"a \"\"b\"\", c\"\nn2,1 h ago,");
        assert_eq!(of(Form::Name), "n1\nn2");
        // Programs get whole lines, however narrow the terminal is.
        assert_eq!(list.text(Form::Csv, Some(4)), of(Form::Csv));
    }

    #[test]
    fn sizes_have_units_for_people_and_are_numbers_of_bytes_for_programs() {
        let sizes = [Cell::bytes(&[3 << 29]), Cell::bytes(&[1 << 40, 4096]), Cell::new("?", "")];
        let row: Vec<Cell> = [Cell::from("db".to_owned())].into_iter().chain(sizes).collect();
        let list = List::new(&["NAME", "FREE", "VOLUMES", "LEFT"], &[], [row]);
        let of = |form| list.text(form, None);
        assert_eq!(of(Form::Table), "NAME  FREE     VOLUMES        LEFT\ndb    1.5 GiB  1 TiB + 4 KiB  ?");
        assert_eq!(of(Form::Csv), "name,free,volumes,left\ndb,1610612736,1099511627776 4096,");
    }

    #[test]
    fn words_around_a_table_are_not_in_the_forms_for_programs() {
        let full = list(&[["n1", "never", ""]]).above("as of 3 s ago".into()).below("not asked: n3".into());
        assert_eq!(
            full.text(Form::Table, None),
            "as of 3 s ago\nNAME  LAST USED\nn1    never\nnot asked: n3"
        );
        assert_eq!(full.text(Form::Name, None), "n1");
        assert_eq!(full.notes(), "as of 3 s ago\nnot asked: n3");
        let empty = list(&[]).or_say("there are no tokens");
        assert_eq!(empty.text(Form::Table, None), "there are no tokens");
        assert_eq!(
            (empty.text(Form::Name, None), empty.text(Form::Csv, None)),
            (String::new(), "name,last_used,why".into())
        );
    }

    #[test]
    fn an_unknown_form_is_refused_with_the_list() {
        let command = || {
            Command::new("x")
                .subcommand(Command::new("list").arg(form_arg()))
                .subcommand(Command::new("show"))
        };
        let form = |words: &[&str]| {
            let words = ["x"].iter().chain(words);
            command()
                .try_get_matches_from(words)
                .map(|matches| named_form(&matches))
                .map_err(|error| error.to_string())
        };
        assert_eq!(form(&["list", "-o", "name"]), Ok(Some(Form::Name)));
        assert_eq!(form(&["list", "--output=wide"]), Ok(Some(Form::Wide)));
        assert_eq!((form(&["list"]), form(&["show"])), (Ok(None), Ok(None)));
        let refused = form(&["list", "-o", "yaml"]).unwrap_err();
        assert!(refused.contains("table, wide, json, csv, name"), "{refused}");
    }
}
