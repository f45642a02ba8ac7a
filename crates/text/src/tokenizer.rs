//! Text to ids, ids to bytes by our own table. Two kinds of files describe a tokenizer:
//! `tokenizer.json`, encoded by the `tokenizers` crate, and `tiktoken.model` (see `ranks.rs`).

mod check;
mod merge;
mod pieces;
mod ranks;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenizers::{Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer};

use crate::{Error, json};
use check::File;
use pieces::{Pieces, Rules};
use ranks::{Contents, Ranks};

/// Longest text tokenised in one piece, in bytes: about four million tokens.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

/// A checkpoint's tokenizer. Cheap to clone, shared between threads.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    encoder: Encoder,
    pieces: Pieces,
    special: Vec<u32>,
    file: String,
}

/// Who turns text into ids.
enum Encoder {
    /// `tokenizer.json`, and how its tokens are spelled.
    Crate(Box<tokenizers::Tokenizer>, Rules),
    /// `tiktoken.model`.
    Ranks(Box<Ranks>),
}

impl Tokenizer {
    /// Loads `tokenizer.json`. `file` is the name errors carry.
    ///
    /// Padding and truncation settings in the file are ignored, as `transformers` ignores them
    /// when it encodes one text. What would make ids random, absurdly many, or different from
    /// what the file says, is refused.
    pub fn from_json(file: &str, text: &str) -> Result<Self, Error> {
        let contents: File = json::parse(file, text)?;
        contents.check(file)?;
        let rules = Rules::new(file, &contents.decoder)?;
        let mut encoder = encoder(file, text)?;
        let _ = encoder.with_truncation(None);
        encoder.with_padding(None);
        contents.check_added_ids(file, &encoder)?;

        let added = contents.added_tokens.iter();
        let special = added.filter(|token| token.special).map(|token| token.id);
        let tokenizer = Self(Arc::new(Inner {
            pieces: Pieces::new(&rules, &contents),
            special: ascending(special),
            encoder: Encoder::Crate(Box::new(encoder), rules),
            file: file.into(),
        }));
        tokenizer.check_reads(file)?;
        Ok(tokenizer)
    }

    /// Loads `tiktoken.model`: `file` and its text, and `tokenizer_config.json` with the class of
    /// the tokenizer and the names of the reserved tokens.
    pub(crate) fn from_ranks(
        (file, text): (&str, &str),
        config: (&str, &Map<String, Value>),
    ) -> Result<Self, Error> {
        let contents = Contents::read((file, text), config)?;
        let reserved = (contents.tokens.len() as u32..).zip(&contents.added);
        let special = reserved
            .filter(|(_, added)| added.special)
            .map(|(id, _)| id);
        let added = contents.added.iter().map(|added| added.content.as_bytes());
        let tokens = contents.tokens.iter().map(Vec::as_slice).chain(added);
        Ok(Self(Arc::new(Inner {
            encoder: Encoder::Ranks(Box::new(Ranks::new(file, &contents)?)),
            special: ascending(special),
            pieces: Pieces::in_order(tokens),
            file: file.into(),
        })))
    }

    /// The file the tokenizer came from.
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// Refuses a tokenizer that drops every text: neither a common one nor the text of any of its
    /// first tokens gets ids.
    fn check_reads(&self, file: &str) -> Result<(), Error> {
        const TRIED: u32 = 256;
        let reads = |text: &str| {
            !text.is_empty() && self.encode(text, false).is_ok_and(|ids| !ids.is_empty())
        };
        let common = [
            "The quick brown fox, 0123456789",
            "\u{4f60}\u{597d}",
            "\u{43f}\u{440}",
        ];
        let mut own = (0..TRIED).filter(|&id| !self.is_special(id));
        if common.into_iter().any(reads) || own.any(|id| reads(&self.decode(&[id], false))) {
            return Ok(());
        }
        Err(Error::File {
            file: file.into(),
            cause: "drops every text: nothing that was tried has ids".into(),
        })
    }

