//! Parts of the checkpoint that are known and not executed, claimed name by name.

use super::codes::{DIVISOR, PACKED};
use super::config::Config;
use super::parts;
use crate::common::{component, numbered};
use crate::sources::Sources;
use lamella_program::program::UnusedComponent;

/// Tensors beside a stack of experts in FP4 that its numbers do not depend on.
const BESIDE_CODES: [&str; 2] = [".input_amax", ".original_shape"];
/// What the name of a linear map ends in once more for the calibration that compressed-tensors puts
/// beside its codes.
const INPUT_DIVISOR: &str = ".input_global_scale";

/// What of the checkpoint is not executed.
pub(super) fn components(c: &Config, sources: &Sources<'_>) -> Vec<UnusedComponent> {
    let vision = sources.names(is_vision);
    let audio = sources.names(|name| {
        [
            "model.audio.encoder.weight",
            "model.audio.final_norm.weight",
        ]
        .contains(&name)
    });
    let beside = sources.names(|name| is_beside_codes(name, c, sources));
    let text_only = "only text is computed";
    [
        component("vision tower", text_only, vision),
        component("audio tower", text_only, audio),
        component(
            "calibration of inputs and shapes of FP4 experts",
            "the numbers do not depend on it",
            beside,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn is_vision(name: &str) -> bool {
    let layer = |kind: &str| numbered(name, &format!("model.visual.layers.{kind}_"));
    name == "model.visual.final_norm.weight"
        || [layer("linear"), layer("norm")]
            .into_iter()
            .flatten()
            .any(|(_, end)| end == "weight")
}

/// Whether `name` stands beside a stack of experts that is in codes, or another map in FP4.
fn is_beside_codes(name: &str, c: &Config, sources: &Sources<'_>) -> bool {
    if let Some(map) = name.strip_suffix(INPUT_DIVISOR) {
        return [PACKED, DIVISOR]
            .iter()
            .any(|end| sources.has(&format!("{map}{end}")));
    }
    let stack = BESIDE_CODES.iter().find_map(|end| name.strip_suffix(end));
    let Some(stack) = stack.filter(|stack| c.codes.coding(sources, stack).is_some()) else {
        return false;
    };
    numbered(stack, "model.llm.layers.")
        .is_some_and(|(index, end)| index < c.layers.len() && parts::EXPERTS.contains(&end))
}
