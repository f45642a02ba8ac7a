//! Loops that damage one thing of a checkpoint at a time, and views of what came of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::common::{defects, one_defect, with, without};
use lamella_families::lower;
use lamella_program::{Defect, OperandId, Program, Slice, TensorInfo};
use serde_json::Value;

/// Bytes of a tensor of one of the types that checkpoints use.
pub(crate) fn bytes(tensor: &TensorInfo) -> u64 {
    let element = match tensor.dtype.as_str() {
        "I64" => 8,
        "F32" => 4,
        "BF16" | "F16" => 2,
        _ => 1,
    };
    element * tensor.shape.iter().map(|&n| n as u64).product::<u64>()
}

/// The single slice that an item of an operand is.
pub(crate) fn slice(program: &Program, id: OperandId, item: usize) -> Slice {
    let operand = program.operand(id);
    assert_eq!(operand.parts[item].len(), 1, "{}", operand.name);
    operand.parts[item][0].clone()
}

/// Without each key there is exactly one defect, which names it.
pub(crate) fn check_needed_keys(config: &Value, tensors: &[TensorInfo], needed: &[&str]) {
    for path in needed {
        let text = one_defect(&without(config, path), tensors);
        let start = format!("config.json: {path}: is missing");
        assert!(text.starts_with(&start), "{path}: {text}");
    }
}

/// A key nobody knows in each of the objects is exactly its defect.
pub(crate) fn check_unknown_keys(config: &Value, tensors: &[TensorInfo], objects: &[&str]) {
    for object in objects {
        let dot = if object.is_empty() { "" } else { "." };
        let path = format!("{object}{dot}bits_of_magic");
        let changed = with(config, &path, Value::Null);
        assert_eq!(defects(&changed, tensors), [Defect::UnknownConfigKey(path)]);
    }
}

/// Removes, turns, widens and retypes every tensor that `used` accepts, one at a time, and expects
/// exactly that defect.
pub(crate) fn check_tensors(config: &Value, tensors: &[TensorInfo], used: impl Fn(&str) -> bool) {
    let used = |(_, t): &(usize, &TensorInfo)| used(&t.name);
    for (index, tensor) in tensors.iter().enumerate().filter(used) {
        let name = &tensor.name;
        let mut lost = tensors.to_vec();
        lost.remove(index);
        let found = defects(config, &lost);
        assert!(
            matches!(&found[..], [Defect::MissingTensor { tensor, .. }] if tensor == name),
            "{name} lost: {found:#?}"
        );

        let mut damaged = tensors.to_vec();
        let mut shapes = vec![tensor.shape.iter().rev().copied().collect::<Vec<_>>()];
        for dim in 0..tensor.shape.len() {
            let mut shape = tensor.shape.clone();
            shape[dim] += 1;
            shapes.push(shape);
        }
        for shape in shapes.into_iter().filter(|shape| *shape != tensor.shape) {
            damaged[index].shape.clone_from(&shape);
            let expected = Defect::TensorShape {
                tensor: name.clone(),
                found: shape,
                expected: tensor.shape.clone(),
            };
            assert_eq!(defects(config, &damaged), [expected]);
        }
        damaged[index] = tensor.clone();
        damaged[index].dtype = "U16".to_owned();
        damaged[index].encoding = None;
        let expected = Defect::ElementType {
            tensor: name.clone(),
            dtype: "U16".to_owned(),
        };
        assert_eq!(defects(config, &damaged), [expected]);
    }
}

/// Whatever one changed byte makes of a configuration, lowering answers. How often it opened.
pub(crate) fn lower_with_changed_bytes(config: &Value, tensors: &[TensorInfo]) -> usize {
    let text = config.to_string();
    let bytes = [b'9', b'"', b'-', b'0'].into_iter().cycle();
    let mut opened = 0;
    for (index, byte) in (0..text.len()).zip(bytes) {
        let mut damaged = text.clone().into_bytes();
        damaged[index] = byte;
        let damaged = String::from_utf8(damaged).unwrap();
        opened += usize::from(lower(&damaged, tensors).is_ok());
    }
    opened
}
