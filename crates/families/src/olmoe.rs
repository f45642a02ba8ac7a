//! OLMoE (Muennighoff et al. 2024, "OLMoE: Open Mixture-of-Experts Language Models").
//!
//! Every layer is grouped-query attention and a mixture of experts, both behind a norm. Peculiar to
//! it: queries and keys are normalised over the whole projected vector, all heads together; the
//! optional clip comes after those norms and also holds values; the weights of the chosen experts
//! are softmax probabilities over all experts, renormalised only where `norm_topk_prob` says so.

use crate::common::{Builder, check_ends, check_size};
use crate::config::{
    ConfigReader, Domain, MAX_CONTEXT, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY,
    MAX_WIDTH, Rejected,
};
use crate::plain::{self, Ends};
use crate::rope_keys::read_rope;
use crate::sources::Sources;
use lamella_program::block::{
    Attention, Block, Ffn, Layer, Mixer, QkNorm, QkNormScope, Residual, Rope, RopePairing,
    RopePlace, Routed, Router, Scoring, Span, WeightRule,
};
use lamella_program::program::Dims;
use lamella_program::{Program, Role};
use serde_json::json;

/// The configuration keys that this family computes with.
struct Config {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    experts: usize,
    top_k: usize,
    /// Inner width of one expert.
    width: usize,
    vocabulary: usize,
    context: usize,
    eps: f32,
    theta: f64,
    clip: Option<f32>,
    renormalise: bool,
    tied_head: bool,
}

