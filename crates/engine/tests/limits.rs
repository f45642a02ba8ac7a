//! Limits of a model or a part of it and of its sessions are exact, and what is allocated stays
//! within them: while it is opened, in its first steps and later. Alone in its process: it counts
//! allocations.

mod common;

use common::{FAMILIES, open, reference_sequence, repository};
use lamella_container::Store;
use lamella_engine::{Cancel, Error, Model, Options, Part, RowSpan, Session, lower};
use lamella_program::Encoding;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

fn add(bytes: i64) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: everything is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there for a moment.
        add(size as i64);
        add(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The smallest number that is accepted, by search; the text that refuses one less.
fn smallest(accepts: impl Fn(u64) -> Result<(), Error>) -> (u64, String) {
    let (mut too_little, mut enough) = (0, 1 << 40);
    while enough - too_little > 1 {
        let middle = (enough + too_little) / 2;
        match accepts(middle) {
            Ok(()) => enough = middle,
            Err(_) => too_little = middle,
        }
    }
    let error = accepts(enough - 1).expect_err("one byte less is refused");
    (enough, error.to_string())
}

/// Most bytes held during `work` beyond those held before, and its result.
fn peak_of<T>(work: impl FnOnce() -> T) -> (i64, T) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (PEAK.load(Ordering::Relaxed) - before, result)
}

fn feed(model: &Model, session: &mut Session, ids: &[u32], chunk: usize) {
    let width = model.program().row_width();
    for tokens in ids.chunks(chunk) {
        let mut input = vec![0.125; tokens.len() * width];
        if width > model.program().boundary.width {
            for row in input.chunks_exact_mut(width) {
                row[model.program().boundary.width..].fill(0.0);
                row[model.program().boundary.width] = -1.0;
            }
        }
        let span = RowSpan {
            session: &mut *session,
            tokens,
            input: &input,
        };
        let mut out = [Vec::new()];
        model
            .step_rows(vec![span], &mut out, &Cancel::new())
            .expect("step");
    }
}

#[test]
fn limits_are_exact_and_kept() {
    for fixture in FAMILIES {
        let dir = repository("fixtures").join(fixture);
        let ids = reference_sequence(&dir);
        let layers = open(&dir, &Options::default()).program().layers.len();
        let options = |memory_limit| Options {
            threads: Some(1),
            step_rows: 16,
            part: Part::Layers(1..layers),
            context: Some(ids.len()),
            memory_limit,
            ..Options::default()
        };
        let (engine, text) =
            smallest(|limit| Model::open(&dir, &options(Some(limit)), &mut |_| {}).map(|_| ()));
        assert!(text.contains(&format!("= {engine} bytes")), "{text}");
        open(&dir, &options(Some(engine)));
        // What a step reads from disk goes through buffers of the model, not of the session.
        session_limits(fixture, &open(&dir, &options(None)), &ids);
    }
    // Not a test of its own: the counts are those of the process.
    for fixture in FAMILIES {
        openings(fixture);
    }
}

/// Opens a fixture whole and in parts, with one thread and with several, in its own encoding and
/// quantised at load, each at the smallest limit.
fn openings(fixture: &str) {
    let dir = repository("fixtures").join(fixture);
    let layers = open(&dir, &Options::default()).program().layers.len();
    let parts = [Part::Whole, Part::Layers(1..layers), Part::Ends];
    for part in parts {
        for (threads, want) in [
            (1, None),
            (3, None),
            (2, Some(Encoding::Q8)),
            (1, Some(Encoding::Q4)),
        ] {
            let options = Options {
                threads: Some(threads),
                step_rows: 16,
                part: part.clone(),
                context: Some(256),
                want,
                ..Options::default()
            };
            opening(fixture, &options);
        }
    }
}

