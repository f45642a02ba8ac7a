//! The closed vocabulary: what a layer may consist of.
//!
//! A layer is a residual scheme around two blocks, a mixer and an ffn; each block is
//! `pre-norm? body short-convolution? post-norm?`. Absent is not identity: `None` is "the paper
//! has no such thing", never "use 1.0". Every geometry is written out per layer; execution has no
//! defaults.

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

/// Sequence mixers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Mixer {
    /// Multi-head attention with grouped key/value heads.
    Attention(Attention),
    /// Attention over a shared low-rank latent (MLA).
    LatentAttention(LatentAttention),
    /// Window plus compressed entries (DeepSeek V4).
    CompressedAttention(CompressedAttention),
    /// Kimi delta attention: a gated delta rule with a decay per key channel.
    Kda(DeltaNet),
    /// Gated delta net: a gated delta rule with a decay per head.
    GatedDeltaNet(DeltaNet),
}

/// Multi-head attention with grouped key/value heads (Ainslie et al. 2023).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; query head `h` reads key/value head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// `[heads * head_dim, hidden]`.
    pub query: Linear,
    /// `[kv_heads * head_dim, hidden]`.
    pub key: Linear,
    /// `[kv_heads * head_dim, hidden]`.
    pub value: Linear,
    /// `[hidden, heads * head_dim]`.
    pub output: Linear,
    /// Norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Clamp of queries and keys (after their norm) and of values to ±clip.
    pub clip: Option<f32>,
    /// Position encoding; `None` = no rotation.
    pub rope: Option<Rope>,
    /// Multiplier of every score.
    pub scale: f32,
    /// Which earlier tokens are visible.
    pub span: Span,
    /// Learned logit in the softmax denominator, `[heads]`.
    pub sinks: Option<OperandId>,
    /// Sigmoid gate of the heads' output before the output projection.
    pub output_gate: Option<Linear>,
    /// Learned relative bias (Inkling).
    pub relative_bias: Option<RelativeBias>,
    /// Convolutions of keys and values before their norms (Inkling).
    pub convolutions: Option<KeyValueConvolutions>,
    /// Score multiplier that grows with position (Inkling).
    pub position_scaling: Option<PositionScaling>,
    /// Block-sparse selection (QSA).
    pub indexer: Option<Indexer>,
}

/// Norm of queries and keys before rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QkNorm {
    /// What one norm covers.
    pub scope: QkNormScope,
    /// Norm of queries.
    pub query: RmsNorm,
    /// Norm of keys.
    pub key: RmsNorm,
}

/// What one query/key norm covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNormScope {
    /// The whole projected vector, all heads together (OLMoE).
    Projection,
    /// Each head on its own.
    Head,
}

/// Which earlier tokens an attention layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Span {
    /// All of them.
    Full,
    /// The last `window` ones, the current token included.
    Sliding {
        /// Tokens, the current one included.
        window: usize,
    },
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the geometric frequency series.
    pub theta: f64,
    /// Rotated channels.
    pub dims: usize,
    /// Which end of the head they are.
    pub place: RopePlace,
    /// Which channels form a pair.
    pub pairing: RopePairing,
    /// YaRN interpolation of the frequencies.
    pub yarn: Option<Yarn>,
}

/// Which channels of a head rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePlace {
    /// The first ones.
    First,
    /// The last ones.
    Last,
}

/// Which channels rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairing {
    /// Channel `j` with `j + dims / 2`.
    Half,
    /// Channel `2j` with `2j + 1`.
    Adjacent,
}

/// YaRN frequency interpolation (Peng et al. 2023), without attention scaling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// Extension factor.
    pub factor: f64,
    /// Context the model was pre-trained with.
    pub original_context: usize,
    /// Rotations above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided.
    pub beta_slow: f64,
}

/// Bias of a score by distance, computed from the query token: `R = r · projection`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelativeBias {
    /// `[heads * rank, hidden]`.
    pub query: Linear,
    /// `[rank, extent]`.
    pub projection: OperandId,
    /// Distances at or beyond it have no bias.
    pub extent: usize,
}

/// Convolutions over the flat key and value vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyValueConvolutions {
    /// Of the keys.
    pub key: ShortConvolution,
    /// Of the values.
    pub value: ShortConvolution,
}

/// Score multiplier `1 + alpha * ln(max((t + 1) / floor, 1))` at position `t`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PositionScaling {
    /// Tokens up to which the multiplier is 1.
    pub floor: f64,
    /// Growth.
    pub alpha: f64,
}

/// Causal depthwise convolution with a short kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConvolution {
    /// `[channels, 1, taps]`; the last tap multiplies the current token.
    pub weight: OperandId,
    /// Taps.
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

