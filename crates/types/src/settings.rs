//! The settings of resources as data: one table with name, unit, range, help and place of each.
//! Command line, API, errors and manual come from it. To add a setting is to add its field to
//! [`Policy`], its row here, and the code that obeys it.
//!
//! A value has three possible sources: the resource's own choice counts before that of the cluster,
//! and the cluster's before the default. [`Choices`] are what one of them has chosen,
//! [`Choices::resolve`] makes a policy of two of them.

use crate::{
    BLOCK_BYTES, Fencing, LagLimits, Mode, ModePolicy, Policy, ScrubRepair, duration, nearest, size,
    size_typed,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Extent of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// For one resource, and for all resources of the cluster that have no choice of their own.
    Resource,
    /// For the cluster only.
    Cluster,
}

/// Kind of the values of a setting. Every value is a number; the kind says how it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Number of the word in this list.
    Word(&'static [&'static str]),
    /// 0 for off, 1 for on.
    Switch,
    /// A plain number and its unit in the help, which may be empty.
    Number { least: u64, most: u64, unit: &'static str },
    /// Bytes. `zero`: the word for 0, if 0 means something of its own.
    Bytes { least: u64, zero: Option<&'static str> },
    /// Milliseconds. `zero`: as above.
    Time { least_ms: u64, most_ms: u64, zero: Option<&'static str> },
}

/// A setting.
pub struct Setting {
    pub key: Key,
    pub name: &'static str,
    pub scope: Scope,
    /// First release that has it.
    pub since: &'static str,
    /// Effect of the setting, as sentences.
    pub help: &'static str,
    kind: Kind,
    get: fn(&Policy) -> u64,
    put: fn(&mut Policy, u64),
}

macro_rules! settings {
    ($($key:ident $name:literal $scope:ident since $since:literal, $kind:expr, $get:expr, $put:expr, $help:literal;)*) => {
        /// Key of a setting, serialised as its name. In the order of the table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum Key {
            $(#[serde(rename = $name)] $key,)*
        }

        /// All settings.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: Key::$key,
            name: $name,
            scope: Scope::$scope,
            since: $since,
            help: $help,
            kind: $kind,
            get: $get,
            put: $put,
        }),*];
    };
}

const DAY_MS: u64 = 86_400_000;
const MODES: [Mode; 3] = [Mode::A, Mode::B, Mode::C];
const FENCINGS: [Fencing; 3] = [Fencing::Off, Fencing::BestEffort, Fencing::Required];
const REPAIRS: [ScrubRepair; 3] = [ScrubRepair::Off, ScrubRepair::Proven, ScrubRepair::All];

