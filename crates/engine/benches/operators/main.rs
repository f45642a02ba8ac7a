//! What every operator of a layer costs at production shape:
//! `cargo bench -p lamella-engine --bench operators [-- [FILTER] [q4|q8|bf16] [cpu]
//! [experts=MILLIONS]]`.
//!
//! For each kind of layer of every family a checkpoint of that one layer is made up (published
//! shapes, random weights, a small vocabulary, and only as many experts as their share of memory
//! holds), opened, and run: prompts of 512 and 2048 tokens, and single tokens behind 2048 others.
//! The numbers are medians of each operator; with `cpu` they are processor time of a single
//! thread, which counts for something on a machine that has other things to do. `FILTER` is a part
//! of a layer's name; the filter `pairs` measures delta nets against full attention instead, turn
//! by turn.

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
/// Samples of every measurement.
const SAMPLES: usize = 5;
/// Turns of a comparison.
const TURNS: usize = 9;

struct Settings {
    filter: String,
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
        encoding: Encoding::Q4,
        experts: 400_000_000,
        cpu: false,
    };
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--bench" => {}
            "cpu" => settings.cpu = true,
            "q4" => settings.encoding = Encoding::Q4,
            "q8" => settings.encoding = Encoding::Q8,
            "bf16" => settings.encoding = Encoding::Bf16,
            other => match other.strip_prefix("experts=") {
                Some(millions) => {
                    settings.experts = millions.parse::<usize>().unwrap() * 1_000_000;
                }
                None => other.clone_into(&mut settings.filter),
            },
        }
    }
    if settings.filter == "pairs" {
        shapes::pairs()
            .iter()
            .for_each(|pair| compare(&settings, pair));
        return;
    }
    let wanted = |shape: &Shape| shape.name.contains(&settings.filter);
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
    assert_eq!(model.program().layers.len(), 1);
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

/// A prompt in a new session, and what it cost.
fn prompt(model: &Model, count: usize) -> (Session, Profile) {
    let mut session = model.session();
    session.reserve(count + SAMPLES * TOKENS + 1).unwrap();
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
    prompt(&model, PROMPTS[0]);
    let mut columns: Vec<(f64, Vec<Profile>)> = Vec::new();
    for count in PROMPTS {
        let samples = (0..SAMPLES).map(|_| prompt(&model, count).1).collect();
        columns.push((1.0, samples));
    }
    let (mut session, _) = prompt(&model, PROMPTS[1]);
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
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
        prompt(&layer.model, count);
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
    for turn in 0..TURNS {
        // Who goes first changes, so that a drift favours no one.
        let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut profiles = [Profile::default(), Profile::default()];
        for index in order {
            profiles[index] = prompt(&layers[index].model, count).1;
        }
        let seconds =
            |part: &dyn Fn(&Profile) -> Duration| [0, 1].map(|i| part(&profiles[i]).as_secs_f64());
        let ([a, b], [c, d]) = (seconds(&layer_time), seconds(&mixer));
        layer_ratios.push(b / a);
        mixer_ratios.push(d / c);
        times.push([c, d]);
    }
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let [a, b] = [0, 1].map(|i| middle(times.iter().map(|t| t[i] * 1e3).collect()));
    println!(
        "{} against {} at {count} tokens ({}): speed {:.2} x as a layer, {:.2} x as a mixer \
         ({a:.1} ms against {b:.1} ms), medians of {TURNS} turns",
        recurrent.name,
        full.name,
        settings.encoding,
        middle(layer_ratios),
        middle(mixer_ratios),
    );
}
