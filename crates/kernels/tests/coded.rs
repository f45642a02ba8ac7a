//! Codes with scales: every code, and the recipe of their products, against loops written from the
//! documentation of the layout.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

mod common;

use common::{Random, assert_bits, others, scalar, stored};
use lamella_kernels::{Epilogue, Input, Kernels, Matrix, Rows, SharedRows, unpack_row};
use lamella_program::Encoding;

const CODED: [Encoding; 4] = [
    Encoding::Fp8,
    Encoding::Mxfp8,
    Encoding::Mxfp4,
    Encoding::Nvfp4,
];

/// The value of an E4M3 code: sign, four bits of exponent with bias 7, three of mantissa.
fn e4m3(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    match exponent {
        0 => sign * mantissa / 8.0 * 2.0f32.powi(-6),
        _ => sign * (1.0 + mantissa / 8.0) * 2.0f32.powi(exponent - 7),
    }
}

/// The value of an E2M1 code: sign, two bits of exponent with bias 1, one of mantissa.
fn e2m1(code: u8) -> f32 {
    let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
    let mantissa = f32::from(code & 1);
    match code >> 1 & 3 {
        0 => sign * mantissa / 2.0,
        exponent => sign * (1.0 + mantissa / 2.0) * 2.0f32.powi(i32::from(exponent) - 1),
    }
}

/// Code and scale of a weight, and the outer scale.
fn weight(matrix: &Matrix<'_>, row: usize, k: usize) -> [f32; 3] {
    let Matrix { encoding, cols, .. } = *matrix;
    let bytes = encoding.row_block_bytes(cols).unwrap();
    let (scales, codes) =
        matrix.data[row / 16 * bytes..][..bytes].split_at(encoding.scale_bytes(cols).unwrap());
    let i = row % 16;
    let float = |n: usize| f32::from_le_bytes(scales[4 * n..4 * n + 4].try_into().unwrap());
    let power = |byte: u8| (f64::from(byte) - 127.0).exp2() as f32;
    let code = match encoding {
        Encoding::Fp8 | Encoding::Mxfp8 => e4m3(codes[k / 4 * 64 + k % 4 / 2 * 32 + 2 * i + k % 2]),
        _ => e2m1(codes[k / 8 * 64 + 4 * i + k % 8 / 2] >> (4 * (k % 2)) & 15),
    };
    let (scale, outer) = match encoding {
        Encoding::Fp8 => (float(k / 128 * 16 + i), 1.0),
        Encoding::Nvfp4 => (e4m3(scales[64 + k / 16 * 16 + i]), float(i)),
        _ => (power(scales[k / 32 * 16 + i]), 1.0),
    };
    [code, scale, outer]
}

/// `W x` for one input row.
fn product(kernels: &Kernels, matrix: &Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows];
    let view = SharedRows::new(&mut out, matrix.rows, matrix.rows);
    let (one, input) = (Rows::First(1), Input::F32 { x, stride: x.len() });
    // SAFETY: one thread.
    unsafe {
        let blocks = 0..matrix.blocks();
        kernels.matmul(matrix, blocks, input, one, &view, one, Epilogue::Store);
    }
    out
}

#[test]
fn products_follow_the_documented_recipe() {
    let random = &mut Random(71);
    for encoding in CODED {
        for cols in [300, 128, 33, 3] {
            let rows = 37;
            let x = random.floats(cols);
            let data = &stored(encoding, rows, cols, random);
            let matrix = Matrix {
                encoding,
                rows,
                cols,
                data,
            };
            let group = encoding.group().unwrap();
            let got = product(&scalar(), &matrix, &x);
            let mut unpacked = vec![0.0; cols];
            for (row, got) in got.iter().enumerate() {
                unpack_row(&matrix, row, &mut unpacked);
                let (mut acc, mut plain, mut size) = (0.0f32, 0.0f64, 0.0f64);
                for (g, inputs) in x.chunks(group).enumerate() {
                    let mut dot = 0.0f32;
                    for (n, x) in inputs.iter().enumerate() {
                        let [code, scale, outer] = weight(&matrix, row, g * group + n);
                        dot = code.mul_add(*x, dot);
                        let w = code * scale * outer;
                        assert_eq!(w.to_bits(), unpacked[g * group + n].to_bits());
                        plain += f64::from(w) * f64::from(*x);
                        size += (f64::from(w) * f64::from(*x)).abs();
                    }
                    let [_, scale, outer] = weight(&matrix, row, g * group);
                    acc = dot.mul_add(scale * outer, acc);
                }
                assert_eq!(acc.to_bits(), got.to_bits(), "{encoding} row {row}");
                assert!((plain - f64::from(*got)).abs() <= 1e-5 * size, "{encoding}");
            }
        }
    }
}

