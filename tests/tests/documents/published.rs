//! The description of the API against the one that was published last. A client that was written
//! for the published one must work with this one.
//!
//! Guarantees
//! - A change that breaks such a client is found and told by its place, as long as both have the
//!   same major version: the `version` of the description.
//! - Additions are allowed: routes, methods, statuses, fields of answers, values of enumerations in
//!   answers, and fields and parameters that a request may leave out. Clients pass over what they
//!   do not know.
//!
//! CONTRIBUTING.md says what to do with a break that is meant.

use super::{openapi, read, root};
use mainstay_types::Access;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const PUBLISHED: &str = "docs/openapi-published.json";
const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// The direction of a value. A client must understand every answer, and the agent every request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Way {
    Answer,
    Request,
}

/// A comparison of two descriptions.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    /// Pairs of named schemas that were compared. A schema may contain itself.
    seen: BTreeSet<(Way, &'a str, &'a str)>,
    breaks: Vec<String>,
}

/// Everything in `new` that breaks a client of `old`, each with its place.
fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut comparison = Comparison { old, new, seen: BTreeSet::new(), breaks: Vec::new() };
    for (path, operations) in fields(&old["paths"]) {
        comparison.path(path, operations, &new["paths"][path]);
    }
    comparison.breaks
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn words(value: &Value) -> BTreeSet<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The value that a reference leads to, or the value itself.
fn resolved<'a>(all: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => {
            all.pointer(&reference[1..]).unwrap_or_else(|| panic!("{reference} leads nowhere"))
        }
        None => value,
    }
}

/// The rank of a right. Each right contains those before it.
fn rank(operation: &Value) -> Option<usize> {
    let right = operation["x-mainstay-right"].as_str()?;
    Access::ALL.iter().position(|access| access.word() == right)
}

/// The kinds of values that a schema allows, each with a name that tells it from the others.
fn kinds<'a>(all: &'a Value, schema: &'a Value) -> BTreeMap<String, &'a Value> {
    let schema = resolved(all, schema);
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().flat_map(|one| kinds(all, one)).collect();
    }
    if let Some(types) = schema["type"].as_array() {
        return types.iter().filter_map(Value::as_str).map(|kind| (kind.to_owned(), schema)).collect();
    }
    let tag = fields(&schema["properties"]).find_map(|(name, one)| Some((name, one["const"].as_str()?)));
    let name = match (tag, schema["type"].as_str()) {
        (Some((name, value)), _) => format!("object with {name}={value}"),
        (None, Some(kind)) => kind.to_owned(),
        (None, None) => "any value".to_owned(),
    };
    BTreeMap::from([(name, schema)])
}

impl<'a> Comparison<'a> {
    fn tell(&mut self, place: &str, what: &str) {
        self.breaks.push(format!("{place}: {what}"));
    }

    fn path(&mut self, path: &str, old: &'a Value, new: &'a Value) {
        if new.is_null() {
            return self.tell(path, "the path is gone");
        }
        for method in METHODS.into_iter().filter(|method| !old[method].is_null()) {
            let place = format!("{} {path}", method.to_uppercase());
            if new[method].is_null() {
                self.tell(&place, "the method is gone");
            } else {
                self.operation(&place, &old[method], &new[method]);
            }
        }
    }

    fn operation(&mut self, place: &str, old: &'a Value, new: &'a Value) {
        if rank(new) > rank(old) {
            let right = |operation: &Value| operation["x-mainstay-right"].as_str().map(str::to_owned);
            let (before, now) = (right(old).unwrap_or_default(), right(new).unwrap_or_default());
            self.tell(place, &format!("the route needs the right `{now}` now, and `{before}` was enough"));
        }
        self.parameters(place, &old["parameters"], &new["parameters"]);
        self.body(place, &old["requestBody"], &new["requestBody"]);
        for (status, old_answer) in fields(&old["responses"]) {
            let place = format!("{place}, answer {status}");
            if new["responses"][status].is_null() {
                self.tell(&place, "the status is gone");
                continue;
            }
            let old_answer = resolved(self.old, old_answer);
            let new_answer = resolved(self.new, &new["responses"][status]);
            for (name, _) in fields(&old_answer["headers"]) {
                if new_answer["headers"][name].is_null() {
                    self.tell(&place, &format!("the header {name} is gone"));
                }
            }
            self.content(&place, &old_answer["content"], &new_answer["content"], Way::Answer);
        }
    }

