//! Levels of vector instructions, and the levels that this processor has.

use std::fmt;

/// The vector instructions that decoding may use. Every level gives equal results.
///
/// # Examples
/// ```
/// use embank_pipeline::Level;
///
/// let best = Level::detect();
/// assert!(Level::available().contains(&best));
/// assert!(Level::available().contains(&Level::Portable));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Level {
    /// No vector instructions beyond those that every processor has.
    Portable,
    /// AVX2 and BMI2. Fast on Intel processors since Haswell (2013) and AMD processors since Zen 3
    /// (2020).
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with VBMI2. Intel processors since Ice Lake (2019), AMD processors since Zen 4
    /// (2022).
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Returns the fastest level that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        *Self::available().last().expect("there is always the portable one")
    }

    /// Returns all levels that this processor has, the slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only x86 has more"))]
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let scalar = is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("popcnt");
            if scalar && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                levels.push(Self::Avx2);
                let wide = is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("avx512vbmi2");
                if wide {
                    levels.push(Self::Avx512);
                }
            }
        }
        levels
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
        })
    }
}

/// Compiles a function once for each level. The function's first argument selects the level to run.
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
                // SAFETY: the function needs the instructions of this level. `RunOptions::check`
                // refuses a level that the processor lacks.
                $crate::decode::Level::Avx2 => unsafe { avx2($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `RunOptions::check` refuses a level that the processor lacks.
                $crate::decode::Level::Avx512 => unsafe { avx512($($argument),*) },
            }
        }
    };
}
pub(crate) use vectorised;
