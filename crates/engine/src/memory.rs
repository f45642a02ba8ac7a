//! Memory: page-aligned buffers from the system, and how much of it there is.

use crate::cgroup;
use crate::error::Error;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ops::Range;
use std::ptr::NonNull;
use zerocopy::FromZeros;

/// Most bytes of a page of the system.
const PAGE_BYTES: usize = match cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
    true => 4 << 10,
    false => 64 << 10,
};

/// Zeroed memory straight from the system, aligned to a page, on huge pages where offered.
///
/// Weights live in it: one mapping an operand, given back on drop.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned by the buffer alone and has no thread affinity.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads; writes need `&mut`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Bytes of memory that a buffer of `length` bytes takes: whole pages.
    #[must_use]
    pub fn taken(length: usize) -> u64 {
        (length as u64).next_multiple_of(PAGE_BYTES as u64)
    }

    /// `length` zero bytes.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub fn zeroed(length: usize) -> Result<Buffer, Error> {
        if length == 0 {
            return Ok(Buffer {
                start: NonNull::dangling(),
                length,
            });
        }
        // SAFETY: an anonymous private mapping where the system chooses aliases nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|e| Error::Allocation {
            bytes: length,
            cause: e.into(),
        })?;
        // SAFETY: the range is the mapping just made. Huge pages are a wish: without them the
        // same bytes are read a little slower, so a refusal is not an error.
        let _ = unsafe { rustix::mm::madvise(start, length, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| Error::Allocation {
            bytes: length,
            cause: std::io::Error::other("mapped at address zero"),
        })?;
        Ok(Buffer { start, length })
    }

    /// Asks for the memory of all bytes ahead of their use, a piece at a time. Others may write to
    /// them meanwhile: this changes no byte.
    pub(crate) fn populate(&self) {
        /// Bytes asked for at once.
        const PIECE: usize = 8 << 20;
        for at in (0..self.length).step_by(PIECE) {
            let length = PIECE.min(self.length - at);
            // SAFETY: the range is part of the mapping, and populating keeps what is there.
            let asked = unsafe {
                let start = self.start.as_ptr().add(at).cast();
                rustix::mm::madvise(start, length, Advice::LinuxPopulateWrite)
            };
            // A wish: what is not there yet comes with its first use.
            if asked.is_err() {
                return;
            }
        }
    }

    /// Gives the whole pages of the system within `range`, in bytes, back to it. They are zero
    /// afterwards.
    ///
    /// # Safety
    /// Nobody may refer to these bytes, or expect to find there what was written.
    pub(crate) unsafe fn forget(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE_BYTES);
        let end = range.end.min(self.length) / PAGE_BYTES * PAGE_BYTES;
        if start < end {
            // SAFETY: the range is part of the mapping, and the caller answers for its content. A
            // refusal leaves the memory taken until the whole is unmapped.
            let _ = unsafe {
                let at = self.start.as_ptr().add(start).cast();
                rustix::mm::madvise(at, end - start, Advice::LinuxDontNeed)
            };
        }
    }

    /// Bytes there are; without a look at them.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Where the bytes begin that lie `at` bytes into the buffer.
    pub(crate) fn bytes_from(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.length, "outside the buffer");
        // SAFETY: still within the buffer.
        unsafe { self.start.add(at) }
    }

    /// Where the values begin that lie `at` bytes, a multiple of 4, into the buffer.
    pub(crate) fn values_from(&self, at: usize) -> NonNull<f32> {
        assert!(at.is_multiple_of(4), "between two values");
        self.bytes_from(at).cast()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: unmaps exactly the mapping made in `zeroed`; no reference outlives `self`.
            // Failure would mean the range is not mapped, and there is nothing left to do then.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
        }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `length` initialised bytes (or is dangling with length 0).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// `count` zeros.
///
/// # Errors
/// [`Error::Allocation`] if the system refuses.
pub(crate) fn zeros(count: usize) -> Result<Box<[f32]>, Error> {
    let zeros = <[f32]>::new_box_zeroed_with_elems(count);
    zeros.map_err(|_| Error::refused(count.saturating_mul(size_of::<f32>())))
}

