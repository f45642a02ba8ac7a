//! `lamella plan` of a model of production shape of which nothing but the headers is there.

#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../families/tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../../families/tests/glm_table/mod.rs"]
mod glm_table;
#[path = "common/mod.rs"]
mod world;

use glm_table::{Layout, released, tensors};
use lamella_program::TensorInfo;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use world::World;

/// A weights file with a true header and nothing behind it but a hole.
fn sparse(path: &Path, tensors: &[TensorInfo]) {
    let (mut header, mut at) = (Map::new(), 0u64);
    for tensor in tensors {
        let width = match tensor.dtype.as_str() {
            "F32" => 4,
            "BF16" | "F16" => 2,
            _ => 1,
        };
        let end = at + width * tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        let entry = json!({
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end],
        });
        header.insert(tensor.name.clone(), entry);
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + at).unwrap();
}

#[test]
fn a_model_of_1500_gigabytes_is_planned_from_its_headers() {
    let world = World::new();
    let dir = world.path("glm");
    std::fs::create_dir(&dir).unwrap();
    let config = released();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let table = tensors(&config, Layout::Apart);
    sparse(&dir.join("model.safetensors"), &table);
    let begun = Instant::now();
    let args = [
        "plan",
        "glm",
        "--context",
        "16384",
        "--memory",
        "64G",
        "--disk",
        "0.5",
    ];
    let more = [
        "--converted",
        "--encoding",
        "q4",
        "--memory-bandwidth",
        "60",
        "--json",
        "-q",
    ];
    let plan = world.run(args.iter().chain(&more)).json();
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    let number = |path: &str| plan.pointer(path).and_then(Value::as_u64).unwrap();
    assert_eq!(number("/model/experts_per_layer"), 256);
    assert_eq!(number("/model/expert_layers"), 75);
    assert_eq!(number("/model/experts_per_token"), 75 * 8);
    // Three maps of 2048 times 6144, nine sixteenths of a byte a weight.
    let expert = 3 * 2048 * 6144 * 9 / 16;
    let bytes = number("/model/expert_bytes");
    assert!((expert..expert + 10_000).contains(&bytes), "{bytes}");
    assert_eq!(plan["placement"]["fits"], true, "{}", plan["placement"]);
    let slots = number("/placement/slots");
    assert!((500..10_000).contains(&slots), "{slots}");
    assert!(number("/placement/peak_bytes") <= 64 << 30);
    assert_eq!(plan["predicted"]["limited_by"], "disk");
    let advice = plan["advice"].as_array().unwrap();
    assert!(advice.iter().any(|a| a["change"] == "disk"), "{advice:?}");
    assert!(advice.iter().any(|a| a["change"] == "memory"), "{advice:?}");
    // Nothing of it is read: as a hole it has no speed.
    let dir = world.path("glm");
    assert!(dir.join("model.safetensors").metadata().unwrap().len() > 1_400_000_000_000);
}
