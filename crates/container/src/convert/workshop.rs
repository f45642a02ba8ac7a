//! The directory a conversion works in: `NAME.partial` with `lock`, `journal` and `content`.
//!
//! `content` becomes `NAME` by one rename, after its manifest is on disk. Nothing in a partial
//! directory opens before that, and everything that opens is complete.

use super::ConvertError;
use super::journal::{Binding, Entry, Journal, read_entries};
use super::plan::{Plan, PlannedRecord};
use crate::checkpoint::list_files;
use crate::disk::{self, DataFile};
use crate::error::Error;
use crate::manifest::{MANIFEST_FILE, Manifest};
use lamella_program::Program;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

const JOURNAL: &str = "journal";
const LOCK: &str = "lock";
const CONTENT: &str = "content";
const KNOWN: [&str; 4] = [CONTENT, JOURNAL, "journal.new", LOCK];

/// Longest journal that is read.
const MAX_JOURNAL_BYTES: u64 = 1 << 30;

/// Records at the end of the journal whose bytes are hashed again before they are believed.
const TAIL_RECORDS: usize = 16;

/// What a conversion asks of the disk beyond plain files; tests replace it to run out of space.
pub trait Disk: Sync {
    /// Bytes that can still be written below `dir`.
    ///
    /// # Errors
    /// If the operating system does not say.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// As the operating system says; a full disk is [`io::ErrorKind::StorageFull`].
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;
}

/// The operating system's disk.
#[derive(Clone, Copy, Debug)]
pub struct OsDisk;

impl Disk for OsDisk {
    #[cfg(unix)]
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let facts = rustix::fs::statvfs(dir)?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    #[cfg(not(unix))]
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    #[cfg(unix)]
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
    }

    #[cfg(windows)]
    fn write_at(&self, file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
            bytes = &bytes[n..];
            offset += n as u64;
        }
        Ok(())
    }
}

/// An I/O failure while writing; a full disk gets its own words.
pub(super) fn write_error(path: &Path, cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ConvertError::DiskFull(path.to_owned()).into()
        }
        _ => Error::io(path, "write", cause),
    }
}

/// Whether a directory is the working directory of an unfinished conversion.
pub(crate) fn is_unfinished(dir: &Path) -> bool {
    dir.join(JOURNAL).is_file()
}

/// A pack being written.
#[derive(Debug)]
pub(super) struct Pack {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Pack {
    pub(super) fn write(&self, disk: &dyn Disk, bytes: &[u8], offset: u64) -> Result<(), Error> {
        disk.write_at(&self.file, bytes, offset)
            .map_err(|e| write_error(&self.path, e))
    }

    pub(super) fn sync(&self) -> Result<(), Error> {
        self.file
            .sync_data()
            .map_err(|e| write_error(&self.path, e))
    }

    /// Bytes the file system has yet to find for it.
    fn unallocated(&self) -> u64 {
        #[cfg(unix)]
        let allocated = self.file.metadata().map_or(0, |m| {
            std::os::unix::fs::MetadataExt::blocks(&m).saturating_mul(512)
        });
        #[cfg(not(unix))]
        let allocated = 0;
        self.length.saturating_sub(allocated)
    }
}

/// The result of knocking.
pub(super) enum Entrance {
    /// There is work to do.
    Open(Workshop),
    /// An earlier run of the same conversion had finished all but sweeping up.
    AlreadyDone,
}

/// A locked working directory.
#[derive(Debug)]
pub(super) struct Workshop {
    out: PathBuf,
    partial: PathBuf,
    binding: Binding,
    /// Held for its lock.
    _lock: File,
}

impl Workshop {
    /// Takes the working directory beside `out`, making it if need be.
    pub(super) fn enter(out: &Path, source: [u8; 32], plan: [u8; 32]) -> Result<Entrance, Error> {
        // Without the trailing slash that would put the partial directory inside.
        let out: PathBuf = out.components().collect();
        let parent = match out.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(ConvertError::Exists(out).into()),
        };
        if !parent.is_dir() {
            return Err(ConvertError::NoParent(out).into());
        }
        let partial = sibling(&out, ".partial");
        let binding = Binding { source, plan };
        if out.symlink_metadata().is_ok() && !partial.join(JOURNAL).is_file() {
            return Err(ConvertError::Exists(out).into());
        }
        make_partial(&partial)?;
        let lock = take_lock(&partial)?;
        let workshop = Workshop {
            out,
            partial,
            binding,
            _lock: lock,
        };
        // Another run may have finished between the look and the lock.
        if workshop.out.symlink_metadata().is_err() {
            return Ok(Entrance::Open(workshop));
        }
        let swept = workshop.partial.join(CONTENT).symlink_metadata().is_err();
        if swept && workshop.read_binding()? == Some(binding) {
            workshop.sweep()?;
            return Ok(Entrance::AlreadyDone);
        }
        Err(ConvertError::Exists(workshop.out).into())
    }

