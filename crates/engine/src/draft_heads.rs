//! The draft heads of one conversation: what they remember, how they catch up with the model, and
//! what they guess.
//!
//! A row of depth `j` at position `i` is *exact* if it was made from rows and tokens of the
//! conversation: from the main model's row `i` and the tokens up to `i + 1 + j`. Only exact rows
//! stay; those made from guesses are taken back as soon as the guesses are made. Rows that a depth
//! has not read yet wait in its queue, so that a head which is seldom asked catches up in few
//! passes.

use crate::cancel::Cancel;
use crate::error::Error;
use crate::generate::{Drafter, MOST_DRAFTS, Outlook, Sampler, Sampling};
use crate::memory::room;
use crate::model::Model;
use crate::model_session::ModelSession;
use crate::state::{Checkpoint, Session};
use crate::step::{Logits, Span};

/// Rows that may wait before the heads catch up unasked: they are memory.
pub(crate) const MOST_WAITING: usize = 512;

/// Drafts by the model's own heads, for sessions of a model that was opened with them
/// ([`Options::draft`](crate::Options::draft)). It guesses the token each head holds likeliest.
#[derive(Clone, Copy, Debug)]
pub struct DraftHead {
    /// Most tokens in a row.
    most: usize,
}

impl DraftHead {
    /// The heads of `model`.
    ///
    /// # Errors
    /// [`Error::NoDraft`] if it has none or was opened without them.
    pub fn new(model: &Model) -> Result<DraftHead, Error> {
        // Asking for a session tells why there is none.
        let _ = model.draft_session(0)?;
        let most = model.draft().map_or(0, |draft| match draft.recycles {
            true => MOST_DRAFTS,
            false => draft.depths.len(),
        });
        Ok(DraftHead { most })
    }
}

impl Drafter<ModelSession, Error> for DraftHead {
    fn outlook(&mut self, _: &[u32], most: usize) -> Option<Outlook> {
        Some(Outlook {
            grade: 0,
            tokens: most.min(self.most),
        })
    }

    fn draft(
        &mut self,
        session: &mut ModelSession,
        history: &[u32],
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        match history.last() {
            Some(&next) => session.draft(next, count, out),
            None => Ok(()),
        }
    }
}

/// One depth of the draft in one conversation.
struct Depth {
    /// Holds exact rows between calls.
    session: Session,
    /// Exact rows it reads next, `[rows, width]`, from the session's position on.
    queue: Vec<f32>,
}

/// The heads of one conversation.
pub(crate) struct DraftHeads {
    depths: Vec<Depth>,
    /// Whether the only depth goes on from the rows it wrote.
    recycles: bool,
    width: usize,
    greedy: Sampler,
    /// The main model's rows were received for the first so many tokens.
    received: usize,
    /// The token the newest row of the first depth was joined with, if the model has not read it.
    expected: Option<u32>,
    /// Whether rows are missing: nothing is drafted until the conversation starts again.
    cold: bool,
    logits: Vec<f32>,
    /// What the last step wrote.
    written: [Vec<f32>; 1],
}

/// A state of the heads to come back to.
pub(crate) struct HeadsMark {
    depths: Vec<(Checkpoint, Vec<f32>)>,
    received: usize,
    expected: Option<u32>,
    cold: bool,
}

impl DraftHeads {
    /// Those of `model`, if it was opened with any.
    pub(crate) fn of(model: &Model) -> Result<Option<DraftHeads>, Error> {
        let Some(draft) = model.draft() else {
            return Ok(None);
        };
        let depth = |index| {
            let session = model.draft_session(index)?;
            let queue = Vec::new();
            Ok(Depth { session, queue })
        };
        let depths: Vec<Depth> = (0..draft.depths.len())
            .map(depth)
            .collect::<Result<_, Error>>()?;
        let greedy = Sampler::new(Sampling::greedy(), model.vocabulary(), 0, 0);
        Ok(Some(DraftHeads {
            recycles: draft.recycles && depths.len() == 1,
            depths,
            width: model.program().boundary.width,
            greedy: greedy.map_err(|error| Error::Setting {
                name: "sampling of drafts",
                message: error.to_string(),
            })?,
            received: 0,
            expected: None,
            cold: false,
            logits: Vec::new(),
            written: [Vec::new()],
        }))
    }

