//! Conversations as streams of bytes: what is restored continues bit for bit, and damage changes
//! nothing.

mod common;

use common::{FAMILIES, bits, open, read, reference_sequence, repository};
use lamella_engine::{
    BackendKind, Cancel, Error, Logits, Model, Options, Session, SnapshotError, Span,
};
use lamella_kernels::Isa;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn open_fixture(fixture: &str, options: &Options) -> (Arc<Model>, Vec<u32>) {
    let dir = repository("fixtures").join(fixture);
    let ids = reference_sequence(&dir);
    (open(&dir, options), ids)
}

fn snapshot(model: &Model, session: &Session) -> Vec<u8> {
    let mut stream = Vec::new();
    model.snapshot(session, &mut stream).expect("snapshot");
    stream
}

/// A stream that gives and takes a few bytes at a time, never the same number twice in a row.
struct Odd<T> {
    stream: T,
    turn: usize,
}

impl<T> Odd<T> {
    fn new(stream: T) -> Odd<T> {
        Odd { stream, turn: 0 }
    }

    fn most(&mut self, length: usize) -> usize {
        self.turn = (self.turn + 7) % 4093;
        length.min(1 + self.turn)
    }
}

impl<T: Read> Read for Odd<T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let most = self.most(bytes.len());
        self.stream.read(&mut bytes[..most])
    }
}

impl<T: Write> Write for Odd<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let most = self.most(bytes.len());
        self.stream.write(&bytes[..most])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn a_restored_conversation_continues_bit_for_bit() {
    for fixture in FAMILIES {
        let first = Options {
            threads: Some(2),
            isa: Some(Isa::Scalar),
            ..Options::default()
        };
        // Another instance, instruction set and number of threads.
        let second = Options {
            threads: Some(1),
            ..Options::default()
        };
        let (here, ids) = open_fixture(fixture, &first);
        let (there, _) = open_fixture(fixture, &second);
        assert_eq!(here.numeric_class(), there.numeric_class());
        for at in [0, 1, 37, ids.len() - 1] {
            let mut session = here.session();
            if at > 0 {
                read(&here, &mut session, &ids[..at], 16);
            }
            let mut stream = Vec::new();
            let mut odd = Odd::new(&mut stream);
            here.snapshot(&session, &mut odd).expect("snapshot");
            // What follows in the stream is the reader's own business.
            let length = stream.len();
            stream.extend([1, 2, 3]);
            let mut restored = there.session();
            read(&there, &mut restored, &ids[5..20], 16);
            let mut source = Odd::new(&stream[..]);
            there.restore(&mut restored, &mut source).expect("restore");
            assert_eq!(source.stream, [1, 2, 3], "{fixture} at {at}");
            assert_eq!(restored.position(), at);
            assert_eq!(snapshot(&there, &restored), stream[..length]);
            let expected = read(&here, &mut session, &ids[at..], 16);
            let got = read(&there, &mut restored, &ids[at..], 16);
            assert!(bits(&got) == bits(&expected), "{fixture} at {at}");
        }
    }
}

