//! The program: entry, layers, exit, and the operands they name.

use crate::block::{Layer, Linear, ResidualRead, RmsNorm};
use crate::closure::draft_operands;
use crate::draft::Draft;
use crate::operand::{Operand, OperandId};
use serde::{Deserialize, Serialize};

/// Version of the vocabulary. A reader refuses a program of a newer one and reads all older ones.
///
/// * 1: the main model; draft heads are unused components.
/// * 2: [`Program::draft`]. A program of version 1 has none, whatever its checkpoint had.
pub const PROGRAM_VERSION: u32 = 2;

/// A model, closed: everything that is computed and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// [`PROGRAM_VERSION`] of the writer.
    pub version: u32,
    /// The family's name, for reports only: nothing below `families` branches on it.
    pub family: String,
    /// Sizes shared by all layers.
    pub dims: Dims,
    /// What passes between layers.
    pub boundary: Boundary,
    /// From token ids to the stream.
    pub entry: Entry,
    /// The decoder stack.
    pub layers: Vec<Layer>,
    /// From the stream to logits.
    pub exit: Exit,
    /// Heads that guess the tokens behind the next one; `None` where the checkpoint has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<Draft>,
    /// Every weight, addressed by [`OperandId`].
    pub operands: Vec<Operand>,
    /// Parts of the checkpoint that are known and not executed.
    pub unused: Vec<UnusedComponent>,
}

/// Sizes shared by all layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dims {
    /// Width of one stream.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Longest context the model was made for, in tokens.
    pub context: usize,
}

/// What passes from layer to layer, and from machine to machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boundary {
    /// Name of the state layout; two ends must agree on it.
    pub state_schema: String,
    /// Values per token: hidden size times streams.
    pub width: usize,
    /// Whether layers need the token ids beside the activations.
    pub needs_token_ids: bool,
}

/// From token ids to the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// `[vocabulary, hidden]`.
    pub embedding: OperandId,
    /// Multiplier of the embedding.
    pub scale: Option<f32>,
    /// Norm of the embedding.
    pub norm: Option<RmsNorm>,
    /// N-gram tables added inside given layers.
    pub per_layer_embeddings: Vec<PerLayerEmbedding>,
}

/// A hashed n-gram embedding added to the streams before one layer (Qwen3.8-Flash-Next).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayerEmbedding {
    /// Layer it is added before.
    pub layer: usize,
    /// Longest n-gram.
    pub ngram: usize,
    /// Hash heads per n-gram order.
    pub heads_per_ngram: usize,
    /// Token that cuts the history.
    pub boundary_token: u32,
    /// Odd multiplier per history position.
    pub multipliers: Vec<u64>,
    /// Table size per head.
    pub sizes: Vec<u64>,
    /// First row per head.
    pub offsets: Vec<u64>,
    /// Where the checkpoint says multipliers, sizes and offsets once more; `None` once they have
    /// been compared, which opening it does. No part of the model: it is not written.
    #[serde(skip)]
    pub stored: Option<StoredHashes>,
    /// `[rows, head_dim]`.
    pub table: OperandId,
    /// Key projection.
    pub key: Linear,
    /// Value projection.
    pub value: Linear,
    /// Norm of the keys.
    pub key_norm: RmsNorm,
    /// Norm of the streams used as queries.
    pub query_norm: RmsNorm,
    /// Norm before the convolution.
    pub convolution_norm: RmsNorm,
    /// Dilated convolution of the gated values.
    pub convolution: crate::block::ShortConvolution,
}

/// Tensors of integers (I64) in which a checkpoint repeats the constants of an n-gram embedding.
/// Opening it compares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHashes {
    /// `[ngram]`: [`PerLayerEmbedding::multipliers`].
    pub multipliers: String,
    /// `[heads]`: [`PerLayerEmbedding::sizes`].
    pub sizes: String,
    /// `[heads]`: [`PerLayerEmbedding::offsets`].
    pub offsets: String,
}

impl PerLayerEmbedding {
    /// Tensors of the checkpoint that hold constants of this embedding, and what they have to hold.
    pub fn stored_constants(&self) -> impl Iterator<Item = (&str, &[u64])> {
        self.stored.iter().flat_map(|stored| {
            [
                (stored.multipliers.as_str(), self.multipliers.as_slice()),
                (stored.sizes.as_str(), self.sizes.as_slice()),
                (stored.offsets.as_str(), self.offsets.as_slice()),
            ]
        })
    }
}

/// How several streams become one before the final norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum StreamReduction {
    /// A last attention-residual read.
    AttentionResidual(ResidualRead),
    /// The head of hyper-connections: a sigmoid-weighted sum.
    HyperConnections {
        /// `[streams, streams * hidden]`.
        function: OperandId,
        /// `[streams]`.
        base: OperandId,
        /// `[1]`.
        scale: OperandId,
        /// Added to the weights.
        eps: f32,
        /// Eps of the joint norm.
        norm_eps: f32,
    },
    /// A last hyper-residual read.
    HyperResidual(crate::block::HyperGate),
}

/// From the stream to logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exit {
    /// Joins several streams.
    pub reduction: Option<StreamReduction>,
    /// Final norm.
    pub norm: Option<RmsNorm>,
    /// `[vocabulary, hidden]`; the embedding itself where the checkpoint ties them.
    pub head: OperandId,
    /// Rows of the head that are logits.
    pub logits: usize,
    /// Multiplier of the normed hidden state before the head.
    pub scale: Option<f32>,
    /// `cap * tanh(logit / cap)`.
    pub soft_cap: Option<f32>,
}

/// A part of the checkpoint that is known, named and not executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnusedComponent {
    /// What it is: "vision tower".
    pub name: String,
    /// Why it is not executed.
    pub reason: String,
    /// Tensors that belong to it.
    pub tensors: Vec<String>,
}

impl Program {
    /// The operand with this id.
    ///
    /// # Panics
    /// If the id is not of this program; [`closure::check`](crate::closure::check) has excluded
    /// that for every program that opens.
    #[must_use]
    pub fn operand(&self, id: OperandId) -> &Operand {
        &self.operands[id.index()]
    }

    /// Parameters of the main model, tied ones once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let all = self.operands.iter().map(|o| o.elements() as u64);
        all.sum::<u64>() - self.draft_parameters()
    }

    /// Parameters that only the draft heads use.
    #[must_use]
    pub fn draft_parameters(&self) -> u64 {
        let own = draft_operands(self).into_iter();
        own.filter_map(|id| self.operands.get(id.index()))
            .map(|operand| operand.elements() as u64)
            .sum()
    }
}
