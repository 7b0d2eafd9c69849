//! Floating addresses, and the means that silence a node.

use super::Trouble;
use crate::cluster::{LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::ServicePhase;
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_an_address_that_no_service_may_have_is_refused", no_service_may_have_it),
    ("troubles_an_address_of_an_administrator_stays", an_administrators),
    ("troubles_two_addresses_of_one_network_go_one_by_one", two_of_one_network),
    ("troubles_the_guard_finds_an_address_wherever_it_is", wherever_it_is),
    ("troubles_an_address_that_is_taken_away_is_told_and_comes_back", taken_away),
    ("troubles_a_frozen_node_gives_its_address_up", frozen_node),
    ("troubles_an_address_in_a_strangers_hands_is_waited_for", strangers_hands),
    ("troubles_a_node_is_silent_without_engine_and_agent", without_both),
    ("troubles_a_missing_carrier_and_a_second_holder_are_told", hindered),
    ("troubles_addresses_of_both_families_move_with_their_service", both_families),
];

const ADDRESS: &str = "10.213.0.61";
/// Two addresses of one network, which no operator sets in these tests.
const FIRST: &str = "10.213.0.71";
const SECOND: &str = "10.213.0.72";

/// A service of this name on a resource of the same name, with an address. `more`: lines before the
/// table `[vip]`.
fn file(name: &str, address: &str, more: &str) -> String {
    format!("name = \"{name}\"\nresource = \"{name}\"\n{more}[vip]\naddress = \"{address}\"\n")
}

/// Makes a resource of 16 MiB with replicas on all nodes.
fn make(lab: &Lab, name: &str, preferred: &str) -> Result<()> {
    lab.create_resource(name, "16MiB", &NODES, &["--journal", "16MiB", "--preferred", preferred])
}

/// Applies a service and does not wait for the result.
fn apply(lab: &Lab, name: &str, toml: &str) -> Result<()> {
    let path = lab.dir().join(format!("{name}.toml"));
    std::fs::write(&path, toml).with_context(|| path.display().to_string())?;
    lab.cli(&["service", "apply", "--no-wait", &path.to_string_lossy()]).map(drop)
}

fn remove(lab: &Lab, name: &str) -> Result<()> {
    lab.cli(&["service", "delete", name])?;
    wait_for(&format!("service {name} gone"), LIMIT, || {
        let left = lab.status()?.services.iter().any(|service| service.name == name);
        ensure!(!left, "it is still there");
        Ok(())
    })?;
    lab.cli(&["resource", "delete", "--yes", name])
        .or_else(|_| lab.cli(&["resource", "delete", name]))
        .map(drop)
}

/// Whether an address is on an interface of the node.
fn has(lab: &Lab, node: &str, address: &str) -> Result<bool> {
    let list = lab.exec(node, &["ip", "-o", "address", "show"])?;
    Ok(list.split_whitespace().any(|word| word.split('/').next() == Some(address)))
}

fn no_service_may_have_it(lab: &Lab) -> Result<()> {
    make(lab, "web", "n1")?;
    let before = lab.status()?;
    let node = lab.address("n2")?;
    for (address, says) in [
        (format!("{node}/24"), "n2"),
        (format!("{node}/32"), "n2"),
        ("10.213.0.0/24".into(), "network itself"),
        ("10.213.0.255/24".into(), "broadcast"),
        ("127.0.0.1/8".into(), "loopback"),
        ("0.0.0.0/24".into(), "unspecified"),
        ("224.0.0.5/24".into(), "multicast"),
        ("255.255.255.255/32".into(), "broadcast"),
        ("fe80::7/64".into(), "link-local"),
        ("ff02::7/64".into(), "multicast"),
        ("::1/128".into(), "loopback"),
        ("::/64".into(), "unspecified"),
        ("::ffff:10.213.0.7/96".into(), "ipv4"),
    ] {
        let path = lab.dir().join("wrong-address.toml");
        std::fs::write(&path, file("web", &address, ""))?;
        let finished = lab.try_cli(&["service", "apply", &path.to_string_lossy()])?;
        let said = format!("{}{}", finished.stdout, finished.stderr);
        ensure!(finished.code() == 1, "{address}: exit code {}: {said}", finished.code());
        ensure!(said.contains("vip.address"), "{address}: the field is not named: {said}");
        ensure!(said.to_lowercase().contains(says), "{address}: it does not say `{says}`: {said}");
    }
    ensure!(lab.status()?.services == before.services, "a service was made");
    ensure!(has(lab, "n2", &node)?, "n2 has lost its own address");
    lab.cli(&["resource", "delete", "--yes", "web"])
        .or_else(|_| lab.cli(&["resource", "delete", "web"]))
        .map(drop)
}

