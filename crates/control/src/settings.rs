//! Settings: what operators choose about resources, and about the cluster for all of them. The
//! table of the settings and the order of their sources are in `mainstay_types::settings`; this
//! file decides which values the state takes.
//!
//! A resource has the choices of its own ([`Resource::choices`]), the cluster has choices for all
//! ([`State::choices`]), and the record of a resource carries the values in force, so that engines
//! learn them with the record.
//!
//! Guaranteed after every command (`State::check` asserts it in tests): the policy of each
//! record is what the choices give, and the resource can keep it (`copies.rs`, `mode.rs`).

use crate::copies;
use crate::mode::check_lag;
use crate::snapshots::unknown_resource;
use crate::state::{Outcome, Resource, State, refused};
use mainstay_types::settings::{Changes, differing};
use mainstay_types::{
    Choices, Code, ConfigVersion, Key, Mode, Policy, ResourceId, Scope, Severity, duration, reach, size_words,
};

impl State {
    /// Changes choices of a resource, if one is named, or else of the cluster. If a version is
    /// named, the resource's record has to have it. Of the cluster it is the tag of its choices.
    pub(crate) fn change_settings(
        &mut self,
        at_ms: u64,
        resource: Option<ResourceId>,
        version: Option<ConfigVersion>,
        changes: &Changes,
    ) -> Outcome {
        if let Err(refusal) = check_values(changes, resource.is_some()) {
            return *refusal;
        }
        match resource {
            Some(id) => self.change_settings_of_resource(at_ms, id, version, changes),
            None => self.change_settings_of_cluster(at_ms, version, changes),
        }
    }

    fn change_settings_of_resource(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: Option<ConfigVersion>,
        changes: &Changes,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return unknown_resource(id);
        };
        let choices = resource.choices_after(&self.choices, changes);
        let policy = Choices::resolve(&self.choices, &choices, resource.spec.journal_bytes);
        if let Err(refusal) = check_asked(changes, &policy) {
            return *refusal;
        }
        if let Err(mut refusal) = resource.check_policy(&choices, &policy, changes) {
            if let Outcome::Refused(problem) = &mut *refusal
                && problem.code == Code::BadMode
                && policy.min_copies.copies > 1
                && policy.mode() == Mode::A
            {
                let both = format!("`mainstay resource set {} mode=a min-copies=1`", resource.name);
                problem.remedy = format!("{}; to do both at once, run {both}", problem.remedy);
            }
            return *refusal;
        }
        if resource.choices == choices {
            return Outcome::Unchanged;
        }
        if version.is_some_and(|version| version != resource.record.version) {
            reach!("control: a change of settings is based on an older record");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        reach!("control: settings of a resource are changed");
        self.enforce(at_ms, id, choices, policy);
        Outcome::Done
    }

    fn change_settings_of_cluster(
        &mut self,
        at_ms: u64,
        tag: Option<ConfigVersion>,
        changes: &Changes,
    ) -> Outcome {
        if tag.is_some_and(|tag| tag.0 != self.choices.tag()) {
            reach!("control: a change of the cluster's settings is based on older ones");
            return Outcome::Conflict { record: None };
        }
        let mut cluster = self.choices.clone();
        cluster.change(changes);
        if cluster == self.choices {
            return Outcome::Unchanged;
        }
        let mut policies = Vec::new();
        for resource in self.resources.values().filter(|resource| !resource.deleting) {
            let choices = resource.choices_after(&cluster, &Changes::new());
            let policy = Choices::resolve(&cluster, &choices, resource.spec.journal_bytes);
            if let Err(refusal) = resource.check_policy(&choices, &policy, changes) {
                reach!("control: a setting of the cluster does not fit a resource");
                let name = &resource.name;
                let Outcome::Refused(mut problem) = *refusal else { return *refusal };
                problem.message = format!("resource {name}: {}", problem.message);
                problem.remedy = format!(
                    "{}; or give {name} a value of its own first with `mainstay resource set {name} KEY=VALUE`",
                    problem.remedy
                );
                return Outcome::Refused(problem);
            }
            policies.push((resource.id, choices, policy));
        }
        reach!("control: settings of the cluster are changed");
        self.choices = cluster;
        let chosen = changes.iter().map(|(key, value)| match value {
            Some(value) => format!("{} is {}", key.setting().name, key.setting().write(*value)),
            None => format!("{} is the default", key.setting().name),
        });
        let text = format!("for all resources without a choice of their own: {}", list(chosen));
        let name = self.cluster.as_ref().map_or_else(String::new, |cluster| cluster.name.clone());
        self.note(at_ms, Severity::Info, format!("cluster {name}"), text);
        for (id, choices, policy) in policies {
            self.enforce(at_ms, id, choices, policy);
        }
        Outcome::Done
    }

