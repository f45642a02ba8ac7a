//! Feed-forward blocks: dense units, and mixtures of experts with the rows of a piece united by
//! expert.

use super::work::{Routes, Work};
use super::{Core, rows};
use crate::cancel::Cancel;
use crate::error::Error;
use lamella_kernels::{Epilogue, Input, QuantisedRows, Rows, SharedRows};
use lamella_program::block::{GatedUnit, LatentExperts, Routed, RouterGroups, Scoring, WeightRule};
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
    /// `output += down(act(gate x, up x))`.
    pub(super) fn dense(&self, unit: &GatedUnit, work: &mut Work) {
        let all = Plain {
            weights: None,
            through: unit.output_gate.is_some() || unit.output_scale.is_some(),
        };
        self.unit(unit, &all, work);
    }

    /// A unit that every row visits, weighted as `plain` says.
    fn unit(&self, unit: &GatedUnit, plain: &Plain, work: &mut Work) {
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
            direct,
            shared,
            routes,
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
        let out = if *direct { hidden } else { branch };
        let out = &mut out[..count * width];
        let (target, epilogue) = if plain.through {
            (SharedRows::new(shared, width, width), Epilogue::Store)
        } else {
            (SharedRows::new(out, width, width), Epilogue::Add)
        };
        self.over_blocks(down.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&down, blocks, input, rows, &target, rows, epilogue);
            }
        });
        if plain.through {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let x = &normed[row * width..][..width];
                let mut factor = plain
                    .weights
                    .map_or(1.0, |(stride, at)| routes.scores[row * stride + at]);
                factor *= self.output_factor(unit, x);
                self.kernels
                    .add_scaled(out, factor, &shared[row * width..][..width]);
            }
        }
    }

    /// Gate and scale of a unit's output for the input `x`.
    fn output_factor(&self, unit: &GatedUnit, x: &[f32]) -> f32 {
        let mut factor = 1.0;
        if let Some(id) = unit.output_gate {
            factor *= lamella_kernels::sigmoid(self.kernels.dot(self.vector(id), x));
        }
        if let Some(id) = unit.output_scale {
            factor *= self.vector(id)[0];
        }
        factor
    }

    /// `output += sum over chosen experts, ascending, of weight * expert(x)`, then the shared
    /// experts. Each expert that any row chose is applied once, to all rows that chose it.
    pub(super) fn routed(
        &self,
        routed: &Routed,
        work: &mut Work,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        self.route(routed, work);
        cancel.check()?;
        match &routed.latent {
            None => self.experts(routed, work, cancel)?,
            Some(latent) => self.latent_experts(routed, latent, work, cancel)?,
        }
        let stride = self.program.operand(routed.router.weight).rows();
        let weighted = matches!(routed.router.weights, WeightRule::WithShared { .. });
        for (i, unit) in routed.shared.iter().enumerate() {
            cancel.check()?;
            let plain = Plain {
                weights: weighted.then_some((stride, routed.experts + i)),
                through: weighted || unit.output_gate.is_some() || unit.output_scale.is_some(),
            };
            self.unit(unit, &plain, work);
        }
        cancel.check()
    }

    /// Experts that work at another width: into it, through them, back.
    fn latent_experts(
        &self,
        routed: &Routed,
        latent: &LatentExperts,
        work: &mut Work,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let (count, width) = (work.rows(), self.program.dims.hidden);
        let inner = self.program.operand(latent.down.weight).rows();
        let x = &work.normed[..count * width];
        let out = &mut work.latent[..count * inner];
        self.project(&latent.down, x, &mut work.quantised, out, Epilogue::Store);
        work.latent_out[..count * inner].fill(0.0);
        self.experts(routed, work, cancel)?;
        let Work {
            latent_out,
            quantised,
            hidden,
            branch,
            direct,
            ..
        } = work;
        let sum = &mut latent_out[..count * inner];
        if let Some(norm) = &latent.norm {
            let weight = self.norm_weight(norm);
            for row in sum.chunks_exact_mut(inner) {
                self.kernels.rms_norm_in_place(row, weight, norm.eps);
            }
        }
        let out = if *direct { hidden } else { branch };
        let out = &mut out[..count * width];
        self.project(&latent.up, sum, quantised, out, Epilogue::Add);
        Ok(())
    }

    /// The routed experts of every row, added to the block's output, or to `work.latent_out` where
    /// they work at another width.
    fn experts(&self, routed: &Routed, work: &mut Work, cancel: &Cancel) -> Result<(), Error> {
        let count = work.rows();
        let Work {
            normed,
            latent,
            latent_out,
            quantised,
            quantised_gathered,
            inner,
            quantised_inner,
            routes,
            hidden,
            branch,
            direct,
            ..
        } = work;
        let gate = self.weights[routed.unit.gate.index()].matrix(0);
        let width = gate.cols;
        let x = match routed.latent {
            Some(_) => &latent[..count * width],
            None => &normed[..count * width],
        };
        self.quantise_for(&[gate.encoding], x, width, quantised);
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
        let input = rows::input(gate.encoding, x, width, source);
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
        let out = match (&routed.latent, *direct) {
            (Some(_), _) => latent_out,
            (None, true) => hidden,
            (None, false) => branch,
        };
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
        let router = &routed.router;
        let matrix = self.weights[router.weight.index()].matrix(0);
        let logits = matrix.rows;
        let Work {
            normed,
            routes,
            tokens,
            ..
        } = work;
        let input = Input::F32 {
            x: &normed[..count * width],
            stride: width,
        };
        let scores = SharedRows::new(&mut routes.scores[..count * logits], logits, logits);
        let rows = Rows::First(count);
        self.over_blocks(matrix.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&matrix, blocks, input, rows, &scores, rows, Epilogue::Store);
            }
        });
        let learned = router.learned_scale.map_or(1.0, |id| self.vector(id)[0]);
        let choice = Choice {
            routed,
            bias: router.selection_bias.map(|id| self.vector(id)),
            factor: router.scale.unwrap_or(1.0) * learned,
        };
        let table = router.hash_table.map(|id| self.vector(id));
        let Routes {
            scores,
            biased,
            chosen,
            ..
        } = routes;
        let chosen = chosen[..count * routed.top_k].chunks_exact_mut(routed.top_k);
        let scores = scores[..count * logits].chunks_exact_mut(logits);
        for (row, (chosen, scores)) in chosen.zip(scores).enumerate() {
            match router.scoring {
                Scoring::Softmax => self.kernels.softmax(&mut scores[..routed.experts]),
                Scoring::Sigmoid => self.kernels.sigmoid(scores),
                Scoring::SqrtSoftplus => self.kernels.sqrt_softplus(scores),
            }
            match table {
                Some(table) => {
                    let at = tokens[row] as usize * routed.top_k;
                    choice.look_up(&table[at..at + routed.top_k], chosen);
                }
                None => choice.best(scores, &mut biased[..routed.experts], chosen),
            }
            choice.weigh(scores, chosen);
        }
        routes.group(count, routed.top_k, routed.experts);
    }
}

