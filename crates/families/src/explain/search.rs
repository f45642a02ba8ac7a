//! Values that are found step by step: lists of layers, entry by entry, and numbers that dimensions
//! grow with.

use super::evidence::{Evidence, layer, tensor, whole};
use super::trial::{Trial, value};
use super::{Fit, Refused};
use crate::config::Kind;
use lamella_program::Defect;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Distinct entries that are tried in a list.
const MAX_WORDS: usize = 16;
/// Steps in search of one number.
const MAX_STEPS: usize = 32;
/// Numbers below are neighbours of what they should be, or are not found at all.
const SMALL: usize = 8;

/// A list that names layers, or has an entry for each, with which the checkpoint closes.
pub(super) fn list<'c>(
    refused: &'c Refused<'_>,
    evidence: &Evidence<'_>,
    trial: &mut Trial<'_>,
) -> Option<Fit<'c>> {
    if evidence.layers.is_empty() {
        return None;
    }
    let mut seen = BTreeSet::new();
    for key in &refused.findings.consulted {
        let path = key.path.as_str();
        let old = value(refused.values, path);
        let old = old.unwrap_or(&Value::Null).as_array().map(Vec::as_slice);
        let found = match &key.kind {
            Kind::Wholes if seen.insert(path) => {
                let old = old.unwrap_or_default();
                let named = toggled(path, old, evidence, trial);
                named.or_else(|| {
                    retold(path, old, &numbers(old, refused, evidence), evidence, trial)
                })
            }
            Kind::Words(words) => {
                let words: Vec<Value> = words.iter().map(|word| json!(word)).collect();
                retold(path, old.unwrap_or_default(), &words, evidence, trial)
            }
            _ => None,
        };
        if let Some(value) = found {
            let told = true;
            return Some(Fit { path, value, told });
        }
    }
    None
}

/// The list without the layers that something is wrong with, and with those it has not named.
fn toggled(
    path: &str,
    old: &[Value],
    evidence: &Evidence<'_>,
    trial: &mut Trial<'_>,
) -> Option<Value> {
    let named: BTreeSet<usize> = old.iter().map(whole).collect::<Option<_>>()?;
    // Lists count layers from 0 or from 1.
    let sets = evidence
        .layers
        .values()
        .flat_map(|wrong| [(wrong, 0), (wrong, 1)]);
    let lists = sets.map(|(wrong, first)| {
        let wrong = wrong.iter().map(|layer| layer + first).collect();
        json!(named.symmetric_difference(&wrong).collect::<Vec<_>>())
    });
    lists.into_iter().find(|list| trial.closes(path, list))
}

/// The list with other entries for the layers that something is wrong with: each word stands in all
/// of them in turn, and each layer keeps the one that it closes with.
fn retold(
    path: &str,
    old: &[Value],
    words: &[Value],
    evidence: &Evidence<'_>,
    trial: &mut Trial<'_>,
) -> Option<Value> {
    let inside = |&(_, wrong): &(&&str, &BTreeSet<usize>)| wrong.iter().all(|&n| n < old.len());
    let (before, wrong) = evidence.layers.iter().find(inside)?;
    let mut new = old.to_vec();
    let mut open = wrong.clone();
    for word in words {
        let mut list = new.clone();
        open.iter().for_each(|&layer| list[layer] = word.clone());
        let list = Value::from(list);
        let Some(left) = trial.defects(path, &list) else {
            continue;
        };
        if left.is_empty() {
            return Some(list);
        }
        let left: BTreeSet<usize> = left
            .iter()
            .filter_map(|defect| layer(tensor(defect)?))
            .filter(|(place, _)| place == before)
            .map(|(_, layer)| layer)
            .collect();
        open.retain(|layer| {
            let closed = !left.contains(layer);
            if closed {
                new[*layer] = word.clone();
            }
            !closed
        });
        if open.is_empty() {
            break;
        }
    }
    let list = Value::from(new);
    (open.is_empty() && trial.closes(path, &list)).then_some(list)
}