    fn parameters(&mut self, place: &str, old: &'a Value, new: &'a Value) {
        let by_name = |all: &'a Value| -> BTreeMap<String, &'a Value> {
            let named = |one: &Value| {
                let word = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
                format!("{} ({})", word("name"), word("in"))
            };
            all.as_array().into_iter().flatten().map(|one| (named(one), one)).collect()
        };
        let (old, new) = (by_name(old), by_name(new));
        for (name, before) in &old {
            let place = format!("{place}, parameter {name}");
            match new.get(name) {
                None => self.tell(&place, "the parameter is gone, and sending it is refused"),
                Some(now) => self.schema(&place, &before["schema"], &now["schema"], Way::Request),
            }
        }
        for (name, now) in &new {
            let was_required = old.get(name).is_some_and(|before| before["required"] == true);
            if now["required"] == true && !was_required {
                self.tell(&format!("{place}, parameter {name}"), "the parameter is required now");
            }
        }
    }

    fn body(&mut self, place: &str, old: &'a Value, new: &'a Value) {
        let place = format!("{place}, body");
        match (old.is_null(), new.is_null()) {
            (true, true) => {}
            (true, false) if new["required"] == true => self.tell(&place, "a body is required now"),
            (true, false) => {}
            (false, true) => self.tell(&place, "the request has no body any more"),
            (false, false) => {
                if new["required"] == true && old["required"] != true {
                    self.tell(&place, "a body is required now");
                }
                self.content(&place, &old["content"], &new["content"], Way::Request);
            }
        }
    }

    fn content(&mut self, place: &str, old: &'a Value, new: &'a Value, way: Way) {
        for (kind, before) in fields(old) {
            match new.get(kind) {
                None => self.tell(place, &format!("the content type {kind} is gone")),
                Some(now) => self.schema(place, &before["schema"], &now["schema"], way),
            }
        }
    }

    fn schema(&mut self, place: &str, old: &'a Value, new: &'a Value, way: Way) {
        if let (Some(before), Some(now)) = (old["$ref"].as_str(), new["$ref"].as_str())
            && !self.seen.insert((way, before, now))
        {
            return;
        }
        let (before, now) = (kinds(self.old, old), kinds(self.new, new));
        // The side that writes a value must not write more than the other side reads.
        let (written, read, what) = match way {
            Way::Answer => (&now, &before, "is a kind of value that the answer did not have"),
            Way::Request => (&before, &now, "is a kind of value that is no longer taken"),
        };
        for kind in written.keys().filter(|kind| !read.contains_key(*kind)) {
            self.tell(place, &format!("{kind} {what}"));
        }
        for (kind, before) in before.iter().filter(|(kind, _)| *kind != "null") {
            match now.get(kind) {
                Some(now) => self.kind(place, before, now, way),
                // A tag is a value of an enumeration: a client may wait for it.
                None if way == Way::Answer && kind.contains('=') => {
                    self.tell(place, &format!("{kind} is gone"))
                }
                None => {}
            }
        }
    }

    /// Compares two schemas of one kind of value.
    fn kind(&mut self, place: &str, old: &'a Value, new: &'a Value, way: Way) {
        if old["format"] != new["format"] {
            let (before, now) = (&old["format"], &new["format"]);
            self.tell(place, &format!("the format {before} has become {now}"));
        }
        self.values(place, old, new, way);
        self.bounds(place, old, new, way);
        if !old["items"].is_null() {
            self.schema(&format!("{place}[]"), &old["items"], &new["items"], way);
        }
        let parts = |schema: &'a Value| schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
        if parts(old).len() != parts(new).len() {
            self.tell(place, "the list has another number of parts");
        }
        for (index, (before, now)) in parts(old).iter().zip(parts(new)).enumerate() {
            self.schema(&format!("{place}[{index}]"), before, now, way);
        }
        if old["additionalProperties"].is_object() {
            if new["additionalProperties"].is_object() {
                let place = format!("{place}{{}}");
                self.schema(&place, &old["additionalProperties"], &new["additionalProperties"], way);
            } else {
                self.tell(place, "the object has no names of one's own any more");
            }
        }
        self.object(place, old, new, way);
    }

