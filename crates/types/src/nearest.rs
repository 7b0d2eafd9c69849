//! Names that were probably meant by those that do not exist.

/// Number of letters that have to be changed to get from one name to the other.
#[must_use]
pub fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let next = (corner + usize::from(a != *b)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[other.len()]
}

/// The name that was probably meant by one that does not exist; `None` if all names are too far
/// from it.
pub fn nearest<N: AsRef<str>>(name: &str, names: impl IntoIterator<Item = N>) -> Option<String> {
    let near =
        names.into_iter().map(|known| (distance(name, known.as_ref()), known.as_ref().to_owned())).min()?;
    let letters = name.chars().count();
    (1..=2)
        .contains(&near.0)
        .then_some(near)
        .filter(|(changed, _)| *changed < letters)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_probably_meant_is_near_and_another_one() {
        let names = ["db", "shop", "files"];
        for (name, meant) in [
            ("dbb", Some("db")),
            ("sohp", Some("shop")),
            ("file", Some("files")),
            ("d", None),
            ("mail", None),
            ("xy", None),
        ] {
            assert_eq!(nearest(name, names).as_deref(), meant, "{name}");
        }
        assert_eq!(nearest("db", names), None, "it exists");
        assert_eq!(nearest("db", std::iter::empty::<&str>()), None);
    }
}
