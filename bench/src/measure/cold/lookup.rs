//! Lookups of keys in the filters of many runs and of a base.
//!
//! A part's rows are sorted by hash. Each group of 3,200 rows has a filter. The groups' first
//! hashes form a directory, in which a lookup guesses the group and corrects the guess. A batch of
//! lookups goes through groups of 32 keys. While the processor fetches the memory of one part's
//! filters for all keys of a group, the keys ask the filters of the part before.

use crate::ground::gather::hint::T0;
use crate::ground::gather::prefetch;
use crate::measure::cold::ribbon::{Builder, Mixed, PADDING, Window, words_a_column};

/// Rows of a group, which share a filter: 64 blocks of 50 rows.
pub(crate) const GROUP_ROWS: usize = 3_200;
/// Columns of a run's filters: 1 of 512 absent keys passes.
pub(crate) const RUN_COLUMNS: usize = 9;
/// Columns of the base's filters: 1 of 16 absent keys passes.
pub(crate) const BASE_COLUMNS: usize = 4;
/// Keys that are looked up together.
const KEYS_AT_ONCE: usize = 32;

/// The filters of a run or of the base.
#[derive(Debug)]
pub(crate) struct Filters<const COLUMNS: usize> {
    groups: Vec<Group>,
    words: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    /// The lowest hash that belongs to the group: that of its first row, 0 in the first group.
    first_hash: u64,
    /// The first word of the filter.
    filter: u32,
    /// Words of a column.
    words: u32,
}

impl<const COLUMNS: usize> Filters<COLUMNS> {
    /// Builds the filters of a part whose rows have these hashes, in ascending order.
    pub(crate) fn build(hashes: &[u64], builder: &mut Builder) -> Self {
        let (mut groups, mut words) = (Vec::new(), Vec::new());
        for hashes in hashes.chunks(GROUP_ROWS) {
            let first_hash = if groups.is_empty() { 0 } else { hashes[0] };
            let filter =
                u32::try_from(words.len()).expect("a part has less than 32 GiB of filters");
            groups.push(Group { first_hash, filter, words: words_a_column(hashes.len()) });
            builder.build::<COLUMNS>(hashes, &mut words);
        }
        words.resize(words.len() + PADDING, 0);
        Filters { groups, words }
    }

    /// Bytes of the filters and of their directory.
    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * size_of::<u64>() + self.groups.len() * size_of::<Group>()
    }

    /// Returns the memory of a lookup.
    #[inline]
    fn window(&self, hash: u64, mixed: Mixed) -> Window {
        let mut place = ((u128::from(hash) * self.groups.len() as u128) >> 64) as usize;
        // Both loops end at an end of the directory. The hashes are random, so the guess is off by
        // less than one group on average.
        while self.groups[place].first_hash > hash {
            place -= 1;
        }
        while self.groups.get(place + 1).is_some_and(|next| next.first_hash <= hash) {
            place += 1;
        }
        let group = self.groups[place];
        Window::of(mixed, group.filter, group.words)
    }

    /// Finds the memory of the keys' lookups and prefetches it.
    #[inline]
    fn find(&self, hashes: &[u64], mixed: &[Mixed], windows: &mut [Window]) {
        for ((&hash, &mixed), window) in hashes.iter().zip(mixed).zip(windows) {
            *window = self.window(hash, mixed);
            // 64 bytes that mostly begin within a line: this prefetches the first and last line.
            prefetch::<T0>(bytemuck::cast_slice(&self.words[window.first_stripe()]), 1);
        }
    }

    /// Adds `bit` to the candidates of each key that the filters may hold.
    #[inline]
    fn ask(&self, mixed: &[Mixed], windows: &[Window], bit: u32, candidates: &mut [u32]) {
        for ((&mixed, window), candidates) in mixed.iter().zip(windows).zip(candidates) {
            *candidates |= u32::from(window.may_hold::<COLUMNS>(mixed, &self.words)) << bit;
        }
    }

    /// True if the part may hold the key.
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let mixed = Mixed::of(hash);
        self.window(hash, mixed).may_hold::<COLUMNS>(mixed, &self.words)
    }
}

/// The filters of the runs, newest first, and of the base.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) runs: Vec<Filters<RUN_COLUMNS>>,
    pub(crate) base: Filters<BASE_COLUMNS>,
}

impl Tier {
    /// Asks all filters for each key. Bit `i` of a key's candidates says that run `i` may hold it.
    /// The bit after those of the runs stands for the base.
    pub(crate) fn probe(&self, hashes: &[u64], candidates: &mut [u32]) {
        let batches = hashes.chunks(KEYS_AT_ONCE).zip(candidates.chunks_mut(KEYS_AT_ONCE));
        for (hashes, candidates) in batches {
            let mut mixed = [Mixed::default(); KEYS_AT_ONCE];
            for (mixed, &hash) in mixed.iter_mut().zip(hashes) {
                *mixed = Mixed::of(hash);
            }
            let mixed = &mixed[..hashes.len()];
            candidates.fill(0);
            let mut windows = [[Window::default(); KEYS_AT_ONCE]; 2];
            for (number, run) in self.runs.iter().enumerate() {
                run.find(hashes, mixed, &mut windows[number % 2]);
                if let Some(before) = number.checked_sub(1) {
                    self.runs[before].ask(mixed, &windows[before % 2], before as u32, candidates);
                }
            }
            let runs = self.runs.len();
            self.base.find(hashes, mixed, &mut windows[runs % 2]);
            if let Some(last) = runs.checked_sub(1) {
                self.runs[last].ask(mixed, &windows[last % 2], last as u32, candidates);
            }
            self.base.ask(mixed, &windows[runs % 2], runs as u32, candidates);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::content;

    fn part(number: usize, rows: usize) -> Vec<u64> {
        let mut hashes: Vec<u64> =
            (0..rows).map(|row| content::word((number << 32) + row)).collect();
        hashes.sort_unstable();
        hashes
    }

    /// Also covers parts of less than a group, and batches that are no multiple of 32.
    #[test]
    fn a_probe_names_every_part_that_has_the_key() {
        let mut builder = Builder::default();
        let parts: Vec<Vec<u64>> = [1, 20_000, 3_200, 777]
            .into_iter()
            .enumerate()
            .map(|(n, rows)| part(n, rows))
            .collect();
        let tier = Tier {
            runs: parts[..3].iter().map(|part| Filters::build(part, &mut builder)).collect(),
            base: Filters::build(&parts[3], &mut builder),
        };
        for (number, part) in parts.iter().enumerate() {
            let mut candidates = vec![u32::MAX; part.len()];
            tier.probe(part, &mut candidates);
            assert!(candidates.iter().all(|found| found >> number & 1 == 1), "part {number}");
            // Of three other parts a key passes 1 in 512 or 1 in 16.
            let others: u32 = candidates.iter().map(|found| found.count_ones() - 1).sum();
            assert!(f64::from(others) <= 2.0 + 0.1 * part.len() as f64, "part {number}: {others}");
            assert!(candidates.iter().all(|&found| found < 1 << parts.len()), "stale bits");
        }
        assert!(tier.runs[1].may_hold(parts[1][19_999]));
    }
}
