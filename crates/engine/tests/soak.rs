//! Conversations that come and go, budgets that change, damage that comes and goes: for seconds in
//! every run of the tests, for as long as `LAMELLA_SOAK_SECONDS` says otherwise.

mod common;

use common::{bits, least, open, read, reference_sequence, repository};
use lamella_container::{ConvertOptions, Keep, Store, convert};
use lamella_engine::{Cancel, Error, Logits, Model, Options, Session, Span, lower};
use lamella_program::Encoding;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Tokens of the longest conversation.
const MOST: usize = 60;

/// Bytes of this process in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// A conversation, and the first of the ids it reads.
struct Talk {
    session: Session,
    first: usize,
}

struct Soak {
    model: Arc<Model>,
    ids: Vec<u32>,
    /// Bits of the logits behind every token, of conversations that begin at each id.
    expected: Vec<Vec<Vec<u32>>>,
    talks: Vec<Talk>,
    rng: ChaCha8Rng,
    steps: u64,
    refused: u64,
    failed: u64,
}

impl Soak {
    fn below(&mut self, end: usize) -> usize {
        self.rng.next_u32() as usize % end
    }

    /// Some conversations read on together, or one is cancelled.
    fn step(&mut self, broken: bool) {
        let cancel = Cancel::new();
        if self.below(20) == 0 {
            cancel.cancel();
        }
        let count = 1 + self.below(4).min(self.talks.len() - 1);
        let takes: Vec<usize> = (0..count).map(|_| 1 + self.below(9)).collect();
        let mut outs = vec![Vec::new(); count];
        let mut spans = Vec::new();
        for ((talk, take), out) in self.talks.iter_mut().zip(&takes).zip(&mut outs) {
            let at = talk.session.position();
            let end = (at + take).min(MOST);
            if at < end {
                spans.push(Span {
                    session: &mut talk.session,
                    tokens: &self.ids[talk.first + at..talk.first + end],
                    logits: Logits::Last,
                    out,
                });
            }
        }
        if spans.is_empty() {
            return;
        }
        let result = self.model.step(&mut spans, &cancel);
        drop(spans);
        self.steps += 1;
        match result {
            Ok(()) => {}
            Err(Error::Memory { .. }) => {
                self.refused += 1;
                self.talks.truncate(1.max(self.talks.len() - 1));
            }
            Err(Error::Cancelled) => assert!(cancel.is_cancelled()),
            Err(error @ Error::Expert { .. }) => {
                assert!(broken, "{error}");
                self.failed += 1;
            }
            Err(error) => panic!("{error}"),
        }
        for (talk, out) in self
            .talks
            .iter()
            .zip(&outs)
            .filter(|(_, out)| !out.is_empty())
        {
            let expected = &self.expected[talk.first][talk.session.position() - 1];
            assert!(bits(out) == *expected, "step {}", self.steps);
        }
    }

    /// Conversations come, go, and change their order.
    fn turn(&mut self) {
        let most = self.talks.len();
        match self.below(6) {
            0 if most > 1 => {
                let gone = self.below(most);
                self.talks.swap_remove(gone);
            }
            1 if most < 12 => {
                let first = self.below(self.expected.len());
                let session = self.model.session();
                self.talks.push(Talk { session, first });
            }
            2 => {
                let talk = &mut self.talks[0];
                talk.session.truncate(0).expect("to the start");
            }
            _ => {
                let other = self.below(most);
                self.talks.swap(0, other);
            }
        }
    }
}

fn converted(dir: &Path, to: &Path) -> PathBuf {
    let source = Store::open(dir, &lower).expect("a fixture");
    let settings = ConvertOptions::new(Keep::As(Encoding::Q8));
    let never = AtomicBool::new(false);
    convert(&source, to, &settings, &mut |_| {}, &never).expect("converts");
    to.to_owned()
}

/// Logits behind each token of the conversations that begin at the first ids.
fn expected(model: &Model, ids: &[u32], starts: usize) -> Vec<Vec<Vec<u32>>> {
    let of = |first: usize| {
        let mut session = model.session();
        let tokens = ids[first..first + MOST].iter();
        tokens
            .map(|id| bits(&read(model, &mut session, &[*id], 1)))
            .collect()
    };
    (0..starts).map(of).collect()
}

