use super::ProblemDocument;
use mainstay_types::Access;
use serde::{Deserialize, Serialize};

/// Folder of the operations: the path of one is this, a slash and its id.
pub const OPERATIONS: &str = "/v1/operations";

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// The change is being recorded, or the nodes are carrying it out.
    Running,
    Succeeded,
    /// The field `problem` says why.
    Failed,
    Cancelled,
}

/// A change that was asked for with `Prefer: respond-async`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OperationView {
    pub id: String,
    /// Method and path of the request.
    pub action: String,
    /// User who asked, or `token` and the name of a token.
    pub who: String,
    pub state: OperationState,
    /// When the request came, in milliseconds since 1970.
    pub since_ms: u64,
    /// When the operation ended, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Share of the work that is done, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_percent: Option<u8>,
    /// Words about what is being done, or how it ended.
    pub message: String,
    /// Right that is needed to cancel the operation. None if it cannot be cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_needs: Option<Access>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ProblemDocument>,
}
