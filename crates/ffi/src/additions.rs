//! What Lamella adds about opened engines: this file becomes part of `lamella.h`. Engines of a
//! host's own adapters have none of it.

use crate::adapters::{Ends, Range};
use crate::boundary::enter;
use crate::checks;
use crate::edge::abi::ColiEdgeEngine;
use crate::lamella::LamellaCode;
use crate::registry::{EDGE_ENGINES, SEGMENT_ENGINES, SEGMENT_SESSIONS};
use crate::report::{Refused, Report};
use crate::segment::Session;
use crate::segment::abi::{ColiSegmentEngine, ColiSegmentRunRequest, ColiSegmentSession};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

/// What was done in a layer range since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LamellaSegmentStatistics {
    /// `sizeof(LamellaSegmentStatistics)` of whoever reads it.
    pub struct_size: u32,
    /// Zero.
    pub reserved_u32: u32,
    /// Bytes of weights in memory.
    pub weight_bytes: u64,
    /// Bytes of working buffers.
    pub workspace_bytes: u64,
    /// Sessions that live.
    pub sessions: u64,
    /// Runs that succeeded; several sessions run together are one.
    pub runs: u64,
    /// Rows of these runs.
    pub rows: u64,
    /// Runs that were cancelled while they waited or computed.
    pub cancelled: u64,
    /// Runs that failed while they computed.
    pub failed: u64,
    /// Time in which runs computed.
    pub run_nanoseconds: u64,
    /// Time in which runs waited for others of the same engine.
    pub wait_nanoseconds: u64,
    /// Bytes of snapshots that hosts took.
    pub snapshot_bytes_written: u64,
    /// Bytes of snapshots that hosts gave.
    pub snapshot_bytes_read: u64,
    /// Routed experts of the range that are read from disk when a run needs them; 0 where all are
    /// in memory, and so are the five below.
    pub expert_count: u64,
    /// Experts that memory has room for.
    pub expert_slots: u64,
    /// Experts that runs needed, one that several rows of a run chose counted once.
    pub expert_uses: u64,
    /// Those of them that were in memory.
    pub expert_hits: u64,
    /// Bytes of experts that were read from disk.
    pub expert_bytes_read: u64,
    /// Time in which runs waited for these bytes.
    pub expert_wait_nanoseconds: u64,
}

/// What was done with the ends of a model since they were opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LamellaEdgeStatistics {
    /// `sizeof(LamellaEdgeStatistics)` of whoever reads it.
    pub struct_size: u32,
    /// Zero.
    pub reserved_u32: u32,
    /// Bytes of weights in memory.
    pub weight_bytes: u64,
    /// Bytes of weights of which calls read their rows from disk.
    pub weight_bytes_on_disk: u64,
    /// Bytes of working buffers.
    pub workspace_bytes: u64,
    /// Rows of embeddings that were made.
    pub rows_embedded: u64,
    /// Rows for which an id was selected.
    pub rows_selected: u64,
    /// Rows for which logits were made.
    pub rows_of_logits: u64,
    /// Calls that were cancelled while they waited or computed.
    pub cancelled: u64,
    /// Calls that failed while they computed.
    pub failed: u64,
    /// Time in which calls computed.
    pub run_nanoseconds: u64,
    /// Time in which calls waited for others of the same engine.
    pub wait_nanoseconds: u64,
}

/// What `LamellaSegmentStatistics` had at first: the least that is written.
const FIRST_SEGMENT_STATISTICS: usize = 96;

/// Writes what was done in an engine. A block longer than ours is zeroed in all its length first;
/// one as long as an earlier version had it (96 bytes at least) gets what fits. `struct_size`
/// becomes the bytes that were written.
///
/// # Safety
/// `statistics` is NULL or writable for as long as it says; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_segment_statistics(
    engine: *const ColiSegmentEngine,
    statistics: *mut LamellaSegmentStatistics,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            let engine = SEGMENT_ENGINES.get(report, engine)?;
            let range = Range::of(&engine).ok_or_else(|| foreign(report))?;
            let said = statistics_of(range);
            checks::fill(report, statistics, FIRST_SEGMENT_STATISTICS, &said)
        })
    }
}

fn statistics_of(range: &Range) -> LamellaSegmentStatistics {
    let (opened, counts) = (range.model().report(), &range.counts);
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let experts = range.model().experts().unwrap_or_default();
    LamellaSegmentStatistics {
        struct_size: size_of::<LamellaSegmentStatistics>() as u32,
        reserved_u32: 0,
        weight_bytes: opened.resident_bytes,
        workspace_bytes: opened.workspace_bytes,
        sessions: read(&counts.sessions),
        runs: read(&counts.runs),
        rows: read(&counts.rows),
        cancelled: read(&counts.cancelled),
        failed: read(&counts.failed),
        run_nanoseconds: read(&counts.run_nanoseconds),
        wait_nanoseconds: read(&counts.wait_nanoseconds),
        snapshot_bytes_written: read(&counts.bytes_written),
        snapshot_bytes_read: read(&counts.bytes_read),
        expert_count: experts.experts,
        expert_slots: experts.slots,
        expert_uses: experts.uses,
        expert_hits: experts.hits,
        expert_bytes_read: experts.bytes_read,
        expert_wait_nanoseconds: u64::try_from(experts.waited.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// Writes what was done with the ends of a model. A block longer than ours is zeroed in all its
/// length first.
///
/// # Safety
/// `statistics` is NULL or writable for as long as it says; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_edge_statistics(
    engine: *const ColiEdgeEngine,
    statistics: *mut LamellaEdgeStatistics,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            let engine = EDGE_ENGINES.get(report, engine)?;
            let ends = Ends::of(&engine).ok_or_else(|| foreign(report))?;
            let said = statistics_of_ends(ends);
            checks::fill(report, statistics, size_of_val(&said), &said)
        })
    }
}

