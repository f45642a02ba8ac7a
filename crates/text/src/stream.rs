//! Ids in, showable text out: the one way an answer is decoded.

use crate::{Decoder, StopMatcher, StopStrings, Tokenizer};

/// A [`Decoder`] followed by a [`StopMatcher`], for one answer.
///
/// The same stream serves an answer shown piece by piece and one shown at the end
/// ([`TextStream::whole`]): they cannot differ.
#[derive(Debug, Clone)]
pub struct TextStream {
    decoder: Decoder,
    matcher: StopMatcher,
    decoded: String,
    shown: String,
}

impl TextStream {
    /// A stream for one answer.
    pub fn new(tokenizer: &Tokenizer, stops: &StopStrings, keep_special: bool) -> Self {
        Self {
            decoder: Decoder::new(tokenizer, keep_special),
            matcher: stops.matcher(),
            decoded: String::new(),
            shown: String::new(),
        }
    }

    /// Takes the next id and returns the text that may be shown now, often empty. After a stop
    /// string nothing flows any more; ask [`TextStream::stopped`].
    pub fn push(&mut self, id: u32) -> &str {
        self.decoded.clear();
        self.shown.clear();
        if !self.stopped() {
            self.decoder.push(id, &mut self.decoded);
            self.matcher.push(&self.decoded, &mut self.shown);
        }
        &self.shown
    }

    /// Ends the answer and returns the rest of its text: through the same steps, so a stop string
    /// found only now still ends it.
    pub fn finish(&mut self) -> &str {
        self.decoded.clear();
        self.shown.clear();
        self.decoder.finish(&mut self.decoded);
        if !self.stopped() {
            self.matcher.push(&self.decoded, &mut self.shown);
        }
        self.matcher.finish(&mut self.shown);
        &self.shown
    }

    /// Whether a stop string ended the answer.
    pub fn stopped(&self) -> bool {
        self.matcher.matched().is_some()
    }

    /// The stop string that ended the answer.
    pub fn stop_string(&self) -> Option<&str> {
        self.matcher.matched()
    }

    /// The text of a whole answer.
    pub fn whole(mut self, ids: &[u32]) -> String {
        let mut text = String::new();
        for &id in ids {
            text.push_str(self.push(id));
        }
        text.push_str(self.finish());
        text
    }
}
