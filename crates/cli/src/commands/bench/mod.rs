//! `lamella bench`: prompt and decode speed.

mod memory;

use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::model::{self, Place};
use crate::progress::{self, Progress, Unit};
use crate::settings;
use crate::terminal::{self, Terminal};
use anyhow::Context;
use lamella_engine::plan::probe::memory::{BYTES_A_THREAD, measure};
use lamella_engine::{Cancel, Logits, Model, Session, Span};
use lamella_kernels::{Isa, Kernels};
use serde::Serialize;
use serde_json::json;
use std::time::{Duration, Instant};

/// Passes over the memory in each way to read it.
const PASSES: usize = 4;

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    /// Read a prompt of so many tokens.
    Prompt(usize),
    /// Decode so many tokens in each of `batch` conversations together.
    Decode { tokens: usize, batch: usize },
}

impl Test {
    /// Refuses what the context or the memory does not hold.
    fn check(self, model: &Model, free: &memory::Free) -> anyhow::Result<()> {
        let (option, tokens, batch) = match self {
            Test::Prompt(tokens) => ("--prompt", tokens, 1),
            Test::Decode { tokens, batch } => ("--decode", tokens, batch),
        };
        settings::fits(option, tokens, model.report().context)?;
        let what = match batch {
            1 => format!("{option} {tokens}"),
            _ => format!("{option} {tokens} --batch {batch}"),
        };
        let need = memory::conversations(model, tokens, batch);
        Ok(free.holds(&what, need, "Measure fewer or shorter conversations")?)
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
struct Line {
    test: String,
    threads: usize,
    tokens: usize,
    batch: usize,
    /// Tokens per second, mean of the repetitions.
    mean: f64,
    /// Standard deviation.
    deviation: f64,
    rates: Vec<f64>,
    /// Bytes of weights that a step of one token reads.
    active_bytes: u64,
    /// Share of the read bandwidth that the weights of a decode step take up.
    bandwidth_share: Option<f64>,
    /// What was counted of experts, where not all fit into memory.
    experts: Option<serde_json::Value>,
    /// Share of the uses of experts that found them in memory.
    #[serde(skip)]
    hits: Option<String>,
}

/// Read bandwidth of the memory, in bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
struct Bandwidth {
    threads: usize,
    bytes_per_second: f64,
}

pub(crate) fn run(args: &BenchArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::usage("nothing to measure: -p and -n are both 0"));
    }
    let place = Place::of(&args.model)?;
    let threads = match args.threads.as_slice() {
        [] => vec![None],
        list => list.iter().map(|&n| Some(n)).collect(),
    };
    let mut bench = Bench {
        args,
        cancel: Cancel::new(),
        progress: Progress::new(terminal, "measuring", Unit::Steps),
        done: 0,
        total: (threads.len() * tests.len() * (args.repeat + 1)) as u64,
    };
    let (mut lines, mut bandwidths, mut model_facts) = (Vec::new(), Vec::new(), None);
    for threads in threads {
        let options = settings::options(&args.engine, args.memory.memory, threads);
        let model = model::open(&place, &options, terminal)?;
        let free = memory::Free::beside(&model, options.memory_limit);
        for test in &tests {
            test.check(&model, &free)?;
        }
        let bandwidth = if args.no_bandwidth {
            None
        } else {
            let report = model.report();
            let isa = report.isa.unwrap_or_else(Isa::detect);
            let kernels = Kernels::new(isa).context("the processor has lost an instruction set")?;
            free.holds(
                "measuring the read bandwidth",
                (report.threads as u64).saturating_mul(BYTES_A_THREAD as u64),
                "--no-bandwidth leaves it out",
            )?;
            Some(Bandwidth {
                threads: report.threads,
                bytes_per_second: measure(kernels, report.threads, BYTES_A_THREAD, PASSES)?,
            })
        };
        bandwidths.extend(bandwidth);
        for &test in &tests {
            lines.push(bench.measure(&model, test, bandwidth)?);
        }
        model_facts.get_or_insert_with(|| facts(&model, args));
    }
    bench.progress.finish();
    if args.json {
        return terminal::print_json(&json!({
            "model": model_facts,
            "bandwidth": bandwidths,
            "tests": lines,
        }));
    }
    print(args, &model_facts.unwrap_or_default(), &lines, &bandwidths)
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let prompts = args
        .prompt
        .iter()
        .map(|&n| Test::Prompt(n))
        .filter(|t| *t != Test::Prompt(0));
    let decodes = args.decode.iter().filter(|&&n| n > 0).flat_map(|&tokens| {
        args.batch
            .iter()
            .map(move |&batch| Test::Decode { tokens, batch })
    });
    prompts.chain(decodes).collect()
}

