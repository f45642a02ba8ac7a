//! Manifest and operand table from bytes: what is accepted survives being written again, and the
//! table stays inside its packs.
//!
//! The input is a length, that many bytes of manifest, then the table.
#![no_main]

use lamella_container::manifest::Manifest;
use lamella_container::table::{PART_ALIGN, RECORD_ALIGN, Table};
use lamella_program::Program;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

/// Any valid program: the table is checked against it.
static PROGRAM: LazyLock<Option<Program>> = LazyLock::new(|| {
    lamella_container::parse_program(include_bytes!("../seeds/program_json/tiny.json")).ok()
});

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (manifest, table) = rest.split_at(length);
    if let Ok(manifest) = Manifest::parse(manifest) {
        assert_eq!(Manifest::parse(manifest.to_json().as_bytes()), Ok(manifest));
    }
    let Ok(table) = Table::parse(table) else { return };
    assert_eq!(Table::parse(&table.to_bytes()).as_ref(), Ok(&table));
    for record in &table.records {
        assert!(record.offset.is_multiple_of(RECORD_ALIGN));
        assert!(record.offset + record.length <= table.files[record.file as usize].length);
        for part in &table.parts[record.parts.clone()] {
            assert!(part.offset.is_multiple_of(PART_ALIGN));
            assert!(part.offset + part.length <= record.length);
        }
    }
    if let Some(program) = PROGRAM.as_ref() {
        let _ = table.check_against(program);
    }
});
