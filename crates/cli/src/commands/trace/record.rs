//! `lamella trace record`: which experts a model chooses, written down.

use crate::args::{RecordArgs, Speculate};
use crate::commands::{perplexity, tokens};
use crate::failure::{Failure, Kind};
use crate::files::NewFile;
use crate::interrupt::Interrupt;
use crate::model::{self, Place};
use crate::progress::{Progress, Unit};
use crate::settings;
use crate::terminal::{self, Terminal};
use lamella_engine::generate::Sampler;
use lamella_engine::{
    BackendKind, Cancel, Error, Logits, Model, Observer, Options, Routing, Session, Span,
};
use lamella_program::block::Ffn;
use lamella_text::{GENERATION_CONFIG_FILE, GenerationDefaults};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn run(
    args: &RecordArgs,
    terminal: &Terminal,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let options = settings::options(&args.engine, args.memory.memory, args.threads.threads);
    if options.backend == BackendKind::Reference {
        return Err(Failure::usage(
            "--backend: the reference backend does not tell which experts it chooses",
        ));
    }
    let place = Place::of(&args.model)?;
    let input = Input::open(args, &place, &options, terminal)?;
    let model = &input.model;
    let all = input.prompt.len().saturating_add(args.generate);
    settings::fits(
        "--generate, with what comes before,",
        all,
        model.report().context,
    )?;
    let seed = settings::seed(&args.sampling);
    let sampling = settings::sampling(&args.sampling, &input.generation, input.sampleable);
    let mut sampler = Sampler::new(sampling, model.vocabulary(), seed, 0)
        .map_err(|e| Failure::usage(e.to_string()))?;
    sampler.read_prompt(&input.prompt);
    interrupt.poll()?;
    let mut recording = Recording {
        model,
        session: model.session(),
        cancel: interrupt.cancel(),
        recorder: Recorder::new(&args.out)?,
        progress: Progress::new(terminal, "recording", Unit::Steps),
        all,
        logits: Vec::new(),
    };
    let chunk = args.engine.chunk.filter(|&n| n > 0);
    for tokens in input.prompt.chunks(chunk.unwrap_or(input.prompt.len())) {
        recording.step(tokens)?;
    }
    let mut ids = Vec::new();
    for _ in 0..args.generate {
        let id = sampler
            .sample(&recording.logits)
            .map_err(|e| Failure::model(e.to_string()))?;
        sampler.accept(id);
        recording.step(&[id])?;
        ids.push(id);
    }
    recording.progress.finish();
    let Recorder { file, layers, .. } = recording.recorder;
    file.finish()?;
    let (read, layers) = (input.prompt.len(), layers.len());
    if args.json {
        return terminal::print_json(&json!({
            "tokens": all,
            "prompt_tokens": read,
            "ids": ids,
            "layers": layers,
            "seed": seed,
        }));
    }
    let out = args.out.display();
    terminal.note(&format!(
        "[read {read} tokens, decoded {}, recorded {layers} layers: {out}]",
        ids.len()
    ));
    Ok(())
}

/// What is to be read, and by whom.
struct Input {
    model: Arc<Model>,
    prompt: Vec<u32>,
    /// The checkpoint's wishes for sampling.
    generation: GenerationDefaults,
    /// Ids below this may be chosen.
    sampleable: usize,
}

