//! One conversation of a model as generation drives it.

use crate::cancel::Cancel;
use crate::draft_heads::{DraftHeads, MOST_WAITING};
use crate::error::Error;
use crate::generate::{LogitsSession, SpeculativeSession};
use crate::memory::room;
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
    /// The model's draft heads, where it was opened with them.
    heads: Option<DraftHeads>,
    /// All tokens of the conversation, where there are heads.
    tokens: Vec<u32>,
    /// What the heads read of the last pass.
    rows: [Vec<f32>; 1],
}

impl ModelSession {
    /// An empty conversation. Prompts run in chunks of `chunk` tokens (0 = all at once); `cancel`
    /// ends whatever runs. If the model was opened with its draft heads, they follow.
    ///
    /// # Errors
    /// As [`Model::draft_session`]; [`Error::Allocation`] if the system refuses memory.
    pub fn new(model: Arc<Model>, chunk: usize, cancel: Cancel) -> Result<ModelSession, Error> {
        let session = model.session();
        let mut logits = Vec::new();
        room(&mut logits, model.vocabulary())?;
        let heads = DraftHeads::of(&model)?;
        let mut chunk = if chunk == 0 { usize::MAX } else { chunk };
        if heads.is_some() {
            // What the heads read of a chunk is held until they have read it.
            chunk = chunk.min(MOST_WAITING);
        }
        Ok(ModelSession {
            model,
            session,
            cancel,
            chunk,
            logits,
            pending: Vec::new(),
            pass: Vec::new(),
            heads,
            tokens: Vec::new(),
            rows: [Vec::new()],
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
    /// See [`Session::rewind`]. With draft heads it is one token less: the newest row of the heads
    /// holds the token behind it, which is taken for unchanged if it is read again.
    pub fn rewind(&mut self, tokens: usize) -> usize {
        if tokens >= self.position() {
            return self.position();
        }
        let tokens = match self.heads {
            Some(_) => tokens.saturating_sub(1),
            None => tokens,
        };
        match tokens.checked_sub(self.session.position()) {
            Some(pending) => self.pending.truncate(pending),
            None => {
                self.pending.clear();
                self.session.rewind(tokens);
            }
        }
        let kept = self.position();
        if let Some(heads) = &mut self.heads {
            heads.rewind(&self.tokens, kept);
            self.tokens.truncate(kept);
        }
        kept
    }

    /// Adds up to `count` guesses of the draft heads to `out`: what follows `next`, which follows
    /// what was read. Without heads there are none.
    pub(crate) fn draft(
        &mut self,
        next: u32,
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let Some(heads) = &mut self.heads else {
            return Ok(());
        };
        self.tokens.push(next);
        let result = heads.draft(&self.model, &self.tokens, count, out, &self.cancel);
        self.tokens.pop();
        result
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
        let before = match tokens.len() > self.chunk {
            true => {
                let heads = self.heads.as_ref().map(DraftHeads::mark).transpose()?;
                Some((self.session.checkpoint()?, heads, self.tokens.len()))
            }
            false => None,
        };
        let chunks = tokens.len().div_ceil(self.chunk);
        for (index, chunk) in tokens.chunks(self.chunk.min(tokens.len())).enumerate() {
            let logits = if index + 1 == chunks {
                last
            } else {
                Logits::None
            };
            if let Err(error) = self.step_once(chunk, logits) {
                if let Some((session, heads, known)) = &before {
                    self.session.restore(session)?;
                    self.tokens.truncate(*known);
                    if let (Some(heads), Some(mark)) = (&mut self.heads, heads) {
                        heads.restore(mark);
                    }
                }
                return Err(error);
            }
            self.catch_up();
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
        let Some(heads) = &mut self.heads else {
            return self.model.step(&mut [span], &self.cancel);
        };
        let start = span.session.position();
        self.model
            .step_for_draft(&mut [span], &mut self.rows, &self.cancel)?;
        // The first tokens may have been pending: known, and met before.
        let known = self.tokens.len();
        if let Some(&new) = tokens.get(known - start) {
            heads.meet(known, new);
            self.tokens.truncate(start);
            self.tokens.extend_from_slice(tokens);
        }
        heads.receive(start, &self.rows[0]);
        Ok(())
    }

    /// Lets the heads read what waits, if it is much; all of it must be there to stay.
    fn catch_up(&mut self) {
        if let Some(heads) = &mut self.heads {
            // What fails waits on, and fails again when a guess is asked for.
            let _ = heads.catch_up(&self.model, &self.tokens, &self.cancel);
        }
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
        let keep = self.session.position().saturating_sub(wrong);
        if self.session.truncate(keep).is_err() {
            self.session.undo()?;
            let right = self.pass.len().saturating_sub(wrong);
            self.pending.extend_from_slice(&self.pass[..right]);
        }
        let kept = self.position();
        if let Some(heads) = &mut self.heads {
            heads.keep(kept);
            self.tokens.truncate(kept);
        }
        self.catch_up();
        Ok(())
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }

    fn reads_again(&self) -> bool {
        self.session.overwrites()
    }
}
