//! GLM-5 (Zhipu AI 2026): latent attention over the positions a lightning indexer selects, and
//! experts chosen by sigmoid scores with a correction bias.
//!
//! Peculiar to it: only some layers have an indexer, the others take the selection of the nearest
//! earlier one; an indexer rotates the first channels of its heads, attention the last ones, in
//! adjacent pairs both; the norms inside attention have an eps of their own; the layers of the
//! draft head are numbered on behind the last layer.

mod config;
mod draft;

use crate::common::{Builder, block_fp8, copies, numbered};
use crate::config::{ConfigReader, Rejected};
use crate::plain::{self, Ends};
use crate::sources::Sources;
use config::{Config, Kind};
use lamella_program::block::{
    Block, Ffn, GatedUnit, IndexNorm, Indexer, LatentAttention, LatentSelection, Layer, Linear,
    Mixer, Residual, RmsNorm, Rope, RopePairing, RopePlace, Routed, Router, RouterGroups, Scoring,
    WeightRule,
};
use lamella_program::program::Dims;
use lamella_program::{Program, Role};

/// Eps of the norms of the two latents and of index keys: the default of the vendor's classes, and
/// not `rms_norm_eps`. No key of the configuration sets it. Engines that take `rms_norm_eps` here
/// differ from the vendor's classes where a latent is small; `glm-404` of the fixtures shows it.
const INNER_EPS: f32 = 1e-6;
/// What is added to the sum of the chosen scores.
const SUM_EPS: f32 = 1e-20;

/// What some exports repeat in a draft head.
const COPIES: [&str; 2] = ["embed_tokens.weight", "shared_head.head.weight"];

/// Lowers a GLM checkpoint.
pub(crate) fn lower(
    reader: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<Program, Rejected> {
    let config = Config::read(reader, sources)?;
    let lowering = Lowering {
        config: &config,
        table: Builder::new(sources, block_fp8(sources, config.block)),
    };
    Ok(lowering.program())
}

/// A checkpoint on its way to a program.
struct Lowering<'a> {
    config: &'a Config,
    table: Builder<'a>,
}

