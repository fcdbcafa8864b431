//! The formulas of `embank plan`.
//!
//! They come from docs/architecture.md (the memory budget, disk space) and docs/format.md
//! (records). If a number was measured and not derived, the output says so. The test
//! `measured_banks_are_within_the_stated_error` has the measurements.
//!
//! A bank whose index would take more than a quarter of its budget has two tiers: rows at rest have
//! no index entry, and merges take the place of compaction. `two_tiers` has what differs then.

use embank::TableConfig;
use serde::Serialize;

use super::two_tiers::{self, TwoTiers};

/// Bytes of index memory for each row.
pub(super) const INDEX_BYTES_PER_ROW: f64 = 15.1;
/// Bytes that a row takes in a checkpoint's image of the whole index, a file on disk.
const IMAGE_BYTES_PER_ROW: f64 = 9.6;
/// A checkpoint writes an image of the whole index, or an image of the changes since the last
/// image. It writes the whole index again if the images of changes would exceed this part of it.
const CHANGES_PART: f64 = 0.25;
/// Largest number of images of changes after one image of the whole index.
const CHANGE_IMAGES_MAX: f64 = 64.0;
/// Average number of rows in an index bucket.
const ROWS_PER_BUCKET: f64 = 5.0;
/// Bytes of the header that each record has.
pub(super) const RECORD_HEADER_BYTES: u64 = 32;
/// The size of the log divided by the size of its rows, with background compaction.
const SPACE_AMPLIFICATION: f64 = 1.5;
/// Bytes that compaction, at its default target, writes for each byte that updates write. Measured:
/// 0.77 to 0.90. Without memory, a log of 1.4 times its rows gives 0.96.
const COMPACTION_WRITES: f64 = 0.9;
/// The part of a memory budget that holds pages. The rest is the lookahead queue (1/32), read
/// buffers (1/16) and pages in flight.
const FRAMES_PART: f64 = 0.85;
/// The part of a memory budget that the index can take at most. A quarter stays for the log, and
/// the rest for buffers.
const INDEX_PART_MAX: f64 = 0.65;

/// Bytes of a row's record in the log.
pub(super) fn record_bytes(table: &TableConfig) -> u64 {
    RECORD_HEADER_BYTES + u64::from(table.value_bytes())
}

/// What a bank holds, and what changes in it: a sum over its tables.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Load {
    pub(super) rows: u64,
    /// Bytes of the records of all rows.
    pub(super) rows_bytes: u64,
    pub(super) updates_per_second: f64,
    /// Bytes of the records that the updates write in a second.
    pub(super) updated_bytes_per_second: f64,
}

impl Load {
    /// Returns the load of `rows` rows of a table with `updates_per_second` updates.
    pub(super) fn of(table: &TableConfig, rows: u64, updates_per_second: f64) -> Self {
        let record_bytes = record_bytes(table);
        Load {
            rows,
            rows_bytes: rows.saturating_mul(record_bytes),
            updates_per_second,
            updated_bytes_per_second: updates_per_second * record_bytes as f64,
        }
    }

    pub(super) fn add(&mut self, other: Load) {
        self.rows = self.rows.saturating_add(other.rows);
        self.rows_bytes = self.rows_bytes.saturating_add(other.rows_bytes);
        self.updates_per_second += other.updates_per_second;
        self.updated_bytes_per_second += other.updated_bytes_per_second;
    }
}

/// The memory of a bank.
#[derive(Debug, Clone, Copy)]
pub(super) enum Memory {
    /// The memory that holds this part of the rows, from 0 to 1.
    Part(f64),
    /// A budget in bytes.
    Budget(u64),
}

/// What a memory budget holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    budget_bytes: u64,
    /// The part of the rows that is in memory, from 0 to 1.
    part: f64,
    /// Bytes that the index takes, if it has an entry for each of its rows.
    index_bytes: u64,
    /// Number of rows that share an index entry, at least 1.
    rows_per_entry: f64,
    /// `None` if the bank has one tier.
    two_tiers: Option<TwoTiers>,
}

impl Held {
    fn of_two(bank: TwoTiers) -> Self {
        Held {
            budget_bytes: bank.budget_bytes.round() as u64,
            part: bank.part,
            index_bytes: (bank.log_rows * INDEX_BYTES_PER_ROW).round() as u64,
            rows_per_entry: 1.0,
            two_tiers: Some(bank),
        }
    }
}

