//! A connection that is opened and closed in an orderly way.
//!
//! The kernel accepts connections on behalf of a process that stands still. Only with `expect` the
//! probe shows that the process itself answers.

use crate::connection::{broken, open_address};
use crate::stage::Stage;
use crate::words::quoted;
use crate::{Outcome, Probed};
use mainstay_ha::TcpProbe;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long the other side may take to close its direction. A connection that is closed with
/// unread bytes is reset.
const CLOSE_WITHIN: Duration = Duration::from_millis(200);
/// Most bytes that are read only to close in an orderly way.
const CLOSE_BYTES_MAX: usize = 64 << 10;

pub async fn probe(probe: &TcpProbe, stage: &Stage) -> Probed<String> {
    let address = &probe.address;
    let mut stream = open_address(address, stage).await?;
    let Some(expect) = probe.expect.as_ref().map(String::as_bytes) else {
        close(stream).await;
        return Ok(format!("{address} takes connections"));
    };
    let mut begun = Vec::new();
    while begun.len() < expect.len() {
        stage.reach(format!(
            "{address} takes connections, but did not send the expected text: the program stands still, or waits for \
             something first"
        ));
        let mut part = [0; 1024];
        let wanted = part.len().min(expect.len() - begun.len());
        match stream.read(&mut part[..wanted]).await {
            Ok(0) => break,
            Ok(n) => begun.extend_from_slice(&part[..n]),
            Err(error) => return Err(broken(address, &error)),
        }
        if !expect.starts_with(&begun) {
            break;
        }
    }
    close(stream).await;
    if begun == expect {
        return Ok(format!("{address} takes connections and begins with the expected text"));
    }
    let sent = if begun.is_empty() { "nothing".into() } else { format!("`{}`", quoted(&begun)) };
    Err(Outcome::Unhealthy(format!("{address} sent {sent}, and `{}` was expected", quoted(expect))))
}

async fn close(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let drained = async {
        let (mut part, mut left) = ([0; 4096], CLOSE_BYTES_MAX);
        while let Ok(n @ 1..) = stream.read(&mut part).await {
            left = left.saturating_sub(n);
            if left == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(CLOSE_WITHIN, drained).await;
}
