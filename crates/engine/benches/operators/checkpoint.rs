//! A checkpoint of random numbers for a configuration: the tensors are those that lowering asks
//! for.

use lamella_engine::lower;
use lamella_program::{Defect, Encoding, TensorInfo};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes `config.json` and `model.safetensors` into `dir`.
pub(crate) fn write(dir: &Path, config: &Value) {
    let text = config.to_string();
    let tensors = needed(&text);
    std::fs::write(dir.join("config.json"), &text).unwrap();
    let mut table = serde_json::Map::new();
    let mut end = 0;
    for tensor in &tensors {
        let start = end;
        end += 2 * tensor.shape.iter().product::<usize>();
        let entry = json!({
            "dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]
        });
        table.insert(tensor.name.clone(), entry);
    }
    let header = Value::Object(table).to_string();
    let file = File::create(dir.join("model.safetensors")).unwrap();
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut seed = 1;
    for tensor in &tensors {
        fill(&mut file, tensor, &mut seed);
    }
    file.flush().unwrap();
}

/// Asks the lowering what it misses until it misses nothing.
fn needed(config: &str) -> Vec<TensorInfo> {
    let mut tensors: Vec<TensorInfo> = Vec::new();
    for _ in 0..8 {
        let Err(defects) = lower(config, &tensors) else {
            return tensors;
        };
        for defect in defects {
            match defect {
                Defect::MissingTensor { tensor, .. } => tensors.push(TensorInfo {
                    name: tensor,
                    dtype: "BF16".to_owned(),
                    encoding: Some(Encoding::Bf16),
                    shape: vec![1],
                }),
                Defect::TensorShape {
                    tensor, expected, ..
                } => {
                    let place = tensors.iter_mut().find(|t| t.name == tensor);
                    place.unwrap().shape = expected;
                }
                other => panic!("{other}"),
            }
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors.dedup_by(|a, b| a.name == b.name);
    }
    panic!("the lowering never has enough")
}

/// Evenly spread numbers, smaller in matrices of long rows.
fn fill(file: &mut impl Write, tensor: &TensorInfo, seed: &mut u64) {
    let count: usize = tensor.shape.iter().product();
    let columns = match tensor.shape.len() {
        0 | 1 => 1,
        _ => *tensor.shape.last().unwrap(),
    };
    let scale = (3.0 / columns as f32).sqrt();
    let mut bytes = Vec::with_capacity(2 * count.min(1 << 16));
    let mut left = count;
    while left > 0 {
        bytes.clear();
        for _ in 0..left.min(1 << 16) {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = (*seed >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
            let half = (unit * scale).to_bits() >> 16;
            bytes.extend_from_slice(&(half as u16).to_le_bytes());
        }
        left -= left.min(1 << 16);
        file.write_all(&bytes).unwrap();
    }
}
