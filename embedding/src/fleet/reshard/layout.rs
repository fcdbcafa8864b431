//! The tables of the new banks, and where each row of the old shards goes.

use std::collections::HashMap;
use std::path::Path;

use embank_kv::Width;
use embank_kv::inspect::{CheckpointReader, TableReader, TableSummary};

use crate::error::{Error, Result, StoreError};
use crate::fleet::identity::shard_path;
use crate::fleet::plan::CompleteSet;
use crate::fleet::routing::{BUCKETS, Routing};
use crate::row::admission::Admission;
use crate::row::config::TableConfig;
use crate::row::descriptor::{counts_descriptor, is_counts_descriptor};
use crate::row::times;
use crate::table::count_tables::{COUNT_BYTES, counts_name, split_name};
use crate::vocabulary::config::VocabularyConfig;
use crate::vocabulary::descriptor::{HEADER_BYTES, Header, Role, role_of};
use crate::vocabulary::hash::EMPTY_FINGERPRINT;

/// Default memory of a new bank without its index, in bytes.
const MEMORY_BYTES: u64 = 64 << 20;
/// Default memory of a new bank's index, in bytes for each row that the bank may get.
const MEMORY_BYTES_PER_ROW: u64 = 18;

/// The place of a table in [`Layout::tables`].
pub(super) type Place = usize;

/// Where a row of an old table goes.
#[derive(Debug, Clone)]
pub(super) enum Way {
    /// To the shard of the key.
    ByKey(Routing),
    /// To one shard.
    To(u32),
    /// To all shards. Only the rows of shard 0 count.
    Everywhere,
    /// To all shards: the largest value for each key.
    Largest,
    /// To all shards: the largest value for each table, whose number is the key.
    Times,
}

/// A table of the new banks.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) name: String,
    pub(super) width: Width,
    pub(super) value_bytes: u32,
    pub(super) descriptor: Vec<u8>,
    pub(super) way: Way,
    /// True for a table of embeddings.
    pub(super) is_main: bool,
}

/// The tables of the new banks, and how the tables of each old shard map to them.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) tables: Vec<Made>,
    /// For each old shard, the place of each old table by its number. Tables without a place are
    /// left out.
    pub(super) places: Vec<HashMap<u16, Place>>,
    /// For each old shard, the names of its tables by number.
    pub(super) names: Vec<HashMap<u16, String>>,
}

impl Layout {
    pub(super) fn of(
        fleet: &Path,
        set: &CompleteSet,
        sources: &[CheckpointReader],
        shards: u32,
    ) -> Result<Self> {
        let mut layout = Layout {
            tables: Vec::new(),
            places: vec![HashMap::new(); sources.len()],
            names: vec![HashMap::new(); sources.len()],
        };
        for (names, source) in layout.names.iter_mut().zip(sources) {
            names.extend(source.tables().iter().map(|table| (table.number, table.name.clone())));
        }
        for table in sources[0].tables() {
            if let Some(role) = role_of(&table.descriptor) {
                role.map_err(|what| unreadable(&table.name, what))?;
                let place = layout.add(table, Way::Everywhere, false);
                layout.places[0].insert(table.number, place);
            } else if !is_counts_descriptor(&table.descriptor) {
                layout.add_main(fleet, sources, table, shards)?;
            }
        }
        layout.refuse_others(fleet, set, sources)?;
        layout.add_times(sources);
        Ok(layout)
    }

    fn add(&mut self, like: &TableSummary, way: Way, is_main: bool) -> Place {
        self.tables.push(Made {
            name: like.name.clone(),
            width: like.width,
            value_bytes: like.value_bytes,
            descriptor: like.descriptor.clone(),
            way,
            is_main,
        });
        self.tables.len() - 1
    }

    /// Adds a table of embeddings, which all shards must have, and its admission counts.
    fn add_main(
        &mut self,
        fleet: &Path,
        sources: &[CheckpointReader],
        table: &TableSummary,
        shards: u32,
    ) -> Result<()> {
        let mut config = TableConfig::from_descriptor(&table.name, &table.descriptor)?;
        let mut same = Vec::new();
        for (shard, source) in (0..).zip(sources) {
            let found = source.tables().iter().find(|found| found.name == table.name);
            let Some(found) = found else {
                return Err(other_table(fleet, shard, &table.name, "no such table".into()));
            };
            let there = TableConfig::from_descriptor(&found.name, &found.descriptor)?;
            config
                .check_same_table(&table.name, &there)
                .map_err(|error| other_table(fleet, shard, &table.name, error.to_string()))?;
            same.push(found.number);
        }
        config.shard = config.shard.map(|shard| shard % shards);
        let way = match config.shard {
            Some(shard) => Way::To(shard),
            None => Way::ByKey(Routing::new(&table.name, shards)?),
        };
        let place = self.add(table, way.clone(), true);
        if config.shard.is_some() {
            self.tables[place].descriptor = config.to_descriptor();
        }
        for (places, number) in self.places.iter_mut().zip(same) {
            places.insert(number, place);
        }
        match config.admission {
            Admission::Always => {}
            Admission::AfterGets(_) => self.add_counts(sources, &table.name, way),
            Admission::Probability(_) => self.add_counts(sources, &table.name, Way::Largest),
        }
        Ok(())
    }

