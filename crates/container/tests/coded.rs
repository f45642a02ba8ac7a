//! Codes with scales and integer tables: read, refused, converted.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::coded::{CODED, How, Random, Shipment, TABLE, e2m1, e8m0};
use common::{convert_quietly, options};
use lamella_container::{Error, Keep, Store, decode};
use lamella_program::encoding::TILE_ROWS;
use lamella_program::{Encoding, OperandId, Role};
use std::ops::Range;

/// Rows of an item as f32 bits, read in an encoding.
fn rows_in(
    encoding: Encoding,
    store: &Store,
    id: OperandId,
    item: usize,
    rows: Range<usize>,
) -> Vec<u32> {
    let cols = store.program().operand(id).cols();
    let count = rows.len();
    let mut bytes = vec![0; encoding.matrix_bytes(count, cols).unwrap()];
    store
        .read_rows(id, item, encoding, rows, &mut bytes)
        .unwrap();
    let mut numbers = vec![0.0; count * cols];
    decode(encoding, count, cols, &bytes, &mut numbers).unwrap();
    numbers.into_iter().map(f32::to_bits).collect()
}

/// Rows of an item as f32 bits, read in the canonical encoding.
fn rows(store: &Store, id: OperandId, item: usize, rows: Range<usize>) -> Vec<u32> {
    rows_in(store.encodings(id)[0], store, id, item, rows)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|n| n.to_bits()).collect()
}

fn find(store: &Store, name: &str) -> OperandId {
    let mut operands = store.program().operands.iter();
    OperandId(operands.position(|o| o.name == name).unwrap() as u32)
}

#[test]
fn every_row_of_every_coding_is_what_the_formulas_say() {
    let temp = tempfile::tempdir().unwrap();
    let shipment = Shipment::new(CODED);
    let store = shipment.open(temp.path()).unwrap();
    let mut random = Random::new(3);
    let mut coded = 0;
    for (number, operand) in store.program().operands.iter().enumerate() {
        let id = OperandId(number as u32);
        for item in 0..operand.items() {
            let Some(expected) = shipment.expected(operand, item) else {
                continue;
            };
            coded += 1;
            for &encoding in store.encodings(id) {
                let all = rows_in(encoding, &store, id, item, 0..operand.rows());
                assert!(all == bits(&expected), "{} {item}", operand.name);
                assert_eq!(store.stored(id, encoding, item), None);
                for _ in 0..20 {
                    let mut first = random.below(operand.rows());
                    let mut end = first + random.below(operand.rows() - first + 1);
                    if encoding.is_tiled() {
                        first -= first % TILE_ROWS;
                        end = end.next_multiple_of(TILE_ROWS).min(operand.rows());
                    }
                    let some = rows_in(encoding, &store, id, item, first..end);
                    let cols = operand.cols();
                    assert!(some == all[first * cols..end * cols], "{}", operand.name);
                }
            }
        }
    }
    // The embedding, four projections, a table, and three matrices of three experts twice.
    assert_eq!(coded, 6 + 18);
}

#[test]
fn codes_stay_where_an_encoding_holds_them_and_decode_to_the_narrowest() {
    use Encoding::{Bf16, F32, Fp8, Mxfp4, Mxfp8, Nvfp4};
    let temp = tempfile::tempdir().unwrap();
    let store = Shipment::new(CODED).open(temp.path()).unwrap();
    let expected: [(&str, &[Encoding]); 12] = [
        ("embedding", &[Fp8, F32]),
        // Scales of 64 of 96 columns have no encoding of codes.
        ("layers.0.query", &[F32]),
        ("layers.0.key", &[Fp8, F32]),
        ("layers.0.value", &[Mxfp8, Bf16]),
        ("layers.0.output", &[Mxfp8, Bf16]),
        ("layers.0.gate", &[Mxfp4, Bf16]),
        ("layers.0.up", &[Mxfp4, Bf16]),
        ("layers.0.down", &[Mxfp4, Bf16]),
        ("layers.1.gate", &[Nvfp4, F32]),
        ("layers.1.down", &[Nvfp4, F32]),
        ("layers.0.table", &[F32]),
        ("head", &[Bf16]),
    ];
    for (name, encodings) in expected {
        assert_eq!(store.encodings(find(&store, name)), encodings, "{name}");
    }
}

