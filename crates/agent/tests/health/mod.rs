//! Answers for load balancers.

use crate::support::TestNode;
use crate::{create, eventually, http, three_nodes};

/// Status and sentence of an answer on the port without tokens.
fn asked(node: &TestNode, path: &str) -> (u16, String) {
    let answer = http(node.metrics_address(), &format!("GET {path}")).unwrap_or_default();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let (_, words) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status, words.trim_end().to_owned())
}

fn statuses(nodes: &[TestNode], path: &str) -> Vec<u16> {
    nodes.iter().map(|node| asked(node, path).0).collect()
}

#[test]
fn load_balancers_find_the_primary_and_the_replicas_by_the_status_alone() {
    let mut alone = TestNode::new(96, 1);
    alone.start();
    eventually("an answer", || asked(&alone, "/livez") == (200, "the agent runs".to_owned()));
    for path in ["/readyz", "/primary/db", "/replica/db", "/health/db"] {
        assert_eq!(asked(&alone, path), (503, "this node is not a member of a cluster".to_owned()), "{path}");
    }

    let mut nodes = three_nodes(95);
    create(&nodes[0], "db");
    for (path, wanted) in [
        ("/readyz", [200, 200, 200]),
        ("/primary/db", [200, 503, 503]),
        ("/replica/db", [503, 200, 503]),
        ("/health/db", [200, 200, 503]),
        ("/primary/other", [404, 404, 404]),
    ] {
        eventually(path, || statuses(&nodes, path) == wanted);
    }
    assert_eq!(asked(&nodes[0], "/primary/db").1, "n1 is the primary of db");
    assert_eq!(asked(&nodes[2], "/primary/db").1, "n1 is the primary of db");
    assert_eq!(asked(&nodes[2], "/replica/db").1, "n3 has no replica of db in sync");
    // HAProxy asks so unless it is told otherwise, and nothing else is taken.
    for (request, status) in
        [("OPTIONS /primary/db", "200"), ("HEAD /primary/db", "200"), ("POST /primary/db", "405")]
    {
        let answer = http(nodes[0].metrics_address(), request).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(status == "405" || answer.contains("cache-control: no-store\r\n"), "{answer}");
    }
    // The same on the socket.
    assert_eq!(nodes[0].client().get_text("/primary/db").unwrap(), "n1 is the primary of db\n");

    nodes[0].kill();
    eventually("the next primary", || statuses(&nodes, "/primary/db") == [0, 200, 503]);
    nodes[1].stop_engine();
    eventually("a node without its engine", || {
        asked(&nodes[1], "/readyz") == (503, "the engine of this node does not answer".to_owned())
    });
    assert_ne!(asked(&nodes[1], "/primary/db").0, 200);
    nodes[2].kill();
    eventually("a node without a majority", || {
        ["/readyz", "/primary/db", "/health/db"].iter().all(|path| asked(&nodes[1], path).0 == 503)
    });
}