    /// The model is about to read `token` after `position` tokens.
    pub(crate) fn meet(&mut self, position: usize, token: u32) {
        let joined = self.depths[0].session.position() == position;
        if joined && self.expected.is_some_and(|expected| expected != token) {
            self.cold = true;
        }
    }

    /// The model's rows of the tokens from `start` on. Those received before are the same again.
    pub(crate) fn receive(&mut self, start: usize, rows: &[f32]) {
        let known = self.received.saturating_sub(start) * self.width;
        if self.cold || start > self.received || known >= rows.len() {
            self.cold |= start > self.received;
            return;
        }
        let queue = &mut self.depths[0].queue;
        if room(queue, rows.len() - known).is_err() {
            // Without memory for guesses there are none, and the conversation goes on.
            self.cold = true;
            return;
        }
        queue.extend_from_slice(&rows[known..]);
        self.received = start + rows.len() / self.width;
    }

    /// Only the first `tokens` tokens are part of the conversation, all but those of the last pass.
    pub(crate) fn keep(&mut self, tokens: usize) {
        let wrong = self.received.saturating_sub(tokens) * self.width;
        let queue = &mut self.depths[0].queue;
        match queue.len().checked_sub(wrong) {
            Some(right) => queue.truncate(right),
            None => self.cold = true,
        }
        self.received = self.received.min(tokens);
    }

    /// Follows the conversation back to its first `kept` of `tokens`, of which the next one is
    /// going to be read again.
    pub(crate) fn rewind(&mut self, tokens: &[u32], kept: usize) {
        if kept == 0 {
            for depth in &mut self.depths {
                depth.session.rewind(0);
                depth.queue.clear();
            }
            (self.received, self.expected, self.cold) = (0, None, false);
            return;
        }
        if self.depths[0].session.position() <= kept {
            return self.keep(kept);
        }
        let [depth] = &mut self.depths[..] else {
            self.cold = true;
            return;
        };
        self.cold |= depth.session.truncate(kept).is_err();
        depth.queue.clear();
        self.received = kept;
        self.expected = tokens.get(kept).copied();
    }

    /// # Errors
    /// As [`Session::checkpoint`].
    pub(crate) fn mark(&self) -> Result<HeadsMark, Error> {
        let state = |depth: &Depth| Ok((depth.session.checkpoint()?, depth.queue.clone()));
        let depths = self.depths.iter().map(state);
        Ok(HeadsMark {
            depths: depths.collect::<Result<_, Error>>()?,
            received: self.received,
            expected: self.expected,
            cold: self.cold,
        })
    }

    pub(crate) fn restore(&mut self, mark: &HeadsMark) {
        (self.received, self.expected, self.cold) = (mark.received, mark.expected, mark.cold);
        for (depth, (checkpoint, queue)) in self.depths.iter_mut().zip(&mark.depths) {
            self.cold |= depth.session.restore(checkpoint).is_err();
            depth.queue.clone_from(queue);
        }
    }

    /// Reads what waits, if it is much. `tokens` are all tokens of the conversation.
    ///
    /// # Errors
    /// As [`Model::draft_step`]; what has not been read waits on.
    pub(crate) fn catch_up(
        &mut self,
        model: &Model,
        tokens: &[u32],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let much = MOST_WAITING * self.width;
        for index in 0..self.depths.len() {
            if self.depths[index].queue.len() >= much && !self.cold {
                self.read(model, index, tokens, Logits::None, cancel)?;
            }
        }
        Ok(())
    }

