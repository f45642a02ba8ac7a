//! A model in the numbers that decide where it fits.

use super::active::{Active, active_bytes};
use crate::error::Error;
use crate::model::{Opening, elements_by_encoding};
use crate::need::Way;
use crate::options::Options;
use crate::state::session_bytes;
use crate::weights::{Choice, Layout, item_bytes};
use lamella_program::block::{Ffn, Routed};
use lamella_program::{Part, Program, state};
use serde::Serialize;
use std::collections::BTreeMap;

/// The model, or the part of it that is planned for.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ModelFacts {
    /// The program's family.
    pub family: String,
    /// Layers of the whole model.
    pub layers: usize,
    /// Parameters of the whole model.
    pub parameters: u64,
    /// Elements in memory per encoding, experts on disk included.
    pub encodings: BTreeMap<&'static str, u64>,
    /// Bytes of everything but routed experts, as they lie in memory.
    pub dense_bytes: u64,
    /// Layers with routed experts.
    pub expert_layers: usize,
    /// Routed experts of a layer; the largest number where layers differ.
    pub experts_per_layer: usize,
    /// Routed experts of all layers.
    pub experts: u64,
    /// Of those, as many as a token uses.
    pub experts_per_token: u64,
    /// Bytes of an expert in memory, the largest where layers differ.
    pub expert_bytes: u64,
    /// Bytes that reading an expert takes, the mean over all.
    pub expert_stored_bytes: u64,
    /// Bytes of all routed experts in memory.
    pub experts_bytes: u64,
    /// Longest context the model was made for, in tokens.
    pub longest_context: usize,
    /// Bytes of state that every further token costs.
    pub state_bytes_per_token: u64,
    /// Bytes of state that a conversation has from the beginning.
    pub state_fixed_bytes: u64,
    /// Values of a row that passes from one layer to the next.
    pub boundary_width: usize,
    /// Bytes of such a row on the wire.
    pub boundary_bytes: u64,
    /// Bytes of weights that decoding a token reads: dense ones.
    pub active_dense_bytes: u64,
    /// The same of experts.
    pub active_expert_bytes: u64,
}

/// What speed is computed from, beside [`ModelFacts`].
pub(super) struct Work {
    pub(super) active: Active,
    /// Layers that run.
    pub(super) layers: usize,
    /// Experts that a token uses of those of one layer, the mean over layers.
    pub(super) share: f64,
}

impl ModelFacts {
    /// Of the part that `options` open, held as `way` says.
    pub(super) fn of(
        opening: &Opening,
        way: &Way,
        options: &Options,
    ) -> Result<(ModelFacts, Work), Error> {
        let (program, part) = (&opening.program, &options.part);
        let experts = Experts::of(program, &way.choices)?;
        let active = active_bytes(program, &way.choices, options.backend)?;
        let held = match way.need.weights.checked_sub(experts.held_bytes) {
            Some(dense) => dense,
            None => way.need.weights,
        };
        let boundary = program.row_width();
        let facts = ModelFacts {
            family: program.family.clone(),
            layers: program.layers.len(),
            parameters: program.parameters(),
            encodings: elements_by_encoding(program, &way.choices),
            dense_bytes: held,
            expert_layers: experts.layers,
            experts_per_layer: experts.per_layer,
            experts: experts.count,
            experts_per_token: experts.used,
            expert_bytes: experts.largest,
            expert_stored_bytes: experts.stored / experts.count.max(1),
            experts_bytes: experts.bytes,
            longest_context: program.dims.context,
            state_bytes_per_token: state::part_bytes_per_token(program, part) as u64,
            state_fixed_bytes: state::part_fixed_bytes(program, part) as u64,
            boundary_width: boundary,
            boundary_bytes: (boundary as u64).saturating_mul(4),
            active_dense_bytes: active.dense,
            active_expert_bytes: active.experts,
        };
        let work = Work {
            active,
            layers: part.layers(program).len(),
            share: experts.used as f64 / experts.count.max(1) as f64,
        };
        Ok((facts, work))
    }
}

/// Bytes that a conversation of `tokens` tokens holds at most. The ends hold none.
pub(super) fn conversation_bytes(opening: &Opening, options: &Options, tokens: usize) -> u64 {
    match options.part {
        Part::Ends => 0,
        _ => session_bytes(
            &opening.program,
            &options.part,
            tokens,
            opening.shape.step_rows,
        ),
    }
}

/// Routed experts of the layers that are held.
#[derive(Default)]
struct Experts {
    layers: usize,
    per_layer: usize,
    count: u64,
    used: u64,
    largest: u64,
    bytes: u64,
    /// Of those, all in memory.
    held_bytes: u64,
    stored: u64,
}

impl Experts {
    fn of(program: &Program, choices: &[Choice]) -> Result<Experts, Error> {
        let mut all = Experts::default();
        for layer in program.every_layer() {
            let Ffn::Routed(Routed {
                unit,
                experts,
                top_k,
                ..
            }) = &layer.ffn.body
            else {
                continue;
            };
            let ids = [unit.gate, unit.up, unit.down];
            let held = ids.map(|id| (program.operand(id), choices[id.index()]));
            if held[0].1.layout == Layout::Absent {
                continue;
            }
            let (mut bytes, mut stored) = (0u64, 0u64);
            for (operand, choice) in held {
                bytes = bytes.saturating_add(item_bytes(operand, choice)? as u64);
                let read = choice.stored.matrix_bytes(operand.rows(), operand.cols());
                stored = stored.saturating_add(read.unwrap_or(0) as u64);
            }
            let count = *experts as u64;
            all.layers += 1;
            all.per_layer = all.per_layer.max(*experts);
            all.count += count;
            all.used += *top_k as u64;
            all.largest = all.largest.max(bytes);
            let in_memory = bytes.saturating_mul(count);
            all.bytes = all.bytes.saturating_add(in_memory);
            if held[0].1.layout != Layout::Cached {
                all.held_bytes = all.held_bytes.saturating_add(in_memory);
            }
            all.stored = all.stored.saturating_add(stored.saturating_mul(count));
        }
        Ok(all)
    }
}
