//! Decodes one field of a text. The kernels must give the results of this code. Only this code
//! decides what is an error.

use std::fmt;

use super::layout::FIELD_BYTES_MAX;

/// Type of a field and its form in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FieldKind {
    /// A signed decimal number of 32 bits. A minus may precede it.
    Int32,
    /// A signed decimal number of 64 bits. A minus may precede it.
    Int64,
    /// A hexadecimal number of up to eight digits in upper or lower case, without a prefix.
    Hex32,
    /// A decimal number that may have a fraction and an exponent. Infinities and NaN are errors.
    Float32,
    /// An unsigned decimal number of 64 bits, for ids.
    Uint64,
    /// Bytes, unchanged.
    Bytes,
    /// Up to 64 MiB of bytes that [`Operator::Image`](crate::Operator::Image) decodes. Not for
    /// text.
    Blob,
    /// The path of a file with such bytes, relative to [`RunOptions::root`](crate::RunOptions::root).
    File,
    /// The field is neither read nor checked.
    Skip,
}

/// The fault of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadField {
    /// The field is no number of this kind.
    NotA(FieldKind),
    /// The number is outside the range of this kind.
    OutOfRange(FieldKind),
    /// The field is empty, but required.
    Missing,
    /// The number is a float of two to this power or more. A float of this size may have been
    /// rounded from another whole number.
    Rounded(u32),
    /// The field has more bytes than this limit.
    TooLong(usize),
    /// A quote opens or closes at a wrong place.
    Quote,
    /// The type of a Parquet or Arrow column promises UTF-8, and the value is not UTF-8.
    NotUtf8,
}

impl fmt::Display for BadField {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotA(FieldKind::Int32 | FieldKind::Int64) => {
                formatter.write_str("is not a whole number")
            }
            Self::NotA(FieldKind::Uint64) => formatter.write_str("is not a whole number from 0 on"),
            Self::NotA(FieldKind::Hex32) => formatter.write_str("is not a hexadecimal number"),
            Self::NotA(_) => formatter.write_str("is not a finite number"),
            Self::OutOfRange(FieldKind::Hex32) => {
                formatter.write_str("has more than 8 hexadecimal digits")
            }
            Self::OutOfRange(FieldKind::Int64 | FieldKind::Uint64) => {
                formatter.write_str("does not fit into 64 bits")
            }
            Self::OutOfRange(_) => formatter.write_str("does not fit into 32 bits"),
            Self::Rounded(power) => write!(
                formatter,
                "is a float of 2^{power} or more: floats of this size are rounded, so several whole numbers would become \
                 one; write it as a whole number or as text of digits"
            ),
            Self::Missing => formatter.write_str("is empty, but a value is required"),
            Self::TooLong(limit) if *limit < FIELD_BYTES_MAX => write!(
                formatter,
                "is longer than the {limit} bytes that its vocabulary takes (`value_bytes_max`)"
            ),
            Self::TooLong(limit) => write!(formatter, "is longer than {limit} bytes"),
            Self::NotUtf8 => formatter.write_str(
                "is not UTF-8, and the type of its column is text: write the column as plain bytes (binary)",
            ),
            Self::Quote => formatter.write_str("has a quote at a wrong place"),
        }
    }
}

/// Reads an i64. `None` if the field is empty.
pub(crate) fn int64(field: &[u8]) -> Result<Option<i64>, BadField> {
    let (negative, digits) = match field {
        [] => return Ok(None),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(BadField::NotA(FieldKind::Int64));
    }
    let mut value = 0_i64;
    for &digit in digits {
        let digit = i64::from(digit - b'0');
        // Accumulates the negated digits, because i64 has one more negative number than positive
        // numbers.
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_sub(digit))
            .ok_or(BadField::OutOfRange(FieldKind::Int64))?;
    }
    if negative {
        return Ok(Some(value));
    }
    value.checked_neg().map(Some).ok_or(BadField::OutOfRange(FieldKind::Int64))
}

/// Reads a u64. `None` if the field is empty.
pub(crate) fn uint64(field: &[u8]) -> Result<Option<u64>, BadField> {
    if field.is_empty() {
        return Ok(None);
    }
    if !field.iter().all(u8::is_ascii_digit) {
        return Err(BadField::NotA(FieldKind::Uint64));
    }
    let add = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    let value = field.iter().try_fold(0, add);
    value.map(Some).ok_or(BadField::OutOfRange(FieldKind::Uint64))
}

