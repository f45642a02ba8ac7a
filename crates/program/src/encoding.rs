//! How the numbers of an operand are stored.
//!
//! *Canonical* encodings are what a checkpoint ships, row-major. *Compiled* encodings are made by
//! Lamella: group-quantised integers in tiles that the kernels execute without repacking. This
//! module is only geometry and names; `container` writes the bytes, `kernels` reads them.
//!
//! # Layout of a compiled matrix `[rows, cols]`
//!
//! Rows are padded to a multiple of [`TILE_ROWS`], columns to a multiple of [`GROUP`]. The matrix
//! is a sequence of row blocks; a row block is its *scale plane* followed by its *code plane*.
//!
//! * Scale plane: for each group `g`, 16 little-endian f16, one per row `i` of the block; padded
//!   with zeros to [`PLANE_ALIGN`].
//! * Code plane, q8: for each group `g`, quad `q` in 0..8, row `i` in 0..16, `j` in 0..4, the byte
//!   `value + 128` of input `32g + 4q + j`. `weight = value * scale`, value in -127..=127.
//! * Code plane, q4: for each group `g`, pair `p` in 0..4, row `i`, `j` in 0..4, one byte: low
//!   nibble `value + 8` of input `32g + 8p + j`, high nibble that of input `32g + 8p + 4 + j`.
//!   `weight = value * scale`, value in -8..=7.
//!
//! Padding has value 0 and, for padded rows, scale 0.

use crate::operand::Role;
use serde::{Deserialize, Serialize};

/// Elements along the input dimension that share one scale in [`Encoding::Q8`] and
/// [`Encoding::Q4`].
pub const GROUP: usize = 32;

/// Output rows interleaved in one tile of a compiled operand: one 512-bit register of 32-bit
/// lanes.
pub const TILE_ROWS: usize = 16;

/// Alignment of every plane inside a compiled operand, in bytes: one cache line, one register.
pub const PLANE_ALIGN: usize = 64;

/// The storage format of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Encoding {
    /// IEEE binary32, row-major.
    F32,
    /// IEEE binary16, row-major.
    F16,
    /// bfloat16, row-major.
    Bf16,
    /// 8-bit integers, one f16 scale per row and [`GROUP`] inputs: 8.5 bits a weight.
    Q8,
    /// 4-bit integers, one f16 scale per row and [`GROUP`] inputs: 4.5 bits a weight.
    Q4,
}

impl Encoding {
    /// Every encoding, in the order they are listed to users.
    pub const ALL: [Encoding; 5] = [
        Encoding::F32,
        Encoding::F16,
        Encoding::Bf16,
        Encoding::Q8,
        Encoding::Q4,
    ];

    /// The name used on the command line and in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::F16 => "f16",
            Encoding::Bf16 => "bf16",
            Encoding::Q8 => "q8",
            Encoding::Q4 => "q4",
        }
    }

    /// The encoding called `name`, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Encoding> {
        Encoding::ALL.into_iter().find(|e| e.name() == name)
    }

    /// Whether Lamella made this encoding (as opposed to a checkpoint shipping it).
    #[must_use]
    pub fn is_compiled(self) -> bool {
        matches!(self, Encoding::Q8 | Encoding::Q4)
    }

    /// Bytes of the integer codes of one tile: [`TILE_ROWS`] rows by [`GROUP`] inputs. `None` for
    /// row-major encodings.
    #[must_use]
    pub fn tile_code_bytes(self) -> Option<usize> {
        match self {
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => None,
            Encoding::Q8 => Some(TILE_ROWS * GROUP),
            Encoding::Q4 => Some(TILE_ROWS * GROUP / 2),
        }
    }

    /// Bytes of one row block ([`TILE_ROWS`] rows of `cols` inputs): the scale plane, then the code
    /// plane. `None` for row-major encodings and on overflow.
    #[must_use]
    pub fn row_block_bytes(self, cols: usize) -> Option<usize> {
        let groups = cols.div_ceil(GROUP);
        scale_plane_bytes(groups)?.checked_add(groups.checked_mul(self.tile_code_bytes()?)?)
    }

    /// Bytes of one element of a row-major encoding. `None` for tiled encodings.
    #[must_use]
    pub fn element_bytes(self) -> Option<usize> {
        match self {
            Encoding::F32 => Some(4),
            Encoding::F16 | Encoding::Bf16 => Some(2),
            Encoding::Q8 | Encoding::Q4 => None,
        }
    }

    /// Bytes of a stored `[rows, cols]` matrix, or `None` if the product overflows.
    ///
    /// Compiled encodings pad rows to [`TILE_ROWS`] and columns to [`GROUP`].
    #[must_use]
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> Option<usize> {
        match self.element_bytes() {
            None => rows
                .div_ceil(TILE_ROWS)
                .checked_mul(self.row_block_bytes(cols)?),
            Some(bytes) => rows.checked_mul(cols)?.checked_mul(bytes),
        }
    }
}

