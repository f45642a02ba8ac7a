//! Choosing the next token from its logits.

use super::rng::Random;
use super::settings::{Sampling, SamplingError};
use std::cmp::Ordering;

/// Logits that no token can be chosen from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LogitsError {
    /// NaN or +∞.
    #[error("the model's logit for token {id} is {value}: its weights or its input are damaged")]
    NotFinite {
        /// The first such token.
        id: u32,
        /// Its logit.
        value: f32,
    },
    /// Every token is masked.
    #[error("no token is left to choose from: every logit is -inf")]
    NothingLeft,
    /// Not one logit per token.
    #[error("{found} logits for a vocabulary of {vocabulary}")]
    Count {
        /// Logits given.
        found: usize,
        /// Logits expected.
        vocabulary: usize,
    },
}

/// Chooses tokens for one sequence; owns its random stream and its count of past tokens.
///
/// The order of operations is fixed, and is the same for greedy and random choice:
///
/// 1. logits that are NaN or +∞ are an error; −∞ means "never";
/// 2. ids beyond [`Sampling::sampleable`] are dropped;
/// 3. repetition penalty (Keskar et al. 2019): the logit of every token of the prompt or the answer
///    so far is divided by it where positive, multiplied where not;
/// 4. frequency and presence penalty: `logit -= frequency * n + presence` for a token that stands
///    `n > 0` times in the answer so far (the prompt does not count);
/// 5. logit bias is added;
/// 6. temperature 0: the largest is chosen, the lowest id among equals. Otherwise logits are
///    divided by the temperature, and
/// 7. top-k keeps the `k` largest, ties by id;
/// 8. top-p (Holtzman et al. 2020) keeps the shortest run of the most probable ones whose share of
///    what top-k left is at least `p`, the first one always;
/// 9. min-p (Nguyen et al. 2024) keeps those at least `min_p` times as probable as the best;
/// 10. one is drawn in proportion to its probability, with one random number per token, whatever
///     the filters left.
///
/// All of it is done in f64 with a portable `exp` and in an order that ids and logits fix alone, so
/// a seed gives the same tokens on every platform.
///
/// Buffers are reused: after the first token nothing is allocated.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    vocabulary: usize,
    random: Random,
    past: Past,
    /// Adjusted logits by id.
    scores: Vec<f64>,
    /// Probabilities by id, relative to the best; only those of `kept` are valid.
    weights: Vec<f64>,
    /// Ids still in question.
    kept: Vec<u32>,
}

impl Sampler {
    /// A sampler for logits over `vocabulary` tokens. `seed` is the request's, `choice` the index
    /// of the answer where several are made from one request: each has a stream of its own.
    ///
    /// # Errors
    /// [`SamplingError`] for a setting out of range.
    pub fn new(
        sampling: Sampling,
        vocabulary: usize,
        seed: u64,
        choice: u64,
    ) -> Result<Sampler, SamplingError> {
        sampling.check(vocabulary)?;
        let past = if sampling.penalises() {
            Past::new(vocabulary)
        } else {
            Past::default()
        };
        Ok(Sampler {
            sampling,
            vocabulary,
            random: Random::new(seed, choice),
            past,
            scores: Vec::new(),
            weights: Vec::new(),
            kept: Vec::new(),
        })
    }

    /// Counts tokens of the prompt. Ids beyond the vocabulary are ignored.
    pub fn read_prompt(&mut self, tokens: &[u32]) {
        for &id in tokens {
            self.past.see(id);
        }
    }

    /// Counts a token of the answer.
    pub fn accept(&mut self, id: u32) {
        self.past.see(id);
        self.past.count(id);
    }

