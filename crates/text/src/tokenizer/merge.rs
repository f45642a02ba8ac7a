//! Byte-pair merging by rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No part.
const NONE: usize = usize::MAX;

/// The bytes of a piece while they are merged: parts in a list, each from its own place up to that
/// of the next.
struct Parts {
    next: Vec<usize>,
    previous: Vec<usize>,
}

impl Parts {
    /// Where the part after the one at `at` ends.
    fn end_of_pair(&self, at: usize, length: usize) -> Option<usize> {
        let second = self.next[at];
        (second < length).then(|| self.next[second])
    }
}

/// Appends the ranks of the parts into which `piece` merges: again and again the two neighbours
/// whose joined bytes have the lowest rank become one, the leftmost of equals first. A byte without
/// a rank comes back as an error.
///
/// The work is that of sorting the piece, whatever it holds.
pub(super) fn merge(
    piece: &[u8],
    rank: &dyn Fn(&[u8]) -> Option<u32>,
    out: &mut Vec<u32>,
) -> Result<(), u8> {
    let length = piece.len();
    let mut parts = Parts {
        next: (1..=length).collect(),
        previous: (0..length).map(|at| at.wrapping_sub(1)).collect(),
    };
    let mut pairs = BinaryHeap::new();
    let pair = |parts: &Parts, at: usize| {
        let end = parts.end_of_pair(at, length)?;
        rank(&piece[at..end]).map(|rank| Reverse((rank, at, end)))
    };
    pairs.extend((0..length).filter_map(|at| pair(&parts, at)));
    while let Some(Reverse((_, at, end))) = pairs.pop() {
        // A part that was merged into its neighbour has no next; a pair that has changed since has
        // another end.
        if parts.next[at] == NONE || parts.end_of_pair(at, length) != Some(end) {
            continue;
        }
        let second = parts.next[at];
        parts.next[at] = end;
        parts.next[second] = NONE;
        if end < length {
            parts.previous[end] = at;
        }
        pairs.extend(pair(&parts, at));
        if at > 0 {
            pairs.extend(pair(&parts, parts.previous[at]));
        }
    }
    let mut at = 0;
    while at < length {
        let end = parts.next[at];
        out.push(rank(&piece[at..end]).ok_or(piece[at])?);
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::merge;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// The definition, word for word.
    fn slow(piece: &[u8], ranks: &HashMap<Vec<u8>, u32>) -> Vec<u32> {
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|&byte| vec![byte]).collect();
        loop {
            let best = (1..parts.len())
                .filter_map(|at| ranks.get(&parts[at - 1..=at].concat()).map(|r| (*r, at)))
                .min();
            let Some((_, at)) = best else {
                return parts.iter().map(|part| ranks[part]).collect();
            };
            let second = parts.remove(at);
            parts[at - 1].extend(second);
        }
    }

    proptest! {
        #[test]
        fn merges_as_defined(
            tokens in prop::collection::vec(prop::collection::vec(0_u8..3, 2..6), 0..40),
            piece in prop::collection::vec(0_u8..3, 0..60),
        ) {
            let mut ranks: HashMap<Vec<u8>, u32> = HashMap::new();
            // Single bytes last: their ranks must not matter.
            for token in tokens.into_iter().chain((0..3).map(|byte| vec![byte])) {
                let rank = ranks.len() as u32;
                ranks.entry(token).or_insert(rank);
            }
            let mut out = Vec::new();
            merge(&piece, &|bytes| ranks.get(bytes).copied(), &mut out).unwrap();
            prop_assert_eq!(out, slow(&piece, &ranks));
        }
    }

    #[test]
    fn a_byte_without_a_rank_is_named() {
        let rank = |bytes: &[u8]| (bytes == b"a").then_some(0);
        assert_eq!(merge(b"ab", &rank, &mut Vec::new()), Err(b'b'));
    }
}
