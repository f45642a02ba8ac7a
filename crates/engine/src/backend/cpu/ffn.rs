//! Feed-forward blocks: dense units, and mixtures of experts with the rows of a piece united by
//! expert.

use super::work::{Routes, Work};
use super::{Core, rows};
use crate::cancel::Cancel;
use crate::error::Error;
use lamella_kernels::{Epilogue, Input, QuantisedRows, Rows, SharedRows};
use lamella_program::block::{GatedUnit, Routed, Router, WeightRule};
use std::ops::Range;

/// Rows of a piece from which the inputs of experts are gathered.
const GATHER_ROWS: usize = 32;

/// The products of all chosen experts with the rows that chose them.
struct Products<'a> {
    routes: &'a Routes,
    input: Input<'a>,
    /// Whether the input has a row for each (expert, row) pair, in their order.
    gathered: bool,
    target: &'a SharedRows<'a>,
}

impl Core {
    /// `stream += down(silu(gate x) * up x)`.
    pub(super) fn dense(&self, unit: &GatedUnit, work: &mut Work) {
        let count = work.rows();
        let width = self.program.dims.hidden;
        let [gate, up, down] =
            [unit.gate, unit.up, unit.down].map(|id| self.weights[id.index()].matrix(0));
        let Work {
            normed,
            quantised,
            inner,
            quantised_inner,
            hidden,
            branch,
            ..
        } = work;
        let normed = &normed[..count * width];
        self.quantise_for(&[gate.encoding], normed, width, quantised);
        let input = rows::input(gate.encoding, normed, width, quantised);
        let rows = Rows::First(count);
        let inner = &mut inner[..count * unit.width];
        let target = SharedRows::new(inner, unit.width, unit.width);
        let act = unit.activation;
        self.over_blocks(gate.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .gated(&gate, &up, blocks, input, rows, &target, act);
            }
        });
        self.quantise_for(&[down.encoding], inner, unit.width, quantised_inner);
        let input = rows::input(down.encoding, inner, unit.width, quantised_inner);
        let out = if branch.is_empty() { hidden } else { branch };
        let target = SharedRows::new(&mut out[..count * width], width, width);
        self.over_blocks(down.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&down, blocks, input, rows, &target, rows, Epilogue::Add);
            }
        });
    }

    /// `stream += sum over chosen experts, ascending, of weight * expert(x)`. Each expert that any
    /// row chose is applied once, to all rows that chose it.
    pub(super) fn routed(
        &self,
        routed: &Routed,
        work: &mut Work,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        self.route(routed, work);
        cancel.check()?;
        let count = work.rows();
        let width = self.program.dims.hidden;
        let Work {
            normed,
            quantised,
            quantised_gathered,
            inner,
            quantised_inner,
            routes,
            hidden,
            branch,
            ..
        } = work;
        let gate = self.weights[routed.unit.gate.index()].matrix(0);
        let normed = &normed[..count * width];
        self.quantise_for(&[gate.encoding], normed, width, quantised);
        // Many rows of an expert run fastest when they lie together.
        let gathered = gate.encoding.is_compiled() && count >= GATHER_ROWS;
        if gathered {
            self.gather(
                routes.taken(count * routed.top_k),
                quantised,
                quantised_gathered,
            );
        }
        let source = if gathered {
            &*quantised_gathered
        } else {
            &*quantised
        };
        let input = rows::input(gate.encoding, normed, width, source);
        let inner_width = routed.unit.width;
        let inner = &mut inner[..count * routed.top_k * inner_width];
        let target = SharedRows::new(inner, inner_width, inner_width);
        let products = Products {
            routes,
            input,
            gathered,
            target: &target,
        };
        self.expert_inner(routed, &products, cancel);
        cancel.check()?;
        let down = self.weights[routed.unit.down.index()].matrix(0);
        self.quantise_for(&[down.encoding], inner, inner_width, quantised_inner);
        let input = rows::input(down.encoding, inner, inner_width, quantised_inner);
        let out = if branch.is_empty() { hidden } else { branch };
        let target = SharedRows::new(&mut out[..count * width], width, width);
        self.expert_outer(routed, routes, input, &target, cancel);
        cancel.check()
    }

    /// Copies the quantised rows of every (expert, row) pair, expert by expert.
    fn gather(&self, rows: &[u32], from: &QuantisedRows, out: &mut QuantisedRows) {
        let width = from.cols();
        out.reset(rows.len(), width);
        let writer = out.writer();
        self.over_rows(rows.len(), width, &|entry| {
            // SAFETY: each entry is one task's.
            unsafe { writer.copy_row(entry, from, rows[entry] as usize) };
        });
    }

    /// Inner values of every (expert, row) pair.
    fn expert_inner(&self, routed: &Routed, products: &Products<'_>, cancel: &Cancel) {
        let Products {
            routes,
            input,
            gathered,
            target,
        } = *products;
        let (gate, up) = (
            &self.weights[routed.unit.gate.index()],
            &self.weights[routed.unit.up.index()],
        );
        let blocks = gate.matrix(0).blocks();
        let chunk = self
            .block_chunk(blocks * routes.active.len(), target.rows() / routed.top_k)
            .min(blocks);
        let chunks = blocks.div_ceil(chunk);
        let act = routed.unit.activation;
        self.pool.run(chunks * routes.active.len(), &|task, _| {
            if cancel.is_cancelled() {
                return;
            }
            let expert = routes.active[task / chunks] as usize;
            let entries = routes.entries(expert);
            let first = task % chunks * chunk;
            let range = first..blocks.min(first + chunk);
            let rows = if gathered {
                &routes.identity
            } else {
                &routes.rows
            };
            let rows = Rows::At(&rows[entries.clone()]);
            let target = target.from_row(entries.start);
            let (gate, up) = (gate.matrix(expert), up.matrix(expert));
            // SAFETY: each task writes the columns of its own blocks in its expert's rows.
            unsafe {
                self.kernels
                    .gated(&gate, &up, range, input, rows, &target, act);
            }
        });
    }

    /// Adds every expert's output to the rows that chose it. A task owns output columns and takes
    /// all experts in ascending order, so that the order of a row's sum is fixed.
    fn expert_outer(
        &self,
        routed: &Routed,
        routes: &Routes,
        input: Input<'_>,
        target: &SharedRows<'_>,
        cancel: &Cancel,
    ) {
        let down = &self.weights[routed.unit.down.index()];
        self.over_blocks(down.matrix(0).blocks(), target.rows(), &|blocks| {
            for &expert in &routes.active {
                if cancel.is_cancelled() {
                    return;
                }
                let entries = routes.entries(expert as usize);
                let weights = Epilogue::AddScaled(&routes.weights[entries.clone()]);
                let from = Rows::At(&routes.identity[entries.clone()]);
                let to = Rows::At(&routes.rows[entries]);
                let matrix = down.matrix(expert as usize);
                // SAFETY: each task writes the columns of its own blocks.
                unsafe {
                    let blocks = blocks.clone();
                    self.kernels
                        .matmul(&matrix, blocks, input, from, target, to, weights);
                }
            }
        });
    }

    /// Scores the experts for every row, chooses, and groups the rows by expert.
    fn route(&self, routed: &Routed, work: &mut Work) {
        let count = work.rows();
        let width = self.program.dims.hidden;
        let experts = routed.experts;
        let matrix = self.weights[routed.router.weight.index()].matrix(0);
        let Work { normed, routes, .. } = work;
        let input = Input::F32 {
            x: &normed[..count * width],
            stride: width,
        };
        let scores = SharedRows::new(&mut routes.scores[..count * experts], experts, experts);
        let rows = Rows::First(count);
        self.over_blocks(matrix.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&matrix, blocks, input, rows, &scores, rows, Epilogue::Store);
            }
        });
        let chosen = &mut routes.chosen[..count * routed.top_k];
        let scores = &mut routes.scores[..count * experts];
        for (row, chosen) in chosen.chunks_exact_mut(routed.top_k).enumerate() {
            let scores = &mut scores[row * experts..(row + 1) * experts];
            self.kernels.softmax(scores);
            choose(&routed.router, scores, chosen);
        }
        routes.group(count, routed.top_k, experts);
    }
}

