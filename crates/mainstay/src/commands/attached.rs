//! Resources whose devices are on a node without a replica.

use super::follow;
use super::resource::{details as all_details, duration, path, summary};
use crate::cli::WaitArgs;
use crate::failure::{Code, Failure, Outcome};
use crate::interrupt::GoesOn;
use crate::output::{Output, Progress};
use mainstay_api::rest::{Accepted, AttachedView, ClientView, DeviceView, ResourceView};
use mainstay_client::Client;
use mainstay_types::size;

/// Follows an attachment until the devices are there.
pub fn attach(
    accepted: Accepted,
    (name, node): (&str, &str),
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    if wait.no_wait {
        return output.result(&accepted, |accepted| accepted.message.clone());
    }
    // The message may name what is cut off.
    output.note(&accepted.message);
    let path = path(name)?;
    let _told = GoesOn::work(
        &format!("attaching resource {name} to {node}"),
        &format!("mainstay resource status {name}"),
        &format!("mainstay resource detach {name}"),
    );
    let mut progress = Progress::new();
    let resource = follow(&format!("attaching resource {name} to {node}"), wait.wait_s, || {
        let now: ResourceView = client.get(&path)?;
        progress.show(&format!("attaching: {}", summary(&now)));
        let Some(attached) = now.attached.as_ref().filter(|attached| attached.node == node) else {
            return Err(Failure::new(
                Code::AttachedElsewhere,
                format!("resource {name} was detached or attached elsewhere meanwhile"),
                format!("See `mainstay resource status {name}`."),
            ));
        };
        if let Some(failure) = attached.live.as_ref().and_then(|live| live.failure.clone()) {
            return Err(Failure::new(
                Code::NoDevice,
                failure,
                "Look at the log of the node's engine.".to_owned(),
            ));
        }
        let there = attached.live.as_ref().is_some_and(|live| !live.devices.is_empty());
        Ok(there.then_some(now))
    })?;
    output.result(&resource, all_details)
}

/// For the line about a resource.
pub fn note(resource: &ResourceView) -> String {
    let gone = |node: &String| format!(", being detached from {node}");
    let gone: String = resource.detaching.iter().map(gone).collect();
    match &resource.attached {
        None => gone,
        Some(AttachedView { node, live, .. }) => {
            let state = match live {
                None => " (no devices yet)".to_owned(),
                Some(ClientView { over: Some(why), .. }) => format!(" (its devices are made anew: {why})"),
                Some(ClientView { primary: None, waits_ms, requests: 1.., .. }) => {
                    format!(" (requests have waited for {})", duration(*waits_ms))
                }
                Some(ClientView { primary: None, .. }) => " (waits for a primary)".to_owned(),
                Some(live) if live.devices.is_empty() => " (no devices yet)".to_owned(),
                Some(_) => String::new(),
            };
            format!(", attached to {node}{state}{gone}")
        }
    }
}

/// Where the devices are.
pub fn details(resource: &ResourceView) -> String {
    let Some(attached) = &resource.attached else { return String::new() };
    let AttachedView { node, wait_ms, live, .. } = attached;
    let mut text = format!(
        "\nattached to {node}: a request that waits for a primary for {} fails, and the devices with it",
        duration(*wait_ms)
    );
    let Some(live) = live else { return text };
    for device in &live.devices {
        text += &device_line(device, &format!(" on {node}"));
    }
    if let Some(failure) = &live.failure {
        text += &format!("\nno devices on {node}: {failure}");
    }
    text
}

/// A volume's device, and the length up to which a write to it is never torn.
pub fn device_line(device: &DeviceView, on: &str) -> String {
    let line = format!("\nvolume {} is {}{on}", device.volume, device.path);
    match &device.not_atomic {
        Some(why) => format!("{line}\nno write to volume {} is promised to be whole: {why}", device.volume),
        None if device.atomic_write_max == 0 => line,
        None => {
            format!(
                "{line}; a write of up to {} is whole or absent",
                size::size_words(device.atomic_write_max)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(live: Option<ClientView>) -> ResourceView {
        let attached = AttachedView { node: "n3".into(), session: 9, wait_ms: 60_000, live };
        let json = serde_json::json!({
            "id": 1, "name": "db", "health": "ok", "deleting": false, "volumes": [], "journal_bytes": 0, "epoch": 1, "version": 1,
            "primary": "n1", "preferred": [], "replicas": [], "failure": null, "advice": [],
        });
        let plain: ResourceView = serde_json::from_value(json).expect("a resource");
        ResourceView { attached: Some(attached), ..plain }
    }

    fn client() -> ClientView {
        let device = DeviceView { path: "/dev/loop3".into(), ..DeviceView::default() };
        ClientView {
            primary: Some("n1".into()),
            requests: 0,
            waits_ms: 0,
            streams: 1,
            over: None,
            devices: vec![device],
            failure: None,
        }
    }

    #[test]
    fn a_device_is_shown_with_the_length_of_writes_that_are_whole() {
        let loop3 = DeviceView { path: "/dev/loop3".into(), ..DeviceView::default() };
        assert_eq!(device_line(&loop3, ""), "\nvolume 0 is /dev/loop3", "from an engine that does not say");
        let whole = DeviceView { atomic_write_max: 1 << 20, ..loop3.clone() };
        let line = device_line(&whole, " on n3");
        assert_eq!(line, "\nvolume 0 is /dev/loop3 on n3; a write of up to 1 MiB is whole or absent");
        let torn = DeviceView { not_atomic: Some("the kernel cuts".into()), ..loop3 };
        assert!(
            device_line(&torn, "")
                .ends_with("\nno write to volume 0 is promised to be whole: the kernel cuts")
        );
    }

    #[test]
    fn the_status_names_the_node_with_the_devices_and_their_wait() {
        assert_eq!(note(&resource(None)), ", attached to n3 (no devices yet)");
        assert_eq!(note(&resource(Some(client()))), ", attached to n3");
        assert!(details(&resource(Some(client()))).ends_with("\nvolume 0 is /dev/loop3 on n3"));
        let waits = ClientView { primary: None, requests: 4, waits_ms: 7_500, ..client() };
        assert_eq!(note(&resource(Some(waits))), ", attached to n3 (requests have waited for 8 s)");
        let over = ClientView { over: Some("it was detached".into()), ..client() };
        assert_eq!(
            note(&resource(Some(over))),
            ", attached to n3 (its devices are made anew: it was detached)"
        );
        let detached = ResourceView { attached: None, detaching: vec!["n4".into()], ..resource(None) };
        assert_eq!(note(&detached), ", being detached from n4");
        assert_eq!(details(&detached), "");
    }
}
