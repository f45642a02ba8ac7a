//! What was said, and the next answer.

use super::drafts::{Drafting, Drafts};
use super::writing::{OnEvent, Writing};
use crate::failure::Failure;
use crate::model;
use lamella_engine::generate::{
    GenerateError, GenerateOptions, LogitsSession, Sampling, SpeculationStats, Token, generate,
    generate_speculating,
};
use lamella_engine::{Error, ModelSession};
use lamella_text::{AnswerStream, Bundle, ChatOptions, Message, StopStrings};
use std::time::{Duration, Instant};

/// A conversation, and how much of it the model has read.
pub(crate) struct Conversation {
    bundle: Bundle,
    session: ModelSession,
    /// Tokens in the session: what they share with the next prompt is not read again.
    read: Vec<u32>,
    drafts: Drafts,
    messages: Vec<Message>,
}

/// What an answer may be.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: StopStrings,
    pub(crate) sampling: Sampling,
    pub(crate) seed: u64,
    pub(crate) drafting: Drafting,
    pub(crate) prompt: ChatOptions,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The model ended it.
    Stop,
    /// A stop string appeared.
    StopString,
    /// The budget or the context is used up.
    Length,
    /// The person stopped it.
    Interrupted,
}

impl End {
    /// The name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            End::Stop => "stop",
            End::StopString => "stop_string",
            End::Length => "length",
            End::Interrupted => "interrupted",
        }
    }
}

/// An answer and what it took.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// What was said: reasoning, content, calls.
    pub(crate) said: lamella_text::Answer,
    /// Tokens generated, without the stop token.
    pub(crate) ids: Vec<u32>,
    pub(crate) end: End,
    pub(crate) prompt_tokens: usize,
    /// Of these, already read in an earlier turn.
    pub(crate) cached_tokens: usize,
    pub(crate) prompt_time: Duration,
    pub(crate) decode_time: Duration,
    /// Tokens decoded in that time.
    pub(crate) decoded_tokens: usize,
    /// What became of drafts; `None` where nobody drafts, or the answer was interrupted.
    pub(crate) speculation: Option<SpeculationStats>,
    pub(crate) seed: u64,
}

impl Conversation {
    pub(crate) fn new(bundle: Bundle, session: ModelSession, system: Option<&str>) -> Conversation {
        let messages = system.map(Message::system).into_iter().collect();
        Conversation {
            bundle,
            session,
            read: Vec::new(),
            drafts: Drafts::default(),
            messages,
        }
    }

    pub(crate) fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Adds what the person says.
    pub(crate) fn say(&mut self, text: &str) {
        self.messages.push(Message::user(text));
    }

    /// Takes back the last thing said and what came after; `false` if nothing was said.
    pub(crate) fn undo(&mut self) -> bool {
        let last = self.messages.iter().rposition(|m| m.role() == "user");
        last.is_some_and(|index| {
            self.messages.truncate(index);
            true
        })
    }

    /// Forgets everything but the system message.
    pub(crate) fn clear(&mut self) {
        self.messages.retain(|m| m.role() == "system");
    }

    /// Starts again under another system message.
    pub(crate) fn set_system(&mut self, text: Option<&str>) {
        self.messages = text.map(Message::system).into_iter().collect();
    }

    /// Answers what was said; `on_event` gets the answer as it comes. It becomes part of the
    /// conversation.
    ///
    /// # Errors
    /// If the template refuses the conversation, it does not fit the context, the model fails, or
    /// `on_event` does. The session then holds a prefix of what it held and read.
    pub(crate) fn answer(
        &mut self,
        asked: &Asked,
        on_event: OnEvent<'_>,
    ) -> anyhow::Result<Answer> {
        let (ids, stream) = self
            .prompt(asked)
            .map_err(|error| model::text_error(self.session.model().store().dir(), error))?;
        let answer = self.complete(&ids, stream, asked, on_event)?;
        self.messages.push(answer.said.message());
        Ok(answer)
    }

