//! Reading the JSON files of a checkpoint, with errors that name file and key.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

use crate::Error;

/// Largest text file of a checkpoint that is read, in bytes. The largest tokenizer in use has
/// about 40 MB.
const MAX_FILE_BYTES: usize = 256 << 20;

/// Says what a text is if it cannot be any file of a checkpoint.
pub(crate) fn check_text(file: &str, text: &str) -> Result<(), Error> {
    let cause = if text.trim().is_empty() {
        "is empty: the download was not finished".to_owned()
    } else if text.starts_with("version https://git-lfs") {
        "is a Git LFS pointer, not the file: run `git lfs pull` in the checkpoint".to_owned()
    } else if text.bytes().take(4096).all(|byte| byte == 0) {
        "starts with zeros: the download was not finished".to_owned()
    } else if text.trim_start().starts_with("<!DOCTYPE") || text.starts_with("<html") {
        "is a web page: the download went to a login or error page".to_owned()
    } else if text.len() > MAX_FILE_BYTES {
        format!("has {} bytes, the limit is {MAX_FILE_BYTES}", text.len())
    } else {
        return Ok(());
    };
    Err(Error::File {
        file: file.into(),
        cause,
    })
}

/// Parses a JSON file.
pub(crate) fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, Error> {
    check_text(file, text)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_json::from_str(text).map_err(|error| {
        let whole = error.to_string();
        // The position is a field of its own here, so it is cut from the message.
        let cause = whole
            .rsplit_once(" at line ")
            .map_or(whole.as_str(), |(cause, _)| cause);
        Error::Json {
            file: file.into(),
            line: error.line(),
            column: error.column(),
            cause: cause.into(),
        }
    })
}

/// Parses a JSON file that must hold an object. A key that is there twice is an error, at any
/// depth: which of the two is meant is unknown. (`families` reads `config.json` by the same rule in
/// code of its own: neither may depend on the other.)
pub(crate) fn parse_object(file: &str, text: &str) -> Result<Map<String, Value>, Error> {
    match parse::<Strict>(file, text)?.0 {
        Value::Object(map) => Ok(map),
        other => Err(Error::File {
            file: file.into(),
            cause: format!("holds {} where an object is expected", kind(&other)),
        }),
    }
}

/// A value in which no key is there twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
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

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("`{key}` is there twice")));
            }
            let Strict(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// A JSON value's type in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syntax_error_has_a_place() {
        let error = parse::<Value>("x.json", "{\n  \"a\": }").unwrap_err();
        assert_eq!(
            error.to_string(),
            "x.json, line 2, column 8: expected value"
        );
    }

    #[test]
    fn a_strict_value_is_the_value() {
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 1.5, 1e308, "x", {"b": {}}]}"#;
        let plain: Value = serde_json::from_str(text).unwrap();
        assert_eq!(Value::Object(parse_object("f", text).unwrap()), plain);
        let error = parse_object("f", r#"{"a": [{"b": 1, "b": 1}]}"#).unwrap_err();
        assert!(error.to_string().contains("`b` is there twice"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_named() {
        let check = |text: &str| check_text("f", text).unwrap_err().to_string();
        assert!(check(" \n").contains("empty"));
        assert!(check("version https://git-lfs.github.com/spec/v1\n").contains("Git LFS"));
        assert!(check("\0\0\0\0").contains("zeros"));
        assert!(check("<!DOCTYPE html><html>").contains("web page"));
        assert!(check_text("f", "{}").is_ok());
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = "[".repeat(100_000);
        assert!(matches!(
            parse::<Value>("x", &deep),
            Err(Error::Json { .. })
        ));
    }
}
