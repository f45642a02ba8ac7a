//! The Qwen3.5 line (Qwen3.5, Qwen3.6, their dense models) and Qwen3-Next (Alibaba, 2025 and 2026):
//! gated delta nets with a layer of gated attention now and then.
//!
//! Peculiar to it: norms are stored as their distance from one, but for the delta net's own; a
//! quarter of a head's channels rotate; attention's output gate comes interleaved with its queries;
//! the expert that every token visits has a gate of its own.

mod config;
mod draft;

use crate::common::{Builder, block_fp8};
use crate::config::{ConfigReader, Rejected};
use crate::plain::{self, Ends};
use crate::qwen::{self, Stream};
use crate::sources::Sources;
use config::{Config, Kind};
use lamella_program::block::{Block, Ffn, GatedUnit, Layer, Mixer, Residual};
use lamella_program::program::Dims;
use lamella_program::{Program, Role};

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
    sources: &Sources<'_>,
) -> Result<Program, Rejected> {
    let config = Config::read(reader, sources)?;
    let lowering = Lowering {
        config: &config,
        prefix: prefix(&config, sources),
        table: Builder::new(sources, block_fp8(sources, config.block)),
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
        let layers = c.layers.iter().enumerate();
        let layers = layers
            .map(|(index, &kind)| {
                let name = format!("layers.{index}");
                self.layer(&name, &format!("{prefix}.layers.{index}"), kind)
            })
            .collect();
        let norm = qwen::norm(
            &mut self.table,
            "final_norm",
            &format!("{prefix}.norm"),
            c.hidden,
            c.eps,
        );
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
        let draft = self.draft(head);
        let unused = qwen::vision_tower(self.table.sources).into_iter().collect();
        let operands = self.table.operands;
        plain::program("qwen36", dims, ends, layers, draft, operands, unused)
    }

    /// The layer called `name` here and `tensor` in the checkpoint.
    fn layer(&mut self, name: &str, tensor: &str, kind: Kind) -> Layer {
        let c = self.config;
        let Kind { attends, sparse } = kind;
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}.norm"), format!("{tensor}.{source}"));
            Some(qwen::norm(&mut self.table, &name, &source, c.hidden, c.eps))
        };
        let mixer_norm = norm(
            if attends { "attention" } else { "delta" },
            "input_layernorm",
        );
        let ffn = if sparse { "experts" } else { "dense" };
        let ffn_norm = norm(ffn, "post_attention_layernorm");
        Layer {
            residual: Residual::Plain,
            mixer: Block {
                pre_norm: mixer_norm,
                body: self.mixer(name, tensor, attends),
                convolution: None,
                post_norm: None,
            },
            ffn: Block {
                pre_norm: ffn_norm,
                body: self.ffn(name, &format!("{tensor}.mlp"), sparse),
                convolution: None,
                post_norm: None,
            },
        }
    }

    fn mixer(&mut self, name: &str, tensor: &str, attends: bool) -> Mixer {
        let c = self.config;
        let stream = Stream {
            hidden: c.hidden,
            eps: c.eps,
        };
        let table = &mut self.table;
        if attends {
            let tensor = format!("{tensor}.self_attn");
            Mixer::Attention(qwen::gated_attention(
                table,
                name,
                &tensor,
                stream,
                &c.attention,
            ))
        } else {
            let tensor = format!("{tensor}.linear_attn");
            Mixer::GatedDeltaNet(qwen::delta_net(table, name, &tensor, stream, &c.delta))
        }
    }

    fn ffn(&mut self, name: &str, tensor: &str, sparse: bool) -> Ffn {
        let c = self.config;
        match &c.mixture {
            Some(mixture) if sparse => Ffn::Routed(qwen::mixture(
                &mut self.table,
                name,
                tensor,
                c.hidden,
                mixture,
            )),
            _ => Ffn::Dense(self.dense(&format!("{name}.dense"), tensor)),
        }
    }

    fn dense(&mut self, name: &str, tensor: &str) -> GatedUnit {
        let c = self.config;
        self.table.unit(name, tensor, [c.dense_width, c.hidden])
    }
}
