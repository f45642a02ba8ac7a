//! `tiktoken.model`: a file of tokens in the order of their rank, which is their id.
//!
//! The file holds bytes and ranks only. How text is split before tokens are merged, and how many
//! reserved tokens follow the ranks, is said by the class that `tokenizer_config.json` names
//! ([`CLASS`]); names of the reserved ones are in its `added_tokens_decoder`. Another class may
//! split otherwise, so an unknown one is refused.
//!
//! Merging goes by the rank of the joined bytes ([`super::merge`]), not by a list of merges made
//! from the ranks: the two can differ.

use std::collections::{HashMap, HashSet};

use aho_corasick::{AhoCorasick, MatchKind};
use fancy_regex::Regex;
use serde_json::{Map, Value};

use super::merge::merge;
use crate::{Error, json};

/// The class whose rules are known, as `tokenizer_class` names it.
pub(super) const CLASS: &str = "TikTokenTokenizer";
/// Tokens after the ranks, named or not.
const RESERVED: usize = 256;
/// Most tokens a file may list.
const MAX_TOKENS: usize = 1 << 22;
/// The class encodes this many characters at a time …
const MAX_CHARS: usize = 400_000;
/// … and cuts longer runs of white space, or of anything else.
const MAX_RUN: usize = 25_000;

/// How the class splits a text into pieces that are merged each by itself.
const SPLIT: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// An encoder over ranks.
pub(super) struct Ranks {
    ids: HashMap<Vec<u8>, u32>,
    longest: usize,
    split: Regex,
    added: AhoCorasick,
    added_ids: HashMap<String, u32>,
    /// The id of the first reserved token; its place in `added` is 0.
    first_added: u32,
}

/// A reserved token: its spelling, and whether an answer hides it.
pub(super) struct Added {
    pub(super) content: String,
    pub(super) special: bool,
}

/// What the files say, checked.
pub(super) struct Contents {
    /// Bytes by rank.
    pub(super) tokens: Vec<Vec<u8>>,
    /// Reserved tokens; the first one's id is the number of `tokens`.
    pub(super) added: Vec<Added>,
}

impl Contents {
    /// Reads the ranks in `file` and the reserved tokens in the configuration `config_file`.
    pub(super) fn read(
        (file, text): (&str, &str),
        (config_file, config): (&str, &Map<String, Value>),
    ) -> Result<Self, Error> {
        match config.get("tokenizer_class").and_then(Value::as_str) {
            Some(CLASS) => {}
            other => {
                let found = other.map_or("is missing".into(), |other| format!("is `{other}`"));
                let cause = format!("{found}; with {file} only `{CLASS}` is known");
                return Err(Error::field(config_file, "tokenizer_class", cause));
            }
        }
        let tokens = tokens(file, text)?;
        let first = tokens.len();
        let added = added(config_file, config, first)?;
        Ok(Self { tokens, added })
    }
}

impl Ranks {
    pub(super) fn new(file: &str, contents: &Contents) -> Result<Self, Error> {
        let fail = |cause: String| Error::File {
            file: file.into(),
            cause,
        };
        let numbered = contents.tokens.iter().zip(0_u32..);
        let ids: HashMap<Vec<u8>, u32> = numbered.map(|(token, id)| (token.clone(), id)).collect();
        // Reading allows at most MAX_TOKENS, so ids fit.
        let first_added = contents.tokens.len() as u32;
        let names = contents.added.iter().map(|added| added.content.as_str());
        Ok(Self {
            longest: contents.tokens.iter().map(Vec::len).max().unwrap_or(0),
            ids,
            split: Regex::new(SPLIT).map_err(|error| fail(error.to_string()))?,
            added: AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(names.clone())
                .map_err(|error| fail(error.to_string()))?,
            added_ids: names.map(str::to_owned).zip(first_added..).collect(),
            first_added,
        })
    }

