//! Loops over the values of a row, eight values at a time.
//!
//! Eight f32 fill an AVX2 register. The inner loops have a constant length and work on local
//! arrays. The compiler therefore vectorises them for rows of any length, without checks for
//! overlapping slices. The remaining values of a row are processed one by one. A value's result
//! does not depend on its position.

pub(super) const LANES: usize = 8;

/// Returns `numerator / denominator`, or 0 if the denominator is 0 or subnormal.
///
/// The denominator of an optimizer step is the root of summed squares plus `eps`. It is 0 or
/// subnormal only if the squares are 0 in f32 and `eps` is 0 or subnormal. The squares are 0 if
/// there was no gradient, or if its square is too small. The sums then say nothing about a suitable
/// length of the step, and the plain quotient would be NaN, infinite, or extremely large. If an
/// operand is NaN, the result is NaN.
#[inline(always)]
pub(super) fn quotient_or_zero(numerator: f32, denominator: f32) -> f32 {
    if denominator < f32::MIN_POSITIVE { 0.0 } else { numerator / denominator }
}

/// Returns `sum`, or the largest finite value if `sum` is infinite. A row with an infinite sum of
/// squares would never move again. NaN stays NaN.
#[inline(always)]
pub(super) fn saturated(sum: f32) -> f32 {
    if sum > f32::MAX { f32::MAX } else { sum }
}

/// Replaces each value and its state by the result of `kernel(value, state, gradient)`. All slices
/// must have the same length. Always inlined, so it is compiled for the caller's processor.
#[inline(always)]
pub(super) fn each_value<const STATES: usize>(
    vector: &mut [f32],
    states: [&mut [f32]; STATES],
    gradient: &[f32],
    kernel: impl Fn(f32, [f32; STATES], f32) -> (f32, [f32; STATES]),
) {
    let (vectors, vector_rest) = vector.as_chunks_mut::<LANES>();
    let (gradients, gradient_rest) = gradient.as_chunks::<LANES>();
    let state_chunks = states.map(|state| state.as_chunks_mut::<LANES>());
    for (i, (vector, gradient)) in vectors.iter_mut().zip(gradients).enumerate() {
        let mut values = *vector;
        let mut held: [[f32; LANES]; STATES] = std::array::from_fn(|s| state_chunks[s].0[i]);
        for lane in 0..LANES {
            let state = std::array::from_fn(|s| held[s][lane]);
            let (value, state) = kernel(values[lane], state, gradient[lane]);
            values[lane] = value;
            for s in 0..STATES {
                held[s][lane] = state[s];
            }
        }
        *vector = values;
        for s in 0..STATES {
            state_chunks[s].0[i] = held[s];
        }
    }
    for (i, (value, &gradient)) in vector_rest.iter_mut().zip(gradient_rest).enumerate() {
        let state = std::array::from_fn(|s| state_chunks[s].1[i]);
        let (new, state) = kernel(*value, state, gradient);
        *value = new;
        for s in 0..STATES {
            state_chunks[s].1[i] = state[s];
        }
    }
}

/// Returns the sum of squares in f64, in which the square of an f32 is exact and never overflows.
/// Value `i` is added to partial sum `i % 8`, so the bits are equal on every processor.
#[inline(always)]
pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    // The sums lie in two arrays, each with half of the lanes. From one array, the compiler would
    // make vectors of lanes that are not neighbours, because the last sum adds such lanes. Those
    // vectors are slow to load.
    let (mut low, mut high) = ([0.0_f64; LANES / 2], [0.0_f64; LANES / 2]);
    for chunk in chunks {
        for lane in 0..LANES / 2 {
            let value = f64::from(chunk[lane]);
            low[lane] += value * value;
        }
        for lane in 0..LANES / 2 {
            let value = f64::from(chunk[LANES / 2 + lane]);
            high[lane] += value * value;
        }
    }
    for (lane, &value) in rest.iter().enumerate() {
        let value = f64::from(value);
        let half = if lane < LANES / 2 { &mut low } else { &mut high };
        half[lane % (LANES / 2)] += value * value;
    }
    let halves: [f64; LANES / 2] = std::array::from_fn(|i| low[i] + high[i]);
    (halves[0] + halves[2]) + (halves[1] + halves[3])
}