impl Memory {
    /// Returns what the memory holds, in the number of tiers that a bank gets by itself.
    fn held(self, load: &Load) -> Held {
        let one = self.held_in_one_tier(load);
        if !two_tiers::has_two(load, one.budget_bytes as f64) {
            return one;
        }
        Held::of_two(match self {
            Memory::Part(part) => TwoTiers::with_part(load, part),
            Memory::Budget(budget_bytes) => TwoTiers::with_budget(load, budget_bytes as f64),
        })
    }

    fn held_in_one_tier(self, load: &Load) -> Held {
        let index_bytes = scaled(load.rows, INDEX_BYTES_PER_ROW);
        let (budget_bytes, part, rows_per_entry) = match self {
            Memory::Part(part) => {
                let kept = scaled(load.rows_bytes, part) + index_bytes;
                let budget = scaled(kept, 1.0 / FRAMES_PART);
                let budget_bytes =
                    budget.max(scaled(index_bytes, 1.0 / INDEX_PART_MAX)).max(1 << 20);
                (budget_bytes, part, 1.0)
            }
            Memory::Budget(budget_bytes) => {
                let room = budget_bytes as f64 * INDEX_PART_MAX;
                let index = (index_bytes as f64).min(room);
                let frames = budget_bytes as f64 * FRAMES_PART - index;
                let part = (frames / load.rows_bytes.max(1) as f64).clamp(0.0, 1.0);
                let rows_per_entry = (index_bytes as f64 / room.max(1.0)).max(1.0);
                (budget_bytes, part, rows_per_entry)
            }
        };
        Held { budget_bytes, part, index_bytes, rows_per_entry, two_tiers: None }
    }
}

/// How a bank is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    pub(super) memory: Memory,
    /// The largest number of checkpoints on disk, with the one that is being written.
    pub(super) checkpoints: u64,
    /// Seconds between checkpoints.
    pub(super) checkpoint_every: u64,
    /// Terabytes that may be written to the drive in its life.
    pub(super) drive_tbw: Option<f64>,
    /// True if the bank stays in one tier.
    pub(super) one_tier: bool,
}

/// What a bank needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) rows_bytes: u64,
    /// 1, or 2 if rows at rest lie in the cold tier.
    pub(super) tiers: u32,
    pub(super) index_bytes: u64,
    /// Bytes of memory for the fences and filters of the cold tier.
    pub(super) cold_memory_bytes: u64,
    pub(super) memory_budget_all_bytes: u64,
    pub(super) memory_budget_part_bytes: u64,
    pub(super) in_memory: f64,
    /// Number of rows that share an index entry, at least 1.
    pub(super) rows_per_index_entry: f64,
    /// Bytes of the log, and of the parts of the cold tier.
    pub(super) log_disk_bytes: u64,
    pub(super) checkpoint_bytes: u64,
    pub(super) disk_bytes: u64,
    /// Reads of the drive for updates. `None` without a rate of updates.
    pub(super) reads_per_day: Option<u64>,
    /// `None` without a rate of updates.
    pub(super) written_per_day: Option<Written>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Written {
    pub(super) updates_bytes: u64,
    /// Bytes that compaction writes; in two tiers, spills and merges.
    pub(super) compaction_bytes: u64,
    pub(super) checkpoints_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) drive_days: Option<f64>,
}

/// Estimates what a bank with this load needs.
pub(super) fn estimate(load: &Load, running: &Running) -> Estimate {
    let held = match running.one_tier {
        true => running.memory.held_in_one_tier(load),
        false => running.memory.held(load),
    };
    let indexed = held.two_tiers.map_or(load.rows, |bank| bank.log_rows.round() as u64);
    let checkpoint_bytes = scaled(indexed, IMAGE_BYTES_PER_ROW);
    let log_disk_bytes = match &held.two_tiers {
        None => scaled(load.rows_bytes, SPACE_AMPLIFICATION),
        Some(bank) => bank.disk_bytes().round() as u64,
    };
    let is_updated = load.updates_per_second > 0.0;
    Estimate {
        rows_bytes: load.rows_bytes,
        tiers: if held.two_tiers.is_some() { 2 } else { 1 },
        index_bytes: held.index_bytes,
        cold_memory_bytes: held.two_tiers.map_or(0, |bank| bank.cold_memory_bytes.round() as u64),
        memory_budget_all_bytes: Memory::Part(1.0).held_in_one_tier(load).budget_bytes,
        memory_budget_part_bytes: held.budget_bytes,
        in_memory: held.part,
        rows_per_index_entry: held.rows_per_entry,
        log_disk_bytes,
        checkpoint_bytes,
        disk_bytes: log_disk_bytes.saturating_add(scaled(
            checkpoint_bytes,
            running.checkpoints as f64 * (1.0 + CHANGES_PART),
        )),
        reads_per_day: is_updated.then(|| {
            let updates = load.updates_per_second * DAY as f64;
            let reads = match held.two_tiers {
                None => reads_per_row(held.rows_per_entry),
                Some(_) => two_tiers::READS_PER_ROW,
            };
            (updates * (1.0 - held.part) * reads).round() as u64
        }),
        written_per_day: is_updated.then(|| written(load, running, &held, checkpoint_bytes)),
    }
}

