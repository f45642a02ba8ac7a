//! Pages of state: each in memory of its own, or one of many that came in one mapping.

use crate::error::Error;
use crate::ledger::Claim;
use crate::memory::{Buffer, zeros};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// One page: [`PAGE`](lamella_kernels::PAGE) rows. How values lie inside is the backend's business.
pub(crate) struct Page {
    memory: Memory,
    /// Gives its bytes back.
    _claim: Option<Claim>,
}

enum Memory {
    Own(Box<[f32]>),
    Part(Part),
}

/// Values within a mapping that no other part has.
struct Part {
    values: NonNull<[f32]>,
    mapping: Arc<Buffer>,
}

// SAFETY: a part's values are its own, as those of a box are, and the mapping may go to any thread.
unsafe impl Send for Part {}
// SAFETY: shared access only reads; writes need `&mut`.
unsafe impl Sync for Part {}

impl Page {
    /// A page of `values` zeros, which are claimed.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub(super) fn new(values: usize, claim: Option<Claim>) -> Result<Page, Error> {
        Ok(Page {
            memory: Memory::Own(zeros(values)?),
            _claim: claim,
        })
    }
}

impl Deref for Page {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.memory {
            Memory::Own(values) => values,
            // SAFETY: the values lie in the mapping, which lives as long as the part; nobody else
            // refers to them.
            Memory::Part(part) => unsafe { part.values.as_ref() },
        }
    }
}

impl DerefMut for Page {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.memory {
            Memory::Own(values) => values,
            // SAFETY: as above, and `&mut self` makes the access exclusive.
            Memory::Part(part) => unsafe { part.values.as_mut() },
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let start = self.values.cast::<u8>().as_ptr() as usize - self.mapping.as_ptr() as usize;
        // SAFETY: nobody refers to the values any more.
        unsafe {
            self.mapping
                .forget(start..start + self.values.len() * size_of::<f32>())
        };
    }
}

/// Zeroed memory for many pages, cut one after another. New memory costs most when it comes page
/// by page, and least on huge pages of the system, which need long mappings.
pub(super) struct Slab {
    mapping: Arc<Buffer>,
    /// Bytes cut off.
    cut: usize,
}

impl Slab {
    /// Memory for pages of `bytes` bytes in all.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub(super) fn new(bytes: usize) -> Result<Slab, Error> {
        let mapping = Arc::new(Buffer::zeroed(bytes)?);
        Ok(Slab { mapping, cut: 0 })
    }

    /// The mapping, whose memory may be asked for ahead.
    pub(super) fn mapping(&self) -> Arc<Buffer> {
        Arc::clone(&self.mapping)
    }

    /// The next page, of `values` values; one in memory of its own if the slab is at its end.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses that one.
    pub(super) fn page(&mut self, values: usize, claim: Option<Claim>) -> Result<Page, Error> {
        let end = self.cut + values * size_of::<f32>();
        if end > self.mapping.len() {
            return Page::new(values, claim);
        }
        let start = self.mapping.values_from(self.cut);
        self.cut = end;
        Ok(Page {
            memory: Memory::Part(Part {
                values: NonNull::slice_from_raw_parts(start, values),
                mapping: Arc::clone(&self.mapping),
            }),
            _claim: claim,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_slab_are_apart_and_zero_until_written() {
        let mut slab = Slab::new(4 * (3000 + 5000)).expect("memory");
        let mapping = slab.mapping();
        std::thread::scope(|scope| scope.spawn(|| mapping.populate()).join()).expect("no panic");
        let mut pages = [3000, 5000, 10].map(|values| slab.page(values, None).expect("memory"));
        for (i, page) in pages.iter_mut().enumerate() {
            assert!(page.iter().all(|&v| v == 0.0));
            page.fill(i as f32 + 1.0);
        }
        let [first, second, own] = pages;
        drop((slab, first));
        assert!(second.len() == 5000 && second.iter().all(|&v| v == 2.0));
        assert!(own.len() == 10 && own.iter().all(|&v| v == 3.0));
    }
}
