//! The few file operations the crate needs, with errors that name the path.

use crate::error::Error;
#[cfg(target_os = "linux")]
use crate::queue::ReadQueue;
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
    /// The file opened once more to read past the page cache, where its system can.
    direct: Option<File>,
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
        Ok(DataFile {
            path,
            length,
            file,
            direct: None,
        })
    }

    /// Fills `buffer` from `offset`. Does not move a cursor: any number of threads may read.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        read_exact_at(&self.file, buffer, offset).map_err(|e| Error::io(&self.path, "read", e))
    }

    /// Whether its bytes can be read past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Opens it for reads past the page cache too, if its system does them.
    pub(crate) fn open_direct(&mut self) {
        self.direct = direct::open(&self.path);
    }

    /// Fills the first `needed` bytes of `buffer` from `offset` past the page cache. The address,
    /// the size of the buffer and the offset must be multiples of [`DIRECT_ALIGN`]; what lies
    /// behind the needed bytes is read too, as far as the file goes.
    pub(crate) fn read_direct(
        &self,
        buffer: &mut [u8],
        needed: usize,
        offset: u64,
    ) -> Result<(), Error> {
        let Some(file) = &self.direct else {
            return self.read_at(&mut buffer[..needed], offset);
        };
        direct::read(file, buffer, 0..needed, offset).map_err(|e| Error::io(&self.path, "read", e))
    }

    /// As [`read_direct`](DataFile::read_direct), through `queue`; shows the needed bytes to `seen`
    /// piece by piece as they come.
    #[cfg(target_os = "linux")]
    pub(crate) fn read_queued(
        &self,
        queue: &mut ReadQueue,
        buffer: &mut [u8],
        (needed, offset): (usize, u64),
        seen: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let file = self.direct.as_ref().unwrap_or(&self.file);
        let read = queue.read(file, buffer, needed, offset, seen);
        read.map_err(|e| Error::io(&self.path, "read", e))
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

/// What addresses, offsets and lengths of direct reads are multiples of: the most that disks ask
/// for, and what records are aligned to.
pub const DIRECT_ALIGN: usize = 4096;

/// Bytes that are read together and shown together, a multiple of [`DIRECT_ALIGN`].
pub(crate) const PIECE: usize = 1 << 20;

#[cfg(target_os = "linux")]
pub(crate) mod direct {
    use super::DIRECT_ALIGN;
    use std::fs::File;
    use std::io::{Error, ErrorKind, Result};
    use std::ops::Range;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;

    #[repr(align(4096))]
    struct Block([u8; DIRECT_ALIGN]);

    /// Opens the file at `path` for direct reads, if its system does them.
    pub(super) fn open(path: &Path) -> Option<File> {
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let mut options = File::options();
        let file = options.read(true).custom_flags(flags).open(path).ok()?;
        let mut block = Block([0; DIRECT_ALIGN]);
        // Some systems refuse only to read. Whatever else goes wrong is no matter of the way.
        let refused =
            |e: Error| matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported);
        let read = file.read_at(&mut block.0, 0);
        (!read.is_err_and(refused)).then_some(file)
    }

    /// Fills `part` of `buffer`, whose first byte is the one at `offset`.
    pub(crate) fn read(
        file: &File,
        buffer: &mut [u8],
        part: Range<usize>,
        offset: u64,
    ) -> Result<()> {
        let mut done = part.start;
        while done < part.end {
            let read = match file.read_at(&mut buffer[done..], offset + done as u64) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            // A direct read that ends elsewhere has met the end of the file.
            let whole = read.is_multiple_of(DIRECT_ALIGN);
            done += read;
            if read == 0 || (!whole && done < part.end) {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod direct {
    use std::fs::File;
    use std::path::Path;

    /// Other systems have other ways, which are not used.
    pub(super) fn open(_: &Path) -> Option<File> {
        None
    }

    pub(super) fn read(
        _: &File,
        _: &mut [u8],
        _: std::ops::Range<usize>,
        _: u64,
    ) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
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
