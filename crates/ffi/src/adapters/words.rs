//! Text of an Edge: the tokenizer that lies beside the weights.

use super::Refused;
use crate::report::Report;
use lamella_container::Store;
use lamella_text::{Bundle, Decoder, RANKS_FILE, TOKENIZER_CONFIG_FILE, Tokenizer};
use std::cell::RefCell;

/// A tokenizer and what the interface asks about it.
pub(super) struct Words {
    pub(super) tokenizer: Tokenizer,
    /// Names the files that decide the ids.
    pub(super) class: String,
    /// Begins a text.
    pub(super) first: Option<u32>,
    /// Ends an answer.
    pub(super) last: Option<u32>,
}

impl Words {
    /// Loads the tokenizer of `store`.
    pub(super) fn load(report: &Report, store: &Store) -> Result<Words, Refused> {
        let failed = RefCell::new(None);
        let read = |name: &str| {
            store.read_text(name).unwrap_or_else(|error| {
                failed.borrow_mut().get_or_insert(error);
                None
            })
        };
        let bundle = Bundle::load(&read);
        let class = bundle.as_ref().map(|b| class(&b.tokenizer, &read));
        if let Some(error) = failed.take() {
            return Err(report.model(format_args!("{error}")));
        }
        let refuse = |error: &_| report.model(format_args!("{}: {error}", store.dir().display()));
        let class = class.map_err(refuse)?;
        let bundle = bundle.map_err(|error| refuse(&error))?;
        let named = |name: &str| {
            let token = bundle.special_tokens().get(name)?.as_str()?;
            bundle.tokenizer.token_id(token)
        };
        Ok(Words {
            first: named("bos_token").or(bundle.generation.bos_token_id),
            last: named("eos_token").or(bundle.stop_ids().first().copied()),
            tokenizer: bundle.tokenizer,
            class,
        })
    }

    /// The ids of a text, in which added tokens are read as tokens and none is added.
    pub(super) fn tokenize(
        &self,
        report: &Report,
        text: &[u8],
        vocabulary: usize,
    ) -> Result<Vec<u32>, Refused> {
        let text = std::str::from_utf8(text).map_err(|error| {
            let at = error.valid_up_to();
            report.argument(format_args!("text is not UTF-8, first at byte {at}"))
        })?;
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let ids = self.tokenizer.encode(text, false);
        let ids = ids.map_err(|error| report.argument(format_args!("{error}")))?;
        match ids.iter().find(|&&id| id as usize >= vocabulary) {
            None => Ok(ids),
            Some(id) => Err(report.model(format_args!(
                "the tokenizer has the id {id}, the model a vocabulary of {vocabulary}: it is \
                 another model's"
            ))),
        }
    }

    /// Gives `take` the text of ids of the vocabulary piece by piece, special tokens included.
    pub(super) fn detokenize(&self, ids: &[i32], mut take: impl FnMut(&str)) {
        let mut decoder = Decoder::new(&self.tokenizer, true);
        let mut piece = String::new();
        for &id in ids {
            piece.clear();
            decoder.push(id.cast_unsigned(), &mut piece);
            take(&piece);
        }
        piece.clear();
        decoder.finish(&mut piece);
        take(&piece);
    }
}

/// Tokenizers of one class make the same ids: a digest of the files they are made of.
fn class(tokenizer: &Tokenizer, read: &dyn Fn(&str) -> Option<String>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("lamella tokenizer class v1");
    let config = (tokenizer.file() == RANKS_FILE).then_some(TOKENIZER_CONFIG_FILE);
    for name in std::iter::once(tokenizer.file()).chain(config) {
        let text = read(name).unwrap_or_default();
        hasher.update(name.as_bytes());
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    format!("text.v1/{}", &hasher.finalize().to_hex()[..32])
}
