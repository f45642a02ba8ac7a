//! Operands whose numbers are codes with scales in tensors of their own, and tables of integers.

use crate::common::blocks::hashed;
use crate::common::{program_of, tensors, with_ffn};
use lamella_program::block::Ffn;
use lamella_program::closure::{check, check_against};
use lamella_program::operand::Coding;
use lamella_program::{Defect, Encoding, Operand, Program, Role, Slice, TensorInfo};

/// Rows and columns of the coded matrix: neither is a multiple of a scale block of 32.
const SHAPE: [usize; 2] = [40, 48];

/// A program whose only head is stored in codes, and a table with the head's tensors.
fn coded(
    shape: &[usize],
    coding: Coding,
    dtype: &str,
    scales: &[(&str, &str, &[usize])],
) -> (Program, Vec<TensorInfo>) {
    let mut program = program_of(|t| vec![crate::common::plain_layer(t)]);
    program.dims.hidden = 8;
    let head = program.exit.head.index();
    let elements: Vec<usize> = shape.to_vec();
    let per_element = coding.per_element();
    let slice = |start, rows| Slice {
        start,
        rows,
        coding: Some(coding.clone()),
        ..Slice::whole("codes", &elements)
    };
    let cols = elements[elements.len() - 1] * per_element;
    let rows: usize = elements[..elements.len() - 1].iter().product();
    // The operand is not used by a block: what it is for does not matter to its sources.
    program.operands.push(Operand {
        name: "coded".to_owned(),
        shape: vec![rows, cols],
        role: Role::Linear,
        parts: vec![vec![slice(0, 1), slice(1, rows - 1)]],
    });
    assert!(head < program.operands.len());
    let mut table = tensors(&program);
    table.retain(|t| t.name != "codes");
    let info = |name: &str, dtype: &str, shape: &[usize]| TensorInfo {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        encoding: None,
        shape: shape.to_vec(),
    };
    table.push(info("codes", dtype, &elements));
    for (name, dtype, shape) in scales {
        table.push(info(name, dtype, shape));
    }
    (program, table)
}

/// Defects but the one that no block uses the coded operand.
fn defects((program, table): &(Program, Vec<TensorInfo>)) -> Vec<Defect> {
    let mut defects = check_against(program, table);
    defects.retain(|d| *d != Defect::UnusedOperand("coded".to_owned()));
    defects
}

fn blocks() -> Coding {
    Coding::BlockFp8 {
        scale: "scale".to_owned(),
        block: [32, 32],
    }
}

fn mxfp4() -> Coding {
    Coding::Mxfp4 {
        scale: "scale".to_owned(),
    }
}

fn nvfp4() -> Coding {
    Coding::Nvfp4 {
        scale: "scale".to_owned(),
        global: "global".to_owned(),
    }
}

#[test]
fn every_coding_has_its_types_and_shapes() {
    for dtype in ["F32", "BF16", "F8_E8M0"] {
        let case = coded(&SHAPE, blocks(), "F8_E4M3", &[("scale", dtype, &[2, 2])]);
        assert_eq!(defects(&case), []);
    }
    for dtype in ["F32", "F8_E8M0", "U8"] {
        let (scale, block) = ("scale".to_owned(), [1, 32]);
        let mxfp8 = Coding::BlockFp8 { scale, block };
        let case = coded(&SHAPE, mxfp8, "F8_E4M3", &[("scale", dtype, &[40, 2])]);
        assert_eq!(defects(&case), []);
    }
    let whole = || Coding::TensorFp8 {
        scale: "scale".to_owned(),
    };
    for (dtype, shape) in [("F32", &[1][..]), ("BF16", &[]), ("BF16", &[1])] {
        let case = coded(&SHAPE, whole(), "F8_E4M3", &[("scale", dtype, shape)]);
        assert_eq!(defects(&case), []);
    }
    for dtype in ["U8", "F8_E8M0"] {
        for codes in ["U8", "I8"] {
            let case = coded(&[40, 32], mxfp4(), codes, &[("scale", dtype, &[40, 2])]);
            assert_eq!(defects(&case), []);
        }
    }
    for shape in [&[1][..], &[]] {
        let scales = [("scale", "F8_E4M3", &[40, 3][..]), ("global", "F32", shape)];
        assert_eq!(defects(&coded(&[40, 24], nvfp4(), "U8", &scales)), []);
    }
    for shape in [&[4][..], &[1], &[]] {
        let scales = [
            ("scale", "F8_E4M3", &[4, 10, 3][..]),
            ("global", "F32", shape),
        ];
        assert_eq!(defects(&coded(&[4, 10, 24], nvfp4(), "U8", &scales)), []);
    }
}

