//! What defects point to: how far counts are off, and how dimensions differ.

use super::parts::numbers;
use super::{Refused, value};
use lamella_program::Defect;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Distinct hints of each kind that are followed.
const MAX_HINTS: usize = 8;
/// Distinct words of a list that are put in place of one of them.
const MAX_WORDS: usize = 4;
/// Longest list of which all numbers are changed together: the sides of a block.
const SIDES: usize = 2;
/// Largest count that stands in for one that is null without any hint.
const SMALL: usize = 8;

/// Hints in the defects.
#[derive(Default)]
pub(super) struct Evidence {
    /// Found and expected size of a dimension, with no common factor.
    ratios: BTreeSet<[usize; 2]>,
    /// How much larger a dimension is than expected; negative where it is smaller.
    sizes: BTreeSet<i64>,
    /// How many numbered parts there are more than expected.
    differences: BTreeSet<i64>,
    /// How many numbered parts there are.
    counts: BTreeSet<usize>,
    /// How long lists are.
    lengths: BTreeSet<usize>,
    /// Numbers of the layers that something is wrong with.
    layers: BTreeSet<usize>,
}

/// Numbers of parts, by what stands before and after the number in a tensor's name.
type Parts<'n> = BTreeMap<(&'n str, &'n str), BTreeSet<usize>>;

impl Evidence {
    pub(super) fn of(refused: &Refused<'_>) -> Evidence {
        let mut evidence = Evidence::default();
        let (mut missing, mut extra) = (Parts::new(), Parts::new());
        for defect in &refused.defects {
            let name = match defect {
                Defect::MissingTensor { tensor, .. } => {
                    number(tensor, |_| true, &mut missing);
                    tensor
                }
                Defect::UnclaimedTensor(tensor) => {
                    number(tensor, |_| true, &mut extra);
                    tensor
                }
                Defect::TensorShape {
                    tensor,
                    found,
                    expected,
                } => {
                    evidence.shape(found, expected);
                    tensor
                }
                _ => continue,
            };
            let layer = numbers(name).find(|(before, ..)| before.ends_with("layers."));
            evidence.layers.extend(layer.map(|(_, n, _)| n));
        }
        let mut there = Parts::new();
        let odd = |place: &(&str, &str)| missing.contains_key(place) || extra.contains_key(place);
        for tensor in refused.tensors {
            number(&tensor.name, odd, &mut there);
        }
        evidence.counts.extend(there.values().map(BTreeSet::len));
        let lists = refused.findings.consulted.iter();
        let lists = lists.filter_map(|path| value(refused.values, path)?.as_array());
        evidence.lengths.extend(lists.map(Vec::len));
        let of = |parts: &Parts<'_>, place| parts.get(place).map_or(0, BTreeSet::len) as i64;
        let places = missing.keys().chain(extra.keys());
        let differences = places.map(|place| of(&extra, place) - of(&missing, place));
        evidence.differences.extend(differences);
        evidence.shorten();
        evidence
    }

    fn shape(&mut self, found: &[usize], expected: &[usize]) {
        for (&a, &b) in found.iter().zip(expected).filter(|(a, b)| a != b) {
            self.ratios.extend(reduced(a, b));
            let by = |n: usize| i64::try_from(n).ok();
            let difference = by(a).zip(by(b)).map(|(a, b)| a - b);
            self.sizes.extend(difference);
        }
    }

    /// The smallest hints of each kind: where there are many, one value explains none of them.
    fn shorten(&mut self) {
        self.ratios = first(&self.ratios, |&[a, b]| a.max(b));
        self.sizes = first(&self.sizes, |n| n.unsigned_abs());
        self.differences = first(&self.differences, |n| n.unsigned_abs());
        self.counts = first(&self.counts, |&n| n);
        self.lengths = first(&self.lengths, |&n| usize::MAX - n);
        self.layers = first(&self.layers, |&n| n);
    }

