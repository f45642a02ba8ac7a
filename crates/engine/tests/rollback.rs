//! Failed, cancelled and rolled-back steps leave a conversation as it was.

mod common;

use common::{bits, fixtures, open, read, reference_sequence, repository};
use lamella_engine::{Cancel, Error, Logits, Model, Observer, Options, Session, Span};
use lamella_program::Encoding;
use std::sync::Arc;

fn model() -> (Arc<Model>, Vec<u32>) {
    open_fixture("olmoe-101")
}

fn open_fixture(fixture: &str) -> (Arc<Model>, Vec<u32>) {
    open_encoded(fixture, None)
}

fn open_encoded(fixture: &str, want: Option<Encoding>) -> (Arc<Model>, Vec<u32>) {
    let dir = repository("fixtures").join(fixture);
    let options = Options {
        want,
        threads: Some(2),
        ..Options::default()
    };
    (open(&dir, &options), reference_sequence(&dir))
}

/// Raises the flag after one layer.
struct CancelAfter {
    layer: usize,
    cancel: Cancel,
}

impl Observer for CancelAfter {
    fn layer(&mut self, layer: usize, _: usize, _: usize, _: &[f32]) -> Result<(), Error> {
        if layer == self.layer {
            self.cancel.cancel();
        }
        Ok(())
    }
}

fn step(
    model: &Model,
    session: &mut Session,
    tokens: &[u32],
    cancel: &Cancel,
) -> Result<Vec<f32>, Error> {
    let mut out = vec![1.0];
    let span = Span {
        session,
        tokens,
        logits: Logits::All,
        out: &mut out,
    };
    model.step(&mut [span], cancel)?;
    Ok(out)
}

#[test]
fn a_step_cancelled_at_any_layer_boundary_changes_nothing() {
    for fixture in fixtures() {
        // As shipped, and in the packs that Lamella makes.
        for want in [None, Some(Encoding::Q8), Some(Encoding::Q4)] {
            cancelled_at_any_boundary(&fixture, want);
        }
    }
}

fn cancelled_at_any_boundary(fixture: &str, want: Option<Encoding>) {
    let (model, ids) = open_encoded(fixture, want);
    let ids = &ids[..80.min(ids.len())];
    let expected = bits(&read(&model, &mut model.session(), ids, 20));
    let layers = model.program().layers.len();
    // Another conversation in the same batch, which is far from its end.
    let (mut session, mut companion) = (model.session(), model.session());
    let _ = read(&model, &mut companion, &ids[..7], 7);
    let mut got = Vec::new();
    for (turn, tokens) in ids.chunks(20).enumerate() {
        // A long attempt needs pages the session does not have yet.
        let attempts = [&ids[10..], tokens];
        for layer in 0..layers {
            for attempt in attempts {
                let case = format!("{fixture} {want:?} turn {turn} layer {layer}");
                let cancel = Cancel::new();
                let mut observer = CancelAfter {
                    layer,
                    cancel: cancel.clone(),
                };
                let bytes = [&session, &companion].map(Session::state_bytes);
                let mut outs = [vec![1.0], vec![1.0]];
                let sessions = [&mut session, &mut companion].into_iter();
                let sessions = sessions.zip(&mut outs).zip([attempt, &ids[7..16]]);
                let mut spans: Vec<Span<'_>> = sessions
                    .map(|((session, out), tokens)| Span {
                        session,
                        tokens,
                        logits: Logits::All,
                        out,
                    })
                    .collect();
                let result = model.step_observed(&mut spans, &cancel, &mut observer);
                assert!(matches!(result, Err(Error::Cancelled)), "{case}");
                assert!(outs.iter().all(Vec::is_empty), "{case}");
                let positions = [&session, &companion].map(Session::position);
                assert_eq!(positions, [turn * 20, 7], "{case}");
                let after = [&session, &companion].map(Session::state_bytes);
                assert_eq!(after, bytes, "{case}");
            }
        }
        got.extend(step(&model, &mut session, tokens, &Cancel::new()).expect("step"));
    }
    assert!(bits(&got) == expected, "{fixture} {want:?}");
    let got = bits(&read(&model, &mut companion, &ids[7..], 20));
    let before = 7 * model.vocabulary();
    assert!(got == expected[before..], "{fixture} {want:?} companion");
}

#[test]
fn checkpoints_bring_every_family_back() {
    for fixture in fixtures() {
        let (model, ids) = open_fixture(&fixture);
        let mut session = model.session();
        let vocabulary = model.vocabulary();
        let expected = bits(&read(&model, &mut session, &ids, usize::MAX));
        assert_eq!(session.rewind(0), 0);
        for keep in [0, 1, 7, 40] {
            let from = session.position();
            let _ = read(&model, &mut session, &ids[from..keep], 5);
            let mark = session.checkpoint().expect("memory");
            for length in [1, 3, 20] {
                let _ = read(&model, &mut session, &ids[keep..keep + length], 2);
                session.restore(&mark).expect("restore");
                assert_eq!(session.position(), keep);
            }
            let end = keep + 20;
            let got = bits(&read(&model, &mut session, &ids[keep..end], 3));
            assert!(
                got == expected[keep * vocabulary..end * vocabulary],
                "{fixture} from {keep}"
            );
            session.restore(&mark).expect("restore");
        }
        assert_eq!(session.rewind(0), 0);
        assert!(matches!(
            session.restore(&model_mark(&model, &ids)),
            Err(Error::Irreversible { .. })
        ));
    }
}