fn statistics_of_ends(ends: &Ends) -> LamellaEdgeStatistics {
    let (opened, counts) = (ends.model().report(), &ends.counts);
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    LamellaEdgeStatistics {
        struct_size: size_of::<LamellaEdgeStatistics>() as u32,
        reserved_u32: 0,
        weight_bytes: opened.resident_bytes,
        weight_bytes_on_disk: opened.streamed_bytes,
        workspace_bytes: opened.workspace_bytes,
        rows_embedded: read(&counts.rows_embedded),
        rows_selected: read(&counts.rows_selected),
        rows_of_logits: read(&counts.rows_of_logits),
        cancelled: read(&counts.cancelled),
        failed: read(&counts.failed),
        run_nanoseconds: read(&counts.run_nanoseconds),
        wait_nanoseconds: read(&counts.wait_nanoseconds),
    }
}

fn foreign(report: &Report) -> Refused {
    let reason = format_args!("the engine is of an adapter that is not Lamella's");
    report.refuse(LamellaCode::LAMELLA_UNSUPPORTED, reason)
}

/// Runs rows of several sessions of one engine in one step, in which the weights, and each expert
/// that several rows chose, are read once: all of them, or every session stays as it was.
/// `requests[i]` is what `coli_segment_run` would get for `sessions[i]`; the results are the same.
/// No buffer may overlap one of another request. The run is cancelled if one callback says so.
///
/// # Safety
/// `sessions` and `requests` are NULL or have `count` entries, each as `coli_segment_run` asks;
/// `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_segment_run_many(
    sessions: *const *mut ColiSegmentSession,
    requests: *const *const ColiSegmentRunRequest,
    count: usize,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            checks::not_null(report, sessions, "sessions")?;
            checks::not_null(report, requests, "requests")?;
            checks::aligned(report, sessions, "sessions")?;
            checks::aligned(report, requests, "requests")?;
            if count == 0 {
                return Err(report.argument(format_args!("count is 0")));
            }
            let sessions = checks::values(report, "sessions", sessions, count)?;
            let requests = checks::values(report, "requests", requests, count)?;
            let mut found = Vec::new();
            for &session in sessions {
                checks::reserve_one(report, &mut found)?;
                found.push(SEGMENT_SESSIONS.get(report, session)?);
            }
            Session::run_many(report, &found, requests)
        })
    }
}

/// Describes an opened layer range as a JSON object: the model, the part, the encodings and
/// instruction set it runs in, its memory, and what decides its bits.
///
/// `*bytes` becomes the length without the NUL. `text` is NULL exactly when `capacity` is 0, to ask
/// for the length; a `capacity` that is too small is an error.
///
/// # Safety
/// `text` is NULL or `capacity` writable bytes; `bytes` is NULL or writable; `error` is NULL or
/// `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_segment_report(
    engine: *const ColiSegmentEngine,
    text: *mut c_char,
    capacity: usize,
    bytes: *mut usize,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            let engine = SEGMENT_ENGINES.get(report, engine)?;
            let range = Range::of(&engine).ok_or_else(|| foreign(report))?;
            hand_out(report, &range.facts(), text, capacity, bytes)
        })
    }
}

/// Describes the opened ends of a model, as `lamella_segment_report` does a layer range.
///
/// # Safety
/// As `lamella_segment_report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_edge_report(
    engine: *const ColiEdgeEngine,
    text: *mut c_char,
    capacity: usize,
    bytes: *mut usize,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            let engine = EDGE_ENGINES.get(report, engine)?;
            let ends = Ends::of(&engine).ok_or_else(|| foreign(report))?;
            hand_out(report, &ends.facts(), text, capacity, bytes)
        })
    }
}

/// # Safety
/// `text` is NULL or `capacity` writable bytes; `bytes` is NULL or writable.
unsafe fn hand_out(
    report: &Report,
    facts: &serde_json::Value,
    text: *mut c_char,
    capacity: usize,
    bytes: *mut usize,
) -> Result<(), Refused> {
    // SAFETY: the caller's contract.
    unsafe { checks::start_out(report, bytes, 0, "bytes") }?;
    checks::optional(report, "text", text, capacity)?;
    let facts = facts.to_string();
    if capacity > 0 {
        checks::room(report, "capacity", capacity, facts.len() as u128 + 1)?;
        // SAFETY: there is room for the text and its NUL.
        unsafe { crate::report::write_text(facts.as_bytes(), text, capacity) };
    }
    // SAFETY: writable by the contract, and not NULL.
    unsafe { bytes.write(facts.len()) };
    Ok(())
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    checks::assert_layout!(LamellaSegmentStatistics, 144,
        struct_size 0, reserved_u32 4, weight_bytes 8, workspace_bytes 16, sessions 24, runs 32,
        rows 40, cancelled 48, failed 56, run_nanoseconds 64, wait_nanoseconds 72,
        snapshot_bytes_written 80, snapshot_bytes_read 88, expert_count 96, expert_slots 104,
        expert_uses 112, expert_hits 120, expert_bytes_read 128, expert_wait_nanoseconds 136);
    assert!(
        std::mem::offset_of!(LamellaSegmentStatistics, expert_count) == FIRST_SEGMENT_STATISTICS
    );
    checks::assert_layout!(LamellaEdgeStatistics, 88,
        struct_size 0, reserved_u32 4, weight_bytes 8, weight_bytes_on_disk 16, workspace_bytes 24,
        rows_embedded 32, rows_selected 40, rows_of_logits 48, cancelled 56, failed 64,
        run_nanoseconds 72, wait_nanoseconds 80);
};
