//! Qwen3.8-Flash-Next (`qwen4_exp`; the Qwen team, 2026).
//!
//! Three of four layers are gated delta nets, the fourth is gated attention over blocks of tokens
//! that a small indexer selects; every layer has a mixture of experts. Peculiar to it: the residual
//! is several streams, which each block reads through a learned low-rank gate and writes back with
//! its own strengths, and all norms live in those reads, so there is no norm before a block and
//! none at the end; before one of the layers, rows of a huge table picked by hashes of the last
//! tokens are added to the streams.

mod codes;
mod config;
mod draft;
mod hash;
mod ngram;
mod ngram_keys;
mod unused;

use crate::common::Builder;
use crate::config::{ConfigReader, Rejected};
use crate::qwen::{self, Stream};
use crate::sources::Sources;
use config::Config;
use lamella_program::block::{
    Attention, Block, Ffn, HyperGate, IndexNorm, Indexer, Layer, Mixer, Residual, RmsNorm,
};
use lamella_program::program::{Boundary, Dims, Entry, Exit, PROGRAM_VERSION, StreamReduction};
use lamella_program::{Program, Role};

/// Values of `model_type`: multimodal releases and text-only ones.
pub(crate) const MODEL_TYPES: &[&str] = &["qwen4_exp", "qwen4_exp_text"];

/// Lowers a Qwen3.8-Flash-Next checkpoint.
pub(crate) fn lower(
    reader: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<Program, Rejected> {
    let config = Config::read(reader, sources)?;
    // Multimodal releases keep the text model apart from the tower.
    let wrapped = sources.names(|name| name.starts_with("model.language_model."));
    let prefix = match wrapped.is_empty() {
        true => "model",
        false => "model.language_model",
    };
    let builder = Builder::new(sources, |tensor| config.codes.coding(sources, tensor));
    Ok(Lowering {
        config: &config,
        prefix,
        b: builder,
    }
    .program())
}

/// A checkpoint on its way to a program.
struct Lowering<'a> {
    config: &'a Config,
    /// Where the text model's tensors are.
    prefix: &'static str,
    b: Builder<'a>,
}

