//! Parts of the checkpoint that are known and not executed, claimed name by name.

use super::config::Config;
use super::parts;
use crate::common::{component, numbered};
use crate::sources::Sources;
use lamella_program::program::UnusedComponent;

/// Tensors of a draft head beside its decoder layer.
const DRAFT: [&str; 3] = [
    "hidden_norm.weight",
    "embed_norm.weight",
    "input_proj.weight",
];
/// Tensors of a draft head's layer, which is a dense one.
const DENSE_LAYER: [&str; 17] = [
    "attn.k_norm.weight",
    "attn.k_sconv.weight",
    "attn.q_norm.weight",
    "attn.rel_logits_proj.proj",
    "attn.v_sconv.weight",
    "attn.wk_dv.weight",
    "attn.wo_ud.weight",
    "attn.wq_du.weight",
    "attn.wr_du.weight",
    "attn.wv_dv.weight",
    "attn_norm.weight",
    "attn_sconv.weight",
    "mlp.global_scale",
    "mlp.w13_dn.weight",
    "mlp.w2_md.weight",
    "mlp_norm.weight",
    "mlp_sconv.weight",
];
/// Tensors beside a stack of experts in FP4 that its numbers do not depend on.
const BESIDE_CODES: [&str; 2] = [".input_amax", ".original_shape"];

/// What of the checkpoint is not executed.
pub(super) fn components(c: &Config, sources: &Sources<'_>) -> Vec<UnusedComponent> {
    let vision = sources.names(is_vision);
    let audio = sources.names(|name| {
        [
            "model.audio.encoder.weight",
            "model.audio.final_norm.weight",
        ]
        .contains(&name)
    });
    let drafts = sources.names(|name| is_draft(name, c.drafts));
    let beside = sources.names(|name| is_beside_codes(name, c, sources));
    let text_only = "only text is computed";
    [
        component("vision tower", text_only, vision),
        component("audio tower", text_only, audio),
        component(
            "draft heads (multi-token prediction)",
            "not executed yet",
            drafts,
        ),
        component(
            "calibration of inputs and shapes of FP4 experts",
            "the numbers do not depend on it",
            beside,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn is_vision(name: &str) -> bool {
    let layer = |kind: &str| numbered(name, &format!("model.visual.layers.{kind}_"));
    name == "model.visual.final_norm.weight"
        || [layer("linear"), layer("norm")]
            .into_iter()
            .flatten()
            .any(|(_, end)| end == "weight")
}

fn is_draft(name: &str, count: Option<usize>) -> bool {
    if name == "model.mtp.chain_norm.weight" {
        return true;
    }
    let Some((index, end)) = numbered(name, "model.mtp.layers.") else {
        return false;
    };
    let layer = end.strip_prefix("transformer_block.");
    count.is_none_or(|count| index < count)
        && (DRAFT.contains(&end) || layer.is_some_and(|end| DENSE_LAYER.contains(&end)))
}

/// Whether `name` stands beside a stack of experts that is in codes.
fn is_beside_codes(name: &str, c: &Config, sources: &Sources<'_>) -> bool {
    let stack = BESIDE_CODES.iter().find_map(|end| name.strip_suffix(end));
    let Some(stack) = stack.filter(|stack| super::coding(sources, stack).is_some()) else {
        return false;
    };
    numbered(stack, "model.llm.layers.")
        .is_some_and(|(index, end)| index < c.layers.len() && parts::EXPERTS.contains(&end))
}