/// The operator sets the service's address on n1 by hand. n1 says so and leaves it there.
fn an_administrators(lab: &Lab) -> Result<()> {
    make(lab, "web", "n2")?;
    let by_hand = format!("{ADDRESS}/24");
    lab.apply_service("web", &file("web", &by_hand, "[policy]\nrestart_limit = 0\n"))?;
    ensure!(lab.wait_running("web", LIMIT)? == "n2", "it does not run where it was to");
    lab.exec("n1", &["ip", "address", "add", &by_hand, "dev", "eth0"])?;
    lab.cli(&["service", "move", "web", "--to", "n1", "--no-wait"])?;
    wait_for("n1 saying that it did not add the address", LIMIT, || {
        let events = lab.cli(&["events"])?;
        ensure!(events.contains("is on eth0 already and Mainstay did not add it"), "{events}");
        Ok(())
    })?;
    ensure!(has(lab, "n1", ADDRESS)?, "what the operator had set is gone");
    lab.exec("n1", &["ip", "address", "del", &by_hand, "dev", "eth0"])?;
    let node = lab.wait_running("web", LIMIT)?;
    ensure!(has(lab, &node, ADDRESS)?, "{node} runs it without the address");
    // When an agent starts on a node that does not run the service, its sweep leaves other
    // addresses alone too.
    let other = NODES.into_iter().find(|other| *other != node).context("another node")?;
    lab.exec(other, &["ip", "address", "add", &by_hand, "dev", "eth0"])?;
    lab.restart_agent(other)?;
    remove(lab, "web")?;
    ensure!(has(lab, other, ADDRESS)?, "an address that the operator had set is gone");
    ensure!(!has(lab, &node, ADDRESS)?, "the address stays without its service");
    lab.exec(other, &["ip", "address", "del", &by_hand, "dev", "eth0"]).map(drop)
}

/// Two services have addresses of one network on the same interface, and the operator has a third
/// one. Each address goes alone.
fn two_of_one_network(lab: &Lab) -> Result<()> {
    for (name, address) in [("web", FIRST), ("mail", SECOND)] {
        make(lab, name, "n1")?;
        lab.apply_service(name, &file(name, &format!("{address}/24"), ""))?;
    }
    // On an interface without an address in that network, the first address brings the network with
    // it.
    lab.shell(
        "n1",
        "ip link add apart type veth peer name apart-peer; ip link set apart up; ip link set apart-peer up",
    )?;
    for (name, address) in [("red", "10.214.0.61"), ("blue", "10.214.0.62")] {
        make(lab, name, "n1")?;
        let toml = file(name, &format!("{address}/24"), "") + "interface = \"apart\"\n";
        lab.apply_service(name, &toml)?;
        ensure!(lab.wait_running(name, LIMIT)? == "n1", "{name} runs where it has no interface");
    }
    lab.exec("n1", &["ip", "address", "add", "10.214.0.63/24", "dev", "apart"])?;
    lab.cli(&["service", "move", "web", "--to", "n2"])?;
    wait_for("web on n2", LIMIT, || {
        ensure!(has(lab, "n2", FIRST)? && !has(lab, "n1", FIRST)?, "not yet");
        Ok(())
    })?;
    ensure!(has(lab, "n1", SECOND)?, "mail's address went with web's");
    let route = lab.exec("n1", &["ip", "-4", "route", "get", "10.214.0.99"])?;
    ensure!(route.contains("dev apart"), "the network is not reached through its interface: {route}");
    remove(lab, "red")?;
    ensure!(
        !has(lab, "n1", "10.214.0.61")? && has(lab, "n1", "10.214.0.62")?,
        "blue's address went with red's"
    );
    let route = lab.exec("n1", &["ip", "-4", "route", "get", "10.214.0.99"])?;
    ensure!(route.contains("dev apart"), "blue's network went with red's address: {route}");
    for name in ["blue", "mail", "web"] {
        remove(lab, name)?;
    }
    ensure!(has(lab, "n1", "10.214.0.63")?, "the operator's address went with a service's");
    lab.exec("n1", &["ip", "link", "delete", "apart"]).map(drop)
}

