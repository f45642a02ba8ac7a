//! Which rows a kernel reads, and the shared view it writes through.

use std::marker::PhantomData;
use std::ops::Range;

/// The rows taking part in a matrix product, in order.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Rows `0..n`.
    First(usize),
    /// Each of these rows, repetitions allowed.
    At(&'a [u32]),
}

impl Rows<'_> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Rows::First(n) => *n,
            Rows::At(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `t`th row.
    ///
    /// # Panics
    /// If a listed row's place is out of range.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, t: usize) -> usize {
        match self {
            Rows::First(_) => t,
            Rows::At(rows) => rows[t] as usize,
        }
    }

    /// Whether each row follows the one before.
    pub(crate) fn are_consecutive(&self) -> bool {
        match self {
            Rows::First(_) => true,
            Rows::At(rows) => rows
                .windows(2)
                .all(|pair| pair[1] == pair[0].wrapping_add(1)),
        }
    }

    /// Whether every row is below `limit`.
    pub(crate) fn all_below(&self, limit: usize) -> bool {
        match self {
            Rows::First(n) => *n <= limit,
            Rows::At(rows) => rows.iter().all(|r| (*r as usize) < limit),
        }
    }
}

/// A mutable `[rows, width]` matrix that several threads may write at disjoint places.
///
/// It borrows the storage exclusively; the functions that write through it are `unsafe` because
/// only their callers know that concurrent writes do not meet.
pub struct SharedRows<'a> {
    data: *mut f32,
    rows: usize,
    width: usize,
    stride: usize,
    storage: PhantomData<&'a mut [f32]>,
}

// SAFETY: the view is a pointer into storage borrowed for `'a`; every access through it is an
// `unsafe` call whose contract excludes races.
unsafe impl Send for SharedRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// A view of rows of `width` elements, `stride` elements apart; as many as fit in `data`.
    ///
    /// # Panics
    /// If `width` exceeds `stride` or `stride` is 0.
    #[must_use]
    pub fn new(data: &'a mut [f32], width: usize, stride: usize) -> SharedRows<'a> {
        assert!(
            width <= stride && stride > 0,
            "row width {width}, stride {stride}"
        );
        let whole = data.len() / stride;
        let rows = whole + usize::from(data.len() % stride >= width && width > 0);
        SharedRows {
            data: data.as_mut_ptr(),
            rows,
            width,
            stride,
            storage: PhantomData,
        }
    }

    /// The same rows, restricted to some columns.
    ///
    /// # Panics
    /// If the range leaves the row.
    #[must_use]
    pub fn columns(&self, columns: Range<usize>) -> SharedRows<'a> {
        assert!(
            columns.start <= columns.end && columns.end <= self.width,
            "columns {columns:?}"
        );
        SharedRows {
            data: self.data.wrapping_add(columns.start),
            rows: self.rows,
            width: columns.len(),
            stride: self.stride,
            storage: PhantomData,
        }
    }

    /// The rows from `first` on.
    ///
    /// # Panics
    /// If there are fewer than `first` rows.
    #[must_use]
    pub fn from_row(&self, first: usize) -> SharedRows<'a> {
        assert!(first <= self.rows, "row {first} of {}", self.rows);
        SharedRows {
            data: self.data.wrapping_add(first * self.stride),
            rows: self.rows - first,
            width: self.width,
            stride: self.stride,
            storage: PhantomData,
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Part of a row, for writing.
    ///
    /// # Panics
    /// If the row or the columns are out of range.
    ///
    /// # Safety
    /// While the slice lives nothing else accesses these elements.
    #[must_use]
    #[allow(
        clippy::mut_from_ref,
        reason = "exclusive access is the caller's promise"
    )]
    pub unsafe fn slice_mut(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert!(
            columns.start <= columns.end && columns.end <= self.width,
            "columns {columns:?}"
        );
        // SAFETY: in bounds by the assertions; exclusive by the caller's promise.
        unsafe {
            let start = self.data.add(row * self.stride + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        }
    }

    /// The address of an element.
    ///
    /// # Safety
    /// `row` and `column` are in range.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, row: usize, column: usize) -> *mut f32 {
        // SAFETY: in range by the caller's promise.
        unsafe { self.data.add(row * self.stride + column) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_last_row_counts_when_its_width_fits() {
        let mut data = vec![0.0; 25];
        assert_eq!(SharedRows::new(&mut data, 5, 10).rows(), 3);
        assert_eq!(SharedRows::new(&mut data, 6, 10).rows(), 2);
        let view = SharedRows::new(&mut data, 5, 10);
        let columns = view.columns(2..4);
        // SAFETY: nothing else accesses the view.
        unsafe { columns.slice_mut(2, 0..2) }.fill(1.0);
        assert_eq!(data.iter().position(|x| *x == 1.0), Some(22));
    }
}
