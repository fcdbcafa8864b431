//! A merge of runs, block by block.
//!
//! The merge checks each block as it enters it, and takes the row with the lowest hash from a
//! tournament tree of losers (Knuth, *The Art of Computer Programming*, volume 3, section 5.4.1).
//! Of several versions of a key the one of the newest run wins.

use std::hint::select_unpredictable;

use anyhow::Result;

use crate::measure::cold::rows::{BlockWriter, check_block, hash_of, key_of, rows_of};
use crate::measure::cold::run::{Fences, Run};

/// Runs that a merge joins.
pub(crate) const RUNS: usize = 16;

/// The next row of a run. Newer runs have lower numbers, so a key's newest version comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    hash: u64,
    /// The run's number; [`RUNS`] if the run has no more rows.
    run: u64,
}

impl Head {
    const END: Head = Head { hash: u64::MAX, run: RUNS as u64 };

    /// Returns the earlier and the later of two heads. Which is which cannot be predicted, so the
    /// processor must not guess.
    #[inline]
    fn ordered(self, other: Head) -> (Head, Head) {
        let mut swapped = other.hash < self.hash;
        if other.hash == self.hash {
            swapped = other.run < self.run;
        }
        let pick = |swapped| Head {
            hash: select_unpredictable(swapped, other.hash, self.hash),
            run: select_unpredictable(swapped, other.run, self.run),
        };
        (pick(swapped), pick(!swapped))
    }
}

/// The place of a merge in a run.
struct Cursor<'a, const ROW: usize> {
    run: &'a Run<ROW>,
    rows: &'a [[u8; ROW]],
    /// The hashes of `rows`. They are computed when the merge enters the block, because a
    /// tournament would wait for them.
    hashes: Vec<u64>,
    /// The next row of `rows`.
    row: usize,
    /// The block after that of `rows`.
    next_block: usize,
    blocks: usize,
}

impl<'a, const ROW: usize> Cursor<'a, ROW> {
    fn new(run: &'a Run<ROW>) -> Self {
        Cursor {
            run,
            rows: &[],
            hashes: Vec::new(),
            row: 0,
            next_block: 0,
            blocks: run.block_count(),
        }
    }

    /// Returns the head of run `number`, entering its next block where the present one ends.
    #[inline]
    fn head(&mut self, number: usize) -> Result<Head> {
        if self.row == self.rows.len() && !self.enter()? {
            return Ok(Head::END);
        }
        Ok(Head { hash: self.hashes[self.row], run: number as u64 })
    }

    /// Enters the next block. False if there is none.
    #[inline(never)]
    fn enter(&mut self) -> Result<bool> {
        if self.next_block == self.blocks {
            return Ok(false);
        }
        let (block, address) = self.run.block(self.next_block);
        check_block(block, address)?;
        (self.rows, self.row) = (rows_of::<ROW>(block), 0);
        self.hashes.clear();
        self.hashes.extend(self.rows.iter().map(|row| hash_of(key_of(row))));
        self.next_block += 1;
        Ok(true)
    }
}

/// What a merge has made beside the blocks.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    pub(crate) fences: Fences,
    /// The rows' hashes, of which the filters are made.
    pub(crate) hashes: Vec<u64>,
}

impl Merged {
    /// Forgets the last merge and keeps the memory of its hashes.
    pub(crate) fn clear(&mut self) {
        self.fences = Fences::default();
        self.hashes.clear();
    }
}

/// Merges runs, the newest first, and writes their newest rows.
///
/// # Errors
/// Fails if a block is damaged.
pub(crate) fn merge<const ROW: usize>(
    runs: &[Run<ROW>; RUNS],
    writer: &mut BlockWriter<ROW, impl FnMut(&[u8])>,
    merged: &mut Merged,
) -> Result<()> {
    let mut cursors = runs.each_ref().map(Cursor::new);
    // `losers[node]` is the larger of the two heads that met at an inner node.
    let mut losers = [Head::END; RUNS];
    let mut winner = play(&mut cursors, &mut losers)?;
    let mut last = None;
    // The loop ends because each round takes a row.
    while winner != Head::END {
        let (hash, number) = (winner.hash, winner.run as usize);
        let cursor = &mut cursors[number];
        let row = &cursor.rows[cursor.row];
        cursor.row += 1;
        // Different keys of one table have different hashes.
        if last != Some(hash) {
            if writer.push(row) {
                merged.fences.push(hash);
            }
            merged.hashes.push(hash);
            last = Some(hash);
        }
        winner = cursor.head(number)?;
        let mut node = (RUNS + number) / 2;
        while node > 0 {
            (winner, losers[node]) = winner.ordered(losers[node]);
            node /= 2;
        }
    }
    merged.fences.finish();
    Ok(())
}

/// Plays the first tournament and returns its winner.
fn play<const ROW: usize>(
    cursors: &mut [Cursor<'_, ROW>; RUNS],
    losers: &mut [Head; RUNS],
) -> Result<Head> {
    let mut winners = [Head::END; 2 * RUNS];
    for (number, cursor) in cursors.iter_mut().enumerate() {
        winners[RUNS + number] = cursor.head(number)?;
    }
    for node in (1..RUNS).rev() {
        (winners[node], losers[node]) = winners[2 * node].ordered(winners[2 * node + 1]);
    }
    Ok(winners[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::content;
    use crate::measure::cold::rows::version_of;
    use crate::measure::cold::run::tests::run_of;

    #[test]
    fn the_newest_version_of_each_key_comes_by_hash() {
        // Run `number` has keys of a third of the key space, and one run is empty.
        let keys = |number: usize| {
            let count = if number == 5 { 0 } else { 700 };
            let drawn = (0..count).map(move |at| content::word(number << 20 | at) % 20_000);
            drawn.collect::<std::collections::BTreeSet<u64>>()
        };
        let runs: [Run<80>; RUNS] =
            std::array::from_fn(|number| run_of(keys(number).into_iter(), number as u64));
        let mut expected = std::collections::BTreeMap::new();
        for number in (0..RUNS).rev() {
            expected.extend(keys(number).into_iter().map(|key| (key, number as u64)));
        }
        let mut found = Vec::new();
        let mut writer = BlockWriter::<80, _>::new(|unit: &[u8]| {
            for block in unit.chunks(4096) {
                found.extend_from_slice(rows_of::<80>(block));
            }
        });
        let mut merged = Merged::default();
        merge(&runs, &mut writer, &mut merged).unwrap();
        writer.finish();
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().map(|row| hash_of(key_of(row))).eq(merged.hashes));
        for row in &found {
            assert_eq!(version_of(row).unwrap(), expected[&key_of(row)]);
        }
    }

    #[test]
    fn a_damaged_block_ends_the_merge() {
        let mut runs: [Run<80>; RUNS] =
            std::array::from_fn(|number| run_of(number as u64 * 100..number as u64 * 100 + 99, 1));
        runs[9].blocks[5_000] ^= 4;
        let mut writer = BlockWriter::<80, _>::new(|_: &[u8]| ());
        let error = merge(&runs, &mut writer, &mut Merged::default()).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
    }
}
