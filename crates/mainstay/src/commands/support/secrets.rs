//! Strikes secrets out of what goes into a support bundle.
//!
//! Guarantees
//! - Each part passes through here, whatever it is and wherever it comes from.
//! - The value of a name that may be a secret's is struck out, at any depth; so is every value of
//!   an environment.
//! - In texts these are struck out wherever they stand: tokens of Mainstay, private keys, the
//!   values of options and settings with such names, passwords in addresses and in statements of
//!   SQL, and the word after `Bearer` and `Basic`.
//!
//! Too much is struck out rather than too little. A secret without any sign of one stays.

use serde_json::Value;

/// Stands in the place of a secret.
pub const STRUCK: &str = "[struck out]";

/// Parts of names whose values are struck out.
const SECRET: [&str; 14] = [
    "pass",
    "pwd",
    "secret",
    "token",
    "credential",
    "api_key",
    "apikey",
    "private",
    "seal",
    "authorization",
    "cookie",
    "signature",
    "psk",
    "auth_string",
];
/// Ends of names whose values are keys.
const KEY: [&str; 2] = ["_key", "key"];
/// Ends of names whose values are places, and no secrets.
const PLACE: [&str; 4] = ["file", "path", "dir", "directory"];
/// Tables of which every value is struck out.
const ENVIRONMENT: [&str; 3] = ["env", "environment", "variables"];
/// Beginning of the tokens of Mainstay.
const TOKEN: &str = "mst_";
/// Words after which a secret stands.
const SCHEMES: [&str; 2] = ["bearer", "basic"];

/// Whether a value of this name may be a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase().replace('-', "_");
    if PLACE.iter().any(|end| name.ends_with(end)) {
        return false;
    }
    SECRET.iter().any(|part| name.contains(part)) || KEY.iter().any(|end| name.ends_with(end))
}

/// Strikes secrets out of a document.
pub fn strike_value(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // A pair, as in lists of settings.
            let named = fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            for (name, value) in fields {
                let is_environment = ENVIRONMENT.contains(&name.to_ascii_lowercase().as_str());
                if named && name != "name" || is_environment || is_secret(name) {
                    strike_all(value);
                } else {
                    strike_value(value);
                }
            }
        }
        Value::Array(list) => {
            // Words of a command: the one after an option for a secret is the secret.
            let mut is_next = false;
            for value in list {
                let flag = value.as_str().filter(|word| word.starts_with('-') && !word.contains('='));
                let names_secret = flag.is_some_and(|word| word == "-p" || is_secret(word));
                if is_next {
                    strike_all(value)
                } else {
                    strike_value(value)
                }
                is_next = names_secret;
            }
        }
        Value::String(text) => *text = strike_text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Strikes out every value, and keeps the names.
fn strike_all(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(strike_all),
        Value::Array(list) => list.iter_mut().for_each(strike_all),
        Value::Null | Value::Bool(_) => {}
        Value::String(_) | Value::Number(_) => *value = Value::String(STRUCK.to_owned()),
    }
}

/// Strikes secrets out of a text.
pub fn strike_text(text: &str) -> String {
    let without_keys = strike_keys(text);
    let lines: Vec<String> = without_keys.split('\n').map(strike_line).collect();
    lines.join("\n")
}

/// Strikes out private keys in PEM, up to their end or that of the text.
fn strike_keys(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let (before, pem) = rest.split_at(at);
        out += before;
        let head = pem[BEGIN.len()..].split("-----").next().unwrap_or_default();
        if head.contains("PRIVATE") {
            out += STRUCK;
            let after = pem.find(END).map_or("", |end| &pem[end + END.len()..]);
            rest = after.split_once("-----").map_or("", |(_, rest)| rest);
        } else {
            out += BEGIN;
            rest = &pem[BEGIN.len()..];
        }
    }
    out + rest
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Strikes secrets out of one line. It goes from word to word, and looks at what comes after each.
fn strike_line(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("://") {
            out += "://";
            rest = strike_user(after, &mut out);
            continue;
        }
        if !is_word(c) {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if let Some(at) = word.find(TOKEN) {
            out += &word[..at];
            out += STRUCK;
            continue;
        }
        // `-pVALUE`, as clients of MySQL have it.
        if word.starts_with("-p")
            && word.len() > 2
            && !word.starts_with("--")
            && (out.is_empty() || out.ends_with([' ', '"', '\'', ',']))
        {
            out += &format!("-p{STRUCK}");
            rest = skip_value(rest, ' ').1;
            continue;
        }
        out += word;
        let lower = word.to_ascii_lowercase();
        let is_flag = word.starts_with('-');
        if is_secret(word) {
            rest = strike_named(rest, is_flag, &mut out);
        } else if lower == "-p" && rest.starts_with(' ') || SCHEMES.contains(&lower.as_str()) {
            rest = strike_next(rest, &mut out);
        } else if lower == "by" {
            rest = strike_quoted(rest, &mut out);
        }
    }
    out
}

/// After `://`: the password in `user:password@`.
fn strike_user<'a>(after: &'a str, out: &mut String) -> &'a str {
    let end =
        after.find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '?')).unwrap_or(after.len());
    let Some((user, _)) = after[..end].rsplit_once('@') else { return after };
    if let Some((name, _)) = user.split_once(':') {
        *out += &format!("{name}:{STRUCK}");
    } else {
        *out += user;
    }
    &after[user.len()..]
}

