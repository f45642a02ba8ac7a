//! Sessions of a layer range.

use super::host::{self, Questions};
use super::room;
use super::segment::Range;
use crate::boundary::enter;
use crate::checks;
use crate::lamella::LamellaCode;
use crate::report::{Refused, Report};
use crate::segment::abi::{
    ColiSegmentReadFn, ColiSegmentRunRequest, ColiSegmentSessionOptions, ColiSegmentWriteFn,
};
use lamella_engine::{Error, RowsInPlace, Session};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// What was done in a range since it was opened.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) sessions: AtomicU64,
    pub(crate) runs: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) run_nanoseconds: AtomicU64,
    pub(crate) wait_nanoseconds: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
}

impl Counts {
    /// Counts a run of `rows` rows that ended, with `error` if it failed.
    fn ended(&self, error: Option<&Error>, rows: u64) {
        match error {
            None => {
                add(&self.runs, 1);
                add(&self.rows, rows);
            }
            Some(Error::Cancelled) => add(&self.cancelled, 1),
            Some(_) => add(&self.failed, 1),
        }
    }
}

pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

pub(super) fn add_time(count: &AtomicU64, time: Duration) {
    add(count, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// A conversation in a range. A call in it that panics leaves the lock poisoned, and the session
/// is not used again.
pub(crate) struct Conversation {
    range: Arc<Range>,
    session: Mutex<Session>,
}

impl Conversation {
    /// # Safety
    /// `session` came from [`session_create`] and lives during `'a`.
    pub(crate) unsafe fn of<'a>(session: *mut c_void) -> &'a Conversation {
        // SAFETY: the caller's contract.
        unsafe { &*session.cast::<Conversation>() }
    }

    fn lock(&self, report: &Report) -> Result<MutexGuard<'_, Session>, Refused> {
        self.session.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let reason = format_args!("the session is in another call: one at a time");
                report.refuse(LamellaCode::LAMELLA_BUSY, reason)
            }
            TryLockError::Poisoned(_) => {
                let reason = format_args!(
                    "an internal error broke the session; destroy it and restore a snapshot"
                );
                report.refuse(LamellaCode::LAMELLA_PANIC, reason)
            }
        })
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.range.counts.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs the rows of distinct sessions of one range together: all of them or none.
///
/// # Safety
/// The requests' buffers are as long as they say, and their callbacks may be called.
pub(crate) unsafe fn run(
    report: &Report,
    calls: &[(&Conversation, &ColiSegmentRunRequest)],
) -> Result<(), Refused> {
    let Some((first, _)) = calls.first() else {
        return Ok(());
    };
    check_apart(report, calls)?;
    let range = &*first.range;
    let mut sessions = room(report, calls.len())?;
    let mut tokens = room(report, calls.len())?;
    let mut questions = room(report, calls.len())?;
    for (conversation, request) in calls {
        let session = conversation.lock(report)?;
        check_position(report, session.position(), request.position)?;
        sessions.push(session);
        // SAFETY: the caller's contract.
        tokens.push(unsafe { token_ids(report, range, request) }?);
        questions.push((request.should_cancel, request.cancel_user_data));
    }
    let mut spans = room(report, calls.len())?;
    for ((session, tokens), (_, request)) in sessions.iter_mut().zip(&tokens).zip(calls) {
        spans.push(RowsInPlace {
            session,
            tokens,
            // SAFETY: the caller's contract; the requests' outputs are distinct.
            rows: unsafe { rows(report, request) }?,
        });
    }
    // SAFETY: the callbacks are the host's, and the value ends with this call.
    let questions = unsafe { Questions::new(questions) };
    let (counts, waiting) = (&range.counts, Instant::now());
    let turn = range.turns.take(report, &questions)?;
    let start = Instant::now();
    let result = match &turn {
        Some(_) => range
            .model
            .step_in_place(spans, &questions.while_computing()),
        None => Err(Error::Cancelled),
    };
    drop(turn);
    add_time(&counts.wait_nanoseconds, start - waiting);
    add_time(&counts.run_nanoseconds, start.elapsed());
    let rows = tokens.iter().map(|t| t.len() as u64).sum();
    counts.ended(result.as_ref().err(), rows);
    result.map_err(|error| report.engine(&error))
}

/// Refuses requests of which one would write what another one reads or writes.
fn check_apart(
    report: &Report,
    calls: &[(&Conversation, &ColiSegmentRunRequest)],
) -> Result<(), Refused> {
    let meet = |a: (usize, usize), b: (usize, usize)| {
        a.0 < b.0.saturating_add(b.1) && b.0 < a.0.saturating_add(a.1)
    };
    let output = |request: &ColiSegmentRunRequest| (request.output.addr(), request.output_bytes);
    let input = |request: &ColiSegmentRunRequest| (request.input.addr(), request.input_bytes);
    for (at, (_, one)) in calls.iter().enumerate() {
        let others = calls[at + 1..].iter().map(|(_, other)| *other);
        for other in others {
            let writes = meet(output(one), output(other));
            if writes || meet(output(one), input(other)) || meet(input(one), output(other)) {
                return Err(report.argument(format_args!("buffers of two requests overlap")));
            }
        }
    }
    Ok(())
}

