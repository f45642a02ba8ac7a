//! Many defects that a single value of the configuration explains.
//!
//! A count or a flag that contradicts the tensors makes a defect of every tensor it governs, and
//! often of other keys too; of two keys that contradict each other the tensors know which is wrong.
//! What a key governs is written down nowhere: what the defects point to is put in its place, and
//! where the checkpoint then closes, the value is the one defect there is. A single tensor, and a
//! value that no checkpoint could have, stand as they are.

mod evidence;
mod parts;
mod search;
mod trial;

use crate::MODEL_TYPE;
use crate::config::{Findings, shown};
use crate::registry::known_model_types;
use evidence::{Candidate, Evidence};
use lamella_program::{Defect, TensorInfo};
use serde_json::{Map, Value, json};
pub(crate) use trial::Attempt;
use trial::{Lower, Trial, value};

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
    /// The defects in as few words as they can be put; `lower` tries other configurations.
    pub(crate) fn explained(self, lower: Lower<'_>) -> Vec<Defect> {
        match self.blame(&mut Trial::of(&self, lower)) {
            Some(one) => vec![one],
            None => parts::gathered(self.defects, self.tensors),
        }
    }

    /// The value that alone explains everything, if there is one.
    fn blame(&self, trial: &mut Trial<'_>) -> Option<Defect> {
        let unknown = |defect: &Defect| matches!(defect, Defect::UnknownConfigKey(_));
        let several = self.defects.len() > 1 || self.findings.contradicted;
        // With what no other value would mend, there is more than one thing wrong.
        let mended = !self.findings.refused && !self.defects.iter().any(unknown);
        let fits = match several && mended {
            true => self.fits(trial),
            false => Vec::new(),
        };
        match fits.is_empty() && self.is_foreign() {
            true => self.blamed(self.types(trial)),
            false => self.blamed(fits),
        }
    }

    /// Whether keys are missing or contradict each other, or as many tensors have other names as
    /// where a checkpoint is of another family. To try every family is much work.
    fn is_foreign(&self) -> bool {
        /// One in so many.
        const SHARE: usize = 8;
        let named = |defect: &&Defect| {
            matches!(
                defect,
                Defect::MissingTensor { .. } | Defect::UnclaimedTensor(_)
            )
        };
        let odd = self.defects.iter().filter(named).count();
        let Findings {
            missing,
            contradicted,
            compared,
            ..
        } = &self.findings;
        *missing || *contradicted || compared.is_none() || odd * SHARE > self.tensors.len()
    }

    fn blamed(&self, mut fits: Vec<Fit<'_>>) -> Option<Defect> {
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

    /// The values that explain everything, of different keys: what defects point to literally, then
    /// lists of layers, then what else they point to, then what is found step by step.
    fn fits<'c>(&'c self, trial: &mut Trial<'_>) -> Vec<Fit<'c>> {
        let evidence = Evidence::of(self);
        let candidates = evidence.candidates(self);
        let literal = candidates.partition_point(|candidate| candidate.literal);
        let (literal, others) = candidates.split_at(literal);
        let mut fits = self.closing(literal, trial);
        if fits.is_empty() {
            fits.extend(search::list(self, &evidence, trial));
        }
        if fits.is_empty() {
            fits = self.closing(others, trial);
        }
        if fits.is_empty() {
            fits.extend(search::number(self, trial));
        }
        fits
    }

    /// Those candidates with which the checkpoint closes, the first of each key.
    fn closing<'c>(&self, candidates: &[Candidate<'c>], trial: &mut Trial<'_>) -> Vec<Fit<'c>> {
        let mut fits: Vec<Fit<'c>> = Vec::new();
        for Candidate {
            path,
            value,
            literal,
        } in candidates
        {
            if fits.len() == MAX_KEYS {
                break;
            }
            if fits.iter().any(|fit| fit.path == *path) || !trial.closes(path, value) {
                continue;
            }
            trial.shorten();
            let told = match value {
                Value::Number(_) => *literal || trial.is_alone(path, value),
                Value::Array(_) => {
                    let others = candidates.iter().filter(|c| c.path == *path);
                    let mut others = others.filter(|c| c.value != *value);
                    !others.any(|other| trial.closes(path, &other.value))
                }
                _ => true,
            };
            let value = value.clone();
            fits.push(Fit { path, value, told });
        }
        fits
    }

    /// Another family that the checkpoint is of.
    fn types(&self, trial: &mut Trial<'_>) -> Vec<Fit<'static>> {
        let fits = |other: &&str| trial.closes_at_last(MODEL_TYPE, &json!(other));
        let other = known_model_types().find(fits);
        let fit = other.map(|other| Fit {
            path: MODEL_TYPE,
            value: json!(other),
            told: true,
        });
        fit.into_iter().collect()
    }

    fn complains_of(&self, path: &str) -> bool {
        let of = |defect: &Defect| matches!(defect, Defect::ConfigValue { key, .. } if key == path);
        self.defects.iter().any(of)
    }

    fn compared(&self, fit: &Fit<'_>) -> String {
        let found = self.value(fit.path);
        let found = found.map_or_else(|| "missing".to_owned(), shown);
        match fit.told {
            true => format!("is {found}, but the checkpoint fits {}", shown(&fit.value)),
            // Another value would do, which need not be the right one.
            false => format!("is {found}, which the checkpoint does not fit"),
        }
    }

    fn value(&self, path: &str) -> Option<&Value> {
        value(self.values, path)
    }
}