settings! {
    Mode "mode" Resource since "0.1", Kind::Word(&["a", "b", "c"]),
        |policy| policy.mode() as u64, |policy, value| policy.mode = pick(MODES, value).into(),
        "When a write is acknowledged. c: when all in-sync replicas have it in their journals. b: when all \
         in-sync replicas have it in memory; a flush waits for the journals. a: when the primary's own \
         journal has it; the other replicas follow.";
    LagBytes "lag-bytes" Resource since "0.1", Kind::Bytes { least: 16 * BLOCK_BYTES, zero: None },
        |policy| policy.lag().bytes, |policy, value| put_lag(policy, |lag| lag.bytes = value),
        "Mode a: bytes that a follower may lack. Writes wait for a follower that lacks more. At most half \
         the journal.";
    LagTime "lag-time" Resource since "0.1",
        Kind::Time { least_ms: 100, most_ms: 3_600_000, zero: None },
        |policy| policy.lag().ms, |policy, value| put_lag(policy, |lag| lag.ms = value),
        "Mode a: age of the oldest entry that a follower may lack. Writes wait for a follower that lacks an \
         older one.";
    Takeover "takeover" Resource since "0.1", Kind::Switch,
        |policy| policy.takeover().into(), |policy, value| put_takeover(policy, value != 0),
        "Mode a: whether a follower takes over without an operator when the primary is lost. It must be \
         within lag-bytes and lag-time. The writes that it lacks are LOST.";
    MinCopies "min-copies" Resource since "0.1", Kind::Number { least: 1, most: 32, unit: "replicas" },
        |policy| policy.min_copies.copies.into(), |policy, value| policy.min_copies.copies = small(value),
        "In-sync replicas, the primary's included, that must have a write before it is acknowledged. With \
         fewer, writes wait for the time suspend-io.";
    SuspendIo "suspend-io" Resource since "0.1",
        Kind::Time { least_ms: 0, most_ms: 3_600_000, zero: None },
        |policy| policy.min_copies.suspend_ms, |policy, value| policy.min_copies.suspend_ms = value,
        "Time for which writes wait while there are fewer copies than min-copies. After that they fail \
         until there are enough again. 0s: they fail at once.";
    ScrubInterval "scrub-interval" Resource since "0.1",
        Kind::Time { least_ms: 1000, most_ms: 3650 * DAY_MS, zero: Some("off") },
        |policy| policy.scrub.interval_ms, |policy, value| policy.scrub.interval_ms = value,
        "Interval at which all replicas are compared, when all are in sync. off: only on demand.";
    ScrubRepair "scrub-repair" Resource since "0.1", Kind::Word(&["off", "proven", "all"]),
        |policy| policy.scrub.repair as u64, |policy, value| policy.scrub.repair = pick(REPAIRS, value),
        "Blocks that a scheduled scrub repairs. proven: those whose right content is known by checksums or \
         by more than half of the replicas. off: none. all: also those where nothing is proven; they get \
         the content that the primary has.";
    ScrubRate "scrub-rate" Resource since "0.1", Kind::Bytes { least: 1, zero: Some("unlimited") },
        |policy| policy.scrub.rate, |policy, value| policy.scrub.rate = value,
        "Limit for reading during a scheduled scrub, in bytes per second and replica. unlimited: as fast as \
         possible without slowing down clients.";
    SlowAck "slow-ack" Resource since "0.1",
        Kind::Time { least_ms: 1, most_ms: DAY_MS, zero: Some("off") },
        |policy| policy.slow.ack_ms, |policy, value| policy.slow.ack_ms = value,
        "Time for an acknowledgement above which a replica counts as slow, if it also exceeds slow-factor. \
         A replica that is slow for the time slow-for leaves the in-sync set. off: no replica leaves \
         because it is slow.";
    SlowFactor "slow-factor" Resource since "0.1", Kind::Number { least: 1, most: 1_000_000, unit: "times" },
        |policy| policy.slow.factor, |policy, value| policy.slow.factor = value,
        "How many times as long as the other replicas a replica must take to count as slow.";
    SlowFor "slow-for" Resource since "0.1", Kind::Time { least_ms: 1, most_ms: DAY_MS, zero: None },
        |policy| policy.slow.for_ms, |policy, value| policy.slow.for_ms = value,
        "Time for which a replica must be slow before it leaves the in-sync set.";
    SlowQuiet "slow-quiet" Resource since "0.1",
        Kind::Time { least_ms: 0, most_ms: 3650 * DAY_MS, zero: None },
        |policy| policy.slow.quiet_ms, |policy, value| policy.slow.quiet_ms = value,
        "Time for which a replica that left because it was slow must keep up before it returns. The time \
         doubles each time the replica leaves again.";
    SlowQuietMax "slow-quiet-max" Resource since "0.1",
        Kind::Time { least_ms: 0, most_ms: 3650 * DAY_MS, zero: None },
        |policy| policy.slow.quiet_max_ms, |policy, value| policy.slow.quiet_max_ms = value,
        "Longest time to which slow-quiet grows by doubling. For each such time that a replica stays in \
         sync, one doubling is taken back.";
    SlowMinCopies "slow-min-copies" Resource since "0.1",
        Kind::Number { least: 1, most: 32, unit: "replicas" },
        |policy| policy.slow.min_copies.into(), |policy, value| policy.slow.min_copies = small(value),
        "Replicas that stay in the in-sync set however slow they are, the primary's included. If min-copies \
         is higher, it counts instead.";
    CMaxRate "c-max-rate" Cluster since "0.1", Kind::Bytes { least: 1, zero: Some("unlimited") },
        |policy| policy.background.max_rate, |policy, value| policy.background.max_rate = value,
        "Limit for filling replicas that are not in sync, in bytes per second, for each node that fills \
         others.";
    CMinRate "c-min-rate" Resource since "0.1", Kind::Bytes { least: 1, zero: Some("off") },
        |policy| policy.background.min_rate, |policy, value| policy.background.min_rate = value,
        "Rate, in bytes per second, below which filling a replica does not yield to clients. off: filling \
         never yields.";
    CSlowdown "c-slowdown" Resource since "0.1",
        Kind::Number { least: 1, most: 1_000_000, unit: "percent" },
        |policy| policy.background.slowdown_percent,
        |policy, value| policy.background.slowdown_percent = value,
        "How much longer than usual a client's write may take while a replica is filled, in percent.";
    Fencing "fencing" Resource since "0.1", Kind::Word(&["off", "best-effort", "required"]),
        |policy| policy.fencing as u64, |policy, value| policy.fencing = pick(FENCINGS, value),
        "Whether the program that agents have as --fence-command switches a primary off that died. \
         best-effort: it is run, and another node takes over at once. required: another node takes over \
         only when it has succeeded, or an operator has confirmed that the node is off. off: it is not run.";
    DataEncryption "data-encryption" Cluster since "0.1", Kind::Switch,
        |policy| (!policy.clear).into(), |policy, value| policy.clear = value == 0,
        "Whether data between nodes is encrypted. off: nodes still prove to each other who they are, but \
         everyone who can reach the network between them can read what is replicated, and change it. Only \
         for a network that nobody else can reach.";
}

