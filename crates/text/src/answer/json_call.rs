//! A call that is a JSON object, read byte by byte: its name, and its arguments as they come.

use serde::de::IgnoredAny;
use std::collections::HashMap;

/// Keys under which arguments stand in published formats.
const ARGUMENTS: [&str; 3] = ["arguments", "parameters", "args"];

/// What became of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the object.
    More,
    /// It ended the object.
    Done,
    /// It cannot stand here; the object ends before it.
    Broken,
}

/// What comes next directly inside the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Begin,
    Key,
    InKey(usize),
    Colon,
    Value,
    InValue(usize),
    Comma,
}

/// An object being read. It looks at structure only; whether the arguments are JSON is asked at
/// the end ([`JsonCall::is_whole`]).
#[derive(Debug, Clone)]
pub(super) struct JsonCall {
    text: Vec<u8>,
    at: At,
    depth: usize,
    in_string: bool,
    escaped: bool,
    key: String,
    pub(super) name: Option<String>,
    pub(super) id: Option<String>,
    arguments: Arguments,
    /// A key of meaning was there twice.
    twice: bool,
    /// Bytes of the arguments that were handed on.
    sent: usize,
}

/// The arguments so far.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Arguments {
    None,
    /// An object in the text, from here to there or to its end.
    Object(usize, Option<usize>),
    /// As JSON text of their own.
    Text(String),
}

impl JsonCall {
    pub(super) fn new() -> Self {
        Self {
            text: Vec::new(),
            at: At::Begin,
            depth: 0,
            in_string: false,
            escaped: false,
            key: String::new(),
            name: None,
            id: None,
            arguments: Arguments::None,
            twice: false,
            sent: 0,
        }
    }

    /// Takes the spelling of a control token: inside a string it is text like any other.
    pub(super) fn control(&mut self, spelling: &str) -> Step {
        if !self.in_string {
            return Step::Broken;
        }
        self.escaped = false;
        self.text.extend(spelling.as_bytes());
        Step::More
    }

    /// Takes a byte of text.
    pub(super) fn byte(&mut self, byte: u8) -> Step {
        if self.in_string {
            self.text.push(byte);
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    return self.string_ended();
                }
                _ => {}
            }
            return Step::More;
        }
        let nested = self.depth > 1;
        let step = match self.depth {
            0 => self.begin(byte),
            1 => self.member(byte),
            _ => self.nested(byte),
        };
        if step != Step::Broken {
            self.text.push(byte);
        }
        if nested && self.depth == 1 {
            self.value_ended(self.text.len());
        }
        step
    }

    fn begin(&mut self, byte: u8) -> Step {
        match byte {
            b'{' => {
                self.depth = 1;
                self.at = At::Key;
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => return Step::Broken,
        }
        Step::More
    }

    /// A byte directly inside the object.
    fn member(&mut self, byte: u8) -> Step {
        let here = self.text.len();
        match (self.at, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (At::Key, b'"') => {
                self.at = At::InKey(here);
                self.in_string = true;
            }
            (At::Value, b'"') => {
                self.at = At::InValue(here);
                self.in_string = true;
            }
            (At::Colon, b':') => self.at = At::Value,
            (At::Comma, b',') => self.at = At::Key,
            (At::InValue(_), b',') => {
                self.value_ended(here);
                self.at = At::Key;
            }
            (At::Key | At::Comma, b'}') => {
                self.depth = 0;
                return Step::Done;
            }
            (At::InValue(_), b'}') => {
                self.value_ended(here);
                self.depth = 0;
                return Step::Done;
            }
            (At::Value, b'{' | b'[') => {
                self.at = At::InValue(here);
                self.depth = 2;
                if byte == b'{' && ARGUMENTS.contains(&self.key.as_str()) {
                    match self.arguments {
                        Arguments::None => self.arguments = Arguments::Object(here, None),
                        _ => self.twice = true,
                    }
                }
            }
            (At::Value, byte) if scalar(byte) => self.at = At::InValue(here),
            (At::InValue(_), byte) if scalar(byte) => {}
            _ => return Step::Broken,
        }
        Step::More
    }

    /// A byte deeper inside.
    fn nested(&mut self, byte: u8) -> Step {
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth -= 1,
            b',' | b':' => {}
            byte if scalar(byte) || byte.is_ascii_whitespace() => {}
            _ => return Step::Broken,
        }
        Step::More
    }

    fn string_ended(&mut self) -> Step {
        let end = self.text.len();
        match self.at {
            At::InKey(start) if self.depth == 1 => match self.string(start, end) {
                Some(key) => {
                    self.key = key;
                    self.at = At::Colon;
                }
                None => return Step::Broken,
            },
            At::InValue(_) if self.depth == 1 => self.value_ended(end),
            _ => {}
        }
        Step::More
    }

    /// The JSON string from `start` to `end`.
    fn string(&self, start: usize, end: usize) -> Option<String> {
        serde_json::from_slice(self.text.get(start..end)?).ok()
    }

    /// The value that began at [`At::InValue`] ends before `end`.
    fn value_ended(&mut self, end: usize) {
        let At::InValue(start) = std::mem::replace(&mut self.at, At::Comma) else {
            return;
        };
        let arguments = ARGUMENTS.contains(&self.key.as_str());
        let slot = match self.key.as_str() {
            "name" => &self.name,
            "id" => &self.id,
            _ => &None,
        };
        self.twice |= slot.is_some();
        match self.key.as_str() {
            "name" => self.name = self.string(start, end),
            "id" => self.id = self.string(start, end),
            _ if !arguments => {}
            _ => match &mut self.arguments {
                Arguments::Object(begun, open @ None) if *begun == start => *open = Some(end),
                Arguments::None => {
                    let text = self.other_arguments(start, end);
                    self.arguments = Arguments::Text(text);
                }
                _ => self.twice = true,
            },
        }
    }

    /// Arguments that are no object: an object inside a string is meant as one.
    fn other_arguments(&self, start: usize, end: usize) -> String {
        let literal = self.text.get(start..end).unwrap_or_default().trim_ascii();
        let inner = self.string(start, end).filter(|inner| is_object(inner));
        match inner {
            Some(inner) => inner,
            None if literal == b"null" => "{}".into(),
            None => String::from_utf8_lossy(literal).into_owned(),
        }
    }

    /// All of the arguments that is known.
    fn known(&self) -> &[u8] {
        match &self.arguments {
            Arguments::None => b"",
            Arguments::Text(text) => text.as_bytes(),
            Arguments::Object(start, end) => {
                let end = end.unwrap_or(self.text.len());
                self.text.get(*start..end).unwrap_or_default()
            }
        }
    }

    /// The arguments' text that came since this was last asked. Ask between characters.
    pub(super) fn news(&mut self) -> String {
        let known = self.known();
        let news = String::from_utf8_lossy(known.get(self.sent..).unwrap_or_default());
        let (news, sent) = (news.into_owned(), known.len());
        self.sent = sent;
        news
    }

    /// Whether nothing was said of arguments.
    pub(super) fn has_none(&self) -> bool {
        self.arguments == Arguments::None
    }

    /// Whether this is a call: it has a name, and arguments that are a JSON object or absent.
    pub(super) fn is_whole(&self) -> bool {
        let good = std::str::from_utf8(self.known()).is_ok_and(is_object);
        self.name.is_some() && !self.twice && (self.has_none() || good)
    }
}

