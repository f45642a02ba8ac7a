//! How fast files are read: past the page cache of the system, which would lie about the disk, and
//! from it.

use crate::memory::Buffer;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What offsets, lengths and addresses of direct reads are multiples of.
const ALIGN: u64 = 4096;
/// Threads that read at a time, as the reader of experts has.
const THREADS: usize = 4;
/// Most bytes of a read.
const MOST: u64 = 16 << 20;

/// What was measured.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DiskSpeed {
    /// Bytes per second.
    pub per_second: f64,
    /// Whether the page cache was passed by; otherwise part of what was read may have come from it.
    pub direct: bool,
    /// Bytes of each read.
    pub read_bytes: u64,
}

/// Opens a file for reading past the page cache, and reads from it to see that it works.
///
/// # Errors
/// What the system says if it cannot.
pub fn open_direct(path: &Path) -> io::Result<File> {
    let file = open_unchecked(path)?;
    let mut block = buffer(ALIGN)?;
    read_at(&file, &mut block, 0)?;
    Ok(file)
}

#[cfg(target_os = "linux")]
fn open_unchecked(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_unchecked(_: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

fn buffer(bytes: u64) -> io::Result<Buffer> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    Buffer::zeroed(length).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

/// A file to read from.
struct Target {
    file: File,
    /// Reads of the whole size that it has room for.
    places: u64,
}

/// Reads records of about `record` bytes at random places of `files` for about `time`. Holes of
/// files are read as fast as memory: only files that are filled say something of the disk.
///
/// # Errors
/// If a file cannot be read, or none is as large as a page.
pub fn measure(files: &[PathBuf], record: u64, time: Duration) -> io::Result<DiskSpeed> {
    let read = record.clamp(ALIGN, MOST).next_multiple_of(ALIGN);
    let largest = files.iter().filter_map(|path| path.metadata().ok());
    let largest = largest.map(|m| m.len() / ALIGN * ALIGN).max().unwrap_or(0);
    let read = read.min(largest);
    if read == 0 {
        return Err(io::Error::other("no file is large enough to be measured"));
    }
    let direct = files.iter().all(|path| open_direct(path).is_ok());
    let mut targets = Vec::new();
    for path in files {
        let file = match direct {
            true => open_unchecked(path)?,
            false => File::open(path)?,
        };
        let places = file.metadata()?.len() / read;
        if places > 0 {
            targets.push(Target { file, places });
        }
    }
    let start = Instant::now();
    let each = std::thread::scope(|scope| {
        let reader = |seed| {
            let targets = &targets;
            move || read_some(targets, read, seed, start, time)
        };
        let threads = (0..THREADS as u64).map(|seed| {
            let builder = std::thread::Builder::new();
            builder.spawn_scoped(scope, reader(seed))
        });
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| match thread?.join() {
            Ok(bytes) => bytes,
            Err(_) => Err(io::Error::other("a reading thread has panicked")),
        });
        joined.collect::<io::Result<Vec<u64>>>()
    })?;
    let bytes: u64 = each.iter().sum();
    Ok(DiskSpeed {
        per_second: bytes as f64 / start.elapsed().as_secs_f64(),
        direct,
        read_bytes: read,
    })
}

/// Bytes that one thread reads.
fn read_some(
    targets: &[Target],
    read: u64,
    seed: u64,
    start: Instant,
    time: Duration,
) -> io::Result<u64> {
    let mut buffer = buffer(read)?;
    let (mut random, mut bytes) = (seed, 0);
    while bytes == 0 || start.elapsed() < time {
        // Splitmix64 (Steele et al. 2014).
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let target = &targets[(z % targets.len() as u64) as usize];
        let place = (z >> 20) % target.places;
        let got = read_at(&target.file, &mut buffer, place * read)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes += got as u64;
    }
    Ok(bytes)
}

/// Bytes per second that one place of `file` is read with, again and again, through the page cache.
///
/// # Errors
/// If it cannot be read.
pub fn page_cache(file: &Path, record: u64) -> io::Result<f64> {
    const PASSES: usize = 3;
    let file = File::open(file)?;
    let length = file.metadata()?.len();
    let mut buffer = buffer(record.clamp(1, MOST).min(length.max(1)))?;
    let mut best = f64::INFINITY;
    let mut bytes = 0;
    for _ in 0..=PASSES {
        let start = Instant::now();
        bytes = read_at(&file, &mut buffer, 0)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    match bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(bytes as f64 / best),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_measured_and_tiny_ones_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("data");
        std::fs::write(&path, vec![7; 1 << 20]).expect("written");
        let time = Duration::from_millis(5);
        let files = [path.clone()];
        let speed = measure(&files, 100_000, time).expect("measured");
        assert!(speed.per_second > 0.0 && speed.read_bytes == 102_400);
        assert_eq!(
            measure(&files, 1 << 30, time).expect("measured").read_bytes,
            1 << 20
        );
        assert!(page_cache(&path, 4096).expect("measured") > 0.0);
        std::fs::write(&path, [1; 100]).expect("written");
        assert!(measure(&[path], 4096, time).is_err());
        assert!(measure(&[dir.path().join("gone")], 4096, time).is_err());
    }
}