    /// Adds the generations of the counts of table `name`. The newer generations of all shards
    /// become one, and the older ones too.
    fn add_counts(&mut self, sources: &[CheckpointReader], name: &str, way: Way) {
        let generations: Vec<Vec<(u64, u16)>> = sources
            .iter()
            .map(|source| {
                let counts = source.tables().iter().filter_map(|table| {
                    let is_counts = is_counts_descriptor(&table.descriptor);
                    let (of, number) = split_name(&table.name).filter(|_| is_counts)?;
                    (of == name).then_some((number, table.number))
                });
                let mut found: Vec<(u64, u16)> = counts.collect();
                found.sort_unstable_by(|a, b| b.cmp(a));
                found
            })
            .collect();
        let newest = generations.iter().flatten().map(|&(number, _)| number).max();
        let Some(newest) = newest else { return };
        // The older generation of a shard has a number of at least 0, so the newest one of it has 1
        // or more.
        for rank in 0..2 {
            let here = generations.iter().map(|found| found.get(rank).map(|&(_, table)| table));
            let here: Vec<Option<u16>> = here.collect();
            if here.iter().all(Option::is_none) {
                continue;
            }
            self.tables.push(Made {
                name: counts_name(name, newest - rank as u64),
                width: Width::Fixed,
                value_bytes: COUNT_BYTES,
                descriptor: counts_descriptor(),
                way: way.clone(),
                is_main: false,
            });
            let place = self.tables.len() - 1;
            for (places, table) in self.places.iter_mut().zip(here) {
                places.extend(table.map(|table| (table, place)));
            }
        }
    }

    fn add_times(&mut self, sources: &[CheckpointReader]) {
        let is_times = |table: &&TableSummary| {
            table.name == times::NAME && is_counts_descriptor(&table.descriptor)
        };
        let mut place = None;
        for (shard, source) in sources.iter().enumerate() {
            if let Some(table) = source.tables().iter().find(is_times) {
                let place = *place.get_or_insert_with(|| self.add(table, Way::Times, false));
                self.places[shard].insert(table.number, place);
            }
        }
    }

