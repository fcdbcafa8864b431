//! The formulas of `embank plan`.
//!
//! They come from docs/architecture.md (the memory budget, disk space) and docs/format.md
//! (records). If a number was measured and not derived, the output says so and names the machine.

use embank::TableConfig;
use serde::Serialize;

/// Bytes of index memory for each row.
const INDEX_BYTES_PER_ROW: f64 = 15.1;
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
const RECORD_HEADER_BYTES: u64 = 32;
/// The size of the log divided by the size of its rows, with background compaction.
const SPACE_AMPLIFICATION: f64 = 1.5;
/// Bytes that compaction, at its default target, writes for each byte that updates write.
const COMPACTION_WRITES: f64 = 1.0;
/// The part of a memory budget that holds pages. The rest is the lookahead queue (1/32), read
/// buffers (1/16) and pages in flight.
const FRAMES_PART: f64 = 0.85;

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

/// How a bank is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    /// The part of the rows that the memory should hold, from 0 to 1.
    pub(super) in_memory: f64,
    /// The largest number of checkpoints on disk, with the one that is being written.
    pub(super) checkpoints: u64,
    /// Seconds between checkpoints.
    pub(super) checkpoint_every: u64,
    /// Terabytes that may be written to the drive in its life.
    pub(super) drive_tbw: Option<f64>,
}

/// What a bank needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) rows_bytes: u64,
    pub(super) index_bytes: u64,
    pub(super) memory_budget_all_bytes: u64,
    pub(super) memory_budget_part_bytes: u64,
    pub(super) in_memory: f64,
    pub(super) log_disk_bytes: u64,
    pub(super) checkpoint_bytes: u64,
    pub(super) disk_bytes: u64,
    /// `None` without a rate of updates.
    pub(super) written_per_day: Option<Written>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Written {
    pub(super) updates_bytes: u64,
    pub(super) compaction_bytes: u64,
    pub(super) checkpoints_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) drive_days: Option<f64>,
}

/// Estimates what a bank with this load needs.
pub(super) fn estimate(load: &Load, running: &Running) -> Estimate {
    let index_bytes = scaled(load.rows, INDEX_BYTES_PER_ROW);
    let budget = |part: f64| {
        let kept = scaled(load.rows_bytes, part) + index_bytes;
        // The index takes at most 65% of the budget: a quarter stays for the log, and the rest for
        // buffers.
        scaled(kept, 1.0 / FRAMES_PART).max(scaled(index_bytes, 1.0 / 0.65)).max(1 << 20)
    };
    let checkpoint_bytes = scaled(load.rows, IMAGE_BYTES_PER_ROW);
    let log_disk_bytes = scaled(load.rows_bytes, SPACE_AMPLIFICATION);
    Estimate {
        rows_bytes: load.rows_bytes,
        index_bytes,
        memory_budget_all_bytes: budget(1.0),
        memory_budget_part_bytes: budget(running.in_memory),
        in_memory: running.in_memory,
        log_disk_bytes,
        checkpoint_bytes,
        disk_bytes: log_disk_bytes.saturating_add(scaled(
            checkpoint_bytes,
            running.checkpoints as f64 * (1.0 + CHANGES_PART),
        )),
        written_per_day: (load.updates_per_second > 0.0)
            .then(|| written(load, running, checkpoint_bytes)),
    }
}

fn scaled(bytes: u64, by: f64) -> u64 {
    (bytes as f64 * by).round() as u64
}

fn written(load: &Load, running: &Running, checkpoint_bytes: u64) -> Written {
    const DAY: u64 = 86_400;
    // The worst case is assumed: the updates are spread evenly, so each one meets a row outside
    // mutable memory and writes a new record.
    let updates_bytes = (load.updated_bytes_per_second * DAY as f64).round() as u64;
    let compaction_bytes = scaled(updates_bytes, COMPACTION_WRITES);
    let every = running.checkpoint_every;
    let changed = load.updates_per_second * every as f64 / load.rows as f64;
    let checkpoints_bytes = scaled((DAY / every) * checkpoint_bytes, image_part(changed));
    let total_bytes = updates_bytes + compaction_bytes + checkpoints_bytes;
    let drive_days = running.drive_tbw.map(|terabytes| terabytes * 1e12 / total_bytes as f64);
    Written { updates_bytes, compaction_bytes, checkpoints_bytes, total_bytes, drive_days }
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