    /// The ids of `text`; reserved tokens written out in it become their ids if `added`.
    pub(super) fn encode(&self, text: &str, added: bool) -> Result<Vec<u32>, Error> {
        let mut ids = Vec::new();
        for cut in cuts(text) {
            let mut done = 0;
            for found in self.added.find_iter(cut).take_while(|_| added) {
                self.plain(&cut[done..found.start()], &mut ids)?;
                ids.push(self.first_added + found.pattern().as_u32());
                done = found.end();
            }
            self.plain(&cut[done..], &mut ids)?;
        }
        Ok(ids)
    }

    fn plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let mut done = 0;
        for piece in self.split.find_iter(text) {
            let piece = piece.map_err(|error| Error::Encode {
                cause: format!("splitting it: {error}"),
            })?;
            if piece.start() != done {
                break;
            }
            done = piece.end();
            self.piece(piece.as_str().as_bytes(), ids)?;
        }
        if done == text.len() {
            return Ok(());
        }
        Err(Error::Encode {
            cause: format!("no rule splits it at byte {done}"),
        })
    }

    fn piece(&self, piece: &[u8], ids: &mut Vec<u32>) -> Result<(), Error> {
        let rank = |bytes: &[u8]| match bytes.len() <= self.longest {
            true => self.ids.get(bytes).copied(),
            false => None,
        };
        if let Some(id) = rank(piece) {
            ids.push(id);
            return Ok(());
        }
        merge(piece, &rank, ids).map_err(|byte| Error::Encode {
            cause: format!("byte {byte:#04x} has no token"),
        })
    }

    /// The id of a token given by its text.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        let added = self.added_ids.get(token);
        added.or_else(|| self.ids.get(token.as_bytes())).copied()
    }
}

/// The tokens of the file by rank. Every rank from 0 on must be there once, and every single byte
/// must be a token, so that any text has ids.
fn tokens(file: &str, text: &str) -> Result<Vec<Vec<u8>>, Error> {
    json::check_text(file, text)?;
    let mut by_rank: Vec<Option<Vec<u8>>> = Vec::new();
    let mut known = HashSet::new();
    let mut count = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let fail = |cause: String| Error::field(file, &format!("line {number}"), cause);
        if line.is_empty() {
            continue;
        }
        let (token, rank) = line
            .split_once(' ')
            .ok_or_else(|| fail("is not a token and its rank".into()))?;
        let token = base64(token).ok_or_else(|| fail("the token is no base64".into()))?;
        let rank: usize = rank
            .trim_end()
            .parse()
            .map_err(|_| fail("the rank is no number".into()))?;
        if token.is_empty() {
            return Err(fail("the token is empty".into()));
        }
        if rank >= MAX_TOKENS {
            return Err(fail(format!("rank {rank}; at most {MAX_TOKENS} are read")));
        }
        if rank >= by_rank.len() {
            by_rank.resize(rank + 1, None);
        }
        if !known.insert(token.clone()) {
            return Err(fail("the token is there twice".into()));
        }
        if by_rank[rank].replace(token).is_some() {
            return Err(fail(format!("rank {rank} is there twice")));
        }
        count += 1;
    }
    let fail = |cause: String| Error::File {
        file: file.into(),
        cause,
    };
    if let Some(gap) = by_rank.iter().position(Option::is_none) {
        let whole = by_rank.len();
        let cause = format!("has {count} tokens and ranks up to {whole}: rank {gap} is missing");
        return Err(fail(cause));
    }
    match (0..=u8::MAX).find(|&byte| !known.contains([byte].as_slice())) {
        Some(byte) => Err(fail(format!("has no token for the byte {byte:#04x}"))),
        None => Ok(by_rank.into_iter().flatten().collect()),
    }
}

