//! From token ids to what an answer says: reasoning, content, tool calls.
//!
//! One state machine for all formats; what differs is in `table.rs`. It begins where the prompt
//! has led, goes on by units (`alphabet.rs`) and holds back what may become a marker, as stop
//! strings are held back. The events joined are the whole answer: both come from the same steps.
//!
//! - Reasoning is recognised where the prompt opened it or at the beginning of the answer, and ends
//!   at its marker. Markers of calls inside it are reasoning.
//! - What looks like a call and is none comes out as content, as it was written. A call that has
//!   begun and is cut off, or breaks its format, is reported as incomplete.
//! - A parameter's value ends at its marker only where something follows that may follow a
//!   value: markers quoted in it are text.
//! - Stop strings apply to content: what a model thinks and which tools it calls does not stop it.

mod alphabet;
mod call;
mod format;
mod json_call;
mod machine;
mod output;
mod table;
mod value;

use std::sync::Arc;

use crate::{Decoder, Prompt, StopStrings, Tokenizer};
pub use format::AnswerFormat;
use machine::Machine;
use output::Output;
pub use output::{Answer, AnswerEvent, ToolCall};
use serde_json::Value;
use value::Declared;

/// One answer, token by token: a [`Decoder`], the machine of an [`AnswerFormat`], and
/// [`StopStrings`] on the content.
#[derive(Debug, Clone)]
pub struct AnswerStream {
    decoder: Decoder,
    machine: Machine,
    decoded: String,
}

impl AnswerStream {
    /// A stream for the answer to `prompt`. `tools` are the declarations the prompt was given, in
    /// the OpenAI shape: formats that write every value as text take its type from them.
    pub fn new(
        tokenizer: &Tokenizer,
        format: &AnswerFormat,
        prompt: &Prompt,
        tools: &[Value],
        stops: &StopStrings,
    ) -> Self {
        let place = format.inner().place_after(prompt);
        Self::at(tokenizer, format, place, tools, stops)
    }

    /// A stream for text that goes on without a chat: content and nothing else.
    pub fn plain(tokenizer: &Tokenizer, stops: &StopStrings) -> Self {
        let format = AnswerFormat::plain(tokenizer);
        Self::at(tokenizer, &format, format.inner().start, &[], stops)
    }

    fn at(
        tokenizer: &Tokenizer,
        format: &AnswerFormat,
        place: table::Place,
        tools: &[Value],
        stops: &StopStrings,
    ) -> Self {
        let declared = Arc::new(Declared::new(tools));
        let format = Arc::clone(format.inner());
        Self {
            decoder: Decoder::new(tokenizer, false),
            machine: Machine::new(format, declared, place, Output::new(stops)),
            decoded: String::new(),
        }
    }

    /// Takes the next id and returns what may be told now, often nothing. After a stop string
    /// nothing comes any more; ask [`AnswerStream::stopped`].
    pub fn push(&mut self, id: u32) -> &[AnswerEvent] {
        self.machine.output.clear_events();
        self.decoded.clear();
        match self.machine.format.alphabet.unit(id) {
            None => self.decoder.push(id, &mut self.decoded),
            Some(_) => self.decoder.end_character(&mut self.decoded),
        }
        let unit = self.machine.format.alphabet.unit(id);
        self.machine.feed(self.decoded.as_bytes());
        self.machine.feed(unit.as_slice());
        self.machine.output.events()
    }

    /// Ends the answer and returns what was held back. A call that is still open is incomplete.
    pub fn finish(&mut self) -> &[AnswerEvent] {
        self.machine.output.clear_events();
        self.decoded.clear();
        self.decoder.finish(&mut self.decoded);
        self.machine.feed(self.decoded.as_bytes());
        self.machine.finish();
        self.machine.output.events()
    }

    /// Whether a stop string ended the answer.
    pub fn stopped(&self) -> bool {
        self.stop_string().is_some()
    }

    /// The stop string that ended the answer.
    pub fn stop_string(&self) -> Option<&str> {
        self.machine.output.stop_string()
    }

    /// The answer so far; whole after [`AnswerStream::finish`].
    pub fn answer(&self) -> &Answer {
        self.machine.output.answer()
    }

    /// The answer; whole after [`AnswerStream::finish`].
    pub fn into_answer(self) -> Answer {
        self.machine.output.into_answer()
    }

    /// The whole answer of `ids`.
    pub fn whole(mut self, ids: &[u32]) -> Answer {
        for &id in ids {
            self.push(id);
        }
        self.finish();
        self.into_answer()
    }
}
