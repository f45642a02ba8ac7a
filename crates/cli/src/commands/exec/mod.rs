//! `lamella exec`: token ids in, logits, layers and greedy tokens out.

mod journal;
mod layers;

use super::tokens;
use crate::args::ExecArgs;
use crate::failure::{Failure, Kind};
use crate::files::NewFile;
use crate::interrupt::Interrupt;
use crate::model::{self, Place};
use crate::settings;
use crate::terminal::{self, Terminal};
use lamella_engine::generate::{Sampler, Sampling};
use lamella_engine::options::DEFAULT_STEP_ROWS;
use lamella_engine::{Cancel, Error, Logits, Model, Session, Span};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// Rows of logits held at once when they go to a file.
const LOGITS_ROWS: usize = 64;

pub(crate) fn run(
    args: &ExecArgs,
    terminal: &Terminal,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let tokens = tokens::parse(&args.tokens)?;
    let place = Place::of(&args.model)?;
    let mut options = settings::options(&args.engine, args.memory.memory, args.threads.threads);
    if args.layers.is_some() {
        // One piece, so that a layer is complete before the next one begins.
        options.step_rows = tokens.len().max(DEFAULT_STEP_ROWS);
    }
    let model = model::open(&place, &options, terminal)?;
    settings::fits("--tokens", tokens.len(), model.report().context)?;
    interrupt.poll()?;
    let run = Run {
        model: &model,
        tokens: &tokens,
        cancel: interrupt.cancel(),
    };
    let done = match &args.layers {
        Some(dir) => run.layers(dir, args.resume, args.logits.as_deref(), terminal)?,
        None => {
            let default = usize::from(args.logits.is_none());
            let chunk = args.engine.chunk.unwrap_or(0);
            run.tokens(
                chunk,
                args.generate.unwrap_or(default),
                args.logits.as_deref(),
            )?
        }
    };
    if args.json {
        terminal::print_json(&to_json(&model, &tokens, &done))?;
    } else if !done.ids.is_empty() {
        let ids: Vec<String> = done.ids.iter().map(u32::to_string).collect();
        terminal::print(&format!("{}\n", ids.join(",")))?;
    }
    let (found, asked) = (done.ids.len(), done.asked);
    match done.end {
        End::Complete => {}
        End::ContextFull => terminal.note(&format!(
            "warning: --generate: the context of {} is full after {found} of {asked} tokens",
            model.report().context
        )),
        End::Interrupted => {
            let message = format!("interrupted after {found} of {asked} tokens, which are printed");
            return Err(Failure::new(Kind::Interrupted, message).into());
        }
    }
    if !args.json {
        terminal.note(&summary(&tokens, &done));
    }
    Ok(())
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    /// All that was asked for is there.
    #[default]
    Complete,
    /// The context holds no more.
    ContextFull,
    /// The person stopped it.
    Interrupted,
}

impl End {
    /// The name in JSON.
    fn name(self) -> &'static str {
        match self {
            End::Complete => "complete",
            End::ContextFull => "context_full",
            End::Interrupted => "interrupted",
        }
    }
}

/// What was generated and how long it took.
#[derive(Default)]
struct Done {
    ids: Vec<u32>,
    /// Tokens that were to be generated.
    asked: usize,
    end: End,
    /// Layers that an earlier run had computed.
    resumed_layers: Option<usize>,
    prompt_time: Duration,
    decode_time: Duration,
}

struct Run<'a> {
    model: &'a Model,
    tokens: &'a [u32],
    cancel: Cancel,
}

