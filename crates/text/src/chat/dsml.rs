//! The format with `｜DSML｜` tool calls: role tokens before turns, no line ends between them, an
//! answer's reasoning in `<think>`, tool results inside the user's turn.
//!
//! The checkpoint carries it as a Python program ([`VENDOR_FILE`]) whose rules are written here.
//! There are two editions of the program, which differ in the texts for the effort of reasoning;
//! the file itself says which it is. Without it prompts can be written, but not an effort.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::options::{Wishes, wrong};
use super::tools::{self, Arguments, Call};
use super::{has_all, python, refuse};
use crate::{ChatOptions, Error, Message, Tokenizer};

/// The vendor's program.
const VENDOR_FILE: &str = "encoding_dsv4.py";

const BOS: &str = "<｜begin▁of▁sentence｜>";
const EOS: &str = "<｜end▁of▁sentence｜>";
const USER: &str = "<｜User｜>";
const ASSISTANT: &str = "<｜Assistant｜>";
const REMINDER: &str = "<｜latest_reminder｜>";
const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

/// Tokens that no other published format has together.
const TOKENS: [&str; 8] = [
    BOS,
    EOS,
    USER,
    ASSISTANT,
    THINK,
    THINK_END,
    REMINDER,
    "｜DSML｜",
];

/// What a message may ask for instead of an answer, and its token.
const TASKS: [(&str, &str); 6] = [
    ("action", "<｜action｜>"),
    ("query", "<｜query｜>"),
    ("authority", "<｜authority｜>"),
    ("domain", "<｜domain｜>"),
    ("title", "<｜title｜>"),
    ("read_url", "<｜read_url｜>"),
];

const TOOLS: &str = include_str!("dsml/tools.txt");
const THOROUGH: &str = include_str!("dsml/thorough.txt");
const EXHAUSTIVE: &str = include_str!("dsml/exhaustive.txt");
/// Words of [`EXHAUSTIVE`], by which the second edition of the program is known.
const EXHAUSTIVE_MARK: &str = "Reasoning Effort: Beyond maximum";
/// Words of [`THOROUGH`], which both editions have.
const THOROUGH_MARK: &str = "Reasoning Effort: Absolute maximum";

const FORMAT: &str = "## Response Format:\n\n\
    You MUST strictly adhere to the following schema to reply:\n";

const THINKING: [&str; 2] = ["thinking", "enable_thinking"];
const EFFORT: [&str; 1] = ["reasoning_effort"];
const DROP: [&str; 1] = ["drop_thinking"];

/// Variables this format knows.
pub(super) const VARIABLES: [&str; 4] = [THINKING[0], THINKING[1], EFFORT[0], DROP[0]];

/// The format, with the texts its checkpoint's program has for each effort.
#[derive(Debug, Clone)]
pub struct Dsml {
    /// `None` where the program is not there, or has other texts than those known.
    efforts: Option<&'static [(&'static str, &'static str)]>,
}

/// What one rendering is asked for.
struct Wanted {
    thinking: bool,
    /// Reasoning before the last user's message is left out.
    drop: bool,
    effort: &'static str,
    answer: bool,
}

/// A turn: a message, or several that become one.
struct Turn<'a> {
    role: &'a str,
    message: &'a Message,
    parts: Vec<Part<'a>>,
    tools: Option<&'a Vec<Value>>,
    task: Option<&'static (&'static str, &'static str)>,
}

/// A part of a user's turn.
enum Part<'a> {
    Text(&'a str),
    Result(Option<&'a str>, &'a str),
}

impl Dsml {
    pub(super) fn of(
        tokenizer: &Tokenizer,
        vendor: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        if !has_all(tokenizer, &TOKENS) {
            return None;
        }
        let program = vendor(VENDOR_FILE).unwrap_or_default();
        let efforts: Option<&[_]> = if program.contains(EXHAUSTIVE_MARK) {
            Some(&[("low", ""), ("high", THOROUGH), ("max", EXHAUSTIVE)])
        } else if program.contains(THOROUGH_MARK) {
            Some(&[("high", ""), ("max", THOROUGH)])
        } else {
            None
        };
        Some(Self { efforts })
    }

    pub(super) fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<String, Error> {
        let declared;
        let mut turns = turns(messages)?;
        if let Some(tools) = options.tools.as_ref().filter(|tools| !tools.is_empty()) {
            match turns.first_mut() {
                Some(first) if ["system", "developer"].contains(&first.role) => {
                    first.tools = Some(tools);
                }
                _ => {
                    declared = Message::system("");
                    turns.insert(0, Turn::new(&declared)?);
                    turns[0].tools = Some(tools);
                }
            }
        }
        let wishes = Wishes::new(options, &VARIABLES)?;
        let thinking = wishes.switch(&THINKING)?.unwrap_or(true);
        let keep = turns.iter().any(|turn| turn.tools.is_some());
        let wanted = Wanted {
            thinking,
            drop: wishes.switch(&DROP)?.unwrap_or(true) && !keep,
            effort: self.effort(&wishes)?,
            answer: options.add_generation_prompt,
        };
        if thinking && wanted.drop {
            // What a search asked before the last question is of no use later.
            let last = last_user(&turns).unwrap_or(0);
            let mut at = 0..;
            turns.retain(|turn| at.next() >= Some(last) || turn.role != "developer");
        }
        let mut out = BOS.to_owned();
        if thinking && !turns.is_empty() {
            out.push_str(wanted.effort);
        }
        for index in 0..turns.len() {
            write_turn(&mut out, &turns, index, &wanted)?;
        }
        Ok(out)
    }