/// Multi-head latent attention (DeepSeek-V2, 2024).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: usize,
    /// Unrotated channels of a query or key head.
    pub nope_dim: usize,
    /// Channels shared by all key heads.
    pub rope_dim: usize,
    /// Channels of a value head.
    pub value_dim: usize,
    /// Width of the latent row.
    pub latent_dim: usize,
    /// `[q_rank, hidden]`.
    pub query_down: Linear,
    /// Norm of the query latent.
    pub query_norm: RmsNorm,
    /// `[heads * (nope + rope), q_rank]`.
    pub query_up: Linear,
    /// `[latent + rope, hidden]`.
    pub latent_down: Linear,
    /// Norm of the latent row.
    pub latent_norm: RmsNorm,
    /// `[heads * (nope + value), latent]`, per head key rows, then value rows.
    pub latent_up: Linear,
    /// `[hidden, heads * value]`.
    pub output: Linear,
    /// Rotation of the shared channels; `None` = no rotation.
    pub rope: Option<Rope>,
    /// Multiplier of every score.
    pub scale: f32,
    /// Sigmoid gate before the output projection.
    pub output_gate: Option<Linear>,
    /// Top-k selection (DSA): own weights, or the selection of the nearest earlier owner.
    pub selection: Option<LatentSelection>,
}

/// Where a latent attention layer takes its selected positions from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum LatentSelection {
    /// This layer scores positions itself.
    Own(Indexer),
    /// The nearest earlier layer that owns an indexer has chosen.
    Shared,
}

/// A lightning indexer: small heads that score positions or blocks for selection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Index heads.
    pub heads: usize,
    /// Channels per index head.
    pub head_dim: usize,
    /// Tokens (or entries) kept.
    pub top_k: usize,
    /// Consecutive tokens pooled to one candidate; 1 = single tokens.
    pub block: usize,
    /// Index queries.
    pub query: Linear,
    /// Index keys; `None` where they come from the layer's compressor.
    pub key: Option<Linear>,
    /// Norm of index queries.
    pub query_norm: Option<RmsNorm>,
    /// Norm of index keys.
    pub key_norm: Option<IndexNorm>,
    /// Weight per head; `None` = plain sum.
    pub head_weights: Option<Linear>,
    /// Rotation of index queries and keys.
    pub rope: Option<Rope>,
}

/// Norm of index keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum IndexNorm {
    /// RMS norm.
    Rms(RmsNorm),
    /// Mean and variance norm with bias (Ba et al. 2016).
    Layer {
        /// `[head_dim]`.
        weight: OperandId,
        /// `[head_dim]`.
        bias: OperandId,
        /// Added to the variance.
        eps: f32,
    },
}

/// Attention over a sliding window and compressed entries (DeepSeek V4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressedAttention {
    /// Query heads; one key/value vector serves all.
    pub heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// Tokens of the sliding window, the current one included.
    pub window: usize,
    /// `[q_rank, hidden]`.
    pub query_down: Linear,
    /// Norm of the query latent.
    pub query_norm: RmsNorm,
    /// `[heads * head_dim, q_rank]`.
    pub query_up: Linear,
    /// Weightless norm per query head.
    pub query_head_norm: RmsNorm,
    /// `[head_dim, hidden]`.
    pub key_value: Linear,
    /// Norm of the key/value vector.
    pub key_value_norm: RmsNorm,
    /// Rotation; undone on the output at the query's position.
    pub rope: Rope,
    /// Multiplier of every score.
    pub scale: f32,
    /// Learned logit in the denominator, `[heads]`.
    pub sinks: OperandId,
    /// Output groups of the block-diagonal first output map.
    pub output_groups: usize,
    /// `[groups * rank, heads * head_dim / groups]`.
    pub output_down: Linear,
    /// `[hidden, groups * rank]`.
    pub output_up: Linear,
    /// Compressed entries; `None` on window-only layers.
    pub compressor: Option<Compressor>,
    /// Selection among compressed entries; `None` = all visible ones.
    pub indexer: Option<CompressedIndexer>,
}

/// Pools windows of tokens into one entry by a softmax per channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compressor {
    /// Tokens per entry.
    pub ratio: usize,
    /// Whether each entry also pools the previous window's first half of the channels.
    pub overlaps: bool,
    /// Gate bias by position in the window.
    pub position: OperandId,
    /// Values to pool.
    pub value: Linear,
    /// Gate logits.
    pub gate: Linear,
    /// Norm of a finished entry.
    pub norm: RmsNorm,
}

/// An indexer with its own compressor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressedIndexer {
    /// Scoring.
    pub indexer: Indexer,
    /// Entries that are scored.
    pub compressor: Compressor,
}

