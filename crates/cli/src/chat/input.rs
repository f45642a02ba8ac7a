//! From lines to messages: continued lines and blocks.

use super::lines::{Line, Lines};

const PROMPT: &str = ">>> ";
const CONTINUED: &str = "... ";
const FENCE: &str = "\"\"\"";

/// What a person entered.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    Text(String),
    /// Ctrl-C in a later line of a message: it is dropped.
    Abandoned,
    /// Ctrl-C in its first line.
    Interrupted,
    /// What was entered is no text.
    Garbled,
    End,
}

/// Where lines come from.
pub(super) trait Source {
    /// The next line, without its end.
    ///
    /// # Errors
    /// If the input breaks.
    fn next(&mut self, prompt: &str) -> anyhow::Result<Line>;
}

impl Source for Lines {
    fn next(&mut self, prompt: &str) -> anyhow::Result<Line> {
        self.read(prompt)
    }
}

/// Reads one message: a line; or lines as long as they end with a backslash; or everything between
/// two fences of `"""`.
///
/// # Errors
/// If the input breaks.
pub(super) fn message(source: &mut dyn Source) -> anyhow::Result<Message> {
    let first = match source.next(PROMPT)? {
        Line::Text(text) => text,
        Line::Interrupted => return Ok(Message::Interrupted),
        Line::Garbled => return Ok(Message::Garbled),
        Line::End => return Ok(Message::End),
    };
    match first.trim_start().strip_prefix(FENCE) {
        Some(rest) => block(rest, source),
        None => continued(first, source),
    }
}

fn continued(mut text: String, source: &mut dyn Source) -> anyhow::Result<Message> {
    while text.ends_with('\\') {
        text.pop();
        text.push('\n');
        match source.next(CONTINUED)? {
            Line::Text(more) => text.push_str(&more),
            Line::Interrupted => return Ok(Message::Abandoned),
            Line::Garbled => return Ok(Message::Garbled),
            Line::End => break,
        }
    }
    Ok(Message::Text(text))
}

fn block(first: &str, source: &mut dyn Source) -> anyhow::Result<Message> {
    if let Some((inside, _)) = first.split_once(FENCE) {
        return Ok(Message::Text(inside.to_owned()));
    }
    let mut lines = Vec::new();
    if !first.is_empty() {
        lines.push(first.to_owned());
    }
    loop {
        let line = match source.next(CONTINUED)? {
            Line::Text(line) => line,
            Line::Interrupted => return Ok(Message::Abandoned),
            Line::Garbled => return Ok(Message::Garbled),
            Line::End => break,
        };
        if let Some((last, _)) = line.split_once(FENCE) {
            if !last.is_empty() {
                lines.push(last.to_owned());
            }
            break;
        }
        lines.push(line);
    }
    Ok(Message::Text(lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Script(Vec<Line>);

    impl Source for Script {
        fn next(&mut self, _: &str) -> anyhow::Result<Line> {
            Ok(if self.0.is_empty() {
                Line::End
            } else {
                self.0.remove(0)
            })
        }
    }

    fn read(lines: &[&str]) -> Message {
        let lines = lines.iter().map(|line| match *line {
            "^C" => Line::Interrupted,
            text => Line::Text(text.to_owned()),
        });
        message(&mut Script(lines.collect())).unwrap()
    }

    #[test]
    fn messages_span_lines() {
        let cases: [(&[&str], &str); 8] = [
            (&["hello"], "hello"),
            (&["a\\", "b"], "a\nb"),
            (&["a\\", "b\\", ""], "a\nb\n"),
            (&["a\\"], "a\n"),
            (&["\"\"\"", "a", "", " b", "\"\"\""], "a\n\n b"),
            (&["\"\"\"a", "b\"\"\""], "a\nb"),
            (&["\"\"\"one line\"\"\""], "one line"),
            (&["\"\"\"", "unclosed"], "unclosed"),
        ];
        for (lines, expected) in cases {
            assert_eq!(read(lines), Message::Text(expected.to_owned()), "{lines:?}");
        }
    }

    #[test]
    fn interruption_drops_what_was_begun() {
        assert_eq!(read(&["^C"]), Message::Interrupted);
        assert_eq!(read(&["a\\", "^C"]), Message::Abandoned);
        assert_eq!(read(&["\"\"\"", "a", "^C"]), Message::Abandoned);
        assert_eq!(read(&[]), Message::End);
    }
}
