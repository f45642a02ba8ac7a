//! The part of the machine that reads tool calls.

use super::alphabet::Alphabet;
use super::json_call::{JsonCall, Step};
use super::machine::{MAX_NAME, Machine};
use super::table::Place;
use super::value;

/// The call being read.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    name: String,
    /// Its beginning was told.
    begun: bool,
    /// Parameters so far.
    parameters: usize,
    /// Its arguments are one text.
    block: bool,
    key: String,
    /// Whether the value that follows is text or JSON, where the call says so.
    kind: Option<Kind>,
    /// The marker behind a value, until what follows shows that it was one.
    value_end: Option<Vec<u8>>,
    /// A call that is an object.
    json: Option<JsonCall>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Json,
}

/// Whether units can be the name of a tool: no white space, no control tokens, not too long.
pub(super) fn is_name(units: &[u8]) -> bool {
    let good = |unit: &u8| {
        !unit.is_ascii_whitespace() && !unit.is_ascii_control() && !Alphabet::is_control(*unit)
    };
    !units.is_empty() && units.len() <= MAX_NAME && units.iter().all(good)
}

impl Machine {
    /// Hands on what a place inside a call has gathered, before `to` is entered.
    pub(super) fn leave_in_call(&mut self, marker: &[u8], to: Place) -> bool {
        match self.place {
            Place::Name => return self.name_ended(),
            Place::Key => self.key_ended(),
            Place::Kind => {
                let text = self.taken() == "true";
                self.reading.kind = Some(if text { Kind::Text } else { Kind::Json });
            }
            // It stays where it is until what follows is known.
            Place::Value => self.reading.value_end = Some(marker.to_vec()),
            Place::Inside => {
                self.value_ended();
                // Parameters and a text of arguments exclude each other.
                let block = to == Place::BlockHead;
                let mixed = block && self.reading.parameters > 0;
                if mixed || (self.reading.block && [Place::Key, Place::BlockHead].contains(&to)) {
                    self.space.clear();
                    self.no_call(&[]);
                    return false;
                }
            }
            Place::Block => {
                let text = self.taken();
                self.reading.block = true;
                self.output.arguments(&text);
            }
            Place::AfterCall => {
                if self.reading.json.is_some() {
                    self.json_ended();
                }
                if to == Place::Name {
                    self.reading = Reading::default();
                }
            }
            _ => self.text.clear(),
        }
        true
    }

    /// The text of the place.
    fn taken(&mut self) -> String {
        let units = std::mem::take(&mut self.text);
        self.format.alphabet.text(&units)
    }

    fn name_ended(&mut self) -> bool {
        let head = std::mem::take(&mut self.text);
        let name = match self.format.habits.attributes {
            true => attribute(&self.format.alphabet.text(&head), "tool").map(String::into_bytes),
            false => Some(head.trim_ascii().to_vec()),
        };
        match name.filter(|name| is_name(name)) {
            Some(name) => {
                self.reading.name = String::from_utf8_lossy(&name).into_owned();
                self.begin(None);
                true
            }
            None => {
                self.no_call(&[]);
                false
            }
        }
    }

    fn begin(&mut self, id: Option<&str>) {
        self.reading.begun = true;
        self.output.call(&self.reading.name, id);
    }

    fn key_ended(&mut self) {
        let head = self.taken();
        self.reading.kind = None;
        if self.format.habits.attributes {
            let text = attribute(&head, "type").is_some_and(|kind| kind == "string");
            self.reading.kind = Some(if text { Kind::Text } else { Kind::Json });
            self.reading.key = attribute(&head, "key").unwrap_or_default();
        } else {
            self.reading.key = head;
        }
    }

    /// The value that was held back is one: its parameter is handed on.
    fn value_ended(&mut self) {
        if self.reading.value_end.take().is_none() {
            return;
        }
        let text = self.taken();
        let mut text = text.as_str();
        if self.format.habits.lines {
            text = text.strip_prefix('\n').unwrap_or(text);
            text = text.strip_suffix('\n').unwrap_or(text);
        }
        let Reading { name, key, .. } = &self.reading;
        let value = match self.reading.kind {
            Some(Kind::Text) => value::quoted(text),
            Some(Kind::Json) => value::json_or_text(text),
            None => self.declared.json(name, key.trim(), text),
        };
        let key = match self.reading.kind {
            Some(_) => value::quoted(key),
            None => value::quoted(key.trim()),
        };
        let before = if self.reading.parameters == 0 {
            "{"
        } else {
            ", "
        };
        self.output.arguments(&format!("{before}{key}: {value}"));
        self.reading.parameters += 1;
    }

