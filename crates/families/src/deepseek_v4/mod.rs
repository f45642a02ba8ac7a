//! DeepSeek V4 (DeepSeek-AI, 2026): attention over a window and compressed entries between several
//! residual streams, with experts in FP4.
//!
//! Peculiar to it: one vector is key and value of all heads, so what attention returns is turned
//! back at the query's position; layers differ in what they keep of distant tokens; the first
//! layers choose experts by token id; experts are chosen by biased scores and weighted by unbiased
//! ones.

mod attention;
mod codes;
mod config;
mod draft;
mod experts;
mod names;
mod rotation;
mod schedule;

use crate::common::Builder;
use crate::config::{ConfigReader, Rejected};
use crate::sources::Sources;
use codes::coding;
use config::Config;
use lamella_program::block::{Block, Ffn, HyperMap, Layer, Mixer, Residual, RmsNorm};
use lamella_program::program::{
    Boundary, Dims, Entry, Exit, PROGRAM_VERSION, StreamReduction, UnusedComponent,
};
use lamella_program::{OperandId, Program, Role};
use names::Spelling;
use schedule::Plan;

/// Lowers a DeepSeek V4 checkpoint.
pub(crate) fn lower(
    reader: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<Program, Rejected> {
    let config = Config::read(reader, sources)?;
    let unused = draft::copies(sources, &config);
    let lowering = Lowering {
        config: &config,
        spelling: Spelling::of(sources),
        table: Builder::new(sources, coding(sources, config.block)),
    };
    Ok(lowering.program(unused))
}

/// A checkpoint on its way to a program.
struct Lowering<'a> {
    config: &'a Config,
    /// How the checkpoint spells what is named here as the vendor does.
    spelling: Spelling,
    table: Builder<'a>,
}

impl Lowering<'_> {
    fn program(mut self, unused: Vec<UnusedComponent>) -> Program {
        let c = self.config;
        let mut table = |name: &str, role, source: &str| {
            let shape = [c.vocabulary, c.hidden];
            let source = self.spelling.of_vendor(source);
            self.table.matrix(name, role, source, shape)
        };
        let embedding = table("embedding", Role::Embedding, "embed.weight");
        let head = table("head", Role::Head, "head.weight");
        let layers = c.layers.iter().enumerate();
        let layers = layers
            .map(|(index, &plan)| {
                let name = format!("layers.{index}");
                self.layer(&name, &name, plan)
            })
            .collect();
        let norm = self.norm("final_norm", "norm.weight".to_owned(), c.hidden);
        let streams = c.streams.count;
        let reduction = self.reduction("exit.streams", "hc_head");
        let exit = self.exit(reduction, norm, head);
        let draft = self.draft(head);
        Program {
            version: PROGRAM_VERSION,
            family: "deepseek_v4".to_owned(),
            dims: Dims {
                hidden: c.hidden,
                vocabulary: c.vocabulary,
                context: c.context,
            },
            boundary: Boundary {
                state_schema: "deepseek_v4/streams.v1".to_owned(),
                width: streams * c.hidden,
                needs_token_ids: c.layers.iter().any(|plan| plan.hashed),
            },
            entry: Entry {
                embedding,
                scale: None,
                norm: None,
                per_layer_embeddings: Vec::new(),
            },
            layers,
            exit,
            draft,
            operands: self.table.operands.finish(),
            unused,
        }
    }

    /// The way out of the streams.
    fn exit(&self, reduction: StreamReduction, norm: RmsNorm, head: OperandId) -> Exit {
        Exit {
            reduction: Some(reduction),
            norm: Some(norm),
            head,
            logits: self.config.vocabulary,
            scale: None,
            soft_cap: None,
        }
    }

    /// How the streams become one; `name` is the map's, `tensor` the start of those of its tensors.
    fn reduction(&mut self, name: &str, tensor: &str) -> StreamReduction {
        let c = self.config;
        let [function, base, scale] = self.maps(name, tensor, c.streams.count, 1);
        StreamReduction::HyperConnections {
            function,
            base,
            scale,
            eps: c.streams.eps,
            norm_eps: c.eps,
        }
    }

    /// The layer called `name` here and `tensor` in the checkpoint.
    fn layer(&mut self, name: &str, tensor: &str, plan: Plan) -> Layer {
        let c = self.config;
        let s = &c.streams;
        let mut map = |place: &str, site: &str| {
            let rows = (2 + s.count) * s.count;
            let tensor = format!("{tensor}.hc_{site}");
            let place = format!("{name}.{place}.streams");
            let [function, base, scale] = self.maps(&place, &tensor, rows, 3);
            HyperMap {
                function,
                base,
                scale,
            }
        };
        let residual = Residual::HyperConnections {
            streams: s.count,
            sinkhorn_iterations: s.iterations,
            eps: s.eps,
            norm_eps: c.eps,
            mixer: map("attention", "attn"),
            ffn: map("experts", "ffn"),
        };
        let mut norm = |place: &str, site: &str| {
            let tensor = format!("{tensor}.{site}_norm.weight");
            Some(self.norm(&format!("{name}.{place}.norm"), tensor, c.hidden))
        };
        let mixer_norm = norm("attention", "attn");
        let ffn_norm = norm("experts", "ffn");
        let attention = self.attention(name, tensor, plan.compression);
        let routed = self.routed(name, tensor, plan.hashed);
        Layer {
            residual,
            mixer: Block {
                pre_norm: mixer_norm,
                body: Mixer::CompressedAttention(attention),
                convolution: None,
                post_norm: None,
            },
            ffn: Block {
                pre_norm: ffn_norm,
                body: Ffn::Routed(routed),
                convolution: None,
                post_norm: None,
            },
        }
    }

    /// A norm over `len` values.
    fn norm(&mut self, name: &str, tensor: String, len: usize) -> RmsNorm {
        let tensor = self.spelling.of_vendor(&tensor);
        self.table.operands.norm(name, tensor, len, self.config.eps)
    }

    /// What makes `rows` weights of the streams: function, base, and `scales` scales.
    fn maps(&mut self, name: &str, tensor: &str, rows: usize, scales: usize) -> [OperandId; 3] {
        let c = self.config;
        let operands = &mut self.table.operands;
        let [function, base, scale] =
            ["fn", "base", "scale"].map(|end| self.spelling.of_vendor(&format!("{tensor}_{end}")));
        [
            operands.matrix(
                &format!("{name}.function"),
                // Kept in f32, as routers are: it steers whole streams.
                Role::Router,
                function,
                [rows, c.streams.count * c.hidden],
            ),
            operands.vector(&format!("{name}.base"), base, rows),
            operands.vector(&format!("{name}.scale"), scale, scales),
        ]
    }
}
