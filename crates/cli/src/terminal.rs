//! Where words go: results to standard output, everything else to standard error.

use crate::args::{OutputArgs, ProgressMode};
use anyhow::Context;
use lamella_engine::ExpertStatistics;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// How this process talks.
#[derive(Clone, Debug)]
pub(crate) struct Terminal {
    quiet: bool,
    progress: ProgressMode,
}

impl Terminal {
    pub(crate) fn new(args: &OutputArgs) -> Terminal {
        let asked = args.progress.unwrap_or_default();
        let progress = match asked {
            _ if args.quiet => ProgressMode::None,
            ProgressMode::Auto if io::stderr().is_terminal() => ProgressMode::Bar,
            ProgressMode::Auto => ProgressMode::Plain,
            other => other,
        };
        Terminal {
            quiet: args.quiet,
            progress,
        }
    }

    /// How progress is shown; never [`ProgressMode::Auto`].
    pub(crate) fn progress(&self) -> ProgressMode {
        self.progress
    }

    /// A remark for the person at the keyboard. Lost if standard error is closed.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{}", escaped(text, "\n\t"));
        }
    }

    /// An error that does not end the program, a line. It is told to the quiet too.
    pub(crate) fn error(&self, line: &str) {
        let _ = writeln!(io::stderr().lock(), "lamella: {}", plain(line));
    }
}

/// Prints one JSON value on one line.
pub(crate) fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let line = serde_json::to_string(value)?;
    write(&(json(&line) + "\n"))
}

/// Prints JSON for reading by people and programs.
pub(crate) fn print_json_pretty<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    write(&(json(&text) + "\n"))
}

/// Prints text in lines and makes sure it leaves. A name in it that came from a file has to be
/// [`plain`], or it could pass for a line; what could drive a terminal does not get through.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write(&escaped(text, "\n\t"))
}

/// Prints `text` as it is and makes sure it leaves.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("standard output")
}

/// What a model wrote, as it may be printed. On a terminal, control characters other than line
/// breaks and tabs are replaced: an answer must not move the cursor or change the title of a
/// window.
pub(crate) fn answer(text: &str) -> String {
    if io::stdout().is_terminal() {
        visible(text)
    } else {
        text.to_owned()
    }
}

/// A name or message from a file, as a part of a line: what could move the cursor, begin another
/// line or turn the direction of writing is written as `\u{1b}`.
pub(crate) fn plain(text: &str) -> String {
    escaped(text, "")
}

fn escaped(text: &str, but: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if drives(c) && !but.contains(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// JSON of which every character can be shown: strings may hold what drives a terminal.
fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if drives(c) && c != '\n' {
            // All of them are single UTF-16 units.
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// Control characters, line and paragraph separators, and marks of the direction of writing.
fn drives(c: char) -> bool {
    let marks = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
    let spans = ['\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
    c.is_control() || marks.contains(&c) || spans.iter().any(|span| span.contains(&c))
}

fn visible(text: &str) -> String {
    let shown = |c: char| {
        if c.is_control() && c != '\n' && c != '\t' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(shown).collect()
}

/// Counts of experts that do not all fit into memory, as they are told in JSON.
pub(crate) fn experts_json(counts: &ExpertStatistics) -> serde_json::Value {
    serde_json::json!({
        "experts": counts.experts,
        "slots": counts.slots,
        "uses": counts.uses,
        "hits": counts.hits,
        "bytes_read": counts.bytes_read,
        "ahead": counts.ahead,
        "ahead_used": counts.ahead_used,
        "failures": counts.failures,
        "waited_ms": milliseconds(counts.waited),
        "disk_ms": milliseconds(counts.busy),
        "reader": counts.access.name(),
        "policy": counts.policy.name(),
        "regret": counts.regret as f64 / 1e6,
    })
}

/// A share in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// Text in columns. Columns of numbers, but for the first, are aligned to the right.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &'_ [String], column: usize| row.get(column).cloned().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| cell(row, column).chars().count());
        cells
            .chain([head[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let is_number = |text: &String| text.starts_with(|c: char| c.is_ascii_digit());
    let right = |column: usize| column > 0 && rows.iter().any(|row| is_number(&cell(row, column)));
    let shape: Vec<(usize, bool)> = (0..head.len()).map(|c| (width(c), right(c))).collect();
    let line = |cells: &[String]| {
        let cells = shape.iter().enumerate().map(|(column, &(width, right))| {
            let text = cell(cells, column);
            if right {
                format!("{text:>width$}")
            } else {
                format!("{text:<width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    std::iter::once(&head)
        .chain(rows)
        .map(|row| line(row))
        .collect()
}

/// Per second; `None` where nothing was measured.
pub(crate) fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// ` at 12.3 tok/s`, or nothing where nothing was measured.
pub(crate) fn speed(count: usize, time: Duration) -> String {
    rate(count, time).map_or_else(String::new, |rate| format!(" at {rate:.1} tok/s"))
}

/// For JSON.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_cannot_drive_the_terminal() {
        assert_eq!(
            visible("a\x1b]0;x\x07\tb\r\n"),
            "a\u{fffd}]0;x\u{fffd}\tb\u{fffd}\n"
        );
    }

    #[test]
    fn names_stay_within_their_line() {
        assert_eq!(
            plain("a\x1b[31m\nb\t\u{9b}\u{202e}é"),
            "a\\u{1b}[31m\\u{a}b\\u{9}\\u{9b}\\u{202e}é"
        );
        assert_eq!(escaped("a\n\tb\r", "\n\t"), "a\n\tb\\u{d}");
    }

    #[test]
    fn json_means_the_same_and_drives_nothing() {
        let value = serde_json::json!({"a\u{9b}": ["\x1b\n\u{2028}", "é\u{7f}"]});
        for text in [
            serde_json::to_string(&value).unwrap(),
            serde_json::to_string_pretty(&value).unwrap(),
        ] {
            let shown = json(&text);
            assert!(!shown.chars().any(|c| drives(c) && c != '\n'), "{shown:?}");
            let again: serde_json::Value = serde_json::from_str(&shown).unwrap();
            assert_eq!(again, value);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["a".into(), "5".into()],
            vec!["long".into(), "12".into()],
        ];
        assert_eq!(
            columns(&["name", "n"], &rows),
            "name   n\na      5\nlong  12\n"
        );
    }

    #[test]
    fn quiet_wins_over_progress() {
        let args = OutputArgs {
            quiet: true,
            progress: Some(ProgressMode::Bar),
        };
        assert_eq!(Terminal::new(&args).progress(), ProgressMode::None);
    }
}
