//! A bank with hand-made parts, and the rows that it must have.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cold::head::{Kind, PartHead, PartSite};
use crate::cold::keep::KeepSome;
use crate::cold::part::Part;
use crate::cold::row::{ColdRow, RowFlags};
use crate::cold::writer::PartWriter;
use crate::operation::{Access, Clock, Operation, Width};
use crate::options::StoreOptions;
use crate::record::address::TableId;
use crate::record::layout::record_bytes;
use crate::store::Store;

/// Versions of rows by the place of the table and the key. `None` is a tombstone.
pub(crate) type Versions = BTreeMap<(usize, u64), Option<Vec<u8>>>;
pub(crate) type Rows = BTreeMap<u64, Vec<u8>>;

struct Put<'a, const VARIABLE: bool>(&'a [u8]);

impl<const VARIABLE: bool> Operation for Put<'_, VARIABLE> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn value_bytes(&mut self, _: usize, _: Option<&[u8]>) -> usize {
        self.0.len()
    }
    fn update(&mut self, _: usize, value: &mut [u8]) {
        value.copy_from_slice(self.0);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// A linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % end
    }
}

const FIXED_BYTES: usize = 60;
const VARIABLE_BYTES_MAX: usize = 5000;
/// The tables: one of fixed width, one of variable width, and one that is dropped.
pub(crate) const TABLES: usize = 3;
pub(crate) const DROPPED: usize = 2;

fn value(table: usize, random: &mut Random) -> Vec<u8> {
    let bytes = match table {
        1 if random.below(50) == 0 => VARIABLE_BYTES_MAX,
        1 => random.below(40) as usize,
        _ => FIXED_BYTES,
    };
    let first = random.below(256) as u8;
    (0..bytes).map(|i| first.wrapping_add(i as u8)).collect()
}

/// A store and what a scan must return.
pub(crate) struct Bank {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) tables: [TableId; TABLES],
    pub(crate) rows: Versions,
}

impl Bank {
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { memory_budget_bytes: budget_bytes, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        let tables = [
            store.create_table("fixed", FIXED_BYTES as u32, b"").unwrap(),
            store.create_variable_table("variable", VARIABLE_BYTES_MAX as u32, b"").unwrap(),
            store.create_table("dropped", FIXED_BYTES as u32, b"").unwrap(),
        ];
        Bank { dir, store, tables, rows: Versions::new() }
    }

    /// Draws versions of rows with keys below `keys`.
    pub(crate) fn draw(
        &self,
        count: u64,
        keys: u64,
        tombstones: bool,
        random: &mut Random,
    ) -> Versions {
        let draw = |_| {
            let table = random.below(TABLES as u64) as usize;
            let gone = tombstones && random.below(5) == 0;
            let value = (!gone).then(|| value(table, random));
            ((table, random.below(keys)), value)
        };
        (0..count).map(draw).collect()
    }

    /// Writes a part with the `versions` whose hashes it answers for.
    pub(crate) fn part(
        &self,
        kind: Kind,
        runs: (u64, u64),
        hashes: (u64, u64),
        versions: &Versions,
    ) -> Arc<Part> {
        let core = self.store.core();
        let site = PartSite {
            device: &*core.log.device,
            segment_size_bytes: self.store.segment_bytes,
            key_hash: core.key_hash,
        };
        let number = core.cold.next_part();
        let head = PartHead {
            bank: self.store.bank,
            salt: number + 77,
            number,
            kind,
            level: 0,
            block_bits: 12,
            runs: runs.0..=runs.1,
            hashes: hashes.0..=hashes.1,
            log: 0..0,
        };
        let mut rows = BTreeMap::new();
        for (&(table, key), value) in versions {
            let number = self.tables[table].number;
            let hash = core.key_hash.of(number, key);
            if (hashes.0..=hashes.1).contains(&hash) {
                rows.insert((hash, number, key), value);
            }
        }
        let mut writer = PartWriter::new(site, head, 4);
        for ((hash, table, key), value) in rows {
            let mut padded = value.clone().unwrap_or_default();
            let bytes = padded.len();
            padded.resize(bytes.next_multiple_of(8), 0);
            let row = ColdRow {
                table,
                key,
                hash,
                flags: RowFlags { tombstone: value.is_none(), uncounted: false },
                unused_bytes: (padded.len() - bytes) as u8,
                uses: 0,
                value: &padded,
            };
            writer.push(&row).unwrap();
        }
        Arc::new(writer.finish_within(&KeepSome).unwrap())
    }

    pub(crate) fn publish(&self, parts: Vec<Arc<Part>>) {
        let core = self.store.core();
        core.cold.publish(core.cold.view().changed(parts, &[]));
    }

    /// Gives the bank a base, whose parts have merged different numbers of runs, and the runs.
    pub(crate) fn fill(&mut self, runs: u64, random: &mut Random) {
        let mut layers = vec![self.draw(3000, 4000, false, random)];
        for _ in 0..runs {
            layers.push(self.draw(600, 5000, true, random));
            self.store.core().cold.next_run();
        }
        let mut parts = Vec::new();
        let borders = [0, 1 << 62, 3 << 61, 1 << 63];
        for (i, &first) in borders.iter().enumerate() {
            let last = borders.get(i + 1).map_or(u64::MAX, |next| next - 1);
            let through = random.below(runs + 1);
            let mut merged = Versions::new();
            layers[..=through as usize].iter().for_each(|layer| merged.extend(layer.clone()));
            merged.retain(|_, value| value.is_some());
            parts.push(self.part(Kind::Base, (0, through), (first, last), &merged));
        }
        // The base has merged the runs up to this one for all hashes, so they are gone.
        let merged = parts.iter().map(|part| *part.head().runs.end()).min().unwrap_or(0);
        for run in merged + 1..=runs {
            let layer = &layers[run as usize];
            // A run of two parts, with a gap between them if no row lies there.
            parts.push(self.part(Kind::Run, (run, run), (0, 1 << 63), layer));
            parts.push(self.part(Kind::Run, (run, run), ((1 << 63) + 1, u64::MAX), layer));
        }
        self.publish(parts);
        layers.into_iter().for_each(|layer| self.rows.extend(layer));
        for (place, &table) in self.tables.iter().enumerate() {
            let rows = self.expected(place);
            count_rows(&self.store, table, place == 1, &rows);
        }
    }

    /// Puts and deletes rows.
    pub(crate) fn change(&mut self, versions: Versions) {
        for (&(table, key), value) in &versions {
            let (id, clock) = (self.tables[table], Clock::Keep);
            match value {
                Some(put) if table == 1 => {
                    self.store.execute(id, &[key], clock, &mut Put::<true>(put)).unwrap();
                }
                Some(put) => {
                    self.store.execute(id, &[key], clock, &mut Put::<false>(put)).unwrap();
                }
                None => _ = self.store.delete(id, &[key]).unwrap(),
            }
        }
        self.rows.extend(versions);
    }

    pub(crate) fn expected(&self, table: usize) -> Rows {
        let of = self.rows.iter().filter(|((of, _), _)| *of == table);
        of.filter_map(|(&(_, key), value)| Some((key, value.clone()?))).collect()
    }
}

/// Counts rows that were added as parts.
fn count_rows(store: &Store, table: TableId, is_variable: bool, rows: &Rows) {
    let core = store.core();
    core.tables.add_rows(table, rows.len() as u64);
    if is_variable {
        let bytes = rows.values().map(|value| record_bytes(value.len()) as u64).sum();
        core.tables.add_record_bytes(table, bytes);
    }
}
