//! Inkling (Thinking Machines Lab, 2026).
//!
//! Pre-norm layers with a short convolution behind every block and no rotary positions at all:
//! order enters through a learned bias by distance, sliding windows, convolutions of keys and
//! values, and, in the layers that see everything, a score multiplier that grows with the position.
//! Peculiar to it: keys are convolved before their norm; scores are divided by the head size, not
//! by its root; gate and up rows alternate in every stack; the shared experts compete for weight
//! with the chosen ones, by raw logits, while a bias takes part in the choice only.

mod codes;
mod config;
mod drafts;
mod parts;
mod unused;

use crate::common::Builder;
use crate::config::{ConfigReader, Rejected};
use crate::sources::Sources;
use config::{Config, Kind};
use lamella_program::block::{Block, Ffn, Layer, Mixer, Residual, RmsNorm, ShortConvolution};
use lamella_program::program::{Boundary, Dims, Entry, Exit, PROGRAM_VERSION};
use lamella_program::{Program, Role, Slice};

/// Values of `model_type`.
pub(crate) const MODEL_TYPES: &[&str] = &["inkling_mm_model"];

/// Lowers an Inkling checkpoint.
pub(crate) fn lower(
    reader: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<Program, Rejected> {
    let config = Config::read(reader, sources)?;
    let builder = Builder::new(sources, |tensor| config.codes.coding(sources, tensor));
    Ok(Lowering {
        config: &config,
        b: builder,
    }
    .program())
}

/// A checkpoint on its way to a program.
struct Lowering<'a> {
    config: &'a Config,
    b: Builder<'a>,
}

impl Lowering<'_> {
    fn program(mut self) -> Program {
        let c = self.config;
        let table = [c.vocabulary, c.hidden];
        let mut matrix = |name: &str, role, tensor: &str| {
            let map = format!("model.llm.{tensor}");
            let tensor = c
                .codes
                .tensor(self.b.sources, &map, format!("{map}.weight"));
            self.b.matrix(name, role, tensor, table)
        };
        let embedding = matrix("embedding", Role::Embedding, "embed");
        let head = matrix("head", Role::Head, "unembed");
        let norm = self.norm("embedding.norm", "model.llm.embed_norm", c.hidden);
        let layers = c.layers.iter().enumerate();
        let layers = layers
            .map(|(index, &kind)| {
                let name = format!("layers.{index}");
                self.layer(&name, &format!("model.llm.layers.{index}"), kind)
            })
            .collect();
        let last = self.norm("final_norm", "model.llm.norm", c.hidden);
        let exit = Exit {
            reduction: None,
            norm: Some(last),
            head,
            logits: c.logits,
            scale: Some((1.0 / c.width_multiplier) as f32),
            soft_cap: None,
        };
        let draft = self.draft(&exit);
        Program {
            version: PROGRAM_VERSION,
            family: "inkling".to_owned(),
            dims: Dims {
                hidden: c.hidden,
                vocabulary: c.vocabulary,
                context: c.context,
            },
            boundary: Boundary {
                state_schema: "inkling/stream.v1".to_owned(),
                width: c.hidden,
                needs_token_ids: false,
            },
            entry: Entry {
                embedding,
                scale: None,
                norm: Some(norm),
                per_layer_embeddings: Vec::new(),
            },
            layers,
            exit,
            draft,
            unused: unused::components(c, self.b.sources),
            operands: self.b.operands.finish(),
        }
    }

    /// The layer called `name` here and `tensor` in the checkpoint.
    fn layer(&mut self, name: &str, tensor: &str, kind: Kind) -> Layer {
        let c = self.config;
        let mixer = Block {
            pre_norm: Some(self.norm(
                &format!("{name}.attention.norm"),
                &format!("{tensor}.attn_norm"),
                c.hidden,
            )),
            body: Mixer::Attention(self.attention(name, &format!("{tensor}.attn"), kind.local)),
            convolution: Some(self.convolution(
                &format!("{name}.attention.convolution"),
                &format!("{tensor}.attn_sconv"),
                c.hidden,
            )),
            post_norm: None,
        };
        let pre_norm = self.norm(
            &format!("{name}.ffn.norm"),
            &format!("{tensor}.mlp_norm"),
            c.hidden,
        );
        let body = if kind.dense {
            Ffn::Dense(self.dense(name, tensor))
        } else {
            Ffn::Routed(self.routed(name, tensor))
        };
        let convolution = self.convolution(
            &format!("{name}.ffn.convolution"),
            &format!("{tensor}.mlp_sconv"),
            c.hidden,
        );
        Layer {
            residual: Residual::Plain,
            mixer,
            ffn: Block {
                pre_norm: Some(pre_norm),
                body,
                convolution: Some(convolution),
                post_norm: None,
            },
        }
    }

    fn norm(&mut self, name: &str, tensor: &str, len: usize) -> RmsNorm {
        let (tensor, eps) = (format!("{tensor}.weight"), self.config.eps);
        self.b.operands.norm(name, tensor, len, eps)
    }

    /// `y_t = x_t + sum over taps of w * x`, without an activation.
    fn convolution(&mut self, name: &str, tensor: &str, channels: usize) -> ShortConvolution {
        let taps = self.config.taps;
        let shape = [channels, 1, taps];
        let slice = Slice::whole(format!("{tensor}.weight"), &shape);
        let parts = vec![vec![slice]];
        ShortConvolution {
            weight: self.b.operands.parts(name, Role::Kernel, &shape, parts),
            taps,
            dilation: 1,
            residual: true,
            activation: None,
        }
    }
}
