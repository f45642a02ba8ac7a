//! The same bits whatever the chunks, threads, instruction set, company or order.

mod common;

use common::{bits, fixtures, open, read, reference_sequence, repository};
use lamella_engine::{Cancel, Logits, Model, Options, Span};
use lamella_kernels::Isa;
use lamella_program::Encoding;
use std::sync::Arc;

/// As shipped, and in the two packs that Lamella makes. At 4 bits, experts shipped in MXFP4 stay.
const ENCODINGS: [Option<Encoding>; 3] = [None, Some(Encoding::Q8), Some(Encoding::Q4)];

fn tokens(fixture: &str) -> Vec<u32> {
    reference_sequence(&repository("fixtures").join(fixture))
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

/// Whether a case takes ten times as long as others that differ from it in the instruction set
/// alone. Packs of the portable kernels are compared at fewer chunk lengths and orders.
fn slow(fixture: &str, want: Option<Encoding>, isa: Isa) -> bool {
    !fixture.starts_with("olmoe") && want.is_some() && isa == Isa::Scalar
}

fn chunks_threads_and_instruction_sets(fixture: &str) {
    let ids = tokens(fixture);
    let olmoe = fixture.starts_with("olmoe");
    for want in ENCODINGS {
        let first = model(fixture, want, 1, Isa::Scalar);
        let mut session = first.session();
        let expected = bits(&read(&first, &mut session, &ids, usize::MAX));
        for isa in available() {
            let (threads, chunks): (&[usize], &[usize]) = match slow(fixture, want, isa) {
                true => (&[3], &[1, 64]),
                false if olmoe => (&[1, 2, 3], &[1, 3, 16, 64, usize::MAX]),
                false => (&[1, 3], &[1, 7, 64, usize::MAX]),
            };
            for &threads in threads {
                let model = model(fixture, want, threads, isa);
                for &chunk in chunks {
                    let mut session = model.session();
                    let got = bits(&read(&model, &mut session, &ids, chunk));
                    let case = format!("{fixture} {want:?} {isa} {threads} threads {chunk}");
                    assert!(got == expected, "{case}");
                }
            }
        }
    }
}

fn company_and_order(fixture: &str) {
    let ids = tokens(fixture);
    let n = ids.len();
    // Conversations of different lengths that begin differently.
    let prompts: Vec<&[u32]> = vec![
        &ids[..n * 3 / 5],
        &ids[5..6],
        &ids[n / 6..n / 2],
        &ids[3..n * 4 / 5],
    ];
    let threads: &[usize] = match fixture.starts_with("olmoe") {
        true => &[1, 2, 3],
        false => &[2],
    };
    for want in ENCODINGS {
        for isa in available() {
            let orders = match slow(fixture, want, isa) {
                true => &ORDERS[1..2],
                false => &ORDERS[..],
            };
            for &threads in threads {
                let model = model(fixture, want, threads, isa);
                let case = format!("{fixture} {want:?} {isa} {threads}");
                company(&model, &prompts, orders, &case);
            }
        }
    }
}

/// In which order conversations stand in a batch.
const ORDERS: [[usize; 4]; 3] = [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]];

/// Prompts alone and together, in several orders.
fn company(model: &Model, prompts: &[&[u32]], orders: &[[usize; 4]], case: &str) {
    let alone: Vec<Vec<u32>> = prompts
        .iter()
        .map(|p| {
            let mut session = model.session();
            bits(&read(model, &mut session, p, usize::MAX))
        })
        .collect();
    for &order in orders {
        let together = batched(model, prompts, order);
        for (i, expected) in alone.iter().enumerate() {
            assert!(together[i] == *expected, "{case} prompt {i}");
        }
    }
}

/// Both properties for a family's fixtures.
macro_rules! families {
    ($($family:ident: $($fixture:literal),*;)*) => {
        $(#[test]
        fn $family() {
            for fixture in [$($fixture),*] {
                chunks_threads_and_instruction_sets(fixture);
                company_and_order(fixture);
            }
        })*

        #[test]
        fn every_fixture_is_compared() {
            let mut named = vec![$($($fixture),*),*];
            named.sort_unstable();
            assert_eq!(named, fixtures());
        }
    };
}

families! {
    olmoe: "olmoe-101", "olmoe-202";
    glm: "glm-101", "glm-404";
    inkling: "inkling-101", "inkling-nvfp4-303";
    kimi_k3: "kimi_k3-101", "kimi_k3-bf16-404";
    qwen36: "qwen36-101", "qwen36fp8-707", "qwen35dense-303", "qwen3next-505";
    qwen38: "qwen38-111", "qwen38fp8-777";
    deepseek_v4: "deepseek_v4-101", "deepseek_v4-303";
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
