//! Other configurations, tried with a bounded amount of work.

use super::Refused;
use lamella_program::Defect;
use serde_json::{Map, Value, json};

/// Tensors, or slices of them, looked at in all attempts together: seconds of work at most.
const MAX_WORK: usize = 1_500_000;
/// The same once a value is found that explains everything: others may do so too.
const MAX_MORE: usize = 500_000;
/// Attempts, whatever the size of the checkpoint.
const MAX_ATTEMPTS: usize = 500;
/// How much less work it is to read keys that contradict each other than to look at the tensors.
const READING: usize = 16;

/// What came of lowering a configuration.
pub(crate) struct Attempt {
    /// None where the checkpoint closes.
    pub(crate) defects: Vec<Defect>,
    /// How many slices of tensors were compared; `None` where keys contradict each other.
    pub(crate) compared: Option<usize>,
}

/// Lowers another configuration of the same checkpoint.
pub(crate) type Lower<'a> = &'a dyn Fn(&Map<String, Value>) -> Attempt;

/// Attempts with other values.
pub(super) struct Trial<'a> {
    values: Map<String, Value>,
    lower: Lower<'a>,
    tensors: usize,
    attempts: usize,
    work: usize,
}

impl<'a> Trial<'a> {
    pub(super) fn of(refused: &Refused<'_>, lower: Lower<'a>) -> Trial<'a> {
        Trial {
            values: refused.values.clone(),
            lower,
            tensors: refused.tensors.len() + 1,
            attempts: MAX_ATTEMPTS,
            work: MAX_WORK,
        }
    }

    /// Leaves less work to do.
    pub(super) fn shorten(&mut self) {
        self.work = self.work.min(MAX_MORE);
    }

    /// The defects with another value in place of what is under `path`; `None` where nothing can
    /// stand there, where no tensors were compared, or where no work is left.
    pub(super) fn defects(&mut self, path: &str, value: &Value) -> Option<Vec<Defect>> {
        if self.attempts == 0 || self.work < self.tensors {
            return None;
        }
        self.attempts -= 1;
        let attempt = self.attempt(path, value)?;
        let looked = match attempt.compared {
            Some(slices) => self.tensors.max(slices),
            None => self.tensors / READING,
        };
        self.work = self.work.saturating_sub(looked);
        attempt.compared.map(|_| attempt.defects)
    }

    /// Whether there are none.
    pub(super) fn closes(&mut self, path: &str, value: &Value) -> bool {
        self.defects(path, value)
            .is_some_and(|left| left.is_empty())
    }

    /// The same whatever work is left: for a few attempts at the end.
    pub(super) fn closes_at_last(&mut self, path: &str, value: &Value) -> bool {
        let attempt = self.attempt(path, value);
        attempt.is_some_and(|attempt| attempt.compared.is_some() && attempt.defects.is_empty())
    }

    /// Whether neither number beside this one closes: tensors tell it then.
    pub(super) fn is_alone(&mut self, path: &str, number: &Value) -> bool {
        let Some(n) = number.as_u64() else {
            return true;
        };
        let beside = [n.checked_sub(1), n.checked_add(1)];
        let mut others = beside.into_iter().flatten();
        let can_tell = self.attempts > 1 && self.work >= 2 * self.tensors;
        can_tell && !others.any(|other| self.closes(path, &json!(other)))
    }

    fn attempt(&mut self, path: &str, value: &Value) -> Option<Attempt> {
        let old = exchange(&mut self.values, path, Some(value.clone()))?;
        let attempt = (self.lower)(&self.values);
        exchange(&mut self.values, path, old);
        Some(attempt)
    }
}

/// What stands under a path of keys, `a.b`.
pub(super) fn value<'v>(values: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
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
