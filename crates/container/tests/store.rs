//! Reading operands from a checkpoint and from containers made of it.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{EXPERTS, Fixture, HIDDEN, WIDTH, convert_quietly, open, options};
use lamella_container::{ConvertError, Error, Keep, Store, decode, encode, inspect, verify};
use lamella_program::{Encoding, OperandId, Role};
use std::path::Path;

/// Every item of every operand in its canonical encoding, as f32.
fn canonical(store: &Store) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for (number, operand) in store.program().operands.iter().enumerate() {
        let id = OperandId(number as u32);
        let encoding = store.encodings(id)[0];
        for item in 0..operand.items() {
            all.push(read_f32(store, id, item, encoding));
        }
    }
    all
}

fn read_f32(store: &Store, id: OperandId, item: usize, encoding: Encoding) -> Vec<f32> {
    let operand = store.program().operand(id);
    let (rows, cols) = (operand.rows(), operand.cols());
    let mut bytes = vec![0; encoding.matrix_bytes(rows, cols).unwrap()];
    store.read(id, item, encoding, &mut bytes).unwrap();
    let mut out = vec![0.0; rows * cols];
    decode(encoding, rows, cols, &bytes, &mut out).unwrap();
    out
}

fn find(store: &Store, name: &str) -> OperandId {
    let at = store
        .program()
        .operands
        .iter()
        .position(|o| o.name == name)
        .unwrap();
    OperandId(at as u32)
}

#[test]
fn one_file_and_shards_give_the_same_operands() {
    let temp = tempfile::tempdir().unwrap();
    let (single, sharded) = (temp.path().join("single"), temp.path().join("sharded"));
    common::write_single(&single);
    common::write_sharded(&sharded);
    let (single, sharded) = (open(&single).unwrap(), open(&sharded).unwrap());
    assert_eq!(canonical(&single), canonical(&sharded));
    assert!(!single.is_container());
    assert_eq!(single.identity(), None);
    assert_eq!(
        single.read_text("chat_template.jinja").unwrap().unwrap(),
        "{{ messages }}\n"
    );
    assert_eq!(single.read_text("vocab.json").unwrap(), None);
    assert_eq!(single.read_text("../tiny/config.json").unwrap(), None);
}

#[test]
fn interleaved_rows_are_picked_apart() {
    let temp = tempfile::tempdir().unwrap();
    common::write_single(temp.path());
    let store = open(temp.path()).unwrap();
    let stacked = &common::tensors()["model.1.gate_up"].bytes;
    let row = HIDDEN * 2;
    for (name, first) in [("layers.1.gate", 0), ("layers.1.up", 1)] {
        let id = find(&store, name);
        for item in 0..EXPERTS {
            let mut bytes = vec![0; WIDTH * row];
            store.read(id, item, Encoding::Bf16, &mut bytes).unwrap();
            for (r, got) in bytes.chunks(row).enumerate() {
                let from = (item * 2 * WIDTH + 2 * r + first) * row;
                assert_eq!(got, &stacked[from..from + row], "{name} {item} {r}");
            }
            // A range in the middle, by itself.
            let mut some = vec![0; 5 * row];
            store
                .read_rows(id, item, Encoding::Bf16, 7..12, &mut some)
                .unwrap();
            assert_eq!(some, &bytes[7 * row..12 * row]);
            assert_eq!(store.stored(id, Encoding::Bf16, item), None);
        }
    }
    let id = find(&store, "layers.0.gate");
    let record = store.stored(id, Encoding::Bf16, 3).unwrap();
    let file = std::fs::read(store.file(record.file).unwrap()).unwrap();
    let bytes = &file[record.offset as usize..][..record.length as usize];
    assert_eq!(
        bytes,
        common::tensors()["model.layers.0.gate.3.weight"].bytes
    );
}

