//! Callbacks of the host as the engine takes them. A callback that panics says no.

use lamella_engine::Cancel;
use std::ffi::{c_int, c_void};
use std::io::{Error, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A `should_cancel` and its data.
pub(super) type Question = (
    Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>,
    *mut c_void,
);

/// Questions whether to cancel.
pub(super) struct Questions(Arc<[Question]>);

// SAFETY: a `Cancel` is asked on the thread that called the engine and on no other, which is the
// thread that the host called from.
unsafe impl Send for Questions {}
// SAFETY: as above.
unsafe impl Sync for Questions {}

impl Questions {
    /// # Safety
    /// The callbacks may be called with their data for as long as the value and what
    /// [`while_computing`](Questions::while_computing) made live.
    pub(super) unsafe fn new(questions: Vec<Question>) -> Questions {
        Questions(questions.into())
    }

    /// Whether there is nobody to ask.
    pub(super) fn none(&self) -> bool {
        self.0.iter().all(|(ask, _)| ask.is_none())
    }

    /// Asks on this thread.
    pub(super) fn cancel(&self) -> bool {
        self.0.iter().any(|&(ask, data)| {
            // SAFETY: whoever made this promised that the callbacks may be called.
            ask.is_some_and(|ask| refuses(|| unsafe { ask(data) }))
        })
    }

    /// The same questions for the engine.
    pub(super) fn while_computing(&self) -> Cancel {
        if self.none() {
            return Cancel::new();
        }
        let questions = Questions(Arc::clone(&self.0));
        Cancel::asking(move || questions.cancel())
    }
}

/// Whether a callback returns anything but 0, or panics.
fn refuses(call: impl FnOnce() -> c_int) -> bool {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(code) => code != 0,
        Err(payload) => {
            // A payload may panic in its destructor.
            std::mem::forget(payload);
            true
        }
    }
}

/// A stream that the host takes.
pub(super) struct Sink {
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_void, usize) -> c_int,
    user_data: *mut c_void,
    /// Bytes that were taken.
    pub(super) taken: u64,
}

impl Sink {
    /// # Safety
    /// `write` may be called with `user_data` for as long as the value lives.
    pub(super) unsafe fn new(
        write: unsafe extern "C-unwind" fn(*mut c_void, *const c_void, usize) -> c_int,
        user_data: *mut c_void,
    ) -> Sink {
        Sink {
            write,
            user_data,
            taken: 0,
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let (data, size) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the contract of `new`; the bytes are readable.
        if size > 0 && refuses(|| unsafe { (self.write)(self.user_data, data, size) }) {
            return Err(Error::other("the host's callback stopped it"));
        }
        self.taken += size as u64;
        Ok(size)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A stream that the host gives.
pub(super) struct Source {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, usize) -> c_int,
    user_data: *mut c_void,
    /// Bytes that were given.
    pub(super) given: u64,
}

impl Source {
    /// # Safety
    /// `read` may be called with `user_data` for as long as the value lives.
    pub(super) unsafe fn new(
        read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, usize) -> c_int,
        user_data: *mut c_void,
    ) -> Source {
        Source {
            read,
            user_data,
            given: 0,
        }
    }
}

impl Read for Source {
    /// Fills all of `bytes`: that is what the host's callback does.
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let (data, size) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the contract of `new`; the bytes are writable.
        if size > 0 && refuses(|| unsafe { (self.read)(self.user_data, data, size) }) {
            return Err(Error::other("the host's callback stopped it"));
        }
        self.given += size as u64;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C-unwind" fn falls(_: *mut c_void) -> c_int {
        panic!("over");
    }

    unsafe extern "C-unwind" fn says(data: *mut c_void) -> c_int {
        // SAFETY: the tests pass a number.
        unsafe { *data.cast::<c_int>() }
    }

    #[test]
    fn a_callback_that_panics_cancels() {
        let mut number: c_int = 0;
        let data = (&raw mut number).cast();
        let ask = |questions| {
            // SAFETY: the number lives as long.
            unsafe { Questions::new(questions) }
                .while_computing()
                .is_cancelled()
        };
        assert!(!ask(vec![]));
        assert!(!ask(vec![(None, data), (Some(says), data)]));
        assert!(ask(vec![(None, data), (Some(falls), data)]));
        number = 3;
        assert!(ask(vec![(Some(says), (&raw mut number).cast())]));
    }
}
