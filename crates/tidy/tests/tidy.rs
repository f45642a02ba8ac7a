//! The repository keeps its own rules.

use lamella_tidy::{Tree, check};
use std::path::Path;

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).expect("the repository can be read");
    assert!(
        tree.has("Cargo.toml") && tree.sources().count() > 10,
        "this is not the repository"
    );
    let found = check(&tree);
    let list: String = found
        .iter()
        .map(|violation| format!("\n  {violation}"))
        .collect();
    assert!(
        found.is_empty(),
        "{} rules are broken:{list}\n",
        found.len()
    );
}
