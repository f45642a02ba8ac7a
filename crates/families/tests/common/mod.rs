//! What the tests of lowerings share: tensor tables from fixtures, and damage to them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use lamella_families::{LowerError, lower};
use lamella_program::closure::draft_operands;
use lamella_program::{Defect, Encoding, OperandId, Program, Role, TensorInfo};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A tensor with its element type as files spell it.
pub(crate) fn tensor(name: impl Into<String>, dtype: &str, shape: &[usize]) -> TensorInfo {
    TensorInfo {
        name: name.into(),
        dtype: dtype.into(),
        encoding: encoding(dtype),
        shape: shape.to_vec(),
    }
}

fn encoding(dtype: &str) -> Option<Encoding> {
    match dtype {
        "F32" => Some(Encoding::F32),
        "F16" => Some(Encoding::F16),
        "BF16" => Some(Encoding::Bf16),
        _ => None,
    }
}

/// Configuration and tensor table of a checkpoint in `fixtures/`, or of one whose header alone is
/// in `tests/data/`.
pub(crate) fn fixture(name: &str) -> (Value, Vec<TensorInfo>) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let alone = here.join(format!("tests/data/{name}.json"));
    if let Ok(text) = fs::read_to_string(alone) {
        let whole: Value = serde_json::from_str(&text).unwrap();
        let tensors = whole["tensors"].as_object().unwrap();
        let table = tensors.iter().map(|(name, entry)| {
            let shape: Vec<usize> = serde_json::from_value(entry[1].clone()).unwrap();
            tensor(name, entry[0].as_str().unwrap(), &shape)
        });
        return (whole["config"].clone(), table.collect());
    }
    let dir = here.join("../../fixtures").join(name);
    let config = fs::read_to_string(dir.join("config.json")).unwrap();
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("model") && name.ends_with(".safetensors")
        })
        .collect();
    files.sort();
    let table = files.iter().flat_map(|path| header(path)).collect();
    (serde_json::from_str(&config).unwrap(), table)
}

/// A fixture of each family and layout.
pub(crate) const FAMILIES: [&str; 9] = [
    "deepseek_v4-303",
    "glm-101",
    "inkling-101",
    "kimi_k3-bf16-404",
    "olmoe-202",
    "qwen35dense-303",
    "qwen36-101",
    "qwen38-111",
    "qwen3next-505",
];

/// Names of the checkpoints in `fixtures/`, in order.
pub(crate) fn fixture_names() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let models = entries.filter(|entry| entry.path().join("config.json").is_file());
    let mut names: Vec<String> = models
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

/// The tensors a safetensors file announces.
fn header(path: &Path) -> Vec<TensorInfo> {
    let bytes = fs::read(path).unwrap();
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let entries = header.as_object().unwrap().iter();
    entries
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, entry)| {
            let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
            tensor(name, entry["dtype"].as_str().unwrap(), &shape)
        })
        .collect()
}

/// The program of a checkpoint without defects.
pub(crate) fn program(config: &Value, tensors: &[TensorInfo]) -> Program {
    lower(&config.to_string(), tensors).unwrap_or_else(|e| panic!("{e}"))
}

/// All defects of a checkpoint, none included.
pub(crate) fn defects(config: &Value, tensors: &[TensorInfo]) -> Vec<Defect> {
    match lower(&config.to_string(), tensors) {
        Ok(_) => Vec::new(),
        Err(LowerError::Defects(defects)) => defects,
        Err(other) => panic!("expected defects, got {other:?}"),
    }
}

/// The only defect of a checkpoint, as text.
pub(crate) fn one_defect(config: &Value, tensors: &[TensorInfo]) -> String {
    let found = defects(config, tensors);
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].to_string()
}

/// The configuration with another value under `path`, a key of nested objects: `a.b`.
pub(crate) fn with(config: &Value, path: &str, value: Value) -> Value {
    let mut config = config.clone();
    let mut place = &mut config;
    for key in path.split('.') {
        place = &mut place[key];
    }
    *place = value;
    config
}

/// The configuration without what is under `path`.
pub(crate) fn without(config: &Value, path: &str) -> Value {
    let mut config = config.clone();
    let (outer, key) = match path.rsplit_once('.') {
        Some((outer, key)) => (format!("/{}", outer.replace('.', "/")), key),
        None => (String::new(), path),
    };
    let object = config.pointer_mut(&outer).unwrap();
    object.as_object_mut().unwrap().shift_remove(key).unwrap();
    config
}

/// Parameters of the main model's operands with a role that `wanted` accepts.
pub(crate) fn parameters(program: &Program, wanted: impl Fn(Role) -> bool) -> u64 {
    let draft = draft_operands(program);
    let operands = program.operands.iter().enumerate();
    let main = operands.filter(|(i, _)| !draft.contains(&OperandId(*i as u32)));
    main.filter(|(_, o)| wanted(o.role))
        .map(|(_, o)| o.elements() as u64)
        .sum()
}

/// Adds one tensor of each name and expects exactly that defect.
pub(crate) fn check_extra_tensors(config: &Value, tensors: &[TensorInfo], names: &[&str]) {
    for &name in names {
        let mut table = tensors.to_vec();
        table.push(tensor(name, "BF16", &[1]));
        let expected = Defect::UnclaimedTensor(name.into());
        assert_eq!(defects(config, &table), [expected]);
    }
}

/// Sets each path to each value and expects exactly one defect, of the key that `path` ends in or
/// of the one named after it.
pub(crate) fn check_bad_values(config: &Value, tensors: &[TensorInfo], cases: &[(&str, Value)]) {
    for (path, value) in cases {
        let text = one_defect(&with(config, path, value.clone()), tensors);
        let start = format!("config.json: {path}: ");
        assert!(text.starts_with(&start), "{path} = {value}: {text}");
    }
}

/// Paths of all values that are no objects, nested ones as `a.b`.
pub(crate) fn leaves(value: &Value, path: &str, out: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{key}");
        match value {
            Value::Object(_) => leaves(value, &path, out),
            _ => out.push(path),
        }
    }
}

pub(crate) fn at<'v>(config: &'v Value, path: &str) -> &'v Value {
    let pointer = format!("/{}", path.replace('.', "/"));
    config.pointer(&pointer).unwrap()
}
