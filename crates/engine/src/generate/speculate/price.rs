//! What speculation costs and what it brings, both measured while it runs.
//!
//! A pass over `k` drafts takes longer than a pass over one token and may bring up to `k + 1`. How
//! much longer is the time of passes by their rows; how many it brings is how often drafts were
//! right. Both are running means. The best number of drafts is the one with the most tokens a
//! second; if that is not more than plain decode gives, nothing is drafted, but for trials that
//! may cost a small share of the time.

/// Most rows of one pass of verification: so many tokens any session can take back.
pub(super) const MOST_ROWS: usize = 64;
/// Most tokens drafted at once.
pub const MOST_DRAFTS: usize = 32;
/// How many kinds of drafts a drafter can tell apart by how sure it is.
pub const GRADES: usize = 4;

/// Observations a mean remembers.
const MEMORY: u32 = 8;
/// Assumed cost of a row beyond the first before any was measured, as a share of a pass of one.
const ROW_SHARE: f64 = 0.2;
/// Assumed chance of a first draft, and the weight of that assumption in observations.
const CHANCE: (f64, f64) = (0.5, 2.0);
/// What is left of an observation of drafts after the next one.
const FADING: f64 = 0.97;
/// Drafting must promise at least this many tokens for one of plain decode.
const MARGIN: f64 = 1.03;
/// Share of the time of plain decode that trials may cost.
const TRIAL_SHARE: f64 = 1.0 / 64.0;
/// What trials may cost before any time has passed, and the most they may cost at once, in passes
/// of one token.
const FIRST_TRIALS: f64 = 1.0;
const MOST_TRIALS: f64 = 8.0;
/// Passes after which the time of a single token is measured again.
const MEASURE_EVERY: usize = 32;

/// A running mean that follows change and is not thrown by one interruption.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    value: f64,
    count: u32,
}

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        let value = match self.count {
            0 => value,
            _ => value.min(4.0 * self.value),
        };
        self.count = (self.count + 1).min(MEMORY);
        self.value += (value - self.value) / f64::from(self.count);
    }

    pub(super) fn get(&self) -> Option<f64> {
        (self.count > 0).then_some(self.value)
    }
}

/// How often the drafts of one drafter were right, and what they took to make.
#[derive(Clone, Debug)]
pub(super) struct Odds {
    /// By grade, then by place in the draft: how often it was right and how often it was judged,
    /// given that all before it were right.
    judged: [[(f64, f64); MOST_DRAFTS]; GRADES],
    /// Seconds to draft a token.
    pub(super) seconds: Mean,
}

impl Odds {
    pub(super) fn new() -> Odds {
        Odds {
            judged: [[(0.0, 0.0); MOST_DRAFTS]; GRADES],
            seconds: Mean::default(),
        }
    }

    /// Drafts of `grade` were made; of the first `judged` the first `accepted` were right.
    pub(super) fn judge(&mut self, grade: usize, accepted: usize, judged: usize) {
        if judged == 0 {
            return;
        }
        let places = self.judged[grade.min(GRADES - 1)].iter_mut();
        for (place, (right, all)) in places.enumerate() {
            // Places that were not reached fade too, or bad luck would keep them from ever being
            // tried again.
            *right *= FADING;
            *all *= FADING;
            if place < judged {
                *right += if place < accepted { 1.0 } else { 0.0 };
                *all += 1.0;
            }
        }
    }

    /// The chance that a draft of `grade` is right at each place in turn, if all before it were.
    fn chances(&self, grade: usize) -> impl Iterator<Item = f64> {
        let (mut chance, weight) = CHANCE;
        let places = self.judged[grade.min(GRADES - 1)].iter();
        places.map(move |(right, all)| {
            // Little seen, a place is like the one before it.
            chance = (right + weight * chance) / (all + weight);
            chance
        })
    }
}

/// What the best number of drafts promises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Offer {
    /// Tokens to draft, at least one.
    pub(super) drafts: usize,
    /// Expected tokens for one of plain decode in the same time.
    pub(super) speed: f64,
    /// Seconds expected to be lost against plain decode; below 0 they are won.
    pub(super) loss: f64,
}

/// The state of the conversation that a price depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Most tokens that can be drafted.
    pub(super) most: usize,
    /// Tokens that the next pass reads again.
    pub(super) pending: usize,
    /// Whether tokens before a wrong draft must be read again.
    pub(super) reads_again: bool,
}

