//! The routes of the API: one table. The agent takes the right of each route from it, and the
//! reference and the description in OpenAPI are made of it.

use mainstay_types::Access::{self, Admin, Metrics, Operate, Read};

/// The description of the API in the form of OpenAPI 3.1. A test says when it differs from the
/// sources.
pub const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// Form of an answer that is no failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// JSON of this Rust type.
    Json(&'static str),
    /// The text format of Prometheus.
    Metrics,
    /// A sentence. The status 503 with a sentence means no.
    Sentence,
    /// Server-sent events.
    Stream,
    /// A description in OpenAPI.
    Description,
}

/// Form of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A whole number of zero or more.
    Number,
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
}

/// A parameter after the `?`. None is required.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub form: Form,
    pub meaning: &'static str,
}

/// Description of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub access: Access,
    /// The route changes something, so each request is in the audit log.
    pub changes: bool,
    /// Rust type of the body.
    pub request: Option<&'static str>,
    pub answer: Answer,
    pub query: &'static [Parameter],
    /// The route takes `If-Match`, or its answer has an `ETag` for that.
    pub is_conditional: bool,
    /// The work may take long, so the route takes `Prefer: respond-async`.
    pub is_long: bool,
    /// Purpose, in one sentence.
    pub summary: &'static str,
}

impl Route {
    const fn with(mut self, request: &'static str) -> Self {
        self.request = Some(request);
        self
    }

    const fn query(mut self, query: &'static [Parameter]) -> Self {
        self.query = query;
        self
    }

    const fn conditional(mut self) -> Self {
        self.is_conditional = true;
        self
    }

    const fn long(mut self) -> Self {
        self.is_long = true;
        self
    }

    const fn answers(mut self, answer: Answer) -> Self {
        self.answer = answer;
        self
    }

    /// Whether the answer may be a page, with a link to the next one.
    #[must_use]
    pub fn is_paged(&self) -> bool {
        self.query.iter().any(|parameter| parameter.name == LIMIT_NAME)
    }

    /// Whether the answer is a part of the replicated state, or depends on it.
    #[must_use]
    pub fn is_of_cluster(&self) -> bool {
        self.path.starts_with("/v1/")
    }
}

/// A question.
const fn ask(access: Access, path: &'static str, answer: &'static str, summary: &'static str) -> Route {
    let answer = Answer::Json(answer);
    Route {
        method: "GET",
        path,
        access,
        changes: false,
        request: None,
        answer,
        query: &[],
        is_conditional: false,
        is_long: false,
        summary,
    }
}

/// A change that is answered when it is recorded.
const fn change(access: Access, method: &'static str, path: &'static str, summary: &'static str) -> Route {
    Route { method, changes: true, ..ask(access, path, "Accepted", summary) }
}

const fn parameter(name: &'static str, form: Form, meaning: &'static str) -> Parameter {
    Parameter { name, form, meaning }
}

/// Name of the parameter that makes an answer a page.
pub const LIMIT_NAME: &str = "limit";
const LIMIT: Parameter = parameter(
    LIMIT_NAME,
    Form::Number,
    "Most entries of the answer, from the first one on. The header `Link` leads to the next page. Default: all.",
);
const AFTER: Parameter = parameter(
    "after",
    Form::Text,
    "Place in the list after which the page begins, from the header `Link` of an earlier answer.",
);
const PAGES: &[Parameter] = &[LIMIT, AFTER];
const LINES: Parameter = parameter("lines", Form::Number, "Most entries of the answer: the newest ones.");
const WAIT: Parameter = parameter(
    "wait_ms",
    Form::Number,
    "Longest time to wait for something newer, in milliseconds, at most 60000. Default: 0.",
);
const OF_EVENTS: &[Parameter] =
    &[parameter("after", Form::Number, "Index of the event that was seen last. Default: 0."), WAIT, LIMIT];
const OF_DESTINATIONS: &[Parameter] =
    &[parameter("after", Form::Number, "Revision that was seen last. Default: 0."), WAIT];
