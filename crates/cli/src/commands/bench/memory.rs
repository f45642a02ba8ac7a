//! Whether what a measurement needs fits into the memory, before it is taken.

use lamella_engine::memory::MemoryLimit;
use lamella_engine::{Error, Model};
use lamella_kernels::PAGE;
use lamella_program::state;

/// Memory that is left, and where its limit comes from.
pub(super) struct Free {
    limit: MemoryLimit,
    /// Bytes of the limit that the model has taken.
    taken: u64,
}

impl Free {
    /// What `asked`, a limit that was typed, or the machine leaves beside the open model.
    pub(super) fn beside(model: &Model, asked: Option<u64>) -> Free {
        let report = model.report();
        let taken = report.resident_bytes.saturating_add(report.workspace_bytes);
        Free {
            limit: MemoryLimit::resolve(asked),
            // What the machine has to offer is counted after the model was loaded. Experts that do
            // not all fit leave for conversations; those that have no room even so are refused.
            taken: match asked.is_some() && model.experts().is_none() {
                true => taken,
                false => 0,
            },
        }
    }

    /// Refuses `need` more bytes for `what` if they do not fit.
    ///
    /// # Errors
    /// [`Error::Memory`], with `advice`.
    pub(super) fn holds(&self, what: &str, need: u64, advice: &str) -> Result<(), Error> {
        if self.taken.saturating_add(need) <= self.limit.bytes {
            return Ok(());
        }
        let taken = match self.taken {
            0 => String::new(),
            taken => format!("the model has {taken} bytes, "),
        };
        Err(Error::Memory {
            sum: format!("{taken}{what} needs {need} bytes"),
            limit: self.limit.bytes,
            origin: self.limit.origin.clone(),
            advice: advice.to_owned(),
        })
    }
}

/// Bytes of the state and logits of `batch` conversations of `tokens` tokens each.
pub(super) fn conversations(model: &Model, tokens: usize, batch: usize) -> u64 {
    let rows = tokens.div_ceil(PAGE).saturating_mul(PAGE) as u64;
    let report = model.report();
    rows.saturating_mul(report.state_bytes_per_token)
        .saturating_add(state::fixed_bytes(model.program()) as u64)
        .saturating_add(4 * model.vocabulary() as u64)
        .saturating_mul(batch as u64)
}
