//! Speculation: tokens are drafted cheaply, and one pass of the model reads several of them.
//!
//! A draft changes no answer. The pass gives the model's own logits after every drafted token, in
//! the bits of reading them one by one, and the sampler draws from those rows in turn, with the
//! state and the random numbers it would have had anyway. A draft is right if it is what the
//! sampler drew; the first wrong one ends the run, and the session forgets it and those after it.
//!
//! Whether and how much is drafted is decided by price, from measured times; only speed depends
//! on that.

mod lookup;
mod price;

pub use lookup::PromptLookup;
pub use price::{GRADES, MOST_DRAFTS};

use super::LogitsSession;
use price::{MOST_ROWS, Odds, Offer, Price, Terms};
use std::time::Duration;

/// A session that can read ahead and take back what it has read too much.
pub trait SpeculativeSession: LogitsSession {
    /// Reads `tokens`, at least one and at most [`MOST_DRAFTS`] more, in one pass.
    /// [`verified`](Self::verified) has the logits after each.
    ///
    /// # Errors
    /// The implementation's; the session is as before.
    fn verify(&mut self, tokens: &[u32]) -> Result<(), Self::Error>;

    /// The logits of the last [`verify`](Self::verify), `[tokens, vocabulary]`.
    fn verified(&self) -> &[f32];

    /// Keeps the first `count` tokens, at least one, of the last [`verify`](Self::verify), which
    /// was the last call that read anything.
    ///
    /// # Errors
    /// The implementation's; the session is as before.
    fn keep(&mut self, count: usize) -> Result<(), Self::Error>;

    /// Kept tokens that the next pass will read once more, because a wrong draft had overwritten
    /// the state after them. They are part of the session all the same.
    fn pending(&self) -> usize {
        0
    }

    /// Whether a wrong draft costs reading the tokens before it again.
    fn reads_again(&self) -> bool {
        false
    }
}

/// What a drafter could draft next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// How sure it is, from 0 to [`GRADES`]` - 1`, in whatever way it tells; the price learns what
    /// each grade is worth.
    pub grade: usize,
    /// Tokens it could draft.
    pub tokens: usize,
}

/// Guesses the next tokens of sessions `S`, whose calls fail with `E`. Guesses are free to be
/// wrong.
pub trait Drafter<S: ?Sized, E> {
    /// Forgets what it knows of an earlier answer's tokens.
    fn begin(&mut self) {}

    /// What it could draft after `history`, all tokens there are: those the session has read and
    /// one more. Between two calls of [`begin`](Self::begin) the history only grows. At most `most`
    /// tokens are wanted; `None` = no guess. It should cost next to nothing.
    fn outlook(&mut self, history: &[u32], most: usize) -> Option<Outlook>;

    /// Adds up to `count` guesses after `history`, the one of the last
    /// [`outlook`](Self::outlook), to `out`.
    ///
    /// # Errors
    /// What the session's model reports; it ends the answer.
    fn draft(
        &mut self,
        session: &mut S,
        history: &[u32],
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), E>;
}

/// What speculation did for one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Tokens drafted and read.
    pub drafted: usize,
    /// Of these, tokens that were right.
    pub accepted: usize,
    /// Passes that read drafts.
    pub passes: usize,
    /// Tokens read once more because a wrong draft had overwritten the state after them.
    pub read_again: usize,
}

impl SpeculationStats {
    /// Share of the drafts that were right; `None` without drafts.
    #[must_use]
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Mean number of right drafts of a pass that read drafts; `None` without such passes. Each
    /// brought one token more.
    #[must_use]
    pub fn mean_accepted(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.accepted as f64 / self.passes as f64)
    }
}

/// Decides what is drafted: drafters, and what they have been worth. It learns from answer to
/// answer.
pub struct Speculator<S: ?Sized, E> {
    most: usize,
    /// Whether drafts are made whatever they cost.
    always: bool,
    price: Price,
    lanes: Vec<Lane<S, E>>,
}

/// One drafter and its record.
struct Lane<S: ?Sized, E> {
    drafter: Box<dyn Drafter<S, E> + Send>,
    odds: Odds,
}

/// A decision to draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    lane: usize,
    grade: usize,
    drafts: usize,
}

