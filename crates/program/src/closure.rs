//! The closure check: a program opens only when every tensor of the checkpoint is claimed, every
//! operand exists with the shape its block needs, and every block has rules.
//!
//! All defects are found in one pass; there is no best effort.

use crate::block::{
    Attention, Block, Ffn, GatedUnit, Layer, Linear, Mixer, QkNormScope, Residual, RmsNorm, Routed,
    WeightRule,
};
use crate::encoding::Encoding;
use crate::operand::{Operand, OperandId, Role};
use crate::program::{PROGRAM_VERSION, Program};
use std::collections::{HashMap, HashSet};

/// A tensor as the checkpoint's header announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the checkpoint.
    pub name: String,
    /// Name of the element type as the file spells it: `BF16`.
    pub dtype: String,
    /// The encoding, where it is one that programs can use.
    pub encoding: Option<Encoding>,
    /// Dimensions.
    pub shape: Vec<usize>,
}

/// Something that keeps a program from opening.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// No operand takes its numbers from this tensor.
    #[error("tensor {0}: no operation uses it")]
    UnclaimedTensor(String),
    /// An operand needs a tensor the checkpoint lacks.
    #[error("tensor {tensor}: missing from the checkpoint (needed for {operand})")]
    MissingTensor {
        /// The absent tensor.
        tensor: String,
        /// The operand that needs it.
        operand: String,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("tensor {tensor}: shape {found:?}, but the configuration needs {expected:?}")]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape the program needs.
        expected: Vec<usize>,
    },
    /// A tensor's element type cannot be used.
    #[error("tensor {tensor}: element type {dtype} is not supported")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// The type as the file spells it.
        dtype: String,
    },
    /// The parts of an operand are stored in different types.
    #[error("operand {operand}: its tensors have different element types ({first} and {second})")]
    MixedTypes {
        /// The operand.
        operand: String,
        /// Type of its first slice.
        first: String,
        /// A type that differs.
        second: String,
    },
    /// A configuration key that no operation expresses.
    #[error("config.json: key {0} is not expressed by any operation of this family")]
    UnknownConfigKey(String),
    /// A configuration value that cannot be used.
    #[error("config.json: {key}: {message}")]
    ConfigValue {
        /// The key.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// An operand's shape does not fit the block that uses it.
    #[error("{place}: operand {operand} has shape {found:?}, needs {expected:?}")]
    OperandShape {
        /// Which block.
        place: String,
        /// The operand.
        operand: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape the block needs.
        expected: Vec<usize>,
    },
    /// A block names an operand that is not in the table.
    #[error("{place}: operand number {id} does not exist")]
    DanglingOperand {
        /// Which block.
        place: String,
        /// The bad index.
        id: u32,
    },
    /// An operand that no block uses.
    #[error("operand {0}: no block uses it")]
    UnusedOperand(String),
    /// Two operands with one name.
    #[error("operand {0}: the name is used twice")]
    DuplicateOperand(String),
    /// The slices of an operand do not add up to its shape.
    #[error("operand {operand}: {message}")]
    OperandParts {
        /// The operand.
        operand: String,
        /// What does not add up.
        message: String,
    },
    /// Numbers inside a block contradict each other.
    #[error("{place}: {message}")]
    Geometry {
        /// Which block.
        place: String,
        /// What contradicts what.
        message: String,
    },
    /// A block this version has no rules for.
    #[error("{place}: this version of Lamella cannot run {what}")]
    UnsupportedBlock {
        /// Which block.
        place: String,
        /// What it is.
        what: String,
    },
    /// A program written by a newer version.
    #[error(
        "program version {found} is newer than {PROGRAM_VERSION}, the newest this Lamella reads"
    )]
    Version {
        /// The version found.
        found: u32,
    },
}

/// Checks the program by itself: operands, shapes, geometry, known blocks.
#[must_use]
pub fn check(program: &Program) -> Vec<Defect> {
    let mut checker = Checker {
        program,
        used: HashSet::new(),
        defects: Vec::new(),
    };
    checker.program();
    checker.defects
}

/// Checks the program against the checkpoint it was lowered from. Includes [`check`].
#[must_use]
pub fn check_against(program: &Program, tensors: &[TensorInfo]) -> Vec<Defect> {
    let mut defects = check(program);
    let table: HashMap<&str, &TensorInfo> = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let mut claimed: HashSet<&str> = HashSet::new();
    for operand in &program.operands {
        check_sources(operand, &table, &mut claimed, &mut defects);
    }
    for component in &program.unused {
        claimed.extend(component.tensors.iter().map(String::as_str));
    }
    for tensor in tensors {
        if !claimed.contains(tensor.name.as_str()) {
            defects.push(Defect::UnclaimedTensor(tensor.name.clone()));
        }
    }
    defects
}

