//! The functions of Edge version 2.

use super::Engine;
use super::abi::{
    COLI_EDGE_ABI_VERSION, ColiEdgeAdapter, ColiEdgeCapabilities, ColiEdgeEmbedRequest,
    ColiEdgeEngine, ColiEdgeEngineOptions, ColiEdgeLogitsRequest, ColiEdgeSelectRequest,
};
use super::engine::{Detokenize, Tokenize};
use crate::boundary::{enter, enter_with};
use crate::checks;
use crate::registry::{EDGE_ADAPTERS, EDGE_ENGINES, Id};
use crate::report::{Refused, Report};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// Adds an adapter, which must live and stay as it is from then on. 0, or -1 if it breaks a rule
/// or its id is taken.
///
/// # Safety
/// `adapter` is NULL or as long as it says, with a text or NULL as `engine_id`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_adapter_register(adapter: *const ColiEdgeAdapter) -> c_int {
    enter_with(-1, |report| {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, adapter) }?;
        // SAFETY: the caller's contract.
        let id = unsafe { check_adapter(report, known) }?;
        EDGE_ADAPTERS.add(report, id, adapter)?;
        Ok(0)
    })
}

/// # Safety
/// `engine_id` is a text or NULL.
unsafe fn check_adapter(report: &Report, adapter: &ColiEdgeAdapter) -> Result<Id, Refused> {
    if adapter.abi_version != COLI_EDGE_ABI_VERSION {
        let (given, known) = (adapter.abi_version, COLI_EDGE_ABI_VERSION);
        return Err(report.argument(format_args!("abi_version is {given}, this is {known}")));
    }
    // SAFETY: the caller's contract.
    let id = unsafe { Id::read(report, adapter.engine_id) }?;
    let mandatory = [
        (adapter.engine_open.is_some(), "engine_open"),
        (adapter.engine_destroy.is_some(), "engine_destroy"),
        (adapter.embed.is_some(), "embed"),
    ];
    if let Some((_, name)) = mandatory.iter().find(|(there, _)| !there) {
        return Err(checks::refuse_null(report, name));
    }
    if adapter.tokenize.is_some() != adapter.detokenize.is_some() {
        let rule = "tokenize and detokenize come together";
        return Err(report.argument(format_args!("{rule}")));
    }
    Ok(id)
}

/// The adapter with this id, or NULL.
///
/// # Safety
/// `engine_id` is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_adapter_lookup(
    engine_id: *const c_char,
) -> *const ColiEdgeAdapter {
    enter_with(std::ptr::null(), |report| {
        // SAFETY: the caller's contract.
        let (_, adapter) = unsafe { EDGE_ADAPTERS.look_up(report, engine_id) }?;
        Ok(adapter)
    })
}

/// How many adapters there are.
#[unsafe(no_mangle)]
pub extern "C" fn coli_edge_adapter_count() -> c_int {
    enter_with(0, |_| {
        Ok(c_int::try_from(EDGE_ADAPTERS.count()).unwrap_or(c_int::MAX))
    })
}

/// Opens the ends of a model. `*engine` is NULL where it fails.
///
/// # Safety
/// `engine_id` is NULL or ends with a NUL; `options` is NULL or as long as it says, with a text or
/// NULL as `model_dir`; `engine` is NULL or writable; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_engine_open(
    engine_id: *const c_char,
    options: *const ColiEdgeEngineOptions,
    engine: *mut *mut ColiEdgeEngine,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            checks::start_out(report, engine, std::ptr::null_mut(), "engine")?;
            let opened = Engine::open(report, engine_id, options)?;
            engine.write(EDGE_ENGINES.insert(report, Arc::new(opened))?);
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
pub unsafe extern "C" fn coli_edge_engine_capabilities(
    engine: *const ColiEdgeEngine,
    capabilities: *mut ColiEdgeCapabilities,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            let engine = EDGE_ENGINES.get(report, engine)?;
            let size = checks::block_size(report, capabilities)?;
            capabilities.cast::<u8>().write_bytes(0, size);
            capabilities.write(engine.capabilities);
            Ok(())
        })
    }
}

/// Closes an engine, at the latest when the calls that other threads have in it end. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn coli_edge_engine_close(engine: *mut ColiEdgeEngine) {
    enter_with((), |report| {
        if !engine.is_null() {
            EDGE_ENGINES.remove(report, engine)?;
        }
        Ok(())
    });
}

/// Text to ids. With `token_ids` NULL and a capacity of 0 they are only counted.
///
/// # Safety
/// `text` has `text_bytes` bytes; `token_ids` has room for `token_capacity` ids; `token_count` is
/// NULL or writable; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_tokenize(
    engine: *mut ColiEdgeEngine,
    text: *const c_char,
    text_bytes: usize,
    token_ids: *mut i32,
    token_capacity: usize,
    token_count: *mut usize,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    let request = Tokenize {
        text,
        text_bytes,
        ids: token_ids,
        capacity: token_capacity,
        count: token_count,
    };
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            EDGE_ENGINES.get(report, engine)?.tokenize(report, &request)
        })
    }
}

/// Ids to text, with a NUL that `text_bytes` does not count. With `text` NULL and a capacity of 0
/// the bytes are only counted.
///
/// # Safety
/// `token_ids` has `token_count` ids; `text` has room for `text_capacity` bytes; `text_bytes` is
/// NULL or writable; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_detokenize(
    engine: *mut ColiEdgeEngine,
    token_ids: *const i32,
    token_count: usize,
    text: *mut c_char,
    text_capacity: usize,
    text_bytes: *mut usize,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    let request = Detokenize {
        ids: token_ids,
        count: token_count,
        text,
        capacity: text_capacity,
        bytes: text_bytes,
    };
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            EDGE_ENGINES
                .get(report, engine)?
                .detokenize(report, &request)
        })
    }
}

/// Ids to the rows that the first range takes.
///
/// # Safety
/// `request` is NULL or as long as it says, its buffers as long as they say, its callback callable
/// with its data; `error` is NULL or `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_embed(
    engine: *mut ColiEdgeEngine,
    request: *const ColiEdgeEmbedRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            EDGE_ENGINES.get(report, engine)?.embed(report, request)
        })
    }
}

/// The most likely id after each row of the last range.
///
/// # Safety
/// As `coli_edge_embed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_select(
    engine: *mut ColiEdgeEngine,
    request: *const ColiEdgeSelectRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            EDGE_ENGINES.get(report, engine)?.select(report, request)
        })
    }
}

/// The logits after each row of the last range.
///
/// # Safety
/// As `coli_edge_embed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coli_edge_logits(
    engine: *mut ColiEdgeEngine,
    request: *const ColiEdgeLogitsRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the caller's contract covers all that is done here.
    unsafe {
        enter(error, error_size, |report| {
            EDGE_ENGINES.get(report, engine)?.logits(report, request)
        })
    }
}
