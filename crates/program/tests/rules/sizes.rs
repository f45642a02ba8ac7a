//! Numbers that no operand confirms, and programs that strangers wrote.

use crate::common::blocks::{
    block_attention, compressed, connections, convolved, gated_streams, grouped, history, kda,
    rich_attention, selecting, sharing,
};
use crate::common::{HIDDEN, fails, program_of, with_ffn, with_mixer};
use lamella_program::block::{Ffn, Mixer, Span};
use lamella_program::closure::check;
use lamella_program::{Program, state};

/// One program of every kind.
fn zoo() -> Vec<Program> {
    vec![
        with_mixer(|t| Mixer::Attention(rich_attention(t))),
        with_mixer(|t| Mixer::Attention(block_attention(t))),
        with_mixer(|t| Mixer::CompressedAttention(compressed(t))),
        with_mixer(|t| Mixer::Kda(kda(t))),
        with_ffn(|t| Ffn::Routed(grouped(t))),
        with_ffn(|t| Ffn::Routed(sharing(t))),
        history(),
        connections(),
        gated_streams(),
        selecting(),
        convolved(),
    ]
}

#[test]
fn every_kind_closes_and_survives_json() {
    for program in zoo() {
        assert_eq!(check(&program), []);
        let json = serde_json::to_string(&program).unwrap();
        assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
    }
}

#[test]
fn no_number_makes_the_check_panic_or_the_state_overflow() {
    let values = [0, 1, 3, 1 << 31, 1 << 47, i64::MAX as u64, u64::MAX];
    let mut closed = 0;
    for program in zoo() {
        let json = serde_json::to_value(&program).unwrap();
        let numbers = count(&json);
        for place in 0..numbers {
            for value in values {
                let mut damaged = json.clone();
                let mut left = place;
                replace(&mut damaged, &mut left, value);
                let Ok(damaged) = serde_json::from_value::<Program>(damaged) else {
                    continue;
                };
                let closes = check(&damaged).is_empty();
                // Sums over a program that does not close are wrong, and still no panic.
                let bytes = (
                    state::bytes_per_token(&damaged),
                    state::fixed_bytes(&damaged),
                );
                if closes {
                    closed += 1;
                    assert!(bytes.0 < 1 << 47 && bytes.1 < 1 << 47, "{bytes:?}");
                    let _ = damaged.parameters();
                }
            }
        }
    }
    assert!(closed > 1000, "{closed}");
}

/// Numbers in a document.
fn count(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Number(_) => 1,
        serde_json::Value::Array(values) => values.iter().map(count).sum(),
        serde_json::Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// Puts `new` in the place of number `left`.
fn replace(value: &mut serde_json::Value, left: &mut usize, new: u64) {
    match value {
        serde_json::Value::Number(n) => {
            if *left == 0 {
                *n = new.into();
            }
            *left = left.wrapping_sub(1);
        }
        serde_json::Value::Array(values) => {
            values.iter_mut().for_each(|v| replace(v, left, new));
        }
        serde_json::Value::Object(map) => {
            map.values_mut().for_each(|v| replace(v, left, new));
        }
        _ => {}
    }
}

#[test]
fn many_large_states_are_refused() {
    let huge = with_mixer(|t| {
        let mut a = rich_attention(t);
        a.span = Span::Sliding {
            window: (1 << 31) - 1,
        };
        Mixer::Attention(a)
    });
    // Two windows of 2³¹ rows of four values are 2³⁶ bytes, and fit.
    assert_eq!(check(&huge), []);
    let many = program_of(|t| {
        let mut layers = Vec::new();
        for index in 0..1100 {
            t.prefix = format!("layers.{index}.");
            let mut layer = crate::common::plain_layer(t);
            if let Mixer::Attention(a) = &mut layer.mixer.body {
                a.span = Span::Sliding {
                    window: (1 << 31) - 1,
                };
            }
            layers.push(layer);
        }
        layers
    });
    fails(&many, |_| {}, "bytes of state for each conversation");
}

#[test]
fn operands_can_be_counted() {
    // Each fits, all together do not.
    let mut program = convolved();
    let operand = program.operands[0].clone();
    for index in 0..3 {
        let mut large = operand.clone();
        large.name = format!("large.{index}");
        crate::common::reshape(&mut large, &[1 << 24, 1 << 23]);
        program.operands.push(large);
    }
    let texts: Vec<String> = check(&program).iter().map(ToString::to_string).collect();
    let message = "too many elements";
    assert!(texts.iter().any(|t| t.contains(message)), "{texts:?}");
}

#[test]
fn numbers_of_entry_and_exit_are_usable() {
    let program = convolved();
    for bad in [f32::NAN, f32::INFINITY] {
        fails(&program, |p| p.entry.scale = Some(bad), "entry: scale");
        fails(&program, |p| p.exit.scale = Some(bad), "exit: scale");
        fails(&program, |p| p.exit.soft_cap = Some(bad), "exit: soft cap");
    }
    fails(
        &program,
        |p| p.exit.soft_cap = Some(0.0),
        "exit: soft cap 0",
    );
    fails(
        &program,
        |p| p.dims.context = 1 << 40,
        "larger than anything",
    );
    assert_eq!(program.dims.hidden, HIDDEN);
}
