//! Tool declarations and calls in the OpenAI shape.

use serde_json::{Map, Value};

use super::python::falsy;
use super::refuse;
use crate::{Error, Message};

/// The declarations that a message carries; an empty list counts as none.
pub(super) fn declared(message: &Message) -> Result<Option<&Vec<Value>>, Error> {
    match message.get("tools") {
        None => Ok(None),
        Some(value) if falsy(value) => Ok(None),
        Some(Value::Array(tools)) => Ok(Some(tools)),
        Some(_) => Err(refuse("`tools` of a message is not a list")),
    }
}

/// The `function` of a declaration.
pub(super) fn function(tool: &Value) -> Result<&Value, Error> {
    let function = tool.get("function").filter(|it| it.is_object());
    function.ok_or_else(|| refuse("a tool has no `function`"))
}

/// A call the assistant made.
pub(super) struct Call<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) name: &'a str,
    arguments: Option<&'a Value>,
}

/// Arguments of a call.
pub(super) enum Arguments {
    /// By name.
    Named(Map<String, Value>),
    /// Text that is no JSON, as the model wrote it.
    Text(String),
}

impl<'a> Call<'a> {
    /// Reads a call: `{"id", "function": {"name", "arguments"}}`, or without `function` around.
    fn read(call: &'a Value) -> Result<Self, Error> {
        let inner = call.get("function").filter(|it| it.is_object());
        let inner = inner.unwrap_or(call);
        let Some(name) = inner.get("name").and_then(Value::as_str) else {
            return Err(refuse("a tool call has no function name"));
        };
        Ok(Self {
            id: call.get("id").and_then(Value::as_str),
            name,
            arguments: inner.get("arguments"),
        })
    }

    /// All calls of a message.
    pub(super) fn all(message: &'a Message) -> Result<Vec<Self>, Error> {
        message.tool_calls().iter().map(Self::read).collect()
    }

    /// The arguments; JSON text is parsed, and nothing at all is no argument.
    pub(super) fn arguments(&self) -> Result<Arguments, Error> {
        let wrong = || refuse("the arguments of a tool call are no JSON object");
        match self.arguments {
            None | Some(Value::Null) => Ok(Arguments::Named(Map::new())),
            Some(Value::Object(named)) => Ok(Arguments::Named(named.clone())),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(Arguments::Named(Map::new())),
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(Value::Object(named)) => Ok(Arguments::Named(named)),
                Ok(_) => Err(wrong()),
                Err(_) => Ok(Arguments::Text(text.clone())),
            },
            Some(_) => Err(wrong()),
        }
    }
}

/// The id of the call that a tool message answers.
pub(super) fn answered(message: &Message) -> Option<&str> {
    let id = message.get("tool_call_id").or_else(|| message.get("id"));
    id.and_then(Value::as_str)
}

/// What the assistant thought.
pub(super) fn reasoning(message: &Message) -> &str {
    let text = |key| message.get(key).and_then(Value::as_str);
    let first = text("reasoning_content").filter(|text| !text.is_empty());
    first.or_else(|| text("reasoning")).unwrap_or_default()
}