fn check_sources<'p>(
    operand: &'p Operand,
    table: &HashMap<&str, &TensorInfo>,
    claimed: &mut HashSet<&'p str>,
    defects: &mut Vec<Defect>,
) {
    let mut first: Option<&str> = None;
    let mut mixed = false;
    for slice in operand.parts.iter().flatten() {
        let fresh = claimed.insert(slice.tensor.as_str());
        let Some(tensor) = table.get(slice.tensor.as_str()) else {
            if fresh {
                defects.push(Defect::MissingTensor {
                    tensor: slice.tensor.clone(),
                    operand: operand.name.clone(),
                });
            }
            continue;
        };
        if fresh && tensor.shape != slice.tensor_shape {
            defects.push(Defect::TensorShape {
                tensor: slice.tensor.clone(),
                found: tensor.shape.clone(),
                expected: slice.tensor_shape.clone(),
            });
        }
        if fresh && tensor.encoding.is_none() {
            defects.push(Defect::ElementType {
                tensor: slice.tensor.clone(),
                dtype: tensor.dtype.clone(),
            });
        }
        match first {
            None => first = Some(&tensor.dtype),
            Some(dtype) if dtype != tensor.dtype && !mixed => {
                mixed = true;
                defects.push(Defect::MixedTypes {
                    operand: operand.name.clone(),
                    first: dtype.to_owned(),
                    second: tensor.dtype.clone(),
                });
            }
            Some(_) => {}
        }
    }
}

struct Checker<'p> {
    program: &'p Program,
    used: HashSet<OperandId>,
    defects: Vec<Defect>,
}