/// Opening at the smallest limit never holds more than that, and neither do the first steps beside
/// the limit of their session.
fn opening(fixture: &str, options: &Options) {
    let dir = repository("fixtures").join(fixture);
    let place = format!("{fixture}, {:?}, {:?}", options.part, options.want);
    let within = |limit| Options {
        memory_limit: Some(limit),
        ..options.clone()
    };
    let least = smallest_told(|limit| Model::open(&dir, &within(limit), &mut |_| {}).map(|_| ()));
    // Outside the limit: what describes the model, which the store holds already, and the program
    // once more.
    let store = Store::open(&dir, &lower).expect("the files are sound");
    let (description, _) = peak_of(|| store.program().clone());
    let before = HELD.load(Ordering::Relaxed);
    let (peak, model) =
        peak_of(|| Model::open_store(store, &within(least), &mut |_| {}).expect("it fits"));
    let mapped = model.report().resident_bytes as i64;
    assert!(
        peak + mapped - description <= least as i64,
        "{place}: opening holds {peak} + {mapped} mapped - {description}, of {least}"
    );
    if !matches!(options.part, Part::Layers(_)) {
        return;
    }
    let held = HELD.load(Ordering::Relaxed) - before;
    let ids: Vec<u32> = (0..40).collect();
    let state = model.session_bytes(256) as i64;
    let row = 4 * model.program().row_width() as i64;
    let (grown, _) = peak_of(|| {
        let mut session = model.session_within(256, None).expect("there is a context");
        feed(&model, &mut session, &ids, 16);
    });
    let all = held + mapped - description + grown - state - 2 * 16 * row;
    assert!(
        all <= least as i64,
        "{place}: running holds {all} of {least}"
    );
}

/// The limit that the text of a refusal says is enough, which it is; any lower limit is told the
/// same.
fn smallest_told(accepts: impl Fn(u64) -> Result<(), Error>) -> u64 {
    let told = |limit| {
        let error = accepts(limit).expect_err("too little").to_string();
        let told = error
            .split_once(" = ")
            .and_then(|(_, rest)| rest.split(' ').next());
        let told = told.and_then(|word| word.parse().ok());
        let told: u64 = told.unwrap_or_else(|| panic!("{error}"));
        assert!(told > limit, "{error}");
        told
    };
    let least = told(1);
    for limit in [1000, least / 2, least - 1] {
        assert_eq!(told(limit), least, "with a limit of {limit}");
    }
    accepts(least).expect("what the text says is enough");
    least
}

fn session_limits(fixture: &str, model: &Arc<Model>, ids: &[u32]) {
    let context = ids.len();
    // The buffers of the step grow once.
    feed(model, &mut model.session(), ids, 16);
    let within = |limit| model.session_within(context, Some(limit)).map(|_| ());
    let (least, text) = smallest(within);
    assert_eq!(least, model.session_bytes(context), "{fixture}");
    assert!(text.contains(&format!("takes {least} bytes")), "{text}");
    for chunk in [1, 7, 16] {
        let (peak, session) = peak_of(|| {
            let mut session = model.session_within(context, Some(least)).expect("enough");
            // Rows in and out belong to the caller: they are there before and after.
            let spare = vec![0u8; 2 * 16 * 4 * model.program().row_width() + 4096];
            let held = spare.len();
            drop(spare);
            feed(model, &mut session, ids, chunk);
            (session, held)
        });
        let (session, rows) = session;
        let state = peak - rows as i64;
        assert!(
            state <= least as i64,
            "{fixture} in steps of {chunk}: {state} of {least}"
        );
        let mut stream = Vec::new();
        model.snapshot(&session, &mut stream).expect("snapshot");
        let (peak, restored) = peak_of(|| {
            let mut new = model.session_within(context, Some(least)).expect("enough");
            model.restore(&mut new, &mut &stream[..]).expect("restore");
            new
        });
        assert!(
            peak - 4096 <= least as i64,
            "{fixture} restored: {peak} of {least}"
        );
        assert_eq!(restored.position(), context);
    }
    let mut session = model.session_within(context, Some(least)).expect("enough");
    let mut stream = Vec::new();
    feed(model, &mut session, ids, 16);
    model.snapshot(&session, &mut stream).expect("snapshot");
    if let Err(error) = model.restore(&mut session, &mut &stream[..]) {
        let text = error.to_string();
        assert!(text.contains("Restore into a new session"), "{text}");
        assert_eq!(session.position(), context, "{fixture}");
    } else {
        panic!("{fixture}: the old state and the new one were there at once");
    }
    session.rewind(0);
    let input = vec![0.0; 17 * model.program().row_width()];
    let tokens = [0; 17];
    let span = RowSpan {
        session: &mut session,
        tokens: &tokens,
        input: &input,
    };
    let mut out = [Vec::new()];
    let result = model.step_rows(vec![span], &mut out, &Cancel::new());
    assert!(matches!(result, Err(Error::Setting { .. })), "{fixture}");
}
