//! Position-wise feed-forward blocks: dense units and mixtures of experts.

use crate::block::{Linear, RmsNorm};
use crate::operand::OperandId;
use serde::{Deserialize, Serialize};

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
