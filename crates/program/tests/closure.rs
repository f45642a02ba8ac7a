//! The closure check finds every defect, all of them at once.

mod common;

use common::blocks::routed;
use common::{VOCABULARY, tensors, with_ffn};
use lamella_program::block::{Attention, Ffn, Mixer, Span};
use lamella_program::closure::{check, check_against};
use lamella_program::program::PROGRAM_VERSION;
use lamella_program::{Defect, Encoding, OperandId, Program, TensorInfo, state};

fn program() -> Program {
    with_ffn(|t| Ffn::Routed(routed(t)))
}

fn attention(program: &mut Program) -> &mut Attention {
    match &mut program.layers[0].mixer.body {
        Mixer::Attention(a) => a,
        _ => unreachable!("the test program has attention"),
    }
}

#[test]
fn a_closed_program_has_no_defects_and_survives_json() {
    let program = program();
    assert_eq!(check_against(&program, &tensors(&program)), []);
    let json = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
}

#[test]
fn unknown_fields_in_a_stored_program_are_refused() {
    let mut json = serde_json::to_value(program()).unwrap();
    json["layers"][0]["mixer"]["body"]["surprise"] = 1.into();
    assert!(
        serde_json::from_value::<Program>(json)
            .unwrap_err()
            .to_string()
            .contains("surprise")
    );
}

#[test]
fn every_missing_tensor_is_its_own_defect() {
    let program = program();
    let all = tensors(&program);
    for (index, gone) in all.iter().enumerate() {
        let mut some = all.clone();
        some.remove(index);
        let defects = check_against(&program, &some);
        assert!(
            matches!(&defects[..], [Defect::MissingTensor { tensor, .. }] if *tensor == gone.name),
            "{}: {defects:?}",
            gone.name
        );
    }
}

#[test]
fn unclaimed_misshaped_and_mistyped_tensors_are_reported_together() {
    let program = program();
    let mut table = tensors(&program);
    table.push(TensorInfo {
        name: "extra".to_owned(),
        ..table[0].clone()
    });
    table[1].shape = vec![9, 9];
    table[2].dtype = "F8_E4M3".to_owned();
    table[2].encoding = None;
    let defects = check_against(&program, &table);
    assert!(matches!(&defects[..], [
        Defect::TensorShape { .. },
        Defect::ElementType { .. },
        Defect::UnclaimedTensor(name),
    ] if name == "extra"));
}

#[test]
fn an_operand_may_have_numbers_of_several_widths() {
    let program = program();
    let mut table = tensors(&program);
    for (name, dtype, encoding) in [
        ("experts.gate.1", "F32", Encoding::F32),
        ("experts.gate.2", "F16", Encoding::F16),
    ] {
        let expert = table.iter_mut().find(|t| t.name == name).unwrap();
        (expert.dtype, expert.encoding) = (dtype.to_owned(), Some(encoding));
    }
    assert_eq!(check_against(&program, &table), []);
}

/// Damages a program, and expects one text in the only defect.
fn check_damage(damage: impl FnOnce(&mut Program), expected: &str) {
    let mut program = program();
    damage(&mut program);
    let texts: Vec<String> = check(&program).iter().map(ToString::to_string).collect();
    assert!(
        texts.iter().any(|t| t.contains(expected)),
        "{expected}: {texts:?}"
    );
}

#[test]
fn contradictions_inside_a_program_are_named() {
    check_damage(|p| p.version = PROGRAM_VERSION + 1, "newer");
    check_damage(|p| p.dims.context = 0, "context is zero");
    check_damage(|p| p.layers.clear(), "number of layers is zero");
    check_damage(
        |p| p.exit.head = OperandId(999),
        "operand number 999 does not exist",
    );
    check_damage(|p| p.exit.logits = VOCABULARY + 1, "12 logits of 11 rows");
    check_damage(|p| attention(p).kv_heads = 3, "cannot share");
    check_damage(|p| attention(p).head_dim = 0, "is zero");
    check_damage(
        |p| attention(p).span = Span::Sliding { window: 0 },
        "window is zero",
    );
    check_damage(|p| p.operands[3].name = "query".to_owned(), "used twice");
    check_damage(|p| p.operands[0].shape = vec![usize::MAX, 8], "overflows");
    check_damage(|p| p.operands[0].shape = vec![0, 8], "no elements");
    check_damage(|p| p.operands[0].parts[0][0].start = 1, "reaches beyond");
    check_damage(|p| p.operands[0].parts[0][0].rows = 3, "do not add up");
    check_damage(|p| p.layers[0].ffn.pre_norm = None, "no block uses it");
    check_damage(
        |p| {
            if let Some(norm) = &mut p.exit.norm {
                norm.eps = f32::NAN;
            }
        },
        "eps NaN",
    );
    check_damage(
        |p| {
            if let Ffn::Routed(r) = &mut p.layers[0].ffn.body {
                r.top_k = 9;
            }
        },
        "9 experts chosen of 4",
    );
}

#[test]
fn state_sums_follow_the_declaration() {
    let program = program();
    // Keys and values of two heads of two channels, f32.
    assert_eq!(state::bytes_per_token(&program), 2 * 4 * 4);
    assert_eq!(state::fixed_bytes(&program), 0);
    assert!(
        state::layer_state(&program, 0)
            .iter()
            .all(|i| i.shape.truncates())
    );
}
