//! Conversions that stop, resume, run out of disk, or must not begin.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{contents, convert_quietly, open, options};
use lamella_container::convert::{Disk, OsDisk, convert_on};
use lamella_container::{ConvertError, ConvertOptions, ConvertReport, Error, Keep, Store, convert};
use lamella_program::Encoding;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A checkpoint and what it converts to without disturbance.
struct Bench {
    temp: tempfile::TempDir,
    store: Store,
    expected: BTreeMap<String, Vec<u8>>,
}

impl Bench {
    fn new() -> Bench {
        let temp = tempfile::tempdir().unwrap();
        let checkpoint = temp.path().join("tiny");
        common::write_sharded(&checkpoint);
        let store = open(&checkpoint).unwrap();
        let undisturbed = temp.path().join("undisturbed");
        convert_quietly(&store, &undisturbed, &q4()).unwrap();
        Bench {
            expected: contents(&undisturbed),
            store,
            temp,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Converts until `records` are done, then cancels.
    fn interrupt(&self, out: &Path, records: usize) -> Error {
        let cancel = AtomicBool::new(false);
        let mut watch = |p: lamella_container::Progress<'_>| {
            cancel.store(p.records_done >= records, Ordering::Relaxed);
        };
        let one_thread = ConvertOptions { threads: 1, ..q4() };
        convert(&self.store, out, &one_thread, &mut watch, &cancel).unwrap_err()
    }

    /// Finishes a conversion and compares.
    fn finish(&self, out: &Path) -> ConvertReport {
        assert_nothing_opens(out);
        let report = convert_quietly(&self.store, out, &q4()).unwrap();
        assert!(
            contents(out) == self.expected,
            "not the bytes of an undisturbed run"
        );
        assert!(!partial(out).exists());
        assert!(
            lamella_container::verify(out, &mut |_| {})
                .unwrap()
                .damage
                .is_empty()
        );
        report
    }
}

fn q4() -> ConvertOptions {
    options(Keep::As(Encoding::Q4))
}

fn partial(out: &Path) -> PathBuf {
    PathBuf::from(format!("{}.partial", out.display()))
}

fn assert_nothing_opens(out: &Path) {
    for dir in [out.to_owned(), partial(out), partial(out).join("content")] {
        assert!(open(&dir).is_err(), "{} opens", dir.display());
    }
}

fn expect(error: Error, pattern: fn(&ConvertError) -> bool, words: &[&str]) {
    let message = error.to_string();
    assert!(
        matches!(&error, Error::Convert(e) if pattern(e)),
        "{message}"
    );
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn thread_counts_give_the_same_bytes() {
    let bench = Bench::new();
    for threads in [1, 3, 64] {
        let out = bench.path(&format!("threads-{threads}"));
        let report =
            convert_quietly(&bench.store, &out, &ConvertOptions { threads, ..q4() }).unwrap();
        assert!(contents(&out) == bench.expected);
        assert_eq!(report.resumed, 0);
    }
}

#[test]
fn a_cancelled_conversion_resumes() {
    let bench = Bench::new();
    for records in [0, 1, 7, 20] {
        let out = bench.path(&format!("cancelled-{records}"));
        let error = bench.interrupt(&out, records);
        expect(
            error,
            |e| matches!(e, ConvertError::Cancelled(_)),
            &["resume", ".partial"],
        );
        let unfinished = open(&partial(&out)).unwrap_err();
        assert!(matches!(unfinished, Error::Unfinished(_)), "{unfinished}");
        let report = bench.finish(&out);
        assert!(report.resumed >= records, "{} of {records}", report.resumed);
    }
}

#[test]
fn a_torn_journal_costs_only_what_was_torn() {
    let bench = Bench::new();
    let out = bench.path("torn");
    bench.interrupt(&out, 12);
    let saved = bench.path("saved");
    std::fs::rename(partial(&out), &saved).unwrap();
    let journal = std::fs::read(saved.join("journal")).unwrap();
    for length in (0..journal.len()).step_by(29) {
        std::fs::create_dir_all(partial(&out)).unwrap();
        common::copy_dir(&saved.join("content"), &partial(&out).join("content"));
        std::fs::write(partial(&out).join("journal"), &journal[..length]).unwrap();
        let report = bench.finish(&out);
        // An entry takes 45 bytes or more.
        assert!(
            report.resumed <= length / 45,
            "{} of {length} bytes",
            report.resumed
        );
        std::fs::remove_dir_all(&out).unwrap();
    }
    // Flipped in the middle: what follows is not believed either.
    for at in (0..journal.len()).step_by(53) {
        std::fs::create_dir_all(partial(&out)).unwrap();
        common::copy_dir(&saved.join("content"), &partial(&out).join("content"));
        let mut flipped = journal.clone();
        flipped[at] ^= 16;
        std::fs::write(partial(&out).join("journal"), &flipped).unwrap();
        bench.finish(&out);
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn lost_bytes_of_journaled_records_are_made_again() {
    let bench = Bench::new();
    let out = bench.path("lost");
    bench.interrupt(&out, 15);
    let content = partial(&out).join("content");
    for (name, bytes) in contents(&content) {
        std::fs::write(content.join(name), vec![0; bytes.len()]).unwrap();
    }
    let report = bench.finish(&out);
    assert_eq!(report.resumed, 0);
}

#[test]
fn another_source_or_other_options_do_not_resume() {
    let bench = Bench::new();
    let out = bench.path("changed");
    bench.interrupt(&out, 5);
    let other = options(Keep::As(Encoding::Q8));
    let error = convert_quietly(&bench.store, &out, &other).unwrap_err();
    expect(
        error,
        |e| matches!(e, ConvertError::PlanChanged(_)),
        &["other encodings"],
    );

    // The same header, other numbers, another time.
    let shard = bench.path("tiny").join(common::SHARD_2);
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let changed = open(&bench.path("tiny")).unwrap();
    let error = convert_quietly(&changed, &out, &q4()).unwrap_err();
    expect(
        error,
        |e| matches!(e, ConvertError::SourceChanged(_)),
        &["other source files"],
    );
    assert_nothing_opens(&out);
    // As the message says: removing it helps.
    std::fs::remove_dir_all(partial(&out)).unwrap();
    convert_quietly(&changed, &out, &q4()).unwrap();
}

#[test]
fn nothing_is_overwritten() {
    let bench = Bench::new();
    let out = bench.path("taken");
    std::fs::create_dir(&out).unwrap();
    let error = convert_quietly(&bench.store, &out, &q4()).unwrap_err();
    expect(
        error,
        |e| matches!(e, ConvertError::Exists(_)),
        &["taken", "already exists"],
    );
    std::fs::remove_dir(&out).unwrap();

    std::fs::create_dir(partial(&out)).unwrap();
    std::fs::write(partial(&out).join("thesis.tex"), "years of work").unwrap();
    let error = convert_quietly(&bench.store, &out, &q4()).unwrap_err();
    expect(
        error,
        |e| matches!(e, ConvertError::ForeignPartial(_)),
        &["taken.partial"],
    );
    assert!(partial(&out).join("thesis.tex").exists());

    let nowhere = bench.path("no/such/place");
    let error = convert_quietly(&bench.store, &nowhere, &q4()).unwrap_err();
    expect(
        error,
        |e| matches!(e, ConvertError::NoParent(_)),
        &["no/such/place"],
    );
}

#[test]
fn two_conversions_do_not_write_one_directory() {
    let bench = Bench::new();
    let out = bench.path("locked");
    bench.interrupt(&out, 3);
    let lock = File::open(partial(&out).join("lock")).unwrap();
    lock.lock().unwrap();
    let error = convert_quietly(&bench.store, &out, &q4()).unwrap_err();
    expect(
        error,
        |e| matches!(e, ConvertError::Locked(_)),
        &["another conversion"],
    );
    lock.unlock().unwrap();
    bench.finish(&out);
}

#[test]
fn a_run_stopped_while_sweeping_up_is_done() {
    let bench = Bench::new();
    let out = bench.path("swept");
    bench.interrupt(&out, 3);
    let journal = std::fs::read(partial(&out).join("journal")).unwrap();
    bench.finish(&out);
    let leave = || {
        std::fs::create_dir(partial(&out)).unwrap();
        std::fs::write(partial(&out).join("journal"), &journal).unwrap();
    };
    leave();
    let other = options(Keep::As(Encoding::Q8));
    let error = convert_quietly(&bench.store, &out, &other).unwrap_err();
    expect(error, |e| matches!(e, ConvertError::Exists(_)), &["swept"]);
    let report = convert_quietly(&bench.store, &out, &q4()).unwrap();
    assert_eq!(report.resumed, report.records);
    assert!(!partial(&out).exists());
    assert!(contents(&out) == bench.expected);
}

/// A disk with so many bytes to give.
struct SmallDisk {
    free: u64,
    budget: AtomicU64,
}

impl Disk for SmallDisk {
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.free)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let left = self
            .budget
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(bytes.len() as u64)
            });
        match left {
            Ok(_) => OsDisk.write_at(file, bytes, offset),
            Err(left) => {
                // As a real disk does: some of it is written.
                OsDisk.write_at(file, &bytes[..left as usize], offset)?;
                Err(io::ErrorKind::StorageFull.into())
            }
        }
    }
}

