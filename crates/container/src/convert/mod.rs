//! From a store to a container directory: streaming, resumable, complete or absent.
//!
//! The whole layout is planned before the first byte is written ([`plan`]). Workers fill records
//! in any order at their planned places; what is done is written to a journal beside the content
//! after the content is on disk ([`journal`]). Everything grows in `NAME.partial/content`; the last
//! act is to write the manifest and rename that directory to `NAME` ([`workshop`]).

mod journal;
mod plan;
mod produce;
mod workshop;

use crate::error::Error;
use crate::manifest::{FileEntry, Manifest, PROGRAM_FILE, TABLE_FILE};
use crate::store::{Store, TEXT_FILES};
use crate::workers::gather;
use journal::{Entry, Journal};
use lamella_program::Encoding;
use plan::Plan;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use workshop::is_unfinished;
pub use workshop::{Disk, OsDisk};
use workshop::{Entrance, Workshop};

/// Why a conversion did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// Something is already there.
    #[error("{0}: already exists; choose another name or remove it first")]
    Exists(PathBuf),
    /// A directory of that name that is not ours.
    #[error("{0}: exists and is not an unfinished conversion; remove it or choose another name")]
    ForeignPartial(PathBuf),
    /// Another process is at it.
    #[error("{0}: another conversion is writing here")]
    Locked(PathBuf),
    /// The result has no place to go.
    #[error("{0}: its parent is not a directory")]
    NoParent(PathBuf),
    /// It would not fit.
    #[error(
        "{path}: not enough space: {} needed, {} free",
        human_bytes(*needed),
        human_bytes(*free)
    )]
    NoSpace {
        /// Where it would go.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes free on that file system.
        free: u64,
    },
    /// It did not fit.
    #[error("{0}: the disk is full; free some space and run the same convert again to resume")]
    DiskFull(PathBuf),
    /// The checkpoint is not the one the conversion began with.
    #[error("{0}: began from other source files; remove it to convert the present ones")]
    SourceChanged(PathBuf),
    /// The options are not those the conversion began with.
    #[error("{0}: began with other encodings; use the same ones or remove it")]
    PlanChanged(PathBuf),
    /// The source has only a lossy copy.
    #[error(
        "operand {operand}: the source stores it only as {stored}; convert from the checkpoint \
         to get {wanted}"
    )]
    NoCanonical {
        /// The operand.
        operand: String,
        /// What the source has.
        stored: Encoding,
        /// What was asked for.
        wanted: Encoding,
    },
    /// Codes with scales are only taken from checkpoints that ship them.
    #[error("operand {operand}: the source stores no {wanted}, and nothing is converted to it")]
    OnlyShipped {
        /// The operand.
        operand: String,
        /// What was asked for.
        wanted: Encoding,
    },
    /// Something in the program is too long for the format.
    #[error("operand {0}: its name or size is beyond what a container can record")]
    Unrecordable(String),
    /// The caller wanted it to stop.
    #[error("{0}: cancelled; run the same convert again to resume")]
    Cancelled(PathBuf),
}

/// In which encoding to keep an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// What the source ships.
    Canonical,
    /// This one.
    As(Encoding),
}

/// What to convert to. Router, norms and other small operands are always stored as f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// Encodings of routed experts. Several are stored side by side; none means canonical.
    pub experts: Vec<Keep>,
    /// Encodings of resident linear maps.
    pub linear: Vec<Keep>,
    /// Encodings of the token embedding (and of a head tied to it).
    pub embedding: Vec<Keep>,
    /// Encodings of the output head.
    pub head: Vec<Keep>,
    /// Worker threads.
    pub threads: usize,
    /// Bytes written between two durable entries of the journal: what a power cut can cost.
    pub journal_bytes: u64,
}

impl ConvertOptions {
    /// Everything large as `want`; what is shipped in MXFP4 stays so where that is q4. With a
    /// compiled encoding, embedding and head are kept as q8: they are a small part of the bytes
    /// and errors there touch every token.
    #[must_use]
    pub fn new(want: Keep) -> ConvertOptions {
        let ends = match want {
            Keep::As(encoding) if encoding.is_compiled() => Keep::As(Encoding::Q8),
            other => other,
        };
        ConvertOptions {
            experts: vec![want],
            linear: vec![want],
            embedding: vec![ends],
            head: vec![ends],
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            journal_bytes: 64 << 20,
        }
    }
}

/// How far a conversion or a verification is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Records finished, those of an earlier run included.
    pub records_done: usize,
    /// Records in all.
    pub records: usize,
    /// Bytes finished, those of an earlier run included.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Operand that was finished last; empty at the start.
    pub operand: &'a str,
}

