//! The ends of a model that stay on disk: rows of the embedding and tiles of the head are read when
//! they are needed.

use super::load::{Loaded, load_rows};
use super::{Choice, Layout, buffer_bytes};
use crate::error::Error;
use lamella_container::Store;
use lamella_kernels::Matrix;
use lamella_program::encoding::TILE_ROWS;
use lamella_program::{Operand, OperandId, Program};
use std::ops::Range;

/// Rows of a matrix in memory while the others are on disk.
const ROWS: usize = 16 * TILE_ROWS;

/// Rows that are in memory of a matrix that stays on disk.
pub(super) fn stream_rows(operand: &Operand) -> usize {
    operand.rows().min(ROWS)
}

/// What may stay on disk of the ends, one after the other until the rest fits. The head is read as
/// a whole for every token, the embedding a row: it goes first.
pub(crate) fn may_stay_on_disk(program: &Program) -> Vec<OperandId> {
    let (embedding, head) = (program.entry.embedding, program.exit.head);
    match embedding == head {
        true => vec![head],
        false => vec![embedding, head],
    }
}

/// Bytes of the buffers through which the operands that stay on disk are read.
pub(crate) fn stream_bytes(program: &Program, choices: &[Choice]) -> Result<u64, Error> {
    let operands = program.operands.iter().zip(choices);
    let streamed = operands.filter(|(_, choice)| choice.layout == Layout::Streamed);
    // One is read at a time.
    let mut bytes = streamed.map(|(o, &choice)| buffer_bytes(o, choice, stream_rows(o)));
    bytes.try_fold(0, |most, bytes| Ok(bytes?.max(most)))
}

/// Bytes that stay on disk.
pub(crate) fn streamed_bytes(program: &Program, choices: &[Choice]) -> u64 {
    let operands = program.operands.iter().zip(choices);
    let streamed = operands.filter(|(_, choice)| choice.layout == Layout::Streamed);
    let bytes = streamed.filter_map(|(o, c)| c.stored.matrix_bytes(o.rows(), o.cols()));
    bytes.map(|bytes| bytes as u64).sum()
}

/// Checks what stays on disk against its digest, once: rows that are read later have none.
///
/// # Errors
/// As [`Store::check`].
pub(crate) fn check_streamed(store: &Store, choices: &[Choice]) -> Result<(), Error> {
    for (index, choice) in choices.iter().enumerate() {
        if choice.layout == Layout::Streamed {
            store.check(OperandId(index as u32), 0, choice.stored)?;
        }
    }
    Ok(())
}

impl Loaded {
    /// Whether it stays on disk.
    pub(crate) fn is_streamed(&self) -> bool {
        self.choice.layout == Layout::Streamed
    }

    /// Has `rows` in memory, whole row blocks of at most [`stream_rows`]: [`tile`](Self::tile) is
    /// theirs.
    ///
    /// # Errors
    /// If reading fails.
    fn hold(&mut self, store: &Store, id: OperandId, rows: Range<usize>) -> Result<(), Error> {
        if self.held == rows {
            return Ok(());
        }
        self.held = 0..0;
        load_rows(store, (id, 0), self.choice, rows.clone(), &mut self.data)?;
        self.held = rows;
        Ok(())
    }

    /// Has row `row` in memory; does nothing if all rows are.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub(crate) fn hold_row(
        &mut self,
        store: &Store,
        id: OperandId,
        row: usize,
    ) -> Result<(), Error> {
        if !self.is_streamed() || self.held.contains(&row) {
            return Ok(());
        }
        let start = row - row % TILE_ROWS;
        self.hold(store, id, start..(start + TILE_ROWS).min(self.rows))
    }

    /// Has the rows from `first` on in memory, as many as there is room for; how many that is.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub(crate) fn hold_tile(
        &mut self,
        store: &Store,
        id: OperandId,
        first: usize,
    ) -> Result<usize, Error> {
        let end = (first + ROWS).min(self.rows);
        self.hold(store, id, first..end)?;
        Ok(end - first)
    }

    /// The rows in memory and the number of the first: all of them, or those held last.
    ///
    /// # Panics
    /// If it is no matrix.
    pub(crate) fn tile(&self) -> (usize, Matrix<'_>) {
        if !self.is_streamed() {
            return (0, self.matrix(0));
        }
        let matrix = Matrix {
            encoding: self.choice.resident,
            rows: self.held.len(),
            cols: self.cols,
            data: &self.data,
        };
        (self.held.start, matrix)
    }
}
