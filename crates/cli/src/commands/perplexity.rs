//! `lamella perplexity`: how well a model predicts a text.

use crate::args::{PerplexityArgs, Speculate};
use crate::failure::{Failure, Kind};
use crate::interrupt::Interrupt;
use crate::model::{self, Place};
use crate::progress::{Progress, Unit};
use crate::settings;
use crate::terminal::{self, Terminal};
use anyhow::Context;
use lamella_engine::generate::Logprobs;
use lamella_engine::{Cancel, Error, Logits, Model, Session, Span};
use serde_json::json;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// Rows of logits held at once.
const ROWS: usize = 128;

pub(crate) fn run(
    args: &PerplexityArgs,
    terminal: &Terminal,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    let place = Place::of(&args.model)?;
    let options = settings::options(&args.engine, args.memory.memory, args.threads.threads);
    let (model, bundle) =
        model::open_with_text(&place, &options, Speculate::Off, |_| Ok(()), terminal)?;
    let tokens = bundle.tokenizer.encode(&text, false)?;
    let dir = model.store().dir();
    model::check_tokens(dir, &bundle.tokenizer, &tokens, model.vocabulary())?;
    check_window(args.window, model.report().context)?;
    check_length(&tokens, &args.file)?;
    interrupt.poll()?;
    let mut progress = Progress::new(terminal, "scoring", Unit::Steps);
    let start = Instant::now();
    let mut scores = Vec::new();
    let mut session = model.session();
    for (index, window) in tokens.chunks(args.window).enumerate() {
        session.truncate(0)?;
        let scored = score(&model, &mut session, window, &interrupt.cancel());
        scores.extend(scored.map_err(|error| {
            match error.downcast_ref() {
                Some(Error::Cancelled) => Failure::new(
                    Kind::Interrupted,
                    format!("interrupted after {index} windows; the text has no score"),
                )
                .into(),
                _ => error,
            }
        })?);
        let done = (index * args.window + window.len()) as u64;
        progress.update(done, tokens.len() as u64);
    }
    progress.finish();
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    let time = start.elapsed();
    if args.json {
        return terminal::print_json(&json!({
            "tokens": tokens.len(),
            "window": args.window,
            "scored": scores.len(),
            "mean_nll": mean,
            "perplexity": mean.exp(),
            "encodings": model.report().encodings,
            "backend": model.report().backend.name(),
            "seconds": time.as_secs_f64(),
            "nll": scores,
        }));
    }
    terminal::print(&format!("perplexity {:.6}\n", mean.exp()))?;
    let speed = terminal::speed(tokens.len(), time);
    terminal.note(&format!(
        "[{} of {} tokens scored in windows of {}, mean nll {mean:.6}{speed}]",
        scores.len(),
        tokens.len(),
        args.window,
    ));
    Ok(())
}

/// The text of a file, or of standard input for `-`.
///
/// # Errors
/// If it cannot be read or is no UTF-8 text.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// A token is scored by those before it, so it takes two.
fn check_length(tokens: &[u32], file: &Path) -> anyhow::Result<()> {
    if tokens.len() < 2 {
        return Err(Failure::usage(format!(
            "{}: too short to be scored: it has {} of the 2 tokens that takes",
            file.display(),
            tokens.len()
        )));
    }
    Ok(())
}

/// Windows longer than the context could not be read. Their last token is only predicted.
fn check_window(window: usize, context: usize) -> anyhow::Result<()> {
    let most = context.saturating_add(1);
    if window <= most {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--window: {window} is beyond {most}, the most that a context of {context} allows"
    )))
}

/// -ln p of each token of the window but the first.
fn score(
    model: &Model,
    session: &mut Session,
    window: &[u32],
    cancel: &Cancel,
) -> anyhow::Result<Vec<f64>> {
    let mut logprobs = Logprobs::new(0);
    let mut out = Vec::new();
    let mut scores = Vec::with_capacity(window.len());
    // The last token only needs to be predicted.
    let read = &window[..window.len() - 1];
    for (index, tokens) in read.chunks(ROWS).enumerate() {
        let span = Span {
            session: &mut *session,
            tokens,
            logits: Logits::All,
            out: &mut out,
        };
        model.step(&mut [span], cancel)?;
        let targets = &window[index * ROWS + 1..];
        for (row, &target) in out.chunks_exact(model.vocabulary()).zip(targets) {
            scores.push(-logprobs.of(row, target).0);
        }
    }
    Ok(scores)
}
