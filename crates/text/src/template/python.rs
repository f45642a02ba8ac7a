//! Where Jinja shows through to Python: how values print, and the methods they have.

use std::fmt::Write;

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

/// Deepest value printed.
const MAX_DEPTH: usize = 256;

/// `raise_exception(message)`: the template refuses the conversation.
pub(super) fn raise(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message))
}

/// The message, if the error came from [`raise`].
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Some(message.clone());
        }
        source = cause.source();
    }
    None
}

#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Prints a value in `{{ … }}` as Python's `str` does.
pub(super) fn format(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&printed(state, value)?).map_err(Error::from),
    }
}

/// The test `iterable`: what Python's `iter` takes. `None` is not, which minijinja goes over.
pub(super) fn iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => false,
        ValueKind::Undefined | ValueKind::String => true,
        _ => value.try_iter().is_ok(),
    }
}

/// The filter `string`.
pub(super) fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => Ok(Value::from(printed(state, value)?)),
    }
}

fn printed(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => repr(state, value, 0, &mut text)?,
        ValueKind::Number if !value.is_integer() => repr(state, value, 0, &mut text)?,
        _ => text = value.to_string(),
    }
    Ok(text)
}

/// Python's `repr` of the values a template handles.
fn repr(state: &State<'_, '_>, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let detail = format!("the value is nested deeper than {MAX_DEPTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    state.consume_fuel(1)?;
    match value.kind() {
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float(f64::try_from(value.clone())?));
        }
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(state, &item, depth + 1, out)?;
                count += 1;
            }
            out.push_str(match (tuple, count) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                repr(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    state.consume_fuel(out.len() as u64 / 4096)
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// What Python's `str.isprintable` accepts, but for code points that are not assigned.
fn printable(c: char) -> bool {
    let format = matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0001}'..='\u{e007f}');
    let private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || format || private)
}

/// Python's `repr` of a float: the shortest digits that read back, as `1.0`, `1e-05`, `1e+16`.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        // Rust writes a float without an exponent, and without a point where it is whole.
        return if plain.contains('.') {
            plain
        } else {
            format!("{plain}.0")
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Methods of Python's types: the ones minijinja's compatibility layer has, with the differences
/// that templates can see corrected, and a few more.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, name, args)?
    {
        return Ok(result);
    }
    if let Some(text) = value.as_str()
        && name == "format"
    {
        charge_format(state, text)?;
    }
    if value.kind() == ValueKind::Map && name == "copy" && args.is_empty() {
        return Ok(value.clone());
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// Pays for what `str.format` may pad its fields to, since the engine pays only afterwards.
fn charge_format(state: &State<'_, '_>, form: &str) -> Result<(), Error> {
    let longest = form
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max()
        .unwrap_or(0);
    if longest > 4 {
        let detail = "str.format: a width or precision of more than four digits";
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let width = 10_u64.pow(longest as u32);
    state.consume_fuel(form.matches('{').count() as u64 * width / 64)
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let cut = |c: char| match chars {
                Some(chars) => chars.contains(c),
                None => is_space(c),
            };
            Value::from(match name {
                "strip" => text.trim_matches(cut),
                "lstrip" => text.trim_start_matches(cut),
                _ => text.trim_end_matches(cut),
            })
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = match name {
                "partition" => text.split_once(separator),
                _ => text.rsplit_once(separator),
            };
            let parts = match (parts, name) {
                (Some((before, after)), _) => [before, separator, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let Some(separator) = separator else {
                return Ok(None);
            };
            let limit = limit.and_then(|limit| usize::try_from(limit).ok());
            let mut parts: Vec<&str> = text
                .rsplitn(
                    limit.map_or(usize::MAX, |limit| limit.saturating_add(1)),
                    separator,
                )
                .collect();
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" if args.is_empty() => lines(text).into_iter().map(Value::from).collect(),
        _ => return Ok(None),
    }))
}

/// What Python's `str.isspace` accepts: Unicode white space and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's `str.splitlines`, which knows more line ends than `\n`.
fn lines(text: &str) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        lines.push(&rest[..at]);
        let tail = &rest[at..];
        let length = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(1, char::len_utf8)
        };
        rest = &tail[length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
