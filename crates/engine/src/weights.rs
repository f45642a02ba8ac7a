//! From stored bytes to operands in memory: which encoding each one takes, how many bytes that is,
//! and loading them.

mod load;
mod stream;

use crate::error::Error;
use crate::memory::Buffer;
use crate::options::{Options, SourcePolicy};
use lamella_container::{CodecError, Store, Stored};
use lamella_kernels::packed_bytes;
use lamella_program::block::{Ffn, GatedUnit, Mixer};
use lamella_program::closure::{draft_operands, part_operands};
use lamella_program::encoding::Policy;
use lamella_program::{Encoding, Operand, OperandId, Program, Role};
use load::Job;
pub(crate) use load::{Loaded, load_all, load_rows, read_f32};
use std::collections::HashSet;
use std::sync::Mutex;
use stream::stream_rows;
pub(crate) use stream::{check_streamed, may_stay_on_disk, stream_bytes, streamed_bytes};

/// How one operand comes into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// What is read.
    pub(crate) stored: Encoding,
    /// What is computed with.
    pub(crate) resident: Encoding,
    /// How the cpu backend lays it out.
    pub(crate) layout: Layout,
}

/// Order of an operand's values in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As the matrix kernels read it.
    Packed,
    /// f32, row after row.
    Rows,
    /// As [`Packed`](Self::Packed), an item at a time, in the slots of an expert store.
    Cached,
    /// On disk, a few rows at a time in memory, as the matrix kernels read them.
    Streamed,
    /// Nowhere: only the draft or another part of the model uses it, and that is not opened.
    Absent,
}

impl Layout {
    /// Whether it is loaded as a whole when the model opens.
    fn is_loaded(self) -> bool {
        matches!(self, Layout::Packed | Layout::Rows)
    }
}

/// Maps that are read row by row: the up-projection of latent attention is applied backwards to
/// queries and forwards to values.
fn read_by_rows(program: &Program) -> HashSet<OperandId> {
    let mixers = program.every_layer().map(|layer| &layer.mixer.body);
    mixers
        .filter_map(|mixer| match mixer {
            Mixer::LatentAttention(a) => Some(a.latent_up.weight),
            _ => None,
        })
        .collect()
}

/// Bytes of one loading job's progress.
#[derive(Clone, Copy, Debug)]
pub struct OpenProgress {
    /// Bytes in memory so far.
    pub done: u64,
    /// Bytes there will be.
    pub total: u64,
}

/// Chooses for every operand that is stored.
///
/// # Errors
/// [`Error::EncodingUnavailable`] for the first operand that cannot be had as wanted,
/// [`Error::Unpaired`] for the first two that would have to be computed in different encodings.
pub(crate) fn choose_all(stored: &impl Stored, options: &Options) -> Result<Vec<Choice>, Error> {
    let by_rows = read_by_rows(stored.program());
    let draft = draft_operands(stored.program());
    let held = part_operands(stored.program(), &options.part);
    let operands = stored.program().operands.iter().enumerate();
    let mut choices = operands
        .map(|(i, operand)| {
            let id = OperandId(i as u32);
            if draft.contains(&id) && !options.draft {
                return Ok(Choice {
                    stored: Encoding::F32,
                    resident: Encoding::F32,
                    layout: Layout::Absent,
                });
            }
            let policy = options.want.map(|want| match draft.contains(&id) {
                true => Policy::draft(want.given(stored.encodings(id))),
                false => Policy::uniform(want),
            });
            let choice = choose(operand, stored.encodings(id), policy, options.source)?;
            let layout = match () {
                () if !held.contains(&id) => Layout::Absent,
                () if by_rows.contains(&id) => Layout::Rows,
                () => choice.layout,
            };
            Ok(Choice { layout, ..choice })
        })
        .collect::<Result<Vec<Choice>, Error>>()?;
    pair_up(stored.program(), options.draft, &mut choices)?;
    Ok(choices)
}

/// Gate and up of a unit are computed together, in one encoding: where numbers of two widths are
/// stored, f32 holds both. All layers are asked, so that the choice is one for all parts of a
/// model.
fn pair_up(program: &Program, draft: bool, choices: &mut [Choice]) -> Result<(), Error> {
    let layers = if draft {
        usize::MAX
    } else {
        program.layers.len()
    };
    let pairs: Vec<[OperandId; 2]> = program
        .every_layer()
        .take(layers)
        .flat_map(|layer| units(&layer.ffn.body))
        .map(|unit| [unit.gate, unit.up])
        .collect();
    // Units may share operands: what widens one may have to widen another.
    let mut widened = true;
    while std::mem::take(&mut widened) {
        for pair in &pairs {
            let [gate, up] = pair.map(|id| choices[id.index()]);
            if gate.resident == up.resident {
                continue;
            }
            if gate.resident.is_compiled() || up.resident.is_compiled() {
                let [first, second] = pair.map(|id| program.operand(id).name.clone());
                return Err(Error::Unpaired {
                    first,
                    second,
                    encodings: [gate.resident, up.resident],
                });
            }
            for id in pair {
                choices[id.index()].resident = Encoding::F32;
            }
            widened = true;
        }
    }
    Ok(())
}

