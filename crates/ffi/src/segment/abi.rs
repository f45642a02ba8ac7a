//! Types and constants of Segment version 1, as C sees them: this file becomes
//! `segment_runtime.h`, together with the functions of `exports.rs`.

#![expect(
    non_camel_case_types,
    reason = "variants are constants of C under these names"
)]

use std::ffi::{c_char, c_int, c_void};

/// Version of this interface, as every adapter and every capability block carries it.
pub const COLI_SEGMENT_ABI_VERSION: u32 = 1u32;
/// Bytes of an engine id, its NUL included.
pub const COLI_SEGMENT_ENGINE_ID_CAP: usize = 64;
/// Bytes of a state schema, its NUL included.
pub const COLI_SEGMENT_STATE_SCHEMA_CAP: usize = 128;
/// Bytes of a numeric class, its NUL included.
pub const COLI_SEGMENT_NUMERIC_CLASS_CAP: usize = 96;

/// `flags`: each run needs the token ids of its rows.
pub const COLI_SEGMENT_CAP_TOKEN_IDS: u64 = 1u64;
/// `flags`: sessions can be written to a stream and read back.
pub const COLI_SEGMENT_CAP_SNAPSHOT: u64 = 2u64;
/// `flags`: nothing outside the layer range is read or mapped.
pub const COLI_SEGMENT_CAP_RANGE_NATIVE: u64 = 4u64;
/// `flags`: sessions of one engine may run at the same time.
pub const COLI_SEGMENT_CAP_MULTI_SESSION: u64 = 8u64;
/// `flags` and `backend_mask`: the processor computes.
pub const COLI_SEGMENT_CAP_CPU: u64 = 256u64;
/// `flags` and `backend_mask`: a CUDA device computes.
pub const COLI_SEGMENT_CAP_CUDA: u64 = 512u64;
/// `flags` and `backend_mask`: a HIP device computes.
pub const COLI_SEGMENT_CAP_HIP: u64 = 1024u64;
/// `flags` and `backend_mask`: a Metal device computes.
pub const COLI_SEGMENT_CAP_METAL: u64 = 2048u64;
/// `flags` and `backend_mask`: a Vulkan device computes.
pub const COLI_SEGMENT_CAP_VULKAN: u64 = 4096u64;
/// All backends.
pub const COLI_SEGMENT_CAP_BACKEND_MASK: u64 = 7936u64;

/// Number formats of boundary activations.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColiSegmentDType {
    /// No format: refused everywhere.
    COLI_SEGMENT_DTYPE_INVALID = 0,
    /// IEEE 754 binary32.
    COLI_SEGMENT_DTYPE_F32 = 1,
    /// IEEE 754 binary16.
    COLI_SEGMENT_DTYPE_F16 = 2,
    /// The upper half of a binary32.
    COLI_SEGMENT_DTYPE_BF16 = 3,
}

/// An opened layer range.
#[derive(Debug)]
pub struct ColiSegmentEngine {
    _opaque: [u8; 0],
}

/// One conversation in an opened layer range.
#[derive(Debug)]
pub struct ColiSegmentSession {
    _opaque: [u8; 0],
}

/// Asked at intervals while a run computes; anything but 0 cancels the run.
pub type ColiSegmentCancelFn = Option<unsafe extern "C-unwind" fn(user_data: *mut c_void) -> c_int>;

/// Takes the next `size` bytes of a snapshot; 0 to go on, anything else aborts.
pub type ColiSegmentWriteFn = Option<
    unsafe extern "C-unwind" fn(user_data: *mut c_void, data: *const c_void, size: usize) -> c_int,
>;

/// Fills `data` with the next `size` bytes of a snapshot; 0 if all of them came, anything else
/// aborts.
pub type ColiSegmentReadFn = Option<
    unsafe extern "C-unwind" fn(user_data: *mut c_void, data: *mut c_void, size: usize) -> c_int,
>;

/// What an opened engine is and can do. Two ranges chain when `state_schema`, `numeric_class`,
/// `state_dtype` and `state_width` are equal.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiSegmentCapabilities {
    /// `sizeof(ColiSegmentCapabilities)` of whoever fills or reads it.
    pub struct_size: u32,
    /// `COLI_SEGMENT_ABI_VERSION`.
    pub abi_version: u32,
    /// `COLI_SEGMENT_CAP_*`.
    pub flags: u64,
    /// The adapter's id.
    pub engine_id: [c_char; COLI_SEGMENT_ENGINE_ID_CAP],
    /// What rows at the boundary mean.
    pub state_schema: [c_char; COLI_SEGMENT_STATE_SCHEMA_CAP],
    /// Engines of one class compute the same bits.
    pub numeric_class: [c_char; COLI_SEGMENT_NUMERIC_CLASS_CAP],
    /// `ColiSegmentDType` of the rows.
    pub state_dtype: u32,
    /// Numbers in a row.
    pub state_width: u32,
    /// Most rows of a run; 0 for any number.
    pub max_batch_rows: u32,
    /// Longest context the model allows; 0 for no limit.
    pub max_context_tokens: u32,
    /// Layers of the whole model.
    pub num_layers: u32,
    /// Zero.
    pub reserved_u32: [u32; 7],
    /// Zero.
    pub reserved_u64: [u64; 4],
}

