//! `--layers DIR`: the stream after each layer, one file a layer, resumable.
//!
//! `run.json` says what is being computed, with which weights, and is written first,
//! `manifest.json` last; a layer file appears whole, and the journal then records its digest. So a
//! directory without a manifest is an unfinished run, and the layer files it holds are good as far
//! as the journal vouches for them.

use super::journal::{self, Entry, Journal};
use crate::failure::{Failure, Kind};
use crate::files::{self, NewFile};
use crate::progress::{Progress, Unit};
use crate::terminal::Terminal;
use anyhow::Context;
use lamella_engine::{Cancel, Error, Logits, Model, Observer, Span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const RUN_FILE: &str = "run.json";
const MANIFEST_FILE: &str = "manifest.json";
const FORMAT: &str = "lamella layers 2";
/// Most of a plan that is read: a token takes eleven bytes at most.
const MAX_PLAN_BYTES: u64 = 1 << 30;
/// Values that are hashed and written at once.
const CHUNK: usize = 1 << 16;

/// What decides the bits of the layers: equal plans give equal files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    format: String,
    /// Digest of the program.
    program: String,
    /// Identity of the container, if the model is one.
    container: Option<String>,
    /// What tells these weights from others: see [`lamella_container::Store::fingerprint`].
    weights: String,
    backend: String,
    /// Elements held per encoding.
    encodings: BTreeMap<String, u64>,
    /// Version of the numeric recipe of the kernels.
    recipe: u32,
    tokens: Vec<u32>,
    /// Values per position.
    width: usize,
    layers: usize,
}

/// One finished file.
#[derive(Clone, Debug, Serialize)]
struct LayerFile {
    file: String,
    bytes: u64,
    blake3: String,
}

#[derive(Serialize)]
struct Manifest<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    dtype: &'static str,
    shape: [usize; 2],
    files: Vec<LayerFile>,
}

/// What to compute and where.
pub(super) struct Job<'a> {
    pub(super) model: &'a Model,
    pub(super) tokens: &'a [u32],
    pub(super) dir: &'a Path,
    /// Whether to go on with what is there.
    pub(super) resume: bool,
    /// Whether the logits after every token are wanted too.
    pub(super) want_logits: bool,
    pub(super) cancel: &'a Cancel,
    pub(super) terminal: &'a Terminal,
}

