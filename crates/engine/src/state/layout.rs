//! How the rows of an item lie in its pages.

use lamella_kernels::{KvShape, PAGE};
use std::ops::Range;

/// Order of the values in a page of one item: the backend's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLayout {
    /// Row after row.
    Plain,
    /// Keys as attention over pages reads them.
    Keys(KvShape),
    /// Values as attention over pages reads them.
    Values(KvShape),
}

impl RowLayout {
    /// Takes the row in slot `slot` out of a page.
    pub(super) fn load(self, page: &[f32], slot: usize, row: &mut [f32]) {
        match self {
            RowLayout::Plain => row.copy_from_slice(&page[slot * row.len()..][..row.len()]),
            RowLayout::Keys(shape) => shape.load_key(page, slot, row),
            RowLayout::Values(shape) => shape.load_value(page, slot, row),
        }
    }

    /// Zeroes the rows in `slots` of a page.
    pub(super) fn clear(self, page: &mut [f32], slots: Range<usize>) {
        match self {
            RowLayout::Plain => {
                let width = page.len() / PAGE;
                page[slots.start * width..slots.end * width].fill(0.0);
            }
            RowLayout::Keys(shape) => shape.clear_keys(page, slots),
            RowLayout::Values(shape) => shape.clear_values(page, slots),
        }
    }

    /// Puts a row into slot `slot` of a page.
    pub(super) fn store(self, page: &mut [f32], slot: usize, row: &[f32]) {
        match self {
            RowLayout::Plain => page[slot * row.len()..][..row.len()].copy_from_slice(row),
            RowLayout::Keys(shape) => shape.store_key(page, slot, row),
            RowLayout::Values(shape) => shape.store_value(page, slot, row),
        }
    }
}
