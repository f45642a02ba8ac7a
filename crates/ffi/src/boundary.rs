//! The two crossings: from C into this crate, and from this crate into callbacks.

use crate::lamella::LamellaCode;
use crate::report::{self, Refused, Report, TEXT_BYTES, Text};
use std::any::Any;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of an exported function: 0 or -1, whatever happens inside. State behind a handle
/// is changed only under locks that recover, and sessions whose adapter panicked are its own
/// concern, so that unwinding leaves nothing half done here.
///
/// # Safety
/// `error` is NULL or `error_size` writable bytes.
pub(crate) unsafe fn enter(
    error: *mut c_char,
    error_size: usize,
    body: impl FnOnce(&Report) -> Result<(), Refused>,
) -> c_int {
    // SAFETY: the caller's contract is the report's.
    let report = unsafe { Report::new(error, error_size) };
    match catch_unwind(AssertUnwindSafe(|| body(&report))) {
        Ok(Ok(())) => {
            report::clear_last();
            0
        }
        Ok(Err(Refused)) => -1,
        Err(payload) => {
            let _ = refuse_panic(&report, payload);
            -1
        }
    }
}

/// As [`enter`], for functions that return a value and `fallback` where they fail.
pub(crate) fn enter_with<T>(fallback: T, body: impl FnOnce(&Report) -> Result<T, Refused>) -> T {
    let mut value = fallback;
    // SAFETY: there is no buffer.
    unsafe {
        enter(std::ptr::null_mut(), 0, |report| {
            value = body(report)?;
            Ok(())
        });
    }
    value
}

/// Calls an adapter, which gets a buffer of ours for its text, and makes an error of anything but
/// 0. `id` names the adapter, `deed` what it was to do.
pub(crate) fn call_adapter(
    report: &Report,
    id: &str,
    deed: &str,
    call: impl FnOnce(*mut c_char, usize) -> c_int,
) -> Result<(), Refused> {
    let mut buffer = [0u8; TEXT_BYTES + 1];
    report::clear_last();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        call(buffer.as_mut_ptr().cast(), buffer.len())
    }));
    match outcome {
        Ok(0) => Ok(()),
        Ok(_) => {
            // An adapter of ours reports through this crate and has left its code.
            let code = match report::last().0 {
                LamellaCode::LAMELLA_OK => LamellaCode::LAMELLA_ADAPTER,
                code => code,
            };
            let text = Text::foreign(&buffer);
            if text.as_bytes().is_empty() {
                let reason = format_args!("adapter {id}: {deed} failed, and it does not say why");
                return Err(report.refuse(code, reason));
            }
            Err(report.refuse_with(code, text))
        }
        Err(payload) => Err(refuse_panic(report, payload)),
    }
}

/// Calls a destructor of an adapter, from which nothing can be returned.
pub(crate) fn destroy(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        std::mem::forget(payload);
    }
}

fn refuse_panic(report: &Report, payload: Box<dyn Any + Send>) -> Refused {
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let reason = format_args!("internal error, please report it: {message}");
    let refused = report.refuse(LamellaCode::LAMELLA_PANIC, reason);
    // A payload may panic in its destructor.
    std::mem::forget(payload);
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let mut buffer = [0xffu8; 64];
        // SAFETY: the buffer and its size.
        let code = unsafe {
            enter(buffer.as_mut_ptr().cast(), buffer.len(), |_| {
                let none: Option<u8> = None;
                none.map(|_| ()).ok_or(Refused).expect("a reason");
                Ok(())
            })
        };
        let text = std::ffi::CStr::from_bytes_until_nul(&buffer).unwrap();
        let text = text.to_str().unwrap();
        assert_eq!(code, -1);
        assert!(text.starts_with("internal error, please report it: a reason"));
        assert_eq!(report::last().0, LamellaCode::LAMELLA_PANIC);
    }

    #[test]
    fn a_panicking_adapter_refuses() {
        // SAFETY: no buffer.
        let report = unsafe { Report::new(std::ptr::null_mut(), 0) };
        let refused = call_adapter(&report, "a", "opening", |_, _| panic!("at the disco"));
        assert!(refused.is_err());
        let (code, text) = report::last();
        assert_eq!(code, LamellaCode::LAMELLA_PANIC);
        assert!(text.as_bytes().ends_with(b"at the disco"));
        destroy(|| panic!("nobody hears it"));
    }

    #[test]
    fn an_adapter_that_fails_in_silence_is_named() {
        // SAFETY: no buffer.
        let report = unsafe { Report::new(std::ptr::null_mut(), 0) };
        assert!(call_adapter(&report, "quiet", "opening", |_, _| 7).is_err());
        let (code, text) = report::last();
        assert_eq!(code, LamellaCode::LAMELLA_ADAPTER);
        let want = "adapter quiet: opening failed, and it does not say why";
        assert_eq!(text.as_bytes(), want.as_bytes());
    }
}
