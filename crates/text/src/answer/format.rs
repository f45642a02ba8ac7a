//! A format made ready for one tokenizer: markers as units, a search for each place.

use std::sync::Arc;

use super::alphabet::Alphabet;
use super::table::{self, Habits, Next, Part, Place};
use crate::stop::Automaton;
use crate::{Chat, Prompt, Tokenizer};

/// Bytes at the end of a prompt that are looked at: far more than the longest opening.
const TAIL_BYTES: usize = 256;

/// What the answers of a checkpoint look like: which markers open and end reasoning, content and
/// tool calls. Cheap to clone, shared between threads.
///
/// It follows from what writes the prompts: a format in code has its own markers; for a template,
/// its source and the tokenizer say which of the published markers there are (the table is in
/// `table.rs`). Where a marker is a single token of the tokenizer, only that token is the marker,
/// and the same characters in other tokens are text.
#[derive(Debug, Clone)]
pub struct AnswerFormat(Arc<Format>);

/// The format behind an [`AnswerFormat`].
#[derive(Debug)]
pub(super) struct Format {
    pub(super) alphabet: Alphabet,
    pub(super) habits: Habits,
    exits: Vec<Exits>,
    openings: Vec<(&'static str, Place)>,
    /// Where an answer begins of which the prompt says nothing.
    pub(super) start: Place,
    calls: bool,
}

/// The markers that end a place.
#[derive(Debug)]
pub(super) struct Exits {
    pub(super) automaton: Automaton,
    markers: Vec<(Vec<u8>, Next)>,
}

impl Exits {
    /// The marker that ends with the unit that led to `state`: its length in units, and what
    /// comes behind it.
    pub(super) fn found(&self, state: u32) -> Option<(usize, Next)> {
        let (marker, next) = self.markers.get(self.automaton.found(state)?)?;
        Some((marker.len(), *next))
    }
}

impl AnswerFormat {
    /// The format of the answers to the prompts that `chat` writes.
    pub fn of(chat: &Chat, tokenizer: &Tokenizer) -> Self {
        Self::new(&table::parts(chat, tokenizer), tokenizer)
    }

    /// No markers: an answer is content and nothing else.
    pub fn plain(tokenizer: &Tokenizer) -> Self {
        Self::new(&[], tokenizer)
    }

    fn new(parts: &[&Part], tokenizer: &Tokenizer) -> Self {
        let tokens: Vec<&str> = parts.iter().flat_map(|part| part.tokens).copied().collect();
        let alphabet = Alphabet::new(tokenizer, &tokens);
        let rows: Vec<_> = parts.iter().flat_map(|part| part.rows).collect();
        let exits = Place::ALL.iter().map(|place| {
            let here = rows.iter().filter(|(at, _, _)| at == place);
            let markers: Vec<_> = here
                .map(|(_, marker, next)| (alphabet.units(marker), *next))
                .collect();
            Exits {
                automaton: Automaton::new(markers.iter().map(|(marker, _)| marker.as_slice())),
                markers,
            }
        });
        let first = parts.first().map_or(Place::Content, |part| part.start);
        Self(Arc::new(Format {
            exits: exits.collect(),
            openings: parts
                .iter()
                .flat_map(|part| part.openings)
                .copied()
                .collect(),
            start: first,
            habits: parts
                .iter()
                .fold(Habits::NONE, |all, part| all.or(part.habits)),
            calls: rows
                .iter()
                .any(|(_, _, next)| matches!(next, Next::Open(_))),
            alphabet,
        }))
    }

    /// Whether tool calls are told from text.
    pub fn has_calls(&self) -> bool {
        self.0.calls
    }

    pub(super) fn inner(&self) -> &Arc<Format> {
        &self.0
    }
}

impl Format {
    pub(super) fn exits(&self, place: Place) -> &Exits {
        &self.exits[place as usize]
    }

    /// Where the answer to `prompt` begins: a prompt may have opened the reasoning, or closed it.
    pub(super) fn place_after(&self, prompt: &Prompt) -> Place {
        let tail = prompt.tail(TAIL_BYTES);
        let tail = tail.trim_end();
        let opening = self.openings.iter().find(|(end, _)| tail.ends_with(end));
        opening.map_or(self.start, |&(_, place)| place)
    }
}
