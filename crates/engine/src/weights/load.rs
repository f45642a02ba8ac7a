//! Stored bytes into memory, with several threads.

use super::{
    Choice, Layout, OpenProgress, codec, count_items, item_bytes, resident_bytes, too_large,
};
use crate::error::Error;
use crate::memory::Buffer;
use lamella_container::{Store, decode, gather, quantise};
use lamella_kernels::{Matrix, pack, packed_bytes};
use lamella_program::{Encoding, OperandId};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// One item of an operand as f32, row-major.
///
/// # Errors
/// What reading and decoding return; [`Error::Table`] for values that are no finite numbers.
pub(crate) fn read_f32(
    store: &Store,
    id: OperandId,
    item: usize,
    choice: Choice,
) -> Result<Vec<f32>, Error> {
    let operand = store.program().operand(id);
    let (rows, cols) = (operand.rows(), operand.cols());
    let mut values = read_decoded(store, id, item, choice.stored)?;
    // Such a number may decide what is chosen and leave no trace in the results.
    if let Some(index) = values.iter().position(|v| !v.is_finite()) {
        return Err(Error::Table {
            operand: operand.name.clone(),
            message: format!("value {index} is {}", values[index]),
        });
    }
    if choice.resident.is_compiled() && choice.stored != choice.resident {
        let size = choice
            .resident
            .matrix_bytes(rows, cols)
            .ok_or_else(|| too_large(operand))?;
        let mut bytes = vec![0; size];
        quantise(choice.resident, rows, cols, &values, &mut bytes)
            .map_err(|e| codec(operand, item, e))?;
        decode(choice.resident, rows, cols, &bytes, &mut values)
            .map_err(|e| codec(operand, item, e))?;
    }
    Ok(values)
}

fn read_decoded(
    store: &Store,
    id: OperandId,
    item: usize,
    stored: Encoding,
) -> Result<Vec<f32>, Error> {
    let operand = store.program().operand(id);
    let (rows, cols) = (operand.rows(), operand.cols());
    let size = stored
        .matrix_bytes(rows, cols)
        .ok_or_else(|| too_large(operand))?;
    let mut bytes = vec![0; size];
    store.read(id, item, stored, &mut bytes)?;
    let mut values = vec![0.0; operand.item_elements()];
    decode(stored, rows, cols, &bytes, &mut values).map_err(|e| codec(operand, item, e))?;
    Ok(values)
}

/// An operand in memory, laid out as the cpu backend reads it.
pub(crate) struct Loaded {
    pub(super) choice: Choice,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) item_bytes: usize,
    pub(super) data: Buffer,
    /// The rows that `data` holds of an operand that stays on disk.
    pub(super) held: Range<usize>,
}

impl Loaded {
    /// One item as a matrix.
    ///
    /// # Panics
    /// If it is laid out otherwise; the closure check refuses programs that would read it so.
    pub(crate) fn matrix(&self, item: usize) -> Matrix<'_> {
        let layout = self.choice.layout;
        assert!(layout == Layout::Packed, "a matrix of {layout:?}");
        let data = &self.data[item * self.item_bytes..(item + 1) * self.item_bytes];
        Matrix {
            encoding: self.choice.resident,
            rows: self.rows,
            cols: self.cols,
            data,
        }
    }

    /// The values of an operand that is held in rows.
    ///
    /// # Panics
    /// As [`Loaded::matrix`].
    pub(crate) fn vector(&self) -> &[f32] {
        let layout = self.choice.layout;
        assert!(layout == Layout::Rows, "values of {layout:?}");
        let count = self.rows * self.cols;
        let held = self.data.len() / size_of::<f32>();
        assert!(count <= held, "{count} values, {held} are held");
        // SAFETY: the buffer is page-aligned, holds at least `count` f32, and every bit pattern
        // is a valid f32.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast::<f32>(), count) }
    }

    /// Whether its items are in the slots of an expert store.
    pub(crate) fn is_cached(&self) -> bool {
        self.choice.layout == Layout::Cached
    }

    /// Columns of a matrix.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Rows of a matrix.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// What is computed with.
    pub(crate) fn encoding(&self) -> Encoding {
        self.choice.resident
    }

    /// Bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// Bytes of memory it takes.
    pub(crate) fn mapped(&self) -> u64 {
        Buffer::taken(self.data.len())
    }
}

