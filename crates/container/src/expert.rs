//! Experts as units of reading: gate, up and down of one expert in one piece of memory.

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
