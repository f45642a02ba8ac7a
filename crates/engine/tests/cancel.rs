//! A flag that another thread raises ends a step within the layer that is running, and the
//! conversation is as it was. Layers are counted, not seconds: nothing here depends on a clock.

mod common;

use common::{bits, fixtures, open, read, reference_sequence, repository};
use lamella_engine::{Cancel, Error, Logits, Model, Observer, Options, Session, Span};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Rows computed together: the prompt is several times as long.
const ROWS: usize = 8;
/// Tokens the conversation has before it, and of the prompt.
const BEFORE: usize = 5;
const PROMPT: usize = 3 * ROWS - 1;

/// What happened in a step up to now.
#[derive(Default)]
struct Course {
    /// Questions whether to go on.
    polls: AtomicUsize,
    /// Layers finished, each piece's on its own.
    layers: AtomicUsize,
    /// Of these, when the flag was raised.
    layers_before: AtomicUsize,
}

/// Counts the layers that finish.
struct Counter(Arc<Course>);

impl Observer for Counter {
    fn layer(&mut self, _: usize, _: usize, _: usize, _: &[f32]) -> Result<(), Error> {
        self.0.layers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A flag that another thread raises while the step asks for the `at`th time. That question is
/// still answered with no.
fn raised_at(at: usize, course: &Arc<Course>) -> Cancel {
    let flag: Arc<OnceLock<Cancel>> = Arc::default();
    let (own, course) = (Arc::clone(&flag), Arc::clone(course));
    let cancel = Cancel::asking(move || {
        if course.polls.fetch_add(1, Ordering::Relaxed) == at {
            let layers = course.layers.load(Ordering::Relaxed);
            course.layers_before.store(layers, Ordering::Relaxed);
            let flag = own.get().cloned().expect("set below");
            std::thread::spawn(move || flag.cancel())
                .join()
                .expect("it raises the flag");
        }
        false
    });
    flag.get_or_init(|| cancel.clone());
    cancel
}

fn prompt(
    model: &Model,
    session: &mut Session,
    tokens: &[u32],
    at: usize,
) -> (Arc<Course>, Result<Vec<f32>, Error>) {
    let course = Arc::new(Course::default());
    let cancel = raised_at(at, &course);
    let mut out = Vec::new();
    let span = Span {
        session,
        tokens,
        logits: Logits::All,
        out: &mut out,
    };
    let mut counter = Counter(Arc::clone(&course));
    let result = model.step_observed(&mut [span], &cancel, &mut counter);
    (course, result.map(|()| out))
}

#[test]
fn another_thread_stops_a_prompt_within_the_running_layer() {
    for fixture in fixtures() {
        let dir = repository("fixtures").join(&fixture);
        let ids = reference_sequence(&dir);
        let options = Options {
            threads: Some(2),
            step_rows: ROWS,
            ..Options::default()
        };
        let model = open(&dir, &options);
        let (before, tokens) = ids[..BEFORE + PROMPT].split_at(BEFORE);
        let mut session = model.session();
        read(&model, &mut session, before, BEFORE);

        // Undisturbed, in a session of its own: how often it asks, and what comes out.
        let mut other = model.session();
        read(&model, &mut other, before, BEFORE);
        let (course, whole) = prompt(&model, &mut other, tokens, usize::MAX);
        let expected = whole.expect("nobody raises the flag");
        let polls = course.polls.load(Ordering::Relaxed);
        let layers = model.program().layers.len();
        let all = layers * PROMPT.div_ceil(ROWS);
        assert_eq!(course.layers.load(Ordering::Relaxed), all, "{fixture}");
        // Before each layer and at least once inside it.
        assert!(polls >= 2 * all, "{fixture} asks {polls} times");

        for at in 0..polls - 1 {
            let (course, result) = prompt(&model, &mut session, tokens, at);
            let place = format!("{fixture}, raised at question {at} of {polls}");
            assert!(matches!(result, Err(Error::Cancelled)), "{place}");
            let [after, then] = [&course.layers, &course.layers_before];
            let [after, then] = [after, then].map(|count| count.load(Ordering::Relaxed));
            assert!(after <= then + 1, "{place}: {then} layers, then {after}");
            assert_eq!(session.position(), BEFORE, "{place}");
        }
        // Raised when everything is computed, it changes nothing; and the session was unharmed.
        let (_, result) = prompt(&model, &mut session, tokens, polls - 1);
        let got = result.expect("it was finished");
        assert!(bits(&got) == bits(&expected), "{fixture}");
    }
}