impl Lowering<'_> {
    fn program(mut self) -> Program {
        let c = self.config;
        let shape = [c.vocabulary, c.hidden];
        let mut table = |name: &str, role, source: &str| {
            let source = format!("{source}.weight");
            self.table.matrix(name, role, source, shape)
        };
        let embedding = table("embedding", Role::Embedding, "model.embed_tokens");
        let head = match c.tied_head {
            true => embedding,
            false => table("head", Role::Head, "lm_head"),
        };
        let layers = c.layers.iter().enumerate();
        let layers = layers
            .map(|(index, &kind)| {
                let name = format!("layers.{index}");
                self.layer(&name, &format!("model.layers.{index}"), kind)
            })
            .collect();
        let norm = self.norm("final_norm", "model.norm", c.hidden, c.eps);
        let draft = self.draft(head);
        let ends = Ends {
            embedding,
            norm,
            head,
        };
        let dims = Dims {
            hidden: c.hidden,
            vocabulary: c.vocabulary,
            context: c.context,
        };
        let unused = copies(self.table.sources, &shape, |name| {
            let draft = numbered(name, "model.layers.");
            let draft = draft.filter(|(index, _)| c.drafts().contains(index));
            draft.is_some_and(|(_, end)| COPIES.contains(&end))
        });
        let unused = unused.into_iter().collect();
        let operands = self.table.operands;
        plain::program("glm", dims, ends, layers, draft, operands, unused)
    }

    /// The layer called `name` here and `tensor` in the checkpoint.
    fn layer(&mut self, name: &str, tensor: &str, kind: Kind) -> Layer {
        let c = self.config;
        let ffn = if kind.sparse { "experts" } else { "dense" };
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}.norm"), format!("{tensor}.{source}"));
            Some(self.norm(&name, &source, c.hidden, c.eps))
        };
        let mixer_norm = norm("attention", "input_layernorm");
        let ffn_norm = norm(ffn, "post_attention_layernorm");
        Layer {
            residual: Residual::Plain,
            mixer: Block {
                pre_norm: mixer_norm,
                body: Mixer::LatentAttention(self.attention(name, tensor, kind)),
                convolution: None,
                post_norm: None,
            },
            ffn: Block {
                pre_norm: ffn_norm,
                body: match kind.sparse {
                    true => Ffn::Routed(self.routed(name, tensor)),
                    false => Ffn::Dense(self.unit(name, "dense", tensor, "mlp", c.dense_width)),
                },
                convolution: None,
                post_norm: None,
            },
        }
    }

    fn attention(&mut self, name: &str, tensor: &str, kind: Kind) -> LatentAttention {
        let c = self.config;
        let (name, tensor) = (format!("{name}.attention"), format!("{tensor}.self_attn"));
        let head_dim = c.nope_dim + c.rope_dim;
        let mut linear = |end: &str, source: &str, shape, bias| {
            self.linear(
                &format!("{name}.{end}"),
                &format!("{tensor}.{source}"),
                shape,
                bias,
            )
        };
        let query_down = linear("query_down", "q_a_proj", [c.query_rank, c.hidden], c.biases);
        let query_up = linear(
            "query_up",
            "q_b_proj",
            [c.heads * head_dim, c.query_rank],
            false,
        );
        let rows = c.latent + c.rope_dim;
        let latent_down = linear(
            "latent_down",
            "kv_a_proj_with_mqa",
            [rows, c.hidden],
            c.biases,
        );
        let rows = c.heads * (c.nope_dim + c.value_dim);
        let latent_up = linear("latent_up", "kv_b_proj", [rows, c.latent], false);
        let output = linear(
            "output",
            "o_proj",
            [c.hidden, c.heads * c.value_dim],
            c.biases,
        );
        let mut norm = |end: &str, source: &str, len| {
            let (name, source) = (format!("{name}.{end}"), format!("{tensor}.{source}"));
            self.norm(&name, &source, len, INNER_EPS)
        };
        let query_norm = norm("query_norm", "q_a_layernorm", c.query_rank);
        let latent_norm = norm("latent_norm", "kv_a_layernorm", c.latent);
        LatentAttention {
            heads: c.heads,
            nope_dim: c.nope_dim,
            rope_dim: c.rope_dim,
            value_dim: c.value_dim,
            latent_dim: c.latent,
            query_down,
            query_norm,
            query_up,
            latent_down,
            latent_norm,
            latent_up,
            output,
            rope: Some(self.rope(RopePlace::Last)),
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            output_gate: None,
            selection: Some(match kind.selects {
                true => LatentSelection::Own(self.indexer(&name, &tensor)),
                false => LatentSelection::Shared,
            }),
        }
    }

    fn indexer(&mut self, name: &str, tensor: &str) -> Indexer {
        let c = self.config;
        let (name, tensor) = (format!("{name}.index"), format!("{tensor}.indexer"));
        let (heads, dim) = (c.index.heads, c.index.dim);
        let mut linear = |end: &str, source: &str, shape| {
            self.linear(
                &format!("{name}.{end}"),
                &format!("{tensor}.{source}"),
                shape,
                false,
            )
        };
        let query = linear("query", "wq_b", [heads * dim, c.query_rank]);
        let key = linear("key", "wk", [dim, c.hidden]);
        let head_weights = self.table.precise(
            &format!("{name}.head_weights"),
            format!("{tensor}.weights_proj.weight"),
            [heads, c.hidden],
        );
        let mut vector = |end: &str| {
            let (name, tensor) = (
                format!("{name}.key_norm.{end}"),
                format!("{tensor}.k_norm.{end}"),
            );
            self.table.operands.vector(&name, tensor, dim)
        };
        Indexer {
            heads,
            head_dim: dim,
            top_k: c.index.top_k,
            block: 1,
            query,
            key: Some(key),
            query_norm: None,
            key_norm: Some(IndexNorm::Layer {
                weight: vector("weight"),
                bias: vector("bias"),
                eps: INNER_EPS,
            }),
            head_weights: Some(head_weights),
            // Both factors are positive, so they pass through the rectifier.
            scale: (1.0 / ((heads as f64) * (dim as f64)).sqrt()) as f32,
            rope: Some(self.rope(RopePlace::First)),
        }
    }

    fn routed(&mut self, name: &str, tensor: &str) -> Routed {
        let c = self.config;
        let e = &c.experts;
        let weight = self.table.matrix(
            &format!("{name}.router"),
            Role::Router,
            format!("{tensor}.mlp.gate.weight"),
            [e.count, c.hidden],
        );
        let bias = self.table.operands.vector(
            &format!("{name}.router.selection_bias"),
            format!("{tensor}.mlp.gate.e_score_correction_bias"),
            e.count,
        );
        let shape = [e.count, e.width, c.hidden];
        let unit = self.table.experts(
            &format!("{name}.experts"),
            &format!("{tensor}.mlp.experts"),
            shape,
        );
        let width = e.width * e.shared;
        let shared = self.unit(name, "shared", tensor, "mlp.shared_experts", width);
        Routed {
            router: Router {
                weight,
                scoring: Scoring::Sigmoid,
                selection_bias: Some(bias),
                groups: (e.groups > 1).then_some(RouterGroups {
                    count: e.groups,
                    top_k: e.top_groups,
                }),
                hash_table: None,
                weights: match e.renormalise {
                    true => WeightRule::Normalised { eps: SUM_EPS },
                    false => WeightRule::Raw,
                },
                scale: (e.scale != 1.0).then_some(e.scale),
                learned_scale: None,
            },
            experts: e.count,
            top_k: e.top_k,
            unit,
            shared: vec![shared],
            latent: None,
        }
    }

    fn unit(
        &mut self,
        name: &str,
        end: &str,
        tensor: &str,
        source: &str,
        width: usize,
    ) -> GatedUnit {
        let (name, tensor) = (format!("{name}.{end}"), format!("{tensor}.{source}"));
        self.table.unit(&name, &tensor, [width, self.config.hidden])
    }

    /// A linear map; `source` is its tensors' name without `.weight` and `.bias`.
    fn linear(&mut self, name: &str, source: &str, shape: [usize; 2], bias: bool) -> Linear {
        let linear = self.table.linear(name, format!("{source}.weight"), shape);
        let bias = bias.then(|| {
            let operands = &mut self.table.operands;
            operands.vector(&format!("{name}.bias"), format!("{source}.bias"), shape[0])
        });
        Linear { bias, ..linear }
    }

    fn norm(&mut self, name: &str, source: &str, len: usize, eps: f32) -> RmsNorm {
        let operands = &mut self.table.operands;
        operands.norm(name, format!("{source}.weight"), len, eps)
    }

    fn rope(&self, place: RopePlace) -> Rope {
        Rope {
            theta: self.config.theta,
            dims: self.config.rope_dim,
            place,
            pairing: RopePairing::Adjacent,
            yarn: None,
        }
    }
}
