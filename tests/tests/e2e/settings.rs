//! Settings of a resource and of the cluster.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Result, ensure};
use mainstay_api::rest::{Mode, SettingSource, SettingView};
use mainstay_tests::lab::Lab;

const NAME: &str = "settings";

/// Value and source of a setting of the resource, as every node knows them.
fn known(lab: &Lab, setting: &str) -> Result<(String, SettingSource)> {
    let said = lab.cli(&["--json", "resource", "settings", NAME])?;
    let views: Vec<SettingView> = serde_json::from_str(&said)?;
    let found = views.into_iter().find(|view| view.name == setting);
    let view = found.ok_or_else(|| anyhow::anyhow!("no setting {setting}: {said}"))?;
    Ok((view.value, view.from))
}

/// An operator chooses settings for one resource and for all, while the resource is used, and sees
/// where each value comes from. What the resource cannot keep is refused and changes nothing.
pub fn settings_are_chosen_for_one_resource_and_for_all(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    let more = ["--journal", "16MiB", "--set", "mode=b", "--set", "slow-for=2s"];
    lab.create_resource(NAME, "64MiB", &NODES[..2], &more)?;
    ensure!(lab.resource(NAME)?.mode == Mode::B, "{:?}", lab.resource(NAME)?);
    ensure!(known(lab, "slow-for")? == ("2s".into(), SettingSource::Resource));
    ensure!(known(lab, "slow-ack")? == ("10ms".into(), SettingSource::Default));
    let (node, device) = cluster.device(NAME)?;
    let write = format!("dd if=/dev/urandom of={device} bs=64K count=64 oflag=direct status=none");
    lab.shell(&node, &write)?;

    lab.cli(&["cluster", "set", "slow-ack=50ms"])?;
    ensure!(known(lab, "slow-ack")? == ("50ms".into(), SettingSource::Cluster));
    let said = lab.cli(&["resource", "set", NAME, "slow-ack=20ms", "mode=a", "lag-bytes=1MiB"])?;
    ensure!(said.contains("mode A") && said.contains("slow-ack is 20ms"), "{said}");
    ensure!(known(lab, "slow-ack")? == ("20ms".into(), SettingSource::Resource));
    ensure!(known(lab, "lag-bytes")? == ("1MiB".into(), SettingSource::Resource));
    lab.shell(&node, &write)?;
    lab.cli(&["resource", "set", NAME, "slow-ack=default", "mode=c"])?;
    ensure!(known(lab, "slow-ack")? == ("50ms".into(), SettingSource::Cluster));
    lab.cli(&["cluster", "set", "slow-ack=default"])?;
    ensure!(known(lab, "slow-ack")? == ("10ms".into(), SettingSource::Default));
    lab.wait_in_sync(NAME, LIMIT)?;

    let before = lab.cli(&["resource", "settings", NAME])?;
    for (words, code, said) in [
        (&["resource", "set", NAME, "slow-ack=20"][..], 2, "`20` has no unit: write 20ms or 20s"),
        (
            &["resource", "set", NAME, "slow-akc=20ms"],
            2,
            "there is no setting `slow-akc`; did you mean slow-ack?",
        ),
        (&["resource", "set", NAME, "mode=d"], 2, "`d` is not a, b or c"),
        (&["resource", "set", NAME, "slow-ack=1ms", "slow-ack=2ms"], 2, "slow-ack is given twice"),
        (&["resource", "set", NAME, "lag-time=1s"], 1, "not-for-this-mode"),
        (&["resource", "set", NAME, "min-copies=3"], 1, "bad-min-copies"),
        (&["resource", "set", NAME, "c-max-rate=1MiB"], 1, " cluster set c-max-rate=1MiB"),
        (&["cluster", "set", "min-copies=4"], 1, "resource db"),
    ] {
        let finished = lab.try_cli(words)?;
        ensure!(finished.code() == code && finished.stderr.contains(said), "{words:?}: {finished:?}");
    }
    let after = lab.cli(&["resource", "settings", NAME])?;
    ensure!(after == before, "a refusal changed something: {after}");
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}
