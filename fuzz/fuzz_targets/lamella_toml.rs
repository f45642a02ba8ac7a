//! lamella.toml: a fault is placed in the text; what is accepted has a value for every entry but
//! empty lists.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cli/src/config/file.rs"]
mod file;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match file::entries(text) {
        Err(message) => assert!(!message.is_empty()),
        Ok(entries) => {
            let table: toml::Table = text.parse().expect("it was read once");
            assert_eq!(entries.len(), table.len());
        }
    }
});
