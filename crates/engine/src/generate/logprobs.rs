//! True log-probabilities: the model's own distribution, before temperature, penalties and bias.

/// The log-probability of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
}

/// Computes log-softmax in f64 with portable `exp` and `log`; the sum runs in token order.
#[derive(Clone, Debug)]
pub struct Logprobs {
    count: usize,
    top: Vec<TokenLogprob>,
}

impl Logprobs {
    /// Most alternatives that can be asked for.
    pub const MAX_TOP: usize = 256;

    /// Reports `count` alternatives a token, at most [`MAX_TOP`](Self::MAX_TOP).
    #[must_use]
    pub fn new(count: usize) -> Logprobs {
        let count = count.min(Self::MAX_TOP);
        Logprobs {
            count,
            top: Vec::with_capacity(count),
        }
    }

    /// The log-probability of `chosen`, and the most probable tokens in falling order, equal ones
    /// by id. Tokens of probability zero (logit −∞) are never among them.
    ///
    /// `logits` must hold `chosen`, no NaN, no +∞, and not only −∞, as
    /// [`Sampler::sample`](super::Sampler::sample) has made sure of.
    pub fn of(&mut self, logits: &[f32], chosen: u32) -> (f64, &[TokenLogprob]) {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x) - max)).sum();
        let log_sum = libm::log(sum);
        let logprob = |logit: f64| (logit - max) - log_sum;
        self.collect_top(logits);
        for token in &mut self.top {
            token.logprob = logprob(token.logprob);
        }
        (logprob(f64::from(logits[chosen as usize])), &self.top)
    }

    /// Fills `top` with the largest logits (not yet log-probabilities).
    fn collect_top(&mut self, logits: &[f32]) {
        self.top.clear();
        if self.count == 0 {
            return;
        }
        for (id, &logit) in (0u32..).zip(logits) {
            let logit = f64::from(logit);
            let full = self.top.len() == self.count;
            let beaten = self
                .top
                .last()
                .is_some_and(|last| full && logit <= last.logprob);
            if beaten || logit == f64::NEG_INFINITY {
                continue;
            }
            if full {
                self.top.pop();
            }
            let place = self.top.partition_point(|token| token.logprob >= logit);
            self.top.insert(place, TokenLogprob { id, logprob: logit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn logprobs_of_known_probabilities() {
        // Odds 1 : 2 : 5, shifted by a constant that must not matter.
        let logits: Vec<f32> = [0.0, 2f32.ln(), 5f32.ln()].map(|x| x + 50.0).to_vec();
        let mut logprobs = Logprobs::new(2);
        let (chosen, top) = logprobs.of(&logits, 0);
        assert!((chosen - 0.125f64.ln()).abs() < 1e-5, "{chosen}");
        assert_eq!(top.iter().map(|t| t.id).collect::<Vec<_>>(), [2, 1]);
        assert!((top[0].logprob - 0.625f64.ln()).abs() < 1e-5);
        let all: f64 = (0..3).map(|id| logprobs.of(&logits, id).0.exp()).sum();
        assert!(close(all, 1.0));
    }

    #[test]
    fn ties_are_listed_by_id() {
        let logits = [1.0, 3.0, 2.0, 3.0, 2.0, 2.0];
        let mut logprobs = Logprobs::new(4);
        let ids: Vec<u32> = logprobs.of(&logits, 0).1.iter().map(|t| t.id).collect();
        assert_eq!(ids, [1, 3, 2, 4]);
    }

    #[test]
    fn masked_tokens_and_large_counts_are_handled() {
        let masked = f32::NEG_INFINITY;
        let logits = [masked, -1000.0, masked, 0.0];
        let mut logprobs = Logprobs::new(10);
        let (chosen, top) = logprobs.of(&logits, 3);
        assert!(close(chosen, 0.0));
        assert_eq!(top.len(), 2);
        assert!(close(top[1].logprob, -1000.0));
        assert!(Logprobs::new(0).of(&logits, 1).1.is_empty());
    }

    #[test]
    fn extreme_logits_do_not_overflow() {
        let (chosen, _) = Logprobs::new(0).of(&[f32::MAX, f32::MIN], 0);
        assert!(close(chosen, 0.0));
    }
}
