//! Collects the bad rows of a chunk: their number, and the first few.
//!
//! A chunk of empty lines has half a million bad rows, but a report shows at most ten. A list
//! therefore keeps only the first ten and counts all.

use super::field::BadField;

/// Bytes of a bad field that a report shows.
pub(crate) const SNIPPET_BYTES: usize = 40;
/// Largest number of bad rows in a report.
pub(crate) const REPORTED_BAD_ROWS: usize = 10;

/// A row that can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRow {
    /// The row's first line in the text, from 0.
    pub(crate) line: usize,
    /// Number of lines that the row spans.
    pub(crate) lines: usize,
    pub(crate) fault: Fault,
}

/// The reason why a row is bad.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The row has a wrong number of fields.
    Fields { found: usize, expected: usize },
    /// A value of a Parquet or Arrow file can't be read.
    #[cfg(feature = "parquet")]
    Value { field: usize, why: BadField, snippet: Vec<u8> },
    /// A field can't be read. `column` is its offset from the start of the row.
    Field { field: usize, column: usize, why: BadField, snippet: Vec<u8> },
    /// A value can't be decoded to an array. `name` is the path of its file, or empty.
    Array { field: usize, name: Vec<u8>, why: String },
    /// The row of this name has a fault.
    #[cfg(feature = "parquet")]
    OfRow { name: String, fault: Box<Self> },
}

impl Fault {
    /// The place of an array's fault, which [`fill_in`](Self::fill_in) puts in.
    pub(crate) fn no_array() -> Self {
        Self::Array { field: 0, name: Vec::new(), why: String::new() }
    }

    /// Replaces the fault, and keeps the row's name.
    pub(crate) fn fill_in(&mut self, fault: Self) {
        match self {
            #[cfg(feature = "parquet")]
            Self::OfRow { fault: inner, .. } => **inner = fault,
            unnamed => *unnamed = fault,
        }
    }

    /// Adds the name of the row.
    #[cfg(feature = "parquet")]
    pub(crate) fn of_row(&mut self, name: &str) {
        let unnamed = std::mem::replace(self, Self::Fields { found: 0, expected: 0 });
        *self = Self::OfRow { name: name.to_owned(), fault: Box::new(unnamed) };
    }

    /// The byte of the row, from 1, at which the bad field of a text begins.
    pub(crate) fn column(&self) -> Option<u64> {
        match self {
            Self::Field { column, .. } => Some(*column as u64 + 1),
            _ => None,
        }
    }
}

/// Bad rows. Each is counted once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct BadList {
    count: usize,
    /// Number of lines that all bad rows span.
    lines: usize,
    /// The first bad rows, sorted by line.
    first: Vec<BadRow>,
}

impl BadList {
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.lines = 0;
        self.first.clear();
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Number of lines that the bad rows span.
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }

    pub(crate) fn first(&self) -> &[BadRow] {
        &self.first
    }

    /// Adds a row, which must not be on the list.
    pub(crate) fn add(&mut self, bad: BadRow) {
        self.count += 1;
        self.lines += bad.lines;
        let place = self.first.partition_point(|known| known.line < bad.line);
        if place < REPORTED_BAD_ROWS {
            self.first.insert(place, bad);
            self.first.truncate(REPORTED_BAD_ROWS);
        }
    }

    /// Moves the rows of another list to this one. No row may be on both lists. Calls `place` for
    /// each row that this list keeps, to convert the row's place.
    pub(crate) fn add_all(&mut self, other: &mut Self, mut place: impl FnMut(&mut BadRow)) {
        self.count += other.count - other.first.len();
        let kept: usize = other.first.iter().map(|bad| bad.lines).sum();
        self.lines += other.lines - kept;
        other.count = 0;
        other.lines = 0;
        for mut bad in other.first.drain(..) {
            place(&mut bad);
            self.add(bad);
        }
    }

    /// Moves `rows` to this list, which must not have any of them yet. If a row occurs several
    /// times in `rows`, its first fault counts. Calls `place` for each row that this list keeps, to
    /// convert the row's place.
    pub(crate) fn add_block(&mut self, rows: &mut Vec<BadRow>, mut place: impl FnMut(&mut BadRow)) {
        rows.sort_by_key(|bad| bad.line);
        rows.dedup_by_key(|bad| bad.line);
        let left_out = &rows[rows.len().min(REPORTED_BAD_ROWS)..];
        self.count += left_out.len();
        self.lines += left_out.iter().map(|bad| bad.lines).sum::<usize>();
        rows.truncate(REPORTED_BAD_ROWS);
        for mut bad in rows.drain(..) {
            place(&mut bad);
            self.add(bad);
        }
    }

    /// Adds `lines` to the line of every kept row.
    pub(crate) fn shift(&mut self, lines: usize) {
        self.first.iter_mut().for_each(|bad| bad.line += lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(line: usize) -> BadRow {
        BadRow { line, lines: 2, fault: Fault::Fields { found: 1, expected: 2 } }
    }

    #[test]
    fn the_first_of_many_in_any_order() {
        let mut list = BadList::default();
        let mut other = BadList::default();
        // Adds three sets of lines: the odd lines one by one from the last to the first, a block
        // that has each even line twice, and the lines of another list.
        (0..500).rev().for_each(|line| list.add(bad(2 * line + 1)));
        let mut block: Vec<_> = (0..500).flat_map(|line| [bad(2 * line), bad(2 * line)]).collect();
        list.add_block(&mut block, |bad| bad.line += 4);
        (0..300).for_each(|line| other.add(bad(line)));
        list.add_all(&mut other, |bad| bad.line += 10_000);
        assert_eq!((list.count(), other.count(), block.len()), (1300, 0, 0));
        assert_eq!((list.lines(), other.lines()), (2600, 0));
        let lines: Vec<_> = list.first().iter().map(|bad| bad.line).collect();
        assert_eq!(lines, [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        list.shift(7);
        assert_eq!(list.first()[0].line, 8);
    }
}