fn check_position(report: &Report, next: usize, asked: u64) -> Result<(), Refused> {
    if asked == next as u64 {
        return Ok(());
    }
    let reason = format_args!("position {asked} was asked for, the session's next one is {next}");
    Err(report.refuse(LamellaCode::LAMELLA_POSITION, reason))
}

/// The ids of a request's rows; where the model does not need them, ids that nothing looks at.
///
/// # Safety
/// The request's ids are as many as it says.
unsafe fn token_ids(
    report: &Report,
    range: &Range,
    request: &ColiSegmentRunRequest,
) -> Result<Vec<u32>, Refused> {
    let mut tokens = room(report, request.rows as usize)?;
    if !range.model.program().boundary.needs_token_ids {
        tokens.resize(request.rows as usize, 0);
        return Ok(tokens);
    }
    // SAFETY: the caller's contract.
    let ids =
        unsafe { checks::values(report, "token_ids", request.token_ids, request.token_count)? };
    for (index, &id) in ids.iter().enumerate() {
        let Ok(id) = u32::try_from(id) else {
            return Err(report.argument(format_args!("token id {id} at index {index} is negative")));
        };
        tokens.push(id);
    }
    Ok(tokens)
}

/// The rows of a request where their successors will be. The input may lie anywhere, also where
/// the output does.
///
/// # Safety
/// The request's buffers are as long as it says, and nobody else uses its output during `'a`.
unsafe fn rows<'a>(
    report: &Report,
    request: &ColiSegmentRunRequest,
) -> Result<&'a mut [f32], Refused> {
    let output = request.output.cast::<f32>();
    checks::aligned(report, output, "output")?;
    let bytes = request.output_bytes;
    checks::addressable::<u8>(report, "output", bytes)?;
    // SAFETY: both have as many bytes by the contract and the checks of the interface, and any bits
    // make a number.
    unsafe {
        std::ptr::copy(request.input.cast::<u8>(), output.cast::<u8>(), bytes);
        Ok(std::slice::from_raw_parts_mut(
            output,
            bytes / size_of::<f32>(),
        ))
    }
}

pub(super) unsafe extern "C-unwind" fn session_create(
    engine: *mut c_void,
    session: *mut *mut c_void,
    options: *const ColiSegmentSessionOptions,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the interface promises an adapter pointers to what they are called; the engine came
    // from `Arc::into_raw` and lives.
    unsafe {
        enter(error, error_size, |report| {
            let range = engine.cast_const().cast::<Range>();
            Arc::increment_strong_count(range);
            let range = Arc::from_raw(range);
            let limit = Some((*options).memory_limit_bytes).filter(|&bytes| bytes != 0);
            let made = range
                .model
                .session_within((*options).context_tokens as usize, limit);
            let made = made.map_err(|error| report.engine(&error))?;
            add(&range.counts.sessions, 1);
            let conversation = Conversation {
                range,
                session: Mutex::new(made),
            };
            session.write(Box::into_raw(Box::new(conversation)).cast());
            Ok(())
        })
    }
}

pub(super) unsafe extern "C-unwind" fn session_destroy(session: *mut c_void) {
    if !session.is_null() {
        // SAFETY: `session_create` made it by `Box::into_raw`, and it is used no more.
        drop(unsafe { Box::from_raw(session.cast::<Conversation>()) });
    }
}

pub(super) unsafe extern "C-unwind" fn session_run(
    session: *mut c_void,
    request: *const ColiSegmentRunRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the interface promises an adapter pointers to what they are called, and has checked
    // the request.
    unsafe {
        enter(error, error_size, |report| {
            run(report, &[(Conversation::of(session), &*request)])
        })
    }
}

pub(super) unsafe extern "C-unwind" fn session_snapshot(
    session: *mut c_void,
    write: ColiSegmentWriteFn,
    user_data: *mut c_void,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: as for `session_run`.
    unsafe {
        enter(error, error_size, |report| {
            let Some(write) = write else {
                return Err(checks::refuse_null(report, "write"));
            };
            let conversation = Conversation::of(session);
            let range = &conversation.range;
            let state = conversation.lock(report)?;
            let mut sink = host::Sink::new(write, user_data);
            let written = range.model.snapshot(&state, &mut sink);
            add(&range.counts.bytes_written, sink.taken);
            written.map_err(|error| report.engine(&error))
        })
    }
}

pub(super) unsafe extern "C-unwind" fn session_restore(
    session: *mut c_void,
    read: ColiSegmentReadFn,
    user_data: *mut c_void,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: as for `session_run`.
    unsafe {
        enter(error, error_size, |report| {
            let Some(read) = read else {
                return Err(checks::refuse_null(report, "read"));
            };
            let conversation = Conversation::of(session);
            let range = &conversation.range;
            let mut state = conversation.lock(report)?;
            let mut source = host::Source::new(read, user_data);
            let restored = range.model.restore(&mut state, &mut source);
            add(&range.counts.bytes_read, source.given);
            restored.map_err(|error| report.engine(&error))
        })
    }
}
