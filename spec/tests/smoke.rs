//! The whole protocol at bounds that end within seconds. Larger ones are run by hand; see `LOG.md`.

use mainstay_spec::{Bounds, Spec, prose, run};

/// Explores everything within the bounds and gives the number of distinct states.
fn holds(bounds: Bounds, symmetry: bool) -> usize {
    bounds.validate().unwrap();
    let outcome = run(Spec::new(bounds, None, symmetry), None, None);
    println!("{bounds:?}: {} generated, {} distinct", outcome.generated, outcome.distinct);
    if let Some(found) = outcome.found {
        panic!("within {bounds:?}:\n{}", prose::tell(bounds.nodes, &found));
    }
    outcome.distinct
}

#[test]
fn two_replicas() {
    let bounds = Bounds {
        nodes: 2,
        writes: 2,
        epochs: 3,
        crashes: 1,
        changes: 2,
        disks: 0,
        copies: 0,
        reconnects: true,
    };
    // A model that has lost most of its behaviours would hold everything, too.
    assert!(holds(bounds, true) > 300_000);
}

#[test]
fn two_replicas_and_a_new_disk() {
    let bounds = Bounds {
        nodes: 2,
        writes: 1,
        epochs: 2,
        crashes: 1,
        changes: 2,
        disks: 1,
        copies: 1,
        reconnects: true,
    };
    assert!(holds(bounds, true) > 50_000);
}

#[test]
fn three_replicas() {
    let bounds = Bounds {
        nodes: 3,
        writes: 1,
        epochs: 2,
        crashes: 0,
        changes: 1,
        disks: 0,
        copies: 0,
        reconnects: false,
    };
    assert!(holds(bounds, true) > 50_000);
}

#[test]
fn symmetry_takes_away_only_names() {
    let bounds = Bounds {
        nodes: 2,
        writes: 1,
        epochs: 2,
        crashes: 1,
        changes: 1,
        disks: 0,
        copies: 0,
        reconnects: true,
    };
    let (with, without) = (holds(bounds, true), holds(bounds, false));
    assert!(with < without && 2 * with >= without, "{with} of {without}");
}