impl Input {
    /// Everything that can be refused is, before the weights are read.
    fn open(
        args: &RecordArgs,
        place: &Place,
        options: &Options,
        terminal: &Terminal,
    ) -> anyhow::Result<Input> {
        let store = model::store(place)?;
        let mut layers = store.program().layers.iter();
        if !layers.any(|layer| matches!(layer.ffn.body, Ffn::Routed(_))) {
            let model = args.model.display();
            return Err(Failure::usage(format!("{model}: no layer chooses experts")));
        }
        if let Some(typed) = &args.tokens {
            let prompt = tokens::parse(typed)?;
            let generation = match store.read_text(GENERATION_CONFIG_FILE)? {
                Some(text) => GenerationDefaults::from_json(GENERATION_CONFIG_FILE, &text)
                    .map_err(|error| model::text_error(store.dir(), error))?,
                None => GenerationDefaults::default(),
            };
            let model = model::open(place, options, terminal)?;
            let sampleable = model.vocabulary();
            return Ok(Input {
                model,
                prompt,
                generation,
                sampleable,
            });
        }
        let text = perplexity::read(args.text.as_deref().unwrap_or(Path::new("-")))?;
        let who = Speculate::Off;
        let (model, bundle) = model::open_with_text(place, options, who, |_| Ok(()), terminal)?;
        let prompt = bundle.tokenizer.encode(&text, true)?;
        if prompt.is_empty() {
            return Err(Failure::usage("the text is empty"));
        }
        let dir = model.store().dir();
        model::check_tokens(dir, &bundle.tokenizer, &prompt, model.vocabulary())?;
        Ok(Input {
            prompt,
            sampleable: bundle.tokenizer.vocabulary(),
            generation: bundle.generation,
            model,
        })
    }
}

/// A conversation whose routing is written down.
struct Recording<'a> {
    model: &'a Model,
    session: Session,
    cancel: Cancel,
    recorder: Recorder,
    progress: Progress,
    /// Tokens that will be read.
    all: usize,
    /// Those after the last token.
    logits: Vec<f32>,
}

impl Recording<'_> {
    fn step(&mut self, tokens: &[u32]) -> anyhow::Result<()> {
        let span = Span {
            session: &mut self.session,
            tokens,
            logits: Logits::Last,
            out: &mut self.logits,
        };
        let stepped = self
            .model
            .step_observed(&mut [span], &self.cancel, &mut self.recorder);
        if let Some(error) = self.recorder.failed.take() {
            return Err(error);
        }
        let done = self.session.position();
        if let Err(Error::Cancelled) = stepped {
            let message = format!(
                "interrupted after {done} of {} tokens; no trace is kept",
                self.all
            );
            return Err(Failure::new(Kind::Interrupted, message).into());
        }
        stepped?;
        self.progress.update(done as u64, self.all as u64);
        Ok(())
    }
}

/// Writes what is chosen, in the form that [`Trace::parse`] reads.
///
/// [`Trace::parse`]: lamella_engine::experts::Trace::parse
struct Recorder {
    path: PathBuf,
    file: NewFile,
    /// The layer written last.
    last: Option<usize>,
    layers: BTreeSet<usize>,
    /// The cause with its kind, which the engine's error does not carry.
    failed: Option<anyhow::Error>,
}

impl Recorder {
    fn new(path: &Path) -> anyhow::Result<Recorder> {
        Ok(Recorder {
            path: path.to_owned(),
            file: NewFile::create(path)?,
            last: None,
            layers: BTreeSet::new(),
            failed: None,
        })
    }
}

impl Observer for Recorder {
    fn layer(&mut self, _: usize, _: usize, _: usize, _: &[f32]) -> Result<(), Error> {
        Ok(())
    }

    fn routed(&mut self, routing: Routing<'_>) -> Result<(), Error> {
        let layer = routing.layer;
        self.layers.insert(layer);
        let mut lines = String::new();
        // One layer alone: nothing else tells its steps apart.
        if self.last.replace(layer) == Some(layer) {
            lines.push('\n');
        }
        for row in routing.chosen.chunks(routing.top_k.max(1)) {
            lines.push_str(&layer.to_string());
            for (expert, _) in row {
                lines.push_str(&format!(" {expert}"));
            }
            lines.push('\n');
        }
        self.file.write(lines.as_bytes()).map_err(|error| {
            let message = format!("{error:#}");
            self.failed = Some(error);
            let path = self.path.clone();
            Error::File { path, message }
        })
    }
}
