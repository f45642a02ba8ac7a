//! The format of tags between `<|open|>`, `<|close|>` and `<|sep|>`: messages, channels for thought
//! and response, calls and their arguments are all tags, and the tokens of tags are never made from
//! text.
//!
//! Every tag name, attribute and text is encoded by itself, as the vendor's program does: joined
//! they would get other ids.

use serde_json::Value;

use super::options::{Wishes, wrong};
use super::tools::{self, Arguments, Call};
use super::{Prompt, has_all, python, refuse};
use crate::{ChatOptions, Error, Message, Tokenizer};

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEP: &str = "<|sep|>";
const END: &str = "<|end_of_msg|>";

const THINKING: [&str; 2] = ["thinking", "enable_thinking"];
const EFFORT: [&str; 2] = ["thinking_effort", "reasoning_effort"];
const CHOICE: [&str; 1] = ["tool_choice"];
const FORMAT: [&str; 1] = ["response_format"];
const SCHEMA: [&str; 1] = ["response_schema"];

/// Variables this format knows.
pub(super) const VARIABLES: [&str; 7] = [
    THINKING[0],
    THINKING[1],
    EFFORT[0],
    EFFORT[1],
    CHOICE[0],
    FORMAT[0],
    SCHEMA[0],
];

/// Efforts a prompt may ask for; the last is asked for where nothing is said.
const EFFORTS: [&str; 3] = ["low", "high", "max"];
/// The effort that is no thinking at all.
const NO_EFFORT: &str = "none";

const EFFORT_TEXT: &str = "`thinking_effort` guides on how much to think in your thinking channel \
    (not including the response channel), supported values include `low`, `medium`, `high`, and \
    `max`.\nNow the system is invoked with `thinking_effort=";
const TOOLS_TEXT: &str = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
const MORE_TOOLS_TEXT: &str = "## New Tools Available\nThe system dynamically extends the toolset \
    via lazy-loading.\nYou have access to all existing and extended tools.\nHere are the specs for \
    the extended tools.\n\n";
const MUST_CALL: &str = "The system is invoked with `tool_choice=required`.\n\
    You MUST call tools in the next message.";
const MUST_NOT_CALL: &str = "The system is invoked with `tool_choice=none`.\n\
    You MUST NOT call any tools in the next message.";
const RAW_JSON: &str = "Your response must be raw JSON data without markdown code blocks \
    (```json) or any additional formatting.";

/// The format. It has no editions.
#[derive(Debug, Clone)]
pub struct Xtml(());

impl Xtml {
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        has_all(tokenizer, &[OPEN, CLOSE, SEP, END]).then_some(Self(()))
    }

    pub(super) fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Prompt, Error> {
        let wishes = Wishes::new(options, &VARIABLES)?;
        let (thinking, effort) = effort(&wishes)?;
        let mut out = Prompt::default();
        if let Some(tools) = options.tools.as_ref().filter(|tools| !tools.is_empty()) {
            declare(&mut out, TOOLS_TEXT, tools)?;
        }
        if thinking {
            system(
                &mut out,
                "thinking-effort",
                &format!("{EFFORT_TEXT}{effort}`."),
            );
        }
        write_messages(&mut out, messages, thinking)?;
        match wishes.word(&CHOICE)? {
            None | Some("auto") => {}
            Some("required") => system(&mut out, "tool-choice", MUST_CALL),
            Some("none") => system(&mut out, "tool-choice", MUST_NOT_CALL),
            Some(_) => return Err(wrong(CHOICE[0], "is not auto, required or none")),
        }
        response_format(&mut out, &wishes)?;
        if options.add_generation_prompt {
            open(&mut out, "message", &[("role", "assistant")]);
            open(&mut out, if thinking { "think" } else { "response" }, &[]);
        }
        Ok(out)
    }
}

/// Whether to think, and how hard.
fn effort<'a>(wishes: &Wishes<'a>) -> Result<(bool, &'a str), Error> {
    let thinking = wishes.switch(&THINKING)?.unwrap_or(true);
    let Some(word) = wishes.word(&EFFORT)? else {
        return Ok((thinking, EFFORTS[EFFORTS.len() - 1]));
    };
    if word == NO_EFFORT {
        return Ok((false, word));
    }
    if EFFORTS.contains(&word) {
        return Ok((thinking, word));
    }
    let known = EFFORTS.join(", ");
    Err(wrong(
        EFFORT[1],
        &format!("`{word}` is unknown; known are {known}, {NO_EFFORT}"),
    ))
}

fn write_messages(out: &mut Prompt, messages: &[Message], thinking: bool) -> Result<(), Error> {
    let mut calls = Vec::new();
    let (mut at, mut answered) = (0, 0);
    while let Some(message) = messages.get(at) {
        at += 1;
        match message.role() {
            role @ ("system" | "user") => {
                if role == "system"
                    && let Some(tools) = tools::declared(message)?
                {
                    declare(out, MORE_TOOLS_TEXT, tools)?;
                    continue;
                }
                open_message(out, role, message);
                out.plain(message.content().unwrap_or_default());
                close_message(out);
            }
            "assistant" => {
                calls = Call::all(message)?;
                answered = 0;
                open_message(out, "assistant", message);
                write_answer(out, message, &calls, thinking)?;
                close_message(out);
            }
            "tool" => {
                let first = at - 1;
                let more = messages[at..].iter().take_while(|it| it.role() == "tool");
                at += more.count();
                write_results(out, &messages[first..at], &calls, answered)?;
                answered += at - first;
            }
            other => return Err(refuse(format!("the role `{other}` is unknown"))),
        }
    }
    Ok(())
}

