//! Configuration keys that the families of the Qwen line share.

use crate::config::{ConfigReader, MAX_EXPERTS, MAX_HEADS, MAX_WIDTH, Rejected};
use crate::qwen::{DeltaHeads, GatedHeads, Mixture};
use crate::rope_keys::read_rope;
use lamella_program::block::{Activation, Rope, RopePairing, RopePlace};

/// Taps of a convolution that are believed.
pub(crate) const MAX_TAPS: usize = 64;
/// Keys that share channels out to the three axes of a position, which for text are equal.
const INERT_ROPE: &[&str] = &["mrope_interleaved", "mrope_section"];

/// Reads the heads of gated attention; `share` of a head's channels rotate where nothing is said.
pub(crate) fn read_attention(c: &mut ConfigReader<'_>, share: f64) -> Result<GatedHeads, Rejected> {
    let heads = c.count("num_attention_heads", MAX_HEADS);
    let kv_heads = c.count("num_key_value_heads", MAX_HEADS);
    let head_dim = c.count("head_dim", MAX_WIDTH);
    let rope = read_rope(c, INERT_ROPE);
    if rope.partial_rejected {
        return Err(Rejected);
    }
    let (heads, kv_heads, head_dim) = (heads?, kv_heads?, head_dim?);
    if !heads.is_multiple_of(kv_heads) {
        let message = format!("{heads} query heads cannot share {kv_heads} key heads");
        return Err(c.reject("num_key_value_heads", message));
    }
    let dims = (head_dim as f64 * rope.partial.unwrap_or(share)) as usize;
    if dims == 0 || !dims.is_multiple_of(2) {
        let message = format!("of {head_dim} channels makes {dims}, which do not form pairs");
        return Err(c.reject("partial_rotary_factor", message));
    }
    Ok(GatedHeads {
        heads,
        kv_heads,
        head_dim,
        rope: Rope {
            theta: rope.theta,
            dims,
            place: RopePlace::First,
            pairing: RopePairing::Half,
            yarn: None,
        },
    })
}

/// Reads the heads of a delta net.
pub(crate) fn read_delta(
    c: &mut ConfigReader<'_>,
    gate: Activation,
) -> Result<DeltaHeads, Rejected> {
    let key_heads = c.count("linear_num_key_heads", MAX_HEADS);
    let value_heads = c.count("linear_num_value_heads", MAX_HEADS);
    let key_dim = c.count("linear_key_head_dim", MAX_WIDTH);
    let value_dim = c.count("linear_value_head_dim", MAX_WIDTH);
    let taps = c.count("linear_conv_kernel_dim", MAX_TAPS);
    let (key_heads, value_heads) = (key_heads?, value_heads?);
    if !value_heads.is_multiple_of(key_heads) {
        let message = format!("{value_heads} value heads cannot share {key_heads} key heads");
        return Err(c.reject("linear_num_value_heads", message));
    }
    Ok(DeltaHeads {
        key_heads,
        value_heads,
        key_dim: key_dim?,
        value_dim: value_dim?,
        taps: taps?,
        gate,
    })
}

/// Reads a mixture of experts, which renormalises where nothing else is said.
pub(crate) fn read_mixture(c: &mut ConfigReader<'_>) -> Result<Mixture, Rejected> {
    let experts = c.count("num_experts", MAX_EXPERTS);
    let top_k = c.count("num_experts_per_tok", MAX_EXPERTS);
    let width = c.count("moe_intermediate_size", MAX_WIDTH);
    let shared_width = c.count("shared_expert_intermediate_size", MAX_WIDTH);
    let renormalise = c.optional_flag("norm_topk_prob").unwrap_or(None);
    let (experts, top_k) = (experts?, top_k?);
    if top_k > experts {
        let message = format!("{top_k} experts cannot be chosen of {experts}");
        return Err(c.reject("num_experts_per_tok", message));
    }
    Ok(Mixture {
        experts,
        top_k,
        width: width?,
        shared_width: shared_width?,
        renormalise: renormalise.unwrap_or(true),
    })
}