#[test]
fn maps_that_are_computed_together_share_an_encoding() {
    let temp = tempfile::tempdir().unwrap();
    let mut shipment = Shipment::plain(CODED);
    for expert in 0..CODED.experts {
        for matrix in ["gate", "down"] {
            let name = format!("model.layers.0.{matrix}.{expert}.weight");
            shipment.code(&name, How::Mxfp4("U8", "U8"));
        }
        let up = format!("model.layers.0.up.{expert}.weight");
        shipment.code(&up, How::Block("F32", [128, 128]));
    }
    let store = shipment.open(temp.path()).unwrap();
    for (number, operand) in store.program().operands.iter().enumerate() {
        let id = OperandId(number as u32);
        if !["layers.0.gate", "layers.0.up", "layers.0.down"].contains(&operand.name.as_str()) {
            continue;
        }
        assert_eq!(store.encodings(id), [Encoding::F32], "{}", operand.name);
        for item in 0..operand.items() {
            let expected = shipment.expected(operand, item).unwrap();
            assert!(rows(&store, id, item, 0..operand.rows()) == bits(&expected));
        }
    }
}

#[test]
fn the_summary_names_codings_and_counts_what_is_stored() {
    let temp = tempfile::tempdir().unwrap();
    let shipment = Shipment::new(CODED);
    let summary = shipment.open(temp.path()).unwrap().summary();
    let entries = |role| summary.stored.iter().filter(move |s| s.role == role);
    let codings =
        |role| -> Vec<&str> { entries(role).filter_map(|s| s.coding.as_deref()).collect() };
    assert_eq!(codings(Role::Embedding), ["fp8, one bf16 scale"]);
    assert_eq!(codings(Role::Expert), ["mxfp4", "nvfp4"]);
    assert_eq!(codings(Role::Table), ["i64"]);
    let linear = [
        "fp8 40x64, f32 scales",
        "fp8 128x128, bf16 scales",
        "fp8 16x32, e8m0 scales",
        "fp8 1x32, e8m0 scales",
    ];
    assert_eq!(codings(Role::Linear), linear);
    let stored = shipment.tensors.values().map(|t| t.bytes.len() as u64);
    assert_eq!(summary.bytes, stored.sum::<u64>());
}

#[test]
fn extreme_scales_are_exact() {
    let temp = tempfile::tempdir().unwrap();
    let sizes = common::Sizes {
        vocabulary: 253,
        ..CODED
    };
    let mut shipment = Shipment::plain(sizes);
    shipment.code("model.embedding.weight", How::Mxfp4("U8", "F8_E8M0"));
    // Row n has scale n throughout, and every code.
    let codes = shipment.tensors.get_mut("model.embedding.weight").unwrap();
    for (n, byte) in codes.bytes.iter_mut().enumerate() {
        *byte = (n % 256) as u8;
    }
    let codes = codes.bytes.clone();
    let scales = shipment.tensors.get_mut("model.embedding.weight.scale");
    for (n, byte) in scales.unwrap().bytes.iter_mut().enumerate() {
        *byte = (n / 3) as u8;
    }
    let store = shipment.open(temp.path()).unwrap();
    let id = find(&store, "embedding");
    assert_eq!(store.encodings(id), [Encoding::Mxfp4, Encoding::Bf16]);
    let widened = rows_in(Encoding::Bf16, &store, id, 0, 0..253);
    assert!(rows(&store, id, 0, 0..253) == widened);
    for (n, number) in rows(&store, id, 0, 0..253).into_iter().enumerate() {
        let code = (codes[n / 2] >> (4 * (n % 2))) & 15;
        let expected = e2m1(code) * e8m0((n / 96) as u8);
        assert_eq!(f64::from(f32::from_bits(number)), expected);
        assert_eq!(number >> 31 == 1, code >= 8);
    }
}

