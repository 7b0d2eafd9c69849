//! `mainstay inspect`: what journal and metadata of a replica's directory hold.

use crate::cli::InspectArgs;
use crate::failure::{Code, Failure, Outcome, exit, is_forbidden};
use crate::output::{Output, table};
use mainstay_api::inspect::{LogPosition, ReplicaFilesView};
use mainstay_engine::inspect::{InspectError, inspect};
use mainstay_types::size;

pub fn run(args: &InspectArgs, output: Output) -> Outcome<u8> {
    let view = inspect(&args.directory, args.journal.as_deref()).map_err(failure)?;
    let healthy = view.faults.is_empty();
    output.result(&view, |view| words(view, args))?;
    Ok(if healthy { 0 } else { exit::ATTENTION })
}

fn failure(error: InspectError) -> Failure {
    let (code, remedy) = match &error {
        error if is_forbidden(error) => (Code::InspectOpen, "Run it as root."),
        InspectError::Open { .. } => (
            Code::InspectOpen,
            "Name the directory of one replica: it has the files meta, journal and vol0. A journal elsewhere: --journal.",
        ),
        InspectError::InUse { .. } => {
            (Code::InspectInUse, "Copy meta and journal elsewhere and look at the copy, or stop the engine.")
        }
        InspectError::Unreadable { .. } => (Code::InspectUnreadable, "Make the replica anew from its peers."),
    };
    let cause = std::error::Error::source(&error)
        .filter(|_| matches!(error, InspectError::Open { .. }))
        .map_or_else(String::new, |source| format!(": {source}"));
    Failure::new(code, format!("{error}{cause}"), remedy)
}

fn at(position: LogPosition) -> String {
    format!("epoch {}, entry {}", position.epoch, position.index)
}

/// State of the data, in words.
fn data(view: &ReplicaFilesView) -> String {
    match view.unfinished_copy {
        None => "consistent".to_owned(),
        Some(copy) => {
            let kept = if copy.kept { "; the whole content of before the copy is kept" } else { "" };
            format!(
                "inconsistent: a copy to it has not ended; every extent is at least as of i{}{kept}",
                copy.base
            )
        }
    }
}

fn words(view: &ReplicaFilesView, args: &InspectArgs) -> String {
    let volumes: Vec<String> = view.volumes.iter().map(|&bytes| size::size_words(bytes)).collect();
    let copies = view
        .superblock_copies
        .iter()
        .map(|copy| copy.map_or_else(|| "damaged".to_owned(), |sequence| sequence.to_string()));
    let epochs = view.epochs.iter().map(|epoch| format!("{} to {}", epoch.epoch, epoch.index));
    let entries: usize = view.batches.iter().map(|batch| batch.entries.len()).sum();
    let mut lines = vec![
        format!("replica     resource {}, incarnation {}, in {}", view.resource, view.incarnation, view.path),
        format!("volumes     {}", volumes.join(", ")),
        format!(
            "superblock  copies {}; generation {}",
            copies.collect::<Vec<_>>().join(" "),
            view.generation
        ),
        format!("promised    epoch {}", view.promised_epoch),
        format!("data        {}", data(view)),
        format!("checkpoint  {}, at {} of the journal", at(view.checkpoint), view.checkpoint_offset),
        format!(
            "journal     {}{}; {} batches with {entries} entries after the checkpoint",
            size::size_words(view.journal_bytes),
            view.journal.as_ref().map_or_else(String::new, |path| format!(" at {path}")),
            view.batches.len()
        ),
        format!("log ends    {}, at {} of the journal", at(view.end), view.end_offset),
        format!("committed   at least up to entry {}", view.commit),
        format!("epochs      {}", epochs.collect::<Vec<_>>().join(", ")),
    ];
    if let Some(extents) = &view.extents {
        let newest = extents.iter().map(|extent| extent.version).max().unwrap_or(0);
        lines.push(format!("extents     {} were ever written, the last by entry {newest}", extents.len()));
    }
    if args.entries {
        lines.push(entry_table(view));
    }
    if args.extents {
        let rows = view.extents.iter().flatten().map(|extent| {
            vec![extent.volume.to_string(), extent.extent.to_string(), extent.version.to_string()]
        });
        lines.push(table(&["VOLUME", "EXTENT", "VERSION"], &rows.collect::<Vec<_>>()));
    }
    lines.extend(view.faults.iter().map(|fault| format!("FAULT       {fault}")));
    lines.join("\n")
}

fn entry_table(view: &ReplicaFilesView) -> String {
    let mut rows = Vec::new();
    for batch in &view.batches {
        for entry in &batch.entries {
            let (place, crc) = match &entry.payload {
                Some((Some(offset), crc)) => (offset.to_string(), crc.clone()),
                Some((None, crc)) => ("volume".to_owned(), crc.clone()),
                None => (String::new(), String::new()),
            };
            rows.push(vec![
                entry.index.to_string(),
                batch.epoch.to_string(),
                entry.kind.to_string(),
                entry.volume.to_string(),
                entry.offset.to_string(),
                entry.len.to_string(),
                place,
                crc,
                batch.offset.to_string(),
                batch.generation.to_string(),
            ]);
        }
    }
    let head = [
        "ENTRY",
        "EPOCH",
        "KIND",
        "VOLUME",
        "OFFSET",
        "LENGTH",
        "PAYLOAD AT",
        "CRC32C",
        "BATCH AT",
        "GENERATION",
    ];
    table(&head, &rows)
}