impl Checker<'_> {
    fn program(&mut self) {
        let p = self.program;
        if p.version > PROGRAM_VERSION {
            self.defects.push(Defect::Version { found: p.version });
        }
        self.operand_table();
        let hidden = p.dims.hidden;
        for (name, value) in [
            ("hidden size", hidden),
            ("vocabulary", p.dims.vocabulary),
            ("context", p.dims.context),
            ("number of layers", p.layers.len()),
        ] {
            if value == 0 {
                self.geometry("model", format!("{name} is zero"));
            }
        }
        self.expect("entry", p.entry.embedding, &[p.dims.vocabulary, hidden]);
        if let Some(norm) = &p.entry.norm {
            self.norm("entry.norm", norm, hidden);
        }
        for ple in &p.entry.per_layer_embeddings {
            self.unsupported(&format!("layers.{}", ple.layer), "per-layer embeddings");
        }
        for (index, layer) in p.layers.iter().enumerate() {
            self.layer(&format!("layers.{index}"), layer);
        }
        self.exit();
        for (index, operand) in p.operands.iter().enumerate() {
            if !self.used.contains(&OperandId(index as u32)) {
                self.defects
                    .push(Defect::UnusedOperand(operand.name.clone()));
            }
        }
    }

    fn operand_table(&mut self) {
        let mut names = HashSet::new();
        for operand in &self.program.operands {
            if !names.insert(operand.name.as_str()) {
                self.defects
                    .push(Defect::DuplicateOperand(operand.name.clone()));
            }
            if let Some(message) = part_mismatch(operand) {
                self.defects.push(Defect::OperandParts {
                    operand: operand.name.clone(),
                    message,
                });
            }
        }
    }

    fn exit(&mut self) {
        let p = self.program;
        if p.exit.reduction.is_some() {
            self.unsupported("exit", "a stream reduction");
        }
        if let Some(norm) = &p.exit.norm {
            self.norm("exit.norm", norm, p.dims.hidden);
        }
        self.expect("exit", p.exit.head, &[p.dims.vocabulary, p.dims.hidden]);
        if p.exit.logits == 0 || p.exit.logits > p.dims.vocabulary {
            self.geometry(
                "exit",
                format!("{} logits of {} rows", p.exit.logits, p.dims.vocabulary),
            );
        }
    }

    fn layer(&mut self, place: &str, layer: &Layer) {
        match &layer.residual {
            Residual::Plain => {}
            Residual::AttentionResidual { .. } => self.unsupported(place, "attention residuals"),
            Residual::HyperConnections { .. } => self.unsupported(place, "hyper-connections"),
            Residual::HyperResidual { .. } => self.unsupported(place, "hyper-residual streams"),
        }
        let mixer_place = format!("{place}.mixer");
        self.block(&mixer_place, &layer.mixer);
        match &layer.mixer.body {
            Mixer::Attention(a) => self.attention(&mixer_place, a),
            Mixer::LatentAttention(_) => self.unsupported(&mixer_place, "latent attention"),
            Mixer::CompressedAttention(_) => self.unsupported(&mixer_place, "compressed attention"),
            Mixer::Kda(_) => self.unsupported(&mixer_place, "Kimi delta attention"),
            Mixer::GatedDeltaNet(_) => self.unsupported(&mixer_place, "a gated delta net"),
        }
        let ffn_place = format!("{place}.ffn");
        self.block(&ffn_place, &layer.ffn);
        let hidden = self.program.dims.hidden;
        match &layer.ffn.body {
            Ffn::Dense(unit) => self.unit(&ffn_place, unit, None, hidden),
            Ffn::Routed(routed) => self.routed(&ffn_place, routed),
        }
    }

    fn block<B>(&mut self, place: &str, block: &Block<B>) {
        let hidden = self.program.dims.hidden;
        for (name, norm) in [
            ("pre_norm", &block.pre_norm),
            ("post_norm", &block.post_norm),
        ] {
            if let Some(norm) = norm {
                self.norm(&format!("{place}.{name}"), norm, hidden);
            }
        }
        if block.convolution.is_some() {
            self.unsupported(place, "a short convolution");
        }
    }

    fn attention(&mut self, place: &str, a: &Attention) {
        let hidden = self.program.dims.hidden;
        if a.heads == 0 || a.kv_heads == 0 || a.head_dim == 0 {
            self.geometry(place, "a head count or head size is zero".into());
            return;
        }
        if !a.heads.is_multiple_of(a.kv_heads) {
            let message = format!("{} heads cannot share {} key heads", a.heads, a.kv_heads);
            self.geometry(place, message);
        }
        let (Some(q), Some(kv)) = (
            a.heads.checked_mul(a.head_dim),
            a.kv_heads.checked_mul(a.head_dim),
        ) else {
            self.geometry(place, "heads times head size overflows".into());
            return;
        };
        self.linear(place, &a.query, q, hidden);
        self.linear(place, &a.key, kv, hidden);
        self.linear(place, &a.value, kv, hidden);
        self.linear(place, &a.output, hidden, q);
        if let Some(norm) = &a.qk_norm {
            let (qn, kn) = match norm.scope {
                QkNormScope::Projection => (q, kv),
                QkNormScope::Head => (a.head_dim, a.head_dim),
            };
            self.norm(place, &norm.query, qn);
            self.norm(place, &norm.key, kn);
        }
        if let Some(rope) = &a.rope
            && (rope.dims > a.head_dim || !rope.dims.is_multiple_of(2))
        {
            let message = format!("{} rotated channels of {}", rope.dims, a.head_dim);
            self.geometry(place, message);
        }
        self.attention_extras(place, a);
    }

    /// Parts of attention this version has no rules for.
    fn attention_extras(&mut self, place: &str, a: &Attention) {
        for (present, what) in [
            (a.span != crate::block::Span::Full, "sliding attention"),
            (a.sinks.is_some(), "attention sinks"),
            (a.output_gate.is_some(), "an attention output gate"),
            (a.relative_bias.is_some(), "a relative bias"),
            (a.convolutions.is_some(), "key/value convolutions"),
            (a.position_scaling.is_some(), "position scaling"),
            (a.indexer.is_some(), "an attention indexer"),
            (a.rope.as_ref().is_some_and(|r| r.yarn.is_some()), "YaRN"),
        ] {
            if present {
                self.unsupported(place, what);
            }
        }
    }

    fn routed(&mut self, place: &str, r: &Routed) {
        let hidden = self.program.dims.hidden;
        if r.top_k == 0 || r.top_k > r.experts {
            self.geometry(
                place,
                format!("{} experts chosen of {}", r.top_k, r.experts),
            );
        }
        self.expect(place, r.router.weight, &[r.experts, hidden]);
        for (present, what) in [
            (
                r.router.scoring != crate::block::Scoring::Softmax,
                "this router scoring",
            ),
            (r.router.selection_bias.is_some(), "a router selection bias"),
            (r.router.groups.is_some(), "grouped routing"),
            (r.router.hash_table.is_some(), "hash routing"),
            (
                matches!(r.router.weights, WeightRule::WithShared { .. }),
                "shared-expert weights",
            ),
            (r.router.learned_scale.is_some(), "a learned router scale"),
            (r.latent.is_some(), "latent experts"),
            (!r.shared.is_empty(), "shared experts"),
        ] {
            if present {
                self.unsupported(place, what);
            }
        }
        self.unit(place, &r.unit, Some(r.experts), hidden);
    }

    fn unit(&mut self, place: &str, unit: &GatedUnit, experts: Option<usize>, hidden: usize) {
        let stacked = |rows: usize, cols: usize| match experts {
            Some(count) => vec![count, rows, cols],
            None => vec![rows, cols],
        };
        if unit.width == 0 {
            self.geometry(place, "inner width is zero".into());
        }
        self.expect(place, unit.gate, &stacked(unit.width, hidden));
        self.expect(place, unit.up, &stacked(unit.width, hidden));
        self.expect(place, unit.down, &stacked(hidden, unit.width));
        if unit.activation != crate::block::GatedActivation::Silu {
            self.unsupported(place, "this gated activation");
        }
        if unit.output_gate.is_some() || unit.output_scale.is_some() {
            self.unsupported(place, "a gated or scaled ffn output");
        }
    }

    fn norm(&mut self, place: &str, norm: &RmsNorm, width: usize) {
        if let Some(weight) = norm.weight {
            self.expect(place, weight, &[width]);
        }
        if !(norm.eps.is_finite() && norm.eps >= 0.0) {
            self.geometry(place, format!("eps {} is not usable", norm.eps));
        }
    }

    fn linear(&mut self, place: &str, linear: &Linear, rows: usize, cols: usize) {
        self.expect(place, linear.weight, &[rows, cols]);
        if let Some(bias) = linear.bias {
            self.expect(place, bias, &[rows]);
        }
    }

    fn expect(&mut self, place: &str, id: OperandId, expected: &[usize]) {
        self.used.insert(id);
        match self.program.operands.get(id.index()) {
            None => {
                self.defects.push(Defect::DanglingOperand {
                    place: place.to_owned(),
                    id: id.0,
                });
            }
            Some(operand) if operand.shape != expected => {
                self.defects.push(Defect::OperandShape {
                    place: place.to_owned(),
                    operand: operand.name.clone(),
                    found: operand.shape.clone(),
                    expected: expected.to_vec(),
                });
            }
            Some(_) => {}
        }
    }

    fn geometry(&mut self, place: &str, message: String) {
        self.defects.push(Defect::Geometry {
            place: place.to_owned(),
            message,
        });
    }

    fn unsupported(&mut self, place: &str, what: &str) {
        self.defects.push(Defect::UnsupportedBlock {
            place: place.to_owned(),
            what: what.to_owned(),
        });
    }
}

