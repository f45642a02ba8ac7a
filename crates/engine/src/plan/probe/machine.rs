//! Everything about a machine that a plan needs, measured where it is not told.

use super::{disk, memory, products};
use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::plan::{Machine, Question, Rate, Rates};
use crate::weights::Layout;
use lamella_container::{Stored, human_bytes};
use lamella_kernels::Kernels;
use lamella_program::Encoding;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time that reading the disk is measured for.
const DISK_TIME: Duration = Duration::from_secs(1);
/// Bytes of the file that is written to measure a disk that holds none of the model's.
const WRITTEN: u64 = 256 << 20;
/// Passes over memory in each way to read it.
const PASSES: usize = 2;
/// Passes of a product.
const PRODUCTS: usize = 4;
/// Bytes of the weights that are multiplied.
const WEIGHTS: u64 = 96 << 20;
/// Part of the free memory that measuring may take.
const PART: u64 = 8;

/// What is known of a machine without measuring, and what can be read to measure its disk.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Bytes per second of the disk.
    pub disk: Option<f64>,
    /// Bytes per second of the memory.
    pub memory: Option<f64>,
    /// Files of the model, of which those are read that are filled.
    pub files: Vec<PathBuf>,
    /// A directory on the disk that will hold the model, where a file is written for a moment if
    /// none of those is filled.
    pub directory: PathBuf,
}

/// The machine that this process runs on.
///
/// # Errors
/// If `question` cannot be planned, memory or threads are refused, or the disk cannot be measured.
pub fn machine(
    stored: &impl Stored,
    question: &Question,
    limit: MemoryLimit,
    known: &Known,
) -> Result<Machine, Error> {
    let opening = crate::model::Opening::of(stored.program(), &question.options)?;
    let (threads, isa) = (opening.shape.threads, opening.shape.isa);
    let kernels = Kernels::new(isa).unwrap_or_else(Kernels::best);
    let choices = crate::weights::choose_all(stored, &question.options)?;
    let mut by_encoding = [0u64; Encoding::ALL.len()];
    for (operand, choice) in opening.program.operands.iter().zip(&choices) {
        if choice.layout != Layout::Absent {
            let at = Encoding::ALL.iter().position(|e| *e == choice.resident);
            let sum = at.and_then(|at| by_encoding.get_mut(at));
            *sum.unwrap_or(&mut 0) += operand.elements() as u64;
        }
    }
    let most = Encoding::ALL
        .into_iter()
        .zip(by_encoding)
        .max_by_key(|(_, n)| *n);
    let encoding = most.map_or(Encoding::F32, |(encoding, _)| encoding);
    let record = crate::plan::record_bytes(stored, question)?;
    let free = MemoryLimit::resolve(None).bytes / PART;
    let name = encoding.name();
    let weights = WEIGHTS.min(free) as usize;
    let products = products::measure(kernels, threads, encoding, weights, PRODUCTS)?;
    let memory = match known.memory {
        Some(rate) => Rate::new(rate, "given"),
        None => {
            let bytes = (free / threads as u64).min(memory::BYTES_A_THREAD as u64) as usize;
            let rate = memory::measure(kernels, threads, bytes, PASSES)?;
            Rate::new(rate, format!("measured with {threads} threads"))
        }
    };
    let (disk, page_cache) = disk_rates(known, record)?;
    let decode = products.decode.min(memory.per_second);
    let rates = Rates {
        memory,
        decode: Rate::new(decode, format!("measured: products of {name} with one row")),
        products: Rate::new(
            products.many,
            format!("measured: products of {name} with many rows"),
        ),
        disk,
        page_cache,
    };
    Ok(Machine::new(threads, isa, limit, rates))
}

/// The disk past the page cache, and the page cache.
fn disk_rates(known: &Known, record: u64) -> Result<(Rate, Rate), Error> {
    let filled: Vec<PathBuf> = known
        .files
        .iter()
        .filter(|path| is_filled(path))
        .cloned()
        .collect();
    let refuse = |path: &Path, error: std::io::Error| Error::File {
        path: path.to_owned(),
        message: format!("the disk's speed cannot be measured here: {error}; tell it"),
    };
    let (files, written, place) = match filled.first() {
        Some(first) => (filled.clone(), None, first.clone()),
        None => {
            let dir = &known.directory;
            let file = write(dir).map_err(|error| refuse(dir, error))?;
            (vec![file.path().to_owned()], Some(file), dir.clone())
        }
    };
    let cache = disk::page_cache(&files[0], record).map_err(|error| refuse(&place, error))?;
    let cache = Rate::new(cache, "measured: one place read again and again");
    if let Some(rate) = known.disk {
        return Ok((Rate::new(rate, "given"), cache));
    }
    let speed = disk::measure(&files, record, DISK_TIME).map_err(|error| refuse(&place, error))?;
    let what = match written {
        None => "at the model's files",
        Some(_) => "in a file written to the current directory, for want of the model's",
    };
    let how = match speed.direct {
        true => "past the page cache",
        false => "through the page cache, which this file system does not let one pass by",
    };
    let size = human_bytes(speed.read_bytes);
    let origin = format!("measured: random reads of {size} {what}, {how}");
    Ok((Rate::new(speed.per_second, origin), cache))
}

/// Whether most of a file has a place on the disk.
#[cfg(unix)]
fn is_filled(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let metadata = path.metadata();
    metadata.is_ok_and(|m| m.is_file() && m.len() > 0 && m.blocks().saturating_mul(1024) >= m.len())
}

#[cfg(not(unix))]
fn is_filled(path: &Path) -> bool {
    path.is_file()
}

/// A file that is gone when this is dropped.
struct Written(PathBuf);

impl Written {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // What cannot be removed is named after what it is.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes a file to `dir`, with bytes that no file system can leave out.
fn write(dir: &Path) -> std::io::Result<Written> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |time| time.as_nanos());
    let path = dir.join(format!(".lamella-disk-speed-{now}"));
    let mut file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(&path)?;
    let written = Written(path);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut piece = Vec::with_capacity(1 << 20);
    while piece.len() < 1 << 20 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        piece.extend(random.to_le_bytes());
    }
    for number in 0..WRITTEN >> 20 {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(written)
}
