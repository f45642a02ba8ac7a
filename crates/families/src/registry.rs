//! The table of families. Adding one is one entry here and one file beside it.

use crate::config::{ConfigReader, Rejected};
use crate::sources::Sources;
use lamella_program::Program;
use std::ffi::CStr;

/// A model family: what it is called and how it is lowered.
pub(crate) struct Family {
    /// Its id for hosts, as old as their interface.
    id: &'static CStr,
    /// [`Program::family`] of its programs.
    name: &'static str,
    /// Values of `model_type` that mean this family.
    pub(crate) model_types: &'static [&'static str],
    /// Reads every key it expresses and builds the program; faults are left in the reader.
    pub(crate) lower: fn(&mut ConfigReader<'_>, &Sources<'_>) -> Result<Program, Rejected>,
}

const FAMILIES: &[Family] = &[
    Family {
        id: c"deepseek_v4",
        name: "deepseek_v4",
        model_types: &["deepseek_v4"],
        lower: crate::deepseek_v4::lower,
    },
    Family {
        id: c"glm",
        name: "glm",
        model_types: &["glm_moe_dsa"],
        lower: crate::glm::lower,
    },
    Family {
        id: c"inkling",
        name: "inkling",
        model_types: crate::inkling::MODEL_TYPES,
        lower: crate::inkling::lower,
    },
    Family {
        id: c"kimi",
        name: "kimi_k3",
        model_types: &["kimi_k3", "kimi_linear"],
        lower: crate::kimi_k3::lower,
    },
    Family {
        id: c"olmoe",
        name: "olmoe",
        model_types: &["olmoe"],
        lower: crate::olmoe::lower,
    },
    Family {
        id: c"qwen36",
        name: "qwen36",
        model_types: crate::qwen36::MODEL_TYPES,
        lower: crate::qwen36::lower,
    },
    Family {
        id: c"qwen38",
        name: "qwen38",
        model_types: crate::qwen38::MODEL_TYPES,
        lower: crate::qwen38::lower,
    },
];

/// The ids of the families for hosts, in the order of the table.
pub const FAMILY_IDS: [&CStr; FAMILIES.len()] = {
    let mut ids = [c""; FAMILIES.len()];
    let mut at = 0;
    while at < ids.len() {
        ids[at] = FAMILIES[at].id;
        at += 1;
    }
    ids
};

/// Whether a program whose [`Program::family`] is `name` is of the family number `family` of
/// [`FAMILY_IDS`].
#[must_use]
pub fn is_of_family(name: &str, family: usize) -> bool {
    FAMILIES.get(family).is_some_and(|f| f.name == name)
}

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
        for (number, of) in FAMILIES.iter().enumerate() {
            let same = |n: &usize| is_of_family(of.name, *n) || FAMILY_IDS[*n] == of.id;
            assert_eq!(
                (0..FAMILIES.len()).filter(same).collect::<Vec<_>>(),
                [number]
            );
        }
    }
}
