//! The Qwen3.5 line (Qwen3.5, Qwen3.6, their dense models) and Qwen3-Next (Alibaba, 2025 and 2026):
//! gated delta nets with a layer of gated attention now and then.
//!
//! Peculiar to it: norms are stored as their distance from one, but for the delta net's own; a
//! quarter of a head's channels rotate; attention's output gate comes interleaved with its queries;
//! the expert that every token visits has a gate of its own.

mod config;
mod mixers;

use crate::common::{Builder, block_fp8, component, draft_head, is_expert, is_unit, numbered};
use crate::config::{ConfigReader, Rejected};
use crate::plain::{self, Ends};
use crate::sources::Sources;
use config::{Config, Experts, Kind};
use lamella_program::block::{
    Block, Ffn, GatedUnit, Layer, Mixer, Residual, RmsNorm, Routed, Router, Scoring, WeightRule,
};
use lamella_program::program::{Dims, UnusedComponent};
use lamella_program::{Program, Role, TensorInfo};

/// What `model_type` says: the whole model, or its language part alone.
pub(crate) const MODEL_TYPES: &[&str] = &[
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
];

/// Lowers a checkpoint of the line.
pub(crate) fn lower(
    reader: &mut ConfigReader<'_>,
    tensors: &[TensorInfo],
) -> Result<Program, Rejected> {
    let sources = Sources::new(tensors);
    let config = Config::read(reader, &sources)?;
    let lowering = Lowering {
        config: &config,
        prefix: prefix(&config, &sources),
        table: Builder::new(&sources, block_fp8(&sources, config.block)),
    };
    Ok(lowering.program())
}

/// Start of the names of the language model. A wrapped one has a longer one, and so has one that
/// was cut out of a wrapper without renaming.
fn prefix(c: &Config, sources: &Sources<'_>) -> &'static str {
    const PREFIXES: [&str; 2] = ["model", "model.language_model"];
    let [short, long] =
        PREFIXES.map(|prefix| sources.has(&format!("{prefix}.embed_tokens.weight")));
    match (short, long) {
        (true, false) => PREFIXES[0],
        (false, true) => PREFIXES[1],
        _ => PREFIXES[usize::from(c.wrapped)],
    }
}

/// A checkpoint on its way to a program.
struct Lowering<'a> {
    config: &'a Config,
    prefix: &'static str,
    table: Builder<'a>,
}