    fn effort(&self, wishes: &Wishes<'_>) -> Result<&'static str, Error> {
        let Some(word) = wishes.word(&EFFORT)? else {
            return Ok("");
        };
        let Some(efforts) = self.efforts else {
            let cause = format!(
                "the texts for it are in {VENDOR_FILE}, which is missing or has unknown ones"
            );
            return Err(wrong(EFFORT[0], &cause));
        };
        match efforts.iter().find(|(name, _)| *name == word) {
            Some((_, text)) => Ok(text),
            None => {
                let names: Vec<&str> = efforts.iter().map(|(name, _)| *name).collect();
                let cause = format!("`{word}` is unknown; known are {}", names.join(", "));
                Err(wrong(EFFORT[0], &cause))
            }
        }
    }
}

impl<'a> Turn<'a> {
    fn new(message: &'a Message) -> Result<Self, Error> {
        let role = message.role();
        if ![
            "system",
            "developer",
            "user",
            "assistant",
            "latest_reminder",
        ]
        .contains(&role)
        {
            return Err(refuse(format!("the role `{role}` is unknown")));
        }
        let task = match message.get("task") {
            None | Some(Value::Null) => None,
            Some(task) => Some(
                TASKS
                    .iter()
                    .find(|(name, _)| task.as_str() == Some(name))
                    .ok_or_else(|| refuse(format!("the task {task} is unknown")))?,
            ),
        };
        Ok(Self {
            role,
            message,
            parts: Vec::new(),
            tools: match role {
                "user" => None,
                _ => tools::declared(message)?,
            },
            task,
        })
    }

    fn text(&self) -> &'a str {
        self.message.content().unwrap_or_default()
    }
}

/// Turns of the conversation. Tool results and the user's messages after each other are one turn;
/// the results stand in the order of the calls they answer.
fn turns(messages: &[Message]) -> Result<Vec<Turn<'_>>, Error> {
    let mut turns: Vec<Turn<'_>> = Vec::with_capacity(messages.len());
    for message in messages {
        let content = message.content().unwrap_or_default();
        let open = turns.last_mut().filter(|turn| turn.role == "user");
        match (message.role(), open) {
            ("tool", Some(turn)) => {
                turn.parts
                    .push(Part::Result(tools::answered(message), content));
            }
            ("tool", None) => turns.push(Turn {
                role: "user",
                message,
                parts: vec![Part::Result(tools::answered(message), content)],
                tools: None,
                task: None,
            }),
            ("user", Some(turn)) if turn.task.is_none() => turn.parts.push(Part::Text(content)),
            ("user", _) => {
                let mut turn = Turn::new(message)?;
                turn.parts.push(Part::Text(content));
                turns.push(turn);
            }
            _ => turns.push(Turn::new(message)?),
        }
    }
    order_results(&mut turns)?;
    Ok(turns)
}

fn order_results(turns: &mut [Turn<'_>]) -> Result<(), Error> {
    let mut order: HashMap<&str, usize> = HashMap::new();
    for turn in turns {
        if turn.role == "assistant" && !turn.message.tool_calls().is_empty() {
            let calls = Call::all(turn.message)?;
            let ids = calls.iter().map(|call| call.id);
            order = ids
                .zip(0..)
                .filter_map(|(id, place)| Some((id.filter(|id| !id.is_empty())?, place)))
                .collect();
        }
        let place = |part: &Part<'_>| match part {
            Part::Result(id, _) => Some(id.and_then(|id| order.get(id)).copied().unwrap_or(0)),
            Part::Text(_) => None,
        };
        if order.is_empty() {
            continue;
        }
        let (mut results, texts): (Vec<_>, Vec<_>) = std::mem::take(&mut turn.parts)
            .into_iter()
            .enumerate()
            .partition(|(_, part)| place(part).is_some());
        let places: Vec<usize> = results.iter().map(|(at, _)| *at).collect();
        results.sort_by_key(|(_, part)| place(part));
        let results = places.into_iter().zip(results.into_iter().map(|it| it.1));
        let mut all: Vec<_> = results.chain(texts).collect();
        all.sort_by_key(|(at, _)| *at);
        turn.parts = all.into_iter().map(|(_, part)| part).collect();
    }
    Ok(())
}

