//! One conversation of a model as generation drives it.

use crate::cancel::Cancel;
use crate::error::Error;
use crate::generate::{LogitsSession, SpeculativeSession};
use crate::model::Model;
use crate::state::Session;
use crate::step::{Logits, Span};
use std::sync::Arc;

/// One conversation of a model, driven token by token or with drafts.
pub struct ModelSession {
    model: Arc<Model>,
    session: Session,
    cancel: Cancel,
    chunk: usize,
    logits: Vec<f32>,
    /// Tokens of the conversation after those of `session`; the next pass reads them first. Only
    /// models whose state overwrites itself ever have any: after a wrong draft the whole pass is
    /// taken back, and reading its right tokens as part of the next pass costs less than one more.
    pending: Vec<u32>,
    /// All tokens of the last pass of verification, those that were pending included.
    pass: Vec<u32>,
}

impl ModelSession {
    /// An empty conversation. Prompts run in chunks of `chunk` tokens (0 = all at once); `cancel`
    /// ends whatever runs.
    ///
    /// # Errors
    /// As [`Model::session`].
    pub fn new(model: Arc<Model>, chunk: usize, cancel: Cancel) -> Result<ModelSession, Error> {
        let session = model.session();
        let logits = Vec::with_capacity(model.vocabulary());
        let chunk = if chunk == 0 { usize::MAX } else { chunk };
        Ok(ModelSession {
            model,
            session,
            cancel,
            chunk,
            logits,
            pending: Vec::new(),
            pass: Vec::new(),
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The conversation's state. After generation with drafts it may lack the last few tokens,
    /// until [`settle`](Self::settle) or the next call that reads.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Goes back to at most `tokens` tokens, as far as the state allows; the position it has then.
    /// See [`Session::rewind`].
    pub fn rewind(&mut self, tokens: usize) -> usize {
        let behind = self.session.position();
        if let Some(kept) = tokens.checked_sub(behind) {
            self.pending.truncate(kept);
            return behind + self.pending.len();
        }
        self.pending.clear();
        self.session.rewind(tokens)
    }

    /// Reads what wrong drafts have left to be read again, if anything.
    ///
    /// # Errors
    /// As [`Model::step`]; the conversation is as before.
    pub fn settle(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let result = self.read_chunks(&pending, Logits::None);
        if result.is_err() {
            self.pending = pending;
        }
        result
    }

    /// Reads `tokens` after what is pending; the logits after the last.
    fn read(&mut self, tokens: &[u32]) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(Error::EmptySpan);
        }
        if self.pending.is_empty() {
            return self.read_chunks(tokens, Logits::Last);
        }
        let all = [&self.pending, tokens].concat();
        self.read_chunks(&all, Logits::Last)?;
        self.pending.clear();
        Ok(())
    }

    /// Reads `tokens`, at least one, in chunks; all of them or none.
    fn read_chunks(&mut self, tokens: &[u32], last: Logits) -> Result<(), Error> {
        // Only a later chunk can fail with earlier ones already part of the conversation.
        let before = (tokens.len() > self.chunk).then(|| self.session.checkpoint());
        let chunks = tokens.len().div_ceil(self.chunk);
        for (index, chunk) in tokens.chunks(self.chunk.min(tokens.len())).enumerate() {
            let logits = if index + 1 == chunks {
                last
            } else {
                Logits::None
            };
            if let Err(error) = self.step_once(chunk, logits) {
                if let Some(before) = &before {
                    self.session.restore(before)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn step_once(&mut self, tokens: &[u32], logits: Logits) -> Result<(), Error> {
        let span = Span {
            session: &mut self.session,
            tokens,
            logits,
            out: &mut self.logits,
        };
        self.model.step(&mut [span], &self.cancel)
    }
}

impl LogitsSession for ModelSession {
    type Error = Error;

    fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    fn position(&self) -> usize {
        self.session.position() + self.pending.len()
    }

    fn context(&self) -> usize {
        self.session.context()
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.read(tokens)?;
        Ok(&self.logits)
    }

    fn step(&mut self, token: u32) -> Result<&[f32], Error> {
        self.read(&[token])?;
        Ok(&self.logits)
    }
}

impl SpeculativeSession for ModelSession {
    fn verify(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let mut pass = std::mem::take(&mut self.pass);
        pass.clear();
        pass.extend_from_slice(&self.pending);
        pass.extend_from_slice(tokens);
        let result = self.step_once(&pass, Logits::Tail(tokens.len()));
        self.pass = pass;
        result?;
        self.pending.clear();
        Ok(())
    }

    fn verified(&self) -> &[f32] {
        &self.logits
    }

    fn keep(&mut self, count: usize) -> Result<(), Error> {
        let rows = self.logits.len() / self.model.vocabulary();
        let wrong = rows.saturating_sub(count);
        if wrong == 0 {
            return Ok(());
        }
        let keep = self.session.position().saturating_sub(wrong);
        if self.session.truncate(keep).is_err() {
            self.session.undo()?;
            let right = self.pass.len().saturating_sub(wrong);
            self.pending.extend_from_slice(&self.pass[..right]);
        }
        Ok(())
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }

    fn reads_again(&self) -> bool {
        self.session.overwrites()
    }
}
