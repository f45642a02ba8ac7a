//! What opening a model takes, and whether that is there.

use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::options::{BackendKind, Options};
use crate::state::item_names;
use crate::weights::{self, Choice, Layout};
use lamella_container::human_bytes;
use lamella_kernels::PAGE;
use lamella_program::{Part, Program, state};

/// What makes a model fit.
const ADVICE: &str = "Convert the model to a smaller encoding (`lamella convert`), take a shorter \
                      context (--context), or free memory";

/// Bytes of what stands beside the lists of operands and items and grows with none of them:
/// channels, names, reports.
const BESIDE: u64 = 8 << 10;

/// Bytes that a thread takes beside its stack.
const THREAD: u64 = 1 << 10;

/// Bytes that opening takes, by what for.
pub(crate) struct Need {
    /// Operands in memory, in whole pages.
    weights: u64,
    /// The list of operands, names of state, threads.
    lists: u64,
    /// Beside them while they are loaded: buffers, and the list of items. The workspace comes
    /// afterwards.
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
                BackendKind::Cpu => weights::mapped_bytes(operand, choice)?,
                BackendKind::Reference if choice.layout == Layout::Absent => 0,
                BackendKind::Reference => (operand.elements() as u64).saturating_mul(4),
            });
        }
        let state = match options.part {
            Part::Whole => first_state(program),
            _ => 0,
        };
        let [held, items] = weights::list_bytes(program, choices);
        let names = item_names(program).into_iter().flatten();
        let names = names.map(|name| (size_of::<String>() + name.len()) as u64);
        let lists = BESIDE + THREAD * threads as u64 + names.sum::<u64>();
        Ok(Need {
            weights,
            lists: lists.saturating_add(held),
            loading: weights::most_load_bytes(program, choices, threads)?.saturating_add(items),
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
            lists,
            loading,
            state,
        } = *self;
        let held = weights.saturating_add(lists);
        let running = workspace.saturating_add(state);
        let reserved = match options.reserved {
            0 => String::new(),
            bytes => format!(" + rows on their way {bytes}"),
        };
        let (need, what) = match loading > running {
            true => (
                held.saturating_add(loading),
                format!(
                    "weights {weights} + lists {lists} + buffers while they are loaded {loading}"
                ),
            ),
            false => (
                held.saturating_add(running),
                format!(
                    "weights {weights} + lists {lists} + workspace {workspace} + first state \
                     {state}"
                ),
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
