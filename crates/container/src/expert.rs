//! Experts as units of reading: gate, up and down of one expert in one piece of memory.

use crate::disk::{DIRECT_ALIGN, DataFile, PIECE};
use crate::error::Error;
use crate::queue::ReadQueue;
use crate::store::{Record, Store};
use crate::table::PART_ALIGN;
use lamella_program::block::Ffn;
use lamella_program::{Encoding, OperandId, Program};
use std::ops::Range;

/// The three stacked operands of one layer's routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertBank {
    /// Layer it belongs to, numbered as in [`Program::every_layer`].
    pub layer: usize,
    /// `[experts, width, in]`.
    pub gate: OperandId,
    /// `[experts, width, in]`.
    pub up: OperandId,
    /// `[experts, out, width]`.
    pub down: OperandId,
    /// Number of experts.
    pub experts: usize,
}

impl ExpertBank {
    /// The operands in the order of their bytes.
    #[must_use]
    pub fn operands(&self) -> [OperandId; 3] {
        [self.gate, self.up, self.down]
    }
}

/// Where the three matrices of an expert lie in its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLayout {
    /// Bytes of the record; a buffer for it.
    pub length: usize,
    /// Bytes of the gate matrix.
    pub gate: Range<usize>,
    /// Bytes of the up matrix.
    pub up: Range<usize>,
    /// Bytes of the down matrix.
    pub down: Range<usize>,
}

/// A way to bytes on a disk.
pub enum Access<'a> {
    /// Through the page cache.
    Buffered,
    /// Past it.
    Direct,
    /// Past it, through a queue: pieces are shown while others are on their way.
    Queued(&'a mut ReadQueue),
}

/// The expert banks of a program and its draft, in layer order.
#[must_use]
pub fn expert_banks(program: &Program) -> Vec<ExpertBank> {
    let bank = |(layer, l): (usize, &lamella_program::block::Layer)| match &l.ffn.body {
        Ffn::Routed(r) => Some(ExpertBank {
            layer,
            gate: r.unit.gate,
            up: r.unit.up,
            down: r.unit.down,
            experts: r.experts,
        }),
        _ => None,
    };
    program.every_layer().enumerate().filter_map(bank).collect()
}

/// How an expert of `bank` lies in memory and in a container: gate, up, down, each at a multiple
/// of 64 bytes. `None` if a size overflows.
#[must_use]
pub fn expert_layout(
    program: &Program,
    bank: &ExpertBank,
    encoding: Encoding,
) -> Option<ExpertLayout> {
    let bytes = |id: OperandId| {
        let operand = program.operands.get(id.index())?;
        encoding.matrix_bytes(operand.rows(), operand.cols())
    };
    let place = |start: usize, id| Some(start..start.checked_add(bytes(id)?)?);
    let after = |end: usize| end.checked_next_multiple_of(PART_ALIGN as usize);
    let gate = place(0, bank.gate)?;
    let up = place(after(gate.end)?, bank.up)?;
    let down = place(after(up.end)?, bank.down)?;
    Some(ExpertLayout {
        length: down.end,
        gate,
        up,
        down,
    })
}

impl Store {
    /// The expert banks, in layer order.
    #[must_use]
    pub fn banks(&self) -> &[ExpertBank] {
        &self.banks
    }

    /// The bank of layer `layer`, if its experts are routed.
    #[must_use]
    pub fn bank(&self, layer: usize) -> Option<&ExpertBank> {
        let at = self.banks.binary_search_by_key(&layer, |b| b.layer).ok()?;
        self.banks.get(at)
    }

    /// How [`Store::read_expert`] lays out an expert of `bank`.
    #[must_use]
    pub fn expert_layout(&self, bank: &ExpertBank, encoding: Encoding) -> Option<ExpertLayout> {
        expert_layout(self.program(), bank, encoding)
    }

    /// The one run of bytes that holds a whole expert, aligned to 4 KiB, where there is one.
    #[must_use]
    pub fn expert_record(
        &self,
        bank: &ExpertBank,
        item: usize,
        encoding: Encoding,
    ) -> Option<Record> {
        let container = self.container()?;
        let layout = self.expert_layout(bank, encoding)?;
        let starts = [layout.gate.start, layout.up.start, layout.down.start];
        let parts = bank.operands().map(|id| container.part(id, encoding, item));
        let number = parts[0]?.record;
        for (part, start) in parts.iter().zip(starts) {
            let part = (*part)?;
            if part.record != number || part.offset != start as u64 {
                return None;
            }
        }
        let record = &container.table.records[number as usize];
        (record.length == layout.length as u64).then_some(Record {
            file: record.file,
            offset: record.offset,
            length: record.length,
            digest: None,
        })
    }

