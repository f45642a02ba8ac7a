//! What the C interface costs: a chain of two layer ranges in one process against the full range,
//! snapshots against a copy of the same bytes, and how long a cancelled run goes on.
//!
//! `cargo bench -p lamella-ffi --bench boundary -- MODEL_DIR [encoding=NAME] [threads=N]
//! [prompt=512] [tokens=32] [state=1024] [turns=9]`
//!
//! Both sides of each comparison are measured in turns, and who goes first changes. A ratio is that
//! of one turn; printed are the median of the turns and both ends. The full range against itself
//! shows the noise of the machine.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

mod host;

use host::{Layers, Talk, register};
use lamella::lamella::{
    LamellaCancel, lamella_cancel_free, lamella_cancel_new, lamella_cancel_raise,
    lamella_cancel_reset,
};
use lamella_engine::{Cancel, Model, Options, Part};
use lamella_families::{FAMILY_IDS, is_of_family};
use lamella_program::Encoding;
use std::path::PathBuf;
use std::time::{Duration, Instant};

struct Settings {
    dir: PathBuf,
    encoding: Option<Encoding>,
    threads: Option<usize>,
    /// Tokens of a prompt, and decoded behind it.
    prompt: usize,
    tokens: usize,
    /// Tokens of the conversation that becomes a snapshot.
    state: usize,
    turns: usize,
}

impl Settings {
    fn read() -> Settings {
        let mut settings = Settings {
            dir: PathBuf::new(),
            encoding: None,
            threads: None,
            prompt: 512,
            tokens: 32,
            state: 1024,
            turns: 9,
        };
        for argument in std::env::args().skip(1).filter(|a| a != "--bench") {
            let number = |value: &str| value.parse::<usize>().unwrap();
            match argument.split_once('=') {
                None => settings.dir = PathBuf::from(argument),
                Some(("encoding", name)) => {
                    settings.encoding = Some(Encoding::from_name(name).unwrap());
                }
                Some(("threads", value)) => settings.threads = Some(number(value)),
                Some(("prompt", value)) => settings.prompt = number(value),
                Some(("tokens", value)) => settings.tokens = number(value),
                Some(("state", value)) => settings.state = number(value),
                Some(("turns", value)) => settings.turns = number(value),
                Some((key, _)) => panic!("there is no setting {key}"),
            }
        }
        assert!(settings.dir.is_dir(), "the first argument is a model");
        settings
    }

    /// The longest conversation.
    fn context(&self) -> usize {
        self.state.max(self.prompt + self.tokens)
    }

    fn plan(&self) -> String {
        let mut fields = Vec::new();
        fields.extend(self.threads.map(|n| format!("\"threads\": {n}")));
        fields.extend(self.encoding.map(|e| format!("\"encoding\": \"{e}\"")));
        format!("{{{}}}", fields.join(", "))
    }
}

/// Tokens of no meaning and the rows that enter the first layer for them.
struct Input {
    ids: Vec<i32>,
    rows: Vec<f32>,
    width: usize,
    /// Most rows of a run.
    most: usize,
}

impl Input {
    fn rows(&self, tokens: std::ops::Range<usize>) -> Vec<f32> {
        self.rows[tokens.start * self.width..tokens.end * self.width].to_vec()
    }
}

/// Sends rows of the tokens from `at` on through a chain, a run of the most rows at a time.
fn feed(chain: &mut [Talk], input: &Input, at: usize, rows: &mut [f32]) {
    let ids = &input.ids[at..at + rows.len() / input.width];
    let pieces = ids.chunks(input.most);
    for (ids, rows) in pieces.zip(rows.chunks_mut(input.most * input.width)) {
        for talk in &mut *chain {
            talk.run(ids, rows);
        }
    }
}

