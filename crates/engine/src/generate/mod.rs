//! From logits to tokens: the session that generation drives, the choice of each token, and the
//! rules for when to stop.
//!
//! [`generate`] drives one conversation, [`generate_speculating`] too, with drafts, and
//! [`continue_session`] from logits that are there already. A caller that
//! steps many conversations together holds one [`Generation`] each and gives it the logits; all
//! follow the same rules:
//!
//! * a stop token is never emitted, it is the reason for the end;
//! * the last token of the budget is emitted and never stepped;
//! * prompt and answer together never exceed the context;
//! * nothing is chosen from logits that are not finite.
//!
//! This module knows no model: [`LogitsSession`] is all it asks for.

mod driver;
mod logprobs;
mod rng;
mod sampler;
mod settings;
mod speculate;

pub use driver::{Finish, FinishReason, continue_session, generate, generate_speculating};
pub use logprobs::{Logprobs, TokenLogprob};
pub(crate) use sampler::best_raw;
pub use sampler::{LogitsError, Sampler};
pub use settings::{Sampling, SamplingError};
pub use speculate::{
    Drafter, GRADES, MOST_DRAFTS, Outlook, PromptLookup, SpeculationStats, SpeculativeSession,
    Speculator,
};

/// A conversation that reads tokens and predicts the next one.
///
/// A call that fails leaves the session as it was. Cancellation is the implementation's: it makes a
/// running call fail.
pub trait LogitsSession {
    /// Why a call failed.
    type Error;

    /// Number of tokens, and of logits.
    fn vocabulary(&self) -> usize;

    /// Tokens read so far.
    fn position(&self) -> usize;

    /// Most tokens that can be read.
    fn context(&self) -> usize;

    /// Reads `tokens` (at least one); returns the logits after the last.
    ///
    /// # Errors
    /// The implementation's; the session is as before.
    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Self::Error>;

    /// Reads one token; returns the logits after it.
    ///
    /// # Errors
    /// The implementation's; the session is as before.
    fn step(&mut self, token: u32) -> Result<&[f32], Self::Error>;
}

/// What to generate and when to stop.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens to emit; the end of the context may come first.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Seed of the random choice.
    pub seed: u64,
    /// Index of this answer among several made from one request; each has its own random stream.
    pub choice: u64,
    /// Report each token's log-probability and this many alternatives (at most
    /// [`Logprobs::MAX_TOP`]); `None` = neither.
    pub logprobs: Option<usize>,
    /// Tokens the session has read before this prompt. They count as prompt for the repetition
    /// penalty and for nothing else.
    pub earlier: Vec<u32>,
}

impl Default for GenerateOptions {
    /// The model's own distribution, no stop tokens, to the end of the context.
    fn default() -> Self {
        GenerateOptions {
            max_tokens: usize::MAX,
            stop_tokens: Vec::new(),
            sampling: Sampling::default(),
            seed: 0,
            choice: 0,
            logprobs: None,
            earlier: Vec::new(),
        }
    }
}

/// One emitted token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'a> {
    /// The token.
    pub id: u32,
    /// Its log-probability under the model itself, where asked for.
    pub logprob: Option<f64>,
    /// The most probable tokens at this place, best first, where asked for.
    pub top: &'a [TokenLogprob],
}

/// A request that cannot be generated from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error(
        "the prompt has {prompt} tokens and {position} were read before; \
         the context holds {context}"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens the session holds already.
        position: usize,
        /// Most tokens it can hold.
        context: usize,
    },
    /// A prompt token that does not exist.
    #[error("token {token} of the prompt is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The first such token.
        token: u32,
        /// Number of tokens.
        vocabulary: usize,
    },
    /// A sampling setting out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// More alternatives than are ever reported.
    #[error(
        "{0} alternatives a token were asked for; at most {max} can be",
        max = Logprobs::MAX_TOP
    )]
    TooManyLogprobs(usize),
}

/// Why generation failed. Tokens emitted before remain valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError<E> {
    /// The request cannot be served; nothing was read.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The model gave logits that nothing can be chosen from.
    #[error(transparent)]
    Logits(#[from] LogitsError),
    /// The session failed or was cancelled.
    #[error(transparent)]
    Session(E),
}

/// One answer in the making, for callers that step the model themselves.
///
/// ```text
/// logits after the prompt → advance → Token: emit, and unless is_finished, step it → advance → …
///                                   → Stop: the answer is complete
/// ```
#[derive(Clone, Debug)]
pub struct Generation {
    sampler: Sampler,
    stop_tokens: Vec<u32>,
    logprobs: Option<Logprobs>,
    remaining: usize,
}

/// What comes next in an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advance<'a> {
    /// This token is emitted.
    Token(Token<'a>),
    /// The model chose this stop token; it is not part of the answer.
    Stop(u32),
}

impl Generation {
    /// Prepares an answer to `prompt`, which a session at `position` of `context` is about to read.
    ///
    /// # Errors
    /// [`RequestError`] if the request cannot be served.
    pub fn new(
        options: &GenerateOptions,
        prompt: &[u32],
        vocabulary: usize,
        position: usize,
        context: usize,
    ) -> Result<Generation, RequestError> {
        match prompt.is_empty() {
            true => Err(RequestError::EmptyPrompt),
            false => Generation::after(options, prompt, vocabulary, position, context),
        }
    }

    /// [`new`](Self::new) without the rule that there is a prompt.
    fn after(
        options: &GenerateOptions,
        prompt: &[u32],
        vocabulary: usize,
        position: usize,
        context: usize,
    ) -> Result<Generation, RequestError> {
        let room = context
            .checked_sub(position)
            .and_then(|n| n.checked_sub(prompt.len()));
        let Some(room) = room else {
            return Err(RequestError::PromptTooLong {
                prompt: prompt.len(),
                position,
                context,
            });
        };
        if let Some(&token) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(RequestError::UnknownToken { token, vocabulary });
        }
        if let Some(count) = options.logprobs.filter(|&count| count > Logprobs::MAX_TOP) {
            return Err(RequestError::TooManyLogprobs(count));
        }
        let sampling = options.sampling.clone();
        let mut sampler = Sampler::new(sampling, vocabulary, options.seed, options.choice)?;
        sampler.read_prompt(&options.earlier);
        sampler.read_prompt(prompt);
        Ok(Generation {
            sampler,
            stop_tokens: options.stop_tokens.clone(),
            logprobs: options.logprobs.map(Logprobs::new),
            remaining: options.max_tokens.min(room),
        })
    }

    /// Tokens that may still be emitted.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Whether the budget or the context is used up.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.remaining == 0
    }

    /// Chooses the next token from the logits after everything before it. Not to be called once
    /// [`is_finished`](Self::is_finished), or after a stop.
    ///
    /// # Errors
    /// [`LogitsError`] if nothing can be chosen from these logits.
    pub fn advance(&mut self, logits: &[f32]) -> Result<Advance<'_>, LogitsError> {
        let id = self.sampler.sample(logits)?;
        if self.stop_tokens.contains(&id) {
            return Ok(Advance::Stop(id));
        }
        self.sampler.accept(id);
        self.remaining = self.remaining.saturating_sub(1);
        let (logprob, top) = match &mut self.logprobs {
            None => (None, &[][..]),
            Some(logprobs) => {
                let (logprob, top) = logprobs.of(logits, id);
                (Some(logprob), top)
            }
        };
        Ok(Advance::Token(Token { id, logprob, top }))
    }
}

#[cfg(test)]
mod tests;