impl Lowering<'_> {
    fn program(mut self) -> Program {
        let c = self.config;
        let prefix = self.prefix;
        let shape = [c.vocabulary, c.hidden];
        let mut table =
            |name: &str, role, tensor: String| self.table.matrix(name, role, tensor, shape);
        let tensor = format!("{prefix}.embed_tokens.weight");
        let embedding = table("embedding", Role::Embedding, tensor);
        let head = match c.tied_head {
            true => embedding,
            false => table("head", Role::Head, "lm_head.weight".to_owned()),
        };
        let layers = (0..c.layers.len()).map(|index| self.layer(index)).collect();
        let norm = self.norm("final_norm", &format!("{prefix}.norm"), c.hidden);
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
        let unused = self.unused();
        plain::program("qwen36", dims, ends, layers, self.table.operands, unused)
    }

    /// Parts of the checkpoint that are not executed.
    fn unused(&self) -> Vec<UnusedComponent> {
        let c = self.config;
        let sources = self.table.sources;
        let draft = draft_head(sources, |name| is_draft(c, name));
        let tower = sources.names(|name| name.starts_with("model.visual."));
        let tower = component("vision tower", "images are not read", tower);
        draft.into_iter().chain(tower).collect()
    }

    fn layer(&mut self, index: usize) -> Layer {
        let c = self.config;
        let Kind { attends, sparse } = c.layers[index];
        let name = format!("layers.{index}");
        let tensor = format!("{}.layers.{index}", self.prefix);
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}.norm"), format!("{tensor}.{source}"));
            Some(self.norm(&name, &source, c.hidden))
        };
        let mixer_norm = norm(
            if attends { "attention" } else { "delta" },
            "input_layernorm",
        );
        let ffn = if sparse { "experts" } else { "dense" };
        let ffn_norm = norm(ffn, "post_attention_layernorm");
        let experts = c.experts.filter(|_| sparse);
        Layer {
            residual: Residual::Plain,
            mixer: Block {
                pre_norm: mixer_norm,
                body: match attends {
                    true => Mixer::Attention(self.attention(&name, &tensor)),
                    false => Mixer::GatedDeltaNet(self.delta(&name, &tensor)),
                },
                convolution: None,
                post_norm: None,
            },
            ffn: Block {
                pre_norm: ffn_norm,
                body: match experts {
                    Some(experts) => Ffn::Routed(self.routed(&name, &tensor, experts)),
                    None => Ffn::Dense(self.dense(&name, &tensor)),
                },
                convolution: None,
                post_norm: None,
            },
        }
    }

    fn dense(&mut self, name: &str, tensor: &str) -> GatedUnit {
        let shape = [self.config.dense_width, self.config.hidden];
        let (name, tensor) = (format!("{name}.dense"), format!("{tensor}.mlp"));
        self.table.unit(&name, &tensor, shape)
    }

    fn routed(&mut self, name: &str, tensor: &str, e: Experts) -> Routed {
        let hidden = self.config.hidden;
        let tensor = format!("{tensor}.mlp");
        let table = &mut self.table;
        let router = table.matrix(
            &format!("{name}.router"),
            Role::Router,
            format!("{tensor}.gate.weight"),
            [e.count, hidden],
        );
        let unit = table.experts(
            &format!("{name}.experts"),
            &format!("{tensor}.experts"),
            [e.count, e.width, hidden],
        );
        let shared = table.unit(
            &format!("{name}.shared"),
            &format!("{tensor}.shared_expert"),
            [e.shared_width, hidden],
        );
        let gate = table.operands.matrix(
            &format!("{name}.shared.output_gate"),
            Role::Vector,
            format!("{tensor}.shared_expert_gate.weight"),
            [1, hidden],
        );
        Routed {
            router: Router {
                weight: router,
                scoring: Scoring::Softmax,
                selection_bias: None,
                groups: None,
                hash_table: None,
                weights: match e.renormalise {
                    true => WeightRule::Normalised { eps: 0.0 },
                    false => WeightRule::Raw,
                },
                scale: None,
                learned_scale: None,
            },
            experts: e.count,
            top_k: e.top_k,
            unit,
            shared: vec![GatedUnit {
                output_gate: Some(gate),
                ..shared
            }],
            latent: None,
        }
    }

    /// A norm whose stored weight is the multiplier's distance from one; `source` is its tensor
    /// without `.weight`.
    fn norm(&mut self, name: &str, source: &str, len: usize) -> RmsNorm {
        let operands = &mut self.table.operands;
        let tensor = format!("{source}.weight");
        RmsNorm {
            unit_offset: true,
            ..operands.norm(name, tensor, len, self.config.eps)
        }
    }
}

/// Whether `name` is a tensor of the draft head: layers of attention with their joints.
fn is_draft(c: &Config, name: &str) -> bool {
    let Some(end) = name.strip_prefix("mtp.") else {
        return false;
    };
    let Some((index, end)) = numbered(end, "layers.") else {
        return [
            "fc.weight",
            "norm.weight",
            "pre_fc_norm_embedding.weight",
            "pre_fc_norm_hidden.weight",
        ]
        .contains(&end);
    };
    if index >= c.draft_layers {
        return false;
    }
    match end.strip_prefix("mlp.") {
        Some(end) => is_draft_ffn(c, end),
        None => [
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "self_attn.k_norm.weight",
            "self_attn.k_proj.weight",
            "self_attn.o_proj.weight",
            "self_attn.q_norm.weight",
            "self_attn.q_proj.weight",
            "self_attn.v_proj.weight",
        ]
        .contains(&end),
    }
}

fn is_draft_ffn(c: &Config, end: &str) -> bool {
    let Some(experts) = c.experts else {
        return is_unit(end);
    };
    if let Some(end) = end.strip_prefix("experts.") {
        return is_expert(end, experts.count);
    }
    match end.strip_prefix("shared_expert.") {
        Some(end) => is_unit(end),
        None => ["gate.weight", "shared_expert_gate.weight"].contains(&end),
    }
}
