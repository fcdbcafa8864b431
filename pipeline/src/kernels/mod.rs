//! What operators do to a column: loops over plain slices.
//!
//! Every loop is written once, as the reference would be, and compiled once more for each [`Level`]: the compiler makes
//! vectors of it. Results are the same bit for bit with each (a fused multiply-add is asked for by name).

mod concatenate;
mod logarithm;
mod modulus;

use crate::decode::Level;

pub(crate) use concatenate::concatenate;
pub(crate) use logarithm::{log1p_of_f32, log1p_of_i32, log1p_of_u32, log1p_of_wide};
pub(crate) use modulus::{MODULUS_MAX, Modulus};

/// Compiles a function for each level, and calls the one that is asked for.
macro_rules! vectorised {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        $visibility fn $name(level: $crate::decode::Level, $($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn body($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,popcnt")]
            fn avx2($($argument: $type),*) $(-> $result)? { body($($argument),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,popcnt")]
            fn avx512($($argument: $type),*) $(-> $result)? { body($($argument),*) }
            match level {
                $crate::decode::Level::Portable => body($($argument),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a pipeline is made only with a level that the processor has (`Pipeline::with`).
                $crate::decode::Level::Avx2 => unsafe { avx2($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::decode::Level::Avx512 => unsafe { avx512($($argument),*) },
            }
        }
    };
}
pub(crate) use vectorised;

vectorised! {
    /// Puts `value` where a field was empty: where `bit` of `missing` is set.
    pub(crate) fn fill_words(values: &mut [u32], missing: &[u8], bit: u8, value: u32) {
        for (slot, &missing) in values.iter_mut().zip(missing) {
            *slot = if missing >> bit & 1 == 1 { value } else { *slot };
        }
    }
}

vectorised! {
    /// The same for values of 64 bits.
    pub(crate) fn fill_wides(values: &mut [u64], missing: &[u8], bit: u8, value: u64) {
        for (slot, &missing) in values.iter_mut().zip(missing) {
            *slot = if missing >> bit & 1 == 1 { value } else { *slot };
        }
    }
}

vectorised! {
    /// Moves whole numbers into a range.
    pub(crate) fn clip_i32(values: &mut [u32], low: i32, high: i32) {
        for value in values {
            *value = value.cast_signed().clamp(low, high).cast_unsigned();
        }
    }
}

vectorised! {
    /// Moves numbers into a range.
    pub(crate) fn clip_u32(values: &mut [u32], low: u32, high: u32) {
        for value in values {
            *value = (*value).clamp(low, high);
        }
    }
}

vectorised! {
    /// Moves whole numbers of 64 bits into a range.
    pub(crate) fn clip_i64(values: &mut [u64], low: i64, high: i64) {
        for value in values {
            *value = value.cast_signed().clamp(low, high).cast_unsigned();
        }
    }
}

vectorised! {
    /// Moves floats into a range. (-0.0 may come out where 0.0 is the lower end: they are equal.)
    pub(crate) fn clip_f32(values: &mut [u32], low: f32, high: f32) {
        for value in values {
            *value = f32::from_bits(*value).clamp(low, high).to_bits();
        }
    }
}

vectorised! {
    /// Whole numbers to the nearest float.
    pub(crate) fn float_of_i32(values: &mut [u32]) {
        for value in values {
            *value = (value.cast_signed() as f32).to_bits();
        }
    }
}

vectorised! {
    /// Numbers to the nearest float.
    pub(crate) fn float_of_u32(values: &mut [u32]) {
        for value in values {
            *value = (*value as f32).to_bits();
        }
    }
}

/// How many of the sorted `boundaries` are at most each value: the number of its bucket.
pub(crate) fn bucketize(values: &mut [u32], as_float: impl Fn(u32) -> f32, boundaries: &[f32]) {
    for value in values {
        let number = as_float(*value);
        *value = boundaries.partition_point(|&boundary| boundary <= number) as u32;
    }
}

/// Mixes 64 bits well; a bijection ("moremur", Pelle Evensen's stronger Murmur3 finaliser).
#[inline]
pub(crate) fn mix(value: u64, seed: u64) -> u64 {
    let mut x = value ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 27)).wrapping_mul(0x3C79_AC49_2BA7_B653);
    x = (x ^ (x >> 33)).wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

/// One hash of two columns' values, in this order.
#[inline]
pub(crate) fn mix_two(first: u64, second: u64, seed: u64) -> u64 {
    mix(mix(first, seed).rotate_left(32) ^ second, seed ^ 0x5851_F42D_4C95_7F2D)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_where_missing() {
        for level in Level::available() {
            let mut values: Vec<u32> = (1..=20).collect();
            let missing: Vec<u8> =
                (0..20).map(|row| if row % 3 == 0 { 0b100 } else { 0b011 }).collect();
            fill_words(level, &mut values, &missing, 2, 77);
            let expected: Vec<u32> =
                (1..=20).map(|i| if (i - 1) % 3 == 0 { 77 } else { i }).collect();
            assert_eq!(values, expected, "{level}");
        }
    }

    #[test]
    fn clipped_at_both_ends() {
        for level in Level::available() {
            let mut values = [i32::MIN, -1, 0, 5, i32::MAX].map(i32::cast_unsigned);
            clip_i32(level, &mut values, 0, 4);
            assert_eq!(values, [0, 0, 0, 4, 4], "{level}");
            let mut values = [-1.5_f32, 0.5, 9.0].map(f32::to_bits);
            clip_f32(level, &mut values, 0.0, 1.0);
            assert_eq!(values.map(f32::from_bits), [0.0, 0.5, 1.0], "{level}");
        }
    }

    #[test]
    fn a_boundary_belongs_to_the_bucket_above() {
        let mut values = [-1.0_f32, 0.0, 0.5, 10.0, 11.0].map(f32::to_bits);
        bucketize(&mut values, f32::from_bits, &[0.0, 10.0]);
        assert_eq!(values, [0, 1, 1, 2, 2]);
    }
}