/// A mark that another session made further on.
fn model_mark(model: &Model, ids: &[u32]) -> lamella_engine::Checkpoint {
    let mut session = model.session();
    let _ = read(model, &mut session, &ids[..9], 9);
    session.checkpoint().expect("memory")
}

#[test]
fn recurrent_state_goes_back_to_the_start_only() {
    let (model, ids) = open_fixture("qwen36-101");
    let mut session = model.session();
    let expected = bits(&read(&model, &mut session, &ids[..30], usize::MAX));
    assert!(matches!(
        session.truncate(10),
        Err(Error::Irreversible {
            wanted: 10,
            position: 30
        })
    ));
    assert_eq!((session.position(), session.rewind(10)), (30, 0));
    assert!(bits(&read(&model, &mut session, &ids[..30], 11)) == expected);
    session.truncate(0).expect("the start");
}

#[test]
fn a_raised_flag_stops_a_step_before_it_begins() {
    let (model, ids) = model();
    let mut session = model.session();
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(matches!(
        step(&model, &mut session, &ids, &cancel),
        Err(Error::Cancelled)
    ));
    cancel.reset();
    assert!(step(&model, &mut session, &ids, &cancel).is_ok());
}

#[test]
fn truncation_and_reading_again_gives_the_same_bits() {
    let (model, ids) = model();
    let mut session = model.session();
    let expected = bits(&read(&model, &mut session, &ids[..100], usize::MAX));
    let vocabulary = model.vocabulary();
    for keep in [99, 64, 63, 17, 0] {
        session.truncate(keep).expect("rollback");
        let got = bits(&read(&model, &mut session, &ids[keep..100], 7));
        assert!(got == expected[keep * vocabulary..], "kept {keep}");
    }
    assert!(matches!(
        session.truncate(101),
        Err(Error::Rollback {
            wanted: 101,
            position: 100
        })
    ));
}

#[test]
fn bad_steps_are_refused_by_name_and_change_nothing() {
    let (model, ids) = model();
    let mut session = model.session();
    step(&model, &mut session, &ids[..5], &Cancel::new()).expect("step");
    let none = step(&model, &mut session, &[], &Cancel::new());
    assert!(matches!(none, Err(Error::EmptySpan)));
    let range = step(&model, &mut session, &[1, 197], &Cancel::new());
    assert!(matches!(
        range,
        Err(Error::TokenRange {
            id: 197,
            index: 1,
            vocabulary: 197
        })
    ));
    let long = step(&model, &mut session, &[1; 4092], &Cancel::new());
    assert!(matches!(
        long,
        Err(Error::ContextLength {
            position: 5,
            tokens: 4092,
            context: 4096
        })
    ));
    let (other, _) = self::model();
    let foreign = step(&other, &mut session, &ids[5..6], &Cancel::new());
    assert!(matches!(foreign, Err(Error::ForeignSession)));
    assert_eq!(session.position(), 5);
}

#[test]
fn a_failing_span_spoils_the_whole_batch_and_nothing_else() {
    let (model, ids) = model();
    let (mut a, mut b) = (model.session(), model.session());
    let (mut out_a, mut out_b) = (Vec::new(), Vec::new());
    let spans = &mut [
        Span {
            session: &mut a,
            tokens: &ids[..9],
            logits: Logits::Last,
            out: &mut out_a,
        },
        Span {
            session: &mut b,
            tokens: &[9999],
            logits: Logits::Last,
            out: &mut out_b,
        },
    ];
    assert!(matches!(
        model.step(spans, &Cancel::new()),
        Err(Error::TokenRange { .. })
    ));
    assert_eq!((a.position(), b.position()), (0, 0));
    assert!(out_a.is_empty());
}

/// Keeps what enters one layer.
struct Keep {
    layer: usize,
    hidden: Vec<f32>,
}

impl Observer for Keep {
    fn layer(&mut self, layer: usize, _: usize, _: usize, hidden: &[f32]) -> Result<(), Error> {
        if layer == self.layer {
            self.hidden.extend_from_slice(hidden);
        }
        Ok(())
    }
}

