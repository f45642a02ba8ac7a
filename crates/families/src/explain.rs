//! Many defects that a single value of the configuration explains.
//!
//! A count or a flag that contradicts the tensors makes a defect of every tensor it governs, and
//! often of other keys too; of two keys that contradict each other the tensors know which is wrong.
//! What a key governs is written down nowhere: what the defects point to is put in its place, and
//! where the checkpoint then closes, the value is the one defect there is. A single tensor, and a
//! value that no checkpoint could have, stand as they are.

mod evidence;
mod parts;

use crate::config::{Findings, shown};
use evidence::Evidence;
use lamella_program::{Defect, TensorInfo};
use serde_json::{Map, Value};

/// Tensors looked at in all attempts together: seconds of work at most.
const MAX_WORK: usize = 1_500_000;
/// The same once a value is found that explains everything: others may do so too.
const MAX_MORE: usize = 500_000;
/// Attempts, whatever the size of the checkpoint.
const MAX_ATTEMPTS: usize = 250;
/// Keys of which any alone would explain everything, as far as they are named.
const MAX_KEYS: usize = 3;

/// A configuration that does not close.
pub(crate) struct Refused<'a> {
    pub(crate) values: &'a Map<String, Value>,
    pub(crate) tensors: &'a [TensorInfo],
    /// What reading the keys was like.
    pub(crate) findings: &'a Findings,
    pub(crate) defects: Vec<Defect>,
}

/// A value that would do, and where.
struct Fit<'a> {
    path: &'a str,
    value: Value,
    /// Whether tensors say so, and not only that it would do.
    told: bool,
}

impl Refused<'_> {
    /// The defects in as few words as they can be put; `closes` tells whether another configuration
    /// has none.
    pub(crate) fn explained(self, closes: impl Fn(&Map<String, Value>) -> bool) -> Vec<Defect> {
        let unknown = |defect: &Defect| matches!(defect, Defect::UnknownConfigKey(_));
        let several = self.defects.len() > 1 || self.findings.contradicted;
        // With what no other value would mend, there is more than one thing wrong.
        let mended = !self.findings.refused && !self.defects.iter().any(unknown);
        if several && mended {
            let evidence = Evidence::of(&self);
            if let Some(one) = self.blame(&evidence, closes) {
                return vec![one];
            }
        }
        parts::gathered(self.defects, self.tensors)
    }

    /// The value that alone explains everything, if there is one.
    fn blame(
        &self,
        evidence: &Evidence,
        closes: impl Fn(&Map<String, Value>) -> bool,
    ) -> Option<Defect> {
        let mut fits = self.fits(evidence, closes);
        // A key that is complained of anyway goes first, then what tensors tell.
        fits.sort_by_key(|fit| (!self.complains_of(fit.path), !fit.told));
        let (fit, others) = fits.split_first()?;
        let mut message = self.compared(fit);
        for other in others {
            let compared = self.compared(other);
            message.push_str(&format!(" (as well, {} {compared})", other.path));
        }
        let more = match self.defects.len() - 1 {
            0 => String::new(),
            1 => ", and one more defect".to_owned(),
            n => format!(", and {n} more defects"),
        };
        let first = self.defects.first()?;
        message.push_str(&format!("; with it, {first}{more}"));
        let key = fit.path.to_owned();
        Some(Defect::ConfigValue { key, message })
    }

    /// The values that explain everything, of different keys.
    fn fits<'c>(
        &'c self,
        evidence: &Evidence,
        closes: impl Fn(&Map<String, Value>) -> bool,
    ) -> Vec<Fit<'c>> {
        let candidates = evidence.candidates(self);
        let mut changed = self.values.clone();
        let mut fits: Vec<Fit<'c>> = Vec::new();
        let within = |work: usize| MAX_ATTEMPTS.min(work / (self.tensors.len() + 1));
        let mut left = within(MAX_WORK);
        for (path, value) in candidates {
            if fits.iter().any(|fit| fit.path == path) {
                continue;
            }
            if left == 0 || fits.len() == MAX_KEYS {
                break;
            }
            left -= 1;
            let Some(old) = exchange(&mut changed, path, Some(value.clone())) else {
                continue;
            };
            if closes(&changed) {
                let old = old.as_ref().unwrap_or(&Value::Null);
                let told = evidence.says(old, &value);
                fits.push(Fit { path, value, told });
                left = left.min(within(MAX_MORE));
            }
            exchange(&mut changed, path, old);
        }
        fits
    }

    fn complains_of(&self, path: &str) -> bool {
        let of = |defect: &Defect| matches!(defect, Defect::ConfigValue { key, .. } if key == path);
        self.defects.iter().any(of)
    }

    fn compared(&self, fit: &Fit<'_>) -> String {
        let found = value(self.values, fit.path);
        let found = found.map_or_else(|| "missing".to_owned(), shown);
        match fit.told {
            true => format!("is {found}, but the checkpoint fits {}", shown(&fit.value)),
            // Another value would do, which need not be the right one.
            false => format!("is {found}, which the checkpoint does not fit"),
        }
    }
}

/// What stands under a path of keys, `a.b`.
fn value<'v>(values: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    let mut keys = path.split('.');
    let first = values.get(keys.next()?)?;
    keys.try_fold(first, |value, key| value.as_object()?.get(key))
}

/// Puts a value there, or nothing, and takes what there was; `None` where there is no such object.
fn exchange(
    values: &mut Map<String, Value>,
    path: &str,
    new: Option<Value>,
) -> Option<Option<Value>> {
    let (outer, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut object = values;
    for key in outer.split('.').filter(|key| !key.is_empty()) {
        object = object.get_mut(key)?.as_object_mut()?;
    }
    Some(match new {
        Some(new) => object.insert(last.to_owned(), new),
        None => object.remove(last),
    })
}
