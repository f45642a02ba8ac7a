//! The choice of experts, row by row.

use super::Core;
use super::work::{Routes, Work};
use lamella_kernels::{Epilogue, Input, Rows, SharedRows};
use lamella_program::block::{Routed, RouterGroups, Scoring, WeightRule};

impl Core {
    /// Scores the experts for every row, chooses, and groups the rows by expert.
    pub(super) fn route(&self, routed: &Routed, work: &mut Work) {
        let inputs = work.rows() * self.program.dims.hidden;
        let x = &work.normed[..inputs];
        self.choose(routed, x, &work.tokens, &mut work.routes);
    }

    /// [`route`](Self::route) for the rows `x`; `tokens` has the ids of their tokens where the
    /// router looks them up.
    pub(super) fn choose(&self, routed: &Routed, x: &[f32], tokens: &[u32], routes: &mut Routes) {
        let width = self.program.dims.hidden;
        let count = x.len() / width;
        let router = &routed.router;
        let matrix = self.weights[router.weight.index()].matrix(0);
        let logits = matrix.rows;
        let input = Input::F32 { x, stride: width };
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
        for (slot, &id) in chosen.iter_mut().zip(ids) {
            // Opening has refused tables that name other experts than there are.
            *slot = (id as u32, 0.0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use lamella_program::OperandId;
    use lamella_program::block::{GatedActivation, GatedUnit, Router};

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
}