    /// Whether the bytes of file number `file` of a container can be read past the page cache.
    #[must_use]
    pub fn is_direct(&self, file: u32) -> bool {
        let file = self.container().and_then(|c| c.file(file));
        file.is_some_and(DataFile::is_direct)
    }

    /// Reads the bytes of an [expert's record](Store::expert_record) into the start of `buffer`,
    /// and shows them to `seen` from the first to the last, in pieces of the same sizes whatever
    /// the way. Nothing is checked: [`Store::check_expert`] does. Past the page cache if told so,
    /// the file [can be read so](Store::is_direct), and the buffer begins and ends at multiples of
    /// [`DIRECT_ALIGN`](crate::DIRECT_ALIGN); what lies behind the record may then come along.
    ///
    /// # Errors
    /// If the buffer is too small, there is no such file, or reading fails; some may have been
    /// shown.
    pub fn read_record(
        &self,
        record: &Record,
        access: Access<'_>,
        buffer: &mut [u8],
        seen: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let file = self.container().and_then(|c| c.file(record.file));
        let file = file.ok_or_else(|| Error::Absent(self.dir().to_owned()))?;
        let length = usize::try_from(record.length).unwrap_or(usize::MAX);
        let Some(place) = buffer.get_mut(..length) else {
            return Err(Error::Buffer {
                operand: "of a record".to_owned(),
                found: buffer.len(),
                expected: length,
            });
        };
        let aligned = length.next_multiple_of(DIRECT_ALIGN);
        let direct = record.offset.is_multiple_of(DIRECT_ALIGN as u64)
            && place.as_ptr().addr().is_multiple_of(DIRECT_ALIGN);
        let room = buffer.get_mut(..aligned).filter(|_| direct);
        match (access, room) {
            #[cfg(target_os = "linux")]
            (Access::Queued(queue), Some(room)) => {
                return file.read_queued(queue, room, (length, record.offset), seen);
            }
            (Access::Direct, Some(room)) => file.read_direct(room, length, record.offset)?,
            _ => file.read_at(&mut buffer[..length], record.offset)?,
        }
        buffer[..length].chunks(PIECE).for_each(seen);
        Ok(())
    }

    /// Reads gate, up and down of one expert into `buffer`, laid out as
    /// [`Store::expert_layout`] says; with one read where the container has it in one record.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub fn read_expert(
        &self,
        bank: &ExpertBank,
        item: usize,
        encoding: Encoding,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let Some(layout) = self.expert_layout(bank, encoding) else {
            return Err(self.not_stored(bank.gate, item, encoding));
        };
        self.check_buffer(bank.gate, buffer.len(), layout.length as u64)?;
        if let Some(record) = self.expert_record(bank, item, encoding) {
            self.read_record(&record, Access::Buffered, buffer, &mut |_| {})?;
            return self.check_expert(bank, item, encoding, buffer);
        }
        let ranges = [layout.gate, layout.up, layout.down];
        for (id, range) in bank.operands().into_iter().zip(ranges) {
            self.read(id, item, encoding, &mut buffer[range])?;
        }
        Ok(())
    }

    /// Checks an expert's bytes, read by whatever means from its [`Store::expert_record`], against
    /// the digests. Checkpoints record none and accept everything.
    ///
    /// # Errors
    /// If the buffer has the wrong size or the bytes are damaged.
    pub fn check_expert(
        &self,
        bank: &ExpertBank,
        item: usize,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let Some(container) = self.container() else {
            return Ok(());
        };
        let Some(layout) = self.expert_layout(bank, encoding) else {
            return Err(self.not_stored(bank.gate, item, encoding));
        };
        self.check_buffer(bank.gate, bytes.len(), layout.length as u64)?;
        let ranges = [layout.gate, layout.up, layout.down];
        for (id, range) in bank.operands().into_iter().zip(ranges) {
            let Some(part) = container.part(id, encoding, item) else {
                return Err(self.not_stored(id, item, encoding));
            };
            container.check(part, &bytes[range])?;
        }
        Ok(())
    }
}
