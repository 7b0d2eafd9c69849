//! Errors about members, addresses, votes and machines of a cluster.

use super::{Chapter, chapter};

pub const CHAPTER: Chapter = chapter! {
    "cluster" "Errors: members, addresses and votes"
    "For operators of a command about a cluster or its nodes that was refused, or of an agent that ends."

    AddressElsewhere
        "another node answers at 10.0.0.2:7400, which was given as the address of the agent"
        "The cluster called the joining node back at the address that it stated, and another node answered there."
        "Give the joining node's own address with `--address` or `--engine-address`, and join again.";
    AddressTaken
        "node n2 has the address 10.0.0.2:7400"
        "Another member of the cluster is recorded with this address."
        "Give an address of the node that joins. If that member is dead and this machine is its successor, join with `--replace`.";
    AddressUnreachable
        "10.0.0.2:7401, which was given as the address of the engine, cannot be reached"
        "The cluster could not connect to the node there: the program does not run, listens elsewhere, or a firewall closes the port."
        "Start agent and engine on that machine and open both ports between all nodes. `mainstay doctor --peer ADDRESS` checks them.";
    AgentTransport
        "the agent cannot listen, or another agent cannot be reached"
        "The address belongs to another program or another machine, or the network between the two agents is cut."
        "Check the address that you gave, the port and the network. `mainstay doctor --peer ADDRESS` checks the way there.";
    AlreadyAMember
        "this node is n2 of the cluster prod"
        "The machine has joined a cluster, or its state directory is still that of a member."
        "To make it a member of another cluster, remove it with `mainstay node remove NODE`, and move its state directory away.";
    AlreadyVotes
        "node n4 is a full member"
        "A request to join was to be taken back after the node had become a full member."
        "Look at `mainstay node list`. To undo the join, use `mainstay node remove NODE`.";
    AuditUnwritten
        "nothing is changed: the request cannot be written into the audit log"
        "Each change is written into the audit log of the cluster before it is made, and the nodes did not confirm that in time."
        "Look at `mainstay status`. When a majority of the nodes answers again, repeat the command.";
    AuthorityExists
        "the cluster has an authority already"
        "A cluster makes its authority when it is made, and a second one was offered."
        "Look at `mainstay cluster certificates`. If an agent of another release offered it, update that agent.";
    BadAddress
        "`0.0.0.0` cannot be the address of the agent, or the engine listens on another address"
        "Other nodes could not use the address, or the engine of this node does not listen there, or another program has the port."
        "Give an IP address of this machine that all other nodes reach, for example `--address 10.0.0.1`.";
    BadBackup
        "this is no whole backup of a cluster"
        "The file was not written by `mainstay cluster backup FILE`, is cut off, or is of a newer release."
        "Take another copy of the file.";
    BadToken
        "this is no token: its checksum is wrong, so a part of it is missing or was changed"
        "The text after `--token` is not a token to join, or was cut when it was copied."
        "Copy the whole token, from `mst_join_` to its end, or make a new one on a member: `mainstay cluster token create NODE`.";
    BadTokenLife
        "a token is good for at most 24 h, and for more than no time"
        "The time that was asked for with `--ttl` or `--days` is outside of the limits: 24 h for a token to join, and 366 days for one of the API."
        "Give a time of up to 24h with `--ttl`, or up to 366 days with `--days`.";
    BuildTooOld
        "the build of this node has feature level 1, and the cluster uses feature level 2"
        "The cluster uses functions that this build does not know, so it could not follow the record of the cluster."
        "Install the release of the other nodes on this one, and start its agent anew. Its state is kept.";
    CertificateLost
        "this node is n2 of the cluster prod, and its key or certificate is missing"
        "The file `trust.json` in the state directory is missing or damaged, or the node became a member under a release without certificates. Without the file no other node talks to this one."
        "Put the file back from a copy of the same state directory. If there is none, remove the node on a member with `mainstay node remove NODE`, empty its state directory, and join it anew by a token.";
    CertificateRefused
        "the record has another key of node n2"
        "A node asked for a certificate for a key that is not its own in the record, or its certificate has ended and it asked for something else than a new one."
        "If the message speaks of time, set the clocks of both machines. Otherwise remove the node on a member, and join its machine anew by a token.";
    ClusterExists
        "the node is a member of a cluster"
        "`cluster init` makes a new cluster, and this node has one."
        "To add another node, run `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN` on that node.";
    FeatureLevel
        "this needs feature level 2, and the cluster has feature level 1: n3 has an older build"
        "A new function waits until every node knows it. The message names the nodes that do not."
        "Upgrade these nodes with `mainstay node upgrade`, or remove those that do not come back. The level then rises by itself.";
    HasNotJoined
        "n4 has not joined yet"
        "The node is listed, and has not received the cluster's record yet."
        "Wait until `mainstay node list` does not show it as joining any more.";
    IdentityElsewhere
        "the node of this identity is recorded at another address"
        "This machine does not have the address of the node that it says it is. It may be a copy of that node's disk."
        "If it is a copy, empty its state directory and join it under another name. If it is the node, give it the recorded address back.";
    IdentityInUse
        "another machine is running as node n2 while this one has the same identity"
        "The disk of one of the two machines is a copy of the other's."
        "Stop the copy. To use it as another node, empty its state directory and join it under another name.";
    JoinBusy
        "this node is joining the cluster prod as n2, and does not vote yet"
        "An earlier `cluster join` on this node has not ended."
        "Wait for its end, which `mainstay status` shows, or run the same command to join again.";
    JoinFailed
        "this node did not receive the state of the cluster in time, and is no member"
        "The members could be asked, and their entries did not arrive. Often one direction, or only large packets, do not get through."
        "Check the network between this node and all members in both directions, also with large packets, and join again.";
    JoinUnfinished
        "this node has asked to join, and has not received the state of the cluster yet"
        "The join takes longer than the command waits. It goes on, and the node does not vote until it has ended."
        "Check that the members reach this node's address. Run the same command again to wait for the end.";
    JoinWithdrawn
        "this request to join was taken back by its node"
        "The node gave up waiting for an answer to an earlier request."
        "Run the command again.";
    JoinsNothing
        "this node is not about to become a member"
        "A member called the node back, and the node knew of no request to join: it was restarted meanwhile, or another machine has the address."
        "Run `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN` on it again.";
    LastNode
        "n1 is the only node of the cluster"
        "The last node cannot be removed, and needs no recovery: it has its own majority."
        "To end the cluster, stop its agent and its engine, and move its state directory away.";
    LoopbackAddress
        "node n1 has the address 127.0.0.1:7400, which other machines cannot reach"
        "The cluster was made with a loopback address, and this node is on another machine."
        "Stop agent and engine of that node, empty its state directory, and make the cluster there again with an `--address` that all nodes reach.";
    MembershipSettling
        "a node has not learned of the last change of the voters yet"
        "Voters change one at a time. The command waits for a while, and then ends with this error."
        "Try again in a moment. If it stays so, bring the node back that `mainstay status` names.";
    NoCluster
        "there is no cluster yet"
        "No cluster was made on this node, and it has joined none."
        "Run `mainstay cluster init --name CLUSTER --as NODE --address ADDRESS` on the first node, or `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN` on a further one.";
    NoMajority
        "no majority of the voters can be reached"
        "More than half of the voters are dead or cut off from this node, so nothing can be decided."
        "Bring the other nodes or their network back. If they are lost for good, read about the loss of the majority.";
    NodeAlive
        "node n3 is alive"
        "Only a dead node is replaced or left out of a rotation, and a cluster begins anew only when the other nodes are off."
        "Move its replicas, and remove it. If it died just now, wait until `mainstay node list` shows that.";
    NodeDead
        "node n3 counts as dead"
        "A change was asked for that only a living node can take part in."
        "Bring the node back. It takes part again by itself.";
    NodeRemoved
        "this node was removed from its cluster"
        "An operator removed the node, or another machine has taken its place. Its files are kept, and it serves nothing."
        "To let it join as a new member, follow the steps in the page on nodes. A restart does not help.";
    NodeUnreachable
        "node n3 does not answer"
        "The agent there does not run, hangs, or is cut off."
        "Bring it up, or name another node. `mainstay status` says since when it does not answer.";
    NodesNotNamed
        "the other nodes of the cluster are n2, n3"
        "`cluster recover` wants the names of all other nodes, so that none is given up by mistake."
        "Name exactly these. If one of them can come back, bring it back instead.";
    NotAMember
        "this node is not a member of a cluster"
        "The node has joined no cluster, or `--state-dir` names another directory than that of the node."
        "Run `mainstay cluster init --name CLUSTER --as NODE --address ADDRESS` or `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN` on it.";
    OtherCluster
        "the asked node is not a member of the asker's cluster"
        "The address leads to a node of another cluster."
        "Check the address of the peer.";
    PeerAnswer
        "the peer gave an answer to another question"
        "The two nodes run different releases."
        "Install the same release on all nodes, and try again.";
    PeerUnproven
        "the agent at 10.0.0.2:7400 cannot be believed: it comes from no authority of this cluster"
        "The other end did not prove that it is the member that was sought: it belongs to another cluster or to none, its certificate has ended, or one of two clocks is wrong. Or the cluster has replaced its authority since the token was made."
        "Check the address, and that the token comes from this cluster, or make a new token. If the message speaks of time, set the clocks of both machines.";
    RotationRuns
        "the cluster is replacing its authority already: authority 2 is announced, and n3 must learn of it"
        "A second rotation was begun before the first one was over."
        "Look at `mainstay cluster authority show`. If the rotation waits for a dead node, `mainstay status` says what to do.";
    RotationState
        "authority 2 issues already, so there is no way back"
        "The rotation of the authority is over, has not begun, is too far for this order, or does not wait for the node that was named."
        "Look at `mainstay cluster authority show`.";
    StateLost
        "the file /var/lib/mainstay/agent.redb of this node's state is missing"
        "The node cannot know what it has voted for. If it went on, it could vote twice."
        "Do not put an older copy in its place. Make the node anew: the page has each step.";
    TokenRefused
        "this token is for a node named n2, and not for n3"
        "A token lets one node join, under one name, once, and until its end. This one was used, was revoked, has ended, is for another name or another cluster, or the cluster has replaced its authority since."
        "Make a new one on a member: `mainstay cluster token create NODE`.";
    TooManyNodes
        "a cluster has at most 64 nodes"
        "The cluster has as many nodes as it can hold."
        "Remove a node that is not needed, or make another cluster of the further nodes.";
    TooManyTokens
        "64 tokens are open already"
        "So many tokens to join can be open at a time."
        "Revoke some: `mainstay cluster token list` and `mainstay cluster token revoke ID`. Others end by themselves within 24 h.";
    UnknownNode
        "there is no node n9"
        "No member has this name."
        "`mainstay node list` shows the names.";
    UnknownToken
        "there is no token 00c0ffee00c0ffee"
        "No token with this public half is known, or it ended more than a day ago."
        "See `mainstay cluster token list`.";
    VoteNeeded
        "without n3 only 1 of 2 votes would live, which is no majority: n2 is dead"
        "Without the vote of this node, the living nodes would be no majority. Or the node is dead and one of two voters."
        "Bring the dead node back that the message names, or remove that one first.";
};
