//! JSON without the usual leniency: a key that appears twice is an error, at any depth. `text`
//! reads its files by the same rule in code of its own: neither may depend on the other, and what
//! both might depend on knows no JSON.

use crate::LowerError;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Parses one JSON object.
pub(crate) fn parse_object(text: &str) -> Result<Map<String, Value>, LowerError> {
    match serde_json::from_str::<StrictObject>(text) {
        Ok(object) => Ok(object.0),
        Err(error) => Err(LowerError::NotJson {
            line: error.line(),
            column: error.column(),
            message: without_place(&error),
        }),
    }
}

/// The message without the " at line .. column .." that serde_json appends.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

struct StrictObject(Map<String, Value>);

impl<'de> Deserialize<'de> for StrictObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_map(ObjectVisitor)
            .map(StrictObject)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "the key {key:?} appears twice"
                )));
            }
            map.insert(key, entries.next_value::<Strict>()?.0);
        }
        Ok(map)
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Strict)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Strict>()? {
            list.push(item.0);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Value, A::Error> {
        ObjectVisitor.visit_map(entries).map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        parse_object(text).unwrap_err().to_string()
    }

    #[test]
    fn plain_objects_read_as_serde_json_reads_them() {
        let text = r#"{"a": [1, -2, 2.5, true, null, "x\u00e9"], "b": {"c": {}, "d": []}}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(Value::Object(parse_object(text).unwrap()), expected);
    }

    #[test]
    fn repeated_keys_are_refused_at_any_depth() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"b": {"a": 1, "a": 2}}"#,
            r#"{"b": [[{"a": 1, "a": 2}]]}"#,
            r#"{"a": 1, "\u0061": 1}"#,
        ] {
            assert!(
                message(text).contains(r#"the key "a" appears twice"#),
                "{}",
                message(text)
            );
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_stack_overflow() {
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(message(&deep).contains("recursion"), "{}", message(&deep));
    }
}
