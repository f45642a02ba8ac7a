//! Python's `json.dumps`: models have seen its spacing, so a template must write it exactly.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python;

/// Deepest value written. Python itself stops near a thousand.
const MAX_DEPTH: usize = 256;

/// How a value is written.
pub(crate) struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

impl Style {
    /// As Python writes by itself, with `ensure_ascii=False`.
    pub(crate) fn spaced() -> Self {
        Self {
            ascii: false,
            indent: None,
            item: ", ".into(),
            key: ": ".into(),
            sort: false,
        }
    }

    /// With sorted keys and no spaces.
    pub(crate) fn compact() -> Self {
        Self {
            item: ",".into(),
            key: ":".into(),
            sort: true,
            ..Self::spaced()
        }
    }

    /// From the arguments of `json.dumps`; `None` means not given.
    pub(super) fn new(
        ascii: &Value,
        indent: &Value,
        separators: &Value,
        sort: &Value,
    ) -> Result<Self, Error> {
        let indent = match indent.kind() {
            ValueKind::None | ValueKind::Undefined => None,
            ValueKind::String => indent.as_str().map(str::to_owned),
            // Python's True is 1.
            ValueKind::Bool => Some(" ".repeat(usize::from(indent.is_true()))),
            _ => {
                let width = i64::try_from(indent.clone())?.clamp(0, 64);
                Some(" ".repeat(width as usize))
            }
        };
        let (item, key) = if separators.is_none() || separators.is_undefined() {
            (
                if indent.is_some() { "," } else { ", " }.to_owned(),
                ": ".to_owned(),
            )
        } else {
            let pair: Vec<Value> = separators.try_iter()?.take(3).collect();
            match pair.as_slice() {
                [item, key] => match (item.as_str(), key.as_str()) {
                    (Some(item), Some(key)) => (item.to_owned(), key.to_owned()),
                    _ => return Err(refuse("separators must be two strings")),
                },
                _ => return Err(refuse("separators must be two strings")),
            }
        };
        Ok(Self {
            ascii: ascii.is_true(),
            indent,
            item,
            key,
            sort: sort.is_true(),
        })
    }
}

fn refuse(detail: impl Into<String>) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("tojson: {}", detail.into()),
    )
}

/// Writes `value`. `charge` is asked before more bytes are made.
pub(crate) fn dumps(
    value: &Value,
    style: &Style,
    charge: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut writer = Writer {
        out: String::new(),
        style,
        charge,
        charged: 0,
    };
    writer.value(value, 0)?;
    writer.charge()?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    style: &'a Style,
    charge: &'a dyn Fn(usize) -> Result<(), Error>,
    charged: usize,
}

impl Writer<'_> {
    fn charge(&mut self) -> Result<(), Error> {
        let new = self.out.len() - self.charged;
        self.charged = self.out.len();
        (self.charge)(new)
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse(format!(
                "the value is nested deeper than {MAX_DEPTH}"
            )));
        }
        if self.out.len() - self.charged > 4096 {
            self.charge()?;
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', depth, &items, |writer, item| {
                    writer.value(item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort {
                    keys.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
                }
                self.list('{', '}', depth, &keys, |writer, key| {
                    let name = key_text(key)?;
                    writer.string(&name);
                    writer.out.push_str(&writer.style.key);
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(refuse(format!("{kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: &[Value],
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.style.item);
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python turns the keys of an object into strings in its own way.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::None => Ok("null".into()),
        kind => Err(refuse(format!("{kind} cannot be a key"))),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".into(),
        Ok(number) if number.is_infinite() && number > 0.0 => "Infinity".into(),
        Ok(number) if number.is_infinite() => "-Infinity".into(),
        Ok(number) => python::float(number),
        Err(_) => value.to_string(),
    }
}
