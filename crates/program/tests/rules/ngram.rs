//! N-gram embeddings.

use crate::common::blocks::{convolved, gated_streams, history};
use crate::common::{VOCABULARY, fails};
use lamella_program::program::PerLayerEmbedding;
use lamella_program::{Program, state};

fn edit(p: &mut Program) -> &mut PerLayerEmbedding {
    &mut p.entry.per_layer_embeddings[0]
}

#[test]
fn tables_hold_what_the_heads_read() {
    let program = gated_streams();
    fails(
        &program,
        |p| edit(p).sizes[3] = 14,
        "14 rows from 27 on, of a table of 40",
    );
    fails(&program, |p| edit(p).sizes[0] = 0, "0 rows from 0 on");
    fails(&program, |p| edit(p).offsets[1] = u64::MAX, "9 rows from");
    fails(
        &program,
        |p| edit(p).offsets.truncate(3),
        "4 sizes and 3 offsets",
    );
    let fewer = |p: &mut Program| {
        edit(p).sizes.truncate(3);
        edit(p).offsets.truncate(3);
    };
    fails(&program, fewer, "4 heads, but 3 table sizes");
}

#[test]
fn hashes_are_defined() {
    let program = gated_streams();
    fails(
        &program,
        |p| edit(p).multipliers[1] = 8,
        "multiplier 8 is even",
    );
    let limit = (1u64 << 63) / VOCABULARY as u64;
    fails(
        &program,
        |p| edit(p).multipliers[1] = limit | 1,
        "too large",
    );
    fails(
        &program,
        |p| edit(p).multipliers.truncate(2),
        "2 multipliers for 3-grams",
    );
    let token = VOCABULARY as u32;
    fails(
        &program,
        |p| edit(p).boundary_token = token,
        "boundary token 11 of 11",
    );
    fails(
        &program,
        |p| edit(p).heads_per_ngram = 0,
        "heads per order is zero",
    );
    for ngram in [0, 1, usize::MAX] {
        let mut damaged = program.clone();
        edit(&mut damaged).ngram = ngram;
        let texts: Vec<String> = lamella_program::closure::check(&damaged)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(
            texts.iter().any(|t| t.contains("needs 2 to 64")),
            "{texts:?}"
        );
    }
}

#[test]
fn they_enter_streams_of_a_layer_once() {
    let program = gated_streams();
    fails(&program, |p| edit(p).layer = 2, "there are 2 layers");
    let twice = |p: &mut Program| {
        let again = edit(p).clone();
        p.entry.per_layer_embeddings.push(again);
    };
    fails(&program, twice, "enter twice before one layer");
    fails(
        &program,
        |p| p.boundary.needs_token_ids = false,
        "layers.1.ngram: needs token ids",
    );
    for (mut other, fits) in [(history(), false), (convolved(), true)] {
        other.boundary.needs_token_ids = true;
        let mut embedding = program.entry.per_layer_embeddings[0].clone();
        embedding.layer = 0;
        other.entry.per_layer_embeddings.push(embedding);
        let texts: Vec<String> = lamella_program::closure::check(&other)
            .iter()
            .map(ToString::to_string)
            .collect();
        let refused = texts.iter().any(|t| t.contains("no streams to enter"));
        assert_eq!(refused, !fits, "{texts:?}");
    }
}

#[test]
fn state_is_a_ring_and_the_last_token_ids() {
    let program = gated_streams();
    let ring = 2 * 3 * 3 * 8;
    let keys = state::bytes_per_token(&program);
    assert_eq!(keys, 2 * 2 * 4 * 4);
    assert_eq!(state::fixed_bytes(&program), 4 * (ring + 2));
}