/// Entries that a list of numbers may have: those it has, what dimensions make of them, and the
/// sizes of dimensions.
fn numbers(old: &[Value], refused: &Refused<'_>, evidence: &Evidence<'_>) -> Vec<Value> {
    let there: BTreeSet<usize> = old.iter().filter_map(whole).collect();
    let measured = there.iter().flat_map(|&n| evidence.measured(n));
    let wrong: BTreeSet<&str> = refused.defects.iter().filter_map(tensor).collect();
    let wrong = refused
        .tensors
        .iter()
        .filter(|t| wrong.contains(t.name.as_str()));
    let sizes: BTreeSet<usize> = wrong.flat_map(|t| t.shape.iter().copied()).collect();
    let mut seen = BTreeSet::new();
    let all = there.iter().copied().chain(measured).chain(sizes);
    let all = all.filter(|n| seen.insert(*n));
    all.take(MAX_WORDS).map(Value::from).collect()
}

/// A dimension that has another size than is expected.
#[derive(Clone, Copy)]
struct Dimension<'t> {
    tensor: &'t str,
    index: usize,
    found: usize,
    expected: usize,
}

impl Dimension<'_> {
    /// The first of them.
    fn of(defects: &[Defect]) -> Option<Dimension<'_>> {
        defects.iter().find_map(|defect| match defect {
            Defect::TensorShape {
                tensor,
                found,
                expected,
            } => {
                let mut sizes = found.iter().zip(expected).enumerate();
                let (index, (&found, &expected)) = sizes.find(|(_, (a, b))| a != b)?;
                Some(Dimension {
                    tensor,
                    index,
                    found,
                    expected,
                })
            }
            _ => None,
        })
    }

    /// The size that is expected of it in these defects.
    fn expected(&self, defects: &[Defect]) -> usize {
        let expected = defects.iter().find_map(|defect| match defect {
            Defect::TensorShape {
                tensor, expected, ..
            } if tensor == self.tensor => expected.get(self.index).copied(),
            _ => None,
        });
        expected.unwrap_or(self.found)
    }
}

/// A number that a dimension grows with, or is a multiple of, with which the checkpoint closes.
pub(super) fn number<'c>(refused: &'c Refused<'_>, trial: &mut Trial<'_>) -> Option<Fit<'c>> {
    let dimension = Dimension::of(&refused.defects)?;
    let mut seen = BTreeSet::new();
    for key in &refused.findings.consulted {
        let path = key.path.as_str();
        let old = value(refused.values, path).and_then(whole);
        let Some(old) = old.filter(|&n| n >= SMALL && seen.insert(path)) else {
            continue;
        };
        if let Some(n) = grown(path, old, dimension, trial) {
            let value = json!(n);
            let told = trial.is_alone(path, &value);
            return Some(Fit { path, value, told });
        }
    }
    None
}

fn grown(path: &str, old: usize, dimension: Dimension<'_>, trial: &mut Trial<'_>) -> Option<usize> {
    let scaled = |n: usize, expected: usize| {
        let n = (n as u128 * dimension.found as u128).div_ceil(expected.max(1) as u128);
        usize::try_from(n).ok().filter(|&n| n > 0)
    };
    // The largest number that makes too little, and the smallest that makes too much.
    let (mut low, mut high) = match dimension.expected > dimension.found {
        true => (0, old),
        false => (old, usize::MAX),
    };
    let mut next = scaled(old, dimension.expected)?;
    let mut governs = false;
    for _ in 0..MAX_STEPS {
        let left = trial.defects(path, &json!(next));
        let Some(left) = left else { break };
        if left.is_empty() {
            return Some(next);
        }
        let expected = dimension.expected(&left);
        governs |= expected != dimension.expected;
        if !governs || expected == dimension.found {
            break;
        }
        match expected > dimension.found {
            true => high = high.min(next),
            false => low = low.max(next),
        }
        next = match high {
            usize::MAX => scaled(next, expected)?.max(next + 1),
            _ => low + (high - low) / 2,
        };
        if next <= low || next >= high {
            break;
        }
    }
    let mut divisors = (1..=dimension.found.min(1 << 12)).rev();
    let divides = |n: &usize| dimension.found.is_multiple_of(*n);
    divisors.find(|n| governs && divides(n) && trial.closes(path, &json!(n)))
}