fn convert_small(
    bench: &Bench,
    out: &Path,
    free: u64,
    budget: u64,
) -> Result<ConvertReport, Error> {
    let disk = SmallDisk {
        free,
        budget: AtomicU64::new(budget),
    };
    let never = AtomicBool::new(false);
    convert_on(&disk, &bench.store, out, &q4(), &mut |_| {}, &never)
}

#[test]
fn too_little_space_is_seen_before_writing() {
    let bench = Bench::new();
    let out = bench.path("tight");
    let needed: usize = bench.expected.values().map(Vec::len).sum();
    let error = convert_small(&bench, &out, needed as u64 / 2, 0).unwrap_err();
    let numbers = match &error {
        Error::Convert(ConvertError::NoSpace { needed, free, .. }) => (*needed, *free),
        _ => panic!("{error}"),
    };
    assert!(
        numbers.0 >= needed as u64 && numbers.1 == needed as u64 / 2,
        "{numbers:?}"
    );
    expect(
        error,
        |e| matches!(e, ConvertError::NoSpace { .. }),
        &["needed", "free", "KiB"],
    );
    assert_nothing_opens(&out);
    bench.finish(&out);
}

#[test]
fn a_full_disk_keeps_what_is_done_and_opens_nothing() {
    let bench = Bench::new();
    let total: usize = bench.expected.values().map(Vec::len).sum();
    for twentieth in 0..20 {
        let out = bench.path(&format!("full-{twentieth}"));
        let budget = (total * twentieth / 50) as u64;
        let error = convert_small(&bench, &out, u64::MAX, budget).unwrap_err();
        expect(
            error,
            |e| matches!(e, ConvertError::DiskFull(_)),
            &["disk is full", "resume"],
        );
        assert_nothing_opens(&out);
        let report = bench.finish(&out);
        assert!(twentieth < 10 || report.resumed > 0);
    }
}

