//! `lamella.toml`: flat keys, whose values become what would have been typed.

use toml::{Table, Value};

/// The keys of a file and their values as text.
///
/// # Errors
/// What is wrong and where, without the file's name.
pub(super) fn entries(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let table: Table = text.parse().map_err(|e| describe(text, &e))?;
    table
        .into_iter()
        .map(|(key, value)| Ok((key.clone(), values(&key, value)?)))
        .collect()
}

fn describe(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let line = text.as_bytes()[..start]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
        + 1;
    format!("line {line}: {}", error.message())
}

fn values(key: &str, value: Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(items) => items.into_iter().map(|item| scalar(key, item)).collect(),
        Value::Table(items) => {
            let pair = |(name, item)| Ok(format!("{name}={}", scalar(key, item)?));
            items.into_iter().map(pair).collect()
        }
        other => Ok(vec![scalar(key, other)?]),
    }
}

fn scalar(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        other => Err(format!("{key}: a {} is no value for it", other.type_str())),
    }
}
