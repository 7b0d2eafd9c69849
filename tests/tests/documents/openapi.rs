//! The description of the API in OpenAPI 3.1: its routes are those of the table in `mainstay_api`,
//! its types are read from the sources, with what serde is told there.

use super::{files, read, root};
use mainstay_api::routes::{Answer, Form, ROUTES, Route};
use mainstay_types::Code;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use syn::{Attribute, Fields, GenericArgument, Item, PathArguments, Type};

const PAGE: &str = "docs/openapi.json";
/// Major version of the API. It rises with a change that breaks clients on purpose.
const MAJOR: u32 = 1;
/// Files and directories with the types of requests and answers.
const SOURCES: [&str; 3] = ["crates/api/src/rest", "crates/api/src/engine.rs", "crates/types/src/"];
/// Statuses of failures that each route of the cluster can have. Further ones depend on the route.
const OF_EVERY_ROUTE: [u16; 4] = [401, 403, 422, 429];
const OF_THE_CLUSTER: [u16; 2] = [409, 503];

/// Words of serde on a type, a field or a variant.
#[derive(Default, Clone)]
struct Serde {
    has_default: bool,
    rename: Option<String>,
    rename_all: Option<String>,
    is_skipped: bool,
    is_flat: bool,
    is_untagged: bool,
    tag: Option<String>,
    with: Option<String>,
}

impl Serde {
    /// # Panics
    /// At a word that this description does not know.
    fn of(attributes: &[Attribute]) -> Self {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            attribute
                .parse_nested_meta(|meta| {
                    let word = meta.path.get_ident().expect("a word").to_string();
                    let text =
                        || -> syn::Result<String> { Ok(meta.value()?.parse::<syn::LitStr>()?.value()) };
                    match word.as_str() {
                        "default" => {
                            found.has_default = true;
                            if meta.input.peek(syn::Token![=]) {
                                text()?;
                            }
                        }
                        "rename" => found.rename = Some(text()?),
                        "rename_all" => found.rename_all = Some(text()?),
                        "skip_serializing_if" => {
                            text()?;
                            found.is_skipped = true;
                        }
                        "flatten" => found.is_flat = true,
                        "untagged" => found.is_untagged = true,
                        "tag" => found.tag = Some(text()?),
                        "with" => found.with = Some(text()?),
                        "remote" | "from" | "into" => {
                            text()?;
                        }
                        "transparent" | "deny_unknown_fields" | "other" => {}
                        other => panic!("the description knows no `serde({other})`"),
                    }
                    Ok(())
                })
                .expect("words of serde");
        }
        found
    }

    fn name(&self, own: &str, of_all: Option<&str>) -> String {
        match (&self.rename, of_all) {
            (Some(name), _) => name.clone(),
            (None, Some("kebab-case")) => spelt(own, '-'),
            (None, Some("snake_case")) => spelt(own, '_'),
            (None, Some("lowercase")) => own.to_lowercase(),
            (None, None) => own.to_owned(),
            (None, Some(other)) => panic!("the description knows no spelling {other}"),
        }
    }
}

fn spelt(name: &str, between: char) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push(between);
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The doc comment of an item.
fn doc(attributes: &[Attribute]) -> String {
    let mut out = String::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        let syn::Meta::NameValue(meta) = &attribute.meta else { continue };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &meta.value else { continue };
        out = format!("{out} {}", text.value().trim()).trim().to_owned();
    }
    out.replace("[`", "`").replace("`]", "`")
}

/// All types of the sources, by name.
fn sources() -> BTreeMap<String, Item> {
    let is_source =
        |file: &&String| file.ends_with(".rs") && SOURCES.iter().any(|start| file.starts_with(start));
    let mut types = BTreeMap::new();
    for file in files().iter().filter(is_source) {
        let parsed = syn::parse_file(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        for item in parsed.items {
            let name = match &item {
                Item::Struct(item) => item.ident.to_string(),
                Item::Enum(item) => item.ident.to_string(),
                Item::Type(item) => item.ident.to_string(),
                _ => continue,
            };
            types.insert(name, item);
        }
    }
    types
}

/// Makes schemas of types.
struct Schemas {
    types: BTreeMap<String, Item>,
    /// Schemas of answers and of requests that were asked for.
    made: [BTreeMap<String, Value>; 2],
}

/// Which way a value goes: serde tells other things about each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Answer,
    Request,
}

