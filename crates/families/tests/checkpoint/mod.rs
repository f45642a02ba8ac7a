//! Checkpoints for tests: the tensor tables of the fixtures, changed configurations, and the loops
//! that damage one thing at a time.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests")]

use lamella_families::{LowerError, lower};
use lamella_program::{Defect, Encoding, Program, Slice, TensorInfo};
use serde_json::Value;

/// The configuration and the tensor table of a fixture.
pub(crate) fn fixture(name: &str) -> (Value, Vec<TensorInfo>) {
    let dir = format!("{}/../../fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let config = std::fs::read_to_string(format!("{dir}/config.json")).unwrap();
    let bytes = std::fs::read(format!("{dir}/model.safetensors")).unwrap();
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let entries = header.as_object().unwrap().iter();
    let tensors = entries
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, entry)| {
            let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
            tensor(name, entry["dtype"].as_str().unwrap(), &shape)
        });
    (serde_json::from_str(&config).unwrap(), tensors.collect())
}

/// A tensor as a header announces it.
pub(crate) fn tensor(name: &str, dtype: &str, shape: &[usize]) -> TensorInfo {
    TensorInfo {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        encoding: Encoding::ALL
            .into_iter()
            .find(|e| !e.is_compiled() && e.name().eq_ignore_ascii_case(dtype)),
        shape: shape.to_vec(),
    }
}

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

/// The configuration with the value at `pointer` (as in RFC 6901) set.
pub(crate) fn with(mut config: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[key] = value;
    config
}

/// The configuration without the key at `pointer`.
pub(crate) fn without(mut config: Value, pointer: &str) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = config.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    parent.shift_remove(key).unwrap();
    config
}

pub(crate) fn program(config: &Value, tensors: &[TensorInfo]) -> Program {
    lower(&config.to_string(), tensors).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn defects(config: &Value, tensors: &[TensorInfo]) -> Vec<Defect> {
    match lower(&config.to_string(), tensors) {
        Err(LowerError::Defects(defects)) => defects,
        other => panic!("expected defects, got {other:?}"),
    }
}

/// The one defect, as text.
pub(crate) fn one_defect(config: &Value, tensors: &[TensorInfo]) -> String {
    let found = defects(config, tensors);
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].to_string()
}

/// Each value makes exactly one defect, at the key that `pointer` names.
pub(crate) fn each_value_is_its_defect(config: &Value, tensors: &[TensorInfo], bad: &[(&str, Value)]) {
    for (pointer, value) in bad {
        let text = one_defect(&with(config.clone(), pointer, value.clone()), tensors);
        let key = pointer[1..].replace('/', ".");
        let start = format!("config.json: {key}: ");
        assert!(text.starts_with(&start), "{pointer} {value}: {text}");
    }
}

/// Without each key there is exactly one defect, which names it.
pub(crate) fn each_needed_key_is_missed(config: &Value, tensors: &[TensorInfo], needed: &[&str]) {
    for pointer in needed {
        let text = one_defect(&without(config.clone(), pointer), tensors);
        let start = format!(
            "config.json: {}: is missing",
            pointer[1..].replace('/', ".")
        );
        assert!(text.starts_with(&start), "{pointer}: {text}");
    }
}

/// A key nobody knows in each of the objects is exactly its defect.
pub(crate) fn each_unknown_key_is_its_defect(config: &Value, tensors: &[TensorInfo], objects: &[&str]) {
    for object in objects {
        let pointer = format!("{object}/bits_of_magic");
        let key = pointer[1..].replace('/', ".");
        let changed = with(config.clone(), &pointer, Value::Null);
        assert_eq!(defects(&changed, tensors), [Defect::UnknownConfigKey(key)]);
    }
}

/// Removes, turns, widens and retypes every tensor that `used` accepts, one at a time.
pub(crate) fn each_damaged_tensor_is_its_defect(
    config: &Value,
    tensors: &[TensorInfo],
    used: impl Fn(&str) -> bool,
) {
    for (index, tensor) in tensors.iter().enumerate() {
        let name = &tensor.name;
        if !used(name) {
            continue;
        }
        let mut damaged = tensors.to_vec();
        damaged.remove(index);
        let found = defects(config, &damaged);
        let missing =
            |d: &Defect| matches!(d, Defect::MissingTensor { tensor, .. } if tensor == name);
        assert!(
            matches!(&found[..], [one] if missing(one)),
            "{name}: {found:?}"
        );

        let mut shapes = vec![tensor.shape.iter().rev().copied().collect::<Vec<_>>()];
        for dim in 0..tensor.shape.len() {
            let mut shape = tensor.shape.clone();
            shape[dim] += 1;
            shapes.push(shape);
        }
        for shape in shapes.into_iter().filter(|shape| *shape != tensor.shape) {
            let mut damaged = tensors.to_vec();
            damaged[index].shape.clone_from(&shape);
            let expected = Defect::TensorShape {
                tensor: name.clone(),
                found: shape,
                expected: tensor.shape.clone(),
            };
            assert_eq!(defects(config, &damaged), [expected]);
        }

        let mut damaged = tensors.to_vec();
        damaged[index].dtype = "U16".to_owned();
        damaged[index].encoding = None;
        let expected = Defect::ElementType {
            tensor: name.clone(),
            dtype: "U16".to_owned(),
        };
        assert_eq!(defects(config, &damaged), [expected]);
    }
}

/// Each name, added to the table, is exactly an unclaimed tensor.
pub(crate) fn each_extra_tensor_is_its_defect(config: &Value, tensors: &[TensorInfo], names: &[&str]) {
    for name in names {
        let mut table = tensors.to_vec();
        table.push(tensor(name, "BF16", &[1]));
        let expected = Defect::UnclaimedTensor((*name).to_owned());
        assert_eq!(defects(config, &table), [expected]);
    }
}

/// Whatever one changed byte makes of a configuration, lowering answers. How often it opened.
pub(crate) fn lower_with_changed_bytes(config: &Value, tensors: &[TensorInfo]) -> usize {
    let text = config.to_string();
    let mut opened = 0;
    for (index, byte) in (0..text.len()).zip([b'9', b'"', b'-', b'0'].into_iter().cycle()) {
        let mut damaged = text.clone().into_bytes();
        damaged[index] = byte;
        let damaged = String::from_utf8(damaged).unwrap();
        opened += usize::from(lower(&damaged, tensors).is_ok());
    }
    opened
}

/// The single slice that an item of an operand is.
pub(crate) fn slice(program: &Program, id: lamella_program::OperandId, item: usize) -> Slice {
    let operand = program.operand(id);
    assert_eq!(operand.parts[item].len(), 1, "{}", operand.name);
    operand.parts[item][0].clone()
}
