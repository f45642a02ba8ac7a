//! What would help, found by planning again with one thing changed.

use super::{Plan, Question, predict};
use crate::error::Error;
use crate::plan::Machine;
use lamella_container::Outline;
use lamella_program::Encoding;
use serde::Serialize;

/// Gains below this are not told.
const WORTH: f64 = 1.05;

/// One change, and what it brings.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Advice {
    /// `memory`, `disk`, `encoding`, `context`.
    pub change: &'static str,
    /// What is changed to what, in words.
    pub to: String,
    /// Whether it then fits.
    pub fits: bool,
    /// Tokens decoded per second, cold.
    pub decode: f64,
    /// That, as a multiple of what the plan predicts; `None` where the model does not open as
    /// planned.
    pub gain: Option<f64>,
}

/// The changes that help, the best one first.
pub(super) fn advise(
    stored: &Outline,
    question: &Question,
    machine: &Machine,
    plan: &Plan,
) -> Result<Vec<Advice>, Error> {
    let mut advice = Vec::new();
    // What cannot be had is no advice.
    let mut consider = |change, to, other: Result<Plan, Error>| {
        advice.extend(
            other
                .ok()
                .and_then(|other| compare(plan, change, to, &other)),
        );
    };
    for memory in more_memory(plan, machine) {
        let (question, machine) = with_memory(question, machine, memory);
        let to = lamella_container::human_bytes(memory);
        consider("memory", to, predict(stored, &question, &machine));
    }
    if plan.placement.opens {
        let mut faster = machine.clone();
        faster.disk.per_second *= 2.0;
        let to = format!("{:.1} GB/s", faster.disk.per_second / 1e9);
        consider("disk", to, predict(stored, question, &faster));
    }
    for encoding in [Encoding::Q8, Encoding::Q4] {
        let mut question = question.clone();
        question.options.want = None;
        let other = predict(&stored.converted(encoding), &question, machine);
        if other.as_ref().is_ok_and(|other| is_smaller(other, plan)) {
            consider("encoding", encoding.name().to_owned(), other);
        }
    }
    let context = plan.placement.context / 2;
    if context > 0 {
        let mut question = question.clone();
        question.options.context = Some(context);
        question.prompt = question.prompt.min(context);
        let to = format!("{context} tokens");
        consider("context", to, predict(stored, &question, machine));
    }
    let rank = |a: &Advice| (a.fits, a.decode);
    advice.sort_by(|a, b| {
        let order = rank(b).partial_cmp(&rank(a));
        order.unwrap_or(std::cmp::Ordering::Equal)
    });
    Ok(advice)
}

/// What `other` brings beside `plan`, if that is worth telling.
fn compare(plan: &Plan, change: &'static str, to: String, other: &Plan) -> Option<Advice> {
    let (now, then) = (&plan.placement, &other.placement);
    if !then.opens || (now.fits && !then.fits) {
        return None;
    }
    let decode = other.predicted.cold.decode.expected;
    let gain = now
        .opens
        .then(|| decode / plan.predicted.cold.decode.expected);
    let helps = (then.fits && !now.fits) || gain.is_none_or(|gain| gain >= WORTH);
    helps.then_some(Advice {
        change,
        to,
        fits: then.fits,
        decode,
        gain,
    })
}

/// Whether `other` has fewer bytes to keep, or to read.
fn is_smaller(other: &Plan, plan: &Plan) -> bool {
    let stored = other.model.expert_stored_bytes < plan.model.expert_stored_bytes;
    stored || weights(other) < weights(plan)
}

fn weights(plan: &Plan) -> u64 {
    plan.model
        .dense_bytes
        .saturating_add(plan.model.experts_bytes)
}

/// Twice the memory, and what holds everything, if that is more than there is.
fn more_memory(plan: &Plan, machine: &Machine) -> Vec<u64> {
    let all = plan
        .placement
        .peak_bytes
        .saturating_sub(plan.placement.cache_bytes)
        .saturating_add(match plan.placement.slot_bytes {
            0 => 0,
            _ => plan.model.experts_bytes,
        });
    let twice = machine.memory_bytes.saturating_mul(2);
    let mut sizes = vec![twice];
    if all > machine.memory_bytes && all != twice {
        sizes.push(all.next_multiple_of(1 << 20) + (1 << 20));
    }
    if plan.placement.fits && plan.placement.slots == 0 {
        sizes.clear();
    }
    sizes
}

fn with_memory(question: &Question, machine: &Machine, memory: u64) -> (Question, Machine) {
    let (mut question, mut machine) = (question.clone(), machine.clone());
    question.options.memory_limit = Some(memory);
    machine.memory_bytes = memory;
    (question, machine)
}