/// Makes room for `more` more values in `list`.
///
/// # Errors
/// [`Error::Allocation`] if the system refuses; the list is as it was.
pub(crate) fn room<T>(list: &mut Vec<T>, more: usize) -> Result<(), Error> {
    let made = list.try_reserve(more);
    made.map_err(|_| Error::refused(more.saturating_mul(size_of::<T>())))
}

/// A memory limit and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// In words: "available on this machine", "cgroup limit", "the one that was set".
    pub origin: String,
}

impl MemoryLimit {
    /// The limit of the user if there is one, otherwise what the machine and its container offer
    /// now.
    #[must_use]
    pub fn resolve(asked: Option<u64>) -> MemoryLimit {
        if let Some(bytes) = asked {
            return MemoryLimit {
                bytes,
                origin: "the one that was set".to_owned(),
            };
        }
        let limits = [
            (Some(available_memory()), "available on this machine"),
            (cgroup::available(), "left under the cgroup limit"),
            (address_space(), "left of the address space (ulimit -v)"),
        ];
        let known = limits
            .into_iter()
            .filter_map(|(bytes, origin)| bytes.map(|bytes| (bytes, origin)));
        let (bytes, origin) = known.min_by_key(|limit| limit.0).unwrap_or((u64::MAX, ""));
        MemoryLimit {
            bytes,
            origin: origin.to_owned(),
        }
    }
}

/// What is left of the process's address space, without what the stacks of the next threads take;
/// `None` if it is not limited or the kernel does not tell what is taken.
fn address_space() -> Option<u64> {
    const OF_THREADS: u64 = 32 << 20;
    let limit = getrlimit(Resource::As).current?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let taken = meminfo_field(&status, "VmSize:")?;
    Some(limit.saturating_sub(taken).saturating_sub(OF_THREADS))
}

/// Refuses threads whose stacks do not fit into a limited address space: the standard library ends
/// the process where a thread that has begun gets no memory for its own start.
pub(crate) fn check_stacks(threads: usize) -> Result<(), Error> {
    /// Twice the stack of a thread.
    const OF_A_THREAD: u64 = 4 << 20;
    let left = address_space().unwrap_or(u64::MAX);
    if threads > 1 && left < (threads as u64).saturating_mul(OF_A_THREAD) {
        return Err(Error::Threads {
            wanted: threads,
            cause: std::io::ErrorKind::OutOfMemory.into(),
        });
    }
    Ok(())
}

/// `MemAvailable` of the kernel, in bytes; unlimited where the kernel does not tell.
fn available_memory() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else {
        return u64::MAX;
    };
    meminfo_field(&text, "MemAvailable:").unwrap_or(u64::MAX)
}

fn meminfo_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.starts_with(field))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_writable() {
        let mut buffer = Buffer::zeroed(5000).expect("memory");
        assert!(buffer.iter().all(|&b| b == 0));
        assert_eq!(buffer.as_ptr() as usize % 4096, 0);
        buffer[4999] = 7;
        assert_eq!(buffer[4999], 7);
        assert!(Buffer::zeroed(0).expect("empty").is_empty());
        assert!(Buffer::taken(0) == 0 && Buffer::taken(1) == PAGE_BYTES as u64);
        assert_eq!(Buffer::taken(2 * PAGE_BYTES), 2 * PAGE_BYTES as u64);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(matches!(
            Buffer::zeroed(usize::MAX / 2),
            Err(Error::Allocation { .. })
        ));
    }

    #[test]
    fn limits_say_where_they_come_from() {
        assert_eq!(MemoryLimit::resolve(Some(5)).origin, "the one that was set");
        assert!(MemoryLimit::resolve(None).bytes > 0);
        assert_eq!(
            meminfo_field("MemAvailable:   12 kB\n", "MemAvailable:"),
            Some(12 * 1024)
        );
    }
}
