//! Converts values of Parquet and Arrow files to the numbers of fields.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_schema::{DataType, TimeUnit as FileUnit};

use crate::decode::{
    BadField, FieldKind, SNIPPET_BYTES, Spelling, float32, hex32, int32, int64, uint64,
};
use crate::spec::TimeUnit;

const MILLISECONDS_A_DAY: i64 = 86_400_000;

/// A value of a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cell<'a> {
    Signed(i64),
    Unsigned(u64),
    /// A value of 32 bits. A hexadecimal field takes the bits unchanged.
    Bits(i32),
    /// An integer that may need more than 64 bits.
    Big(i128),
    Float(f64, Mantissa),
    Text(&'a [u8]),
}

/// Bits of the mantissa of a column's floats. Whole numbers below two to this power are exact. A
/// larger float may have been rounded from another whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mantissa(u32);

const F16: Mantissa = Mantissa(11);
const F32: Mantissa = Mantissa(f32::MANTISSA_DIGITS);
const F64: Mantissa = Mantissa(f64::MANTISSA_DIGITS);

/// Returns the value of a row. `None` if it is null. `unit` is the unit for times.
pub(super) fn cell(array: &dyn Array, row: usize, unit: TimeUnit) -> Option<Cell<'_>> {
    if array.is_null(row) {
        return None;
    }
    Some(match array.data_type() {
        DataType::Boolean => Cell::Unsigned(u64::from(array.as_boolean().value(row))),
        DataType::Int8 => Cell::Signed(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => Cell::Signed(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => Cell::Bits(array.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => Cell::Signed(array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => Cell::Unsigned(array.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => Cell::Unsigned(array.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => Cell::Unsigned(array.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => Cell::Unsigned(array.as_primitive::<UInt64Type>().value(row)),
        DataType::Float32 => {
            Cell::Float(array.as_primitive::<Float32Type>().value(row).into(), F32)
        }
        DataType::Float64 => Cell::Float(array.as_primitive::<Float64Type>().value(row), F64),
        DataType::Binary => Cell::Text(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Cell::Text(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Cell::Text(array.as_binary_view().value(row)),
        _ => return rarer_cell(array, row, unit),
    })
}

/// Returns the value of a row that is not null, for the less common types.
fn rarer_cell(array: &dyn Array, row: usize, unit: TimeUnit) -> Option<Cell<'_>> {
    Some(match array.data_type() {
        DataType::Null => return None,
        DataType::Float16 => {
            Cell::Float(array.as_primitive::<Float16Type>().value(row).to_f64(), F16)
        }
        DataType::Dictionary(keys, _) => {
            let dictionary = array.as_any_dictionary();
            let key = key(dictionary.keys(), keys, row);
            return cell(dictionary.values().as_ref(), key, unit);
        }
        DataType::Decimal32(_, places) => {
            decimal(array.as_primitive::<Decimal32Type>().value(row).into(), *places)
        }
        DataType::Decimal64(_, places) => {
            decimal(array.as_primitive::<Decimal64Type>().value(row).into(), *places)
        }
        DataType::Decimal128(_, places) => {
            decimal(array.as_primitive::<Decimal128Type>().value(row), *places)
        }
        DataType::Decimal256(_, places) => {
            let value = array.as_primitive::<Decimal256Type>().value(row);
            match value.to_i128() {
                Some(value) => decimal(value, *places),
                // The nearest float. An integer field refuses it as out of range.
                None => scaled(value.to_string().parse().expect("digits are a float"), *places),
            }
        }
        DataType::Date32 => Cell::Signed(array.as_primitive::<Date32Type>().value(row).into()),
        DataType::Date64 => {
            let milliseconds = array.as_primitive::<Date64Type>().value(row);
            Cell::Signed(milliseconds.div_euclid(MILLISECONDS_A_DAY))
        }
        other => time_cell(array, other, row, unit),
    })
}

fn time_cell<'a>(array: &'a dyn Array, kind: &DataType, row: usize, unit: TimeUnit) -> Cell<'a> {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    macro_rules! of {
        ($kind:ty) => {
            i64::from(array.as_primitive::<$kind>().value(row))
        };
    }
    let (value, from) = match kind {
        DataType::Timestamp(FileUnit::Second, _) => (of!(TimestampSecondType), Second),
        DataType::Timestamp(FileUnit::Millisecond, _) => {
            (of!(TimestampMillisecondType), Millisecond)
        }
        DataType::Timestamp(FileUnit::Microsecond, _) => {
            (of!(TimestampMicrosecondType), Microsecond)
        }
        DataType::Timestamp(FileUnit::Nanosecond, _) => (of!(TimestampNanosecondType), Nanosecond),
        DataType::Time32(FileUnit::Second) => (of!(Time32SecondType), Second),
        DataType::Time32(_) => (of!(Time32MillisecondType), Millisecond),
        DataType::Time64(FileUnit::Microsecond) => (of!(Time64MicrosecondType), Microsecond),
        DataType::Time64(_) => (of!(Time64NanosecondType), Nanosecond),
        DataType::Duration(FileUnit::Second) => (of!(DurationSecondType), Second),
        DataType::Duration(FileUnit::Millisecond) => (of!(DurationMillisecondType), Millisecond),
        DataType::Duration(FileUnit::Microsecond) => (of!(DurationMicrosecondType), Microsecond),
        DataType::Duration(FileUnit::Nanosecond) => (of!(DurationNanosecondType), Nanosecond),
        other => unreachable!("{other} is refused when the input is begun"),
    };
    let from = from.per_second();
    let to = unit.per_second();
    let value = i128::from(value);
    Cell::Big(if to >= from { value * (to / from) } else { value.div_euclid(from / to) })
}

/// Returns the dictionary index of the value in row `row`.
fn key(keys: &dyn Array, kind: &DataType, row: usize) -> usize {
    macro_rules! of {
        ($kind:ty) => {
            keys.as_primitive::<$kind>().value(row) as usize
        };
    }
    match kind {
        DataType::Int8 => of!(Int8Type),
        DataType::Int16 => of!(Int16Type),
        DataType::Int32 => of!(Int32Type),
        DataType::Int64 => of!(Int64Type),
        DataType::UInt8 => of!(UInt8Type),
        DataType::UInt16 => of!(UInt16Type),
        DataType::UInt32 => of!(UInt32Type),
        _ => of!(UInt64Type),
    }
}

/// Converts a decimal number with `places` digits after the point.
fn decimal<'a>(value: i128, places: i8) -> Cell<'a> {
    if places == 0 { Cell::Big(value) } else { scaled(value as f64, places) }
}

/// Returns the decimal number whose digits, without the point, are `digits`.
fn scaled<'a>(digits: f64, places: i8) -> Cell<'a> {
    Cell::Float(digits / 10_f64.powi(places.into()), F64)
}

/// Converts a float to the integer that it is equal to. `None` for NaN.
fn whole<T: TryFrom<i128>>(
    value: f64,
    Mantissa(bits): Mantissa,
    kind: FieldKind,
) -> Result<Option<T>, BadField> {
    if value.is_nan() {
        return Ok(None);
    }
    if value.fract() != 0.0 {
        return Err(BadField::NotA(kind));
    }
    // The cast saturates. A saturated value fits in no field.
    let whole = T::try_from(value as i128).map_err(|_| BadField::OutOfRange(kind))?;
    if value.abs() >= 2_f64.powi(bits.cast_signed()) {
        return Err(BadField::Rounded(bits));
    }
    Ok(Some(whole))
}

impl Cell<'_> {
    /// True if a number or text is one of the spellings of a missing value.
    pub(super) fn is_spelt_as(&self, spelling: &Spelling) -> bool {
        match self {
            Self::Text(text) => spelling.is_missing(text),
            // Spellings are also compared with the value as f32, because the reader widens f32
            // columns to f64: the f32 -999.9 becomes -999.9000244140625.
            Self::Float(value, _) if f64::from(*value as f32) == *value => {
                let narrow = (*value as f32).to_string();
                spelling.is_missing(narrow.as_bytes())
                    || spelling.is_missing(&self.snippet())
                    || spelling.is_missing(format!("{narrow}.0").as_bytes())
            }
            number => spelling.is_missing(&number.snippet()),
        }
    }

    /// Converts the value to an integer of type `T`. `None` for NaN.
    fn whole<T>(self, kind: FieldKind) -> Result<Option<T>, BadField>
    where
        T: TryFrom<i64> + TryFrom<u64> + TryFrom<i128>,
    {
        let value = match self {
            Self::Signed(value) => T::try_from(value).ok(),
            Self::Bits(value) => T::try_from(i64::from(value)).ok(),
            Self::Unsigned(value) => T::try_from(value).ok(),
            Self::Big(value) => T::try_from(value).ok(),
            Self::Float(value, mantissa) => return whole(value, mantissa, kind),
            Self::Text(_) => return Err(BadField::NotA(kind)),
        };
        value.map(Some).ok_or(BadField::OutOfRange(kind))
    }

    pub(super) fn int64(self, spelling: &Spelling) -> Result<Option<i64>, BadField> {
        match self {
            Self::Text(text) => spelling.read(text, int64),
            number => number.whole(FieldKind::Int64),
        }
    }

    pub(super) fn uint64(self, spelling: &Spelling) -> Result<Option<u64>, BadField> {
        match self {
            Self::Text(text) => spelling.read(text, uint64),
            number => number.whole(FieldKind::Uint64),
        }
    }

    pub(super) fn int32(self, spelling: &Spelling) -> Result<Option<i32>, BadField> {
        match self {
            Self::Text(text) => spelling.read(text, int32),
            number => number.whole(FieldKind::Int32),
        }
    }

    pub(super) fn hex32(self, spelling: &Spelling) -> Result<Option<u32>, BadField> {
        match self {
            Self::Text(text) => spelling.read(text, hex32),
            Self::Bits(value) => Ok(Some(value.cast_unsigned())),
            number => number.whole(FieldKind::Hex32),
        }
    }

    /// Converts the value to f32. `None` for NaN, which pandas writes for missing values.
    pub(super) fn float32(self, spelling: &Spelling) -> Result<Option<f32>, BadField> {
        match self {
            Self::Text(text) => spelling.read(text, float32),
            Self::Signed(value) => Ok(Some(value as f32)),
            Self::Unsigned(value) => Ok(Some(value as f32)),
            Self::Bits(value) => Ok(Some(value as f32)),
            Self::Big(value) => Ok(Some(value as f32)),
            Self::Float(value, _) if value.is_nan() => Ok(None),
            Self::Float(value, _) if value.is_infinite() => Err(BadField::NotA(FieldKind::Float32)),
            Self::Float(value, _) if !(value as f32).is_finite() => {
                Err(BadField::OutOfRange(FieldKind::Float32))
            }
            Self::Float(value, _) => Ok(Some(value as f32)),
        }
    }

    /// The beginning of the value as text, for a report.
    pub(super) fn snippet(self) -> Vec<u8> {
        let mut text = match self {
            Self::Text(text) => return text[..text.len().min(SNIPPET_BYTES)].to_vec(),
            Self::Signed(value) => value.to_string(),
            Self::Unsigned(value) => value.to_string(),
            Self::Bits(value) => value.to_string(),
            Self::Big(value) => value.to_string(),
            Self::Float(value, _) => value.to_string(),
        };
        text.truncate(SNIPPET_BYTES);
        text.into_bytes()
    }
}
