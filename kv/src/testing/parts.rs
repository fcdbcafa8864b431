//! Adds hand-made parts to the cold tier of an open store, for tests of what keeps parts: the
//! checkpoint, the copy, the delta.
//!
//! The rows may have any table number, so a test can use the number of no table. The counts of rows
//! follow. No batch may run meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::cold::head::{Kind, PartHead, PartSite, part_address};
use crate::cold::part::Part;
use crate::cold::row::{ColdRow, RowFlags};
use crate::cold::writer::PartWriter;
use crate::engine::core::Core;
use crate::error::Result;
use crate::operation::{Access, Clock, Operation, Width};
use crate::process::new_id::new_id;
use crate::record::address::{TableId, TableNumber};
use crate::record::layout::record_bytes;
use crate::store::Store;

/// Row versions by table number and key. `None` is a deletion.
pub type Rows = BTreeMap<(u16, u64), Option<Vec<u8>>>;

/// Columns of the filters of runs.
const COLUMNS: u32 = 9;

/// Adds a run of one part. Its rows are newer than those of all other parts.
///
/// # Errors
/// The errors of the device. `BudgetTooSmall` if the budget has no memory for the part. The store
/// then has the parts that it had before.
pub fn add_run(store: &Store, rows: &Rows) -> Result<()> {
    let core = store.core();
    let run = core.cold.next_run();
    let part = write(store, &core, Kind::Run, run..=run, 0..=u64::MAX, rows)?;
    counting(store, rows.keys().copied().collect(), || publish(&core, vec![part], &[]))
}

/// Replaces all parts by `parts` base parts with these rows.
///
/// # Errors
/// The errors of [`add_run`].
pub fn replace_by_base(store: &Store, rows: &Rows, parts: u64) -> Result<()> {
    let core = store.core();
    let through = core.cold.next_run() - 1;
    let width = u64::MAX / parts;
    let mut made = Vec::new();
    for i in 0..parts {
        let last = if i + 1 == parts { u64::MAX } else { (i + 1) * width - 1 };
        let part = write(store, &core, Kind::Base, 0..=through, i * width..=last, rows);
        match part {
            Ok(part) => made.push(part),
            Err(error) => {
                remove(store, &core, &made);
                return Err(error);
            }
        }
    }
    let tables: Vec<u16> = store.tables().iter().map(|table| table.id.number()).collect();
    // Rows of no table are not counted, and need no reads.
    let is_counted = rows.keys().any(|(table, _)| tables.contains(table));
    let before = if is_counted { self::rows(store)? } else { Rows::new() };
    let keys = before.into_keys().chain(rows.keys().copied()).collect();
    counting(store, keys, || publish(&core, made, &part_numbers(store)))
}

/// Counts rows and the bytes of their records.
#[derive(Debug, Default, Clone, Copy)]
struct Count<const VARIABLE: bool> {
    rows: u64,
    record_bytes: u64,
}

impl<const VARIABLE: bool> Operation for Count<VARIABLE> {
    const ACCESS: Access = Access::Peek;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };

    fn read(&mut self, _i: usize, value: &[u8]) {
        self.rows += 1;
        self.record_bytes += record_bytes(value.len()) as u64;
    }
}

/// Changes the parts, and the counts of the tables by the rows with these table numbers and keys
/// that have come or gone.
fn counting(
    store: &Store,
    keys: BTreeSet<(u16, u64)>,
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let core = store.core();
    let count = |table: TableId| -> Result<(u64, u64)> {
        let of = keys.range((table.number(), 0)..=(table.number(), u64::MAX));
        let keys: Vec<u64> = of.map(|&(_, key)| key).collect();
        match core.tables.width(table)? {
            Width::Fixed => {
                let mut seen = Count::<false>::default();
                store.execute(table, &keys, Clock::Keep, &mut seen)?;
                Ok((seen.rows, 0))
            }
            Width::Variable => {
                let mut seen = Count::<true>::default();
                store.execute(table, &keys, Clock::Keep, &mut seen)?;
                Ok((seen.rows, seen.record_bytes))
            }
        }
    };
    let tables: Vec<TableId> = store.tables().iter().map(|table| table.id).collect();
    let before = tables.iter().map(|&table| count(table)).collect::<Result<Vec<_>>>()?;
    change()?;
    for (&table, before) in tables.iter().zip(before) {
        let after = count(table)?;
        core.tables.add_rows(table, after.0.wrapping_sub(before.0));
        core.tables.add_record_bytes(table, after.1.wrapping_sub(before.1));
    }
    Ok(())
}

