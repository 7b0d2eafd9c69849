//! Lists, a page at a time (RFC 8288).
//!
//! Guarantees
//! - All pages together have each entry once if the list does not change. An entry that comes,
//!   changes or goes between two pages lets no other one be left out or shown twice: a page begins
//!   after an entry, and not after a number of entries.
//! - A cursor is of one list, and is refused by every other one.
//! - A request without `limit` and `after` gets the whole list.

use super::{Refused, blocking};
use axum::Json;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use mainstay_types::{Code, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The part of a list that a request wants.
#[derive(Deserialize, Default, Debug)]
pub struct Paging {
    #[serde(default)]
    pub limit: Option<usize>,
    #[serde(default)]
    pub after: Option<String>,
}

/// An answer, and what the query of the next page has as `after`, if there is a next page.
pub struct Paged<T> {
    body: T,
    next: Option<String>,
}

impl<T> Paged<T> {
    /// `uri`: that of the request.
    pub fn new(body: T, uri: &Uri, after: Option<String>) -> Self {
        Self { body, next: after.map(|after| next(uri, &after)) }
    }
}

impl<T: Serialize> IntoResponse for Paged<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.body).into_response();
        let link = self.next.and_then(|next| HeaderValue::from_str(&format!("<{next}>; rel=\"next\"")).ok());
        if let Some(link) = link {
            response.headers_mut().insert(header::LINK, link);
        }
        response
    }
}

/// Path and query of the next page: those of this one with another `after`.
fn next(uri: &Uri, after: &str) -> String {
    let others = uri.query().unwrap_or_default().split('&');
    let others = others.filter(|pair| !pair.is_empty() && pair.split('=').next() != Some("after"));
    let pairs: Vec<&str> = others.collect();
    let kept = if pairs.is_empty() { String::new() } else { pairs.join("&") + "&" };
    format!("{}?{kept}after={after}", uri.path())
}

/// A wanted number of entries.
///
/// # Errors
/// When it is zero.
pub fn limit(limit: Option<usize>) -> Result<Option<usize>, Problem> {
    match limit {
        Some(0) => Err(Problem::new(
            Code::BadRequest,
            "limit: a page has at least one entry",
            "Pass a `limit` of 1 or more, or none for all entries.",
        )),
        limit => Ok(limit),
    }
}

/// Refuses the newest entries (`lines`) of a page of the oldest ones (`limit`).
///
/// # Errors
/// When the request wants both.
pub fn one_order(lines: Option<usize>, paged: bool) -> Result<(), Problem> {
    if lines.is_none() || !paged {
        return Ok(());
    }
    let remedy = "Pass `lines` for the newest entries, or `limit` for the pages from the oldest entry on.";
    Err(Problem::new(Code::BadRequest, "lines: `limit` or `after` wants another part of the list", remedy))
}

/// Lines and events of an answer to a request that names no number.
pub const LINES: usize = 100;

/// The part of a history that a request wants.
pub enum Part {
    /// The newest entries, at most this many.
    Newest(usize),
    /// A page of those from the oldest one on.
    Page(Paging),
}

/// # Errors
/// When the request wants both.
pub fn part(lines: Option<usize>, limit: Option<usize>, after: Option<String>) -> Result<Part, Problem> {
    let is_page = limit.is_some() || after.is_some();
    one_order(lines, is_page)?;
    let lines = lines.unwrap_or(LINES);
    Ok(if is_page { Part::Page(Paging { limit, after }) } else { Part::Newest(lines) })
}

impl Part {
    /// This part of the entries, and the cursor of the next page. See [`page`].
    pub fn of<T, K: Ord + Serialize + DeserializeOwned>(
        &self,
        list: &str,
        mut all: Vec<T>,
        key: impl Fn(&T) -> K,
    ) -> Result<(Vec<T>, Option<String>), Problem> {
        match self {
            Self::Page(paging) => page(list, paging, key, || Ok(all)),
            Self::Newest(lines) => {
                all.drain(..all.len().saturating_sub(*lines));
                Ok((all, None))
            }
        }
    }
}