impl Schemas {
    /// The schema of a type as it is written.
    fn of(&mut self, written: &Type, way: Way) -> Value {
        match written {
            Type::Tuple(tuple) => {
                let parts: Vec<Value> = tuple.elems.iter().map(|part| self.of(part, way)).collect();
                json!({ "type": "array", "prefixItems": parts, "minItems": parts.len(), "maxItems": parts.len() })
            }
            Type::Path(path) => {
                let last = path.path.segments.last().expect("a name");
                let inner: Vec<&Type> = match &last.arguments {
                    PathArguments::AngleBracketed(arguments) => {
                        let types = arguments.args.iter().filter_map(|argument| match argument {
                            GenericArgument::Type(inner) => Some(inner),
                            _ => None,
                        });
                        types.collect()
                    }
                    _ => Vec::new(),
                };
                self.named(&last.ident.to_string(), &inner, way)
            }
            _ => panic!("the description knows no such type"),
        }
    }

    fn named(&mut self, name: &str, inner: &[&Type], way: Way) -> Value {
        let number = |bits: u32| {
            let most = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
            json!({ "type": "integer", "format": format!("uint{bits}"), "minimum": 0, "maximum": most })
        };
        match name {
            "bool" => json!({ "type": "boolean" }),
            // The codes that are known grow with each release.
            "String" | "Code" => json!({ "type": "string" }),
            "u8" => number(8),
            "u16" => number(16),
            "u32" => number(32),
            "u64" | "usize" | "Time" => number(64),
            "Option" => or_null(self.of(inner[0], way)),
            "Box" => self.of(inner[0], way),
            "Vec" => json!({ "type": "array", "items": self.of(inner[0], way) }),
            "BTreeMap" => json!({ "type": "object", "additionalProperties": self.of(inner[1], way) }),
            _ => {
                self.make(name, way);
                json!({ "$ref": format!("#/components/schemas/{name}") })
            }
        }
    }

    /// Makes the schema of a type with a name, once.
    fn make(&mut self, name: &str, way: Way) {
        let made = &mut self.made[way as usize];
        if made.contains_key(name) {
            return;
        }
        // Ends a type that contains itself.
        made.insert(name.to_owned(), Value::Null);
        let item = self.types.get(name).unwrap_or_else(|| panic!("no source describes {name}")).clone();
        let (mut schema, words) = match &item {
            Item::Struct(item) => (self.of_struct(item, way), doc(&item.attrs)),
            Item::Enum(item) => (self.of_enum(item, way), doc(&item.attrs)),
            Item::Type(item) => (self.of(&item.ty, way), doc(&item.attrs)),
            _ => unreachable!("only these are kept"),
        };
        describe(&mut schema, &words);
        self.made[way as usize].insert(name.to_owned(), schema);
    }

    fn of_struct(&mut self, item: &syn::ItemStruct, way: Way) -> Value {
        let of_all = Serde::of(&item.attrs);
        if let Fields::Unnamed(fields) = &item.fields {
            return self.of(&fields.unnamed[0].ty, way);
        }
        let (properties, required) = self.fields(&item.fields, &of_all, way);
        object(properties, required, way)
    }

    /// Properties, and names of those that are always there.
    fn fields(&mut self, fields: &Fields, of_all: &Serde, way: Way) -> (Map<String, Value>, Vec<String>) {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for field in fields {
            let words = Serde::of(&field.attrs);
            let own = field.ident.as_ref().expect("a field with a name").to_string();
            let mut schema = match &words.with {
                Some(other) => self.named(other, &[], way),
                None => self.of(&field.ty, way),
            };
            if words.is_flat {
                let name = schema["$ref"].as_str().expect("a type with a name").rsplit('/').next();
                let flat = self.made[way as usize][name.expect("a name")].clone();
                let inner = flat["properties"].as_object().expect("an object").clone();
                properties.extend(inner);
                let always = flat["required"].as_array().cloned().unwrap_or_default();
                required.extend(always.iter().filter_map(Value::as_str).map(str::to_owned));
                continue;
            }
            if words.is_skipped && way == Way::Answer {
                schema = not_null(schema);
            }
            describe(&mut schema, &doc(&field.attrs));
            let name = words.name(&own, of_all.rename_all.as_deref());
            let may_lack = match way {
                Way::Answer => words.is_skipped,
                Way::Request => words.has_default || of_all.has_default || is_option(&field.ty),
            };
            if !may_lack {
                required.push(name.clone());
            }
            properties.insert(name, schema);
        }
        (properties, required)
    }

