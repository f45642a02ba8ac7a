//! A prompt before it becomes ids.

use crate::{Error, Tokenizer};

/// A prompt: segments that are encoded one by one.
///
/// Where a format puts tokens between texts, a text must not be able to write them: there the
/// segments say which is which. A template's prompt is one segment of both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    segments: Vec<Segment>,
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// What it says.
    pub text: String,
    /// How it becomes ids.
    pub kind: SegmentKind,
}

/// How a segment becomes ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// Text in which added tokens stand for themselves.
    Markup,
    /// One token, by its spelling.
    Token,
    /// Text and nothing else: a token's spelling in it stays text.
    Text,
}

impl Prompt {
    /// A prompt that is one text with its tokens written out.
    pub(super) fn markup(text: String) -> Self {
        let kind = SegmentKind::Markup;
        Self {
            segments: vec![Segment { text, kind }],
        }
    }

    /// Appends one token.
    pub(super) fn token(&mut self, token: &str) {
        self.push(token, SegmentKind::Token);
    }

    /// Appends text, as a segment of its own.
    pub(super) fn plain(&mut self, text: &str) {
        self.push(text, SegmentKind::Text);
    }

    fn push(&mut self, text: &str, kind: SegmentKind) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.segments.push(Segment { text, kind });
        }
    }

    /// The segments in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The prompt written out.
    pub fn text(&self) -> String {
        self.segments.iter().map(|s| s.text.as_str()).collect()
    }

    /// The end of the prompt written out: its last `bytes` bytes, or fewer where a character
    /// would be cut.
    pub(crate) fn tail(&self, bytes: usize) -> String {
        let mut parts = Vec::new();
        let mut left = bytes;
        for segment in self.segments.iter().rev() {
            let mut cut = segment.text.len().saturating_sub(left);
            while !segment.text.is_char_boundary(cut) {
                cut += 1;
            }
            parts.push(&segment.text[cut..]);
            left = left.saturating_sub(segment.text.len());
            if left == 0 {
                break;
            }
        }
        parts.into_iter().rev().collect()
    }

    /// The ids of the prompt.
    ///
    /// # Errors
    /// If a segment is too long, or names a token that `tokenizer` does not have.
    pub fn ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, Error> {
        let mut ids = Vec::new();
        for Segment { text, kind } in &self.segments {
            match kind {
                SegmentKind::Markup => ids.extend(tokenizer.encode(text, false)?),
                SegmentKind::Text => ids.extend(tokenizer.encode_plain(text)?),
                SegmentKind::Token => match tokenizer.token_id(text) {
                    Some(id) => ids.push(id),
                    None => {
                        let cause = format!("`{text}` is no token of {}", tokenizer.file());
                        return Err(Error::Encode { cause });
                    }
                },
            }
        }
        Ok(ids)
    }
}