impl Job<'_> {
    /// Computes all layers that are not there yet. Returns how many were, and the logits if they
    /// are wanted (else nothing).
    ///
    /// # Errors
    /// If the directory holds another run or cannot be written, or the model fails. What was
    /// finished stays for `--resume`.
    pub(super) fn run(&self) -> anyhow::Result<(usize, Vec<f32>)> {
        let plan = Plan::of(self.model, self.tokens)?;
        let mut journal = self.prepare(&plan)?;
        let there = journal.entries().len();
        let mut out = Vec::new();
        if there < plan.layers || self.want_logits {
            self.compute(&plan, &mut journal, &mut out)?;
        }
        let files = journal.entries().iter().enumerate();
        let manifest = Manifest {
            plan: &plan,
            dtype: "f32 little-endian",
            shape: [self.tokens.len(), plan.width],
            files: files.map(|(layer, entry)| describe(layer, entry)).collect(),
        };
        files::write(
            &self.dir.join(MANIFEST_FILE),
            &serde_json::to_vec_pretty(&manifest)?,
        )?;
        Ok((there, out))
    }

    fn compute(
        &self,
        plan: &Plan,
        journal: &mut Journal,
        out: &mut Vec<f32>,
    ) -> anyhow::Result<()> {
        let there = journal.entries().len();
        let mut session = self.model.session();
        let logits = if self.want_logits {
            Logits::All
        } else {
            Logits::None
        };
        let span = Span {
            session: &mut session,
            tokens: self.tokens,
            logits,
            out,
        };
        let progress = Progress::new(self.terminal, "layers", Unit::Steps);
        let mut writer = Writer {
            dir: self.dir,
            layers: plan.layers,
            journal,
            progress,
            failed: None,
        };
        let result = match there {
            0 => self
                .model
                .step_observed(&mut [span], self.cancel, &mut writer),
            _ => {
                let stream = read_layer(self.dir, there - 1, plan)?;
                let observer = Some(&mut writer as &mut dyn Observer);
                self.model
                    .step_from_layer(span, there, &stream, self.cancel, observer)
            }
        };
        writer.progress.finish();
        if let Some(error) = writer.failed {
            return Err(error);
        }
        match result {
            Err(Error::Cancelled) => {
                let (dir, kept) = (self.dir.display(), writer.journal.entries().len());
                let layers = plan.layers;
                let message = format!(
                    "{dir}: interrupted; {kept} of {layers} layers are kept, --resume goes on"
                );
                Err(Failure::new(Kind::Interrupted, message).into())
            }
            other => other.context("--resume continues after the last complete layer"),
        }
    }

    /// Makes the directory ready; the journal knows which layers are there already.
    fn prepare(&self, plan: &Plan) -> anyhow::Result<Journal> {
        let dir = self.dir;
        if dir.exists() && !dir.is_dir() {
            let dir = dir.display();
            return Err(Failure::usage(format!("--layers: {dir}: not a directory")));
        }
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let run_file = dir.join(RUN_FILE);
        let text = serde_json::to_vec_pretty(plan)?;
        let run = blake3::hash(&text).to_hex().to_string();
        if !run_file.exists() {
            check_empty(dir)?;
            files::write(&run_file, &text)?;
            return Journal::start(dir, &run, Vec::new());
        }
        if !self.resume {
            let dir = dir.display();
            return Err(Failure::usage(format!(
                "{dir}: an earlier run is there; --resume continues it, or remove the directory"
            )));
        }
        check_same(dir, plan)?;
        check_regular(dir, plan.layers)?;
        let left = journal::left(dir, &run, plan.layers, |layer| layer_path(dir, layer))?;
        if let Some(layer) = left.damaged {
            let path = layer_path(dir, layer);
            self.terminal.note(&format!(
                "warning: {}: not what was written; computing from this layer on again",
                path.display()
            ));
        }
        if left.entries.len() < plan.layers {
            // An unfinished run has no manifest.
            let manifest = dir.join(MANIFEST_FILE);
            match fs::remove_file(&manifest) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| manifest.display().to_string());
                }
                _ => {}
            }
        }
        Journal::start(dir, &run, left.entries)
    }
}

/// Refuses a directory that holds anything but what a run of ours left before its first file.
fn check_empty(dir: &Path) -> anyhow::Result<()> {
    let named = || dir.display().to_string();
    for entry in fs::read_dir(dir).with_context(named)? {
        let name = entry.with_context(named)?.file_name();
        if !name.to_string_lossy().starts_with(files::PREFIX) {
            return Err(Failure::usage(format!(
                "--layers: {}: not of an earlier run; choose an empty or a new directory",
                dir.join(name).display()
            )));
        }
    }
    Ok(())
}

/// Refuses to go on where something else has the name of a file of a run: a pipe would wait.
fn check_regular(dir: &Path, layers: usize) -> anyhow::Result<()> {
    let ours = [journal::JOURNAL_FILE, MANIFEST_FILE].map(|name| dir.join(name));
    let mut all = ours
        .into_iter()
        .chain((0..layers).map(|n| layer_path(dir, n)));
    match all.find(|path| path.metadata().is_ok_and(|m| !m.is_file())) {
        None => Ok(()),
        Some(path) => {
            let path = path.display();
            Err(Failure::usage(format!("{path}: not a regular file")))
        }
    }
}

/// Refuses to go on with what another run has begun.
fn check_same(dir: &Path, plan: &Plan) -> anyhow::Result<()> {
    let run_file = dir.join(RUN_FILE);
    let text = files::read_bounded(files::open(&run_file)?, MAX_PLAN_BYTES)
        .with_context(|| run_file.display().to_string())?;
    let unusable = |e: serde_json::Error| Failure::usage(format!("{}: {e}", run_file.display()));
    let any: serde_json::Value = serde_json::from_slice(&text).map_err(unusable)?;
    let cure = "remove the directory or choose another one";
    if any["format"] != FORMAT {
        let dir = dir.display();
        return Err(Failure::usage(format!(
            "{dir}: the run there was begun by another version of lamella; {cure}"
        )));
    }
    let earlier: Plan = serde_json::from_value(any).map_err(unusable)?;
    match difference(&earlier, plan) {
        None => Ok(()),
        Some(field) => {
            let dir = dir.display();
            Err(Failure::usage(format!(
                "{dir}: the run there has other {field}; resuming would mix two runs: {cure}"
            )))
        }
    }
}