    fn of_enum(&mut self, item: &syn::ItemEnum, way: Way) -> Value {
        let of_all = Serde::of(&item.attrs);
        let mut words = Vec::new();
        let mut others = Vec::new();
        for variant in &item.variants {
            let own = Serde::of(&variant.attrs);
            let name = own.name(&variant.ident.to_string(), of_all.rename_all.as_deref());
            match (&variant.fields, &of_all.tag) {
                (Fields::Unit, None) => words.push((name, doc(&variant.attrs))),
                (Fields::Unnamed(fields), None) if of_all.is_untagged => {
                    others.push(self.of(&fields.unnamed[0].ty, way));
                }
                (Fields::Unit | Fields::Named(_), Some(tag)) => {
                    let (mut properties, mut required) = self.fields(&variant.fields, &Serde::default(), way);
                    properties.insert(tag.clone(), json!({ "const": name }));
                    required.push(tag.clone());
                    others.push(object(properties, required, way));
                }
                _ => panic!("the description knows no variant like {}::{}", item.ident, variant.ident),
            }
        }
        if !others.is_empty() {
            return json!({ "anyOf": others });
        }
        let described: Vec<String> = words
            .iter()
            .filter(|(_, words)| !words.is_empty())
            .map(|(name, words)| format!("`{name}`: {words}"))
            .collect();
        let names: Vec<&String> = words.iter().map(|(name, _)| name).collect();
        let mut schema = json!({ "type": "string", "enum": names });
        describe(&mut schema, &described.join(" "));
        schema
    }
}

fn object(properties: Map<String, Value>, mut required: Vec<String>, way: Way) -> Value {
    let mut schema = json!({ "type": "object", "properties": properties });
    required.sort();
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    // An answer of a later release may have more.
    if way == Way::Request {
        schema["additionalProperties"] = false.into();
    }
    schema
}

