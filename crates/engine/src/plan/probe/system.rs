//! What the system says of itself and allows.

use crate::cgroup;
use crate::memory::MemoryLimit;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::path::Path;

/// A limit of this process: what is allowed, and what it may be raised to. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allowed {
    /// Now.
    pub now: Option<u64>,
    /// At most.
    pub most: Option<u64>,
}

fn allowed(resource: Resource) -> Allowed {
    let limit = getrlimit(resource);
    Allowed {
        now: limit.current,
        most: limit.maximum,
    }
}

/// Files that may be open at a time.
#[must_use]
pub fn open_files() -> Allowed {
    allowed(Resource::Nofile)
}

/// Bytes that may be kept from being swapped out.
#[must_use]
pub fn locked_memory() -> Allowed {
    allowed(Resource::Memlock)
}

/// Bytes of address space.
#[must_use]
pub fn address_space() -> Allowed {
    allowed(Resource::As)
}

/// Bytes of memory that are free for this process, and what bounds them.
#[must_use]
pub fn free_memory() -> MemoryLimit {
    MemoryLimit::resolve(None)
}

/// Bytes left under the control groups; `None` where nothing limits them.
#[must_use]
pub fn control_group() -> Option<u64> {
    cgroup::available()
}

/// Bytes free for this user on the file system that holds `path`.
///
/// # Errors
/// What the system says.
pub fn free_disk(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The word in brackets of the file that says when huge pages are given: `always`, `madvise` or
/// `never`; `None` where there is no such file.
#[must_use]
pub fn huge_pages() -> Option<String> {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = std::fs::read_to_string(path).ok()?;
    let (_, word) = text.split_once('[')?;
    word.split_once(']').map(|(word, _)| word.to_owned())
}

/// Bytes that the system reads ahead on the disk that holds `path`; `None` where it does not tell.
#[cfg(target_os = "linux")]
#[must_use]
pub fn read_ahead(path: &Path) -> Option<u64> {
    use std::os::linux::fs::MetadataExt;
    let device = std::fs::metadata(path).ok()?.st_dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = format!("/sys/dev/block/{major}:{minor}");
    // A partition is read ahead as its disk is.
    let texts = [
        "queue/read_ahead_kb",
        "../queue/read_ahead_kb",
        "bdi/read_ahead_kb",
    ];
    let mut texts = texts
        .iter()
        .filter_map(|file| std::fs::read_to_string(format!("{node}/{file}")).ok());
    texts.next()?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that the system reads ahead on the disk that holds `path`; `None` where it does not tell.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn read_ahead(_: &Path) -> Option<u64> {
    None
}

/// Asks the kernel for an io_uring and gives it back.
///
/// # Errors
/// What the kernel says if it gives none.
#[cfg(target_os = "linux")]
pub fn io_uring() -> io::Result<()> {
    let mut params = rustix::io_uring::io_uring_params::default();
    // SAFETY: the parameters are valid for the call; the ring is closed without having been used.
    let ring = unsafe { rustix::io_uring::io_uring_setup(2, &mut params) }?;
    drop(ring);
    Ok(())
}

/// Asks the kernel for an io_uring and gives it back.
///
/// # Errors
/// Other kernels have none.
#[cfg(not(target_os = "linux"))]
pub fn io_uring() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
