//! What goes where: every record, its place and its parts, before the first byte is written.

use super::journal::Entry;
use super::{ConvertError, ConvertOptions, Keep};
use crate::error::Error;
use crate::expert::{ExpertBank, expert_layout};
use crate::quantise::RECIPE;
use crate::store::Store;
use crate::table::{PackFile, Part, RECORD_ALIGN, RecordEntry, Table, TableOperand};
use lamella_program::closure::draft_operands;
use lamella_program::encoding::Policy;
use lamella_program::{Encoding, OperandId, Role};
use std::collections::HashSet;

/// One item of one operand, to be made.
#[derive(Clone, Debug)]
pub(super) struct PlannedPart {
    pub(super) operand: OperandId,
    pub(super) item: usize,
    /// As stored in the container.
    pub(super) encoding: Encoding,
    /// As read from the source.
    pub(super) source: Encoding,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// One record, to be made.
#[derive(Clone, Debug)]
pub(super) struct PlannedRecord {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) parts: Vec<PlannedPart>,
}

/// The layout of the container.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) files: Vec<PackFile>,
    pub(super) records: Vec<PlannedRecord>,
    operand_bytes: u64,
}

/// An encoding to write and the one it is made from.
type Choice = (Encoding, Encoding);

impl Plan {
    /// Plans the container: a pack of everything resident, then a pack per layer and encoding of
    /// routed experts.
    pub(super) fn new(store: &Store, options: &ConvertOptions) -> Result<Plan, Error> {
        let program = store.program();
        let banked: HashSet<OperandId> = store
            .banks()
            .iter()
            .flat_map(ExpertBank::operands)
            .collect();
        let draft = draft_operands(program);
        let mut plan = Plan::default();
        plan.files.push(PackFile {
            name: "resident.pack".to_owned(),
            length: 0,
        });
        for (number, operand) in program.operands.iter().enumerate() {
            let id = OperandId(number as u32);
            if operand.name.len() > usize::from(u16::MAX) {
                return Err(ConvertError::Unrecordable(operand.name.clone()).into());
            }
            plan.operand_bytes += (operand.name.len() + 8 * operand.shape.len() + 3) as u64;
            if banked.contains(&id) {
                continue;
            }
            for choice in choices(store, options, id, draft.contains(&id))? {
                for item in 0..operand.items() {
                    let part = plan_part(store, id, item, choice, 0)?;
                    plan.push(part.length, vec![part])?;
                }
            }
        }
        for bank in store.banks() {
            let draft = draft.contains(&bank.gate);
            plan.bank(store, options, bank, draft)?;
        }
        Ok(plan)
    }

    fn bank(
        &mut self,
        store: &Store,
        options: &ConvertOptions,
        bank: &ExpertBank,
        draft: bool,
    ) -> Result<(), Error> {
        let program = store.program();
        for (encoding, _) in choices(store, options, bank.gate, draft)? {
            let name = format!("experts-{:04}-{encoding}.pack", bank.layer);
            self.files.push(PackFile { name, length: 0 });
            let Some(layout) = expert_layout(program, bank, encoding) else {
                let name = program.operand(bank.gate).name.clone();
                return Err(ConvertError::Unrecordable(name).into());
            };
            let starts = [layout.gate.start, layout.up.start, layout.down.start];
            for item in 0..bank.experts {
                let mut parts = Vec::with_capacity(3);
                for (id, start) in bank.operands().into_iter().zip(starts) {
                    let source = source_of(store, id, encoding)?;
                    parts.push(plan_part(
                        store,
                        id,
                        item,
                        (encoding, source),
                        start as u64,
                    )?);
                }
                self.push(layout.length as u64, parts)?;
            }
        }
        Ok(())
    }

    /// Appends a record to the last file.
    fn push(&mut self, length: u64, parts: Vec<PlannedPart>) -> Result<(), Error> {
        let number = self.files.len() - 1;
        let file = &mut self.files[number];
        let offset = file.length;
        let end = offset
            .checked_add(length)
            .and_then(|e| e.checked_next_multiple_of(RECORD_ALIGN));
        match end {
            Some(end) if self.records.len() < u32::MAX as usize => file.length = end,
            _ => return Err(ConvertError::Unrecordable(file.name.clone()).into()),
        }
        self.records.push(PlannedRecord {
            file: number as u32,
            offset,
            length,
            parts,
        });
        Ok(())
    }

    /// Bytes of all records, without padding.
    pub(super) fn bytes(&self) -> u64 {
        self.records.iter().map(|r| r.length).sum()
    }

    /// Bytes of the table and the program, generously.
    pub(super) fn table_bytes(&self) -> u64 {
        let parts: usize = self.records.iter().map(|r| r.parts.len()).sum();
        64 * 1024 + 4 * self.operand_bytes + 512 * parts as u64
    }