/// Steps through `tokens` until the `polls`th question whether to go on; whether it was cancelled.
fn cancelled(model: &Model, session: &mut Session, tokens: &[u32], polls: usize) -> bool {
    let asked = AtomicUsize::new(0);
    let cancel = Cancel::asking(move || asked.fetch_add(1, Ordering::Relaxed) >= polls);
    let span = Span {
        session,
        tokens,
        logits: Logits::None,
        out: &mut Vec::new(),
    };
    match model.step(&mut [span], &cancel) {
        Ok(()) => false,
        Err(Error::Cancelled) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_was_cancelled_or_taken_back_leaves_no_trace() {
    for fixture in FAMILIES {
        for (backend, at) in [
            (BackendKind::Cpu, 37),
            (BackendKind::Cpu, 90),
            (BackendKind::Reference, 5),
        ] {
            let options = Options {
                step_rows: 16,
                backend,
                threads: Some(1),
                ..Options::default()
            };
            let (model, ids) = open_fixture(fixture, &options);
            let all: Vec<u32> = ids.iter().copied().cycle().take(at + 50).collect();
            traceless(&model, &all, at, &format!("{fixture} at {at}, {backend:?}"));
        }
    }
}

fn traceless(model: &Model, all: &[u32], at: usize, place: &str) {
    let started = || {
        let mut session = model.session();
        read(model, &mut session, &all[..at], 16);
        session
    };
    let expected = snapshot(model, &started());
    let (mut session, mut polls) = (started(), 0);
    while cancelled(model, &mut session, &all[at..at + 40], polls) {
        assert!(snapshot(model, &session) == expected, "{place}, {polls}");
        polls = 2 * polls + 1;
    }
    assert!(polls > 2, "{place}: cancelled at {polls} places");
    assert_eq!(session.position(), at + 40);
    session.undo().expect("the last step can be taken back");
    assert!(snapshot(model, &session) == expected, "{place}, undone");
    let mark = session.checkpoint().expect("memory");
    read(model, &mut session, &all[at..at + 21], 8);
    match session.truncate(at) {
        Ok(()) => {}
        Err(Error::Irreversible { .. }) => session.restore(&mark).expect("is near"),
        Err(error) => panic!("{error}"),
    }
    assert!(snapshot(model, &session) == expected, "{place}, shortened");
    session.rewind(0);
    read(model, &mut session, &all[..at], 11);
    assert!(snapshot(model, &session) == expected, "{place}, again");
}

#[test]
fn a_damaged_snapshot_changes_nothing() {
    for fixture in FAMILIES {
        let (model, ids) = open_fixture(fixture, &Options::default());
        let mut source = model.session();
        read(&model, &mut source, &ids[..9], 16);
        let stream = snapshot(&model, &source);
        let mut session = model.session();
        read(&model, &mut session, &ids[10..15], 16);
        let before = snapshot(&model, &session);
        // The header byte by byte, the rest at strides that meet every chunk and both ends.
        let ends = stream.len() - 64..stream.len();
        let places = (0..400)
            .chain((400..stream.len()).step_by(9973))
            .chain(ends);
        for at in places {
            let mut damaged = stream.clone();
            damaged[at] ^= 0x10;
            let result = model.restore(&mut session, &mut &damaged[..]);
            assert!(matches!(result, Err(Error::Snapshot(_))), "{fixture} {at}");
            let result = model.restore(&mut session, &mut &stream[..at]);
            let truncated = matches!(result, Err(Error::Snapshot(SnapshotError::Truncated)));
            assert!(truncated, "{fixture} cut at {at}");
        }
        assert_eq!(snapshot(&model, &session), before, "{fixture}");
        assert_eq!(session.position(), 5);
        let mut undisturbed = model.session();
        read(&model, &mut undisturbed, &ids[10..15], 16);
        let expected = read(&model, &mut undisturbed, &ids[15..30], 16);
        let got = read(&model, &mut session, &ids[15..30], 16);
        assert!(bits(&got) == bits(&expected), "{fixture}");
    }
}

#[test]
fn snapshots_of_another_model_or_encoding_are_refused() {
    let (model, ids) = open_fixture("olmoe-101", &Options::default());
    let mut session = model.session();
    read(&model, &mut session, &ids[..20], 16);
    let stream = snapshot(&model, &session);
    let refused = |fixture: &str, options: &Options, what: &str| {
        let (other, _) = open_fixture(fixture, options);
        let mut session = other.session();
        let error = other.restore(&mut session, &mut &stream[..]).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(session.position(), 0);
    };
    refused("olmoe-202", &Options::default(), "another model");
    let q8 = Options {
        want: Some(lamella_program::Encoding::Q8),
        ..Options::default()
    };
    refused("olmoe-101", &q8, "another numeric class");
    let short = Options {
        context: Some(19),
        ..Options::default()
    };
    refused(
        "olmoe-101",
        &short,
        "20 tokens and the session's context is 19",
    );
    let (larger, _) = open_fixture(
        "olmoe-101",
        &Options {
            context: Some(20),
            ..Options::default()
        },
    );
    let mut session = larger.session();
    larger
        .restore(&mut session, &mut &stream[..])
        .expect("fits exactly");
    let (foreign, _) = open_fixture("olmoe-101", &Options::default());
    let mut session = foreign.session();
    let result = model.restore(&mut session, &mut &stream[..]);
    assert!(matches!(result, Err(Error::ForeignSession)));
}

#[test]
fn a_broken_stream_is_an_error_and_the_session_goes_on() {
    struct Breaks(usize);
    impl Write for Breaks {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::Error::other("unplugged"));
            }
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (model, ids) = open_fixture("qwen36-101", &Options::default());
    let mut session = model.session();
    read(&model, &mut session, &ids[..20], 16);
    let length = snapshot(&model, &session).len();
    for at in [0, 50, 1000, length - 1] {
        let error = model.snapshot(&session, &mut Breaks(at)).unwrap_err();
        assert!(error.to_string().contains("unplugged"), "{error}");
    }
    model
        .snapshot(&session, &mut Breaks(length))
        .expect("long enough");
}

#[test]
fn a_long_conversation_is_restored_all_or_nothing_and_can_go_back() {
    let (model, ids) = open_fixture("olmoe-101", &Options::default());
    let long: Vec<u32> = ids.iter().copied().cycle().take(2500).collect();
    let mut source = model.session();
    read(&model, &mut source, &long[..2400], 512);
    let stream = snapshot(&model, &source);
    assert!(
        stream.len() > 4 << 20,
        "{} bytes are not long",
        stream.len()
    );
    let mut session = model.session();
    model
        .restore(&mut session, &mut Odd::new(&stream[..]))
        .expect("restores");
    // Both forget most, and take new pages beside those that came together.
    for session in [&mut source, &mut session] {
        session.truncate(1000).expect("goes back");
    }
    assert_eq!(source.state_bytes(), session.state_bytes());
    let expected = bits(&read(&model, &mut source, &long[1000..], 512));
    assert_eq!(
        bits(&read(&model, &mut session, &long[1000..], 512)),
        expected
    );
    assert!(snapshot(&model, &source) == snapshot(&model, &session));
    let mut damaged = stream.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let before = snapshot(&model, &session);
    assert!(model.restore(&mut session, &mut &damaged[..]).is_err());
    assert!(
        snapshot(&model, &session) == before,
        "a failure left a trace"
    );
}
