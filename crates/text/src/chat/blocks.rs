//! The format of typed blocks: a role token, the name of who speaks where there is one, a content
//! token, text, an end token. The model chooses itself which content it writes.
//!
//! Role and content are tokens that text cannot write.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::options::{Wishes, wrong};
use super::tools::{self, Arguments, Call};
use super::{Prompt, has_all, python, refuse};
use crate::{ChatOptions, Error, Message, Tokenizer};

const USER: &str = "<|message_user|>";
const MODEL: &str = "<|message_model|>";
const SYSTEM: &str = "<|message_system|>";
const TOOL: &str = "<|message_tool|>";
const TEXT: &str = "<|content_text|>";
const THINKING: &str = "<|content_thinking|>";
const CALL: &str = "<|content_invoke_tool_json|>";
/// The content token of a tool's result that says why there is none; not in every tokenizer.
const ERROR: &str = "<|content_tool_error|>";
const END: &str = "<|end_message|>";
const END_OF_TURN: &str = "<|content_model_end_sampling|>";
/// The content token of declarations, under the names it has in published tokenizers.
const XML: [&str; 2] = ["<|content_xml|>", "<|unused_200024|>"];

/// Who speaks where tools are declared.
const DECLARES: &str = "tool_declare";

const EFFORT: [&str; 1] = ["reasoning_effort"];
/// Largest effort.
const MOST: f64 = 0.99;

/// Variables this format knows.
pub(super) const VARIABLES: [&str; 1] = EFFORT;

/// The format, with the spelling of the one token whose name differs.
#[derive(Debug, Clone)]
pub struct Blocks {
    xml: &'static str,
    /// Whether there is a token for errors of tools.
    errors: bool,
}

impl Blocks {
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let all = [
            USER,
            MODEL,
            SYSTEM,
            TOOL,
            TEXT,
            THINKING,
            CALL,
            END,
            END_OF_TURN,
        ];
        let xml = XML.into_iter().find(|xml| has_all(tokenizer, &[xml]))?;
        let errors = has_all(tokenizer, &[ERROR]);
        has_all(tokenizer, &all).then_some(Self { xml, errors })
    }

    pub(super) fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Prompt, Error> {
        let wishes = Wishes::new(options, &VARIABLES)?;
        let mut effort = effort(&wishes)?;
        let mut out = Prompt::default();
        let mut declared: Vec<&Value> = options.tools.iter().flatten().collect();
        for message in messages.iter().filter(|it| it.role() == "developer") {
            declared.extend(tools::declared(message)?.into_iter().flatten());
        }
        if !declared.is_empty() {
            block(
                &mut out,
                SYSTEM,
                DECLARES,
                self.xml,
                &declarations(&declared)?,
            );
        }
        let mut names = HashMap::new();
        for message in messages {
            let role = message.role();
            if !["system", "developer"].contains(&role)
                && let Some(effort) = effort.take()
            {
                block(&mut out, SYSTEM, "", TEXT, &effort);
            }
            if message.role() == "tool" {
                self.result(&mut out, message, &names)?;
            } else {
                write(&mut out, message, &mut names)?;
            }
        }
        if let Some(effort) = effort {
            block(&mut out, SYSTEM, "", TEXT, &effort);
        }
        if options.add_generation_prompt {
            out.token(MODEL);
        }
        Ok(out)
    }

    /// The result of a call, or why there is none.
    fn result(
        &self,
        out: &mut Prompt,
        message: &Message,
        names: &HashMap<&str, &str>,
    ) -> Result<(), Error> {
        let own = message.get("name").and_then(Value::as_str);
        let own = own.filter(|name| !name.is_empty());
        let id = message.get("tool_call_id").and_then(Value::as_str);
        let called = || id.and_then(|id| names.get(id).copied());
        let name = own.or_else(called).unwrap_or_default();
        let content = match message.get(Message::IS_ERROR) {
            None | Some(Value::Null | Value::Bool(false)) => TEXT,
            Some(Value::Bool(true)) if self.errors => ERROR,
            Some(Value::Bool(true)) => {
                return Err(refuse(format!("the tokenizer has no {ERROR}")));
            }
            Some(_) => return Err(refuse("`is_error` is not true or false")),
        };
        let text = message.content().unwrap_or_default();
        block(out, TOOL, name, content, text);
        Ok(())
    }
}

/// The block that says how hard to think.
fn effort(wishes: &Wishes<'_>) -> Result<Option<String>, Error> {
    let Some((name, value)) = wishes.get(&EFFORT) else {
        return Ok(None);
    };
    let number = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    };
    match number.filter(|number| (0.0..=MOST).contains(number)) {
        None => Err(wrong(name, &format!("is not a number from 0 to {MOST}"))),
        Some(number) => {
            let text = format!("{number:.2}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            let text = if text == "0" { "0.0" } else { text };
            Ok(Some(format!("Thinking effort level: {text}")))
        }
    }
}

fn declarations(tools: &[&Value]) -> Result<String, Error> {
    let mut specs = Vec::with_capacity(tools.len());
    for tool in tools {
        let function = tools::function(tool)?;
        let filled = |key: &str, empty: Value| match function.get(key) {
            Some(value) if !python::falsy(value) => value.clone(),
            _ => empty,
        };
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            return Err(refuse("a tool has no name"));
        };
        specs.push(json!({
            "name": name,
            "description": filled("description", "".into()),
            "parameters": filled("parameters", json!({})),
            "type": tool.get("type").cloned().unwrap_or("function".into()),
        }));
    }
    python::sorted_json(&Value::Array(specs))
}

fn write<'a>(
    out: &mut Prompt,
    message: &'a Message,
    names: &mut HashMap<&'a str, &'a str>,
) -> Result<(), Error> {
    let text = message.content().unwrap_or_default();
    let said = |out: &mut Prompt, role: &str| {
        if !text.is_empty() {
            block(out, role, "", TEXT, text);
        }
    };
    match message.role() {
        "user" => said(out, USER),
        "system" | "developer" => said(out, SYSTEM),
        "assistant" => {
            let reasoning = tools::reasoning(message);
            if !reasoning.is_empty() {
                block(out, MODEL, "", THINKING, reasoning);
            }
            said(out, MODEL);
            for call in Call::all(message)? {
                let Arguments::Named(arguments) = call.arguments()? else {
                    return Err(refuse("the arguments of a tool call are no JSON object"));
                };
                names.extend(call.id.map(|id| (id, call.name)));
                let name = python::json(&call.name.into())?;
                let arguments = python::sorted_json(&Value::Object(arguments))?;
                let body = format!("{{\"name\":{name},\"args\":{arguments}}}");
                block(out, MODEL, call.name, CALL, &body);
            }
            out.token(END_OF_TURN);
        }
        other => return Err(refuse(format!("the role `{other}` is unknown"))),
    }
    Ok(())
}

/// One block.
fn block(out: &mut Prompt, role: &str, name: &str, content: &str, text: &str) {
    out.token(role);
    out.plain(name);
    out.token(content);
    out.plain(text);
    out.token(END);
}
