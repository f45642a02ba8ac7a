//! Kimi delta attention and the gated delta net.

use crate::common::blocks::{delta, kda};
use crate::common::{HIDDEN, fails, fails_and_frees, reshape, sweep, with_mixer};
use lamella_program::block::{DeltaNet, Mixer};
use lamella_program::{Program, state};

fn net() -> Program {
    with_mixer(|t| Mixer::GatedDeltaNet(delta(t, 4, &[])))
}

fn channel_net() -> Program {
    with_mixer(|t| Mixer::Kda(kda(t)))
}

fn edit(p: &mut Program) -> &mut DeltaNet {
    match &mut p.layers[0].mixer.body {
        Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => d,
        _ => panic!("a delta net"),
    }
}

#[test]
fn every_operand_has_its_shape() {
    sweep(&net(), &[], &["decay_log"]);
    sweep(&channel_net(), &["decay.0"], &["decay_log"]);
}

#[test]
fn padding_of_the_decay_is_only_padding() {
    let log = |p: &mut Program, shape: &[usize]| {
        let operand = p.operands.iter_mut().find(|o| o.name == "decay_log");
        reshape(operand.expect("it is there"), shape);
    };
    fails(
        &net(),
        |p| log(p, &[3]),
        "decay_log has shape [3], needs [4]",
    );
    fails(&net(), |p| log(p, &[4, 1]), "needs [4]");
}

#[test]
fn decays_may_be_chains_of_maps() {
    for inner in [&[][..], &[2], &[2, 3, 7]] {
        let program = with_mixer(|t| Mixer::GatedDeltaNet(delta(t, 4, inner)));
        assert_eq!(lamella_program::closure::check(&program), []);
    }
    fails_and_frees(&net(), |p| edit(p).decay.clear(), "the decay has no map");
    let swapped = |p: &mut Program| edit(p).decay.swap(0, 1);
    let mut program = channel_net();
    swapped(&mut program);
    assert!(!lamella_program::closure::check(&program).is_empty());
}

#[test]
fn decays_by_channel_and_by_head_are_told_apart() {
    // Twelve decays are four heads of three channels, not four heads.
    let mut program = channel_net();
    edit(&mut program).decay_floor = None;
    assert_eq!(lamella_program::closure::check(&program), []);
    let body = edit(&mut program).clone();
    program.layers[0].mixer.body = Mixer::GatedDeltaNet(body);
    let defects = lamella_program::closure::check(&program);
    assert_eq!(defects.len(), 2, "map and bias: {defects:?}");
}

#[test]
fn numbers_agree() {
    fails(
        &net(),
        |p| edit(p).decay_floor = Some(-5.0),
        "belongs to decays by channel",
    );
    for floor in [0.0, 1.0, f32::NAN, f32::NEG_INFINITY] {
        let damage = |p: &mut Program| edit(p).decay_floor = Some(floor);
        fails(&channel_net(), damage, "is not a negative number");
    }
    fails(&net(), |p| edit(p).norm.eps = -1.0, "eps -1");
    for (program, zero) in [
        (net(), "key heads is zero"),
        (channel_net(), "key heads is zero"),
    ] {
        fails(&program, |p| edit(p).key_heads = 0, zero);
    }
    fails(&net(), |p| edit(p).value_dim = 0, "value size is zero");
    fails(&net(), |p| edit(p).key_dim = 0, "key size is zero");
    fails(
        &net(),
        |p| edit(p).key_dim = usize::MAX,
        "key heads times key size overflows",
    );
    let uneven = |p: &mut Program| {
        // Three key heads of two channels are as many queries as two of three.
        (edit(p).key_heads, edit(p).key_dim) = (3, 2);
    };
    fails(&net(), uneven, "4 value heads cannot share 3 key heads");
}

#[test]
fn state_is_what_the_recurrence_needs() {
    let (matrix, ring) = (4 * 3 * 5, 2 * (6 + 6 + 20));
    for program in [net(), channel_net()] {
        assert_eq!(state::bytes_per_token(&program), 0);
        assert_eq!(state::fixed_bytes(&program), 4 * (matrix + ring));
    }
    let long = |p: &mut Program| edit(p).convolutions[2].dilation = 2;
    let mut program = net();
    long(&mut program);
    let ring = 2 * (6 + 6 + 2 * 20);
    assert_eq!(state::fixed_bytes(&program), 4 * (matrix + ring));
    assert_eq!(program.dims.hidden, HIDDEN);
}
