//! The same bits whatever the chunks, threads, instruction set, company or order.

mod common;

use common::{bits, open, read, reference_ids, repository};
use lamella_engine::{Cancel, Logits, Model, Options, Span};
use lamella_kernels::Isa;
use lamella_program::Encoding;
use std::sync::Arc;

const ENCODINGS: [Option<Encoding>; 3] = [None, Some(Encoding::Q8), Some(Encoding::Q4)];

/// Two models, so that both even and odd, grouped and ungrouped geometry is covered.
const FIXTURES: [&str; 2] = ["olmoe-101", "olmoe-202"];

fn tokens(fixture: &str) -> Vec<u32> {
    reference_ids(
        &repository("fixtures").join(fixture).join("ref.json"),
        "full_ids",
    )
}

fn model(fixture: &str, want: Option<Encoding>, threads: usize, isa: Isa) -> Arc<Model> {
    // Pieces of 48 rows, so that longer steps are cut inside the engine too.
    let options = Options {
        want,
        threads: Some(threads),
        isa: Some(isa),
        step_rows: 48,
        ..Options::default()
    };
    open(&repository("fixtures").join(fixture), &options)
}

fn available() -> Vec<Isa> {
    Isa::ALL
        .into_iter()
        .filter(|isa| isa.is_available())
        .collect()
}

#[test]
fn chunks_threads_and_instruction_sets_give_the_same_bits() {
    for fixture in FIXTURES {
        let ids = tokens(fixture);
        for want in ENCODINGS {
            let first = model(fixture, want, 1, Isa::Scalar);
            let mut session = first.session();
            let expected = bits(&read(&first, &mut session, &ids, usize::MAX));
            for isa in available() {
                for threads in [1, 2, 3] {
                    let model = model(fixture, want, threads, isa);
                    for chunk in [1, 3, 16, 64, usize::MAX] {
                        let mut session = model.session();
                        let got = bits(&read(&model, &mut session, &ids, chunk));
                        let case = format!("{fixture} {want:?} {isa} {threads} threads {chunk}");
                        assert!(got == expected, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn company_and_order_change_nothing() {
    for fixture in FIXTURES {
        let ids = tokens(fixture);
        // Conversations of different lengths that begin differently.
        let prompts: Vec<&[u32]> = vec![&ids[..70], &ids[5..6], &ids[20..53], &ids[3..90]];
        for want in ENCODINGS {
            for isa in available() {
                let model = model(fixture, want, 2, isa);
                let alone: Vec<Vec<u32>> = prompts
                    .iter()
                    .map(|p| {
                        let mut session = model.session();
                        bits(&read(&model, &mut session, p, usize::MAX))
                    })
                    .collect();
                for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
                    let together = batched(&model, &prompts, order);
                    for (i, expected) in alone.iter().enumerate() {
                        assert!(
                            together[i] == *expected,
                            "{fixture} {want:?} {isa} prompt {i}"
                        );
                    }
                }
            }
        }
    }
}

/// All prompts in one batch, some prefilling in chunks while others decode token by token.
fn batched(model: &Model, prompts: &[&[u32]], order: [usize; 4]) -> Vec<Vec<u32>> {
    const CHUNKS: [usize; 4] = [17, 1, 1, 30];
    let mut sessions: Vec<_> = prompts.iter().map(|_| Some(model.session())).collect();
    let mut logits: Vec<Vec<f32>> = vec![Vec::new(); prompts.len()];
    let mut done = [0; 4];
    while done.iter().zip(prompts).any(|(d, p)| *d < p.len()) {
        let turn: Vec<usize> = order
            .into_iter()
            .filter(|&i| done[i] < prompts[i].len())
            .collect();
        let mut taken: Vec<_> = turn
            .iter()
            .map(|&i| sessions[i].take().expect("session"))
            .collect();
        let mut outs: Vec<Vec<f32>> = vec![Vec::new(); turn.len()];
        let mut spans: Vec<Span<'_>> = taken
            .iter_mut()
            .zip(&mut outs)
            .zip(&turn)
            .map(|((session, out), &i)| {
                let end = prompts[i].len().min(done[i] + CHUNKS[i]);
                Span {
                    session,
                    tokens: &prompts[i][done[i]..end],
                    logits: Logits::All,
                    out,
                }
            })
            .collect();
        model.step(&mut spans, &Cancel::new()).expect("step");
        let lengths: Vec<usize> = spans.iter().map(|s| s.tokens.len()).collect();
        drop(spans);
        for ((&i, session), (out, n)) in turn.iter().zip(taken).zip(outs.iter().zip(lengths)) {
            sessions[i] = Some(session);
            logits[i].extend_from_slice(out);
            done[i] += n;
        }
    }
    logits.iter().map(|l| bits(l)).collect()
}
