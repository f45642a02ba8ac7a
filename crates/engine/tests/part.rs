//! A chain of parts computes the bits of the whole model, and a part reads nothing of the others.

mod common;

use common::{FAMILIES, bits, open, read, reference_sequence, repository};
use lamella_engine::{BackendKind, Cancel, Error, Logits, Model, Options, Part, RowSpan, Span};
use std::ops::Range;
use std::sync::Arc;

fn open_part(fixture: &str, part: Part, backend: BackendKind) -> Arc<Model> {
    let options = Options {
        threads: Some(2),
        step_rows: 24,
        backend,
        part,
        ..Options::default()
    };
    open(&repository("fixtures").join(fixture), &options)
}

/// Sends tokens through a chain; the logits of all of them.
fn through(ends: &Model, chain: &[Arc<Model>], ids: &[u32], chunk: usize) -> Vec<f32> {
    let cancel = Cancel::new();
    let mut sessions: Vec<_> = chain.iter().map(|model| model.session()).collect();
    let mut logits = Vec::new();
    for tokens in ids.chunks(chunk) {
        let mut rows = Vec::new();
        ends.embed(tokens, &mut rows, &cancel).expect("embed");
        for (model, session) in chain.iter().zip(&mut sessions) {
            let span = RowSpan {
                session,
                tokens,
                input: &rows,
            };
            let mut out = [Vec::new()];
            model
                .step_rows(vec![span], &mut out, &cancel)
                .expect("step");
            [rows] = out;
        }
        let before = logits.len();
        ends.logits(&rows, &mut logits, &cancel).expect("logits");
        let mut selected = Vec::new();
        ends.select(&rows, &mut selected, &cancel).expect("select");
        let expected = logits[before..].chunks_exact(ends.vocabulary()).map(|row| {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let id = row.iter().position(|&v| v == most).expect("it is there");
            (id as u32, most)
        });
        assert!(expected.eq(selected));
    }
    logits
}

#[test]
fn every_split_gives_the_bits_of_the_whole() {
    for fixture in FAMILIES {
        splits(fixture, BackendKind::Cpu, 1);
    }
}

#[test]
fn splits_of_the_reference_backend_give_its_bits() {
    for fixture in ["glm-101", "kimi_k3-101", "deepseek_v4-101"] {
        splits(fixture, BackendKind::Reference, 3);
    }
}

/// Two-way splits at every `step`th layer, and one three-way split.
fn splits(fixture: &str, backend: BackendKind, step: usize) {
    let ids = reference_sequence(&repository("fixtures").join(fixture));
    let ids = match backend {
        BackendKind::Cpu => &ids[..],
        BackendKind::Reference => &ids[..ids.len().min(40)],
    };
    let whole = open_part(fixture, Part::Whole, backend);
    let expected = bits(&read(&whole, &mut whole.session(), ids, ids.len()));
    let ends = open_part(fixture, Part::Ends, backend);
    let layers = whole.program().layers.len();
    let part = |a, b| open_part(fixture, Part::Layers(a..b), backend);
    let full = [part(0, layers)];
    assert!(
        bits(&through(&ends, &full, ids, 17)) == expected,
        "{fixture}"
    );
    for at in (1..layers).step_by(step) {
        let chain = [part(0, at), part(at, layers)];
        let got = through(&ends, &chain, ids, 31);
        assert!(bits(&got) == expected, "{fixture} split at {at}");
        for model in chain.iter().chain([&ends]) {
            assert_eq!(model.numeric_class(), whole.numeric_class());
            assert!(model.report().resident_bytes < whole.report().resident_bytes);
        }
    }
    let (a, b) = (layers / 3, 2 * layers / 3);
    if 0 < a && a < b {
        let chain = [part(0, a), part(a, b), part(b, layers)];
        let got = through(&ends, &chain, ids, 1);
        assert!(bits(&got) == expected, "{fixture} in three");
    }
}

#[test]
fn the_parts_hold_each_operand_once() {
    for fixture in FAMILIES {
        let sum = |part| {
            open_part(fixture, part, BackendKind::Cpu)
                .report()
                .resident_bytes
        };
        let whole = open_part(fixture, Part::Whole, BackendKind::Cpu);
        let layers = whole.program().layers.len();
        let parts = [Part::Ends, Part::Layers(0..1), Part::Layers(1..layers)];
        let total: u64 = parts.into_iter().map(sum).sum();
        // What several layers share (an n-gram table) is held by each part that uses it.
        assert!(total >= whole.report().resident_bytes, "{fixture}");
        if fixture != "qwen38-111" {
            assert_eq!(total, whole.report().resident_bytes, "{fixture}");
        }
    }
}

