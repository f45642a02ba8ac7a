//! An opened layer range: what its adapter promised, and the sessions that live in it.

use super::abi::{
    COLI_SEGMENT_ABI_VERSION, COLI_SEGMENT_CAP_SNAPSHOT, ColiSegmentAdapter,
    ColiSegmentCapabilities, ColiSegmentEngineOptions,
};
use crate::boundary::{call_adapter, destroy};
use crate::checks::{self, Said};
use crate::lamella::LamellaCode;
use crate::registry::{Id, SEGMENT_ADAPTERS};
use crate::report::{Refused, Report};
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

/// An engine of an adapter. Dropping it destroys it there.
pub(crate) struct Engine {
    pub(crate) id: Id,
    /// The adapter as it was when the engine was opened.
    pub(crate) adapter: ColiSegmentAdapter,
    /// Where the adapter is registered.
    pub(crate) registered: *const ColiSegmentAdapter,
    pub(crate) implementation: *mut c_void,
    pub(crate) capabilities: ColiSegmentCapabilities,
    pub(crate) context_tokens: u32,
    sessions: Mutex<Sessions>,
}

/// Who uses an engine.
#[derive(Default)]
struct Sessions {
    live: usize,
    closed: bool,
}

// SAFETY: the raw pointers are the adapter's and are handed to nobody else; an adapter answers
// for calls on one engine from several threads, as the interface demands.
unsafe impl Send for Engine {}
// SAFETY: as above; everything else is behind a lock or constant.
unsafe impl Sync for Engine {}

impl Engine {
    /// Opens a range with the adapter that `id` names, and checks what the adapter says about it.
    ///
    /// # Safety
    /// The pointers are what `coli_segment_engine_open` asks for.
    pub(crate) unsafe fn open(
        report: &Report,
        id: *const c_char,
        options: *const ColiSegmentEngineOptions,
    ) -> Result<Engine, Refused> {
        // SAFETY: the caller's contract.
        let known = unsafe { check_options(report, options) }?;
        // SAFETY: the caller's contract.
        let (id, registered) = unsafe { SEGMENT_ADAPTERS.look_up(report, id) }?;
        // SAFETY: registered adapters live, and were checked.
        let adapter = unsafe { *registered };
        let Some(open) = adapter.engine_open else {
            return Err(checks::refuse_null(report, "engine_open"));
        };
        let mut implementation = std::ptr::null_mut();
        let mut capabilities = blank();
        call_adapter(report, id.as_str(), "opening", |error, size| {
            // SAFETY: the adapter gets what the interface promises it, and the host's options.
            unsafe { open(&mut implementation, &mut capabilities, options, error, size) }
        })?;
        // From here on, dropping the engine destroys it.
        let engine = Engine {
            id,
            adapter,
            registered,
            implementation,
            capabilities,
            context_tokens: known.context_tokens,
            sessions: Mutex::default(),
        };
        engine.check(report, known)?;
        Ok(engine)
    }

    /// What the adapter says must hold together, and must hold the request.
    fn check(&self, report: &Report, options: &ColiSegmentEngineOptions) -> Result<(), Refused> {
        if let Some(fault) = self.fault() {
            let id = self.id.as_str();
            let reason = format_args!("adapter {id} is broken: {fault}");
            return Err(report.refuse(LamellaCode::LAMELLA_BROKEN_ADAPTER, reason));
        }
        let said = &self.capabilities;
        if options.layer_end > said.num_layers {
            let (begin, end, layers) = (options.layer_begin, options.layer_end, said.num_layers);
            return Err(report.argument(format_args!(
                "layers {begin} to {end} were asked for, the model has {layers}"
            )));
        }
        if said.max_context_tokens != 0 && options.context_tokens > said.max_context_tokens {
            let (asked, most) = (options.context_tokens, said.max_context_tokens);
            return Err(report.argument(format_args!(
                "a context of {asked} tokens was asked for, the engine has at most {most}"
            )));
        }
        Ok(())
    }

    /// What is wrong with the capabilities by themselves.
    fn fault(&self) -> Option<&'static str> {
        let (said, adapter) = (&self.capabilities, &self.adapter);
        let flagged = said.flags & COLI_SEGMENT_CAP_SNAPSHOT != 0;
        let streams = adapter.session_snapshot.is_some() && adapter.session_restore.is_some();
        let common = Said {
            struct_size: [said.struct_size as usize, size_of_val(said)],
            abi_version: [said.abi_version, COLI_SEGMENT_ABI_VERSION],
            engine_id: &said.engine_id,
            id: self.id.as_str(),
            state_schema: &said.state_schema,
            numeric_class: &said.numeric_class,
            state_dtype: said.state_dtype,
            state_width: said.state_width,
            num_layers: said.num_layers,
        };
        let own = (
            flagged != streams,
            "the flag SNAPSHOT and the callbacks contradict each other",
        );
        common.fault().or_else(|| checks::first(&[own]))
    }

    /// Counts a session that is about to be created, so that the engine is not closed meanwhile.
    pub(crate) fn admit(&self, report: &Report) -> Result<(), Refused> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.closed {
            let reason = format_args!("the Segment engine is closed");
            return Err(report.refuse(LamellaCode::LAMELLA_HANDLE, reason));
        }
        sessions.live += 1;
        Ok(())
    }

    /// Takes back [`Engine::admit`].
    pub(crate) fn release(&self) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.live = sessions.live.saturating_sub(1);
    }

    /// Lets no further session in.
    ///
    /// # Errors
    /// While sessions live.
    pub(crate) fn close(&self, report: &Report) -> Result<(), Refused> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.live > 0 {
            let live = sessions.live;
            let reason = format_args!("{live} sessions of the engine live: destroy them first");
            return Err(report.refuse(LamellaCode::LAMELLA_BUSY, reason));
        }
        sessions.closed = true;
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(destroy_engine) = self.adapter.engine_destroy {
            // SAFETY: the adapter made it, and it is used no more.
            destroy(|| unsafe { destroy_engine(self.implementation) });
        }
    }
}

/// Capabilities for an adapter to fill in.
fn blank() -> ColiSegmentCapabilities {
    ColiSegmentCapabilities {
        struct_size: size_of::<ColiSegmentCapabilities>() as u32,
        abi_version: COLI_SEGMENT_ABI_VERSION,
        flags: 0,
        engine_id: [0; _],
        state_schema: [0; _],
        numeric_class: [0; _],
        state_dtype: 0,
        state_width: 0,
        max_batch_rows: 0,
        max_context_tokens: 0,
        num_layers: 0,
        reserved_u32: [0; _],
        reserved_u64: [0; _],
    }
}

/// The options, after what can be said about them without a model.
///
/// # Safety
/// `options` is NULL or as long as it says, with a text or NULL as `model_dir`.
unsafe fn check_options<'a>(
    report: &Report,
    options: *const ColiSegmentEngineOptions,
) -> Result<&'a ColiSegmentEngineOptions, Refused> {
    // SAFETY: the caller's contract.
    let options = unsafe { checks::block(report, options) }?;
    // SAFETY: the caller's contract.
    unsafe { checks::text(report, options.model_dir, "model_dir") }?;
    let (begin, end) = (options.layer_begin, options.layer_end);
    if begin >= end {
        let reason =
            format_args!("layers {begin} to {end} are none: layer_end comes after the last");
        return Err(report.argument(reason));
    }
    if options.context_tokens == 0 {
        return Err(report.argument(format_args!("context_tokens is 0")));
    }
    Ok(options)
}
