//! What is measured: prompts that are read, tokens that are decoded.

use super::figures::{Bandwidth, Line, Reads, statistics};
use super::{Bench, memory};
use crate::args::BenchArgs;
use crate::settings;
use crate::terminal;
use lamella_engine::{Logits, Model, Session, Span};
use std::time::{Duration, Instant};

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Read a prompt of so many tokens.
    Prompt(usize),
    /// Decode so many tokens in each of `batch` conversations together.
    Decode { tokens: usize, batch: usize },
}

impl Test {
    /// Refuses what the context or the memory does not hold.
    pub(super) fn check(self, model: &Model, free: &memory::Free) -> anyhow::Result<()> {
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

    /// The name in a table.
    pub(super) fn name(self) -> String {
        match self {
            Test::Prompt(tokens) => format!("pp{tokens}"),
            Test::Decode { tokens, batch: 1 } => format!("tg{tokens}"),
            Test::Decode { tokens, batch } => format!("tg{tokens}x{batch}"),
        }
    }
}

/// Everything asked for.
pub(super) fn tests(args: &BenchArgs) -> Vec<Test> {
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

impl Bench<'_> {
    /// Runs `test` as often as asked for, and once before.
    pub(super) fn measure(
        &mut self,
        model: &Model,
        test: Test,
        memory: u64,
        bandwidth: Option<Bandwidth>,
    ) -> anyhow::Result<Line> {
        let mut rates = Vec::with_capacity(self.args.repeat);
        let (mut before, mut all, mut whole) = (None, 0, Duration::ZERO);
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
                all += tokens;
                whole += time;
            }
            self.count(1);
        }
        let experts = model.experts().zip(before);
        let experts = experts.map(|(now, before)| now.since(&before));
        let (mean, deviation) = statistics(&rates);
        let report = model.report();
        let (tokens, batch) = match test {
            Test::Prompt(tokens) => (tokens, 0),
            Test::Decode { tokens, batch } => (tokens, batch),
        };
        // Conversations decoded together share weights: their bytes cannot be told from outside.
        let share = bandwidth.filter(|_| batch == 1 && experts.is_none());
        Ok(Line {
            test: test.name(),
            memory,
            threads: report.threads,
            tokens,
            batch,
            mean,
            deviation,
            rates,
            resident_bytes: report.resident_bytes,
            active_bytes: report.active_bytes,
            bandwidth_share: share.map(|b| mean * report.active_bytes as f64 / b.bytes_per_second),
            experts: experts.map(|counts| terminal::experts_json(&counts)),
            reads: experts.map(|counts| Reads::of(&counts, all, whole)),
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
