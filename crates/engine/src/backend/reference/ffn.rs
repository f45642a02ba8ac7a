//! Feed-forward blocks.

use super::math::{add, gated, matrix_vector, sigmoid, softmax, softplus, top_k};
use super::{Reference, Row};
use lamella_program::OperandId;
use lamella_program::block::{Ffn, GatedUnit, Routed, Scoring, WeightRule};

impl Reference {
    pub(super) fn ffn(&self, ffn: &Ffn, x: &[f32], row: &Row<'_>) -> Vec<f32> {
        match ffn {
            Ffn::Dense(unit) => self.gated_unit(unit, 0, x),
            Ffn::Routed(routed) => self.routed(routed, x, row),
            _ => unreachable!("the closure check refuses ffn blocks without rules"),
        }
    }

    /// A gated unit, or item `item` of stacked ones.
    fn gated_unit(&self, unit: &GatedUnit, item: usize, x: &[f32]) -> Vec<f32> {
        let part = |id: OperandId, elements: usize| {
            &self.weight(id)[item * elements..(item + 1) * elements]
        };
        let size = unit.width * x.len();
        let gate = matrix_vector(part(unit.gate, size), x);
        let up = matrix_vector(part(unit.up, size), x);
        let inner: Vec<f32> = gate
            .iter()
            .zip(&up)
            .map(|(&g, &u)| gated(unit.activation, f64::from(g), f64::from(u)) as f32)
            .collect();
        let mut y = matrix_vector(part(unit.down, size), &inner);
        let mut factor = 1.0;
        if let Some(id) = unit.output_gate {
            factor *= sigmoid(f64::from(matrix_vector(self.weight(id), x)[0]));
        }
        if let Some(id) = unit.output_scale {
            factor *= f64::from(self.weight(id)[0]);
        }
        y.iter_mut()
            .for_each(|y| *y = (f64::from(*y) * factor) as f32);
        y
    }

    fn routed(&self, r: &Routed, x: &[f32], row: &Row<'_>) -> Vec<f32> {
        let (chosen, shared_weights) = self.route(r, x, row);
        let input = match &r.latent {
            Some(latent) => self.linear(&latent.down, x),
            None => x.to_vec(),
        };
        let mut sum = vec![0.0f64; input.len()];
        for (expert, weight) in chosen {
            for (sum, y) in sum.iter_mut().zip(self.gated_unit(&r.unit, expert, &input)) {
                *sum += weight * f64::from(y);
            }
        }
        let mut out: Vec<f32> = sum.into_iter().map(|v| v as f32).collect();
        if let Some(latent) = &r.latent {
            if let Some(norm) = &latent.norm {
                self.norm_parts(norm, out.len(), &mut out);
            }
            out = self.linear(&latent.up, &out);
        }
        for (unit, weight) in r.shared.iter().zip(shared_weights) {
            let mut y = self.gated_unit(unit, 0, x);
            y.iter_mut()
                .for_each(|y| *y = (f64::from(*y) * weight) as f32);
            add(&mut out, &y);
        }
        out
    }

    /// The chosen experts, ascending, with their weights, and the weights of the shared ones.
    fn route(&self, r: &Routed, x: &[f32], row: &Row<'_>) -> (Vec<(usize, f64)>, Vec<f64>) {
        let router = &r.router;
        let logits: Vec<f64> = matrix_vector(self.weight(router.weight), x)
            .into_iter()
            .map(f64::from)
            .collect();
        let score = |&l: &f64| match router.scoring {
            Scoring::Softmax => unreachable!("taken below"),
            Scoring::Sigmoid => sigmoid(l),
            Scoring::SqrtSoftplus => softplus(l).sqrt(),
        };
        let scores: Vec<f64> = match router.scoring {
            Scoring::Softmax => softmax(&logits[..r.experts]),
            _ => logits.iter().map(score).collect(),
        };
        let chosen = match router.hash_table {
            Some(table) => {
                let at = row.token() as usize * r.top_k;
                let mut ids: Vec<usize> = self.weight(table)[at..at + r.top_k]
                    .iter()
                    .map(|&id| id as usize)
                    .collect();
                ids.sort_unstable();
                ids
            }
            None => self.best_experts(r, &scores),
        };
        // A misreading that no program can say, for the test below.
        #[cfg(test)]
        let scores = match tests::BIAS_WEIGHS.get() {
            true => self.biased(r, scores),
            false => scores,
        };
        let sum: f64 = chosen.iter().map(|&e| scores[e]).sum();
        let shared = &scores[r.experts.min(scores.len())..];
        let (divisor, shared): (f64, Vec<f64>) = match router.weights {
            WeightRule::Raw => (1.0, vec![1.0; r.shared.len()]),
            WeightRule::Normalised { eps } => (sum + f64::from(eps), vec![1.0; r.shared.len()]),
            WeightRule::WithShared { .. } => (sum + shared.iter().sum::<f64>(), shared.to_vec()),
        };
        let mut factor = router.scale.map_or(1.0, f64::from);
        if let Some(id) = router.learned_scale {
            factor *= f64::from(self.weight(id)[0]);
        }
        let weighted = chosen
            .into_iter()
            .map(|e| (e, scores[e] / divisor * factor))
            .collect();
        let shared = match router.weights {
            WeightRule::WithShared { .. } => shared.iter().map(|s| s / divisor * factor).collect(),
            _ => shared,
        };
        (weighted, shared)
    }

