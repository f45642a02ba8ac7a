//! Operands: the named weights a program computes with, and where they come from.

use serde::{Deserialize, Serialize};

/// Index of an operand in [`Program::operands`](crate::Program::operands).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperandId(pub u32);

impl OperandId {
    /// The position in the operand table.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an operand is for. Decides which encodings it may take, never what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embedding table `[vocabulary, hidden]`.
    Embedding,
    /// Output head `[vocabulary, hidden]`.
    Head,
    /// A resident linear map `[out, in]`.
    Linear,
    /// A routed expert's linear map, stacked `[experts, out, in]`, streamed.
    Expert,
    /// A router `[experts, hidden]`: kept in f32 because a changed choice changes the text.
    Router,
    /// A small vector (norm weight, bias, scale): kept in f32.
    Vector,
    /// A depthwise convolution or another small kernel: kept in f32.
    Kernel,
    /// A table of integers (hash routing, hash multipliers): kept as it is.
    Table,
}

impl Role {
    /// Whether a compiled (integer) encoding is allowed.
    #[must_use]
    pub fn may_quantise(self) -> bool {
        matches!(
            self,
            Role::Embedding | Role::Head | Role::Linear | Role::Expert
        )
    }
}

/// Rows of one checkpoint tensor, seen as a matrix `[product of leading dims, last dim]` (a
/// one-dimensional tensor is one row).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Name of the tensor in the checkpoint.
    pub tensor: String,
    /// Shape the checkpoint tensor must have.
    pub tensor_shape: Vec<usize>,
    /// First row taken.
    pub start: usize,
    /// Distance between taken rows (1 = contiguous; 2 picks every other row of an interleaved
    /// pair).
    pub step: usize,
    /// Number of rows taken.
    pub rows: usize,
    /// How the tensor's elements stand for numbers; `None` = they are the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coding: Option<Coding>,
}

/// Codes with scales in tensors of their own, as checkpoints ship them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Coding {
    /// FP8 E4M3, `code * scale` with one scale (f32, bf16 or E8M0) for each `block` of
    /// `[rows, columns]`, the last ones cropped. The tensor is a matrix. In blocks of `[1, 32]`
    /// (MXFP8) U8 is E8M0 too.
    BlockFp8 {
        /// Tensor of the scales, `[ceil(rows / block), ceil(columns / block)]`.
        scale: String,
        /// Rows and columns that share a scale.
        block: [usize; 2],
    },
    /// FP8 E4M3 with one scale (f32 or bf16, `[1]`) for the whole tensor.
    TensorFp8 {
        /// Tensor of the scale.
        scale: String,
    },
    /// Two FP4 E2M1 codes a byte, the even column in the low nibble; one E8M0 scale for 32 columns
    /// of a row (OCP Microscaling formats, 2023). The tensor counts bytes, even where the file's
    /// element type counts codes.
    Mxfp4 {
        /// Tensor of the scales, `[.., columns / 32]`.
        scale: String,
    },
    /// Two FP4 E2M1 codes a byte, the even column in the low nibble; `code * scale * global`, one
    /// E4M3 scale for 16 columns of a row, one f32 for each item of the leading dimension of a
    /// stack (or one in all).
    Nvfp4 {
        /// Tensor of the scales, `[.., columns / 16]`.
        scale: String,
        /// Tensor of the outer scales, `[items]`, `[1]` or `[]`.
        global: String,
    },
    /// The same with divisors in place of the outer scales: `code * scale * (1 / divisor)`, the
    /// quotient rounded to f32. A tensor that joins several matrices may have a divisor for each.
    DividedNvfp4 {
        /// Tensor of the scales, `[.., columns / 16]`.
        scale: String,
        /// Tensor of the divisors (f32), `[items, parts]`, `[items, 1]`, `[items]`, `[1]` or `[]`.
        divisor: String,
        /// Which part of an item the slice is, and of how many.
        part: [usize; 2],
    },
}