/// The `chosen.len()` experts with the largest scores, the lower index first on ties, in ascending
/// order, with their mixing weights. Uses up `scores`.
fn choose(router: &Router, scores: &mut [f32], chosen: &mut [(u32, f32)]) {
    for slot in chosen.iter_mut() {
        let mut best = 0;
        for (expert, &score) in scores.iter().enumerate() {
            // Scores are probabilities, or all NaN where the stream is damaged; then experts
            // 0, 1, … are taken, and the damage is reported after the layer.
            if score > scores[best] || (scores[best] == f32::NEG_INFINITY) {
                best = expert;
            }
        }
        *slot = (best as u32, scores[best]);
        scores[best] = f32::NEG_INFINITY;
    }
    chosen.sort_unstable_by_key(|&(expert, _)| expert);
    let divisor = match router.weights {
        WeightRule::Raw => None,
        WeightRule::Normalised { eps } => {
            Some(chosen.iter().map(|&(_, score)| score).sum::<f32>() + eps)
        }
        WeightRule::WithShared { .. } => {
            unreachable!("the closure check refuses this weight rule")
        }
    };
    for (_, weight) in chosen.iter_mut() {
        if let Some(divisor) = divisor {
            *weight /= divisor;
        }
        if let Some(scale) = router.scale {
            *weight *= scale;
        }
    }
}

