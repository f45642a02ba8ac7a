//! Quantised activations: the inputs of products with compiled weights.
//!
//! Per row and group of 32 inputs (the last group padded with zeros), with `amax` the largest
//! magnitude of the group:
//!
//! * `amax` is infinite or NaN: scale NaN, codes 0, so that every output of the row is NaN;
//! * `amax < 2^-119`: scale 0, codes 0 (`127 / amax` and `amax / 127` stay normal above it);
//! * otherwise `scale = amax / 127` and `code = x * (127 / amax)`, the product rounded once, to
//!   an integer, half to even. Codes are within -127..=127 by construction.

use std::marker::PhantomData;

use lamella_program::encoding::GROUP;

use crate::lanes::{LANES, Lanes, MAGIC};
use crate::{Kernels, tile::Machine};

/// `2^-119`.
const SMALLEST: f32 = f32::from_bits((127 - 119) << 23);

/// One group of a quantised row. Everything a dot product wants of it lies together, so that a
/// kernel needs one pointer a row.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub(crate) struct Record {
    pub codes: [i8; GROUP],
    pub scale: f32,
    /// `-128` times the sum of the codes: undoes the bias of unsigned q8 codes.
    pub offset8: i32,
    /// `-8` times the sum of the codes: undoes the bias of unsigned q4 codes.
    pub offset4: i32,
    unused: u32,
}

/// Rows of activations as 8-bit integers with one scale a group: a buffer to be reused.
#[derive(Default)]
pub struct QuantisedRows {
    rows: usize,
    cols: usize,
    records: Vec<Record>,
}

impl QuantisedRows {
    /// A buffer that holds `rows` rows of `cols` inputs (or as many groups in another shape)
    /// without allocating again.
    #[must_use]
    pub fn with_capacity(rows: usize, cols: usize) -> QuantisedRows {
        let mut buffer = QuantisedRows::default();
        buffer.reset(rows, cols);
        buffer.reset(0, 0);
        buffer
    }

    /// Bytes that `with_capacity(rows, cols)` allocates; `None` on overflow.
    #[must_use]
    pub fn bytes(rows: usize, cols: usize) -> Option<usize> {
        cols.div_ceil(GROUP)
            .checked_mul(size_of::<Record>())?
            .checked_mul(rows)
    }

    /// Makes it hold `rows` rows of `cols` inputs, contents unspecified. Allocates only beyond
    /// the capacity.
    pub fn reset(&mut self, rows: usize, cols: usize) {
        self.rows = rows;
        self.cols = cols;
        self.records
            .resize(rows * cols.div_ceil(GROUP), Record::default());
    }

    /// Quantises rows of `cols` inputs that are `stride` elements apart.
    ///
    /// # Panics
    /// If `x` is too short for that shape.
    pub fn quantise(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        rows: usize,
        cols: usize,
        stride: usize,
    ) {
        self.reset(rows, cols);
        let writer = self.writer();
        for row in 0..rows {
            let start = row * stride;
            // SAFETY: this thread is the only one with the writer.
            unsafe { writer.quantise_row(kernels, row, &x[start..start + cols]) };
        }
    }

    /// Copies some rows of another buffer, in that order. Kernels with matrix tiles are fastest on
    /// consecutive rows.
    ///
    /// # Panics
    /// If a row is out of range.
    pub fn gather(&mut self, from: &QuantisedRows, rows: &[u32]) {
        self.reset(rows.len(), from.cols);
        let groups = self.cols.div_ceil(GROUP);
        for (i, row) in rows.iter().enumerate() {
            self.records[i * groups..(i + 1) * groups].copy_from_slice(from.row(*row as usize));
        }
    }

    /// A view through which several threads may quantise different rows.
    pub fn writer(&mut self) -> QuantisedWriter<'_> {
        QuantisedWriter {
            rows: self.rows,
            cols: self.cols,
            records: self.records.as_mut_ptr(),
            storage: PhantomData,
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes (padded with zeros) and the scale of group `group` of a row.
    ///
    /// # Panics
    /// If there is no such group.
    #[must_use]
    pub fn group(&self, row: usize, group: usize) -> (&[i8; GROUP], f32) {
        let record = &self.row(row)[group];
        (&record.codes, record.scale)
    }

    /// The groups of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[Record] {
        let groups = self.cols.div_ceil(GROUP);
        &self.records[row * groups..(row + 1) * groups]
    }
}

/// Write access to a [`QuantisedRows`] for several threads.
pub struct QuantisedWriter<'a> {
    rows: usize,
    cols: usize,
    records: *mut Record,
    storage: PhantomData<&'a mut QuantisedRows>,
}

// SAFETY: the pointer is into storage borrowed for `'a`; every access is an `unsafe` call whose
// contract excludes races.
unsafe impl Send for QuantisedWriter<'_> {}
// SAFETY: as above.
unsafe impl Sync for QuantisedWriter<'_> {}

impl QuantisedWriter<'_> {
    /// Quantises one row.
    ///
    /// # Panics
    /// If there is no such row or `x` has not its length.
    ///
    /// # Safety
    /// Nothing else accesses the same row meanwhile.
    pub unsafe fn quantise_row(&self, kernels: &Kernels, row: usize, x: &[f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(x.len(), self.cols, "inputs of a quantised row");
        let groups = self.cols.div_ceil(GROUP);
        // SAFETY: the row is in range and this thread's alone; `Kernels` vouches for the
        // instruction set.
        unsafe {
            let records = std::slice::from_raw_parts_mut(self.records.add(row * groups), groups);
            (kernels.table().quantise_row)(x, records);
        }
    }

    /// Copies row `source` of another buffer of the same width to row `row`.
    ///
    /// # Panics
    /// If a row is out of range or the widths differ.
    ///
    /// # Safety
    /// Nothing else accesses row `row` meanwhile.
    pub unsafe fn copy_row(&self, row: usize, from: &QuantisedRows, source: usize) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(from.cols, self.cols, "inputs of a quantised row");
        let source = from.row(source);
        // SAFETY: the row is in range and this thread's alone.
        unsafe {
            let target = self.records.add(row * source.len());
            target.copy_from_nonoverlapping(source.as_ptr(), source.len());
        }
    }
}

/// # Safety
/// The instruction set of `M`; one record for each group of `x`.
#[inline(always)]
pub(crate) unsafe fn quantise_row<M: Machine>(x: &[f32], records: &mut [Record]) {
    for (group, record) in x.chunks(GROUP).zip(records) {
        // SAFETY: the group has `len` inputs; a record has 32 codes.
        unsafe {
            let p = group.as_ptr();
            let first = M::L::load_part(p, group.len().min(LANES), 0.0);
            let left = group.len().saturating_sub(LANES);
            let second = M::L::load_part(p.wrapping_add(LANES), left, 0.0);
            let amax = f32::from_bits(first.max_abs_bits(second));
            let mut sum = 0;
            if !amax.is_finite() || amax < SMALLEST {
                record.scale = if amax.is_finite() { 0.0 } else { f32::NAN };
                record.codes = [0; GROUP];
            } else {
                record.scale = amax / 127.0;
                let inverse = M::L::splat(127.0 / amax);
                let magic = M::L::splat(MAGIC);
                let codes = record.codes.as_mut_ptr();
                first.fma(inverse, magic).store_codes(codes);
                second.fma(inverse, magic).store_codes(codes.add(LANES));
                for code in record.codes {
                    sum += i32::from(code);
                }
            }
            record.offset8 = -128 * sum;
            record.offset4 = -8 * sum;
        }
    }
}
