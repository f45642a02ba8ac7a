//! What must hold in `tokenizer.json` before the `tokenizers` crate may see it.
//!
//! The crate trusts the file in places: a merge whose result is missing from the vocabulary, a
//! chunk length of zero or a broken character map make it panic, and replacements can grow a text
//! without bound. Those are errors here. So is what would work but not as the file says.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::Error;

/// How many times longer than the text a normaliser may make it.
const MAX_GROWTH: f64 = 1024.0;

const MODELS: [&str; 3] = ["BPE", "Unigram", "WordLevel"];
const NORMALIZERS: [&str; 13] = [
    "BertNormalizer",
    "ByteLevel",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Prepend",
    "Replace",
    "Sequence",
    "Strip",
    "StripAccents",
];
const PRE_TOKENIZERS: [&str; 12] = [
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Digits",
    "FixedLength",
    "Metaspace",
    "Punctuation",
    "Sequence",
    "Split",
    "UnicodeScripts",
    "Whitespace",
    "WhitespaceSplit",
];
const POST_PROCESSORS: [&str; 5] = [
    "BertProcessing",
    "ByteLevel",
    "RobertaProcessing",
    "Sequence",
    "TemplateProcessing",
];

/// The parts of `tokenizer.json` that are looked at.
#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Vocabulary,
    #[serde(default)]
    merges: Vec<Merge>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    unk_id: Option<u64>,
    continuing_subword_prefix: Option<String>,
}

/// Tokens and ids: an object, or (unigram) a list of pairs whose position is the id.
struct Vocabulary(Vec<(String, u32)>);

/// A pair of tokens that become one: `"a b"` or `["a", "b"]`.
struct Merge(String, String);

impl File {
    /// Refuses what the crate would panic on, hang on, or silently read differently.
    pub(super) fn check(&self, file: &str) -> Result<(), Error> {
        let kind = self.model.kind.as_deref().unwrap_or("BPE");
        if !MODELS.contains(&kind) {
            return Err(unsupported(file, "model.type", kind, &MODELS));
        }
        if self.model.dropout.is_some_and(|dropout| dropout != 0.0) {
            let cause = "is not zero: the same text would get different ids each time";
            return Err(Error::field(file, "model.dropout", cause));
        }
        let known = self.check_vocabulary(file)?;
        if kind == "BPE" {
            self.check_merges(file, &known)?;
        }
        if kind == "Unigram" {
            let size = self.model.vocab.0.len() as u64;
            if self.model.unk_id.is_some_and(|id| id >= size) {
                return Err(Error::field(
                    file,
                    "model.unk_id",
                    "is outside the vocabulary",
                ));
            }
        }
        let growth = growth(file, "normalizer", &self.normalizer)?;
        if growth > MAX_GROWTH {
            let cause = format!("can make a text {growth} times longer; at most {MAX_GROWTH}");
            return Err(Error::field(file, "normalizer", cause));
        }
        check_pre_tokenizer(file, "pre_tokenizer", &self.pre_tokenizer)?;
        check_post_processor(file, "post_processor", &self.post_processor)
    }

    /// Returns the tokens of the model's vocabulary.
    fn check_vocabulary(&self, file: &str) -> Result<HashSet<&str>, Error> {
        let vocabulary = &self.model.vocab.0;
        if vocabulary.is_empty() {
            // With added tokens alone every other text would be dropped without a word.
            return Err(Error::field(file, "model.vocab", "is empty"));
        }
        let count = vocabulary.len() + self.added_tokens.len();
        let added = self.added_tokens.iter().map(|token| token.id);
        let highest = vocabulary
            .iter()
            .map(|(_, id)| *id)
            .chain(added)
            .max()
            .unwrap_or(0);
        if highest as usize > 4 * count + 4096 {
            let cause = format!("has id {highest} but only {count} tokens: an id is damaged");
            return Err(Error::field(file, "model.vocab", cause));
        }
        let fail = |cause: String| Err(Error::field(file, "model.vocab", cause));
        let mut known = HashSet::with_capacity(vocabulary.len());
        let mut by_id = vec![None; highest as usize + 1];
        for (token, id) in vocabulary {
            if !known.insert(token.as_str()) {
                return fail(format!("has `{token}` twice"));
            }
            if let Some(other) = by_id[*id as usize].replace(token) {
                return fail(format!("`{other}` and `{token}` have the same id {id}"));
            }
        }
        if let Some(unknown) = &self.model.unk_token
            && !known.contains(unknown.as_str())
            && !self
                .added_tokens
                .iter()
                .any(|token| token.content == *unknown)
        {
            let cause = format!("`{unknown}` is not in the vocabulary");
            return Err(Error::field(file, "model.unk_token", cause));
        }
        Ok(known)
    }