fn is_option(written: &Type) -> bool {
    matches!(written, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}

/// Adds words, before those that are there. A reference has siblings in OpenAPI 3.1.
fn describe(schema: &mut Value, words: &str) {
    let before = schema["description"].as_str().unwrap_or_default();
    let all = format!("{words} {before}").trim().to_owned();
    if !all.is_empty() {
        schema["description"] = all.into();
    } else if let Some(fields) = schema.as_object_mut() {
        fields.remove("description");
    }
}

fn or_null(schema: Value) -> Value {
    match schema["type"].as_str() {
        Some(kind) => {
            let mut schema = schema.clone();
            schema["type"] = json!([kind, "null"]);
            schema
        }
        None => json!({ "anyOf": [schema, { "type": "null" }] }),
    }
}

fn not_null(schema: Value) -> Value {
    if let Some(first) = schema["type"].get(0) {
        let mut schema = schema.clone();
        schema["type"] = first.clone();
        return schema;
    }
    match schema["anyOf"].as_array() {
        Some(any) if any.last().is_some_and(|last| last["type"] == "null") => any[0].clone(),
        _ => schema,
    }
}

/// A type as the table of routes names it.
fn written(name: &str) -> Type {
    syn::parse_str(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The statuses of a route's failures.
fn statuses(route: &Route) -> BTreeSet<u16> {
    let mut all: BTreeSet<u16> = OF_EVERY_ROUTE.into();
    all.extend(OF_THE_CLUSTER);
    if route.changes && route.is_conditional {
        all.insert(412);
    }
    if route.is_long {
        all.insert(503);
    }
    // Names stand in paths, in bodies and in these parameters.
    let is_name = |name: &str| ["node", "baseline", "compare_baseline"].contains(&name);
    let has_name = route.query.iter().any(|parameter| is_name(parameter.name));
    if route.path.contains('{') || route.request.is_some() || has_name {
        all.insert(404);
    }
    all
}

fn failure(status: u16) -> Value {
    let codes: Vec<&str> =
        Code::ALL.iter().filter(|code| code.status() == status).map(Code::as_str).collect();
    // Most refusals have the status 422, and the reference of errors lists them.
    let words = match status {
        422 => "The request is wrong, or cannot be done now. `code` says why.".to_owned(),
        _ => format!("Refused: {}.", codes.join(", ")),
    };
    let mut response = json!({
        "description": words,
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/ProblemDocument" } } },
    });
    if [429, 503].contains(&status) {
        let words = "Seconds after which the request may be repeated.";
        response["headers"] = json!({
            "Retry-After": { "description": words, "required": false, "schema": { "type": "integer" } },
        });
    }
    response
}

fn text() -> Value {
    json!({ "text/plain": { "schema": { "type": "string" } } })
}

impl Schemas {
    fn operation(&mut self, route: &Route) -> Value {
        let mut responses = Map::new();
        for status in statuses(route) {
            let place = format!("#/components/responses/{status}");
            responses.insert(status.to_string(), json!({ "$ref": place }));
        }
        let content = match route.answer {
            Answer::Json(name) => {
                let schema = self.of(&written(name), Way::Answer);
                json!({ "application/json": { "schema": schema } })
            }
            Answer::Metrics | Answer::Sentence => text(),
            Answer::Stream => json!({ "text/event-stream": { "schema": { "type": "string" } } }),
            Answer::Description => json!({ "application/json": { "schema": { "type": "object" } } }),
        };
        let mut answer = json!({ "description": "The answer.", "content": content });
        if route.is_conditional && !route.changes {
            let words = "Tag of the state, for the header `If-Match` of a change.";
            answer["headers"] = json!({ "ETag": { "description": words, "schema": { "type": "string" } } });
        }
        if route.changes {
            let words = "`true` if this is the answer of an earlier request with the same `Idempotency-Key`.";
            answer["headers"] =
                json!({ "Idempotency-Replayed": { "description": words, "schema": { "type": "string" } } });
        }
        if route.is_long {
            let words = "Id of the operation, if work goes on after the answer.";
            answer["headers"]["Mainstay-Operation"] =
                json!({ "description": words, "schema": { "type": "string" } });
        }
        if route.is_paged() {
            let words = "The next page, as `<PATH>; rel=\"next\"` (RFC 8288), if there is one.";
            answer["headers"] = json!({ "Link": { "description": words, "schema": { "type": "string" } } });
        }
        if route.is_long {
            let schema = self.of(&written("OperationView"), Way::Answer);
            let words = "Path of the operation.";
            responses.insert(
                "202".into(),
                json!({
                    "description": "The work goes on, as an operation.",
                    "headers": { "Location": { "description": words, "schema": { "type": "string" } } },
                    "content": { "application/json": { "schema": schema } },
                }),
            );
        }
        responses.insert("200".into(), answer);
        if route.answer == Answer::Sentence {
            for (status, words) in [("404", "There is no such resource or service."), ("503", "No.")] {
                responses.insert(status.into(), json!({ "description": words, "content": text() }));
            }
        }
        let mut operation = json!({
            "operationId": operation_id(route),
            "summary": route.summary,
            "description": format!("Needs the right `{}`.", route.access),
            "x-mainstay-right": route.access.word(),
            "tags": [tag(route.path)],
            "responses": responses,
        });
        let parameters = parameters(route);
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(name) = route.request {
            let schema = self.of(&written(name), Way::Request);
            operation["requestBody"] =
                json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        }
        operation
    }
}

fn operation_id(route: &Route) -> String {
    let path = route.path.replace("/v1/", "/").replace(['{', '}'], "").replace(['/', '-', '.'], "_");
    format!("{}{path}", route.method.to_lowercase())
}

fn tag(path: &str) -> &str {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    path.split('/').nth(1).unwrap_or_default()
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut all: Vec<Value> = in_path
        .map(|name| {
            let schema = match name {
                "volume" => json!({ "type": "integer", "minimum": 0, "maximum": u16::MAX }),
                _ => json!({ "type": "string" }),
            };
            json!({ "name": name, "in": "path", "required": true, "schema": schema })
        })
        .collect();
    for parameter in route.query {
        let schema = match parameter.form {
            Form::Number => json!({ "type": "integer", "minimum": 0 }),
            Form::Text => json!({ "type": "string" }),
            Form::Word(words) => json!({ "type": "string", "enum": words }),
            Form::Flag => json!({ "type": "boolean" }),
        };
        let words = parameter.meaning;
        all.push(json!({ "name": parameter.name, "in": "query", "description": words, "schema": schema }));
    }
    if route.changes && route.is_conditional {
        let words = "Make the change only if the state still has this `ETag`.";
        let schema = json!({ "type": "string" });
        all.push(json!({ "name": "If-Match", "in": "header", "description": words, "schema": schema }));
    }
    if route.is_long {
        let words = "`respond-async` for an answer before the work is done.";
        let schema = json!({ "type": "string" });
        all.push(json!({ "name": "Prefer", "in": "header", "description": words, "schema": schema }));
    }
    if route.changes {
        let words = "A key of your choice, in quotes. The same request with the same key gets the answer of the first one.";
        let schema = json!({ "type": "string", "minLength": 1, "maxLength": 257 });
        all.push(
            json!({ "name": "Idempotency-Key", "in": "header", "description": words, "schema": schema }),
        );
    }
    if route.answer == Answer::Stream {
        let words = "Index of the event that was seen last.";
        let schema = json!({ "type": "integer", "minimum": 0 });
        all.push(json!({ "name": "Last-Event-ID", "in": "header", "description": words, "schema": schema }));
    }
    all
}

/// The whole description.
pub fn description() -> Value {
    let mut schemas = Schemas { types: sources(), made: Default::default() };
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let operation = schemas.operation(route);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation;
    }
    for name in ["ProblemDocument", "EventView", "StreamChange", "StreamResync"] {
        schemas.make(name, Way::Answer);
    }
    let [answers, mut requests] = schemas.made;
    // A type that goes both ways, and is described differently, has a second name in requests.
    let differ: BTreeSet<String> = requests
        .iter()
        .filter(|(name, schema)| answers.get(*name).is_some_and(|answer| answer != *schema))
        .map(|(name, _)| name.clone())
        .collect();
    let rename = |value: &mut Value| renamed(value, &differ);
    for schema in requests.values_mut() {
        rename(schema);
    }
    for path in paths.values_mut() {
        for operation in path.as_object_mut().expect("an object").values_mut() {
            if let Some(body) = operation.get_mut("requestBody") {
                rename(body);
            }
        }
    }
    let second = |name: String| if differ.contains(&name) { format!("{name}Request") } else { name };
    let mut all: Map<String, Value> = answers.into_iter().collect();
    all.extend(requests.into_iter().map(|(name, schema)| (second(name), schema)));
    let failures: BTreeSet<u16> = ROUTES.iter().flat_map(statuses).collect();
    let failures: Map<String, Value> =
        failures.into_iter().map(|status| (status.to_string(), failure(status))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Mainstay",
            "version": MAJOR.to_string(),
            "description": "Each agent serves this API on its socket, where the kernel says who asks, and over HTTPS with tokens. docs/http-api.md has more.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, {}],
        "paths": paths,
        "components": {
            "schemas": all,
            "responses": failures,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "`mainstay token create NAME`. On the socket no token is needed." },
            },
        },
    })
}

