//! The rules that can be left out, to see that the checker notices.

macro_rules! mutations {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal $rule:literal,)*) => {
        /// A rule that is left out.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutation {
            $($(#[doc = $doc])* $variant,)*
        }

        /// All of them, in the order of the rules.
        pub const MUTATIONS: &[MutationInfo] = &[
            $(MutationInfo {
                mutation: Mutation::$variant, name: $name, rule: $rule, what: concat!($($doc),*),
            },)*
        ];
    };
}

#[derive(Clone, Copy, Debug)]
pub struct MutationInfo {
    pub mutation: Mutation,
    /// Name of the mutation on the command line.
    pub name: &'static str,
    /// The rule of the design, such as `R4`.
    pub rule: &'static str,
    pub what: &'static str,
}

mutations! {
    /// A replica takes messages of a lower epoch than it has promised.
    NoEpochCheck "no-epoch-check" "R1",
    /// A replica answers before its promise is durable.
    PromiseNotDurable "promise-not-durable" "R1",
    /// An entry counts as committed when the primary alone holds it.
    CommitAlone "commit-alone" "R2",
    /// A replica acknowledges what it received before it is durable.
    AckOnReceipt "ack-on-receipt" "R2",
    /// A member stops counting when its removal is proposed, not when it is known.
    ShrinkBeforeKnown "shrink-before-known" "R3",
    /// A replica is proposed as a member while commits do not wait for it.
    GrowBeforeRequired "grow-before-required" "R4",
    /// A joiner is proposed as a member before it has everything acknowledged.
    GrowBeforeCaughtUp "grow-before-caught-up" "R4",
    /// A join is given up although its proposal may still happen.
    GiveUpJoin "give-up-join" "R4",
    /// A replica outside the ISS is promoted.
    PromoteOutside "promote-outside" "R5",
    /// A promotion is decided on an older version of the record than it is applied to.
    PromoteWithoutVersion "promote-without-version" "R5",
    /// A primary that was restarted goes on in its epoch.
    ResumeEpoch "resume-epoch" "R5",
    /// A new primary serves before its epoch start is committed.
    ServeAtOnce "serve-at-once" "R6",
    /// Logs are compared by length only and the divergent tail is not cut.
    NoCut "no-cut" "R7",
    /// A replica that lost its disk counts as the member that it was.
    IgnoreIncarnation "ignore-incarnation" "R9",
    /// A copy target counts as whole before it is.
    CopyEndsEarly "copy-ends-early" "R16",
}

impl Mutation {
    /// The mutation of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static MutationInfo> {
        MUTATIONS.iter().find(|info| info.name == name)
    }

    #[must_use]
    pub fn info(self) -> &'static MutationInfo {
        &MUTATIONS[self as usize]
    }
}
