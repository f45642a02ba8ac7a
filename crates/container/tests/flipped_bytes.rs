//! Flipped and random bytes: noticed, or without effect; never a panic.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::Fixture;
use common::damage::{read, verify_message, write};
use lamella_container::manifest::Manifest;
use lamella_container::parse_program;
use lamella_container::table::Table;
use proptest::prelude::*;

/// Every byte of every file of a container, one bit at a time in turn.
#[test]
fn every_flipped_byte_of_a_container_is_noticed() {
    let fixture = Fixture::new();
    let dir = fixture.temp.path().join("flipped");
    common::copy_dir(&fixture.container, &dir);
    let sound = Manifest::parse(&read(&dir, "lamella.json")).unwrap();
    for (name, bytes) in common::contents(&fixture.container) {
        // Packs are long and checked by digests alone: a sample of them is enough.
        let step = if name.ends_with(".pack") { 997 } else { 41 };
        for at in (0..bytes.len()).step_by(step).chain([bytes.len() - 1]) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            write(&dir, &name, &flipped);
            match verify_message(&dir) {
                Some(message) => assert!(message.contains(&name), "{name} byte {at}: {message}"),
                None => {
                    // Only white space of the manifest may go unnoticed.
                    assert_eq!(name, "lamella.json");
                    assert_eq!(Manifest::parse(&flipped).unwrap(), sound);
                }
            }
        }
        write(&dir, &name, &bytes);
    }
    assert_eq!(verify_message(&dir), None);
}

/// The parsers behind the digests must hold by themselves: a forged container has true digests.
#[test]
fn flipped_tables_and_programs_never_panic() {
    let fixture = Fixture::new();
    let table = read(&fixture.container, "operands.bin");
    let program = common::program().0;
    for at in 0..table.len() {
        for bit in [0, 3, 7] {
            let mut bytes = table.clone();
            bytes[at] ^= 1 << bit;
            if let Ok(table) = Table::parse(&bytes) {
                let _ = table.check_against(&program);
            }
        }
    }
    let json = read(&fixture.container, "program.json");
    for at in 0..json.len() {
        let mut bytes = json.clone();
        bytes[at] ^= 1 << (at % 7);
        if let Ok(program) = parse_program(&bytes) {
            let _ = lamella_program::closure::check(&program);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = lamella_container::safetensors::Header::from_file_bytes(&bytes);
        let _ = lamella_container::shard_index::ShardIndex::parse(&bytes);
        let _ = Manifest::parse(&bytes);
        let _ = Table::parse(&bytes);
        if bytes.len() > 28 {
            bytes[..8].copy_from_slice(b"LAMOPTAB");
            bytes[8..28].fill(0);
            bytes[8] = 1;
            bytes[12] %= 3;
            bytes[16] %= 3;
            let _ = Table::parse(&bytes);
        }
    }
}
