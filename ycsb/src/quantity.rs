//! Parses numbers with units for options.

use anyhow::{Context, Result, bail};

/// Parses a number with an optional suffix k, M or G, which are powers of 1,000.
pub(crate) fn count(text: &str) -> Result<u64> {
    scaled(text, |suffix| match suffix {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        _ => None,
    })
}

/// Parses a number of bytes with an optional suffix, such as MiB (of 1,024) or MB (of 1,000).
pub(crate) fn bytes(text: &str) -> Result<u64> {
    scaled(text, |suffix| match suffix {
        "" | "B" => Some(1),
        "K" | "KiB" => Some(1 << 10),
        "M" | "MiB" => Some(1 << 20),
        "G" | "GiB" => Some(1 << 30),
        "kB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        _ => None,
    })
}

/// Parses a number of seconds, which must be finite and not negative. A run of `nan` seconds would
/// never end.
pub(crate) fn seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse().with_context(|| format!("{text:?} is no number"))?;
    if !(seconds.is_finite() && seconds >= 0.0) {
        bail!("{text:?} is no number of seconds from 0 on");
    }
    Ok(seconds)
}

/// A staleness bound. `None` for no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound(pub(crate) Option<u32>);

/// Parses a staleness bound: a number, or `none`.
pub(crate) fn bound(text: &str) -> Result<Bound> {
    if text == "none" {
        return Ok(Bound(None));
    }
    let bound = text.parse().with_context(|| format!("{text:?} is no number and not `none`"))?;
    Ok(Bound(Some(bound)))
}

fn scaled(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Result<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = (&text[..split], text[split..].trim());
    let Some(unit) = unit(suffix) else { bail!("{suffix:?} is no known unit") };
    match number.parse::<u64>() {
        Ok(number) => number.checked_mul(unit).context("too large"),
        Err(_) => {
            let number: f64 = number.parse().with_context(|| format!("{number:?} is no number"))?;
            Ok((number * unit as f64) as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(count("10M").unwrap(), 10_000_000);
        assert_eq!(count("1.5k").unwrap(), 1_500);
        assert_eq!(bytes("64").unwrap(), 64);
        assert_eq!(bytes("0.5GiB").unwrap(), 512 << 20);
        assert_eq!(bytes("16 MB").unwrap(), 16_000_000);
        for wrong in ["", "M", "1T", "-5", "1.2.3", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_end() {
        assert_eq!(seconds("0.5").unwrap(), 0.5);
        assert_eq!(seconds("0").unwrap(), 0.0);
        for wrong in ["nan", "inf", "-1", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
