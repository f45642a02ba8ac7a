//! The functions of Segment version 1.

use super::abi::{
    COLI_SEGMENT_ABI_VERSION, ColiSegmentAdapter, ColiSegmentCapabilities, ColiSegmentEngine,
    ColiSegmentEngineOptions, ColiSegmentReadFn, ColiSegmentRunRequest, ColiSegmentSession,
    ColiSegmentSessionOptions, ColiSegmentWriteFn,
};
use super::{Engine, Session};
use crate::boundary::{enter, enter_with};
use crate::checks;
use crate::registry::{Id, SEGMENT_ADAPTERS, SEGMENT_ENGINES, SEGMENT_SESSIONS};
use crate::report::{Refused, Report};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Adds an adapter, which must live and stay as it is from then on. 0, or -1 if it breaks a rule
/// or its id is taken.
///
/// # Safety
/// `adapter` is NULL or as long as it says, with a text or NULL as `engine_id`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_adapter_register(
    adapter: *const ColiSegmentAdapter,
) -> c_int {
    enter_with(-1, |report| {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, adapter) }?;
        // SAFETY: the caller's contract.
        let id = unsafe { check_adapter(report, known) }?;
        SEGMENT_ADAPTERS.add(report, id, adapter)?;
        Ok(0)
    })
}

/// # Safety
/// `engine_id` is a text or NULL.
unsafe fn check_adapter(report: &Report, adapter: &ColiSegmentAdapter) -> Result<Id, Refused> {
    if adapter.abi_version != COLI_SEGMENT_ABI_VERSION {
        let (given, known) = (adapter.abi_version, COLI_SEGMENT_ABI_VERSION);
        return Err(report.argument(format_args!("abi_version is {given}, this is {known}")));
    }
    // SAFETY: the caller's contract.
    let id = unsafe { Id::read(report, adapter.engine_id) }?;
    let mandatory = [
        (adapter.engine_open.is_some(), "engine_open"),
        (adapter.engine_destroy.is_some(), "engine_destroy"),
        (adapter.session_create.is_some(), "session_create"),
        (adapter.session_destroy.is_some(), "session_destroy"),
        (adapter.session_run.is_some(), "session_run"),
    ];
    if let Some((_, name)) = mandatory.iter().find(|(there, _)| !there) {
        return Err(checks::refuse_null(report, name));
    }
    if adapter.session_snapshot.is_some() != adapter.session_restore.is_some() {
        let rule = "session_snapshot and session_restore come together";
        return Err(report.argument(format_args!("{rule}")));
    }
    Ok(id)
}

/// The adapter with this id, or NULL.
///
/// # Safety
/// `engine_id` is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_adapter_lookup(
    engine_id: *const c_char,
) -> *const ColiSegmentAdapter {
    enter_with(std::ptr::null(), |report| {
        // SAFETY: the caller's contract.
        let (_, adapter) = unsafe { SEGMENT_ADAPTERS.look_up(report, engine_id) }?;
        Ok(adapter)
    })
}

/// How many adapters there are.
#[unsafe(no_mangle)]
pub extern "C" fn coli_segment_adapter_count() -> c_int {
    enter_with(0, |_| {
        Ok(c_int::try_from(SEGMENT_ADAPTERS.count()).unwrap_or(c_int::MAX))
    })
}

/// Opens a layer range. `*engine` is NULL where it fails.
///
/// # Safety
/// `engine_id` is NULL or ends with a NUL; `options` is NULL or as long as it says, with a text or
/// NULL as `model_dir`; `engine` is NULL or writable; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_engine_open(
    engine_id: *const c_char,
    options: *const ColiSegmentEngineOptions,
    engine: *mut *mut ColiSegmentEngine,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            checks::start_out(report, engine, std::ptr::null_mut(), "engine")?;
            let opened = Engine::open(report, engine_id, options)?;
            engine.write(SEGMENT_ENGINES.insert(report, Arc::new(opened))?);
            Ok(())
        })
    }
}

/// What an engine is and can do. A block longer than ours is zeroed in all its length first.
///
/// # Safety
/// `capabilities` is NULL or writable for as long as it says; `error` is NULL or `error_size`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_engine_capabilities(
    engine: *const ColiSegmentEngine,
    capabilities: *mut ColiSegmentCapabilities,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            let engine = SEGMENT_ENGINES.get(report, engine)?;
            let size = checks::block_size(report, capabilities)?;
            capabilities.cast::<u8>().write_bytes(0, size);
            capabilities.write(engine.capabilities);
            Ok(())
        })
    }
}

/// Closes an engine; refused while sessions of it live. NULL is fine.
///
/// # Safety
/// `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_engine_close(
    engine: *mut ColiSegmentEngine,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            if !engine.is_null() {
                SEGMENT_ENGINES.get(report, engine)?.close(report)?;
                SEGMENT_ENGINES.remove(report, engine)?;
            }
            Ok(())
        })
    }
}

/// Creates an empty session. `*session` is NULL where it fails.
///
/// # Safety
/// `options` is NULL or as long as it says; `session` is NULL or writable; `error` is NULL or
/// `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_session_create(
    engine: *mut ColiSegmentEngine,
    options: *const ColiSegmentSessionOptions,
    session: *mut *mut ColiSegmentSession,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            checks::start_out(report, session, std::ptr::null_mut(), "session")?;
            let engine = SEGMENT_ENGINES.get(report, engine)?;
            let created = Session::create(report, engine, options)?;
            session.write(SEGMENT_SESSIONS.insert(report, Arc::new(created))?);
            Ok(())
        })
    }
}

/// Destroys a session, at the latest when the call that another thread has in it ends. NULL is
/// fine.
#[unsafe(no_mangle)]
pub extern "C" fn coli_segment_session_destroy(session: *mut ColiSegmentSession) {
    enter_with((), |report| {
        if !session.is_null() {
            SEGMENT_SESSIONS.remove(report, session)?;
        }
        Ok(())
    });
}

/// Runs the rows that follow what the session has. A run that fails leaves the session as it was.
///
/// # Safety
/// `request` is NULL or as long as it says, its buffers as long as they say, its callback callable
/// with its data; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_run(
    session: *mut ColiSegmentSession,
    request: *const ColiSegmentRunRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            SEGMENT_SESSIONS.get(report, session)?.run(report, request)
        })
    }
}

/// Writes a session to a stream of the host's.
///
/// # Safety
/// `write` is NULL or callable with `user_data`; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_snapshot(
    session: *mut ColiSegmentSession,
    write: ColiSegmentWriteFn,
    user_data: *mut c_void,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            SEGMENT_SESSIONS
                .get(report, session)?
                .snapshot(report, write, user_data)
        })
    }
}

/// Reads a session from a stream of the host's: all of it, or the session stays as it was.
///
/// # Safety
/// `read` is NULL or callable with `user_data`; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_segment_restore(
    session: *mut ColiSegmentSession,
    read: ColiSegmentReadFn,
    user_data: *mut c_void,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            SEGMENT_SESSIONS
                .get(report, session)?
                .restore(report, read, user_data)
        })
    }
}