impl Coding {
    /// Numbers in one element of the tensor.
    #[must_use]
    pub fn per_element(&self) -> usize {
        match self {
            Coding::BlockFp8 { .. } | Coding::TensorFp8 { .. } => 1,
            Coding::Mxfp4 { .. } | Coding::Nvfp4 { .. } | Coding::DividedNvfp4 { .. } => 2,
        }
    }

    /// The tensors of scales.
    #[must_use]
    pub fn scales(&self) -> Vec<&str> {
        match self {
            Coding::BlockFp8 { scale, .. }
            | Coding::TensorFp8 { scale }
            | Coding::Mxfp4 { scale } => vec![scale],
            Coding::Nvfp4 { scale, global } => vec![scale, global],
            Coding::DividedNvfp4 { scale, divisor, .. } => vec![scale, divisor],
        }
    }

    /// Shapes that the outer scales, or divisors, of a tensor of `shape` may have, the most telling
    /// first; none where there are no such.
    #[must_use]
    pub fn outer_shapes(&self, shape: &[usize]) -> Vec<Vec<usize>> {
        let items = match shape {
            [items, _, _, ..] => Some(*items),
            _ => None,
        };
        let of_items: Vec<Vec<usize>> = match (self, items) {
            (Coding::Nvfp4 { .. }, Some(n)) => vec![vec![n]],
            (Coding::DividedNvfp4 { part, .. }, Some(n)) => {
                vec![vec![n, part[1]], vec![n, 1], vec![n]]
            }
            (Coding::Nvfp4 { .. } | Coding::DividedNvfp4 { .. }, None) => Vec::new(),
            _ => return Vec::new(),
        };
        of_items.into_iter().chain([vec![1], vec![]]).collect()
    }
}

impl Slice {
    /// All of `tensor`.
    #[must_use]
    pub fn whole(tensor: impl Into<String>, shape: &[usize]) -> Slice {
        let rows = if shape.len() < 2 {
            1
        } else {
            shape[..shape.len() - 1].iter().product()
        };
        Slice {
            tensor: tensor.into(),
            tensor_shape: shape.to_vec(),
            start: 0,
            step: 1,
            rows,
            coding: None,
        }
    }

    /// Numbers in a row of the tensor seen as a matrix.
    #[must_use]
    pub fn cols(&self) -> usize {
        let per_element = self.coding.as_ref().map_or(1, Coding::per_element);
        let elements = self.tensor_shape.last().copied().unwrap_or(1);
        elements.saturating_mul(per_element)
    }
}

/// A named weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operand {
    /// Unique name, in Lamella's own words: `layers.3.attention.query`.
    pub name: String,
    /// Logical shape. Matrices are `[out, in]`; expert operands `[experts, out, in]`; vectors
    /// `[n]`.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// Where the numbers come from: one part per stacked item (a single part where nothing is
    /// stacked), each the row-wise concatenation of slices.
    pub parts: Vec<Vec<Slice>>,
}

impl Operand {
    /// Number of stacked items: experts for [`Role::Expert`], otherwise 1.
    #[must_use]
    pub fn items(&self) -> usize {
        if self.role == Role::Expert {
            self.shape.first().copied().unwrap_or(0)
        } else {
            1
        }
    }

    /// Rows of one item seen as a matrix (a vector is one row).
    #[must_use]
    pub fn rows(&self) -> usize {
        let dims = self.item_shape();
        if dims.len() < 2 {
            1
        } else {
            dims[..dims.len() - 1].iter().product()
        }
    }

    /// Columns of one item seen as a matrix: the reduction length of a linear map.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.item_shape().last().copied().unwrap_or(1)
    }

    /// Elements of one item.
    #[must_use]
    pub fn item_elements(&self) -> usize {
        self.item_shape().iter().product()
    }

    /// Elements of all items.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn item_shape(&self) -> &[usize] {
        if self.role == Role::Expert {
            self.shape.get(1..).unwrap_or(&[])
        } else {
            &self.shape
        }
    }
}
