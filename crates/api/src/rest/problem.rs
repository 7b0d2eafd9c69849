use mainstay_types::{Code, Problem};
use serde::{Deserialize, Serialize};

/// Folder of the explanations of codes, from the root of the API on. The field `type` of a refusal
/// is the path of one of them.
pub const ERRORS: &str = "/errors/";
/// Type of a problem whose code has no explanation (RFC 9457, 4.2.1).
const NO_TYPE: &str = "about:blank";

/// Body of an answer that refuses a request: the fields of RFC 9457, and those of Mainstay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProblemDocument {
    /// Path of the explanation of the code, which every node serves. It is the same for every
    /// problem with this code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Explanation of this occurrence, with the text of `message`.
    pub detail: String,
    pub code: Code,
    /// Words about what failed, and why.
    pub message: String,
    /// Usual cause of problems with this code; empty if the node does not know the code.
    pub cause: String,
    /// Advice; empty if there is none.
    pub remedy: String,
    /// Number of the request, as in the header `x-request-id` and in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

impl ProblemDocument {
    #[must_use]
    pub fn new(problem: &Problem, request: Option<String>) -> Self {
        let Problem { code, message, remedy } = problem;
        let explained = code.explained();
        Self {
            kind: explained.map_or_else(|| NO_TYPE.to_owned(), |_| format!("{ERRORS}{code}")),
            title: code.title(),
            status: code.status(),
            detail: message.clone(),
            code: code.clone(),
            message: message.clone(),
            cause: explained.map_or_else(String::new, |explained| explained.cause.to_owned()),
            remedy: remedy.clone(),
            request,
        }
    }
}

/// Explanation of a code: its entry in the manual.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CodeView {
    pub code: Code,
    /// The code in words.
    pub title: String,
    /// HTTP status of answers with this code.
    pub status: u16,
    /// Exit code of a command that fails with it.
    pub exit: u8,
    /// Message of one problem with this code.
    pub example: String,
    pub cause: String,
    pub remedy: String,
    /// Entry in the manual: path in the source tree, and anchor.
    pub entry: String,
    /// Page of the manual about the subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<String>,
}

impl CodeView {
    /// The explanation of a code that this version knows.
    #[must_use]
    pub fn of(code: &Code) -> Option<Self> {
        let explained = code.explained()?;
        Some(Self {
            code: code.clone(),
            title: code.title(),
            status: code.status(),
            exit: code.exit(),
            example: explained.message.to_owned(),
            cause: explained.cause.to_owned(),
            remedy: explained.remedy.to_owned(),
            entry: code.entry()?,
            more: code.page().map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_fields_of_rfc_9457_and_those_that_clients_know() {
        let problem = Problem::new(Code::UnknownNode, "there is no node n9", "See `mainstay node list`.");
        let document = ProblemDocument::new(&problem, Some("00000000000000ff".into()));
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["type"], "/errors/unknown-node");
        assert_eq!(json["title"], "Unknown node");
        assert_eq!(json["status"], 404);
        assert_eq!(json["detail"], "there is no node n9");
        assert_eq!(json["request"], "00000000000000ff");
        assert!(json["cause"].as_str().unwrap().ends_with('.'), "{json}");
        // Clients of earlier releases read these alone.
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
    }

    #[test]
    fn the_type_of_each_code_leads_to_its_explanation() {
        for code in Code::ALL {
            let document = ProblemDocument::new(&Problem::new(code.clone(), "", ""), None);
            let named = document.kind.strip_prefix(ERRORS).unwrap();
            let view = CodeView::of(&Code::from(named.to_owned())).unwrap();
            assert_eq!((&view.code, &view.title), (code, &document.title));
        }
        let newer = Problem::new(Code::Unknown("of a newer/node".into()), "x", "");
        let document = ProblemDocument::new(&newer, None);
        assert_eq!((document.kind.as_str(), document.cause.as_str()), ("about:blank", ""));
        assert_eq!(document.title, "Of a newer/node");
        assert!(CodeView::of(&newer.code).is_none());
    }
}
