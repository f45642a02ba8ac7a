//! What the tests of this crate share.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::path::PathBuf;

use lamella_text::Bundle;

/// Reads a file of the demo folder.
pub fn demo_text(name: &str) -> String {
    let path = demo_path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn demo_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../demo")
        .join(name)
}

/// Reads a file of the demo model, as a bundle does.
pub fn demo_file(name: &str) -> Option<String> {
    std::fs::read_to_string(demo_path("model").join(name)).ok()
}

/// The demo model's bundle.
pub fn demo_bundle() -> Bundle {
    Bundle::load(&demo_file).expect("the demo model's files are good")
}
