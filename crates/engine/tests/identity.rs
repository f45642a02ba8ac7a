//! Which checkpoints are the same model: none of whose tensors was trained further.

mod common;

use common::{FAMILIES, repository};
use lamella_container::Store;
use lamella_engine::lower;
use lamella_program::OperandId;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// Digest of everything that the program uses.
fn digest(store: &Store) -> [u8; 32] {
    let operands: Vec<_> = (0..store.program().operands.len() as u32)
        .map(OperandId)
        .collect();
    store.model_digest(&operands).expect("the files are there")
}

#[test]
fn a_tensor_with_other_signs_in_its_middle_is_another_model() {
    let mut changed = 0;
    for fixture in FAMILIES {
        let dir = tempfile::tempdir().expect("a directory");
        let from = repository("fixtures").join(fixture);
        for entry in std::fs::read_dir(&from).expect("the fixture") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                let name = path.file_name().expect("a name");
                std::fs::copy(&path, dir.path().join(name)).expect("a copy");
            }
        }
        let store = Store::open(dir.path(), &lower).expect("a sound fixture");
        let own = digest(&store);
        let again = Store::open(&from, &lower).expect("a sound fixture");
        assert_eq!(
            digest(&again),
            own,
            "{fixture}: the place of the files counts"
        );
        let parts = store.program().operands.iter().flat_map(|o| o.parts.iter());
        let used: Vec<&str> = parts.flatten().map(|slice| slice.tensor.as_str()).collect();
        let weights = dir.path().join("model.safetensors");
        if !weights.is_file() {
            // In several files: the same for every one of them.
            continue;
        }
        let bytes = std::fs::read(&weights).expect("the weights");
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("a length")) as usize;
        let table: HashMap<String, serde_json::Value> =
            serde_json::from_slice(&bytes[8..header]).expect("a header");
        let file = OpenOptions::new()
            .write(true)
            .open(&weights)
            .expect("the copy");
        for name in used {
            let offset = |i: usize| table[name]["data_offsets"][i].as_u64().expect("a number");
            let [start, end] = [0, 1].map(|i| header + offset(i) as usize);
            let quarter = (end - start) / 4;
            // Of every number the byte that has the sign.
            let mut middle = bytes[start + quarter..end - quarter].to_vec();
            middle.iter_mut().for_each(|byte| *byte ^= 0x80);
            let place = (start + quarter) as u64;
            file.write_all_at(&middle, place).expect("written");
            assert!(digest(&store) != own, "{fixture}: {name}");
            let before = &bytes[start + quarter..end - quarter];
            file.write_all_at(before, place).expect("written");
            changed += 1;
        }
        assert_eq!(digest(&store), own, "{fixture}");
    }
    assert!(changed > 500, "{changed} tensors");
}
