//! How the numbers of an operand are stored.
//!
//! *Canonical* encodings are what a checkpoint ships: numbers row by row, or codes with scales.
//! *Compiled* encodings are made by Lamella: group-quantised integers. Codes and integers lie in
//! tiles that the kernels execute without repacking. This module is only geometry and names;
//! `container` writes the bytes, `kernels` reads them.
//!
//! A tiled matrix `[rows, cols]` is a sequence of row blocks: [`TILE_ROWS`] rows, the last block
//! padded with zero bytes. A row block is its *scale plane*, padded with zeros to [`PLANE_ALIGN`],
//! followed by its *code plane*. All numbers are little-endian.
//!
//! # Codes with scales (fp8, mxfp8, mxfp4, nvfp4)
//!
//! The codes are those the checkpoint ships; a row's bytes are padded with zeros to whole words of
//! four.
//!
//! * Code plane, mxfp4 and nvfp4: for each word `w` and row `i` of the block, the four bytes that
//!   are word `w` of the row. A byte holds two E2M1 codes, the even input in the low nibble, so
//!   that a word is inputs `8w .. 8w + 8`.
//! * Code plane, fp8 and mxfp8: for each word `w`, first for every row `i` the E4M3 codes of inputs
//!   `4w` and `4w + 1`, then for every row those of `4w + 2` and `4w + 3`.
//! * Scale plane, mxfp4 and mxfp8: for each group of 32 inputs, 16 E8M0 bytes, one a row:
//!   `weight = code * 2^(byte - 127)`.
//! * Scale plane, fp8: for each group of 128 inputs, 16 f32, one a row: `weight = code * scale`.
//!   Blocks of 128 rows, whole tensors and E8M0 scales are written out so, without loss.
//! * Scale plane, nvfp4: 16 f32, the outer scale of each row; then for each group of 16 inputs, 16
//!   E4M3 bytes, one a row: `weight = (code * scale) * outer`.
//!
//! # Integers (q8, q4)
//!
//! Columns are padded to a multiple of [`GROUP`].
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

/// Output rows interleaved in one tile: one 512-bit register of 32-bit
/// lanes.
pub const TILE_ROWS: usize = 16;

/// Alignment of every plane inside a tiled operand, in bytes: one cache line, one register.
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
    /// FP8 E4M3 codes, one f32 scale per row and 128 inputs: 8.25 bits a weight.
    Fp8,
    /// FP8 E4M3 codes, one E8M0 scale per row and 32 inputs: 8.25 bits a weight.
    Mxfp8,
    /// FP4 E2M1 codes, one E8M0 scale per row and 32 inputs: 4.25 bits a weight.
    Mxfp4,
    /// FP4 E2M1 codes, one E4M3 scale per row and 16 inputs, one f32 a row: 4.5 bits a weight.
    Nvfp4,
    /// 8-bit integers, one f16 scale per row and [`GROUP`] inputs: 8.5 bits a weight.
    Q8,
    /// 4-bit integers, one f16 scale per row and [`GROUP`] inputs: 4.5 bits a weight.
    Q4,
}

