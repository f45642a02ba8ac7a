//! Sequence mixers: attention in its forms, and the recurrent ones.

use crate::block::{Activation, Linear, RmsNorm, ShortConvolution};
use crate::operand::OperandId;
use serde::{Deserialize, Serialize};

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

/// A lightning indexer: small heads that score positions or blocks for selection. The score of a
/// candidate key `k` is `scale * sum over heads h of weight_h * relu(query_h . k)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Index heads.
    pub heads: usize,
    /// Channels per index head.
    pub head_dim: usize,
    /// Candidates kept: tokens, blocks of tokens, or entries of a compressor.
    pub top_k: usize,
    /// Consecutive tokens pooled to one candidate; 1 = a token, or an entry, as it is. More only in
    /// [`Attention`], where all tokens after the last whole block are visible besides.
    pub block: usize,
    /// Index queries, of the layer's query latent where it has one, otherwise of its input.
    pub query: Linear,
    /// Index keys; `None` where they come from the layer's compressor.
    pub key: Option<Linear>,
    /// Norm of index queries, per head; only in [`Attention`].
    pub query_norm: Option<RmsNorm>,
    /// Norm of index keys.
    pub key_norm: Option<IndexNorm>,
    /// Weight per head, of the layer's input; `None` = 1. Never in [`Attention`].
    pub head_weights: Option<Linear>,
    /// Multiplier of every score, positive.
    pub scale: f32,
    /// Rotation of index queries and keys. Entries of a compressor always rotate.
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
/// Networks"). KDA decays each key channel, the gated delta net each head. Queries and keys are
/// divided by `sqrt(sum of squares + 1e-6)` per head, queries also by `sqrt(key_dim)`.
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
    /// Bias of the decay logit, as long as it.
    pub decay_bias: OperandId,
    /// Lower bound of the log decay, which is `floor * sigmoid(exp(A) * (logit + bias))` (KDA);
    /// `None` = `-exp(A) * softplus(logit + bias)`.
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