/// The element of this number; values are checked before, so there is one.
fn pick<T: Copy, const N: usize>(list: [T; N], value: u64) -> T {
    list[(value as usize).min(N - 1)]
}

fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Changes a limit of mode A; nothing in another mode.
fn put_lag(policy: &mut Policy, change: impl FnOnce(&mut LagLimits)) {
    if let ModePolicy::A { lag, .. } = &mut policy.mode {
        change(lag);
    }
}

fn put_takeover(policy: &mut Policy, wanted: bool) {
    if let ModePolicy::A { takeover, .. } = &mut policy.mode {
        *takeover = wanted;
    }
}

impl Kind {
    /// Checks a value that may have come from elsewhere than [`Kind::parse`].
    fn check(self, value: u64) -> Result<(), String> {
        let fits = match self {
            Self::Word(words) => value < words.len() as u64,
            Self::Switch => value < 2,
            Self::Number { least, most, .. } => (least..=most).contains(&value),
            Self::Bytes { least, zero } => (zero.is_some() && value == 0) || value >= least,
            Self::Time { least_ms, most_ms, zero } => {
                (zero.is_some() && value == 0) || (least_ms..=most_ms).contains(&value)
            }
        };
        if fits { Ok(()) } else { Err(format!("{} is not {}", self.write(value), self.range())) }
    }