/// A change to a tensor's bytes.
type Damage = fn(&mut [u8]);

/// A checkpoint with one tensor changed.
fn with_tensor(dir: &Path, name: &str, change: Damage) -> Store {
    let mut tensors = common::tensors();
    change(&mut tensors.get_mut(name).unwrap().bytes);
    std::fs::create_dir_all(dir).unwrap();
    common::write_texts(dir);
    std::fs::write(dir.join("model.safetensors"), common::safetensors(&tensors)).unwrap();
    open(dir).unwrap()
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    let bench = Bench::new();
    /// The bits of a NaN and of the two infinities.
    const SPECIAL: [[u8; 2]; 3] = [[0xc0, 0x7f], [0x80, 0x7f], [0x80, 0xff]];
    const ROW: usize = common::HIDDEN * 2;
    let cases: [(&str, Damage, &str); 3] = [
        (
            "model.layers.0.gate.2.weight",
            |b| b[3 * ROW..][..2].copy_from_slice(&SPECIAL[0]),
            "row 3, column 0",
        ),
        (
            "model.exit_norm.weight",
            |b| b[4..6].copy_from_slice(&SPECIAL[1]),
            "row 0, column 2",
        ),
        (
            "model.embedding.weight",
            |b| b[49 * ROW + 2..][..2].copy_from_slice(&SPECIAL[2]),
            "row 49, column 1",
        ),
    ];
    for (n, (name, change, place)) in cases.into_iter().enumerate() {
        let store = with_tensor(&bench.path(&format!("bad-{n}")), name, change);
        let out = bench.path(&format!("out-{n}"));
        match convert_quietly(&store, &out, &q4()) {
            Err(error @ Error::Weights { .. }) => {
                let message = error.to_string();
                assert!(
                    message.contains(name) && message.contains(place),
                    "{message}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_nothing_opens(&out);
    }
}

#[test]
fn matrices_of_zeros_are_reported() {
    let bench = Bench::new();
    let name = "model.layers.0.up.4.weight";
    let store = with_tensor(&bench.path("zeros"), name, |b| b.fill(0));
    let report = convert_quietly(&store, &bench.path("zeros-q4"), &q4()).unwrap();
    assert_eq!(report.warnings.len(), 1);
    assert!(report.warnings[0].contains(name), "{:?}", report.warnings);
}

#[test]
fn a_file_that_was_never_filled_is_seen_before_converting() {
    let temp = tempfile::tempdir().unwrap();
    let sizes = common::Sizes {
        hidden: 256,
        width: 128,
        experts: 8,
        vocabulary: 2048,
    };
    let dir = temp.path().join("model");
    let store = common::open_of(&dir, sizes);
    convert_quietly(&store, &temp.path().join("sound"), &q4()).unwrap();
    let path = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let from = bytes.len() * 2 / 3;
    bytes[from..].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let out = temp.path().join("out");
    let error = convert_quietly(&store, &out, &q4()).unwrap_err();
    assert!(matches!(error, Error::ZeroStretch { .. }), "{error}");
    assert!(!out.exists() && !partial(&out).exists());
}

#[test]
fn operands_keep_their_own_encodings() {
    let bench = Bench::new();
    let out = bench.path("mixed");
    let mut keep = q4();
    keep.embedding = vec![Keep::As(Encoding::F16)];
    keep.head = Vec::new();
    convert_quietly(&bench.store, &out, &keep).unwrap();
    let store = open(&out).unwrap();
    let program = store.program().clone();
    assert_eq!(store.encodings(program.entry.embedding), [Encoding::F16]);
    assert_eq!(store.encodings(program.exit.head), [Encoding::Bf16]);
}