    /// Fails if a shard has a table of embeddings or a vocabulary that shard 0 does not have, or
    /// other settings or values of a vocabulary. The identities of a vocabulary may differ, because
    /// each bank draws its own.
    fn refuse_others(
        &self,
        fleet: &Path,
        set: &CompleteSet,
        sources: &[CheckpointReader],
    ) -> Result<()> {
        for (shard, source) in (0..).zip(sources).skip(1) {
            for table in source.tables() {
                let is_known = self.tables.iter().any(|made| made.name == table.name);
                let is_counts = is_counts_descriptor(&table.descriptor);
                let is_part = matches!(role_of(&table.descriptor), Some(Ok(Role::Part { .. })));
                if !is_known && !is_counts && !is_part {
                    let what = "a table that shard 0 does not have".into();
                    return Err(other_table(fleet, shard, &table.name, what));
                }
            }
        }
        for table in sources[0].tables() {
            let Some(config) = vocabulary_config(table) else { continue };
            let expected = header(fleet, set, 0, &table.name)?;
            for (shard, source) in (0..).zip(sources).skip(1) {
                let there = source.tables().iter().find(|found| found.name == table.name);
                let there = there.and_then(vocabulary_config);
                if there.as_ref() != Some(&config) {
                    let what = match there {
                        Some(there) => format!("{there:?}, not {config:?}"),
                        None => "no such vocabulary".into(),
                    };
                    return Err(other_table(fleet, shard, &table.name, what));
                }
                let found = header(fleet, set, shard, &table.name)?;
                if (found.len, found.fingerprint) != (expected.len, expected.fingerprint) {
                    let what =
                        format!("{} other values than the {} of shard 0", found.len, expected.len);
                    return Err(other_table(fleet, shard, &table.name, what));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of rows that are read.
    pub(super) fn rows(&self, sources: &[CheckpointReader]) -> u64 {
        let of = |(source, places): (&CheckpointReader, &HashMap<u16, Place>)| -> u64 {
            let read = source.tables().iter().filter(|table| places.contains_key(&table.number));
            read.map(|table| table.rows).sum()
        };
        sources.iter().zip(&self.places).map(of).sum()
    }

    /// Returns enough memory for the bank of shard `shard` of `shards`.
    ///
    /// The rows by key are estimated, because their keys are not read yet: the hash divides them
    /// unevenly. A bank may have all rows of a table that every shard has.
    pub(super) fn default_memory_bytes(
        &self,
        sources: &[CheckpointReader],
        shard: u32,
        shards: u32,
    ) -> u64 {
        let buckets = u64::from(BUCKETS.div_ceil(shards));
        let mut rows = 0;
        for (source, places) in sources.iter().zip(&self.places) {
            for table in source.tables() {
                let Some(&place) = places.get(&table.number) else { continue };
                rows += match self.tables[place].way {
                    // No shard has more buckets. The eighth is for buckets with more rows than
                    // others.
                    Way::ByKey(_) => (table.rows * buckets).div_ceil(u64::from(BUCKETS)) * 9 / 8,
                    Way::To(placed) if placed != shard => 0,
                    Way::To(_) | Way::Everywhere | Way::Largest | Way::Times => table.rows,
                };
            }
        }
        MEMORY_BYTES + rows * MEMORY_BYTES_PER_ROW
    }
}

/// Returns the settings of the vocabulary whose own table is `table`. `None` for other tables.
fn vocabulary_config(table: &TableSummary) -> Option<VocabularyConfig> {
    match role_of(&table.descriptor) {
        Some(Ok(Role::Header(founding))) => Some(founding.config),
        _ => None,
    }
}

/// Reads the header of a vocabulary on a shard.
fn header(fleet: &Path, set: &CompleteSet, shard: u32, table: &str) -> Result<Header> {
    let number = set.checkpoints[shard as usize].number;
    let path = shard_path(fleet, shard);
    let mut reader = match TableReader::open(&path, Some(number), table) {
        Err(StoreError::NoSuchTable(_)) => {
            return Err(other_table(fleet, shard, table, "no such vocabulary".into()));
        }
        opened => opened?,
    };
    let Some(value) = reader.get(&[0])?.pop().flatten() else {
        return Ok(Header { len: 0, fingerprint: EMPTY_FINGERPRINT, numbering: 0, frozen: false });
    };
    let header =
        value.first_chunk::<HEADER_BYTES>().ok_or_else(|| "its header is short".to_owned());
    header.and_then(Header::from_bytes).map_err(|what| unreadable(table, what))
}

fn unreadable(table: &str, reason: String) -> Error {
    Error::UnreadableTable { table: table.to_owned(), reason }
}

fn other_table(fleet: &Path, shard: u32, table: &str, found: String) -> Error {
    Error::ShardMismatch {
        path: shard_path(fleet, shard),
        found: format!("table {table:?}: {found}"),
        expected: "the tables of shard 0".into(),
        cure: "make the table with equal settings on all shards, and take a set".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::record::HeldCheckpoint;
    use crate::{Bank, BankOptions};

    #[test]
    fn a_bank_gets_memory_for_the_rows_that_it_may_get() {
        let dir = tempfile::tempdir().unwrap();
        let options = BankOptions { memory_budget_bytes: 2 << 20, ..Default::default() };
        let path = shard_path(dir.path(), 0);
        let bank = Bank::open(&path, options).unwrap();
        let keys: Vec<u64> = (0..4096).collect();
        let table = bank.table("by key", TableConfig::new(1)).unwrap();
        table.put(&keys, &[0.0; 4096]).unwrap();
        let table = bank.table("placed", TableConfig::new(1).shard(Some(0))).unwrap();
        table.put(&keys[..1000], &[0.0; 1000]).unwrap();
        let number = bank.checkpoint(b"").unwrap();
        let sources = [CheckpointReader::open(&path, number).unwrap()];
        let set = CompleteSet {
            number: 0,
            id: 0,
            checkpoints: vec![HeldCheckpoint::new(number, sources[0].id())],
            holder: 0,
            lacking: Vec::new(),
        };
        let rows = |shard, shards| {
            let layout = Layout::of(dir.path(), &set, &sources, shards).unwrap();
            let bytes = layout.default_memory_bytes(&sources, shard, shards);
            (bytes - MEMORY_BYTES) / MEMORY_BYTES_PER_ROW
        };
        // With 3 shards, no shard has more than 1,366 of the 4,096 buckets. With 3,000 shards, no
        // shard has more than 2.
        assert_eq!((rows(0, 3), rows(1, 3)), (1536 + 1000, 1536));
        assert_eq!((rows(0, 3000), rows(2999, 3000)), (2 + 1000, 2));
    }
}