#[test]
fn divisors_are_one_for_each_part_or_for_several() {
    let divided = |part| Coding::DividedNvfp4 {
        scale: "scale".to_owned(),
        divisor: "divisor".to_owned(),
        part,
    };
    let case = |part, shape: &[usize]| {
        let scales = [
            ("scale", "F8_E4M3", &[4, 10, 3][..]),
            ("divisor", "F32", shape),
        ];
        defects(&coded(&[4, 10, 24], divided(part), "U8", &scales))
    };
    for shape in [&[4, 2][..], &[4, 1], &[4], &[1], &[]] {
        assert_eq!(case([1, 2], shape), []);
    }
    for shape in [&[2, 4][..], &[4, 3], &[2], &[4, 2, 1], &[0]] {
        let found = case([1, 2], shape);
        assert!(
            matches!(&found[..], [Defect::TensorShape { expected, .. }] if *expected == [4, 2]),
            "{found:?}"
        );
    }
    for part in [[2, 2], [0, 0]] {
        let found = case(part, &[4, 1]);
        let text = found.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains("has no such part"), "{text}");
    }
}

#[test]
fn types_that_count_codes_have_twice_the_columns() {
    for dtype in ["F4", "F4_E2M1"] {
        let mut case = coded(&[40, 32], mxfp4(), dtype, &[("scale", "U8", &[40, 2])]);
        assert!(
            matches!(&defects(&case)[..], [Defect::TensorShape { expected, .. }]
            if *expected == [40, 64])
        );
        let codes = case.1.iter_mut().find(|t| t.name == "codes");
        codes.unwrap().shape = vec![40, 64];
        assert_eq!(defects(&case), []);
    }
}

#[test]
fn every_wrong_type_is_named() {
    let scales = [("scale", "F8_E4M3", &[40, 3][..]), ("global", "F32", &[1])];
    let cases = [
        coded(&SHAPE, blocks(), "U8", &[("scale", "F32", &[2, 2])]),
        coded(&SHAPE, blocks(), "F8_E5M2", &[("scale", "F32", &[2, 2])]),
        coded(&SHAPE, blocks(), "F8_E4M3", &[("scale", "U8", &[2, 2])]),
        coded(&[40, 32], mxfp4(), "F8_E4M3", &[("scale", "U8", &[40, 2])]),
        coded(&[40, 32], mxfp4(), "U8", &[("scale", "F32", &[40, 2])]),
        coded(&[40, 24], nvfp4(), "I8", &scales),
        coded(
            &[40, 24],
            nvfp4(),
            "U8",
            &[scales[0], ("global", "BF16", &[1])],
        ),
        coded(
            &[40, 24],
            nvfp4(),
            "U8",
            &[("scale", "U8", &[40, 3]), scales[1]],
        ),
    ];
    for case in &cases {
        let defects = defects(case);
        assert!(
            matches!(&defects[..], [Defect::ElementType { .. }]),
            "{defects:?}"
        );
    }
}

#[test]
fn every_wrong_shape_is_named() {
    let scale = ("scale", "F8_E4M3", &[40, 3][..]);
    let stack = [
        ("scale", "F8_E4M3", &[4, 10, 3][..]),
        ("global", "F32", &[10]),
    ];
    let cases = [
        coded(&SHAPE, blocks(), "F8_E4M3", &[("scale", "F32", &[1, 2])]),
        coded(&SHAPE, blocks(), "F8_E4M3", &[("scale", "F32", &[2])]),
        coded(&[40, 32], mxfp4(), "U8", &[("scale", "U8", &[40, 1])]),
        coded(&[40, 24], nvfp4(), "U8", &[scale, ("global", "F32", &[40])]),
        coded(&[4, 10, 24], nvfp4(), "U8", &stack),
    ];
    for case in &cases {
        let defects = defects(case);
        assert!(
            matches!(&defects[..], [Defect::TensorShape { .. }]),
            "{defects:?}"
        );
    }
}

#[test]
fn scales_are_needed_and_claimed() {
    let scales = [("scale", "F8_E4M3", &[40, 3][..]), ("global", "F32", &[1])];
    for (left, gone) in [(1, "scale"), (0, "global")] {
        let case = coded(&[40, 24], nvfp4(), "U8", &scales[left..=left]);
        let defects = defects(&case);
        assert!(
            matches!(&defects[..], [Defect::MissingTensor { tensor, operand }]
                if tensor == gone && operand == "coded"),
            "{defects:?}"
        );
    }
    let extra = [scales[0], scales[1], ("other", "F32", &[1])];
    let defects = defects(&coded(&[40, 24], nvfp4(), "U8", &extra));
    assert_eq!(defects, [Defect::UnclaimedTensor("other".to_owned())]);
}

