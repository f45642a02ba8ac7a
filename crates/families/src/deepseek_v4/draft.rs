//! The draft heads (multi-token prediction): recognised by name, not executed yet.

use super::config::Config;
use crate::common::{component, numbered};
use crate::sources::Sources;
use lamella_program::program::UnusedComponent;

/// Tensors of a draft head that are never in codes.
const PLAIN: &[&str] = &[
    "attn.attn_sink",
    "attn.kv_norm.weight",
    "attn.q_norm.weight",
    "attn_norm.weight",
    "enorm.weight",
    "ffn.gate.bias",
    "ffn.gate.weight",
    "ffn_norm.weight",
    "hc_attn_base",
    "hc_attn_fn",
    "hc_attn_scale",
    "hc_ffn_base",
    "hc_ffn_fn",
    "hc_ffn_scale",
    "hc_head_base",
    "hc_head_fn",
    "hc_head_scale",
    "hnorm.weight",
    "norm.weight",
];

/// Matrices of a draft head beside its experts: a weight, and scales where it is in codes.
const MATRICES: &[&str] = &[
    "attn.wkv",
    "attn.wo_a",
    "attn.wo_b",
    "attn.wq_a",
    "attn.wq_b",
    "e_proj",
    "ffn.shared_experts.w1",
    "ffn.shared_experts.w2",
    "ffn.shared_experts.w3",
    "h_proj",
];

/// Copies of the embedding and the head that some exports give a draft head.
const COPIES: &[&str] = &["emb.tok_emb.weight", "emb.weight", "head.weight"];

/// The draft heads that the configuration announces, as far as the checkpoint has them.
pub(super) fn heads(sources: &Sources<'_>, config: &Config) -> Vec<UnusedComponent> {
    let experts = config.experts.count;
    let belongs = |name: &str| {
        numbered(name, "mtp.").is_some_and(|(head, end)| {
            let plain = PLAIN.contains(&end) || COPIES.contains(&end);
            head < config.drafts && (plain || is_matrix(end, experts))
        })
    };
    let name = "draft head (multi-token prediction)";
    component(name, "not executed yet", sources.names(belongs))
        .into_iter()
        .collect()
}

/// Whether `end` is the weight or the scales of a matrix: `e_proj.scale`.
fn is_matrix(end: &str, experts: usize) -> bool {
    let Some((matrix, "weight" | "scale")) = end.rsplit_once('.') else {
        return false;
    };
    MATRICES.contains(&matrix)
        || numbered(matrix, "ffn.experts.")
            .is_some_and(|(expert, w)| expert < experts && matches!(w, "w1" | "w2" | "w3"))
}
