//! The values that callers pass: a slice of numbers, or byte strings in one buffer.

use crate::error::{Result, StoreError};

/// Byte strings side by side, in Arrow's layout: string `i` is `bytes[offsets[i]..offsets[i + 1]]`.
/// The first offset may be above 0, so a slice of an array works without a copy.
///
/// # Examples
/// ```
/// use embank::ByteValues;
///
/// let words = ByteValues::new(&[0, 3, 3, 8], b"redgreen")?;
/// assert_eq!((words.len(), words.get(0), words.get(1), words.get(2)), (3, &b"red"[..], &b""[..], &b"green"[..]));
/// assert!(ByteValues::new(&[0, 9], b"redgreen").is_err());
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ByteValues<'a> {
    offsets: Offsets<'a>,
    bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy)]
enum Offsets<'a> {
    Short(&'a [u32]),
    Long(&'a [u64]),
}

impl<'a> ByteValues<'a> {
    /// Makes a batch from an array with 32-bit offsets. The array has one offset more than it has
    /// strings. An empty slice of offsets means an array without strings.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) if an offset is less than the one
    /// before it, or lies beyond `bytes`.
    pub fn new(offsets: &'a [u32], bytes: &'a [u8]) -> Result<Self> {
        let falls = offsets.windows(2).position(|pair| pair[0] > pair[1]);
        check(falls, offsets.last().map_or(0, |&last| u64::from(last)), bytes.len())?;
        Ok(Self { offsets: Offsets::Short(offsets), bytes })
    }

    /// Makes a batch from an array with 64-bit offsets, as [`new`](Self::new) does with 32-bit
    /// offsets.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_long_offsets(offsets: &'a [u64], bytes: &'a [u8]) -> Result<Self> {
        let falls = offsets.windows(2).position(|pair| pair[0] > pair[1]);
        check(falls, offsets.last().copied().unwrap_or(0), bytes.len())?;
        Ok(Self { offsets: Offsets::Long(offsets), bytes })
    }

    /// The number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        let offsets = match self.offsets {
            Offsets::Short(offsets) => offsets.len(),
            Offsets::Long(offsets) => offsets.len(),
        };
        offsets.saturating_sub(1)
    }

    /// True if there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// String `i`.
    ///
    /// # Panics
    /// If `i` is not below [`len`](Self::len).
    #[must_use]
    #[inline]
    pub fn get(&self, i: usize) -> &'a [u8] {
        match self.offsets {
            Offsets::Short(offsets) => &self.bytes[offsets[i] as usize..offsets[i + 1] as usize],
            Offsets::Long(offsets) => &self.bytes[offsets[i] as usize..offsets[i + 1] as usize],
        }
    }

    /// Returns an iterator over the strings, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }
}

fn check(falls: Option<usize>, last: u64, bytes: usize) -> Result<()> {
    let what = match falls {
        Some(place) => format!("offsets of byte strings must not fall, and do after place {place}"),
        None if last > bytes as u64 => {
            format!("the last offset of the byte strings is {last}, and there are {bytes} bytes")
        }
        None => return Ok(()),
    };
    Err(StoreError::InvalidArgument(what).into())
}

/// Owned byte strings side by side: the result of a vocabulary's look-up, and a way to build a
/// batch.
///
/// # Examples
/// ```
/// let mut words = embank::ByteBuffer::from_iter(["red", "green"]);
/// words.push(b"blue");
/// assert_eq!(words.get(2), b"blue");
/// assert_eq!(words.values().iter().map(<[u8]>::len).sum::<usize>(), 12);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByteBuffer {
    offsets: Vec<u64>,
    bytes: Vec<u8>,
}

impl Default for ByteBuffer {
    fn default() -> Self {
        Self { offsets: vec![0], bytes: Vec::new() }
    }
}

impl ByteBuffer {
    /// Appends a string.
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.offsets.push(self.bytes.len() as u64);
    }

    /// The number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// True if there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// String `i`.
    ///
    /// # Panics
    /// If `i` is not below [`len`](Self::len).
    #[must_use]
    pub fn get(&self, i: usize) -> &[u8] {
        &self.bytes[self.offsets[i] as usize..self.offsets[i + 1] as usize]
    }

    /// Returns a view of all strings.
    #[must_use]
    pub fn values(&self) -> ByteValues<'_> {
        ByteValues { offsets: Offsets::Long(&self.offsets), bytes: &self.bytes }
    }

    /// Returns the offsets and the bytes, as [`ByteValues::with_long_offsets`] takes them.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u64>, Vec<u8>) {
        (self.offsets, self.bytes)
    }

    /// Removes all strings and keeps the memory.
    pub fn clear(&mut self) {
        self.offsets.truncate(1);
        self.bytes.clear();
    }
}

