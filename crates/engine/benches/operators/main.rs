//! What every operator of a layer costs at production shape:
//! `cargo bench -p lamella-engine --bench operators [-- [FILTER] [pairs] [q4|q8|bf16] [cpu]
//! [experts=MILLIONS] [runs=RUNS]]`.
//!
//! For each kind of layer of every family a checkpoint of that one layer is made up (published
//! shapes, random weights, a small vocabulary, and only as many experts as their share of memory
//! holds), opened, and run: prompts of 512 and 2048 tokens, and single tokens behind 2048 others.
//! Where a layer uses what another one has found out, both are run.
//! The numbers are medians of each operator; with `cpu` they are processor time of a single
//! thread, which counts for something on a machine that has other things to do. `FILTER` is a part
//! of a layer's name; `pairs` measures delta nets against full attention instead, turn by turn.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

mod checkpoint;
mod shapes;

use lamella_engine::{
    Cancel, Logits, Model, Operator, Options, Profile, Session, Span, TimeSource,
};
use lamella_program::Encoding;
use shapes::Shape;
use std::sync::Arc;
use std::time::Duration;

/// Prompt lengths measured, the last one being the context of single tokens too.
const PROMPTS: [usize; 2] = [512, 2048];
/// Single tokens of one sample.
const TOKENS: usize = 16;
/// Samples of every measurement, and turns of a comparison, unless it is said.
const RUNS: usize = 5;

struct Settings {
    filter: String,
    /// Pairs instead of single layers.
    pairs: bool,
    runs: usize,
    encoding: Encoding,
    /// Parameters that the experts of a layer may have.
    experts: usize,
    /// Processor time of one thread instead of time on all threads.
    cpu: bool,
}

/// Processor time of the calling thread.
#[cfg(target_os = "linux")]
fn thread_time() -> Duration {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const THREAD_CPU: i32 = 3;
    let mut time = [0i64; 2];
    // SAFETY: on 64-bit Linux a timespec is two 64-bit integers.
    let failed = unsafe { clock_gettime(THREAD_CPU, &raw mut time) };
    assert_eq!(failed, 0);
    Duration::new(time[0].unsigned_abs(), u32::try_from(time[1]).unwrap())
}

#[cfg(not(target_os = "linux"))]
fn thread_time() -> Duration {
    panic!("the processor time of a thread is read on Linux only")
}

fn main() {
    let mut settings = Settings {
        filter: String::new(),
        pairs: false,
        runs: RUNS,
        encoding: Encoding::Q4,
        experts: 400_000_000,
        cpu: false,
    };
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--bench" => {}
            "cpu" => settings.cpu = true,
            "pairs" => settings.pairs = true,
            "q4" => settings.encoding = Encoding::Q4,
            "q8" => settings.encoding = Encoding::Q8,
            "bf16" => settings.encoding = Encoding::Bf16,
            other => match other.split_once('=') {
                Some(("experts", millions)) => {
                    settings.experts = millions.parse::<usize>().unwrap() * 1_000_000;
                }
                Some(("runs", runs)) => settings.runs = runs.parse::<usize>().unwrap().max(1),
                _ => other.clone_into(&mut settings.filter),
            },
        }
    }
    let wanted = |shape: &Shape| shape.name.contains(&settings.filter);
    if settings.pairs {
        let pairs = shapes::pairs();
        let pairs = pairs.iter().filter(|pair| pair.iter().any(wanted));
        pairs.for_each(|pair| compare(&settings, pair));
        return;
    }
    for shape in shapes::all().iter().filter(|shape| wanted(shape)) {
        report(&settings, shape);
    }
}

/// One layer, opened.
struct Layer {
    model: Arc<Model>,
    /// Experts it has, and experts it would have.
    experts: [usize; 2],
}

fn open(settings: &Settings, shape: &Shape) -> Layer {
    let (config, experts) = shape.config(settings.experts);
    let dir = tempfile::tempdir().unwrap();
    checkpoint::write(dir.path(), &config);
    let options = Options {
        want: Some(settings.encoding),
        context: Some(2 * PROMPTS[1]),
        threads: settings.cpu.then_some(1),
        ..Options::default()
    };
    let model = Model::open(dir.path(), &options, &mut |_| {});
    let model = model.unwrap_or_else(|e| panic!("{}: {e}", shape.name));
    assert_eq!(model.program().layers.len(), shape.layers());
    model.set_profiling(Some(match settings.cpu {
        true => TimeSource::Other(thread_time),
        false => TimeSource::Wall,
    }));
    Layer { model, experts }
}

/// Tokens of no meaning.
fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) >> 7)
        .map(|t| t % 1000)
        .collect()
}

fn step(model: &Model, session: &mut Session, tokens: &[u32]) {
    let mut out = Vec::new();
    let span = Span {
        session,
        tokens,
        logits: Logits::None,
        out: &mut out,
    };
    model.step(&mut [span], &Cancel::new()).unwrap();
}

/// A prompt in a new session that has room for `more` tokens, and what it cost.
fn prompt(model: &Model, count: usize, more: usize) -> (Session, Profile) {
    let mut session = model.session();
    session.reserve(count + more + 1).unwrap();
    let _ = model.take_profile();
    step(model, &mut session, &tokens(count));
    (session, model.take_profile())
}

