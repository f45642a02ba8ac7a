//! Conversions between f32 and narrower formats, in integer and f32 operations only, so that every
//! machine gives the same bits.

/// Widens an IEEE binary16 exactly.
#[must_use]
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // As an f32 the shifted bits are 2^112 times too small; the product is exact, also for
    // subnormals.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = magnitude | 0x7f80_0000;
    let value = if magnitude >= 0x0f80_0000 {
        special
    } else {
        scaled
    };
    f32::from_bits(value | sign)
}

/// Rounds to the nearest IEEE binary16, ties to even; beyond 65504 to infinity.
#[must_use]
#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        ((magnitude + 0xfff + ((magnitude >> 13) & 1)) - 0x3800_0000) >> 13
    } else {
        // The unit in the last place of 0.5 is the smallest f16, so the sum rounds for us.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    };
    sign | rounded as u16
}

/// Widens a bfloat16 exactly.
#[must_use]
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest bfloat16, ties to even.
#[must_use]
#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The numbers of FP8 E4M3 by code: bias 7, subnormals, no infinities, NaN in 0x7f and 0xff (OCP
/// 8-bit Floating Point Specification 1.0, 2023).
pub static E4M3: [f32; 256] = e4m3_table();

/// The numbers of FP4 E2M1 by code: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign (OCP
/// Microscaling Formats Specification 1.0, 2023).
pub static E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// The number of an E8M0 scale: `2^(bits - 127)`, a subnormal f32 for 0, NaN for 255.
#[must_use]
#[inline]
pub fn e8m0_to_f32(bits: u8) -> f32 {
    match bits {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(bits) << 23),
    }
}

const fn e4m3_table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = f32::from_bits(e4m3_bits(code as u32));
        code += 1;
    }
    table
}

/// The f32 of an E4M3 code, in integers.
const fn e4m3_bits(code: u32) -> u32 {
    let sign = (code >> 7) << 31;
    let (exponent, fraction) = ((code >> 3) & 15, code & 7);
    if exponent == 15 && fraction == 7 {
        return sign | 0x7fc0_0000;
    }
    if exponent != 0 {
        return sign | ((exponent + 120) << 23) | (fraction << 20);
    }
    if fraction == 0 {
        return sign;
    }
    // fraction * 2^-9, its leading bit becoming the implied one.
    let leading = 31 - fraction.leading_zeros();
    sign | ((118 + leading) << 23) | ((fraction << (23 - leading)) & 0x007f_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a finite f16 from its definition.
    fn define_f16(bits: u16) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from((bits >> 10) & 31);
        let fraction = f64::from(bits & 1023);
        let magnitude = if exponent == 0 {
            fraction * 2f64.powi(-24)
        } else {
            (1024.0 + fraction) * 2f64.powi(exponent - 25)
        };
        sign * magnitude
    }

    #[test]
    fn every_f16_widens_to_its_value_and_back() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(bits);
            if bits & 0x7c00 == 0x7c00 {
                assert_eq!(wide.is_nan(), bits & 0x3ff != 0, "{bits:04x}");
                assert_eq!(wide.is_sign_negative(), bits & 0x8000 != 0);
            } else {
                assert_eq!(f64::from(wide), define_f16(bits), "{bits:04x}");
                assert_eq!(f32_to_f16(wide), bits, "{bits:04x}");
            }
        }
    }

    #[test]
    fn e4m3_codes_are_what_the_formula_says() {
        for code in 0..=255u8 {
            let number = E4M3[usize::from(code)];
            let (exponent, fraction) = (i32::from((code >> 3) & 15), f64::from(code & 7));
            assert_eq!(number.is_sign_negative(), code >= 128, "{code:02x}");
            if code & 127 == 127 {
                assert!(number.is_nan());
                continue;
            }
            let magnitude = match exponent {
                0 => fraction * 2f64.powi(-9),
                e => (1.0 + fraction / 8.0) * 2f64.powi(e - 7),
            };
            assert_eq!(f64::from(number.abs()), magnitude, "{code:02x}");
        }
        assert_eq!(E4M3[0x7e], 448.0);
    }

    #[test]
    fn e2m1_codes_and_e8m0_scales_are_what_the_formulas_say() {
        for (code, number) in E2M1.iter().enumerate() {
            let (exponent, fraction) = ((code as i32 >> 1) & 3, f64::from(code as u32 & 1));
            let magnitude = match exponent {
                0 => fraction / 2.0,
                e => (1.0 + fraction / 2.0) * 2f64.powi(e - 1),
            };
            assert_eq!(f64::from(number.abs()), magnitude);
            assert_eq!(number.is_sign_negative(), code >= 8);
        }
        for bits in 0..255u8 {
            let number = f64::from(e8m0_to_f32(bits));
            assert_eq!(number, 2f64.powi(i32::from(bits) - 127), "{bits}");
        }
        assert!(e8m0_to_f32(255).is_nan());
    }

    #[test]
    fn f16_rounds_to_nearest_even() {
        for bits in 0..0x7bffu16 {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(f32_to_f16(middle), even);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), bits);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), bits + 1);
            assert_eq!(f32_to_f16(-middle), even | 0x8000);
        }
        assert_eq!(f32_to_f16(65519.9), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::MAX), 0x7c00);
        assert_eq!(f32_to_f16(f32::NAN) & 0x7fff, 0x7e00);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
        for bits in 0..0x7f80u16 {
            assert_eq!(f32_to_bf16(bf16_to_f32(bits)), bits);
        }
    }
}
