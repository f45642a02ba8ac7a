//! Token ids back to text, one id at a time.

use crate::Tokenizer;

/// Turns a stream of token ids into text that only ever grows by whole characters.
///
/// Works on bytes. A character that spans tokens is held until its last byte has come; bytes that
/// can no longer become a character turn into U+FFFD exactly as [`String::from_utf8_lossy`] does
/// for the whole, so `push` over any stream and then `finish` equals decoding everything at once.
///
/// Special tokens give no text unless they are kept. Ids the tokenizer has no token for (the
/// embedding is often padded past the vocabulary) give no text.
#[derive(Debug, Clone)]
pub struct Decoder {
    tokenizer: Tokenizer,
    keep_special: bool,
    /// The unfinished character: at most three bytes between calls.
    pending: Vec<u8>,
    /// Nothing was decoded yet; tokenizers that mark word starts drop the first mark.
    at_start: bool,
    /// Characters that may still be dropped from the front of the text.
    strip_left: usize,
}

impl Decoder {
    /// A decoder for one text. `keep_special` shows special tokens such as `<|im_end|>` literally.
    pub fn new(tokenizer: &Tokenizer, keep_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            keep_special,
            pending: Vec::with_capacity(64),
            at_start: true,
            strip_left: tokenizer.strip_left(),
        }
    }

    /// Appends to `out` the text that `id` completes.
    pub fn push(&mut self, id: u32, out: &mut String) {
        if !self.keep_special && self.tokenizer.is_special(id) {
            return;
        }
        let Some(bytes) = self.tokenizer.bytes(id) else {
            return;
        };
        if self.at_start
            && let Some(first) = self.tokenizer.first_bytes(id)
        {
            self.pending.extend_from_slice(&first);
        } else {
            self.pending.extend_from_slice(bytes);
        }
        self.at_start = false;
        let mut done = 0;
        while done < self.pending.len() {
            let (valid, skip) = match std::str::from_utf8(&self.pending[done..]) {
                Ok(all) => (all.len(), Some(0)),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            let text = std::str::from_utf8(&self.pending[done..done + valid]).unwrap_or_default();
            emit(text, self.tokenizer.strip_char(), &mut self.strip_left, out);
            done += valid;
            match skip {
                Some(0) => {}
                Some(bad) => {
                    emit(
                        "\u{fffd}",
                        self.tokenizer.strip_char(),
                        &mut self.strip_left,
                        out,
                    );
                    done += bad;
                }
                None => break,
            }
        }
        self.pending.drain(..done);
    }

    /// Ends the character: unfinished, it becomes U+FFFD. The text goes on.
    pub(crate) fn end_character(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            emit(
                "\u{fffd}",
                self.tokenizer.strip_char(),
                &mut self.strip_left,
                out,
            );
            self.pending.clear();
        }
    }

    /// Ends the text: an unfinished character becomes U+FFFD. The decoder can be used again for a
    /// new text afterwards.
    pub fn finish(&mut self, out: &mut String) {
        self.end_character(out);
        self.at_start = true;
        self.strip_left = self.tokenizer.strip_left();
    }

    /// Bytes held back because the character they begin is not complete.
    pub fn held(&self) -> usize {
        self.pending.len()
    }
}

/// Appends `text` to `out`, less what may still be dropped from the front of the whole text.
fn emit(mut text: &str, strip: char, strip_left: &mut usize, out: &mut String) {
    while *strip_left > 0 && !text.is_empty() {
        match text.strip_prefix(strip) {
            Some(rest) => {
                text = rest;
                *strip_left -= 1;
            }
            None => *strip_left = 0,
        }
    }
    out.push_str(text);
}
