//! The rows of the log that hide rows of parts, slice by slice.
//!
//! **Problem.** A row of the log hides the row of the same key in the parts, and so does a
//! tombstone. The log is read in the order of addresses and the parts in the order of hashes, so
//! the reader has to note what it has seen in the log, within a bound of memory.
//!
//! **Approach.** The reader goes by *slices* of hashes, in ascending order. For each slice it reads
//! the log and notes what lies in the slice. If there is more than fits into its memory, the slice
//! ends at the median of what is noted. Then it reads the slice's rows of the parts, and leaves out
//! those that are noted. The hot log of a bank in two tiers is not much longer than its memory, so
//! the log is read once or twice as a rule.

/// What a slice notes of a row.
pub(crate) trait Noted: Copy + Ord {
    /// The row's hash, by which values are ordered.
    fn hash(self) -> u64;
}

impl Noted for u64 {
    fn hash(self) -> u64 {
        self
    }
}

impl Noted for (u64, u16) {
    fn hash(self) -> u64 {
        self.0
    }
}

/// A slice of hashes, and what is noted of the rows of the log that lie in it.
#[derive(Debug)]
pub(crate) struct Slice<T> {
    first: u64,
    last: u64,
    noted: Vec<T>,
    noted_max: usize,
    /// The place in `noted` of the first value that is not below the last one that `hides` got.
    place: usize,
}

impl<T: Noted> Slice<T> {
    /// Returns a slice of all hashes that notes at most `noted_max` values, at least two.
    pub(crate) fn new(noted_max: usize) -> Self {
        let noted_max = noted_max.max(2);
        Slice { first: 0, last: u64::MAX, noted: Vec::new(), noted_max, place: 0 }
    }

    /// Takes the memory for all values.
    pub(crate) fn reserve(&mut self) {
        self.noted.reserve_exact(self.noted_max);
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Notes a row or tombstone of the log, each once in a slice.
    pub(crate) fn note(&mut self, value: T) {
        if !(self.first..=self.last).contains(&value.hash()) {
            return;
        }
        if self.noted.len() == self.noted_max {
            let median = self.noted.len() / 2;
            let (_, above, _) = self.noted.select_nth_unstable(median);
            // Few values have equal hashes, so the slice keeps about half of them.
            self.last = above.hash().saturating_sub(1).max(self.first);
            self.noted.retain(|noted| noted.hash() <= self.last);
            if value.hash() > self.last {
                return;
            }
        }
        self.noted.push(value);
    }

    /// Called when the whole log has been read.
    pub(crate) fn end_noting(&mut self) {
        self.noted.sort_unstable();
        self.place = 0;
    }

    /// True if the row was noted. Must be called after `end_noting`, in ascending order.
    pub(crate) fn hides(&mut self, value: T) -> bool {
        while self.noted.get(self.place).is_some_and(|&noted| noted < value) {
            self.place += 1;
        }
        self.noted.get(self.place) == Some(&value)
    }

    /// Begins the next slice. False after the last one.
    pub(crate) fn next(&mut self) -> bool {
        let Some(first) = self.last.checked_add(1) else { return false };
        (self.first, self.last) = (first, u64::MAX);
        self.noted.clear();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are noted in any order, with little memory. Each row is hidden in exactly one slice.
    #[test]
    fn slices_hide_what_was_noted() {
        for max in [2, 3, 7, 64, 1000] {
            let all: Vec<u64> =
                (0..500_u64).map(|i| (i * 263 % 500).wrapping_mul(u64::MAX / 499)).collect();
            let mut slice = Slice::new(max);
            let mut hidden = Vec::new();
            let mut slices = 0;
            loop {
                let first = slice.first();
                all.iter().for_each(|&hash| slice.note(hash));
                slice.end_noting();
                let mut sorted = all.clone();
                sorted.extend(all.iter().map(|hash| hash ^ 2));
                sorted.sort_unstable();
                sorted.retain(|hash| (first..=slice.last()).contains(hash));
                hidden.extend(sorted.into_iter().filter(|&hash| slice.hides(hash)));
                slices += 1;
                if !slice.next() {
                    break;
                }
            }
            let mut sorted = all;
            sorted.sort_unstable();
            assert_eq!(hidden, sorted, "{max}");
            assert_eq!(slices == 1, max == 1000, "{max}");
        }
    }
}
