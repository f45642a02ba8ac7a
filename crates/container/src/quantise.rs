//! The quantiser: for each row and group of 32 weights, the f16 scale and the integers with the
//! least squared error among a fixed set of candidate scales.
//!
//! The plain recipes (scale = largest magnitude / 127, or signed extreme / -8) spend no thought on
//! the other 31 weights. Here each candidate is first rounded to the f16 that will be stored, then
//! judged by the exact error of the integers it leads to; the best one is refined once by least
//! squares. Sums run over 16 lanes and a fixed tree, so that the result is the same on every
//! machine whether or not the compiler used vectors.

use crate::codec::{CodecError, check_finite};
use crate::float::f32_to_f16;
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
        let failed = row_block(encoding, cols, rows, block);
        if let Some((row, group)) = failed {
            let weights = &rows[row * cols..][..cols];
            return Err(too_large(encoding, n * TILE_ROWS + row, group, weights));
        }
    }
    Ok(())
}

/// Row and group of a group whose scale overflows, if there is one.
fn row_block(
    encoding: Encoding,
    cols: usize,
    rows: &[f32],
    block: &mut [u8],
) -> Option<(usize, usize)> {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { row_block_avx2(encoding, cols, rows, block) };
    }
    row_block_anywhere(encoding, cols, rows, block)
}

/// The same code, compiled for wider registers. AVX2 alone brings no fused multiply-add: the bits
/// are those of every other machine.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn row_block_avx2(
    encoding: Encoding,
    cols: usize,
    rows: &[f32],
    block: &mut [u8],
) -> Option<(usize, usize)> {
    row_block_anywhere(encoding, cols, rows, block)
}

#[inline(always)]
fn row_block_anywhere(
    encoding: Encoding,
    cols: usize,
    rows: &[f32],
    block: &mut [u8],
) -> Option<(usize, usize)> {
    let groups = cols.div_ceil(GROUP);
    let (scales, codes) = block.split_at_mut(scale_plane_bytes(groups)?);
    scales.fill(0);
    codes.fill(if encoding == Encoding::Q8 { 128 } else { 0x88 });
    let tile_bytes = codes.len() / groups;
    for (i, row) in rows.chunks_exact(cols).enumerate() {
        for (g, values) in row.chunks(GROUP).enumerate() {
            let mut group = [0.0; GROUP];
            group[..values.len()].copy_from_slice(values);
            let Some(fitted) = fit(encoding, &group) else {
                return Some((i, g));
            };
            let at = (g * TILE_ROWS + i) * 2;
            scales[at..at + 2].copy_from_slice(&fitted.scale.to_le_bytes());
            let tile = &mut codes[g * tile_bytes..][..tile_bytes];
            match encoding {
                Encoding::Q8 => store_q8(tile, i, &fitted.codes),
                _ => store_q4(tile, i, &fitted.codes),
            }
        }
    }
    None
}

