//! The experts of a program that are not all in memory: their numbers, and how each lies in a slot.

use crate::error::Error;
use crate::memory::Buffer;
use crate::weights::{Choice, Layout, item_bytes};
use lamella_container::DIRECT_ALIGN;
use lamella_program::block::{Ffn, GatedUnit, Routed};
use lamella_program::{OperandId, Program};
use std::ops::Range;

/// The experts of one layer.
pub(super) struct Bank {
    /// The layer's number, the draft's counted behind the others.
    pub(super) layer: usize,
    /// Record of the layer's first expert.
    pub(super) first: u32,
    pub(super) experts: u32,
    pub(super) maps: [Map; 3],
}

impl Bank {
    /// Bytes of an expert in its slot.
    pub(super) fn bytes(&self) -> usize {
        self.maps[2].place.end
    }
}

/// Gate, up or down of a layer's experts.
#[derive(Clone)]
pub(super) struct Map {
    pub(super) id: OperandId,
    pub(super) choice: Choice,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Where it lies in a slot.
    pub(super) place: Range<usize>,
}

/// Which of an expert's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// `gate`, inside.
    Gate,
    /// `up`, inside.
    Up,
    /// `down`, back out.
    Down,
}

/// What the experts of a program take that are not all in memory. Each has a number, its record.
pub(crate) struct Layers {
    pub(super) banks: Vec<Bank>,
    /// Bytes of the largest expert, in whole blocks of direct reads.
    pub(super) slot: usize,
}

impl Layers {
    /// The routed experts that `choices` hold in a cache; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Setting`] if a size overflows.
    pub(crate) fn of(program: &Program, choices: &[Choice]) -> Result<Option<Layers>, Error> {
        // Slots are read into directly, and given back to the system one by one.
        let align = DIRECT_ALIGN.max(Buffer::taken(1) as usize);
        let (mut banks, mut first, mut slot) = (Vec::new(), 0u32, 0);
        for (layer, block) in program.every_layer().enumerate() {
            let Ffn::Routed(routed) = &block.ffn.body else {
                continue;
            };
            if choices[routed.unit.gate.index()].layout != Layout::Cached {
                continue;
            }
            let mut end = 0;
            let maps = operands(&routed.unit).map(|id| {
                let (operand, choice) = (program.operand(id), choices[id.index()]);
                let bytes = item_bytes(operand, choice)?;
                let place = end..end + bytes;
                end = place.end;
                Ok::<Map, Error>(Map {
                    id,
                    choice,
                    rows: operand.rows(),
                    cols: operand.cols(),
                    place,
                })
            });
            let [gate, up, down] = maps;
            let experts = u32::try_from(routed.experts).unwrap_or(u32::MAX);
            banks.push(Bank {
                layer,
                first,
                experts,
                maps: [gate?, up?, down?],
            });
            first = first.saturating_add(experts);
            slot = slot.max(end.next_multiple_of(align));
        }
        Ok((!banks.is_empty()).then_some(Layers { banks, slot }))
    }

    /// Experts of all layers.
    pub(crate) fn records(&self) -> u32 {
        let last = self.banks.last();
        last.map_or(0, |bank| bank.first.saturating_add(bank.experts))
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot as u64
    }

    /// Bytes of the lists for so many experts, beside the slots.
    pub(crate) fn list_bytes(&self) -> u64 {
        /// Of each expert: where it is, when it was used, and each policy's order, twice.
        const EACH: u64 = 208;
        /// The ends of all orders.
        const ORDERS: u64 = 48 << 10;
        u64::from(self.records()).saturating_mul(EACH) + ORDERS
    }

    /// Number of the bank of layer `layer`.
    pub(super) fn bank_of(&self, layer: usize) -> Option<usize> {
        self.banks.binary_search_by_key(&layer, |b| b.layer).ok()
    }

    /// Number of the bank of a record, and which of its experts it is.
    pub(super) fn expert_of(&self, record: u32) -> (usize, usize) {
        let after = self.banks.partition_point(|bank| bank.first <= record);
        let number = after - 1;
        (number, (record - self.banks[number].first) as usize)
    }
}

/// The maps of a unit.
fn operands(unit: &GatedUnit) -> [OperandId; 3] {
    [unit.gate, unit.up, unit.down]
}

/// Operands of routed experts, layer by layer.
pub(crate) fn expert_operands(program: &Program) -> Vec<[OperandId; 3]> {
    let layers = program.every_layer();
    let routed = layers.filter_map(|layer| match &layer.ffn.body {
        Ffn::Routed(Routed { unit, .. }) => Some(operands(unit)),
        _ => None,
    });
    routed.collect()
}
