//! What defects point to: how far counts are off, and how dimensions differ.

use super::Refused;
use super::parts::{is_word, numbers};
use super::trial::value;
use crate::config::{Kind, MAX_LAYERS};
use crate::sources::undigited;
use lamella_program::Defect;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Distinct hints of each kind that are followed.
const MAX_HINTS: usize = 8;
/// Longest list of which all numbers are changed together: the sides of a block.
const SIDES: usize = 2;
/// Largest count that stands in for one that is null without any hint, and for one that tells every
/// how many layers are of another kind.
const SMALL: usize = 8;

/// A value to try.
pub(super) struct Candidate<'p> {
    pub(super) path: &'p str,
    pub(super) value: Value,
    /// Whether defects name both: so many are expected as the key says, and so many are there.
    pub(super) literal: bool,
}

/// Hints in the defects.
#[derive(Default)]
pub(super) struct Evidence<'n> {
    /// Expected and found sizes of dimensions, and numbers of parts.
    literal: BTreeSet<[usize; 2]>,
    /// Found and expected size of a dimension, with no common factor.
    ratios: BTreeSet<[usize; 2]>,
    /// How much larger a dimension is than expected; negative where it is smaller.
    sizes: BTreeSet<i64>,
    /// How many numbered parts there are more than expected.
    differences: BTreeSet<i64>,
    /// How many numbered parts there are, of which some are missing or too many.
    counts: BTreeSet<usize>,
    /// Where no tensors were compared: how long lists are, and how many parts of any kind there
    /// are.
    tallies: BTreeSet<usize>,
    /// Numbers of the layers that something is wrong with, by what stands before them in names.
    pub(super) layers: BTreeMap<&'n str, BTreeSet<usize>>,
}

/// Numbers of parts, by what stands before and after the number in a tensor's name.
type Parts<'n> = BTreeMap<(&'n str, &'n str), BTreeSet<usize>>;