#[test]
fn a_run_resumed_at_a_layer_ends_in_the_same_bits() {
    let (model, ids) = model();
    let ids = &ids[..33];
    let mut session = model.session();
    let expected = bits(&read(&model, &mut session, ids, usize::MAX));
    for layer in 0..model.program().layers.len() {
        let mut keep = Keep {
            layer,
            hidden: Vec::new(),
        };
        let mut session = model.session();
        let mut out = Vec::new();
        let span = Span {
            session: &mut session,
            tokens: ids,
            logits: Logits::None,
            out: &mut out,
        };
        model
            .step_observed(&mut [span], &Cancel::new(), &mut keep)
            .expect("step");
        let mut resumed = model.session();
        let span = Span {
            session: &mut resumed,
            tokens: ids,
            logits: Logits::All,
            out: &mut out,
        };
        model
            .step_from_layer(span, layer + 1, &keep.hidden, &Cancel::new(), None)
            .expect("resumed step");
        assert!(bits(&out) == expected, "resumed after layer {layer}");
    }
    let mut session = model.session();
    let mut out = Vec::new();
    let span = Span {
        session: &mut session,
        tokens: ids,
        logits: Logits::All,
        out: &mut out,
    };
    let result = model.step_from_layer(span, 1, &[0.0; 3], &Cancel::new(), None);
    assert!(matches!(
        result,
        Err(Error::Activations {
            rows: 33,
            width: 64,
            values: 3
        })
    ));
}

#[test]
fn a_memory_limit_is_met_to_the_byte() {
    let dir = repository("fixtures/olmoe-101");
    let opens = |limit: u64| {
        let options = Options {
            memory_limit: Some(limit),
            threads: Some(1),
            ..Options::default()
        };
        Model::open(&dir, &options, &mut |_| {})
    };
    let (mut too_little, mut enough) = (0, 1 << 32);
    while enough - too_little > 1 {
        let middle = (enough + too_little) / 2;
        if opens(middle).is_ok() {
            enough = middle
        } else {
            too_little = middle
        }
    }
    let error = opens(enough - 1)
        .err()
        .expect("one byte less is refused")
        .to_string();
    assert!(error.contains(&format!("= {enough} bytes")), "{error}");
}

#[test]
fn the_last_step_of_every_family_can_be_taken_back() {
    for fixture in fixtures() {
        let (model, ids) = open_fixture(&fixture);
        let mut session = model.session();
        let expected = bits(&read(&model, &mut session, &ids, usize::MAX));
        let vocabulary = model.vocabulary();
        assert_eq!(session.rewind(0), 0);
        assert!(session.undo().is_err(), "there is no step to take back");
        let mut position = 0;
        for (length, ahead) in [(9, 1), (1, 5), (20, 16), (1, 1), (30, 12)] {
            let end = position + length;
            let got = bits(&read(&model, &mut session, &ids[position..end], usize::MAX));
            assert!(
                got == expected[position * vocabulary..end * vocabulary],
                "{fixture}"
            );
            // Wrong tokens, all of them taken back at once, as often as it happens.
            for turn in 0..2 {
                let wrong: Vec<u32> = ids[turn..turn + ahead].to_vec();
                let _ = read(&model, &mut session, &wrong, usize::MAX);
                session.undo().expect("the step was the last thing");
                assert_eq!(session.position(), end, "{fixture}");
                assert!(session.undo().is_err(), "only one step");
            }
            position = end;
        }
        // A step that fails has used the second copy.
        let _ = read(&model, &mut session, &ids[position..position + 1], 1);
        let cancel = Cancel::new();
        let mut observer = CancelAfter {
            layer: 0,
            cancel: cancel.clone(),
        };
        let mut out = Vec::new();
        let span = Span {
            session: &mut session,
            tokens: &ids[..3],
            logits: Logits::Last,
            out: &mut out,
        };
        let failed = model.step_observed(&mut [span], &cancel, &mut observer);
        assert!(matches!(failed, Err(Error::Cancelled)));
        assert!(matches!(session.undo(), Err(Error::Irreversible { .. })));
        assert_eq!(session.position(), position + 1);
        let got = bits(&read(
            &model,
            &mut session,
            &ids[position + 1..position + 4],
            2,
        ));
        let from = (position + 1) * vocabulary;
        assert!(got == expected[from..from + 3 * vocabulary], "{fixture}");
    }
}

#[test]
fn a_tail_of_logits_is_the_end_of_all_of_them() {
    // Pieces of 3 rows, so that a tail begins in any place of a piece.
    let dir = repository("fixtures/olmoe-101");
    let options = Options {
        threads: Some(2),
        step_rows: 3,
        ..Options::default()
    };
    let model = open(&dir, &options);
    let ids = &reference_sequence(&dir)[..10];
    let vocabulary = model.vocabulary();
    let all = bits(&read(&model, &mut model.session(), ids, usize::MAX));
    for count in [0, 1, 2, 3, 4, 7, 10, 99] {
        let (mut session, mut out) = (model.session(), vec![1.0]);
        let span = Span {
            session: &mut session,
            tokens: ids,
            logits: Logits::Tail(count),
            out: &mut out,
        };
        model.step(&mut [span], &Cancel::new()).expect("step");
        let wanted = count.min(10) * vocabulary;
        assert!(bits(&out) == all[all.len() - wanted..], "{count}");
    }
}