/// After the name of a secret: its value, if there is one.
fn strike_named<'a>(rest: &'a str, is_flag: bool, out: &mut String) -> &'a str {
    // The name itself may stand in quotes.
    let quoted = rest.strip_prefix(['"', '\'']).unwrap_or(rest);
    let value = quoted.trim_start();
    if let Some(value) = value.strip_prefix(['=', ':']).filter(|value| !value.starts_with("//")) {
        *out += &rest[..rest.len() - value.len()];
        return strike_next(value, out);
    }
    if is_flag && rest.starts_with(' ') {
        return strike_next(rest, out);
    }
    // `PASSWORD 'x'` of SQL.
    strike_quoted(rest, out)
}

/// Strikes out the next word, or the next text in quotes.
fn strike_next<'a>(rest: &'a str, out: &mut String) -> &'a str {
    let value = rest.trim_start();
    *out += &rest[..rest.len() - value.len()];
    // The value of a header has two words: `Authorization: Bearer x`.
    let scheme = SCHEMES.iter().find(|scheme| {
        value.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme))
            && value[scheme.len()..].starts_with(' ')
    });
    if let Some(scheme) = scheme {
        *out += &value[..scheme.len()];
        return strike_next(&value[scheme.len()..], out);
    }
    let Some(first) = value.chars().next() else { return value };
    let (is_there, after) = skip_value(value, first);
    if is_there {
        *out += STRUCK;
    }
    after
}

/// Skips a value. `first`: its first character, which may be a quote. Returns whether there is one,
/// and what comes after it.
fn skip_value(value: &str, first: char) -> (bool, &str) {
    let quotes = ['"', '\''];
    if quotes.contains(&first) {
        let inside = &value[1..];
        let mut escaped = false;
        for (at, c) in inside.char_indices() {
            if c == first && !escaped {
                return (true, &inside[at + 1..]);
            }
            escaped = c == '\\' && !escaped;
        }
        return (true, "");
    }
    // A quote around the whole pair ends the value, too.
    let end = value.find(|c: char| c.is_whitespace() || quotes.contains(&c)).unwrap_or(value.len());
    (end > 0, &value[end..])
}

/// Strikes out a text in quotes if it comes next.
fn strike_quoted<'a>(rest: &'a str, out: &mut String) -> &'a str {
    let value = rest.trim_start();
    if rest.len() == value.len() || !value.starts_with(['"', '\'']) {
        return rest;
    }
    strike_next(rest, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_in_texts_are_struck_out_and_the_rest_stays() {
        for (text, struck) in [
            ("token mst_api_0123_abcDEF works", "token [struck out] works"),
            ("join --token mst_join_1_2 --as n4", "join --token [struck out] --as n4"),
            ("PASSWORD=hunter2 next", "PASSWORD=[struck out] next"),
            ("db_password = \"hun ter\\\"2\" # x", "db_password = [struck out] # x"),
            ("{\"api_key\":\"hunter2\",\"name\":\"db\"}", "{\"api_key\":[struck out],\"name\":\"db\"}"),
            ("curl --password hunter2 http://a/", "curl --password [struck out] http://a/"),
            ("mysql -uroot -phunter2 shop", "mysql -uroot -p[struck out] shop"),
            ("fence -p hunter2 -a 10.0.0.1", "fence -p [struck out] -a 10.0.0.1"),
            ("Authorization: Bearer hunter2", "Authorization: Bearer [struck out]"),
            ("sent Bearer hunter2 to n1", "sent Bearer [struck out] to n1"),
            ("postgres://bob:hunter2@db/x?y", "postgres://bob:[struck out]@db/x?y"),
            ("https://n1:7443/v1", "https://n1:7443/v1"),
            ("ALTER USER a IDENTIFIED BY 'hunter2';", "ALTER USER a IDENTIFIED BY [struck out];"),
            ("ALTER ROLE a PASSWORD 'hunter2'", "ALTER ROLE a PASSWORD [struck out]"),
            ("the token ci has the right read", "the token ci has the right read"),
            ("password_file = \"/etc/p\"", "password_file = \"/etc/p\""),
            ("decided by the cluster; took 3 s", "decided by the cluster; took 3 s"),
            ("'password=hunter2'", "'password=[struck out]'"),
            ("-phunter2", "-p[struck out]"),
        ] {
            assert_eq!(strike_text(text), struck);
        }
    }

    #[test]
    fn private_keys_are_struck_out_up_to_their_end() {
        let text = "a\n-----BEGIN PRIVATE KEY-----\nMIIhunter2\n-----END PRIVATE KEY-----\nb\n-----BEGIN CERTIFICATE-----\nMII";
        assert_eq!(strike_text(text), "a\n[struck out]\nb\n-----BEGIN CERTIFICATE-----\nMII");
        assert_eq!(strike_text("x -----BEGIN EC PRIVATE KEY----- hunter2"), "x [struck out]");
    }

    #[test]
    fn secrets_in_documents_are_struck_out_at_any_depth() {
        let mut value = json!({
            "name": "db",
            "process": [{
                "env": { "TZ": "hunter2", "list": ["hunter2"] },
                "command": ["app", "--api-key", "hunter2", "--port", "80", "-p", "hunter2", "--token=hunter2"],
                "ocf": { "params": { "passwd": "hunter2", "port": 3306 } }
            }],
            "secrets": { "a": { "b": 7 } },
            "password_file": "/etc/p",
            "settings": [{ "name": "smtp-password", "value": "hunter2" }, { "name": "mode", "value": "c" }],
            "text": "it said password: hunter2"
        });
        strike_value(&mut value);
        assert!(!value.to_string().contains("hunter2") && !value.to_string().contains('7'), "{value}");
        let process = &value["process"][0];
        assert_eq!((&process["command"][4], &value["settings"][1]["value"]), (&json!("80"), &json!("c")));
        assert_eq!(
            (&process["ocf"]["params"]["port"], &value["password_file"]),
            (&json!(3306), &json!("/etc/p"))
        );
        assert_eq!(value["secrets"]["a"]["b"], STRUCK);
    }
}
