//! The inverse of the standard normal distribution function. The bits of a result are equal on
//! every platform.
//!
//! The algorithm is Wichura's AS 241, routine PPND7 ("The percentage points of the normal
//! distribution", Applied Statistics 37, 1988). It is accurate to one part in 10^7, the precision
//! of f32. This module computes the logarithm for the tails itself, because standard libraries
//! differ in its last bits.

/// Returns the value that a standard normal variable stays below with probability `p`, where 0 <
/// `p` < 1.
pub(crate) fn standard_normal_quantile(p: f64) -> f64 {
    let from_median = p - 0.5;
    if from_median.abs() <= 0.425 {
        let r = 0.180_625 - from_median * from_median;
        let numerator =
            ((59.109_374_72 * r + 159.291_132_02) * r + 50.434_271_938) * r + 3.387_132_717_9;
        let denominator = ((67.187_563_6 * r + 78.757_757_664) * r + 17.895_169_469) * r + 1.0;
        return from_median * numerator / denominator;
    }
    let r = (-natural_logarithm(p.min(1.0 - p))).sqrt();
    let distance = if r <= 5.0 {
        let r = r - 1.6;
        let numerator =
            ((0.170_238_211_03 * r + 1.306_728_481_6) * r + 2.756_815_390_0) * r + 1.423_437_277_7;
        numerator / ((0.120_211_329_75 * r + 0.737_001_642_5) * r + 1.0)
    } else {
        let r = r - 5.0;
        let numerator = ((0.017_337_203_997 * r + 0.428_682_948_37) * r + 3.081_226_386_0) * r
            + 6.657_905_115_0;
        numerator / ((0.012_258_202_635 * r + 0.241_978_942_25) * r + 1.0)
    };
    distance.copysign(from_median)
}

/// Returns the probability that a standard normal variable stays below `x`. It inverts
/// [`standard_normal_quantile`] by bisection, so the two functions agree to the last bit.
pub(crate) fn standard_normal_probability(x: f64) -> f64 {
    let mut low = 1e-300;
    let mut high = 1.0 - 1e-16;
    if standard_normal_quantile(low) >= x {
        return 0.0;
    }
    if standard_normal_quantile(high) <= x {
        return 1.0;
    }
    // The loop ends: about 1,100 bisections determine the exponent of the tail and the mantissa.
    for _ in 0..1200 {
        // The lower tail uses the geometric mean, because its probabilities span many orders of
        // magnitude.
        let middle = if high < 0.25 { (low * high).sqrt() } else { 0.5 * (low + high) };
        if middle <= low || middle >= high {
            break;
        }
        if standard_normal_quantile(middle) < x {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returns ln x of a positive normal number, accurate to about 1e-14. It splits x = m * 2^e with m
/// in [0.7, 1.5), and sums the series of ln m = 2 artanh((m - 1) / (m + 1)).
fn natural_logarithm(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    const ONE: u64 = 1023 << 52;
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(x.to_bits() & FRACTION | ONE);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..9).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_agrees_with_the_library() {
        for step in 1..10_000 {
            let x = f64::from(step) * 1e-4 * 2_f64.powi(step % 37 - 30);
            assert!((natural_logarithm(x) - x.ln()).abs() < 1e-12 * (1.0 + x.ln().abs()), "{x}");
        }
    }

    #[test]
    fn known_quantiles() {
        for (p, quantile) in [
            (0.5, 0.0),
            (0.975, 1.959_963_985),
            (0.84, 0.994_457_883),
            (0.025, -1.959_963_985),
            (1e-6, -4.753_424_309),
            (1e-12, -7.034_483_825),
        ] {
            let found = standard_normal_quantile(p);
            assert!((found - quantile).abs() < 2e-6, "{p}: {found}");
        }
    }

    #[test]
    fn probabilities_are_the_quantiles_inverse() {
        for (x, probability) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746),
            (-1.0, 0.158_655_254),
            (2.0, 0.977_249_868),
            (-6.0, 9.865_876e-10),
        ] {
            let found = standard_normal_probability(x);
            assert!((found / probability - 1.0).abs() < 1e-5, "{x}: {found}");
        }
        assert_eq!(standard_normal_probability(-1e9), 0.0);
        assert_eq!(standard_normal_probability(1e9), 1.0);
    }

    #[test]
    fn is_odd_and_rises() {
        let mut before = f64::NEG_INFINITY;
        for step in 1..1 << 17 {
            let p = f64::from(step) / f64::from(1 << 17);
            let quantile = standard_normal_quantile(p);
            assert!(quantile > before, "{p}");
            assert!((quantile + standard_normal_quantile(1.0 - p)).abs() < 1e-9);
            before = quantile;
        }
    }
}