/// Time of the layer: what enters it is not its own.
fn layer_time(profile: &Profile) -> Duration {
    profile.total() - profile.of(Operator::Embedding) - profile.of(Operator::Head)
}

fn median(samples: impl Iterator<Item = Duration>) -> Duration {
    let mut samples: Vec<Duration> = samples.collect();
    samples.sort_unstable();
    samples[samples.len() / 2]
}

fn report(settings: &Settings, shape: &Shape) {
    let Layer { model, experts } = open(settings, shape);
    prompt(&model, PROMPTS[0], 0);
    let mut columns: Vec<(f64, Vec<Profile>)> = Vec::new();
    for count in PROMPTS {
        let samples = (0..settings.runs).map(|_| prompt(&model, count, 0).1);
        let samples = samples.collect();
        columns.push((1.0, samples));
    }
    let (mut session, _) = prompt(&model, PROMPTS[1], settings.runs * TOKENS);
    let mut samples = Vec::new();
    for _ in 0..settings.runs {
        for token in tokens(TOKENS) {
            step(&model, &mut session, &[token]);
        }
        samples.push(model.take_profile());
    }
    columns.push((TOKENS as f64, samples));
    let held = match experts {
        [0, _] => String::new(),
        [held, all] => format!(", {held} of {all} experts"),
    };
    let report = model.report();
    println!(
        "\n{} ({}, {} threads, {:?}{held})",
        shape.name, settings.encoding, report.threads, report.isa
    );
    print_table(&columns);
}

fn print_table(columns: &[(f64, Vec<Profile>)]) {
    let name = |count: usize| format!("prompt {count}");
    let heads = [
        name(PROMPTS[0]),
        name(PROMPTS[1]),
        "token at 2048".to_owned(),
    ];
    print!("{:<16}", "ms");
    heads.iter().for_each(|head| print!("{head:>20}"));
    println!();
    let whole: Vec<f64> = columns.iter().map(|c| per_run(c, &layer_time)).collect();
    for operator in Operator::ALL {
        if matches!(operator, Operator::Embedding | Operator::Head) {
            continue;
        }
        let times: Vec<f64> = columns
            .iter()
            .map(|c| per_run(c, &|p| p.of(operator)))
            .collect();
        if times.iter().zip(&whole).all(|(t, all)| t / all < 0.0005) {
            continue;
        }
        print!("{:<16}", operator.name());
        for (time, all) in times.iter().zip(&whole) {
            print!("{time:>12.3} {:>5.1} %", 100.0 * time / all);
        }
        println!();
    }
    print!("{:<16}", "layer");
    whole
        .iter()
        .for_each(|time| print!("{time:>12.3} {:>7}", ""));
    println!();
}

/// Median milliseconds of one run.
fn per_run((runs, samples): &(f64, Vec<Profile>), part: &dyn Fn(&Profile) -> Duration) -> f64 {
    median(samples.iter().map(part)).as_secs_f64() * 1e3 / runs
}

/// A recurrent layer and one of full attention, prompt by prompt in turns.
fn compare(settings: &Settings, [recurrent, full]: &[Shape; 2]) {
    let layers = [recurrent, full].map(|shape| open(settings, shape));
    let count = PROMPTS[1];
    layers.iter().for_each(|layer| {
        prompt(&layer.model, count, 0);
    });
    let mixer = |p: &Profile| {
        let ffn = [
            Operator::Router,
            Operator::Experts,
            Operator::ExpertLatent,
            Operator::SharedExperts,
            Operator::Dense,
        ];
        layer_time(p) - ffn.iter().map(|&operator| p.of(operator)).sum()
    };
    let (mut layer_ratios, mut mixer_ratios, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..settings.runs {
        // Who goes first changes, so that a drift favours no one.
        let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut profiles = [Profile::default(), Profile::default()];
        for index in order {
            profiles[index] = prompt(&layers[index].model, count, 0).1;
        }
        let seconds =
            |part: &dyn Fn(&Profile) -> Duration| [0, 1].map(|i| part(&profiles[i]).as_secs_f64());
        let ([a, b], [c, d]) = (seconds(&layer_time), seconds(&mixer));
        layer_ratios.push(b / a);
        mixer_ratios.push(d / c);
        times.push([c, d]);
    }
    let [a, b] = [0, 1].map(|i| spread(times.iter().map(|t| t[i] * 1e3).collect())[1]);
    println!(
        "{} against {} at {count} tokens ({}), medians of {} turns and extremes:",
        recurrent.name, full.name, settings.encoding, settings.runs
    );
    for (what, ratios) in [("layer", layer_ratios), ("mixer", mixer_ratios)] {
        let [least, middle, most] = spread(ratios);
        println!("  as a {what} {middle:.2} x as fast ({least:.2} to {most:.2})");
    }
    println!("  mixers {a:.1} ms against {b:.1} ms");
}

/// The smallest, the median, and the largest.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0, values.len() / 2, values.len() - 1].map(|at| values[at])
}
