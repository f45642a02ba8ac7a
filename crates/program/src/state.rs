//! Declared continuation state: what one conversation carries from step to step.
//!
//! Allocation, accounting, snapshots and validation are generic over this declaration; they know
//! no family and no mixer.
//!
//! Sizes that overflow come out as [`usize::MAX`]; the closure check refuses such programs.

use crate::Program;
use crate::block::{
    Attention, CompressedAttention, Compressor, DeltaNet, LatentAttention, LatentSelection, Mixer,
    ShortConvolution, Span,
};
use crate::part::Part;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One piece of a layer's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateItem {
    /// Name within the layer: `key`, `value`, `latent`, `conv.query`.
    pub name: String,
    /// How it grows and rolls back.
    pub shape: StateShape,
}

/// How a piece of state grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StateShape {
    /// One row of `width` f32 per token, append-only; rolls back by truncation.
    Rows {
        /// Values per token.
        width: usize,
    },
    /// The last `rows` rows of one token each; rolls back as long as older rows are still held.
    Window {
        /// Rows needed, the current token's included.
        rows: usize,
        /// Values per row.
        width: usize,
    },
    /// The last `rows` rows only, overwritten; rolls back only from a checkpoint.
    Ring {
        /// Rows kept.
        rows: usize,
        /// Values per row.
        width: usize,
    },
    /// A recurrent matrix, overwritten at each token; rolls back only from a checkpoint.
    Matrix {
        /// Independent heads.
        heads: usize,
        /// Rows per head.
        rows: usize,
        /// Columns per head.
        cols: usize,
    },
    /// One row per `ratio` tokens, plus the rows of the unfinished window.
    Compressed {
        /// Tokens per finished row.
        ratio: usize,
        /// Values of a finished row.
        width: usize,
        /// Values of a raw row in the open window.
        raw_width: usize,
        /// Raw rows kept.
        raw_rows: usize,
    },
}

impl StateShape {
    /// Bytes added per token (f32), in the limit of long contexts.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        match *self {
            StateShape::Rows { width } => width.saturating_mul(4),
            StateShape::Compressed { ratio, width, .. } => width.saturating_mul(4) / ratio.max(1),
            _ => 0,
        }
    }

    /// Bytes whatever the context.
    #[must_use]
    pub fn fixed_bytes(&self) -> usize {
        match *self {
            StateShape::Rows { .. } => 0,
            StateShape::Window { rows, width } | StateShape::Ring { rows, width } => {
                bytes(&[rows, width])
            }
            StateShape::Matrix { heads, rows, cols } => bytes(&[heads, rows, cols]),
            StateShape::Compressed {
                raw_width,
                raw_rows,
                ..
            } => bytes(&[raw_width, raw_rows]),
        }
    }

    /// Whether dropping the newest tokens is exact without a checkpoint.
    #[must_use]
    pub fn truncates(&self) -> bool {
        matches!(self, StateShape::Rows { .. })
    }
}

/// Bytes of an array of f32.
fn bytes(shape: &[usize]) -> usize {
    shape.iter().fold(4, |n, &d| n.saturating_mul(d))
}

/// State of layer `index` of [`Program::every_layer`], in a fixed order: the mixer's items, then
/// `conv.mixer` and `conv.ffn` where the blocks end in a convolution, then `ngram` where n-gram
/// embeddings enter.
#[must_use]
pub fn layer_state(program: &Program, index: usize) -> Vec<StateItem> {
    let layer = program.layer(index);
    let mut items = match &layer.mixer.body {
        Mixer::Attention(a) => attention_state(a),
        Mixer::LatentAttention(a) => latent_state(a),
        Mixer::CompressedAttention(a) => compressed_state(a),
        Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => delta_state(d),
    };
    let hidden = program.dims.hidden;
    for (name, convolution) in [
        ("conv.mixer", &layer.mixer.convolution),
        ("conv.ffn", &layer.ffn.convolution),
    ] {
        items.extend(convolution.iter().map(|c| (name, ring(c, hidden))));
    }
    let tables = program.entry.per_layer_embeddings.iter();
    let here = tables.filter(|table| table.layer == index);
    items.extend(here.map(|t| ("ngram", ring(&t.convolution, program.boundary.width))));
    items
        .into_iter()
        .map(|(name, shape)| StateItem {
            name: name.to_owned(),
            shape,
        })
        .collect()
}

/// The inputs a convolution over `width` channels still needs.
fn ring(convolution: &ShortConvolution, width: usize) -> StateShape {
    StateShape::Ring {
        rows: convolution
            .taps
            .saturating_sub(1)
            .saturating_mul(convolution.dilation),
        width,
    }
}

