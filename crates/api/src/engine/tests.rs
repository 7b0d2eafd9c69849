use super::*;
use mainstay_types::{
    Attachment, ClientOver, Code, ConfigVersion, Epoch, Fingerprint, HexBytes, Incarnation, IssChange,
    Member, NodeId, Proposal, ProposedChange, ScrubFinding, ScrubOutcome, ScrubState, SessionId,
    StepDownReason,
};
use std::io::Cursor;

fn samples() -> Vec<RequestLine> {
    let requests = vec![
        Request::Hello { node: NodeId(1), cluster: u64::MAX, generation: 3 },
        Request::Lease { until_us: Time(u64::MAX) },
        Request::Guard {
            entries: vec![GuardEntry {
                resource: ResourceId(7),
                cgroups: vec!["/sys/fs/cgroup/x".into()],
                addresses: vec![GuardAddress { interface: "eth0".into(), address: "10.0.0.7/24".into() }],
                mounts: vec![],
                devices: vec![],
            }],
        },
        Request::Record {
            record: ResourceRecord {
                instances: [(NodeId(1), Instance(u64::MAX))].into(),
                attached: Some(Attachment {
                    node: NodeId(3),
                    session: SessionId(2),
                    instance: Some(Instance(9)),
                    wait_ms: 60_000,
                }),
                ..ResourceRecord::new(ResourceId(7))
            },
        },
        Request::AttachClient {
            name: "db".into(),
            record: Box::new(ResourceRecord::new(ResourceId(7))),
            instance: Instance(u64::MAX),
        },
        Request::DetachClient { resource: ResourceId(7) },
        Request::Blank { resource: ResourceId(7), volume: VolumeId(1) },
        Request::Trust {
            proofs: Box::new(Proofs {
                key: HexBytes(vec![1, 2]),
                chain: vec![HexBytes(vec![3]), HexBytes(vec![4])],
                cluster: u64::MAX,
                authorities: vec![HexBytes(vec![4])],
                members: vec![(NodeId(1), Fingerprint([5; 32])), (NodeId(9), Fingerprint([6; 32]))],
                allows_clear: true,
            }),
        },
        Request::Status,
    ];
    requests.into_iter().enumerate().map(|(id, request)| RequestLine { id: id as u64, request }).collect()
}

fn scrub() -> ScrubStatus {
    let finding = ScrubFinding {
        volume: VolumeId(0),
        block: 7,
        blocks: 2,
        at: Index(u64::MAX),
        groups: vec![vec![NodeId(1), NodeId(3)], vec![NodeId(2)]],
        damaged: vec![NodeId(4)],
        right: Some(0),
        proven: true,
        outcome: ScrubOutcome::Repaired,
    };
    ScrubStatus {
        state: ScrubState::Done,
        repair: mainstay_types::ScrubRepair::Proven,
        rate: 0,
        took_ms: 5,
        extents: 9,
        done: 9,
        compared: vec![(NodeId(1), 9)],
        uncompared: 0,
        different: 2,
        repaired: 2,
        overwritten: 0,
        findings: vec![finding],
        from: Index(1),
        to: Index(9),
        left_ms: None,
    }
}

#[test]
fn lines_survive_any_cut() {
    let mut stream = Vec::new();
    for line in samples() {
        write_line(&mut stream, &line).unwrap();
    }
    for step in [1, 2, 7, 100, stream.len()] {
        let mut decoder = LineDecoder::default();
        let mut seen: Vec<RequestLine> = Vec::new();
        for piece in stream.chunks(step) {
            decoder.push(piece);
            while let Some(line) = decoder.next_message().unwrap() {
                seen.push(line);
            }
        }
        assert_eq!(seen, samples());
    }
    let mut reader = Cursor::new(stream);
    let mut seen: Vec<RequestLine> = Vec::new();
    while let Some(line) = read_line(&mut reader).unwrap() {
        seen.push(line);
    }
    assert_eq!(seen, samples());
}

#[test]
fn engine_lines_round_trip() {
    let lines = vec![
        EngineLine::Reply { id: 1, reply: Reply::Ok },
        EngineLine::Reply { id: 2, reply: Reply::refused(Code::Busy, "m", "r") },
        EngineLine::Reply { id: 3, reply: Reply::Status(EngineStatus::default()) },
        EngineLine::Reply { id: 4, reply: Reply::Scrub { status: None } },
        EngineLine::Reply { id: 5, reply: Reply::Scrub { status: Some(scrub()) } },
        EngineLine::Event { event: EngineEvent::Replica(ReplicaStatus::default()) },
        EngineLine::Event {
            event: EngineEvent::Client(ClientStatus {
                instance: Instance(u64::MAX),
                session: Some(SessionId(9)),
                over: Some(ClientOver::Waited),
                primary: Some(NodeId(2)),
                ..ClientStatus::default()
            }),
        },
        EngineLine::Event { event: EngineEvent::ClientGone { resource: ResourceId(7) } },
        EngineLine::Event {
            event: EngineEvent::Proposal(ProposalEvent {
                resource: ResourceId(1),
                proposal: proposal(ProposedChange::Iss(IssChange::Grow { add: ADD })),
            }),
        },
    ];
    for line in lines {
        let mut reader = Cursor::new(encode_line(&line).unwrap());
        assert_eq!(read_line::<EngineLine>(&mut reader).unwrap(), Some(line));
    }
}

const ADD: Member = Member { node: NodeId(4), incarnation: Incarnation(5) };

fn proposal(change: ProposedChange) -> Proposal {
    Proposal { version: ConfigVersion(2), epoch: Epoch(3), change }
}

/// Engine and agent of a node are not updated in one moment.
#[test]
fn proposals_are_told_as_in_the_first_release() {
    let told = [
        (
            ProposedChange::Iss(IssChange::Grow { add: ADD }),
            r#"{"type":"grow","add":{"node":4,"incarnation":5}}"#,
        ),
        (
            ProposedChange::StepDown { reason: StepDownReason::Older },
            r#"{"type":"step-down","reason":"older-copy"}"#,
        ),
    ];
    for (change, json) in told {
        let event =
            EngineEvent::Proposal(ProposalEvent { resource: ResourceId(1), proposal: proposal(change) });
        let json = format!(r#"{{"type":"proposal","resource":1,"version":2,"epoch":3,"change":{json}}}"#);
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<EngineEvent>(&json).unwrap(), event);
    }
}

#[test]
fn endless_and_torn_lines_are_refused() {
    let endless = vec![b'x'; LINE_BYTES_MAX + 1];
    assert!(matches!(read_line::<Request>(&mut Cursor::new(&endless)), Err(LineError::TooLong)));
    let mut decoder = LineDecoder::default();
    decoder.push(&endless);
    assert!(matches!(decoder.next_message::<Request>(), Err(LineError::TooLong)));
    assert!(matches!(read_line::<Request>(&mut Cursor::new(b"{\"ty")), Err(LineError::Torn)));
    assert!(matches!(read_line::<Request>(&mut Cursor::new(b"\n")), Err(LineError::Json(_))));
}

#[test]
fn a_bad_line_does_not_spoil_the_next() {
    let mut decoder = LineDecoder::default();
    decoder.push(b"nonsense\n{\"id\":1,\"request\":{\"type\":\"status\"}}\n");
    assert!(matches!(decoder.next_message::<RequestLine>(), Err(LineError::Json(_))));
    let line = decoder.next_message::<RequestLine>().unwrap();
    assert_eq!(line, Some(RequestLine { id: 1, request: Request::Status }));
}
