//! What the tests of the kernels share: a generator, the instruction sets, made-up weights.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

use lamella_kernels::{Isa, Kernels};
use lamella_program::Encoding;

/// A small generator (splitmix64), so that a failing case is its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
    /// Roughly normal.
    pub(crate) fn float(&mut self) -> f32 {
        let sum: f64 = (0..6)
            .map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64)
            .sum();
        (sum - 3.0) as f32
    }
    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

pub(crate) fn others() -> Vec<Kernels> {
    Isa::ALL
        .into_iter()
        .filter(|i| *i != Isa::Scalar)
        .filter_map(Kernels::new)
        .collect()
}

pub(crate) fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).unwrap()
}

/// Equal bits, any NaN equal to any other.
#[track_caller]
pub(crate) fn assert_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        assert!(
            same,
            "{what}: element {i}: {x:e} ({:x}), {y:e} ({:x})",
            x.to_bits(),
            y.to_bits()
        );
    }
}

pub(crate) fn f16_bits(x: f32) -> u16 {
    // Truncation is enough to make test weights.
    let bits = x.to_bits();
    let exponent = ((bits >> 23) & 0xff) as i32 - 112;
    let sign = (bits >> 16) as u16 & 0x8000;
    if exponent <= 0 {
        sign
    } else {
        sign | (exponent as u16) << 10 | (bits >> 13) as u16 & 0x3ff
    }
}

/// A stored matrix with random content.
pub(crate) fn stored(encoding: Encoding, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    match encoding {
        Encoding::F32 => {
            (0..rows * cols).for_each(|_| bytes.extend(random.float().to_le_bytes()));
        }
        Encoding::F16 => {
            (0..rows * cols).for_each(|_| bytes.extend(f16_bits(random.float()).to_le_bytes()));
        }
        Encoding::Bf16 => {
            let mut bf16 = || (random.float().to_bits() >> 16) as u16;
            (0..rows * cols).for_each(|_| bytes.extend(bf16().to_le_bytes()));
        }
        Encoding::Fp8 | Encoding::Mxfp8 | Encoding::Mxfp4 | Encoding::Nvfp4 => {
            for _ in 0..rows.div_ceil(16) {
                coded_block(encoding, cols, random, &mut bytes);
            }
        }
        _ => {
            let groups = cols.div_ceil(32);
            let plane = (groups * 32).next_multiple_of(64);
            for _ in 0..rows.div_ceil(16) {
                let start = bytes.len();
                (0..groups * 16).for_each(|_| {
                    bytes.extend(f16_bits(random.float() * 0.01).to_le_bytes());
                });
                bytes.resize(start + plane, 0);
                let codes = groups * encoding.tile_code_bytes().unwrap();
                (0..codes).for_each(|_| bytes.push(random.bits() as u8));
            }
        }
    }
    assert_eq!(Some(bytes.len()), encoding.matrix_bytes(rows, cols));
    bytes
}

/// A row block of random codes (none of them NaN) and scales, the padding included.
fn coded_block(encoding: Encoding, cols: usize, random: &mut Random, bytes: &mut Vec<u8>) {
    let groups = cols.div_ceil(encoding.group().unwrap());
    let (start, block) = (bytes.len(), encoding.row_block_bytes(cols).unwrap());
    let floats = match encoding {
        Encoding::Fp8 => groups * 16,
        Encoding::Nvfp4 => 16,
        _ => 0,
    };
    (0..floats).for_each(|_| bytes.extend((random.float() * 0.01).to_le_bytes()));
    for _ in 0..groups * 16 {
        match encoding {
            Encoding::Fp8 => {}
            Encoding::Nvfp4 => bytes.push(e4m3(random)),
            // Now and then the least power, a subnormal.
            _ if random.below(50) == 0 => bytes.push(0),
            _ => bytes.push(117 + random.below(8) as u8),
        }
    }
    bytes.resize(start + encoding.scale_bytes(cols).unwrap(), 0);
    while bytes.len() < start + block {
        bytes.push(match encoding.word_inputs() {
            Some(4) => e4m3(random),
            _ => random.bits() as u8,
        });
    }
}

/// Any E4M3 code but NaN.
fn e4m3(random: &mut Random) -> u8 {
    let code = random.bits() as u8;
    if code & 0x7f == 0x7f {
        code & 0x80
    } else {
        code
    }
}
