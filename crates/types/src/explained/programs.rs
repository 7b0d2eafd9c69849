//! Errors of the agent, the engine and the command line.

use super::{Chapter, chapter};

pub const CHAPTER: Chapter = chapter! {
    "programs" "Errors: agent, engine and command line"
    "For operators of an agent or an engine that does not start or answer, and of a command that cannot reach it."

    Address
        "10.0.0.1 is not an address of the form IP:port"
        "The agent gave the engine an address that it cannot use. You see this in logs only."
        "Install the same release of agent and engine, and restart both.";
    AgentAnswerUnreadable
        "the agent's answer could not be read"
        "The connection to the agent ended in the middle, or the two are of different releases."
        "Look at the agent's log: `journalctl -u mainstay-agent`.";
    AgentCgroup
        "there is no cgroup hierarchy of version 2 here"
        "The agent watches and ends services by their control groups, and needs version 2."
        "Mount it at `/sys/fs/cgroup`, or name a directory with `--cgroup-root`.";
    AgentEnded
        "the agent cannot go on, with the cause"
        "The system refused the agent something that it needs."
        "The supervisor starts it again. If it ends again, mend the cause: `journalctl -u mainstay-agent` has more.";
    AgentFatal
        "the agent cannot go on"
        "The agent found a fault in itself or its files, and ends so that nothing goes wrong."
        "Its supervisor starts it again. Keep its log and report it.";
    AgentFile
        "/var/lib/mainstay: Permission denied"
        "A file of the state directory cannot be read or written."
        "Look at the file system and its permissions.";
    AgentForbidden
        "no agent answers at /run/mainstay/agent.sock: Permission denied"
        "Only root may open the agent's socket, because no group of users was given rights on this node."
        "Run the command as root. To give other users rights, name a group in the configuration: the page on access says how.";
    AgentInternal
        "an answer could not be made"
        "The agent found a fault in itself."
        "Look at the agent's log, and report it.";
    AgentRuns
        "the agent of this node runs, or another command uses its files"
        "Two processes must not use the files of the state directory."
        "Stop the agent first: `systemctl stop mainstay-agent`.";
    AgentStore
        "the files of the control plane cannot be opened or written"
        "The disk of the state directory fails or is full, or another process has the file."
        "Look at that disk, and at the kernel's messages with `dmesg`.";
    AgentTimeout
        "the agent accepted the connection and did not answer within 10 s"
        "The agent's process is stopped, or hangs with its disk. A change that you asked for may still happen."
        "Look at the process and at its log. Look at `mainstay status` on another node before you repeat a change.";
    AgentUnreachable
        "no agent answers at /run/mainstay/agent.sock: No such file or directory"
        "The agent does not run on this node, or has its socket elsewhere."
        "Start it: `systemctl start mainstay-agent`. Or name its socket with `--socket`.";
    ApiAddress
        "the agent cannot listen for the API on TCP"
        "Another program has the port of `api_listen`, or this machine does not have the address. The agent goes on without it, and tries again."
        "Free the port, or choose another one. The agent's socket works without it.";
    ApiCertificate
        "the API is not served on TCP: /etc/mainstay/api.pem has no certificate in PEM form"
        "The files of `api_certificate` and `api_key` cannot be used, or the node has no certificate for its server. You see this in logs only."
        "Correct the files. The agent reads them again within seconds. The socket works without them.";
    ApiUnavailable
        "this node cannot judge tokens now"
        "The node is no member, has not received the record, or has had no contact with a majority for longer than five minutes. So it cannot know which tokens were revoked."
        "Ask another node. On the node itself, root may use the socket.";
    BadConfiguration
        "/etc/mainstay/mainstay.toml, line 12, column 1: there is no option `lisen`"
        "The configuration cannot be read, or has a mistake."
        "Correct it. `mainstay config check` names each mistake with its line.";
    BadCursor
        "after: this is no place in the list /v1/services"
        "The parameter `after` of a request to the API was not taken from the header `Link` of an answer about the same list, or was changed."
        "Begin again without `after`, and follow the header `Link` of each answer unchanged.";
    BadDirectory
        "/etc is a directory of the system, or one directory lies in another"
        "A directory for state, sockets, journals, hooks or output cannot be used."
        "Name another directory. The message says why this one is refused.";
    BadRequest
        "the request to the API has a field that does not fit"
        "The body is no JSON, has an unknown field, or lacks one."
        "The message names the field. The page has all requests.";
    BadServer
        "`10.0.0.1` is not the address of a server"
        "The text after `--server`, `--ca` or `--fingerprint` cannot be used, or a file that it names has no certificates."
        "Write the server as `https://HOST:PORT`, for example `--server https://10.0.0.1:7404`.";
    BadTokenFile
        "/etc/mainstay/token can be read by others (mode 644)"
        "The file of `--token-file` is missing, has no token in it, or other users may read it."
        "Put the token into a file that only you can read: `chmod 600 FILE`. `mainstay token create NAME --scope read` on a node prints a new one.";
    ControlPlaneBusy
        "the request was not taken"
        "There is no leader at this moment, or it has too much to do. Nothing was changed."
        "Try again.";
    DeviceUnavailable
        "the kind of device that --device names is not available"
        "The kernel module is not loaded, or this kernel does not have it."
        "Start the engine with `--device auto`, or load the module. `mainstay doctor` names it.";
    EngineEnded
        "the engine cannot go on, with the cause"
        "The system refused the engine something that it needs, or its address is in use."
        "The supervisor starts it again. If it ends again, mend the cause: `journalctl -u mainstay-engine` has more.";
    EngineInUse
        "the engine of this machine still runs as node 3 of an earlier cluster"
        "An engine serves one node of one cluster until it ends."
        "Restart the engine, and try again.";
    EngineTimeout
        "the engine did not answer"
        "The engine hangs, mostly with a disk."
        "Look at the engine's log, and at `mainstay status`.";
    EngineUnreachable
        "the agent has no connection to the engine of this node"
        "The engine does not run, or uses another run directory than the agent."
        "Start it: `systemctl start mainstay-engine`.";
    Forbidden
        "the user bob has the right `read`, and PUT /v1/nodes/{name}/cordon needs `operate`"
        "The agent knows the user from the kernel, and the groups of that user do not have the right that the command needs. Or the token of the request has a lesser right."
        "Run the command as root, or let an administrator add the user to a group that has the right. The error names the groups of this node. For a program from elsewhere, make a token with the right.";
    Guard
        "the engine could not note what it has to silence"
        "The engine's helper process has ended and is being started again, or a path or an address is not absolute. You see this in logs only."
        "Nothing has to be done: the agent asks again.";
    HistoryFiles
        "the history of this node cannot be read: Permission denied"
        "The files below `history` in the state directory cannot be read or written. The agent goes on without them, and tries again each minute."
        "Look whether the file system of the state directory is full or read-only.";
    Http
        "the answer is no error of Mainstay"
        "Something else than an agent answers at the socket or the server, or a much newer agent."
        "Check `--socket` or `--server`.";
    IdempotencyKeyInUse
        "the change with the Idempotency-Key `8e03978e` is under way"
        "The same request was sent before with the same key, and is not answered yet."
        "Wait, and send the same request with the same key again: it gets the answer of the first one.";
    IdempotencyKeyReused
        "nothing is changed: the Idempotency-Key `8e03978e` was sent with another request before"
        "A key is of one request: method, path, parameters, `If-Match` and body. This node has answered another request with this key, or is about to."
        "Send each change with a key of its own. Use a key again only to repeat the same request.";
    Interrupted
        "the engine gave up the request, or the command was interrupted"
        "The engine ended with the request under way, or you ended the command."
        "Repeat it. The message says what goes on without it.";
    Io
        "a file cannot be read or written"
        "The system refused it, with the cause in the message."
        "Name another file, or mend the cause.";
    Lease
        "the lease was not taken"
        "The engine is being stopped, or could not make sure that it can silence its services. You see this in logs only."
        "If it is not being stopped, restart the engine.";
    Listen
        "the engine cannot listen at its address"
        "Another program has the port, or this machine does not have the address."
        "Free the address, or start the engine with another `--listen`.";
    LogUnwritable
        "the log of a process cannot be written"
        "The state directory is full or cannot be written."
        "Make room in the state directory.";
    MethodNotAllowed
        "PUT is no method of this path"
        "The API has the path, and no route with this method. The header `Allow` of the answer has the methods."
        "Use one of the methods in the header `Allow`. The page has all routes.";
    MetricsAddress
        "the agent cannot listen for metrics"
        "Another program has the port of `metrics_listen`, or this machine does not have the address. The agent goes on without it, and tries again."
        "Free the port, or choose another one. `mainstay metrics` works without it.";
    MetricsBusy
        "too many scrapes wait for their answer already"
        "Scrapes come faster than the agent answers them."
        "Scrape less often, or from fewer places.";
    MetricsTimeout
        "no page within some seconds"
        "Something in the agent, or below its state directory, hangs."
        "Look at the agent's log and at the disk of the state directory.";
    NbdCertificates
        "the certificate, key or authority for NBD cannot be used"
        "A file is missing, cannot be read, or does not fit the others."
        "Correct the file, or start the engine without `--nbd-listen`: then it serves NBD clients of this machine only.";
    NoHello
        "the engine does not know its node yet"
        "The agent has not greeted the engine since the engine started. You see this in logs only."
        "Nothing has to be done: the agent greets it and asks again.";
    NotAllowed
        "this is not passed on to an engine"
        "Another node asked for something that this release does not pass on."
        "Install the same release on all nodes.";
    NotCancelled
        "operation 0d1c2b3a00000007 is not cancelled: it cannot be undone midway"
        "The operation has ended, or its work has no safe end in the middle, or the cluster is recording it at this moment."
        "Look at it with `mainstay operation show ID`. If it runs, wait for its end, and undo its work with another request: the message names it.";
    NotConfirmed
        "resource db is left as it is"
        "The command asks for a confirmation, and got none. Nothing was changed."
        "Answer the question, or give `--yes`.";
    NotFound
        "there is no such route"
        "The API has no such path, or this port serves only metrics or routers."
        "Use the command line, or the agent's socket. The page has all routes.";
    NotInPlace
        "the engine cannot be replaced under its services"
        "The message says why, for example that the devices are not FUSE devices."
        "Run `mainstay node upgrade --drain`: services and primaries leave the node first.";
    NotTheAgent
        "only the connection that said hello last may ask this"
        "A second agent, or an earlier one, speaks to the engine. You see this in logs only."
        "See that one agent runs on this machine.";
    OptionWithoutEffect
        "--lab has no effect here"
        "The command asks no agent, or the option does nothing for it. Nothing was done."
        "Leave the option out.";
    OtherNode
        "this engine serves node 2 of another cluster"
        "The machine has another identity than when the engine started."
        "Restart the engine.";
    Output
        "cannot write the answer as JSON"
        "The command found a fault in itself."
        "Leave `--json` out, and report it.";
    PagesUnseen
        "cannot look at /srv/db/data/t.ibd: Permission denied"
        "`mainstay check atomic DIRECTORY` could not look at the directory, at a data file, or at the device under the file system."
        "Name a directory that is there, and run the command as root on the node where it is mounted.";
    PreconditionFailed
        "service db is not changed: it has been changed by another operator meanwhile"
        "The request has the header `If-Match` with a tag that is not that of the present state, because something has changed since you read it."
        "Read the object again, make your change anew, and send it with the new `ETag`.";
    ResultUnknown
        "it is not known whether the change was recorded"
        "The leader changed, or no majority answered, while the change was under way. It may still happen."
        "Look at the state before you repeat it. `mainstay status` says whether a majority of the nodes is up.";
    RunDir
        "cannot note the users of devices"
        "The run directory cannot be written."
        "Make `/run/mainstay` writable, and look whether its file system is full.";
    ServerUnproven
        "the server at n1:7404 cannot be believed: its certificate comes from no authority that this command believes"
        "The certificate of the server is of another authority, has another name than the command asked for, or has ended. Nothing was sent."
        "Give the cluster's authority with `--ca` or `--fingerprint`, and a name or address of the node with `--server`. If the message speaks of time, compare the clocks.";
    SilencerEnded
        "the engine's helper process ended"
        "The helper that silences services could not go on."
        "Nothing has to be done: the engine starts it again.";
    TooManyApiTokens
        "the cluster has 256 tokens of the API already"
        "A cluster keeps at most this many."
        "Revoke those that are not needed: `mainstay token list` shows when each was last used.";
    TooManyAttempts
        "too many requests without a good token came from 192.0.2.9"
        "After ten requests without a good token from one address, the node refuses all requests over TCP from there for a while, also those with a good token."
        "Wait as long as the message says. Find the program that sends the wrong token: the agent's log names its address.";
    TooManyBaselines
        "there are 16 baselines already, which is the most"
        "The nodes keep the figures of at most this many intervals."
        "Delete one that you do not need: `mainstay report baseline list` shows them.";
    TooManyOperations
        "nothing is changed: 64 operations run on this node already"
        "A node runs at most 64 operations at once."
        "Wait until some of them end, or send the request without `Prefer: respond-async`.";
    TooManyStreams
        "64 readers have a stream of events from this node already"
        "A node serves at most 64 streams at once, and 16 of one user or token."
        "Close consoles and programs that are not needed, or ask another node: all have the same events.";
    Unauthenticated
        "the cluster does not know this token"
        "The request has no token, or one that is mangled, was revoked or has ended, or is of another cluster."
        "Make a new one on a node, as root: `mainstay token create NAME --scope read`.";
    UnknownApiToken
        "there is no token named ci"
        "No token of the API has this name. It may have been revoked already."
        "See `mainstay token list`.";
    UnknownBaseline
        "there is no baseline friday"
        "No node that answers keeps figures under this name."
        "See `mainstay report baseline list`.";
    UnknownOperation
        "this node knows no operation 0d1c2b3a00000007"
        "A node keeps its last 256 operations in memory, until its agent ends. Other nodes do not know them."
        "Ask the node that began it: `mainstay operation list` lists those of one node. `mainstay status` and `mainstay audit` tell on every node what became of the work.";
    Unreachable
        "this node does not answer within 5 s"
        "The agent of this node waits for its disk."
        "Look at `mainstay status` and at the kernel's messages with `dmesg`, and try again.";
    WaitOver
        "moving service db is not done after 60 s"
        "The time of `--wait-s` is over. What the command began goes on."
        "`mainstay status` says what it waits for. Do not repeat the command before you have looked.";
};