#[test]
fn snapshots_of_a_part_belong_to_that_part() {
    let part = |range| open_part("qwen36-101", Part::Layers(range), BackendKind::Cpu);
    let (first, second) = (part(0..4), part(4..8));
    let width = first.program().row_width();
    let run = |model: &Model, session: &mut _, tokens: &[u32]| {
        let input: Vec<f32> = (0..tokens.len() * width).map(|i| (i % 7) as f32).collect();
        let span = RowSpan {
            session,
            tokens,
            input: &input,
        };
        let mut out = [Vec::new()];
        model
            .step_rows(vec![span], &mut out, &Cancel::new())
            .expect("step");
        bits(&out[0])
    };
    let mut session = first.session();
    run(&first, &mut session, &[1, 2, 3]);
    let mut stream = Vec::new();
    first.snapshot(&session, &mut stream).expect("snapshot");
    let mut other = second.session();
    let error = second.restore(&mut other, &mut &stream[..]).unwrap_err();
    assert!(error.to_string().contains("another"), "{error}");
    let again = part(0..4);
    let mut restored = again.session();
    again
        .restore(&mut restored, &mut &stream[..])
        .expect("restore");
    assert_eq!(
        run(&again, &mut restored, &[4, 5]),
        run(&first, &mut session, &[4, 5])
    );
}

/// Sends one row through a new session; a failure leaves session and output as they were.
fn step_one(model: &Model, input: &[f32]) -> Result<(), Error> {
    let mut session = model.session();
    let span = RowSpan {
        session: &mut session,
        tokens: &[1],
        input,
    };
    let mut out = [vec![1.0]];
    let result = model.step_rows(vec![span], &mut out, &Cancel::new());
    assert!(result.is_ok() || out[0].is_empty() || out[0] == [1.0]);
    assert!(result.is_ok() || session.position() == 0);
    result
}

#[test]
fn a_part_refuses_what_it_cannot_do() {
    let model = open_part("glm-101", Part::Layers(1..2), BackendKind::Cpu);
    let ends = open_part("glm-101", Part::Ends, BackendKind::Cpu);
    let cancel = Cancel::new();
    let mut out = Vec::new();
    let mut session = model.session();
    let span = Span {
        session: &mut session,
        tokens: &[1],
        logits: Logits::Last,
        out: &mut out,
    };
    let error = model.step(&mut [span], &cancel).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("layers 1..2"), "{text}");
    assert!(matches!(
        model.embed(&[1], &mut out, &cancel),
        Err(Error::Part { .. })
    ));
    assert!(matches!(
        model.logits(&[], &mut out, &cancel),
        Err(Error::Part { .. })
    ));
    assert!(matches!(step_one(&ends, &[]), Err(Error::Part { .. })));
    let reversed = Range { start: 5, end: 2 };
    for range in [1..1, 0..99, reversed] {
        let options = Options {
            part: Part::Layers(range.clone()),
            ..Options::default()
        };
        let result = Model::open(&repository("fixtures/glm-101"), &options, &mut |_| {});
        assert!(matches!(result, Err(Error::Setting { .. })), "{range:?}");
    }
}

#[test]
fn rows_that_cannot_be_are_refused() {
    let model = open_part("glm-101", Part::Layers(1..2), BackendKind::Cpu);
    let width = model.program().row_width();
    assert!(width > model.program().boundary.width, "positions pass too");
    let row = |count: f32, first: f32| {
        let mut row = vec![0.5; width];
        row[model.program().boundary.width] = count;
        row[model.program().boundary.width + 1..].fill(first);
        row
    };
    step_one(&model, &row(1.0, 0.0)).expect("position 0 sees itself");
    step_one(&model, &row(-1.0, 0.0)).expect("or everything");
    for (count, first) in [
        (0.0, 0.0),
        (1.0, 1.0),
        (2.0, 0.0),
        (0.5, 0.0),
        (-2.0, 0.0),
        (1e9, 0.0),
        (1.0, -1.0),
        (1.0, 0.5),
    ] {
        let result = step_one(&model, &row(count, first));
        assert!(
            matches!(result, Err(Error::Rows { row: 0 })),
            "{count} {first}"
        );
    }
    let mut bad = row(-1.0, 0.0);
    bad[0] = f32::NAN;
    assert!(matches!(
        step_one(&model, &bad),
        Err(Error::NonFinite { .. })
    ));
    assert!(matches!(
        step_one(&model, &bad[1..]),
        Err(Error::Activations { .. })
    ));
}
