//! `--layers DIR`: the stream after each layer, one file a layer, resumable.
//!
//! `run.json` says what is being computed and is written first, `manifest.json` last; a layer file
//! appears whole. So a directory without a manifest is an unfinished run, and whatever layer files
//! it holds are good.

use crate::failure::Failure;
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

/// What decides the bits of the layers: equal plans give equal files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    format: String,
    /// Digest of the program.
    program: String,
    /// Identity of the container, if the model is one.
    container: Option<String>,
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

/// Computes all layers that are not there yet. Returns how many were, and the logits after every
/// token if they are wanted (else nothing).
pub(super) fn run(
    model: &Model,
    tokens: &[u32],
    dir: &Path,
    resume: bool,
    want_logits: bool,
    cancel: &Cancel,
    terminal: &Terminal,
) -> anyhow::Result<(usize, Vec<f32>)> {
    let plan = Plan::of(model, tokens)?;
    let there = prepare(dir, &plan, resume)?;
    let mut session = model.session();
    let mut out = Vec::new();
    if there < plan.layers || want_logits {
        let logits = if want_logits {
            Logits::All
        } else {
            Logits::None
        };
        let span = Span {
            session: &mut session,
            tokens,
            logits,
            out: &mut out,
        };
        let progress = Progress::new(terminal, "layers", Unit::Steps);
        let mut writer = Writer {
            dir,
            layers: plan.layers,
            progress,
            failed: None,
        };
        let result = match there {
            0 => model.step_observed(&mut [span], cancel, &mut writer),
            _ => {
                let stream = read_layer(dir, there - 1, &plan)?;
                model.step_from_layer(span, there, &stream, cancel, Some(&mut writer))
            }
        };
        writer.progress.finish();
        if let Some(error) = writer.failed {
            return Err(error);
        }
        result.context("--resume continues after the last complete layer")?;
    }
    let files = (0..plan.layers)
        .map(|layer| describe(dir, layer))
        .collect::<Result<_, _>>()?;
    let shape = [tokens.len(), plan.width];
    let manifest = Manifest {
        plan: &plan,
        dtype: "f32 little-endian",
        shape,
        files,
    };
    files::write(
        &dir.join(MANIFEST_FILE),
        &serde_json::to_vec_pretty(&manifest)?,
    )?;
    Ok((there, out))
}

impl Plan {
    fn of(model: &Model, tokens: &[u32]) -> anyhow::Result<Plan> {
        let (program, report) = (model.program(), model.report());
        let encodings = report
            .encodings
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n));
        Ok(Plan {
            format: "lamella layers 1".to_owned(),
            program: blake3::hash(&serde_json::to_vec(program)?)
                .to_hex()
                .to_string(),
            container: model.store().identity().map(str::to_owned),
            backend: report.backend.name().to_owned(),
            encodings: encodings.collect(),
            recipe: lamella_kernels::RECIPE,
            tokens: tokens.to_vec(),
            width: program.boundary.width,
            layers: program.layers.len(),
        })
    }

    fn layer_bytes(&self) -> u64 {
        (self.tokens.len() * self.width * 4) as u64
    }
}

/// Makes the directory ready; returns how many layers are there already.
fn prepare(dir: &Path, plan: &Plan, resume: bool) -> anyhow::Result<usize> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let run_file = dir.join(RUN_FILE);
    if !run_file.exists() {
        files::write(&run_file, &serde_json::to_vec_pretty(plan)?)?;
        return Ok(0);
    }
    if !resume {
        let dir = dir.display();
        return Err(Failure::usage(format!(
            "{dir}: an earlier run is there; --resume continues it, or remove the directory"
        )));
    }
    let text = fs::read(&run_file).with_context(|| run_file.display().to_string())?;
    let earlier: Plan = serde_json::from_slice(&text)
        .map_err(|e| Failure::usage(format!("{}: {e}", run_file.display())))?;
    if let Some(field) = difference(&earlier, plan) {
        let file = run_file.display();
        return Err(Failure::usage(format!(
            "{file}: the run there has other {field}; resuming would mix two runs"
        )));
    }
    let complete = |layer: &usize| {
        let length = fs::metadata(layer_path(dir, *layer)).map(|m| m.len());
        length.is_ok_and(|length| length == plan.layer_bytes())
    };
    Ok((0..plan.layers).take_while(complete).count())
}

/// The first thing in which two plans differ.
fn difference(a: &Plan, b: &Plan) -> Option<&'static str> {
    let fields = [
        ("format", a.format == b.format),
        (
            "program",
            a.program == b.program && a.width == b.width && a.layers == b.layers,
        ),
        ("container", a.container == b.container),
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
    dir.join(format!("layer-{layer:03}.f32"))
}

fn read_layer(dir: &Path, layer: usize, plan: &Plan) -> anyhow::Result<Vec<f32>> {
    let path = layer_path(dir, layer);
    let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        bytes.len() as u64 == plan.layer_bytes(),
        "{}: changed",
        path.display()
    );
    let values = bytes.as_chunks::<4>().0.iter();
    Ok(values.map(|chunk| f32::from_le_bytes(*chunk)).collect())
}

fn describe(dir: &Path, layer: usize) -> anyhow::Result<LayerFile> {
    let path = layer_path(dir, layer);
    let mut hasher = blake3::Hasher::new();
    let mut file = fs::File::open(&path).with_context(|| path.display().to_string())?;
    let bytes = std::io::copy(&mut file, &mut hasher)?;
    let blake3 = hasher.finalize().to_hex().to_string();
    Ok(LayerFile {
        file: format!("layer-{layer:03}.f32"),
        bytes,
        blake3,
    })
}

/// Writes the stream after each layer.
struct Writer<'a> {
    dir: &'a Path,
    layers: usize,
    progress: Progress,
    /// The cause with its kind, which the engine's error does not carry.
    failed: Option<anyhow::Error>,
}

impl Observer for Writer<'_> {
    fn layer(&mut self, layer: usize, _: usize, _: usize, hidden: &[f32]) -> Result<(), Error> {
        let path = layer_path(self.dir, layer);
        let written = NewFile::create(&path).and_then(|mut file| {
            file.write_f32(hidden)?;
            file.finish()
        });
        self.progress.update(layer as u64 + 1, self.layers as u64);
        written.map_err(|error| {
            let message = format!("{error:#}");
            self.failed = Some(error);
            Error::File { path, message }
        })
    }
}