/// The gated units of a block.
fn units(ffn: &Ffn) -> Vec<&GatedUnit> {
    match ffn {
        Ffn::Dense(unit) => vec![unit],
        Ffn::Routed(routed) => std::iter::once(&routed.unit)
            .chain(&routed.shared)
            .collect(),
        _ => Vec::new(),
    }
}

/// The choice for an operand, without regard to its layout.
fn choose(
    operand: &Operand,
    stored: &[Encoding],
    policy: Option<Policy>,
    source: SourcePolicy,
) -> Result<Choice, Error> {
    let unavailable = |want, reason: String| Error::EncodingUnavailable {
        operand: operand.name.clone(),
        want,
        reason,
    };
    let canonical = stored.iter().copied().find(|e| !e.is_compiled());
    let Some(&first) = stored.first() else {
        return Err(unavailable(
            Encoding::F32,
            "the model stores no encoding of it".to_owned(),
        ));
    };
    if !operand.role.may_quantise() {
        let source = canonical.unwrap_or(first);
        let layout = match operand.role {
            Role::Vector | Role::Kernel | Role::Table => Layout::Rows,
            _ => Layout::Packed,
        };
        return Ok(Choice {
            stored: source,
            resident: Encoding::F32,
            layout,
        });
    }
    let Some(policy) = policy else {
        return Ok(Choice {
            stored: first,
            resident: first,
            layout: Layout::Packed,
        });
    };
    let target = policy.encoding(operand.role).unwrap_or(policy.linear);
    let target = target.given(stored);
    let usable = source != SourcePolicy::Transient || !target.is_compiled();
    if usable && stored.contains(&target) {
        return Ok(Choice {
            stored: target,
            resident: target,
            layout: Layout::Packed,
        });
    }
    match canonical {
        Some(canonical) if target.is_compiled() && source != SourcePolicy::Stored => Ok(Choice {
            stored: canonical,
            resident: target,
            layout: Layout::Packed,
        }),
        _ => Err(unavailable(target, why_not(target, stored, source))),
    }
}

/// Why `target` cannot be had from what is stored, and what to do.
fn why_not(target: Encoding, stored: &[Encoding], policy: SourcePolicy) -> String {
    let names: Vec<&str> = stored.iter().map(|e| e.name()).collect();
    let list = names.join(", ");
    let canonical = stored.iter().any(|e| !e.is_compiled());
    match policy {
        _ if !target.is_compiled() && canonical => format!(
            "{list} is stored, and only q8 and q4 are made at load; convert the model to {target}, \
             or ask for one of these"
        ),
        SourcePolicy::Transient if stored.contains(&target) => format!(
            "it is stored, but the source policy `transient` ignores that, and {list} is all there \
             is to make it from; take the policy `auto`"
        ),
        SourcePolicy::Stored if canonical => format!(
            "{list} is stored, and the source policy `stored` makes nothing at load; take the \
             policy `auto`"
        ),
        _ => format!(
            "only {list} is stored, from which nothing else can be made; convert from the \
             checkpoint again"
        ),
    }
}

/// Bytes of memory the operand takes, all items.
///
/// # Errors
/// [`Error::Setting`] if the size overflows.
pub(crate) fn mapped_bytes(operand: &Operand, choice: Choice) -> Result<u64, Error> {
    resident_bytes(operand, choice).map(Buffer::taken)
}

/// Bytes the operand has, all items.
fn resident_bytes(operand: &Operand, choice: Choice) -> Result<usize, Error> {
    if choice.layout == Layout::Cached {
        return Ok(0);
    }
    item_bytes(operand, choice)?
        .checked_mul(operand.items())
        .ok_or_else(|| too_large(operand))
}

/// Most bytes of the windows through which a checkpoint's codes, and rows far apart, are read.
const WINDOWS: u64 = 2 << 20;

/// Bytes that loading one item takes for a while, beside its place: what [`load`] allocates.
fn load_bytes(operand: &Operand, choice: Choice) -> Result<u64, Error> {
    match choice.layout {
        Layout::Absent | Layout::Cached => Ok(0),
        // Only its digest is checked; the buffers of its rows come later, and for good.
        Layout::Streamed => Ok(WINDOWS),
        _ => buffer_bytes(operand, choice, operand.rows()),
    }
}

/// Most bytes that reading experts into their slots takes for a while, with `threads` threads.
pub(crate) fn cache_load_bytes(
    program: &Program,
    choices: &[Choice],
    threads: usize,
) -> Result<u64, Error> {
    let operands = program.operands.iter().zip(choices);
    let cached = operands.filter(|(_, choice)| choice.layout == Layout::Cached);
    let mut bytes = cached.map(|(operand, &choice)| buffer_bytes(operand, choice, operand.rows()));
    let most = bytes.try_fold(0, |most: u64, bytes| Ok::<u64, Error>(bytes?.max(most)))?;
    Ok(most.saturating_mul(threads as u64))
}

