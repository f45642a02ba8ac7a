//! JSON as Python writes it, for the formats in code.

use minijinja::Value as JinjaValue;
use minijinja::value::Serde;
use serde_json::Value;

use super::refuse;
use crate::Error;
use crate::template::{Style, dumps};

/// `json.dumps(value, ensure_ascii=False)`.
pub(super) fn json(value: &Value) -> Result<String, Error> {
    write(value, &Style::spaced())
}

/// The same with sorted keys and no spaces.
pub(super) fn sorted_json(value: &Value) -> Result<String, Error> {
    write(value, &Style::compact())
}

fn write(value: &Value, style: &Style) -> Result<String, Error> {
    let value = JinjaValue::from(Serde(value));
    dumps(&value, style, &|_| Ok(())).map_err(|error| refuse(error.to_string()))
}

/// Whether Python takes the value for false.
pub(super) fn falsy(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}
