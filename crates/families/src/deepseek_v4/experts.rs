//! The mixtures of experts.

use super::Lowering;
use lamella_program::Role;
use lamella_program::block::{GatedActivation, GatedUnit, Routed, Router, Scoring, WeightRule};

/// What is added to the sum of the chosen scores; it only keeps a sum of zeros from dividing.
const SUM_EPS: f32 = 1e-20;

impl Lowering<'_> {
    /// The mixture of experts of the layer called `name` here and `tensor` in the checkpoint;
    /// `hashed` where token ids choose.
    pub(super) fn routed(&mut self, name: &str, tensor: &str, hashed: bool) -> Routed {
        let c = self.config;
        let e = &c.experts;
        let gate = format!("{tensor}.ffn.gate");
        let weight = self.table.matrix(
            &format!("{name}.router"),
            Role::Router,
            self.spelling.of_vendor(&format!("{gate}.weight")),
            [e.count, c.hidden],
        );
        let spelling = self.spelling;
        let operands = &mut self.table.operands;
        let hash_table = hashed.then(|| {
            operands.matrix(
                &format!("{name}.router.table"),
                Role::Table,
                spelling.of_vendor(&format!("{gate}.tid2eid")),
                [c.vocabulary, e.top_k],
            )
        });
        let selection_bias = (!hashed).then(|| {
            let name = format!("{name}.router.selection_bias");
            let bias = spelling.of_vendor(&format!("{gate}.bias"));
            operands.vector(&name, bias, e.count)
        });
        let unit = self.experts(&format!("{name}.experts"), &format!("{tensor}.ffn.experts"));
        let activation = GatedActivation::ClampedSilu { limit: e.limit };
        let shared = self.shared(name, tensor);
        Routed {
            router: Router {
                weight,
                scoring: Scoring::SqrtSoftplus,
                selection_bias,
                groups: None,
                hash_table,
                weights: WeightRule::Normalised { eps: SUM_EPS },
                scale: (e.scale != 1.0).then_some(e.scale),
                learned_scale: None,
            },
            experts: e.count,
            top_k: e.top_k,
            unit: GatedUnit { activation, ..unit },
            shared: vec![GatedUnit {
                activation,
                ..shared
            }],
            latent: None,
        }
    }

    /// The routed experts that the vendor keeps under `vendor`.
    fn experts(&mut self, name: &str, vendor: &str) -> GatedUnit {
        let e = &self.config.experts;
        let shape = [e.count, e.width, self.config.hidden];
        let tensor = self.spelling.of_vendor(vendor);
        if tensor != vendor {
            return self.table.experts(name, &tensor, shape);
        }
        let source = |expert: usize, matrix: &str| format!("{vendor}.{expert}.{matrix}.weight");
        self.table.numbered_experts(name, source, shape)
    }

    /// The unit that every token visits.
    fn shared(&mut self, name: &str, tensor: &str) -> GatedUnit {
        let c = self.config;
        let (width, spelling) = (c.experts.width, self.spelling);
        let mut matrix = |end: &str, source: &str, shape| {
            self.table.matrix(
                &format!("{name}.shared.{end}"),
                Role::Linear,
                spelling.of_vendor(&format!("{tensor}.ffn.shared_experts.{source}.weight")),
                shape,
            )
        };
        GatedUnit {
            gate: matrix("gate", "w1", [width, c.hidden]),
            up: matrix("up", "w3", [width, c.hidden]),
            down: matrix("down", "w2", [c.hidden, width]),
            width,
            activation: GatedActivation::Silu,
            output_gate: None,
            output_scale: None,
        }
    }
}