    /// Gives a resource choices, and its record the policy that follows from them.
    fn enforce(&mut self, at_ms: u64, id: ResourceId, choices: Choices, policy: Policy) {
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.choices = choices;
        let before = std::mem::replace(&mut resource.record.policy, policy);
        if before == policy {
            return;
        }
        if before.mode != policy.mode {
            match policy.mode() {
                Mode::A => {
                    reach!("control: mode A");
                }
                Mode::B => {
                    reach!("control: mode B");
                }
                Mode::C => {
                    reach!("control: mode C");
                }
            }
            // The followers in the set were within other limits.
            resource.record.failover_ready.clear();
        }
        if before.scrub.interval_ms != policy.scrub.interval_ms {
            resource.scrubs.since_ms = at_ms;
        }
        resource.record.version = resource.record.version.next();
        for text in words(&before, &policy) {
            self.note_on(at_ms, id, Severity::Info, text);
        }
    }

    /// Whether data goes from node to node without encryption, because an operator has said so.
    #[must_use]
    pub fn sends_clear(&self) -> bool {
        Choices::resolve(&self.choices, &Choices::default(), u64::MAX).clear
    }

    /// For [`State::check`].
    pub(crate) fn check_settings(&self, resource: &Resource) -> Result<(), &'static str> {
        let policy = Choices::resolve(&self.choices, &resource.choices, resource.spec.journal_bytes);
        if !resource.deleting && policy != resource.record.policy {
            return Err("a policy that is not what was chosen");
        }
        Ok(())
    }
}

impl State {
    /// The policy of a resource after a change, if that is not refused.
    #[must_use]
    pub fn policy_after(&self, resource: &Resource, changes: &Changes) -> Policy {
        let choices = resource.choices_after(&self.choices, changes);
        Choices::resolve(&self.choices, &choices, resource.spec.journal_bytes)
    }
}

impl Resource {
    /// Its own choices after a change. Choices that belong to mode A go with the mode, also if the
    /// mode is the cluster's.
    fn choices_after(&self, cluster: &Choices, changes: &Changes) -> Choices {
        let mut choices = self.choices.clone();
        choices.change(changes);
        let mode = Choices::resolve(cluster, &choices, self.spec.journal_bytes).mode();
        choices.retain(|key| mode == Mode::A || !key.is_of_mode_a());
        choices
    }

    /// Whether the resource can keep a policy. `choices`: its own; `changes`: what was asked for.
    pub(crate) fn check_policy(
        &self,
        choices: &Choices,
        policy: &Policy,
        changes: &Changes,
    ) -> Result<(), Box<Outcome>> {
        let code = if changes.contains_key(&Key::Mode) { Code::BadMode } else { Code::BadMinCopies };
        copies::check(policy.min_copies, self.lasting_replicas(), policy.mode())
            .map_err(|(message, remedy)| Box::new(refused(code, message, remedy)))?;
        if policy.mode() == Mode::A && choices.get(Key::LagBytes).is_some() {
            check_lag(self, policy.lag())
                .map_err(|(message, remedy)| Box::new(refused(Code::BadMode, message, remedy)))?;
        }
        Ok(())
    }
}