impl Lowering<'_> {
    fn program(mut self) -> Program {
        let (c, prefix) = (self.config, self.prefix);
        let table = [c.vocabulary, c.hidden];
        let source = format!("{prefix}.embed_tokens.weight");
        let embedding = self.b.matrix("embedding", Role::Embedding, source, table);
        let layers = c.recurrent.iter().enumerate();
        let layers = layers
            .map(|(index, &recurrent)| {
                let name = format!("layers.{index}");
                self.layer(&name, &format!("{prefix}.layers.{index}"), recurrent)
            })
            .collect();
        let per_layer_embeddings = self.ngram_embeddings();
        let mixer = format!("{prefix}.hyper_connection_mixer");
        let last = self.gate("exit_gate", &mixer, false);
        let head = match c.tied_head {
            Some(true) => embedding,
            _ => {
                let source = "lm_head.weight".to_owned();
                self.b.matrix("head", Role::Head, source, table)
            }
        };
        let draft = self.draft(head);
        Program {
            version: PROGRAM_VERSION,
            family: "qwen38".to_owned(),
            dims: Dims {
                hidden: c.hidden,
                vocabulary: c.vocabulary,
                context: c.context,
            },
            boundary: Boundary {
                state_schema: "qwen38/streams.v1".to_owned(),
                width: c.streams * c.hidden,
                needs_token_ids: c.ngram.is_some(),
            },
            entry: Entry {
                embedding,
                scale: None,
                norm: None,
                per_layer_embeddings,
            },
            layers,
            exit: Exit {
                reduction: Some(StreamReduction::HyperResidual(last)),
                norm: None,
                head,
                logits: c.vocabulary,
                scale: None,
                soft_cap: None,
            },
            draft,
            unused: unused::components(c, prefix, self.b.sources),
            operands: self.b.operands.finish(),
        }
    }

    /// The layer called `name` here and `tensor` in the checkpoint.
    fn layer(&mut self, name: &str, tensor: &str, recurrent: bool) -> Layer {
        let c = self.config;
        let connection = |site: &str| format!("{tensor}.{site}_hyper_connection");
        let residual = Residual::HyperResidual {
            streams: c.streams,
            mixer: self.gate(&format!("{name}.mixer_gate"), &connection("attn"), true),
            ffn: self.gate(&format!("{name}.ffn_gate"), &connection("mlp"), true),
        };
        let mixer = if recurrent {
            let source = format!("{tensor}.linear_attn");
            let stream = self.stream();
            let delta = qwen::delta_net(&mut self.b, name, &source, stream, &c.delta);
            Mixer::GatedDeltaNet(delta)
        } else {
            Mixer::Attention(self.attention(name, &format!("{tensor}.self_attn")))
        };
        let mlp = format!("{tensor}.mlp");
        let routed = qwen::mixture(&mut self.b, name, &mlp, c.hidden, &c.mixture);
        Layer {
            residual,
            mixer: bare(mixer),
            ffn: bare(Ffn::Routed(routed)),
        }
    }

    fn stream(&self) -> Stream {
        Stream {
            hidden: self.config.hidden,
            eps: self.config.eps,
        }
    }

    /// One read of the streams, and where a block writes to them, its strengths.
    fn gate(&mut self, name: &str, tensor: &str, writes: bool) -> HyperGate {
        let c = self.config;
        let width = c.streams * c.hidden;
        let norm = self.norm(&format!("{name}.norm"), &format!("{tensor}.hc_norm"), width);
        let mut linear = |end: &str, source: &str, shape| {
            let source = format!("{tensor}.{source}.weight");
            self.b.linear(&format!("{name}.{end}"), source, shape)
        };
        HyperGate {
            norm,
            down: linear("down", "input_mix_weight_down", [c.rank, width]),
            up: linear("up", "input_mix_weight_up", [width, c.rank]),
            inject: writes.then(|| {
                let source = format!("{tensor}.block_inject_weight.weight");
                let name = format!("{name}.inject");
                self.b.precise(&name, source, [c.streams, width])
            }),
        }
    }

    fn norm(&mut self, name: &str, tensor: &str, len: usize) -> RmsNorm {
        qwen::norm(&mut self.b, name, tensor, len, self.config.eps)
    }

    fn attention(&mut self, name: &str, tensor: &str) -> Attention {
        let stream = self.stream();
        let heads = &self.config.attention;
        let attention = qwen::gated_attention(&mut self.b, name, tensor, stream, heads);
        let indexer = self.indexer(&format!("{name}.indexer"), &format!("{tensor}.indexer"));
        Attention {
            indexer: Some(indexer),
            ..attention
        }
    }

    /// Index queries and the index key come from one projection. Keys are pooled raw and normed
    /// and rotated as blocks, at the position of their first token.
    fn indexer(&mut self, name: &str, tensor: &str) -> Indexer {
        let c = self.config;
        let ix = &c.index;
        let queries = ix.heads * ix.head_dim;
        let joined = format!("{tensor}.index_qk_proj.weight");
        let shape = [queries + ix.head_dim, c.hidden];
        let mut linear = |end: &str, start, rows| {
            let slices = vec![self.b.rows(&joined, &shape, start, rows)];
            let name = format!("{name}.{end}");
            qwen::linear_of(&mut self.b, &name, slices, [rows, c.hidden])
        };
        let query = linear("query", 0, queries);
        let key = linear("key", queries, ix.head_dim);
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}"), format!("{tensor}.{source}"));
            self.norm(&name, &source, ix.head_dim)
        };
        Indexer {
            heads: ix.heads,
            head_dim: ix.head_dim,
            top_k: ix.blocks,
            block: ix.block,
            query,
            key: Some(key),
            query_norm: Some(norm("query_norm", "q_layernorm")),
            key_norm: Some(IndexNorm::Rms(norm("key_norm", "k_layernorm"))),
            head_weights: None,
            scale: (1.0 / (ix.head_dim as f64).sqrt()) as f32,
            rope: Some(c.attention.rope.clone()),
        }
    }
}

/// A block with nothing before or after it.
fn bare<B>(body: B) -> Block<B> {
    Block {
        pre_norm: None,
        body,
        convolution: None,
        post_norm: None,
    }
}