    /// The ids of `text`.
    ///
    /// Added tokens written out in the text become their ids. `add_special` adds what the file's
    /// post-processor adds around a text (a beginning-of-text token in some families); a rendered
    /// chat is encoded without, since its template has written them already.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        check_length(text)?;
        match &self.0.encoder {
            Encoder::Crate(encoder, _) => guarded(|| {
                let encoding = encoder.encode_fast(text, add_special)?;
                Ok(encoding.get_ids().to_vec())
            }),
            Encoder::Ranks(ranks) => ranks.encode(text, true),
        }
    }

    /// The ids of `text` as nothing but text: added tokens written out in it stay text. So what a
    /// person typed cannot become a control token.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, Error> {
        check_length(text)?;
        match &self.0.encoder {
            Encoder::Crate(encoder, _) => guarded(|| {
                let mut pieces = PreTokenizedString::from(text);
                if let Some(normalizer) = encoder.get_normalizer() {
                    pieces.normalize(|piece| normalizer.normalize(piece))?;
                }
                if let Some(pre_tokenizer) = encoder.get_pre_tokenizer() {
                    pre_tokenizer.pre_tokenize(&mut pieces)?;
                }
                pieces.tokenize(|piece| encoder.get_model().tokenize(piece.get()))?;
                let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
                Ok(encoding.get_ids().to_vec())
            }),
            Encoder::Ranks(ranks) => ranks.encode(text, false),
        }
    }

    /// The text of `ids` as a whole: what a [`crate::Decoder`] gives piece by piece.
    pub fn decode(&self, ids: &[u32], keep_special: bool) -> String {
        let mut decoder = crate::Decoder::new(self, keep_special);
        let mut text = String::new();
        for &id in ids {
            decoder.push(id, &mut text);
        }
        decoder.finish(&mut text);
        text
    }

    /// The bytes a token stands for; `None` for ids that have no token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.bytes(id).map(<[u8]>::to_vec)
    }

    /// The bytes a token stands for, borrowed.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.0.pieces.get(id)
    }

    /// The id of a token given exactly as the file spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &self.0.encoder {
            Encoder::Crate(encoder, _) => encoder.token_to_id(token),
            Encoder::Ranks(ranks) => ranks.id(token),
        }
    }

    /// Highest id plus one. The model's vocabulary is often larger: the rest has no token.
    pub fn vocabulary(&self) -> usize {
        self.0.pieces.len()
    }

    /// Ids of the special tokens, upward.
    pub fn special_ids(&self) -> &[u32] {
        &self.0.special
    }

    /// Whether `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.binary_search(&id).is_ok()
    }

    /// The bytes of a token that begins a text, where those differ: tokenizers that mark the
    /// start of words drop the first mark.
    pub(crate) fn first_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let Encoder::Crate(encoder, rules) = &self.0.encoder else {
            return None;
        };
        let mark = rules.first_mark()?;
        let added = encoder.get_added_vocabulary();
        if added.get_added_tokens_decoder().contains_key(&id) {
            return None;
        }
        let token = encoder.id_to_token(id)?;
        Some(rules.bytes(&token.replace(mark, "")))
    }

    /// The character dropped from the front of a whole text, and how often at most.
    pub(crate) fn strip_char(&self) -> char {
        self.strip().0
    }

    pub(crate) fn strip_left(&self) -> usize {
        self.strip().1
    }

    fn strip(&self) -> (char, usize) {
        match &self.0.encoder {
            Encoder::Crate(_, rules) => rules.strip(),
            Encoder::Ranks(_) => (' ', 0),
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary())
            .field("special", &self.0.special)
            .finish_non_exhaustive()
    }
}

fn ascending(ids: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn check_length(text: &str) -> Result<(), Error> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(());
    }
    Err(Error::TextTooLong {
        length: text.len(),
        limit: MAX_TEXT_BYTES,
    })
}

/// Runs the `tokenizers` crate; its panic is an error like any other.
fn guarded(encode: impl FnOnce() -> tokenizers::Result<Vec<u32>>) -> Result<Vec<u32>, Error> {
    let cause = match catch_unwind(AssertUnwindSafe(encode)) {
        Ok(Ok(ids)) => return Ok(ids),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it panicked, which is a defect".into(),
    };
    Err(Error::Encode { cause })
}

/// Builds the encoder. The crate panics on some files that [`File::check`] does not foresee; that
/// is caught here and is an error like any other.
fn encoder(file: &str, text: &str) -> Result<tokenizers::Tokenizer, Error> {
    let fail = |cause: String| Error::File {
        file: file.into(),
        cause,
    };
    match catch_unwind(|| tokenizers::Tokenizer::from_str(text)) {
        Ok(Ok(encoder)) => Ok(encoder),
        Ok(Err(error)) => Err(fail(format!("does not describe a tokenizer: {error}"))),
        Err(_) => Err(fail(
            "does not describe a tokenizer: the parser gave up".into(),
        )),
    }
}
