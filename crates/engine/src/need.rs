//! What opening a model takes, and whether that is there.

use crate::backend::cpu;
use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::options::{BackendKind, Options};
use crate::state::item_names;
use crate::step::StepScratch;
use crate::weights::{self, Choice, Layout};
use lamella_container::{Store, human_bytes};
use lamella_kernels::PAGE;
use lamella_program::{Part, Program, state};

/// What makes a model fit.
const ADVICE: &str = "Convert the model to a smaller encoding, take a shorter context, raise the \
                      memory limit, or free memory";

/// Bytes that machines have. What files declare beyond is not multiplied to a workspace.
const SOUND: u64 = 1 << 42;

/// Bytes of what stands beside the lists of operands and items and grows with none of them:
/// channels, names, reports.
const BESIDE: u64 = 8 << 10;

/// Bytes that a thread takes beside its stack.
const THREAD: u64 = 1 << 10;

/// Bytes that opening takes, by what for.
struct Need {
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

/// Chooses how every operand is held so that it all fits, and counts the bytes of the workspace.
/// The two ends alone may stay on disk, if they do not fit otherwise; that is slower, and the same
/// bits.
///
/// # Errors
/// [`Error::Memory`] with the sum of what takes the least; what choosing returns.
pub(crate) fn fit(
    store: &Store,
    program: &Program,
    options: &Options,
    shape: cpu::Shape,
) -> Result<(Vec<Choice>, u64), Error> {
    let mut way = Way::of(
        program,
        weights::choose_all(store, options)?,
        options,
        shape,
    )?;
    let may_stay = match (&options.part, options.backend) {
        (Part::Ends, BackendKind::Cpu) => weights::may_stay_on_disk(program),
        _ => Vec::new(),
    };
    for id in may_stay {
        if way.workspace.is_ok() {
            break;
        }
        let mut choices = way.choices.clone();
        choices[id.index()].layout = Layout::Streamed;
        let other = Way::of(program, choices, options, shape)?;
        // The buffers of a small matrix take more than the matrix.
        if other.workspace.is_ok() || other.total < way.total {
            way = other;
        }
    }
    Ok((way.choices, way.workspace?))
}

/// A way to hold the operands, and whether that fits.
struct Way {
    choices: Vec<Choice>,
    /// Bytes it takes in all.
    total: u64,
    /// Bytes of its workspace, if there is room for it and the weights.
    workspace: Result<u64, Error>,
}

impl Way {
    fn of(
        program: &Program,
        choices: Vec<Choice>,
        options: &Options,
        shape: cpu::Shape,
    ) -> Result<Way, Error> {
        let need = Need::of(program, &choices, options, shape.threads)?;
        // What the files declare must be sound before it is multiplied to a workspace, and where it
        // is, the sum is the whole one, however low the limit.
        let mut workspace = 0;
        let mut fits = need.check(workspace, options);
        if fits.is_ok() || need.total(workspace, options) <= SOUND {
            let rows = StepScratch::bytes(program, &options.part, options.step_rows);
            workspace = match options.backend {
                BackendKind::Cpu => cpu::workspace_bytes(program, &options.part, shape)
                    .saturating_add(rows)
                    .saturating_add(weights::stream_bytes(program, &choices)?),
                BackendKind::Reference => rows,
            };
            fits = need.check(workspace, options);
        }
        Ok(Way {
            choices,
            total: need.total(workspace, options),
            workspace: fits.map(|()| workspace),
        })
    }
}

impl Need {
    fn of(
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

    /// Bytes in all, with a workspace of `workspace` bytes.
    fn total(&self, workspace: u64, options: &Options) -> u64 {
        let running = workspace.saturating_add(self.state);
        self.weights
            .saturating_add(self.lists)
            .saturating_add(self.loading.max(running))
            .saturating_add(options.reserved)
    }

    /// Checks that there is room, with a workspace of `workspace` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] with the sum.
    fn check(&self, workspace: u64, options: &Options) -> Result<(), Error> {
        let Need {
            weights,
            lists,
            loading,
            state,
        } = *self;
        let running = workspace.saturating_add(state);
        let reserved = match options.reserved {
            0 => String::new(),
            bytes => format!(" + rows on their way {bytes}"),
        };
        let what = match loading > running {
            true => format!("buffers while they are loaded {loading}"),
            false => format!("workspace {workspace} + first state {state}"),
        };
        let need = self.total(workspace, options);
        let limit = MemoryLimit::resolve(options.memory_limit);
        if need <= limit.bytes {
            return Ok(());
        }
        Err(Error::Memory {
            sum: format!(
                "weights {weights} + lists {lists} + {what}{reserved} = {need} bytes ({})",
                human_bytes(need)
            ),
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
