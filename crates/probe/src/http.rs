//! A page: its status, and a text in it.

use crate::connection::{Connection, open_address};
use crate::stage::Stage;
use crate::tls::Tls;
use crate::words::quoted;
use crate::{Outcome, Probed};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use mainstay_ha::{HttpProbe, HttpTarget};

/// Part of a page in which the expected text is looked for, in bytes.
const PAGE_BYTES_MAX: usize = 64 << 10;

pub async fn probe(probe: &HttpProbe, stage: &Stage) -> Probed<String> {
    let url = &probe.url;
    let wrong = |why: &str| Outcome::Unhealthy(format!("{url}: {why}"));
    let target = probe.target().ok_or_else(|| wrong("this is not a URL that a probe can ask"))?;
    let statuses = probe.statuses().ok_or_else(|| wrong("the statuses are not readable"))?;
    let tls = if target.tls { Some(Tls::read(probe.ca_file.as_ref()).await?) } else { None };
    let mut response = ask(url, target, tls.as_ref(), stage).await?;
    let status = response.status().as_u16();
    if !statuses.contains(&status) {
        let text = format!("the status is {status}, and {} is expected", probe.status);
        return Err(wrong(&text));
    }
    let Some(expect) = &probe.expect else { return Ok(format!("{url}: status {status}")) };
    stage.reach(format!("{url} answered with status {status}, but the page did not end"));
    let mut page = Vec::new();
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame.map_err(|error| wrong(&format!("the page broke off: {error}")))?;
        // The text may have begun in what was there before.
        let from = page.len().saturating_sub(expect.len());
        if let Some(data) = frame.data_ref() {
            page.extend_from_slice(&data[..data.len().min(PAGE_BYTES_MAX - page.len())]);
        }
        if contains(&page[from..], expect.as_bytes()) {
            return Ok(format!("{url}: status {status}, with the expected text"));
        }
        if page.len() >= PAGE_BYTES_MAX {
            break;
        }
    }
    Err(wrong(&format!(
        "status {status}, but its first {} bytes do not contain `{}`; they begin with `{}`",
        page.len(),
        quoted(expect.as_bytes()),
        quoted(&page)
    )))
}

fn contains(page: &[u8], text: &[u8]) -> bool {
    page.windows(text.len().max(1)).any(|part| part == text)
}

async fn ask(
    url: &str,
    target: HttpTarget<'_>,
    tls: Option<&Tls>,
    stage: &Stage,
) -> Probed<Response<Incoming>> {
    let wrong = |why: String| Outcome::Unhealthy(format!("{url}: {why}"));
    let HttpTarget { authority, host, port, path, .. } = target;
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let stream = Box::new(open_address(&address, stage).await?);
    let mut connection = Connection { stream, is_secret: false, place: address.clone() };
    if let Some(tls) = tls {
        connection.secure(tls, stage).await?;
    }
    stage.reach(format!("{address} takes connections, but did not answer the request"));
    let no_http = |error: hyper::Error| wrong(format!("the answer is not HTTP, or it broke off: {error}"));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(connection.stream)).await.map_err(no_http)?;
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(header::HOST, authority)
        .header(header::USER_AGENT, "mainstay-probe")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| wrong(format!("no request can be made of it: {error}")))?;
    sender.send_request(request).await.map_err(no_http)
}