/// Names and shapes, before they become [`StateItem`]s.
type Items = Vec<(&'static str, StateShape)>;

fn attention_state(a: &Attention) -> Items {
    let width = a.kv_heads.saturating_mul(a.head_dim);
    let shape = match a.span {
        Span::Full => StateShape::Rows { width },
        Span::Sliding { window } => StateShape::Window {
            rows: window,
            width,
        },
    };
    let mut items = vec![("key", shape.clone()), ("value", shape)];
    if let Some(c) = &a.convolutions {
        items.push(("conv.key", ring(&c.key, width)));
        items.push(("conv.value", ring(&c.value, width)));
    }
    if let Some(ix) = &a.indexer {
        let shape = StateShape::Compressed {
            ratio: ix.block,
            width: ix.head_dim,
            raw_width: ix.head_dim,
            raw_rows: ix.block.saturating_sub(1),
        };
        items.push(("index", shape));
    }
    items
}

fn latent_state(a: &LatentAttention) -> Items {
    let mut items = vec![(
        "latent",
        StateShape::Rows {
            width: a.latent_dim.saturating_add(a.rope_dim),
        },
    )];
    if let Some(LatentSelection::Own(ix)) = &a.selection {
        items.push(("index", StateShape::Rows { width: ix.head_dim }));
    }
    items
}

fn compressed_state(a: &CompressedAttention) -> Items {
    let mut items = vec![(
        "window",
        StateShape::Window {
            rows: a.window,
            width: a.head_dim,
        },
    )];
    if let Some(c) = &a.compressor {
        items.push(("compressed", compressor_state(c, a.head_dim)));
    }
    if let Some(ix) = &a.indexer {
        items.push((
            "index",
            compressor_state(&ix.compressor, ix.indexer.head_dim),
        ));
    }
    items
}

fn delta_state(d: &DeltaNet) -> Items {
    let keys = d.key_heads.saturating_mul(d.key_dim);
    let values = d.value_heads.saturating_mul(d.value_dim);
    let recurrent = StateShape::Matrix {
        heads: d.value_heads,
        rows: d.key_dim,
        cols: d.value_dim,
    };
    vec![
        ("conv.query", ring(&d.convolutions[0], keys)),
        ("conv.key", ring(&d.convolutions[1], keys)),
        ("conv.value", ring(&d.convolutions[2], values)),
        ("recurrent", recurrent),
    ]
}

fn compressor_state(c: &Compressor, width: usize) -> StateShape {
    let windows: usize = if c.overlaps { 2 } else { 1 };
    StateShape::Compressed {
        ratio: c.ratio,
        width,
        // Value and gate logits of every raw token.
        raw_width: width.saturating_mul(2 * windows),
        raw_rows: windows.saturating_mul(c.ratio).saturating_sub(1),
    }
}

/// Bytes of state one more token costs, over all layers of the main model.
#[must_use]
pub fn bytes_per_token(program: &Program) -> usize {
    part_bytes_per_token(program, &Part::Whole)
}

/// Bytes of state a conversation costs before its first token, over all layers of the main model.
#[must_use]
pub fn fixed_bytes(program: &Program) -> usize {
    part_fixed_bytes(program, &Part::Whole)
}

/// [`bytes_per_token`], of a part of the model.
#[must_use]
pub fn part_bytes_per_token(program: &Program, part: &Part) -> usize {
    sum_per_token(program, part.layers(program))
}

/// [`fixed_bytes`], of a part of the model.
#[must_use]
pub fn part_fixed_bytes(program: &Program, part: &Part) -> usize {
    bytes(&[history(program)]).saturating_add(sum_fixed(program, part.layers(program)))
}

/// Bytes of state one more token costs in all depths of the draft, beside those of the main model.
#[must_use]
pub fn draft_bytes_per_token(program: &Program) -> usize {
    sum_per_token(program, draft_layers(program))
}

/// Bytes of state that the depths of the draft cost a conversation before its first token.
#[must_use]
pub fn draft_fixed_bytes(program: &Program) -> usize {
    sum_fixed(program, draft_layers(program))
}

/// Token ids a conversation remembers for n-gram embeddings.
#[must_use]
pub fn history(program: &Program) -> usize {
    let tables = program.entry.per_layer_embeddings.iter();
    tables.map(|t| t.ngram.saturating_sub(1)).max().unwrap_or(0)
}

fn draft_layers(program: &Program) -> Range<usize> {
    program.layers.len()..program.layers.len() + program.depths().len()
}

fn sum_per_token(program: &Program, layers: Range<usize>) -> usize {
    let items = layers.flat_map(|index| layer_state(program, index));
    let bytes = items.map(|item| item.shape.bytes_per_token());
    bytes.fold(0, usize::saturating_add)
}

fn sum_fixed(program: &Program, layers: Range<usize>) -> usize {
    let items = layers.flat_map(|index| layer_state(program, index));
    let bytes = items.map(|item| item.shape.fixed_bytes());
    bytes.fold(0, usize::saturating_add)
}