/// An interface comes after the service was made, and gets another name. The guard takes the
/// address off all the same.
fn wherever_it_is(lab: &Lab) -> Result<()> {
    make(lab, "web", "n1")?;
    let add = |node: &str| {
        lab.shell(
            node,
            "ip link add late type veth peer name late-peer; ip link set late up; ip link set late-peer up",
        )
    };
    // An interface that no node has is refused.
    add("n3")?;
    let toml = file("web", "10.214.0.61/24", "[policy]\nrestart_limit = 100\npreferred = \"n1\"\n");
    apply(lab, "web", &(toml + "interface = \"late\"\n"))?;
    wait_for("a service that lacks its interface", LIMIT, || {
        let events = lab.cli(&["events"])?;
        ensure!(events.contains("waits for its address") && events.contains("no interface late"), "{events}");
        Ok(())
    })?;
    add("n1")?;
    add("n2")?;
    let node = lab.wait_running("web", LIMIT)?;
    lab.shell(&node, "ip link set late name later")?;
    ensure!(has(lab, &node, "10.214.0.61")?, "it does not run");
    let agent = lab.pids(&node, "agent")?[0].to_string();
    lab.exec(&node, &["kill", "-STOP", &agent])?;
    lab.lab(&["isolate", &node])?;
    wait_for("the address to be gone", LIMIT, || {
        ensure!(!has(lab, &node, "10.214.0.61")?, "{node} still has it");
        Ok(())
    })?;
    lab.exec(&node, &["kill", "-CONT", &agent])?;
    lab.lab(&["heal"])?;
    // The node may have its lease again before another node is primary, and then it needs the
    // interface.
    lab.shell(&node, "ip link set later name late")?;
    lab.wait_running("web", LIMIT)?;
    remove(lab, "web")?;
    for node in NODES {
        lab.exec(node, &["ip", "link", "delete", "late"])?;
    }
    Ok(())
}

/// The address is taken off its interface, then the interface is set down. The service does not go
/// on as if it ran.
fn taken_away(lab: &Lab) -> Result<()> {
    make(lab, "web", "n1")?;
    for node in NODES {
        let add = "ip link add apart type veth peer name apart-peer; ip link set apart up; ip link set apart-peer up";
        lab.shell(node, add)?;
    }
    let toml = file("web", "10.214.0.71/24", "[policy]\nrestart_limit = 2\n") + "interface = \"apart\"\n";
    lab.apply_service("web", &toml)?;
    ensure!(lab.wait_running("web", LIMIT)? == "n1", "it does not run where it was to");
    lab.exec("n1", &["ip", "address", "del", "10.214.0.71/32", "dev", "apart"])?;
    wait_for("n1 telling that the address was taken off", LIMIT, || {
        let events = lab.cli(&["events"])?;
        ensure!(events.contains("10.214.0.71/24 was taken off apart"), "{events}");
        Ok(())
    })?;
    wait_for("the address back", LIMIT, || {
        ensure!(has(lab, "n1", "10.214.0.71")?, "it is not there");
        Ok(())
    })?;
    lab.wait_running("web", LIMIT)?;
    lab.exec("n1", &["ip", "link", "set", "apart", "down"])?;
    wait_for("the service on another node", LIMIT, || {
        let service = lab.service("web")?;
        ensure!(
            service.phase == ServicePhase::Running && service.node.as_deref() != Some("n1"),
            "{service:?}"
        );
        Ok(())
    })?;
    remove(lab, "web")?;
    NODES.into_iter().try_for_each(|node| lab.exec(node, &["ip", "link", "delete", "apart"]).map(drop))
}