    fn parse(self, text: &str) -> Result<u64, String> {
        let zero = match self {
            Self::Bytes { zero, .. } | Self::Time { zero, .. } => zero,
            _ => None,
        };
        let value = match self {
            _ if zero.is_some_and(|word| text == word || text == "0") => 0,
            Self::Word(words) => {
                let found = words.iter().position(|word| text.eq_ignore_ascii_case(word));
                found.ok_or_else(|| format!("`{text}` is not {}", self.range()))? as u64
            }
            Self::Switch => match text {
                "on" | "true" | "yes" => 1,
                "off" | "false" | "no" => 0,
                _ => return Err(format!("`{text}` is not {}", self.range())),
            },
            Self::Number { .. } => text.parse().map_err(|_| format!("`{text}` is not {}", self.range()))?,
            Self::Bytes { .. } => size::parse(text)?,
            Self::Time { .. } => duration::parse_with_unit(text)?,
        };
        self.check(value)?;
        Ok(value)
    }

    fn write(self, value: u64) -> String {
        match self {
            Self::Word(words) => {
                words.get(value as usize).map_or_else(|| value.to_string(), |word| (*word).to_owned())
            }
            Self::Switch => if value == 0 { "off" } else { "on" }.to_owned(),
            Self::Number { .. } => value.to_string(),
            Self::Bytes { zero: Some(word), .. } | Self::Time { zero: Some(word), .. } if value == 0 => {
                word.to_owned()
            }
            Self::Bytes { .. } => size_typed(value),
            Self::Time { .. } => duration::typed(value),
        }
    }

    /// The values that there are, in words.
    fn range(self) -> String {
        let or = |zero: Option<&str>| zero.map_or_else(String::new, |word| format!(", or {word}"));
        match self {
            Self::Word(words) => match words.split_last() {
                Some((last, others)) => format!("{} or {last}", others.join(", ")),
                None => String::new(),
            },
            Self::Switch => "on or off".to_owned(),
            Self::Number { least, most, unit } => format!("{least} to {most} {unit}").trim_end().to_owned(),
            Self::Bytes { least: 0 | 1, zero } => format!("a size such as 100MiB{}", or(zero)),
            Self::Bytes { least, zero } => format!("a size of at least {}{}", size_typed(least), or(zero)),
            Self::Time { least_ms, most_ms, zero } => {
                format!("{} to {}{}", duration::typed(least_ms), duration::typed(most_ms), or(zero))
            }
        }
    }
}

impl Key {
    #[must_use]
    pub fn setting(self) -> &'static Setting {
        // The variants are made of the rows, in their order.
        &SETTINGS[self as usize]
    }

    /// Whether it has an effect in mode A only.
    #[must_use]
    pub fn is_of_mode_a(self) -> bool {
        matches!(self, Self::LagBytes | Self::LagTime | Self::Takeover)
    }
}

impl Setting {
    /// The setting of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// # Errors
    /// Why `text` is no value of this setting, as a sentence without a full stop.
    pub fn parse(&self, text: &str) -> Result<u64, String> {
        self.kind.parse(text.trim())
    }

    /// # Errors
    /// Why this number is no value of this setting.
    pub fn check(&self, value: u64) -> Result<(), String> {
        self.kind.check(value)
    }

    /// A value as it can be typed.
    #[must_use]
    pub fn write(&self, value: u64) -> String {
        self.kind.write(value)
    }

    /// The values that it takes, in words.
    #[must_use]
    pub fn range(&self) -> String {
        self.kind.range()
    }

    /// Its value in a policy.
    #[must_use]
    pub fn value_in(&self, policy: &Policy) -> u64 {
        (self.get)(policy)
    }

    /// Its value in a policy in which nothing is chosen, but the mode that it needs.
    #[must_use]
    pub fn default_value(&self) -> u64 {
        let mode = if self.key.is_of_mode_a() { Mode::A } else { Mode::default() };
        (self.get)(&Policy { mode: mode.into(), ..Policy::default() })
    }
}

/// Values that were chosen, for one resource or for the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Choices(BTreeMap<Key, u64>);

/// Changes of [`Choices`]; `None` takes a choice back.
pub type Changes = BTreeMap<Key, Option<u64>>;

