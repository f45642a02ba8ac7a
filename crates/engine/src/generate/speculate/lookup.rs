//! Drafts by prompt lookup: what followed when these words were last said.

use super::{Drafter, Outlook};
use std::collections::HashMap;

/// Fewest tokens that must repeat before their continuation is worth a draft.
const LEAST: usize = 2;
/// Longest repetition that is measured; beyond it nothing is surer.
const LONGEST: usize = 16;
/// Earlier places that are compared, newest first.
const PLACES: usize = 64;
/// No place.
const NONE: u32 = u32::MAX;

/// Finds the longest earlier repetition of the newest tokens and proposes what followed it there,
/// the newest place among equals. It sees token ids only, and every id at most once.
///
/// The index is a chain of earlier places for each pair of tokens, as a compressor of the LZ77
/// family keeps it: a new token costs one insertion, a draft at most 64 comparisons of up to 16
/// tokens.
#[derive(Debug, Default)]
pub struct PromptLookup {
    /// The newest place that follows a pair of tokens.
    newest: HashMap<[u32; LEAST], u32>,
    /// The place before it that followed the same pair, by place; [`NONE`] ends the chain.
    older: Vec<u32>,
    /// Where the continuation found last starts.
    found: usize,
}

impl PromptLookup {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> PromptLookup {
        PromptLookup::default()
    }

    /// Indexes the places of `history` that have a token: a place is known once it is filled, so
    /// the newest tokens never find themselves.
    fn catch_up(&mut self, history: &[u32]) {
        // Places are numbered in 32 bits; no context is longer.
        let end = history.len().min(NONE as usize);
        for place in self.older.len()..end {
            let pair = place.checked_sub(LEAST).map(|start| &history[start..place]);
            let before = pair.and_then(|pair| {
                let pair = <[u32; LEAST]>::try_from(pair).ok()?;
                self.newest.insert(pair, place as u32)
            });
            self.older.push(before.unwrap_or(NONE));
        }
    }

    /// The place after the longest repetition, and its length.
    fn find(&self, history: &[u32]) -> Option<(usize, usize)> {
        let start = history.len().checked_sub(LEAST)?;
        let pair = <[u32; LEAST]>::try_from(&history[start..]).ok()?;
        let mut place = *self.newest.get(&pair)?;
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..PLACES {
            let length = shared(&history[..place as usize], history);
            if best.is_none_or(|(_, longest)| length > longest) {
                best = Some((place as usize, length));
            }
            place = self.older[place as usize];
            if place == NONE || length == LONGEST {
                break;
            }
        }
        best
    }
}

/// How many tokens two histories share at their ends, as far as anyone asks.
fn shared(a: &[u32], b: &[u32]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev()).take(LONGEST);
    pairs.take_while(|(x, y)| x == y).count()
}

impl<S: ?Sized, E> Drafter<S, E> for PromptLookup {
    fn begin(&mut self) {
        self.newest.clear();
        self.older.clear();
    }

    fn outlook(&mut self, history: &[u32], most: usize) -> Option<Outlook> {
        self.catch_up(history);
        let (place, length) = self.find(history)?;
        self.found = place;
        let grade = match length {
            ..=2 => 0,
            3 => 1,
            4..=7 => 2,
            _ => 3,
        };
        Some(Outlook {
            grade,
            tokens: most,
        })
    }

    fn draft(
        &mut self,
        _: &mut S,
        history: &[u32],
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), E> {
        // Where the continuation reaches the end of the history it goes on in the draft itself:
        // what repeats at a short distance is drafted as going on.
        let first = out.len();
        for place in self.found..self.found + count {
            let beyond = place.checked_sub(history.len());
            let token = match beyond {
                None => history.get(place),
                Some(index) => out.get(first + index),
            };
            let Some(&token) = token else { break };
            out.push(token);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grade and tokens of the draft after `history`.
    fn draft(lookup: &mut PromptLookup, history: &[u32], most: usize) -> Option<(usize, Vec<u32>)> {
        let lookup: &mut dyn Drafter<(), ()> = lookup;
        let outlook = lookup.outlook(history, most)?;
        let mut out = Vec::new();
        lookup
            .draft(&mut (), history, outlook.tokens, &mut out)
            .unwrap();
        Some((outlook.grade, out))
    }

    fn fresh(history: &[u32], most: usize) -> Option<(usize, Vec<u32>)> {
        draft(&mut PromptLookup::new(), history, most)
    }

    #[test]
    fn the_longest_repetition_wins_then_the_newest() {
        // "1 2" was followed by 7 and later by 8; "5 1 2" only by 7.
        let history = [5, 1, 2, 7, 9, 1, 2, 8, 9, 5, 1, 2];
        assert_eq!(fresh(&history, 3), Some((1, vec![7, 9, 1])));
        let history = [1, 2, 7, 9, 1, 2, 8, 9, 4, 1, 2];
        assert_eq!(fresh(&history, 2), Some((0, vec![8, 9])));
    }

    #[test]
    fn nothing_repeats_nothing_is_drafted() {
        for history in [&[][..], &[1], &[1, 2], &[1, 2, 3, 2], &[1, 2, 3, 4, 5]] {
            assert_eq!(fresh(history, 4), None, "{history:?}");
        }
        // A run of one token repeats from its third on.
        assert_eq!(fresh(&[6, 6], 2), None);
        assert_eq!(fresh(&[6, 6, 6], 2), Some((0, vec![6, 6])));
    }

    #[test]
    fn short_cycles_go_on_inside_the_draft() {
        let history = [1, 2, 3, 1, 2, 3, 1, 2];
        assert_eq!(
            fresh(&history, 7),
            Some((2, vec![3, 1, 2, 3, 1, 2, 3])),
            "the draft is longer than what followed"
        );
    }

    #[test]
    fn longer_repetitions_are_surer() {
        let grade = |length: u32| {
            let mut history: Vec<u32> = (0..length).collect();
            history.push(99);
            history.extend(0..length);
            fresh(&history, 1)
        };
        let grades: Vec<_> = [2, 3, 4, 7, 8, 30].map(|n| grade(n).map(|g| g.0)).into();
        assert_eq!(grades, [0, 1, 2, 2, 3, 3].map(Some));
    }

    #[test]
    fn catching_up_token_by_token_is_reading_at_once() {
        let mut state = 12345u32;
        let history: Vec<u32> = (0..600)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 29
            })
            .collect();
        let mut lookup = PromptLookup::new();
        let mut drafts = 0;
        for end in 0..history.len() {
            let got = draft(&mut lookup, &history[..end], 5);
            assert_eq!(got, fresh(&history[..end], 5), "{end}");
            drafts += usize::from(got.is_some());
        }
        assert!(drafts > 400, "{drafts}");
        Drafter::<(), ()>::begin(&mut lookup);
        assert_eq!(draft(&mut lookup, &history[..2], 5), None);
    }
}