#[test]
fn wrong_requests_are_errors() {
    let fixture = Fixture::new();
    for dir in [&fixture.checkpoint, &fixture.container] {
        let store = open(dir).unwrap();
        let id = find(&store, "layers.0.gate");
        let encoding = store.encodings(id)[0];
        let bytes = encoding.matrix_bytes(WIDTH, HIDDEN).unwrap();
        let mut buffer = vec![0; bytes];
        assert!(store.read(id, EXPERTS - 1, encoding, &mut buffer).is_ok());
        assert!(store.read(id, EXPERTS, encoding, &mut buffer).is_err());
        assert!(store.read(id, 0, Encoding::F16, &mut buffer).is_err());
        assert!(store.read(id, 0, encoding, &mut buffer[1..]).is_err());
        assert!(
            store
                .read(OperandId(9999), 0, encoding, &mut buffer)
                .is_err()
        );
        assert!(
            store
                .read_rows(id, 0, encoding, 0..WIDTH + 1, &mut buffer)
                .is_err()
        );
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = store.read_rows(id, 0, encoding, 3..1, &mut buffer);
        assert!(reversed.is_err());
        assert_eq!(store.encodings(OperandId(9999)), []);
        assert_eq!(store.stored(OperandId(9999), encoding, 0), None);
        let bank = *store.bank(0).unwrap();
        assert!(store.bank(2).is_none());
        assert!(store.read_expert(&bank, 0, encoding, &mut buffer).is_err());
    }
}

/// What a container must hold: each operand's canonical weights, encoded.
fn check_container(checkpoint: &Store, container: &Path, want: Encoding) {
    let store = open(container).unwrap();
    assert!(store.is_container());
    assert_eq!(store.program(), checkpoint.program());
    for (number, operand) in checkpoint.program().operands.iter().enumerate() {
        let id = OperandId(number as u32);
        let expected = match operand.role {
            Role::Embedding | Role::Head if want.is_compiled() => Encoding::Q8,
            role if role.may_quantise() => want,
            _ => Encoding::F32,
        };
        assert_eq!(store.encodings(id), [expected], "{}", operand.name);
        let (rows, cols) = (operand.rows(), operand.cols());
        for item in 0..operand.items() {
            let weights = read_f32(checkpoint, id, item, Encoding::Bf16);
            let mut encoded = vec![0; expected.matrix_bytes(rows, cols).unwrap()];
            encode(expected, rows, cols, &weights, &mut encoded).unwrap();
            let mut stored = vec![1; encoded.len()];
            store.read(id, item, expected, &mut stored).unwrap();
            assert!(stored == encoded, "{} {item}", operand.name);
            let record = store.stored(id, expected, item).unwrap();
            assert_eq!(record.digest, Some(*blake3::hash(&encoded).as_bytes()));
            assert_eq!(record.offset % 64, 0);
        }
    }
}

#[test]
fn containers_hold_the_encoded_weights() {
    let temp = tempfile::tempdir().unwrap();
    let checkpoint = temp.path().join("tiny");
    common::write_sharded(&checkpoint);
    let checkpoint = open(&checkpoint).unwrap();
    for want in Encoding::ALL.into_iter().filter(|e| !e.is_coded()) {
        let out = temp.path().join(want.name());
        let report = convert_quietly(&checkpoint, &out, &options(Keep::As(want))).unwrap();
        assert_eq!(report.warnings, Vec::<String>::new());
        check_container(&checkpoint, &out, want);
        let report = verify(&out, &mut |_| {}).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        let summary = inspect(&out).unwrap();
        assert_eq!(summary.identity.as_deref(), Some(report.identity.as_str()));
        assert_eq!(summary, open(&out).unwrap().summary());
        assert_eq!((summary.experts, summary.expert_layers), (EXPERTS, 2));
        let parameters = checkpoint.program().parameters();
        assert_eq!(summary.parameters, parameters);
        let texts = [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
        ];
        assert_eq!(summary.texts, texts);
        assert_eq!(
            open(&out).unwrap().read_text("config.json").unwrap(),
            checkpoint.read_text("config.json").unwrap()
        );
    }
}

