//! Matrices in the layouts the kernels execute.
//!
//! Rows are cut into blocks of 16 and padded with zero rows. Within a block, k runs outermost:
//!
//! * f32, f16: `[block][k][16]`;
//! * bf16: `[block][k / 2][16][2]`, k padded to even with zeros;
//! * tiled encodings: as stored, see [`lamella_program::encoding`].

use lamella_program::Encoding;
use lamella_program::encoding::{GROUP, TILE_ROWS, scale_plane_bytes};

use crate::coded::unpack_coded;
use crate::scalar::f16_to_f32;
use crate::tile::{GROUP_SCALES, q4_value, q8_value};

/// A matrix `[rows, cols]` in packed layout: `y = W x` has `rows` outputs and `cols` inputs.
///
/// `data` may have any alignment; cache-line alignment is fastest.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// How the numbers are stored.
    pub encoding: Encoding,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// [`packed_bytes`] bytes; more are ignored.
    pub data: &'a [u8],
}

impl Matrix<'_> {
    /// Blocks of 16 rows, the last one perhaps padded.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }
}

/// Bytes of one packed block of 16 rows; `None` on overflow or for an encoding without a packed
/// layout.
#[must_use]
pub fn block_bytes(encoding: Encoding, cols: usize) -> Option<usize> {
    match encoding {
        Encoding::F32 => cols.checked_mul(TILE_ROWS * 4),
        Encoding::F16 => cols.checked_mul(TILE_ROWS * 2),
        Encoding::Bf16 => cols.checked_next_multiple_of(2)?.checked_mul(TILE_ROWS * 2),
        _ => encoding.row_block_bytes(cols),
    }
}

/// Bytes of a packed `[rows, cols]` matrix; `None` on overflow.
#[must_use]
pub fn packed_bytes(encoding: Encoding, rows: usize, cols: usize) -> Option<usize> {
    rows.div_ceil(TILE_ROWS)
        .checked_mul(block_bytes(encoding, cols)?)
}

/// Packs a stored matrix: row-major encodings become tiles, tiled ones are copied.
///
/// # Panics
/// If `stored` has not `encoding.matrix_bytes(rows, cols)` bytes or `out` has not
/// [`packed_bytes`].
pub fn pack(encoding: Encoding, rows: usize, cols: usize, stored: &[u8], out: &mut [u8]) {
    let blocks = rows.div_ceil(TILE_ROWS);
    pack_blocks(encoding, rows, cols, stored, 0..blocks, out);
}

/// Packs some blocks of 16 rows; `out` receives just these. Several threads may each pack a part.
///
/// # Panics
/// If `stored` has not `encoding.matrix_bytes(rows, cols)` bytes, `out` has not the bytes of that
/// many blocks, or the range is not one of blocks of the matrix.
pub fn pack_blocks(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    stored: &[u8],
    blocks: std::ops::Range<usize>,
    out: &mut [u8],
) {
    assert_eq!(
        Some(stored.len()),
        encoding.matrix_bytes(rows, cols),
        "stored matrix bytes"
    );
    assert!(
        blocks.start <= blocks.end && blocks.end <= rows.div_ceil(TILE_ROWS),
        "{blocks:?}"
    );
    let Some(block) = block_bytes(encoding, cols) else {
        panic!("{encoding} has no packed form")
    };
    assert_eq!(out.len(), block * blocks.len(), "packed matrix bytes");
    if block == 0 {
        return;
    }
    match encoding {
        Encoding::F32 => pack_elements::<4>(rows, cols, stored, blocks, out),
        Encoding::F16 => pack_elements::<2>(rows, cols, stored, blocks, out),
        Encoding::Bf16 => pack_pairs(rows, cols, stored, blocks, out),
        _ => out.copy_from_slice(&stored[blocks.start * block..blocks.end * block]),
    }
}

