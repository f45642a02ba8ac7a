//! One message of a conversation, in the OpenAI shape.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::{Error, json};

/// A message: a role, its text, and whatever else the template of some model reads (`tool_calls`,
/// `tool_call_id`, `name`, `reasoning_content`, …).
///
/// Everything a message was given is kept, in order, because templates ask whether a key is
/// there. The one thing changed on the way in is `content`: a list of text parts becomes one text,
/// joined by line ends. So do parts of type `tool_error` of a tool's message, which then has
/// `is_error`: formats that tell errors from results read it. Parts that are no text are refused,
/// since nothing here could show them to the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

impl Message {
    /// The key of a tool's message that says that the tool has failed: true or false.
    pub const IS_ERROR: &'static str = "is_error";

    /// A message of plain text.
    pub fn new(role: &str, content: &str) -> Self {
        let mut map = Map::new();
        map.insert("role".into(), role.into());
        map.insert("content".into(), content.into());
        Self(map)
    }

    /// What the model is told about its task.
    pub fn system(content: &str) -> Self {
        Self::new("system", content)
    }

    /// What the person says.
    pub fn user(content: &str) -> Self {
        Self::new("user", content)
    }

    /// What the model has said.
    pub fn assistant(content: &str) -> Self {
        Self::new("assistant", content)
    }

    /// The result of a tool call.
    pub fn tool(content: &str, call_id: Option<&str>) -> Self {
        let mut message = Self::new("tool", content);
        if let Some(id) = call_id {
            message.0.insert("tool_call_id".into(), id.into());
        }
        message
    }