const DAY: u64 = 86_400;

fn scaled(bytes: u64, by: f64) -> u64 {
    (bytes as f64 * by).round() as u64
}

/// Returns how many reads an update of a row on disk costs, with those of compaction. Rows that
/// share an index entry form a chain, and both walk it. The exponent is fitted to the measurement
/// with 3.6 rows an entry.
fn reads_per_row(rows_per_entry: f64) -> f64 {
    rows_per_entry.powf(1.6)
}

/// Returns the bytes that a day writes. The updates are spread evenly: skewed ones meet more rows
/// in mutable memory, and write less.
fn written(load: &Load, running: &Running, held: &Held, checkpoint_bytes: u64) -> Written {
    let every = running.checkpoint_every;
    let updates = load.updates_per_second * every as f64;
    let changed = updates / load.rows as f64;
    // In two tiers, a checkpoint alone writes pages: those of the log's rows that have changed.
    let most = held.two_tiers.map_or(f64::INFINITY, |bank| bank.log_rows / load.rows as f64);
    let records = new_records(changed, held.part).min(most) / changed;
    let updates_bytes = (load.updated_bytes_per_second * DAY as f64 * records).round() as u64;
    let (compaction_bytes, image_part) = match held.two_tiers {
        None => (scaled(updates_bytes, COMPACTION_WRITES), image_part(changed)),
        Some(bank) => {
            let updates = load.updates_per_second * DAY as f64;
            // The index has only the rows of the log, and most of its entries are new.
            ((updates * bank.merged_bytes_per_update()).round() as u64, 1.0)
        }
    };
    let checkpoints_bytes = scaled((DAY / every) * checkpoint_bytes, image_part);
    let total_bytes = updates_bytes + compaction_bytes + checkpoints_bytes;
    let drive_days = running.drive_tbw.map(|terabytes| terabytes * 1e12 / total_bytes as f64);
    Written { updates_bytes, compaction_bytes, checkpoints_bytes, total_bytes, drive_days }
}

/// Returns how many new records the updates between two checkpoints write, for each row of the
/// bank. `updates` is the number of these updates for each row.
///
/// A checkpoint makes all rows read-only. Each update of a row that is not mutable writes a record,
/// which is mutable until memory is full of newer records.
fn new_records(updates: f64, in_memory: f64) -> f64 {
    let filling = -(1.0 - in_memory).ln();
    match updates < filling {
        true => 1.0 - (-updates).exp(),
        false => in_memory + (updates - filling) * (1.0 - in_memory),
    }
}

