//! What the engine's tests share: fixtures and a small safetensors reader of their own.

#![allow(dead_code, reason = "each test binary uses a part")]

use lamella_engine::{BackendKind, Cancel, Error, Logits, Model, Options, Session, Span};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A fixture of each family, and of a layout that differs in what a layer does and passes on.
pub(crate) const FAMILIES: [&str; 8] = [
    "olmoe-101",
    "glm-101",
    "inkling-101",
    "kimi_k3-101",
    "qwen36-101",
    "qwen3next-505",
    "qwen38-111",
    "deepseek_v4-101",
];

/// The names of all fixtures, in order.
pub(crate) fn fixtures() -> Vec<String> {
    let entries = std::fs::read_dir(repository("fixtures")).expect("the fixtures");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let models = paths.filter(|path| path.join("config.json").is_file());
    let names = models.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// A directory under the repository root.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// An f32 matrix from a reference file.
pub(crate) fn reference_matrix(file: &Path, name: &str) -> (usize, Vec<f32>) {
    let bytes = std::fs::read(file).expect("reference file");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("length")) as usize;
    let table: HashMap<String, serde_json::Value> =
        serde_json::from_slice(&bytes[8..8 + header]).expect("header");
    let entry = &table[name];
    let offset = |i: usize| entry["data_offsets"][i].as_u64().expect("offset") as usize;
    let data = &bytes[8 + header + offset(0)..8 + header + offset(1)];
    let values = data
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().expect("f32")));
    (
        entry["shape"][1].as_u64().expect("columns") as usize,
        values.collect(),
    )
}

/// A list of token ids in a reference file.
pub(crate) fn reference_ids(file: &Path, key: &str) -> Vec<u32> {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file).expect("reference")).expect("json");
    json[key]
        .as_array()
        .expect(key)
        .iter()
        .map(|v| v.as_u64().expect("id") as u32)
        .collect()
}

/// The tokens whose logits a fixture's reference gives.
pub(crate) fn reference_sequence(dir: &Path) -> Vec<u32> {
    first_list(dir, ["teacher_forced_ids", "full_ids"])
}

/// The first of two lists that a fixture's `ref.json` has.
pub(crate) fn first_list(dir: &Path, names: [&str; 2]) -> Vec<u32> {
    let file = dir.join("ref.json");
    let json = std::fs::read_to_string(&file).expect("ref.json");
    let there = names.into_iter().find(|n| json.contains(&format!("{n:?}")));
    reference_ids(&file, there.expect("one of the names"))
}

/// Opens a model of the repository.
pub(crate) fn open(path: &Path, options: &Options) -> Arc<Model> {
    Model::open(path, options, &mut |_| {}).expect("the model opens")
}

/// The smallest limit that `path` opens with, as refusals tell it.
pub(crate) fn least(path: &Path, options: &Options) -> u64 {
    let mut limit = 1024;
    loop {
        let options = Options {
            memory_limit: Some(limit),
            ..options.clone()
        };
        let Err(Error::Memory { sum, .. }) = Model::open(path, &options, &mut |_| {}) else {
            return limit;
        };
        let (_, told) = sum.rsplit_once("= ").expect("a sum");
        let told = told.split(' ').next().and_then(|n| n.parse().ok());
        limit = told
            .filter(|&told: &u64| told > limit)
            .expect("a larger number");
    }
}

/// Reads `tokens` in chunks of `chunk`; all logits.
pub(crate) fn read(model: &Model, session: &mut Session, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut all = Vec::new();
    let mut out = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let span = Span {
            session: &mut *session,
            tokens,
            logits: Logits::All,
            out: &mut out,
        };
        model.step(&mut [span], &Cancel::new()).expect("step");
        all.extend_from_slice(&out);
    }
    all
}

/// The bits, for comparisons that must not round.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// How a backend fares against a reference.
pub(crate) struct Measured {
    /// Largest difference of a logit, relative to the largest logit of its position, over all
    /// positions.
    pub(crate) error: f32,
    /// Index of the first generated token that another one beats.
    pub(crate) greedy: Option<usize>,
}

/// Reads the whole reference sequence of a checkpoint, beside which its reference is.
pub(crate) fn measure(dir: &Path, backend: BackendKind) -> Result<Measured, Error> {
    let (vocabulary, reference) = reference_matrix(&dir.join("ref.safetensors"), "logits");
    let ids = reference_sequence(dir);
    let prompt = reference_ids(&dir.join("ref.json"), "prompt_ids").len();
    let greedy = first_list(dir, ["generated_ids", "greedy_ids"]);
    let options = Options {
        backend,
        ..Options::default()
    };
    let model = Model::open(dir, &options, &mut |_| {})?;
    assert_eq!(model.vocabulary(), vocabulary);
    let mut session = model.session();
    let logits = read(&model, &mut session, &ids, usize::MAX);
    assert_eq!(logits.len(), reference.len());
    assert!(logits.iter().all(|l| l.is_finite()));
    let most = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0f32, |m, v| m.max(v.abs()));
    let rows = logits.chunks_exact(vocabulary);
    let rows = rows.zip(reference.chunks_exact(vocabulary));
    let errors = rows.map(|(row, expected)| {
        let difference = most(&mut row.iter().zip(expected).map(|(a, b)| a - b));
        difference / most(&mut expected.iter().copied())
    });
    let error = errors.fold(0.0f32, f32::max);
    let differs = |(i, &expected): (usize, &u32)| {
        let row = &logits[(prompt + i - 1) * vocabulary..(prompt + i) * vocabulary];
        let all = row.iter().enumerate();
        let best = all.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        best.map(|b| b.0 as u32) != Some(expected)
    };
    let greedy = greedy.iter().enumerate().position(differs);
    Ok(Measured { error, greedy })
}
