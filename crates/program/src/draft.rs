//! Draft heads (multi-token prediction; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report"): small
//! models that guess the tokens behind the next one from what the main model has computed.
//!
//! A draft is a chain of *depths*, each a join, a layer and an exit. Depth 0 joins the main model's
//! row of position `i` with the token at `i + 1` and predicts the token at `i + 2`; depth `j` joins
//! row `i` of the depth before it with the token at `i + 1 + j`. A depth keeps state of its own, in
//! which row `i` has position `i`.
//!
//! Operands that the main model has too (embedding, head) are the same [`OperandId`]s.

use crate::OperandId;
use crate::block::{Layer, Linear, RmsNorm};
use crate::program::{Exit, Program};
use serde::{Deserialize, Serialize};

/// The draft heads of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    /// What a depth reads of the main model, and of the depth before it.
    pub reads: DraftReads,
    /// In the order of their use, at least one.
    pub depths: Vec<DraftDepth>,
    /// Whether the first depth follows the last one again, reading what that wrote. Otherwise no
    /// more tokens can be drafted in a row than there are depths.
    pub recycles: bool,
}

/// What a depth reads: one row of the boundary's width for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftReads {
    /// The exit's vector, reduced and normed, before the exit's scale. Only where there is one
    /// stream.
    Normed,
    /// The streams as the last layer left them.
    Streams,
}

/// One draft head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftDepth {
    /// From the row that is read and the embedding of a token to the streams.
    pub join: Join,
    /// The decoder layer, of the same residual scheme as the main model's.
    pub layer: Layer,
    /// From the streams to logits.
    pub exit: Exit,
}

/// How the row that a depth reads and the embedding of its token, as the main model's entry makes
/// it, become the streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// Norm of the embedding, `[hidden]`.
    pub embedding_norm: RmsNorm,
    /// What one norm of the row covers.
    pub hidden_norm_scope: HiddenNormScope,
    /// Norm of the row.
    pub hidden_norm: RmsNorm,
    /// What makes one of both.
    pub map: JoinMap,
}

/// What one norm of the row that a depth reads covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenNormScope {
    /// Each stream on its own, all with one weight `[hidden]`.
    Stream,
    /// All streams together, with a weight `[streams * hidden]`.
    Joint,
}

/// What makes one of a normed embedding `e` and a normed row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum JoinMap {
    /// `projection [e; row]`, or `projection [row; e]`. Only where there is one stream.
    Concatenate {
        /// Whether the embedding is the first half.
        embedding_first: bool,
        /// `[hidden, 2 * hidden]`.
        projection: Linear,
    },
    /// `embedding e + hidden row_s` for each stream `s`.
    Add {
        /// `[hidden, hidden]`.
        embedding: Linear,
        /// `[hidden, hidden]`, the same for every stream.
        hidden: Linear,
    },
}

impl JoinMap {
    /// The weights of its linear maps.
    #[must_use]
    pub fn weights(&self) -> Vec<OperandId> {
        match self {
            JoinMap::Concatenate { projection, .. } => vec![projection.weight],
            JoinMap::Add { embedding, hidden } => vec![embedding.weight, hidden.weight],
        }
    }
}

impl Program {
    /// Every layer: those of the main model, then those of its draft, which are numbered on behind
    /// them.
    pub fn every_layer(&self) -> impl Iterator<Item = &Layer> {
        self.layers
            .iter()
            .chain(self.depths().iter().map(|depth| &depth.layer))
    }

    /// Layer `index` of [`every_layer`](Program::every_layer).
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn layer(&self, index: usize) -> &Layer {
        match index.checked_sub(self.layers.len()) {
            None => &self.layers[index],
            Some(depth) => &self.depths()[depth].layer,
        }
    }

    /// The draft heads; none where the model has no draft.
    #[must_use]
    pub fn depths(&self) -> &[DraftDepth] {
        self.draft.as_ref().map_or(&[], |draft| &draft.depths)
    }

    /// The exit of a depth of the draft; of the main model where `depth` is `None`.
    ///
    /// # Panics
    /// If there is no such depth.
    #[must_use]
    pub fn exit_of(&self, depth: Option<usize>) -> &Exit {
        depth.map_or(&self.exit, |depth| &self.depths()[depth].exit)
    }
}
