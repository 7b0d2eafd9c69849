//! The lab's network: one namespace with a bridge, the switch; a veth pair per port.

use super::state::{Lab, Port, netns_prefix};
use super::tool;
use crate::failure::{Code, Context, Outcome};
use std::path::Path;

const SWITCH: &str = "switch";
const BRIDGE: &str = "bridge";

pub fn create_switch(lab: &Lab) -> Outcome<()> {
    let switch = lab.netns(SWITCH);
    tool::run("ip", &["netns", "add", &switch])?;
    quiet_bridge_netfilter(&switch);
    let bridge = ["link", "add", BRIDGE, "type", "bridge", "stp_state", "0", "forward_delay", "0"];
    tool::run("ip", &[&["-n", &switch][..], &bridge, &["mcast_snooping", "0"]].concat())?;
    tool::run("ip", &["-n", &switch, "link", "set", BRIDGE, "up"])
}

/// Keeps bridged packets from iptables, where the kernel would show them to it as well: the switch
/// has rules of the bridge family only. The file exists only if that module is loaded, so a failure
/// is ignored.
fn quiet_bridge_netfilter(switch: &str) {
    let switch = switch.to_owned();
    // A thread of its own: it changes its network namespace and ends.
    let quiet = std::thread::spawn(move || {
        let Ok(namespace) = std::fs::File::open(Path::new("/run/netns").join(switch)) else { return };
        if nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).is_ok() {
            for table in ["iptables", "ip6tables", "arptables"] {
                let path = format!("/proc/sys/net/bridge/bridge-nf-call-{table}");
                let _ = std::fs::write(path, "0");
            }
        }
    });
    let _ = quiet.join();
}

/// Makes the namespace of a port and plugs it in.
pub fn plug(lab: &Lab, port: &Port) -> Outcome<()> {
    let (switch, own, name) = (lab.netns(SWITCH), lab.netns(&port.name), port.name.as_str());
    tool::run("ip", &["netns", "add", &own])?;
    // The same hardware address after every start, as a real machine has.
    let hardware = format!("02:4d:53:00:00:{:02x}", port.number);
    let pair =
        ["link", "add", name, "type", "veth", "peer", "name", "eth0", "address", &hardware, "netns", &own];
    tool::run("ip", &[&["-n", &switch][..], &pair].concat())?;
    tool::run("ip", &["-n", &switch, "link", "set", name, "master", BRIDGE, "up"])?;
    tool::run("ip", &["-n", &own, "link", "set", "lo", "up"])?;
    tool::run("ip", &["-n", &own, "address", "add", &format!("{}/24", port.address), "dev", "eth0"])?;
    tool::run("ip", &["-n", &own, "link", "set", "eth0", "up"])
}

/// From here on no packet of the port passes.
pub fn link_down(lab: &Lab, port: &str) -> Outcome<()> {
    tool::run("ip", &["-n", &lab.netns(SWITCH), "link", "set", port, "down"])
}

/// Removes a port with its namespace and all addresses in it, as far as they exist.
pub fn unplug(lab: &Lab, port: &str) -> Outcome<()> {
    // The pair may be gone already. A later check looks for it by name.
    let _ = tool::run("ip", &["-n", &lab.netns(SWITCH), "link", "delete", port]);
    let own = lab.netns(port);
    if Path::new("/run/netns").join(&own).exists() {
        tool::run("ip", &["netns", "delete", &own])?;
    }
    Ok(())
}

/// Writes all cuts of the lab into the switch, in one transaction. Bridge rules see every frame, so
/// address resolution and floating addresses are cut as well.
pub fn apply_cuts(lab: &Lab) -> Outcome<()> {
    let switch = lab.netns(SWITCH);
    tool::run_with_input("ip", &["netns", "exec", &switch, "nft", "-f", "-"], &rules(lab))
}

fn rules(lab: &Lab) -> String {
    let mut rules = String::new();
    for (one, other) in &lab.cuts {
        for (from, to) in [(one, other), (other, one)] {
            rules += &format!("iifname \"{from}\" oifname \"{to}\" drop\n");
        }
    }
    for node in &lab.isolated {
        rules += &format!("iifname \"{node}\" drop\noifname \"{node}\" drop\n");
    }
    // Naming the table first makes the deletion valid when there is none yet.
    let chain = format!("chain cut {{ type filter hook forward priority 0; policy accept;\n{rules}}}");
    format!("table bridge lab\ndelete table bridge lab\ntable bridge lab {{\n{chain}\n}}\n")
}

/// Names of all network namespaces that belong to a lab of this name.
pub fn namespaces(name: &str) -> Outcome<Vec<String>> {
    let prefix = netns_prefix(name);
    let entries = match std::fs::read_dir("/run/netns") {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error).or_fail(Code::LabNetwork, || "list network namespaces".into()),
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.starts_with(&prefix)).collect())
}

pub fn delete_namespace(namespace: &str) -> Outcome<()> {
    tool::run("ip", &["netns", "delete", namespace])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_made_in_both_directions() {
        let mut lab = Lab::plan(Path::new("/x"), "x", 3, 1, true);
        lab.cuts.insert(("n1".into(), "n2".into()));
        lab.isolated.insert("n3".into());
        let rules = rules(&lab);
        for rule in [
            "iifname \"n1\" oifname \"n2\" drop",
            "iifname \"n2\" oifname \"n1\" drop",
            "oifname \"n3\" drop",
        ] {
            assert!(rules.contains(rule), "{rules}");
        }
    }
}
