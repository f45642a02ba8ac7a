//! A tiny made-up mixture-of-experts checkpoint and the program it lowers to.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses its own part of this"
)]

pub mod coded;
pub mod damage;

use lamella_container::float::f32_to_bf16;
use lamella_container::{ConvertOptions, ConvertReport, Error, Keep, Store, convert};
use lamella_program::block::{
    Attention, Block, Ffn, GatedActivation, GatedUnit, Layer, Linear, Mixer, Residual, RmsNorm,
    Routed, Router, Scoring, Span, WeightRule,
};
use lamella_program::program::{Boundary, Dims, Entry, Exit, PROGRAM_VERSION};
use lamella_program::{
    Defect, Encoding, Operand, OperandId, Program, Role, Slice, TensorInfo, closure,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The sizes of a made-up model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub hidden: usize,
    pub width: usize,
    pub experts: usize,
    pub vocabulary: usize,
}

/// The sizes almost every test uses.
pub const TINY: Sizes = Sizes {
    hidden: HIDDEN,
    width: WIDTH,
    experts: EXPERTS,
    vocabulary: VOCABULARY,
};

pub const HIDDEN: usize = 40;
pub const WIDTH: usize = 24;
pub const EXPERTS: usize = 5;
pub const VOCABULARY: usize = 50;
pub const LAYERS: usize = 2;

/// A tensor to be written: shape, element type and bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

/// bf16 numbers that look random and are the same every time.
pub fn tensor(name: &str, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let mut state = blake3::hash(name.as_bytes()).as_bytes()[..8]
        .iter()
        .fold(1u64, |n, &b| n.wrapping_mul(257).wrapping_add(u64::from(b)));
    let mut bytes = Vec::with_capacity(2 * count);
    for _ in 0..count {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let value = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        bytes.extend_from_slice(&f32_to_bf16(value * 0.1).to_le_bytes());
    }
    Tensor {
        dtype: "BF16",
        shape: shape.to_vec(),
        bytes,
    }
}

/// Builds a program and, beside it, the tensors it claims.
struct Builder {
    sizes: Sizes,
    operands: Vec<Operand>,
    tensors: Vec<(String, Vec<usize>)>,
}

impl Builder {
    fn add(&mut self, name: &str, role: Role, shape: &[usize]) -> OperandId {
        let tensor = format!("model.{name}.weight");
        self.tensors.push((tensor.clone(), shape.to_vec()));
        self.push(name, role, shape, vec![vec![Slice::whole(tensor, shape)]])
    }

    fn push(
        &mut self,
        name: &str,
        role: Role,
        shape: &[usize],
        parts: Vec<Vec<Slice>>,
    ) -> OperandId {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.operands.push(Operand {
            name,
            shape,
            role,
            parts,
        });
        OperandId(self.operands.len() as u32 - 1)
    }

    /// A tensor per expert, as OLMoE ships them.
    fn experts(&mut self, name: &str, rows: usize, cols: usize) -> OperandId {
        let mut parts = Vec::new();
        for expert in 0..self.sizes.experts {
            let tensor = format!("model.{name}.{expert}.weight");
            self.tensors.push((tensor.clone(), vec![rows, cols]));
            parts.push(vec![Slice::whole(tensor, &[rows, cols])]);
        }
        self.push(name, Role::Expert, &[self.sizes.experts, rows, cols], parts)
    }

