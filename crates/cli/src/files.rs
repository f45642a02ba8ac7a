//! Files that appear whole or not at all, and what must not be left lying about.

use crate::failure::Failure;
use anyhow::Context;
use std::collections::BTreeSet;
use std::fs::{File, FileType};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tempfile::{NamedTempFile, TempPath};

/// How the names of files begin that are not in their place yet.
pub(crate) const PREFIX: &str = ".lamella-";

/// Where the program keeps for its user what it need not be told again; `None` where there is no
/// place for it.
pub(crate) fn state_dir() -> Option<PathBuf> {
    let dirs = directories::ProjectDirs::from("", "", "lamella")?;
    Some(dirs.state_dir().unwrap_or(dirs.data_local_dir()).to_owned())
}

/// Where it keeps which experts of which model are much used.
pub(crate) fn heat_dir() -> Option<PathBuf> {
    state_dir().map(|dir| dir.join("heat"))
}

/// Where it keeps which experts of which model were found damaged.
pub(crate) fn quarantine_dir() -> Option<PathBuf> {
    state_dir().map(|dir| dir.join("quarantine"))
}

/// What is to be removed if the program ends before its values are dropped: a signal ends the
/// process and not a value, so this list belongs to the process too.
static TEMPORARY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A temporary file or directory on the list. Whoever made it removes it; this takes it off.
#[derive(Debug)]
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    /// Makes something by `make` and puts it, named by `path`, on the list, both before a signal
    /// is answered.
    ///
    /// # Errors
    /// As `make`.
    pub(crate) fn make<T>(
        make: impl FnOnce() -> io::Result<T>,
        path: impl FnOnce(&T) -> &Path,
    ) -> io::Result<(T, Temporary)> {
        let mut list = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
        let made = make()?;
        // Absolute, so that it is found whatever becomes of the working directory.
        let path = std::path::absolute(path(&made))?;
        list.insert(path.clone());
        Ok((made, Temporary(path)))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut list = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
        list.remove(&self.0);
    }
}

/// Removes what is on the list and lets nothing new be made: the program ends.
pub(crate) fn remove_temporaries() {
    let list = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    for path in list.iter() {
        // What cannot be removed stays; there is nobody left to do something about it.
        let _ = if path.is_dir() {
            std::fs::remove_dir_all(path)
        } else {
            std::fs::remove_file(path)
        };
    }
    std::mem::forget(list);
}

/// A file being written beside its place. Dropped without [`finish`](NewFile::finish), it is gone.
pub(crate) struct NewFile {
    path: PathBuf,
    out: Out,
}

enum Out {
    /// A file that takes its place at the end.
    Beside(BufWriter<File>, TempPath, Temporary),
    /// A pipe or device, which cannot be replaced.
    Direct(BufWriter<File>),
}

impl NewFile {
    /// Begins a file that will stand at `path`.
    ///
    /// # Errors
    /// If nothing can be written there.
    pub(crate) fn create(path: &Path) -> anyhow::Result<NewFile> {
        let special = path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
        let named = || path.display().to_string();
        let out = if special {
            Out::Direct(BufWriter::new(File::create(path).with_context(named)?))
        } else {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            let dir = dir.unwrap_or(Path::new("."));
            let mut builder = tempfile::Builder::new();
            builder.prefix(PREFIX);
            // Made as a plain new file would be, readable as such, and with errors that do not
            // name it.
            let make = || builder.make_in(dir, |path| File::create_new(path));
            let (file, temporary) =
                Temporary::make(make, NamedTempFile::path).with_context(named)?;
            let (file, beside) = file.into_parts();
            Out::Beside(BufWriter::new(file), beside, temporary)
        };
        Ok(NewFile {
            path: path.to_owned(),
            out,
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = match &mut self.out {
            Out::Beside(out, ..) | Out::Direct(out) => out.write_all(bytes),
        };
        written.with_context(|| self.path.display().to_string())
    }

    /// Appends numbers as little-endian f32.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn write_f32(&mut self, values: &[f32]) -> anyhow::Result<()> {
        values
            .iter()
            .try_for_each(|value| self.write(&value.to_le_bytes()))
    }

    /// Puts the file in its place, on the disk.
    ///
    /// # Errors
    /// If that fails; the place is then as it was.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let path = self.path;
        let finished = match self.out {
            Out::Direct(mut out) => out.flush(),
            Out::Beside(out, beside, _temporary) => out
                .into_inner()
                .map_err(|e| e.into_error())
                .and_then(|file| {
                    file.sync_all()?;
                    beside.persist(&path).map_err(|e| e.error)
                }),
        };
        finished.with_context(|| path.display().to_string())
    }
}

/// Opens a regular file for reading. Anything else is refused before it is opened: a pipe would
/// wait for a writer.
///
/// # Errors
/// If it is none or cannot be opened, naming it.
pub(crate) fn open(path: &Path) -> anyhow::Result<File> {
    let named = || path.display().to_string();
    let metadata = path.metadata().with_context(named)?;
    if !metadata.is_file() {
        return Err(Failure::usage(format!("{}: not a regular file", named())));
    }
    File::open(path).with_context(named)
}

/// Reads `source` to its end, which has to come within `most` bytes.
///
/// # Errors
/// If it is longer or cannot be read, without its name.
pub(crate) fn read_bounded(source: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed tells what is too long, a device without an end included.
    source.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let message = format!("more than the {most} bytes that are read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(bytes)
}

/// [`read_bounded`] of a file, or of a pipe such as a shell puts in place of one, as UTF-8 text.
///
/// # Errors
/// If it is neither, too long, no text, or cannot be read; without its name.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let kind = path.metadata()?.file_type();
    if !kind.is_file() && !is_pipe(kind) {
        return Err(io::Error::other("neither a regular file nor a pipe"));
    }
    let bytes = read_bounded(File::open(path)?, most)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

#[cfg(unix)]
fn is_pipe(kind: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind)
}

#[cfg(not(unix))]
fn is_pipe(_: FileType) -> bool {
    false
}

/// Writes a whole file at once.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write(bytes)?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.f32");
        let mut file = NewFile::create(&path).unwrap();
        file.write_f32(&[1.0, -2.0]).unwrap();
        drop(file);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_finished_file_replaces_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.f32");
        std::fs::write(&path, "old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_f32(&[1.0]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        file.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), 1.0f32.to_le_bytes());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_error_names_the_file() {
        let error = NewFile::create(Path::new("/nonexistent/dir/x.f32"))
            .err()
            .unwrap();
        assert!(format!("{error:#}").starts_with("/nonexistent/dir/x.f32: "));
    }
}
