//! What opening a model takes, and whether that is there.

use crate::backend::cpu;
use crate::error::Error;
use crate::experts::{Layers, expert_operands};
use crate::memory::MemoryLimit;
use crate::options::{BackendKind, Options};
use crate::state::{first_bytes, item_names};
use crate::step::StepScratch;
use crate::weights::{self, Choice, Layout};
use lamella_container::{Store, Stored, human_bytes};
use lamella_program::{Part, Program};

/// What makes a model fit.
const ADVICE: &str = "Convert the model to a smaller encoding, take a shorter context, raise the \
                      memory limit, or free memory";

/// Bytes that machines have. What files declare beyond is not multiplied to a workspace.
const SOUND: u64 = 1 << 42;

/// Bytes of what stands beside the lists of operands and items and grows with none of them:
/// channels, names, reports.
const BESIDE: u64 = 8 << 10;

/// What is left of a machine's memory, or its control group's, for what no sum holds: code, stacks,
/// page tables, and whatever else runs there; and a share of it.
const SPARE: u64 = 64 << 20;
const SPARE_SHARE: u64 = 32;

/// Bytes that a thread takes beside its stack.
const THREAD: u64 = 1 << 10;

/// Bytes that opening takes, by what for.
pub(crate) struct Need {
    /// Operands in memory, in whole pages.
    pub(crate) weights: u64,
    /// The list of operands, names of state, threads.
    pub(crate) lists: u64,
    /// Beside them while they are loaded: buffers, and the list of items. The workspace comes
    /// afterwards.
    pub(crate) loading: u64,
    /// One slot for an expert, if not all are held, and the lists of what is where.
    pub(crate) experts: u64,
    /// The slot alone.
    pub(crate) slot: u64,
    /// A page of state for every layer, the least a conversation needs to start. Sessions of a
    /// part have limits of their own.
    pub(crate) state: u64,
}

/// How everything is held so that it fits.
pub(crate) struct Fit {
    /// How each operand is.
    pub(crate) choices: Vec<Choice>,
    /// Bytes of the workspace.
    pub(crate) workspace: u64,
    /// Experts in memory at once where not all of them are.
    pub(crate) slots: u32,
    /// Bytes that they and conversations share.
    pub(crate) room: u64,
    /// Bytes of everything else.
    pub(crate) fixed: u64,
}

/// Chooses how every operand is held so that it all fits. What does not fit otherwise stays on
/// disk: of the two ends alone their rows, of layers their experts, of which as many are in memory
/// as there is room for. That is slower, and the same bits.
///
/// # Errors
/// [`Error::Memory`] with the sum of what takes the least; what choosing returns.
pub(crate) fn fit(
    store: &Store,
    program: &Program,
    options: &Options,
    shape: cpu::Shape,
) -> Result<Fit, Error> {
    let way = Way::choose(store, program, options, shape)?;
    Ok(Fit {
        slots: way.slots(program, options)?,
        room: way.room(options),
        fixed: way.fixed(options),
        workspace: way.workspace?,
        choices: way.choices,
    })
}

/// The same choices, with the experts of all layers in a cache.
fn with_cached_experts(program: &Program, choices: &[Choice]) -> Vec<Choice> {
    let mut choices = choices.to_vec();
    for id in expert_operands(program).into_iter().flatten() {
        let choice = &mut choices[id.index()];
        if choice.layout == Layout::Packed {
            choice.layout = Layout::Cached;
        }
    }
    choices
}

/// A way to hold the operands, and whether that fits.
pub(crate) struct Way {
    pub(crate) choices: Vec<Choice>,
    pub(crate) need: Need,
    /// Bytes it takes in all.
    pub(crate) total: u64,
    /// Bytes of its workspace, whether there is room for it or not.
    pub(crate) workspace_bytes: u64,
    /// The same, if there is room for it and the weights.
    pub(crate) workspace: Result<u64, Error>,
}