/// What numbers and words are made of.
fn scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<HashMap<String, IgnoredAny>>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the object ended, its name, its arguments as they came, and whether it is whole.
    fn read(text: &str) -> String {
        let mut call = JsonCall::new();
        let mut news = String::new();
        let mut last = Step::More;
        for &byte in text.as_bytes() {
            last = call.byte(byte);
            if byte.is_ascii() {
                news.push_str(&call.news());
            }
            if last != Step::More {
                break;
            }
        }
        let name = call.name.clone().unwrap_or("-".into());
        let whole = if call.is_whole() { "whole" } else { "not" };
        format!("{last:?} {name} {news} {whole}")
    }

    #[test]
    fn objects_are_read() {
        for (text, expected) in [
            (
                r#"{"name":"f","arguments":{"a":[1,"}"]}}"#,
                r#"Done f {"a":[1,"}"]} whole"#,
            ),
            (r#" {"arguments" : {} , "name" : "f"} "#, "Done f {} whole"),
            (r#"{"name": "f"}"#, "Done f  whole"),
            (r#"{"name": "f", "args": null}"#, "Done f {} whole"),
            (
                r#"{"name": "\u0066", "args": "{\"a\": 1}"}"#,
                r#"Done f {"a": 1} whole"#,
            ),
            (r#"{"name": "f", "args": "x"}"#, r#"Done f "x" not"#),
            (r#"{"name": "f", "args": [1] }"#, "Done f [1] not"),
            (r#"{"name": "f", "args": {a}}"#, "Done f {a} not"),
            (r#"{"name": "f", "args": {"a" 1}}"#, r#"Done f {"a" 1} not"#),
            (r#"{"name": "f", "args": {}, "args": {}}"#, "Done f {} not"),
            (r#"{"name": 1, "args": {}}"#, "Done - {} not"),
            (
                r#"{"args": {"a": {}, "b": 2}<"#,
                r#"Broken - {"a": {}, "b": 2} not"#,
            ),
            (
                r#"{"name": "f", "args": {"é": 1}<"#,
                r#"Broken f {"é": 1} whole"#,
            ),
            (r#"{"name": "f", "args": {"a": 1"#, r#"More f {"a": 1 not"#),
            ("x", "Broken -  not"),
            ("{x", "Broken -  not"),
            (r#"{"a" "b""#, "Broken -  not"),
            (r#"{"a": 1]"#, "Broken -  not"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
