//! `lamella verify`: is every byte what it should be?

use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::model::{self, Place};
use crate::progress::{self, Progress, Unit};
use crate::terminal::{self, Terminal};
use lamella_container::manifest::MANIFEST_FILE;
use lamella_container::{Extent, Store, decode, verify_extent};
use lamella_program::{Encoding, OperandId};
use lamella_text::TOKENIZER_FILE;
use serde_json::json;

/// What was found.
pub(super) struct Found {
    pub(super) identity: Option<String>,
    pub(super) records: usize,
    pub(super) bytes: u64,
    pub(super) damage: Vec<String>,
}

pub(crate) fn run(args: &ModelArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let place = Place::of(&args.model)?;
    let mut progress = Progress::new(terminal, "verifying", Unit::Bytes);
    // A container may be too damaged to be opened; the list is wanted all the same.
    let is_container = place.path().join(MANIFEST_FILE).exists();
    let (mut found, store) = if is_container {
        let found = container(&place, Extent::All, &mut progress);
        progress.finish();
        let found = found?;
        let store = match model::store(&place) {
            Err(error) if found.damage.is_empty() => return Err(error),
            store => store.ok(),
        };
        (found, store)
    } else {
        let store = model::store(&place)?;
        let found = checkpoint(&store, &mut progress);
        progress.finish();
        (found, Some(store))
    };
    let has_tokenizer =
        |store: &Store| store.text_names().iter().any(|name| name == TOKENIZER_FILE);
    if let Some(error) = store
        .filter(has_tokenizer)
        .and_then(|store| model::bundle(&store).err())
    {
        let line = format!("{error:#}");
        // A text that does not fit its digest has been listed.
        if !found.damage.contains(&line) {
            found.damage.push(line);
        }
    }
    let sound = found.damage.is_empty();
    if args.json {
        terminal::print_json(&json!({
            "sound": sound,
            "identity": found.identity,
            "records": found.records,
            "bytes": found.bytes,
            "damage": found.damage,
        }))?;
    } else {
        let lines: String = found
            .damage
            .iter()
            .map(|line| format!("{}\n", terminal::plain(line)))
            .collect();
        terminal::print(&lines)?;
    }
    let model = args.model.display();
    if !sound {
        return Err(Failure::model(format!(
            "{model}: {} damaged",
            found.damage.len()
        )));
    }
    if !args.json {
        let size = progress::bytes(found.bytes);
        let what = match found.identity {
            Some(identity) => format!("every digest fits; identity {identity}"),
            None => "complete and finite (a checkpoint records no digests)".to_owned(),
        };
        terminal::print(&format!(
            "{model}: sound: {size} in {} records, {what}\n",
            found.records
        ))?;
    }
    Ok(())
}

/// Compares a container, or a part of it, with its digests.
///
/// # Errors
/// If manifest, program or table are damaged.
pub(super) fn container(
    place: &Place,
    extent: Extent,
    progress: &mut Progress,
) -> anyhow::Result<Found> {
    let report = verify_extent(place.path(), extent, &mut |p| {
        progress.update(p.bytes_done, p.bytes)
    })?;
    Ok(Found {
        identity: Some(report.identity),
        records: report.records,
        bytes: report.bytes,
        damage: report.damage.iter().map(ToString::to_string).collect(),
    })
}

/// Reads every operand of a checkpoint: it must be there and finite.
pub(super) fn checkpoint(store: &Store, progress: &mut Progress) -> Found {
    let mut found = Found {
        identity: None,
        records: 0,
        bytes: 0,
        damage: Vec::new(),
    };
    let sizes = store.program().operands.iter().enumerate();
    let total = sizes
        .flat_map(|(number, o)| {
            let encodings = store.encodings(OperandId(number as u32));
            let one = |e: &Encoding| e.matrix_bytes(o.rows(), o.cols()).unwrap_or(0);
            encodings.iter().map(move |e| (one(e) * o.items()) as u64)
        })
        .sum();
    for (number, operand) in store.program().operands.iter().enumerate() {
        let id = OperandId(number as u32);
        for &encoding in store.encodings(id) {
            for item in 0..operand.items() {
                match check_item(store, id, item, encoding) {
                    Ok(bytes) => found.bytes += bytes,
                    Err(error) => {
                        found
                            .damage
                            .push(format!("{}, item {item}: {error:#}", operand.name));
                    }
                }
                found.records += 1;
                progress.update(found.bytes, total);
            }
        }
    }
    found
}

fn check_item(
    store: &Store,
    id: OperandId,
    item: usize,
    encoding: Encoding,
) -> anyhow::Result<u64> {
    let operand = store.program().operand(id);
    let (rows, cols) = (operand.rows(), operand.cols());
    let size = encoding.matrix_bytes(rows, cols);
    let size = size.ok_or_else(|| anyhow::anyhow!("its size overflows"))?;
    let mut bytes = vec![0; size];
    store.read(id, item, encoding, &mut bytes)?;
    let mut values = vec![0.0; rows * cols];
    decode(encoding, rows, cols, &bytes, &mut values)?;
    if let Some(index) = values.iter().position(|v| !v.is_finite()) {
        anyhow::bail!("value {index} is {}", values[index]);
    }
    Ok(size as u64)
}