/// What does not add up between an operand's shape and its parts, if anything.
fn part_mismatch(operand: &Operand) -> Option<String> {
    if operand.shape.is_empty() || operand.shape.contains(&0) {
        return Some(format!("shape {:?} has no elements", operand.shape));
    }
    if operand
        .shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .is_none()
    {
        return Some(format!("shape {:?} overflows", operand.shape));
    }
    if operand.role == Role::Expert && operand.shape.len() != 3 {
        return Some(format!(
            "shape {:?} is not [experts, out, in]",
            operand.shape
        ));
    }
    if operand.parts.len() != operand.items() {
        return Some(format!(
            "{} parts for {} items",
            operand.parts.len(),
            operand.items()
        ));
    }
    for part in &operand.parts {
        let rows = part
            .iter()
            .try_fold(0usize, |sum, s| sum.checked_add(s.rows));
        if rows != Some(operand.rows()) || part.iter().any(|s| s.cols() != operand.cols()) {
            return Some("its slices do not add up to its shape".to_owned());
        }
        for slice in part {
            let available = tensor_rows(slice);
            let last = slice
                .rows
                .checked_sub(1)
                .and_then(|n| n.checked_mul(slice.step))
                .and_then(|n| n.checked_add(slice.start));
            if slice.step == 0 || last.is_none_or(|last| last >= available) {
                return Some(format!("a slice reaches beyond tensor {}", slice.tensor));
            }
        }
    }
    None
}

/// Rows of the tensor a slice is taken from, 0 where the count overflows.
fn tensor_rows(slice: &crate::operand::Slice) -> usize {
    match slice.tensor_shape.split_last() {
        Some((_, leading)) if !leading.is_empty() => leading
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .unwrap_or(0),
        _ => 1,
    }
}
