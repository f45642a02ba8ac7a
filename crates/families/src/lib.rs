//! Lowering: a checkpoint's `config.json` and tensor table become a closed [`Program`].
//!
//! This is the only place that knows model families: one file a family, one line each in
//! `registry.rs`. A lowering fully resolves the geometry and expresses every configuration key, or
//! says which one it cannot express; the closure check then compares the program with the tensors.
//! All defects of a checkpoint are reported together and a checkpoint with defects does not open.
//! No file is read here and nothing is computed with weights.

mod common;
mod compressed;
mod config;
mod deepseek_v4;
mod explain;
mod glm;
mod inkling;
mod json;
mod kimi_k3;
mod olmoe;
mod operands;
mod plain;
mod qwen;
mod qwen36;
mod qwen38;
mod qwen_keys;
mod registry;
mod rope_keys;
mod sources;

pub use registry::{FAMILY_IDS, is_of_family, known_model_types};

use common::codes_of_none;
use config::{ConfigReader, Findings};
use explain::{Attempt, Refused};
use lamella_program::closure::check_against;
use lamella_program::{Defect, Program, TensorInfo};
use registry::Family;
use serde_json::{Map, Value};
use sources::Sources;
use std::fmt;

/// The key that names the family.
const MODEL_TYPE: &str = "model_type";

/// Why a checkpoint has no program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LowerError {
    /// `config.json` is not one JSON object with distinct keys.
    NotJson {
        /// Line of the first fault, from 1.
        line: usize,
        /// Column of the first fault.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// `model_type` is absent or not a string.
    MissingModelType,
    /// No lowering is registered for this `model_type`.
    UnknownModelType {
        /// The value found.
        found: String,
        /// Every registered `model_type`.
        known: Vec<&'static str>,
    },
    /// The family is known, but the checkpoint does not close; every defect, in a fixed order.
    Defects(Vec<Defect>),
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LowerError::NotJson {
                line,
                column,
                message,
            } => {
                write!(f, "config.json, line {line}, column {column}: {message}")
            }
            LowerError::MissingModelType => f.write_str(
                "config.json: model_type is missing or not a string, \
                 so the model family is unknown",
            ),
            LowerError::UnknownModelType { found, known } => write!(
                f,
                "config.json: model_type {} is not a family this Lamella knows (known: {})",
                config::shown(&serde_json::Value::String(found.clone())),
                known.join(", ")
            ),
            LowerError::Defects(defects) => {
                let plural = if defects.len() == 1 {
                    "defect"
                } else {
                    "defects"
                };
                write!(
                    f,
                    "the checkpoint cannot be run as it is: {} {plural}",
                    defects.len()
                )?;
                defects
                    .iter()
                    .try_for_each(|defect| write!(f, "\n  {defect}"))
            }
        }
    }
}

impl std::error::Error for LowerError {}

/// Lowers a checkpoint to its program.
///
/// `config_json` is the text of `config.json`; `tensors` is what the checkpoint's headers
/// announce, each name once.
///
/// # Errors
/// [`LowerError`]: the configuration cannot be read, its family is unknown, or the checkpoint has
/// defects: all of them are returned, or, where one value of the configuration is the cause of
/// several, that value alone. No work and no allocation grows with a number in the
/// configuration that the tensor table does not bear out.
pub fn lower(config_json: &str, tensors: &[TensorInfo]) -> Result<Program, LowerError> {
    let values = json::parse_object(config_json)?;
    let Some(model_type) = values.get(MODEL_TYPE).and_then(Value::as_str) else {
        return Err(LowerError::MissingModelType);
    };
    let Some(family) = registry::family(model_type) else {
        let known = known_model_types().collect();
        return Err(LowerError::UnknownModelType {
            found: model_type.to_owned(),
            known,
        });
    };
    let sources = Sources::new(tensors);
    let other = |values: &Map<String, Value>| {
        let of = values.get(MODEL_TYPE).and_then(Value::as_str);
        let family = of.and_then(registry::family).unwrap_or(family);
        let (lowered, findings) = attempt(family, values, &sources, tensors);
        Attempt {
            defects: lowered.err().unwrap_or_default(),
            compared: findings.compared,
        }
    };
    let (lowered, findings) = attempt(family, &values, &sources, tensors);
    lowered.map_err(|defects| {
        let refused = Refused {
            values: &values,
            tensors,
            findings: &findings,
            defects,
        };
        LowerError::Defects(refused.explained(&other))
    })
}

/// The program or all defects, and what reading the keys was like.
fn attempt(
    family: &Family,
    values: &Map<String, Value>,
    sources: &Sources<'_>,
    tensors: &[TensorInfo],
) -> (Result<Program, Vec<Defect>>, Findings) {
    let mut config = ConfigReader::new(values);
    config.ignore(&[MODEL_TYPE]);
    let lowered = (family.lower)(&mut config, sources);
    let mut findings = config.findings();
    let mut defects = config.finish();
    if let Ok(program) = lowered {
        let parts = program.operands.iter().flat_map(|o| &o.parts);
        findings.compared = Some(parts.map(Vec::len).sum());
        defects.extend(check_against(&program, tensors));
        if defects.is_empty() {
            defects.extend(codes_of_none(values, &program));
        }
        if defects.is_empty() {
            return (Ok(program), findings);
        }
    }
    (Err(defects), findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(config: &str) -> LowerError {
        lower(config, &[]).unwrap_err()
    }

    #[test]
    fn faults_before_the_family_is_known_are_told_apart() {
        assert_eq!(error("{}"), LowerError::MissingModelType);
        assert_eq!(error(r#"{"model_type": 7}"#), LowerError::MissingModelType);
        let unknown = error(r#"{"model_type": "lla\nma"}"#);
        assert!(
            matches!(&unknown, LowerError::UnknownModelType { found, .. } if found == "lla\nma")
        );
        let text = unknown.to_string();
        assert!(
            text.contains(r#""lla\nma""#) && text.contains("olmoe"),
            "{text}"
        );
    }

    #[test]
    fn text_that_is_not_an_object_is_placed() {
        for (text, line) in [
            ("", 1),
            ("[]", 1),
            ("{\n \"a\": 1,\n \"a\": 2}", 3),
            ("{\n}\n}", 3),
            ("{\n\"a\": NaN}", 2),
        ] {
            match error(text) {
                LowerError::NotJson { line: found, .. } => assert_eq!(found, line, "{text:?}"),
                other => panic!("{text:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn every_defect_is_printed() {
        let defects = vec![
            Defect::UnknownConfigKey("one".into()),
            Defect::UnclaimedTensor("two".into()),
        ];
        let text = LowerError::Defects(defects.clone()).to_string();
        assert_eq!(text.lines().count(), 3);
        for defect in defects {
            assert!(text.contains(&defect.to_string()));
        }
    }
}