impl Way {
    /// The way that [`fit`] takes, or where none fits the one that takes the least.
    ///
    /// # Errors
    /// What choosing returns.
    pub(crate) fn choose(
        stored: &impl Stored,
        program: &Program,
        options: &Options,
        shape: cpu::Shape,
    ) -> Result<Way, Error> {
        let mut way = Way::of(
            program,
            weights::choose_all(stored, options)?,
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
        let may_stay = options.experts_on_disk && options.backend == BackendKind::Cpu;
        if way.workspace.is_err() && may_stay {
            let choices = with_cached_experts(program, &way.choices);
            let other = Way::of(program, choices, options, shape)?;
            if other.workspace.is_ok() || other.total < way.total {
                way = other;
            }
        }
        Ok(way)
    }

    /// Bytes that conversations and experts in memory share.
    pub(crate) fn room(&self, options: &Options) -> u64 {
        let limit = MemoryLimit::resolve(options.memory_limit).bytes;
        limit.saturating_sub(self.fixed(options))
    }

    /// Bytes of everything else, once it is open.
    fn fixed(&self, options: &Options) -> u64 {
        let running = self.need.running(self.workspace_bytes, options);
        running - self.need.state - self.need.slot
    }

    /// Experts that have room at once before there are conversations, if not all are held. Where
    /// nobody has set a limit, a little of what the machine has is left.
    pub(crate) fn slots(&self, program: &Program, options: &Options) -> Result<u32, Error> {
        let Some(layers) = Layers::of(program, &self.choices)? else {
            return Ok(0);
        };
        let room = self.room(options).saturating_sub(self.need.state);
        let spare = match options.memory_limit {
            Some(_) => 0,
            None => SPARE.saturating_add(room / SPARE_SHARE),
        };
        let slots = room.saturating_sub(spare) / layers.slot_bytes().max(1);
        Ok(slots.clamp(1, u64::from(layers.records())) as u32)
    }

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
                    .saturating_add(weights::stream_bytes(program, &choices)?)
                    .saturating_add(weights::cache_load_bytes(program, &choices, shape.threads)?),
                BackendKind::Reference => rows,
            };
            fits = need.check(workspace, options);
        }
        Ok(Way {
            choices,
            total: need.total(workspace, options),
            need,
            workspace_bytes: workspace,
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
            Part::Whole => first_bytes(program),
            _ => 0,
        };
        let layers = Layers::of(program, choices)?;
        let slot = layers.as_ref().map_or(0, Layers::slot_bytes);
        let experts = layers.map_or(0, |layers| slot.saturating_add(layers.list_bytes()));
        let [held, items] = weights::list_bytes(program, choices);
        let names = item_names(program).into_iter().flatten();
        let names = names.map(|name| (size_of::<String>() + name.len()) as u64);
        let lists = BESIDE + THREAD * threads as u64 + names.sum::<u64>();
        Ok(Need {
            weights,
            lists: lists.saturating_add(held),
            loading: weights::most_load_bytes(program, choices, threads)?.saturating_add(items),
            experts,
            slot,
            state,
        })
    }

    /// Bytes in all, with a workspace of `workspace` bytes.
    fn total(&self, workspace: u64, options: &Options) -> u64 {
        let beside = workspace.saturating_add(self.state);
        self.with(self.loading.max(beside), options)
    }

    /// Bytes once it is open, with the first state of a conversation.
    fn running(&self, workspace: u64, options: &Options) -> u64 {
        self.with(workspace.saturating_add(self.state), options)
    }

    /// Bytes of what is there in any case, and `more`.
    pub(crate) fn with(&self, more: u64, options: &Options) -> u64 {
        self.weights
            .saturating_add(self.experts)
            .saturating_add(self.lists)
            .saturating_add(more)
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
            experts,
            state,
            ..
        } = *self;
        let running = workspace.saturating_add(state);
        let reserved = match options.reserved {
            0 => String::new(),
            bytes => format!(" + rows on their way {bytes}"),
        };
        let experts = match experts {
            0 => String::new(),
            bytes => format!(" + one expert {bytes}"),
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
                "weights {weights}{experts} + lists {lists} + {what}{reserved} = {need} bytes ({})",
                human_bytes(need)
            ),
            limit: limit.bytes,
            origin: limit.origin,
            advice: ADVICE.to_owned(),
        })
    }
}
