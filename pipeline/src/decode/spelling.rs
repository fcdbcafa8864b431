//! Other forms of a field's values: spellings of a missing value, words for numbers, a plus before
//! a number, and integers written as floats.
//!
//! The kernels and parsers read only the usual form of a value. They hand the values that they
//! can't read to this code, so the other forms cost nothing for usual values. But the spelling of a
//! missing value may also be a value of the field's kind (`-1`, or any spelling in a text field).
//! Such a field must be compared with the spellings first. It is therefore read value by value,
//! without a kernel.

use std::collections::BTreeMap;

use super::field::{BadField, FieldKind, float32, hex32, int32, int64, uint64};

/// Largest number of zeros that an exponent appends to the digits of a number. No 64-bit number has
/// more digits.
const DIGITS_MAX: usize = 40;
/// A number that a program wrote as a 64-bit float is exact below this number. A larger one may
/// have been rounded from another whole number.
const EXACT_BELOW: u64 = 1 << f64::MANTISSA_DIGITS;

/// The other forms that a field's values may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// Spellings of a missing value, besides an empty field.
    missing: Vec<Vec<u8>>,
    whole_floats: bool,
    /// Words that stand for numbers, with the numbers' digits.
    words: Vec<(Vec<u8>, Vec<u8>)>,
    /// True if a plus may stand before a number.
    plus: bool,
    /// True if one of the spellings can be a value of the field's kind.
    first: bool,
}

impl Spelling {
    pub(crate) fn new(
        kind: FieldKind,
        missing: &[String],
        whole_floats: bool,
        words: &BTreeMap<String, i64>,
    ) -> Self {
        let missing: Vec<Vec<u8>> = missing
            .iter()
            .filter(|one| !one.is_empty())
            .map(|one| one.clone().into_bytes())
            .collect();
        let is_value = |one: &Vec<u8>| match kind {
            FieldKind::Int32 => int32(one).is_ok(),
            FieldKind::Int64 => int64(one).is_ok(),
            FieldKind::Uint64 => uint64(one).is_ok(),
            FieldKind::Hex32 => hex32(one).is_ok(),
            FieldKind::Float32 => float32(one).is_ok(),
            FieldKind::Bytes | FieldKind::Blob | FieldKind::File => true,
            FieldKind::Skip => false,
        };
        let whole = |one: &Vec<u8>| whole_floats && whole_digits(one).is_some();
        let first = missing.iter().any(|one| is_value(one) || whole(one));
        let word = |(word, number): (&String, &i64)| {
            (word.clone().into_bytes(), number.to_string().into_bytes())
        };
        let words = words.iter().map(word).collect();
        let plus = matches!(kind, FieldKind::Int32 | FieldKind::Int64 | FieldKind::Uint64);
        Self { missing, whole_floats, words, plus, first }
    }

    /// True if the field must be compared with the spellings before it is read.
    #[inline]
    pub(crate) fn is_first(&self) -> bool {
        self.first
    }

    /// True if the field is a spelling of a missing value.
    pub(crate) fn is_missing(&self, field: &[u8]) -> bool {
        self.missing.iter().any(|one| one == field)
    }

    /// Reads a number. `None` if the value is missing.
    #[inline]
    pub(crate) fn read<T>(
        &self,
        field: &[u8],
        parse: impl Fn(&[u8]) -> Result<Option<T>, BadField>,
    ) -> Result<Option<T>, BadField> {
        if self.first && self.is_missing(field) {
            return Ok(None);
        }
        match parse(field) {
            Err(why) => self.read_otherwise(field, why, parse),
            read => read,
        }
    }

    #[cold]
    fn read_otherwise<T>(
        &self,
        field: &[u8],
        why: BadField,
        parse: impl Fn(&[u8]) -> Result<Option<T>, BadField>,
    ) -> Result<Option<T>, BadField> {
        if self.is_missing(field) {
            return Ok(None);
        }
        if let Some((_, digits)) = self.words.iter().find(|(word, _)| word == field) {
            return parse(digits);
        }
        let unsigned = match field {
            [b'+', number @ ..] if self.plus && number.first().is_some_and(u8::is_ascii_digit) => {
                number
            }
            _ => field,
        };
        let Some(digits) = whole_digits(unsigned).filter(|_| self.whole_floats) else {
            return if unsigned.len() < field.len() { parse(unsigned) } else { Err(why) };
        };
        // All digits: a whole number with a plus, which no program has rounded.
        if unsigned.iter().all(u8::is_ascii_digit) {
            return parse(unsigned);
        }
        let value = parse(&digits)?;
        if is_exact(&digits) { Ok(value) } else { Err(BadField::Rounded(f64::MANTISSA_DIGITS)) }
    }
}