const OF_STREAM: &[Parameter] = &[parameter(
    "after",
    Form::Number,
    "Index of the event that was seen last. The header `Last-Event-ID` counts before it. Default: the newest event.",
)];
const OF_HISTORY: &[Parameter] = &[
    parameter("name", Form::Text, "Name of a resource or of a service. Default: all."),
    LINES,
    LIMIT,
    AFTER,
];
const OF_LOAD: &[Parameter] = &[
    parameter("from_ms", Form::Number, "Begin of the interval. Default: an hour before its end."),
    parameter("to_ms", Form::Number, "End of the interval. Default: the present."),
    parameter(
        "step_ms",
        Form::Number,
        "Length of the parts of the interval. Default: one part for all of it.",
    ),
    parameter("resources", Form::Text, "Names of resources, with commas between them. Default: all."),
    parameter("node", Form::Text, "Name of the node. Default: the one that is asked."),
];
const OF_REPORT: &[Parameter] = &[
    parameter("from_ms", Form::Number, "Begin of the interval. Default: an hour before its end."),
    parameter("to_ms", Form::Number, "End of the interval. Default: the present."),
    parameter("baseline", Form::Text, "Name of the baseline to report, in the place of an interval."),
    parameter(
        "compare_from_ms",
        Form::Number,
        "Begin of the interval to compare with, which is as long. Default: none.",
    ),
    parameter("compare_baseline", Form::Text, "Name of the baseline to compare with. Default: none."),
    parameter("resource", Form::Text, "Name of the resource to which the report is limited. Default: all."),
];
const OF_AUDIT: &[Parameter] =
    &[parameter("after", Form::Number, "Number of the record that was seen last. Default: 0."), LINES, LIMIT];
const OF_LOGS: &[Parameter] = &[
    parameter("process", Form::Text, "Name of the process. Default: all."),
    parameter("node", Form::Text, "Name of the node. Default: the one where the service runs, or ran last."),
    LINES,
    parameter("after", Form::Text, "Place in the log after which the answer begins, from an earlier answer."),
];
const OF_METRICS: &[Parameter] = &[parameter(
    "names",
    Form::Word(&["mainstay", "drbd"]),
    "`mainstay`, or `drbd` for the names that drbd-reactor gives to metrics of DRBD. Default: `mainstay`.",
)];
const OF_DELETION: &[Parameter] = &[parameter(
    "force",
    Form::Flag,
    "Delete the service although something else holds its file system. Default: false.",
)];

/// The route with this method and path.
#[must_use]
pub fn find(method: &str, path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.method == method && route.path == path)
}

