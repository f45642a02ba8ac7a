//! The formats of answers: which markers stand where, and what comes behind each.
//!
//! Markers are written with their control tokens spelled out. This is the one place that knows
//! them, but for the prompts of the formats in code (`chat/`), which are tested against it.

use crate::{Chat, Tokenizer};

/// Where the next unit of an answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Before anything was said.
    Start,
    /// Between the parts of an answer.
    Outside,
    /// What the model thinks.
    Reasoning,
    /// What it says.
    Content,
    /// Between the beginning of a block and the token that says what it holds.
    Author,
    /// Behind the marker that opens calls.
    First,
    /// The name of what is called.
    Name,
    /// Inside a call, before and between and behind its parameters.
    Inside,
    /// The name of a parameter.
    Key,
    /// What kind of value follows.
    Kind,
    /// Between a parameter's name and its value.
    BeforeValue,
    /// A parameter's value.
    Value,
    /// The head of arguments that are one text.
    BlockHead,
    /// Arguments that are one text.
    Block,
    /// A call that is a JSON object.
    Json,
    /// Behind a call.
    AfterCall,
}

impl Place {
    /// All of them, in order.
    pub(super) const ALL: [Place; 16] = [
        Place::Start,
        Place::Outside,
        Place::Reasoning,
        Place::Content,
        Place::Author,
        Place::First,
        Place::Name,
        Place::Inside,
        Place::Key,
        Place::Kind,
        Place::BeforeValue,
        Place::Value,
        Place::BlockHead,
        Place::Block,
        Place::Json,
        Place::AfterCall,
    ];

    /// Whether only white space and markers belong here.
    pub(super) fn expects(self) -> bool {
        use Place::*;
        matches!(
            self,
            Start | Outside | First | Inside | BeforeValue | AfterCall
        )
    }

    /// Whether what stands here may have to be shown as it was written, if no call comes of it.
    pub(super) fn in_call(self) -> bool {
        use Place::*;
        !matches!(self, Start | Outside | Reasoning | Content)
    }
}

/// What comes behind a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// This place.
    To(Place),
    /// Calls, beginning with this place.
    Open(Place),
    /// A call has ended; then this place.
    Close(Place),
}

/// How a format writes what is not in its markers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Habits {
    /// Line ends at the beginning of reasoning and content do not count.
    pub(super) newlines: bool,
    /// A parameter's value stands on lines of its own.
    pub(super) lines: bool,
    /// The heads of tags are lists of attributes.
    pub(super) attributes: bool,
}

impl Habits {
    pub(super) const NONE: Habits = Habits {
        newlines: false,
        lines: false,
        attributes: false,
    };

    /// What either has.
    pub(super) fn or(self, other: Habits) -> Habits {
        Habits {
            newlines: self.newlines || other.newlines,
            lines: self.lines || other.lines,
            attributes: self.attributes || other.attributes,
        }
    }
}

type Row = (Place, &'static str, Next);

/// A format, or a part of one.
#[derive(Debug)]
pub(super) struct Part {
    /// Control tokens, where the tokenizer has them as single tokens.
    pub(super) tokens: &'static [&'static str],
    /// Where an answer begins whose prompt ends so; white space at its end does not count.
    pub(super) openings: &'static [(&'static str, Place)],
    /// Where it begins otherwise.
    pub(super) start: Place,
    pub(super) rows: &'static [Row],
    pub(super) habits: Habits,
}

use Next::{Close, Open, To};
use Place::*;

/// Line ends before a marker go with it.
const TEMPLATE: Habits = Habits {
    newlines: true,
    ..Habits::NONE
};

/// Reasoning of models with templates.
const THINK: Part = Part {
    tokens: &["<think>", "</think>"],
    openings: &[("<think>", Reasoning), ("</think>", Content)],
    start: Start,
    rows: &[
        (Start, "<think>", To(Reasoning)),
        (Reasoning, "\n\n</think>", To(Content)),
        (Reasoning, "\n</think>", To(Content)),
        (Reasoning, "</think>", To(Content)),
    ],
    habits: TEMPLATE,
};

/// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`
const OBJECT: Part = Part {
    tokens: &["<tool_call>", "</tool_call>"],
    openings: &[],
    start: Content,
    rows: &[
        (Start, "<tool_call>", Open(Json)),
        (Content, "\n\n<tool_call>", Open(Json)),
        (Content, "\n<tool_call>", Open(Json)),
        (Content, "<tool_call>", Open(Json)),
        (Outside, "<tool_call>", Open(Json)),
        (AfterCall, "</tool_call>", To(Outside)),
    ],
    habits: TEMPLATE,
};

/// `<tool_call><function=f><parameter=k>v</parameter></function></tool_call>`
const FUNCTION: Part = Part {
    tokens: &["<tool_call>", "</tool_call>"],
    openings: &[],
    start: Content,
    rows: &[
        (Start, "<tool_call>", Open(First)),
        (Content, "\n\n<tool_call>", Open(First)),
        (Content, "\n<tool_call>", Open(First)),
        (Content, "<tool_call>", Open(First)),
        (Outside, "<tool_call>", Open(First)),
        (First, "<function=", To(Name)),
        (Name, ">", To(Inside)),
        (Inside, "<parameter=", To(Key)),
        (Inside, "</function>", Close(AfterCall)),
        (Key, ">", To(Value)),
        (Value, "</parameter>", To(Inside)),
        (AfterCall, "<function=", To(Name)),
        (AfterCall, "</tool_call>", To(Outside)),
    ],
    habits: Habits {
        lines: true,
        ..TEMPLATE
    },
};