/// Times of a prompt and of the tokens behind it in new sessions of a chain, and the last row.
fn converse(chain: &[&Layers], input: &Input, settings: &Settings) -> ([Duration; 2], Vec<f32>) {
    let mut talks: Vec<Talk> = chain.iter().map(|layers| layers.session()).collect();
    let mut rows = input.rows(0..settings.prompt);
    let start = Instant::now();
    feed(&mut talks, input, 0, &mut rows);
    let prompt = start.elapsed();
    let mut row = Vec::new();
    let mut decode = Duration::ZERO;
    for at in settings.prompt..settings.prompt + settings.tokens {
        row = input.rows(at..at + 1);
        let start = Instant::now();
        feed(&mut talks, input, at, &mut row);
        decode += start.elapsed();
    }
    ([prompt, decode], row)
}

fn main() {
    let settings = Settings::read();
    register();
    let (ends, input) = embed(&settings);
    let program = ends.program();
    let number = (0..FAMILY_IDS.len()).find(|&n| is_of_family(&program.family, n));
    let family = FAMILY_IDS[number.unwrap()];
    let (layers, plan) = (program.layers.len(), settings.plan());
    let open = |range| Layers::open(family, &settings.dir, range, settings.context(), &plan);
    let whole = open(0..layers);
    let input = Input {
        most: whole.said.max_batch_rows as usize,
        ..input
    };
    let report = ends.report();
    println!(
        "{}: {layers} layers of {}, {} threads, {:?}",
        settings.dir.display(),
        program.family,
        report.threads,
        report.isa
    );
    {
        let halves = [open(0..layers / 2), open(layers / 2..layers)];
        assert_eq!(halves[0].said.numeric_class, whole.said.numeric_class);
        boundary(&settings, &input, &whole, &halves);
    }
    snapshots(&settings, &input, &whole);
    cancellation(&settings, &input, &whole, layers);
}

fn embed(settings: &Settings) -> (std::sync::Arc<Model>, Input) {
    let options = Options {
        want: settings.encoding,
        threads: settings.threads,
        part: Part::Ends,
        ..Options::default()
    };
    let ends = Model::open(&settings.dir, &options, &mut |_| {}).unwrap();
    let vocabulary = ends.program().dims.vocabulary as u32;
    let ids: Vec<u32> = (0..settings.context() as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 7) % vocabulary)
        .collect();
    let mut rows = Vec::new();
    ends.embed(&ids, &mut rows, &Cancel::new()).unwrap();
    let input = Input {
        ids: ids.into_iter().map(|id| id as i32).collect(),
        rows,
        width: ends.program().row_width(),
        most: usize::MAX,
    };
    (ends, input)
}

/// The full range against two halves.
fn boundary(settings: &Settings, input: &Input, whole: &Layers, halves: &[Layers; 2]) {
    let chain = [&halves[0], &halves[1]];
    let sides: [&[&Layers]; 3] = [&[whole], &chain, &[whole]];
    let mut times = vec![[[Duration::ZERO; 2]; 3]; settings.turns];
    let mut last: Option<Vec<f32>> = None;
    for turn in 0..=settings.turns {
        for at in 0..sides.len() {
            let side = (at + turn) % sides.len();
            let (taken, row) = converse(sides[side], input, settings);
            let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let before = last.get_or_insert_with(|| row.clone());
            assert!(bits(before) == bits(&row), "the chain computes other bits");
            // The first turn warms up.
            if let Some(turn) = turn.checked_sub(1) {
                times[turn][side] = taken;
            }
        }
    }
    for (what, index, count) in [
        ("prompt", 0, settings.prompt),
        ("decode", 1, settings.tokens),
    ] {
        let seconds = |side: usize, turn: usize| times[turn][side][index].as_secs_f64();
        let turns = 0..settings.turns;
        let rate = spread(turns.clone().map(|turn| count as f64 / seconds(0, turn)));
        let ratio = spread(turns.clone().map(|t| seconds(0, t) / seconds(1, t)));
        let noise = spread(turns.map(|t| seconds(0, t) / seconds(2, t)));
        println!("{what} of {count} tokens, full range: {rate:.1} tokens/s");
        println!("  two ranges against it: {ratio:.3} x; itself: {noise:.3} x");
    }
}