/// How an engine is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiSegmentEngineOptions {
    /// `sizeof(ColiSegmentEngineOptions)`.
    pub struct_size: u32,
    /// The model's directory.
    pub model_dir: *const c_char,
    /// First layer of the range.
    pub layer_begin: u32,
    /// The layer after the last one of the range.
    pub layer_end: u32,
    /// Longest context a session may ask for.
    pub context_tokens: u32,
    /// Zero.
    pub reserved_u32: u32,
    /// Most bytes the engine may take; 0 for no limit of the host's.
    pub memory_limit_bytes: u64,
    /// Backends the host allows, `COLI_SEGMENT_CAP_CPU` and its like; 0 for any.
    pub backend_mask: u64,
    /// Private to the adapter; may be NULL.
    pub resource_plan: *const c_void,
    /// Bytes at `resource_plan`.
    pub resource_plan_size: usize,
}

/// How a session is created.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiSegmentSessionOptions {
    /// `sizeof(ColiSegmentSessionOptions)`.
    pub struct_size: u32,
    /// Positions the session holds, from 1 to the engine's.
    pub context_tokens: u32,
    /// Most bytes the session may take; 0 for no limit of the host's.
    pub memory_limit_bytes: u64,
    /// Zero.
    pub reserved_u64: [u64; 4],
}

/// A run: rows that follow what the session has, through the layers of its engine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiSegmentRunRequest {
    /// `sizeof(ColiSegmentRunRequest)`.
    pub struct_size: u32,
    /// Rows, at least 1.
    pub rows: u32,
    /// Position of the first row: the number of rows the session has run.
    pub position: u64,
    /// Token id of every row, or NULL where the engine needs none.
    pub token_ids: *const i32,
    /// `rows`, or 0 with NULL.
    pub token_count: usize,
    /// Rows x `state_width` numbers of `state_dtype`.
    pub input: *const c_void,
    /// Exactly the bytes of these.
    pub input_bytes: usize,
    /// Room for the same.
    pub output: *mut c_void,
    /// Exactly the bytes of these.
    pub output_bytes: usize,
    /// Asked before and during the run; may be NULL.
    pub should_cancel: ColiSegmentCancelFn,
    /// Handed to `should_cancel`.
    pub cancel_user_data: *mut c_void,
    /// Zero.
    pub reserved_u64: [u64; 4],
}

/// A family's implementation. Callbacks return 0, or anything else after writing a text to
/// `error`. Registered adapters are kept by address: they live and stay as they are from then on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColiSegmentAdapter {
    /// `sizeof(ColiSegmentAdapter)`.
    pub struct_size: u32,
    /// `COLI_SEGMENT_ABI_VERSION`.
    pub abi_version: u32,
    /// Below 64 bytes of `a-z`, `0-9`, `_` and `-`.
    pub engine_id: *const c_char,
    /// Opens a range and says what it can do. Mandatory.
    pub engine_open: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut *mut c_void,
            capabilities: *mut ColiSegmentCapabilities,
            options: *const ColiSegmentEngineOptions,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Frees what `engine_open` made. Mandatory.
    pub engine_destroy: Option<unsafe extern "C-unwind" fn(engine: *mut c_void)>,
    /// Creates an empty session. Mandatory.
    pub session_create: Option<
        unsafe extern "C-unwind" fn(
            engine: *mut c_void,
            session: *mut *mut c_void,
            options: *const ColiSegmentSessionOptions,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Frees a session. Mandatory.
    pub session_destroy: Option<unsafe extern "C-unwind" fn(session: *mut c_void)>,
    /// Runs rows; refuses any position but the next; leaves the session as it was where it fails.
    /// Mandatory.
    pub session_run: Option<
        unsafe extern "C-unwind" fn(
            session: *mut c_void,
            request: *const ColiSegmentRunRequest,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Writes the session to a stream. Together with `session_restore`, or neither.
    pub session_snapshot: Option<
        unsafe extern "C-unwind" fn(
            session: *mut c_void,
            write: ColiSegmentWriteFn,
            user_data: *mut c_void,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// Reads the session from a stream, all of it or none.
    pub session_restore: Option<
        unsafe extern "C-unwind" fn(
            session: *mut c_void,
            read: ColiSegmentReadFn,
            user_data: *mut c_void,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int,
    >,
    /// NULL.
    pub reserved_fn: [Option<unsafe extern "C-unwind" fn()>; 8],
}

/// The layouts of the 64-bit platforms, where hosts and adapters are compiled apart from each
/// other.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use crate::checks::assert_layout;
    assert_layout!(ColiSegmentCapabilities, 384,
        struct_size 0, abi_version 4, flags 8, engine_id 16, state_schema 80, numeric_class 208,
        state_dtype 304, state_width 308, max_batch_rows 312, max_context_tokens 316,
        num_layers 320, reserved_u32 324, reserved_u64 352);
    assert_layout!(ColiSegmentEngineOptions, 64,
        struct_size 0, model_dir 8, layer_begin 16, layer_end 20, context_tokens 24,
        reserved_u32 28, memory_limit_bytes 32, backend_mask 40, resource_plan 48,
        resource_plan_size 56);
    assert_layout!(ColiSegmentSessionOptions, 48,
        struct_size 0, context_tokens 4, memory_limit_bytes 8, reserved_u64 16);
    assert_layout!(ColiSegmentRunRequest, 112,
        struct_size 0, rows 4, position 8, token_ids 16, token_count 24, input 32,
        input_bytes 40, output 48, output_bytes 56, should_cancel 64, cancel_user_data 72,
        reserved_u64 80);
    assert_layout!(ColiSegmentAdapter, 136,
        struct_size 0, abi_version 4, engine_id 8, engine_open 16, engine_destroy 24,
        session_create 32, session_destroy 40, session_run 48, session_snapshot 56,
        session_restore 64, reserved_fn 72);
};
