//! The Segment adapters of the families under the names that hosts call: this file becomes
//! `segment_adapters.h`. No other code outside `families` names a family.

use super::{family, segment};
use std::ffi::c_int;

/// Registers `deepseek_v4`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_deepseek_v4_segment_adapter_register() -> c_int {
    segment::register(const { family("deepseek_v4") })
}

/// Registers `glm`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_glm_segment_adapter_register() -> c_int {
    segment::register(const { family("glm") })
}

/// Registers `inkling`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_inkling_segment_adapter_register() -> c_int {
    segment::register(const { family("inkling") })
}

/// Registers `kimi`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_kimi_segment_adapter_register() -> c_int {
    segment::register(const { family("kimi") })
}

/// Registers `olmoe`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_olmoe_segment_adapter_register() -> c_int {
    segment::register(const { family("olmoe") })
}

/// Registers `qwen36`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_qwen36_segment_adapter_register() -> c_int {
    segment::register(const { family("qwen36") })
}

/// Registers `qwen38`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_qwen38_segment_adapter_register() -> c_int {
    segment::register(const { family("qwen38") })
}
