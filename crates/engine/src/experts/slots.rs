//! Memory for experts, cut into slots of one size, which are written and read at the same time.

use crate::error::Error;
use crate::memory::Buffer;

/// Slots of equal size. Whoever fills one has it alone; the store sees to that.
pub(super) struct Slots {
    buffer: Buffer,
    size: usize,
}

impl Slots {
    /// `count` slots of `size` bytes.
    ///
    /// # Errors
    /// [`Error::Allocation`].
    pub(super) fn new(count: u32, size: usize) -> Result<Slots, Error> {
        let bytes = size.saturating_mul(count as usize);
        Ok(Slots {
            buffer: Buffer::zeroed(bytes)?,
            size,
        })
    }

    /// Bytes of memory they take.
    pub(super) fn mapped(&self) -> u64 {
        Buffer::taken(self.buffer.length())
    }

    /// What is in a slot.
    ///
    /// # Safety
    /// Nobody may write to the slot while the result lives.
    pub(super) unsafe fn read(&self, slot: u32) -> &[u8] {
        let start = self.buffer.bytes_from(slot as usize * self.size);
        // SAFETY: the slot lies in the buffer, which was zeroed, and the caller answers for it that
        // nobody writes there.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.size) }
    }

    /// Gives the memory of a slot back to the system.
    ///
    /// # Safety
    /// Nobody may read or write the slot, nor expect to find there what was written.
    pub(super) unsafe fn forget(&self, slot: u32) {
        let start = slot as usize * self.size;
        // SAFETY: the caller answers for it.
        unsafe { self.buffer.forget(start..start + self.size) };
    }

    /// A slot to be filled.
    ///
    /// # Safety
    /// Nobody else may read or write the slot while the result lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "slots are apart, and the caller has this one alone"
    )]
    pub(super) unsafe fn write(&self, slot: u32) -> &mut [u8] {
        let start = self.buffer.bytes_from(slot as usize * self.size);
        // SAFETY: as in `read`, and the caller has the slot alone.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.size) }
    }
}