impl<V: AsRef<[u8]>> FromIterator<V> for ByteBuffer {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        let mut buffer = Self::default();
        values.into_iter().for_each(|value| buffer.push(value.as_ref()));
        buffer
    }
}

/// A batch of raw values for a [`Vocabulary`](crate::Vocabulary). Slices of numbers and byte
/// strings convert into it.
///
/// # Examples
/// ```
/// use embank::{ByteBuffer, Values};
///
/// assert_eq!(Values::from(&[7, 3, 7]).len(), 3);
/// assert_eq!(Values::from(&ByteBuffer::from_iter(["red", "green"])).len(), 2);
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// Numbers.
    U64(&'a [u64]),
    /// Byte strings.
    Bytes(ByteValues<'a>),
}

impl Values<'_> {
    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U64(values) => values.len(),
            Self::Bytes(values) => values.len(),
        }
    }

    /// True if there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Value `i` as text for an error message: a number's digits, or the first 64 bytes of a string
    /// in quotes.
    ///
    /// # Panics
    /// If there is no value `i`.
    ///
    /// # Examples
    /// ```
    /// use embank::{ByteBuffer, Values};
    ///
    /// assert_eq!(Values::from(&[7, 8]).show(1), "8");
    /// assert_eq!(Values::from(&ByteBuffer::from_iter(["red"])).show(0), "\"red\"");
    /// ```
    #[must_use]
    pub fn show(&self, i: usize) -> String {
        match self {
            Self::U64(values) => values[i].to_string(),
            Self::Bytes(values) => show_bytes(values.get(i)),
        }
    }
}

/// Largest number of bytes of a value that an error message shows.
const SHOWN_BYTES_MAX: usize = 64;

pub(crate) fn show_bytes(value: &[u8]) -> String {
    let shown = &value[..value.len().min(SHOWN_BYTES_MAX)];
    let rest = if shown.len() < value.len() { "..." } else { "" };
    format!("\"{}\"{rest}", shown.escape_ascii())
}

impl<'a> From<&'a [u64]> for Values<'a> {
    fn from(values: &'a [u64]) -> Self {
        Self::U64(values)
    }
}

impl<'a> From<&'a Vec<u64>> for Values<'a> {
    fn from(values: &'a Vec<u64>) -> Self {
        Self::U64(values)
    }
}

impl<'a, const N: usize> From<&'a [u64; N]> for Values<'a> {
    fn from(values: &'a [u64; N]) -> Self {
        Self::U64(values)
    }
}

impl<'a> From<ByteValues<'a>> for Values<'a> {
    fn from(values: ByteValues<'a>) -> Self {
        Self::Bytes(values)
    }
}

impl<'a> From<&'a ByteBuffer> for Values<'a> {
    fn from(values: &'a ByteBuffer) -> Self {
        Self::Bytes(values.values())
    }
}

/// Raw values that a vocabulary returns.
///
/// # Examples
/// See [`Vocabulary::values`](crate::Vocabulary::values).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedValues {
    /// Numbers.
    U64(Vec<u64>),
    /// Byte strings.
    Bytes(ByteBuffer),
}

impl OwnedValues {
    /// Returns a view of the values.
    #[must_use]
    pub fn values(&self) -> Values<'_> {
        match self {
            Self::U64(values) => Values::U64(values),
            Self::Bytes(values) => Values::Bytes(values.values()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_lead_astray_are_refused() {
        assert!(ByteValues::new(&[0, 2, 1], b"ab").is_err());
        assert!(ByteValues::new(&[0, 3], b"ab").is_err());
        assert!(ByteValues::with_long_offsets(&[0, 2, 1], b"ab").is_err());
        assert!(ByteValues::with_long_offsets(&[0, u64::MAX], b"ab").is_err());
        assert!(ByteValues::new(&[], b"").unwrap().is_empty());
        let middle = ByteValues::with_long_offsets(&[1, 2, 2], b"abc").unwrap();
        assert_eq!(middle.iter().collect::<Vec<_>>(), [&b"b"[..], b""]);
    }

    #[test]
    fn a_long_value_is_shown_in_part() {
        assert_eq!(show_bytes(b"a\"\n"), r#""a\"\n""#);
        assert_eq!(show_bytes(&[b'x'; 100]).len(), SHOWN_BYTES_MAX + 5);
    }
}