/// Leads references to the second names of types.
fn renamed(value: &mut Value, differ: &BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(place)) = fields.get_mut("$ref")
                && place.rsplit('/').next().is_some_and(|name| differ.contains(name))
            {
                place.push_str("Request");
            }
            fields.values_mut().for_each(|value| renamed(value, differ));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| renamed(value, differ)),
        _ => {}
    }
}

#[test]
fn the_description_of_the_api_is_that_of_its_sources() {
    let made = description();
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        let text = serde_json::to_string_pretty(&made).expect("JSON");
        std::fs::write(root().join(PAGE), text + "\n").expect("a writable file");
        return;
    }
    let kept: Value = serde_json::from_str(&read(PAGE)).expect("JSON");
    assert!(kept == made, "{PAGE} is not as the code has it: write it anew with MAINSTAY_BLESS=1");
}

#[test]
fn every_reference_of_the_description_leads_somewhere_and_no_two_operations_have_one_name() {
    let made = description();
    let mut references = Vec::new();
    fn gather(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                into.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| gather(value, into));
            }
            Value::Array(values) => values.iter().for_each(|value| gather(value, into)),
            _ => {}
        }
    }
    gather(&made, &mut references);
    assert!(references.len() > 100, "{}", references.len());
    for reference in references {
        assert!(made.pointer(&reference[1..]).is_some_and(|found| !found.is_null()), "{reference}");
    }
    let names: BTreeSet<String> = ROUTES.iter().map(operation_id).collect();
    assert_eq!(names.len(), ROUTES.len());
}
