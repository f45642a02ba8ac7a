//! The two kinds of sequence mixing.

use super::Lowering;
use lamella_program::block::{Activation, DeltaNet, LatentAttention, ShortConvolution};
use lamella_program::{Role, Slice};

/// Eps of the two norms of latent attention: the published code builds them with its default and
/// not with the configured one.
const LATENT_EPS: f32 = 1e-6;

impl Lowering<'_> {
    /// Kimi delta attention of the layer called `name`, tensors under `tensor`.
    pub(super) fn delta(&mut self, name: &str, tensor: &str) -> DeltaNet {
        let c = self.config;
        let d = &c.delta;
        let channels = d.heads * d.head_dim;
        let prefix = format!("{}{tensor}.self_attn", self.prefix);
        let convolutions = [("query", "q"), ("key", "k"), ("value", "v")].map(|(end, source)| {
            let shape = [channels, 1, d.taps];
            let kernel = Slice::whole(format!("{prefix}.{source}_conv1d.weight"), &shape);
            let name = format!("{name}.delta.{end}_convolution");
            let parts = vec![vec![kernel]];
            ShortConvolution {
                weight: self
                    .table
                    .operands
                    .parts(&name, Role::Kernel, &shape, parts),
                taps: d.taps,
                dilation: 1,
                residual: false,
                activation: Some(Activation::Silu),
            }
        });
        let decay_log = format!("{prefix}.A_log");
        let decay_log_len = self.decay_log_len(&decay_log);
        let operands = &mut self.table.operands;
        let mut vector = |end: &str, tensor: String, len| {
            operands.vector(&format!("{name}.delta.{end}"), tensor, len)
        };
        let decay_log = vector("decay_log", decay_log, decay_log_len);
        let decay_bias = vector("decay_bias", format!("{prefix}.dt_bias"), channels);
        let mut linear = |end: &str, source: &str, shape| {
            let source = format!("{prefix}.{source}.weight");
            self.table
                .linear(&format!("{name}.delta.{end}"), source, shape)
        };
        let inner = [channels, c.hidden];
        DeltaNet {
            key_heads: d.heads,
            value_heads: d.heads,
            key_dim: d.head_dim,
            value_dim: d.head_dim,
            query: linear("query", "q_proj", inner),
            key: linear("key", "k_proj", inner),
            value: linear("value", "v_proj", inner),
            convolutions,
            decay: vec![
                linear("decay_down", "f_a_proj", [d.head_dim, c.hidden]),
                linear("decay_up", "f_b_proj", [channels, d.head_dim]),
            ],
            decay_log,
            decay_bias,
            decay_floor: Some(d.floor),
            beta: linear("beta", "b_proj", [d.heads, c.hidden]),
            gate: linear("gate", "g_proj", inner),
            gate_activation: Activation::Sigmoid,
            output: linear("output", "o_proj", [c.hidden, channels]),
            norm: self.norm(
                &format!("{name}.delta.output_norm"),
                &format!("{tensor}.self_attn.o_norm"),
                d.head_dim,
                c.eps,
            ),
        }
    }

    /// The published tensor of decays is padded to the size of a head; one value a head is as good.
    fn decay_log_len(&self, tensor: &str) -> usize {
        let d = &self.config.delta;
        match self.table.sources.shape(tensor) {
            Some(&[len]) if len == d.heads => d.heads,
            _ => d.heads.max(d.head_dim),
        }
    }

    /// Latent attention of the layer called `name`, tensors under `tensor`.
    pub(super) fn latent(&mut self, name: &str, tensor: &str) -> LatentAttention {
        let c = self.config;
        let l = &c.latent;
        let prefix = format!("{}{tensor}.self_attn", self.prefix);
        let mut linear = |end: &str, source: &str, shape| {
            let source = format!("{prefix}.{source}.weight");
            self.table
                .linear(&format!("{name}.attention.{end}"), source, shape)
        };
        let queries = l.nope + l.rope;
        let values = l.heads * l.value;
        let query_down = linear("query_down", "q_a_proj", [l.query_rank, c.hidden]);
        let query_up = linear("query_up", "q_b_proj", [l.heads * queries, l.query_rank]);
        let row = [l.rank + l.rope, c.hidden];
        let latent_down = linear("latent_down", "kv_a_proj_with_mqa", row);
        let up = [l.heads * (l.nope + l.value), l.rank];
        let latent_up = linear("latent_up", "kv_b_proj", up);
        let output = linear("output", "o_proj", [c.hidden, values]);
        let output_gate = l
            .gated
            .then(|| linear("output_gate", "g_proj", [values, c.hidden]));
        let mut norm = |end: &str, source: &str, len| {
            let source = format!("{tensor}.self_attn.{source}");
            self.norm(&format!("{name}.attention.{end}"), &source, len, LATENT_EPS)
        };
        LatentAttention {
            heads: l.heads,
            nope_dim: l.nope,
            rope_dim: l.rope,
            value_dim: l.value,
            latent_dim: l.rank,
            query_down,
            query_norm: norm("query_norm", "q_a_layernorm", l.query_rank),
            query_up,
            latent_down,
            latent_norm: norm("latent_norm", "kv_a_layernorm", l.rank),
            latent_up,
            output,
            rope: None,
            // The channels that are called rotary count although they do not rotate.
            scale: (1.0 / (queries as f64).sqrt()) as f32,
            output_gate,
            selection: None,
        }
    }
}