/// How a unit that every row visits joins the output.
struct Plain {
    /// Where in the scores of a row its weight is: distance of rows, place in the row.
    weights: Option<(usize, usize)>,
    /// Whether its output has a factor, and takes a buffer of its own.
    through: bool,
}

/// The choice of experts for one row.
struct Choice<'a> {
    routed: &'a Routed,
    bias: Option<&'a [f32]>,
    /// Multiplier of the final weights.
    factor: f32,
}

impl Choice<'_> {
    /// The experts that the token's id stands for, ascending.
    fn look_up(&self, ids: &[f32], chosen: &mut [(u32, f32)]) {
        let last = self.routed.experts as u32 - 1;
        for (slot, &id) in chosen.iter_mut().zip(ids) {
            // The reader has refused tables with ids out of range; a damaged page must not panic.
            *slot = ((id as u32).min(last), 0.0);
        }
        chosen.sort_unstable_by_key(|&(expert, _)| expert);
    }

    /// The `chosen.len()` experts with the largest biased scores, the lower index first on ties,
    /// in ascending order.
    fn best(&self, scores: &[f32], biased: &mut [f32], chosen: &mut [(u32, f32)]) {
        biased.copy_from_slice(&scores[..biased.len()]);
        if let Some(bias) = self.bias {
            biased.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        }
        if let Some(groups) = self.routed.router.groups {
            keep_groups(groups, biased);
        }
        for slot in chosen.iter_mut() {
            let mut best = 0;
            for (expert, &score) in biased.iter().enumerate() {
                // Scores are finite, or NaN where the stream is damaged; then experts 0, 1, … are
                // taken, and the damage is reported after the layer.
                if score > biased[best] || (biased[best] == f32::NEG_INFINITY) {
                    best = expert;
                }
            }
            *slot = (best as u32, 0.0);
            biased[best] = f32::NEG_INFINITY;
        }
        chosen.sort_unstable_by_key(|&(expert, _)| expert);
    }

    /// Mixing weights of the chosen experts; where the shared experts take part, theirs replace
    /// their scores.
    fn weigh(&self, scores: &mut [f32], chosen: &mut [(u32, f32)]) {
        let router = &self.routed.router;
        for (expert, weight) in chosen.iter_mut() {
            *weight = scores[*expert as usize];
        }
        let sum = || chosen.iter().map(|&(_, score)| score).sum::<f32>();
        let divisor = match router.weights {
            WeightRule::Raw => None,
            WeightRule::Normalised { eps } => Some(sum() + eps),
            WeightRule::WithShared { .. } => {
                let shared = &scores[self.routed.experts..];
                Some(sum() + shared.iter().sum::<f32>())
            }
        };
        let finish = |weight: &mut f32| {
            if let Some(divisor) = divisor {
                *weight /= divisor;
            }
            *weight *= self.factor;
        };
        chosen.iter_mut().for_each(|(_, weight)| finish(weight));
        if matches!(router.weights, WeightRule::WithShared { .. }) {
            scores[self.routed.experts..].iter_mut().for_each(finish);
        }
    }
}

