//! Memory that the system refuses ends a call, not the process: the session is as it was, and goes
//! on once there is memory again. Each fixture is tried in a process of its own, whose address
//! space is limited.

mod common;

use common::{FAMILIES, bits, open, reference_sequence, repository};
use lamella_engine::{Cancel, Error, Logits, Model, Options, Session, Span};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Command;

/// Names the fixture to the process that tries it.
const TRIES: &str = "LAMELLA_TEST_REFUSED_MEMORY";

/// Tokens of the conversation that is refused a page: all of its pages are full.
const FULL: usize = 64;

#[test]
fn refused_memory_is_an_error_and_the_session_goes_on() {
    if let Ok(fixture) = std::env::var(TRIES) {
        return try_without_memory(&fixture);
    }
    for fixture in FAMILIES {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        let name = "refused_memory_is_an_error_and_the_session_goes_on";
        command.args(["--exact", name, "--nocapture"]);
        let ran = command.env(TRIES, fixture).output().expect("it starts");
        let [out, err] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(
            ran.status.success(),
            "{fixture}: {}\n{out}\n{err}",
            ran.status
        );
        assert!(out.contains("1 passed"), "{fixture}: {out}");
    }
}

fn step(
    model: &Model,
    session: &mut Session,
    tokens: &[u32],
    out: &mut Vec<f32>,
) -> Result<(), Error> {
    let span = Span {
        session,
        tokens,
        logits: Logits::Last,
        out,
    };
    model.step(&mut [span], &Cancel::new())
}

/// Lets the process have no more address space than it has, and a little.
fn limit_address_space() {
    let status = std::fs::read_to_string("/proc/self/status").expect("what the process takes");
    let taken = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let taken = taken.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let limit = Rlimit {
        current: Some((taken.expect("a number") << 10) + (4 << 20)),
        maximum: getrlimit(Resource::As).maximum,
    };
    setrlimit(Resource::As, limit).expect("a lower limit is allowed");
}

fn refused(result: Result<(), Error>) {
    assert!(
        matches!(result, Err(Error::Allocation { .. })),
        "{result:?}"
    );
}

/// Takes memory page by page until the system refuses.
fn hog(hogs: &mut [Session]) {
    for hog in hogs.iter_mut() {
        for tokens in (0..hog.context()).step_by(FULL) {
            match hog.reserve(tokens) {
                Ok(()) => {}
                Err(Error::Allocation { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
    panic!("{} sessions all fit", hogs.len());
}

fn try_without_memory(fixture: &str) {
    let dir = repository("fixtures").join(fixture);
    let options = Options {
        threads: Some(1),
        step_rows: 16,
        ..Options::default()
    };
    let model = open(&dir, &options);
    let ids = reference_sequence(&dir);
    let ids: Vec<u32> = ids.into_iter().cycle().take(2 * FULL).collect();
    let (mut whole, mut expected) = (model.session(), Vec::new());
    step(&model, &mut whole, &ids[..FULL], &mut expected).expect("memory");
    let mut stream = Vec::new();
    model.snapshot(&whole, &mut stream).expect("memory");
    let mut session = model.session();
    model
        .restore(&mut session, &mut &stream[..])
        .expect("memory");
    step(&model, &mut whole, &ids[FULL..], &mut expected).expect("memory");
    let (mut longer, mut out) = (Vec::new(), Vec::with_capacity(model.vocabulary()));
    model.snapshot(&whole, &mut longer).expect("memory");
    drop(whole);
    let (mut empty, mut now) = (model.session(), Vec::with_capacity(stream.len()));
    let mut hogs: Vec<Session> = (0..4000).map(|_| model.session()).collect();

    limit_address_space();
    hog(&mut hogs);

    for _ in 0..3 {
        refused(step(&model, &mut session, &ids[FULL..], &mut out));
        assert!(out.is_empty() && session.position() == FULL);
        now.clear();
        model.snapshot(&session, &mut now).expect("needs none");
        assert!(now == stream, "{fixture}: a refused step leaves a trace");
        refused(model.restore(&mut empty, &mut &longer[..]));
        assert_eq!(empty.position(), 0);
    }
    hogs.truncate(1);
    step(&model, &mut session, &ids[FULL..], &mut out).expect("there is memory again");
    assert!(bits(&out) == bits(&expected), "{fixture}: other bits");
    model
        .restore(&mut empty, &mut &longer[..])
        .expect("there is memory again");
    assert_eq!(empty.position(), 2 * FULL);
}