impl Run<'_> {
    fn tokens(&self, chunk: usize, generate: usize, file: Option<&Path>) -> anyhow::Result<Done> {
        let mut session = self.model.session();
        let start = Instant::now();
        let logits = match file {
            Some(path) => self.read_to_file(&mut session, chunk, path)?,
            None => self.read(&mut session, chunk)?,
        };
        let prompt_time = start.elapsed();
        let start = Instant::now();
        let (ids, end) = self.continue_greedily(&mut session, logits, generate)?;
        Ok(Done {
            ids,
            asked: generate,
            end,
            prompt_time,
            decode_time: start.elapsed(),
            resumed_layers: None,
        })
    }

    fn chunks(&self, chunk: usize) -> std::slice::Chunks<'_, u32> {
        self.tokens
            .chunks(if chunk == 0 { self.tokens.len() } else { chunk })
    }

    /// Reads the tokens; returns the logits after the last.
    fn read(&self, session: &mut Session, chunk: usize) -> anyhow::Result<Vec<f32>> {
        let mut out = Vec::new();
        for tokens in self.chunks(chunk) {
            let logits = Logits::Last;
            let span = Span {
                session: &mut *session,
                tokens,
                logits,
                out: &mut out,
            };
            self.step(span, "nothing is kept")?;
        }
        Ok(out)
    }

    /// One step over the given tokens; `kept` says what an interruption leaves.
    fn step(&self, span: Span<'_>, kept: &str) -> anyhow::Result<()> {
        let (read, all) = (span.session.position(), self.tokens.len());
        match self.model.step(&mut [span], &self.cancel) {
            Err(Error::Cancelled) => {
                let message = format!("interrupted after {read} of {all} tokens were read; {kept}");
                Err(Failure::new(Kind::Interrupted, message).into())
            }
            other => Ok(other?),
        }
    }

    /// Reads the tokens, writing the logits after each; returns those after the last.
    fn read_to_file(
        &self,
        session: &mut Session,
        chunk: usize,
        path: &Path,
    ) -> anyhow::Result<Vec<f32>> {
        let mut file = NewFile::create(path)?;
        let mut out = Vec::new();
        for tokens in self.chunks(if chunk == 0 { LOGITS_ROWS } else { chunk }) {
            let logits = Logits::All;
            let span = Span {
                session: &mut *session,
                tokens,
                logits,
                out: &mut out,
            };
            self.step(span, "no logits are kept")?;
            file.write_f32(&out)?;
        }
        file.finish()?;
        out.drain(..out.len() - self.model.vocabulary());
        Ok(out)
    }

    /// At most `count` tokens after what was read; fewer if the context ends or the person stops
    /// it.
    fn continue_greedily(
        &self,
        session: &mut Session,
        mut logits: Vec<f32>,
        count: usize,
    ) -> anyhow::Result<(Vec<u32>, End)> {
        let vocabulary = self.model.vocabulary();
        let mut sampler = Sampler::new(Sampling::greedy(), vocabulary, 0, 0)?;
        let mut ids = Vec::new();
        while ids.len() < count {
            let id = sampler
                .sample(&logits)
                .map_err(|e| Failure::model(e.to_string()))?;
            ids.push(id);
            if ids.len() == count {
                break;
            }
            if session.position() == session.context() {
                return Ok((ids, End::ContextFull));
            }
            let span = Span {
                session: &mut *session,
                tokens: &[id],
                logits: Logits::Last,
                out: &mut logits,
            };
            match self.model.step(&mut [span], &self.cancel) {
                Err(Error::Cancelled) => return Ok((ids, End::Interrupted)),
                other => other?,
            }
        }
        Ok((ids, End::Complete))
    }

    fn layers(
        &self,
        dir: &Path,
        resume: bool,
        file: Option<&Path>,
        terminal: &Terminal,
    ) -> anyhow::Result<Done> {
        let start = Instant::now();
        let job = layers::Job {
            model: self.model,
            tokens: self.tokens,
            dir,
            resume,
            want_logits: file.is_some(),
            cancel: &self.cancel,
            terminal,
        };
        let (resumed, logits) = job.run()?;
        if let Some(path) = file {
            let mut file = NewFile::create(path)?;
            file.write_f32(&logits)?;
            file.finish()?;
        }
        let prompt_time = start.elapsed();
        Ok(Done {
            resumed_layers: resume.then_some(resumed),
            prompt_time,
            ..Done::default()
        })
    }
}

fn to_json(model: &Model, tokens: &[u32], done: &Done) -> serde_json::Value {
    let report = model.report();
    let (read, steps) = (tokens.len(), done.ids.len().saturating_sub(1));
    json!({
        "ids": done.ids,
        "end": done.end.name(),
        "positions": read,
        "vocabulary": model.vocabulary(),
        "backend": report.backend.name(),
        "isa": report.isa.map(|isa| isa.name()),
        "threads": report.threads,
        "encodings": report.encodings,
        "resumed_layers": done.resumed_layers,
        "timings": {
            "open_ms": terminal::milliseconds(report.open_time),
            "prompt_ms": terminal::milliseconds(done.prompt_time),
            "prompt_per_second": terminal::rate(read, done.prompt_time),
            "decode_ms": terminal::milliseconds(done.decode_time),
            "decode_per_second": terminal::rate(steps, done.decode_time),
        },
    })
}

fn summary(tokens: &[u32], done: &Done) -> String {
    let read = tokens.len();
    let mut text = format!(
        "[read {read} tokens{}",
        terminal::speed(read, done.prompt_time)
    );
    if !done.ids.is_empty() {
        let steps = done.ids.len() - 1;
        let decoded = terminal::speed(steps, done.decode_time);
        text.push_str(&format!(", generated {}{decoded}", done.ids.len()));
    }
    if let Some(layers) = done.resumed_layers {
        text.push_str(&format!(", {layers} layers were there"));
    }
    text + "]"
}
