//! Exit codes, and the one line that explains them.

use crate::terminal;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// What kind of failure ends the program: its exit code is part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anything without a code of its own.
    Failure = 1,
    /// Wrong arguments or configuration.
    Usage = 2,
    /// The model has defects or is damaged.
    Model = 3,
    /// Not enough memory, disk space or threads.
    Resources = 4,
    /// Stopped by the user.
    Interrupted = 130,
}

/// A failure whose kind the command itself knows.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
        Failure::new(Kind::Usage, message).into()
    }

    pub(crate) fn model(message: impl Into<String>) -> anyhow::Error {
        Failure::new(Kind::Model, message).into()
    }

    /// The system has refused the thread that `what` needs.
    pub(crate) fn thread(what: &str, cause: &io::Error) -> anyhow::Error {
        let cure = "raise this process's limits (ulimit -u, ulimit -v, pids.max of its control \
                    group)";
        let message = format!("the system refused a thread for {what}: {cause}; {cure}");
        Failure::new(Kind::Resources, message).into()
    }

    pub(crate) fn interrupted() -> anyhow::Error {
        Failure::new(Kind::Interrupted, "interrupted").into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints `error` as one line on standard error. A reader that went away is no failure.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let line = one_line(&format!("{error:#}{}", options_for(error)));
    // Nothing is left to do if standard error is closed too.
    let _ = writeln!(io::stderr().lock(), "lamella: {line}");
    ExitCode::from(kind(error) as u8)
}

/// The options behind the words of an engine that knows no command line.
fn options_for(error: &anyhow::Error) -> Cow<'static, str> {
    use lamella_engine::Error;
    let found = error.chain().find_map(|cause| cause.downcast_ref());
    match found {
        Some(Error::Memory { advice, .. }) if !advice.contains("--") => {
            " (`lamella convert`, --context, --memory)".into()
        }
        Some(Error::EncodingUnavailable { want, .. }) => {
            format!(" (`lamella convert --encoding {want}`, --encoding, --source)").into()
        }
        _ => "".into(),
    }
}

/// Longest word of an error line and longest line, in characters: paths are seldom longer, and the
/// names in a file can have any length.
const WORD: usize = 512;
const LINE: usize = 8192;

/// White space of every kind is one space, nothing drives the terminal, and what is long is cut:
/// messages quote what files contain.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().map(|word| cut(word, WORD));
    let line = words.collect::<Vec<_>>().join(" ");
    terminal::plain(&cut(&line, LINE))
}

/// `text`, with its middle left out if it has more than `most` characters.
fn cut(text: &str, most: usize) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= most {
        return text.into();
    }
    let (head, tail) = (most / 4 * 3, most / 8);
    let at = |index: usize| text.char_indices().nth(index).map_or(0, |(at, _)| at);
    let (head, tail, left_out) = (at(head), at(count - tail), count - head - tail);
    let (head, tail) = (&text[..head], &text[tail..]);
    format!("{head}…({left_out} characters cut)…{tail}").into()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

fn kind(error: &anyhow::Error) -> Kind {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.kind;
        }
        if let Some(error) = cause.downcast_ref::<lamella_engine::Error>() {
            return engine_kind(error);
        }
        if let Some(error) = cause.downcast_ref::<lamella_container::Error>() {
            return container_kind(error);
        }
        if let Some(error) = cause.downcast_ref::<lamella_text::Error>() {
            return text_kind(error);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return match error.kind() {
                // What was given to read is no text.
                io::ErrorKind::InvalidData => Kind::Usage,
                _ => io_kind(error),
            };
        }
    }
    Kind::Failure
}

fn engine_kind(error: &lamella_engine::Error) -> Kind {
    use lamella_engine::Error;
    match error {
        Error::Container(error) => container_kind(error),
        Error::Expert { cause, .. } => engine_kind(cause),
        Error::Memory { .. } | Error::Allocation { .. } | Error::Threads { .. } => Kind::Resources,
        Error::Isa { .. }
        | Error::Setting { .. }
        | Error::NoDraft { .. }
        | Error::EncodingUnavailable { .. }
        | Error::TokenRange { .. }
        | Error::ContextLength { .. }
        | Error::EmptySpan => Kind::Usage,
        Error::NonFinite { .. }
        | Error::Codec { .. }
        | Error::Table { .. }
        | Error::Unpaired { .. } => Kind::Model,
        Error::Cancelled => Kind::Interrupted,
        _ => Kind::Failure,
    }
}

fn container_kind(error: &lamella_container::Error) -> Kind {
    use lamella_container::Error;
    match error {
        Error::Io { cause, .. } => io_kind(cause),
        Error::NotFound(_) | Error::NotADirectory(_) => Kind::Failure,
        Error::NotStored { .. } | Error::Buffer { .. } => Kind::Failure,
        Error::Convert(error) => convert_kind(error),
        _ => Kind::Model,
    }
}

fn convert_kind(error: &lamella_container::ConvertError) -> Kind {
    use lamella_container::ConvertError;
    match error {
        ConvertError::NoSpace { .. } | ConvertError::DiskFull(_) => Kind::Resources,
        ConvertError::Cancelled(_) => Kind::Interrupted,
        ConvertError::NoCanonical { .. } => Kind::Usage,
        ConvertError::Unrecordable(_) => Kind::Model,
        _ => Kind::Failure,
    }
}

fn text_kind(error: &lamella_text::Error) -> Kind {
    match error {
        lamella_text::Error::ChatOption { .. } => Kind::Usage,
        lamella_text::Error::Thread { .. } => Kind::Resources,
        _ => Kind::Model,
    }
}

fn io_kind(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
            Kind::Resources
        }
        _ => Kind::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_first_cause_with_a_kind_decides() {
        let error = Err::<(), _>(Failure::usage("no such key")).context("lamella.toml");
        assert_eq!(kind(&error.unwrap_err()), Kind::Usage);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(
            kind(&anyhow::Error::from(full).context("x.f32")),
            Kind::Resources
        );
        assert_eq!(kind(&anyhow::anyhow!("something")), Kind::Failure);
        let garbled = io::Error::from(io::ErrorKind::InvalidData);
        let garbled = anyhow::Error::from(garbled).context("standard input");
        assert_eq!(kind(&garbled), Kind::Usage);
        assert_eq!(
            kind(&lamella_engine::Error::Cancelled.into()),
            Kind::Interrupted
        );
    }

    #[test]
    fn a_reader_that_left_is_found_under_context() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&error.context("standard output")));
    }

    #[test]
    fn messages_are_one_clean_line() {
        assert_eq!(one_line("a:\n  b\x1b[31m\tc"), "a: b\\u{1b}[31m c");
    }

    #[test]
    fn long_names_are_cut_and_say_so() {
        let path = "é".repeat(WORD);
        assert_eq!(one_line(&path), path);
        let line = one_line(&format!("a: tensor {}xyz: is absent", "é".repeat(1 << 20)));
        assert!(line.starts_with("a: tensor éé") && line.ends_with("ééxyz: is absent"));
        let cut = (1 << 20) + 4 - WORD / 4 * 3 - WORD / 8;
        assert!(
            line.contains(&format!("…({cut} characters cut)…")),
            "{line}"
        );
        assert!(one_line(&"word ".repeat(1 << 20)).chars().count() < LINE);
    }
}
