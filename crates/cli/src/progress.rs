//! Progress of long work, on standard error.

use crate::args::ProgressMode;
use crate::terminal::Terminal;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Work shorter than this shows nothing.
const QUIET_TIME: Duration = Duration::from_millis(300);
const LINE_INTERVAL: Duration = Duration::from_secs(5);
const JSON_INTERVAL: Duration = Duration::from_millis(500);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Steps,
}

/// The progress of one piece of work.
pub(crate) struct Progress {
    what: &'static str,
    unit: Unit,
    mode: ProgressMode,
    start: Instant,
    shown: Option<Instant>,
    bar: Option<ProgressBar>,
    /// What was done before this process began: it has no part in the rate.
    base: Option<u64>,
    last: (u64, u64),
}

impl Progress {
    pub(crate) fn new(terminal: &Terminal, what: &'static str, unit: Unit) -> Progress {
        let start = Instant::now();
        let mode = terminal.progress();
        Progress {
            what,
            unit,
            mode,
            start,
            shown: None,
            bar: None,
            base: None,
            last: (0, 0),
        }
    }

    /// Tells how far the work is.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        self.last = (done, total);
        let base = *self.base.get_or_insert(done);
        let elapsed = self.start.elapsed();
        let since = self.shown.map_or(elapsed, |shown| shown.elapsed());
        match self.mode {
            ProgressMode::Bar if elapsed >= QUIET_TIME => {
                let bar = self
                    .bar
                    .get_or_insert_with(|| bar(self.what, self.unit, base));
                bar.set_length(total);
                bar.set_position(done);
            }
            ProgressMode::Plain if since >= LINE_INTERVAL => self.say(false),
            ProgressMode::Json if since >= JSON_INTERVAL => self.say(true),
            _ => {}
        }
    }

    /// Ends it: the bar goes; lines that were begun get their last one.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        match self.mode {
            ProgressMode::Plain if self.shown.is_some() => self.say(false),
            ProgressMode::Json => self.say(true),
            _ => {}
        }
    }

    fn say(&mut self, json: bool) {
        self.shown = Some(Instant::now());
        let line = if json { self.json() } else { self.line() };
        // Progress is a courtesy: a closed standard error must not stop the work.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    fn json(&self) -> String {
        let (done, total) = self.last;
        let unit = if self.unit == Unit::Bytes {
            "bytes"
        } else {
            "steps"
        };
        serde_json::json!({
            "progress": self.what,
            "unit": unit,
            "done": done,
            "total": total,
            "seconds": self.start.elapsed().as_secs_f64(),
        })
        .to_string()
    }

    fn line(&self) -> String {
        let (done, total) = self.last;
        let seconds = self.start.elapsed().as_secs_f64();
        let rate = (done - self.base.unwrap_or(0).min(done)) as f64 / seconds.max(1e-9);
        let share = 100 * done / total.max(1);
        let (done, all, rate_text) = match self.unit {
            Unit::Bytes => (
                bytes(done),
                bytes(total),
                format!("{}/s", bytes(rate as u64)),
            ),
            Unit::Steps => (done.to_string(), total.to_string(), format!("{rate:.1}/s")),
        };
        let left = total.saturating_sub(self.last.0) as f64 / rate.max(1e-9);
        let eta = if left < 1e6 {
            format!(", {left:.0} s left")
        } else {
            String::new()
        };
        format!(
            "{}: {share} % ({done} of {all}), {rate_text}{eta}",
            self.what
        )
    }
}

fn bar(what: &'static str, unit: Unit, base: u64) -> ProgressBar {
    let template = match unit {
        Unit::Bytes => {
            concat!(
                "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} ",
                "{binary_bytes_per_sec}, {eta} left"
            )
        }
        Unit::Steps => "{msg} {wide_bar} {pos}/{len} {per_sec}, {eta} left",
    };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0)
        .with_style(style)
        .with_message(what)
        .with_position(base);
    bar.reset_eta();
    bar
}

/// `bytes` with a binary unit.
pub(crate) fn bytes(bytes: u64) -> String {
    lamella_container::human_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputArgs;

    fn progress(mode: ProgressMode) -> Progress {
        let terminal = Terminal::new(&OutputArgs {
            quiet: false,
            progress: Some(mode),
        });
        Progress::new(&terminal, "reading", Unit::Bytes)
    }

    #[test]
    fn short_work_shows_nothing() {
        let mut bar = progress(ProgressMode::Bar);
        bar.update(1, 2);
        assert!(bar.bar.is_none() && bar.shown.is_none());
        let mut plain = progress(ProgressMode::Plain);
        plain.update(2, 2);
        plain.finish();
        assert!(plain.shown.is_none());
    }

    #[test]
    fn lines_carry_the_numbers() {
        let mut plain = progress(ProgressMode::Plain);
        plain.last = (1 << 20, 4 << 20);
        let line = plain.line();
        assert!(
            line.starts_with("reading: 25 % (1.00 MiB of 4.00 MiB), "),
            "{line}"
        );
        let json: serde_json::Value = serde_json::from_str(&plain.json()).unwrap();
        assert_eq!(
            (&json["done"], &json["unit"]),
            (&(1 << 20).into(), &"bytes".into())
        );
    }
}