/// Reads every operand into memory with `threads` threads.
pub(crate) fn load_all(
    store: &Store,
    choices: &[Choice],
    threads: usize,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Vec<Loaded>, Error> {
    let mut loaded = Vec::with_capacity(choices.len());
    for (operand, &choice) in store.program().operands.iter().zip(choices) {
        loaded.push(Loaded {
            choice,
            rows: operand.rows(),
            cols: operand.cols(),
            item_bytes: item_bytes(operand, choice)?,
            data: Buffer::zeroed(resident_bytes(operand, choice)?)?,
            held: 0..0,
        });
    }
    let total = loaded.iter().map(Loaded::bytes).sum();
    let mut jobs = Vec::with_capacity(count_items(store.program(), choices));
    for (index, l) in loaded.iter_mut().enumerate() {
        if !l.choice.layout.is_loaded() {
            continue;
        }
        let id = OperandId(index as u32);
        for (item, slot) in l.data.chunks_exact_mut(l.item_bytes).enumerate() {
            jobs.push(Mutex::new(Job {
                id,
                item,
                choice: choices[index],
                slot,
            }));
        }
    }
    run_jobs(store, &jobs, threads, total, progress)?;
    drop(jobs);
    Ok(loaded)
}

pub(super) struct Job<'b> {
    id: OperandId,
    item: usize,
    choice: Choice,
    slot: &'b mut [u8],
}

fn run_jobs(
    store: &Store,
    jobs: &[Mutex<Job<'_>>],
    threads: usize,
    total: u64,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let work = |send: &mut dyn FnMut(Result<u64, Error>) -> bool| {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut job = job.lock().unwrap_or_else(PoisonError::into_inner);
            let result = load(store, &mut job).map(|()| job.slot.len() as u64);
            let failed = result.is_err();
            if !send(result) || failed {
                return;
            }
        }
    };
    let mut done = 0;
    let end = gather(threads.min(jobs.len()), work, |finished| match finished {
        Ok(bytes) => {
            done += bytes;
            progress(OpenProgress { done, total });
            ControlFlow::Continue(())
        }
        // Nobody listens after the first error; then there is no more to do.
        Err(error) => ControlFlow::Break(error),
    });
    match end {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

fn load(store: &Store, job: &mut Job<'_>) -> Result<(), Error> {
    if job.choice.layout == Layout::Rows {
        // The values are those the encoding stands for, whoever reads them.
        let values = read_f32(store, job.id, job.item, job.choice)?;
        for (slot, value) in job.slot.chunks_exact_mut(4).zip(values) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        return Ok(());
    }
    let rows = 0..store.program().operand(job.id).rows();
    load_rows(store, (job.id, job.item), job.choice, rows, job.slot)
}

/// Puts rows of an item into `slot` as the kernels read them: all of them, or whole row blocks.
pub(crate) fn load_rows(
    store: &Store,
    (id, item): (OperandId, usize),
    choice: Choice,
    rows: Range<usize>,
    slot: &mut [u8],
) -> Result<(), Error> {
    let operand = store.program().operand(id);
    let (count, cols) = (rows.len(), operand.cols());
    let Choice {
        stored, resident, ..
    } = choice;
    let bytes = |encoding: Encoding| {
        let bytes = encoding.matrix_bytes(count, cols);
        bytes.ok_or_else(|| too_large(operand))
    };
    if stored.is_tiled() && stored == resident {
        return read_stored(store, (id, item), stored, rows, &mut slot[..bytes(stored)?]);
    }
    let mut read = vec![0; bytes(stored)?];
    read_stored(store, (id, item), stored, rows, &mut read)?;
    let packed = packed_bytes(resident, count, cols).ok_or_else(|| too_large(operand))?;
    let slot = &mut slot[..packed];
    if stored == resident && operand.role.may_quantise() {
        pack(stored, count, cols, &read, slot);
        return Ok(());
    }
    let mut values = vec![0.0; count * cols];
    decode(stored, count, cols, &read, &mut values).map_err(|e| codec(operand, item, e))?;
    drop(read);
    if resident.is_compiled() {
        let slot = &mut slot[..bytes(resident)?];
        return quantise(resident, count, cols, &values, slot).map_err(|e| codec(operand, item, e));
    }
    let read: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    pack(Encoding::F32, count, cols, &read, slot);
    Ok(())
}

/// Rows as they are stored. Only all of them together have a digest.
fn read_stored(
    store: &Store,
    (id, item): (OperandId, usize),
    stored: Encoding,
    rows: Range<usize>,
    buffer: &mut [u8],
) -> Result<(), Error> {
    let all = 0..store.program().operand(id).rows();
    match rows == all {
        true => store.read(id, item, stored, buffer)?,
        false => store.read_rows(id, item, stored, rows, buffer)?,
    }
    Ok(())
}
