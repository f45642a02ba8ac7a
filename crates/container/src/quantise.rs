//! The quantiser: for each row and group of 32 weights, the f16 scale and the integers with the
//! least squared error among a fixed set of candidate scales.
//!
//! The plain recipes (scale = largest magnitude / 127, or signed extreme / -8) spend no thought on
//! the other 31 weights. Here each candidate is first rounded to the f16 that will be stored, then
//! judged by the exact error of the integers it leads to; the best one is refined once by least
//! squares. Sums run over 16 lanes and a fixed tree, so that the result is the same on every
//! machine whether or not the compiler used vectors.

use crate::codec::{CodecError, check_finite};
use crate::float::{f16_to_f32, f32_to_f16};
use lamella_program::Encoding;
use lamella_program::encoding::{GROUP, TILE_ROWS, scale_plane_bytes};

/// Version of this recipe. It is part of the identity of an interrupted conversion: another recipe
/// would continue with other bytes.
pub(crate) const RECIPE: u32 = 1;

const LANES: usize = 16;

/// A group of weights, padded with zeros.
type Group = [f32; GROUP];

/// Integers and scale of one group.
struct Fitted {
    scale: u16,
    codes: [i8; GROUP],
}

/// Quantises full rows of `cols` weights. Buffers have been checked by the caller.
pub(crate) fn matrix(
    encoding: Encoding,
    cols: usize,
    weights: &[f32],
    out: &mut [u8],
) -> Result<(), CodecError> {
    check_finite(cols, weights)?;
    let Some(block_bytes) = encoding.row_block_bytes(cols) else {
        return Ok(());
    };
    let blocks = weights
        .chunks(cols * TILE_ROWS)
        .zip(out.chunks_exact_mut(block_bytes));
    for (n, (rows, block)) in blocks.enumerate() {
        row_block(encoding, cols, rows, block).map_err(|e| e.below(n * TILE_ROWS))?;
    }
    Ok(())
}

fn row_block(
    encoding: Encoding,
    cols: usize,
    rows: &[f32],
    block: &mut [u8],
) -> Result<(), CodecError> {
    let groups = cols.div_ceil(GROUP);
    let plane = scale_plane_bytes(groups).unwrap_or(0);
    let (scales, codes) = block.split_at_mut(plane);
    scales.fill(0);
    codes.fill(if encoding == Encoding::Q8 { 128 } else { 0x88 });
    let tile_bytes = codes.len() / groups;
    for (i, row) in rows.chunks_exact(cols).enumerate() {
        for (g, values) in row.chunks(GROUP).enumerate() {
            let mut group = [0.0; GROUP];
            group[..values.len()].copy_from_slice(values);
            let fitted = fit(encoding, &group).ok_or_else(|| too_large(encoding, i, g, values))?;
            let at = (g * TILE_ROWS + i) * 2;
            scales[at..at + 2].copy_from_slice(&fitted.scale.to_le_bytes());
            let tile = &mut codes[g * tile_bytes..][..tile_bytes];
            match encoding {
                Encoding::Q8 => store_q8(tile, i, &fitted.codes),
                _ => store_q4(tile, i, &fitted.codes),
            }
        }
    }
    Ok(())
}

fn too_large(encoding: Encoding, row: usize, group: usize, values: &[f32]) -> CodecError {
    let mut worst = 0;
    for (k, v) in values.iter().enumerate() {
        if v.abs() > values[worst].abs() {
            worst = k;
        }
    }
    CodecError::TooLarge {
        row,
        column: group * GROUP + worst,
        value: values[worst],
        encoding,
    }
}

fn store_q8(tile: &mut [u8], i: usize, codes: &[i8; GROUP]) {
    for (q, quad) in codes.chunks_exact(4).enumerate() {
        for (j, &code) in quad.iter().enumerate() {
            tile[(q * TILE_ROWS + i) * 4 + j] = (i16::from(code) + 128) as u8;
        }
    }
}

fn store_q4(tile: &mut [u8], i: usize, codes: &[i8; GROUP]) {
    for (p, eight) in codes.chunks_exact(8).enumerate() {
        for j in 0..4 {
            let (low, high) = ((eight[j] + 8) as u8, (eight[j + 4] + 8) as u8);
            tile[(p * TILE_ROWS + i) * 4 + j] = low | (high << 4);
        }
    }
}

