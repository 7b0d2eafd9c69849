//! Settings of resources and of the cluster: shown with their sources, and changed.

use super::extract::{IfMatch, JsonRequest, Path, Tagged, changed_meanwhile};
use super::{ApiResult, App, Refused, blocking, change_present_state, find_resource};
use crate::agent::READ_PATIENCE;
use crate::raft::ConsensusLog;
use axum::Json;
use axum::extract::State as AppState;
use mainstay_api::rest::{Accepted, SettingSource, SettingValue, SettingView, SettingsChange};
use mainstay_control::State;
use mainstay_control::settings::words;
use mainstay_control::state::{Command, Resource};
use mainstay_types::settings::{Changes, SETTINGS, parse_change};
use mainstay_types::{Choices, Code, ConfigVersion, Mode, Problem};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

const REMEDY: &str = "`mainstay cluster set --help` lists all settings with their values.";

/// Parses named changes; `None` takes a choice back.
///
/// # Errors
/// For an unknown setting, and a value that it does not take.
pub(super) fn changes(asked: &SettingsChange) -> Result<Changes, Problem> {
    let one = |(name, value): (&String, &Option<SettingValue>)| {
        let text = value.as_ref().map_or_else(|| "default".to_owned(), SettingValue::as_typed);
        parse_change(name, &text).map_err(|why| Problem::new(Code::BadSettings, why, REMEDY))
    };
    asked.iter().map(one).collect()
}

/// Parses the choices for a new resource.
///
/// # Errors
/// See [`changes`].
pub(super) fn choices(asked: &BTreeMap<String, SettingValue>) -> Result<Choices, Problem> {
    let asked = asked.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    let changes = changes(&asked)?.into_iter();
    Ok(changes.filter_map(|(key, value)| Some((key, value?))).collect())
}

pub(super) async fn of_resource(
    AppState(agent): App,
    Path(name): Path<String>,
) -> Result<Tagged<Vec<SettingView>>, Refused> {
    let Json((tag, settings)) = blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        let resource = find_resource(&view, &name)?;
        Ok((tag_of(resource), shown(&view.state, Some(resource))))
    })
    .await?;
    Ok(Tagged(tag, settings))
}

/// Tag of the settings of a resource. The version of the record counts, too, because a change is
/// made at this version only.
fn tag_of(resource: &Resource) -> String {
    let mut hash = DefaultHasher::new();
    format!("{:?}", resource.choices).hash(&mut hash);
    format!("{}-{:016x}", resource.record.version, hash.finish())
}

/// Tag of the settings of the cluster.
fn tag_of_cluster(state: &State) -> String {
    format!("{:016x}", state.choices.tag())
}

pub(super) async fn of_cluster(AppState(agent): App) -> Result<Tagged<Vec<SettingView>>, Refused> {
    let Json((tag, settings)) = blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        Ok((tag_of_cluster(&view.state), shown(&view.state, None)))
    })
    .await?;
    Ok(Tagged(tag, settings))
}

pub(super) async fn change_of_resource(
    AppState(agent): App,
    Path(name): Path<String>,
    IfMatch(tag): IfMatch,
    JsonRequest(asked): JsonRequest<SettingsChange>,
) -> ApiResult<Accepted> {
    let changes = changes(&asked)?;
    change_present_state(agent, move |view| {
        let resource = find_resource(view, &name)?;
        if tag.as_ref().is_some_and(|tag| *tag != tag_of(resource)) {
            return Err(changed_meanwhile(&format!("resource {name}")));
        }
        let after = view.state.policy_after(resource, &changes);
        let meaning = words(&resource.record.policy, &after);
        let chosen = changes.iter().all(|(key, value)| resource.choices.get(*key) == *value);
        let message = match (meaning.is_empty(), chosen) {
            (false, _) => format!("resource {name}: {}", meaning.join("; ")),
            (true, true) => format!("resource {name} has these settings already"),
            (true, false) => format!(
                "the values of resource {name} stay as they are; `mainstay resource settings {name}` says where each comes from now"
            ),
        };
        let version = Some(resource.record.version);
        let command =
            Command::ChangeSettings { resource: Some(resource.id), version, changes: changes.clone() };
        Ok((command, message))
    })
    .await
}

pub(super) async fn change_of_cluster(
    AppState(agent): App,
    IfMatch(tag): IfMatch,
    JsonRequest(asked): JsonRequest<SettingsChange>,
) -> ApiResult<Accepted> {
    let changes = changes(&asked)?;
    change_present_state(agent, move |view| {
        if tag.as_ref().is_some_and(|tag| *tag != tag_of_cluster(&view.state)) {
            return Err(changed_meanwhile("the settings of the cluster"));
        }
        // The record is asked again when the change is applied.
        let version = tag.as_ref().map(|_| ConfigVersion(view.state.choices.tag()));
        let command = Command::ChangeSettings { resource: None, version, changes: changes.clone() };
        Ok((command, "these settings count for all resources without a choice of their own".into()))
    })
    .await
}

/// Settings of a resource, or those of the cluster. What belongs to mode A is shown in mode A only.
fn shown(state: &State, resource: Option<&Resource>) -> Vec<SettingView> {
    let none = Choices::default();
    let own = resource.map_or(&none, |resource| &resource.choices);
    let mode = resource.map(|resource| resource.record.policy.mode());
    let counts =
        SETTINGS.iter().filter(|one| !one.key.is_of_mode_a() || mode.is_none_or(|mode| mode == Mode::A));
    let one = |setting: &'static mainstay_types::Setting| {
        let chosen = state.choices.get(setting.key);
        let source = match (own.get(setting.key), chosen) {
            (Some(_), _) => SettingSource::Resource,
            (None, Some(_)) => SettingSource::Cluster,
            (None, None) => SettingSource::Default,
        };
        let default = setting.default_value();
        let value = match resource {
            Some(resource) => setting.value_in(&resource.record.policy),
            None => chosen.unwrap_or(default),
        };
        SettingView {
            name: setting.name.to_owned(),
            value: setting.write(value),
            from: source,
            default: setting.write(default),
            values: setting.range(),
            since: setting.since.to_owned(),
            help: setting.help.to_owned(),
        }
    };
    counts.map(one).collect()
}