/// Snapshots against copies.
fn snapshots(settings: &Settings, input: &Input, whole: &Layers) {
    let mut talks = [whole.session()];
    let mut rows = input.rows(0..settings.state);
    feed(&mut talks, input, 0, &mut rows);
    let [mut talk] = talks;
    let mut stream = vec![0; talk.snapshot_bytes()];
    let length = talk.snapshot(&mut stream);
    let mut copy = vec![1u8; length];
    let (mut copies, mut fresh) = (Vec::new(), Vec::new());
    let (mut written, mut read) = (Vec::new(), Vec::new());
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    for turn in 0..=settings.turns {
        let times = [
            timed(&mut || copy.copy_from_slice(&stream)),
            timed(&mut || assert_eq!(talk.snapshot(&mut copy), length)),
            timed(&mut || talk.restore(&stream)),
            timed(&mut || drop(std::hint::black_box(stream.clone()))),
        ];
        assert!(copy == stream, "a snapshot differs from the one before");
        if turn > 0 {
            copies.push(times[0]);
            written.push(times[1]);
            read.push(times[2]);
            fresh.push(times[3]);
        }
    }
    let speed = |times: &[f64]| spread(times.iter().map(|t| length as f64 / 1e9 / t));
    let share = |of: &[f64], times: &[f64]| spread(of.iter().zip(times).map(|(c, t)| c / t));
    println!(
        "state of {} tokens, {:.1} MB",
        settings.state,
        length as f64 / 1e6
    );
    println!(
        "  copy into memory that is there: {:.2} GB/s",
        speed(&copies)
    );
    println!("  copy into new memory: {:.2} GB/s", speed(&fresh));
    // A snapshot goes where the host has room; restored state is in new memory.
    for (what, times) in [("snapshot", &written), ("restore", &read)] {
        println!(
            "  {what}: {:.2} GB/s, {:.3} of the first, {:.3} of the second",
            speed(times),
            share(&copies, times),
            share(&fresh, times)
        );
    }
}

/// How long a run goes on once its flag is raised, against the time of a layer.
fn cancellation(settings: &Settings, input: &Input, whole: &Layers, layers: usize) {
    let count = settings.prompt.min(input.most);
    let (ids, rows) = (&input.ids[..count], input.rows(0..count));
    let start = Instant::now();
    let mut expected = rows.clone();
    whole.session().run(ids, &mut expected);
    let run = start.elapsed();
    let flag = lamella_cancel_new();
    // SAFETY: it is freed at the end.
    let cancel: &LamellaCancel = unsafe { flag.as_ref() }.unwrap();
    let mut talk = whole.session();
    let mut latencies = Vec::new();
    let turns = settings.turns * 3;
    for turn in 0..turns {
        let wait = run.mul_f64(0.9 * (turn as f64 + 0.5) / turns as f64);
        let mut out = rows.clone();
        // SAFETY: the flag lives.
        unsafe { lamella_cancel_reset(cancel) };
        let raised = std::thread::scope(|scope| {
            let raiser = scope.spawn(|| {
                std::thread::sleep(wait);
                let now = Instant::now();
                // SAFETY: as above.
                unsafe { lamella_cancel_raise(cancel) };
                now
            });
            let finished = talk.run_until(ids, &mut out, cancel);
            let end = Instant::now();
            let raised = raiser.join().unwrap();
            (!finished).then(|| end.saturating_duration_since(raised))
        });
        latencies.extend(raised.map(|latency| latency.as_secs_f64() * 1e3));
        if raised.is_none() {
            talk = whole.session();
        }
    }
    let mut out = rows;
    talk.run(ids, &mut out);
    let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(
        bits(&out) == bits(&expected),
        "a cancelled run left a trace"
    );
    drop(talk);
    // SAFETY: nobody polls it any more.
    unsafe { lamella_cancel_free(flag) };
    println!(
        "a run of {count} rows: {:.1} ms a layer; cancelled {} times, it ended after {:.1} ms",
        run.as_secs_f64() * 1e3 / layers as f64,
        latencies.len(),
        spread(latencies.into_iter())
    );
}

/// Median of a sample, and its ends.
struct Spread {
    middle: f64,
    least: f64,
    most: f64,
}

fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    Spread {
        middle: values[values.len() / 2],
        least: values[0],
        most: values[values.len() - 1],
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let Spread {
            middle,
            least,
            most,
        } = self;
        write!(f, "{middle:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}
