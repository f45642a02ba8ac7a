//! Ctrl-C, and being asked to end (SIGTERM, SIGHUP): both mean the same.
//!
//! Work that polls the flag is stopped by it and tidies up itself. Whatever else runs, waiting for
//! a person included, is ended at once by [`End::Interrupted`], and so is work that has not
//! stopped when the signal comes a second time.

use crate::failure::{Failure, Kind};
use lamella_engine::Cancel;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// Why the program ends.
pub(crate) enum End {
    /// The command is done.
    Returned(anyhow::Result<()>),
    /// A defect.
    Panicked(Box<dyn Any + Send>),
    /// The person wants it to; what to say.
    Interrupted(Failure),
}

/// What a signal does.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    cancel: Cancel,
    plain: AtomicBool,
    /// Whether what runs polls the flag.
    polled: AtomicBool,
    /// What is said if a signal ends the program at once.
    said: Mutex<String>,
    ends: Mutex<Sender<End>>,
}

impl Interrupt {
    /// A signal that is not polled is told to `ends`.
    pub(crate) fn new(ends: Sender<End>) -> Interrupt {
        Interrupt(Arc::new(Shared {
            cancel: Cancel::default(),
            plain: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            said: Mutex::new("interrupted".to_owned()),
            ends: Mutex::new(ends),
        }))
    }

    /// From here on signals are ours.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn install(&self) -> anyhow::Result<()> {
        let raised = self.clone();
        ctrlc::set_handler(move || raised.raise()).map_err(|error| match error {
            ctrlc::Error::System(cause) => Failure::thread("signals", &cause),
            other => other.into(),
        })
    }

    fn raise(&self) {
        let again = self.0.plain.swap(true, Ordering::SeqCst);
        self.0.cancel.cancel();
        if again || !self.0.polled.load(Ordering::SeqCst) {
            self.end();
        }
    }

    fn end(&self) {
        let ends = self.0.ends.lock().unwrap_or_else(PoisonError::into_inner);
        // If nobody listens any more, the program has ended.
        let _ = ends.send(End::Interrupted(self.failure()));
    }

    /// What a signal that ends the program at once says from here on.
    pub(crate) fn says(&self, message: String) {
        *self.0.said.lock().unwrap_or_else(PoisonError::into_inner) = message;
    }

    /// What an interruption is told as.
    fn failure(&self) -> Failure {
        let said = self.0.said.lock().unwrap_or_else(PoisonError::into_inner);
        Failure::new(Kind::Interrupted, said.clone())
    }

    /// From here on the flag is polled: a signal raises it and the work tidies up.
    ///
    /// # Errors
    /// If a signal came before: the program is ending, and the work must not begin.
    pub(crate) fn poll(&self) -> anyhow::Result<()> {
        self.0.polled.store(true, Ordering::SeqCst);
        // A signal sets the flag before it asks whether somebody polls: one of the two sees it.
        if self.0.plain.load(Ordering::SeqCst) {
            return Err(self.failure().into());
        }
        Ok(())
    }

    /// Waits for a person by `read`; a signal ends the program meanwhile.
    pub(crate) fn wait<T>(&self, read: impl FnOnce() -> T) -> T {
        let before = self.0.polled.swap(false, Ordering::SeqCst);
        if self.0.plain.load(Ordering::SeqCst) {
            // It came between the end of the work and here.
            self.end();
        }
        let result = read();
        self.0.polled.store(before, Ordering::SeqCst);
        result
    }

    /// The engine's view of the flag.
    pub(crate) fn cancel(&self) -> Cancel {
        self.0.cancel.clone()
    }

    /// The flag for code that knows no engine.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0.plain
    }

    /// Lowers the flag, for the next answer.
    pub(crate) fn reset(&self) {
        self.0.cancel.reset();
        self.0.plain.store(false, Ordering::SeqCst);
    }
}

/// Keeps SIGHUP ignored if it is, as `nohup` asks, although a handler will be put in place: it is
/// blocked in this thread, which must be the first, and in those it starts.
#[cfg(target_os = "linux")]
pub(crate) fn keep_hangup_ignored() {
    use nix::sys::signal::{SigSet, Signal};
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = field.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    if mask.is_some_and(|mask| mask >> (Signal::SIGHUP as i32 - 1) & 1 == 1) {
        // If that is refused, the program only ends where it might have gone on.
        let _ = SigSet::from(Signal::SIGHUP).thread_block();
    }
}

/// Other systems have no such signal, or no way to see that it is ignored.
#[cfg(not(target_os = "linux"))]
pub(crate) fn keep_hangup_ignored() {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_polls_is_asked_and_what_waits_is_ended() {
        let (ends, end) = channel();
        let interrupt = Interrupt::new(ends);
        let ended = || matches!(end.try_recv(), Ok(End::Interrupted(_)));
        interrupt.raise();
        assert!(ended(), "nothing polls yet");
        interrupt.reset();
        interrupt.poll().unwrap();
        interrupt.raise();
        assert!(interrupt.flag().load(Ordering::SeqCst) && !ended());
        interrupt.raise();
        assert!(ended(), "the second time");
        assert!(
            interrupt.poll().is_err(),
            "work does not begin after a signal"
        );
        interrupt.reset();
        interrupt.wait(|| interrupt.raise());
        assert!(ended(), "waiting");
        interrupt.wait(|| ());
        assert!(ended(), "raised before the wait");
    }
}
