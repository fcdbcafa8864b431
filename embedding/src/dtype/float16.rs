//! Converts f16 and bf16, value by value and without branches.
//!
//! The functions select instead of branching, so a loop over them becomes vector instructions.
//! Subnormal f16 are handled as in Fabian Giesen's "float->half variants": adding a constant makes
//! the floating-point adder round.

const SIGN: u32 = 1 << 31;
const INFINITE: u32 = 0xFF << 23;

#[inline(always)]
pub(super) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds stochastically if a `draw` is given, and to nearest otherwise.
#[inline(always)]
pub(super) fn f32_to_bf16(value: f32, draw: Option<u32>) -> u16 {
    let bits = value.to_bits();
    let up = match draw {
        None => 0x7FFF + (bits >> 16 & 1),
        Some(draw) => draw >> 16,
    };
    let finite = bits & !SIGN < INFINITE;
    let is_nan = bits & !SIGN > INFINITE;
    let up = if finite { up } else { 0 };
    // A draw must not round a value to infinity if it is less than half a step above the largest
    // finite value.
    let at_most = if bits & !SIGN < 0x7F7F_8000 { 0x7F7F_FFFF } else { u32::MAX >> 1 };
    let rounded = (bits & !SIGN).wrapping_add(up).min(at_most);
    // The lower half, which is cut off, may hold all bits that make the value a NaN. The bit
    // `quiet` keeps the result a NaN.
    let quiet = if is_nan { 0x40 } else { 0 };
    ((rounded | bits & SIGN) >> 16 | quiet) as u16
}

#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    /// 2^112, the difference of the exponents' biases.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7FFF) << 13;
    let is_special = bits & 0x7C00 == 0x7C00;
    // Subnormal f16 are subnormal f32 here. The multiplication converts them correctly too.
    let finite = (f32::from_bits(magnitude) * SCALE).to_bits();
    f32::from_bits(sign | if is_special { magnitude | INFINITE } else { finite })
}

/// Rounds stochastically if a `draw` is given, and to nearest otherwise.
#[inline(always)]
pub(super) fn f32_to_f16(value: f32, draw: Option<u32>) -> u16 {
    /// 2^-14, the smallest normal magnitude of f16.
    const NORMAL: u32 = (127 - 14) << 23;
    /// 2^16, beyond every finite f16.
    const TOO_LARGE: u32 = (127 + 16) << 23;
    /// Magnitudes below 65,520 round to 65,504 or less, the largest f16.
    const OVERFLOW: u32 = 65_520.0_f32.to_bits();
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let (small, up) = match draw {
        None => {
            // Adding 0.5 aligns the last bit of the sum with the last bit of f16.
            let sum = f32::from_bits(magnitude) + 0.5;
            (sum.to_bits().wrapping_sub(0.5_f32.to_bits()), 0xFFF + (magnitude >> 13 & 1))
        }
        Some(draw) => {
            // In units of the smallest f16, the value is below 1,024. With 13 random bits it still
            // fits the 24 bits of an f32.
            let units = f32::from_bits(magnitude) * (1 << 24) as f32;
            let chance = (draw >> 19) as f32 * (1.0 / 8192.0);
            // Larger magnitudes use `large`, below. The bound keeps the conversion to an integer
            // cheap.
            let sum = (units + chance).min(2048.0);
            (sum as i32 as u32, draw >> 19)
        }
    };
    let large = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(up) >> 13;
    let rounded = if magnitude < NORMAL { small } else { large.min(0x7C00) };
    // A draw must not round a value to infinity if it is less than half a step above the largest
    // finite value.
    let rounded = if magnitude < OVERFLOW { rounded.min(0x7BFF) } else { rounded };
    let special = if magnitude > INFINITE { 0x7E00 } else { 0x7C00 };
    let found = if magnitude >= TOO_LARGE { special } else { rounded };
    (found | bits >> 16 & 0x8000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_value_agrees_with_half() {
        for bits in 0..=u16::MAX {
            let found = f16_to_f32(bits);
            let expected = half::f16::from_bits(bits).to_f32();
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
            let found = bf16_to_f32(bits);
            let expected = half::bf16::from_bits(bits).to_f32();
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
        }
    }

    #[test]
    fn rounding_to_the_nearest_agrees_with_half() {
        // Tests every exponent, with mantissas around each rounding border of both formats.
        let step = 0x3FF_u32 | 1;
        for bits in (0..u32::MAX - step).step_by(step as usize) {
            for bits in [bits, bits & !0xFFF, bits & !0xFFF | 0x1000, bits & !0xFFFF | 0x8000] {
                let value = f32::from_bits(bits);
                let found = f32_to_f16(value, None);
                let expected = half::f16::from_f32(value);
                assert!(
                    found == expected.to_bits()
                        || half::f16::from_bits(found).is_nan() && value.is_nan(),
                    "{value:e}: {found:#x} for {expected:?}"
                );
                let found = f32_to_bf16(value, None);
                let expected = half::bf16::from_f32(value);
                assert!(
                    found == expected.to_bits()
                        || half::bf16::from_bits(found).is_nan() && value.is_nan(),
                    "{value:e}: {found:#x} for {expected:?}"
                );
            }
        }
    }

    #[test]
    fn chance_leaves_values_that_fit_and_is_right_on_average() {
        type Way = (fn(f32, Option<u32>) -> u16, fn(u16) -> f32);
        let ways: [Way; 2] = [(f32_to_f16, f16_to_f32), (f32_to_bf16, bf16_to_f32)];
        for (encode, decode) in ways {
            for fits in [0.0, -0.0, 1.0, -1.5, 6.103_515_6e-5, 5.960_464_5e-8, f32::INFINITY] {
                for draw in [0, 1, u32::MAX / 2, u32::MAX] {
                    let back = decode(encode(fits, Some(draw)));
                    let expected = decode(encode(fits, None));
                    if expected.to_bits() == fits.to_bits() {
                        assert_eq!(back.to_bits(), fits.to_bits(), "{fits} {draw}");
                    }
                }
            }
            for value in [1.0007_f32, -0.3333, 3.3e-6, 1e-7, 700.123] {
                let draws = super::super::Draws::new(u64::from(value.to_bits()));
                let rounds = 20_000;
                let sum: f64 =
                    (0..rounds).map(|i| f64::from(decode(encode(value, Some(draws.at(i)))))).sum();
                let mean = sum / f64::from(rounds);
                let low = decode(encode(value, Some(0)));
                let high = decode(encode(value, Some(u32::MAX)));
                let step = f64::from((high - low).abs());
                // The standard deviation of the mean is at most step / 2 / sqrt(rounds); the bound
                // is four times that.
                assert!((mean - f64::from(value)).abs() < step * 0.015, "{value}: {mean}");
                assert!(step > 0.0, "{value} lies between two steps");
            }
        }
    }
}
