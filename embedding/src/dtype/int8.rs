//! int8 values with one scale per row.

use super::Draws;

/// Largest magnitude of a stored value. -128 is not used, so a row and its negative round alike.
const LARGEST: f32 = 127.0;

/// The largest scale whose product with 127 is finite. It is one step below `f32::MAX / 127` in
/// f32, because that quotient is rounded up.
const SCALE_MAX: f32 = f32::from_bits((f32::MAX / LARGEST).to_bits() - 1);
const _: () = assert!((SCALE_MAX * LARGEST).is_finite());

#[inline(always)]
pub(crate) fn decode(bytes: &[u8], scale: f32, to: &mut [f32]) {
    for (value, &byte) in to.iter_mut().zip(bytes) {
        *value = f32::from(byte as i8) * scale;
    }
}

/// Writes the row and returns its scale. If a value is NaN or infinite, the scale is NaN, so all
/// values of the row read as NaN and the loss is visible.
#[inline(always)]
pub(crate) fn encode(from: &[f32], bytes: &mut [u8], draws: Option<&Draws>) -> f32 {
    // The bits of magnitudes have the same order as the magnitudes. The bits of a NaN are larger.
    let largest = from.iter().fold(0, |most, value| most.max(value.to_bits() & (u32::MAX >> 1)));
    let largest = f32::from_bits(largest);
    let scale = (largest / LARGEST).min(SCALE_MAX);
    if !largest.is_finite() || scale == 0.0 {
        bytes.fill(0);
        return if largest.is_finite() { 0.0 } else { f32::NAN };
    }
    match draws {
        None => {
            for (byte, value) in bytes.iter_mut().zip(from) {
                *byte = narrow((value / scale).round_ties_even());
            }
        }
        Some(draws) => {
            for ((byte, value), place) in bytes.iter_mut().zip(from).zip(0_u32..) {
                // 7 bits before the point and 16 after it fit the 24 bits of an f32.
                let chance = (draws.at(place) >> 16) as f32 * (1.0 / 65_536.0);
                *byte = narrow((value / scale + chance).floor());
            }
        }
    }
    scale
}

#[inline(always)]
fn narrow(value: f32) -> u8 {
    value.clamp(-LARGEST, LARGEST) as i32 as i8 as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(row: &[f32], draws: Option<&Draws>) -> Vec<f32> {
        let mut bytes = vec![0; row.len()];
        let scale = encode(row, &mut bytes, draws);
        let mut back = vec![0.0; row.len()];
        decode(&bytes, scale, &mut back);
        back
    }

    #[test]
    fn the_nearest_is_at_most_half_a_step_away() {
        let row: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        let step = row.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
        for (found, value) in through(&row, None).iter().zip(&row) {
            assert!((found - value).abs() <= 0.5001 * step, "{found} for {value}");
        }
        let negative: Vec<f32> = row.iter().map(|value| -value).collect();
        let back: Vec<f32> = through(&negative, None).iter().map(|value| -value).collect();
        assert_eq!(back, through(&row, None));
    }

    #[test]
    fn chance_is_right_on_average_and_within_a_step() {
        let row = [127.0, 0.25, -0.75, 63.5, -126.9];
        let rounds = 40_000;
        let mut sums = [0.0; 5];
        for round in 0..rounds {
            let draws = Draws::new((round as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            for ((sum, found), value) in sums.iter_mut().zip(through(&row, Some(&draws))).zip(row) {
                assert!((found - value).abs() < 1.0001, "{found} for {value}");
                *sum += f64::from(found);
            }
        }
        for (sum, value) in sums.iter().zip(row) {
            let mean = sum / f64::from(rounds);
            assert!((mean - f64::from(value)).abs() < 0.015, "{mean} for {value}");
        }
    }

    #[test]
    fn rows_of_zeros_of_the_tiniest_and_of_no_numbers() {
        assert_eq!(through(&[0.0, -0.0], None), [0.0, 0.0]);
        assert_eq!(through(&[f32::from_bits(1), 0.0], None), [0.0, 0.0]);
        assert_eq!(through(&[1e-38, -1e-38], None)[1].signum(), -1.0);
        for lost in [f32::NAN, f32::INFINITY] {
            assert!(through(&[1.0, lost], None).iter().all(|value| value.is_nan()));
        }
        assert_eq!(through(&[f32::MAX, 0.0], None)[1], 0.0);
    }
}
