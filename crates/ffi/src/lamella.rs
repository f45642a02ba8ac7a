//! What Lamella adds to the two interfaces, under names of its own: this file becomes
//! `lamella.h`. Nothing here is needed to use the others.

#![expect(
    non_camel_case_types,
    reason = "variants are constants of C under these names"
)]

use crate::report;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a call came to. Numbers keep their meaning; new ones may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LamellaCode {
    /// It succeeded.
    LAMELLA_OK = 0,
    /// An argument is NULL, has the wrong size, or is outside its range.
    LAMELLA_ARGUMENT = 1,
    /// A handle is closed, is of another kind, or never was one.
    LAMELLA_HANDLE = 2,
    /// No adapter has the id.
    LAMELLA_NOT_FOUND = 3,
    /// An adapter has the id already.
    LAMELLA_DUPLICATE = 4,
    /// Sessions of the engine live, or the session is in another call.
    LAMELLA_BUSY = 5,
    /// The adapter cannot do this.
    LAMELLA_UNSUPPORTED = 6,
    /// The adapter says or returns what breaks the rules of the interface.
    LAMELLA_BROKEN_ADAPTER = 7,
    /// The adapter refused; the text is its own.
    LAMELLA_ADAPTER = 8,
    /// `should_cancel` asked for it.
    LAMELLA_CANCELLED = 9,
    /// The system refused memory.
    LAMELLA_MEMORY = 10,
    /// A bug in the library.
    LAMELLA_PANIC = 11,
    /// The model's files are missing, damaged, of another family, or of no kind that runs here.
    LAMELLA_MODEL = 12,
    /// A memory limit is too low; the text has the sum.
    LAMELLA_MEMORY_LIMIT = 13,
    /// The position is not the session's next one.
    LAMELLA_POSITION = 14,
    /// A snapshot is damaged, is of something else, or its stream ended.
    LAMELLA_SNAPSHOT = 15,
    /// Rows, weights or results that are no finite numbers.
    LAMELLA_NON_FINITE = 16,
}

/// The code of this thread's last call of a `coli_` function. It says more than -1 does, and why
/// a function without an error buffer refused.
#[unsafe(no_mangle)]
pub extern "C" fn lamella_last_error_code() -> LamellaCode {
    report::last().0
}

/// Copies the text of this thread's last call of a `coli_` function, cut where the room ends,
/// with a NUL. Empty if the call succeeded.
///
/// Returns the bytes of the whole text, its NUL not counted. `text` may be NULL with size 0.
///
/// # Safety
/// `text` is NULL or `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_last_error_text(text: *mut c_char, size: usize) -> usize {
    let (_, last) = report::last();
    // SAFETY: the caller's contract.
    unsafe { report::write_text(last.as_bytes(), text, size) };
    last.as_bytes().len()
}

/// The version of the library, as `1.2.3`.
#[unsafe(no_mangle)]
pub extern "C" fn lamella_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// A flag by which one thread cancels the calls of others: `lamella_cancel_poll` is their
/// `should_cancel`, the flag their `cancel_user_data`.
#[derive(Debug)]
pub struct LamellaCancel {
    raised: AtomicBool,
}

/// A flag that is not raised, or NULL without memory. It must outlive the calls that poll it.
#[unsafe(no_mangle)]
pub extern "C" fn lamella_cancel_new() -> *mut LamellaCancel {
    const { assert!(size_of::<LamellaCancel>() > 0) };
    // SAFETY: the layout has a size.
    let flag = unsafe { alloc(Layout::new::<LamellaCancel>()) }.cast::<LamellaCancel>();
    if !flag.is_null() {
        let raised = AtomicBool::new(false);
        // SAFETY: just allocated with the layout of this type.
        unsafe { flag.write(LamellaCancel { raised }) };
    }
    flag
}

/// Raises the flag. May be called from any thread and from a signal handler. NULL is ignored.
///
/// # Safety
/// `cancel` is NULL or a flag that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_cancel_raise(cancel: *const LamellaCancel) {
    // SAFETY: the caller's contract.
    if let Some(cancel) = unsafe { cancel.as_ref() } {
        cancel.raised.store(true, Ordering::Release);
    }
}

/// Lowers the flag, for the next call. NULL is ignored.
///
/// # Safety
/// `cancel` is NULL or a flag that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_cancel_reset(cancel: *const LamellaCancel) {
    // SAFETY: the caller's contract.
    if let Some(cancel) = unsafe { cancel.as_ref() } {
        cancel.raised.store(false, Ordering::Release);
    }
}

/// 1 if the flag is raised, else 0: a `ColiSegmentCancelFn` and a `ColiEdgeCancelFn`.
///
/// # Safety
/// `cancel` is NULL or a flag that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_cancel_poll(cancel: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    let cancel = unsafe { cancel.cast::<LamellaCancel>().as_ref() };
    cancel.is_some_and(|cancel| cancel.raised.load(Ordering::Acquire)) as c_int
}

/// Frees the flag. NULL is ignored.
///
/// # Safety
/// `cancel` is NULL or a flag that was not freed and that no call polls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lamella_cancel_free(cancel: *mut LamellaCancel) {
    if !cancel.is_null() {
        // SAFETY: `lamella_cancel_new` made it with this layout, and nobody uses it any more.
        unsafe { dealloc(cancel.cast(), Layout::new::<LamellaCancel>()) };
    }
}
