//! Tables of integers that steer the computation, and constants that a checkpoint repeats, are
//! checked when a model opens.

mod common;

use common::repository;
use lamella_container::{ConvertOptions, Keep, Store, convert};
use lamella_engine::{BackendKind, Error, Model, Options, lower};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A copy of a fixture in which eight bytes of a tensor, number `index` of such, are `value`.
fn with_integer(fixture: &str, to: &Path, tensor: &str, index: usize, value: i64) {
    let from = repository("fixtures").join(fixture);
    for entry in std::fs::read_dir(from).expect("the fixture") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
    let files = std::fs::read_dir(to).expect("the copy");
    let files = files.map(|entry| entry.expect("an entry").path());
    let weights = files.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    for file in weights {
        let mut bytes = std::fs::read(&file).expect("the weights");
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("length")) as usize;
        let table: serde_json::Value =
            serde_json::from_slice(&bytes[8..8 + header]).expect("header");
        let Some(entry) = table.get(tensor) else {
            continue;
        };
        let start = entry["data_offsets"][0].as_u64().expect("an offset") as usize;
        let at = 8 + header + start + 8 * index;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        return std::fs::write(&file, bytes).expect("the weights");
    }
    panic!("no file has {tensor}");
}

#[test]
fn a_hash_table_that_names_no_expert_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for (id, good) in [(0, true), (1 << 20, false), (-1, false), (1 << 40, false)] {
        let table = "layers.0.ffn.gate.tid2eid";
        with_integer("deepseek_v4-101", dir.path(), table, 0, id);
        for backend in [BackendKind::Reference, BackendKind::Cpu] {
            let options = Options {
                backend,
                ..Options::default()
            };
            match Model::open(dir.path(), &options, &mut |_| {}) {
                Ok(_) => assert!(good, "{id}"),
                Err(error @ (Error::Table { .. } | Error::Container(_))) => {
                    assert!(!good, "{id}: {error}");
                    assert!(
                        error.to_string().contains("router.table") || id != 1 << 20,
                        "{error}"
                    );
                }
                Err(error) => panic!("{id}: {error}"),
            }
        }
    }
}

/// Such a bias would choose experts, differently on each backend, and leave no trace in the logits.
#[test]
fn a_bias_that_is_no_number_is_refused_by_both_backends() {
    let dir = tempfile::tempdir().expect("a directory");
    let bias = "model.layers.4.mlp.gate.e_score_correction_bias";
    for value in [f32::NAN, f32::INFINITY] {
        // Two f32 at once, of which the second is sound.
        let pair = i64::from(value.to_bits());
        with_integer("glm-101", dir.path(), bias, 1, pair);
        for backend in [BackendKind::Reference, BackendKind::Cpu] {
            let options = Options {
                backend,
                ..Options::default()
            };
            let opened = Model::open(dir.path(), &options, &mut |_| {}).map(|_| ());
            let error = opened.expect_err("it cannot be meant").to_string();
            let words = ["layers.4.router.selection_bias", "value 2 is"];
            assert!(words.iter().all(|w| error.contains(w)), "{error}");
        }
    }
}

#[test]
fn stored_constants_of_another_model_are_refused() {
    let fixture = "qwen38-111";
    let good = Store::open(&repository("fixtures").join(fixture), &lower).expect("opens");
    let config = good
        .read_text("config.json")
        .expect("reads")
        .expect("is there");
    let lowered = lower(&config, good.tensors()).expect("lowers");
    let embedding = &lowered.entry.per_layer_embeddings[0];
    let constants: Vec<_> = embedding.stored_constants().collect();
    assert_eq!(constants.len(), 3);
    for (tensor, values) in constants {
        let last = values.len() - 1;
        for (index, value) in [(0, values[0] as i64 + 2), (last, -1)] {
            let dir = tempfile::tempdir().expect("a directory");
            with_integer(fixture, dir.path(), tensor, index, value);
            let error = Model::open(dir.path(), &Options::default(), &mut |_| {});
            let text = error.err().expect("refused").to_string();
            let place =
                format!("tensor {tensor}: number {index} is {value}, but the configuration");
            assert!(
                text.contains(&place) && text.contains(&values[index].to_string()),
                "{text}"
            );
            assert_eq!(text.matches("tensor ").count(), 1, "{text}");
        }
    }
    // A container has been compared when it was made: it says them once.
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("q8");
    let options = ConvertOptions::new(Keep::As(lamella_program::Encoding::Q8));
    convert(&good, &out, &options, &mut |_| {}, &AtomicBool::new(false)).expect("converts");
    let container = Store::open(&out, &lower).expect("opens");
    assert_eq!(container.program(), good.program());
    let kept = &container.program().entry.per_layer_embeddings[0];
    assert_eq!(kept.stored, None);
    assert_eq!(kept.multipliers, embedding.multipliers);
}
