//! How an answer is shown while it comes: thoughts marked, calls as a line each.

use crate::terminal;
use lamella_text::AnswerEvent;

const DIM: &str = "\x1b[2m";
const NORMAL: &str = "\x1b[0m";

/// What is being shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Showing {
    Nothing,
    Thoughts,
    Content,
    Call,
}

/// An answer on its way to standard output.
pub(crate) struct Display {
    /// A terminal shows thoughts dimmed; elsewhere lines around them say what they are.
    dims: bool,
    hides_thoughts: bool,
    showing: Showing,
    /// The last line is not ended.
    open: bool,
}

impl Display {
    pub(crate) fn new(dims: bool, hides_thoughts: bool) -> Display {
        Display {
            dims,
            hides_thoughts,
            showing: Showing::Nothing,
            // An answer of nothing is an empty line.
            open: true,
        }
    }

    /// What `event` adds.
    pub(crate) fn shown(&mut self, event: &AnswerEvent) -> String {
        let mut out = String::new();
        match event {
            AnswerEvent::Reasoning(_) if self.hides_thoughts => {}
            AnswerEvent::Reasoning(text) => {
                self.enter(Showing::Thoughts, &mut out);
                if self.dims {
                    out.push_str(DIM);
                }
                self.add(text, &mut out);
                if self.dims {
                    out.push_str(NORMAL);
                }
            }
            AnswerEvent::Content(text) => {
                self.enter(Showing::Content, &mut out);
                self.add(text, &mut out);
            }
            AnswerEvent::CallBegun { name, .. } => {
                self.enter(Showing::Call, &mut out);
                self.add(&format!("[call {} ", terminal::plain(name)), &mut out);
            }
            // JSON may be spread over lines.
            AnswerEvent::CallArguments { text, .. } => {
                self.add(&terminal::plain(&text.replace(['\n', '\r'], " ")), &mut out);
            }
            AnswerEvent::CallFinished { incomplete, .. } => {
                let end = if *incomplete {
                    " … incomplete]\n"
                } else {
                    "]\n"
                };
                self.add(end, &mut out);
                self.showing = Showing::Nothing;
            }
        }
        out
    }

    /// Ends what is open.
    pub(crate) fn end(&mut self) -> String {
        let mut out = String::new();
        self.enter(Showing::Nothing, &mut out);
        self.end_line(&mut out);
        out
    }

    /// Goes over to something else, on a line of its own.
    fn enter(&mut self, to: Showing, out: &mut String) {
        if self.showing == to {
            return;
        }
        let thoughts = self.showing == Showing::Thoughts;
        if self.showing != Showing::Nothing {
            self.end_line(out);
        }
        if thoughts {
            out.push_str(if self.dims { "\n" } else { "[/thinking]\n" });
        }
        if to == Showing::Thoughts && !self.dims {
            out.push_str("[thinking]\n");
        }
        self.showing = to;
    }

    fn end_line(&mut self, out: &mut String) {
        if std::mem::take(&mut self.open) {
            out.push('\n');
        }
    }

    fn add(&mut self, text: &str, out: &mut String) {
        out.push_str(&terminal::answer(text));
        if !text.is_empty() {
            self.open = !text.ends_with('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<AnswerEvent> {
        let call = |text: &str| AnswerEvent::CallArguments {
            index: 0,
            text: text.into(),
        };
        let finished = |incomplete| AnswerEvent::CallFinished {
            index: 0,
            incomplete,
        };
        let begun = AnswerEvent::CallBegun {
            index: 0,
            id: None,
            name: "now\x1b".into(),
        };
        vec![
            AnswerEvent::Reasoning("I a".into()),
            AnswerEvent::Reasoning("sk.".into()),
            AnswerEvent::Content("One".into()),
            AnswerEvent::Content(" moment.\n".into()),
            begun.clone(),
            call("{\"a\":\n"),
            call(" 1}"),
            finished(false),
            begun,
            finished(true),
            AnswerEvent::Content("End".into()),
        ]
    }

    fn shown(mut display: Display, events: &[AnswerEvent]) -> String {
        let mut text: String = events.iter().map(|event| display.shown(event)).collect();
        text.push_str(&display.end());
        text
    }

    const CALLS: &str = "One moment.\n[call now\\u{1b} {\"a\":  1}]\n[call now\\u{1b}  … \
                         incomplete]\nEnd\n";

    #[test]
    fn thoughts_and_calls_are_told_apart() {
        let plain = shown(Display::new(false, false), &events());
        assert_eq!(plain, format!("[thinking]\nI ask.\n[/thinking]\n{CALLS}"));
        let dimmed = shown(Display::new(true, false), &events());
        let thoughts = "\x1b[2mI a\x1b[0m\x1b[2msk.\x1b[0m\n\n";
        assert_eq!(dimmed, format!("{thoughts}{CALLS}"));
        assert_eq!(shown(Display::new(true, true), &events()), CALLS);
    }

    #[test]
    fn what_is_open_is_ended() {
        let thoughts = [AnswerEvent::Reasoning("Hm".into())];
        let plain = shown(Display::new(false, false), &thoughts);
        assert_eq!(plain, "[thinking]\nHm\n[/thinking]\n");
        assert_eq!(shown(Display::new(true, false), &[]), "\n");
        let content = [AnswerEvent::Content("a\n".into())];
        assert_eq!(shown(Display::new(true, false), &content), "a\n");
    }
}