    /// Reads a message. The error says what is wrong, without the position in the list.
    pub fn from_json(value: Value) -> Result<Self, String> {
        let Value::Object(mut map) = value else {
            return Err(format!(
                "{} where a message is expected",
                json::kind(&value)
            ));
        };
        match map.get("role") {
            Some(Value::String(role)) if !role.is_empty() => {}
            Some(other) => return Err(format!("`role` is {}, not a name", json::kind(other))),
            None => return Err("`role` is missing".into()),
        }
        let tool = map.get("role").is_some_and(|role| role == "tool");
        match map.get("content") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(Value::Array(parts)) => {
                // Errors of a tool stand alone: what it says is a result or one.
                let error = tool && parts.iter().any(|part| part["type"] == ERROR_PART);
                let text = joined(parts, if error { ERROR_PART } else { "text" })?;
                map.insert("content".into(), text.into());
                if error {
                    map.insert(Self::IS_ERROR.into(), true.into());
                }
            }
            Some(other) => {
                return Err(format!("`content` is {}, not a text", json::kind(other)));
            }
        }
        match map.get("tool_calls") {
            None | Some(Value::Null) => {}
            Some(Value::Array(calls)) if calls.iter().all(Value::is_object) => {}
            Some(_) => return Err("`tool_calls` is not a list of objects".into()),
        }
        Ok(Self(map))
    }

    /// Who speaks.
    pub fn role(&self) -> &str {
        self.0
            .get("role")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The text; `None` where a message has none, as those that only call tools.
    pub fn content(&self) -> Option<&str> {
        self.0.get("content").and_then(Value::as_str)
    }

    /// The calls the assistant made.
    pub fn tool_calls(&self) -> &[Value] {
        self.0
            .get("tool_calls")
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    /// Any other key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Sets any other key; `role` and `content` keep to their types.
    pub fn with(mut self, key: &str, value: Value) -> Result<Self, String> {
        self.0.insert(key.into(), value);
        Self::from_json(Value::Object(self.0))
    }

    /// Sets a key of any type but those of `role` and `content`, where there is a value.
    pub(crate) fn and(mut self, key: &str, value: Option<Value>) -> Self {
        self.0.extend(value.map(|value| (key.to_owned(), value)));
        self
    }

    /// Turns tool-call arguments that came as JSON text, as the OpenAI API carries them, into
    /// values: many templates write them with `tojson` or walk over them. Text that is no JSON
    /// object stays as it is.
    pub fn parse_arguments(&mut self) {
        let calls = self.0.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let call = if call.get("function").is_some() {
                &mut call["function"]
            } else {
                call
            };
            let Some(text) = call.get("arguments").and_then(Value::as_str) else {
                continue;
            };
            if let Ok(arguments @ Value::Object(_)) = serde_json::from_str(text) {
                call["arguments"] = arguments;
            }
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_json(value).map_err(serde::de::Error::custom)
    }
}

/// Reads a conversation from the JSON of its list of messages.
pub fn messages_from_json(value: Value) -> Result<Vec<Message>, Error> {
    let Value::Array(list) = value else {
        let cause = format!(
            "{} where a list of messages is expected",
            json::kind(&value)
        );
        return Err(Error::Message { index: 0, cause });
    };
    let read =
        |(index, value)| Message::from_json(value).map_err(|cause| Error::Message { index, cause });
    list.into_iter().enumerate().map(read).collect()
}

/// The type of content parts that say why a tool has no result.
const ERROR_PART: &str = "tool_error";

/// The texts of parts, all of them of type `wanted` (or plain texts).
fn joined(parts: &[Value], wanted: &str) -> Result<String, String> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let text = match part {
            Value::String(text) => Some(text.as_str()),
            part if part.get("type").and_then(Value::as_str) == Some(wanted) => {
                part.get("text").and_then(Value::as_str)
            }
            _ => None,
        };
        let Some(text) = text else {
            let kind = part
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or(json::kind(part));
            return Err(format!("content[{index}] is no {wanted} part but {kind}"));
        };
        texts.push(text);
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_given_is_kept_in_order() {
        let value = json!({"content": null, "role": "assistant", "reasoning_content": "hm",
            "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]});
        let mut message = Message::from_json(value.clone()).unwrap();
        assert_eq!(serde_json::to_string(&message).unwrap(), value.to_string());
        assert_eq!((message.role(), message.content()), ("assistant", None));
        message.parse_arguments();
        let arguments = &message.tool_calls()[0]["function"]["arguments"];
        assert_eq!(arguments.to_string(), r#"{"b":1,"a":2}"#);
    }

    #[test]
    fn text_parts_are_joined() {
        let value = json!({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]});
        assert_eq!(Message::from_json(value).unwrap().content(), Some("a\nb"));
    }

    #[test]
    fn errors_of_tools_are_marked() {
        let error = json!({"type": "tool_error", "text": "no such file"});
        let message = |role, parts| {
            let map = json!({"role": role, "content": parts});
            Message::from_json(map)
        };
        let failed = message("tool", json!([error])).unwrap();
        assert_eq!(failed.content(), Some("no such file"));
        assert_eq!(failed.get(Message::IS_ERROR), Some(&json!(true)));
        let result = message("tool", json!([{"type": "text", "text": "a"}])).unwrap();
        assert_eq!(result.get(Message::IS_ERROR), None);
        let both = message("tool", json!([error, {"type": "text", "text": "a"}]));
        let both = both.unwrap_err();
        assert_eq!(both, "content[1] is no tool_error part but text");
        let user = message("user", json!([error])).unwrap_err();
        assert_eq!(user, "content[0] is no text part but tool_error");
    }

    #[test]
    fn wrong_shapes_are_named() {
        let cases = [
            (json!(3), "an integer where a message is expected"),
            (json!({"content": "x"}), "`role` is missing"),
            (json!({"role": 1}), "`role` is an integer, not a name"),
            (
                json!({"role": "user", "content": 1}),
                "`content` is an integer, not a text",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url"}]}),
                "content[0] is no text part but image_url",
            ),
            (
                json!({"role": "assistant", "tool_calls": {}}),
                "`tool_calls` is not a list of objects",
            ),
        ];
        for (value, expected) in cases {
            assert_eq!(Message::from_json(value).unwrap_err(), expected);
        }
        let error = messages_from_json(json!([{"role": "user"}, {}])).unwrap_err();
        assert_eq!(error.to_string(), "messages[1]: `role` is missing");
    }
}