    /// The prompt's ids, and the stream for its answer.
    fn prompt(&self, asked: &Asked) -> Result<(Vec<u32>, AnswerStream), lamella_text::Error> {
        let prompt = self.bundle.chat()?.render(&self.messages, &asked.prompt)?;
        let stream = self.bundle.answer(&prompt, &asked.prompt, &asked.stop);
        Ok((prompt.ids(&self.bundle.tokenizer)?, stream))
    }

    /// Continues `text` as it stands, outside the conversation.
    ///
    /// # Errors
    /// As [`answer`](Conversation::answer).
    pub(crate) fn continue_text(
        &mut self,
        text: &str,
        asked: &Asked,
        on_event: OnEvent<'_>,
    ) -> anyhow::Result<Answer> {
        let prompt = self.bundle.tokenizer.encode(text, true)?;
        let stream = AnswerStream::plain(&self.bundle.tokenizer, &asked.stop);
        self.complete(&prompt, stream, asked, on_event)
    }

    fn complete(
        &mut self,
        prompt: &[u32],
        stream: AnswerStream,
        asked: &Asked,
        on_event: OnEvent<'_>,
    ) -> anyhow::Result<Answer> {
        let model = self.session.model();
        let tokenizer = &self.bundle.tokenizer;
        model::check_tokens(model.store().dir(), tokenizer, prompt, model.vocabulary())?;
        let cached = self.rewind(prompt);
        let options = GenerateOptions {
            max_tokens: asked.max_tokens.unwrap_or(usize::MAX),
            stop_tokens: self.bundle.stop_ids().to_vec(),
            sampling: asked.sampling.clone(),
            seed: asked.seed,
            earlier: prompt[..cached].to_vec(),
            ..GenerateOptions::default()
        };
        let mut writing = Writing::new(stream, on_event);
        let start = Instant::now();
        let drafts = self
            .drafts
            .speculator(asked.drafting, self.session.model())?;
        let (session, prompt_rest) = (&mut self.session, &prompt[cached..]);
        let mut receive = |token: Token<'_>| writing.token(token);
        let speculates = drafts.is_some();
        let result = match drafts {
            None => generate(session, prompt_rest, &options, &mut receive),
            Some(drafts) => {
                generate_speculating(session, prompt_rest, &options, drafts, &mut receive)
            }
        };
        let finished = writing.finish();
        self.read = prompt.iter().chain(&writing.ids).copied().collect();
        self.read.truncate(self.session.position());
        finished?;
        let mut answer = Answer {
            end: End::Interrupted,
            prompt_tokens: prompt.len(),
            cached_tokens: cached,
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
            decoded_tokens: writing.ids.len().saturating_sub(1),
            speculation: None,
            seed: asked.seed,
            said: lamella_text::Answer::default(),
            ids: Vec::new(),
        };
        match result {
            Ok(finish) => {
                answer.end = writing.end(finish.reason);
                answer.prompt_time = finish.prompt_time;
                answer.decode_time = finish.decode_time;
                answer.decoded_tokens = finish.decoded_tokens;
                answer.speculation = speculates.then_some(finish.speculation);
            }
            Err(GenerateError::Session(Error::Cancelled)) => {
                let total = start.elapsed();
                answer.prompt_time = writing.first.map_or(total, |first| first - start);
                answer.decode_time = total - answer.prompt_time;
            }
            Err(error) => return Err(failure(error)),
        }
        (answer.said, answer.ids) = writing.said();
        Ok(answer)
    }

    /// Takes the session back to what it shares with `prompt`, leaving at least one token to read.
    /// The bits are those of reading all of it again.
    fn rewind(&mut self, prompt: &[u32]) -> usize {
        let shared = self
            .read
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let keep = shared.min(prompt.len().saturating_sub(1));
        let keep = self.session.rewind(keep);
        self.read.truncate(keep);
        keep
    }
}

/// The cause itself, so that its kind decides the exit code.
fn failure(error: GenerateError<Error>) -> anyhow::Error {
    match error {
        GenerateError::Session(error) => error.into(),
        GenerateError::Logits(error) => Failure::model(error.to_string()),
        GenerateError::Request(error) => Failure::usage(error.to_string()),
    }
}
