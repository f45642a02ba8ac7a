//! From text to token ids and back.
//!
//! [`Bundle`] loads what a checkpoint carries for this: the [`Tokenizer`], the [`Chat`] template or
//! format and the [`GenerationDefaults`]. A conversation is a list of [`Message`]s; the template
//! turns it into the [`Prompt`], the tokenizer turns the prompt into ids. Going back, a [`Decoder`]
//! works on bytes and shows only whole characters, and a [`TextStream`] adds [`StopStrings`]. An
//! [`AnswerStream`] also tells reasoning, content and tool calls apart and ends with the
//! [`Message`] for the conversation. One stream serves the streaming and the whole answer, so the
//! two cannot differ.
//!
//! Everything here comes from the checkpoint. Nothing is guessed from a family name, no template
//! is made up where the checkpoint has none and its tokens are those of no published format, and a
//! template or a tokenizer that is broken is an error that names the file. Checkpoint files are
//! hostile input: bounded, checked, no panic.
//!
//! This crate knows no weights, no kernels and no generation loop.

mod answer;
mod bundle;
mod chat;
mod decoder;
mod error;
mod generation;
mod json;
mod message;
mod stop;
mod stream;
mod template;
mod tokenizer;

pub use answer::{Answer, AnswerEvent, AnswerFormat, AnswerStream, ToolCall};
pub use bundle::{
    Bundle, CHAT_TEMPLATE_FILE, CONFIG_FILE, GENERATION_CONFIG_FILE, RANKS_FILE,
    SPECIAL_TOKENS_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE,
};
pub use chat::{Blocks, Chat, Dsml, Prompt, Segment, SegmentKind, Xtml};
pub use decoder::Decoder;
pub use error::Error;
pub use generation::GenerationDefaults;
pub use message::{Message, messages_from_json};
pub use stop::{StopMatcher, StopStrings};
pub use stream::TextStream;
pub use template::{ChatOptions, ChatTemplate, Clock, DateTime, NamedTemplate, SpecialTokens};
pub use tokenizer::{MAX_TEXT_BYTES, Tokenizer};