fn facts(model: &Model, args: &BenchArgs) -> serde_json::Value {
    let report = model.report();
    json!({
        "path": args.model,
        "family": model.program().family,
        "parameters": model.program().parameters(),
        "resident_bytes": report.resident_bytes,
        "encodings": report.encodings,
        "backend": report.backend.name(),
        "isa": report.isa.map(|isa| isa.name()),
    })
}

fn print(
    args: &BenchArgs,
    facts: &serde_json::Value,
    lines: &[Line],
    bandwidths: &[Bandwidth],
) -> anyhow::Result<()> {
    let word = |key: &str| facts[key].as_str().unwrap_or("plain").to_owned();
    let encodings = facts["encodings"].as_object().into_iter().flatten();
    let encodings: Vec<&str> = encodings.map(|(name, _)| name.as_str()).collect();
    let size = progress::bytes(facts["resident_bytes"].as_u64().unwrap_or(0));
    let mut text = format!(
        "{}: {}, {:.2} M parameters, {size} ({}), {} {}\n",
        args.model.display(),
        terminal::plain(&word("family")),
        facts["parameters"].as_f64().unwrap_or(0.0) / 1e6,
        encodings.join(", "),
        word("backend"),
        word("isa"),
    );
    for b in bandwidths {
        let rate = b.bytes_per_second / 1e9;
        text.push_str(&format!(
            "read bandwidth with {} threads: {rate:.1} GB/s\n",
            b.threads
        ));
    }
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    // Weights that are read from disk take no share of the memory's bandwidth.
    let last = match lines.iter().any(|line| line.hits.is_some()) {
        true => "experts in memory",
        false => "bandwidth",
    };
    text.push('\n');
    text.push_str(&terminal::columns(
        &["test", "threads", "tok/s", "±", last],
        &rows,
    ));
    terminal::print(&text)
}

fn row(line: &Line) -> Vec<String> {
    let share = line
        .bandwidth_share
        .map(|share| format!("{:.0} %", share * 100.0));
    vec![
        line.test.clone(),
        line.threads.to_string(),
        format!("{:.2}", line.mean),
        format!("{:.2}", line.deviation),
        line.hits.clone().or(share).unwrap_or_default(),
    ]
}

struct Bench<'a> {
    args: &'a BenchArgs,
    cancel: Cancel,
    progress: Progress,
    done: u64,
    total: u64,
}

