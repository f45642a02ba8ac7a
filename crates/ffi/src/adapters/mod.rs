//! The adapters of Lamella's own families: the two interfaces over the engine.
//!
//! All families share one Segment adapter and one Edge adapter. What tells them apart is a number,
//! the family's place in [`FAMILY_IDS`], by which an adapter refuses the models of the others.

mod conversation;
mod edge;
pub mod edge_registrars;
mod host;
mod plan;
mod segment;
pub mod segment_registrars;
mod turn;
mod words;

pub(crate) use conversation::{Conversation, run};
pub(crate) use edge::Ends;
pub(crate) use segment::Range;

use crate::checks;
use crate::lamella::LamellaCode;
use crate::report::{Refused, Report};
use lamella_container::Store;
use lamella_engine::{Error, Model};
use lamella_families::{FAMILY_IDS, is_of_family};
use std::ffi::{CStr, c_char};
use std::path::PathBuf;

/// The number of the family `id`, at compile time only.
const fn family(id: &str) -> usize {
    let mut at = 0;
    while at < FAMILY_IDS.len() {
        if equal(FAMILY_IDS[at].to_bytes(), id.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("no such family");
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// The numeric code of an engine's error.
fn code(error: &Error) -> LamellaCode {
    match error {
        Error::Memory { .. } => LamellaCode::LAMELLA_MEMORY_LIMIT,
        Error::Allocation { .. } | Error::Threads { .. } => LamellaCode::LAMELLA_MEMORY,
        Error::Cancelled => LamellaCode::LAMELLA_CANCELLED,
        Error::NonFinite { .. } => LamellaCode::LAMELLA_NON_FINITE,
        Error::Snapshot(_) => LamellaCode::LAMELLA_SNAPSHOT,
        Error::Setting { .. }
        | Error::Isa { .. }
        | Error::EncodingUnavailable { .. }
        | Error::TokenRange { .. }
        | Error::ContextLength { .. }
        | Error::EmptySpan
        | Error::Activations { .. }
        | Error::Rows { .. }
        | Error::Part { .. } => LamellaCode::LAMELLA_ARGUMENT,
        _ => LamellaCode::LAMELLA_MODEL,
    }
}

impl Report {
    /// Refuses what the engine refuses.
    #[must_use = "return it"]
    fn engine(&self, error: &Error) -> Refused {
        self.refuse(code(error), format_args!("{error}"))
    }

    /// Refuses a model.
    #[must_use = "return it"]
    fn model(&self, reason: std::fmt::Arguments<'_>) -> Refused {
        self.refuse(LamellaCode::LAMELLA_MODEL, reason)
    }

    /// Refuses because the system has no memory.
    #[must_use = "return it"]
    fn no_memory(&self, bytes: usize) -> Refused {
        let reason = format_args!("the system refused {bytes} bytes of memory");
        self.refuse(LamellaCode::LAMELLA_MEMORY, reason)
    }
}

/// An empty list with room for `count` values.
fn room<T>(report: &Report, count: usize) -> Result<Vec<T>, Refused> {
    let mut list = Vec::new();
    match list.try_reserve_exact(count) {
        Ok(()) => Ok(list),
        Err(_) => Err(report.no_memory(count.saturating_mul(size_of::<T>()))),
    }
}

/// Opens the files of a model of family number `family`.
///
/// # Safety
/// `model_dir` is NULL or ends with a NUL.
unsafe fn open_files(
    report: &Report,
    model_dir: *const c_char,
    family: usize,
) -> Result<Store, Refused> {
    // SAFETY: the caller's contract.
    let dir = unsafe { checks::text(report, model_dir, "model_dir") }?;
    let store = Store::open(&path(report, dir)?, &lamella_engine::lower)
        .map_err(|error| report.model(format_args!("{error}")))?;
    let found = &store.program().family;
    if !is_of_family(found, family) {
        let asked = FAMILY_IDS[family].to_string_lossy();
        let dir = store.dir().display();
        return Err(report.model(format_args!(
            "{dir} holds a model of the family {found}, which the adapter {asked} does not run"
        )));
    }
    Ok(store)
}

/// Paths are bytes on Unix and UTF-8 elsewhere.
#[cfg(unix)]
#[expect(
    clippy::unnecessary_wraps,
    reason = "elsewhere not every text is a path"
)]
fn path(_: &Report, text: &CStr) -> Result<PathBuf, Refused> {
    use std::os::unix::ffi::OsStrExt;
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(text.to_bytes())))
}

#[cfg(not(unix))]
fn path(report: &Report, text: &CStr) -> Result<PathBuf, Refused> {
    let text = text.to_str();
    text.map(PathBuf::from)
        .map_err(|_| report.argument(format_args!("model_dir is not UTF-8")))
}

/// Refuses a host that allows backends, but not the processor.
fn check_backends(report: &Report, mask: u64, cpu: u64) -> Result<(), Refused> {
    if mask != 0 && mask & cpu == 0 {
        let reason = format_args!("backend_mask is {mask:#x}; the processor ({cpu:#x}) computes");
        return Err(report.refuse(LamellaCode::LAMELLA_UNSUPPORTED, reason));
    }
    Ok(())
}

/// Writes a text of ours to a field of a capability block, with its NUL.
fn put<const N: usize>(
    report: &Report,
    field: &mut [c_char; N],
    text: &str,
) -> Result<(), Refused> {
    if text.len() >= N {
        let length = text.len();
        return Err(report.model(format_args!(
            "`{text:.40}…` has {length} bytes, a host takes less than {N}"
        )));
    }
    let bytes = text.bytes().chain(std::iter::repeat(0));
    for (to, from) in field.iter_mut().zip(bytes) {
        *to = from as c_char;
    }
    Ok(())
}

/// What a model says to both interfaces: what rows mean, and how they come about. Rows of equal
/// schemas have equal widths.
fn schema(model: &Model) -> String {
    let program = model.program();
    let (schema, width) = (&program.boundary.state_schema, program.row_width());
    format!("{schema}/w{width}")
}

/// A number of the model in a field of C.
fn number(report: &Report, name: &str, value: usize) -> Result<u32, Refused> {
    u32::try_from(value).map_err(|_| report.model(format_args!("{name}: {value} is too many")))
}

/// What a host may know about an opened part, as JSON.
fn facts(model: &Model) -> serde_json::Value {
    let (report, program) = (model.report(), model.program());
    serde_json::json!({
        "library": env!("CARGO_PKG_VERSION"),
        "family": program.family,
        "layers": program.layers.len(),
        "state_schema": schema(model),
        "state_width": program.row_width(),
        "needs_token_ids": program.boundary.needs_token_ids,
        "numeric_class": model.numeric_class(),
        "backend": report.backend.name(),
        "instruction_set": report.isa.map(|isa| isa.name()),
        "threads": report.threads,
        "context_tokens": report.context,
        "max_context_tokens": program.dims.context,
        "elements_by_encoding": report.encodings,
        "weight_bytes": report.resident_bytes,
        "weight_bytes_on_disk": report.streamed_bytes,
        "workspace_bytes": report.workspace_bytes,
        "container": model.store().identity(),
    })
}