#[test]
fn slices_in_codes_can_be_cut_into_rows_and_groups() {
    let ragged = coded(&[40, 15], mxfp4(), "U8", &[("scale", "U8", &[40, 0])]);
    let halves = coded(&[40, 20], nvfp4(), "U8", &[]);
    let none = coded(
        &SHAPE,
        Coding::BlockFp8 {
            scale: "scale".to_owned(),
            block: [0, 32],
        },
        "F8_E4M3",
        &[("scale", "F32", &[2, 2])],
    );
    let stack = coded(&[4, 10, 48], blocks(), "F8_E4M3", &[]);
    for (case, expected) in [
        (ragged, "without a scale for 32"),
        (halves, "without a scale for 16"),
        (none, "scale blocks of no size"),
        (stack, "no matrix"),
    ] {
        let texts: Vec<String> = check(&case.0).iter().map(ToString::to_string).collect();
        assert!(
            texts.iter().any(|t| t.contains(expected)),
            "{expected}: {texts:?}"
        );
    }
}

#[test]
fn codes_without_a_coding_are_no_numbers() {
    for dtype in ["F8_E4M3", "U8", "I64", "F8_E8M0"] {
        let (mut program, mut table) = coded(&SHAPE, blocks(), dtype, &[("scale", "F32", &[2, 2])]);
        table.retain(|t| t.name != "scale");
        let slices = program.operands.last_mut().unwrap().parts[0].iter_mut();
        slices.for_each(|s| s.coding = None);
        let defects = defects(&(program, table));
        assert!(
            matches!(&defects[..], [Defect::ElementType { tensor, .. }] if tensor == "codes"),
            "{defects:?}"
        );
    }
}

#[test]
fn parts_in_several_codings_are_mixed() {
    let (mut program, table) = coded(
        &[40, 32],
        mxfp4(),
        "U8",
        &[
            ("scale", "U8", &[40, 2]),
            ("global", "F32", &[1]),
            ("fine", "F8_E4M3", &[40, 4]),
        ],
    );
    program.operands.last_mut().unwrap().parts[0][1].coding = Some(Coding::Nvfp4 {
        scale: "fine".to_owned(),
        global: "global".to_owned(),
    });
    let defects = defects(&(program, table));
    assert!(
        matches!(&defects[..], [Defect::MixedTypes { first, second, .. }]
            if first == "MXFP4" && second == "NVFP4"),
        "{defects:?}"
    );
}

#[test]
fn codes_and_numbers_do_not_mix() {
    let (mut program, mut table) = coded(&[40, 32], mxfp4(), "U8", &[("scale", "U8", &[40, 2])]);
    let operand = program.operands.last_mut().unwrap();
    let rows = operand.parts[0][1].rows;
    operand.parts[0][1] = Slice::whole("plain", &[rows, 64]);
    table.push(TensorInfo {
        name: "plain".to_owned(),
        dtype: "BF16".to_owned(),
        encoding: Some(Encoding::Bf16),
        shape: vec![rows, 64],
    });
    let defects = defects(&(program, table));
    assert!(
        matches!(&defects[..], [Defect::MixedTypes { first, second, .. }]
            if first == "MXFP4" && second == "numbers"),
        "{defects:?}"
    );
}

#[test]
fn every_slice_of_a_tensor_agrees_with_it() {
    let (mut program, table) = coded(&SHAPE, blocks(), "F8_E4M3", &[("scale", "F32", &[2, 2])]);
    program.operands.last_mut().unwrap().parts[0][1].tensor_shape = vec![400, 48];
    let defects = defects(&(program, table));
    assert!(
        defects
            .iter()
            .any(|d| matches!(d, Defect::TensorShape { expected, .. } if *expected == [400, 48])),
        "{defects:?}"
    );
}

#[test]
fn tables_hold_integers() {
    let mut program = with_ffn(|t| Ffn::Routed(hashed(t)));
    program.boundary.needs_token_ids = true;
    let of = |dtype: &str| {
        let mut table = tensors(&program);
        let info = table.iter_mut().find(|t| t.name == "router.table").unwrap();
        info.dtype = dtype.to_owned();
        info.encoding = match dtype {
            "BF16" => Some(lamella_program::Encoding::Bf16),
            _ => None,
        };
        check_against(&program, &table)
    };
    assert_eq!(of("I64"), []);
    assert_eq!(of("I32"), []);
    for dtype in ["BF16", "U8", "F64"] {
        assert!(matches!(&of(dtype)[..], [Defect::ElementType { .. }]));
    }
    let mut coded = program.clone();
    let table = coded.operands.iter_mut().find(|o| o.role == Role::Table);
    table.unwrap().parts[0][0].coding = Some(Coding::TensorFp8 {
        scale: "scale".to_owned(),
    });
    let texts: Vec<String> = check(&coded).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["operand router.table: integers have no coding"]);
}
