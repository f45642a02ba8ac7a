//! Small programs of every block, and ways to damage them.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod blocks;

use lamella_program::block::{
    Attention, Block, Ffn, GatedActivation, GatedUnit, Layer, Linear, Mixer, Residual, RmsNorm,
    Span,
};
use lamella_program::closure::check;
use lamella_program::program::{Boundary, Dims, Entry, Exit, PROGRAM_VERSION};
use lamella_program::{Defect, Encoding, Operand, OperandId, Program, Role, Slice, TensorInfo};

pub(crate) const HIDDEN: usize = 8;
pub(crate) const VOCABULARY: usize = 11;
pub(crate) const WIDTH: usize = 5;

/// Operands added so far; each is a tensor of its name, or one for each expert.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) operands: Vec<Operand>,
    /// Before every name.
    pub(crate) prefix: String,
}

impl Table {
    pub(crate) fn add(&mut self, name: &str, shape: &[usize], role: Role) -> OperandId {
        let mut operand = Operand {
            name: format!("{}{name}", self.prefix),
            shape: Vec::new(),
            role,
            parts: Vec::new(),
        };
        reshape(&mut operand, shape);
        self.operands.push(operand);
        OperandId(self.operands.len() as u32 - 1)
    }

    pub(crate) fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Linear {
        Linear {
            weight: self.add(name, &[rows, cols], Role::Linear),
            bias: None,
        }
    }

    pub(crate) fn vector(&mut self, name: &str, len: usize) -> OperandId {
        self.add(name, &[len], Role::Vector)
    }

    pub(crate) fn norm(&mut self, name: &str, len: usize) -> RmsNorm {
        RmsNorm {
            weight: Some(self.vector(name, len)),
            eps: 1e-5,
            unit_offset: false,
        }
    }

    pub(crate) fn unit(&mut self, name: &str, width: usize) -> GatedUnit {
        let mut add =
            |end: &str, rows, cols| self.add(&format!("{name}.{end}"), &[rows, cols], Role::Linear);
        GatedUnit {
            gate: add("gate", width, HIDDEN),
            up: add("up", width, HIDDEN),
            down: add("down", HIDDEN, width),
            width,
            activation: GatedActivation::Silu,
            output_gate: None,
            output_scale: None,
        }
    }
}

/// Gives an operand another shape, and the whole tensors that make it up.
pub(crate) fn reshape(operand: &mut Operand, shape: &[usize]) {
    operand.shape = shape.to_vec();
    operand.parts = if operand.role == Role::Expert {
        let item = |e| Slice::whole(format!("{}.{e}", operand.name), &shape[1..]);
        (0..shape[0]).map(|e| vec![item(e)]).collect()
    } else {
        vec![vec![Slice::whole(&operand.name, shape)]]
    };
}

/// Attention without anything special: 4 heads of 2 channels, 2 key heads.
pub(crate) fn attention(t: &mut Table) -> Attention {
    Attention {
        heads: 4,
        kv_heads: 2,
        head_dim: 2,
        query: t.linear("query", 8, HIDDEN),
        key: t.linear("key", 4, HIDDEN),
        value: t.linear("value", 4, HIDDEN),
        output: t.linear("output", HIDDEN, 8),
        qk_norm: None,
        clip: None,
        rope: None,
        scale: 0.7,
        span: Span::Full,
        sinks: None,
        output_gate: None,
        relative_bias: None,
        convolutions: None,
        position_scaling: None,
        indexer: None,
    }
}

/// A body behind a norm.
pub(crate) fn normed<B>(t: &mut Table, name: &str, body: B) -> Block<B> {
    Block {
        pre_norm: Some(t.norm(name, HIDDEN)),
        body,
        convolution: None,
        post_norm: None,
    }
}

pub(crate) fn layer(t: &mut Table, mixer: Mixer, ffn: Ffn) -> Layer {
    Layer {
        residual: Residual::Plain,
        mixer: normed(t, "mixer_norm", mixer),
        ffn: normed(t, "ffn_norm", ffn),
    }
}

/// Attention and a dense unit.
pub(crate) fn plain_layer(t: &mut Table) -> Layer {
    let mixer = Mixer::Attention(attention(t));
    let ffn = Ffn::Dense(t.unit("unit", WIDTH));
    layer(t, mixer, ffn)
}

pub(crate) fn program_of(layers: impl FnOnce(&mut Table) -> Vec<Layer>) -> Program {
    let mut t = Table::default();
    let embedding = t.add("embedding", &[VOCABULARY, HIDDEN], Role::Embedding);
    let layers = layers(&mut t);
    t.prefix.clear();
    let norm = Some(t.norm("final", HIDDEN));
    let head = t.add("head", &[VOCABULARY, HIDDEN], Role::Head);
    Program {
        version: PROGRAM_VERSION,
        family: "made up".to_owned(),
        dims: Dims {
            hidden: HIDDEN,
            vocabulary: VOCABULARY,
            context: 64,
        },
        boundary: Boundary {
            state_schema: "made-up/1".to_owned(),
            width: HIDDEN,
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
            norm,
            head,
            logits: VOCABULARY,
            scale: None,
            soft_cap: None,
        },
        operands: t.operands,
        draft: None,
        unused: Vec::new(),
    }
}