/// What became of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Rows it had, those read again included.
    pub(super) rows: usize,
    /// Time of the pass.
    pub(super) time: Duration,
    /// Time to make the drafts.
    pub(super) draft_time: Duration,
    /// Drafts it read.
    pub(super) drafted: usize,
    /// Of the first `judged` drafts, the first `accepted` were right.
    pub(super) accepted: usize,
    /// See `accepted`.
    pub(super) judged: usize,
}

impl<S: ?Sized, E> Speculator<S, E> {
    /// Drafts at most `most` tokens at once (of these, at most [`MOST_DRAFTS`]), when that pays.
    /// It has no drafter yet.
    #[must_use]
    pub fn new(most: usize) -> Speculator<S, E> {
        Speculator {
            most: most.min(MOST_DRAFTS),
            always: false,
            price: Price::new(),
            lanes: Vec::new(),
        }
    }

    /// Asks `drafter` too. Of several, the one that promises most drafts; the earlier one among
    /// equals.
    #[must_use]
    pub fn with(mut self, drafter: impl Drafter<S, E> + Send + 'static) -> Speculator<S, E> {
        self.lanes.push(Lane {
            drafter: Box::new(drafter),
            odds: Odds::new(),
        });
        self
    }

    /// Drafts as much as it may wherever a drafter has a guess, whatever it costs: for tests and
    /// for measuring drafters.
    #[must_use]
    pub fn always(mut self) -> Speculator<S, E> {
        self.always = true;
        self
    }

    /// Another answer begins.
    pub(super) fn begin(&mut self) {
        for lane in &mut self.lanes {
            lane.drafter.begin();
        }
    }

    /// Decides about the next pass, which may bring at most `room` tokens.
    pub(super) fn plan(
        &mut self,
        history: &[u32],
        room: usize,
        pending: usize,
        reads_again: bool,
    ) -> Option<Plan> {
        // The pass also reads the newest token and what is pending.
        let rows = MOST_ROWS.saturating_sub(1 + pending);
        let most = self.most.min(room.saturating_sub(1)).min(rows);
        if most == 0 || !self.always && self.price.must_measure() {
            return None;
        }
        let mut best: Option<(f64, Plan)> = None;
        for (lane, Lane { drafter, odds }) in self.lanes.iter_mut().enumerate() {
            let Some(outlook) = drafter.outlook(history, most) else {
                continue;
            };
            let terms = Terms {
                most: most.min(outlook.tokens),
                pending,
                reads_again,
            };
            let Some(offer) = self.price.best(odds, outlook.grade, terms) else {
                continue;
            };
            let Offer { drafts, speed, .. } = offer;
            let wanted = self.always || self.price.accepts(&offer);
            if wanted && best.is_none_or(|(fastest, _)| speed > fastest) {
                let plan = Plan {
                    lane,
                    grade: outlook.grade,
                    drafts: if self.always { terms.most } else { drafts },
                };
                best = Some((speed, plan));
            }
        }
        best.map(|(_, plan)| plan)
    }

    /// Makes the drafts of `plan`, which was made for this `history`.
    pub(super) fn draft(
        &mut self,
        plan: Plan,
        session: &mut S,
        history: &[u32],
        out: &mut Vec<u32>,
    ) -> Result<(), E> {
        let drafter = &mut self.lanes[plan.lane].drafter;
        drafter.draft(session, history, plan.drafts, out)
    }

    /// Learns from a pass.
    pub(super) fn learn(&mut self, plan: Option<Plan>, outcome: &Outcome) {
        self.price.passed(outcome.rows, outcome.time.as_secs_f64());
        if outcome.rows > 1 {
            let seconds = (outcome.time + outcome.draft_time).as_secs_f64();
            self.price.brought(1 + outcome.accepted, seconds);
        }
        let Some(plan) = plan else { return };
        let odds = &mut self.lanes[plan.lane].odds;
        odds.judge(plan.grade, outcome.accepted, outcome.judged);
        if outcome.drafted > 0 {
            let each = outcome.draft_time.as_secs_f64() / outcome.drafted as f64;
            odds.seconds.add(each);
        }
    }
}

#[cfg(test)]
mod tests;