/// A model of which about half of the experts fit, and the bytes of the least and of all of it.
fn opened(path: &Path, heat: &Path, ids: Vec<u32>) -> (Soak, u64, u64) {
    let options = Options {
        threads: Some(2),
        step_rows: 16,
        context: Some(64),
        heat: Some(heat.to_owned()),
        pin: 10,
        ..Options::default()
    };
    let all = open(path, &options);
    let expected = expected(&all, &ids, 4);
    let whole = all.report().resident_bytes + all.report().workspace_bytes;
    drop(all);
    let least = least(path, &options);
    let limits = Options {
        memory_limit: Some(whole - whole / 8),
        ..options
    };
    let model = open(path, &limits);
    assert!(model.experts().is_some(), "not all fit");
    let talks = vec![Talk {
        session: model.session(),
        first: 0,
    }];
    let soak = Soak {
        model,
        ids,
        expected,
        talks,
        rng: ChaCha8Rng::seed_from_u64(1),
        steps: 0,
        refused: 0,
        failed: 0,
    };
    (soak, least, whole)
}

/// The file of the first layer's experts, and what is in it.
fn pack(model: &Model) -> (PathBuf, Vec<u8>) {
    let bank = model.store().banks()[0];
    let record = model.store().expert_record(&bank, 0, Encoding::Q8);
    let pack = model.store().file(record.expect("in one piece").file);
    let pack = pack.expect("a pack").to_owned();
    let sound = std::fs::read(&pack).expect("reads");
    (pack, sound)
}

/// Goes on for `seconds`; bytes of the process after a quarter of that, and how often the budget
/// has changed.
fn go_on(soak: &mut Soak, seconds: u64, [least, whole]: [u64; 2]) -> (u64, u64) {
    let (pack, sound) = pack(&soak.model);
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let (mut broken, mut early, mut changes) = (false, None, 0u64);
    while start.elapsed() < time {
        for _ in 0..50 {
            soak.turn();
            soak.step(broken);
        }
        let limit = least + soak.rng.next_u64() % (whole - least);
        changes += u64::from(soak.model.set_memory_limit(limit).is_ok());
        if soak.below(3) == 0 {
            broken = !broken;
            let mut bytes = sound.clone();
            if broken {
                bytes
                    .iter_mut()
                    .step_by(1500)
                    .for_each(|byte| *byte ^= 0x40);
            }
            std::fs::write(&pack, &bytes).expect("writes");
        }
        if start.elapsed() > time / 4 {
            early.get_or_insert_with(resident);
        }
    }
    std::fs::write(&pack, &sound).expect("writes");
    (early.expect("a quarter of the time"), changes)
}

#[test]
fn nothing_grows_drifts_or_differs() {
    let seconds = std::env::var("LAMELLA_SOAK_SECONDS");
    let seconds = seconds.map_or(4, |text| text.parse().expect("a number of seconds"));
    let temporary = tempfile::tempdir().expect("a directory");
    let path = converted(
        &repository("fixtures/olmoe-101"),
        &temporary.path().join("q8"),
    );
    let mut ids = reference_sequence(&repository("fixtures/olmoe-101"));
    ids.extend(ids.clone());
    let (mut soak, least, whole) = opened(&path, &temporary.path().join("heat"), ids);
    let (early, changes) = go_on(&mut soak, seconds, [least, whole]);
    let counted = soak.model.experts().expect("not all fit");
    let now = resident();
    println!(
        "{} steps, {} refused, {} failed, {changes} budgets; {early} bytes after a quarter, {now} \
         at the end; {counted:?}",
        soak.steps, soak.refused, soak.failed
    );
    assert!(counted.hits <= counted.uses && counted.slots <= counted.experts);
    assert!(soak.steps > 100 && changes > 0, "{} steps", soak.steps);
    assert!(soak.failed > 0 && soak.refused > 0, "no trouble");
    // Beside the ledger: what the allocator keeps of buffers of the test.
    assert!(now < early + (16 << 20), "{early} bytes, then {now}");
    soak.talks.truncate(1);
    soak.talks[0].session.truncate(0).expect("to the start");
    let before = whole - whole / 8;
    soak.model.set_memory_limit(before).expect("as at first");
    for _ in 0..MOST {
        soak.step(false);
    }
}
