//! Headers of requests and answers.

/// Header of an answer that no majority of the voters has confirmed: its age in milliseconds, or
/// `unknown`.
pub const AGE_HEADER: &str = "mainstay-as-of-ms";
/// Header of such an answer: the name of the node that answered.
pub const NODE_HEADER: &str = "mainstay-node";

/// Header of each answer of a route: the number of the request, in 16 hexadecimal digits. The audit
/// log has the same number.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Header of a change: a key of the sender's choice. The same request with the same key gets the
/// answer of the first one.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// Header of an answer that was given before, to an earlier request with the same key.
pub const REPLAYED_HEADER: &str = "idempotency-replayed";

/// Header of a request (RFC 7240), with [`RESPOND_ASYNC`] if the answer is not to wait for the
/// work.
pub const PREFER_HEADER: &str = "prefer";
pub const RESPOND_ASYNC: &str = "respond-async";
/// Header of the answer to a change whose work goes on: the id of its operation on the node that
/// answered.
pub const OPERATION_HEADER: &str = "mainstay-operation";
/// Header of an answer that does what a request preferred.
pub const PREFER_APPLIED_HEADER: &str = "preference-applied";