impl Choices {
    #[must_use]
    pub fn get(&self, key: Key) -> Option<u64> {
        self.0.get(&key).copied()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, u64)> {
        self.0.iter().map(|(key, value)| (*key, *value))
    }

    /// Number that stands for these choices: FNV-1a over names and values. It is a part of the
    /// replicated record, so every release has to compute the same one.
    #[must_use]
    pub fn tag(&self) -> u64 {
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        // Not in the order of the keys, which a later release may have otherwise.
        let named: BTreeMap<&str, u64> =
            self.iter().map(|(key, value)| (key.setting().name, value)).collect();
        let bytes = named.iter().flat_map(|(name, value)| name.bytes().chain([0]).chain(value.to_le_bytes()));
        bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
    }

    pub fn change(&mut self, changes: &Changes) {
        for (key, value) in changes {
            match value {
                Some(value) => _ = self.0.insert(*key, *value),
                None => _ = self.0.remove(key),
            }
        }
    }

    /// Drops the choices for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(Key) -> bool) {
        self.0.retain(|key, _| keep(*key));
    }

    /// The policy of a resource with a journal of `journal_bytes`. A limit of the lag that the
    /// resource itself did not choose is at most half its journal.
    #[must_use]
    pub fn resolve(cluster: &Self, resource: &Self, journal_bytes: u64) -> Policy {
        let mut policy = Policy::default();
        // The mode comes first, and what belongs to it after it.
        for setting in SETTINGS {
            if let Some(value) = resource.get(setting.key).or_else(|| cluster.get(setting.key)) {
                (setting.put)(&mut policy, value);
            }
        }
        if resource.get(Key::LagBytes).is_none() {
            put_lag(&mut policy, |lag| lag.bytes = lag.bytes.min(journal_bytes / 2));
        }
        policy
    }

    /// The choices that make `policy` of the defaults.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let default = Policy { mode: policy.mode().into(), ..Policy::default() };
        let mode = (Key::Mode, policy.mode() as u64);
        let chosen = SETTINGS.iter().map(|setting| (setting, setting.value_in(policy)));
        let chosen = chosen.filter(|(setting, value)| *value != setting.value_in(&default));
        let chosen = chosen.map(|(setting, value)| (setting.key, value));
        Self(chosen.chain((policy.mode() != Mode::default()).then_some(mode)).collect())
    }
}

impl FromIterator<(Key, u64)> for Choices {
    fn from_iter<I: IntoIterator<Item = (Key, u64)>>(choices: I) -> Self {
        Self(choices.into_iter().collect())
    }
}

/// Parses a change of the setting of this name; the value `default` takes a choice back.
///
/// # Errors
/// Why there is no such setting or value, as a sentence without a full stop.
pub fn parse_change(name: &str, value: &str) -> Result<(Key, Option<u64>), String> {
    let unknown = || match nearest(name, SETTINGS.iter().map(|setting| setting.name)) {
        Some(near) => format!("there is no setting `{name}`; did you mean {near}?"),
        None => format!("there is no setting `{name}`"),
    };
    let setting = Setting::named(name).ok_or_else(unknown)?;
    if value == "default" {
        return Ok((setting.key, None));
    }
    let value = setting.parse(value).map_err(|why| format!("{name}: {why}"))?;
    Ok((setting.key, Some(value)))
}

/// Settings in which two policies differ, in the order of the table.
pub fn differing(one: &Policy, other: &Policy) -> impl Iterator<Item = &'static Setting> {
    let differs = |setting: &&Setting| setting.value_in(one) != setting.value_in(other);
    SETTINGS.iter().filter(differs)
}