fn write_answer(
    out: &mut Prompt,
    message: &Message,
    calls: &[Call<'_>],
    thinking: bool,
) -> Result<(), Error> {
    if thinking {
        let reasoning = tools::reasoning(message);
        open(out, "think", &[]);
        if !reasoning.trim().is_empty() {
            out.plain(reasoning);
        }
        close(out, "think");
    }
    open(out, "response", &[]);
    out.plain(message.content().unwrap_or_default());
    close(out, "response");
    if calls.is_empty() {
        return Ok(());
    }
    open(out, "tools", &[]);
    for (call, index) in calls.iter().zip(1..) {
        open(
            out,
            "call",
            &[("tool", call.name), ("index", &format!("{index}"))],
        );
        match call.arguments()? {
            Arguments::Text(text) => {
                open(out, "json", &[("type", "object")]);
                out.plain(&text);
                close(out, "json");
            }
            Arguments::Named(named) => {
                for (name, value) in &named {
                    write_argument(out, name, value)?;
                }
            }
        }
        close(out, "call");
    }
    close(out, "tools");
    Ok(())
}

fn write_argument(out: &mut Prompt, name: &str, value: &Value) -> Result<(), Error> {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    open(out, "argument", &[("key", name), ("type", kind)]);
    match value {
        Value::String(text) => out.plain(text),
        other => out.plain(&python::json(other)?),
    }
    close(out, "argument");
    Ok(())
}

/// Results one after the other: in the order of the calls if each names one, otherwise as given.
/// They are numbered on from those `before`.
fn write_results(
    out: &mut Prompt,
    results: &[Message],
    calls: &[Call<'_>],
    before: usize,
) -> Result<(), Error> {
    let answered = |message: &Message| {
        let id = tools::answered(message)?;
        calls.iter().position(|call| call.id == Some(id))
    };
    let mut ordered: Vec<(Option<usize>, &Message)> =
        results.iter().map(|it| (answered(it), it)).collect();
    let known = ordered.iter().all(|(call, _)| call.is_some());
    if known {
        ordered.sort_by_key(|(call, _)| *call);
    }
    for (place, (call, message)) in (before..).zip(ordered) {
        let own = message.get("tool").or_else(|| message.get("name"));
        let call = call.filter(|_| known).map(|call| &calls[call]);
        let name = match (call, own.and_then(Value::as_str)) {
            (Some(call), _) => Some(call.name),
            (None, Some(own)) => Some(own),
            (None, None) => calls.get(place).map(|call| call.name),
        };
        let Some(name) = name else {
            return Err(refuse(
                "a tool message names no tool (`name`) and answers no call of the assistant",
            ));
        };
        let index = format!("{}", place + 1);
        let attributes = [("role", "tool"), ("tool", name), ("index", &index)];
        open(out, "message", &attributes);
        out.plain(message.content().unwrap_or_default());
        close_message(out);
    }
    Ok(())
}

fn response_format(out: &mut Prompt, wishes: &Wishes<'_>) -> Result<(), Error> {
    let Some((name, format)) = wishes.get(&FORMAT) else {
        return Ok(());
    };
    let kind = format.get("type").unwrap_or(format).as_str();
    match kind {
        Some("text") => {}
        Some("json_object") => {
            let body =
                format!("The system is invoked with `response_format=json_object`.\n{RAW_JSON}");
            system(out, "response-format", &body);
        }
        Some("json_schema") => {
            let inner = format.get("json_schema");
            let schema = wishes.get(&SCHEMA).map(|(_, schema)| schema).or_else(|| {
                let inner = inner?;
                let nested = inner.get("schema").or_else(|| inner.get("json_schema"));
                Some(nested.unwrap_or(inner))
            });
            let schema = schema.ok_or_else(|| wrong(name, "has no schema"))?;
            let body = format!(
                "The system is invoked with `response_format=json_schema`.\n{RAW_JSON}\nThe JSON \
                 data must match the following schema:\n```json\n{}\n```",
                python::sorted_json(schema)?
            );
            system(out, "response-format", &body);
        }
        _ => return Err(wrong(name, "is not text, json_object or json_schema")),
    }
    Ok(())
}

/// Declares tools.
fn declare(out: &mut Prompt, heading: &str, tools: &[Value]) -> Result<(), Error> {
    let schemas = python::sorted_json(&Value::Array(tools.to_vec()))?;
    let body = format!("{heading}```json\n{schemas}\n```");
    system(out, "tool-declare", &body);
    Ok(())
}

/// A message of the system's own.
fn system(out: &mut Prompt, kind: &str, body: &str) {
    open(out, "message", &[("role", "system"), ("type", kind)]);
    out.plain(body);
    close_message(out);
}

fn open_message(out: &mut Prompt, role: &str, message: &Message) {
    let name = message.get("name").and_then(Value::as_str);
    match name.filter(|name| !name.is_empty()) {
        Some(name) => open(out, "message", &[("role", role), ("name", name)]),
        None => open(out, "message", &[("role", role)]),
    }
}

fn close_message(out: &mut Prompt) {
    close(out, "message");
    out.token(END);
}

fn open(out: &mut Prompt, tag: &str, attributes: &[(&str, &str)]) {
    out.token(OPEN);
    out.plain(tag);
    for (key, value) in attributes {
        out.plain(&format!(" {key}"));
        out.plain("=\"");
        out.plain(&value.replace('&', "&amp;").replace('"', "&quot;"));
        out.plain("\"");
    }
    out.token(SEP);
}

fn close(out: &mut Prompt, tag: &str) {
    out.token(CLOSE);
    out.plain(tag);
    out.token(SEP);
}
