//! Tensors in codes, as two exporters ship them.
//!
//! ModelOpt leaves a stack of experts its name and puts the scales beside it; releases leave some
//! layers as they were trained, so the type of each stack decides. compressed-tensors names the
//! codes anew, for other linear maps too, and its configuration says which maps are in which codes:
//! a tensor that contradicts it is a defect.

use super::parts::EXPERTS;
use crate::common::numbered;
use crate::compressed::{FP8, Format, NVFP4, Scheme};
use crate::config::{ConfigReader, Rejected};
use crate::sources::Sources;
use lamella_program::operand::Coding;
use serde_json::json;

/// What the name of a linear map ends in once more where compressed-tensors stores it in FP4.
pub(super) const PACKED: &str = ".weight_packed";
/// The same of its scales, in FP8 too.
const SCALE: &str = ".weight_scale";
/// The same of the divisors of these.
pub(super) const DIVISOR: &str = ".weight_global_scale";
/// The key of the configuration.
const KEY: &str = "quantization_config";

/// Where the layers are in the checkpoint.
const LAYERS: &str = "model.llm.layers.";
/// Where they are as other programs name them, which lists of modules may follow.
const LAYERS_ELSEWHERE: [&str; 2] = ["model.layers.", "model.language_model.layers."];
/// The linear maps of a layer, and what other programs call them.
const MAPS: [(&str, &[&str]); 9] = [
    ("attn.wq_du", &["attn.qkvr", "self_attn.q_proj"]),
    ("attn.wk_dv", &["attn.qkvr", "self_attn.k_proj"]),
    ("attn.wv_dv", &["attn.qkvr", "self_attn.v_proj"]),
    ("attn.wr_du", &["attn.qkvr", "self_attn.r_proj"]),
    ("attn.wo_ud", &["self_attn.o_proj"]),
    ("mlp.w13_dn", &["mlp.gate_up_proj", "mlp.gate_proj"]),
    ("mlp.w2_md", &["mlp.down_proj"]),
    (
        EXPERTS[0],
        &[
            "mlp.experts",
            "mlp.experts.gate_up_proj",
            "mlp.experts.0.gate_proj",
        ],
    ),
    (
        EXPERTS[1],
        &[
            "mlp.experts",
            "mlp.experts.down_proj",
            "mlp.experts.0.down_proj",
        ],
    ),
];
/// The head, and what other programs call it.
const HEAD: [&str; 2] = ["model.llm.unembed", "lm_head"];

/// Which tensors are codes.
#[derive(Default)]
pub(super) struct Codes {
    /// What compressed-tensors says, and the key it stands under.
    scheme: Option<(Scheme, String)>,
}

/// What a linear map is stored as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    Numbers,
    Fp4,
    Fp8,
}

impl Codes {
    /// Reads `quantization_config`, which stands beside the text model or in it.
    pub(super) fn read(
        c: &mut ConfigReader<'_>,
        text: &mut ConfigReader<'_>,
    ) -> Result<Codes, Rejected> {
        let beside = read_scheme(c);
        let inside = read_scheme(text);
        let scheme = match (beside?, inside?) {
            (Some(_), Some(_)) => return Err(c.refuse(KEY, "stands in text_config too")),
            (Some(scheme), None) => Some((scheme, KEY.to_owned())),
            (None, inside) => inside.map(|scheme| (scheme, format!("text_config.{KEY}"))),
        };
        Ok(Codes { scheme })
    }

    /// The tensor that holds the linear map `map`; `plain` where it is not named anew.
    pub(super) fn tensor(&self, sources: &Sources<'_>, map: &str, plain: String) -> String {
        let packed = format!("{map}{PACKED}");
        // Of one that is not there at all, the configuration tells.
        let meant = || !sources.has(&plain) && self.format(map) == Some(Format::Nvfp4);
        match sources.has(&packed) || meant() {
            true => packed,
            false => plain,
        }
    }

