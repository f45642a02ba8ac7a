//! `manifest.json` binds the registry of families to what a release needs of each: a fixture
//! adapter, registrars of the real ones, checkpoints with references, and the oracle that made
//! them.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn families() -> Vec<Value> {
    let manifest: Value = serde_json::from_str(&read("crates/ffi/tests/manifest.json")).unwrap();
    manifest["families"].as_array().unwrap().clone()
}

fn texts(value: &Value) -> Vec<String> {
    let texts = value.as_array().unwrap().iter();
    texts
        .map(|text| text.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_family_of_the_registry_is_bound() {
    let bound: Vec<String> = families()
        .iter()
        .flat_map(|f| texts(&f["model_types"]))
        .collect();
    let known: BTreeSet<&str> = lamella_families::known_model_types().collect();
    assert_eq!(
        bound.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        known
    );
    assert_eq!(bound.len(), known.len(), "a model type is bound twice");
}

/// The number of the family `id` in the registry.
fn number_of(id: &str) -> usize {
    let ids = lamella_families::FAMILY_IDS.iter();
    let numbers: Vec<usize> = ids
        .enumerate()
        .filter(|(_, known)| known.to_str().unwrap() == id)
        .map(|(number, _)| number)
        .collect();
    assert_eq!(numbers.len(), 1, "{id} is no family, or several");
    numbers[0]
}

#[test]
fn every_family_has_a_fixture_and_registrars() {
    assert_eq!(families().len(), lamella_families::FAMILY_IDS.len());
    let suites = read("crates/ffi/tests/c/real.c");
    let fixtures = read("crates/ffi/tests/c/fixtures.c");
    let headers = ["segment", "edge"]
        .map(|kind| (kind, read(&format!("crates/ffi/include/{kind}_adapters.h"))));
    for family in families() {
        let id = family["id"].as_str().unwrap();
        assert!(
            fixtures.contains(&format!("{{\"{id}\",")),
            "no fixture adapter for {id}"
        );
        number_of(id);
        for (kind, header) in &headers {
            assert!(
                suites.contains(&format!("coli_{id}_{kind}_adapter_register,")),
                "the real suites do not register {id}"
            );
            let registrar = format!("int coli_{id}_{kind}_adapter_register(void);");
            assert!(
                header.contains(&registrar),
                "{kind}_adapters.h has no registrar of {id}"
            );
        }
    }
    for (kind, header) in &headers {
        let count = header.matches("_adapter_register(void);").count();
        assert_eq!(
            count,
            families().len(),
            "{kind}_adapters.h has registrars of no family"
        );
    }
}

#[test]
fn every_family_has_checkpoints_with_references_and_their_oracle() {
    for family in families() {
        let (id, types) = (&family["id"], texts(&family["model_types"]));
        for name in texts(&family["checkpoints"]) {
            let config = read(&format!("fixtures/{name}/config.json"));
            let config: Value = serde_json::from_str(&config).unwrap();
            let model_type = config["model_type"].as_str().unwrap().to_owned();
            assert!(
                types.contains(&model_type),
                "{id}: {name} is of type {model_type}"
            );
            let dir = root().join("fixtures").join(&name);
            let store = lamella_container::Store::open(&dir, &lamella_engine::lower).unwrap();
            let (family, number) = (&store.program().family, number_of(id.as_str().unwrap()));
            assert!(
                lamella_families::is_of_family(family, number),
                "the adapter {id} would refuse {name}, of {family}"
            );
            assert!(
                root()
                    .join("fixtures")
                    .join(&name)
                    .join("ref.safetensors")
                    .is_file()
            );
        }
        for path in texts(&family["oracle"]) {
            assert!(root().join(&path).is_file(), "{id}: {path} is missing");
        }
    }
}