    /// Chooses the next token. It does not count as accepted: see [`accept`](Self::accept).
    ///
    /// # Errors
    /// [`LogitsError`]; nothing is ever chosen from bad logits.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, LogitsError> {
        if logits.len() != self.vocabulary {
            let vocabulary = self.vocabulary;
            return Err(LogitsError::Count {
                found: logits.len(),
                vocabulary,
            });
        }
        let sampleable = self
            .sampling
            .sampleable
            .unwrap_or(usize::MAX)
            .min(self.vocabulary);
        let greedy = self.sampling.temperature == 0.0;
        if greedy && self.past.is_empty() && self.sampling.logit_bias.is_empty() {
            check_finite(logits, sampleable)?;
            return best_raw(&logits[..sampleable]);
        }
        check_finite(logits, 0)?;
        self.adjust(&logits[..sampleable]);
        let (best, max) = best(&self.scores)?;
        if greedy {
            return Ok(best);
        }
        self.filter(max);
        Ok(self.draw(best))
    }

    /// Steps 2 to 5: fills `scores`.
    fn adjust(&mut self, logits: &[f32]) {
        self.scores.clear();
        self.scores.extend(logits.iter().map(|&x| f64::from(x)));
        let s = &self.sampling;
        for &id in &self.past.seen {
            let Some(score) = self.scores.get_mut(id as usize) else {
                continue;
            };
            if s.repetition_penalty != 1.0 {
                let divide = *score > 0.0;
                let factor = s.repetition_penalty;
                *score = if divide {
                    *score / factor
                } else {
                    *score * factor
                };
            }
            let times = self.past.times[id as usize].answer;
            if times > 0 {
                *score -= s.frequency_penalty * f64::from(times) + s.presence_penalty;
            }
        }
        for &(id, bias) in &s.logit_bias {
            if let Some(score) = self.scores.get_mut(id as usize) {
                *score += bias;
            }
        }
    }

    /// Temperature and steps 7 to 9: leaves the surviving ids in `kept`, with their weights.
    ///
    /// Sums run over the ids in order, or over the sorted ones once top-k has sorted them: never in
    /// an order that a library's partial sort happens to leave.
    fn filter(&mut self, max: f64) {
        let top_k = self.sampling.top_k;
        if top_k > 0 {
            keep_largest(&mut self.kept, &self.scores, top_k);
        } else {
            keep_unmasked(&mut self.kept, &self.scores);
        }
        self.weights.resize(self.scores.len(), 0.0);
        let mut total = 0.0;
        for &id in &self.kept {
            let score = self.scores[id as usize];
            let weight = relative_probability((score - max) / self.sampling.temperature);
            self.weights[id as usize] = weight;
            total += weight;
        }
        let (top_p, min_p) = (self.sampling.top_p, self.sampling.min_p);
        // Those below 1 / 2n of the share that top-p drops cannot matter to it, all n together;
        // those below min-p stand behind every one that min-p keeps. Neither need be sorted.
        let negligible = (1.0 - top_p) * total / (2.0 * self.kept.len() as f64);
        let floor = min_p.max(negligible);
        if floor > 0.0 {
            let weights = &self.weights;
            self.kept.retain(|&id| weights[id as usize] >= floor);
        }
        if top_p < 1.0 {
            self.keep_mass(top_p * total, if top_k > 0 { self.kept.len() } else { 0 });
        }
    }

    /// Keeps the most probable ids until they weigh `enough`, at least one. The first `sorted` ids
    /// are in order already.
    fn keep_mass(&mut self, enough: f64, mut sorted: usize) {
        let mut mass = 0.0;
        let mut count = 0;
        while count < self.kept.len() && (count == 0 || mass < enough) {
            if count == sorted {
                sorted = sort_further(&mut self.kept, &self.scores, sorted);
            }
            mass += self.weights[self.kept[count] as usize];
            count += 1;
        }
        self.kept.truncate(count);
    }

    /// Step 10. `best` has weight 1 and is always kept.
    fn draw(&mut self, best: u32) -> u32 {
        let weight = |id: &u32| self.weights[*id as usize];
        let total: f64 = self.kept.iter().map(weight).sum();
        let target = self.random.unit() * total;
        let mut mass = 0.0;
        for id in &self.kept {
            mass += weight(id);
            if mass > target {
                return *id;
            }
        }
        best
    }
}

/// `exp(x)` for `x <= 0`, and 0 where the result would be subnormal or nearly so.
fn relative_probability(x: f64) -> f64 {
    if x < -700.0 { 0.0 } else { libm::exp(x) }
}

