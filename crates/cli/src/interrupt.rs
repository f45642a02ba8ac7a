//! Ctrl-C: raises the cancellation flag of whatever runs.

use lamella_engine::Cancel;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag that Ctrl-C raises. Until [`Interrupt::install`] the system's own rule holds: Ctrl-C
/// ends the process, which is right for everything that has nothing to tidy up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    cancel: Cancel,
    plain: Arc<AtomicBool>,
}

impl Interrupt {
    /// From here on Ctrl-C raises the flag.
    pub(crate) fn install() -> anyhow::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let raised = interrupt.clone();
        ctrlc::set_handler(move || {
            raised.cancel.cancel();
            raised.plain.store(true, Ordering::Release);
        })?;
        Ok(interrupt)
    }

    /// The engine's view of the flag.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// The flag for code that knows no engine.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.plain
    }

    /// Lowers the flag, for the next answer.
    pub(crate) fn reset(&self) {
        self.cancel.reset();
        self.plain.store(false, Ordering::Release);
    }
}
