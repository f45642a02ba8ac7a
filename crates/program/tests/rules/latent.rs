//! Latent attention and its selections.

use crate::common::blocks::{latent, selecting, yarn};
use crate::common::{fails, fails_and_frees, sweep, with_mixer};
use lamella_program::block::{Indexer, LatentAttention, LatentSelection, Mixer};
use lamella_program::{Program, state};

fn plain() -> Program {
    with_mixer(|t| Mixer::LatentAttention(latent(t, None)))
}

fn edit(p: &mut Program, layer: usize) -> &mut LatentAttention {
    match &mut p.layers[layer].mixer.body {
        Mixer::LatentAttention(a) => a,
        _ => panic!("latent attention"),
    }
}

fn indexer(p: &mut Program) -> &mut Indexer {
    match &mut edit(p, 1).selection {
        Some(LatentSelection::Own(ix)) => ix,
        _ => panic!("layer 1 selects"),
    }
}

#[test]
fn every_operand_has_its_shape() {
    sweep(&plain(), &["query_down"], &[]);
    let ranks = [0, 1, 2].map(|i| format!("layers.{i}.query_down"));
    sweep(&selecting(), &ranks.each_ref().map(String::as_str), &[]);
}

#[test]
fn a_map_that_is_read_by_rows_is_read_so_everywhere() {
    let mut program = plain();
    let role = |p: &mut Program| {
        let operand = p.operands.iter_mut().find(|o| o.name == "latent_up");
        operand.expect("it is there").role = lamella_program::Role::Router;
    };
    fails(&program, role, "latent_up has role Router, needs Linear");
    let attention = edit(&mut program, 0);
    attention.output_gate = Some(attention.latent_up.clone());
    let defects = lamella_program::closure::check(&program);
    let texts: Vec<String> = defects.iter().map(ToString::to_string).collect();
    assert!(
        texts
            .iter()
            .any(|t| t.contains("latent_up is read row by row")),
        "{texts:?}"
    );
}

#[test]
fn rotation_is_optional_and_fits() {
    let mut still = plain();
    edit(&mut still, 0).rope = None;
    assert_eq!(lamella_program::closure::check(&still), []);
    let dims = |p: &mut Program, dims| {
        if let Some(rope) = &mut edit(p, 0).rope {
            rope.dims = dims;
        }
    };
    fails(&plain(), |p| dims(p, 4), "4 rotated channels of 2");
    fails(&plain(), |p| dims(p, 1), "1 rotated channels of 2");
    fails(&plain(), |p| dims(p, 0), "0 rotated channels of 2");
}

#[test]
fn interpolation_of_frequencies_is_usable() {
    type Edit = fn(&mut lamella_program::block::Yarn);
    let cases: [(Edit, &str); 6] = [
        (|y| y.factor = 0.5, "YaRN factor 0.5"),
        (|y| y.factor = f64::NAN, "YaRN factor NaN"),
        (|y| y.original_context = 0, "original context is zero"),
        (|y| y.beta_slow = 0.0, "divides below 0"),
        (|y| y.beta_fast = 0.5, "keeps above 0.5"),
        (|y| y.beta_fast = f64::INFINITY, "keeps above inf"),
    ];
    let mut program = plain();
    if let Some(rope) = &mut edit(&mut program, 0).rope {
        rope.yarn = Some(yarn());
    }
    assert_eq!(lamella_program::closure::check(&program), []);
    for (change, expected) in cases {
        let damage = |p: &mut Program| {
            let rope = edit(p, 0).rope.as_mut();
            rope.and_then(|r| r.yarn.as_mut())
                .into_iter()
                .for_each(change);
        };
        fails(&program, damage, expected);
    }
    for theta in [1.0, f64::NAN, f64::INFINITY] {
        let damage = |p: &mut Program| {
            if let Some(rope) = &mut edit(p, 0).rope {
                rope.theta = theta;
            }
        };
        fails(&program, damage, "rope base");
    }
}

#[test]
fn a_shared_selection_has_an_owner() {
    let orphan = |p: &mut Program| edit(p, 1).selection = None;
    fails_and_frees(&selecting(), orphan, "no earlier layer makes one");
    let late = |p: &mut Program| p.layers.swap(1, 2);
    fails(&selecting(), late, "layers.1.mixer: shares a selection");
}

#[test]
fn numbers_agree() {
    fails(&plain(), |p| edit(p, 0).heads = 0, "heads is zero");
    fails(&plain(), |p| edit(p, 0).nope_dim = 0, "unrotated channels");
    fails(&plain(), |p| edit(p, 0).latent_dim = 0, "latent width");
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let damage = |p: &mut Program| edit(p, 0).scale = scale;
        fails(&plain(), damage, "score scale");
    }
    let huge = |p: &mut Program| edit(p, 0).rope_dim = usize::MAX;
    let mut program = plain();
    huge(&mut program);
    let texts: Vec<String> = lamella_program::closure::check(&program)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        texts.iter().any(|t| t.contains("too many together")),
        "{texts:?}"
    );
}

#[test]
fn single_tokens_are_selected() {
    let program = selecting();
    fails(&program, |p| indexer(p).top_k = 0, "candidates is zero");
    fails(&program, |p| indexer(p).block = 0, "block is zero");
    fails(&program, |p| indexer(p).block = 2, "grouped heads only");
    fails(&program, |p| indexer(p).scale = -1.0, "score scale");
    fails(&program, |p| indexer(p).heads = 0, "heads is zero");
    fails_and_frees(&program, |p| indexer(p).key = None, "has no keys");
    let normed = |p: &mut Program| indexer(p).query_norm = Some(unweighted());
    fails(&program, normed, "belongs to selecting blocks");
    let eps = |p: &mut Program| {
        if let Some(lamella_program::block::IndexNorm::Layer { eps, .. }) = &mut indexer(p).key_norm
        {
            *eps = f32::NAN;
        }
    };
    fails(&program, eps, "eps NaN");
    let wide = |p: &mut Program| {
        if let Some(rope) = &mut indexer(p).rope {
            rope.dims = 6;
        }
    };
    fails(&program, wide, "6 rotated channels of 4");
}

fn unweighted() -> lamella_program::block::RmsNorm {
    lamella_program::block::RmsNorm {
        weight: None,
        eps: 1e-6,
        unit_offset: false,
    }
}

#[test]
fn state_is_a_row_a_token() {
    assert_eq!(state::bytes_per_token(&plain()), 4 * 9);
    // One indexer with keys of four channels.
    assert_eq!(state::bytes_per_token(&selecting()), 4 * (3 * 9 + 4));
    assert_eq!(state::fixed_bytes(&selecting()), 0);
}