/// Every route. The right `operate` never loses data, and never runs a program of the caller's
/// choice. A scrub may repair blocks by what is not proven, and requests of an attached node fail
/// when it is detached.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    ask(Read, "/v1/alive", "bool", "Tells that the agent runs, at once."),
    ask(Read, "/v1/status", "StatusView", "Shows the whole cluster, its resources and services, and what to do next."),
    ask(Read, "/v1/cluster", "ClusterView", "Shows the cluster and its nodes."),
    change(Admin, "POST", "/v1/cluster/init", "Makes this node the first member of a new cluster.").with("ClusterInit").answers(Answer::Json("ClusterView")),
    change(Admin, "POST", "/v1/cluster/join", "Makes this node a member of an existing cluster.").with("ClusterJoin").answers(Answer::Json("ClusterView")),
    ask(Read, "/v1/cluster/settings", "Vec<SettingView>", "Lists the settings of the cluster.").conditional(),
    change(Admin, "PATCH", "/v1/cluster/settings", "Changes settings of the cluster.").with("SettingsChange").conditional(),
    ask(Admin, "/v1/cluster/backup", "ClusterBackup", "Returns the record of the cluster, for a backup. It contains secrets."),
    ask(Read, "/v1/cluster/certificates", "CertificatesView", "Shows the authorities of the cluster and the certificates of its nodes."),
    change(Admin, "POST", "/v1/cluster/rotation", "Begins to replace the authority of the cluster.").long(),
    change(Admin, "DELETE", "/v1/cluster/rotation", "Cancels the replacement of the authority."),
    change(Admin, "POST", "/v1/cluster/rotation/left-out", "Lets the replacement of the authority go on without dead nodes.").with("LeaveOut"),
    ask(Read, "/v1/cluster/tokens", "Vec<TokenView>", "Lists the tokens by which nodes join.").query(PAGES),
    change(Admin, "POST", "/v1/cluster/tokens", "Makes a token by which one node may join.").with("TokenCreate").answers(Answer::Json("TokenMade")),
    change(Admin, "DELETE", "/v1/cluster/tokens/{id}", "Revokes a token to join."),
    ask(Read, "/v1/authorities", "AuthoritiesView", "Shows the authority of the server's certificate."),
    ask(Read, "/v1/tokens", "Vec<ApiTokenView>", "Lists the tokens of the API.").query(PAGES),
    change(Admin, "POST", "/v1/tokens", "Makes a token of the API.").with("ApiTokenCreate").answers(Answer::Json("ApiTokenMade")),
    change(Admin, "DELETE", "/v1/tokens/{name}", "Revokes a token of the API."),
    ask(Read, "/v1/nodes", "Vec<NodeView>", "Lists the nodes.").query(PAGES),
    ask(Read, "/v1/nodes/{name}/removal", "NodeRemoval", "Tells what the removal of a node would cost."),
    change(Admin, "POST", "/v1/nodes/{name}/removal", "Removes a node from the cluster.").with("NodeRemove"),
    change(Admin, "POST", "/v1/nodes/{name}/replacement", "Lets another node take the place of a dead one.").with("NodeReplace"),
    change(Admin, "PUT", "/v1/nodes/{name}/address", "Changes the addresses of a node.").with("NodeAddress"),
    change(Admin, "POST", "/v1/nodes/{name}/confirm-off", "Confirms that a dead node is switched off."),
    ask(Read, "/v1/resources", "Vec<ResourceView>", "Lists the resources.").query(PAGES),
    change(Admin, "POST", "/v1/resources", "Creates a resource.").with("ResourceCreate").answers(Answer::Json("ResourceView")).long(),
    ask(Read, "/v1/resources/{name}", "ResourceView", "Shows a resource."),
    change(Admin, "DELETE", "/v1/resources/{name}", "Deletes a resource and its data.").long(),
    ask(Read, "/v1/resources/{name}/scrub", "ScrubReport", "Shows the comparison of replicas that runs or was the last."),
    change(Admin, "POST", "/v1/resources/{name}/scrub", "Begins to compare the replicas of a resource.").with("ScrubStart").long(),
    change(Operate, "DELETE", "/v1/resources/{name}/scrub", "Ends the comparison of replicas."),
    ask(Read, "/v1/resources/{name}/settings", "Vec<SettingView>", "Lists the settings of a resource.").conditional(),
    change(Admin, "PATCH", "/v1/resources/{name}/settings", "Changes settings of a resource.").with("SettingsChange").conditional(),
    change(Admin, "PUT", "/v1/resources/{name}/attachment", "Gives the devices of a resource to a node without a replica.").with("ResourceAttach"),
    change(Admin, "DELETE", "/v1/resources/{name}/attachment", "Takes the devices away from the node without a replica."),
    ask(Read, "/v1/resources/{name}/failover", "FailoverExplained", "Tells what the death of the primary's node would do."),
    ask(Read, "/v1/resources/{name}/force/{node}", "ForceView", "Tells what a forced promotion would cost."),
    change(Admin, "POST", "/v1/resources/{name}/force/{node}", "Promotes a replica that may lack data.").with("ForceView"),
    change(Operate, "POST", "/v1/resources/{name}/move", "Moves the primary of a resource without a service.").with("PrimaryMove").answers(Answer::Json("PrimaryMoves")).long(),
    change(Admin, "POST", "/v1/resources/{name}/replicas", "Adds a replica.").with("ReplicaAdd").long(),
    change(Admin, "DELETE", "/v1/resources/{name}/replicas/{node}", "Removes a replica and its files.").long(),
    change(Admin, "POST", "/v1/resources/{name}/replicas/{node}/move", "Moves a replica to another node.").with("ReplicaMove").long(),
    change(Admin, "POST", "/v1/resources/{name}/volumes/{volume}/resize", "Makes a volume larger.").with("VolumeResize").long(),
    change(Operate, "POST", "/v1/resources/{name}/snapshots", "Takes a snapshot of a resource.").with("SnapshotTake").long(),
    ask(Read, "/v1/resources/{name}/snapshots/{snapshot}", "SnapshotFiles", "Shows the files of a snapshot on this node."),
    change(Admin, "DELETE", "/v1/resources/{name}/snapshots/{snapshot}", "Deletes a snapshot."),
    change(Admin, "POST", "/v1/resources/{name}/snapshots/{snapshot}/rollback", "Returns a resource to a snapshot.").with("SnapshotRollback").long(),
    ask(Read, "/v1/services", "Vec<ServiceView>", "Lists the services.").query(PAGES),
    change(Admin, "PUT", "/v1/services", "Applies a service file.").with("ServiceApply").answers(Answer::Json("ServiceApplied")).conditional(),
    ask(Read, "/v1/services/{name}", "ServiceView", "Shows a service."),
    change(Admin, "DELETE", "/v1/services/{name}", "Stops and deletes a service.").query(OF_DELETION).long(),
    change(Operate, "POST", "/v1/services/{name}/move", "Moves a service to a node.").with("ServiceMove").long(),
    ask(Read, "/v1/services/{name}/explain", "ServiceExplained", "Tells where a service may run, and why not elsewhere."),
    change(Operate, "PUT", "/v1/services/{name}/maintenance", "Begins or ends the maintenance of a service.").with("MaintenanceSet"),
    change(Operate, "PUT", "/v1/nodes/{name}/maintenance", "Begins or ends the maintenance of a node.").with("MaintenanceSet"),
    change(Operate, "PUT", "/v1/nodes/{name}/cordon", "Keeps services and primaries from coming to a node, or ends that.").with("CordonSet").long(),
    change(Operate, "PUT", "/v1/cluster/maintenance", "Begins or ends the maintenance of the cluster.").with("MaintenanceSet"),
    change(Operate, "PUT", "/v1/services/{name}/wanted", "Stops or starts a service.").with("ServiceWanted"),
    change(Operate, "POST", "/v1/services/{name}/restart", "Restarts a service in place.").with("ServiceRestart"),
    ask(Operate, "/v1/services/{name}/file", "ServiceFile", "Returns the file of a service as it was applied.").conditional(),
    ask(Operate, "/v1/services/{name}/logs", "ServiceLogs", "Returns output of the processes of a service.").query(OF_LOGS),
    ask(Read, "/v1/services/{name}/history", "ServiceHistory", "Lists the events of a service.").query(&[LINES, LIMIT, AFTER]),
    Route { method: "POST", request: Some("ServiceCheck"), ..ask(Operate, "/v1/service-check", "ServiceChecked", "Checks a service file against the nodes, and changes nothing.") },
    ask(Read, "/v1/operations", "Vec<OperationView>", "Lists the operations of this node.").query(PAGES),
    ask(Read, "/v1/operations/{id}", "OperationView", "Tells how far an operation is."),
    change(Operate, "DELETE", "/v1/operations/{id}", "Cancels an operation, if its work can end midway.").answers(Answer::Json("OperationView")),
    ask(Read, "/v1/events", "EventsPage", "Returns events, or waits for the next one.").query(OF_EVENTS),
    ask(Read, "/v1/stream", "", "Sends events and changes as they happen.").answers(Answer::Stream).query(OF_STREAM),
    ask(Read, "/v1/history", "HistoryPage", "Lists the changes of primaries.").query(OF_HISTORY),
    ask(Read, "/v1/load", "LoadPage", "Returns the recorded work of a node.").query(OF_LOAD),
    ask(Read, "/v1/report", "Report", "Reports the load of an interval, and what stands out.").query(OF_REPORT),
    ask(Read, "/v1/baselines", "BaselinesPage", "Lists the intervals whose figures are kept."),
    change(Operate, "PUT", "/v1/baselines/{name}", "Keeps the figures of an interval under a name.").with("BaselineSave"),
    change(Admin, "DELETE", "/v1/baselines/{name}", "Deletes the kept figures of an interval."),
    ask(Operate, "/v1/audit", "AuditPage", "Returns records of the audit log.").query(OF_AUDIT),
    ask(Read, "/v1/programs", "ProgramsView", "Shows the builds of agent and engine on this node."),
    ask(Read, "/v1/engine/successor", "Accepted", "Tells whether another engine could take over in place."),
    change(Admin, "POST", "/v1/engine/successor", "Lets another engine take over in place.").with("EngineSuccessor"),
    ask(Read, "/v1/destinations", "DestinationsPage", "Tells routers where services run, or waits for a change.").query(OF_DESTINATIONS),
    ask(Metrics, "/metrics", "", "Returns the metrics of this node.").answers(Answer::Metrics).query(OF_METRICS),
    ask(Metrics, "/livez", "", "Tells that the agent runs.").answers(Answer::Sentence),
    ask(Metrics, "/readyz", "", "Tells whether the node can do its work.").answers(Answer::Sentence),
    ask(Metrics, "/primary/{name}", "", "Tells whether the node is the primary of a resource, or runs a service.").answers(Answer::Sentence),
    ask(Metrics, "/replica/{name}", "", "Tells whether the node has a replica in sync that is not the primary.").answers(Answer::Sentence),
    ask(Metrics, "/health/{name}", "", "Tells whether the node has the primary or a replica in sync.").answers(Answer::Sentence),
    ask(Metrics, "/errors/{code}", "CodeView", "Explains the code of an error."),
    ask(Metrics, "/openapi.json", "", "Returns the description of the API.").answers(Answer::Description),
];
