//! Types and constants of Edge version 2, as C sees them: this file becomes `edge_runtime.h`,
//! together with the functions of `exports.rs`.

#![expect(
    non_camel_case_types,
    reason = "variants are constants of C under these names"
)]

use std::ffi::{c_char, c_int, c_void};

/// Version of this interface, as every adapter and every capability block carries it.
pub const COLI_EDGE_ABI_VERSION: u32 = 2u32;
/// Bytes of an engine id, its NUL included.
pub const COLI_EDGE_ENGINE_ID_CAP: usize = 64;
/// Bytes of a state schema, its NUL included.
pub const COLI_EDGE_STATE_SCHEMA_CAP: usize = 128;
/// Bytes of a numeric class, its NUL included.
pub const COLI_EDGE_NUMERIC_CLASS_CAP: usize = 96;
/// Bytes of a tokenizer class, its NUL included.
pub const COLI_EDGE_TOKENIZER_CLASS_CAP: usize = 64;

/// `flags`: text becomes ids.
pub const COLI_EDGE_CAP_TOKENIZE: u64 = 1u64;
/// `flags`: ids become text.
pub const COLI_EDGE_CAP_DETOKENIZE: u64 = 2u64;
/// `flags`: the most likely id of a row can be had.
pub const COLI_EDGE_CAP_GREEDY: u64 = 4u64;
/// `flags`: the logits of a row can be had.
pub const COLI_EDGE_CAP_LOGITS: u64 = 8u64;
/// `flags` and `backend_mask`: the processor computes.
pub const COLI_EDGE_CAP_CPU: u64 = 256u64;
/// `flags` and `backend_mask`: a CUDA device computes.
pub const COLI_EDGE_CAP_CUDA: u64 = 512u64;
/// `flags` and `backend_mask`: a HIP device computes.
pub const COLI_EDGE_CAP_HIP: u64 = 1024u64;
/// `flags` and `backend_mask`: a Metal device computes.
pub const COLI_EDGE_CAP_METAL: u64 = 2048u64;
/// `flags` and `backend_mask`: a Vulkan device computes.
pub const COLI_EDGE_CAP_VULKAN: u64 = 4096u64;
/// All backends.
pub const COLI_EDGE_CAP_BACKEND_MASK: u64 = 7936u64;

/// Number formats of boundary activations.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColiEdgeDType {
    /// No format: refused everywhere.
    COLI_EDGE_DTYPE_INVALID = 0,
    /// IEEE 754 binary32.
    COLI_EDGE_DTYPE_F32 = 1,
    /// IEEE 754 binary16.
    COLI_EDGE_DTYPE_F16 = 2,
    /// The upper half of a binary32.
    COLI_EDGE_DTYPE_BF16 = 3,
}

/// The opened ends of a model.
#[derive(Debug)]
pub struct ColiEdgeEngine {
    _opaque: [u8; 0],
}

/// Asked at intervals while a call computes; anything but 0 cancels the call.
pub type ColiEdgeCancelFn = Option<unsafe extern "C-unwind" fn(user_data: *mut c_void) -> c_int>;

