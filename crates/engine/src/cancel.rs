//! Cancellation: a flag that another thread or a signal handler may raise, or a question.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A cancellation flag, shared by cloning. Steps poll it between layers and between expert blocks,
/// on the thread that called them.
#[derive(Clone, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    ask: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Cancel {
    /// A flag that is not raised.
    #[must_use]
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// A flag that is also taken for raised when `ask` says so. It is asked at every poll.
    #[must_use]
    pub fn asking(ask: impl Fn() -> bool + Send + Sync + 'static) -> Cancel {
        Cancel {
            flag: Arc::default(),
            ask: Some(Arc::new(ask)),
        }
    }

    /// Raises the flag.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Lowers the flag, for the next answer.
    pub fn reset(&self) {
        self.flag.store(false, Ordering::Release);
    }

    /// Whether the flag is raised.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_raised() || self.ask.as_ref().is_some_and(|ask| ask())
    }

    /// Whether the flag itself is raised; for threads of the pool, on which nobody is asked.
    pub(crate) fn is_raised(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// [`Error::Cancelled`] if the flag is raised.
    ///
    /// # Errors
    /// Exactly then.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let raised = self.flag.load(Ordering::Relaxed);
        f.debug_struct("Cancel")
            .field("raised", &raised)
            .field("asks", &self.ask.is_some())
            .finish()
    }
}