/// Takes the experts of all but the best groups out of the choice. A group is as good as the sum
/// of its two best experts.
fn keep_groups(groups: RouterGroups, scores: &mut [f32]) {
    let size = scores.len() / groups.count;
    let strength = |group: &[f32]| {
        let mut two = [f32::NEG_INFINITY; 2];
        for &score in group {
            if score > two[0] {
                two = [score, two[0]];
            } else if score > two[1] {
                two[1] = score;
            }
        }
        if size == 1 { two[0] } else { two[0] + two[1] }
    };
    // A group stays if fewer than `top_k` beat it; the lower one wins a tie. Few groups: no sort.
    let mut kept = 0u64;
    for group in 0..groups.count {
        let own = strength(&scores[group * size..][..size]);
        let better = (0..groups.count)
            .filter(|&other| {
                let theirs = strength(&scores[other * size..][..size]);
                theirs > own || (theirs == own && other < group)
            })
            .count();
        kept |= u64::from(better < groups.top_k) << group;
    }
    for (group, scores) in scores.chunks_exact_mut(size).enumerate() {
        if kept >> group & 1 == 0 {
            scores.fill(f32::NEG_INFINITY);
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
    use lamella_program::block::{GatedActivation, Router};

    fn routed(weights: WeightRule, scale: Option<f32>, groups: Option<RouterGroups>) -> Routed {
        let id = OperandId(0);
        Routed {
            router: Router {
                weight: id,
                scoring: Scoring::Softmax,
                selection_bias: None,
                groups,
                hash_table: None,
                weights,
                scale,
                learned_scale: None,
            },
            experts: 4,
            top_k: 2,
            unit: GatedUnit {
                gate: id,
                up: id,
                down: id,
                width: 1,
                activation: GatedActivation::Silu,
                output_gate: None,
                output_scale: None,
            },
            shared: Vec::new(),
            latent: None,
        }
    }

    fn choose<const K: usize>(
        routed: &Routed,
        bias: Option<&[f32]>,
        scores: &mut [f32],
    ) -> [(u32, f32); K] {
        let choice = Choice {
            routed,
            bias,
            factor: routed.router.scale.unwrap_or(1.0),
        };
        let mut chosen = [(0, 0.0); K];
        choice.best(scores, &mut [0.0; 4], &mut chosen);
        choice.weigh(scores, &mut chosen);
        chosen
    }

    #[test]
    fn the_largest_scores_are_chosen_lower_index_first() {
        let scores = [0.25, 0.3, 0.2, 0.25];
        let raw = routed(WeightRule::Raw, None, None);
        assert_eq!(
            choose(&raw, None, &mut scores.clone()),
            [(0, 0.25), (1, 0.3)]
        );
        let rule = routed(WeightRule::Normalised { eps: 0.0 }, Some(2.0), None);
        let mut scores = [0.25, 0.25, 0.5, 0.0];
        assert_eq!(
            choose(&rule, None, &mut scores),
            [(0, 0.25 / 0.75 * 2.0), (2, 0.5 / 0.75 * 2.0)]
        );
    }

    #[test]
    fn a_bias_moves_the_choice_and_not_the_weights() {
        let raw = routed(WeightRule::Raw, None, None);
        let bias = [0.0, -1.0, 1.0, 0.0];
        let mut scores = [0.25, 0.3, 0.2, 0.25];
        assert_eq!(
            choose(&raw, Some(&bias), &mut scores),
            [(0, 0.25), (2, 0.2)]
        );
    }

    #[test]
    fn only_the_best_groups_compete() {
        let groups = RouterGroups { count: 2, top_k: 1 };
        let raw = routed(WeightRule::Raw, None, Some(groups));
        let mut scores = [0.9, 0.0, 0.5, 0.6];
        assert_eq!(choose(&raw, None, &mut scores), [(2, 0.5), (3, 0.6)]);
    }

    #[test]
    fn shared_experts_share_the_denominator() {
        let rule = routed(WeightRule::WithShared { shared: 1 }, Some(8.0), None);
        let mut scores = [0.25, 0.5, 0.0, 0.0, 0.25];
        assert_eq!(choose(&rule, None, &mut scores), [(0, 2.0), (1, 4.0)]);
        assert_eq!(scores[4], 2.0);
    }

    #[test]
    fn damaged_scores_still_choose_distinct_experts() {
        let raw = routed(WeightRule::Raw, None, None);
        let chosen: [(u32, f32); 3] = choose(&raw, None, &mut [f32::NAN; 4]);
        assert_eq!(chosen.map(|c| c.0), [0, 1, 2]);
    }

    #[test]
    fn rows_are_grouped_by_expert() {
        let mut routes = Routes {
            scores: Vec::new(),
            biased: Vec::new(),
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
