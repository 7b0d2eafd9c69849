//! The part of a report that is about one resource.

use mainstay_api::rest::Report;
use mainstay_control::state::State;
use std::collections::BTreeSet;

/// A resource, with what belongs to it by the present record.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub resource: String,
    /// Whether the cluster has the resource now. The histories may know one that was deleted.
    pub is_there: bool,
    /// Names of its services.
    pub services: BTreeSet<String>,
    /// Names of the nodes that have a replica or the devices.
    pub nodes: BTreeSet<String>,
}

impl Part {
    #[must_use]
    pub fn of(state: &State, name: &str) -> Self {
        let Some(resource) = state.resource_by_name(name) else {
            return Self { resource: name.to_owned(), ..Self::default() };
        };
        let services = state.services.iter().filter(|(_, service)| service.spec.resource == name);
        let nodes = resource.spec.replicas.iter().map(|node| state.node_name(*node));
        Self {
            resource: name.to_owned(),
            is_there: true,
            services: services.map(|(name, _)| name.clone()).collect(),
            nodes: nodes.collect(),
        }
    }

    /// Leaves in a report, and in the one that it is compared with, what is about this resource.
    ///
    /// # Errors
    /// When neither the cluster nor the report knows the resource.
    #[expect(clippy::result_unit_err, reason = "the caller knows the names that were probably meant")]
    pub fn limit(&self, report: &mut Report) -> Result<(), ()> {
        let has = |report: &Report| report.resources.iter().any(|one| one.resource == self.resource);
        if !self.is_there && !has(report) && !report.compared.as_deref().is_some_and(has) {
            return Err(());
        }
        self.cut(report);
        if let Some(before) = &mut report.compared {
            self.cut(before);
        }
        report.resource = Some(self.resource.clone());
        Ok(())
    }

    fn cut(&self, report: &mut Report) {
        report.resources.retain(|one| one.resource == self.resource);
        let mut nodes = self.nodes.clone();
        nodes.extend(report.resources.iter().flat_map(|one| one.primaries.keys().cloned()));
        report.nodes.retain(|one| nodes.contains(&one.node));
        // Each begins with the name of its node.
        report.missing.retain(|one| one.split(':').next().is_some_and(|node| nodes.contains(node)));
        report.changes.retain(|one| one.resource == self.resource);
        report.events.retain(|one| match one.subject.split_once('/') {
            Some(("resource", name)) => name == self.resource,
            Some(("service", name)) => self.services.contains(name),
            Some(("node", name)) => nodes.contains(name),
            _ => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::{ChangeView, EventView, NodeReport, ResourceReport, Severity};

    fn report() -> Report {
        let resource = |name: &str, primary: &str| ResourceReport {
            resource: name.into(),
            primaries: [(primary.to_owned(), 60_000)].into(),
            ..ResourceReport::default()
        };
        let change = |name: &str| ChangeView {
            resource: name.into(),
            service: None,
            from: None,
            to: None,
            epoch: 2,
            cause: "node-dead".into(),
            decided_by: "cluster".into(),
            at_ms: 5,
            took_ms: None,
            stages: Vec::new(),
        };
        let event = |subject: &str| EventView {
            index: 1,
            at_ms: 5,
            severity: Severity::Warning,
            subject: subject.into(),
            text: "trouble".into(),
        };
        let nodes = ["n1", "n2", "n3", "n4"];
        Report {
            resources: vec![resource("db", "n3"), resource("log", "n4")],
            nodes: nodes.map(|node| NodeReport { node: node.into(), ..NodeReport::default() }).into(),
            missing: vec!["n2: the node is dead".into(), "n5: the node is dead".into()],
            changes: vec![change("db"), change("log")],
            events: [
                "resource/db",
                "resource/log",
                "service/shop",
                "service/mail",
                "node/n1",
                "node/n4",
                "cluster/c",
            ]
            .map(event)
            .into(),
            ..Report::default()
        }
    }

    #[test]
    fn a_report_of_one_resource_has_its_nodes_services_and_events_and_no_others() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let part = Part {
            resource: "db".into(),
            is_there: true,
            services: names(&["shop"]),
            nodes: names(&["n1", "n2"]),
        };
        let mut limited = Report { compared: Some(Box::new(report())), ..report() };
        part.limit(&mut limited).unwrap();
        assert_eq!(limited.resource.as_deref(), Some("db"));
        for one in [&limited, limited.compared.as_deref().unwrap()] {
            let resources: Vec<_> = one.resources.iter().map(|one| one.resource.as_str()).collect();
            let nodes: Vec<_> = one.nodes.iter().map(|one| one.node.as_str()).collect();
            let events: Vec<_> = one.events.iter().map(|one| one.subject.as_str()).collect();
            // n3 was its primary then.
            assert_eq!((resources, nodes), (vec!["db"], vec!["n1", "n2", "n3"]));
            assert_eq!(events, ["resource/db", "service/shop", "node/n1"]);
            assert_eq!(one.missing, ["n2: the node is dead"]);
            assert_eq!(one.changes.len(), 1);
        }
    }

    #[test]
    fn a_resource_that_was_deleted_is_reported_and_one_that_never_was_is_refused() {
        let part = |name: &str| Part { resource: name.into(), ..Part::default() };
        assert!(part("log").limit(&mut report()).is_ok());
        assert!(part("logs").limit(&mut report()).is_err());
        // One that was just made has no record yet.
        assert!(Part { is_there: true, ..part("new") }.limit(&mut report()).is_ok());
        let mut only_before = Report { compared: Some(Box::new(report())), ..Report::default() };
        assert!(part("log").limit(&mut only_before).is_ok());
    }
}
