//! Tensors by the numbered parts they belong to, and defects of a whole part as one.

use lamella_program::{Defect, TensorInfo};
use std::collections::{BTreeMap, BTreeSet};

/// Every number in a name, with what stands before and after it.
pub(super) fn numbers(name: &str) -> impl Iterator<Item = (&str, usize, &str)> {
    let digit = |at: usize| name.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let starts = (0..name.len()).filter(move |&at| digit(at) && (at == 0 || !digit(at - 1)));
    starts.filter_map(move |at| {
        let end = (at..name.len()).find(|&end| !digit(end));
        let end = end.unwrap_or(name.len());
        Some((&name[..at], name[at..end].parse().ok()?, &name[end..]))
    })
}

/// Whether a number is a whole word of a name, and not its last.
pub(super) fn is_word((before, _, after): &(&str, usize, &str)) -> bool {
    before.ends_with('.') && after.starts_with('.')
}

/// The defects, those of a numbered part that is not known at all, or not there at all though
/// others of its kind are, as one.
pub(super) fn gathered(defects: Vec<Defect>, tensors: &[TensorInfo]) -> Vec<Defect> {
    let names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let missing = defects.iter().filter_map(|defect| match defect {
        Defect::MissingTensor { tensor, .. } => Some(tensor.as_str()),
        _ => None,
    });
    let extra = defects.iter().filter_map(|defect| match defect {
        Defect::UnclaimedTensor(tensor) => Some(tensor.as_str()),
        _ => None,
    });
    let (missing, extra): (Vec<&str>, BTreeSet<&str>) = (missing.collect(), extra.collect());
    let known = Parts::of(names.iter().copied().filter(|name| !extra.contains(name)));
    let lost = whole(&missing, &Parts::of(names.iter().copied()), true);
    let more = whole(&extra.iter().copied().collect::<Vec<_>>(), &known, false);
    drop((missing, names));
    let mut out = Vec::new();
    let mut told = BTreeSet::new();
    for defect in defects {
        let part = match &defect {
            Defect::MissingTensor { tensor, .. } => part_of(tensor, &lost),
            Defect::UnclaimedTensor(tensor) => part_of(tensor, &more),
            _ => None,
        };
        let Some((part, &count)) = part else {
            out.push(defect);
            continue;
        };
        if told.insert(part.to_owned()) {
            out.push(match defect {
                Defect::MissingTensor { .. } => Defect::MissingPart {
                    part: part.to_owned(),
                },
                _ => Defect::UnclaimedPart {
                    part: part.to_owned(),
                    count,
                },
            });
        }
    }
    out
}

/// The outermost numbered parts that tensors belong to, up to the dot behind the number.
struct Parts<'n> {
    parts: BTreeSet<&'n str>,
    /// What stands before the numbers.
    before: BTreeSet<&'n str>,
}

impl<'n> Parts<'n> {
    fn of(names: impl Iterator<Item = &'n str>) -> Parts<'n> {
        let (mut parts, mut before) = (BTreeSet::new(), BTreeSet::new());
        for (start, part) in names.filter_map(outermost) {
            before.insert(start);
            parts.insert(part);
        }
        Parts { parts, before }
    }
}

/// What stands before the first number that is a whole word of a name, and the name up to the dot
/// behind it.
fn outermost(name: &str) -> Option<(&str, &str)> {
    let mut found = numbers(name);
    let (before, _, after) = found.find(is_word)?;
    Some((before, &name[..=name.len() - after.len()]))
}

/// Parts of which `there` has nothing, and how many tensors they have; where `akin`, only those of
/// which it has others of the kind.
fn whole(names: &[&str], there: &Parts<'_>, akin: bool) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (before, part) in names.iter().filter_map(|name| outermost(name)) {
        if (!akin || there.before.contains(before)) && !there.parts.contains(part) {
            *counts.entry(part).or_default() += 1;
        }
    }
    let several = counts.into_iter().filter(|(_, count)| *count > 1);
    several.map(|(part, n)| (part.to_owned(), n)).collect()
}

fn part_of<'n, 'p>(
    name: &'n str,
    parts: &'p BTreeMap<String, usize>,
) -> Option<(&'n str, &'p usize)> {
    let (_, part) = outermost(name)?;
    Some((part, parts.get(part)?))
}
