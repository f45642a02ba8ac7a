//! What opening a model takes, and whether that is there.

use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::options::{BackendKind, Options};
use crate::weights::{self, Choice, Layout};
use lamella_container::human_bytes;
use lamella_kernels::PAGE;
use lamella_program::{Part, Program, state};

/// What makes a model fit.
const ADVICE: &str = "Convert the model to a smaller encoding (`lamella convert`), take a shorter \
                      context (--context), or free memory";

/// Bytes that opening takes, by what for.
pub(crate) struct Need {
    /// Operands in memory.
    weights: u64,
    /// Beside them while they are loaded; the workspace comes afterwards.
    loading: u64,
    /// A page of state for every layer, the least a conversation needs to start. Sessions of a
    /// part have limits of their own.
    state: u64,
}

impl Need {
    pub(crate) fn of(
        program: &Program,
        choices: &[Choice],
        options: &Options,
        threads: usize,
    ) -> Result<Need, Error> {
        let mut weights = 0u64;
        for (operand, &choice) in program.operands.iter().zip(choices) {
            weights = weights.saturating_add(match options.backend {
                BackendKind::Cpu => weights::resident_bytes(operand, choice)? as u64,
                BackendKind::Reference if choice.layout == Layout::Absent => 0,
                BackendKind::Reference => (operand.elements() as u64).saturating_mul(4),
            });
        }
        let state = match options.part {
            Part::Whole => first_state(program),
            _ => 0,
        };
        Ok(Need {
            weights,
            loading: weights::most_load_bytes(program, choices, threads)?,
            state,
        })
    }

    /// Checks that there is room, with a workspace of `workspace` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] with the sum.
    pub(crate) fn check(&self, workspace: u64, options: &Options) -> Result<(), Error> {
        let Need {
            weights,
            loading,
            state,
        } = *self;
        let running = workspace.saturating_add(state);
        let reserved = match options.reserved {
            0 => String::new(),
            bytes => format!(" + rows on their way {bytes}"),
        };
        let (need, what) = match loading > running {
            true => (
                weights.saturating_add(loading),
                format!("weights {weights} + buffers while they are loaded {loading}"),
            ),
            false => (
                weights.saturating_add(running),
                format!("weights {weights} + workspace {workspace} + first state {state}"),
            ),
        };
        let need = need.saturating_add(options.reserved);
        let limit = MemoryLimit::resolve(options.memory_limit);
        if need <= limit.bytes {
            return Ok(());
        }
        Err(Error::Memory {
            sum: format!("{what}{reserved} = {need} bytes ({})", human_bytes(need)),
            limit: limit.bytes,
            origin: limit.origin,
            advice: ADVICE.to_owned(),
        })
    }
}

fn first_state(program: &Program) -> u64 {
    let token = state::bytes_per_token(program) + state::draft_bytes_per_token(program);
    let page = (PAGE as u64).saturating_mul(token as u64);
    let fixed = state::fixed_bytes(program) + state::draft_fixed_bytes(program);
    page.saturating_add(fixed as u64)
}