/// `[block][k][16]` from row-major elements of `N` bytes.
fn pack_elements<const N: usize>(
    rows: usize,
    cols: usize,
    stored: &[u8],
    blocks: std::ops::Range<usize>,
    out: &mut [u8],
) {
    for (tile, b) in out.chunks_exact_mut(cols * TILE_ROWS * N).zip(blocks) {
        for i in 0..TILE_ROWS {
            let row = b * TILE_ROWS + i;
            let source = stored
                .get(row * cols * N..(row + 1) * cols * N)
                .filter(|_| row < rows);
            let places = tile.chunks_exact_mut(TILE_ROWS * N);
            match source {
                Some(source) => {
                    for (place, element) in places.zip(source.chunks_exact(N)) {
                        place[i * N..(i + 1) * N].copy_from_slice(element);
                    }
                }
                None => places.for_each(|place| place[i * N..(i + 1) * N].fill(0)),
            }
        }
    }
}

/// `[block][k / 2][16][2]` from row-major elements of 2 bytes.
fn pack_pairs(
    rows: usize,
    cols: usize,
    stored: &[u8],
    blocks: std::ops::Range<usize>,
    out: &mut [u8],
) {
    let row_bytes = cols * 2;
    for (tile, b) in out
        .chunks_exact_mut(cols.next_multiple_of(2) * TILE_ROWS * 2)
        .zip(blocks)
    {
        for i in 0..TILE_ROWS {
            let row = b * TILE_ROWS + i;
            let source = if row < rows {
                &stored[row * row_bytes..(row + 1) * row_bytes]
            } else {
                &[]
            };
            for (pair, place) in tile.chunks_exact_mut(TILE_ROWS * 4).enumerate() {
                let place = &mut place[4 * i..4 * i + 4];
                let elements = source.get(4 * pair..).unwrap_or(&[]);
                let n = elements.len().min(4);
                place[..n].copy_from_slice(&elements[..n]);
                place[n..].fill(0);
            }
        }
    }
}

/// One row as f32: an embedding lookup.
///
/// # Panics
/// If there is no such row, `out` has not `cols` elements, or `data` is too short.
pub fn unpack_row(matrix: &Matrix<'_>, row: usize, out: &mut [f32]) {
    assert!(row < matrix.rows, "row {row} of {}", matrix.rows);
    assert_eq!(out.len(), matrix.cols, "elements of a row");
    let bytes = block_bytes(matrix.encoding, matrix.cols).unwrap_or(0);
    let (block, i) = (row / TILE_ROWS, row % TILE_ROWS);
    let block = &matrix.data[block * bytes..(block + 1) * bytes];
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    match matrix.encoding {
        Encoding::F32 => {
            for (k, x) in out.iter_mut().enumerate() {
                let at = (k * TILE_ROWS + i) * 4;
                let bytes = [block[at], block[at + 1], block[at + 2], block[at + 3]];
                *x = f32::from_le_bytes(bytes);
            }
        }
        Encoding::F16 => {
            for (k, x) in out.iter_mut().enumerate() {
                *x = f16_to_f32(half((k * TILE_ROWS + i) * 2));
            }
        }
        Encoding::Bf16 => {
            for (k, x) in out.iter_mut().enumerate() {
                let bits = half((k / 2 * TILE_ROWS + i) * 4 + k % 2 * 2);
                *x = f32::from_bits(u32::from(bits) << 16);
            }
        }
        Encoding::Q8 => unpack_groups(block, i, TILE_ROWS * GROUP, q8_value, out),
        Encoding::Q4 => unpack_groups(block, i, TILE_ROWS * GROUP / 2, q4_value, out),
        other => unpack_coded(other, block, i, out),
    }
}

/// Row `i` of a compiled block: `value * scale`, rounded once.
fn unpack_groups(
    block: &[u8],
    i: usize,
    code_bytes: usize,
    value: impl Fn(&[u8], usize, usize) -> i32,
    out: &mut [f32],
) {
    let plane = scale_plane_bytes(out.len().div_ceil(GROUP)).unwrap_or(0);
    for (g, group) in out.chunks_mut(GROUP).enumerate() {
        let at = g * GROUP_SCALES + 2 * i;
        let scale = f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]));
        let codes = &block[plane + g * code_bytes..][..code_bytes];
        for (k, x) in group.iter_mut().enumerate() {
            *x = value(codes, i, k) as f32 * scale;
        }
    }
}
