//! Codes with scales on their way into containers, and those of independent checkpoints.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::coded::{CODED, Shipment};
use common::{Sizes, contents, convert_quietly, open, options};
use lamella_container::safetensors::Header;
use lamella_container::{
    ConvertError, ConvertOptions, Error, Keep, Store, convert, decode, encode, verify,
};
use lamella_program::operand::Coding;
use lamella_program::program::UnusedComponent;
use lamella_program::{Encoding, OperandId, Role};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn containers_hold_the_codes_or_what_is_made_of_them() {
    let temp = tempfile::tempdir().unwrap();
    let shipment = Shipment::new(CODED);
    let store = shipment.open(&temp.path().join("coded")).unwrap();
    for want in [
        Keep::Canonical,
        Keep::As(Encoding::Q8),
        Keep::As(Encoding::Q4),
    ] {
        let out = temp.path().join(format!("{want:?}"));
        let report = convert_quietly(&store, &out, &options(want)).unwrap();
        assert_eq!(report.warnings, Vec::<String>::new());
        assert!(verify(&out, &mut |_| {}).unwrap().damage.is_empty());
        let container = open(&out).unwrap();
        assert_eq!(container.program(), store.program());
        for (number, operand) in store.program().operands.iter().enumerate() {
            let id = OperandId(number as u32);
            let canonical = store.encodings(id)[0];
            let encoding = match (want, operand.role) {
                (Keep::Canonical, role) if role.may_quantise() => canonical,
                (Keep::As(_), Role::Embedding | Role::Head) => Encoding::Q8,
                (Keep::As(encoding), role) if role.may_quantise() => {
                    encoding.given(store.encodings(id))
                }
                _ => Encoding::F32,
            };
            assert_eq!(container.encodings(id), [encoding], "{}", operand.name);
            for item in 0..operand.items() {
                let Some(numbers) = shipment.expected(operand, item) else {
                    continue;
                };
                let (rows, cols) = (operand.rows(), operand.cols());
                let mut expected = vec![0; encoding.matrix_bytes(rows, cols).unwrap()];
                let mut found = vec![1; expected.len()];
                container.read(id, item, encoding, &mut found).unwrap();
                if encoding.is_coded() {
                    store.read(id, item, encoding, &mut expected).unwrap();
                    let mut decoded = vec![0.0; rows * cols];
                    decode(encoding, rows, cols, &found, &mut decoded).unwrap();
                    assert!(decoded == numbers, "{} {item}", operand.name);
                } else {
                    encode(encoding, rows, cols, &numbers, &mut expected).unwrap();
                }
                assert!(found == expected, "{} {item} {want:?}", operand.name);
            }
        }
        assert!(
            container
                .summary()
                .stored
                .iter()
                .all(|s| s.coding.is_none())
        );
    }
}

#[test]
fn a_cancelled_conversion_of_codes_resumes() {
    let temp = tempfile::tempdir().unwrap();
    let store = Shipment::new(CODED)
        .open(&temp.path().join("coded"))
        .unwrap();
    let want = ConvertOptions {
        threads: 1,
        ..options(Keep::As(Encoding::Q4))
    };
    let (undisturbed, out) = (temp.path().join("undisturbed"), temp.path().join("out"));
    convert_quietly(&store, &undisturbed, &want).unwrap();
    let cancel = AtomicBool::new(false);
    let mut watch = |p: lamella_container::Progress<'_>| {
        cancel.store(p.records_done >= 9, Ordering::Relaxed);
    };
    let error = convert(&store, &out, &want, &mut watch, &cancel).unwrap_err();
    assert!(matches!(error, Error::Convert(ConvertError::Cancelled(_))));
    let report = convert_quietly(&store, &out, &want).unwrap();
    assert!(report.resumed >= 9);
    assert!(contents(&out) == contents(&undisturbed));
}