/// A node that stands still as a whole goes on answering for its address. Another node takes the
/// address over all the same. When the stopped node is dead, the next failover has no obstacle
/// either.
fn frozen_node(lab: &Lab) -> Result<()> {
    make(lab, "web", "n2")?;
    lab.apply_service("web", &file("web", &format!("{ADDRESS}/24"), ""))?;
    ensure!(lab.wait_running("web", LIMIT)? == "n2", "it does not run where it was to");
    lab.lab(&["pause", "n2"])?;
    let elsewhere = |what: &str| {
        wait_for(what, LIMIT, || {
            let service = lab.service("web")?;
            let node = service.node.clone().context("a node")?;
            ensure!(
                node != "n2" && service.phase == ServicePhase::Running && has(lab, &node, ADDRESS)?,
                "{service:?}"
            );
            Ok(())
        })
    };
    elsewhere("the service on another node while n2 stands still")?;
    ensure!(lab.service("web")?.failures.is_empty(), "attempts were used up: {:?}", lab.service("web")?);
    lab.kill("n2")?;
    elsewhere("the service on another node when n2 is dead")?;
    lab.start("n2")?;
    lab.wait_in_sync("web", LIMIT)?;
    lab.cli(&["service", "move", "web", "--to", "n2"])?;
    wait_for("the service back on n2", LIMIT, || {
        ensure!(has(lab, "n2", ADDRESS)?, "not yet");
        Ok(())
    })?;
    lab.kill("n2")?;
    elsewhere("the next failover")?;
    lab.start("n2")?;
    lab.wait_in_sync("web", LIMIT)?;
    remove(lab, "web")
}

/// A host that is no node of the cluster has the address. The service waits, says so, and uses up
/// no attempts.
fn strangers_hands(lab: &Lab) -> Result<()> {
    make(lab, "web", "n1")?;
    let address = format!("{ADDRESS}/24");
    lab.exec("client", &["ip", "address", "add", &address, "dev", "eth0"])?;
    apply(lab, "web", &file("web", &address, "[policy]\nrestart_limit = 0\n"))?;
    wait_for("the service saying what it waits for", LIMIT, || {
        let events = lab.cli(&["events"])?;
        ensure!(events.contains("waits for its address") && events.contains("is in use by"), "{events}");
        Ok(())
    })?;
    let service = lab.service("web")?;
    ensure!(service.failures.iter().all(|failure| failure.count == 0), "attempts were used up: {service:?}");
    lab.exec("client", &["ip", "address", "del", &address, "dev", "eth0"])?;
    ensure!(lab.wait_running("web", LIMIT)? == "n1", "it went elsewhere");
    ensure!(has(lab, "n1", ADDRESS)?, "n1 runs it without its address");
    remove(lab, "web")
}