/// True if the text is a whole number written as a float. A field with
/// [`whole_floats`](crate::Field::whole_floats) could read it.
pub(crate) fn is_whole_float(field: &[u8]) -> bool {
    whole_digits(field).is_some_and(|digits| is_exact(&digits))
}

/// True if each whole number up to this one, which is given by its digits, has a float of its own.
fn is_exact(digits: &[u8]) -> bool {
    let digits = digits.strip_prefix(b"-").unwrap_or(digits);
    matches!(uint64(digits), Ok(Some(value)) if value < EXACT_BELOW)
}

/// Returns the digits of an integer that is written as a float, such as `5.0` and `-1e3`. `None`
/// for any other text.
fn whole_digits(field: &[u8]) -> Option<Vec<u8>> {
    let (sign, number) = match field {
        [b'-', rest @ ..] => (&b"-"[..], rest),
        rest => (&b""[..], rest),
    };
    let (mantissa, exponent) = match number.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => {
            (&number[..at], std::str::from_utf8(&number[at + 1..]).ok()?.parse::<i32>().ok()?)
        }
        None => (number, 0),
    };
    let point = memchr::memchr(b'.', mantissa).unwrap_or(mantissa.len());
    let fraction = mantissa.get(point + 1..).unwrap_or_default();
    let mut digits = [&mantissa[..point], fraction].concat();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    if digits.iter().all(|&digit| digit == b'0') {
        return Some(b"0".to_vec());
    }
    let whole = i64::try_from(point).ok()?.checked_add(exponent.into())?;
    let whole = usize::try_from(whole).ok()?;
    if digits.iter().skip(whole).any(|&digit| digit != b'0') {
        return None;
    }
    // A number with `DIGITS_MAX` more digits is far out of range, so further digits do not matter.
    digits.resize(whole.min(digits.len() + DIGITS_MAX), b'0');
    Some([sign, &digits].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(kind: FieldKind, missing: &[String], whole_floats: bool) -> Spelling {
        Spelling::new(kind, missing, whole_floats, &BTreeMap::new())
    }

    #[test]
    fn whole_numbers_that_are_written_as_floats() {
        for (text, number) in [
            ("5.0", 5),
            ("-12.000", -12),
            ("1e3", 1000),
            ("1.5E+1", 15),
            ("250e-1", 25),
            ("0.0", 0),
            ("-0.0", 0),
            ("7.", 7),
            ("9007199254740993.0", 9_007_199_254_740_993),
            ("9.223372036854775807e18", i64::MAX),
            ("-9223372036854775808.0", i64::MIN),
        ] {
            let digits = whole_digits(text.as_bytes()).unwrap();
            assert_eq!(int64(&digits), Ok(Some(number)), "{text}");
        }
        for wrong in [
            "5.5",
            "1e-1",
            "nan",
            "",
            ".",
            "e5",
            "1e",
            "--1.0",
            "1.0.0",
            "5,0",
            "9007199254740992.5",
        ] {
            assert_eq!(whole_digits(wrong.as_bytes()), None, "{wrong}");
        }
        for large in ["1e19", "1e2000000000", "99999999999999999999.0"] {
            let digits = whole_digits(large.as_bytes()).unwrap();
            assert_eq!(int64(&digits), Err(BadField::OutOfRange(FieldKind::Int64)), "{large}");
        }
    }

    #[test]
    fn spellings_that_are_values_are_looked_for_first() {
        let first = |kind, missing: &str| new(kind, &[missing.to_owned()], false).is_first();
        assert!(
            first(FieldKind::Int32, "-1")
                && first(FieldKind::Float32, "0")
                && first(FieldKind::Bytes, "NA")
        );
        assert!(first(FieldKind::Hex32, "bad") && first(FieldKind::Uint64, "18446744073709551615"));
        for kind in [FieldKind::Int32, FieldKind::Float32, FieldKind::Hex32, FieldKind::Uint64] {
            assert!(!first(kind, "nan") && !first(kind, ""), "{kind:?}");
        }
        assert!(new(FieldKind::Int64, &["-1.0".to_owned()], true).is_first());
    }
}