#[test]
fn an_expert_is_one_aligned_record() {
    let fixture = Fixture::new();
    let checkpoint = open(&fixture.checkpoint).unwrap();
    let store = open(&fixture.container).unwrap();
    for store in [&store, &checkpoint] {
        for bank in store.banks() {
            let encoding = store.encodings(bank.gate)[0];
            let layout = store.expert_layout(bank, encoding).unwrap();
            for item in 0..EXPERTS {
                let mut expert = vec![0; layout.length];
                store
                    .read_expert(bank, item, encoding, &mut expert)
                    .unwrap();
                store.check_expert(bank, item, encoding, &expert).unwrap();
                let ranges = [layout.gate.clone(), layout.up.clone(), layout.down.clone()];
                for (id, range) in bank.operands().into_iter().zip(ranges) {
                    assert_eq!(range.start % 64, 0);
                    let mut part = vec![0; range.len()];
                    store.read(id, item, encoding, &mut part).unwrap();
                    assert_eq!(part, expert[range]);
                }
                let record = store.expert_record(bank, item, encoding);
                assert_eq!(record.is_some(), store.is_container());
                if let Some(record) = record {
                    assert_eq!(record.offset % 4096, 0);
                    let file = std::fs::read(store.file(record.file).unwrap()).unwrap();
                    assert_eq!(file.len() % 4096, 0);
                    assert_eq!(expert, &file[record.offset as usize..][..layout.length]);
                    expert[layout.down.start] ^= 1;
                    let error = store
                        .check_expert(bank, item, encoding, &expert)
                        .unwrap_err();
                    assert!(error.to_string().contains("down"), "{error}");
                }
            }
        }
    }
}

#[test]
fn several_encodings_live_in_one_container() {
    let temp = tempfile::tempdir().unwrap();
    let (checkpoint, both) = (temp.path().join("tiny"), temp.path().join("both"));
    common::write_single(&checkpoint);
    let checkpoint = open(&checkpoint).unwrap();
    let mut keep = options(Keep::Canonical);
    keep.experts = vec![
        Keep::As(Encoding::Q4),
        Keep::Canonical,
        Keep::As(Encoding::Q4),
    ];
    convert_quietly(&checkpoint, &both, &keep).unwrap();
    let both = open(&both).unwrap();
    let gate = find(&both, "layers.0.gate");
    assert_eq!(both.encodings(gate), [Encoding::Bf16, Encoding::Q4]);
    assert_eq!(both.encodings(find(&both, "head")), [Encoding::Bf16]);
    let bf16 = both.encodings(find(&both, "layers.0.query"));
    assert_eq!(bf16, [Encoding::Bf16]);

    // From there to pure q4 is the same as from the checkpoint: the copy is exact.
    let (a, b) = (temp.path().join("a"), temp.path().join("b"));
    convert_quietly(&both, &a, &options(Keep::As(Encoding::Q4))).unwrap();
    convert_quietly(&checkpoint, &b, &options(Keep::As(Encoding::Q4))).unwrap();
    assert!(common::contents(&a) == common::contents(&b));

    // From q4 alone there is no way back.
    let only_q4 = open(&a).unwrap();
    let error = convert_quietly(
        &only_q4,
        &temp.path().join("c"),
        &options(Keep::As(Encoding::Bf16)),
    );
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::Convert(ConvertError::NoCanonical { .. })),
        "{error}"
    );
    assert!(!temp.path().join("c").exists() && !temp.path().join("c.partial").exists());
}

#[test]
fn a_damaged_source_container_is_not_converted() {
    let temp = tempfile::tempdir().unwrap();
    let (checkpoint, source) = (temp.path().join("tiny"), temp.path().join("bf16"));
    common::write_single(&checkpoint);
    let store = open(&checkpoint).unwrap();
    convert_quietly(&store, &source, &options(Keep::Canonical)).unwrap();
    let pack = source.join("experts-0001-bf16.pack");
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[5000] ^= 4;
    std::fs::write(&pack, bytes).unwrap();
    let store = open(&source).unwrap();
    let out = temp.path().join("q8");
    let error = convert_quietly(&store, &out, &options(Keep::As(Encoding::Q8))).unwrap_err();
    assert!(matches!(error, Error::OperandDigest { .. }), "{error}");
    assert!(
        error.to_string().contains("experts-0001-bf16.pack"),
        "{error}"
    );
    assert!(open(&out).is_err());
}
