//! The checker notices every left-out rule, after the expected number of steps.

use mainstay_spec::{Bounds, MUTATIONS, Mutation, prose, shortest};

const SMALL: Bounds =
    Bounds { nodes: 2, writes: 1, epochs: 3, crashes: 1, changes: 2, disks: 0, copies: 0, reconnects: true };

fn bounds(mutation: Mutation) -> Bounds {
    match mutation {
        // The replica that forgets its promise has to be neither the old primary nor the new one.
        Mutation::PromiseNotDurable => Bounds { nodes: 3, writes: 0, epochs: 2, changes: 0, ..SMALL },
        Mutation::IgnoreIncarnation => Bounds { disks: 1, ..SMALL },
        Mutation::CopyEndsEarly => Bounds { copies: 1, ..SMALL },
        _ => SMALL,
    }
}

/// Steps of the shortest counterexample, as the table in the README states them.
fn expected(mutation: Mutation) -> usize {
    match mutation {
        Mutation::NoEpochCheck => 8,
        Mutation::PromiseNotDurable => 14,
        Mutation::CommitAlone => 2,
        Mutation::AckOnReceipt => 7,
        Mutation::ShrinkBeforeKnown => 3,
        Mutation::GrowBeforeRequired => 12,
        Mutation::GrowBeforeCaughtUp => 9,
        Mutation::GiveUpJoin => 14,
        Mutation::PromoteOutside => 4,
        Mutation::PromoteWithoutVersion => 4,
        Mutation::ResumeEpoch => 4,
        Mutation::ServeAtOnce => 6,
        Mutation::NoCut => 7,
        Mutation::IgnoreIncarnation => 4,
        Mutation::CopyEndsEarly => 11,
    }
}

#[test]
fn every_left_out_rule_is_noticed() {
    for info in MUTATIONS {
        let bounds = bounds(info.mutation);
        let found = shortest(bounds, info.mutation);
        let Some(found) = found else { panic!("{} is not noticed within {bounds:?}", info.name) };
        println!("{:24} {:4} {:2} steps: {}", info.name, info.rule, found.steps.len(), found.property);
        let told = prose::tell(bounds.nodes, &found);
        assert_eq!(found.steps.len(), expected(info.mutation), "{}:\n{told}", info.name);
        let steps = found.steps.len();
        assert!(told.contains(&format!("{steps:3}. ")) && told.contains("Broken: "), "{told}");
    }
}
