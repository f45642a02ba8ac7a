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

/// Rows of activations as 8-bit integers with one scale a group: a buffer to be reused.
#[derive(Default)]
pub struct QuantisedRows {
    rows: usize,
    cols: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    offsets8: Vec<i32>,
    offsets4: Vec<i32>,
}

impl QuantisedRows {
    /// A buffer that holds `rows` rows of `cols` inputs (or as many elements in another shape)
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
            .checked_mul(GROUP + 12)?
            .checked_mul(rows)
    }

    /// Makes it hold `rows` rows of `cols` inputs, contents unspecified. Allocates only beyond
    /// the capacity.
    pub fn reset(&mut self, rows: usize, cols: usize) {
        let groups = rows * cols.div_ceil(GROUP);
        self.rows = rows;
        self.cols = cols;
        self.codes.resize(groups * GROUP, 0);
        self.scales.resize(groups, 0.0);
        self.offsets8.resize(groups, 0);
        self.offsets4.resize(groups, 0);
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

    /// A view through which several threads may quantise different rows.
    pub fn writer(&mut self) -> QuantisedWriter<'_> {
        QuantisedWriter {
            rows: self.rows,
            cols: self.cols,
            codes: self.codes.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            offsets8: self.offsets8.as_mut_ptr(),
            offsets4: self.offsets4.as_mut_ptr(),
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

    /// The codes of a row, padded with zeros to whole groups.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn codes(&self, row: usize) -> &[i8] {
        let width = self.cols.div_ceil(GROUP) * GROUP;
        &self.codes[row * width..(row + 1) * width]
    }

    /// The group scales of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn scales(&self, row: usize) -> &[f32] {
        let groups = self.cols.div_ceil(GROUP);
        &self.scales[row * groups..(row + 1) * groups]
    }

    pub(crate) fn offsets8(&self, row: usize) -> &[i32] {
        let groups = self.cols.div_ceil(GROUP);
        &self.offsets8[row * groups..(row + 1) * groups]
    }

    pub(crate) fn offsets4(&self, row: usize) -> &[i32] {
        let groups = self.cols.div_ceil(GROUP);
        &self.offsets4[row * groups..(row + 1) * groups]
    }
}

/// Write access to a [`QuantisedRows`] for several threads.
pub struct QuantisedWriter<'a> {
    rows: usize,
    cols: usize,
    codes: *mut i8,
    scales: *mut f32,
    offsets8: *mut i32,
    offsets4: *mut i32,
    storage: PhantomData<&'a mut QuantisedRows>,
}

// SAFETY: the pointers are into storage borrowed for `'a`; `quantise_row` is the only access and
// its contract excludes races.
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
    /// No other thread quantises the same row meanwhile.
    pub unsafe fn quantise_row(&self, kernels: &Kernels, row: usize, x: &[f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(x.len(), self.cols, "inputs of a quantised row");
        let groups = self.cols.div_ceil(GROUP);
        // SAFETY: the row is in range and this thread's alone; `Kernels` vouches for the
        // instruction set.
        unsafe {
            let target = RowTarget {
                codes: self.codes.add(row * groups * GROUP),
                scales: self.scales.add(row * groups),
                offsets8: self.offsets8.add(row * groups),
                offsets4: self.offsets4.add(row * groups),
            };
            (kernels.table().quantise_row)(x, &target);
        }
    }
}

/// Where a quantised row goes.
pub(crate) struct RowTarget {
    codes: *mut i8,
    scales: *mut f32,
    offsets8: *mut i32,
    offsets4: *mut i32,
}

/// # Safety
/// The instruction set of `M`; a target for `x.len()` inputs.
#[inline(always)]
pub(crate) unsafe fn quantise_row<M: Machine>(x: &[f32], target: &RowTarget) {
    for (g, group) in x.chunks(GROUP).enumerate() {
        // SAFETY: the group has `len` inputs; the target has a group `g`.
        unsafe {
            let p = group.as_ptr();
            let first = M::L::load_part(p, group.len().min(LANES), 0.0);
            let left = group.len().saturating_sub(LANES);
            let second = M::L::load_part(p.wrapping_add(LANES), left, 0.0);
            let largest = first.max_abs_bits(second);
            let amax = f32::from_bits(largest);
            let codes = target.codes.add(g * GROUP);
            let mut sum = 0;
            if !amax.is_finite() || amax < SMALLEST {
                *target.scales.add(g) = if amax.is_finite() { 0.0 } else { f32::NAN };
                codes.write_bytes(0, GROUP);
            } else {
                *target.scales.add(g) = amax / 127.0;
                let inverse = M::L::splat(127.0 / amax);
                let magic = M::L::splat(MAGIC);
                first.fma(inverse, magic).store_codes(codes);
                second.fma(inverse, magic).store_codes(codes.add(LANES));
                for i in 0..GROUP {
                    sum += i32::from(*codes.add(i));
                }
            }
            *target.offsets8.add(g) = -128 * sum;
            *target.offsets4.add(g) = -8 * sum;
        }
    }
}
