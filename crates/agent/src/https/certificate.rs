//! The certificate that this node shows to clients of its API.
//!
//! Guarantees
//! - With files of its own, the node shows the certificate in them and no other one. Files that are
//!   replaced are read again within [`LOOK_EVERY`]. While they do not fit together, the node goes
//!   on with the certificate that it read before.
//! - Without, it shows one of the cluster's authority with a key that exists in this process alone.
//!   It is made anew when it is due, when another authority gives certificates, and when the node
//!   has other names.
//! - Until there is a certificate, the port is closed.

use super::{ApiListen, CertificateFiles};
use crate::agent::Agent;
use crate::clock::wall_ms;
use crate::raft::ConsensusLog;
use crate::threads::{read, write};
use crate::trust::open_authority;
use mainstay_control::State;
use mainstay_trust::{Key, ServerNames, https, is_due, pem};
use mainstay_types::{Code, NodeId, Problem};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// How often files and names are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The same while there is no certificate.
const LOOK_FIRST: Duration = Duration::from_secs(1);
/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Mode bits that a private key must not have: all access of others, and writing by its group.
const KEY_MODE_FORBIDDEN: u32 = 0o027;
/// Names under which a machine knows itself.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
const CODE: Code = Code::ApiCertificate;

/// Sources of a certificate. If they change, another one is made.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    /// Each file by its time, its size and its number.
    Files([(i64, i64, u64, u64); 2]),
    /// Names and number of the authority.
    Authority(ServerNames, u32),
}

struct Shown {
    config: Arc<ServerConfig>,
    source: Source,
    /// End of a certificate of the cluster's authority, in milliseconds since 1970.
    until_ms: Option<u64>,
}

/// See the top of this file.
#[derive(Clone)]
pub(super) struct Certificate(Arc<RwLock<Arc<Shown>>>);

impl Certificate {
    /// Waits for the first certificate, and looks for others from then on.
    pub(super) async fn first(agent: &Arc<Agent>, listen: ApiListen) -> Self {
        let mut told = Told::default();
        let shown = loop {
            match look(Arc::downgrade(agent), listen.clone(), None).await {
                Ok(Some(shown)) => break shown,
                Ok(None) => {}
                Err(problem) => told.tell(&problem, "the API is not served over TLS"),
            }
            sleep(LOOK_FIRST).await;
        };
        let certificate = Self(Arc::new(RwLock::new(Arc::new(shown))));
        tokio::spawn(certificate.clone().follow(Arc::downgrade(agent), listen));
        certificate
    }

    async fn follow(self, agent: Weak<Agent>, listen: ApiListen) {
        let mut told = Told::default();
        loop {
            sleep(LOOK_EVERY).await;
            let known = read(&self.0).clone();
            match look(agent.clone(), listen.clone(), Some(known)).await {
                Ok(Some(shown)) => {
                    tracing::info!("the API has another certificate");
                    *write(&self.0) = Arc::new(shown);
                    told = Told::default();
                }
                Ok(None) => told = Told::default(),
                Err(problem) => told.tell(&problem, "the API goes on with the certificate that it had"),
            }
        }
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        read(&self.0).config.clone().into()
    }
}

/// Says each trouble once.
#[derive(Default)]
struct Told(Option<String>);

impl Told {
    fn tell(&mut self, problem: &Problem, so: &str) {
        if self.0.as_ref() != Some(&problem.message) {
            let (code, remedy) = (&problem.code, &problem.remedy);
            tracing::error!(%code, remedy, "{so}: {}", problem.message);
            self.0 = Some(problem.message.clone());
        }
    }
}

/// Looks where waiting is allowed: a disk may hang. `None`: the known certificate is still right,
/// or there can be none yet.
async fn look(
    agent: Weak<Agent>,
    listen: ApiListen,
    known: Option<Arc<Shown>>,
) -> Result<Option<Shown>, Problem> {
    let work = move || match &listen.files {
        Some(files) => of_files(files, known.as_deref()),
        None => match agent.upgrade() {
            Some(agent) => of_authority(&agent, listen.address.ip(), known.as_deref()),
            None => Ok(None),
        },
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(found) => found,
        Err(error) => Err(Problem::new(Code::AgentInternal, error.to_string(), "Look at the agent's log.")),
    }
}

fn unusable(path: &Path, why: &str) -> Problem {
    let message = format!("{} {why}", path.display());
    Problem::new(CODE, message, "Correct the files of api_certificate and api_key; they are read again.")
}

fn of_files(files: &CertificateFiles, known: Option<&Shown>) -> Result<Option<Shown>, Problem> {
    let mark = |path: &Path| {
        let found =
            fs::metadata(path).map_err(|error| unusable(path, &format!("cannot be read: {error}")))?;
        Ok::<_, Problem>((found.mtime(), found.mtime_nsec(), found.size(), found.ino()))
    };
    let source = Source::Files([mark(&files.certificate)?, mark(&files.key)?]);
    if known.is_some_and(|known| known.source == source) {
        return Ok(None);
    }
    let chain = pem::certificates(&read_file(&files.certificate, 0)?)
        .map_err(|why| unusable(&files.certificate, &why))?;
    let key = pem::private_key(&read_file(&files.key, KEY_MODE_FORBIDDEN)?)
        .map_err(|why| unusable(&files.key, &why))?;
    let config = https::server(chain, key).map_err(|error| {
        let why = format!("and its key {} cannot be used: {error}", files.key.display());
        unusable(&files.certificate, &why)
    })?;
    Ok(Some(Shown { config, source, until_ms: None }))
}

