//! A parameter's value in a format of tags: text, which becomes JSON.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// How deep `anyOf` and the like are looked into.
const MAX_DEPTH: usize = 8;
/// Other words for text in declarations.
const TEXT: [&str; 4] = ["string", "str", "text", "varchar"];

/// What values are declared to be, by tool and parameter.
#[derive(Debug, Clone, Default)]
pub(super) struct Declared(HashMap<String, Map<String, Value>>);

impl Declared {
    /// Reads declarations in the OpenAI shape, or without `function` around. What has another
    /// shape declares nothing.
    pub(super) fn new(tools: &[Value]) -> Self {
        let read = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?;
            let parameters = function
                .get("parameters")
                .or(function.get("input_schema"))?;
            let properties = parameters.get("properties")?.as_object()?;
            Some((name.to_owned(), properties.clone()))
        };
        Self(tools.iter().filter_map(read).collect())
    }

    /// The value that `text` stands for, as JSON text: what may only be text is text; otherwise
    /// JSON is taken as it is, and what is no JSON is text.
    pub(super) fn json(&self, tool: &str, parameter: &str, text: &str) -> String {
        let schema = self.0.get(tool).and_then(|all| all.get(parameter));
        let Some(kinds) = schema.and_then(|schema| kinds(schema, 0)) else {
            return json_or_text(text);
        };
        let may = |kind: &str| kinds.iter().any(|known| known == kind);
        let text_allowed = TEXT.iter().any(|kind| may(kind));
        if text_allowed && kinds.iter().all(|kind| TEXT.contains(&kind.as_str())) {
            return quoted(text);
        }
        let trimmed = text.trim();
        let kind = match serde_json::from_str::<Value>(trimmed) {
            Ok(Value::Null) => "null",
            Ok(Value::Bool(_)) => "boolean",
            Ok(Value::Number(_)) if may("number") => "number",
            Ok(Value::Number(_)) => "integer",
            Ok(Value::String(_)) => "",
            Ok(Value::Array(_)) => "array",
            Ok(Value::Object(_)) => "object",
            // As Python spells them.
            Err(_) => match trimmed {
                "True" | "False" if may("boolean") => return trimmed.to_ascii_lowercase(),
                "None" if may("null") => return "null".into(),
                _ => "",
            },
        };
        match may(kind) {
            true => trimmed.to_owned(),
            false if text_allowed => quoted(text),
            false => json_or_text(text),
        }
    }
}

/// The types a schema allows; `None` where it does not say.
fn kinds(schema: &Value, depth: usize) -> Option<Vec<String>> {
    if depth > MAX_DEPTH {
        return None;
    }
    match schema.get("type") {
        Some(Value::String(kind)) => return Some(vec![kind.clone()]),
        Some(Value::Array(list)) => {
            return list
                .iter()
                .map(|kind| Some(kind.as_str()?.to_owned()))
                .collect();
        }
        _ => {}
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        let texts = values.iter().all(Value::is_string) && !values.is_empty();
        return texts.then(|| vec!["string".into()]);
    }
    let choices = schema.get("anyOf").or(schema.get("oneOf"))?.as_array()?;
    let all: Option<Vec<_>> = choices
        .iter()
        .map(|choice| kinds(choice, depth + 1))
        .collect();
    Some(all?.concat())
}

/// JSON as it stands, and what is no JSON as a string.
pub(super) fn json_or_text(text: &str) -> String {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => text.trim().to_owned(),
        Err(_) => quoted(text),
    }
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_what_is_declared() {
        let tools = [
            json!({"type": "function", "function": {"name": "f", "parameters": {
            "properties": {
                "text": {"type": "string"}, "whole": {"type": "integer"},
                "maybe": {"type": ["string", "null"]}, "yes": {"type": "boolean"},
                "list": {"type": "array"}, "word": {"enum": ["a", "1"]},
                "either": {"anyOf": [{"type": "number"}, {"type": "string"}]}, "free": {},
                "object": {"type": "object"}, "none": {"oneOf": [{"type": "null"}]},
            }}}}),
        ];
        let declared = Declared::new(&tools);
        for (parameter, text, expected) in [
            ("text", "5", r#""5""#),
            ("text", " {\"a\": 1}\n", r#"" {\"a\": 1}\n""#),
            ("whole", " 5\n", "5"),
            ("whole", "five", r#""five""#),
            ("maybe", "null", "null"),
            ("maybe", "5", r#""5""#),
            ("yes", "True", "true"),
            ("yes", "false", "false"),
            ("yes", "perhaps", r#""perhaps""#),
            ("list", "[1, \"a\"]", "[1, \"a\"]"),
            ("list", "[1,", r#""[1,""#),
            ("word", "1", r#""1""#),
            ("either", "1.50", "1.50"),
            ("either", "x", r#""x""#),
            ("either", "[1]", r#""[1]""#),
            ("free", "1e5", "1e5"),
            ("object", "{\"a\": {}}", "{\"a\": {}}"),
            ("none", "None", "null"),
            ("unknown", "\"a\"", "\"a\""),
            ("unknown", "a\"", r#""a\"""#),
        ] {
            assert_eq!(declared.json("f", parameter, text), expected, "{parameter}");
        }
        assert_eq!(declared.json("g", "text", "5"), "5");
    }

    #[test]
    fn deep_schemas_say_nothing() {
        let mut schema = json!({"type": "string"});
        for _ in 0..100 {
            schema = json!({"anyOf": [schema]});
        }
        assert_eq!(kinds(&schema, 0), None);
    }
}
