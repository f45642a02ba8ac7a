//! The few file operations the crate needs, with errors that name the path.

use crate::error::Error;
use crate::safetensors::LFS_PREFIX;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest text file (tokenizer, template, configuration) that is read, in bytes.
pub const MAX_TEXT_BYTES: u64 = 256 << 20;

/// A regular file open for positioned reads.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub(crate) path: PathBuf,
    pub(crate) length: u64,
    file: File,
}

impl DataFile {
    /// Opens a regular file; pipes and devices are refused before they are opened.
    pub(crate) fn open(path: PathBuf) -> Result<DataFile, Error> {
        let metadata = std::fs::metadata(&path).map_err(|e| Error::io(&path, "open", e))?;
        if !metadata.is_file() {
            return Err(Error::NotAFile(path));
        }
        let file = File::open(&path).map_err(|e| Error::io(&path, "open", e))?;
        let length = file
            .metadata()
            .map_err(|e| Error::io(&path, "open", e))?
            .len();
        Ok(DataFile { path, length, file })
    }

    /// Fills `buffer` from `offset`. Does not move a cursor: any number of threads may read.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        read_exact_at(&self.file, buffer, offset).map_err(|e| Error::io(&self.path, "read", e))
    }

    /// Asks the system for bytes that will be read, which it fetches meanwhile: many at once, where
    /// the disk can. A wish, and nothing where it cannot be made.
    pub(crate) fn will_need(&self, offset: u64, length: u64) {
        #[cfg(target_os = "linux")]
        if let Some(length) = std::num::NonZeroU64::new(length) {
            let advice = rustix::fs::Advice::WillNeed;
            let _ = rustix::fs::fadvise(&self.file, offset, Some(length), advice);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, length);
    }

    /// When the file was last changed, in nanoseconds since 1970; 0 where that is unknown.
    pub(crate) fn modified(&self) -> u128 {
        let modified = self.file.metadata().and_then(|m| m.modified()).ok();
        let age = modified.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        age.map_or(0, |d| d.as_nanos())
    }
}

/// Opens a file for writing, made if it is not there. What is there must be a regular file: a pipe
/// would wait for a reader, and a link would lead to another file.
pub(crate) fn open_to_write(path: &Path, truncate: bool) -> std::io::Result<File> {
    if path.symlink_metadata().is_ok_and(|m| !m.is_file()) {
        return Err(std::io::Error::other("not a regular file; remove it"));
    }
    let mut options = File::options();
    options
        .write(true)
        .create(true)
        .truncate(truncate)
        .open(path)
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !buffer.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_read(file, buffer, offset)?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        buffer = &mut buffer[n..];
        offset += n as u64;
    }
    Ok(())
}

/// Reads a whole file of at most `limit` bytes; `None` where there is none.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let file = match DataFile::open(path.to_owned()) {
        Ok(file) => file,
        Err(Error::NotFound(_)) => return Ok(None),
        Err(e) => return Err(e),
    };
    if file.length > limit {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            length: file.length,
            limit,
        });
    }
    let mut bytes = Vec::with_capacity(file.length as usize);
    // A growing file must not grow the buffer beyond the limit.
    let read = file.file.take(limit).read_to_end(&mut bytes);
    read.map_err(|e| Error::io(path, "read", e))?;
    Ok(Some(bytes))
}

/// Reads a text file that came with a checkpoint; `None` where there is none.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>, Error> {
    read_file(path, MAX_TEXT_BYTES)?
        .map(|bytes| text(path, bytes))
        .transpose()
}

/// The bytes of `path` as text, with a plain word for the usual impostors.
pub(crate) fn text(path: &Path, bytes: Vec<u8>) -> Result<String, Error> {
    let problem = if bytes.starts_with(LFS_PREFIX) {
        "a Git LFS pointer, not the file; run `git lfs pull` or download the file itself"
    } else if !bytes.is_empty() && bytes.iter().all(|&b| b == 0) {
        "only zero bytes: the download reserved the file and did not fill it"
    } else {
        match String::from_utf8(bytes) {
            Ok(text) => return Ok(text),
            Err(_) => "not UTF-8 text",
        }
    };
    Err(Error::Text {
        path: path.to_owned(),
        problem,
    })
}
