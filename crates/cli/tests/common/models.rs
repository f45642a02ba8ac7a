//! Models as a stranger might send them: checkpoints of other tensors, containers of other
//! programs.

use lamella_container::float::{bf16_to_f32, f32_to_bf16};
use lamella_container::manifest::{FileEntry, Manifest};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    /// The same numbers in f32 or bf16, rounded where they do not fit.
    #[must_use]
    pub fn of_type(&self, dtype: &str) -> Tensor {
        let numbers: Vec<f32> = match self.dtype.as_str() {
            "F32" => words(&self.bytes).map(f32::from_le_bytes).collect(),
            "BF16" => words(&self.bytes)
                .map(|b| bf16_to_f32(u16::from_le_bytes(b)))
                .collect(),
            other => panic!("{other}"),
        };
        let bytes = match dtype {
            "F32" => numbers.iter().flat_map(|n| n.to_le_bytes()).collect(),
            "BF16" => numbers
                .iter()
                .flat_map(|n| f32_to_bf16(*n).to_le_bytes())
                .collect(),
            other => panic!("{other}"),
        };
        Tensor {
            dtype: dtype.to_owned(),
            shape: self.shape.clone(),
            bytes,
        }
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// A copy of the one-file checkpoint `from` in the new directory `to`, with other tensors.
pub fn checkpoint(from: &Path, to: &Path, change: impl FnOnce(&mut Tensors)) {
    std::fs::create_dir(to).expect("a new directory");
    for entry in std::fs::read_dir(from).expect("a checkpoint") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        if !name.to_string_lossy().starts_with("ref") {
            std::fs::copy(&path, to.join(name)).expect("a copy");
        }
    }
    let weights = to.join("model.safetensors");
    let mut tensors = read(&std::fs::read(&weights).expect("weights"));
    change(&mut tensors);
    std::fs::write(&weights, write(&tensors)).expect("weights");
}

fn read(file: &[u8]) -> Tensors {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let (header, data) = rest.split_at(length);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a header");
    let entries = header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__");
    entries
        .map(|(name, entry)| {
            let number = |v: &Value| v.as_u64().expect("a number") as usize;
            let at = |i: usize| number(&entry["data_offsets"][i]);
            let tensor = Tensor {
                dtype: entry["dtype"].as_str().expect("a type").to_owned(),
                shape: entry["shape"]
                    .as_array()
                    .expect("a shape")
                    .iter()
                    .map(number)
                    .collect(),
                bytes: data[at(0)..at(1)].to_vec(),
            };
            (name, tensor)
        })
        .collect()
}

fn write(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry = json!({
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &data].concat()
}

/// Rewrites the program of the container in `dir`, with true digests.
pub fn forge(dir: &Path, change: impl FnOnce(&mut Value)) {
    forge_with_table(dir, |program, _| change(program));
}

/// Rewrites program and operand table of the container in `dir`, with true digests.
pub fn forge_with_table(dir: &Path, change: impl FnOnce(&mut Value, &mut Vec<u8>)) {
    let read = |name: &str| std::fs::read(dir.join(name)).expect("a file of the container");
    let mut program: Value = serde_json::from_slice(&read("program.json")).expect("JSON");
    let mut table = read("operands.bin");
    change(&mut program, &mut table);
    let program = program.to_string();
    let old = Manifest::parse(&read("lamella.json")).expect("a manifest");
    let manifest = Manifest::new(
        FileEntry::of("program.json", program.as_bytes()),
        FileEntry::of("operands.bin", &table),
        old.texts,
    );
    for (name, bytes) in [
        ("program.json", program.as_bytes()),
        ("operands.bin", &table),
        ("lamella.json", manifest.to_json().as_bytes()),
    ] {
        std::fs::write(dir.join(name), bytes).expect("a file of the container");
    }
}
