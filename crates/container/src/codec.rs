//! Numbers to bytes and back, for every encoding.
//!
//! Tiled encodings follow the layout documented in [`lamella_program::encoding`]. All
//! arithmetic is plain f32 in a fixed order: the same weights give the same bytes on every machine.

use crate::float::{E2M1, E4M3, bf16_to_f32, e8m0_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use lamella_program::Encoding;
use lamella_program::encoding::{GROUP, TILE_ROWS, scale_plane_bytes};

/// Why a matrix cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A buffer of the wrong size.
    #[error("a buffer of {found} for a {encoding} matrix that needs {expected}")]
    Buffer {
        /// The encoding.
        encoding: Encoding,
        /// Length given (elements or bytes).
        found: usize,
        /// Length needed; `usize::MAX` where the product overflows.
        expected: usize,
    },
    /// The encoding is not made by quantising.
    #[error("{0} is not a compiled encoding")]
    NotCompiled(Encoding),
    /// The encoding is only ever taken from a checkpoint.
    #[error("{0} is what checkpoints ship; weights are not converted to it")]
    OnlyShipped(Encoding),
    /// A weight that is no number.
    #[error("row {row}, column {column}: the weight is {value}, not a finite number")]
    NonFinite {
        /// Row in the matrix.
        row: usize,
        /// Column in the matrix.
        column: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A weight beyond what the encoding can hold.
    #[error("row {row}, column {column}: the weight {value} is too large for {encoding}")]
    TooLarge {
        /// Row in the matrix.
        row: usize,
        /// Column in the matrix.
        column: usize,
        /// The weight.
        value: f32,
        /// The encoding.
        encoding: Encoding,
    },
}

impl CodecError {
    /// The same error, `rows` further down.
    #[must_use]
    pub(crate) fn below(mut self, rows: usize) -> CodecError {
        if let CodecError::NonFinite { row, .. } | CodecError::TooLarge { row, .. } = &mut self {
            *row += rows;
        }
        self
    }
}

/// Encodes a row-major `[rows, cols]` matrix.
///
/// Compiled encodings are quantised ([`quantise()`]); f16 and bf16 round to nearest even.
///
/// # Errors
/// If a buffer does not fit, a weight is not finite or too large for the encoding, or the encoding
/// is codes with scales, which are only taken from checkpoints.
pub fn encode(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    weights: &[f32],
    out: &mut [u8],
) -> Result<(), CodecError> {
    if encoding.is_compiled() {
        return quantise(encoding, rows, cols, weights, out);
    }
    if encoding.is_coded() {
        return Err(CodecError::OnlyShipped(encoding));
    }
    check_buffers(encoding, rows, cols, weights.len(), out.len())?;
    if weights.is_empty() {
        return Ok(());
    }
    check_finite(cols, weights)?;
    match encoding {
        Encoding::F16 => {
            for (out, &w) in out.chunks_exact_mut(2).zip(weights) {
                out.copy_from_slice(&f32_to_f16(w).to_le_bytes());
            }
        }
        Encoding::Bf16 => {
            for (out, &w) in out.chunks_exact_mut(2).zip(weights) {
                out.copy_from_slice(&f32_to_bf16(w).to_le_bytes());
            }
        }
        _ => {
            for (out, &w) in out.chunks_exact_mut(4).zip(weights) {
                out.copy_from_slice(&w.to_le_bytes());
            }
        }
    }
    // Rounding to 16 bits can reach infinity.
    let limit = match encoding {
        Encoding::F16 => 65520.0,
        Encoding::Bf16 => f32::from_bits(0x7f7f_8000),
        _ => return Ok(()),
    };
    match weights.iter().position(|w| w.abs() >= limit) {
        None => Ok(()),
        Some(i) => {
            let (row, column) = (i / cols, i % cols);
            Err(CodecError::TooLarge {
                row,
                column,
                value: weights[i],
                encoding,
            })
        }
    }
}

/// Quantises a row-major `[rows, cols]` matrix to the compiled layout of `encoding`.
///
/// # Errors
/// If `encoding` is not compiled, a buffer does not fit, or a weight is not finite or too large
/// for an f16 scale.
pub fn quantise(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    weights: &[f32],
    out: &mut [u8],
) -> Result<(), CodecError> {
    if !encoding.is_compiled() {
        return Err(CodecError::NotCompiled(encoding));
    }
    check_buffers(encoding, rows, cols, weights.len(), out.len())?;
    if weights.is_empty() {
        return Ok(());
    }
    crate::quantise::matrix(encoding, cols, weights, out)
}

/// Decodes a stored `[rows, cols]` matrix to row-major f32.
///
/// # Errors
/// If a buffer does not fit.
pub fn decode(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    bytes: &[u8],
    out: &mut [f32],
) -> Result<(), CodecError> {
    check_buffers(encoding, rows, cols, out.len(), bytes.len())?;
    if out.is_empty() {
        return Ok(());
    }
    match encoding {
        Encoding::F16 => widen(bytes, out, f16_to_f32),
        Encoding::Bf16 => widen(bytes, out, bf16_to_f32),
        Encoding::Q8 | Encoding::Q4 => decode_compiled(encoding, cols, bytes, out),
        _ if encoding.is_coded() => decode_coded(encoding, cols, bytes, out),
        _ => {
            for (out, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
    }
    Ok(())
}

fn widen(bytes: &[u8], out: &mut [f32], convert: fn(u16) -> f32) {
    for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *out = convert(u16::from_le_bytes([b[0], b[1]]));
    }
}

fn decode_compiled(encoding: Encoding, cols: usize, bytes: &[u8], out: &mut [f32]) {
    let groups = cols.div_ceil(GROUP);
    let (Some(plane), Some(tile), Some(block)) = (
        scale_plane_bytes(groups),
        encoding.tile_code_bytes(),
        encoding.row_block_bytes(cols),
    ) else {
        return;
    };
    let blocks = bytes
        .chunks_exact(block)
        .zip(out.chunks_mut(cols * TILE_ROWS));
    for (block, rows) in blocks {
        let (scales, codes) = block.split_at(plane);
        for (i, row) in rows.chunks_exact_mut(cols).enumerate() {
            for (g, values) in row.chunks_mut(GROUP).enumerate() {
                let at = (g * TILE_ROWS + i) * 2;
                let scale = f16_to_f32(u16::from_le_bytes([scales[at], scales[at + 1]]));
                let tile = &codes[g * tile..][..tile];
                for (k, value) in values.iter_mut().enumerate() {
                    *value = f32::from(code(encoding, tile, i, k)) * scale;
                }
            }
        }
    }
}

/// Codes with scales: `code * scale`, for NVFP4 `(code * scale) * outer`, each product rounded to
/// f32.
fn decode_coded(encoding: Encoding, cols: usize, bytes: &[u8], out: &mut [f32]) {
    let (Some(group), Some(plane), Some(block)) = (
        encoding.group(),
        encoding.scale_bytes(cols),
        encoding.row_block_bytes(cols),
    ) else {
        return;
    };
    let blocks = bytes
        .chunks_exact(block)
        .zip(out.chunks_mut(cols * TILE_ROWS));
    for (block, rows) in blocks {
        let (scales, codes) = block.split_at(plane);
        for (i, row) in rows.chunks_exact_mut(cols).enumerate() {
            for (g, values) in row.chunks_mut(group).enumerate() {
                let (scale, outer) = scale(encoding, scales, g, i);
                for (n, value) in values.iter_mut().enumerate() {
                    *value = shipped_code(encoding, codes, i, g * group + n) * scale * outer;
                }
            }
        }
    }
}

/// Whether all codes of a coded matrix are zeros, of either sign.
pub(crate) fn codes_are_zero(encoding: Encoding, cols: usize, bytes: &[u8]) -> bool {
    let magnitude = match encoding.word_inputs() {
        Some(4) => 0x7f,
        _ => 0x77,
    };
    let (Some(plane), Some(block)) = (encoding.scale_bytes(cols), encoding.row_block_bytes(cols))
    else {
        return false;
    };
    let zero = |block: &[u8]| block[plane..].iter().all(|code| code & magnitude == 0);
    bytes.chunks_exact(block).all(zero)
}

/// Scale and outer scale of group `g` of row `i` of a block of codes.
fn scale(encoding: Encoding, scales: &[u8], g: usize, i: usize) -> (f32, f32) {
    let float = |n: usize| {
        let b = &scales[4 * n..4 * n + 4];
        f32::from_le_bytes([b[0], b[1], b[2], b[3]])
    };
    match encoding {
        Encoding::Fp8 => (float(g * TILE_ROWS + i), 1.0),
        Encoding::Nvfp4 => {
            let code = scales[(4 + g) * TILE_ROWS + i];
            (E4M3[usize::from(code)], float(i))
        }
        _ => (e8m0_to_f32(scales[g * TILE_ROWS + i]), 1.0),
    }
}

/// The value of the code of row `i`, input `k` of a block of codes.
fn shipped_code(encoding: Encoding, codes: &[u8], i: usize, k: usize) -> f32 {
    if encoding.word_inputs() == Some(4) {
        let half = k / 2 * TILE_ROWS * 2;
        return E4M3[usize::from(codes[half + 2 * i + k % 2])];
    }
    let byte = codes[k / 8 * TILE_ROWS * 4 + 4 * i + k % 8 / 2];
    E2M1[usize::from(if k.is_multiple_of(2) {
        byte & 15
    } else {
        byte >> 4
    })]
}

/// The integer of row `i`, input `k` of a tile.
fn code(encoding: Encoding, tile: &[u8], i: usize, k: usize) -> i16 {
    if encoding == Encoding::Q8 {
        let byte = tile[((k / 4) * TILE_ROWS + i) * 4 + k % 4];
        return i16::from(byte) - 128;
    }
    let byte = tile[((k / 8) * TILE_ROWS + i) * 4 + k % 4];
    let nibble = if k % 8 < 4 { byte & 15 } else { byte >> 4 };
    i16::from(nibble) - 8
}

fn check_buffers(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    elements: usize,
    bytes: usize,
) -> Result<(), CodecError> {
    let expected = rows.saturating_mul(cols);
    if elements != expected {
        return Err(CodecError::Buffer {
            encoding,
            found: elements,
            expected,
        });
    }
    let expected = encoding.matrix_bytes(rows, cols).unwrap_or(usize::MAX);
    if bytes != expected {
        return Err(CodecError::Buffer {
            encoding,
            found: bytes,
            expected,
        });
    }
    Ok(())
}

/// Refuses NaN and infinities.
pub(crate) fn check_finite(cols: usize, weights: &[f32]) -> Result<(), CodecError> {
    const EXPONENT: u32 = 0x7f80_0000;
    // No early exit inside a chunk: it then compiles to vector compares.
    let special = |w: &f32| u32::from(w.to_bits() & EXPONENT == EXPONENT);
    for (n, chunk) in weights.chunks(4096).enumerate() {
        if chunk.iter().map(special).sum::<u32>() != 0 {
            let within = chunk.iter().position(|w| !w.is_finite()).unwrap_or(0);
            let i = n * 4096 + within;
            let value = weights[i];
            return Err(CodecError::NonFinite {
                row: i / cols,
                column: i % cols,
                value,
            });
        }
    }
    Ok(())
}