/// Engine and agent of the node that runs a service end, by SIGKILL or like two units that are
/// stopped. They are not started again. The node is silent all the same, and the service runs
/// elsewhere.
fn without_both(lab: &Lab) -> Result<()> {
    make(lab, "web", "n1")?;
    let process = "[[process]]\nname = \"idle\"\ncommand = [\"/bin/sleep\", \"987654\"]\n";
    lab.apply_service("web", &file("web", &format!("{ADDRESS}/24"), process))?;
    let runs = |node: &str| -> Result<bool> {
        let list = lab.shell(node, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true")?;
        Ok(list.contains("sleep 987654"))
    };
    for signal in ["-KILL", "-TERM"] {
        let node = lab.wait_running("web", LIMIT)?;
        ensure!(has(lab, &node, ADDRESS)? && runs(&node)?, "it does not run on {node}");
        // The first process of the node would start both again.
        let init = lab.init(&node)?.to_string();
        let supervisor = |signal: &str| {
            let done = std::process::Command::new("kill").args([signal, &init]).status();
            ensure!(done.is_ok_and(|status| status.success()), "kill {signal} {init}");
            Ok(())
        };
        supervisor("-STOP")?;
        let mut words = vec!["kill".to_owned(), signal.to_owned()];
        for program in ["agent", "engine"] {
            words.extend(lab.pids(&node, program)?.iter().map(u32::to_string));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let silent = lab.exec(&node, &words).and_then(|_| {
            wait_for(&format!("silence on {node} after kill {signal}"), LIMIT, || {
                ensure!(!has(lab, &node, ADDRESS)? && !runs(&node)?, "it is still there");
                Ok(())
            })?;
            wait_for("the service on another node", LIMIT, || {
                let service = lab.service("web")?;
                ensure!(
                    service.phase == ServicePhase::Running && service.node.as_ref() != Some(&node),
                    "{service:?}"
                );
                Ok(())
            })
        });
        supervisor("-CONT")?;
        silent?;
        lab.wait_in_sync("web", LIMIT)?;
    }
    remove(lab, "web")
}

/// The status, the status of the service and the events tell the trouble, and then that it is over.
fn told(lab: &Lab, says: &str, begin: (&str, &str), end: (&str, &str)) -> Result<()> {
    lab.shell(begin.0, begin.1)?;
    let told =
        [&["status"][..], &["service", "status", "web"], &["events"]].into_iter().try_for_each(|ask| {
            wait_for(&format!("{says} in {ask:?}"), LIMIT, || {
                let said = lab.try_cli(ask)?.stdout;
                ensure!(said.contains(says), "{said}");
                Ok(())
            })
        });
    lab.shell(end.0, end.1)?;
    told?;
    wait_for(&format!("the end of: {says}"), LIMIT, || {
        let said = lab.try_cli(&["status"])?.stdout;
        ensure!(!said.contains(says), "{said}");
        let service = lab.cli(&["service", "status", "web"])?;
        ensure!(!service.contains(says) && service.contains("running on n1"), "{service}");
        Ok(())
    })
}

/// The cable of the interface is pulled, and another host takes the address: the service runs, and
/// is of no use.
fn hindered(lab: &Lab) -> Result<()> {
    make(lab, "web", "n1")?;
    for node in NODES {
        let add = "ip link add apart type veth peer name apart-peer; ip link set apart up; ip link set apart-peer up";
        lab.shell(node, add)?;
    }
    let apart = file("web", "10.214.0.71/24", "") + "interface = \"apart\"\n";
    lab.apply_service("web", &apart)?;
    ensure!(lab.wait_running("web", LIMIT)? == "n1", "it does not run where it was to");
    let pull = ("n1", "ip link set apart-peer down");
    told(lab, "apart of n1 has had no carrier for ", pull, ("n1", "ip link set apart-peer up"))?;
    lab.apply_service("web", &file("web", &format!("{ADDRESS}/24"), ""))?;
    ensure!(lab.wait_running("web", LIMIT)? == "n1", "it does not run where it was to");
    let take = format!("ip address add {ADDRESS}/24 dev eth0");
    let give_back = format!("ip address del {ADDRESS}/24 dev eth0");
    let says = format!("has answered for its address {ADDRESS}/24 for ");
    told(lab, &says, ("client", &take), ("client", &give_back))?;
    remove(lab, "web")?;
    NODES.into_iter().try_for_each(|node| lab.exec(node, &["ip", "link", "delete", "apart"]).map(drop))
}

/// A service with an address of either family. The one of IPv6 is in a stranger's hands at first:
/// the service runs with the other one. Then both move when the power of their node is cut, also
/// the one that the dead node's guard cannot take away any more.
fn both_families(lab: &Lab) -> Result<()> {
    const SIX: &str = "fd00:213::61";
    make(lab, "web", "n1")?;
    for (place, node) in NODES.into_iter().chain(["client"]).enumerate() {
        let own = format!("fd00:213::{}/64", place + 1);
        lab.exec(node, &["ip", "-6", "address", "add", &own, "dev", "eth0", "nodad"])?;
    }
    let by_hand = format!("{SIX}/64");
    lab.exec("client", &["ip", "-6", "address", "add", &by_hand, "dev", "eth0", "nodad"])?;
    let second = format!("[[vip]]\naddress = \"{ADDRESS}/24\"\n[[vip]]\naddress = \"{by_hand}\"\n");
    lab.apply_service("web", &format!("name = \"web\"\nresource = \"web\"\n{second}"))?;
    ensure!(lab.wait_running("web", LIMIT)? == "n1", "it does not run where it was to");
    wait_for("the service saying what it waits for", LIMIT, || {
        let status = lab.cli(&["service", "status", "web"])?;
        ensure!(status.contains("waits for its address") && status.contains(SIX), "{status}");
        Ok(())
    })?;
    ensure!(has(lab, "n1", ADDRESS)? && !has(lab, "n1", SIX)?, "n1 does not have the free one alone");
    lab.exec("client", &["ip", "-6", "address", "del", &by_hand, "dev", "eth0"])?;
    let answers = |node: &str| {
        wait_for(&format!("both addresses of {node} from the client"), LIMIT, || {
            let list = lab.exec(node, &["ip", "-o", "address", "show", "dev", "eth0"])?;
            let line = list.lines().find(|line| line.contains(&format!("{SIX}/128"))).unwrap_or_default();
            ensure!(!line.is_empty() && !line.contains("tentative"), "{list}");
            // No program listens there: only the host that has the address refuses at once.
            for address in [ADDRESS, SIX] {
                let connect = format!("timeout 2 bash -c '</dev/tcp/{address}/9' 2>&1 || true");
                let said = lab.shell("client", &connect)?;
                ensure!(said.contains("refused"), "{address}: {said}");
            }
            Ok(())
        })
    };
    answers("n1")?;
    let status = lab.cli(&["service", "status", "web"])?;
    ensure!(!status.contains("waits for"), "{status}");
    ensure!(lab.service("web")?.failures.iter().all(|failure| failure.count == 0), "attempts were used up");
    lab.kill("n1")?;
    wait_for("the service on another node", LIMIT, || {
        let service = lab.service("web")?;
        ensure!(
            service.phase == ServicePhase::Running && service.node.as_deref() != Some("n1"),
            "{service:?}"
        );
        Ok(())
    })?;
    let node = lab.service("web")?.node.context("a node")?;
    answers(&node)?;
    lab.start("n1")?;
    lab.wait_in_sync("web", LIMIT)?;
    // The guard of a node whose agent stands still takes both away.
    let agent = lab.pids(&node, "agent")?[0].to_string();
    lab.exec(&node, &["kill", "-STOP", &agent])?;
    lab.lab(&["isolate", &node])?;
    let silent = wait_for("both addresses gone", LIMIT, || {
        ensure!(!has(lab, &node, ADDRESS)? && !has(lab, &node, SIX)?, "{node} still has one");
        Ok(())
    });
    lab.exec(&node, &["kill", "-CONT", &agent])?;
    lab.lab(&["heal"])?;
    silent?;
    lab.wait_in_sync("web", LIMIT)?;
    remove(lab, "web")?;
    for (place, node) in NODES.into_iter().chain(["client"]).enumerate() {
        let own = format!("fd00:213::{}/64", place + 1);
        // A node whose power was cut has a new interface.
        lab.shell(node, &format!("ip -6 address del {own} dev eth0 2>/dev/null || true"))?;
    }
    Ok(())
}
