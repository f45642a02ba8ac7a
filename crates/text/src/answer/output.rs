//! What an answer is made of, as it comes and as a whole.

use serde_json::{Map, Value, json};

use crate::{Message, StopMatcher, StopStrings};

/// Something an answer goes on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerEvent {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what it says.
    Content(String),
    /// A tool call begins.
    CallBegun {
        /// Its number in the answer, from 0.
        index: usize,
        /// Its id, where the model gave one.
        id: Option<String>,
        /// The name of the tool.
        name: String,
    },
    /// More of the arguments of a call, as JSON text.
    CallArguments {
        /// The number of the call.
        index: usize,
        /// The text that comes next.
        text: String,
    },
    /// A call has ended.
    CallFinished {
        /// The number of the call.
        index: usize,
        /// The answer ended inside it, or it is not what the format says. Its arguments may be
        /// no JSON then.
        incomplete: bool,
    },
}

/// A tool call of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id, where the model gave one.
    pub id: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON text: an object, unless the call is incomplete, or the format allows
    /// the model to write a text of its own.
    pub arguments: String,
    /// The answer ended inside it, or it is not what the format says.
    pub incomplete: bool,
    /// An incomplete call as it was written, and where in the content it stood.
    written: Option<(usize, String)>,
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// What the model thought; empty where it did not.
    pub reasoning: String,
    /// What it said.
    pub content: String,
    /// What it called.
    pub calls: Vec<ToolCall>,
}

impl Answer {
    /// The answer as a message of the conversation, in the OpenAI shape: `content`,
    /// `reasoning_content` and `tool_calls` with arguments as JSON text, the latter two where there
    /// are any. Through the same format it becomes the tokens it was made of, wherever the format
    /// has only one way to write it.
    ///
    /// An incomplete call stands in the content as it was written: not every format could say it
    /// again as a call.
    pub fn message(&self) -> Message {
        let mut content = String::with_capacity(self.content.len());
        let mut done = 0;
        let mut calls = Vec::new();
        for call in &self.calls {
            if let Some((at, written)) = &call.written {
                content.push_str(self.content.get(done..*at).unwrap_or_default());
                content.push_str(written);
                done = *at;
            } else {
                let function = json!({"name": call.name, "arguments": call.arguments});
                let mut entry = Map::new();
                entry.extend(call.id.clone().map(|id| ("id".to_owned(), id.into())));
                entry.insert("type".into(), "function".into());
                entry.insert("function".into(), function);
                calls.push(Value::Object(entry));
            }
        }
        content.push_str(self.content.get(done..).unwrap_or_default());
        let reasoning = Some(&self.reasoning).filter(|text| !text.is_empty());
        let calls = Some(calls).filter(|calls| !calls.is_empty());
        Message::assistant(&content)
            .and(
                "reasoning_content",
                reasoning.map(|text| text.as_str().into()),
            )
            .and("tool_calls", calls.map(Value::from))
    }
}

/// Collects events and the whole at once, so that they cannot differ.
#[derive(Debug, Clone)]
pub(super) struct Output {
    events: Vec<AnswerEvent>,
    answer: Answer,
    matcher: StopMatcher,
}

impl Output {
    pub(super) fn new(stops: &StopStrings) -> Self {
        Self {
            events: Vec::new(),
            answer: Answer::default(),
            matcher: stops.matcher(),
        }
    }

    pub(super) fn answer(&self) -> &Answer {
        &self.answer
    }

    pub(super) fn into_answer(self) -> Answer {
        self.answer
    }

    pub(super) fn events(&self) -> &[AnswerEvent] {
        &self.events
    }

    pub(super) fn clear_events(&mut self) {
        self.events.clear();
    }

    pub(super) fn stop_string(&self) -> Option<&str> {
        self.matcher.matched()
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.answer.reasoning.push_str(text);
        match self.events.last_mut() {
            Some(AnswerEvent::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(AnswerEvent::Reasoning(text.into())),
        }
    }

    /// Content goes through the stop strings; what may become one is held back.
    pub(super) fn content(&mut self, text: &str) {
        let mut shown = String::new();
        self.matcher.push(text, &mut shown);
        self.show(&shown);
    }

    /// The content is interrupted, or ends: what is held back is no stop string.
    pub(super) fn content_ended(&mut self) {
        let mut shown = String::new();
        self.matcher.finish(&mut shown);
        self.show(&shown);
    }

    fn show(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.answer.content.push_str(text);
        match self.events.last_mut() {
            Some(AnswerEvent::Content(last)) => last.push_str(text),
            _ => self.events.push(AnswerEvent::Content(text.into())),
        }
    }

    /// A call begins; the ones after this are about it.
    pub(super) fn call(&mut self, name: &str, id: Option<&str>) {
        let (name, id) = (name.to_owned(), id.map(str::to_owned));
        self.events.push(AnswerEvent::CallBegun {
            index: self.answer.calls.len(),
            id: id.clone(),
            name: name.clone(),
        });
        self.answer.calls.push(ToolCall {
            id,
            name,
            arguments: String::new(),
            incomplete: false,
            written: None,
        });
    }

    pub(super) fn arguments(&mut self, text: &str) {
        let index = self.answer.calls.len().saturating_sub(1);
        let Some(call) = self.answer.calls.last_mut().filter(|_| !text.is_empty()) else {
            return;
        };
        call.arguments.push_str(text);
        match self.events.last_mut() {
            Some(AnswerEvent::CallArguments { text: last, .. }) => last.push_str(text),
            _ => {
                let text = text.to_owned();
                self.events.push(AnswerEvent::CallArguments { index, text });
            }
        }
    }

    /// The call has ended. `written` is an incomplete call as it stood in the answer.
    pub(super) fn call_ended(&mut self, written: Option<String>) {
        let index = self.answer.calls.len().saturating_sub(1);
        let at = self.answer.content.len();
        let incomplete = written.is_some();
        if let Some(call) = self.answer.calls.last_mut() {
            call.incomplete = incomplete;
            call.written = written.map(|written| (at, written));
        }
        self.events
            .push(AnswerEvent::CallFinished { index, incomplete });
    }
}