/// One layer with this mixer and a dense unit.
pub(crate) fn with_mixer(mixer: impl FnOnce(&mut Table) -> Mixer) -> Program {
    program_of(|t| {
        let mixer = mixer(t);
        let ffn = Ffn::Dense(t.unit("unit", WIDTH));
        vec![layer(t, mixer, ffn)]
    })
}

/// One layer with attention and this ffn.
pub(crate) fn with_ffn(ffn: impl FnOnce(&mut Table) -> Ffn) -> Program {
    program_of(|t| {
        let mixer = Mixer::Attention(attention(t));
        let ffn = ffn(t);
        vec![layer(t, mixer, ffn)]
    })
}

/// The tensors the operands are made of, all in bf16.
pub(crate) fn tensors(program: &Program) -> Vec<TensorInfo> {
    let operands = program.operands.iter();
    let slices = operands.flat_map(|o| o.parts.iter().flatten());
    slices
        .map(|s| TensorInfo {
            name: s.tensor.clone(),
            dtype: "BF16".to_owned(),
            encoding: Some(Encoding::Bf16),
            shape: s.tensor_shape.clone(),
        })
        .collect()
}

/// Damages a program and expects exactly one defect, whose text contains `expected`.
#[track_caller]
pub(crate) fn fails(program: &Program, damage: impl FnOnce(&mut Program), expected: &str) {
    let mut damaged = program.clone();
    damage(&mut damaged);
    only(&check(&damaged), expected);
}

/// As [`fails`], where the damage takes away what used an operand.
#[track_caller]
pub(crate) fn fails_and_frees(
    program: &Program,
    damage: impl FnOnce(&mut Program),
    expected: &str,
) {
    let mut damaged = program.clone();
    damage(&mut damaged);
    let mut defects = check(&damaged);
    let before = defects.len();
    defects.retain(|d| !matches!(d, Defect::UnusedOperand(_)));
    assert!(defects.len() < before, "{expected}: every operand is used");
    only(&defects, expected);
}

#[track_caller]
fn only(defects: &[Defect], expected: &str) {
    let texts: Vec<String> = defects.iter().map(ToString::to_string).collect();
    assert!(
        matches!(&texts[..], [only] if only.contains(expected)),
        "{expected}: {texts:?}"
    );
}

/// The program closes; another length in any dimension of an operand is a defect of this operand
/// alone, and so is a role that its block cannot read. Lengths of `ranks` are told by nothing
/// else, so there what depends on them may be at fault; `longer` may have more rows than needed.
#[track_caller]
pub(crate) fn sweep(program: &Program, ranks: &[&str], longer: &[&str]) {
    assert_eq!(check(program), []);
    for index in 0..program.operands.len() {
        let name = program.operands[index].name.as_str();
        for dim in 0..program.operands[index].shape.len() {
            let mut damaged = program.clone();
            let mut shape = damaged.operands[index].shape.clone();
            shape[dim] += 1;
            reshape(&mut damaged.operands[index], &shape);
            let defects = check(&damaged);
            if dim == 0 && longer.contains(&name) {
                assert_eq!(defects, [], "{name}");
            } else if ranks.contains(&name) {
                assert!(!defects.is_empty(), "{name}, dimension {dim}");
            } else {
                let [Defect::OperandShape { operand, .. }] = &defects[..] else {
                    panic!("{name}, dimension {dim}: {defects:?}")
                };
                assert_eq!(operand, name);
            }
        }
        let own = program.operands[index].role;
        for wrong in ROLES {
            if wrong != own && !alike(name, own, wrong) {
                misread(program, index, wrong);
            }
        }
    }
}

const ROLES: [Role; 8] = [
    Role::Embedding,
    Role::Head,
    Role::Linear,
    Role::Expert,
    Role::Router,
    Role::Vector,
    Role::Kernel,
    Role::Table,
];

/// Whether an operand may have either role: they are held so that its block can read both.
fn alike(name: &str, own: Role, other: Role) -> bool {
    match (own, other) {
        (Role::Vector, Role::Kernel) | (Role::Head, Role::Embedding) => true,
        (Role::Kernel, Role::Vector) => !name.contains("convolution"),
        // Those that may not are named where units, routers and latents are tested.
        (Role::Linear, Role::Router) | (Role::Router, Role::Linear) => true,
        _ => false,
    }
}

/// The operand is refused in a role that its block cannot read.
#[track_caller]
fn misread(program: &Program, index: usize, wrong: Role) {
    let mut damaged = program.clone();
    let operand = &mut damaged.operands[index];
    let (name, shape) = (operand.name.clone(), operand.shape.clone());
    // A stack of other shapes has more than its role against it.
    let stacked = [operand.role, wrong].contains(&Role::Expert);
    operand.role = wrong;
    reshape(operand, &shape);
    let mut defects = check(&damaged);
    if stacked {
        defects.retain(|d| matches!(d, Defect::OperandRole { .. }));
    }
    let [Defect::OperandRole { operand, found, .. }] = &defects[..] else {
        panic!("{name} as {wrong:?}: {defects:?}")
    };
    assert_eq!((operand, *found), (&name, wrong));
}
