//! From a conversation to the prompt, whoever writes it.
//!
//! Most checkpoints carry a Jinja template. Some carry a program instead, or nothing but the
//! control tokens of a published format; such formats are written here in code, under names of
//! their own. Which one a checkpoint has, its tokens say: a format is taken where the checkpoint
//! has no template and its tokenizer has every control token of the format. Nothing else is asked.

mod blocks;
mod dsml;
mod options;
mod prompt;
mod python;
mod tools;
mod xtml;

use std::borrow::Cow;

use crate::{ChatOptions, ChatTemplate, Error, Message, Tokenizer};
pub use blocks::Blocks;
pub use dsml::Dsml;
pub use prompt::{Prompt, Segment, SegmentKind};
pub use xtml::Xtml;

/// What writes the prompts of a checkpoint. Cheap to clone, shared between threads.
#[derive(Debug, Clone)]
pub enum Chat {
    /// The checkpoint's own Jinja template.
    Template(ChatTemplate),
    /// Turns between role tokens, tool calls in tags that begin with a token of their own.
    Dsml(Dsml),
    /// Tags between an opening, a closing and a separating token.
    Xtml(Xtml),
    /// Blocks of a role token, a content token, text and an end token.
    Blocks(Blocks),
}

impl Chat {
    /// The coded format whose control tokens `tokenizer` has; `None` where it has none's. `vendor`
    /// gives the vendor's program by its file name, where the checkpoint carries it.
    pub(crate) fn of_tokens(
        tokenizer: &Tokenizer,
        vendor: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let xtml = || Xtml::of(tokenizer).map(Chat::Xtml);
        let blocks = || Blocks::of(tokenizer).map(Chat::Blocks);
        Dsml::of(tokenizer, vendor)
            .map(Chat::Dsml)
            .or_else(xtml)
            .or_else(blocks)
    }

    /// The format in a word: `template`, `dsml`, `xtml` or `blocks`.
    pub fn format(&self) -> &'static str {
        match self {
            Chat::Template(_) => "template",
            Chat::Dsml(_) => "dsml",
            Chat::Xtml(_) => "xtml",
            Chat::Blocks(_) => "blocks",
        }
    }

    /// The template, where the checkpoint has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        match self {
            Chat::Template(template) => Some(template),
            _ => None,
        }
    }

    /// Whether a variable of this name in [`ChatOptions::variables`] can change a prompt. A coded
    /// format refuses the ones it does not know; a template passes over them, so ask first.
    pub fn reads(&self, variable: &str) -> bool {
        match self {
            Chat::Template(template) => template.reads(variable),
            Chat::Dsml(_) => dsml::VARIABLES.contains(&variable),
            Chat::Xtml(_) => xtml::VARIABLES.contains(&variable),
            Chat::Blocks(_) => blocks::VARIABLES.contains(&variable),
        }
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// If the format or the template cannot express the conversation, or an option is unknown to
    /// it.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<Prompt, Error> {
        if self.template().is_none()
            && let Some(name) = &options.template
        {
            let cause = format!("there is no template `{name}`; the format is coded");
            return Err(Error::ChatOption { cause });
        }
        match self {
            Chat::Template(template) => {
                let messages = with_arguments(template, messages);
                template.render(&messages, options).map(Prompt::markup)
            }
            Chat::Dsml(dsml) => dsml.render(messages, options).map(Prompt::markup),
            Chat::Xtml(xtml) => xtml.render(messages, options),
            Chat::Blocks(blocks) => blocks.render(messages, options),
        }
    }
}

/// The messages as `template` takes them: arguments of tool calls as values, which is what
/// templates are written for, unless it asks itself whether they are text.
fn with_arguments<'a>(template: &ChatTemplate, messages: &'a [Message]) -> Cow<'a, [Message]> {
    let calls = messages
        .iter()
        .any(|message| !message.tool_calls().is_empty());
    if !calls || template.mentions("arguments is string") {
        return Cow::Borrowed(messages);
    }
    let mut messages = messages.to_vec();
    messages.iter_mut().for_each(Message::parse_arguments);
    Cow::Owned(messages)
}

/// A conversation that a format cannot express.
fn refuse(cause: impl Into<String>) -> Error {
    Error::ConversationRefused {
        cause: cause.into(),
    }
}

/// Whether `tokenizer` has every one of `tokens`.
fn has_all(tokenizer: &Tokenizer, tokens: &[&str]) -> bool {
    tokens
        .iter()
        .all(|token| tokenizer.token_id(token).is_some())
}