    /// Values to try, by path: what the hints point to for every key, then what might be.
    pub(super) fn candidates<'p>(&self, refused: &Refused<'p>) -> Vec<(&'p str, Value)> {
        let mut seen = BTreeSet::new();
        let paths = refused.findings.consulted.iter().map(String::as_str);
        let paths: Vec<&str> = paths.filter(|path| seen.insert(*path)).collect();
        let mut tried: BTreeSet<(&str, String)> = BTreeSet::new();
        let mut candidates = Vec::new();
        for likely in [true, false] {
            for &path in &paths {
                let old = value(refused.values, path);
                let absent = old.is_none();
                let old = old.unwrap_or(&Value::Null);
                let new = match likely {
                    true => self.likely(old),
                    // Of what is not there at all, the family has its own idea.
                    false if absent => continue,
                    false => self.possible(old),
                };
                let new = new.into_iter().filter(|new| new != old);
                let new = new.filter(|new| tried.insert((path, new.to_string())));
                candidates.extend(new.map(|new| (path, new)));
            }
        }
        candidates
    }

    fn likely(&self, old: &Value) -> Vec<Value> {
        match old {
            Value::Bool(flag) => vec![json!(!flag)],
            Value::Number(_) => whole(old).map_or_else(Vec::new, |n| listed(self.numbers(n))),
            Value::Null => {
                let more = self
                    .differences
                    .iter()
                    .filter(|n| **n > 0)
                    .map(|n| json!(n));
                let counts = self.counts.iter().map(|n| json!(n));
                let named = |by: usize| self.layers.iter().map(|n| n + by).collect::<Vec<_>>();
                let lists = [0, 1].map(|by| json!(named(by)));
                more.chain(counts).chain(lists).collect()
            }
            Value::Array(items) => self.lists(items),
            _ => Vec::new(),
        }
    }

    fn possible(&self, old: &Value) -> Vec<Value> {
        match (whole(old), old) {
            (Some(n), _) => listed(self.terms(n).into_iter().chain(neighbours(n))),
            (None, Value::Null) => listed(1..=SMALL),
            _ => Vec::new(),
        }
    }

    /// Whether tensors say that `new` stands where `old` does, and not only that it would do: a
    /// flag has but one other value, and a number is in proportion to dimensions or counts parts.
    pub(super) fn says(&self, old: &Value, new: &Value) -> bool {
        let measured = |old: &Value, new: &Value| match (whole(old), whole(new)) {
            (Some(old), Some(new)) => old == new || self.measured(old).contains(&new),
            _ => false,
        };
        match (old, new) {
            (Value::Array(old), Value::Array(new)) if old.len() <= SIDES => {
                let sides = old.iter().zip(new);
                old.len() == new.len() && sides.into_iter().all(|(old, new)| measured(old, new))
            }
            (Value::Number(_), _) => measured(old, new) || self.is_length(old, new),
            _ => true,
        }
    }

    /// Whether `new` is how long a list is, and `old` about that: a count of what the list names.
    fn is_length(&self, old: &Value, new: &Value) -> bool {
        let near =
            |(old, new): (usize, usize)| old.abs_diff(new) <= 2 && self.lengths.contains(&new);
        whole(old).zip(whole(new)).is_some_and(near)
    }

    /// What a number may be that is a factor of dimensions, or counts parts.
    fn numbers(&self, n: usize) -> Vec<usize> {
        // Where no tensor was looked at, lists may tell of how many layers they are.
        let none = self.sizes.is_empty() && self.differences.is_empty();
        let lengths = self.lengths.iter().copied().filter(|_| none);
        self.measured(n).into_iter().chain(lengths).collect()
    }

    /// The same, as far as tensors tell.
    fn measured(&self, n: usize) -> Vec<usize> {
        let both = self.ratios.iter().flat_map(|&[a, b]| [[a, b], [b, a]]);
        let scaled = both.filter(|&[_, from]| n.is_multiple_of(from));
        let scaled = scaled.filter_map(|[to, from]| (n / from).checked_mul(to));
        let differences = self.differences.iter();
        scaled
            .chain(differences.filter_map(|&by| moved(n, by)))
            .collect()
    }

    /// What a number may be that is a term of dimensions, or a factor of a term.
    fn terms(&self, n: usize) -> Vec<usize> {
        let most = i64::try_from(n).unwrap_or(i64::MAX);
        let sizes = self.sizes.iter();
        let steps = sizes.flat_map(|&by| {
            let divides = move |step: &i64| by % step == 0;
            let steps = (1..=by.abs().min(most).min(1 << 12)).filter(divides);
            steps.map(move |step| step * by.signum())
        });
        steps.filter_map(|by| moved(n, by)).collect()
    }

    /// Lists with something else for the layers that something is wrong with.
    fn lists(&self, items: &[Value]) -> Vec<Value> {
        let mut lists = Vec::new();
        let mut words: Vec<&Value> = Vec::new();
        for word in items {
            if words.len() < MAX_WORDS && !words.contains(&word) {
                words.push(word);
            }
        }
        for &layer in self.layers.iter().filter(|layer| **layer < items.len()) {
            lists.extend(words.iter().map(|&word| {
                let mut list = items.to_vec();
                list[layer] = word.clone();
                Value::from(list)
            }));
        }
        let numbers: Option<Vec<usize>> = items.iter().map(whole).collect();
        if let Some(numbers) = numbers {
            // Lists of the numbers of layers count them from 0 or from 1.
            let layers = self.layers.iter().flat_map(|&layer| [layer, layer + 1]);
            lists.extend(layers.map(|layer| json!(toggled(&numbers, layer))));
            if numbers.len() <= SIDES {
                lists.extend(self.sides(&numbers));
            }
        }
        lists
    }

    /// A block with another side, or with two others.
    fn sides(&self, sides: &[usize]) -> Vec<Value> {
        let mut lists = Vec::new();
        for (index, &side) in sides.iter().enumerate() {
            for new in self.numbers(side).into_iter().chain(neighbours(side)) {
                let mut one = sides.to_vec();
                one[index] = new;
                lists.extend([json!(one), json!(vec![new; sides.len()])]);
            }
        }
        lists
    }
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