/// A gated delta rule over a recurrent matrix per head (Yang et al. 2024, "Gated Delta
/// Networks"). KDA decays each key channel, the gated delta net each head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaNet {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads; value head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Channels of a key head.
    pub key_dim: usize,
    /// Channels of a value head.
    pub value_dim: usize,
    /// Queries.
    pub query: Linear,
    /// Keys.
    pub key: Linear,
    /// Values.
    pub value: Linear,
    /// Convolutions of queries, keys and values, in this order.
    pub convolutions: [ShortConvolution; 3],
    /// Maps from the input to the decay logit, applied in turn (two where low-rank).
    pub decay: Vec<Linear>,
    /// `[value_heads]`, or longer with unused padding.
    pub decay_log: OperandId,
    /// Bias of the decay logit.
    pub decay_bias: OperandId,
    /// Lower bound of the log decay (KDA); `None` = `-exp(A) * softplus`.
    pub decay_floor: Option<f32>,
    /// Write strength.
    pub beta: Linear,
    /// Output gate.
    pub gate: Linear,
    /// Activation of the output gate.
    pub gate_activation: Activation,
    /// Norm per head before the gate.
    pub norm: RmsNorm,
    /// Output projection.
    pub output: Linear,
}

/// Position-wise feed-forward blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Ffn {
    /// One gated unit for every token.
    Dense(GatedUnit),
    /// A mixture of experts.
    Routed(Routed),
}

/// `down(act(gate(x), up(x)))` (Shazeer 2020, "GLU Variants Improve Transformer").
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedUnit {
    /// `[width, in]`.
    pub gate: OperandId,
    /// `[width, in]`.
    pub up: OperandId,
    /// `[out, width]`.
    pub down: OperandId,
    /// Width of the inner vector.
    pub width: usize,
    /// How gate and up are combined.
    pub activation: GatedActivation,
    /// Sigmoid gate of the whole output, `[1, in]` (Qwen shared expert).
    pub output_gate: Option<OperandId>,
    /// Learned scale of the output, `[1]`.
    pub output_scale: Option<OperandId>,
}

/// How a gated unit combines its two branches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum GatedActivation {
    /// `silu(gate) * up`.
    Silu,
    /// `silu(min(gate, limit)) * clamp(up, -limit, limit)` (DeepSeek V4).
    ClampedSilu {
        /// Bound of both branches.
        limit: f32,
    },
    /// `beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta)` (Kimi K3).
    Situ {
        /// Bound of the gate branch.
        beta: f32,
        /// Bound of the linear branch.
        linear_beta: f32,
    },
}

/// A mixture of experts: router, experts, shared experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routed {
    /// Who is chosen, with which weight.
    pub router: Router,
    /// Number of routed experts.
    pub experts: usize,
    /// Experts chosen per token.
    pub top_k: usize,
    /// The experts' weights, stacked: `[experts, width, in]` and `[experts, out, width]`.
    pub unit: GatedUnit,
    /// Experts every token visits; they see the full input.
    pub shared: Vec<GatedUnit>,
    /// Projections into and out of the width the experts work at (Kimi K3).
    pub latent: Option<LatentExperts>,
}

/// Projections around experts that work at another width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentExperts {
    /// Into the experts' width.
    pub down: Linear,
    /// Norm of the weighted sum.
    pub norm: Option<RmsNorm>,
    /// Back to the hidden size.
    pub up: Linear,
}

/// How experts are chosen and weighted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// `[experts (+ shared), in]`.
    pub weight: OperandId,
    /// Logit to score.
    pub scoring: Scoring,
    /// Added to the score for selection only, `[experts]`.
    pub selection_bias: Option<OperandId>,
    /// Selection in two stages.
    pub groups: Option<RouterGroups>,
    /// Choice by token id instead of score, `[vocabulary, top_k]` (DeepSeek V4).
    pub hash_table: Option<OperandId>,
    /// What happens to the chosen scores.
    pub weights: WeightRule,
    /// Multiplier of the final weights; `None` = none.
    pub scale: Option<f32>,
    /// Learned multiplier of the final weights, `[1]` (Inkling).
    pub learned_scale: Option<OperandId>,
}

/// From router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// `sqrt(softplus(logit))` of each logit.
    SqrtSoftplus,
}

/// From chosen scores to mixing weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WeightRule {
    /// The scores as they are.
    Raw,
    /// Divided by their sum plus `eps`.
    Normalised {
        /// Added to the sum; 0 where the paper has none.
        eps: f32,
    },
    /// Normalised together with the shared experts' scores, which get weights of their own
    /// (Inkling).
    WithShared {
        /// Shared experts that take part.
        shared: usize,
    },
}

/// Grouped selection: only the best groups compete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterGroups {
    /// Groups.
    pub count: usize,
    /// Groups kept.
    pub top_k: usize,
}
