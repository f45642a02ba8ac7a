//! The Edge adapters of the families under the names that hosts call: this file becomes
//! `edge_adapters.h`. No other code outside `families` names a family.

use super::{edge, family};
use std::ffi::c_int;

/// Registers `deepseek_v4`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_deepseek_v4_edge_adapter_register() -> c_int {
    edge::register(const { family("deepseek_v4") })
}

/// Registers `glm`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_glm_edge_adapter_register() -> c_int {
    edge::register(const { family("glm") })
}

/// Registers `inkling`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_inkling_edge_adapter_register() -> c_int {
    edge::register(const { family("inkling") })
}

/// Registers `kimi`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_kimi_edge_adapter_register() -> c_int {
    edge::register(const { family("kimi") })
}

/// Registers `olmoe`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_olmoe_edge_adapter_register() -> c_int {
    edge::register(const { family("olmoe") })
}

/// Registers `qwen36`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_qwen36_edge_adapter_register() -> c_int {
    edge::register(const { family("qwen36") })
}

/// Registers `qwen38`.
#[unsafe(no_mangle)]
pub extern "C" fn coli_qwen38_edge_adapter_register() -> c_int {
    edge::register(const { family("qwen38") })
}