    /// Gate and up interleaved row by row in one stacked tensor, as some families ship them.
    fn interleaved(&mut self, layer: usize) -> [OperandId; 2] {
        let tensor = format!("model.{layer}.gate_up");
        let Sizes {
            hidden,
            width,
            experts,
            ..
        } = self.sizes;
        let shape = [experts, 2 * width, hidden];
        self.tensors.push((tensor.clone(), shape.to_vec()));
        ["gate", "up"].map(|name| {
            let first = usize::from(name == "up");
            let parts = (0..experts).map(|e| {
                let start = e * 2 * width + first;
                let (tensor, tensor_shape) = (tensor.clone(), shape.to_vec());
                vec![Slice {
                    tensor,
                    tensor_shape,
                    start,
                    step: 2,
                    rows: width,
                    coding: None,
                }]
            });
            let name = format!("layers.{layer}.{name}");
            self.push(
                &name,
                Role::Expert,
                &[experts, width, hidden],
                parts.collect(),
            )
        })
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Linear {
        Linear {
            weight: self.add(name, Role::Linear, &[rows, cols]),
            bias: None,
        }
    }

    fn norm(&mut self, name: &str) -> RmsNorm {
        let weight = Some(self.add(name, Role::Vector, &[self.sizes.hidden]));
        RmsNorm {
            weight,
            eps: 1e-5,
            unit_offset: false,
        }
    }

    fn layer(&mut self, l: usize) -> Layer {
        let pre_norm = Some(self.norm(&format!("layers.{l}.mixer_norm")));
        let body = Mixer::Attention(self.attention(l));
        let mixer = Block {
            pre_norm,
            body,
            convolution: None,
            post_norm: None,
        };
        let pre_norm = Some(self.norm(&format!("layers.{l}.ffn_norm")));
        let body = Ffn::Routed(self.routed(l));
        let ffn = Block {
            pre_norm,
            body,
            convolution: None,
            post_norm: None,
        };
        Layer {
            residual: Residual::Plain,
            mixer,
            ffn,
        }
    }

    fn attention(&mut self, l: usize) -> Attention {
        let at = |name: &str| format!("layers.{l}.{name}");
        let hidden = self.sizes.hidden;
        let (q, kv) = (hidden, hidden / 2);
        Attention {
            heads: 4,
            kv_heads: 2,
            head_dim: hidden / 4,
            query: self.linear(&at("query"), q, hidden),
            key: self.linear(&at("key"), kv, hidden),
            value: self.linear(&at("value"), kv, hidden),
            output: self.linear(&at("output"), hidden, q),
            qk_norm: None,
            clip: None,
            rope: None,
            scale: 0.316_227_76,
            span: Span::Full,
            sinks: None,
            output_gate: None,
            relative_bias: None,
            convolutions: None,
            position_scaling: None,
            indexer: None,
        }
    }

    fn routed(&mut self, l: usize) -> Routed {
        let at = |name: &str| format!("layers.{l}.{name}");
        let Sizes {
            hidden,
            width,
            experts,
            ..
        } = self.sizes;
        let [gate, up] = if l == 0 {
            ["gate", "up"].map(|name| self.experts(&at(name), width, hidden))
        } else {
            self.interleaved(l)
        };
        let unit = GatedUnit {
            gate,
            up,
            down: self.experts(&at("down"), hidden, width),
            width,
            activation: GatedActivation::Silu,
            output_gate: None,
            output_scale: None,
        };
        let router = Router {
            weight: self.add(&at("router"), Role::Router, &[experts, hidden]),
            scoring: Scoring::Softmax,
            selection_bias: None,
            groups: None,
            hash_table: None,
            weights: WeightRule::Raw,
            scale: None,
            learned_scale: None,
        };
        Routed {
            router,
            experts,
            top_k: 2,
            unit,
            shared: Vec::new(),
            latent: None,
        }
    }
}

/// The program and the shapes of its tensors.
pub fn program() -> (Program, Vec<(String, Vec<usize>)>) {
    program_of(TINY)
}

/// As [`program`], of any size.
pub fn program_of(sizes: Sizes) -> (Program, Vec<(String, Vec<usize>)>) {
    let Sizes {
        hidden, vocabulary, ..
    } = sizes;
    let mut b = Builder {
        sizes,
        operands: Vec::new(),
        tensors: Vec::new(),
    };
    let embedding = b.add("embedding", Role::Embedding, &[vocabulary, hidden]);
    let layers = (0..LAYERS).map(|l| b.layer(l)).collect();
    let norm = b.norm("exit_norm");
    let head = b.add("head", Role::Head, &[vocabulary, hidden]);
    let program = Program {
        version: PROGRAM_VERSION,
        family: "tiny".to_owned(),
        dims: Dims {
            hidden,
            vocabulary,
            context: 64,
        },
        boundary: Boundary {
            state_schema: "plain".to_owned(),
            width: hidden,
            needs_token_ids: false,
        },
        entry: Entry {
            embedding,
            scale: None,
            norm: None,
            per_layer_embeddings: Vec::new(),
        },
        layers,
        exit: Exit {
            reduction: None,
            norm: Some(norm),
            head,
            logits: vocabulary,
            scale: None,
            soft_cap: None,
        },
        operands: b.operands,
        draft: None,
        unused: Vec::new(),
    };
    assert_eq!(closure::check(&program), []);
    (program, b.tensors)
}

/// Lowers any checkpoint to the tiny program; the closure check says whether it fits.
pub fn lower(_config: &str, _tensors: &[TensorInfo]) -> Result<Program, Vec<Defect>> {
    Ok(program().0)
}

/// All tensors of the tiny checkpoint.
pub fn tensors() -> Tensors {
    tensors_of(TINY)
}

/// As [`tensors`], of any size.
pub fn tensors_of(sizes: Sizes) -> Tensors {
    let make = |(name, shape): (String, Vec<usize>)| {
        let made = tensor(&name, &shape);
        (name, made)
    };
    program_of(sizes).1.into_iter().map(make).collect()
}

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let mut entries = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, t) in tensors {
        let start = data.len();
        data.extend_from_slice(&t.bytes);
        let entry = serde_json::json!({
            "dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]
        });
        entries.insert(name.clone(), entry);
    }
    with_header(&serde_json::Value::Object(entries).to_string(), &data)
}

