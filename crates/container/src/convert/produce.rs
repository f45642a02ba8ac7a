//! Making one record: rows in, encoded rows out, a few at a time.

use super::journal::Made;
use super::plan::{PlannedPart, PlannedRecord};
use super::workshop::{Disk, Pack};
use crate::codec;
use crate::error::Error;
use crate::store::Store;
use lamella_program::encoding::TILE_ROWS;
use lamella_program::{Operand, Role};

/// Weights in flight per worker: a few MB of buffers whatever the size of the model.
const CHUNK_WEIGHTS: usize = 1 << 18;

/// A worker's buffers.
pub(super) struct Producer<'a> {
    disk: &'a dyn Disk,
    store: &'a Store,
    raw: Vec<u8>,
    weights: Vec<f32>,
    encoded: Vec<u8>,
}

impl<'a> Producer<'a> {
    pub(super) fn new(disk: &'a dyn Disk, store: &'a Store) -> Producer<'a> {
        Producer {
            disk,
            store,
            raw: Vec::new(),
            weights: Vec::new(),
            encoded: Vec::new(),
        }
    }

    /// Makes all parts of a record and writes them to their places.
    pub(super) fn record(
        &mut self,
        record: &PlannedRecord,
        pack: &Pack,
    ) -> Result<Vec<Made>, Error> {
        record
            .parts
            .iter()
            .map(|part| self.part(part, pack, record.offset + part.offset))
            .collect()
    }

    fn part(&mut self, part: &PlannedPart, pack: &Pack, place: u64) -> Result<Made, Error> {
        if part.source.is_compiled() {
            return self.copy(part, pack, place);
        }
        let operand = self.store.program().operand(part.operand);
        let (rows, cols) = (operand.rows(), operand.cols());
        let step = (CHUNK_WEIGHTS / cols / TILE_ROWS).max(1) * TILE_ROWS;
        let (mut from, mut to) = (blake3::Hasher::new(), blake3::Hasher::new());
        let mut zero = matches!(operand.role, Role::Linear | Role::Expert);
        let mut place = place;
        for first in (0..rows).step_by(step) {
            let count = step.min(rows - first);
            zero &= self.chunk(part, operand, first, count)?;
            from.update(&self.raw);
            to.update(&self.encoded);
            pack.write(self.disk, &self.encoded, place)?;
            place += self.encoded.len() as u64;
        }
        self.check_source(part, from.finalize().as_bytes())?;
        Ok(Made {
            digest: *to.finalize().as_bytes(),
            zero,
        })
    }

    /// Reads, decodes and encodes some rows; codes that stay as they are, are copied. Whether all
    /// weights are zero.
    fn chunk(
        &mut self,
        part: &PlannedPart,
        operand: &Operand,
        first: usize,
        count: usize,
    ) -> Result<bool, Error> {
        let cols = operand.cols();
        let bytes = |encoding: lamella_program::Encoding| {
            // The whole matrix has been sized without overflow.
            encoding.matrix_bytes(count, cols).unwrap_or(0)
        };
        self.raw.resize(bytes(part.source), 0);
        self.weights.resize(count * cols, 0.0);
        self.encoded.resize(bytes(part.encoding), 0);
        let rows = first..first + count;
        self.store
            .read_rows(part.operand, part.item, part.source, rows, &mut self.raw)?;
        if part.source.is_coded() && part.source == part.encoding {
            self.encoded.clone_from(&self.raw);
            return Ok(codec::codes_are_zero(part.source, cols, &self.raw));
        }
        codec::decode(part.source, count, cols, &self.raw, &mut self.weights)
            .and_then(|()| {
                codec::encode(part.encoding, count, cols, &self.weights, &mut self.encoded)
            })
            .map_err(|cause| Error::Weights {
                operand: operand.name.clone(),
                item: part.item,
                origin: self.store.origin_of(part.operand, part.item),
                cause: cause.below(first),
            })?;
        Ok(self.weights.iter().all(|&w| w == 0.0))
    }

    /// Compiled bytes are copied; the read checks their digest.
    fn copy(&mut self, part: &PlannedPart, pack: &Pack, place: u64) -> Result<Made, Error> {
        self.raw.resize(part.length as usize, 0);
        self.store
            .read(part.operand, part.item, part.source, &mut self.raw)?;
        pack.write(self.disk, &self.raw, place)?;
        Ok(Made {
            digest: *blake3::hash(&self.raw).as_bytes(),
            zero: false,
        })
    }

    /// Rows were read without a check; their sum must be what the source container recorded.
    fn check_source(&self, part: &PlannedPart, digest: &[u8; 32]) -> Result<(), Error> {
        let Some(container) = self.store.container() else {
            return Ok(());
        };
        match container.part(part.operand, part.source, part.item) {
            Some(stored) if &stored.digest != digest => Err(container.damaged(stored)),
            _ => Ok(()),
        }
    }
}