    /// The working directory.
    pub(super) fn partial(&self) -> &Path {
        &self.partial
    }

    fn content(&self) -> PathBuf {
        self.partial.join(CONTENT)
    }

    fn read_journal(&self) -> Result<Vec<u8>, Error> {
        let path = self.partial.join(JOURNAL);
        Ok(disk::read_file(&path, MAX_JOURNAL_BYTES)?.unwrap_or_default())
    }

    fn read_binding(&self) -> Result<Option<Binding>, Error> {
        Ok(Binding::read(&self.read_journal()?))
    }

    /// Opens the journal and returns the records that can be taken over.
    pub(super) fn open_journal(&self, plan: &Plan) -> Result<(Journal, Vec<Entry>), Error> {
        let path = self.partial.join(JOURNAL);
        let bytes = self.read_journal()?;
        let entries = match Binding::read(&bytes) {
            Some(found) if found == self.binding => self.believe(read_entries(&bytes, plan), plan),
            Some(found) if found.source != self.binding.source => {
                return Err(ConvertError::SourceChanged(self.partial.clone()).into());
            }
            Some(_) => return Err(ConvertError::PlanChanged(self.partial.clone()).into()),
            None => Vec::new(),
        };
        if entries.is_empty() {
            // Nothing to take over: what lies there is of no known origin.
            remove_dir(&self.content())?;
        }
        Ok((Journal::create(&path, &self.binding, &entries)?, entries))
    }

    /// Hashes records from the end of the journal back until [`TAIL_RECORDS`] in a row are good,
    /// and leaves out the others.
    fn believe(&self, mut entries: Vec<Entry>, plan: &Plan) -> Vec<Entry> {
        let mut good_in_a_row = 0;
        let mut at = entries.len();
        while at > 0 && good_in_a_row < TAIL_RECORDS {
            at -= 1;
            let record = &plan.records[entries[at].record as usize];
            if self.is_intact(record, &entries[at], plan) {
                good_in_a_row += 1;
            } else {
                good_in_a_row = 0;
                entries.remove(at);
            }
        }
        entries
    }

    fn is_intact(&self, record: &PlannedRecord, entry: &Entry, plan: &Plan) -> bool {
        let path = self.content().join(&plan.files[record.file as usize].name);
        let Ok(file) = DataFile::open(path) else {
            return false;
        };
        record.parts.iter().zip(&entry.parts).all(|(part, made)| {
            let start = record.offset + part.offset;
            let digest = crate::verify::digest_range(&file, start, part.length);
            digest.is_ok_and(|d| d == made.digest)
        })
    }

    /// Creates the packs at their final lengths; what is there already stays.
    pub(super) fn open_packs(&self, plan: &Plan) -> Result<Vec<Pack>, Error> {
        let content = self.content();
        std::fs::create_dir_all(&content).map_err(|e| write_error(&content, e))?;
        let open = |(name, length): (&String, u64)| {
            let path = content.join(name);
            let file = disk::open_to_write(&path, false);
            let file = file.map_err(|e| write_error(&path, e))?;
            file.set_len(length).map_err(|e| write_error(&path, e))?;
            Ok(Pack { path, file, length })
        };
        plan.files
            .iter()
            .map(|f| (&f.name, f.length))
            .map(open)
            .collect()
    }

    /// Refuses a conversion that cannot fit.
    pub(super) fn check_space(
        &self,
        disk: &dyn Disk,
        packs: &[Pack],
        extra: u64,
    ) -> Result<(), Error> {
        let needed = packs
            .iter()
            .map(Pack::unallocated)
            .sum::<u64>()
            .saturating_add(extra);
        let free = disk
            .free_bytes(&self.partial)
            .map_err(|e| Error::io(&self.partial, "examine", e))?;
        if free < needed {
            let path = self.out.clone();
            return Err(ConvertError::NoSpace { path, needed, free }.into());
        }
        Ok(())
    }