/// What an opened engine is and can do. It fits a segment when `state_schema`, `numeric_class`,
/// `state_dtype` and `state_width` are equal.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiEdgeCapabilities {
    /// `sizeof(ColiEdgeCapabilities)` of whoever fills or reads it.
    pub struct_size: u32,
    /// `COLI_EDGE_ABI_VERSION`.
    pub abi_version: u32,
    /// `COLI_EDGE_CAP_*`.
    pub flags: u64,
    /// The adapter's id.
    pub engine_id: [c_char; COLI_EDGE_ENGINE_ID_CAP],
    /// What rows at the boundary mean.
    pub state_schema: [c_char; COLI_EDGE_STATE_SCHEMA_CAP],
    /// Engines of one class compute the same bits.
    pub numeric_class: [c_char; COLI_EDGE_NUMERIC_CLASS_CAP],
    /// Tokenizers of one class make the same ids.
    pub tokenizer_class: [c_char; COLI_EDGE_TOKENIZER_CLASS_CAP],
    /// `ColiEdgeDType` of the rows.
    pub state_dtype: u32,
    /// Numbers in a row.
    pub state_width: u32,
    /// Ids run from 0 to below this.
    pub vocab_size: u32,
    /// Most rows of a call; 0 for any number.
    pub max_batch_rows: u32,
    /// Longest context the model allows; 0 for no limit.
    pub max_context_tokens: u32,
    /// Layers of the whole model.
    pub num_layers: u32,
    /// Id that begins a text, or -1.
    pub bos_token_id: i32,
    /// Id that ends an answer, or -1.
    pub eos_token_id: i32,
    /// Zero.
    pub reserved_u32: [u32; 4],
    /// Memory the engine holds.
    pub resident_bytes: u64,
    /// Zero.
    pub reserved_u64: [u64; 3],
}

/// How an engine is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiEdgeEngineOptions {
    /// `sizeof(ColiEdgeEngineOptions)`.
    pub struct_size: u32,
    /// The model's directory.
    pub model_dir: *const c_char,
    /// Most bytes the engine may take; 0 for no limit of the host's.
    pub memory_limit_bytes: u64,
    /// Backends the host allows, `COLI_EDGE_CAP_CPU` and its like; 0 for any.
    pub backend_mask: u64,
    /// Private to the adapter; may be NULL.
    pub resource_plan: *const c_void,
    /// Bytes at `resource_plan`.
    pub resource_plan_size: usize,
    /// Zero.
    pub reserved_u64: [u64; 3],
}

/// Token ids to rows for the first range.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiEdgeEmbedRequest {
    /// `sizeof(ColiEdgeEmbedRequest)`.
    pub struct_size: u32,
    /// Rows, at least 1.
    pub rows: u32,
    /// An id for every row.
    pub token_ids: *const i32,
    /// `rows`.
    pub token_count: usize,
    /// Room for rows x `state_width` numbers of `state_dtype`.
    pub output: *mut c_void,
    /// Exactly the bytes of these.
    pub output_bytes: usize,
    /// Asked before and during the call; may be NULL.
    pub should_cancel: ColiEdgeCancelFn,
    /// Handed to `should_cancel`.
    pub cancel_user_data: *mut c_void,
    /// Zero.
    pub reserved_u64: [u64; 3],
}

/// Rows of the last range to the most likely id of each; ties go to the lowest id.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiEdgeSelectRequest {
    /// `sizeof(ColiEdgeSelectRequest)`.
    pub struct_size: u32,
    /// Rows, at least 1.
    pub rows: u32,
    /// Rows x `state_width` numbers of `state_dtype`.
    pub input: *const c_void,
    /// Exactly the bytes of these.
    pub input_bytes: usize,
    /// Room for an id a row.
    pub token_ids: *mut i32,
    /// Ids that fit, at least `rows`.
    pub token_capacity: usize,
    /// Room for the logit of each id, or NULL.
    pub scores: *mut f32,
    /// Scores that fit, at least `rows`, or 0 with NULL.
    pub score_capacity: usize,
    /// Asked before and during the call; may be NULL.
    pub should_cancel: ColiEdgeCancelFn,
    /// Handed to `should_cancel`.
    pub cancel_user_data: *mut c_void,
    /// Zero.
    pub reserved_u64: [u64; 3],
}

/// Rows of the last range to logits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiEdgeLogitsRequest {
    /// `sizeof(ColiEdgeLogitsRequest)`.
    pub struct_size: u32,
    /// Rows, at least 1.
    pub rows: u32,
    /// Rows x `state_width` numbers of `state_dtype`.
    pub input: *const c_void,
    /// Exactly the bytes of these.
    pub input_bytes: usize,
    /// Room for rows x `vocab_size` logits.
    pub logits: *mut f32,
    /// Floats that fit.
    pub logits_capacity: usize,
    /// Asked before and during the call; may be NULL.
    pub should_cancel: ColiEdgeCancelFn,
    /// Handed to `should_cancel`.
    pub cancel_user_data: *mut c_void,
    /// Zero.
    pub reserved_u64: [u64; 3],
}

