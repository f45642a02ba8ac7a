//! Kimi K3 (Moonshot AI, 2026): Kimi delta attention and latent attention around attention
//! residuals, with experts that work at half the model's width.
//!
//! Peculiar to it: nothing rotates and no layer knows positions; a block reads a mixture of the
//! running sum and of sums sealed every few layers, and after sealing the sum starts from the
//! mixer's output; the decay has a lower bound; the list of layers counts from 1 and breaks its own
//! stride at the end; two norms have an eps of their own.

mod config;
mod experts;
mod mixers;

use crate::common::{Builder, component};
use crate::config::{ConfigReader, Rejected};
use crate::sources::Sources;
use config::Config;
use lamella_program::block::{Block, Ffn, Layer, Mixer, Residual, ResidualRead, RmsNorm};
use lamella_program::operand::Coding;
use lamella_program::program::{
    Boundary, Dims, Entry, Exit, PROGRAM_VERSION, StreamReduction, UnusedComponent,
};
use lamella_program::{Program, Role};

/// Lowers a Kimi K3 checkpoint: with its vision tower (`kimi_k3`, tensors of the language model
/// under a prefix), or the language model alone (`kimi_linear`).
pub(crate) fn lower(
    reader: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<Program, Rejected> {
    let composite = reader.optional_text("model_type")? == Some("kimi_k3");
    let (config, prefix) = if composite {
        let config = Config::read_composite(reader, sources)?;
        (config, COMPOSITE)
    } else {
        (Config::read(reader, sources)?, "")
    };
    let unused = if composite {
        vision(sources)
    } else {
        Vec::new()
    };
    let lowering = Lowering {
        config: &config,
        prefix,
        table: Builder::new(sources, coding),
    };
    Ok(lowering.program(unused))
}

/// Start of the names of the language model beside a vision tower.
const COMPOSITE: &str = "language_model.";
/// What ends the name of a matrix in two codes a byte, and that of its scales.
const PACKED: &str = "weight_packed";
const SCALE: &str = "weight_scale";

fn coding(tensor: &str) -> Option<Coding> {
    let base = tensor.strip_suffix(PACKED)?;
    Some(Coding::Mxfp4 {
        scale: format!("{base}{SCALE}"),
    })
}

/// The parts that turn images into embeddings.
fn vision(sources: &Sources<'_>) -> Vec<UnusedComponent> {
    let part = |name: &str, prefix: &str| {
        let tensors = sources.names(|tensor| tensor.starts_with(prefix));
        component(name, "images are not read", tensors)
    };
    let tower = part("vision tower", "vision_tower.");
    let projector = part("vision projector", "mm_projector.");
    tower.into_iter().chain(projector).collect()
}

/// A checkpoint on its way to a program.
struct Lowering<'a> {
    config: &'a Config,
    prefix: &'static str,
    table: Builder<'a>,
}

impl Lowering<'_> {
    fn program(mut self, unused: Vec<UnusedComponent>) -> Program {
        let c = self.config;
        let prefix = self.prefix;
        let shape = [c.vocabulary, c.hidden];
        let mut table = |name: &str, role, source: &str| {
            let source = format!("{prefix}{source}.weight");
            self.table.matrix(name, role, source, shape)
        };
        let embedding = table("embedding", Role::Embedding, "model.embed_tokens");
        let head = table("head", Role::Head, "lm_head");
        let layers: Vec<Layer> = (0..c.delta_layers.len())
            .map(|index| self.layer(index))
            .collect();
        let norm = self.norm("final_norm", "model.norm", c.hidden, c.eps);
        let reduction = self.read("exit.read", "model.output_attn_res");
        // What passes between layers is the sealed sums, oldest first, and then the running one.
        let sealed = layers.len().div_ceil(c.seal_every);
        Program {
            version: PROGRAM_VERSION,
            family: "kimi_k3".to_owned(),
            dims: Dims {
                hidden: c.hidden,
                vocabulary: c.vocabulary,
                context: c.context,
            },
            boundary: Boundary {
                state_schema: "kimi_k3/sums.v1".to_owned(),
                width: (sealed + 1) * c.hidden,
                needs_token_ids: false,
            },
            entry: Entry {
                embedding,
                scale: None,
                norm: None,
                per_layer_embeddings: Vec::new(),
            },
            layers,
            exit: Exit {
                reduction: Some(StreamReduction::AttentionResidual(reduction)),
                norm: Some(norm),
                head,
                logits: c.vocabulary,
                scale: None,
                soft_cap: None,
            },
            operands: self.table.operands.finish(),
            draft: None,
            unused,
        }
    }

    fn layer(&mut self, index: usize) -> Layer {
        let c = self.config;
        let name = format!("layers.{index}");
        let tensor = format!("model.layers.{index}");
        let delta = c.delta_layers[index];
        let dense = index < c.dense_layers;
        let mixer = if delta { "delta" } else { "attention" };
        let ffn = if dense { "dense" } else { "experts" };
        let residual = Residual::AttentionResidual {
            mixer_read: self.read(
                &format!("{name}.{mixer}.read"),
                &format!("{tensor}.self_attention_res"),
            ),
            ffn_read: self.read(&format!("{name}.{ffn}.read"), &format!("{tensor}.mlp_res")),
            seals: index.is_multiple_of(c.seal_every),
        };
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}.norm"), format!("{tensor}.{source}"));
            Some(self.norm(&name, &source, c.hidden, c.eps))
        };
        let mixer_norm = norm(mixer, "input_layernorm");
        let ffn_norm = norm(ffn, "post_attention_layernorm");
        Layer {
            residual,
            mixer: Block {
                pre_norm: mixer_norm,
                body: match delta {
                    true => Mixer::Kda(self.delta(&name, &tensor)),
                    false => Mixer::LatentAttention(self.latent(&name, &tensor)),
                },
                convolution: None,
                post_norm: None,
            },
            ffn: Block {
                pre_norm: ffn_norm,
                body: match dense {
                    true => Ffn::Dense(self.dense(&name, &tensor)),
                    false => Ffn::Routed(self.routed(&name, &tensor)),
                },
                convolution: None,
                post_norm: None,
            },
        }
    }

    /// A norm over `len` values; `source` is its tensor without prefix and `.weight`.
    fn norm(&mut self, name: &str, source: &str, len: usize, eps: f32) -> RmsNorm {
        let tensor = format!("{}{source}.weight", self.prefix);
        self.table.operands.norm(name, tensor, len, eps)
    }

    /// The query of a read of the sums.
    fn read(&mut self, name: &str, source: &str) -> ResidualRead {
        let c = self.config;
        let norm = self.norm(
            &format!("{name}.norm"),
            &format!("{source}_norm"),
            c.hidden,
            c.eps,
        );
        let tensor = format!("{}{source}_proj.weight", self.prefix);
        let projection = self.table.operands.matrix(
            &format!("{name}.projection"),
            Role::Vector,
            tensor,
            [1, c.hidden],
        );
        ResidualRead { norm, projection }
    }
}
