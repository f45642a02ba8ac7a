//! A conversation in a layer range, and the checks of what is done with it.

use super::Engine;
use super::abi::{
    COLI_SEGMENT_CAP_TOKEN_IDS, ColiSegmentReadFn, ColiSegmentRunRequest,
    ColiSegmentSessionOptions, ColiSegmentWriteFn,
};
use crate::adapters::{Conversation, Range, run};
use crate::boundary::{call_adapter, destroy};
use crate::checks;
use crate::lamella::LamellaCode;
use crate::report::{Refused, Report};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A session of an adapter. Dropping it destroys it there.
pub(crate) struct Session {
    engine: Arc<Engine>,
    implementation: *mut c_void,
    context_tokens: u32,
    busy: AtomicBool,
}

// SAFETY: the raw pointer is the adapter's, which allows a session to move between threads; `busy`
// lets one call in at a time.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

/// A call in a session. Dropping it lets the next one in.
struct Call<'a>(&'a AtomicBool);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Session {
    /// Creates an empty session.
    ///
    /// # Safety
    /// `options` is NULL or as long as it says.
    pub(crate) unsafe fn create(
        report: &Report,
        engine: Arc<Engine>,
        options: *const ColiSegmentSessionOptions,
    ) -> Result<Session, Refused> {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, options) }?;
        let (asked, most) = (known.context_tokens, engine.context_tokens);
        if asked == 0 || asked > most {
            let reason = format_args!("context_tokens is {asked}, the engine has 1 to {most}");
            return Err(report.argument(reason));
        }
        let Some(create) = engine.adapter.session_create else {
            return Err(checks::refuse_null(report, "session_create"));
        };
        engine.admit(report)?;
        let mut implementation = std::ptr::null_mut();
        let created = call_adapter(report, engine.id.as_str(), "creating a session", |e, n| {
            // SAFETY: the engine is the adapter's own, and the options are the host's.
            unsafe { create(engine.implementation, &mut implementation, options, e, n) }
        });
        if let Err(refused) = created {
            engine.release();
            return Err(refused);
        }
        Ok(Session {
            engine,
            implementation,
            context_tokens: asked,
            busy: AtomicBool::new(false),
        })
    }

    /// Runs rows.
    ///
    /// # Safety
    /// `request` is NULL or as long as it says; its buffers are as long as they say.
    pub(crate) unsafe fn run(
        &self,
        report: &Report,
        request: *const ColiSegmentRunRequest,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        let (_, _call) = unsafe { self.admit(report, request) }?;
        let Some(run) = self.engine.adapter.session_run else {
            return Err(checks::refuse_null(report, "session_run"));
        };
        self.call(report, "running", |session, error, size| {
            // SAFETY: the session is the adapter's own, and the request was checked.
            unsafe { run(session, request, error, size) }
        })
    }

    /// Runs rows of distinct sessions of one engine together.
    ///
    /// # Safety
    /// As [`Session::run`] for each; no buffer overlaps one of another request.
    pub(crate) unsafe fn run_many(
        report: &Report,
        sessions: &[Arc<Session>],
        requests: &[*const ColiSegmentRunRequest],
    ) -> Result<(), Refused> {
        let (mut calls, mut kept) = (Vec::new(), Vec::new());
        for (session, &request) in sessions.iter().zip(requests) {
            if !Arc::ptr_eq(&session.engine, &sessions[0].engine) {
                return Err(report.argument(format_args!("the sessions are of several engines")));
            }
            if Range::of(&session.engine).is_none() {
                return Err(session.unsupported(report, "runs of several sessions"));
            }
            // SAFETY: the caller's contract.
            let (known, call) = unsafe { session.admit(report, request) }?;
            checks::reserve_one(report, &mut kept)?;
            kept.push(call);
            checks::reserve_one(report, &mut calls)?;
            // SAFETY: an adapter of ours made it, and the session keeps it.
            calls.push((unsafe { Conversation::of(session.implementation) }, known));
        }
        // SAFETY: the caller's contract.
        unsafe { run(report, &calls) }
    }

    /// Checks a request and keeps other calls out until it is over.
    ///
    /// # Safety
    /// As [`Session::run`].
    unsafe fn admit<'a>(
        &self,
        report: &Report,
        request: *const ColiSegmentRunRequest,
    ) -> Result<(&'a ColiSegmentRunRequest, Call<'_>), Refused> {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, request) }?;
        self.check_rows(report, known)?;
        self.check_token_ids(report, known)?;
        self.check_position(report, known)?;
        let call = self.begin(report)?;
        // SAFETY: the host's callback with its own data.
        unsafe { checks::cancelled(report, known.should_cancel, known.cancel_user_data) }?;
        Ok((known, call))
    }

    /// Writes the session to a stream.
    ///
    /// # Safety
    /// `write` may be called with `user_data`.
    pub(crate) unsafe fn snapshot(
        &self,
        report: &Report,
        write: ColiSegmentWriteFn,
        user_data: *mut c_void,
    ) -> Result<(), Refused> {
        if write.is_none() {
            return Err(checks::refuse_null(report, "write"));
        }
        let Some(snapshot) = self.engine.adapter.session_snapshot else {
            return Err(self.unsupported(report, "snapshots"));
        };
        let _call = self.begin(report)?;
        self.call(report, "writing a snapshot", |session, error, size| {
            // SAFETY: the session is the adapter's own, the callback the host's.
            unsafe { snapshot(session, write, user_data, error, size) }
        })
    }

    /// Reads the session from a stream.
    ///
    /// # Safety
    /// `read` may be called with `user_data`.
    pub(crate) unsafe fn restore(
        &self,
        report: &Report,
        read: ColiSegmentReadFn,
        user_data: *mut c_void,
    ) -> Result<(), Refused> {
        if read.is_none() {
            return Err(checks::refuse_null(report, "read"));
        }
        let Some(restore) = self.engine.adapter.session_restore else {
            return Err(self.unsupported(report, "snapshots"));
        };
        let _call = self.begin(report)?;
        self.call(report, "restoring a snapshot", |session, error, size| {
            // SAFETY: the session is the adapter's own, the callback the host's.
            unsafe { restore(session, read, user_data, error, size) }
        })
    }

    fn check_rows(&self, report: &Report, request: &ColiSegmentRunRequest) -> Result<(), Refused> {
        let said = &self.engine.capabilities;
        checks::rows(report, request.rows, said.max_batch_rows)?;
        checks::not_null(report, request.input, "input")?;
        checks::not_null(report, request.output, "output")?;
        let geometry = (request.rows, said.state_width, said.state_dtype);
        checks::activations(report, "input", request.input_bytes, geometry)?;
        checks::activations(report, "output", request.output_bytes, geometry)
    }

    fn check_token_ids(
        &self,
        report: &Report,
        request: &ColiSegmentRunRequest,
    ) -> Result<(), Refused> {
        let (rows, count) = (request.rows, request.token_count);
        let fault = match (request.token_ids.is_null(), count) {
            (true, 0) if self.needs_token_ids() => "the engine needs the token ids of its rows",
            (true, 0) => return Ok(()),
            (true, _) => "token_ids is NULL, token_count is not 0",
            (false, _) if count != rows as usize => {
                let reason = format_args!("{count} token ids came with {rows} rows");
                return Err(report.argument(reason));
            }
            (false, _) => return checks::aligned(report, request.token_ids, "token_ids"),
        };
        Err(report.argument(format_args!("{fault}")))
    }

    fn needs_token_ids(&self) -> bool {
        self.engine.capabilities.flags & COLI_SEGMENT_CAP_TOKEN_IDS != 0
    }

    fn check_position(
        &self,
        report: &Report,
        request: &ColiSegmentRunRequest,
    ) -> Result<(), Refused> {
        let (position, rows) = (request.position, request.rows);
        let end = position.checked_add(u64::from(rows));
        let context = self.context_tokens;
        if end.is_none_or(|end| end > u64::from(context)) {
            let reason = format_args!(
                "{rows} rows at position {position} do not fit into the context of {context}"
            );
            return Err(report.argument(reason));
        }
        Ok(())
    }

    /// Keeps other calls out: an adapter's session is one conversation.
    fn begin(&self, report: &Report) -> Result<Call<'_>, Refused> {
        if self.busy.swap(true, Ordering::Acquire) {
            let reason = format_args!("the session is in another call: one at a time");
            return Err(report.refuse(LamellaCode::LAMELLA_BUSY, reason));
        }
        Ok(Call(&self.busy))
    }

    fn call(
        &self,
        report: &Report,
        deed: &str,
        call: impl FnOnce(*mut c_void, *mut std::ffi::c_char, usize) -> std::ffi::c_int,
    ) -> Result<(), Refused> {
        call_adapter(report, self.engine.id.as_str(), deed, |error, size| {
            call(self.implementation, error, size)
        })
    }

    fn unsupported(&self, report: &Report, what: &str) -> Refused {
        let id = self.engine.id.as_str();
        let reason = format_args!("adapter {id} has no {what}");
        report.refuse(LamellaCode::LAMELLA_UNSUPPORTED, reason)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(destroy_session) = self.engine.adapter.session_destroy {
            // SAFETY: the adapter made it, and it is used no more.
            destroy(|| unsafe { destroy_session(self.implementation) });
        }
        self.engine.release();
    }
}
