//! The console: a page for people that asks the API (`ui/`, ADR 51).
//!
//! Guarantees
//! - Its files are parts of the program, hold no secret, and are the same for everybody. So they
//!   need no token, and nothing else is answered without one.
//! - A request for a file neither counts as a wrong token nor proves anything: its connection ends
//!   as that of any stranger does. A source that asks for many files is refused for a while.
//! - The page runs the program's own script alone, sends requests to its own server alone, and is
//!   shown in no other page.

use super::{Remote, Server};
use crate::http::Refused;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainstay_types::{Code, Problem};
use std::sync::Arc;
use std::time::Instant;

/// A file of the console, compressed by gzip.
struct File {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! file {
    ($path:literal, $name:literal, $kind:literal) => {
        File {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../ui/dist/", $name, ".gz")),
        }
    };
}

const FOLDER: &str = "/console/";
const FILES: [File; 4] = [
    file!("/console/", "index.html", "text/html; charset=utf-8"),
    file!("/console/console.js", "console.js", "text/javascript; charset=utf-8"),
    file!("/console/console.css", "console.css", "text/css; charset=utf-8"),
    file!("/console/icon.svg", "icon.svg", "image/svg+xml"),
];
/// Other paths under which a browser looks for something, and where it is.
const ELSEWHERE: [(&str, &str); 3] =
    [("/", FOLDER), ("/console", FOLDER), ("/favicon.ico", "/console/icon.svg")];

/// No script, style, picture or connection but the server's own, and no other page around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const HEADERS: [(header::HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    // A browser asks whether its copy is that of this program, so it never shows one of another.
    (header::CACHE_CONTROL, "no-cache"),
    (header::CONTENT_ENCODING, "gzip"),
];

/// Answers requests for files of the console, and passes on all others.
pub(super) async fn answer(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let elsewhere = ELSEWHERE.iter().find(|(from, _)| *from == path).map(|(_, to)| *to);
    if elsewhere.is_none() && !path.starts_with(FOLDER) {
        return next.run(request).await;
    }
    let Some(from) = request.extensions().get::<Remote>().map(|remote| remote.from) else {
        return next.run(request).await;
    };
    let now = Instant::now();
    if let Some(wait) = server.files.refused_for(from, now) {
        return super::bearer::too_many(
            from,
            wait,
            "requests for files of the console",
            "Close other windows of the console.",
        );
    }
    server.files.failed(from, now);
    let is_get = [Method::GET, Method::HEAD].contains(request.method());
    let mut response = match FILES.iter().find(|file| file.path == path) {
        _ if !is_get => refused(Code::NotFound, "a file of the console can only be read"),
        Some(file) => file.answer(request.headers()),
        None => match elsewhere {
            Some(to) => moved(to),
            None => refused(Code::NotFound, "the console has no such file"),
        },
    };
    // A body would have to be read to its end before the next request.
    if !request.body().is_end_stream() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn refused(code: Code, message: &str) -> Response {
    let remedy = "Open /console/ with a browser. For the API, send a token; see docs/http-api.md.";
    Refused::from(Problem::new(code, message, remedy)).into_response()
}

fn moved(to: &'static str) -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, to)]).into_response()
}

impl File {
    /// Mark of this content: another program has another one.
    fn tag(&self) -> String {
        format!("\"{:016x}\"", fnv(self.bytes))
    }

    /// The file, or word that the copy of the browser is the same.
    fn answer(&self, asked: &HeaderMap) -> Response {
        let tag = self.tag();
        let has = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        let is_same = has.is_some_and(|has| has.split(',').any(|one| one.trim() == tag));
        let status = if is_same { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let body = if is_same { Body::empty() } else { Body::from(self.bytes) };
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }
}

/// FNV-1a with 64 bits (Fowler, Noll and Vo): tells the contents of two builds apart.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_small_and_each_file_is_compressed() {
        let all: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(all < 400_000, "{all}");
        for file in &FILES {
            assert_eq!(file.bytes[..2], [0x1f, 0x8b], "{}", file.path);
        }
    }

    #[test]
    fn a_browser_gets_a_file_once_and_then_word_that_it_is_the_same() {
        let first = FILES[1].answer(&HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let mut asked = HeaderMap::new();
        asked.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(FILES[1].answer(&asked).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(FILES[2].answer(&asked).status(), StatusCode::OK);
    }

    #[test]
    fn the_policy_lets_in_no_foreign_script_and_no_inline_one() {
        assert!(POLICY.starts_with("default-src 'none'; script-src 'self';"));
        for loose in ["unsafe", "http:", "https:", "*", "data:"] {
            assert!(!POLICY.contains(loose), "{loose}");
        }
    }
}