/// Which encoding an operand takes, by its role.
///
/// Routers, norms and other small operands are not covered: they are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Resident linear maps.
    pub linear: Encoding,
    /// Routed experts.
    pub expert: Encoding,
    /// Token embedding.
    pub embedding: Encoding,
    /// Output head.
    pub head: Encoding,
}

impl Policy {
    /// What "this model in `encoding`" means: linear maps and experts take it; the embedding and
    /// the head, which touch every token and cost little, take at least 8 bits.
    #[must_use]
    pub fn uniform(encoding: Encoding) -> Policy {
        let edge = if encoding == Encoding::Q4 {
            Encoding::Q8
        } else {
            encoding
        };
        Policy {
            linear: encoding,
            expert: encoding,
            embedding: edge,
            head: edge,
        }
    }

    /// The encoding of an operand with this role; `None` for operands that are never quantised.
    #[must_use]
    pub fn encoding(&self, role: Role) -> Option<Encoding> {
        match role {
            Role::Linear => Some(self.linear),
            Role::Expert => Some(self.expert),
            Role::Embedding => Some(self.embedding),
            Role::Head => Some(self.head),
            Role::Router | Role::Vector | Role::Kernel | Role::Table => None,
        }
    }
}

/// Bytes of the scale plane of one row block: [`TILE_ROWS`] f16 a group, padded to
/// [`PLANE_ALIGN`]. `None` on overflow.
#[must_use]
pub fn scale_plane_bytes(groups: usize) -> Option<usize> {
    groups
        .checked_mul(TILE_ROWS * 2)?
        .checked_next_multiple_of(PLANE_ALIGN)
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_matrices_cost_the_documented_bits() {
        let weights = 2048 * 1024;
        assert_eq!(
            Encoding::Q8.matrix_bytes(2048, 1024).unwrap() * 16,
            weights * 17
        );
        assert_eq!(
            Encoding::Q4.matrix_bytes(2048, 1024).unwrap() * 16,
            weights * 9
        );
    }

    #[test]
    fn odd_sizes_are_padded_and_overflow_is_an_answer() {
        assert_eq!(Encoding::Q8.matrix_bytes(1, 1), Some(64 + 512));
        assert_eq!(Encoding::Q4.matrix_bytes(17, 33), Some(2 * (64 + 2 * 256)));
        assert_eq!(Encoding::Bf16.matrix_bytes(3, 5), Some(30));
        assert_eq!(Encoding::F32.matrix_bytes(usize::MAX, 2), None);
        assert_eq!(Encoding::Q4.matrix_bytes(usize::MAX, 64), None);
    }

    #[test]
    fn names_round_trip() {
        for e in Encoding::ALL {
            assert_eq!(Encoding::from_name(e.name()), Some(e));
        }
        assert_eq!(Encoding::from_name("Q8"), None);
    }
}
