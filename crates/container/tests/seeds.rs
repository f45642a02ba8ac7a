//! The seeds of the fuzz targets are valid and up to date.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::Fixture;
use lamella_container::manifest::Manifest;
use lamella_container::table::Table;
use lamella_container::{parse_program, safetensors, shard_index};
use std::path::{Path, PathBuf};

fn seeds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds")
}

/// `LAMELLA_WRITE_SEEDS=1 cargo test -p lamella-container --test seeds` makes them anew.
#[test]
fn fuzz_seeds_are_what_we_write() {
    let fixture = Fixture::new();
    let read = |name: &str| std::fs::read(fixture.container.join(name)).unwrap();
    let mut small = common::tensors();
    small.retain(|name, _| name.contains("norm"));
    let index = common::write_sharded(&fixture.temp.path().join("sharded"));
    let manifest = read("lamella.json");
    let mut container = (manifest.len() as u16).to_le_bytes().to_vec();
    container.extend_from_slice(&manifest);
    container.extend_from_slice(&read("operands.bin"));
    let seeds: [(&str, Vec<u8>); 4] = [
        (
            "safetensors_header/norms.safetensors",
            common::safetensors(&small),
        ),
        ("safetensors_index/two.json", index.to_string().into_bytes()),
        ("container_open/tiny.bin", container),
        ("program_json/tiny.json", read("program.json")),
    ];
    for (name, bytes) in &seeds {
        let path = crate::seeds().join(name);
        if std::env::var_os("LAMELLA_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
        }
        let stored = std::fs::read(&path).unwrap();
        assert!(&stored == bytes, "{name} is out of date");
    }
    assert!(safetensors::Header::from_file_bytes(&seeds[0].1).is_ok());
    assert!(shard_index::ShardIndex::parse(&seeds[1].1).is_ok());
    assert!(Manifest::parse(&manifest).is_ok());
    let program = parse_program(&seeds[3].1).unwrap();
    assert_eq!(
        Table::parse(&read("operands.bin"))
            .unwrap()
            .check_against(&program),
        Ok(())
    );
}
