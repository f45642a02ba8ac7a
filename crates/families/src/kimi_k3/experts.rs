//! The feed-forward blocks.

use super::{Lowering, PACKED, SCALE};
use lamella_program::Role;
use lamella_program::block::{GatedUnit, LatentExperts, Routed, Router, Scoring, WeightRule};

/// What is added to the sum of the chosen scores.
const SUM_EPS: f32 = 1e-20;

impl Lowering<'_> {
    /// The unit of a layer without experts.
    pub(super) fn dense(&mut self, name: &str, tensor: &str) -> GatedUnit {
        let tensor = format!("{}{tensor}.mlp", self.prefix);
        self.unit(&format!("{name}.dense"), &tensor, self.config.dense_width)
    }

    /// The mixture of experts of a layer.
    pub(super) fn routed(&mut self, name: &str, tensor: &str) -> Routed {
        let c = self.config;
        let e = &c.experts;
        let block = format!("{tensor}.block_sparse_moe");
        let tensor = format!("{}{block}", self.prefix);
        let router = self.table.matrix(
            &format!("{name}.router"),
            Role::Router,
            format!("{tensor}.gate.weight"),
            [e.count, c.hidden],
        );
        let bias = self.table.operands.vector(
            &format!("{name}.router.selection_bias"),
            format!("{tensor}.gate.e_score_correction_bias"),
            e.count,
        );
        let shared = (e.shared_width > 0).then(|| {
            let tensor = format!("{tensor}.shared_experts");
            self.unit(&format!("{name}.shared"), &tensor, e.shared_width)
        });
        Routed {
            router: Router {
                weight: router,
                scoring: Scoring::Sigmoid,
                selection_bias: Some(bias),
                groups: None,
                hash_table: None,
                weights: if e.renormalise {
                    WeightRule::Normalised { eps: SUM_EPS }
                } else {
                    WeightRule::Raw
                },
                scale: (e.scale != 1.0).then_some(e.scale),
                learned_scale: None,
            },
            experts: e.count,
            top_k: e.top_k,
            unit: self.experts(name, &tensor),
            shared: shared.into_iter().collect(),
            latent: Some(self.latent_experts(name, &block)),
        }
    }

    /// The maps into and out of the width the experts work at.
    fn latent_experts(&mut self, name: &str, block: &str) -> LatentExperts {
        let c = self.config;
        let e = &c.experts;
        let tensor = format!("{}{block}", self.prefix);
        let mut linear = |end: &str, source: &str, shape| {
            let source = format!("{tensor}.{source}.weight");
            self.table
                .linear(&format!("{name}.experts.{end}"), source, shape)
        };
        let down = linear(
            "latent_down",
            "routed_expert_down_proj",
            [e.latent, c.hidden],
        );
        let up = linear("latent_up", "routed_expert_up_proj", [c.hidden, e.latent]);
        let norm = e.latent_norm.then(|| {
            let source = format!("{block}.routed_expert_norm");
            self.norm(
                &format!("{name}.experts.latent_norm"),
                &source,
                e.latent,
                c.eps,
            )
        });
        LatentExperts { down, norm, up }
    }

    fn unit(&mut self, name: &str, tensor: &str, width: usize) -> GatedUnit {
        let c = self.config;
        GatedUnit {
            activation: c.activation,
            ..self.table.unit(name, tensor, [width, c.hidden])
        }
    }

    fn experts(&mut self, name: &str, tensor: &str) -> GatedUnit {
        let c = self.config;
        let e = &c.experts;
        let sources = self.table.sources;
        // Each matrix is in codes or is not; of one that is not there at all, its neighbours tell.
        let packed_layer = sources.has(&format!("{tensor}.experts.0.w1.{PACKED}"))
            || sources.has(&format!("{tensor}.experts.0.w2.{PACKED}"));
        let source = |expert: usize, matrix: &str| {
            let base = format!("{tensor}.experts.{expert}.{matrix}");
            let packed = format!("{base}.{PACKED}");
            let plain = format!("{base}.weight");
            let meant = || packed_layer || sources.has(&format!("{base}.{SCALE}"));
            match sources.has(&packed) || !sources.has(&plain) && meant() {
                true => packed,
                false => plain,
            }
        };
        let shape = [e.count, e.width, e.latent];
        GatedUnit {
            activation: c.activation,
            ..self
                .table
                .numbered_experts(&format!("{name}.experts"), source, shape)
        }
    }
}