/// What a conversion did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertReport {
    /// Root of the digest tree.
    pub identity: String,
    /// Records of the container.
    pub records: usize,
    /// Records taken over from an interrupted run.
    pub resumed: usize,
    /// Bytes of all packs.
    pub bytes: u64,
    /// Things that are allowed and odd, such as a matrix of zeros.
    pub warnings: Vec<String>,
}

/// Converts the model of `store` to a container in the new directory `out`.
///
/// Interrupted at any point, the same call resumes; the result is byte for byte that of an
/// undisturbed run. `progress` is called on this thread; `cancel` is polled between records.
///
/// # Errors
/// If the source is damaged or not finite, the place is taken, the disk is full, or `cancel` is
/// set. Nothing that opens is left behind; finished work is kept in `OUT.partial` for a resume.
pub fn convert(
    store: &Store,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(Progress<'_>),
    cancel: &AtomicBool,
) -> Result<ConvertReport, Error> {
    convert_on(&OsDisk, store, out, options, progress, cancel)
}

/// [`convert`] on another disk; tests use it to run out of space.
///
/// # Errors
/// As [`convert`].
#[doc(hidden)]
pub fn convert_on(
    disk: &dyn Disk,
    store: &Store,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(Progress<'_>),
    cancel: &AtomicBool,
) -> Result<ConvertReport, Error> {
    if let Some(checkpoint) = store.checkpoint() {
        checkpoint.check_filled()?;
    }
    let plan = Plan::new(store, options)?;
    let texts = read_texts(store)?;
    let source = source_digest(store, &texts)?;
    let workshop = match Workshop::enter(out, source, plan.digest())? {
        Entrance::Open(workshop) => workshop,
        Entrance::AlreadyDone => return report_done(out, &plan),
    };
    let (mut journal, entries) = workshop.open_journal(&plan)?;
    let packs = workshop.open_packs(&plan)?;
    let text_bytes = texts.iter().map(|(_, t)| t.len() as u64).sum::<u64>();
    workshop.check_space(disk, &packs, text_bytes + plan.table_bytes())?;

    let mut work = Work {
        done: (0..plan.records.len()).map(|_| None).collect(),
        bytes_done: 0,
        records_done: 0,
    };
    let resumed = entries.len();
    for entry in entries {
        work.finish(&plan, entry);
    }
    progress(work.progress(&plan, ""));
    let job = Job {
        disk,
        store,
        plan: &plan,
        packs: &packs,
        cancel,
        workshop: &workshop,
    };
    job.run(options, &mut work, &mut journal, progress)?;

    let done: Vec<Entry> = work.done.into_iter().flatten().collect();
    let warnings = plan.warnings(store, &done);
    let table = plan.table(store, &done);
    let manifest = finish_texts(&workshop, store, texts, &table.to_bytes())?;
    workshop.complete(&manifest)?;
    Ok(ConvertReport {
        identity: manifest.identity,
        records: plan.records.len(),
        resumed,
        bytes: plan.bytes(),
        warnings,
    })
}

/// What the workers share.
struct Job<'a> {
    disk: &'a dyn Disk,
    store: &'a Store,
    plan: &'a Plan,
    packs: &'a [workshop::Pack],
    cancel: &'a AtomicBool,
    workshop: &'a Workshop,
}

/// What is finished.
struct Work {
    done: Vec<Option<Entry>>,
    bytes_done: u64,
    records_done: usize,
}

/// Records that are done but not in the journal yet, and the first failure.
#[derive(Default)]
struct Collected {
    pending: Vec<Entry>,
    bytes: u64,
    failure: Option<Error>,
}

impl Work {
    fn finish(&mut self, plan: &Plan, entry: Entry) {
        let record = entry.record as usize;
        self.bytes_done += plan.records[record].length;
        self.records_done += 1;
        self.done[record] = Some(entry);
    }

    fn progress<'a>(&self, plan: &Plan, operand: &'a str) -> Progress<'a> {
        Progress {
            records_done: self.records_done,
            records: plan.records.len(),
            bytes_done: self.bytes_done,
            bytes: plan.bytes(),
            operand,
        }
    }
}

