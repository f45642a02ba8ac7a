//! The closed vocabulary: what a layer may consist of.
//!
//! A layer is a residual scheme around two blocks, a mixer and an ffn; each block is
//! `pre-norm? body short-convolution? post-norm?`. Absent is not identity: `None` is "the paper
//! has no such thing", never "use 1.0". Every geometry is written out per layer; execution has no
//! defaults. The mixers are in [`mixer`](crate::mixer), the feed-forward blocks in
//! [`ffn`](crate::ffn); all are re-exported here.

pub use crate::ffn::*;
pub use crate::mixer::*;
use crate::operand::OperandId;
use serde::{Deserialize, Serialize};

/// Normalisation of a vector by its root mean square, `v / sqrt(mean(v²) + eps) * w`
/// (Zhang & Sennrich 2019, "Root Mean Square Layer Normalization").
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    /// Weight `[n]`; `None` for a weightless norm.
    pub weight: Option<OperandId>,
    /// Added to the mean square, inside the root.
    pub eps: f32,
    /// `true` where the stored weight is zero-centred and the multiplier is `1 + w`.
    pub unit_offset: bool,
}

/// A linear map `y = x Wᵀ + b`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Weight `[out, in]`.
    pub weight: OperandId,
    /// Bias `[out]`.
    pub bias: Option<OperandId>,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// What happens to the stream around the two blocks.
    pub residual: Residual,
    /// Sequence mixing.
    pub mixer: Block<Mixer>,
    /// Position-wise feed-forward.
    pub ffn: Block<Ffn>,
}

/// A body with what stands before and after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block<B> {
    /// Norm of the block's input.
    pub pre_norm: Option<RmsNorm>,
    /// The block itself.
    pub body: B,
    /// Causal depthwise convolution of the block's output (Inkling).
    pub convolution: Option<ShortConvolution>,
    /// Norm of the block's output.
    pub post_norm: Option<RmsNorm>,
}

/// How a block's output joins the stream between layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Residual {
    /// `x += block(x)`.
    Plain,
    /// Attention over the sums of earlier layer blocks (Kimi K3). The history lives only while a
    /// token walks through the layers.
    AttentionResidual {
        /// Read before the mixer.
        mixer_read: ResidualRead,
        /// Read before the ffn.
        ffn_read: ResidualRead,
        /// Whether the running sum is sealed into a history block before the mixer of this layer.
        seals: bool,
    },
    /// Manifold-constrained hyper-connections: `streams` residual streams mixed by a doubly
    /// stochastic matrix (DeepSeek V4).
    HyperConnections {
        /// Streams per token.
        streams: usize,
        /// Sinkhorn normalisation passes.
        sinkhorn_iterations: usize,
        /// Added inside the Sinkhorn passes and to the read weights.
        eps: f32,
        /// Eps of the joint norm of all streams.
        norm_eps: f32,
        /// Mapping of the mixer block.
        mixer: HyperMap,
        /// Mapping of the ffn block.
        ffn: HyperMap,
    },
    /// Gated low-rank read and write of `streams` streams (Qwen3.8-Flash-Next).
    HyperResidual {
        /// Streams per token.
        streams: usize,
        /// Gate around the mixer block.
        mixer: HyperGate,
        /// Gate around the ffn block.
        ffn: HyperGate,
    },
}

/// Query of an attention-residual read: candidates are scored by `(norm · projection)` on their
/// RMS-normalised values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualRead {
    /// Norm applied to each candidate for scoring.
    pub norm: RmsNorm,
    /// Projection `[1, hidden]`.
    pub projection: OperandId,
}

/// The three dynamic maps of one hyper-connection site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HyperMap {
    /// `[(2 + streams) * streams, streams * hidden]`.
    pub function: OperandId,
    /// `[(2 + streams) * streams]`.
    pub base: OperandId,
    /// `[3]`.
    pub scale: OperandId,
}

/// The gate of one hyper-residual site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HyperGate {
    /// Norm per stream, weight `[streams * hidden]`.
    pub norm: RmsNorm,
    /// `[rank, streams * hidden]`.
    pub down: Linear,
    /// `[streams * hidden, rank]`.
    pub up: Linear,
    /// `[streams, streams * hidden]`; `None` at the exit, which only reads.
    pub inject: Option<Linear>,
}

/// Most taps of a [`ShortConvolution`].
pub const MAX_TAPS: usize = 32;

/// Causal depthwise convolution with a short kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConvolution {
    /// `[channels, 1, taps]`; the last tap multiplies the current token.
    pub weight: OperandId,
    /// Taps, at most [`MAX_TAPS`].
    pub taps: usize,
    /// Distance in tokens between taps.
    pub dilation: usize,
    /// Whether the input is added to the result.
    pub residual: bool,
    /// Applied to the result.
    pub activation: Option<Activation>,
}

/// Element-wise non-linearities.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}
