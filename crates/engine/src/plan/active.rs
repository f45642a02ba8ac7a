//! What one token needs of the weights.

use crate::error::Error;
use crate::options::BackendKind;
use crate::weights::{Choice, Layout, item_bytes};
use lamella_program::block::Ffn;
use lamella_program::closure::draft_operands;
use lamella_program::{OperandId, Program, Role};
use std::collections::HashMap;

/// What decoding one token reads and computes, without the draft heads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Active {
    /// Bytes of what is always used.
    pub(crate) dense: u64,
    /// Bytes of the chosen experts.
    pub(crate) experts: u64,
    /// Multiplications of maps that are always used.
    pub(crate) dense_products: u64,
    /// Multiplications of the chosen experts.
    pub(crate) expert_products: u64,
}

impl Active {
    /// Bytes of both.
    pub(crate) fn all(&self) -> u64 {
        self.dense.saturating_add(self.experts)
    }
}

/// What a token needs of the operands that `choices` hold: everything but the experts that are not
/// chosen, the rows of the embedding that are not looked up, and the draft heads.
///
/// # Errors
/// [`Error::Setting`] if a size overflows.
pub(crate) fn active_bytes(
    program: &Program,
    choices: &[Choice],
    backend: BackendKind,
) -> Result<Active, Error> {
    let chosen = chosen_experts(program);
    let draft = draft_operands(program);
    let mut active = Active::default();
    let operands = (0..)
        .map(OperandId)
        .zip(program.operands.iter().zip(choices));
    for (id, (operand, &choice)) in operands {
        if choice.layout == Layout::Absent || draft.contains(&id) {
            continue;
        }
        let item = match backend {
            BackendKind::Reference => operand.item_elements() as u64 * 4,
            // What stays on disk is read as a whole all the same.
            BackendKind::Cpu if choice.layout == Layout::Streamed => {
                let layout = Layout::Packed;
                item_bytes(operand, Choice { layout, ..choice })? as u64
            }
            BackendKind::Cpu => item_bytes(operand, choice)? as u64,
        };
        let products = operand.item_elements() as u64;
        if let Some(&count) = chosen.get(&id) {
            let add = |sum: u64, each: u64| sum.saturating_add(each.saturating_mul(count as u64));
            active.experts = add(active.experts, item);
            active.expert_products = add(active.expert_products, products);
        } else if operand.role == Role::Embedding && program.exit.head != id {
            active.dense = active
                .dense
                .saturating_add(item / operand.rows().max(1) as u64);
        } else {
            let all = |each: u64| each.saturating_mul(operand.items() as u64);
            active.dense = active.dense.saturating_add(all(item));
            active.dense_products = active.dense_products.saturating_add(all(products));
        }
    }
    Ok(active)
}

/// For the operands of routed experts: how many of them a token uses.
fn chosen_experts(program: &Program) -> HashMap<OperandId, usize> {
    let mut chosen = HashMap::new();
    for layer in &program.layers {
        if let Ffn::Routed(routed) = &layer.ffn.body {
            for id in [routed.unit.gate, routed.unit.up, routed.unit.down] {
                chosen.insert(id, routed.top_k);
            }
        }
    }
    chosen
}
