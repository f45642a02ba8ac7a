//! Attention over a window and compressed entries.

use super::Lowering;
use super::schedule::Compression;
use lamella_program::Role;
use lamella_program::block::{
    CompressedAttention, CompressedIndexer, Compressor, Indexer, Linear, RmsNorm,
};

impl Lowering<'_> {
    /// Attention of the layer called `name` here and `tensor` in the checkpoint.
    pub(super) fn attention(
        &mut self,
        name: &str,
        tensor: &str,
        compression: Compression,
    ) -> CompressedAttention {
        let c = self.config;
        let g = &c.attention;
        let (own, tensor) = (format!("{name}.attention"), format!("{tensor}.attn"));
        let mut linear = |end: &str, source: &str, shape| {
            self.linear(
                &format!("{own}.{end}"),
                &format!("{tensor}.{source}"),
                shape,
            )
        };
        let queries = g.heads * g.head_dim;
        let grouped = g.output_groups * g.output_rank;
        let query_down = linear("query_down", "wq_a", [g.query_rank, c.hidden]);
        let query_up = linear("query_up", "wq_b", [queries, g.query_rank]);
        let key_value = linear("key_value", "wkv", [g.head_dim, c.hidden]);
        let group = [grouped, queries / g.output_groups];
        let output_down = linear("output_down", "wo_a", group);
        let output_up = linear("output_up", "wo_b", [c.hidden, grouped]);
        let mut norm = |end: &str, source: &str, len| {
            let source = format!("{tensor}.{source}.weight");
            self.norm(&format!("{own}.{end}"), source, len)
        };
        let query_norm = norm("query_norm", "q_norm", g.query_rank);
        let key_value_norm = norm("key_value_norm", "kv_norm", g.head_dim);
        let sinks = self.table.operands.vector(
            &format!("{own}.sinks"),
            self.spelling.of_vendor(&format!("{tensor}.attn_sink")),
            g.heads,
        );
        CompressedAttention {
            heads: g.heads,
            head_dim: g.head_dim,
            window: g.window,
            query_down,
            query_norm,
            query_up,
            query_head_norm: RmsNorm {
                weight: None,
                eps: c.eps,
                unit_offset: false,
            },
            key_value,
            key_value_norm,
            rope: match compression {
                Compression::Window => c.rotation.window.clone(),
                _ => c.rotation.compressed.clone(),
            },
            scale: inverse_root(g.head_dim) as f32,
            sinks,
            output_groups: g.output_groups,
            output_down,
            output_up,
            compressor: match compression {
                Compression::Window => None,
                _ => Some(self.compressor(&own, &tensor, compression, g.head_dim)),
            },
            indexer: match compression {
                Compression::Overlapping(_) => Some(self.indexer(&own, &tensor, compression)),
                _ => None,
            },
        }
    }

    /// Pools tokens to entries of `width` channels.
    fn compressor(
        &mut self,
        name: &str,
        tensor: &str,
        compression: Compression,
        width: usize,
    ) -> Compressor {
        let (own, tensor) = (format!("{name}.compressor"), format!("{tensor}.compressor"));
        // Where entries overlap, half of the channels are for the next one.
        let (ratio, channels) = match compression {
            Compression::Overlapping(ratio) => (ratio, 2 * width),
            Compression::Plain(ratio) => (ratio, width),
            Compression::Window => (1, width),
        };
        let shape = [channels, self.config.hidden];
        Compressor {
            ratio,
            overlaps: matches!(compression, Compression::Overlapping(_)),
            position: self.table.operands.matrix(
                &format!("{own}.position"),
                Role::Kernel,
                self.spelling.of_vendor(&format!("{tensor}.ape")),
                [ratio, channels],
            ),
            // Releases keep both in bf16. Like keys and values they choose nothing, and in f32 they
            // would be more than a gigabyte a token in the smaller release: they may be quantised.
            value: self.linear(&format!("{own}.value"), &format!("{tensor}.wkv"), shape),
            gate: self.linear(&format!("{own}.gate"), &format!("{tensor}.wgate"), shape),
            norm: self.norm(
                &format!("{own}.norm"),
                format!("{tensor}.norm.weight"),
                width,
            ),
        }
    }

    /// Chooses among entries.
    fn indexer(&mut self, name: &str, tensor: &str, compression: Compression) -> CompressedIndexer {
        let c = self.config;
        let g = &c.attention;
        let (own, tensor) = (format!("{name}.index"), format!("{tensor}.indexer"));
        let queries = [g.index_heads * g.index_dim, g.query_rank];
        let query = self.linear(&format!("{own}.query"), &format!("{tensor}.wq_b"), queries);
        let weights = format!("{tensor}.weights_proj.weight");
        let head_weights = self.table.precise(
            &format!("{own}.head_weights"),
            self.spelling.of_vendor(&weights),
            [g.index_heads, c.hidden],
        );
        let indexer = Indexer {
            heads: g.index_heads,
            head_dim: g.index_dim,
            top_k: g.index_top_k,
            // Candidates are whole entries.
            block: 1,
            query,
            key: None,
            query_norm: None,
            key_norm: None,
            head_weights: Some(head_weights),
            scale: (inverse_root(g.index_dim) * inverse_root(g.index_heads)) as f32,
            rope: Some(c.rotation.compressed.clone()),
        };
        CompressedIndexer {
            indexer,
            compressor: self.compressor(&own, &tensor, compression, g.index_dim),
        }
    }

    /// A linear map that is the whole of `tensor`, named without `.weight`.
    pub(super) fn linear(&mut self, name: &str, tensor: &str, shape: [usize; 2]) -> Linear {
        let tensor = self.spelling.of_vendor(&format!("{tensor}.weight"));
        self.table.linear(name, tensor, shape)
    }
}

fn inverse_root(n: usize) -> f64 {
    1.0 / (n as f64).sqrt()
}