/// Lowers an OLMoE checkpoint.
pub(crate) fn lower(
    reader: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<Program, Rejected> {
    let config = Config::read(reader)?;
    let experts = ("num_experts", config.experts);
    check_size(reader, sources, config.layers, 9, experts)?;
    let lowering = Lowering {
        config: &config,
        table: Builder::new(sources, |_| None),
    };
    Ok(lowering.program())
}

impl Config {
    /// Reads all keys before giving up on any, so that every fault is reported.
    fn read(c: &mut ConfigReader<'_>) -> Result<Config, Rejected> {
        let hidden = c.count("hidden_size", MAX_WIDTH);
        let layers = c.count("num_hidden_layers", MAX_LAYERS);
        let heads = c.count("num_attention_heads", MAX_HEADS);
        let kv_heads = c.optional_count("num_key_value_heads", MAX_HEADS);
        let head_dim = c.optional_count("head_dim", MAX_WIDTH);
        let experts = c.count("num_experts", MAX_EXPERTS);
        let top_k = c.count("num_experts_per_tok", MAX_EXPERTS);
        let width = c.count("intermediate_size", MAX_WIDTH);
        let vocabulary = c.count("vocab_size", MAX_VOCABULARY);
        let context = c.count("max_position_embeddings", MAX_CONTEXT);
        check_ends(c, vocabulary);
        let tied_head = c.optional_flag("tie_word_embeddings");
        // Values that shape no tensor: a bad one is a defect, and the tensors are checked all the
        // same with a stand-in that no program ever carries.
        let eps = c.number("rms_norm_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        let clip = c
            .optional_number("clip_qkv", Domain::Positive)
            .unwrap_or(None)
            .map(|x| x as f32);
        let renormalise = c.flag("norm_topk_prob").unwrap_or(false);
        let rope = read_rope(c, &[]);
        if rope.partial.is_some_and(|share| share != 1.0) {
            let _ = c.reject("partial_rotary_factor", "is not 1");
        }
        c.require("hidden_act", &json!("silu"));
        c.require_if_present("attention_bias", &json!(false));
        let config = Config {
            hidden: hidden?,
            layers: layers?,
            heads: heads?,
            kv_heads: kv_heads?.unwrap_or(heads?),
            head_dim: hidden? / heads?,
            experts: experts?,
            top_k: top_k?,
            width: width?,
            vocabulary: vocabulary?,
            context: context?,
            eps,
            theta: rope.theta,
            clip,
            renormalise,
            tied_head: tied_head?.unwrap_or(false),
        };
        config.check_geometry(c, head_dim?)?;
        Ok(config)
    }

    /// Numbers that are usable one by one and contradict each other.
    fn check_geometry(
        &self,
        c: &mut ConfigReader<'_>,
        head_dim: Option<usize>,
    ) -> Result<(), Rejected> {
        let mut result = Ok(());
        if !self.hidden.is_multiple_of(2 * self.heads) {
            let message = format!(
                "{} heads do not divide hidden_size {} into heads of an even size",
                self.heads, self.hidden
            );
            result = Err(c.reject("num_attention_heads", message));
        } else if head_dim.is_some_and(|n| n != self.head_dim) {
            let message = format!(
                "is not hidden_size / num_attention_heads = {}",
                self.head_dim
            );
            result = Err(c.reject("head_dim", message));
        } else if !self.heads.is_multiple_of(self.kv_heads) {
            let message = format!(
                "{} query heads cannot share {} key heads",
                self.heads, self.kv_heads
            );
            result = Err(c.reject("num_key_value_heads", message));
        }
        if self.top_k > self.experts {
            let message = format!(
                "{} experts cannot be chosen of {}",
                self.top_k, self.experts
            );
            result = Err(c.reject("num_experts_per_tok", message));
        }
        result
    }
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
        let layers = (0..c.layers).map(|index| self.layer(index)).collect();
        let operands = &mut self.table.operands;
        let source = "model.norm.weight".to_owned();
        let norm = operands.norm("final_norm", source, c.hidden, c.eps);
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
        let operands = self.table.operands;
        plain::program("olmoe", dims, ends, layers, None, operands, Vec::new())
    }

    fn layer(&mut self, index: usize) -> Layer {
        let c = self.config;
        let name = format!("layers.{index}");
        let tensor = format!("model.layers.{index}");
        let mut norm = |end: &str, source: &str| {
            let source = format!("{tensor}.{source}.weight");
            let operands = &mut self.table.operands;
            Some(operands.norm(&format!("{name}.{end}"), source, c.hidden, c.eps))
        };
        let mixer_norm = norm("attention.norm", "input_layernorm");
        let ffn_norm = norm("experts.norm", "post_attention_layernorm");
        let attention = self.attention(&name, &tensor);
        let routed = self.routed(&name, &tensor);
        Layer {
            residual: Residual::Plain,
            mixer: Block {
                pre_norm: mixer_norm,
                body: Mixer::Attention(attention),
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

    fn attention(&mut self, name: &str, tensor: &str) -> Attention {
        let c = self.config;
        let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let table = &mut self.table;
        let mut linear = |end: &str, source: &str, shape| {
            let source = format!("{tensor}.self_attn.{source}.weight");
            table.linear(&format!("{name}.attention.{end}"), source, shape)
        };
        let query = linear("query", "q_proj", [queries, c.hidden]);
        let key = linear("key", "k_proj", [keys, c.hidden]);
        let value = linear("value", "v_proj", [keys, c.hidden]);
        let output = linear("output", "o_proj", [c.hidden, queries]);
        let mut norm = |end: &str, source: &str, len| {
            let source = format!("{tensor}.self_attn.{source}.weight");
            let name = format!("{name}.attention.{end}");
            table.operands.norm(&name, source, len, c.eps)
        };
        Attention {
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            query,
            key,
            value,
            output,
            qk_norm: Some(QkNorm {
                scope: QkNormScope::Projection,
                query: norm("query_norm", "q_norm", queries),
                key: norm("key_norm", "k_norm", keys),
            }),
            clip: c.clip,
            rope: Some(Rope {
                theta: c.theta,
                dims: c.head_dim,
                place: RopePlace::First,
                pairing: RopePairing::Half,
                yarn: None,
            }),
            scale: (1.0 / (c.head_dim as f64).sqrt()) as f32,
            span: Span::Full,
            sinks: None,
            output_gate: None,
            relative_bias: None,
            convolutions: None,
            position_scaling: None,
            indexer: None,
        }
    }

    fn routed(&mut self, name: &str, tensor: &str) -> Routed {
        let c = self.config;
        let router = self.table.matrix(
            &format!("{name}.router"),
            Role::Router,
            format!("{tensor}.mlp.gate.weight"),
            [c.experts, c.hidden],
        );
        let unit = self.table.experts(
            &format!("{name}.experts"),
            &format!("{tensor}.mlp.experts"),
            [c.experts, c.width, c.hidden],
        );
        Routed {
            router: Router {
                weight: router,
                scoring: Scoring::Softmax,
                selection_bias: None,
                groups: None,
                hash_table: None,
                weights: if c.renormalise {
                    WeightRule::Normalised { eps: 0.0 }
                } else {
                    WeightRule::Raw
                },
                scale: None,
                learned_scale: None,
            },
            experts: c.experts,
            top_k: c.top_k,
            unit,
            shared: Vec::new(),
            latent: None,
        }
    }
}
