//! Metrics of a lab's nodes, as Prometheus would read them.

use crate::lab::{CLIENT, Lab};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// Port on which the agents of a lab serve their metrics.
const PORT: u16 = 7402;

/// One page.
#[derive(Debug)]
pub struct Scrape {
    node: String,
    /// By the name with its labels, as they are written.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    /// Reads a node's page over the lab's network, from the client's place in it.
    ///
    /// # Errors
    /// When it is not served, or is not what it should be.
    pub fn of(lab: &Lab, node: &str) -> Result<Self> {
        let address = lab.address(node)?;
        let script = format!(
            "exec 3<>/dev/tcp/{address}/{PORT}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        );
        let answer = lab.exec(CLIENT, &["timeout", "30", "bash", "-c", &script])?;
        let (head, page) = answer.split_once("\r\n\r\n").context("an answer with a head")?;
        ensure!(head.starts_with("HTTP/1.") && head.contains(" 200 "), "{node}: {head}");
        Self::parse(node, page)
    }

    /// The same from the command line, over the agent's socket.
    ///
    /// # Errors
    /// When the command fails, or the page is not what it should be.
    pub fn from_cli(lab: &Lab, node: &str) -> Result<Self> {
        Self::parse(node, &lab.cli(&["--node", node, "metrics"])?)
    }

    fn parse(node: &str, page: &str) -> Result<Self> {
        let mut samples = BTreeMap::new();
        for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (name, value) = line.rsplit_once(' ').with_context(|| format!("no value: {line}"))?;
            let value = if value == "+Inf" { f64::INFINITY } else { value.parse()? };
            ensure!(samples.insert(name.to_owned(), value).is_none(), "{node} says {name} twice");
        }
        ensure!(!samples.is_empty(), "{node} says nothing");
        Ok(Self { node: node.to_owned(), samples })
    }

    /// The sum of all samples of a name that have this label, both as they are written.
    #[must_use]
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let of = self.samples.iter().filter(|(sample, _)| {
            sample.strip_prefix(name).is_some_and(|labels| labels.starts_with('{') && labels.contains(label))
        });
        of.map(|(_, value)| value).sum()
    }

    /// The value of a sample, named with its labels as they are written.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.samples.get(name).copied()
    }

    /// # Errors
    /// When there is no such sample.
    pub fn value(&self, name: &str) -> Result<f64> {
        self.get(name).with_context(|| format!("{} says nothing of {name}", self.node))
    }

    /// Fails unless a sample has this value.
    ///
    /// # Errors
    /// When it has not, or is not there.
    pub fn is(&self, name: &str, wanted: f64) -> Result<()> {
        let found = self.value(name)?;
        ensure!(found == wanted, "{}: {name} is {found} and not {wanted}", self.node);
        Ok(())
    }

    /// Names of samples, without labels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.samples.keys().map(|name| name.split('{').next().unwrap_or(name))
    }
}
