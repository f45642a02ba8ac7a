//! Which layers of a `--layers` run are finished, and what their files must hold.
//!
//! A line of JSON is added after each layer file has taken its place. Only what a line vouches for
//! is taken over when the run is resumed: a file that was cut, changed or left by another run is
//! not believed because of its name and length.

use crate::files;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Name of the journal in the directory of the layers.
pub(super) const JOURNAL_FILE: &str = "journal.jsonl";
/// Longest journal that is read: a line takes about 200 bytes.
const MAX_BYTES: u64 = 64 << 20;

/// One finished layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Digest of the plan it was computed under.
    run: String,
    /// Number of the layer.
    layer: usize,
    /// Length of its file.
    pub(super) bytes: u64,
    /// Digest of its file, 64 hexadecimal digits.
    pub(super) blake3: String,
}

/// An open journal.
pub(super) struct Journal {
    path: PathBuf,
    run: String,
    file: File,
    /// Of layers 0, 1, 2, … in order.
    entries: Vec<Entry>,
}

/// What an earlier run has left.
pub(super) struct Left {
    /// Layers whose files are what was written.
    pub(super) entries: Vec<Entry>,
    /// The first layer after them, if its file is there and is not what was written.
    pub(super) damaged: Option<usize>,
}

/// What the run `run` has finished in `dir`: the layers up to the first that is missing or whose
/// file, found by `path`, does not have the digest that was recorded.
///
/// # Errors
/// If the journal cannot be read.
pub(super) fn left(
    dir: &Path,
    run: &str,
    layers: usize,
    path: impl Fn(usize) -> PathBuf,
) -> anyhow::Result<Left> {
    let recorded = read(&dir.join(JOURNAL_FILE), run)?;
    let mut entries: Vec<Entry> = Vec::new();
    for layer in 0..layers {
        // Of several lines the last speaks of the file that is there.
        let Some(entry) = recorded.iter().rev().find(|e| e.layer == layer) else {
            break;
        };
        let path = path(layer);
        if !path.exists() {
            break;
        }
        if (entry.bytes, entry.blake3.clone()) != digest(&path)? {
            let damaged = Some(layer);
            return Ok(Left { entries, damaged });
        }
        entries.push(entry.clone());
    }
    Ok(Left {
        entries,
        damaged: None,
    })
}

/// The whole lines of `run`; a torn line ends them.
fn read(path: &Path, run: &str) -> anyhow::Result<Vec<Entry>> {
    let named = || path.display().to_string();
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut text = Vec::new();
    files::open(path)?
        .take(MAX_BYTES)
        .read_to_end(&mut text)
        .with_context(named)?;
    let lines = text.split_inclusive(|&b| b == b'\n');
    let whole = lines.map_while(|line| {
        let line = line.strip_suffix(b"\n")?;
        serde_json::from_slice::<Entry>(line).ok()
    });
    Ok(whole.filter(|entry| entry.run == run).collect())
}

/// Length and digest of a file.
fn digest(path: &Path) -> anyhow::Result<(u64, String)> {
    let named = || path.display().to_string();
    let mut hasher = blake3::Hasher::new();
    let mut file = files::open(path)?;
    let bytes = std::io::copy(&mut file, &mut hasher).with_context(named)?;
    Ok((bytes, hasher.finalize().to_hex().to_string()))
}

impl Journal {
    /// Starts the journal of `run` with what is taken over.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn start(dir: &Path, run: &str, entries: Vec<Entry>) -> anyhow::Result<Journal> {
        let path = dir.join(JOURNAL_FILE);
        let mut text = Vec::new();
        for entry in &entries {
            text.extend(line(entry)?);
        }
        files::write(&path, &text)?;
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        Ok(Journal {
            path,
            run: run.to_owned(),
            file,
            entries,
        })
    }

    /// Records that the file of `layer`, the next one, has taken its place.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn add(&mut self, layer: usize, bytes: u64, blake3: String) -> anyhow::Result<()> {
        let entry = Entry {
            run: self.run.clone(),
            layer,
            bytes,
            blake3,
        };
        let line = line(&entry)?;
        let written = self.file.write_all(&line);
        written
            .and_then(|()| self.file.sync_data())
            .with_context(|| self.path.display().to_string())?;
        self.entries.push(entry);
        Ok(())
    }

    /// The finished layers in order.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn line(entry: &Entry) -> anyhow::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, layer: usize, bytes: &[u8], journal: &mut Journal) {
        std::fs::write(dir.join(layer.to_string()), bytes).unwrap();
        let digest = blake3::hash(bytes).to_hex().to_string();
        journal.add(layer, bytes.len() as u64, digest).unwrap();
    }

    #[test]
    fn only_what_a_whole_line_vouches_for_is_believed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let found = |run: &str| {
            let left = left(dir, run, 4, |layer| dir.join(layer.to_string())).unwrap();
            (left.entries.len(), left.damaged)
        };
        assert_eq!(found("a"), (0, None));
        let mut journal = Journal::start(dir, "a", Vec::new()).unwrap();
        for layer in 0..3 {
            write(dir, layer, &[layer as u8; 5], &mut journal);
        }
        assert_eq!(journal.entries().len(), 3);
        assert_eq!(found("a"), (3, None));
        assert_eq!(found("b"), (0, None), "lines of another run");
        std::fs::write(dir.join("1"), [9; 5]).unwrap();
        assert_eq!(found("a"), (1, Some(1)), "changed, of the same length");
        std::fs::remove_file(dir.join("1")).unwrap();
        assert_eq!(found("a"), (1, None), "missing");
        write(dir, 1, &[7; 5], &mut journal);
        assert_eq!(found("a"), (3, None), "the last line of a layer counts");
        let path = dir.join(JOURNAL_FILE);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 1]).unwrap();
        assert_eq!(found("a"), (1, Some(1)), "a torn line");
    }
}