/// Times of passes, and what trials may still cost.
#[derive(Clone, Debug)]
pub(super) struct Price {
    /// Seconds of a pass by its rows.
    passes: [Mean; MOST_ROWS + 1],
    /// Seconds that trials may cost; `None` before a pass of one token was measured.
    allowance: Option<f64>,
    /// Passes since one of a single token.
    since_single: usize,
}

impl Price {
    pub(super) fn new() -> Price {
        Price {
            passes: [Mean::default(); MOST_ROWS + 1],
            allowance: None,
            since_single: 0,
        }
    }

    /// A pass over `rows` tokens took `seconds`.
    pub(super) fn passed(&mut self, rows: usize, seconds: f64) {
        if let Some(mean) = self.passes.get_mut(rows) {
            mean.add(seconds);
        }
        if rows == 1 {
            self.since_single = 0;
            let single = self.passes[1].value;
            let allowance = self.allowance.unwrap_or(FIRST_TRIALS * single);
            self.set_allowance(allowance + TRIAL_SHARE * seconds);
        } else {
            self.since_single += 1;
        }
    }

    /// Drafts brought `tokens` tokens in `seconds`.
    pub(super) fn brought(&mut self, tokens: usize, seconds: f64) {
        if let Some(allowance) = self.allowance {
            self.set_allowance(allowance + tokens as f64 * self.passes[1].value - seconds);
        }
    }

    fn set_allowance(&mut self, seconds: f64) {
        let most = MOST_TRIALS * self.passes[1].value;
        self.allowance = Some(seconds.clamp(-most, most));
    }

    /// Whether the next pass must be one of a single token, because all prices are compared with
    /// its time.
    pub(super) fn must_measure(&self) -> bool {
        self.allowance.is_none() || self.since_single >= MEASURE_EVERY
    }

    /// Whether drafting pays, or may be tried although it does not.
    pub(super) fn accepts(&self, offer: &Offer) -> bool {
        offer.speed >= MARGIN || self.allowance.is_some_and(|most| offer.loss <= most)
    }

    /// Expected seconds of a pass over `rows` tokens.
    fn pass(&self, rows: usize) -> f64 {
        let rows = rows.min(MOST_ROWS);
        let known = |rows: usize| self.passes[rows].get().map(|seconds| (rows, seconds));
        if let Some(seconds) = self.passes[rows].get() {
            return seconds;
        }
        let below = (1..rows).rev().find_map(known);
        let above = (rows + 1..=MOST_ROWS).find_map(known);
        match (below, above) {
            (Some((r0, t0)), Some((r1, t1))) => {
                t0 + (t1 - t0) * (rows - r0) as f64 / (r1 - r0) as f64
            }
            (Some((r0, t0)), None) => {
                let single = self.passes[1].get().unwrap_or(t0);
                t0 + ROW_SHARE * single * (rows - r0) as f64
            }
            (None, Some((_, t1))) => t1,
            (None, None) => 0.0,
        }
    }

    /// The best number of drafts of `grade`; `None` if none can be made.
    pub(super) fn best(&self, odds: &Odds, grade: usize, terms: Terms) -> Option<Offer> {
        let plain = self.pass(1 + terms.pending);
        let each = odds.seconds.get().unwrap_or(0.0);
        // Chance that all drafts so far are right; expected number of right ones.
        let (mut all, mut right) = (1.0, 0.0);
        let offer = |(drafts, chance): (usize, f64)| {
            all *= chance;
            right += all;
            let rows = 1 + terms.pending + drafts;
            let mut seconds = self.pass(rows) + each * drafts as f64;
            if terms.reads_again {
                let again = self.pass(rows.min(2 + terms.pending + right as usize));
                seconds += (1.0 - all) * (again - self.pass(1)).max(0.0);
            }
            let loss = seconds - plain - right * self.pass(1);
            Offer {
                drafts,
                speed: (1.0 + right) * plain / seconds,
                loss,
            }
        };
        let offers = (1..=terms.most).zip(odds.chances(grade)).map(offer);
        offers.max_by(|a, b| a.speed.total_cmp(&b.speed))
    }
}

#[cfg(test)]
#[path = "price_tests.rs"]
mod tests;
