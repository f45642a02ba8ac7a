//! The same bits whatever the chunks, threads, instruction set, company or order.

mod common;

use common::{bits, open, read, reference_sequence, repository};
use lamella_engine::{Cancel, Logits, Model, Options, Span};
use lamella_kernels::Isa;
use lamella_program::Encoding;
use std::sync::Arc;

/// Every encoding for two models, so that both even and odd, grouped and ungrouped geometry is
/// covered; for the others the shipped one and the one with the coarsest inputs.
fn encodings(fixture: &str) -> &'static [Option<Encoding>] {
    const ALL: &[Option<Encoding>] = &[None, Some(Encoding::Q8), Some(Encoding::Q4)];
    match fixture {
        "olmoe-101" | "olmoe-202" => ALL,
        _ => &[None, Some(Encoding::Q4)],
    }
}

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

fn chunks_threads_and_instruction_sets(fixture: &str) {
    let ids = tokens(fixture);
    let olmoe = fixture.starts_with("olmoe");
    let (threads, chunks): (&[usize], &[usize]) = match olmoe {
        true => (&[1, 2, 3], &[1, 3, 16, 64, usize::MAX]),
        false => (&[1, 3], &[1, 7, 64, usize::MAX]),
    };
    for &want in encodings(fixture) {
        let first = model(fixture, want, 1, Isa::Scalar);
        let mut session = first.session();
        let expected = bits(&read(&first, &mut session, &ids, usize::MAX));
        for isa in available() {
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
    for &want in encodings(fixture) {
        for isa in available() {
            for &threads in threads {
                let model = model(fixture, want, threads, isa);
                company(
                    &model,
                    &prompts,
                    &format!("{fixture} {want:?} {isa} {threads}"),
                );
            }
        }
    }
}

/// Prompts alone and together, in several orders.
fn company(model: &Model, prompts: &[&[u32]], case: &str) {
    let alone: Vec<Vec<u32>> = prompts
        .iter()
        .map(|p| {
            let mut session = model.session();
            bits(&read(model, &mut session, p, usize::MAX))
        })
        .collect();
    for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
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
    };
}

families! {
    olmoe: "olmoe-101", "olmoe-202";
    glm: "glm-101", "glm-303";
    inkling: "inkling-101", "inkling-nvfp4-303";
    kimi_k3: "kimi_k3-101", "kimi_k3-bf16-303";
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