/// Bytes of the buffers through which `rows` rows of an item pass.
fn buffer_bytes(operand: &Operand, choice: Choice, rows: usize) -> Result<u64, Error> {
    let Choice {
        stored,
        resident,
        layout,
    } = choice;
    let cols = operand.cols();
    let bytes = |encoding: Encoding| {
        let bytes = encoding.matrix_bytes(rows, cols);
        bytes.map(|b| b as u64).ok_or_else(|| too_large(operand))
    };
    let values = (rows as u64).saturating_mul(cols as u64).saturating_mul(4);
    let matrix = layout != Layout::Rows;
    let packs = matrix && stored == resident;
    let windows = WINDOWS.min(values.saturating_mul(2));
    let own = match () {
        () if packs && stored.is_tiled() => 0,
        () if packs && operand.role.may_quantise() => bytes(stored)?,
        () if matrix && resident.is_compiled() => bytes(stored)? + values,
        // The values twice: as numbers and as bytes, or before and after quantising.
        () => bytes(stored)?
            .saturating_add(values.saturating_mul(2))
            .saturating_add(bytes(resident)?),
    };
    Ok(own.saturating_add(windows))
}

/// Bytes of the list of operands that stays, and of the list of items while they are loaded.
pub(crate) fn list_bytes(program: &Program, choices: &[Choice]) -> [u64; 2] {
    let items = count_items(program, choices) as u64;
    [
        (choices.len() * (size_of::<Loaded>() + size_of::<Choice>())) as u64,
        items.saturating_mul(size_of::<Mutex<Job<'_>>>() as u64),
    ]
}

/// Items to load.
fn count_items(program: &Program, choices: &[Choice]) -> usize {
    let operands = program.operands.iter().zip(choices);
    let held = operands.filter(|(_, choice)| choice.layout.is_loaded());
    held.fold(0, |sum, (operand, _)| sum.saturating_add(operand.items()))
}

/// Most bytes that loading takes beside the operands themselves, with `threads` threads.
pub(crate) fn most_load_bytes(
    program: &Program,
    choices: &[Choice],
    threads: usize,
) -> Result<u64, Error> {
    let mut largest = Vec::new();
    for (operand, &choice) in program.operands.iter().zip(choices) {
        let bytes = load_bytes(operand, choice)?;
        largest.extend(std::iter::repeat_n(bytes, operand.items().min(threads)));
    }
    largest.sort_unstable_by(|a, b| b.cmp(a));
    Ok(largest
        .iter()
        .take(threads)
        .fold(0, |sum, &b| sum.saturating_add(b)))
}

/// Bytes of memory an item takes where it is.
pub(crate) fn item_bytes(operand: &Operand, choice: Choice) -> Result<usize, Error> {
    let bytes = match choice.layout {
        Layout::Rows => operand.item_elements().checked_mul(4),
        Layout::Packed | Layout::Cached => {
            packed_bytes(choice.resident, operand.rows(), operand.cols())
        }
        Layout::Streamed => packed_bytes(choice.resident, stream_rows(operand), operand.cols()),
        Layout::Absent => Some(0),
    };
    bytes
        .and_then(|b| b.checked_next_multiple_of(64))
        .ok_or_else(|| too_large(operand))
}

/// Checks that tables which route tokens name experts that exist: their numbers are used as they
/// are, in every step.
///
/// # Errors
/// [`Error::Table`] for the first one that does not, and what reading it returns.
pub(crate) fn check_tables(store: &Store, choices: &[Choice]) -> Result<(), Error> {
    for layer in store.program().every_layer() {
        let Ffn::Routed(routed) = &layer.ffn.body else {
            continue;
        };
        let Some(table) = routed.router.hash_table else {
            continue;
        };
        if choices[table.index()].layout == Layout::Absent {
            continue;
        }
        let values = read_f32(store, table, 0, choices[table.index()])?;
        let experts = routed.experts as f32;
        let wrong = |v: &&f32| !(**v >= 0.0 && **v < experts && v.fract() == 0.0);
        if let Some(value) = values.iter().find(wrong) {
            return Err(Error::Table {
                operand: store.program().operand(table).name.clone(),
                message: format!("it names expert {value} of {}", routed.experts),
            });
        }
    }
    Ok(())
}

fn codec(operand: &Operand, item: usize, cause: CodecError) -> Error {
    let name = &operand.name;
    Error::Codec {
        operand: match operand.items() {
            1 => name.clone(),
            _ => format!("{name}, item {item}"),
        },
        cause,
    }
}

fn too_large(operand: &Operand) -> Error {
    Error::Setting {
        name: "operand",
        message: format!(
            "{}: shape {:?} overflows memory",
            operand.name, operand.shape
        ),
    }
}

#[cfg(test)]
mod tests;
