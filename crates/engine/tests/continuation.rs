//! Continuation state in pages and row by row: the same bits through prompt, resumption and
//! decoding, for every family and both backends.

mod common;

use common::{FAMILIES, open, reference_sequence, repository};
use lamella_engine::generate::{GenerateOptions, LogitsSession, continue_session, generate};
use lamella_engine::{
    BackendKind, Cancel, Error, Model, ModelSession, Options, RowState, Session, StateRef,
};
use std::ops::ControlFlow;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// State of either kind, where a test keeps it.
enum State {
    Paged(Session),
    Rows(RowState),
}

impl State {
    fn both(model: &Model) -> [State; 2] {
        [
            State::Paged(model.session()),
            State::Rows(model.row_state().expect("memory")),
        ]
    }

    fn to(&mut self) -> StateRef<'_> {
        match self {
            State::Paged(session) => session.into(),
            State::Rows(rows) => rows.into(),
        }
    }

    fn position(&self) -> usize {
        match self {
            State::Paged(session) => session.position(),
            State::Rows(rows) => rows.position(),
        }
    }
}

#[test]
fn rows_and_pages_give_the_same_bits() {
    for fixture in FAMILIES {
        let dir = repository("fixtures").join(fixture);
        let ids = reference_sequence(&dir);
        for backend in [BackendKind::Cpu, BackendKind::Reference] {
            let options = Options {
                backend,
                ..Options::default()
            };
            let model = open(&dir, &options);
            let whole = ModelSession::new(model.clone(), 0, Cancel::new());
            let mut whole = whole.expect("session");
            let (prompt, rest) = ids.split_at(ids.len() - 5);
            let expected = bits(whole.prefill(prompt).expect("prefill"));
            for mut state in State::both(&model) {
                let name = || format!("{fixture}, {}", backend.name());
                // In chunks, each call picking up where the last one was.
                let mut logits = Vec::new();
                for chunk in prompt.chunks(prompt.len().div_ceil(3)) {
                    logits = model.prefill_into(chunk, state.to()).expect("prefill");
                }
                assert_eq!(bits(&logits), expected, "{}", name());
                assert_eq!(state.position(), prompt.len());
            }
            let mut states = State::both(&model);
            for state in &mut states {
                model.prefill_into(prompt, state.to()).expect("prefill");
            }
            for (nth, &id) in rest.iter().enumerate() {
                let expected = bits(whole.step(id).expect("step"));
                for state in &mut states {
                    let mut session = model.session_with_state(state.to()).expect("state");
                    assert_eq!(session.position(), prompt.len() + nth);
                    let logits = bits(session.step(id).expect("step"));
                    assert_eq!(logits, expected, "{fixture}, {}, {nth}", backend.name());
                }
            }
        }
    }
}

#[test]
fn a_step_that_fails_leaves_the_rows_alone() {
    for fixture in FAMILIES {
        let dir = repository("fixtures").join(fixture);
        let ids = reference_sequence(&dir);
        let model = open(&dir, &Options::default());
        let mut rows = model.row_state().expect("memory");
        model.prefill_into(&ids[..7], &mut rows).expect("prefill");
        let before = rows.clone();
        let cancel = Cancel::new();
        cancel.cancel();
        let session = model.session_with_state(&mut rows).expect("state");
        let result = session.with_cancel(cancel).prefill(&ids[7..9]).map(|_| ());
        assert!(matches!(result, Err(Error::Cancelled)), "{fixture}");
        assert_eq!(rows.position(), 7);
        let mut other = before;
        let expected = model.prefill_into(&ids[7..12], &mut other).expect("on");
        let logits = model.prefill_into(&ids[7..12], &mut rows).expect("on");
        assert_eq!(bits(&logits), bits(&expected), "{fixture}");
    }
}

#[test]
fn rows_are_those_of_the_program() {
    let model = open(
        &repository("fixtures").join("olmoe-101"),
        &Options::default(),
    );
    let ids = reference_sequence(&repository("fixtures").join("olmoe-101"));
    let mut rows = model.row_state().expect("memory");
    assert_eq!(
        (rows.position(), rows.context()),
        (0, model.report().context)
    );
    model.prefill_into(&ids[..9], &mut rows).expect("prefill");
    let keys = rows.rows(0, "key").expect("keys");
    assert_eq!((keys.first, keys.values.len()), (0, 9 * keys.width));
    // The reference backend keeps the same numbers, computed another way and laid out otherwise.
    let options = Options {
        backend: BackendKind::Reference,
        ..Options::default()
    };
    let reference = open(&repository("fixtures").join("olmoe-101"), &options);
    let mut other = reference.row_state().expect("memory");
    reference
        .prefill_into(&ids[..9], &mut other)
        .expect("prefill");
    for name in ["key", "value"] {
        let [a, b] = [&rows, &other].map(|state| state.rows(0, name).expect(name).values);
        assert_eq!(a.len(), b.len());
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
        assert!(a.iter().zip(b).all(near), "{name}");
        assert!(a.iter().any(|&x| x != 0.0), "{name}");
    }
    assert!(rows.rows(0, "no such").is_none() && rows.overwritten(0, "key").is_none());
    let foreign = reference.session_with_state(&mut rows).map(|_| ());
    assert!(matches!(foreign, Err(Error::ForeignSession)));
    let foreign = model
        .session_with_state(&mut reference.session())
        .map(|_| ());
    assert!(matches!(foreign, Err(Error::ForeignSession)));
}

#[test]
fn answers_continue_from_logits() {
    let dir = repository("fixtures").join("qwen36-101");
    let model = open(&dir, &Options::default());
    let ids = reference_sequence(&dir);
    let prompt = &ids[..6];
    let options = GenerateOptions {
        max_tokens: 8,
        ..GenerateOptions::default()
    };
    let (mut expected, mut session) = (
        Vec::new(),
        ModelSession::new(model.clone(), 0, Cancel::new()).expect("session"),
    );
    let whole = generate(&mut session, prompt, &options, &mut |token| {
        expected.push(token.id);
        ControlFlow::Continue(())
    });
    let whole = whole.expect("answer");
    let options = GenerateOptions {
        earlier: prompt.to_vec(),
        ..options
    };
    for mut state in State::both(&model) {
        let logits = model.prefill_into(prompt, state.to()).expect("prefill");
        let mut answer = Vec::new();
        let mut session = model.session_with_state(state.to()).expect("state");
        let finish = continue_session(&mut session, &logits, &options, &mut |token| {
            answer.push(token.id);
            ControlFlow::Continue(())
        });
        let finish = finish.expect("answer");
        assert_eq!(answer, expected);
        assert_eq!(finish.reason, whole.reason);
        assert_eq!(finish.decoded_tokens, whole.decoded_tokens);
        assert_eq!(state.position(), prompt.len() + finish.decoded_tokens);
        let short = model.session_with_state(state.to()).expect("state");
        let mut short = short;
        let result = continue_session(&mut short, &logits[1..], &options, &mut |_| {
            ControlFlow::Continue(())
        });
        assert!(result.is_err(), "logits of another vocabulary");
    }
}
