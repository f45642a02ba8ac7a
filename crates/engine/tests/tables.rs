//! Tables of integers that steer the computation are checked when a model opens.

mod common;

use common::repository;
use lamella_engine::{BackendKind, Error, Model, Options};
use std::path::Path;

/// A copy of a fixture in which the first id of a hash table is `id`.
fn with_first_id(to: &Path, id: i64) {
    let from = repository("fixtures/deepseek_v4-101");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(name), to.join(name)).expect("a copy");
    }
    let file = to.join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("the weights");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("length")) as usize;
    let table: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).expect("header");
    let start = &table["layers.0.ffn.gate.tid2eid"]["data_offsets"][0];
    let at = 8 + header + start.as_u64().expect("an offset") as usize;
    bytes[at..at + 8].copy_from_slice(&id.to_le_bytes());
    std::fs::write(&file, bytes).expect("the weights");
}

#[test]
fn a_hash_table_that_names_no_expert_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for (id, good) in [(0, true), (1 << 20, false), (-1, false), (1 << 40, false)] {
        with_first_id(dir.path(), id);
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
