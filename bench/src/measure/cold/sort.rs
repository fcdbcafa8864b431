//! The sort buffer: rows in the order in which they left the log, which become a run.

use crate::ground::gather::hint::T0;
use crate::ground::gather::prefetch;
use crate::measure::cold::rows::{ROW_HEADER_BYTES, key_of};
use embank_kv::bench::cold::hash_of;

/// Mean number of rows of a bucket of the first pass.
const BUCKET_ROWS: usize = 4;
/// Distance in rows between the prefetch of a row and its copy.
const AHEAD: usize = 16;

/// A row of the buffer.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    hash: u64,
    /// The row's number in the buffer. Later rows have higher numbers.
    row: u32,
}

/// Sorts rows by hash. Keeps its memory for the next buffer.
#[derive(Debug, Default)]
pub(crate) struct Sorter {
    unsorted: Vec<Place>,
    sorted: Vec<Place>,
    /// For each bucket the place of its next row.
    ends: Vec<u32>,
}

impl Sorter {
    /// Sorts the rows by hash. Of equal hashes the later row comes last.
    ///
    /// Hashes are random, so their upper bits spread the rows evenly over buckets of a few rows. An
    /// insertion sort then moves each row by a few places.
    pub(crate) fn sort<const ROW: usize>(&mut self, rows: &[[u8; ROW]]) {
        let bits = (rows.len() / BUCKET_ROWS).max(2).ilog2();
        let bucket = |hash: u64| (hash >> (u64::BITS - bits)) as usize;
        self.unsorted.clear();
        self.ends.clear();
        self.ends.resize(1 << bits, 0);
        for (number, row) in rows.iter().enumerate() {
            let hash = hash_of(key_of(row));
            self.ends[bucket(hash)] += 1;
            self.unsorted.push(Place { hash, row: number as u32 });
        }
        let mut first = 0;
        for end in &mut self.ends {
            (*end, first) = (first, first + *end);
        }
        self.sorted.resize(rows.len(), Place::default());
        for &place in &self.unsorted {
            let end = &mut self.ends[bucket(place.hash)];
            self.sorted[*end as usize] = place;
            *end += 1;
        }
        for next in 1..self.sorted.len() {
            let place = self.sorted[next];
            let mut at = next;
            while at > 0 && self.sorted[at - 1].hash > place.hash {
                self.sorted[at] = self.sorted[at - 1];
                at -= 1;
            }
            self.sorted[at] = place;
        }
    }

    /// Returns hash, key and value of the sorted rows. Of rows with one key, only the last is among
    /// them.
    pub(crate) fn newest<'a, const ROW: usize>(
        &'a self,
        rows: &'a [[u8; ROW]],
    ) -> impl Iterator<Item = (u64, u64, &'a [u8])> {
        self.sorted.iter().enumerate().filter_map(|(number, place)| {
            if let Some(ahead) = self.sorted.get(number + AHEAD) {
                prefetch::<T0>(&rows[ahead.row as usize], 2);
            }
            let row = &rows[place.row as usize];
            let is_replaced = self.is_replaced(number, place);
            (!is_replaced).then(|| (place.hash, key_of(row), &row[ROW_HEADER_BYTES..]))
        })
    }

    /// True if a later row has the key of sorted row `number`. Different keys of one table have
    /// different hashes.
    #[inline]
    fn is_replaced(&self, number: usize, place: &Place) -> bool {
        self.sorted.get(number + 1).is_some_and(|next| next.hash == place.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::content;
    use crate::measure::cold::rows::{fill_row, version_of};

    #[test]
    fn rows_come_by_hash_and_the_last_of_a_key_wins() {
        for count in [0, 1, 2, 3, 1_000, 5_000] {
            let keys: Vec<u64> =
                (0..count).map(|place| content::word(place) % (count as u64 / 2 + 1)).collect();
            let mut rows = vec![[0; 80]; count];
            for (version, (row, &key)) in rows.iter_mut().zip(&keys).enumerate() {
                fill_row(key, version as u64, row);
            }
            let mut sorter = Sorter::default();
            sorter.sort(&rows);
            let found: Vec<(u64, u64, &[u8])> = sorter.newest(&rows).collect();
            let mut expected: std::collections::HashMap<u64, u64> = Default::default();
            for (version, &key) in keys.iter().enumerate() {
                expected.insert(key, version as u64);
            }
            assert!(found.is_sorted_by(|a, b| a.0 < b.0));
            assert_eq!(found.len(), expected.len());
            for (hash, key, value) in found {
                assert_eq!(hash, hash_of(key));
                assert_eq!(version_of(key, value).unwrap(), expected[&key]);
            }
        }
    }
}
