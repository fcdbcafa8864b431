//! Values of a chunk that have no id until the chunk is committed.

use embank::{ByteBuffer, Values};

use crate::operators::ValueSpace;

/// The values of a chunk without an id, for one look-up.
#[derive(Debug)]
pub(crate) enum UnseenList {
    /// From the array of ids in memory, which serves values of a known range (`DirectTable`).
    Words(Vec<UnseenWord>),
    /// From a bank's vocabulary.
    Values(UnseenValues),
}

/// A value of a known range without an id, and its row in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnseenWord {
    pub(crate) row: u32,
    pub(crate) value: u32,
}

impl UnseenList {
    /// An empty list for values of a vocabulary.
    pub(crate) fn new(space: ValueSpace) -> Self {
        match space {
            ValueSpace::Below(_) => Self::Words(Vec::new()),
            ValueSpace::Numbers | ValueSpace::Strings => Self::Values(UnseenValues::default()),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Words(words) => words.clear(),
            Self::Values(values) => values.clear(),
        }
    }

    /// Returns the list of a look-up in the array of ids. Panics if the look-up was in a bank's
    /// vocabulary.
    pub(crate) fn words(&self) -> &[UnseenWord] {
        match self {
            Self::Words(words) => words,
            Self::Values(_) => unreachable!("the look-up is in a table"),
        }
    }

    /// Returns the list of a look-up in a bank's vocabulary. Panics if the look-up was in the array
    /// of ids.
    pub(crate) fn values(&self) -> &UnseenValues {
        match self {
            Self::Values(values) => values,
            Self::Words(_) => unreachable!("the look-up is in a bank"),
        }
    }
}

/// Values of any kind without an id, in the order of their rows in the batch.
#[derive(Debug, Default)]
pub(crate) struct UnseenValues {
    pub(crate) rows: Vec<u32>,
    numbers: Vec<u64>,
    strings: ByteBuffer,
}

impl UnseenValues {
    fn clear(&mut self) {
        self.rows.clear();
        self.numbers.clear();
        self.strings.clear();
    }

    /// The values. A look-up has values of one kind, so one of the two lists is empty.
    pub(crate) fn values(&self) -> Values<'_> {
        if self.numbers.is_empty() {
            Values::from(&self.strings)
        } else {
            Values::from(&self.numbers)
        }
    }

    /// Appends value number `place` of `values`, for the row `row`.
    pub(crate) fn push(&mut self, row: u32, values: Values<'_>, place: usize) {
        self.rows.push(row);
        match values {
            Values::U64(numbers) => self.numbers.push(numbers[place]),
            Values::Bytes(strings) => self.strings.push(strings.get(place)),
        }
    }

    /// Appends value number `place` of another list, with its row.
    pub(crate) fn push_of(&mut self, other: &Self, place: usize) {
        self.push(other.rows[place], other.values(), place);
    }
}
