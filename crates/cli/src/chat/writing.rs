//! An answer being written: tokens in, events out.

use super::conversation::End;
use lamella_engine::generate::{FinishReason, Token};
use lamella_text::{Answer, AnswerEvent, AnswerStream};
use std::ops::ControlFlow;
use std::time::Instant;

/// What is told of an answer as it comes.
pub(crate) type OnEvent<'a> = &'a mut dyn FnMut(&AnswerEvent) -> anyhow::Result<()>;

/// An answer being written.
pub(super) struct Writing<'a> {
    stream: AnswerStream,
    on_event: OnEvent<'a>,
    /// Tokens so far, without the stop token.
    pub(super) ids: Vec<u32>,
    /// When the first token came.
    pub(super) first: Option<Instant>,
    failed: Option<anyhow::Error>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(stream: AnswerStream, on_event: OnEvent<'a>) -> Writing<'a> {
        Writing {
            stream,
            on_event,
            ids: Vec::new(),
            first: None,
            failed: None,
        }
    }

    /// Takes the next token; breaks where the answer ends or cannot be told.
    pub(super) fn token(&mut self, token: Token<'_>) -> ControlFlow<()> {
        self.first.get_or_insert_with(Instant::now);
        self.ids.push(token.id);
        let events = self.stream.push(token.id);
        self.failed = events.iter().try_for_each(&mut self.on_event).err();
        if self.failed.is_some() || self.stream.stopped() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Tells what was held back.
    ///
    /// # Errors
    /// If it cannot be told, or something before could not.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        let events = self.stream.finish();
        match self.failed.take() {
            Some(error) => Err(error),
            None => events.iter().try_for_each(&mut self.on_event),
        }
    }

    /// Why it ended, if generation ended for `reason`.
    pub(super) fn end(&self, reason: FinishReason) -> End {
        match reason {
            _ if self.stream.stopped() => End::StopString,
            FinishReason::Stop { .. } => End::Stop,
            FinishReason::Length | FinishReason::Halted => End::Length,
        }
    }

    /// What was said, and its tokens.
    pub(super) fn said(self) -> (Answer, Vec<u32>) {
        (self.stream.into_answer(), self.ids)
    }
}
