//! Attention with grouped heads.

use crate::common::blocks::{block_attention, rich_attention};
use crate::common::{fails, fails_and_frees, sweep, with_mixer};
use lamella_program::block::{Attention, Indexer, Mixer, Span};
use lamella_program::{Program, Role, state};

fn rich() -> Program {
    with_mixer(|t| Mixer::Attention(rich_attention(t)))
}

fn blocks() -> Program {
    with_mixer(|t| Mixer::Attention(block_attention(t)))
}

fn edit(p: &mut Program) -> &mut Attention {
    match &mut p.layers[0].mixer.body {
        Mixer::Attention(a) => a,
        _ => panic!("attention"),
    }
}

fn indexer(p: &mut Program) -> &mut Indexer {
    edit(p).indexer.as_mut().expect("it selects blocks")
}

#[test]
fn every_operand_has_its_shape() {
    sweep(&rich(), &["bias_projection"], &[]);
    sweep(&blocks(), &[], &[]);
}

#[test]
fn windows_hold_something() {
    let window = |window| move |p: &mut Program| edit(p).span = Span::Sliding { window };
    fails(&rich(), window(0), "window is zero");
    fails(
        &rich(),
        window(usize::MAX),
        "larger than anything could use",
    );
}

#[test]
fn numbers_agree() {
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        fails(&rich(), |p| edit(p).scale = bad, "score scale");
        fails(&rich(), |p| edit(p).clip = Some(bad), "clip");
    }
    fails(&rich(), |p| edit(p).kv_heads = 0, "key heads is zero");
    let extent = |extent| {
        move |p: &mut Program| {
            if let Some(bias) = &mut edit(p).relative_bias {
                bias.extent = extent;
            }
        }
    };
    fails(&rich(), extent(0), "extent of the relative bias is zero");
    fails(
        &rich(),
        extent(5),
        "bias_projection has shape [3, 6], needs [3, 5]",
    );
    let floor = |floor| {
        move |p: &mut Program| {
            if let Some(scaling) = &mut edit(p).position_scaling {
                scaling.floor = floor;
            }
        }
    };
    fails(&rich(), floor(0.0), "floor of the position scaling");
    fails(&rich(), floor(f64::NAN), "floor of the position scaling");
    let growth = |p: &mut Program| {
        if let Some(scaling) = &mut edit(p).position_scaling {
            scaling.alpha = f64::INFINITY;
        }
    };
    fails(&rich(), growth, "growth inf");
    let wide = |p: &mut Program| {
        if let Some(rope) = &mut edit(p).rope {
            rope.dims = 4;
        }
    };
    fails(&rich(), wide, "4 rotated channels of 2");
}

#[test]
fn what_is_read_as_values_is_held_so() {
    let role = |name: &'static str, role| {
        move |p: &mut Program| {
            let operand = p.operands.iter_mut().find(|o| o.name == name);
            operand.expect("it is there").role = role;
        }
    };
    for wrong in [Role::Linear, Role::Head, Role::Embedding, Role::Router] {
        let text = format!("bias_projection has role {wrong:?}, needs Vector or Kernel");
        fails(&rich(), role("bias_projection", wrong), &text);
    }
    for name in ["key_convolution", "value_convolution"] {
        let text = format!("{name} has role Vector, needs Kernel");
        fails(&rich(), role(name, Role::Vector), &text);
    }
}

#[test]
fn blocks_are_selected_of_everything() {
    let window = |p: &mut Program| edit(p).span = Span::Sliding { window: 4 };
    fails(&blocks(), window, "cannot both say what is visible");
    fails(&blocks(), |p| indexer(p).block = 0, "block is zero");
    fails(&blocks(), |p| indexer(p).top_k = 0, "candidates is zero");
    fails_and_frees(&blocks(), |p| indexer(p).key = None, "has no keys");
    let weighted = |p: &mut Program| {
        let gate = edit(p).query.clone();
        indexer(p).head_weights = Some(gate);
    };
    let mut program = blocks();
    weighted(&mut program);
    let texts: Vec<String> = lamella_program::closure::check(&program)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        texts.iter().any(|t| t.contains("have no weights")),
        "{texts:?}"
    );
}

#[test]
fn state_is_a_window_or_everything_with_block_keys() {
    // Keys and values of two heads of two channels in a window of four, and two rings.
    assert_eq!(state::bytes_per_token(&rich()), 0);
    assert_eq!(state::fixed_bytes(&rich()), 4 * (2 * 4 * 4 + 2 * 2 * 4));
    // A key of four channels for four tokens, and three raw ones.
    assert_eq!(state::bytes_per_token(&blocks()), 4 * (2 * 4 + 1));
    assert_eq!(state::fixed_bytes(&blocks()), 4 * 3 * 4);
}