    fn check_merges(&self, file: &str, known: &HashSet<&str>) -> Result<(), Error> {
        let prefix = self
            .model
            .continuing_subword_prefix
            .as_deref()
            .unwrap_or("");
        let mut whole = String::new();
        for (index, Merge(left, right)) in self.model.merges.iter().enumerate() {
            let fail =
                |cause: String| Err(Error::field(file, &format!("model.merges[{index}]"), cause));
            let Some(rest) = right.strip_prefix(prefix) else {
                return fail(format!("`{right}` does not begin with `{prefix}`"));
            };
            whole.clear();
            whole.push_str(left);
            whole.push_str(rest);
            for token in [left, right, &whole] {
                if !known.contains(token.as_str()) {
                    return fail(format!("`{token}` is not in the vocabulary"));
                }
            }
        }
        Ok(())
    }

    /// The tokens of the model with their ids.
    pub(super) fn vocabulary(&self) -> &[(String, u32)] {
        &self.model.vocab.0
    }

    /// Checks that every added token got the id the file gives it. The crate only warns.
    pub(super) fn check_added_ids(
        &self,
        file: &str,
        encoder: &tokenizers::Tokenizer,
    ) -> Result<(), Error> {
        for (index, AddedToken { id, content, .. }) in self.added_tokens.iter().enumerate() {
            let got = encoder.token_to_id(content);
            if got == Some(*id) {
                continue;
            }
            let cause = match got {
                Some(got) => format!("`{content}` says id {id} but is id {got}"),
                None => format!("`{content}` (id {id}) cannot be a token"),
            };
            return Err(Error::field(file, &format!("added_tokens[{index}]"), cause));
        }
        Ok(())
    }
}

fn unsupported(file: &str, key: &str, kind: &str, known: &[&str]) -> Error {
    let known = known.join(", ");
    Error::field(
        file,
        key,
        format!("`{kind}` is not supported; known are {known}"),
    )
}

/// The type of a component; `None` where there is none. The crate would take an unknown type for
/// some other component whose fields happen to fit.
fn kind_of<'a>(
    file: &str,
    key: &str,
    node: &'a Value,
    known: &[&str],
) -> Result<Option<&'a str>, Error> {
    if node.is_null() {
        return Ok(None);
    }
    match node.get("type").and_then(Value::as_str) {
        Some(kind) if known.contains(&kind) => Ok(Some(kind)),
        Some(kind) => Err(unsupported(file, key, kind, known)),
        None => Err(Error::field(file, key, "has no `type`")),
    }
}

/// How many times longer a normaliser can make a text.
fn growth(file: &str, key: &str, node: &Value) -> Result<f64, Error> {
    let length = |name: &str| node.get(name).and_then(Value::as_str).map_or(0, str::len) as f64;
    match kind_of(file, key, node, &NORMALIZERS)? {
        Some("Sequence") => {
            let parts = node.get("normalizers").and_then(Value::as_array);
            let mut product = 1.0;
            for (index, part) in parts.into_iter().flatten().enumerate() {
                product *= growth(file, &format!("{key}.normalizers[{index}]"), part)?;
            }
            Ok(product)
        }
        Some("Replace") => {
            let content = length("content");
            let pattern = |kind: &str| node.get("pattern")?.get(kind)?.as_str();
            let literal = pattern("String");
            // What the crate has put between two characters makes its next component panic.
            let puts = content > 0.0 && pattern("Regex").is_some_and(matches_nothing);
            if literal == Some("") || puts {
                return Err(Error::field(file, key, "replaces the empty text"));
            }
            match literal {
                Some(literal) => Ok((content / literal.len() as f64).max(1.0)),
                // A regex may match between any two bytes.
                None => Ok(content + 1.0),
            }
        }
        // Every piece between added tokens gets it, and a piece has at least one byte.
        Some("Prepend") if length("prepend") == 0.0 => {
            Err(Error::field(file, key, "prepends nothing"))
        }
        Some("Prepend") => Ok(1.0 + length("prepend")),
        Some("NFKC" | "NFKD") => Ok(11.0),
        Some("NFC" | "NFD" | "Lowercase" | "ByteLevel" | "BertNormalizer" | "Nmt") => Ok(3.0),
        _ => Ok(1.0),
    }
}

