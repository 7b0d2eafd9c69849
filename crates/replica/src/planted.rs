//! Bugs that tests plant to prove that they would be caught. Outside of tests no bug is planted and the
//! checks vanish.

/// A rule that a planted bug leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// R3: a member stops counting when its removal is proposed, not when it is known.
    ShrinkBeforeKnown,
    /// R4: a joiner is recorded before commits wait for it.
    GrowBeforeRequired,
    /// R4: a join is given up although its proposal may still happen.
    GiveUpJoin,
    /// R1: a replica accepts a lower epoch than it has promised.
    NoEpochCheck,
    /// R7: a tail of another epoch is not cut.
    NoCut,
    /// R2: an entry counts as committed when the primary alone holds it.
    CommitAlone,
    /// R6: a new primary serves before its epoch start is committed.
    ServeAtOnce,
    /// R16: a copy target calls itself whole before it is.
    CopyEndsEarly,
    /// Content that was read for an earlier copy is used in a later one.
    StaleExtent,
    /// R2: what a replica acknowledged counts before it is durable there.
    AckOnReceipt,
}

#[cfg(not(test))]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.with(|cell| cell.set(bug));
}

#[cfg(test)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.with(|cell| cell.get() == Some(bug))
}
