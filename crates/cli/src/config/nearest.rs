//! What a mistyped word was probably meant to be.

/// The known words nearest to `word`, best first; none if nothing is near.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    const SHOWN: usize = 2;
    let word = word.to_ascii_lowercase();
    let near = |candidate: &str| (word.len().max(candidate.len()) / 3).max(1);
    let mut found: Vec<(usize, &str)> = known
        .map(|candidate| (distance(&word, &candidate.to_ascii_lowercase()), candidate))
        .filter(|&(steps, candidate)| steps <= near(candidate))
        .collect();
    found.sort();
    let best = found.first().map_or(0, |&(steps, _)| steps);
    found
        .into_iter()
        .take(SHOWN)
        .filter(|f| f.0 <= best + 1)
        .map(|f| f.1)
        .collect()
}

/// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, steps) in [
            ("", "", 0),
            ("ab", "ba", 1),
            ("kitten", "sitting", 3),
            ("", "ab", 2),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (steps, steps), "{a} {b}");
        }
    }

    #[test]
    fn only_near_words_are_offered() {
        let known = ["max_tokens", "min_p", "top_p", "top_k"];
        let offer = |word| nearest(word, known.into_iter());
        assert_eq!(offer("maxtokens"), ["max_tokens"]);
        assert_eq!(offer("top_q"), ["top_k", "top_p"]);
        assert!(offer("colour").is_empty());
    }
}