    fn best_experts(&self, r: &Routed, scores: &[f64]) -> Vec<usize> {
        let mut biased = self.biased(r, scores[..r.experts].to_vec());
        if let Some(groups) = r.router.groups {
            let size = r.experts / groups.count;
            let two_best = |group: &[f64]| {
                let best = top_k(group, 2);
                best.iter().map(|&i| group[i]).sum::<f64>()
            };
            let strength: Vec<f64> = biased.chunks_exact(size).map(two_best).collect();
            let kept = top_k(&strength, groups.top_k);
            for (group, scores) in biased.chunks_exact_mut(size).enumerate() {
                if !kept.contains(&group) {
                    scores.fill(f64::NEG_INFINITY);
                }
            }
        }
        top_k(&biased, r.top_k)
    }

    /// Scores as they compete: with the selection bias, where there is one.
    fn biased(&self, r: &Routed, mut scores: Vec<f64>) -> Vec<f64> {
        if let Some(bias) = r.router.selection_bias {
            let pairs = scores.iter_mut().zip(self.weight(bias));
            pairs.for_each(|(score, &bias)| *score += f64::from(bias));
        }
        scores
    }
}

#[cfg(test)]
mod tests {
    use crate::{BackendKind, Cancel, Logits, Model, Options, Span};
    use std::cell::Cell;
    use std::path::Path;

    thread_local! {
        /// Whether chosen experts are weighed by scores with the selection bias.
        pub(super) static BIAS_WEIGHS: Cell<bool> = const { Cell::new(false) };
    }

    fn logits(model: &Model, ids: &[u32], bias_weighs: bool) -> Vec<f32> {
        let (mut session, mut out) = (model.session(), Vec::new());
        let span = Span {
            session: &mut session,
            tokens: ids,
            logits: Logits::All,
            out: &mut out,
        };
        BIAS_WEIGHS.set(bias_weighs);
        let step = model.step(&mut [span], &Cancel::new());
        BIAS_WEIGHS.set(false);
        step.expect("step");
        out
    }

    /// One more of the misreadings in `tests/mutations.rs`: a fixture on which a bias that weighs
    /// makes no difference would not show that it only chooses.
    #[test]
    fn a_selection_bias_that_weighs_shows_in_the_fixtures() {
        for fixture in [
            "glm-101",
            "glm-404",
            "deepseek_v4-101",
            "deepseek_v4-303",
            "kimi_k3-101",
            "kimi_k3-bf16-404",
            "inkling-101",
            "inkling-nvfp4-303",
        ] {
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
            let options = Options {
                backend: BackendKind::Reference,
                ..Options::default()
            };
            let model = Model::open(&fixtures.join(fixture), &options, &mut |_| {});
            let model = model.expect("it opens");
            let ids: Vec<u32> = (1..40).map(|i| i * 7 % 101).collect();
            let right = logits(&model, &ids, false);
            let wrong = logits(&model, &ids, true);
            let scale = right.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let pairs = right.iter().zip(&wrong);
            let error = pairs.fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / scale;
            println!("{fixture}: a bias that weighs is {error:e} off");
            assert!(error > 1e-3, "{fixture}: {error:e}");
        }
    }
}
