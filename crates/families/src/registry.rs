//! The table of families. Adding one is one line here and one file beside it.

use crate::config::{ConfigReader, Rejected};
use lamella_program::{Program, TensorInfo};

/// A model family: what it is called in `config.json` and how it is lowered.
pub(crate) struct Family {
    /// Values of `model_type` that mean this family.
    pub(crate) model_types: &'static [&'static str],
    /// Reads every key it expresses and builds the program; faults are left in the reader.
    pub(crate) lower: fn(&mut ConfigReader<'_>, &[TensorInfo]) -> Result<Program, Rejected>,
}

static FAMILIES: &[Family] = &[
    Family {
        model_types: &["deepseek_v4"],
        lower: crate::deepseek_v4::lower,
    },
    Family {
        model_types: &["glm_moe_dsa"],
        lower: crate::glm::lower,
    },
    Family {
        model_types: crate::inkling::MODEL_TYPES,
        lower: crate::inkling::lower,
    },
    Family {
        model_types: &["kimi_k3", "kimi_linear"],
        lower: crate::kimi_k3::lower,
    },
    Family {
        model_types: &["olmoe"],
        lower: crate::olmoe::lower,
    },
    Family {
        model_types: crate::qwen36::MODEL_TYPES,
        lower: crate::qwen36::lower,
    },
    Family {
        model_types: crate::qwen38::MODEL_TYPES,
        lower: crate::qwen38::lower,
    },
];

/// The family that `model_type` names.
pub(crate) fn family(model_type: &str) -> Option<&'static Family> {
    FAMILIES
        .iter()
        .find(|family| family.model_types.contains(&model_type))
}

/// Every `model_type` that can be lowered.
pub fn known_model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES
        .iter()
        .flat_map(|family| family.model_types.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_model_type_means_two_families() {
        let mut types: Vec<_> = known_model_types().collect();
        let count = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), count);
        assert!(types.iter().all(|name| family(name).is_some()));
        assert!(family("OLMOE").is_none());
    }
}
