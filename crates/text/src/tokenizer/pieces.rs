//! The bytes of every token.
//!
//! `tokenizer.json` describes decoding as a chain of string rewrites, which cannot express half a
//! character. Read as a rule for one token's *bytes* the same chain streams.

use serde_json::Value;

use super::check::File;
use crate::Error;

/// How a token's spelling becomes bytes, and what is dropped at the front of a text.
pub(super) struct Rules {
    steps: Vec<Step>,
    /// The word-start mark that the first token of a text loses.
    first_mark: Option<char>,
    /// A character dropped from the front of the whole text, at most so many times.
    strip: (char, usize),
}

enum Step {
    /// Each character stands for one byte (GPT-2's alphabet).
    ByteLevel,
    /// `<0xNN>` stands for one byte.
    ByteFallback,
    Replace(String, String),
}

impl Rules {
    /// Reads the `decoder` of `tokenizer.json`.
    pub(super) fn new(file: &str, decoder: &Value) -> Result<Self, Error> {
        let mut rules = Self {
            steps: Vec::new(),
            first_mark: None,
            strip: (' ', 0),
        };
        if decoder.is_null() {
            let cause = "is missing: ids could not be turned back into text";
            return Err(Error::field(file, "decoder", cause));
        }
        let mut fused = false;
        rules.add(file, "decoder", decoder, &mut fused)?;
        Ok(rules)
    }

    fn add(&mut self, file: &str, key: &str, node: &Value, fused: &mut bool) -> Result<(), Error> {
        let fail = |cause: &str| Err(Error::field(file, key, cause));
        let text = |name: &str| node.get(name).and_then(Value::as_str);
        let number = |name: &str| node.get(name).and_then(Value::as_u64).unwrap_or(0);
        let kind = text("type").unwrap_or_default();
        if *fused && !["Strip", "Fuse"].contains(&kind) {
            return fail("only `Strip` may follow `Fuse`");
        }
        match kind {
            "Sequence" => {
                let Some(parts) = node.get("decoders").and_then(Value::as_array) else {
                    return fail("has no list `decoders`");
                };
                for (index, part) in parts.iter().enumerate() {
                    self.add(file, &format!("{key}.decoders[{index}]"), part, fused)?;
                }
            }
            "ByteLevel" => {
                self.steps.push(Step::ByteLevel);
                *fused = true;
            }
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Fuse" => *fused = true,
            "Replace" => {
                let pattern = node
                    .get("pattern")
                    .and_then(|pattern| pattern.get("String"));
                let from = pattern.and_then(Value::as_str).unwrap_or_default();
                if from.is_empty() {
                    return fail("replaces something else than a fixed text");
                }
                let to = text("content").unwrap_or_default();
                if to.len() > from.len() {
                    return fail("replaces a text by a longer one");
                }
                self.steps.push(Step::Replace(from.into(), to.into()));
            }
            "Metaspace" => {
                let mut chars = text("replacement").unwrap_or("\u{2581}").chars();
                let (Some(mark), None) = (chars.next(), chars.next()) else {
                    return fail("`replacement` is not one character");
                };
                let never = text("prepend_scheme") == Some("never")
                    || node.get("add_prefix_space") == Some(&Value::Bool(false));
                self.first_mark = (!never).then_some(mark);
                self.steps.push(Step::Replace(mark.into(), " ".into()));
            }
            "Strip" if *fused && number("stop") == 0 && self.strip.1 == 0 => {
                let content = text("content").and_then(|text| text.chars().next());
                let start = usize::try_from(number("start")).unwrap_or(usize::MAX);
                self.strip = (content.unwrap_or(' '), start);
            }
            "Strip" => return fail("strips other than from the front of the whole text"),
            other => {
                return fail(&format!(
                    "`{other}` is not supported; known are ByteLevel, ByteFallback, Metaspace, \
                     Replace, Fuse, Strip, Sequence"
                ));
            }
        }
        Ok(())
    }

    /// The bytes of a token of the model's vocabulary.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::Replace(from, to) => text = text.replace(from, to),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                Step::ByteLevel => {
                    let bytes: Option<Vec<u8>> = text.chars().map(alphabet_byte).collect();
                    return bytes.unwrap_or_else(|| text.into_bytes());
                }
            }
        }
        text.into_bytes()
    }

    pub(super) fn first_mark(&self) -> Option<char> {
        self.first_mark
    }

    pub(super) fn strip(&self) -> (char, usize) {
        self.strip
    }
}

/// The byte that `<0xNN>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    hexadecimal
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The byte a character of GPT-2's byte alphabet stands for: printable Latin-1 stands for itself,
/// the other 68 bytes follow in order from U+0100.
fn alphabet_byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// All tokens' bytes in one block, by id.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where each id's bytes lie; `NO_TOKEN` for ids without one.
    spans: Vec<(u32, u32)>,
}

const NO_TOKEN: (u32, u32) = (u32::MAX, 0);

impl Pieces {
    /// Tokens of the model are spelled as its decoder says; added tokens stand for themselves.
    pub(super) fn new(rules: &Rules, file: &File) -> Self {
        let added = file
            .added_tokens
            .iter()
            .map(|token| (&token.content, token.id));
        let highest = file
            .vocabulary()
            .iter()
            .map(|(_, id)| *id)
            .chain(added.clone().map(|it| it.1));
        let size = highest.max().map_or(0, |highest| highest as usize + 1);
        let mut pieces = Self {
            bytes: Vec::new(),
            spans: vec![NO_TOKEN; size],
        };
        for (token, id) in file.vocabulary() {
            pieces.add(*id, &rules.bytes(token));
        }
        for (token, id) in added {
            pieces.add(id, token.as_bytes());
        }
        pieces
    }

    /// Tokens whose ids count up from 0.
    pub(super) fn in_order<'a>(tokens: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut pieces = Self {
            bytes: Vec::new(),
            spans: Vec::new(),
        };
        for (id, token) in (0..).zip(tokens) {
            pieces.spans.push(NO_TOKEN);
            pieces.add(id, token);
        }
        pieces
    }

    fn add(&mut self, id: u32, bytes: &[u8]) {
        // No token gets longer, and the file is far smaller than 4 GiB, so offsets fit.
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        self.spans[id as usize] = (start, self.bytes.len() as u32);
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, end) = self.spans.get(id as usize)?;
        self.bytes.get(start as usize..end as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_holds_every_byte_once() {
        let mut seen = [0; 256];
        for character in (0..=0x400).filter_map(char::from_u32) {
            if let Some(byte) = alphabet_byte(character) {
                seen[byte as usize] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
        assert_eq!(alphabet_byte('Ġ'), Some(b' '));
        assert_eq!(alphabet_byte('Ċ'), Some(b'\n'));
    }

    #[test]
    fn fallback_bytes_are_exact() {
        assert_eq!(fallback_byte("<0xE5>"), Some(0xe5));
        assert_eq!(fallback_byte("<0xe5>"), Some(0xe5));
        for no in ["<0x+5>", "<0xE>", "<0xE50>", "0xE5", "<0xG0>"] {
            assert_eq!(fallback_byte(no), None, "{no}");
        }
    }
}