impl Plan {
    fn of(model: &Model, tokens: &[u32]) -> anyhow::Result<Plan> {
        let (program, report) = (model.program(), model.report());
        let encodings = report
            .encodings
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n));
        Ok(Plan {
            format: FORMAT.to_owned(),
            program: blake3::hash(&serde_json::to_vec(program)?)
                .to_hex()
                .to_string(),
            container: model.store().identity().map(str::to_owned),
            weights: blake3::Hash::from_bytes(model.store().fingerprint()?)
                .to_hex()
                .to_string(),
            backend: report.backend.name().to_owned(),
            encodings: encodings.collect(),
            recipe: lamella_kernels::RECIPE,
            tokens: tokens.to_vec(),
            width: program.row_width(),
            layers: program.layers.len(),
        })
    }

    fn layer_bytes(&self) -> u64 {
        (self.tokens.len() * self.width * 4) as u64
    }
}

/// The first thing in which two plans differ.
fn difference(a: &Plan, b: &Plan) -> Option<&'static str> {
    let fields = [
        ("format", a.format == b.format),
        (
            "program",
            a.program == b.program && a.width == b.width && a.layers == b.layers,
        ),
        (
            "weights",
            a.container == b.container && a.weights == b.weights,
        ),
        ("backend", a.backend == b.backend),
        ("encodings", a.encodings == b.encodings),
        ("numeric recipe", a.recipe == b.recipe),
        ("tokens", a.tokens == b.tokens),
    ];
    fields
        .into_iter()
        .find(|(_, equal)| !equal)
        .map(|(name, _)| name)
}

fn layer_path(dir: &Path, layer: usize) -> PathBuf {
    dir.join(layer_name(layer))
}

fn layer_name(layer: usize) -> String {
    format!("layer-{layer:03}.f32")
}

fn read_layer(dir: &Path, layer: usize, plan: &Plan) -> anyhow::Result<Vec<f32>> {
    let path = layer_path(dir, layer);
    let bytes = files::read_bounded(files::open(&path)?, plan.layer_bytes())
        .with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        bytes.len() as u64 == plan.layer_bytes(),
        "{}: changed",
        path.display()
    );
    let values = bytes.as_chunks::<4>().0.iter();
    Ok(values.map(|chunk| f32::from_le_bytes(*chunk)).collect())
}

fn describe(layer: usize, entry: &Entry) -> LayerFile {
    LayerFile {
        file: layer_name(layer),
        bytes: entry.bytes,
        blake3: entry.blake3.clone(),
    }
}

/// Writes the stream after each layer.
struct Writer<'a> {
    dir: &'a Path,
    layers: usize,
    journal: &'a mut Journal,
    progress: Progress,
    /// The cause with its kind, which the engine's error does not carry.
    failed: Option<anyhow::Error>,
}

impl Writer<'_> {
    fn write(&mut self, layer: usize, path: &Path, hidden: &[f32]) -> anyhow::Result<()> {
        let mut file = NewFile::create(path)?;
        let mut hasher = blake3::Hasher::new();
        for values in hidden.chunks(CHUNK) {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            hasher.update(&bytes);
            file.write(&bytes)?;
        }
        file.finish()?;
        let digest = hasher.finalize().to_hex().to_string();
        self.journal.add(layer, 4 * hidden.len() as u64, digest)
    }
}

impl Observer for Writer<'_> {
    fn layer(&mut self, layer: usize, _: usize, _: usize, hidden: &[f32]) -> Result<(), Error> {
        let path = layer_path(self.dir, layer);
        let written = self.write(layer, &path, hidden);
        self.progress.update(layer as u64 + 1, self.layers as u64);
        written.map_err(|error| {
            let message = format!("{error:#}");
            self.failed = Some(error);
            Error::File { path, message }
        })
    }
}
