//! Conversions killed with SIGKILL at random points and resumed.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![cfg(unix)]

mod common;

use common::{contents, convert_quietly, open, options};
use lamella_container::{Error, Keep, convert};
use lamella_program::Encoding;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const CHECKPOINT: &str = "LAMELLA_TEST_CHECKPOINT";
const OUT: &str = "LAMELLA_TEST_OUT";

/// Not a test by itself: the process that is killed. Says a line for every record.
#[test]
fn child_converts() {
    let (Some(checkpoint), Some(out)) = (std::env::var_os(CHECKPOINT), std::env::var_os(OUT))
    else {
        return;
    };
    let store = open(Path::new(&checkpoint)).unwrap();
    let mut say = |p: lamella_container::Progress<'_>| {
        let mut stdout = std::io::stdout();
        writeln!(stdout, "record {}", p.records_done).unwrap();
        stdout.flush().unwrap();
    };
    let never = AtomicBool::new(false);
    convert(
        &store,
        Path::new(&out),
        &options(Keep::As(Encoding::Q4)),
        &mut say,
        &never,
    )
    .unwrap();
}

/// Starts the child, waits for `records` lines and `delay`, and kills it. Whether it had to be.
fn convert_and_kill(checkpoint: &Path, out: &Path, records: usize, delay: Duration) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_converts", "--exact", "--nocapture"])
        .env(CHECKPOINT, checkpoint)
        .env(OUT, out)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines
        .map_while(Result::ok)
        .filter(|l| l.contains("record "))
        .take(records);
    assert!(said.count() <= records);
    std::thread::sleep(delay);
    let finished = child.try_wait().unwrap().is_some();
    // SIGKILL: no destructor, no flush, no chance to tidy.
    child.kill().unwrap();
    child.wait().unwrap();
    !finished
}

#[test]
fn killed_at_random_points_the_result_is_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let checkpoint = temp.path().join("tiny");
    common::write_sharded(&checkpoint);
    let store = open(&checkpoint).unwrap();
    let undisturbed = temp.path().join("undisturbed");
    let keep = options(Keep::As(Encoding::Q4));
    let report = convert_quietly(&store, &undisturbed, &keep).unwrap();
    let expected = contents(&undisturbed);

    let (out, partial) = (temp.path().join("out"), temp.path().join("out.partial"));
    let (mut kills, mut finishes, mut resumed) = (0, 0, 0);
    let mut state = 12345u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    while kills < 24 || finishes < 3 {
        // Sometimes early, sometimes in the middle, sometimes while the manifest is written.
        let records = match random(4) {
            0 => 0,
            1 => report.records + 1,
            _ => random(report.records as u64) as usize,
        };
        let delay = Duration::from_micros(random(4000));
        kills += usize::from(convert_and_kill(&checkpoint, &out, records, delay));
        if !out.exists() {
            assert_unfinished(&out, &partial);
            // Now and then an undisturbed resume, so that every stage is resumed from.
            if random(3) > 0 {
                continue;
            }
            resumed += convert_quietly(&store, &out, &keep).unwrap().resumed;
        }
        assert!(contents(&out) == expected, "after {kills} kills");
        // Killed after the rename, before the sweep: the next run tidies up.
        if partial.exists() {
            convert_quietly(&store, &out, &keep).unwrap();
            assert!(!partial.exists());
        }
        std::fs::remove_dir_all(&out).unwrap();
        finishes += 1;
    }
    println!("{kills} kills, {finishes} finished conversions, {resumed} records taken over");
    assert!(resumed > 0);
}

/// What a killed conversion leaves does not open, by whatever name.
fn assert_unfinished(out: &Path, partial: &Path) {
    assert!(matches!(open(out), Err(Error::NotFound(_))));
    let inner: PathBuf = partial.join("content");
    assert!(open(partial).is_err());
    // The moment between the last two renames: complete, and still under its working name.
    if inner.join("lamella.json").exists() {
        assert!(
            lamella_container::verify(&inner, &mut |_| {})
                .unwrap()
                .damage
                .is_empty()
        );
    } else {
        assert!(open(&inner).is_err());
    }
}