    /// Text of the program; read back before it is trusted.
    pub(super) fn program_json(&self, program: &Program) -> Result<String, Error> {
        let path = self.content().join(crate::manifest::PROGRAM_FILE);
        let fail = |problem: String| Error::Program {
            path: path.clone(),
            problem,
        };
        let json = serde_json::to_string(program).map_err(|e| fail(e.to_string()))?;
        match crate::container::parse_program(json.as_bytes()) {
            Ok(read) if &read == program => Ok(json + "\n"),
            Ok(_) => Err(fail("it does not survive being written".to_owned())),
            Err(problem) => Err(fail(problem)),
        }
    }

    /// Writes a file of the container and waits until it is on disk.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.content().join(name);
        let write = || {
            let mut file = disk::open_to_write(&path, true)?;
            io::Write::write_all(&mut file, bytes)?;
            file.sync_all()
        };
        write().map_err(|e| write_error(&path, e))
    }

    /// Writes the manifest, gives the content its name and sweeps up.
    pub(super) fn complete(self, manifest: &Manifest) -> Result<(), Error> {
        let content = self.content();
        let beside = self.partial.join("manifest.new");
        let wrap = |e| write_error(&beside, e);
        let write = || {
            let mut file = disk::open_to_write(&beside, true)?;
            io::Write::write_all(&mut file, manifest.to_json().as_bytes())?;
            file.sync_all()
        };
        write().map_err(wrap)?;
        sync_dir(&content)?;
        std::fs::rename(&beside, content.join(MANIFEST_FILE)).map_err(wrap)?;
        sync_dir(&content)?;
        rename_to_new(&content, &self.out)?;
        sync_dir(self.out.parent().unwrap_or(Path::new(".")))?;
        self.sweep()
    }

    fn sweep(self) -> Result<(), Error> {
        remove_dir(&self.partial)
    }
}

fn remove_dir(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path, "remove", e)),
        _ => Ok(()),
    }
}

/// Makes the working directory, or checks that the one that is there is ours.
fn make_partial(partial: &Path) -> Result<(), Error> {
    match std::fs::create_dir(partial) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(write_error(partial, e)),
    }
    let foreign = || Error::from(ConvertError::ForeignPartial(partial.to_owned()));
    if !partial.is_dir() {
        return Err(foreign());
    }
    let names = list_files(partial)?;
    let ours = |n: &String| KNOWN.contains(&n.as_str()) || n == "manifest.new";
    if names.iter().all(ours) {
        Ok(())
    } else {
        Err(foreign())
    }
}

/// Locks the working directory for this process.
fn take_lock(partial: &Path) -> Result<File, Error> {
    let path = partial.join(LOCK);
    let file = disk::open_to_write(&path, false);
    let file = file.map_err(|e| write_error(&path, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(ConvertError::Locked(partial.to_owned()).into());
        }
        Err(TryLockError::Error(e)) => return Err(Error::io(&path, "lock", e)),
    }
    // A run that finished meanwhile has removed the file we locked.
    if path.symlink_metadata().is_err() {
        return Err(ConvertError::Locked(partial.to_owned()).into());
    }
    Ok(file)
}

#[cfg(unix)]
fn sync_dir(dir: &Path) -> Result<(), Error> {
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| write_error(dir, e))
}

#[cfg(not(unix))]
fn sync_dir(_dir: &Path) -> Result<(), Error> {
    Ok(())
}

/// Renames a directory to a name that must not exist: a plain rename would replace an empty one.
fn rename_to_new(from: &Path, to: &Path) -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::EXIST) => {
                return Err(ConvertError::Exists(to.to_owned()).into());
            }
            // Not every file system knows the flag.
            Err(_) => {}
        }
    }
    if to.symlink_metadata().is_ok() {
        return Err(ConvertError::Exists(to.to_owned()).into());
    }
    std::fs::rename(from, to).map_err(|e| write_error(to, e))
}

/// The path of a model with something appended to its last component.
fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