/// Whether a pattern finds a match without characters before some character, as far as a text of
/// many kinds of them shows. What is no pattern is refused elsewhere.
fn matches_nothing(pattern: &str) -> bool {
    const KINDS: &str = "Aa b\n\u{e9}1.\u{2581}\u{65e5}_ x";
    let regex = tokenizers::utils::SysRegex::new(pattern);
    regex.is_ok_and(|regex| {
        let mut matches = regex.find_iter(KINDS);
        matches.any(|(start, end)| start == end && end < KINDS.len())
    })
}

fn check_pre_tokenizer(file: &str, key: &str, node: &Value) -> Result<(), Error> {
    let length = node.get("length").and_then(Value::as_u64);
    match kind_of(file, key, node, &PRE_TOKENIZERS)? {
        Some("Sequence") => {
            let parts = node.get("pretokenizers").and_then(Value::as_array);
            for (index, part) in parts.into_iter().flatten().enumerate() {
                check_pre_tokenizer(file, &format!("{key}.pretokenizers[{index}]"), part)?;
            }
            Ok(())
        }
        Some("FixedLength") if length == Some(0) => Err(Error::field(
            file,
            key,
            "cuts the text into pieces of length 0",
        )),
        _ => Ok(()),
    }
}

/// What goes around a text: the text once, and special tokens that are there.
fn check_post_processor(file: &str, key: &str, node: &Value) -> Result<(), Error> {
    let list = |name: &str| {
        node.get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    match kind_of(file, key, node, &POST_PROCESSORS)? {
        Some("Sequence") => {
            for (index, part) in list("processors").enumerate() {
                check_post_processor(file, &format!("{key}.processors[{index}]"), part)?;
            }
            Ok(())
        }
        Some("TemplateProcessing") => {
            let id = |piece: &Value, kind: &str| {
                piece
                    .get(kind)
                    .and_then(|piece| piece.get("id")?.as_str().map(str::to_owned))
            };
            let texts: Vec<String> = list("single")
                .filter_map(|piece| id(piece, "Sequence"))
                .collect();
            if texts != ["A"] {
                return Err(Error::field(
                    file,
                    key,
                    "`single` does not hold the text once",
                ));
            }
            let known = node.get("special_tokens");
            match list("single")
                .filter_map(|piece| id(piece, "SpecialToken"))
                .find(|token| known.and_then(|known| known.get(token)).is_none())
            {
                Some(token) => {
                    let cause = format!("`{token}` is not among its `special_tokens`");
                    Err(Error::field(file, key, cause))
                }
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocabulary;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and ids, or a list of tokens and scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut tokens = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    tokens.push(entry);
                }
                Ok(Vocabulary(tokens))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
                let mut tokens = Vec::new();
                while let Some((token, _)) = seq.next_element::<(String, f64)>()? {
                    let id = u32::try_from(tokens.len()).map_err(serde::de::Error::custom)?;
                    tokens.push((token, id));
                }
                Ok(Vocabulary(tokens))
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: \"left right\" or [\"left\", \"right\"]")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge(left.into(), right.into()))
                    }
                    _ => Err(E::custom(format!("merge {text:?} is not two tokens"))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let short = || serde::de::Error::custom("a merge needs two tokens");
                let left = seq.next_element()?.ok_or_else(short)?;
                let right = seq.next_element()?.ok_or_else(short)?;
                match seq.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(serde::de::Error::custom("a merge has two tokens, no more")),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}