fn listed(numbers: impl IntoIterator<Item = usize>) -> Vec<Value> {
    numbers.into_iter().map(Value::from).collect()
}

fn moved(n: usize, by: i64) -> Option<usize> {
    n.checked_add_signed(isize::try_from(by).ok()?)
}

fn neighbours(n: usize) -> impl Iterator<Item = usize> {
    [n.checked_sub(1), n.checked_add(1)].into_iter().flatten()
}

/// The list without a number, or with it where it has it not.
fn toggled(list: &[usize], number: usize) -> Vec<usize> {
    let mut other: Vec<usize> = list.iter().copied().filter(|n| *n != number).collect();
    if other.len() == list.len() {
        other.push(number);
    }
    other
}

/// The first few in an order.
fn first<T: Ord + Copy, K: Ord>(all: &BTreeSet<T>, key: impl Fn(&T) -> K) -> BTreeSet<T> {
    let mut sorted: Vec<T> = all.iter().copied().collect();
    sorted.sort_by_key(key);
    sorted.into_iter().take(MAX_HINTS).collect()
}

/// Two sizes without their common factor; `None` where one is 0.
fn reduced(a: usize, b: usize) -> Option<[usize; 2]> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a > 0 && b > 0).then(|| [a / x, b / x])
}

fn number<'n>(name: &'n str, wanted: impl Fn(&(&str, &str)) -> bool, parts: &mut Parts<'n>) {
    for (before, number, after) in numbers(name) {
        if wanted(&(before, after)) {
            parts.entry((before, after)).or_default().insert(number);
        }
    }
}