#[test]
fn tensors_that_nothing_reads_may_have_any_type() {
    let temp = tempfile::tempdir().unwrap();
    let mut shipment = Shipment::plain(CODED);
    let types = [
        ("I64", 8),
        ("I32", 4),
        ("U8", 1),
        ("I8", 1),
        ("F8_E4M3", 1),
        ("F8_E8M0", 1),
        ("BOOL", 1),
        ("F64", 8),
    ];
    for (dtype, bytes) in types {
        shipment.insert(
            &format!("constants.{dtype}"),
            dtype,
            &[2, 3],
            vec![7; 6 * bytes],
        );
    }
    shipment.insert("constants.F4", "F4", &[2, 3], vec![7; 3]);
    let names = types.iter().map(|(dtype, _)| *dtype).chain(["F4"]);
    shipment.program.unused.push(UnusedComponent {
        name: "constants".to_owned(),
        reason: "the program has them".to_owned(),
        tensors: names.map(|n| format!("constants.{n}")).collect(),
    });
    shipment.open(temp.path()).unwrap();
    for dtype in ["I64", "F8_E8M0", "F4"] {
        let name = format!("constants.{dtype}");
        let kept = shipment.tensors[&name].clone();
        shipment.tensors.get_mut(&name).unwrap().bytes.push(0);
        let error = shipment.open(temp.path()).unwrap_err();
        assert!(error.to_string().contains(&name), "{error}");
        shipment.tensors.insert(name, kept);
    }
}

/// Tensors of a checkpoint in `fixtures/`, with their bytes.
fn fixture(name: &str) -> impl Fn(&str) -> common::Tensor {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name);
    let file = std::fs::read(path.join("model.safetensors")).unwrap();
    let header = Header::from_file_bytes(&file).unwrap();
    move |name| {
        let tensor = header.tensors.iter().find(|t| t.name == name).unwrap();
        let start = tensor.offset as usize;
        common::Tensor {
            dtype: ["I8", "U8", "F8_E4M3", "F8_E8M0", "F32", "BF16"]
                .into_iter()
                .find(|d| *d == tensor.dtype)
                .unwrap(),
            shape: tensor.shape.clone(),
            bytes: file[start..start + tensor.length as usize].to_vec(),
        }
    }
}

/// What the numpy readers of `oracle/` make of a matrix.
struct Matrix {
    shape: [usize; 2],
    /// Some numbers by row and column.
    some: [(usize, usize, f32); 5],
    /// Sums of the numbers and of their magnitudes.
    sums: [f64; 2],
}

impl Matrix {
    /// Products of three factors may be rounded twice.
    fn check(&self, found: &[f32], twice: bool) {
        let [rows, cols] = self.shape;
        assert_eq!(found.len(), rows * cols);
        for &(row, col, expected) in &self.some {
            let number = found[row * cols + col];
            let tolerance = if twice { expected.abs() * 2e-7 } else { 0.0 };
            assert!(
                (number - expected).abs() <= tolerance,
                "{row} {col}: {number} {expected}"
            );
            assert_eq!(number.is_sign_negative(), expected.is_sign_negative());
        }
        let sum: f64 = found.iter().map(|&n| f64::from(n)).sum();
        let magnitudes: f64 = found.iter().map(|&n| f64::from(n.abs())).sum();
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-6 * self.sums[1];
        assert!(near(sum, self.sums[0]), "{sum}");
        assert!(near(magnitudes, self.sums[1]), "{magnitudes}");
    }
}