/// Writes a part that no view gets, as a process leaves it that ends during a merge.
///
/// # Errors
/// The errors of the device.
pub fn leave_unpublished(store: &Store, rows: &Rows) -> Result<()> {
    let core = store.core();
    let run = core.cold.next_run();
    write(store, &core, Kind::Run, run..=run, 0..=u64::MAX, rows).map(drop)
}

/// Returns the numbers of the parts in ascending order.
#[must_use]
pub fn part_numbers(store: &Store) -> Vec<u64> {
    let view = store.core().cold.view();
    let mut numbers: Vec<u64> = view.parts().map(|part| part.head().number).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the newest version of each row in the parts, without deleted rows. Reads all blocks.
///
/// # Errors
/// The errors of the device. `Damaged` if a block is damaged.
pub fn rows(store: &Store) -> Result<Rows> {
    let core = store.core();
    let view = core.cold.view();
    // The oldest parts come first, so that newer versions replace older ones.
    let runs: Vec<_> = view.runs().map(|(_, parts)| parts).collect();
    let oldest_first = view.base().iter().chain(runs.into_iter().rev().flatten());
    let mut found = Rows::new();
    for part in oldest_first {
        let mut cursor = part.cursor(&*core.log.device);
        // The loop ends with the last row of the part.
        while let Some(row) = cursor.next()? {
            let bytes = row.value.len() - usize::from(row.unused_bytes);
            let value = (!row.flags.tombstone).then(|| row.value[..bytes].to_vec());
            found.insert((row.table.0, row.key), value);
        }
    }
    found.retain(|_, value| value.is_some());
    Ok(found)
}

/// Writes the rows whose hashes are among `hashes`.
fn write(
    store: &Store,
    core: &Core,
    kind: Kind,
    runs: RangeInclusive<u64>,
    hashes: RangeInclusive<u64>,
    rows: &Rows,
) -> Result<Arc<Part>> {
    let log_begin = core.log.begin();
    let number = core.cold.next_part();
    let head = PartHead {
        bank: store.bank,
        salt: new_id(),
        number,
        kind,
        level: 0,
        block_bits: 12,
        runs,
        hashes,
        log: log_begin..log_begin,
    };
    let mut ordered: Vec<_> = rows
        .iter()
        .map(|(&(table, key), value)| {
            (core.key_hash.of(TableNumber(table), key), table, key, value)
        })
        .filter(|(hash, ..)| head.hashes.contains(hash))
        .collect();
    ordered.sort_unstable_by_key(|&(hash, table, key, _)| (hash, table, key));
    let site = PartSite {
        device: &*core.log.device,
        segment_size_bytes: store.segment_bytes,
        key_hash: core.key_hash,
    };
    let write = || {
        let mut writer = PartWriter::new(site, head.clone(), COLUMNS);
        for &(hash, table, key, value) in &ordered {
            let mut padded = value.clone().unwrap_or_default();
            let bytes = padded.len();
            padded.resize(bytes.next_multiple_of(8), 0);
            writer.push(&ColdRow {
                table: TableNumber(table),
                key,
                hash,
                flags: RowFlags { tombstone: value.is_none(), uncounted: false },
                unused_bytes: (padded.len() - bytes) as u8,
                uses: 0,
                value: &padded,
            })?;
        }
        writer.finish_within(&core.cold)
    };
    write().map(Arc::new).inspect_err(|_| {
        // If the removal fails, the next opening removes the file.
        let _ = core.log.device.remove_part(part_address(number, store.segment_bytes));
    })
}

fn publish(core: &Core, added: Vec<Arc<Part>>, removed: &[u64]) -> Result<()> {
    core.cold.publish(core.cold.view().changed(added, removed));
    core.cache.give_way(&core.log);
    core.log.give_way()?;
    core.remove_unneeded_parts();
    Ok(())
}

fn remove(store: &Store, core: &Core, parts: &[Arc<Part>]) {
    for part in parts {
        let begin = part_address(part.head().number, store.segment_bytes);
        // If the removal fails, the next opening removes the file.
        let _ = core.log.device.remove_part(begin);
    }
}
