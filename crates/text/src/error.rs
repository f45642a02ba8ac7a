//! What can go wrong between text and ids, said so that the reader knows which file to look at.

/// An error of this crate. Load errors name the file and the place in it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file the checkpoint must carry is not there.
    #[error("{file} is missing: {hint}")]
    Missing {
        /// The missing file.
        file: String,
        /// What to do about it.
        hint: String,
    },
    /// A file is not what its name says at all: empty, a Git LFS pointer, zeros.
    #[error("{file}: {cause}")]
    File {
        /// The damaged file.
        file: String,
        /// What it looks like instead.
        cause: String,
    },
    /// A file is not valid JSON, or a part of it has the wrong shape.
    #[error("{file}, line {line}, column {column}: {cause}")]
    Json {
        /// The damaged file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser expected.
        cause: String,
    },
    /// A key has a value of the wrong type or outside its range.
    #[error("{file}: `{key}`: {cause}")]
    Field {
        /// The file.
        file: String,
        /// Path of the key inside the file.
        key: String,
        /// What is wrong with the value.
        cause: String,
    },
    /// The chat template does not parse. The model cannot be chatted with until it does.
    #[error("{file}, line {line}: the chat template does not parse: {cause}")]
    TemplateSyntax {
        /// The file (and the name of the template, where it holds several).
        file: String,
        /// Line in the template, from 1.
        line: usize,
        /// What the parser expected.
        cause: String,
    },
    /// The chat template parsed, but failed on this conversation.
    #[error("{file}, line {line}: the chat template failed on this conversation: {cause}")]
    TemplateRender {
        /// The file (and the name of the template, where it holds several).
        file: String,
        /// Line in the template, from 1 (0 where unknown).
        line: usize,
        /// What failed.
        cause: String,
    },
    /// The operating system refused the thread that templates run on.
    #[error(
        "the chat template needs a thread, which the system refused: {cause}; raise this process's \
         limits (ulimit -u, ulimit -v, pids.max of its control group)"
    )]
    Thread {
        /// The system's answer.
        cause: String,
    },
    /// The template itself refused the conversation, through `raise_exception`.
    #[error("the chat template refuses this conversation: {cause}")]
    ConversationRefused {
        /// The template's own words.
        cause: String,
    },
    /// An option that the chat format does not have, or not with this value.
    #[error("chat options: {cause}")]
    ChatOption {
        /// Which option, and what is wrong.
        cause: String,
    },
    /// A chat was asked of a checkpoint that carries no template.
    #[error(
        "the checkpoint carries no chat template (no chat_template.jinja, no `chat_template` in \
         tokenizer_config.json) and its tokenizer has the control tokens of no known format, so \
         it is no chat model as it stands: use a plain prompt, or put the template the model was \
         trained with into chat_template.jinja"
    )]
    NoChatTemplate,
    /// A message is not of the shape a chat message has.
    #[error("messages[{index}]: {cause}")]
    Message {
        /// Position in the list, from 0.
        index: usize,
        /// What is wrong with it.
        cause: String,
    },
    /// A stop string is empty or there are too many.
    #[error("stop strings: {cause}")]
    Stop {
        /// What is wrong.
        cause: String,
    },
    /// A text is longer than this crate tokenises in one piece.
    #[error("the text has {length} bytes, the limit is {limit}")]
    TextTooLong {
        /// Bytes given.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The tokenizer failed on a text.
    #[error("the tokenizer failed on this text: {cause}")]
    Encode {
        /// What it said.
        cause: String,
    },
}

impl Error {
    pub(crate) fn field(file: &str, key: &str, cause: impl Into<String>) -> Self {
        Error::Field {
            file: file.into(),
            key: key.into(),
            cause: cause.into(),
        }
    }
}
