//! Attention over a window and compressed entries.

use crate::common::blocks::compressed;
use crate::common::{fails, fails_and_frees, sweep, with_mixer};
use lamella_program::block::{CompressedAttention, Indexer, Mixer};
use lamella_program::{Program, state};

fn full() -> Program {
    with_mixer(|t| Mixer::CompressedAttention(compressed(t)))
}

fn edit(p: &mut Program) -> &mut CompressedAttention {
    match &mut p.layers[0].mixer.body {
        Mixer::CompressedAttention(a) => a,
        _ => panic!("compressed attention"),
    }
}

fn indexer(p: &mut Program) -> &mut Indexer {
    match &mut edit(p).indexer {
        Some(ix) => &mut ix.indexer,
        None => panic!("it selects"),
    }
}

#[test]
fn every_operand_has_its_shape() {
    sweep(&full(), &["query_down", "output_down"], &[]);
}

#[test]
fn entries_may_be_absent_or_all_visible() {
    let free = |p: &mut Program| {
        edit(p).indexer = None;
        edit(p).window = 0;
    };
    fails_and_frees(&full(), free, "window is zero");
    let orphan = |p: &mut Program| edit(p).compressor = None;
    fails_and_frees(&full(), orphan, "no entries to select from");
}

#[test]
fn numbers_agree() {
    fails(&full(), |p| edit(p).window = 0, "window is zero");
    fails(
        &full(),
        |p| edit(p).output_groups = 0,
        "output groups is zero",
    );
    fails(
        &full(),
        |p| edit(p).output_groups = 3,
        "4 heads in 3 output groups",
    );
    fails(
        &full(),
        |p| edit(p).rope.dims = 8,
        "8 rotated channels of 6",
    );
    fails(&full(), |p| edit(p).scale = 0.0, "score scale 0");
    fails(
        &full(),
        |p| edit(p).query_head_norm.eps = f32::NAN,
        "eps NaN",
    );
    let rows = |p: &mut Program| {
        for (name, shape) in [("output_down", [7, 12]), ("output_up", [8, 7])] {
            let operand = p.operands.iter_mut().find(|o| o.name == name);
            crate::common::reshape(operand.expect("it is there"), &shape);
        }
    };
    fails(&full(), rows, "7 rows of the output map in 2 groups");
}

#[test]
fn entries_are_scored_one_by_one() {
    fails(&full(), |p| indexer(p).block = 4, "grouped heads only");
    fails(&full(), |p| indexer(p).top_k = 0, "candidates is zero");
    fails(&full(), |p| indexer(p).rope = None, "entries rotate");
    let ratio = |p: &mut Program| {
        if let Some(ix) = &mut edit(p).indexer {
            ix.compressor.ratio = 2;
        }
        let operand = p.operands.iter_mut();
        let mut position = operand.filter(|o| o.name == "index_compressor.position");
        crate::common::reshape(position.next().expect("it is there"), &[2, 8]);
    };
    fails(&full(), ratio, "scores entries of 2 tokens, selects of 4");
    let none = |p: &mut Program| {
        if let Some(ix) = &mut edit(p).indexer {
            ix.compressor.ratio = 0;
        }
    };
    let mut program = full();
    none(&mut program);
    let texts: Vec<String> = lamella_program::closure::check(&program)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        texts.iter().any(|t| t.contains("ratio is zero")),
        "{texts:?}"
    );
    let keys = |p: &mut Program| {
        let norm = edit(p).query_head_norm.clone();
        indexer(p).key_norm = Some(lamella_program::block::IndexNorm::Rms(norm));
    };
    fails(&full(), keys, "are the entries of its compressor");
}

#[test]
fn state_is_a_window_entries_and_raw_rows() {
    // An entry of 6 and an index entry of 4 values for four tokens.
    assert_eq!(state::bytes_per_token(&full()), 6 + 4);
    // Values and gates of both halves of seven tokens: the window before, and the open one.
    let raw = 7 * 2 * 2 * (6 + 4);
    assert_eq!(state::fixed_bytes(&full()), 4 * (8 * 6 + raw));
}
