//! As much of a host as the measurements need: layer ranges and sessions behind the C interface.

use lamella::adapters::segment_registrars as registrars;
use lamella::lamella::{LamellaCancel, lamella_cancel_poll};
use lamella::segment::abi::*;
use lamella::segment::exports::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::path::Path;

/// Registers the adapters of all families.
pub(crate) fn register() {
    for register in [
        registrars::coli_deepseek_v4_segment_adapter_register as extern "C" fn() -> c_int,
        registrars::coli_glm_segment_adapter_register,
        registrars::coli_inkling_segment_adapter_register,
        registrars::coli_kimi_segment_adapter_register,
        registrars::coli_olmoe_segment_adapter_register,
        registrars::coli_qwen36_segment_adapter_register,
        registrars::coli_qwen38_segment_adapter_register,
    ] {
        assert_eq!(register(), 0);
    }
}

fn succeed(call: impl FnOnce(*mut c_char, usize) -> c_int) {
    let mut text = [0u8; 512];
    let code = call(text.as_mut_ptr().cast(), text.len());
    assert_eq!(code, 0, "{:?}", CStr::from_bytes_until_nul(&text));
}

/// An opened layer range.
pub(crate) struct Layers {
    engine: *mut ColiSegmentEngine,
    pub(crate) said: ColiSegmentCapabilities,
    context: u32,
}

impl Layers {
    /// Opens `layers` of the model in `dir` under the settings of `plan`.
    pub(crate) fn open(
        family: &CStr,
        dir: &Path,
        layers: Range<usize>,
        context: usize,
        plan: &str,
    ) -> Layers {
        let dir = CString::new(dir.to_str().unwrap()).unwrap();
        // SAFETY: blocks of C may be zero; everything handed over lives through its call.
        unsafe {
            let mut options: ColiSegmentEngineOptions = std::mem::zeroed();
            options.struct_size = size_of_val(&options) as u32;
            options.model_dir = dir.as_ptr();
            options.layer_begin = layers.start as u32;
            options.layer_end = layers.end as u32;
            options.context_tokens = context as u32;
            options.resource_plan = plan.as_ptr().cast();
            options.resource_plan_size = plan.len();
            let mut engine = std::ptr::null_mut();
            succeed(|e, n| coli_segment_engine_open(family.as_ptr(), &options, &mut engine, e, n));
            let mut said: ColiSegmentCapabilities = std::mem::zeroed();
            said.struct_size = size_of_val(&said) as u32;
            succeed(|e, n| coli_segment_engine_capabilities(engine, &mut said, e, n));
            let context = options.context_tokens;
            Layers {
                engine,
                said,
                context,
            }
        }
    }

    pub(crate) fn session(&self) -> Talk {
        // SAFETY: as in `open`.
        unsafe {
            let mut options: ColiSegmentSessionOptions = std::mem::zeroed();
            options.struct_size = size_of_val(&options) as u32;
            options.context_tokens = self.context;
            let mut session = std::ptr::null_mut();
            succeed(|e, n| coli_segment_session_create(self.engine, &options, &mut session, e, n));
            Talk {
                session,
                position: 0,
            }
        }
    }
}

impl Drop for Layers {
    fn drop(&mut self) {
        // SAFETY: the measurements end their sessions first.
        succeed(|e, n| unsafe { coli_segment_engine_close(self.engine, e, n) });
    }
}

/// A conversation in a layer range.
pub(crate) struct Talk {
    session: *mut ColiSegmentSession,
    position: u64,
}

impl Talk {
    /// Sends rows through the layers, which replace them.
    pub(crate) fn run(&mut self, ids: &[i32], rows: &mut [f32]) {
        succeed(|e, n| self.call(ids, rows, None, e, n));
        self.position += ids.len() as u64;
    }