/// The reserved tokens: those that `added_tokens_decoder` names by id, the rest by their number.
fn added(file: &str, config: &Map<String, Value>, first: usize) -> Result<Vec<Added>, Error> {
    const KEY: &str = "added_tokens_decoder";
    let mut added: Vec<Added> = (first..first + RESERVED)
        .map(|id| Added {
            content: format!("<|reserved_token_{id}|>"),
            special: true,
        })
        .collect();
    let named = match config.get(KEY) {
        None | Some(Value::Null) => return Ok(added),
        Some(Value::Object(named)) => named,
        Some(other) => {
            let cause = format!("is {}, not tokens by id", json::kind(other));
            return Err(Error::field(file, KEY, cause));
        }
    };
    for (id, token) in named {
        let fail = |cause: &str| Error::field(file, &format!("{KEY}.{id}"), cause);
        let place = id
            .parse::<usize>()
            .ok()
            .and_then(|id| id.checked_sub(first));
        let Some(place) = place.filter(|&place| place < RESERVED) else {
            let last = first + RESERVED - 1;
            return Err(fail(&format!("reserved ids are {first} to {last}")));
        };
        match token.get("content").and_then(Value::as_str) {
            Some(content) if !content.is_empty() => added[place].content = content.into(),
            _ => return Err(fail("has no `content`")),
        }
        match token.get("special") {
            None => {}
            Some(Value::Bool(special)) => added[place].special = *special,
            Some(_) => return Err(fail("`special` is not true or false")),
        }
    }
    let mut seen = HashSet::new();
    match added.iter().find(|added| !seen.insert(&added.content)) {
        Some(twice) => {
            let cause = format!("`{}` is there twice", twice.content);
            Err(Error::field(file, KEY, cause))
        }
        None => Ok(added),
    }
}

/// Base64 with padding and nothing else.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    for (index, four) in digits.chunks_exact(4).enumerate() {
        let padding = four
            .iter()
            .rev()
            .take_while(|&&digit| digit == b'=')
            .count();
        let last = (index + 1) * 4 == digits.len();
        if padding > 2 || (padding > 0 && !last) {
            return None;
        }
        let mut block = 0_u32;
        for &digit in &four[..4 - padding] {
            block = block << 6 | u32::from(sextet(digit)?);
        }
        block <<= 6 * padding;
        let whole = block.to_be_bytes();
        let (kept, rest) = whole[1..].split_at(3 - padding);
        if rest.iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

fn sextet(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// The parts of a text that the class encodes one by one.
fn cuts(text: &str) -> Vec<&str> {
    let mut cuts = Vec::new();
    let (mut start, mut chars, mut run) = (0, 0, 0);
    let mut in_space = false;
    for (at, c) in text.char_indices() {
        if chars == MAX_CHARS {
            cuts.push(&text[start..at]);
            (start, chars, run) = (at, 0, 0);
        }
        let space = is_space(c);
        if chars == 0 {
            in_space = space;
        }
        if space == in_space {
            run += 1;
        } else {
            (run, in_space) = (1, space);
        }
        if run > MAX_RUN {
            cuts.push(&text[start..at]);
            (start, run) = (at, 1);
        }
        chars += 1;
    }
    cuts.push(&text[start..]);
    cuts
}

/// White space as Python's `str.isspace` has it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_strictly() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("IA==", b" "),
            ("IGE=", b" a"),
            ("/+8A", &[0xff, 0xef, 0]),
        ] {
            assert_eq!(base64(text).as_deref(), Some(bytes), "{text}");
        }
        for no in [
            "I", "IA=", "IA", "=AAA", "A===", "IB==", "IA==IA==", "IA-_", "IGE ", "é==",
        ] {
            assert_eq!(base64(no), None, "{no}");
        }
    }

    #[test]
    fn long_runs_and_long_texts_are_cut_as_the_class_does() {
        let lengths = |text: &str| -> Vec<usize> { cuts(text).iter().map(|c| c.len()).collect() };
        assert_eq!(lengths(""), [0]);
        assert_eq!(lengths(&"a".repeat(MAX_RUN)), [MAX_RUN]);
        assert_eq!(lengths(&"a".repeat(2 * MAX_RUN + 1)), [MAX_RUN, MAX_RUN, 1]);
        assert_eq!(lengths(&" \u{1c}".repeat(MAX_RUN)), [MAX_RUN, MAX_RUN]);
        assert_eq!(lengths(&"a ".repeat(MAX_CHARS / 2 + 3)), [MAX_CHARS, 6]);
        let mixed = format!("{}{}b", "a".repeat(10), " ".repeat(MAX_RUN + 1));
        assert_eq!(lengths(&mixed), [10 + MAX_RUN, 2]);
    }
}