fn read_file(path: &Path, forbidden: u32) -> Result<Vec<u8>, Problem> {
    let unread = |error: std::io::Error| unusable(path, &format!("cannot be read: {error}"));
    let found = fs::metadata(path).map_err(unread)?;
    let mode = found.permissions().mode() & 0o777;
    if mode & forbidden != 0 {
        return Err(unusable(path, &format!("can be read or changed by others (mode {mode:o})")));
    }
    if found.size() > FILE_BYTES_MAX {
        return Err(unusable(path, &format!("has more than {FILE_BYTES_MAX} bytes")));
    }
    fs::read(path).map_err(unread)
}

fn of_authority(agent: &Agent, listens: IpAddr, known: Option<&Shown>) -> Result<Option<Shown>, Problem> {
    // A node of no cluster, or one that has not received the record, has no tokens either.
    let Ok(member) = agent.member() else { return Ok(None) };
    let state = member.log.view().state;
    let Some(issuing) = state.identities.issuing() else { return Ok(None) };
    let names = names_of(&state, member.identity.node, listens);
    let source = Source::Authority(names.clone(), issuing.number);
    let is_right = |known: &Shown| {
        known.source == source && known.until_ms.is_some_and(|until_ms| !is_due(until_ms, wall_ms()))
    };
    if known.is_some_and(is_right) {
        return Ok(None);
    }
    let failed = |error: mainstay_trust::TrustError| {
        let message = format!("the cluster's authority cannot give this node a certificate: {error}");
        Problem::new(CODE, message, "Look at the clock of this node, and at its log.")
    };
    let seal = agent.seal_of(issuing)?;
    let authority = open_authority(member.identity.cluster, issuing, &seal).map_err(failed)?;
    let key = Key::generate().map_err(failed)?;
    let issued = authority.issue_server(&names, &key.public(), wall_ms()).map_err(failed)?;
    let chain = vec![issued.certificate, authority.certificate().clone()];
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.pkcs8().to_vec()));
    let config = https::server(chain, der).map_err(failed)?;
    Ok(Some(Shown { config, source, until_ms: Some(issued.until_ms) }))
}

/// The names and addresses under which clients may reach this node.
fn names_of(state: &State, own: NodeId, listens: IpAddr) -> ServerNames {
    let mut names = ServerNames::default();
    OWN_NAMES.iter().for_each(|name| names.add(name));
    names.add_address(listens);
    if let Ok(host) = fs::read_to_string(HOST_NAME) {
        names.add(host.trim());
    }
    let Some(node) = state.nodes.get(&own) else { return names };
    names.add(&node.name);
    for address in [&node.agent_addr, &node.engine_addr] {
        if let Some((host, _)) = address.rsplit_once(':') {
            names.add(host.trim_start_matches('[').trim_end_matches(']'));
        }
    }
    node.links.addresses.iter().for_each(|address| names.add_address(*address));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_trust::Authority;
    use std::path::PathBuf;

    /// A certificate of an authority of its own, and its key, as files.
    fn put(directory: &Path, made: &Authority) -> CertificateFiles {
        let (key, mut names) = (Key::generate().unwrap(), ServerNames::default());
        names.add("n1");
        let issued = made.issue_server(&names, &key.public(), wall_ms()).unwrap();
        let files = CertificateFiles { certificate: directory.join("c.pem"), key: directory.join("k.pem") };
        fs::write(&files.certificate, pem::of_certificate(&issued.certificate)).unwrap();
        write_key(&files.key, &key);
        files
    }

    fn write_key(path: &PathBuf, key: &Key) {
        use base64::Engine as _;
        let encoded = base64::engine::general_purpose::STANDARD.encode(key.pkcs8());
        let text = format!("-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n");
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn refused(files: &CertificateFiles, known: Option<&Shown>) -> String {
        let problem = of_files(files, known).map(|_| ()).unwrap_err();
        assert_eq!(problem.code, Code::ApiCertificate);
        problem.message
    }

    #[test]
    fn own_files_are_read_again_when_they_are_replaced_and_used_only_if_they_fit() {
        let (directory, authority) =
            (tempfile::tempdir().unwrap(), Authority::make(7, 1, wall_ms()).unwrap());
        let files = put(directory.path(), &authority);
        let first = of_files(&files, None).unwrap().expect("a certificate");
        assert!(of_files(&files, Some(&first)).unwrap().is_none(), "nothing has changed");
        write_key(&files.key, &Key::generate().unwrap());
        assert!(refused(&files, Some(&first)).contains("cannot be used"));
        put(directory.path(), &authority);
        assert!(of_files(&files, Some(&first)).unwrap().is_some());
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
        let message = refused(&files, None);
        assert!(message.contains("can be read or changed by others (mode 644)"), "{message}");
        fs::write(&files.certificate, "no PEM").unwrap();
        assert!(refused(&files, None).contains("no certificate"));
        fs::remove_file(&files.certificate).unwrap();
        assert!(refused(&files, None).contains("cannot be read"));
    }
}