    /// The same until `cancel` is raised; whether it was finished before.
    pub(crate) fn run_until(
        &mut self,
        ids: &[i32],
        rows: &mut [f32],
        cancel: &LamellaCancel,
    ) -> bool {
        let finished = self.call(ids, rows, Some(cancel), std::ptr::null_mut(), 0) == 0;
        self.position += if finished { ids.len() as u64 } else { 0 };
        finished
    }

    fn call(
        &self,
        ids: &[i32],
        rows: &mut [f32],
        cancel: Option<&LamellaCancel>,
        error: *mut c_char,
        size: usize,
    ) -> c_int {
        // SAFETY: blocks of C may be zero; everything handed over lives through the call.
        unsafe {
            let mut request: ColiSegmentRunRequest = std::mem::zeroed();
            request.struct_size = size_of_val(&request) as u32;
            request.rows = ids.len() as u32;
            request.position = self.position;
            request.token_ids = ids.as_ptr();
            request.token_count = ids.len();
            request.input_bytes = size_of_val(rows);
            request.output_bytes = request.input_bytes;
            request.output = rows.as_mut_ptr().cast();
            request.input = request.output.cast_const();
            if let Some(cancel) = cancel {
                request.should_cancel = Some(poll);
                request.cancel_user_data = std::ptr::from_ref(cancel).cast_mut().cast();
            }
            coli_segment_run(self.session, &request, error, size)
        }
    }

    /// Bytes of a snapshot.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        let mut bytes = 0usize;
        let user = (&raw mut bytes).cast();
        // SAFETY: the number lives through the call.
        succeed(|e, n| unsafe { coli_segment_snapshot(self.session, Some(count), user, e, n) });
        bytes
    }

    /// Writes the session to `stream`, which has room for it; its length.
    pub(crate) fn snapshot(&self, stream: &mut [u8]) -> usize {
        let mut rest = stream;
        let before = rest.len();
        let user = (&raw mut rest).cast();
        // SAFETY: the slice lives through the call.
        succeed(|e, n| unsafe { coli_segment_snapshot(self.session, Some(take), user, e, n) });
        before - rest.len()
    }

    /// Reads the session from `stream`.
    pub(crate) fn restore(&mut self, stream: &[u8]) {
        let mut rest = stream;
        let user = (&raw mut rest).cast();
        // SAFETY: the slice lives through the call.
        succeed(|e, n| unsafe { coli_segment_restore(self.session, Some(give), user, e, n) });
        assert!(rest.is_empty());
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        coli_segment_session_destroy(self.session);
    }
}

unsafe extern "C-unwind" fn poll(cancel: *mut c_void) -> c_int {
    // SAFETY: the request carries the flag.
    unsafe { lamella_cancel_poll(cancel) }
}

unsafe extern "C-unwind" fn count(user: *mut c_void, _: *const c_void, size: usize) -> c_int {
    // SAFETY: `snapshot_bytes` passes a number.
    unsafe { *user.cast::<usize>() += size };
    0
}

unsafe extern "C-unwind" fn take(user: *mut c_void, data: *const c_void, size: usize) -> c_int {
    // SAFETY: `snapshot` passes the rest of a buffer, and the library so many bytes.
    unsafe {
        let rest = &mut *user.cast::<&mut [u8]>();
        let Some((now, later)) = std::mem::take(rest).split_at_mut_checked(size) else {
            return 1;
        };
        std::ptr::copy_nonoverlapping(data.cast(), now.as_mut_ptr(), size);
        *rest = later;
    }
    0
}

unsafe extern "C-unwind" fn give(user: *mut c_void, data: *mut c_void, size: usize) -> c_int {
    // SAFETY: `restore` passes the rest of a stream, and the library room for so many bytes.
    unsafe {
        let rest = &mut *user.cast::<&[u8]>();
        let Some((now, later)) = rest.split_at_checked(size) else {
            return 1;
        };
        std::ptr::copy_nonoverlapping(now.as_ptr(), data.cast(), size);
        *rest = later;
    }
    0
}