/// A cursor: JSON of the list and of the key of the last entry, in hexadecimal digits.
fn cursor<K: Serialize>(list: &str, key: &K) -> String {
    let json = serde_json::to_vec(&(list, key)).unwrap_or_default();
    json.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key that a cursor of this list has.
fn key_of<K: DeserializeOwned>(list: &str, cursor: &str) -> Option<K> {
    let digits: Vec<u8> =
        cursor.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let json: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    let (of, key): (String, K) = serde_json::from_slice(&json).ok()?;
    (of == list && rest.is_empty()).then_some(key)
}

/// The wanted entries of a list, and the cursor of the next page. `list`: path of the list. `all`
/// gives the entries in the order of their keys.
///
/// # Errors
/// For a cursor that is not of this list, and what `all` says.
pub fn page<T, K: Ord + Serialize + DeserializeOwned>(
    list: &str,
    paging: &Paging,
    key: impl Fn(&T) -> K,
    all: impl FnOnce() -> Result<Vec<T>, Problem>,
) -> Result<(Vec<T>, Option<String>), Problem> {
    let limit = limit(paging.limit)?.unwrap_or(usize::MAX);
    let after: Option<K> = match &paging.after {
        None => None,
        Some(cursor) => Some(key_of(list, cursor).ok_or_else(|| bad_cursor(list))?),
    };
    let mut entries = all()?;
    if let Some(after) = after {
        entries.retain(|entry| key(entry) > after);
    }
    let has_more = entries.len() > limit;
    entries.truncate(limit);
    let last = entries.last().filter(|_| has_more).map(|last| cursor(list, &key(last)));
    Ok((entries, last))
}

fn bad_cursor(list: &str) -> Problem {
    Problem::new(
        Code::BadCursor,
        format!("after: this is no place in the list {list}"),
        "Begin again without `after`, and follow the header `Link` of each answer unchanged.",
    )
}

/// The answer of a route that lists everything of one kind.
pub async fn listed<T, K>(
    uri: Uri,
    paging: Paging,
    key: impl Fn(&T) -> K + Send + 'static,
    all: impl FnOnce() -> Result<Vec<T>, Problem> + Send + 'static,
) -> Result<Paged<Vec<T>>, Refused>
where
    T: Send + 'static,
    K: Ord + Serialize + DeserializeOwned,
{
    let path = uri.path().to_owned();
    let Json((entries, after)) = blocking(move || page(&path, &paging, key, all)).await?;
    Ok(Paged::new(entries, &uri, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn page_of(all: &[&str], limit: usize, after: Option<String>) -> (Vec<String>, Option<String>) {
        let paging = Paging { limit: Some(limit), after };
        page("/v1/services", &paging, |name: &String| name.clone(), || Ok(names(all))).unwrap()
    }

    #[test]
    fn pages_have_each_entry_once_while_others_come_and_go() {
        let (first, after) = page_of(&["b", "d", "f", "h"], 2, None);
        assert_eq!(first, ["b", "d"]);
        // One comes before the place, one after it, and the one at the place goes.
        let (second, after) = page_of(&["a", "b", "e", "f", "h"], 2, after);
        assert_eq!(second, ["e", "f"]);
        let (third, after) = page_of(&["a", "b", "e", "f", "h"], 2, after);
        assert_eq!((third, after), (names(&["h"]), None));
        // No page is empty because the one before it was full.
        assert_eq!(page_of(&["b", "d"], 2, None), (names(&["b", "d"]), None));
        let whole =
            page("/v1/services", &Paging::default(), |name: &String| name.clone(), || Ok(names(&["b", "d"])));
        assert_eq!(whole, Ok((names(&["b", "d"]), None)));
    }

    #[test]
    fn a_cursor_that_is_not_of_the_list_is_refused() {
        let good = cursor("/v1/services", &"db");
        let ask = |list: &str, after: &str| {
            let paging = Paging { limit: None, after: Some(after.to_owned()) };
            let all = || Ok(names(&["db", "web"]));
            page(list, &paging, |name: &String| name.clone(), all)
        };
        assert_eq!(ask("/v1/services", &good), Ok((names(&["web"]), None)));
        let number = cursor("/v1/services", &7);
        for (list, after) in [
            ("/v1/resources", good.as_str()),
            ("/v1/services", &number),
            ("/v1/services", &good[1..]),
            ("/v1/services", &good[2..]),
            ("/v1/services", &format!("{good}0")),
            ("/v1/services", "db"),
            ("/v1/services", "\u{e4}\u{e4}"),
            ("/v1/services", ""),
        ] {
            let refusal = ask(list, after).unwrap_err();
            assert_eq!(refusal.code, Code::BadCursor, "{list} {after}");
            assert!(refusal.remedy.contains("without `after`"), "{refusal:#}");
        }
        assert_eq!(limit(Some(0)).unwrap_err().code, Code::BadRequest);
    }

    #[test]
    fn the_next_page_keeps_the_other_parameters() {
        for (uri, wanted) in [
            ("/v1/services?limit=2", "/v1/services?limit=2&after=ff"),
            ("/v1/history?after=00&name=db&limit=1", "/v1/history?name=db&limit=1&after=ff"),
            ("/v1/services", "/v1/services?after=ff"),
        ] {
            assert_eq!(next(&uri.parse().unwrap(), "ff"), wanted);
        }
        let uri = "/v1/services?limit=1".parse().unwrap();
        let response = Paged::new((), &uri, Some("ff".into())).into_response();
        assert_eq!(response.headers()[header::LINK], "</v1/services?limit=1&after=ff>; rel=\"next\"");
        assert!(Paged::new((), &uri, None).into_response().headers().get(header::LINK).is_none());
    }
}
