//! Lines from a person at a terminal (edited, with history) or from a pipe.

use crate::files;
use crate::interrupt::Interrupt;
use anyhow::Context;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

const HISTORY_LINES: usize = 1000;

/// One line, or why there is none.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    Text(String),
    /// Ctrl-C; what had been typed in this line is gone.
    Interrupted,
    /// Bytes that are no UTF-8 were typed; what had been typed in this line is gone.
    Garbled,
    End,
}

/// Where the lines of a chat come from.
pub(crate) enum Lines {
    Terminal {
        editor: Box<DefaultEditor>,
        history: Option<PathBuf>,
        interrupt: Interrupt,
    },
    Pipe {
        interrupt: Interrupt,
    },
}

impl Lines {
    /// Standard input: with editing and history if it is a terminal. A signal during the wait for
    /// a line ends the program; Ctrl-C in an editor is a key and comes as [`Line::Interrupted`].
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub(crate) fn stdin(interrupt: &Interrupt) -> anyhow::Result<Lines> {
        let interrupt = interrupt.clone();
        if !io::stdin().is_terminal() {
            return Ok(Lines::Pipe { interrupt });
        }
        let settings = rustyline::Config::builder()
            .max_history_size(HISTORY_LINES)?
            .history_ignore_space(true)
            .build();
        let mut editor = DefaultEditor::with_config(settings).context("the terminal")?;
        let history = history_file();
        if let Some(path) = &history {
            // The first chat has none; an unreadable one is not worth refusing to chat.
            let _ = editor.load_history(path);
        }
        Ok(Lines::Terminal {
            editor: Box::new(editor),
            history,
            interrupt,
        })
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// If the input breaks.
    pub(crate) fn read(&mut self, prompt: &str) -> anyhow::Result<Line> {
        match self {
            Lines::Pipe { interrupt } => {
                let mut line = String::new();
                let read = interrupt.wait(|| io::stdin().read_line(&mut line));
                if read.context("standard input")? == 0 {
                    return Ok(Line::End);
                }
                let text = line.strip_suffix('\n').unwrap_or(&line);
                Ok(Line::Text(
                    text.strip_suffix('\r').unwrap_or(text).to_owned(),
                ))
            }
            Lines::Terminal {
                editor, interrupt, ..
            } => {
                // Ctrl-C just after an answer was meant for the answer.
                interrupt.reset();
                match interrupt.wait(|| editor.readline(prompt)) {
                    Ok(line) => Ok(Line::Text(line)),
                    Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                    Err(ReadlineError::Eof) => Ok(Line::End),
                    Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                        Ok(Line::Garbled)
                    }
                    Err(error) => Err(error).context("standard input"),
                }
            }
        }
    }

    /// Adds a message to the history, also of later chats.
    pub(crate) fn remember(&mut self, message: &str) {
        let Lines::Terminal {
            editor, history, ..
        } = self
        else {
            return;
        };
        let added = editor.add_history_entry(message).unwrap_or(false);
        if let (true, Some(path)) = (added, &history) {
            // Losing history is a pity, not a failure of the chat.
            let _ = editor.append_history(path);
        }
    }
}

/// The history file, created for its owner alone; `None` where there is no place for one.
fn history_file() -> Option<PathBuf> {
    let path = files::state_dir()?.join("history.txt");
    create_private(&path).ok().map(|()| path)
}

fn create_private(path: &Path) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        options.mode(0o600);
        let file = options.open(path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))
    }
    #[cfg(not(unix))]
    options.open(path).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_history_is_private_even_if_it_was_not() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/history.txt");
        create_private(&path).unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        create_private(&path).unwrap();
        assert_eq!(mode(), 0o600);
    }
}
