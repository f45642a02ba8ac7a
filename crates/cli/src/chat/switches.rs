//! What a prompt is asked for beside the messages: thinking, its effort, tools.

use crate::args::AnswerArgs;
use crate::failure::Failure;
use crate::files;
use anyhow::Context;
use lamella_text::{Chat, ChatOptions};
use serde_json::Value;
use std::path::Path;

/// Names that templates and formats have for the switch of thinking.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];
/// Names for its effort.
const EFFORT: [&str; 2] = ["reasoning_effort", "thinking_effort"];

/// Longest file of tools that is read.
const MAX_TOOLS_BYTES: u64 = 16 << 20;

/// The options of prompts of `chat`.
///
/// # Errors
/// If it has no such switch, or the file of tools is none.
pub(crate) fn prompt_options(answer: &AnswerArgs, chat: &Chat) -> anyhow::Result<ChatOptions> {
    let mut options = ChatOptions::prompt();
    if let Some(on) = answer.thinking {
        set(&mut options, chat, "thinking", &THINKING, on.into())?;
    }
    if let Some(effort) = &answer.reasoning_effort {
        let value = effort.as_str().into();
        set(&mut options, chat, "reasoning-effort", &EFFORT, value)?;
    }
    if let Some(path) = &answer.tools {
        let template = chat.template();
        if template.is_some_and(|template| !template.reads("tools")) {
            return Err(missing(chat, "tools"));
        }
        options.tools = Some(tools(path)?);
    }
    Ok(options)
}

/// Sets every variable of `names` that `chat` reads to `value`.
fn set(
    options: &mut ChatOptions,
    chat: &Chat,
    option: &str,
    names: &[&str],
    value: Value,
) -> anyhow::Result<()> {
    let read: Vec<&&str> = names.iter().filter(|name| chat.reads(name)).collect();
    if read.is_empty() {
        return Err(missing(chat, option));
    }
    for name in read {
        options.variables.insert((*name).to_owned(), value.clone());
    }
    Ok(())
}

/// `chat` does not read an option: says who it is, and which option does what was wanted.
fn missing(chat: &Chat, option: &str) -> anyhow::Error {
    let reader = match chat.template() {
        Some(_) => "template",
        None => "format",
    };
    let reads = |names: &[&str]| names.iter().any(|name| chat.reads(name));
    let instead = match option {
        "thinking" if reads(&EFFORT) => "; it has --reasoning-effort",
        "reasoning-effort" if reads(&THINKING) => "; it has --thinking",
        _ => "",
    };
    Failure::usage(format!(
        "--{option}: the model's chat {reader} does not read it, so it would change \
         nothing{instead}"
    ))
}

/// The declarations in a file: a JSON list in the OpenAI shape.
fn tools(path: &Path) -> anyhow::Result<Vec<Value>> {
    let place = || format!("--tools: {}", path.display());
    let wrong = |cause: String| Failure::usage(format!("{}: {cause}", place()));
    let text = files::read_text(path, MAX_TOOLS_BYTES).with_context(place)?;
    let tools = match serde_json::from_str(&text) {
        Ok(Value::Array(tools)) => tools,
        Ok(_) => return Err(wrong("not a list".to_owned())),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let named = |tool: &Value| {
        tool["function"]["name"]
            .as_str()
            .is_some_and(|n| !n.is_empty())
    };
    match tools.iter().position(|tool| !named(tool)) {
        None => Ok(tools),
        Some(index) => Err(wrong(format!(
            "index {index}: not a declaration {{\"type\": \"function\", \"function\": \
             {{\"name\": …}}}}"
        ))),
    }
}
