//! The rows of the cold tier that a scan returns.
//!
//! The scan goes by slices of hashes (`cold::slice`). Two keys of a table never have equal hashes
//! (`record::hash`), so it notes the hashes of the table's rows and tombstones in the log. The rows
//! of the log are returned when the log is read for the first slice.
//!
//! **Memory.** The noted hashes take up to a 32nd of the memory budget. The cursors take a
//! sixteenth, but each at least one block.

use std::sync::Arc;

use crate::cold::cursor::{SharedCursor, UNIT_BYTES};
use crate::cold::newest::{Newest, OrderedRows, Source};
use crate::cold::part::Part;
use crate::cold::row::ColdRow;
use crate::cold::slice::Slice;
use crate::device::Device;
use crate::engine::cold::view::ColdView;
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::address::TableNumber;

/// The noted hashes take at most the budget divided by this number.
const HASHES_PART: u64 = 32;
/// The cursors take at most the budget divided by this number, unless each has one block.
const CURSORS_PART: u64 = 16;
/// Smallest number of hashes that a slice has room for.
const HASHES_MIN: usize = 512;

/// The parts of a run, or of the base, one after the other.
#[derive(Debug)]
pub(super) struct PartChain {
    /// By hash. The next part comes last.
    parts: Vec<Arc<Part>>,
    device: Arc<dyn Device>,
    /// Rows with a lower hash are left out.
    from: u64,
    unit_bytes: usize,
    cursor: Option<SharedCursor>,
}

impl OrderedRows for PartChain {
    fn advance(&mut self) -> Result<bool> {
        // The loop ends with the last part.
        loop {
            if let Some(cursor) = &mut self.cursor {
                if cursor.next()?.is_some() {
                    return Ok(true);
                }
                self.cursor = None;
            }
            let Some(part) = self.parts.pop() else { return Ok(false) };
            let device = Arc::clone(&self.device);
            self.cursor = Some(SharedCursor::new(part, device, self.from, self.unit_bytes));
        }
    }

    fn row(&self) -> Option<ColdRow<'_>> {
        self.cursor.as_ref()?.row()
    }
}

impl PartChain {
    fn damaged(&self, what: &str) -> Error {
        self.cursor.as_ref().expect("a row comes from a cursor").damaged(what)
    }
}

/// Where the rows of a slice come from.
#[derive(Debug)]
enum Phase {
    /// The scan reads the log, and notes hashes.
    Noting,
    /// The scan returns rows of the parts. `place` is the source of the present row.
    Merging { rows: Newest<PartChain>, place: usize },
}

/// The cold side of a scan.
#[derive(Debug)]
pub(super) struct ColdScan {
    view: Arc<ColdView>,
    device: Arc<dyn Device>,
    table: TableNumber,
    unit_bytes: usize,
    slice: Slice<u64>,
    phase: Phase,
}

impl ColdScan {
    /// Returns the scan of the parts of `view`, and the bytes of memory that it takes. `None` if
    /// there are no parts.
    pub(super) fn new(
        view: Arc<ColdView>,
        device: &Arc<dyn Device>,
        table: TableNumber,
        budget_bytes: u64,
    ) -> Option<(Box<Self>, u64)> {
        if view.is_empty() {
            return None;
        }
        let cursors = view.runs().count() + usize::from(!view.base().is_empty());
        let block_bytes = view.longest_block_bytes() as usize;
        let share_bytes = (budget_bytes / CURSORS_PART) as usize;
        let unit_bytes = (share_bytes / cursors).max(block_bytes).min(UNIT_BYTES);
        let noted_max = (budget_bytes / HASHES_PART) as usize / size_of::<u64>();
        let noted_max = noted_max.max(HASHES_MIN);
        let scan = ColdScan {
            view,
            device: Arc::clone(device),
            table,
            unit_bytes,
            slice: Slice::new(noted_max),
            phase: Phase::Noting,
        };
        let bytes = noted_max * size_of::<u64>() + cursors * unit_bytes;
        Some((Box::new(scan), bytes as u64))
    }

    /// Takes the memory for the hashes.
    pub(super) fn allocate(&mut self) {
        self.slice.reserve();
    }

    /// True while the log is read for the first slice: its rows are then returned.
    pub(super) fn is_first_slice(&self) -> bool {
        self.slice.first() == 0
    }

    /// True while the scan reads the log.
    pub(super) fn is_noting(&self) -> bool {
        matches!(self.phase, Phase::Noting)
    }

    /// Notes the hash of a row or tombstone of the log.
    pub(super) fn note(&mut self, hash: u64) {
        self.slice.note(hash);
    }

    /// Begins to return the slice's rows of the parts. Called when the log has been read.
    pub(super) fn begin_merging(&mut self) {
        self.slice.end_noting();
        let first = self.slice.first();
        let chain = |parts: &[Arc<Part>]| PartChain {
            parts: parts
                .iter()
                .filter(|part| *part.head().hashes.end() >= first)
                .rev()
                .cloned()
                .collect(),
            device: Arc::clone(&self.device),
            from: first,
            unit_bytes: self.unit_bytes,
            cursor: None,
        };
        let runs = self
            .view
            .runs()
            .map(|(numbers, parts)| Source { rows: chain(parts), run: Some(*numbers.end()) });
        let base = Source { rows: chain(self.view.base()), run: None };
        let sources = runs.chain([base]).collect();
        let base = self.view.base().iter().map(|part| part.head());
        let through = base.map(|head| (*head.hashes.end(), *head.runs.end())).collect();
        self.phase = Phase::Merging { rows: Newest::new(sources, through), place: 0 };
    }

    /// Moves to the next row of the slice. False after the last one.
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Phase::Merging { rows, place } = &mut self.phase else { return Ok(false) };
        // The loop ends: each turn moves to the next row, up to the end of the parts.
        loop {
            let Some(found) = rows.advance()? else { return Ok(false) };
            let row = rows.source(found).row().expect("the merge has moved to a row");
            if row.hash > self.slice.last() {
                return Ok(false);
            }
            if row.table != self.table || row.flags.tombstone {
                continue;
            }
            if !self.slice.hides(row.hash) {
                *place = found;
                return Ok(true);
            }
        }
    }

    /// Begins the next slice. False after the last one.
    pub(super) fn next_slice(&mut self) -> bool {
        if !self.slice.next() {
            return false;
        }
        self.phase = Phase::Noting;
        true
    }

    /// Returns the key and value of the row to which `advance` has moved. The table has this width
    /// and length of values.
    ///
    /// # Errors
    /// `Damaged` if the value's length is not the table's.
    pub(super) fn row(&self, width: Width, value_bytes: usize) -> Result<(u64, &[u8])> {
        let Phase::Merging { rows, place, .. } = &self.phase else {
            unreachable!("`advance` has moved to a row")
        };
        let row = rows.source(*place).row().expect("`advance` has moved to a row");
        let bytes = row.value.len() - usize::from(row.unused_bytes);
        let fits = match width {
            Width::Fixed => bytes == value_bytes,
            Width::Variable => bytes <= value_bytes,
        };
        if !fits {
            let what = format!("the length of key {}'s value is not the table's", row.key);
            return Err(rows.source(*place).damaged(&what));
        }
        Ok((row.key, &row.value[..bytes]))
    }

    /// Returns the view, after the cursors are dropped.
    pub(super) fn into_view(self) -> Arc<ColdView> {
        self.view
    }
}