/// The last turn somebody else than the assistant asks in.
fn last_user(turns: &[Turn<'_>]) -> Option<usize> {
    let asks = |turn: &Turn<'_>| ["user", "developer"].contains(&turn.role);
    turns.iter().rposition(asks)
}

fn write_turn(
    out: &mut String,
    turns: &[Turn<'_>],
    index: usize,
    wanted: &Wanted,
) -> Result<(), Error> {
    let turn = &turns[index];
    match turn.role {
        "system" => {
            out.push_str(turn.text());
            write_demands(out, turn)?;
        }
        "developer" => {
            if turn.text().is_empty() {
                return Err(refuse("a message of the role `developer` has no content"));
            }
            out.push_str(USER);
            out.push_str(turn.text());
            write_demands(out, turn)?;
        }
        "user" => {
            out.push_str(USER);
            for (at, part) in turn.parts.iter().enumerate() {
                out.push_str(if at > 0 { "\n\n" } else { "" });
                match part {
                    Part::Text(text) => out.push_str(text),
                    Part::Result(_, text) => {
                        let _ = write!(out, "<tool_result>{text}</tool_result>");
                    }
                }
            }
        }
        "assistant" => write_answer(out, turns, index, wanted)?,
        _ => {
            out.push_str(REMINDER);
            out.push_str(turn.text());
        }
    }
    write_opening(out, turns, index, wanted);
    Ok(())
}

/// Tools and the format of the answer, where a message asks for them.
fn write_demands(out: &mut String, turn: &Turn<'_>) -> Result<(), Error> {
    if let Some(declared) = turn.tools {
        let schemas: Result<Vec<String>, Error> = declared
            .iter()
            .map(|tool| python::json(tools::function(tool)?))
            .collect();
        out.push_str("\n\n");
        out.push_str(&TOOLS.replace("{schemas}", &schemas?.join("\n")));
    }
    match turn.message.get("response_format") {
        Some(format) if !python::falsy(format) => {
            let _ = write!(out, "\n\n{FORMAT}{}", python::json(format)?);
        }
        _ => {}
    }
    Ok(())
}

fn write_answer(
    out: &mut String,
    turns: &[Turn<'_>],
    index: usize,
    wanted: &Wanted,
) -> Result<(), Error> {
    let turn = &turns[index];
    let of_task = index > 0 && turns[index - 1].task.is_some();
    let recent = last_user(turns).is_none_or(|last| index > last);
    if wanted.thinking && !of_task && (!wanted.drop || recent) {
        out.push_str(tools::reasoning(turn.message));
        out.push_str(THINK_END);
    }
    out.push_str(turn.text());
    let calls = Call::all(turn.message)?;
    if !calls.is_empty() {
        out.push_str("\n\n<｜DSML｜tool_calls>\n");
        for call in &calls {
            write_call(out, call)?;
        }
        out.push_str("</｜DSML｜tool_calls>");
    }
    let goes_on = ["wo_eos", "prefix"]
        .iter()
        .any(|key| turn.message.get(key).is_some_and(|on| !python::falsy(on)));
    if !goes_on {
        out.push_str(EOS);
    }
    Ok(())
}

fn write_call(out: &mut String, call: &Call<'_>) -> Result<(), Error> {
    let named = match call.arguments()? {
        Arguments::Named(named) => named,
        Arguments::Text(text) => [("arguments".to_owned(), Value::from(text))]
            .into_iter()
            .collect(),
    };
    let mut lines = Vec::with_capacity(named.len());
    for (name, value) in &named {
        let (is_text, value) = match value {
            Value::String(text) => (true, text.clone()),
            other => (false, python::json(other)?),
        };
        lines.push(format!(
            "<｜DSML｜parameter name=\"{name}\" string=\"{is_text}\">{value}</｜DSML｜parameter>"
        ));
    }
    let (name, lines) = (call.name, lines.join("\n"));
    let _ = write!(
        out,
        "<｜DSML｜invoke name=\"{name}\">\n{lines}\n</｜DSML｜invoke>\n"
    );
    Ok(())
}

/// What follows a turn: the beginning of the answer, or the token of a task.
fn write_opening(out: &mut String, turns: &[Turn<'_>], index: usize, wanted: &Wanted) {
    let turn = &turns[index];
    match turns.get(index + 1) {
        Some(next) if !["assistant", "latest_reminder"].contains(&next.role) => return,
        None if !wanted.answer => return,
        _ => {}
    }
    let asks = ["user", "developer", "system"].contains(&turn.role);
    let recent = !wanted.drop || last_user(turns).is_none_or(|last| index >= last);
    let think = |on: bool| if on { THINK } else { THINK_END };
    match turn.task {
        Some(("action", token)) => {
            out.push_str(ASSISTANT);
            out.push_str(think(wanted.thinking));
            out.push_str(token);
        }
        Some((_, token)) => out.push_str(token),
        None if asks => {
            out.push_str(ASSISTANT);
            out.push_str(think(wanted.thinking && recent));
        }
        None => {}
    }
}
