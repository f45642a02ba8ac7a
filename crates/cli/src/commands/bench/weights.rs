//! The weights that one token needs.

use lamella_engine::{BackendKind, Model};
use lamella_program::block::Ffn;
use lamella_program::closure::draft_operands;
use lamella_program::encoding::Policy;
use lamella_program::{Encoding, OperandId, Program, Role};
use std::collections::HashMap;

/// Bytes of weights that decoding one token reads: everything but the experts that are not chosen,
/// the rows of the embedding that are not looked up, and the draft heads.
pub(super) fn active_bytes(model: &Model, want: Option<Encoding>) -> u64 {
    let program = model.program();
    let chosen = chosen_experts(program);
    let draft = draft_operands(model.store().program());
    let mut sum = 0;
    for (number, operand) in program.operands.iter().enumerate() {
        let id = OperandId(number as u32);
        if draft.contains(&id) {
            continue;
        }
        let encoding = resident_encoding(model, id, want);
        let is_lookup = operand.role == Role::Embedding && program.exit.head != id;
        let rows = if is_lookup { 1 } else { operand.rows() };
        let item = encoding.matrix_bytes(rows, operand.cols()).unwrap_or(0) as u64;
        sum += item * chosen.get(&id).copied().unwrap_or(operand.items()) as u64;
    }
    sum
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

/// How the model holds the operand.
fn resident_encoding(model: &Model, id: OperandId, want: Option<Encoding>) -> Encoding {
    let role = model.program().operand(id).role;
    if model.report().backend == BackendKind::Reference || !role.may_quantise() {
        return Encoding::F32;
    }
    let stored = model.store().encodings(id);
    let first = stored.first().copied().unwrap_or(Encoding::F32);
    want.map_or(first, |want| {
        let wanted = Policy::uniform(want).encoding(role);
        wanted.map_or(first, |wanted| wanted.given(stored))
    })
}