impl<'n> Evidence<'n> {
    pub(super) fn of(refused: &'n Refused<'_>) -> Evidence<'n> {
        let mut evidence = Evidence::default();
        let (mut missing, mut extra) = (Parts::new(), Parts::new());
        for defect in &refused.defects {
            let Some(name) = tensor(defect) else {
                continue;
            };
            match defect {
                Defect::MissingTensor { .. } => number(name, |_| true, &mut missing),
                Defect::UnclaimedTensor(_) => number(name, |_| true, &mut extra),
                Defect::TensorShape {
                    found, expected, ..
                } => evidence.shape(found, expected),
                _ => {}
            }
            if let Some((before, layer)) = layer(name) {
                evidence.layers.entry(before).or_default().insert(layer);
            }
        }
        evidence.parts(refused, &missing, &extra);
        if refused.findings.compared.is_none() {
            evidence.tallies = tallies(refused);
        }
        evidence.shorten();
        evidence
    }

    fn shape(&mut self, found: &[usize], expected: &[usize]) {
        for (&a, &b) in found.iter().zip(expected).filter(|(a, b)| a != b) {
            self.literal.insert([b, a]);
            self.ratios.extend(reduced(a, b));
            let by = |n: usize| i64::try_from(n).ok();
            let difference = by(a).zip(by(b)).map(|(a, b)| a - b);
            self.sizes.extend(difference);
        }
    }

    fn parts(&mut self, refused: &Refused<'_>, missing: &Parts<'_>, extra: &Parts<'_>) {
        let mut there = Parts::new();
        let odd = |place: &(&str, &str)| missing.contains_key(place) || extra.contains_key(place);
        for tensor in refused.tensors {
            number(&tensor.name, odd, &mut there);
        }
        self.counts.extend(there.values().map(BTreeSet::len));
        let of = |parts: &Parts<'_>, place| parts.get(place).map_or(0, BTreeSet::len);
        for place in missing.keys().chain(extra.keys()) {
            let [there, missing, extra] = [&there, missing, extra].map(|parts| of(parts, place));
            self.differences.insert(extra as i64 - missing as i64);
            self.literal.insert([there + missing - extra, there]);
        }
    }

    /// The smallest hints of each kind: where there are many, one value explains none of them.
    fn shorten(&mut self) {
        self.ratios = first(&self.ratios, |&[a, b]| a.max(b));
        self.sizes = first(&self.sizes, |n| n.unsigned_abs());
        self.differences = first(&self.differences, |n| n.unsigned_abs());
        self.counts = first(&self.counts, |&n| n);
        self.tallies = first(&self.tallies, |&n| usize::MAX - n);
    }

    /// Values to try, by path: what the hints point to for every key, then what might be.
    pub(super) fn candidates<'p>(&self, refused: &Refused<'p>) -> Vec<Candidate<'p>> {
        let mut seen = BTreeSet::new();
        let keys = refused.findings.consulted.iter();
        let keys: Vec<_> = keys.filter(|key| seen.insert(&key.path)).collect();
        let mut tried: BTreeSet<(&str, String)> = BTreeSet::new();
        let mut candidates = Vec::new();
        for rank in 0..4 {
            for key in &keys {
                let path = key.path.as_str();
                let found = value(refused.values, path);
                let old = found.unwrap_or(&Value::Null);
                let counts_layers = matches!(key.kind, Kind::Whole(max) if max <= MAX_LAYERS);
                let new = match rank {
                    0 => self.literally(old),
                    1 if counts_layers || refused.complains_of(path) => self.tallied(old),
                    1 => Vec::new(),
                    2 if matches!(key.kind, Kind::Whole(_)) => {
                        [self.likely(old), self.tallied(old)].concat()
                    }
                    2 => self.likely(old),
                    // Of what is not there at all, the family has its own idea.
                    _ if found.is_none() && !counts_layers => Vec::new(),
                    _ => self.possible(old, counts_layers),
                };
                let new = new.into_iter().filter(|new| new != old);
                let new = new.filter(|new| tried.insert((path, new.to_string())));
                candidates.extend(new.map(|value| Candidate {
                    path,
                    value,
                    literal: rank == 0,
                }));
            }
        }
        candidates
    }

    fn literally(&self, old: &Value) -> Vec<Value> {
        let Some(n) = whole(old) else {
            return Vec::new();
        };
        let pairs = self.literal.range([n, 0]..=[n, usize::MAX]);
        listed(pairs.take(MAX_HINTS).map(|&[_, found]| found))
    }

    fn tallied(&self, old: &Value) -> Vec<Value> {
        match whole(old) {
            Some(_) => listed(self.tallies.iter().copied()),
            None => Vec::new(),
        }
    }

    fn likely(&self, old: &Value) -> Vec<Value> {
        match old {
            Value::Bool(flag) => vec![json!(!flag)],
            Value::Number(_) => whole(old).map_or_else(Vec::new, |n| listed(self.measured(n))),
            Value::Null => {
                let more = self.differences.iter().filter(|n| **n > 0);
                let counts = self.counts.iter().map(|n| json!(n));
                more.map(|n| json!(n)).chain(counts).collect()
            }
            Value::Array(items) if items.len() <= SIDES => {
                let sides: Option<Vec<usize>> = items.iter().map(whole).collect();
                sides.map_or_else(Vec::new, |sides| self.sides(&sides))
            }
            _ => Vec::new(),
        }
    }

    fn possible(&self, old: &Value, counts_layers: bool) -> Vec<Value> {
        let strides = if self.layers.is_empty() { 0 } else { SMALL };
        let strides = (1..=strides).filter(|_| counts_layers);
        match (whole(old), old) {
            (Some(n), _) => {
                let near = self.terms(n).into_iter().chain(neighbours(n));
                listed(near.chain(strides))
            }
            (None, Value::Null) => listed(1..=SMALL),
            _ => Vec::new(),
        }
    }

    /// What a number may be that is a factor of dimensions, or counts parts, as far as tensors
    /// tell.
    pub(super) fn measured(&self, n: usize) -> Vec<usize> {
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

    /// A block with another side, or with two others.
    fn sides(&self, sides: &[usize]) -> Vec<Value> {
        let mut lists = Vec::new();
        for (index, &side) in sides.iter().enumerate() {
            for new in self.measured(side).into_iter().chain(neighbours(side)) {
                let mut one = sides.to_vec();
                one[index] = new;
                lists.extend([json!(one), json!(vec![new; sides.len()])]);
            }
        }
        lists
    }
}

pub(super) fn whole(value: &Value) -> Option<usize> {
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

/// How many parts of each kind there are, numbered or stacked, whatever they belong to, and how
/// long lists are.
fn tallies(refused: &Refused<'_>) -> BTreeSet<usize> {
    let mut parts: HashMap<String, BTreeSet<usize>> = HashMap::new();
    for tensor in refused.tensors {
        for (before, number, _) in numbers(&tensor.name).filter(is_word) {
            parts.entry(undigited(before)).or_default().insert(number);
        }
    }
    let lists = refused.findings.consulted.iter();
    let lists = lists.filter_map(|key| value(refused.values, &key.path)?.as_array());
    let stacks = refused.tensors.iter().filter_map(|t| match t.shape[..] {
        // A kernel of a convolution is none.
        [items, rows, _] if rows > 1 => Some(items),
        _ => None,
    });
    let numbered = parts.values().map(BTreeSet::len);
    numbered.chain(stacks).chain(lists.map(Vec::len)).collect()
}

/// The tensor that a defect is about.
pub(super) fn tensor(defect: &Defect) -> Option<&str> {
    match defect {
        Defect::MissingTensor { tensor, .. }
        | Defect::UnclaimedTensor(tensor)
        | Defect::TensorShape { tensor, .. }
        | Defect::ElementType { tensor, .. }
        | Defect::MixedTypes { tensor, .. } => Some(tensor),
        _ => None,
    }
}

/// The number of the layer that a tensor belongs to, and what stands before it.
pub(super) fn layer(tensor: &str) -> Option<(&str, usize)> {
    let mut numbers = numbers(tensor);
    let (before, number, _) = numbers.find(|(before, ..)| before.ends_with("layers."))?;
    Some((before, number))
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
