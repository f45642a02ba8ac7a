//! What a caller may ask of the sampler.

/// How to choose the next token. [`Sampler`](super::Sampler) documents the
/// order of operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 = always the most probable token; 1 = the model's own distribution.
    pub temperature: f64,
    /// Number of most probable tokens kept; 0 = all.
    pub top_k: usize,
    /// Share of the probability kept; 1 = all.
    pub top_p: f64,
    /// Least probability kept, relative to the best token; 0 = all.
    pub min_p: f64,
    /// Penalty factor of tokens in the prompt or the answer; 1 = none.
    pub repetition_penalty: f64,
    /// Subtracted once for every time a token stands in the answer.
    pub frequency_penalty: f64,
    /// Subtracted once from tokens that stand in the answer.
    pub presence_penalty: f64,
    /// Added to the logits of single tokens; −∞ bans one.
    pub logit_bias: Vec<(u32, f64)>,
    /// Only ids below this are chosen. A checkpoint's embedding is often padded beyond its
    /// tokenizer, and those ids mean nothing.
    pub sampleable: Option<usize>,
}

impl Default for Sampling {
    /// The model's own distribution.
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            sampleable: None,
        }
    }
}

impl Sampling {
    /// Always the most probable token.
    #[must_use]
    pub fn greedy() -> Sampling {
        Sampling {
            temperature: 0.0,
            ..Sampling::default()
        }
    }

    pub(super) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
    }

    pub(super) fn check(&self, vocabulary: usize) -> Result<(), SamplingError> {
        /// Far beyond any use, and small enough that nothing overflows.
        const LIMIT: f64 = 1e6;
        for (setting, value, least, most) in [
            ("temperature", self.temperature, 0.0, LIMIT),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            (
                "repetition_penalty",
                self.repetition_penalty,
                1.0 / LIMIT,
                LIMIT,
            ),
            ("frequency_penalty", self.frequency_penalty, -LIMIT, LIMIT),
            ("presence_penalty", self.presence_penalty, -LIMIT, LIMIT),
        ] {
            if !(least..=most).contains(&value) {
                return Err(SamplingError::OutOfRange {
                    setting,
                    value,
                    least,
                    most,
                });
            }
        }
        for &(id, value) in &self.logit_bias {
            if id as usize >= vocabulary {
                return Err(SamplingError::BiasedToken { id, vocabulary });
            }
            if !(-LIMIT..=LIMIT).contains(&value) && value != f64::NEG_INFINITY {
                let setting = "logit_bias";
                return Err(SamplingError::OutOfRange {
                    setting,
                    value,
                    least: -LIMIT,
                    most: LIMIT,
                });
            }
        }
        Ok(())
    }
}

/// A sampling setting that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A number outside its range, or NaN.
    #[error("{setting} is {value}; it must be from {least} to {most}")]
    OutOfRange {
        /// The field of [`Sampling`].
        setting: &'static str,
        /// Its value.
        value: f64,
        /// Least allowed.
        least: f64,
        /// Most allowed.
        most: f64,
    },
    /// A bias for a token that does not exist.
    #[error("logit_bias names token {id}, but the vocabulary ends at {vocabulary}")]
    BiasedToken {
        /// The token.
        id: u32,
        /// Number of tokens.
        vocabulary: usize,
    },
}
