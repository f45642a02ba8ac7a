//! The sequence mixers: gated attention and the gated delta net.

use super::Lowering;
use super::config::Line;
use lamella_program::Role;
use lamella_program::block::{
    Activation, Attention, DeltaNet, Linear, QkNorm, QkNormScope, Rope, RopePairing, RopePlace,
    ShortConvolution, Span,
};

/// The maps of a delta net's input.
struct DeltaMaps {
    query: Linear,
    key: Linear,
    value: Linear,
    gate: Linear,
    beta: Linear,
    decay: Linear,
}

impl Lowering<'_> {
    /// Attention. `q_proj` has the queries and the output gate by head: a head's query rows, then
    /// its gate rows.
    pub(super) fn attention(&mut self, name: &str, tensor: &str) -> Attention {
        let c = self.config;
        let (name, tensor) = (format!("{name}.attention"), format!("{tensor}.self_attn"));
        let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let mut half = |end: &str, offset: usize| {
            let source = [2 * queries, c.hidden];
            let cuts = (0..c.heads).map(|head| [(2 * head + offset) * c.head_dim, c.head_dim]);
            self.table.cuts(
                &format!("{name}.{end}"),
                [queries, c.hidden],
                &format!("{tensor}.q_proj.weight"),
                &source,
                cuts,
            )
        };
        let query = half("query", 0);
        let output_gate = half("output_gate", 1);
        let mut linear = |end: &str, source: &str, shape| {
            let source = format!("{tensor}.{source}.weight");
            self.table.linear(&format!("{name}.{end}"), source, shape)
        };
        let key = linear("key", "k_proj", [keys, c.hidden]);
        let value = linear("value", "v_proj", [keys, c.hidden]);
        let output = linear("output", "o_proj", [c.hidden, queries]);
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}"), format!("{tensor}.{source}"));
            self.norm(&name, &source, c.head_dim)
        };
        let qk_norm = QkNorm {
            scope: QkNormScope::Head,
            query: norm("query_norm", "q_norm"),
            key: norm("key_norm", "k_norm"),
        };
        Attention {
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            query,
            key,
            value,
            output,
            qk_norm: Some(qk_norm),
            clip: None,
            rope: Some(Rope {
                theta: c.theta,
                dims: c.rotated,
                place: RopePlace::First,
                pairing: RopePairing::Half,
                yarn: None,
            }),
            scale: (1.0 / (c.head_dim as f64).sqrt()) as f32,
            span: Span::Full,
            sinks: None,
            output_gate: Some(output_gate),
            relative_bias: None,
            convolutions: None,
            position_scaling: None,
            indexer: None,
        }
    }

    /// A delta net.
    pub(super) fn delta(&mut self, name: &str, tensor: &str) -> DeltaNet {
        let c = self.config;
        let d = c.delta;
        let (name, tensor) = (format!("{name}.delta"), format!("{tensor}.linear_attn"));
        let maps = match c.line {
            Line::Next => self.joined_maps(&name, &tensor),
            Line::Experts | Line::Dense => self.separate_maps(&name, &tensor),
        };
        let convolutions = self.convolutions(&name, &tensor);
        let operands = &mut self.table.operands;
        let mut vector = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}"), format!("{tensor}.{source}"));
            operands.vector(&name, source, d.value_heads)
        };
        let decay_log = vector("decay_log", "A_log");
        let decay_bias = vector("decay_bias", "dt_bias");
        // The one norm whose stored weight is the multiplier itself.
        let norm = operands.norm(
            &format!("{name}.output_norm"),
            format!("{tensor}.norm.weight"),
            d.value_dim,
            c.eps,
        );
        let output = self.table.linear(
            &format!("{name}.output"),
            format!("{tensor}.out_proj.weight"),
            [c.hidden, d.values()],
        );
        DeltaNet {
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            query: maps.query,
            key: maps.key,
            value: maps.value,
            convolutions,
            decay: vec![maps.decay],
            decay_log,
            decay_bias,
            decay_floor: None,
            beta: maps.beta,
            gate: maps.gate,
            gate_activation: Activation::Silu,
            norm,
            output,
        }
    }

    /// Qwen3.5: one tensor for queries, keys and values in this order, one for each other map.
    fn separate_maps(&mut self, name: &str, tensor: &str) -> DeltaMaps {
        let hidden = self.config.hidden;
        let d = self.config.delta;
        let (keys, values) = (d.keys(), d.values());
        let source = [2 * keys + values, hidden];
        let mut part = |end: &str, start, rows| {
            self.table.cuts(
                &format!("{name}.{end}"),
                [rows, hidden],
                &format!("{tensor}.in_proj_qkv.weight"),
                &source,
                [[start, rows]].into_iter(),
            )
        };
        let query = part("query", 0, keys);
        let key = part("key", keys, keys);
        let value = part("value", 2 * keys, values);
        let mut linear = |end: &str, source: &str, rows| {
            let source = format!("{tensor}.{source}.weight");
            let name = format!("{name}.{end}");
            self.table.linear(&name, source, [rows, hidden])
        };
        DeltaMaps {
            query,
            key,
            value,
            gate: linear("gate", "in_proj_z", values),
            beta: linear("beta", "in_proj_b", d.value_heads),
            decay: linear("decay", "in_proj_a", d.value_heads),
        }
    }

    /// Qwen3-Next: two tensors, their rows grouped by key head. The first has a head's query, its
    /// key, the values that share it and their gates; the second their betas and decays.
    fn joined_maps(&mut self, name: &str, tensor: &str) -> DeltaMaps {
        let hidden = self.config.hidden;
        let d = self.config.delta;
        let (key, values, heads) = (d.key_dim, d.shared() * d.value_dim, d.shared());
        let mut part = |end: &str, source: &str, group: usize, start: usize, rows: usize| {
            let cuts = (0..d.key_heads).map(|head| [head * group + start, rows]);
            self.table.cuts(
                &format!("{name}.{end}"),
                [d.key_heads * rows, hidden],
                &format!("{tensor}.{source}.weight"),
                &[d.key_heads * group, hidden],
                cuts,
            )
        };
        let (joined, group) = ("in_proj_qkvz", 2 * key + 2 * values);
        DeltaMaps {
            query: part("query", joined, group, 0, key),
            key: part("key", joined, group, key, key),
            value: part("value", joined, group, 2 * key, values),
            gate: part("gate", joined, group, 2 * key + values, values),
            beta: part("beta", "in_proj_ba", 2 * heads, 0, heads),
            decay: part("decay", "in_proj_ba", 2 * heads, heads, heads),
        }
    }

    /// One depthwise kernel over the channels of queries, keys and values.
    fn convolutions(&mut self, name: &str, tensor: &str) -> [ShortConvolution; 3] {
        let d = self.config.delta;
        let (keys, values) = (d.keys(), d.values());
        let source = [2 * keys + values, 1, d.taps];
        let tensor = format!("{tensor}.conv1d.weight");
        [
            ("query", 0, keys),
            ("key", keys, keys),
            ("value", 2 * keys, values),
        ]
        .map(|(end, start, rows)| {
            let parts = vec![vec![self.table.rows(&tensor, &source, start, rows)]];
            let name = format!("{name}.{end}_convolution");
            let shape = [rows, 1, d.taps];
            let operands = &mut self.table.operands;
            ShortConvolution {
                weight: operands.parts(&name, Role::Kernel, &shape, parts),
                taps: d.taps,
                dilation: 1,
                residual: false,
                activation: Some(Activation::Silu),
            }
        })
    }
}
