//! `mainstay resource set`, `mainstay cluster set` and the short forms of these, and the settings
//! as they are.

use crate::cli::SettingArg;
use crate::failure::{Code, Failure, Outcome, exit};
use crate::output::Output;
use mainstay_api::rest::{Accepted, SettingSource, SettingValue, SettingView, SettingsChange};
use mainstay_cli::list::List;
use mainstay_client::Client;
use mainstay_types::Key;

/// A named value, as the API takes it.
pub fn named(key: Key, value: u64) -> (String, SettingValue) {
    let setting = key.setting();
    (setting.name.to_owned(), SettingValue::Text(setting.write(value)))
}

/// Changes by name.
///
/// # Errors
/// When a setting is given twice: either value might be the one that is meant.
pub fn collected(
    settings: impl IntoIterator<Item = (String, Option<SettingValue>)>,
) -> Outcome<SettingsChange> {
    let mut changes = SettingsChange::new();
    for (name, value) in settings {
        if changes.contains_key(&name) {
            let message = format!("{name} is given twice");
            let remedy = format!("Give {name} once.");
            return Err(Failure::new(Code::BadSettings, message, remedy).with_exit(exit::USAGE));
        }
        changes.insert(name, value);
    }
    Ok(changes)
}

/// A setting as it was typed.
pub fn typed(one: SettingArg) -> (String, Option<SettingValue>) {
    (one.name, one.value.map(SettingValue::Text))
}

/// Changes settings. `path`: of the resource or the cluster.
pub fn set(path: &str, settings: Vec<SettingArg>, client: &Client, output: Output) -> Outcome<()> {
    change(path, &collected(settings.into_iter().map(typed))?, client, output)
}

pub fn change(path: &str, changes: &SettingsChange, client: &Client, output: Output) -> Outcome<()> {
    let accepted: Accepted = client.patch(&format!("{path}/settings"), changes)?;
    output.result(&accepted, |accepted| accepted.message.clone())
}

/// Shows the settings with the source of each. `path`: of the resource or the cluster.
pub fn show(path: &str, client: &Client, output: Output) -> Outcome<()> {
    let settings: Vec<SettingView> = client.get(&format!("{path}/settings"))?;
    output.list(&settings, |settings| listed(settings))
}

pub(super) fn listed(settings: &[SettingView]) -> List {
    let row = |one: &SettingView| {
        let from = match one.from {
            SettingSource::Default => "default",
            SettingSource::Cluster => "cluster",
            SettingSource::Resource => "resource",
        };
        let (value, default, values) = (one.value.clone(), one.default.clone(), one.values.clone());
        vec![one.name.clone(), value, from.to_owned(), default, values, one.since.clone(), one.help.clone()]
    };
    List::new(
        &["SETTING", "VALUE", "FROM", "DEFAULT", "VALUES"],
        &["SINCE", "MEANING"],
        settings.iter().map(row),
    )
}