    /// Changes when another container would come out of the same source.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("lamella conversion plan v1");
        hasher.update(&RECIPE.to_le_bytes());
        for file in &self.files {
            hasher.update(file.name.as_bytes());
            hasher.update(&file.length.to_le_bytes());
        }
        for record in &self.records {
            for part in &record.parts {
                hasher.update(&part.operand.0.to_le_bytes());
                hasher.update(&(part.item as u64).to_le_bytes());
                hasher.update(part.encoding.name().as_bytes());
                hasher.update(part.source.name().as_bytes());
                hasher.update(&(record.offset + part.offset).to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// The operand table, once all records are done. `done` is in record order.
    pub(super) fn table(&self, store: &Store, done: &[Entry]) -> Table {
        let name_and_shape = |o: &lamella_program::Operand| TableOperand {
            name: o.name.clone(),
            shape: o.shape.clone(),
        };
        let mut table = Table {
            files: self.files.clone(),
            operands: store
                .program()
                .operands
                .iter()
                .map(name_and_shape)
                .collect(),
            ..Table::default()
        };
        for (number, (record, entry)) in self.records.iter().zip(done).enumerate() {
            let first = table.parts.len();
            for (part, made) in record.parts.iter().zip(&entry.parts) {
                table.parts.push(Part {
                    record: number as u32,
                    operand: part.operand.0,
                    item: part.item as u32,
                    encoding: part.encoding,
                    offset: part.offset,
                    length: part.length,
                    digest: made.digest,
                });
            }
            table.records.push(RecordEntry {
                file: record.file,
                offset: record.offset,
                length: record.length,
                parts: first..table.parts.len(),
            });
        }
        table
    }

    /// What is odd about the weights.
    pub(super) fn warnings(&self, store: &Store, done: &[Entry]) -> Vec<String> {
        let mut warnings = Vec::new();
        for (record, entry) in self.records.iter().zip(done) {
            for (part, made) in record.parts.iter().zip(&entry.parts) {
                if made.zero {
                    let name = &store.program().operand(part.operand).name;
                    let (item, origin) = (part.item, store.origin_of(part.operand, part.item));
                    warnings.push(format!(
                        "operand {name}, item {item} (from {origin}): all weights are zero"
                    ));
                }
            }
        }
        warnings.dedup();
        warnings
    }
}

fn plan_part(
    store: &Store,
    id: OperandId,
    item: usize,
    (encoding, source): Choice,
    offset: u64,
) -> Result<PlannedPart, Error> {
    let operand = store.program().operand(id);
    match encoding.matrix_bytes(operand.rows(), operand.cols()) {
        Some(length) if item <= u32::MAX as usize => Ok(PlannedPart {
            operand: id,
            item,
            encoding,
            source,
            offset,
            length: length as u64,
        }),
        _ => Err(ConvertError::Unrecordable(operand.name.clone()).into()),
    }
}

/// Encodings to store an operand in, each once, in order, with what to make them from. `draft`:
/// whether only the draft heads use it.
fn choices(
    store: &Store,
    options: &ConvertOptions,
    id: OperandId,
    draft: bool,
) -> Result<Vec<Choice>, Error> {
    let role = store.program().operand(id).role;
    let keep = match role {
        Role::Embedding => &options.embedding,
        Role::Head => &options.head,
        Role::Linear => &options.linear,
        Role::Expert => &options.experts,
        Role::Table => &vec![Keep::Canonical],
        _ => &vec![Keep::As(Encoding::F32)],
    };
    let keep = if keep.is_empty() {
        &vec![Keep::Canonical]
    } else {
        keep
    };
    let (canonical, stored) = (canonical(store, id)?, store.encodings(id));
    let mut encodings: Vec<Encoding> = keep
        .iter()
        .map(|k| match k {
            Keep::Canonical => canonical,
            Keep::As(encoding) if draft => Policy::draft(encoding.given(stored)).linear,
            Keep::As(encoding) => encoding.given(stored),
        })
        .collect();
    encodings.sort_unstable();
    encodings.dedup();
    encodings
        .into_iter()
        .map(|e| Ok((e, source_of(store, id, e)?)))
        .collect()
}

fn canonical(store: &Store, id: OperandId) -> Result<Encoding, Error> {
    store
        .encodings(id)
        .first()
        .copied()
        .ok_or_else(|| ConvertError::Unrecordable(store.program().operand(id).name.clone()).into())
}

/// What to make `wanted` from: itself where stored, otherwise the canonical encoding.
fn source_of(store: &Store, id: OperandId, wanted: Encoding) -> Result<Encoding, Error> {
    if store.encodings(id).contains(&wanted) {
        return Ok(wanted);
    }
    let stored = canonical(store, id)?;
    let operand = || store.program().operand(id).name.clone();
    if wanted.is_coded() {
        let operand = operand();
        return Err(ConvertError::OnlyShipped { operand, wanted }.into());
    }
    if stored.is_compiled() {
        let operand = operand();
        return Err(ConvertError::NoCanonical {
            operand,
            stored,
            wanted,
        }
        .into());
    }
    Ok(stored)
}
