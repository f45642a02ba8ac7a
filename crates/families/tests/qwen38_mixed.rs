//! Qwen3.8's release with NVFP4 experts and MXFP8 elsewhere.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;
mod qwen38_table;

use common::{defects, program, with};
use lamella_program::{Defect, TensorInfo};
use qwen38_table::{Stored, released, tensors};
use serde_json::json;

/// The mixed release: attention, delta projections and shared experts in MXFP8 with scales of U8.
#[test]
fn the_mixed_release_closes() {
    let config = with(
        &released(),
        "quantization_config",
        json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}),
    );
    let mut table = tensors(&config, Stored::Nvfp4, false, &[320_001_536]);
    let mut scales = Vec::new();
    for tensor in &mut table {
        let mixed = [".self_attn.", ".linear_attn.", ".shared_expert."]
            .iter()
            .any(|part| tensor.name.contains(part));
        if mixed && tensor.name.ends_with("_proj.weight") && tensor.dtype == "BF16" {
            (tensor.dtype, tensor.encoding) = ("F8_E4M3".to_owned(), None);
            let shape = vec![tensor.shape[0], tensor.shape[1] / 32];
            scales.push(TensorInfo {
                name: format!("{}_scale", tensor.name),
                dtype: "U8".to_owned(),
                encoding: None,
                shape,
            });
        }
    }
    assert!(scales.len() > 48 * 4, "{}", scales.len());
    let damaged = scales[0].name.clone();
    table.extend(scales);
    let p = program(&config, &table);
    assert_eq!(p.parameters(), 176_943_899_520);
    let index = table.iter().position(|t| t.name == damaged).unwrap();
    table[index].dtype = "I8".to_owned();
    assert!(matches!(&defects(&config, &table)[..],
        [Defect::ElementType { tensor, dtype }] if *tensor == damaged && dtype == "I8"));
}