/// Checks values that may come from a node of another release.
pub(crate) fn check_values(changes: &Changes, of_resource: bool) -> Result<(), Box<Outcome>> {
    for (key, value) in changes {
        let setting = key.setting();
        let name = setting.name;
        if let Some(Err(why)) = value.map(|value| setting.check(value)) {
            let remedy = format!("choose {}", setting.range());
            return Err(Box::new(refused(Code::BadSettings, format!("{name}: {why}"), remedy)));
        }
        if of_resource && setting.scope == Scope::Cluster {
            let value = value.map_or_else(|| "default".to_owned(), |value| setting.write(value));
            let remedy = format!("run `mainstay cluster set {name}={value}`");
            let message = format!("{name} is a setting of the cluster, not of a resource");
            return Err(Box::new(refused(Code::BadSettings, message, remedy)));
        }
    }
    Ok(())
}

/// A choice that would count for nothing is not kept for later.
pub(crate) fn check_asked(changes: &Changes, policy: &Policy) -> Result<(), Box<Outcome>> {
    let asked = |key: &Key| matches!(changes.get(key), Some(Some(_)));
    let of_mode_a = changes.keys().find(|key| key.is_of_mode_a() && asked(key));
    if let Some(key) = of_mode_a.filter(|_| policy.mode() != Mode::A) {
        let name = key.setting().name;
        let message = format!("{name} has an effect in mode a only");
        let remedy = format!("leave {name} out, or set mode=a in the same command");
        return Err(Box::new(refused(Code::NotForThisMode, message, remedy)));
    }
    if asked(&Key::SuspendIo) && policy.min_copies.copies <= 1 {
        let message = "suspend-io has no effect while min-copies is 1";
        let remedy = "set min-copies to 2 or more in the same command, or leave suspend-io out";
        return Err(Box::new(refused(Code::NotForOneCopy, message, remedy)));
    }
    Ok(())
}

/// Changes from one policy to another, in words for the operator.
#[must_use]
pub fn words(before: &Policy, after: &Policy) -> Vec<String> {
    let mut texts = Vec::new();
    if before.mode != after.mode {
        texts.push(mode_words(after));
    }
    if before.min_copies != after.min_copies {
        texts.push(match after.min_copies.copies {
            1 => "writes are acknowledged with one copy, if there are no more".to_owned(),
            copies => format!(
                "writes are acknowledged with {copies} copies at least; with fewer they wait {}, and then fail",
                duration::typed(after.min_copies.suspend_ms)
            ),
        });
    }
    if before.scrub.interval_ms != after.scrub.interval_ms {
        texts.push(match after.scrub.interval_ms {
            0 => "its replicas are compared only on demand".to_owned(),
            ms => format!("its replicas are compared every {}", duration::typed(ms)),
        });
    }
    let told = |key: Key| {
        key == Key::Mode
            || key.is_of_mode_a()
            || matches!(key, Key::MinCopies | Key::SuspendIo | Key::ScrubInterval)
    };
    let others = differing(before, after).filter(|setting| !told(setting.key));
    let others =
        others.map(|setting| format!("{} is {}", setting.name, setting.write(setting.value_in(after))));
    texts.extend(Some(list(others)).filter(|text| !text.is_empty()));
    texts
}

fn mode_words(policy: &Policy) -> String {
    let (lag, takeover) = (policy.lag(), policy.takeover());
    match policy.mode() {
        Mode::A => format!(
            "mode A: writes are acknowledged by the primary alone; the other replicas follow within {} and {}{}",
            size_words(lag.bytes),
            duration::typed(lag.ms),
            if takeover { ", and one that does takes over when the primary is lost" } else { "" }
        ),
        Mode::B => "mode B: writes are acknowledged when all replicas that are in sync have them in memory; a flush waits for their journals".to_owned(),
        Mode::C => "mode C: writes are acknowledged by all replicas that are in sync".to_owned(),
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
