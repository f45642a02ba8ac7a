//! The operands against the tensors of a checkpoint.

use super::defect::Defect;
use crate::encoding::Encoding;
use crate::operand::{Coding, Operand, Role, Slice};
use crate::program::{PerLayerEmbedding, Program};
use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};

/// A tensor as the checkpoint's header announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the checkpoint.
    pub name: String,
    /// Name of the element type as the file spells it: `BF16`.
    pub dtype: String,
    /// The encoding, where it is one that programs can use; `None` for codes, scales and integers.
    pub encoding: Option<Encoding>,
    /// Dimensions.
    pub shape: Vec<usize>,
}

/// Element types of FP8 codes.
const FP8: &[&str] = &["F8_E4M3"];
/// Element types of pairs of FP4 codes: bytes, or a type whose shapes count the codes.
const FP4: &[&str] = &["U8", "I8", "F4", "F4_E2M1"];
/// Element types whose shapes count two codes a byte.
const COUNTS_CODES: &[&str] = &["F4", "F4_E2M1"];
/// Element type of constants.
const CONSTANTS: &str = "I64";
/// Element types of integer tables.
const INTEGERS: &[&str] = &["I64", "I32"];

/// Blocks of the MX formats, whose scales are also stored as bytes.
const MX_BLOCK: [usize; 2] = [1, 32];

/// Compares every operand with its tensors, and every tensor with what uses it.
pub(super) fn check(program: &Program, tensors: &[TensorInfo], defects: &mut Vec<Defect>) {
    let mut sources = Sources {
        table: tensors.iter().map(|t| (t.name.as_str(), t)).collect(),
        claimed: HashSet::new(),
        reported: HashSet::new(),
        defects,
    };
    for operand in &program.operands {
        sources.operand(operand);
    }
    for component in &program.unused {
        let names = component.tensors.iter().map(String::as_str);
        sources.claimed.extend(names);
    }
    for embedding in &program.entry.per_layer_embeddings {
        sources.constants(embedding);
    }
    let claimed = sources.claimed;
    for tensor in tensors {
        if !claimed.contains(tensor.name.as_str()) {
            defects.push(Defect::UnclaimedTensor(tensor.name.clone()));
        }
    }
}

struct Sources<'p, 't, 'd> {
    table: HashMap<&'t str, &'t TensorInfo>,
    claimed: HashSet<&'p str>,
    /// What has been said of a tensor; a stacked tensor is not reported for every item.
    reported: HashSet<(&'p str, Discriminant<Defect>)>,
    defects: &'d mut Vec<Defect>,
}