/// Returns the average part of the index that a checkpoint writes. `updates_per_row` is the number
/// of updates for each row between two checkpoints. The updates are spread evenly.
fn image_part(updates_per_row: f64) -> f64 {
    let buckets = 1.0 - (-ROWS_PER_BUCKET * updates_per_row).exp();
    if buckets > CHANGES_PART {
        return 1.0;
    }
    // A checkpoint writes the whole index. The next checkpoints write only the buckets that have
    // changed since, until one more image of changes would exceed a limit.
    let changes = (CHANGES_PART / buckets.max(1e-6)).floor().min(CHANGE_IMAGES_MAX);
    (1.0 + changes * buckets) / (1.0 + changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes and reads for each update that `embank-ycsb written` measured, with uniform
    /// read-modify-writes in batches of 4,096 and without checkpoints: AMD EPYC, 2 cores, one run.
    /// A batch reads neighbouring rows at once, so the reads for each row that is alone in its part
    /// of the log are more.
    #[test]
    fn measured_banks_are_within_the_stated_error() {
        // Rows, bytes of a value, budget in bytes; bytes written, and part of the updates that
        // found no mutable row.
        let measured = [
            (524_288, 64, 16 << 20, 152.0, 0.878),
            (1_048_576, 64, 16 << 20, 167.8, 0.968),
            (131_072, 512, 16 << 20, 798.1, 0.830),
            (327_680, 512, 16 << 20, 974.4, 0.945),
        ];
        for (rows, value_bytes, budget, bytes, not_mutable) in measured {
            let load = Load {
                rows,
                rows_bytes: rows * (RECORD_HEADER_BYTES + value_bytes),
                updates_per_second: rows as f64,
                updated_bytes_per_second: (rows * (RECORD_HEADER_BYTES + value_bytes)) as f64,
            };
            // No checkpoint interrupts the steady state.
            let running = Running {
                memory: Memory::Budget(budget),
                checkpoints: 1,
                checkpoint_every: DAY,
                drive_tbw: None,
                one_tier: true,
            };
            let found = estimate(&load, &running);
            let updates = load.updates_per_second * DAY as f64;
            let written = found.written_per_day.unwrap();
            let bytes_found = (written.updates_bytes + written.compaction_bytes) as f64 / updates;
            let error = bytes_found / bytes - 1.0;
            assert!((0.0..0.1).contains(&error), "{rows} rows of {value_bytes}: {error}");
            let error = (1.0 - found.in_memory) / not_mutable - 1.0;
            assert!(error.abs() < 0.03, "{rows} rows of {value_bytes}: {error}");
        }
    }

    /// The same command, with budgets that do not hold the index.
    #[test]
    fn measured_chains_cost_at_most_what_is_estimated() {
        for (rows, budget, reads) in [(1_048_576, 16 << 20, 1.18), (1_310_720, 8 << 20, 7.5)] {
            let load = Load { rows, rows_bytes: rows * 96, ..Load::default() };
            let held = Memory::Budget(budget).held_in_one_tier(&load);
            let ratio = (1.0 - held.part) * reads_per_row(held.rows_per_entry) / reads;
            assert!((1.0..1.5).contains(&ratio), "{rows} rows: {ratio}");
        }
    }

    #[test]
    fn a_budget_that_holds_a_part_is_the_one_of_that_part() {
        let load = Load { rows: 1_000_000, rows_bytes: 160_000_000, ..Load::default() };
        let part = Memory::Part(0.25).held_in_one_tier(&load);
        let same = Memory::Budget(part.budget_bytes).held_in_one_tier(&load);
        assert!((same.part - 0.25).abs() < 1e-6 && same.rows_per_entry == 1.0, "{same:?}");
        // The index needs 15.1 MB, and has 65% of 5 MB.
        let small = Memory::Budget(5_000_000).held_in_one_tier(&load);
        assert!((small.rows_per_entry - 15.1 / 3.25).abs() < 1e-6, "{small:?}");
        assert!((small.part - (0.85 - 0.65) * 5.0 / 160.0).abs() < 1e-6, "{small:?}");
    }

    #[test]
    fn updates_write_no_record_of_a_mutable_row() {
        // Few updates between checkpoints meet each row once.
        assert!((new_records(0.01, 0.5) - 0.01).abs() < 1e-4);
        // With all rows in memory, a row gets one record between two checkpoints.
        assert!((new_records(100.0, 1.0) - 1.0).abs() < 1e-9);
        // Without memory, each update writes a record.
        assert_eq!(new_records(3.0, 0.0), 3.0);
        assert!((new_records(1000.0, 0.25) / 1000.0 - 0.75).abs() < 1e-3);
    }

    #[test]
    fn images_cost_what_changed_and_a_whole_one_at_times() {
        assert_eq!(image_part(1.0), 1.0);
        assert!((image_part(0.0) - 1.0 / 65.0).abs() < 1e-4);
        // Each checkpoint changes 4.9% of the buckets. Five images of changes follow an image of
        // the whole index, because six would exceed a quarter of it.
        let part = image_part(0.01);
        assert!((part - (1.0 + 5.0 * 0.0488) / 6.0).abs() < 1e-3, "{part}");
    }
}
