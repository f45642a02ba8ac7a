//! Declared continuation state: what one conversation carries from step to step.
//!
//! Allocation, accounting, snapshots and validation are generic over this declaration; they know
//! no family and no mixer.

use crate::Program;
use crate::block::{Layer, Mixer, Span};
use serde::{Deserialize, Serialize};

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
    /// The last `rows` rows only.
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
    /// The last `tokens` token ids.
    TokenHistory {
        /// Ids kept.
        tokens: usize,
    },
}

impl StateShape {
    /// Bytes added per token (f32), in the limit of long contexts.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        match *self {
            StateShape::Rows { width } => width * 4,
            StateShape::Compressed { ratio, width, .. } => width * 4 / ratio,
            _ => 0,
        }
    }

    /// Bytes whatever the context.
    #[must_use]
    pub fn fixed_bytes(&self) -> usize {
        match *self {
            StateShape::Rows { .. } => 0,
            StateShape::Ring { rows, width } => rows * width * 4,
            StateShape::Matrix { heads, rows, cols } => heads * rows * cols * 4,
            StateShape::Compressed {
                raw_width,
                raw_rows,
                ..
            } => raw_width * raw_rows * 4,
            StateShape::TokenHistory { tokens } => tokens * 4,
        }
    }

    /// Whether dropping the newest tokens is exact without a checkpoint.
    #[must_use]
    pub fn truncates(&self) -> bool {
        matches!(self, StateShape::Rows { .. })
    }
}

/// State of one layer, in a fixed order.
#[must_use]
pub fn layer_state(layer: &Layer) -> Vec<StateItem> {
    let mut items = Vec::new();
    let mut push = |name: &str, shape| {
        items.push(StateItem {
            name: name.to_owned(),
            shape,
        })
    };
    match &layer.mixer.body {
        Mixer::Attention(a) => {
            let width = a.kv_heads * a.head_dim;
            let shape = match a.span {
                Span::Full => StateShape::Rows { width },
                Span::Sliding { window } => StateShape::Ring {
                    rows: window,
                    width,
                },
            };
            push("key", shape.clone());
            push("value", shape);
            if let Some(c) = &a.convolutions {
                push(
                    "conv.key",
                    StateShape::Ring {
                        rows: c.key.taps - 1,
                        width,
                    },
                );
                push(
                    "conv.value",
                    StateShape::Ring {
                        rows: c.value.taps - 1,
                        width,
                    },
                );
            }
            if let Some(ix) = &a.indexer {
                push(
                    "index",
                    StateShape::Compressed {
                        ratio: ix.block,
                        width: ix.head_dim,
                        raw_width: ix.head_dim,
                        raw_rows: ix.block - 1,
                    },
                );
            }
        }
        Mixer::LatentAttention(a) => {
            push(
                "latent",
                StateShape::Rows {
                    width: a.latent_dim + a.rope_dim,
                },
            );
            if let Some(crate::block::LatentSelection::Own(ix)) = &a.selection {
                push("index", StateShape::Rows { width: ix.head_dim });
            }
        }
        Mixer::CompressedAttention(a) => {
            push(
                "window",
                StateShape::Ring {
                    rows: a.window,
                    width: a.head_dim,
                },
            );
            if let Some(c) = &a.compressor {
                push("compressed", compressor_state(c, a.head_dim));
            }
            if let Some(ix) = &a.indexer {
                push(
                    "index",
                    compressor_state(&ix.compressor, ix.indexer.head_dim),
                );
            }
        }
        Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => {
            let widths = [
                d.key_heads * d.key_dim,
                d.key_heads * d.key_dim,
                d.value_heads * d.value_dim,
            ];
            for ((name, conv), width) in ["conv.query", "conv.key", "conv.value"]
                .iter()
                .zip(&d.convolutions)
                .zip(widths)
            {
                push(
                    name,
                    StateShape::Ring {
                        rows: (conv.taps - 1) * conv.dilation,
                        width,
                    },
                );
            }
            push(
                "recurrent",
                StateShape::Matrix {
                    heads: d.value_heads,
                    rows: d.key_dim,
                    cols: d.value_dim,
                },
            );
        }
    }
    items
}

fn compressor_state(c: &crate::block::Compressor, width: usize) -> StateShape {
    let channels = if c.overlaps { 2 * width } else { width };
    let windows = if c.overlaps { 2 } else { 1 };
    StateShape::Compressed {
        ratio: c.ratio,
        width,
        // Value and gate logits of every raw token.
        raw_width: 2 * channels,
        raw_rows: windows * c.ratio - 1,
    }
}

/// Bytes of state one more token costs, over all layers.
#[must_use]
pub fn bytes_per_token(program: &Program) -> usize {
    program
        .layers
        .iter()
        .flat_map(layer_state)
        .map(|item| item.shape.bytes_per_token())
        .sum()
}

/// Bytes of state a conversation costs before its first token, over all layers.
#[must_use]
pub fn fixed_bytes(program: &Program) -> usize {
    program
        .layers
        .iter()
        .flat_map(layer_state)
        .map(|item| item.shape.fixed_bytes())
        .sum()
}