/// Reads an i32. `None` if the field is empty.
pub(crate) fn int32(field: &[u8]) -> Result<Option<i32>, BadField> {
    match int64(field) {
        Ok(None) => Ok(None),
        Ok(Some(value)) => {
            i32::try_from(value).map(Some).map_err(|_| BadField::OutOfRange(FieldKind::Int32))
        }
        Err(BadField::OutOfRange(_)) => Err(BadField::OutOfRange(FieldKind::Int32)),
        Err(_) => Err(BadField::NotA(FieldKind::Int32)),
    }
}

/// Reads a hexadecimal u32. `None` if the field is empty.
pub(crate) fn hex32(field: &[u8]) -> Result<Option<u32>, BadField> {
    let mut value = 0;
    for &byte in field {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return Err(BadField::NotA(FieldKind::Hex32)),
        };
        value = value << 4 | u32::from(digit);
    }
    match field.len() {
        0 => Ok(None),
        1..=8 => Ok(Some(value)),
        _ => Err(BadField::OutOfRange(FieldKind::Hex32)),
    }
}

/// Reads a number and rounds it to the nearest f32. `None` if the field is empty.
pub(crate) fn float32(field: &[u8]) -> Result<Option<f32>, BadField> {
    if field.is_empty() {
        return Ok(None);
    }
    let not_a = BadField::NotA(FieldKind::Float32);
    let text = std::str::from_utf8(field).map_err(|_| not_a)?;
    let value: f32 = text.parse().map_err(|_| not_a)?;
    if value.is_finite() {
        return Ok(Some(value));
    }
    // The number is too large, or the field is the name of an infinity.
    let by_name =
        field.iter().any(|byte| byte.is_ascii_alphabetic() && !matches!(byte, b'e' | b'E'));
    Err(if by_name { not_a } else { BadField::OutOfRange(FieldKind::Float32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_to_their_limits() {
        assert_eq!(int32(b""), Ok(None));
        assert_eq!(int32(b"-2147483648"), Ok(Some(i32::MIN)));
        assert_eq!(int32(b"2147483647"), Ok(Some(i32::MAX)));
        assert_eq!(int32(b"2147483648"), Err(BadField::OutOfRange(FieldKind::Int32)));
        assert_eq!(int64(b"-9223372036854775808"), Ok(Some(i64::MIN)));
        assert_eq!(int64(b"9223372036854775807"), Ok(Some(i64::MAX)));
        assert_eq!(int64(b"9223372036854775808"), Err(BadField::OutOfRange(FieldKind::Int64)));
        assert_eq!(int32(b"99999999999999999999"), Err(BadField::OutOfRange(FieldKind::Int32)));
        assert_eq!(int32(b"0000000000000000000007"), Ok(Some(7)));
        assert_eq!(uint64(b"18446744073709551615"), Ok(Some(u64::MAX)));
        assert_eq!(uint64(b""), Ok(None));
        let out = Err(BadField::OutOfRange(FieldKind::Uint64));
        assert_eq!((uint64(b"18446744073709551616"), uint64(b"99999999999999999999")), (out, out));
        for wrong in [&b"-1"[..], b"+1", b"1.0", b" 1", b"x"] {
            assert_eq!(uint64(wrong), Err(BadField::NotA(FieldKind::Uint64)), "{wrong:?}");
        }
        for wrong in [&b"-"[..], b"+1", b"1-", b"--1", b" 1", b"1.0", b"\0", b"1e3", b"\xff"] {
            assert_eq!(int32(wrong), Err(BadField::NotA(FieldKind::Int32)), "{wrong:?}");
        }
    }

    #[test]
    fn hexadecimal_numbers_of_up_to_eight_digits() {
        assert_eq!(hex32(b""), Ok(None));
        assert_eq!(hex32(b"68fd1e64"), Ok(Some(0x68fd_1e64)));
        assert_eq!(hex32(b"FFffFFff"), Ok(Some(u32::MAX)));
        assert_eq!(hex32(b"a"), Ok(Some(10)));
        assert_eq!(hex32(b"068fd1e64"), Err(BadField::OutOfRange(FieldKind::Hex32)));
        for wrong in [&b"g"[..], b"0x1", b"-1", b"12 4", b"\0", b"\xe1"] {
            assert_eq!(hex32(wrong), Err(BadField::NotA(FieldKind::Hex32)), "{wrong:?}");
        }
    }

    #[test]
    fn finite_numbers_only() {
        assert_eq!(float32(b""), Ok(None));
        assert_eq!(float32(b"-1.5e2"), Ok(Some(-150.0)));
        assert_eq!(float32(b"1e99"), Err(BadField::OutOfRange(FieldKind::Float32)));
        for wrong in [&b"nan"[..], b"-inf", b"Infinity", b"1,5", b"one", b"\xff"] {
            assert_eq!(float32(wrong), Err(BadField::NotA(FieldKind::Float32)), "{wrong:?}");
        }
    }
}