impl Encoding {
    /// Every encoding, in the order they are listed to users.
    pub const ALL: [Encoding; 9] = [
        Encoding::F32,
        Encoding::F16,
        Encoding::Bf16,
        Encoding::Fp8,
        Encoding::Mxfp8,
        Encoding::Mxfp4,
        Encoding::Nvfp4,
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
            Encoding::Fp8 => "fp8",
            Encoding::Mxfp8 => "mxfp8",
            Encoding::Mxfp4 => "mxfp4",
            Encoding::Nvfp4 => "nvfp4",
            Encoding::Q8 => "q8",
            Encoding::Q4 => "q4",
        }
    }

    /// The encoding called `name`, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Encoding> {
        Encoding::ALL.into_iter().find(|e| e.name() == name)
    }

    /// Whether Lamella made this encoding (as opposed to a checkpoint shipping it). Products with
    /// compiled weights take 8-bit inputs.
    #[must_use]
    pub fn is_compiled(self) -> bool {
        matches!(self, Encoding::Q8 | Encoding::Q4)
    }

    /// Whether it is codes with scales, as a checkpoint ships them, in tiles.
    #[must_use]
    pub fn is_coded(self) -> bool {
        self.word_inputs().is_some()
    }

    /// Whether it lies in tiles of [`TILE_ROWS`] rows (as opposed to row by row).
    #[must_use]
    pub fn is_tiled(self) -> bool {
        self.element_bytes().is_none()
    }

    /// What asking for this encoding means for an operand of which `stored` is there. It means
    /// itself, but MXFP4 stays where 4 bits are asked for: weights were trained in it, it is
    /// smaller than q4, and rounding them again could only lose.
    #[must_use]
    pub fn given(self, stored: &[Encoding]) -> Encoding {
        if self == Encoding::Q4 && stored.contains(&Encoding::Mxfp4) {
            Encoding::Mxfp4
        } else {
            self
        }
    }

    /// Inputs of a row that share a scale; `None` where there are no scales.
    #[must_use]
    pub fn group(self) -> Option<usize> {
        match self {
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => None,
            Encoding::Fp8 => Some(128),
            Encoding::Nvfp4 => Some(16),
            Encoding::Mxfp8 | Encoding::Mxfp4 | Encoding::Q8 | Encoding::Q4 => Some(GROUP),
        }
    }

    /// Inputs in four bytes of codes; `None` where there are no codes as a checkpoint ships them.
    #[must_use]
    pub fn word_inputs(self) -> Option<usize> {
        match self {
            Encoding::Fp8 | Encoding::Mxfp8 => Some(4),
            Encoding::Mxfp4 | Encoding::Nvfp4 => Some(8),
            _ => None,
        }
    }

    /// Bytes of the integer codes of one tile: [`TILE_ROWS`] rows by [`GROUP`] inputs. `None` for
    /// encodings that are not compiled.
    #[must_use]
    pub fn tile_code_bytes(self) -> Option<usize> {
        match self {
            Encoding::Q8 => Some(TILE_ROWS * GROUP),
            Encoding::Q4 => Some(TILE_ROWS * GROUP / 2),
            _ => None,
        }
    }

    /// Bytes of the scale plane of one row block of `cols` inputs. `None` for row-major encodings
    /// and on overflow.
    #[must_use]
    pub fn scale_bytes(self, cols: usize) -> Option<usize> {
        let groups = cols.div_ceil(self.group()?);
        if groups == 0 {
            return Some(0);
        }
        let (head, each) = match self {
            Encoding::Fp8 => (0, 4),
            Encoding::Nvfp4 => (4, 1),
            Encoding::Mxfp8 | Encoding::Mxfp4 => (0, 1),
            _ => return scale_plane_bytes(groups),
        };
        groups
            .checked_mul(each)?
            .checked_add(head)?
            .checked_mul(TILE_ROWS)?
            .checked_next_multiple_of(PLANE_ALIGN)
    }

    /// Bytes of one row block ([`TILE_ROWS`] rows of `cols` inputs): the scale plane, then the code
    /// plane. `None` for row-major encodings and on overflow.
    #[must_use]
    pub fn row_block_bytes(self, cols: usize) -> Option<usize> {
        let codes = match self.word_inputs() {
            Some(inputs) => cols.div_ceil(inputs).checked_mul(TILE_ROWS * 4)?,
            None => cols.div_ceil(GROUP).checked_mul(self.tile_code_bytes()?)?,
        };
        self.scale_bytes(cols)?.checked_add(codes)
    }

    /// Bytes of one element of a row-major encoding. `None` for tiled encodings.
    #[must_use]
    pub fn element_bytes(self) -> Option<usize> {
        match self {
            Encoding::F32 => Some(4),
            Encoding::F16 | Encoding::Bf16 => Some(2),
            _ => None,
        }
    }

    /// Bytes of a stored `[rows, cols]` matrix, or `None` if the product overflows.
    ///
    /// Tiled encodings pad rows to [`TILE_ROWS`], and columns to [`GROUP`] (compiled) or to whole
    /// words of four bytes (coded).
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

    /// [`uniform`](Policy::uniform) for what only draft heads use: at least 8 bits everywhere, as
    /// coarser ones are seldom right about the next token and then cost more than they save.
    #[must_use]
    pub fn draft(encoding: Encoding) -> Policy {
        let edge = Policy::uniform(encoding).head;
        Policy {
            linear: edge,
            expert: edge,
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

/// Bytes of the scale plane of one compiled row block: [`TILE_ROWS`] f16 a group, padded to
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
    fn coded_matrices_cost_the_documented_bits() {
        let weights = 2048 * 1024;
        for (encoding, bits) in [
            (Encoding::Fp8, 8.25),
            (Encoding::Mxfp8, 8.25),
            (Encoding::Mxfp4, 4.25),
            (Encoding::Nvfp4, 4.5 + 32.0 / 1024.0),
        ] {
            let bytes = encoding.matrix_bytes(2048, 1024).unwrap();
            assert_eq!(bytes as f64 * 8.0, f64::from(weights) * bits, "{encoding}");
        }
        // One scale plane each, and one word of 16 rows.
        assert_eq!(Encoding::Mxfp4.matrix_bytes(1, 1), Some(64 + 64));
        assert_eq!(Encoding::Fp8.matrix_bytes(17, 5), Some(2 * (64 + 128)));
        assert_eq!(Encoding::Nvfp4.matrix_bytes(usize::MAX, 64), None);
        assert_eq!(Encoding::Fp8.row_block_bytes(usize::MAX), None);
    }

    #[test]
    fn four_bits_leave_mxfp4_alone() {
        use Encoding::{Bf16, Mxfp4, Nvfp4, Q4, Q8};
        assert_eq!(Q4.given(&[Mxfp4, Bf16]), Mxfp4);
        assert_eq!(Q8.given(&[Mxfp4, Bf16]), Q8);
        assert_eq!(Q4.given(&[Nvfp4]), Q4);
        assert_eq!(Q4.given(&[Bf16]), Q4);
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