/// `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`
const PAIRS: Part = Part {
    tokens: &[
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
    openings: &[],
    start: Content,
    rows: &[
        (Start, "<tool_call>", Open(Name)),
        (Content, "\n\n<tool_call>", Open(Name)),
        (Content, "\n<tool_call>", Open(Name)),
        (Content, "<tool_call>", Open(Name)),
        (Outside, "<tool_call>", Open(Name)),
        (Name, "<arg_key>", To(Key)),
        (Name, "</tool_call>", Close(Outside)),
        (Key, "</arg_key>", To(BeforeValue)),
        (BeforeValue, "<arg_value>", To(Value)),
        (Value, "</arg_value>", To(Inside)),
        (Inside, "<arg_key>", To(Key)),
        (Inside, "</tool_call>", Close(Outside)),
    ],
    habits: TEMPLATE,
};

const DSML: Part = Part {
    tokens: &["<think>", "</think>", "｜DSML｜"],
    openings: &[("<think>", Reasoning), ("</think>", Content)],
    start: Content,
    rows: &[
        (Reasoning, "</think>", To(Content)),
        (Content, "\n\n<｜DSML｜tool_calls>", Open(First)),
        (Content, "<｜DSML｜tool_calls>", Open(First)),
        (Outside, "<｜DSML｜tool_calls>", Open(First)),
        (First, "<｜DSML｜invoke name=\"", To(Name)),
        (Name, "\">", To(Inside)),
        (Inside, "<｜DSML｜parameter name=\"", To(Key)),
        (Inside, "</｜DSML｜invoke>", Close(AfterCall)),
        (Key, "\" string=\"", To(Kind)),
        (Kind, "\">", To(Value)),
        (Value, "</｜DSML｜parameter>", To(Inside)),
        (AfterCall, "<｜DSML｜invoke name=\"", To(Name)),
        (AfterCall, "</｜DSML｜tool_calls>", To(Outside)),
    ],
    habits: Habits::NONE,
};

const XTML: Part = Part {
    tokens: &["<|open|>", "<|close|>", "<|sep|>"],
    openings: &[
        ("<|open|>think<|sep|>", Reasoning),
        ("<|open|>response<|sep|>", Content),
    ],
    start: Outside,
    rows: &[
        (Outside, "<|open|>think<|sep|>", To(Reasoning)),
        (Outside, "<|open|>response<|sep|>", To(Content)),
        (Outside, "<|open|>tools<|sep|>", Open(First)),
        (Outside, "<|close|>message<|sep|>", To(Outside)),
        (Reasoning, "<|close|>think<|sep|>", To(Outside)),
        (Reasoning, "<|open|>response<|sep|>", To(Content)),
        (Reasoning, "<|open|>tools<|sep|>", Open(First)),
        (Content, "<|close|>response<|sep|>", To(Outside)),
        (Content, "<|open|>tools<|sep|>", Open(First)),
        (Content, "<|close|>message<|sep|>", To(Outside)),
        (First, "<|open|>call ", To(Name)),
        (Name, "<|sep|>", To(Inside)),
        (Inside, "<|open|>argument ", To(Key)),
        (Inside, "<|open|>json ", To(BlockHead)),
        (Inside, "<|close|>call<|sep|>", Close(AfterCall)),
        (Key, "<|sep|>", To(Value)),
        (Value, "<|close|>argument<|sep|>", To(Inside)),
        (BlockHead, "<|sep|>", To(Block)),
        (Block, "<|close|>json<|sep|>", To(Inside)),
        (AfterCall, "<|open|>call ", To(Name)),
        (AfterCall, "<|close|>tools<|sep|>", To(Outside)),
    ],
    habits: Habits {
        attributes: true,
        ..Habits::NONE
    },
};

const BLOCKS: Part = Part {
    tokens: &[
        "<|message_model|>",
        "<|content_thinking|>",
        "<|content_text|>",
        "<|content_invoke_tool_json|>",
        "<|content_invoke_tool_text|>",
        "<|content_tool_error|>",
        "<|end_message|>",
    ],
    openings: &[("<|message_model|>", Author)],
    start: Outside,
    // A call in text names no tool, and an error is no call: the vendor's parser has no call for
    // them either, so their text is content. A block may begin without the model's token.
    rows: &[
        (Outside, "<|message_model|>", To(Author)),
        (Outside, "<|content_thinking|>", To(Reasoning)),
        (Outside, "<|content_text|>", To(Content)),
        (Outside, "<|content_invoke_tool_json|>", Open(Json)),
        (Outside, "<|content_invoke_tool_text|>", To(Content)),
        (Outside, "<|content_tool_error|>", To(Content)),
        (Author, "<|content_thinking|>", To(Reasoning)),
        (Author, "<|content_text|>", To(Content)),
        (Author, "<|content_invoke_tool_json|>", Open(Json)),
        (Author, "<|content_invoke_tool_text|>", To(Content)),
        (Author, "<|content_tool_error|>", To(Content)),
        (Reasoning, "<|end_message|>", To(Outside)),
        (Content, "<|end_message|>", To(Outside)),
        (AfterCall, "<|end_message|>", To(Outside)),
    ],
    habits: Habits::NONE,
};

/// What a template's source says if its calls are written so; the first that fits is taken.
const CALLS: [(&[&str], &Part); 3] = [
    (&["<tool_call>", "<arg_key>", "<arg_value>"], &PAIRS),
    (&["<tool_call>", "<function=", "<parameter="], &FUNCTION),
    (&["<tool_call>"], &OBJECT),
];

/// The parts of the format of the answers to the prompts of `chat`.
pub(super) fn parts(chat: &Chat, tokenizer: &Tokenizer) -> Vec<&'static Part> {
    let template = match chat {
        Chat::Dsml(_) => return vec![&DSML],
        Chat::Xtml(_) => return vec![&XTML],
        Chat::Blocks(_) => return vec![&BLOCKS],
        Chat::Template(template) => template,
    };
    // Models that were taught to think later have a template that says nothing of it.
    let thinks = template.mentions("</think>")
        || THINK
            .tokens
            .iter()
            .all(|token| tokenizer.token_id(token).is_some());
    let mentions = |words: &[&str]| words.iter().all(|word| template.mentions(word));
    let calls = CALLS.iter().find(|(words, _)| mentions(words));
    let think = thinks.then_some(&THINK);
    think
        .into_iter()
        .chain(calls.map(|(_, part)| *part))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::alphabet::MOST;

    #[test]
    fn the_tables_hold_together() {
        for (at, place) in Place::ALL.iter().enumerate() {
            assert_eq!(*place as usize, at);
        }
        for part in [&THINK, &OBJECT, &FUNCTION, &PAIRS, &DSML, &XTML, &BLOCKS] {
            assert!(part.tokens.len() + THINK.tokens.len() <= MOST);
            for (place, marker, next) in part.rows {
                let (Next::To(to) | Next::Open(to) | Next::Close(to)) = next;
                // A place one can come to can be left, or is the end of all there is.
                let left = part.rows.iter().any(|(at, _, _)| at == to);
                assert!(left || [Content, Json].contains(to), "{to:?}");
                // White space is passed over where markers are expected.
                let first = marker.as_bytes().first().copied().unwrap_or_default();
                assert!(
                    !(place.expects() && first.is_ascii_whitespace()),
                    "{marker}"
                );
            }
        }
    }
}
