//! Names of tensors in the two spellings: the vendor's, which this lowering is written in, and that
//! of transformers.

use crate::sources::Sources;

/// Where the vendor keeps layers.
const LAYERS: &str = "layers.";
/// Where transformers keeps everything but the head.
const MODEL: &str = "model.";
/// The tensors outside layers.
const ENDS: [(&str, &str); 6] = [
    ("embed.weight", "model.embed_tokens.weight"),
    ("head.weight", "lm_head.weight"),
    ("norm.weight", "model.norm.weight"),
    ("hc_head_fn", "model.hc_head.hc_fn"),
    ("hc_head_base", "model.hc_head.hc_base"),
    ("hc_head_scale", "model.hc_head.hc_scale"),
];
/// What a layer is made of.
const PARTS: [(&str, &str); 33] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("hc_attn_fn", "attn_hc.fn"),
    ("hc_attn_base", "attn_hc.base"),
    ("hc_attn_scale", "attn_hc.scale"),
    ("hc_ffn_fn", "ffn_hc.fn"),
    ("hc_ffn_base", "ffn_hc.base"),
    ("hc_ffn_scale", "ffn_hc.scale"),
    ("attn.attn_sink", "self_attn.sinks"),
    ("attn.wq_a", "self_attn.q_a_proj"),
    ("attn.q_norm", "self_attn.q_a_norm"),
    ("attn.wq_b", "self_attn.q_b_proj"),
    ("attn.wkv", "self_attn.kv_proj"),
    ("attn.kv_norm", "self_attn.kv_norm"),
    ("attn.wo_a", "self_attn.o_a_proj"),
    ("attn.wo_b", "self_attn.o_b_proj"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    ("attn.compressor.wkv", "self_attn.compressor.kv_proj"),
    ("attn.compressor.wgate", "self_attn.compressor.gate_proj"),
    ("attn.compressor.norm", "self_attn.compressor.kv_norm"),
    ("attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj"),
    (WEIGHTS, "self_attn.compressor.indexer.scorer.weights_proj"),
    (
        "attn.indexer.compressor.ape",
        "self_attn.compressor.indexer.position_bias",
    ),
    (
        "attn.indexer.compressor.wkv",
        "self_attn.compressor.indexer.kv_proj",
    ),
    (
        "attn.indexer.compressor.wgate",
        "self_attn.compressor.indexer.gate_proj",
    ),
    (
        "attn.indexer.compressor.norm",
        "self_attn.compressor.indexer.kv_norm",
    ),
    ("ffn.gate.weight", "mlp.gate.weight"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.gate.tid2eid", "mlp.gate.tid2eid"),
    ("ffn.experts", "mlp.experts"),
    ("ffn.shared_experts.w1", "mlp.shared_experts.gate_proj"),
    ("ffn.shared_experts.w2", "mlp.shared_experts.down_proj"),
    ("ffn.shared_experts.w3", "mlp.shared_experts.up_proj"),
];
/// The map whose place in transformers has changed.
const WEIGHTS: &str = "attn.indexer.weights_proj";
/// Its first place.
const WEIGHTS_BEFORE: &str = "self_attn.compressor.indexer.weights_proj";

/// How a checkpoint spells the names of its tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As the vendor does.
    Vendor,
    /// As transformers does; draft heads, which it does not know, keep the vendor's names.
    Transformers {
        /// The map whose place has changed is in its first one.
        first: bool,
    },
}

impl Spelling {
    /// That of the checkpoint's layers.
    pub(super) fn of(sources: &Sources<'_>) -> Spelling {
        let any = |start: &str| !sources.names(|name| name.starts_with(start)).is_empty();
        if any(LAYERS) || !any(MODEL) {
            return Spelling::Vendor;
        }
        let first = |name: &str| name.contains(WEIGHTS_BEFORE);
        Spelling::Transformers {
            first: !sources.names(first).is_empty(),
        }
    }

    /// The checkpoint's name of what the vendor calls `vendor`, a tensor or the start of the names
    /// of several.
    pub(super) fn of_vendor(self, vendor: &str) -> String {
        match self {
            Spelling::Vendor => vendor.to_owned(),
            Spelling::Transformers { first } => {
                respelt(vendor, first).unwrap_or_else(|| vendor.to_owned())
            }
        }
    }
}

/// The name in transformers; `None` where it is the same.
fn respelt(vendor: &str, first: bool) -> Option<String> {
    if let Some((_, other)) = ENDS.iter().find(|(own, _)| *own == vendor) {
        return Some((*other).to_owned());
    }
    let (layer, inner) = vendor.strip_prefix(LAYERS)?.split_once('.')?;
    let part = |own: &str| {
        let end = inner.strip_prefix(own)?;
        (end.is_empty() || end.starts_with('.')).then_some(end)
    };
    let (own, other, end) = PARTS
        .iter()
        .find_map(|&(own, other)| Some((own, other, part(own)?)))?;
    let other = if own == WEIGHTS && first {
        WEIGHTS_BEFORE
    } else {
        other
    };
    Some(format!("{MODEL}{LAYERS}{layer}.{other}{end}"))
}

/// The scales of a tensor in codes.
pub(super) fn scale_of(tensor: &str) -> Option<String> {
    if tensor.starts_with(MODEL) || tensor == "lm_head.weight" {
        return Some(format!("{tensor}_scale_inv"));
    }
    Some(format!("{}scale", tensor.strip_suffix("weight")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_name_the_same_tensor() {
        let new = Spelling::Transformers { first: false };
        for (vendor, other) in [
            ("embed.weight", "model.embed_tokens.weight"),
            (
                "layers.3.attn_norm.weight",
                "model.layers.3.input_layernorm.weight",
            ),
            ("layers.0.hc_ffn_base", "model.layers.0.ffn_hc.base"),
            (
                "layers.12.attn.wq_a.weight",
                "model.layers.12.self_attn.q_a_proj.weight",
            ),
            (
                "layers.1.attn.kv_norm.weight",
                "model.layers.1.self_attn.kv_norm.weight",
            ),
            (
                "layers.1.attn.indexer.weights_proj.weight",
                "model.layers.1.self_attn.compressor.indexer.scorer.weights_proj.weight",
            ),
            (
                "layers.1.attn.indexer.compressor.norm.weight",
                "model.layers.1.self_attn.compressor.indexer.kv_norm.weight",
            ),
            ("layers.1.ffn.experts", "model.layers.1.mlp.experts"),
            ("mtp.0.attn.wq_a.weight", "mtp.0.attn.wq_a.weight"),
            ("mtp.0.hc_head_fn", "mtp.0.hc_head_fn"),
        ] {
            assert_eq!(new.of_vendor(vendor), other);
            assert_eq!(Spelling::Vendor.of_vendor(vendor), vendor);
        }
        let first = Spelling::Transformers { first: true };
        assert_eq!(
            first.of_vendor("layers.1.attn.indexer.weights_proj.weight"),
            "model.layers.1.self_attn.compressor.indexer.weights_proj.weight"
        );
    }
}