/// A file of this header and this data.
pub fn with_header(json: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Writes the texts every checkpoint has.
pub fn write_texts(dir: &Path) {
    std::fs::write(dir.join("config.json"), r#"{"model_type": "tiny"}"#).unwrap();
    std::fs::write(dir.join("tokenizer.json"), r#"{"version": "1.0"}"#).unwrap();
    std::fs::write(dir.join("chat_template.jinja"), "{{ messages }}\n").unwrap();
    std::fs::write(dir.join("generation_config.json"), "{}").unwrap();
}

/// Writes the tiny checkpoint as one file.
pub fn write_single(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    write_texts(dir);
    std::fs::write(dir.join("model.safetensors"), safetensors(&tensors())).unwrap();
}

/// Writes a checkpoint of any size and opens it.
pub fn open_of(dir: &Path, sizes: Sizes) -> Store {
    std::fs::create_dir_all(dir).unwrap();
    write_texts(dir);
    std::fs::write(
        dir.join("model.safetensors"),
        safetensors(&tensors_of(sizes)),
    )
    .unwrap();
    Store::open(dir, &|_, _| Ok(program_of(sizes).0)).unwrap()
}

/// Writes the tiny checkpoint as two shards; returns the index.
pub fn write_sharded(dir: &Path) -> serde_json::Value {
    std::fs::create_dir_all(dir).unwrap();
    write_texts(dir);
    let mut first = tensors();
    let middle = first.keys().nth(first.len() / 2).unwrap().clone();
    let second = first.split_off(&middle);
    let mut map = serde_json::Map::new();
    for (name, shard) in [(SHARD_1, &first), (SHARD_2, &second)] {
        std::fs::write(dir.join(name), safetensors(shard)).unwrap();
        map.extend(shard.keys().map(|t| (t.clone(), name.into())));
    }
    let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    std::fs::write(dir.join(INDEX), index.to_string()).unwrap();
    index
}

pub const SHARD_1: &str = "model-00001-of-00002.safetensors";
pub const SHARD_2: &str = "model-00002-of-00002.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

pub fn open(dir: &Path) -> Result<Store, Error> {
    Store::open(dir, &lower)
}

/// Options whose journal is as fine as it gets.
pub fn options(want: Keep) -> ConvertOptions {
    ConvertOptions {
        threads: 2,
        journal_bytes: 1,
        ..ConvertOptions::new(want)
    }
}

pub fn convert_quietly(
    store: &Store,
    out: &Path,
    options: &ConvertOptions,
) -> Result<ConvertReport, Error> {
    convert(store, out, options, &mut |_| {}, &AtomicBool::new(false))
}

/// A checkpoint and its q4 container in a temporary directory.
pub struct Fixture {
    pub temp: tempfile::TempDir,
    pub checkpoint: PathBuf,
    pub container: PathBuf,
}

impl Fixture {
    pub fn new() -> Fixture {
        let temp = tempfile::tempdir().unwrap();
        let (checkpoint, container) = (temp.path().join("tiny"), temp.path().join("tiny-q4"));
        write_single(&checkpoint);
        let store = open(&checkpoint).unwrap();
        convert_quietly(&store, &container, &options(Keep::As(Encoding::Q4))).unwrap();
        Fixture {
            temp,
            checkpoint,
            container,
        }
    }
}

/// Every file below a directory with its bytes.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        files.insert(name, std::fs::read(entry.path()).unwrap());
    }
    files
}

/// Copies a flat directory.
pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for (name, bytes) in contents(from) {
        std::fs::write(to.join(name), bytes).unwrap();
    }
}