impl Bench<'_> {
    fn measure(
        &mut self,
        model: &Model,
        test: Test,
        bandwidth: Option<Bandwidth>,
    ) -> anyhow::Result<Line> {
        let mut rates = Vec::with_capacity(self.args.repeat);
        let mut before = None;
        for repetition in 0..=self.args.repeat {
            let seed = repetition as u64;
            if repetition == 1 {
                before = model.experts();
            }
            let (tokens, time) = match test {
                Test::Prompt(tokens) => self.prompt(model, tokens, seed)?,
                Test::Decode { tokens, batch } => self.decode(model, tokens, batch, seed)?,
            };
            // The first one warms up caches and page tables.
            if repetition > 0 {
                rates.push(tokens as f64 / time.as_secs_f64());
            }
            self.done += 1;
            self.progress.update(self.done, self.total);
        }
        let experts = model.experts().zip(before);
        let experts = experts.map(|(now, before)| now.since(&before));
        let (mean, deviation) = statistics(&rates);
        let active_bytes = model.report().active_bytes;
        let (tokens, batch) = match test {
            Test::Prompt(tokens) => (tokens, 0),
            Test::Decode { tokens, batch } => (tokens, batch),
        };
        // Conversations decoded together share weights: their bytes cannot be told from outside.
        let share = bandwidth.filter(|_| batch == 1 && experts.is_none());
        Ok(Line {
            test: name(test),
            threads: model.report().threads,
            tokens,
            batch,
            mean,
            deviation,
            rates,
            active_bytes,
            bandwidth_share: share.map(|b| mean * active_bytes as f64 / b.bytes_per_second),
            hits: experts.map(|counts| terminal::percent(counts.hits, counts.uses)),
            experts: experts.map(|counts| terminal::experts_json(&counts)),
        })
    }

    fn prompt(&self, model: &Model, count: usize, seed: u64) -> anyhow::Result<(usize, Duration)> {
        let mut tokens = Tokens::new(seed, model.vocabulary());
        let prompt: Vec<u32> = (0..count).map(|_| tokens.next()).collect();
        let mut session = model.session();
        session.reserve(count)?;
        let mut out = Vec::new();
        let chunk = self.args.engine.chunk.filter(|&n| n > 0).unwrap_or(count);
        let start = Instant::now();
        for tokens in prompt.chunks(chunk) {
            let logits = Logits::Last;
            let span = Span {
                session: &mut session,
                tokens,
                logits,
                out: &mut out,
            };
            model.step(&mut [span], &self.cancel)?;
        }
        Ok((count, start.elapsed()))
    }

    fn decode(
        &self,
        model: &Model,
        count: usize,
        batch: usize,
        seed: u64,
    ) -> anyhow::Result<(usize, Duration)> {
        let mut tokens = Tokens::new(seed, model.vocabulary());
        let mut sessions = Vec::with_capacity(batch);
        for _ in 0..batch {
            let mut session: Session = model.session();
            session.reserve(count)?;
            sessions.push(session);
        }
        let mut outs = vec![Vec::with_capacity(model.vocabulary()); batch];
        let mut ids = vec![[0u32]; batch];
        let start = Instant::now();
        for _ in 0..count {
            ids.iter_mut().for_each(|id| *id = [tokens.next()]);
            let lanes = sessions.iter_mut().zip(&ids).zip(&mut outs);
            let mut spans: Vec<Span<'_>> = lanes
                .map(|((session, tokens), out)| Span {
                    session,
                    tokens,
                    logits: Logits::Last,
                    out,
                })
                .collect();
            model.step(&mut spans, &self.cancel)?;
        }
        Ok((count * batch, start.elapsed()))
    }
}

fn name(test: Test) -> String {
    match test {
        Test::Prompt(tokens) => format!("pp{tokens}"),
        Test::Decode { tokens, batch: 1 } => format!("tg{tokens}"),
        Test::Decode { tokens, batch } => format!("tg{tokens}x{batch}"),
    }
}

/// Mean and standard deviation of a sample.
fn statistics(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
    (
        mean,
        if values.len() < 2 {
            0.0
        } else {
            (squares / (count - 1.0)).sqrt()
        },
    )
}

/// Token ids that look random and are the same in every run (splitmix64, Steele et al. 2014).
struct Tokens {
    state: u64,
    vocabulary: u64,
}

impl Tokens {
    fn new(seed: u64, vocabulary: usize) -> Tokens {
        Tokens {
            state: seed,
            vocabulary: vocabulary as u64,
        }
    }

    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % self.vocabulary) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_a_sample() {
        let (mean, deviation) = statistics(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((mean - 5.0).abs() < 1e-12 && (deviation - (32f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(statistics(&[3.0]), (3.0, 0.0));
    }

    #[test]
    fn tokens_repeat_and_stay_in_the_vocabulary() {
        let draw = |seed| {
            let mut tokens = Tokens::new(seed, 10);
            (0..100).map(|_| tokens.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((0..10).all(|id| draw(1).contains(&id)) && draw(1).iter().all(|&id| id < 10));
    }
}