/// A family's implementation. Callbacks return 0, or anything else after writing a text to
/// `error`. Registered adapters are kept by address: they live and stay as they are from then on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiEdgeAdapter {
    /// `sizeof(ColiEdgeAdapter)`.
    pub struct_size: u32,
    /// `COLI_EDGE_ABI_VERSION`.
    pub abi_version: u32,
    /// Below 64 bytes of `a-z`, `0-9`, `_` and `-`.
    pub engine_id: *const c_char,
    /// Opens the ends of a model and says what they can do. Mandatory.
    pub engine_open: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut *mut c_void,
            capabilities: *mut ColiEdgeCapabilities,
            options: *const ColiEdgeEngineOptions,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Frees what `engine_open` made. Mandatory.
    pub engine_destroy: Option<unsafe extern "C-unwind" fn(engine: *mut c_void)>,
    /// Text to ids. Together with `detokenize`, or neither.
    pub tokenize: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut c_void,
            text: *const c_char,
            text_bytes: usize,
            token_ids: *mut i32,
            token_capacity: usize,
            token_count: *mut usize,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Ids to text.
    pub detokenize: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut c_void,
            token_ids: *const i32,
            token_count: usize,
            text: *mut c_char,
            text_capacity: usize,
            text_bytes: *mut usize,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Ids to rows. Mandatory.
    pub embed: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut c_void,
            request: *const ColiEdgeEmbedRequest,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Rows to ids. Optional.
    pub select: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut c_void,
            request: *const ColiEdgeSelectRequest,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Rows to logits. Optional.
    pub logits: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut c_void,
            request: *const ColiEdgeLogitsRequest,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// NULL.
    pub reserved_fn: [Option<unsafe extern "C-unwind" fn()>; 7],
}

/// The layouts of the 64-bit platforms, where hosts and adapters are compiled apart from each
/// other.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use crate::checks::assert_layout;
    assert_layout!(ColiEdgeCapabilities, 448,
        struct_size 0, abi_version 4, flags 8, engine_id 16, state_schema 80, numeric_class 208,
        tokenizer_class 304, state_dtype 368, state_width 372, vocab_size 376,
        max_batch_rows 380, max_context_tokens 384, num_layers 388, bos_token_id 392,
        eos_token_id 396, reserved_u32 400, resident_bytes 416, reserved_u64 424);
    assert_layout!(ColiEdgeEngineOptions, 72,
        struct_size 0, model_dir 8, memory_limit_bytes 16, backend_mask 24, resource_plan 32,
        resource_plan_size 40, reserved_u64 48);
    assert_layout!(ColiEdgeEmbedRequest, 80,
        struct_size 0, rows 4, token_ids 8, token_count 16, output 24, output_bytes 32,
        should_cancel 40, cancel_user_data 48, reserved_u64 56);
    assert_layout!(ColiEdgeSelectRequest, 96,
        struct_size 0, rows 4, input 8, input_bytes 16, token_ids 24, token_capacity 32,
        scores 40, score_capacity 48, should_cancel 56, cancel_user_data 64, reserved_u64 72);
    assert_layout!(ColiEdgeLogitsRequest, 80,
        struct_size 0, rows 4, input 8, input_bytes 16, logits 24, logits_capacity 32,
        should_cancel 40, cancel_user_data 48, reserved_u64 56);
    assert_layout!(ColiEdgeAdapter, 128,
        struct_size 0, abi_version 4, engine_id 8, engine_open 16, engine_destroy 24,
        tokenize 32, detokenize 40, embed 48, select 56, logits 64, reserved_fn 72);
};