    fn values(&mut self, place: &str, old: &Value, new: &Value, way: Way) {
        let gone = |value: &&str| !words(&new["enum"]).contains(*value);
        if !old["enum"].is_null() && !new["enum"].is_null() {
            for value in words(&old["enum"]).iter().filter(|value| gone(value)) {
                self.tell(place, &format!("the value `{value}` is gone"));
            }
        } else if way == Way::Request && !new["enum"].is_null() {
            self.tell(place, "only some values are taken now");
        } else if way == Way::Answer && !old["enum"].is_null() {
            self.tell(place, "the answer has any text, and not one of known values");
        }
    }

    fn bounds(&mut self, place: &str, old: &Value, new: &Value, way: Way) {
        if way == Way::Answer {
            return;
        }
        let number = |schema: &Value, name: &str| schema[name].as_f64();
        for (name, is_upper) in
            [("minimum", false), ("maximum", true), ("minItems", false), ("maxItems", true)]
        {
            let Some(now) = number(new, name) else { continue };
            let is_narrower =
                number(old, name).is_none_or(|before| if is_upper { now < before } else { now > before });
            if is_narrower {
                self.tell(place, &format!("fewer values are taken: {name} is {now} now"));
            }
        }
    }

    fn object(&mut self, place: &str, old: &'a Value, new: &'a Value, way: Way) {
        let (before, now) = (words(&old["required"]), words(&new["required"]));
        for (name, schema) in fields(&old["properties"]) {
            let place = format!("{place}, field {name}");
            match new["properties"].get(name) {
                None => self.tell(&place, "the field is gone"),
                Some(now) => self.schema(&place, schema, now, way),
            }
        }
        for (name, _) in fields(&new["properties"]) {
            let (was_required, is_required) = (before.contains(name.as_str()), now.contains(name.as_str()));
            let was_there = old["properties"].get(name).is_some();
            let place = format!("{place}, field {name}");
            if way == Way::Request && is_required && !was_required {
                self.tell(&place, "the field is required now");
            } else if way == Way::Answer && was_there && was_required && !is_required {
                self.tell(&place, "the answer may lack the field now");
            }
        }
    }
}

/// The major version of a description.
fn major(description: &Value) -> u64 {
    let version = description["info"]["version"].as_str().unwrap_or_default();
    version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or_else(|| panic!("{version:?}"))
}

/// Says what is wrong between the two descriptions, in words for a contributor.
fn verdict(published: &Value, present: &Value) -> Result<(), String> {
    let (before, now) = (major(published), major(present));
    if now > before {
        return Ok(());
    }
    if now < before {
        return Err(format!("the API has the version {now}, and {before} is published"));
    }
    let found = breaks(published, present);
    if found.is_empty() {
        return Ok(());
    }
    let mut text = format!("{} changes break clients of the published API ({PUBLISHED}):\n", found.len());
    for one in &found {
        writeln!(text, "  {one}").expect("a text takes more");
    }
    text += "Keep what clients use: add a field, a parameter or a route beside it. If the break is meant, raise the \
             major version: CONTRIBUTING.md, *When the API changes*.";
    Err(text)
}

fn kept(path: &str) -> Value {
    serde_json::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `MAINSTAY_PUBLISH=1` makes the present description the published one, unless it breaks clients.
#[test]
fn the_api_does_not_break_clients_of_the_published_one() {
    let present = openapi::description();
    let judged = verdict(&kept(PUBLISHED), &present);
    assert!(judged.is_ok(), "{}", judged.unwrap_err());
    if std::env::var_os("MAINSTAY_PUBLISH").is_some() {
        let text = serde_json::to_string_pretty(&present).expect("JSON");
        std::fs::write(root().join(PUBLISHED), text + "\n").expect("a writable file");
    }
}

const RESOURCE: &str = "/paths/~1v1~1resources~1{name}/get";
const RESIZE: &str = "/paths/~1v1~1resources~1{name}~1volumes~1{volume}~1resize/post";

/// A change of a description.
type Change = fn(&mut Value);

fn at<'a>(all: &'a mut Value, place: &str) -> &'a mut Map<String, Value> {
    all.pointer_mut(place).and_then(Value::as_object_mut).unwrap_or_else(|| panic!("{place}"))
}

fn schema<'a>(all: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    at(all, &format!("/components/schemas/{name}"))
}