/// The order of preference: larger first, the lower id among equals. Total, as NaN is excluded.
fn falling(scores: &[f64], a: u32, b: u32) -> Ordering {
    let (x, y) = (scores[a as usize], scores[b as usize]);
    y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// Fills `ids` with those that are not masked, by id.
fn keep_unmasked(ids: &mut Vec<u32>, scores: &[f64]) {
    ids.clear();
    for (id, &score) in (0u32..).zip(scores) {
        if score > f64::NEG_INFINITY {
            ids.push(id);
        }
    }
}

/// Fills `ids` with the `k` most preferred that are not masked, in order.
fn keep_largest(ids: &mut Vec<u32>, scores: &[f64], k: usize) {
    /// Up to here, one scan with a sorted list beats selecting among all.
    const SHORT: usize = 128;
    if k > SHORT {
        keep_unmasked(ids, scores);
        if k < ids.len() {
            ids.select_nth_unstable_by(k - 1, |a, b| falling(scores, *a, *b));
            ids.truncate(k);
        }
        ids.sort_unstable_by(|a, b| falling(scores, *a, *b));
        return;
    }
    ids.clear();
    // What a score must exceed to enter; an equal one of a higher id stands behind.
    let mut least = f64::NEG_INFINITY;
    for (id, &score) in (0u32..).zip(scores) {
        if score <= least {
            continue;
        }
        if ids.len() == k {
            ids.pop();
        }
        let place = ids.partition_point(|&other| scores[other as usize] >= score);
        ids.insert(place, id);
        if ids.len() == k {
            least = scores[ids[k - 1] as usize];
        }
    }
}

/// Extends the sorted head of `ids` from `sorted` entries; returns its new length. Most
/// distributions end within the first few dozen tokens, so the rest is seldom sorted.
fn sort_further(ids: &mut [u32], scores: &[f64], sorted: usize) -> usize {
    let end = (sorted * 8).max(64).min(ids.len());
    if end < ids.len() {
        ids[sorted..].select_nth_unstable_by(end - sorted, |a, b| falling(scores, *a, *b));
    }
    ids[sorted..end].sort_unstable_by(|a, b| falling(scores, *a, *b));
    end
}

/// NaN or +∞; −∞ is a mask.
fn is_bad(logit: f32) -> bool {
    logit.is_nan() || logit == f32::INFINITY
}

/// Checks the logits of token `first` and those after it.
fn check_finite(logits: &[f32], first: usize) -> Result<(), LogitsError> {
    // One branch-free pass; the culprit is looked for only when there is one.
    if !logits[first..]
        .iter()
        .fold(false, |bad, &x| bad | is_bad(x))
    {
        return Ok(());
    }
    match (0u32..).zip(logits).skip(first).find(|(_, x)| is_bad(**x)) {
        Some((id, &value)) => Err(LogitsError::NotFinite { id, value }),
        None => Ok(()),
    }
}

/// The largest logit's id, the lowest among equals, found in one scan.
pub(crate) fn best_raw(logits: &[f32]) -> Result<u32, LogitsError> {
    let mut best = None;
    let mut max = f32::NEG_INFINITY;
    for (id, &x) in (0u32..).zip(logits) {
        if x <= max {
            continue;
        }
        if is_bad(x) {
            return Err(LogitsError::NotFinite { id, value: x });
        }
        (best, max) = (Some(id), x);
    }
    best.ok_or(LogitsError::NothingLeft)
}

/// The largest score and its id, the lowest among equals.
fn best(scores: &[f64]) -> Result<(u32, f64), LogitsError> {
    let mut best = None;
    let mut max = f64::NEG_INFINITY;
    for (id, &x) in (0u32..).zip(scores) {
        if x > max {
            (best, max) = (Some(id), x);
        }
    }
    best.map(|id| (id, max)).ok_or(LogitsError::NothingLeft)
}

/// Which tokens have been there before. Empty (and free) where no penalty asks.
#[derive(Clone, Debug, Default)]
struct Past {
    times: Vec<Times>,
    /// Distinct ids, in order of first sight.
    seen: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    seen: bool,
    /// Times in the answer.
    answer: u32,
}

impl Past {
    fn new(vocabulary: usize) -> Past {
        Past {
            times: vec![Times::default(); vocabulary],
            seen: Vec::with_capacity(vocabulary),
        }
    }

    fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    fn see(&mut self, id: u32) {
        if let Some(times) = self.times.get_mut(id as usize)
            && !times.seen
        {
            times.seen = true;
            self.seen.push(id);
        }
    }

    fn count(&mut self, id: u32) {
        if let Some(times) = self.times.get_mut(id as usize) {
            times.answer = times.answer.saturating_add(1);
        }
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
