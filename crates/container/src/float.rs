//! Conversions between f32 and the two 16-bit formats, in integer and f32 operations only, so that
//! every machine gives the same bits.

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