impl<'p, 't> Sources<'p, 't, '_> {
    fn operand(&mut self, operand: &'p Operand) {
        let mut first: Option<String> = None;
        let mut mixed = false;
        for slice in operand.parts.iter().flatten() {
            let Some(form) = self.slice(operand, slice) else {
                continue;
            };
            match &first {
                None => first = Some(form),
                Some(first) if *first != form && !mixed => {
                    mixed = true;
                    self.defects.push(Defect::MixedTypes {
                        operand: operand.name.clone(),
                        tensor: slice.tensor.clone(),
                        first: first.clone(),
                        second: form,
                    });
                }
                Some(_) => {}
            }
        }
    }

    /// Claims the tensors of a slice; how its elements are stored, if they are usable.
    fn slice(&mut self, operand: &'p Operand, slice: &'p Slice) -> Option<String> {
        let tensor = self.find(&operand.name, &slice.tensor);
        let scales = self.scales(operand, slice);
        let tensor = tensor?;
        let usable = match &slice.coding {
            None if operand.role == Role::Table => INTEGERS.contains(&tensor.dtype.as_str()),
            None => tensor.encoding.is_some(),
            Some(Coding::BlockFp8 { .. } | Coding::TensorFp8 { .. }) => {
                FP8.contains(&tensor.dtype.as_str())
            }
            Some(Coding::Mxfp4 { .. }) => FP4.contains(&tensor.dtype.as_str()),
            Some(Coding::Nvfp4 { .. } | Coding::DividedNvfp4 { .. }) => tensor.dtype == "U8",
        };
        if !usable {
            self.element_type(&slice.tensor, tensor);
            return None;
        }
        let mut expected = slice.tensor_shape.clone();
        if COUNTS_CODES.contains(&tensor.dtype.as_str())
            && let (Some(coding), Some(last)) = (&slice.coding, expected.last_mut())
        {
            *last = last.saturating_mul(coding.per_element());
        }
        self.shape(&slice.tensor, tensor, &[expected]);
        scales.then(|| match &slice.coding {
            // Numbers of several widths are all read as the widest.
            None if tensor.encoding.is_some() => "numbers".to_owned(),
            None => tensor.dtype.clone(),
            // Two FP4 codes are one byte, whatever its type is called.
            Some(coding) => kind(coding).to_owned(),
        })
    }

    /// Claims the scales of a slice; whether their types are usable.
    fn scales(&mut self, operand: &'p Operand, slice: &'p Slice) -> bool {
        let Some(coding) = &slice.coding else {
            return true;
        };
        let one = vec![vec![1], vec![]];
        let by_columns = |columns| vec![last_dim(slice, slice.cols() / columns)];
        match coding {
            Coding::BlockFp8 { scale, block } => {
                let dims = slice.tensor_shape.iter().zip(block);
                let blocks = dims.map(|(&n, &b)| n.div_ceil(b.max(1))).collect();
                let types = ["F32", "BF16", "F8_E8M0", "U8"];
                let known = if *block == MX_BLOCK { 4 } else { 3 };
                self.scale(operand, scale, &types[..known], &[blocks])
            }
            Coding::TensorFp8 { scale } => self.scale(operand, scale, &["F32", "BF16"], &one),
            Coding::Mxfp4 { scale } => {
                self.scale(operand, scale, &["U8", "F8_E8M0"], &by_columns(32))
            }
            Coding::Nvfp4 {
                scale,
                global: outer,
            }
            | Coding::DividedNvfp4 {
                scale,
                divisor: outer,
                ..
            } => {
                let shapes = coding.outer_shapes(&slice.tensor_shape);
                let inner = self.scale(operand, scale, &["F8_E4M3"], &by_columns(16));
                self.scale(operand, outer, &["F32"], &shapes) && inner
            }
        }
    }

    /// Claims a tensor of scales of one of the types and shapes; whether its type is usable.
    fn scale(
        &mut self,
        operand: &'p Operand,
        name: &'p str,
        dtypes: &[&str],
        shapes: &[Vec<usize>],
    ) -> bool {
        let Some(tensor) = self.find(&operand.name, name) else {
            return true;
        };
        if !dtypes.contains(&tensor.dtype.as_str()) {
            self.element_type(name, tensor);
            return false;
        }
        self.shape(name, tensor, shapes);
        true
    }

    /// Claims the tensors that repeat constants of the program. Their numbers are compared where
    /// there are bytes: when the checkpoint is opened.
    fn constants(&mut self, embedding: &'p PerLayerEmbedding) {
        let place = format!("layers.{}.ngram", embedding.layer);
        for (name, values) in embedding.stored_constants() {
            match self.find(&place, name) {
                None => {}
                Some(tensor) if tensor.dtype != CONSTANTS => self.element_type(name, tensor),
                Some(tensor) => self.shape(name, tensor, &[vec![values.len()]]),
            }
        }
    }

    /// Claims a tensor that `user` needs and finds it.
    fn find(&mut self, user: &str, name: &'p str) -> Option<&'t TensorInfo> {
        self.claimed.insert(name);
        let found = self.table.get(name).copied();
        if found.is_none() {
            let (tensor, operand) = (name.to_owned(), user.to_owned());
            self.report(name, Defect::MissingTensor { tensor, operand });
        }
        found
    }

    fn shape(&mut self, name: &'p str, tensor: &TensorInfo, shapes: &[Vec<usize>]) {
        if !shapes.contains(&tensor.shape) {
            let defect = Defect::TensorShape {
                tensor: name.to_owned(),
                found: tensor.shape.clone(),
                expected: shapes.first().cloned().unwrap_or_default(),
            };
            self.report(name, defect);
        }
    }

    fn element_type(&mut self, name: &'p str, tensor: &TensorInfo) {
        let (tensor, dtype) = (name.to_owned(), tensor.dtype.clone());
        self.report(name, Defect::ElementType { tensor, dtype });
    }

    fn report(&mut self, name: &'p str, defect: Defect) {
        if self.reported.insert((name, discriminant(&defect))) {
            self.defects.push(defect);
        }
    }
}

/// The shape of a slice's tensor with another last dimension.
fn last_dim(slice: &Slice, last: usize) -> Vec<usize> {
    let mut shape = slice.tensor_shape.clone();
    if let Some(dim) = shape.last_mut() {
        *dim = last;
    }
    shape
}

fn kind(coding: &Coding) -> &'static str {
    match coding {
        Coding::BlockFp8 { .. } => "FP8 blocks",
        Coding::TensorFp8 { .. } => "FP8",
        Coding::Mxfp4 { .. } => "MXFP4",
        Coding::Nvfp4 { .. } | Coding::DividedNvfp4 { .. } => "NVFP4",
    }
}
