//! Where everything lives: the sums of opening, for so many conversations.

use super::Question;
use super::facts::conversation_bytes;
use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::model::Opening;
use crate::need::Way;
use crate::options::Options;
use lamella_container::Stored;
use serde::Serialize;

/// What takes which bytes of memory, as opening adds them up.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Placement {
    /// Whether the model opens.
    pub opens: bool,
    /// Whether all conversations can then grow to their full context.
    pub fits: bool,
    /// Why it does not open, if it does not.
    pub refusal: Option<String>,
    /// The least limit that opens it, in bytes: one byte less refuses.
    pub least_bytes: u64,
    /// The least limit under which all conversations can grow to their full context.
    pub least_for_sessions_bytes: u64,
    /// Weights in memory from the beginning to the end.
    pub resident_bytes: u64,
    /// Experts in memory at once beside conversations of the whole context; 0 where all are among
    /// the resident.
    pub slots: u32,
    /// The same before there are conversations: experts leave for them as they grow.
    pub slots_at_first: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Bytes of all slots, and of the lists of what is in them.
    pub cache_bytes: u64,
    /// Buffers of a step.
    pub workspace_bytes: u64,
    /// Lists of operands and state, threads.
    pub lists_bytes: u64,
    /// Buffers while weights are loaded, given back before the first step.
    pub loading_bytes: u64,
    /// Conversations that are planned for.
    pub sessions: usize,
    /// Their context, in tokens.
    pub context: usize,
    /// Bytes that one of them holds at most.
    pub session_bytes: u64,
    /// Bytes of their state in all.
    pub state_bytes: u64,
    /// Most bytes at any time.
    pub peak_bytes: u64,
}

/// The way, and what it comes to.
pub(super) struct Placed {
    pub(super) way: Way,
    pub(super) placement: Placement,
    /// Experts in memory at once behind the question's prompt.
    pub(super) slots: u32,
}

/// Places what `question` asks for.
pub(super) fn place(
    stored: &impl Stored,
    opening: &Opening,
    question: &Question,
    origin: &str,
) -> Result<Placed, Error> {
    let Question { options, .. } = question;
    let Opening { program, shape, .. } = opening;
    let sessions = question.sessions as u64;
    let one = conversation_bytes(opening, options, opening.context);
    let state = one.saturating_mul(sessions);
    let least = least(stored, opening, options)?;
    let way = Way::choose(stored, program, options, *shape)?;
    let beside = Beside {
        way: &way,
        opening,
        options,
    };
    let prompt = conversation_bytes(opening, options, question.prompt.min(opening.context));
    let slots_then = beside.slots(prompt.saturating_mul(sessions))?;
    let (slots, slots_first) = (beside.slots(state)?, beside.slots(0)?);
    let full = beside.bytes(slots, state);
    let peak = full.max(beside.bytes(slots_first, way.need.state));
    let limit = MemoryLimit::resolve(options.memory_limit).bytes;
    let refusal = way.workspace.as_ref().err();
    let refusal = refusal.map(|error| match error {
        Error::Memory { sum, .. } => {
            format!("{sum}; the limit is {limit} bytes ({origin})")
        }
        other => other.to_string(),
    });
    let placement = Placement {
        opens: refusal.is_none(),
        fits: refusal.is_none() && full <= limit,
        refusal,
        least_bytes: least.total,
        least_for_sessions_bytes: with_state(&least, options, state),
        resident_bytes: way.need.weights,
        slots,
        slots_at_first: slots_first,
        slot_bytes: way.need.slot,
        cache_bytes: beside.cache(slots),
        workspace_bytes: way.workspace_bytes,
        lists_bytes: way.need.lists,
        loading_bytes: way.need.loading,
        sessions: question.sessions,
        context: opening.context,
        session_bytes: one,
        state_bytes: state,
        peak_bytes: peak,
    };
    Ok(Placed {
        way,
        placement,
        slots: slots_then,
    })
}

/// What is beside conversations.
struct Beside<'a> {
    way: &'a Way,
    opening: &'a Opening,
    options: &'a Options,
}

impl Beside<'_> {
    /// Experts in memory beside `state` bytes of conversations, for which they leave as these grow.
    fn slots(&self, state: u64) -> Result<u32, Error> {
        if self.way.workspace.is_err() {
            return Ok(0);
        }
        // A first page is counted in any case.
        let more = state.saturating_sub(self.way.need.state);
        let options = Options {
            reserved: self.options.reserved.saturating_add(more),
            ..self.options.clone()
        };
        self.way.slots(&self.opening.program, &options)
    }

    /// Bytes of so many slots and their lists. What opening counts has one slot in it.
    fn cache(&self, slots: u32) -> u64 {
        let need = &self.way.need;
        let all = u64::from(slots.max(1)).saturating_mul(need.slot);
        (need.experts - need.slot).saturating_add(all)
    }

    /// Bytes of everything with so many slots and `state` bytes of conversations. While weights are
    /// loaded there is neither.
    fn bytes(&self, slots: u32, state: u64) -> u64 {
        let Way { need, total, .. } = self.way;
        let beside = self.way.workspace_bytes.saturating_add(state);
        let running = need.with(beside, self.options) - need.experts;
        let running = running.saturating_add(self.cache(slots));
        running.max(*total)
    }
}

/// The way that takes the least, whatever the limit.
fn least(stored: &impl Stored, opening: &Opening, options: &Options) -> Result<Way, Error> {
    let options = Options {
        memory_limit: Some(0),
        ..options.clone()
    };
    Way::choose(stored, &opening.program, &options, opening.shape)
}

/// Bytes of a way, one slot included, with `state` bytes of conversations.
fn with_state(way: &Way, options: &Options, state: u64) -> u64 {
    let running = way.workspace_bytes.saturating_add(state);
    way.need.with(way.need.loading.max(running), options)
}