    /// Reads the rows of depth `index` that can be joined with `tokens`; how many that were.
    fn read(
        &mut self,
        model: &Model,
        index: usize,
        tokens: &[u32],
        logits: Logits,
        cancel: &Cancel,
    ) -> Result<usize, Error> {
        let depth = &mut self.depths[index];
        let start = depth.session.position();
        let joined = tokens.get(start + 1 + index..).unwrap_or_default();
        let count = joined.len().min(depth.queue.len() / self.width);
        if count == 0 {
            return Ok(0);
        }
        let span = Span {
            session: &mut depth.session,
            tokens: &joined[..count],
            logits,
            out: &mut self.logits,
        };
        let rows = &depth.queue[..count * self.width];
        model.draft_step(index, &mut [span], &[rows], &mut self.written, cancel)?;
        depth.queue.drain(..count * self.width);
        if let Some(next) = self.depths.get_mut(index + 1) {
            next.queue.extend_from_slice(&self.written[0]);
        }
        Ok(count)
    }

    /// Reads `rows` joined with guesses, at the end of depth `index`.
    fn guess_on(
        &mut self,
        model: &Model,
        index: usize,
        guesses: &[u32],
        rows: &[f32],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let span = Span {
            session: &mut self.depths[index].session,
            tokens: guesses,
            logits: Logits::Last,
            out: &mut self.logits,
        };
        model.draft_step(index, &mut [span], &[rows], &mut self.written, cancel)
    }

    /// The token the last step holds likeliest.
    fn likeliest(&mut self) -> Result<u32, Error> {
        let chosen = self.greedy.sample(&self.logits);
        chosen.map_err(|_| Error::NonFinite {
            place: "in the logits of a draft head".to_owned(),
        })
    }

    /// Adds up to `count` guesses of what follows `tokens`, of which the model has read all but the
    /// last, to `out`.
    ///
    /// # Errors
    /// As [`Model::draft_step`].
    pub(crate) fn draft(
        &mut self,
        model: &Model,
        tokens: &[u32],
        count: usize,
        out: &mut Vec<u32>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        if self.cold || count == 0 || self.received + 1 != tokens.len() {
            return Ok(());
        }
        if self.read(model, 0, tokens, Logits::Last, cancel)? == 0 {
            return Ok(());
        }
        self.expected = tokens.last().copied();
        let first = out.len();
        out.push(self.likeliest()?);
        match self.recycles {
            true => self.recycle(model, count, first, out, cancel),
            false => self.descend(model, tokens, count, first, out, cancel),
        }
    }

    /// Guesses on from the only depth's own rows.
    fn recycle(
        &mut self,
        model: &Model,
        count: usize,
        first: usize,
        out: &mut Vec<u32>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        if count < 2 {
            return Ok(());
        }
        let exact = self.depths[0].session.position();
        let room = self.depths[0].session.context() - exact;
        let mark = self.depths[0].session.mark_if_overwritten()?;
        let mut result = Ok(());
        while out.len() - first < count.min(1 + room) && result.is_ok() {
            let last = self.written[0].len() - self.width;
            let row = self.written[0][last..].to_vec();
            let guess = [out[out.len() - 1]];
            result = self
                .guess_on(model, 0, &guess, &row, cancel)
                .and_then(|()| self.likeliest())
                .map(|token| out.push(token));
        }
        let session = &mut self.depths[0].session;
        match mark {
            None => session.truncate(exact)?,
            Some(mark) => session.restore(&mark)?,
        }
        result
    }

    /// Guesses on with the depths behind the first, each of which follows once.
    fn descend(
        &mut self,
        model: &Model,
        tokens: &[u32],
        count: usize,
        first: usize,
        out: &mut Vec<u32>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        // What the depth before has made of guesses.
        let mut guessed: Vec<f32> = Vec::new();
        for index in 1..count.min(self.depths.len()) {
            self.read(model, index, tokens, Logits::None, cancel)?;
            // One exact row is left; the first guess is the token it is joined with.
            let rows = [&self.depths[index].queue[..], &guessed].concat();
            let guesses = &out[first..];
            if rows.len() != guesses.len() * self.width {
                return Ok(());
            }
            self.guess_on(model, index, guesses, &rows, cancel)?;
            self.depths[index].session.undo()?;
            guessed.clone_from(&self.written[0]);
            out.push(self.likeliest()?);
        }
        Ok(())
    }
}