fn read(store: &Store, operand: &str, item: usize, encoding: Encoding) -> Vec<f32> {
    let operands = &store.program().operands;
    let number = operands.iter().position(|o| o.name == operand).unwrap();
    let (id, operand) = (OperandId(number as u32), &operands[number]);
    let encodings = store.encodings(id);
    assert_eq!(encodings.last(), Some(&encoding));
    let (rows, cols) = (operand.rows(), operand.cols());
    let mut bytes = vec![0; encoding.matrix_bytes(rows, cols).unwrap()];
    store.read(id, item, encoding, &mut bytes).unwrap();
    let mut numbers = vec![0.0; rows * cols];
    decode(encoding, rows, cols, &bytes, &mut numbers).unwrap();
    // The codes as they are stand for the same.
    let mut bytes = vec![0; encodings[0].matrix_bytes(rows, cols).unwrap()];
    store.read(id, item, encodings[0], &mut bytes).unwrap();
    let mut same = vec![0.0; rows * cols];
    decode(encodings[0], rows, cols, &bytes, &mut same).unwrap();
    assert!(
        same.iter()
            .map(|n| n.to_bits())
            .eq(numbers.iter().map(|n| n.to_bits()))
    );
    numbers
}

/// Reads a matrix of a fixture as the embedding of a tiny model.
fn check_matrix(from: &str, tensor: &str, coding: Coding, encoding: Encoding, expected: &Matrix) {
    const EMBEDDING: &str = "model.embedding.weight";
    let [vocabulary, hidden] = expected.shape;
    let sizes = Sizes {
        hidden,
        vocabulary,
        ..CODED
    };
    let mut shipment = Shipment::plain(sizes);
    let fixture = fixture(from);
    shipment
        .tensors
        .insert(EMBEDDING.to_owned(), fixture(tensor));
    for scales in coding.scales() {
        shipment.tensors.insert(scales.to_owned(), fixture(scales));
    }
    shipment.recode(EMBEDDING, &coding);
    let temp = tempfile::tempdir().unwrap();
    let store = shipment.open(temp.path()).unwrap();
    assert!(store.encodings(OperandId(0))[0].is_coded());
    expected.check(&read(&store, "embedding", 0, encoding), false);
}

fn blocks(scale: &str) -> Coding {
    let (scale, block) = (scale.to_owned(), [128, 128]);
    Coding::BlockFp8 { scale, block }
}

fn mxfp4(scale: &str) -> Coding {
    let scale = scale.to_owned();
    Coding::Mxfp4 { scale }
}

#[test]
fn fp8_of_independent_checkpoints_decodes_as_their_readers_do() {
    let tensor = "model.layers.0.mlp.gate_proj.weight";
    let expected = Matrix {
        shape: [150, 144],
        some: [
            (0, 0, 0.084_193_62),
            (0, 1, -0.084_193_62),
            (50, 73, 0.084_193_62),
            (149, 143, 0.038_473_56),
            (75, 142, -0.085_171_95),
        ],
        sums: [8.268_073_248_624_546, 1_850.445_135_972_700_4],
    };
    let coding = blocks("model.layers.0.mlp.gate_proj.weight_scale_inv");
    check_matrix("glm-404", tensor, coding, Encoding::F32, &expected);

    let tensor = "layers.0.attn.wkv.weight";
    let expected = Matrix {
        shape: [80, 192],
        some: [
            (0, 0, -0.070_312_5),
            (0, 1, 0.058_593_75),
            (26, 97, -0.050_781_25),
            (79, 191, -0.019_531_25),
            (40, 190, 0.027_343_75),
        ],
        sums: [9.353_244_781_494_14, 1_160.218_776_702_880_9],
    };
    let coding = blocks("layers.0.attn.wkv.scale");
    check_matrix("deepseek_v4-303", tensor, coding, Encoding::Bf16, &expected);
}