impl Routes {
    /// Entries of `expert` in `rows` and `weights`.
    fn entries(&self, expert: usize) -> Range<usize> {
        self.offsets[expert] as usize..self.offsets[expert + 1] as usize
    }

    /// Rows of the first `entries` entries, expert by expert.
    fn taken(&self, entries: usize) -> &[u32] {
        &self.rows[..entries]
    }

    /// Counting sort of the chosen (row, expert) pairs by expert; rows stay in order.
    fn group(&mut self, count: usize, top_k: usize, experts: usize) {
        let chosen = &self.chosen[..count * top_k];
        let offsets = &mut self.offsets[..=experts];
        offsets.fill(0);
        for &(expert, _) in chosen {
            offsets[expert as usize + 1] += 1;
        }
        self.active.clear();
        for expert in 0..experts {
            if offsets[expert + 1] > 0 {
                self.active.push(expert as u32);
            }
            offsets[expert + 1] += offsets[expert];
        }
        // `offsets[e]` is the next free entry of `e` while filling, and its end afterwards.
        for (index, &(expert, weight)) in chosen.iter().enumerate() {
            let entry = &mut offsets[expert as usize];
            self.rows[*entry as usize] = (index / top_k) as u32;
            self.weights[*entry as usize] = weight;
            *entry += 1;
        }
        offsets.copy_within(0..experts, 1);
        offsets[0] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamella_program::OperandId;
    use lamella_program::block::Scoring;

    fn router(weights: WeightRule, scale: Option<f32>) -> Router {
        Router {
            weight: OperandId(0),
            scoring: Scoring::Softmax,
            selection_bias: None,
            groups: None,
            hash_table: None,
            weights,
            scale,
            learned_scale: None,
        }
    }

    #[test]
    fn the_largest_scores_are_chosen_lower_index_first() {
        let mut chosen = [(0, 0.0); 2];
        choose(
            &router(WeightRule::Raw, None),
            &mut [0.25, 0.3, 0.2, 0.25],
            &mut chosen,
        );
        assert_eq!(chosen, [(0, 0.25), (1, 0.3)]);
        let rule = router(WeightRule::Normalised { eps: 0.0 }, Some(2.0));
        choose(&rule, &mut [0.25, 0.25, 0.5], &mut chosen);
        assert_eq!(chosen, [(0, 0.25 / 0.75 * 2.0), (2, 0.5 / 0.75 * 2.0)]);
    }

    #[test]
    fn damaged_scores_still_choose_distinct_experts() {
        let mut chosen = [(0, 0.0); 3];
        choose(
            &router(WeightRule::Raw, None),
            &mut [f32::NAN; 4],
            &mut chosen,
        );
        assert_eq!(chosen.map(|c| c.0), [0, 1, 2]);
    }

    #[test]
    fn rows_are_grouped_by_expert() {
        let mut routes = Routes {
            scores: Vec::new(),
            chosen: vec![(1, 0.1), (3, 0.3), (0, 0.5), (1, 0.7), (1, 0.2), (3, 0.4)],
            offsets: vec![0; 5],
            rows: vec![0; 6],
            weights: vec![0.0; 6],
            active: Vec::new(),
            identity: Vec::new(),
        };
        routes.group(3, 2, 4);
        assert_eq!(routes.active, [0, 1, 3]);
        assert_eq!(routes.offsets, [0, 1, 4, 4, 6]);
        assert_eq!(routes.rows, [1, 0, 1, 2, 0, 2]);
        assert_eq!(routes.weights, [0.5, 0.1, 0.7, 0.2, 0.3, 0.4]);
    }
}