/// One row block whose every row holds one code at input `k`, and scales of one.
fn constant(encoding: Encoding, cols: usize, k: usize, code: u8) -> Vec<u8> {
    let mut bytes = vec![0; encoding.row_block_bytes(cols).unwrap()];
    let (scales, codes) = bytes.split_at_mut(encoding.scale_bytes(cols).unwrap());
    match encoding {
        Encoding::Fp8 => {
            let ones = scales.chunks_exact_mut(4);
            ones.for_each(|s| s.copy_from_slice(&1.0f32.to_le_bytes()));
        }
        Encoding::Nvfp4 => {
            let (outer, inner) = scales.split_at_mut(64);
            let ones = outer.chunks_exact_mut(4);
            ones.for_each(|s| s.copy_from_slice(&1.0f32.to_le_bytes()));
            inner.fill(0x38);
        }
        _ => scales.fill(127),
    }
    for i in 0..16 {
        match encoding {
            Encoding::Fp8 | Encoding::Mxfp8 => {
                codes[k / 4 * 64 + k % 4 / 2 * 32 + 2 * i + k % 2] = code;
            }
            _ => codes[k / 8 * 64 + 4 * i + k % 8 / 2] |= code << (4 * (k % 2)),
        }
    }
    bytes
}

#[test]
fn every_code_at_every_place_is_its_value() {
    let cols = 16;
    for encoding in CODED {
        let eight = matches!(encoding, Encoding::Fp8 | Encoding::Mxfp8);
        let codes = 0..if eight { 256 } else { 16u16 };
        for code in codes.map(|c| c as u8) {
            if eight && code & 0x7f == 0x7f {
                continue;
            }
            let want = if eight { e4m3(code) } else { e2m1(code) };
            for k in 0..cols {
                let data = &constant(encoding, cols, k, code);
                let matrix = Matrix {
                    encoding,
                    rows: 16,
                    cols,
                    data,
                };
                let mut x = vec![0.0; cols];
                x[k] = 1.0;
                for kernels in others().into_iter().chain([scalar()]) {
                    let got = product(&kernels, &matrix, &x);
                    // The sum of zeros is +0, whatever their signs.
                    assert_bits(&[want + 0.0; 16], &got, &format!("{encoding} {code} {k}"));
                }
            }
        }
    }
}

/// Scales at the ends of their range.
#[test]
fn extreme_scales_are_exact() {
    let x = [1.0f32];
    for (byte, want) in [
        (0, f32::from_bits(0x0040_0000)),
        (1, f32::MIN_POSITIVE),
        (254, 2.0f32.powi(127)),
    ] {
        for encoding in [Encoding::Mxfp4, Encoding::Mxfp8] {
            let code = if encoding == Encoding::Mxfp4 { 2 } else { 0x38 };
            let data = &mut constant(encoding, 1, 0, code);
            data[..16].fill(byte);
            let matrix = Matrix {
                encoding,
                rows: 16,
                cols: 1,
                data,
            };
            for kernels in others().into_iter().chain([scalar()]) {
                let got = product(&kernels, &matrix, &x);
                assert_bits(&[want; 16], &got, &format!("{encoding} scale {byte}"));
            }
        }
    }
}