#[test]
fn fp8_with_bf16_scales_decodes_as_its_reader_does() {
    let tensor = "model.language_model.layers.0.linear_attn.in_proj_qkv.weight";
    let expected = Matrix {
        shape: [256, 128],
        some: [
            (0, 0, -0.117_919_92),
            (0, 1, -0.151_611_33),
            (85, 65, 0.092_651_37),
            (255, 127, -0.128_173_83),
            (128, 126, 0.119_628_906),
        ],
        sums: [-14.834_833_234_548_569, 3_004.466_907_292_604_4],
    };
    let coding = blocks(&format!("{tensor}_scale_inv"));
    check_matrix("qwen36fp8-707", tensor, coding, Encoding::F32, &expected);

    let table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding";
    let expected = Matrix {
        shape: [320, 16],
        some: [
            (0, 0, 0.137_695_31),
            (0, 1, -1.376_953_1),
            (106, 9, 0.757_324_2),
            (319, 15, 0.963_867_2),
            (160, 14, 0.688_476_56),
        ],
        sums: [-65.701_170_444_488_53, 4_067.426_277_637_481_7],
    };
    let scale = format!("{table}.weight_scale");
    let coding = Coding::TensorFp8 { scale };
    let shard = format!("{table}.shard_0.weight");
    check_matrix("qwen38fp8-777", &shard, coding, Encoding::F32, &expected);
}

#[test]
fn fp4_of_independent_checkpoints_decodes_as_their_readers_do() {
    let tensor = "layers.0.ffn.experts.3.w1.weight";
    let expected = Matrix {
        shape: [64, 192],
        some: [
            (0, 0, 0.125),
            (0, 1, -0.0),
            (21, 97, -0.0625),
            (63, 191, 0.0625),
            (32, 190, -0.0625),
        ],
        sums: [-1.296_875, 908.421_875],
    };
    let coding = mxfp4("layers.0.ffn.experts.3.w1.scale");
    check_matrix("deepseek_v4-303", tensor, coding, Encoding::Bf16, &expected);

    let expert = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight";
    let expected = Matrix {
        shape: [32, 64],
        some: [
            (0, 0, -0.125),
            (10, 33, -0.0625),
            (31, 63, -0.375),
            (16, 62, -0.0),
            (21, 21, 0.0625),
        ],
        sums: [8.906_25, 404.593_75],
    };
    let coding = mxfp4(&format!("{expert}_scale"));
    let tensor = format!("{expert}_packed");
    check_matrix("kimi_k3-101", &tensor, coding, Encoding::Bf16, &expected);
}

#[test]
fn nvfp4_of_an_independent_checkpoint_decodes_as_its_reader_does() {
    const STACK: &str = "model.1.gate_up";
    let sizes = Sizes {
        hidden: 128,
        width: 64,
        experts: 16,
        vocabulary: 8,
    };
    let mut shipment = Shipment::plain(sizes);
    let fixture = fixture("inkling-nvfp4-303");
    let tensor = "model.llm.layers.2.mlp.experts.w13_weight";
    let (scale, global) = (format!("{tensor}.scale"), format!("{tensor}.scale2"));
    shipment.tensors.insert(STACK.to_owned(), fixture(tensor));
    for name in [&scale, &global] {
        shipment.tensors.insert(name.clone(), fixture(name));
    }
    shipment.recode(STACK, &Coding::Nvfp4 { scale, global });
    let temp = tempfile::tempdir().unwrap();
    let store = shipment.open(temp.path()).unwrap();
    let gate = Matrix {
        shape: [64, 128],
        some: [
            (0, 0, 0.035_672_35),
            (0, 1, 0.035_672_35),
            (21, 65, 0.082_320_81),
            (63, 127, 0.090_552_89),
            (32, 126, -0.020_580_202),
        ],
        sums: [-11.443_964_346_311_986, 753.048_811_591_917_1],
    };
    gate.check(&read(&store, "layers.1.gate", 5, Encoding::F32), true);
    let up = Matrix {
        shape: [64, 128],
        some: [
            (0, 0, -0.024_735_538),
            (0, 1, 0.098_942_15),
            (21, 65, -0.024_735_538),
            (63, 127, -0.087_948_58),
            (32, 126, 0.098_942_15),
        ],
        sums: [1.302_738_248_370_587_8, 747.432_406_418_956_8],
    };
    up.check(&read(&store, "layers.1.up", 15, Encoding::F32), true);
}