fn property<'a>(all: &'a mut Value, name: &str, field: &str) -> &'a mut Map<String, Value> {
    at(all, &format!("/components/schemas/{name}/properties/{field}"))
}

fn drop_word(all: &mut Value, place: &str, word: &str) {
    let list = all.pointer_mut(place).and_then(Value::as_array_mut).unwrap_or_else(|| panic!("{place}"));
    let before = list.len();
    list.retain(|one| one != word);
    assert!(list.len() < before, "{place} has no {word}");
}

fn add_word(all: &mut Value, place: &str, word: &str) {
    all.pointer_mut(place)
        .and_then(Value::as_array_mut)
        .unwrap_or_else(|| panic!("{place}"))
        .push(word.into());
}

#[test]
fn every_kind_of_break_is_told_with_its_place() {
    let cases: &[(&str, Change)] = &[
        ("/livez: the path is gone", |all| {
            at(all, "/paths").remove("/livez");
        }),
        ("DELETE /v1/resources/{name}: the method is gone", |all| {
            at(all, "/paths/~1v1~1resources~1{name}").remove("delete");
        }),
        ("GET /v1/resources/{name}, answer 404: the status is gone", |all| {
            at(all, &format!("{RESOURCE}/responses")).remove("404");
        }),
        ("GET /v1/resources/{name}: the route needs the right `operate` now, and `read` was enough", |all| {
            at(all, RESOURCE).insert("x-mainstay-right".into(), "operate".into());
        }),
        ("GET /v1/resources/{name}/settings, answer 200: the header ETag is gone", |all| {
            at(all, "/paths/~1v1~1resources~1{name}~1settings/get/responses/200").remove("headers");
        }),
        ("GET /metrics, answer 200: the content type text/plain is gone", |all| {
            let content = at(all, "/paths/~1metrics/get/responses/200/content");
            let text = content.remove("text/plain").unwrap();
            content.insert("text/html".into(), text);
        }),
        (
            "GET /v1/events, parameter after (query): the parameter is gone, and sending it is refused",
            |all| {
                let list = all.pointer_mut("/paths/~1v1~1events/get/parameters").unwrap();
                list.as_array_mut().unwrap().retain(|one| one["name"] != "after");
            },
        ),
        ("GET /v1/events, parameter after (query): the parameter is required now", |all| {
            at(all, "/paths/~1v1~1events/get/parameters/0").insert("required".into(), true.into());
        }),
        (
            "GET /v1/events, parameter after (query): integer is a kind of value that is no longer taken",
            |all| {
                at(all, "/paths/~1v1~1events/get/parameters/0")
                    .insert("schema".into(), json!({ "type": "string" }));
            },
        ),
        ("GET /v1/events, parameter after (query): fewer values are taken: minimum is 1 now", |all| {
            at(all, "/paths/~1v1~1events/get/parameters/0/schema").insert("minimum".into(), 1.into());
        }),
        ("POST /v1/cluster/rotation, body: a body is required now", |all| {
            let body = all.pointer("/paths/~1v1~1tokens/post/requestBody").unwrap().clone();
            at(all, "/paths/~1v1~1cluster~1rotation/post").insert("requestBody".into(), body);
        }),
        ("volumes/{volume}/resize, body: the request has no body any more", |all| {
            at(all, RESIZE).remove("requestBody");
        }),
        ("POST /v1/cluster/tokens, body, field life_ms: the field is gone", |all| {
            at(all, "/components/schemas/TokenCreate/properties").remove("life_ms");
        }),
        ("POST /v1/cluster/tokens, body, field life_ms: the field is required now", |all| {
            add_word(all, "/components/schemas/TokenCreate/required", "life_ms");
        }),
        ("POST /v1/cluster/tokens, body, field why: the field is required now", |all| {
            at(all, "/components/schemas/TokenCreate/properties")
                .insert("why".into(), json!({ "type": "string" }));
            add_word(all, "/components/schemas/TokenCreate/required", "why");
        }),
        ("POST /v1/tokens, body, field access: the value `metrics` is gone", |all| {
            drop_word(all, "/components/schemas/Access/enum", "metrics");
        }),
        ("POST /v1/tokens, body, field name: only some values are taken now", |all| {
            property(all, "ApiTokenCreate", "name").insert("enum".into(), json!(["a"]));
        }),
        ("POST /v1/tokens, body, field life_ms: the format \"uint64\" has become \"uint32\"", |all| {
            property(all, "ApiTokenCreate", "life_ms").insert("format".into(), "uint32".into());
        }),
        (", field message: the field is gone", |all| {
            at(all, "/components/schemas/Accepted/properties").remove("message");
        }),
        (", field message: the answer may lack the field now", |all| {
            drop_word(all, "/components/schemas/Accepted/required", "message");
        }),
        (", field message: null is a kind of value that the answer did not have", |all| {
            property(all, "Accepted", "message").insert("type".into(), json!(["string", "null"]));
        }),
        (", field revision: string is a kind of value that the answer did not have", |all| {
            property(all, "Accepted", "revision").insert("type".into(), "string".into());
        }),
        (", field status: the value `open` is gone", |all| {
            drop_word(all, "/components/schemas/TokenStatus/enum", "open");
        }),
        (", field status: the answer has any text, and not one of known values", |all| {
            schema(all, "TokenStatus").remove("enum");
        }),
        (", field waits_for[]: integer is a kind of value that the answer did not have", |all| {
            property(all, "RotationView", "waits_for").insert("items".into(), json!({ "type": "integer" }));
        }),
        ("{}: null is a kind of value that is no longer taken", |all| {
            let reference = json!({ "$ref": "#/components/schemas/SettingValue" });
            schema(all, "SettingsChange").insert("additionalProperties".into(), reference);
        }),
    ];
    let published = kept(PUBLISHED);
    let mut missed = Vec::new();
    for (told, change) in cases {
        let mut present = published.clone();
        change(&mut present);
        let found = breaks(&published, &present);
        if !found.iter().any(|one| one.contains(told)) {
            missed.push(format!("{told}\n  is not in {found:#?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn additions_break_no_client() {
    let additions: &[Change] = &[
        |all| {
            let route = all.pointer("/paths/~1livez").unwrap().clone();
            at(all, "/paths").insert("/v1/more".into(), route);
        },
        |all| {
            let operation = all.pointer(RESOURCE).unwrap().clone();
            at(all, "/paths/~1v1~1resources~1{name}").insert("patch".into(), operation);
        },
        |all| {
            let answer = json!({ "$ref": "#/components/responses/404" });
            at(all, &format!("{RESOURCE}/responses")).insert("410".into(), answer);
        },
        |all| {
            at(all, RESOURCE).insert("x-mainstay-right".into(), "metrics".into());
        },
        |all| {
            let parameter = json!({ "name": "more", "in": "query", "schema": { "type": "string" } });
            at(all, RESOURCE).insert("summary".into(), "Other words.".into());
            let list = all.pointer_mut(&format!("{RESOURCE}/parameters")).unwrap();
            list.as_array_mut().unwrap().push(parameter);
        },
        |all| {
            at(all, "/components/schemas/Accepted/properties")
                .insert("more".into(), json!({ "type": "string" }));
            add_word(all, "/components/schemas/Accepted/required", "more");
        },
        |all| add_word(all, "/components/schemas/TokenStatus/enum", "lost"),
        |all| add_word(all, "/components/schemas/Access/enum", "more"),
        |all| {
            at(all, "/components/schemas/TokenCreate/properties")
                .insert("why".into(), json!({ "type": "string" }));
        },
        |all| drop_word(all, "/components/schemas/TokenCreate/required", "node"),
        |all| {
            property(all, "TokenCreate", "node").insert("type".into(), json!(["string", "null"]));
        },
    ];
    let published = kept(PUBLISHED);
    for (index, addition) in additions.iter().enumerate() {
        let mut present = published.clone();
        addition(&mut present);
        assert_ne!(present, published, "addition {index}");
        assert_eq!(breaks(&published, &present), Vec::<String>::new(), "addition {index}");
    }
}

#[test]
fn a_break_that_is_meant_needs_another_major_version() {
    let published = kept(PUBLISHED);
    let mut present = published.clone();
    at(&mut present, "/paths").remove("/livez");
    let refused = verdict(&published, &present).unwrap_err();
    assert!(refused.contains("/livez: the path is gone") && refused.contains("CONTRIBUTING.md"), "{refused}");
    at(&mut present, "/info").insert("version".into(), "2".into());
    assert_eq!(verdict(&published, &present), Ok(()));
    assert!(verdict(&present, &published).is_err(), "an earlier version is refused");
}
