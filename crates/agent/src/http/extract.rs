//! Parts of a request, as handlers want them. A part that is wrong is refused in the form of every
//! other refusal.

use super::Refused;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use mainstay_types::{Code, Problem};
use serde::Serialize;
use serde::de::DeserializeOwned;

const REMEDY: &str =
    "See docs/http-api.md or `GET /openapi.json`: they name each route, parameter and field with its type.";

fn refuse(why: String) -> Refused {
    Refused::from(Problem::new(Code::BadRequest, why, REMEDY))
}

/// Named parts of the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0)).map_err(|rejection| refuse(rejection.body_text()))
    }
}

/// Parameters after the `?`.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|rejection| refuse(rejection.body_text()))
    }
}

/// Tag of the state that the sender has read, from the header `If-Match`; `None` without one.
pub struct IfMatch(pub Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let mut all = parts.headers.get_all(header::IF_MATCH).iter();
        let Some(value) = all.next() else { return Ok(Self(None)) };
        let quoted = value.to_str().ok().and_then(|text| text.trim().strip_prefix('"')?.strip_suffix('"'));
        match quoted.filter(|tag| !tag.contains('"') && all.next().is_none()) {
            Some(tag) => Ok(Self(Some(tag.to_owned()))),
            None => {
                Err(refuse("If-Match: this is not one tag as the header ETag of an answer has it".into()))
            }
        }
    }
}

/// An answer with its tag.
pub struct Tagged<T>(pub String, pub T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.1).into_response();
        if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", self.0)) {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }
}

/// The refusal of a change of what the sender has read in another state.
pub fn changed_meanwhile(what: &str) -> Problem {
    Problem::new(
        Code::PreconditionFailed,
        format!("{what} is not changed: it has been changed by another operator meanwhile"),
        "Read it again, make your change anew, and send it with the new ETag.",
    )
}

/// The JSON of a request. Refused by field: what is no JSON, what has the wrong type, what is
/// missing, and what the request does not have, because a misspelt field would be left out in
/// silence.
pub struct JsonRequest<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonRequest<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(refuse(format!("the content type is `{kind}`, and not `application/json`")));
        }
        let text = Bytes::from_request(request, state).await;
        let text = text.map_err(|rejection| refuse(rejection.body_text()))?;
        asked(&text).map(Self).map_err(refuse)
    }
}

/// A request from its JSON.
///
/// # Errors
/// The fault in words, with the path of the field.
fn asked<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(path.to_string().replace(".?", ""));
    let mut json = serde_json::Deserializer::from_slice(text);
    let asked = serde_path_to_error::deserialize(serde_ignored::Deserializer::new(&mut json, &mut note));
    let asked = asked.map_err(|error| match error.path().to_string() {
        path if path == "." => error.inner().to_string(),
        path => format!("{path}: {}", error.inner()),
    })?;
    json.end().map_err(|error| error.to_string())?;
    match unknown.first() {
        None => Ok(asked),
        Some(field) => Err(format!("{field}: the request has no such field")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::{ReplicaAdd, ResourceCreate};

    #[test]
    fn a_request_names_its_fields_or_is_refused_by_the_one_that_is_wrong() {
        let create = |more: &str| asked::<ResourceCreate>(format!("{{\"name\": \"db\"{more}}}").as_bytes());
        assert_eq!(create(", \"volumes\": [4096]").unwrap().volumes, [4096]);
        let refused = |more| create(more).unwrap_err();
        let why = refused(", \"volumes\": [4096], \"replcas\": [\"a\"]");
        assert_eq!(why, "replcas: the request has no such field");
        let why = refused(
            ", \"volumes\": [4096], \"from\": {\"resource\": \"a\", \"snapshot\": \"b\", \"node\": \"c\"}",
        );
        assert_eq!(why, "from.node: the request has no such field");
        let why = refused(", \"volumes\": [\"1GiB\"]");
        assert!(why.starts_with("volumes[0]: invalid type: string"), "{why}");
        let why = refused(", \"volumes\": [], \"volumes\": []");
        assert!(why.contains("duplicate field `volumes`"), "{why}");
        let why = asked::<ResourceCreate>(b"{}").err().unwrap();
        assert!(why.starts_with("missing field"), "{why}");
        let why = asked::<ReplicaAdd>(b"{\"node\": \"a\"} {}").err().unwrap();
        assert!(why.contains("trailing characters"), "{why}");
    }
}