/// Multipliers of the plain q8 scale that are tried. Below 1 the extreme still rounds to 127;
/// above it the grid falls differently on the other weights.
const Q8_FACTORS: [f32; 8] = [1.0, 0.9965, 1.004, 1.008, 1.012, 1.016, 1.02, 1.025];

/// Divisors of the largest magnitude that are tried as q4 scales, with both signs.
const Q4_DIVISORS: [f32; 9] = [8.0, 7.0, 7.4, 7.7, 8.4, 8.8, 6.5, 9.3, 6.0];

/// The best scale and integers of a group, or `None` if the scale overflows f16.
fn fit(encoding: Encoding, group: &Group) -> Option<Fitted> {
    let largest = group
        .iter()
        .fold(0.0f32, |m, w| if w.abs() > m { w.abs() } else { m });
    if largest == 0.0 {
        return Some(Fitted {
            scale: 0,
            codes: [0; GROUP],
        });
    }
    let mut best = Best {
        error: f32::INFINITY,
        scale: 0,
    };
    let (low, high) = if encoding == Encoding::Q8 {
        let plain = largest / 127.0;
        for factor in Q8_FACTORS {
            best.judge(group, plain * factor, -127.0, 127.0);
        }
        (-127.0, 127.0)
    } else {
        for divisor in Q4_DIVISORS {
            best.judge(group, largest / divisor, -8.0, 7.0);
            best.judge(group, largest / -divisor, -8.0, 7.0);
        }
        (-8.0, 7.0)
    };
    if best.error == f32::INFINITY {
        return None;
    }
    best.judge(
        group,
        least_squares(group, f16_to_f32(best.scale), low, high),
        low,
        high,
    );
    let mut codes = [0i8; GROUP];
    let inverse = inverse(f16_to_f32(best.scale));
    for (code, w) in codes.iter_mut().zip(group) {
        *code = round(w * inverse, low, high) as i8;
    }
    Some(Fitted {
        scale: best.scale,
        codes,
    })
}

/// The best candidate so far.
struct Best {
    error: f32,
    scale: u16,
}

impl Best {
    /// Rounds `scale` as it would be stored and keeps it if its error is the least.
    #[inline(always)]
    fn judge(&mut self, group: &Group, scale: f32, low: f32, high: f32) {
        let bits = f32_to_f16(scale);
        if bits & 0x7c00 == 0x7c00 {
            return;
        }
        let error = squared_error(group, f16_to_f32(bits), low, high);
        if error < self.error {
            *self = Best { error, scale: bits };
        }
    }
}

/// 1 / scale, and 0 for a scale that underflowed: all integers are then 0.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Clamps and rounds half to even, in operations that vectorise everywhere.
#[inline(always)]
fn round(value: f32, low: f32, high: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves no fraction bits.
    const MAGIC: f32 = 12_582_912.0;
    let value = if value < low { low } else { value };
    let value = if value > high { high } else { value };
    (value + MAGIC) - MAGIC
}

#[inline(always)]
fn squared_error(group: &Group, scale: f32, low: f32, high: f32) -> f32 {
    let inverse = inverse(scale);
    let mut lanes = [0.0f32; LANES];
    for half in group.chunks_exact(LANES) {
        for (lane, w) in lanes.iter_mut().zip(half) {
            let error = w - round(w * inverse, low, high) * scale;
            *lane += error * error;
        }
    }
    sum(lanes)
}

/// The scale with the least error for the integers that `scale` leads to.
#[inline(always)]
fn least_squares(group: &Group, scale: f32, low: f32, high: f32) -> f32 {
    let inverse = inverse(scale);
    let (mut dot, mut square) = ([0.0f32; LANES], [0.0f32; LANES]);
    for half in group.chunks_exact(LANES) {
        for ((d, s), w) in dot.iter_mut().zip(&mut square).zip(half) {
            let code = round(w * inverse, low, high);
            *d += w * code;
            *s += code * code;
        }
    }
    let square = sum(square);
    if square == 0.0 {
        scale
    } else {
        sum(dot) / square
    }
}

/// Sums lanes by halving, so that the order is fixed.
#[inline(always)]
fn sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}