/// Overwrites bytes of a tensor: reading and converting `operand` must name file, tensor and place.
fn refuses(tensor: &str, at: usize, bytes: &[u8], operand: &str, words: &[&str]) {
    let temp = tempfile::tempdir().unwrap();
    let mut shipment = Shipment::new(CODED);
    let harmed = shipment.tensors.get_mut(tensor).unwrap();
    harmed.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    let store = shipment.open(temp.path()).unwrap();
    let message = refusal(&store, find(&store, operand));
    assert!(!message.contains('\n'));
    for word in words.iter().chain(&["model.safetensors"]) {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
    let out = temp.path().join("out");
    let error = convert_quietly(&store, &out, &options(Keep::As(Encoding::Q8))).unwrap_err();
    assert!(matches!(error, Error::Number { .. }), "{error}");
    assert!(!out.exists());
}

const VALUE: &str = "model.layers.0.value.weight";
const VALUE_SCALE: &str = "model.layers.0.value.weight.scale";

#[test]
fn fp8_that_is_no_number_is_named() {
    let query = "model.layers.0.query.weight";
    let scale = "model.layers.0.query.weight.scale";
    let code = |at: usize, code: u8, words: &[&str]| {
        refuses(query, at, &[code], "layers.0.query", words);
    };
    code(
        96 * 3 + 5,
        0x7f,
        &[query, "row 3, column 5", "the code is NaN", "damaged"],
    );
    code(96 * 95, 0xff, &["row 95, column 0", "the code is NaN"]);
    let of_query = |at: usize, value: f32, words: &[&str]| {
        refuses(scale, at, &value.to_le_bytes(), "layers.0.query", words);
    };
    of_query(
        3 * 4,
        f32::NAN,
        &["row 40, column 64", scale, "is NaN", "damaged"],
    );
    of_query(0, f32::INFINITY, &["row 0, column 0", scale, "is inf"]);
    of_query(0, f32::MAX, &["row 0", scale, "beyond f32"]);
    let of_value = |at: usize, bits: u8, words: &[&str]| {
        refuses(VALUE_SCALE, at, &[bits], "layers.0.value", words);
    };
    of_value(3, 255, &[VALUE, "row 16, column 0", VALUE_SCALE, "is NaN"]);
    of_value(0, 254, &["row 0", "beyond f32"]);
}

#[test]
fn fp4_and_integers_that_are_no_numbers_are_named() {
    let (up, gate_up) = ("model.layers.0.up.1.weight", "model.1.gate_up");
    let scale = format!("{up}.scale");
    refuses(
        &scale,
        3 * 2,
        &[255],
        "layers.0.up",
        &[up, "row 2, column 0", "is NaN"],
    );
    let scale = format!("{gate_up}.scale");
    let words = [gate_up, "row 129, column 0", &scale, "is NaN"];
    refuses(&scale, 6 * 129, &[0x7f], "layers.1.up", &words);
    let global = format!("{gate_up}.global");
    let words = [gate_up, "row 256, column 0", &global, "is NaN"];
    refuses(&global, 8, &f32::NAN.to_le_bytes(), "layers.1.gate", &words);
    let id = |n: i64, at: usize, words: &[&str]| {
        refuses(TABLE, 8 * at, &n.to_le_bytes(), "layers.0.table", words);
    };
    id(-3, 7, &[TABLE, "row 3, column 1", "-3 is negative"]);
    id(
        16_777_217,
        0,
        &["row 0, column 0", "16777217 is not exact in f32"],
    );
    id(i64::MAX, 0, &["is not exact in f32"]);
}

#[test]
fn tables_of_32_bits_are_read_and_judged_alike() {
    let temp = tempfile::tempdir().unwrap();
    let mut shipment = Shipment::new(CODED);
    let ids = shipment.decoded[TABLE].clone();
    let mut bytes: Vec<u8> = ids.iter().flat_map(|&n| (n as i32).to_le_bytes()).collect();
    let shape = shipment.tensors[TABLE].shape.clone();
    shipment.insert(TABLE, "I32", &shape, bytes.clone());
    let store = shipment.open(temp.path()).unwrap();
    let id = find(&store, "layers.0.table");
    assert!(rows(&store, id, 0, 0..CODED.vocabulary) == bits(&ids));
    drop(store);
    bytes[4..8].copy_from_slice(&(-1i32).to_le_bytes());
    shipment.insert(TABLE, "I32", &shape, bytes);
    let message = refusal(&shipment.open(temp.path()).unwrap(), id);
    assert!(
        message.contains("row 0, column 1: -1 is negative"),
        "{message}"
    );
}

#[test]
fn products_that_bf16_lacks_are_refused() {
    // The value's scale 0 stands for 2^-127; the least code times that is no bf16.
    let temp = tempfile::tempdir().unwrap();
    let mut shipment = Shipment::new(CODED);
    shipment.tensors.get_mut(VALUE_SCALE).unwrap().bytes[0] = 0;
    shipment.tensors.get_mut(VALUE).unwrap().bytes[..32].fill(0x7e);
    let store = shipment.open(temp.path()).unwrap();
    let value = find(&store, "layers.0.value");
    let message = refusal_in(Encoding::Bf16, &store, value);
    assert!(
        message.contains("row 1, column") && message.contains("too small"),
        "{message}"
    );
    let least = (448.0 * e8m0(0)) as f32;
    let first = rows_in(Encoding::Bf16, &store, value, 0, 0..1);
    assert_eq!(first[..32], [least.to_bits(); 32]);
    // Codes hold them.
    let all = rows(&store, value, 0, 0..store.program().operand(value).rows());
    assert_eq!(all[..32], [least.to_bits(); 32]);
}

#[test]
fn scales_that_no_quantiser_writes_are_named() {
    let (query, gate_up) = ("model.layers.0.query.weight", "model.1.gate_up");
    let (scale, global) = (format!("{query}.scale"), format!("{gate_up}.global"));
    for (value, shown) in [(-0.5f32, "is -0.5"), (0.0, "is 0"), (-0.0, "is -0")] {
        let bytes = value.to_le_bytes();
        let words = [query, "row 40, column 64", &scale, shown, "damaged"];
        refuses(&scale, 3 * 4, &bytes, "layers.0.query", &words);
        let words = [gate_up, "row 256, column 0", &global, shown];
        refuses(&global, 8, &bytes, "layers.1.gate", &words);
    }
    // In E4M3 the sign is the highest bit, and a small scale may round to zero.
    let inner = format!("{gate_up}.scale");
    let words = [gate_up, "row 129, column 0", &inner, "is -"];
    refuses(&inner, 6 * 129, &[0xb8], "layers.1.up", &words);
    let temp = tempfile::tempdir().unwrap();
    let mut shipment = Shipment::new(CODED);
    shipment.tensors.get_mut(&inner).unwrap().bytes[6 * 129] = 0;
    // Nor does a zero matter where all codes of its block are: rows 40.., columns 64...
    shipment.tensors.get_mut(&scale).unwrap().bytes[12..16].fill(0);
    let codes = &mut shipment.tensors.get_mut(query).unwrap().bytes;
    for row in codes.chunks_exact_mut(96).skip(40).take(40) {
        row[64..].fill(0x80);
    }
    let store = shipment.open(temp.path()).unwrap();
    for name in ["layers.0.query", "layers.1.up"] {
        let id = find(&store, name);
        let operand = store.program().operand(id);
        for item in 0..operand.items() {
            for &encoding in store.encodings(id) {
                rows_in(encoding, &store, id, item, 0..operand.rows());
            }
        }
    }
}

/// What reading all items says, the same in every encoding.
fn refusal(store: &Store, id: OperandId) -> String {
    let encodings = store.encodings(id).iter();
    let messages: Vec<String> = encodings.map(|&e| refusal_in(e, store, id)).collect();
    assert!(messages.iter().all(|m| *m == messages[0]), "{messages:?}");
    messages[0].clone()
}

fn refusal_in(encoding: Encoding, store: &Store, id: OperandId) -> String {
    let operand = store.program().operand(id);
    let bytes = encoding
        .matrix_bytes(operand.rows(), operand.cols())
        .unwrap();
    let mut buffer = vec![0; bytes];
    let error = (0..operand.items()).find_map(|i| store.read(id, i, encoding, &mut buffer).err());
    error.unwrap().to_string()
}