    /// How the elements of a tensor stand for numbers.
    pub(super) fn coding(&self, sources: &Sources<'_>, tensor: &str) -> Option<Coding> {
        if let Some(map) = tensor.strip_suffix(PACKED) {
            return Some(Coding::DividedNvfp4 {
                scale: format!("{map}{SCALE}"),
                divisor: format!("{map}{DIVISOR}"),
                part: [0, 1],
            });
        }
        if EXPERTS.iter().any(|end| tensor.ends_with(end)) {
            return model_opt(sources, tensor);
        }
        let map = tensor.strip_suffix(".weight")?;
        let Some(Format::Fp8 { block }) = self.format(map) else {
            return None;
        };
        let scale = format!("{map}{SCALE}");
        let scaled = || sources.has(&scale) && sources.takes_scales(tensor, &["F8_E4M3"]);
        let in_codes = sources.dtype(tensor) == Some("F8_E4M3") || scaled();
        let row = sources.shape(tensor).and_then(<[usize]>::last);
        let block = block.unwrap_or([1, row.copied().unwrap_or(1)]);
        in_codes.then_some(Coding::BlockFp8 { scale, block })
    }

    /// Refuses linear maps that are stored otherwise than the configuration says, `layers` of
    /// them.
    pub(super) fn check(&self, c: &mut ConfigReader<'_>, sources: &Sources<'_>, layers: usize) {
        let maps = (0..layers).flat_map(|i| MAPS.map(|(map, _)| format!("{LAYERS}{i}.{map}")));
        for map in maps.chain([HEAD[0].to_owned()]) {
            let Some(stored) = stored(sources, &map) else {
                continue;
            };
            let Some((scheme, key)) = &self.scheme else {
                if sources.has(&format!("{map}{PACKED}")) {
                    let message = format!("is missing, and {map}{PACKED} needs it");
                    let _ = c.refuse(KEY, message);
                    return;
                }
                continue;
            };
            let names = names(&map);
            let meant = match scheme.format(&names) {
                None => Stored::Numbers,
                Some(Format::Fp8 { .. }) => Stored::Fp8,
                Some(Format::Nvfp4 | Format::Mxfp4) => Stored::Fp4,
            };
            if meant == stored {
                continue;
            }
            let message = match (meant, stored) {
                (Stored::Numbers, _) => {
                    let _ = scheme.refuse_codes(c, &format!("{key}."), &map, &names);
                    continue;
                }
                (_, Stored::Numbers) => "which is stored as plain numbers",
                _ => "which is stored in other codes",
            };
            let message = format!("covers {map}, {message}");
            let _ = c.refuse(&format!("{key}.config_groups"), message);
        }
    }

    fn format(&self, map: &str) -> Option<Format> {
        let (scheme, _) = self.scheme.as_ref()?;
        scheme.format(&names(map))
    }
}

fn read_scheme(c: &mut ConfigReader<'_>) -> Result<Option<Scheme>, Rejected> {
    let Some(mut q) = c.object(KEY)? else {
        return Ok(None);
    };
    let method = q.require_kind("quant_method", &json!("compressed-tensors"));
    let scheme = method.and_then(|()| Scheme::read(&mut q, &[NVFP4, FP8]));
    c.absorb(q);
    scheme.map(Some)
}

/// FP4 stacks of experts are told from BF16 ones by their element type and their scales.
fn model_opt(sources: &Sources<'_>, tensor: &str) -> Option<Coding> {
    let scale = format!("{tensor}.scale");
    let global = format!("{tensor}.scale2");
    let in_codes = sources.takes_both(tensor, [&scale, &global], &["U8"]);
    in_codes.then_some(Coding::Nvfp4 { scale, global })
}

/// What a linear map is stored as; `None` where it is not there or of no use.
fn stored(sources: &Sources<'_>, map: &str) -> Option<Stored> {
    if sources.has(&format!("{map}{PACKED}")) {
        return Some(Stored::Fp4);
    }
    let matrix = sources.dtype(&format!("{map}.weight"));
    Some(match matrix.or_else(|| sources.dtype(map))? {
        "F8_E4M3" => Stored::Fp8,
        "U8" => Stored::Fp4,
        "BF16" | "F16" | "F32" => Stored::Numbers,
        // The closure check names it.
        _ => return None,
    })
}

/// The names that a linear map of the main model goes by; none where there is no such map.
fn names(map: &str) -> Vec<String> {
    if map == HEAD[0] {
        return HEAD.map(str::to_owned).to_vec();
    }
    let Some((layer, end)) = numbered(map, LAYERS) else {
        return Vec::new();
    };
    let Some((_, others)) = MAPS.iter().find(|(own, _)| *own == end) else {
        return Vec::new();
    };
    let ends = || [end].into_iter().chain(others.iter().copied());
    let places = [LAYERS].into_iter().chain(LAYERS_ELSEWHERE);
    places
        .flat_map(|place| ends().map(move |end| format!("{place}{layer}.{end}")))
        .collect()
}