fn too_large(encoding: Encoding, row: usize, group: usize, weights: &[f32]) -> CodecError {
    let start = group * GROUP;
    let mut worst = start;
    for (k, w) in weights.iter().enumerate().skip(start).take(GROUP) {
        if w.abs() > weights[worst].abs() {
            worst = k;
        }
    }
    CodecError::TooLarge {
        row,
        column: worst,
        value: weights[worst],
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
/// above it the grid falls differently on the other weights, which wins more than its width costs.
const Q8_FACTORS: [f32; 12] = [
    0.9962, 1.0, 1.0038, 1.0076, 1.0114, 1.0152, 1.019, 1.0228, 1.0266, 1.0304, 1.0342, 1.038,
];

/// Multipliers of the largest magnitude that are tried as q4 scales: with both signs, since the
/// integers reach one further below zero than above.
const Q4_FACTORS: [f32; 14] = [
    1.0 / 8.0,
    -1.0 / 8.0,
    1.0 / 7.5,
    -1.0 / 7.5,
    1.0 / 7.0,
    -1.0 / 7.0,
    1.0 / 6.5,
    -1.0 / 6.5,
    1.0 / 8.5,
    -1.0 / 8.5,
    1.0 / 9.0,
    -1.0 / 9.0,
    1.0 / 6.0,
    -1.0 / 6.0,
];

/// The largest f16.
const MAX_SCALE: f32 = 65504.0;

/// The smallest normal f16, 2^-14.
const SMALLEST_NORMAL: f32 = 6.103_515_6e-5;

/// The smallest f16 above zero, 2^-24.
const SMALLEST: f32 = 5.960_464_5e-8;

/// Scale and integers of a group; `None` if even the plain scale overflows f16.
#[inline(always)]
fn fit(encoding: Encoding, group: &Group) -> Option<Fitted> {
    let mut largest = 0.0f32;
    for w in group {
        let magnitude = w.abs();
        largest = if magnitude > largest {
            magnitude
        } else {
            largest
        };
    }
    if largest == 0.0 {
        return Some(Fitted {
            scale: 0,
            codes: [0; GROUP],
        });
    }
    match encoding {
        Encoding::Q8 => search(group, largest / 127.0, &Q8_FACTORS, -127.0, 127.0),
        _ if largest / 8.0 > MAX_SCALE => None,
        _ => search(group, largest, &Q4_FACTORS, -8.0, 7.0),
    }
}

/// Tries all factors, refines the best one by least squares, and keeps what errs least.
#[inline(always)]
fn search<const N: usize>(
    group: &Group,
    unit: f32,
    factors: &[f32; N],
    low: f32,
    high: f32,
) -> Option<Fitted> {
    let mut scales = [0.0f32; N];
    let mut errors = [0.0f32; N];
    for (scale, factor) in scales.iter_mut().zip(factors) {
        *scale = round_to_f16(unit * factor);
    }
    if scales[0].abs() < SMALLEST_NORMAL {
        // Subnormal scales are far apart: one must not be too small for the extreme weight.
        for scale in scales.iter_mut().take(2) {
            *scale += SMALLEST.copysign(*scale);
        }
    }
    for (error, &scale) in errors.iter_mut().zip(&scales) {
        *error = squared_error(group, scale, low, high);
    }
    // Selects, not branches: which candidate wins cannot be predicted.
    let (mut scale, mut least) = (0.0, f32::INFINITY);
    for (&s, &e) in scales.iter().zip(&errors) {
        let better = (e < least) & (s.abs() <= MAX_SCALE);
        scale = if better { s } else { scale };
        least = if better { e } else { least };
    }
    if least == f32::INFINITY {
        return None;
    }
    let refined = round_to_f16(least_squares(group, scale, low, high));
    if refined.abs() <= MAX_SCALE && squared_error(group, refined, low, high) < least {
        scale = refined;
    }
    let (mut codes, inverse) = ([0i8; GROUP], inverse(scale));
    for (code, w) in codes.iter_mut().zip(group) {
        *code = round(w * inverse, low, high) as i8;
    }
    Some(Fitted {
        scale: f32_to_f16(scale),
        codes,
    })
}

/// The f16 nearest to a value, as f32, in operations that vectorise; beyond the range the result
/// is beyond [`MAX_SCALE`].
#[inline(always)]
fn round_to_f16(value: f32) -> f32 {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
    let normal = (magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1))) & !0x1fff;
    // The unit in the last place of 0.5 is the smallest f16.
    let subnormal = ((f32::from_bits(magnitude) + 0.5) - 0.5).to_bits();
    f32::from_bits(
        if magnitude < 0x3880_0000 {
            subnormal
        } else {
            normal
        } | sign,
    )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::f16_to_f32;

    #[test]
    fn rounding_to_f16_is_the_conversion() {
        for high in 0..=u16::MAX {
            let value = f32::from_bits((u32::from(high) << 16) | 0x9000);
            let rounded = round_to_f16(value);
            let expected = f16_to_f32(f32_to_f16(value));
            if expected.is_finite() {
                assert_eq!(rounded.to_bits(), expected.to_bits(), "{value}");
            } else {
                assert!(rounded.is_nan() || rounded.abs() > MAX_SCALE, "{value}");
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn wide_registers_give_the_same_bytes() {
        let cols = 77;
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let weights: Vec<f32> = (0..TILE_ROWS * cols).map(|_| random() * random()).collect();
        for encoding in [Encoding::Q8, Encoding::Q4] {
            let mut wide = vec![0; encoding.row_block_bytes(cols).unwrap()];
            let mut plain = wide.clone();
            assert_eq!(row_block(encoding, cols, &weights, &mut wide), None);
            assert_eq!(
                row_block_anywhere(encoding, cols, &weights, &mut plain),
                None
            );
            assert!(wide == plain);
        }
    }
}