impl Job<'_> {
    /// Fills all records that are not done, journaling as they finish.
    fn run(
        &self,
        options: &ConvertOptions,
        work: &mut Work,
        journal: &mut Journal,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Error> {
        let todo: Vec<u32> = (0..work.done.len())
            .filter(|&r| work.done[r].is_none())
            .map(|r| r as u32)
            .collect();
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let threads = options.threads.clamp(1, todo.len().max(1));
        let mut collected = Collected::default();
        let _ = gather(
            threads,
            |send| self.work(&todo, &next, &stop, send),
            |result| {
                self.take(result, options, &mut collected, (work, journal), progress);
                if collected.failure.is_some() {
                    stop.store(true, Ordering::Relaxed);
                }
                // What others have finished meanwhile is kept.
                ControlFlow::<()>::Continue(())
            },
        );
        // What is done is journaled also when a worker has failed.
        let durable = self.make_durable(&mut collected.pending, journal);
        collected.failure.map_or(durable, Err)?;
        if work.records_done < work.done.len() {
            return Err(ConvertError::Cancelled(self.workshop.partial().to_owned()).into());
        }
        Ok(())
    }

    /// One worker: takes the next record until none is left or somebody says stop.
    fn work(
        &self,
        todo: &[u32],
        next: &AtomicUsize,
        stop: &AtomicBool,
        send: &mut dyn FnMut(Result<Entry, Error>) -> bool,
    ) {
        let mut producer = produce::Producer::new(self.disk, self.store);
        while !stop.load(Ordering::Relaxed) && !self.cancel.load(Ordering::Relaxed) {
            let Some(&number) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let record = &self.plan.records[number as usize];
            let parts = producer.record(record, &self.packs[record.file as usize]);
            let failed = parts.is_err();
            let wanted = send(parts.map(|parts| Entry {
                record: number,
                parts,
            }));
            if failed || !wanted {
                return;
            }
        }
    }

    /// Takes a finished record; syncs the packs, then journals, every so many bytes.
    fn take(
        &self,
        result: Result<Entry, Error>,
        options: &ConvertOptions,
        collected: &mut Collected,
        (work, journal): (&mut Work, &mut Journal),
        progress: &mut dyn FnMut(Progress<'_>),
    ) {
        match result {
            Ok(entry) => {
                let record = &self.plan.records[entry.record as usize];
                collected.bytes += record.length;
                collected.pending.push(entry.clone());
                work.finish(self.plan, entry);
                let operand = self.store.program().operand(record.parts[0].operand);
                progress(work.progress(self.plan, &operand.name));
            }
            Err(e) => {
                collected.failure.get_or_insert(e);
            }
        }
        if collected.failure.is_none() && collected.bytes >= options.journal_bytes {
            collected.failure = self.make_durable(&mut collected.pending, journal).err();
            collected.bytes = 0;
        }
    }

    fn make_durable(&self, pending: &mut Vec<Entry>, journal: &mut Journal) -> Result<(), Error> {
        if pending.is_empty() {
            return Ok(());
        }
        let files: BTreeSet<u32> = pending
            .iter()
            .map(|e| self.plan.records[e.record as usize].file)
            .collect();
        for file in files {
            self.packs[file as usize].sync()?;
        }
        journal.append(pending)?;
        pending.clear();
        Ok(())
    }
}

/// The texts of the model, by name.
fn read_texts(store: &Store) -> Result<Vec<(&'static str, String)>, Error> {
    let mut texts = Vec::new();
    for name in TEXT_FILES {
        texts.extend(store.read_text(name)?.map(|text| (name, text)));
    }
    Ok(texts)
}

/// Changes when anything changes that goes into the container.
fn source_digest(store: &Store, texts: &[(&str, String)]) -> Result<[u8; 32], Error> {
    let mut hasher = blake3::Hasher::new_derive_key("lamella conversion source v1");
    hasher.update(&store.fingerprint()?);
    for (name, text) in texts {
        hasher.update(name.as_bytes());
        hasher.update(blake3::hash(text.as_bytes()).as_bytes());
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Writes everything but packs and manifest.
fn finish_texts(
    workshop: &Workshop,
    store: &Store,
    texts: Vec<(&'static str, String)>,
    table: &[u8],
) -> Result<Manifest, Error> {
    let program = workshop.program_json(store.program())?;
    workshop.write(PROGRAM_FILE, program.as_bytes())?;
    workshop.write(TABLE_FILE, table)?;
    let mut entries = Vec::new();
    for (name, text) in texts {
        workshop.write(name, text.as_bytes())?;
        entries.push(FileEntry::of(name, text.as_bytes()));
    }
    let program = FileEntry::of(PROGRAM_FILE, program.as_bytes());
    Ok(Manifest::new(
        program,
        FileEntry::of(TABLE_FILE, table),
        entries,
    ))
}

/// The report of a conversion that had finished just before it was interrupted.
fn report_done(out: &Path, plan: &Plan) -> Result<ConvertReport, Error> {
    let container = crate::container::Container::open(out)?;
    Ok(ConvertReport {
        identity: container.manifest.identity,
        records: plan.records.len(),
        resumed: plan.records.len(),
        bytes: plan.bytes(),
        warnings: Vec::new(),
    })
}

/// `bytes` with a binary unit, for messages: `1.50 GiB`.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.2} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::human_bytes;

    #[test]
    fn bytes_are_shown_with_a_binary_unit() {
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536 << 20), "1.50 GiB");
    }
}