/// The table of all settings in Markdown, for the manual.
#[must_use]
pub fn markdown() -> String {
    let mut text =
        "| setting | default | values | what it does | since |\n|---|---|---|---|---|\n".to_owned();
    for setting in SETTINGS {
        let scope = if setting.scope == Scope::Cluster { " For the whole cluster only." } else { "" };
        let (default, range) = (setting.write(setting.default_value()), setting.range());
        let Setting { name, help, since, .. } = setting;
        let _ = writeln!(text, "| `{name}` | {default} | {range} | {help}{scope} | {since} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_written_so_that_it_can_be_typed() {
        for setting in SETTINGS {
            let default = setting.default_value();
            assert_eq!(setting.parse(&setting.write(default)), Ok(default), "{}", setting.name);
            assert_eq!(setting.key.setting().name, setting.name);
            assert_eq!(Setting::named(setting.name).map(|found| found.key), Some(setting.key));
            let name = serde_json::to_string(&setting.key).expect("a key is a text");
            assert_eq!(name, format!("\"{}\"", setting.name));
        }
    }

    #[test]
    fn an_unknown_setting_is_refused_with_the_one_that_was_meant() {
        for (name, meant) in [
            ("slow-akc", "did you mean slow-ack?"),
            ("min_copies", "did you mean min-copies?"),
            ("zstd", "no setting `zstd`"),
        ] {
            let said = parse_change(name, "1").expect_err(name);
            assert!(said.contains(&format!("`{name}`")) && said.contains(meant), "{said}");
        }
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        for (name, text, why) in [
            ("mode", "d", "`d` is not a, b or c"),
            ("takeover", "maybe", "on or off"),
            ("min-copies", "0", "0 is not 1 to 32 replicas"),
            ("min-copies", "many", "`many` is not 1 to 32 replicas"),
            ("lag-bytes", "4KiB", "4KiB is not a size of at least 64KiB"),
            ("lag-time", "2h", "2h is not 100ms to 1h"),
            ("slow-ack", "10", "`10` has no unit: write 10ms or 10s"),
            ("scrub-interval", "1ms", "1ms is not 1s to 3650d, or off"),
            ("c-min-rate", "fast", "is not a size"),
        ] {
            let said = Setting::named(name).expect(name).parse(text).expect_err(text);
            assert!(said.contains(why), "{name}={text}: {said}");
        }
    }

    #[test]
    fn the_choice_of_the_resource_counts_before_that_of_the_cluster() {
        let cluster: Choices =
            [(Key::SlowAck, 20), (Key::MinCopies, 2), (Key::LagBytes, 1 << 30)].into_iter().collect();
        let mut own: Choices = [(Key::SlowAck, 5), (Key::Mode, Mode::A as u64)].into_iter().collect();
        let policy = Choices::resolve(&cluster, &own, 32 << 20);
        assert_eq!((policy.slow.ack_ms, policy.min_copies.copies), (5, 2));
        assert_eq!(policy.lag().bytes, 16 << 20, "half the journal");
        own.change(&Changes::from([(Key::SlowAck, None), (Key::Mode, Some(Mode::B as u64))]));
        let policy = Choices::resolve(&cluster, &own, 32 << 20);
        assert_eq!((policy.slow.ack_ms, policy.mode()), (20, Mode::B));
        assert_eq!(policy.slow.factor, 10, "the default");
        assert_eq!(Choices::resolve(&Choices::default(), &Choices::of(&policy), 32 << 20), policy);
    }

    #[test]
    fn a_policy_is_read_as_it_was_written_before_there_were_settings() {
        let old = r#"{"mode":"a","lag":{"bytes":65536,"ms":200},"takeover":true,"min_copies":{"copies":1,"suspend_ms":7}}"#;
        let policy: Policy = serde_json::from_str(old).expect("a policy");
        assert_eq!(policy.lag(), LagLimits { bytes: 65536, ms: 200 });
        assert!(policy.takeover());
        assert_eq!((policy.min_copies.suspend_ms, policy.slow.ack_ms), (7, 10));
        let again = serde_json::to_string(&policy).expect("text");
        assert_eq!(serde_json::from_str::<Policy>(&again).expect("a policy"), policy);
    }
}