    /// No marker where one is expected inside a call: the value goes on, or it is no call.
    pub(super) fn no_marker(&mut self, word: &[u8]) {
        match self.reading.value_end.take() {
            Some(marker) if self.place == Place::Inside => {
                self.text.extend(marker);
                self.text.append(&mut self.space);
                self.forget(word.len());
                self.place = Place::Value;
                self.read_again(word);
            }
            _ => self.no_call(word),
        }
    }

    /// A call has ended as it should.
    pub(super) fn close(&mut self) {
        if !self.reading.block {
            let end = if self.reading.parameters == 0 {
                "{}"
            } else {
                "}"
            };
            self.output.arguments(end);
        }
        self.output.call_ended(None);
        self.reading = Reading::default();
        self.written.clear();
    }

    /// What is written is no call, or a part of one.
    pub(super) fn call_lost(&mut self) {
        self.json_news();
        let written = std::mem::take(&mut self.written);
        if self.reading.begun {
            let written = self.format.alphabet.text(&written);
            self.output.call_ended(Some(written));
        } else {
            self.say(&written);
        }
        self.reading = Reading::default();
    }

    /// The answer ends inside a call, or behind one.
    pub(super) fn cut_off(&mut self) {
        let between = self.place == Place::AfterCall && self.reading.json.is_none();
        let empty = self.place == Place::Author && self.text.is_empty();
        if between || empty {
            return;
        }
        if self.place == Place::Inside {
            self.value_ended();
        }
        self.call_lost();
        self.text.clear();
    }

    /// A unit of a call that is an object.
    pub(super) fn json(&mut self, unit: u8) {
        let json = self.reading.json.get_or_insert_with(JsonCall::new);
        let step = match self.format.alphabet.spelling(unit) {
            Some(spelling) => json.control(spelling),
            None => json.byte(unit),
        };
        match step {
            Step::More => {}
            Step::Done => {
                if json.is_whole() {
                    self.json_ended();
                }
                self.place = Place::AfterCall;
            }
            Step::Broken => {
                // A marker may follow, and then the object lacks nothing but its end.
                self.json_news();
                self.forget(1);
                self.place = Place::AfterCall;
                self.read_again(&[unit]);
            }
        }
    }

    /// Hands on what is new in an object.
    pub(super) fn json_news(&mut self) {
        let Some(json) = &mut self.reading.json else {
            return;
        };
        if !self.reading.begun
            && let Some(name) = json.name.clone().filter(|name| is_name(name.as_bytes()))
        {
            let id = json.id.clone();
            self.reading.name = name;
            self.begin(id.as_deref());
        }
        if self.reading.begun
            && let Some(json) = &mut self.reading.json
        {
            self.output.arguments(&json.news());
        }
    }

    /// The object has ended.
    fn json_ended(&mut self) {
        self.json_news();
        let Some(json) = self.reading.json.take() else {
            return;
        };
        if self.reading.begun && json.is_whole() {
            if json.has_none() {
                self.output.arguments("{}");
            }
            self.output.call_ended(None);
            self.reading = Reading::default();
            self.written.clear();
        } else {
            self.call_lost();
        }
    }
}

/// The value of an attribute in the head of a tag.
fn attribute(head: &str, name: &str) -> Option<String> {
    let mut rest = head;
    loop {
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        if key.trim() == name {
            return Some(value.replace("&quot;", "\"").replace("&amp;", "&"));
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_in_any_order() {
        let head = "index=\"1\" tool=\"a&amp;quot;&quot;\" type=\"\"";
        assert_eq!(attribute(head, "tool").as_deref(), Some("a&quot;\""));
        assert_eq!(attribute(head, "type").as_deref(), Some(""));
        assert_eq!(attribute(head, "key"), None);
        assert_eq!(attribute("tool=\"a", "tool"), None);
    }

    #[test]
    fn names_are_words() {
        for name in ["f", "a.b-c_d/e:f", "größe"] {
            assert!(is_name(name.as_bytes()), "{name}");
        }
        for no_name in [&b""[..], b"a b", b"a\n", b"\xf5", &[b'a'; MAX_NAME + 1]] {
            assert!(!is_name(no_name));
        }
    }
}
