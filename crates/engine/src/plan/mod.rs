//! What opening a model takes and how fast it will be, before it is opened.
//!
//! A [`Plan`] is computed from a program, the encodings its operands are stored in, and a
//! [`Machine`]. Memory is added up by the functions that opening uses, so that what the plan says
//! fits is what opens, to the byte. Speeds are predicted from measured rates ([`probe`]) by a model
//! that docs/plan.md explains.

mod active;
mod advice;
mod chain;
mod facts;
mod hits;
mod machine;
mod placement;
pub mod probe;
mod search;
mod speed;

use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::model::Opening;
use crate::options::Options;
pub(crate) use active::active_bytes;
pub use advice::Advice;
pub use chain::{Chain, MOST_MACHINES, Node, Stage};
pub use facts::ModelFacts;
use facts::conversation_bytes;
pub use hits::HitRate;
use lamella_container::{Outline, Stored};
pub use machine::{Machine, Rate, Rates};
pub use placement::Placement;
use serde::Serialize;
pub use speed::{Limit, Predicted, Range, Speed};

/// Version of the fields of a plan: it grows when one of them changes its name or meaning.
pub const PLAN_VERSION: u32 = 1;

/// What is planned.
#[derive(Clone, Debug)]
pub struct Question {
    /// How the model will be opened.
    pub options: Options,
    /// Conversations at a time, each of the whole context.
    pub sessions: usize,
    /// Tokens of a prompt whose speed is predicted, and behind which tokens are decoded.
    pub prompt: usize,
    /// How often experts are in memory, where that is known.
    pub hit_rate: Option<f64>,
}

/// A plan.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// What is planned for.
    pub machine: Machine,
    /// The model, or the part that is opened.
    pub model: ModelFacts,
    /// What lies where.
    pub placement: Placement,
    /// What will be measured.
    pub predicted: Predicted,
    /// What would help, the best first.
    pub advice: Vec<Advice>,
}

impl Plan {
    /// Plans the opening of `stored` on `machine`, whose memory limit is that of the question's
    /// options.
    ///
    /// # Errors
    /// Everything but too little memory that would keep it from opening.
    pub fn of(stored: &impl Stored, question: &Question, machine: &Machine) -> Result<Plan, Error> {
        let outline = Outline::of(stored).without_parts();
        let mut plan = predict(&outline, question, machine)?;
        plan.advice = advice::advise(&outline, question, machine, &plan)?;
        Ok(plan)
    }

    /// The error that opening would return, if the model does not open.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.placement.refusal.as_deref()
    }
}

/// What of `stored` lies where, if it is opened as `question` says.
///
/// # Errors
/// As [`Plan::of`].
pub fn placement(stored: &impl Stored, question: &Question) -> Result<Placement, Error> {
    let opening = Opening::of(stored.program(), &question.options)?;
    let origin = MemoryLimit::resolve(question.options.memory_limit).origin;
    Ok(placement::place(stored, &opening, question, &origin)?.placement)
}

/// Bytes that a read of what stays on disk takes: those of an expert, or of a large part of a model
/// without any.
pub(crate) fn record_bytes(stored: &impl Stored, question: &Question) -> Result<u64, Error> {
    const WITHOUT_EXPERTS: u64 = 4 << 20;
    let opening = Opening::of(stored.program(), &question.options)?;
    let placed = placement::place(stored, &opening, question, "")?;
    let (facts, _) = ModelFacts::of(&opening, &placed.way, &question.options)?;
    Ok(match facts.expert_stored_bytes {
        0 => WITHOUT_EXPERTS,
        bytes => bytes,
    })
}

/// A plan without advice.
fn predict(stored: &impl Stored, question: &Question, machine: &Machine) -> Result<Plan, Error> {
    let options = &question.options;
    let opening = Opening::of(stored.program(), options)?;
    let placed = placement::place(stored, &opening, question, &machine.memory_origin)?;
    let (model, work) = ModelFacts::of(&opening, &placed.way, options)?;
    let (placement, slots) = (placed.placement, placed.slots);
    let hits = match (slots, question.hit_rate) {
        (0, _) => HitRate::prior(model.experts, model.experts),
        (_, Some(rate)) => HitRate::known(rate, "given"),
        (slots, None) => HitRate::prior(u64::from(slots), model.experts),
    };
    let prompt = question.prompt.clamp(1, opening.context);
    let state = conversation_bytes(&opening, options, prompt);
    let predicted = speed::Model {
        facts: &model,
        work: &work,
        placement: &placement,
        slots,
        machine,
        prompt,
        state: state.saturating_sub(conversation_bytes(&opening, options, 0)),
        step_rows: opening.shape.step_rows,
        access: options.expert_access,
    };
    let predicted = predicted.predict(hits, sessions(&placement, options));
    Ok(Plan {
        version: PLAN_VERSION,
        machine: machine.clone(),
        model,
        placement,
        predicted,
        advice: Vec::new(),
    })
}

/// Conversations that fit as experts are placed, and with one slot.
fn sessions(placement: &Placement, options: &Options) -> [u64; 2] {
    let limit = MemoryLimit::resolve(options.memory_limit).bytes;
    if !placement.opens {
        return [0, 0];
    }
    let each = placement.session_bytes.max(1);
    let without = placement.peak_bytes.saturating_sub(placement.state_bytes);
    let least = placement
        .least_for_sessions_bytes
        .saturating_sub(placement.state_bytes);
    let fit = |taken: u64| limit.saturating_sub(taken) / each;
    [fit(without), fit(without.min(least))]
}
