//! Kinds and value lengths of tables, looked up without a lock by every batch, at its beginning and
//! after each pin.
//!
//! A table is one word:
//!
//! | bits | content |
//! |---|---|
//! | 0 to 30 | the length of its values in bytes, their maximum where that varies, plus one; 0: no table has the number |
//! | 31 | set if the width is variable |
//! | 32 to 63 | the number's incarnation, see [`TableId`] |

use std::sync::OnceLock;

use crate::operation::Width;
use crate::record::address::{TableId, TableNumber};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 256;

/// Set in the word of a table of variable width.
const VARIABLE: u64 = 1 << 31;
const INCARNATION_SHIFT: u32 = 32;

/// The tables of 256 numbers.
#[derive(Debug)]
struct Page {
    words: [AtomicU64; PAGE],
    /// The log may have a record of the table.
    written: [AtomicBool; PAGE],
}

/// Pages of tables, made as tables come: 65,536 words would not suit a budget of 1 MiB.
#[derive(Debug)]
pub(crate) struct Lengths(Box<[OnceLock<Box<Page>>; PAGE]>);

impl Default for Lengths {
    fn default() -> Self {
        Lengths(Box::new([const { OnceLock::new() }; PAGE]))
    }
}

fn flags(table: TableId, width: Width) -> u64 {
    let variable = if width == Width::Variable { VARIABLE } else { 0 };
    u64::from(table.incarnation) << INCARNATION_SHIFT | variable
}

impl Lengths {
    /// Sets a table's width and the length of its values in bytes, their maximum where that varies.
    /// The log has no record of the table.
    pub(crate) fn set(&self, table: TableId, width: Width, value_bytes: u32) {
        debug_assert!(u64::from(value_bytes) < VARIABLE - 1);
        let page = self.0[usize::from(table.number.0) / PAGE].get_or_init(|| {
            Box::new(Page {
                words: [const { AtomicU64::new(0) }; PAGE],
                written: [const { AtomicBool::new(false) }; PAGE],
            })
        });
        let place = usize::from(table.number.0) % PAGE;
        // Relaxed: a thread that has the table's id got it afterwards.
        page.written[place].store(false, Ordering::Relaxed);
        let word = flags(table, width) | (u64::from(value_bytes) + 1);
        // Release: pairs with `table`. A thread that has the id from there sees the beginning of
        // the log that the table's creation saw.
        page.words[place].store(word, Ordering::Release);
    }

    /// Forgets a table. Batches that have the table refuse it from their next pin on.
    pub(crate) fn clear(&self, table: TableNumber) {
        if let Some(page) = self.0[usize::from(table.0) / PAGE].get() {
            // Relaxed: a pin after the next `epoch::barrier` sees it, which is what the reuse of
            // numbers waits for (`numbers`).
            page.words[usize::from(table.0) % PAGE].store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word(&self, table: TableNumber, ordering: Ordering) -> u64 {
        let page = self.0[usize::from(table.0) / PAGE].get();
        page.map_or(0, |page| page.words[usize::from(table.0) % PAGE].load(ordering))
    }

    /// The value length in bytes of a table of this width, if there is such a table.
    #[inline]
    pub(crate) fn get(&self, table: TableId, width: Width) -> Option<usize> {
        // One comparison tells all: the length of another width or incarnation becomes large.
        // Relaxed: as in `set`.
        let length =
            (self.word(table.number, Ordering::Relaxed) ^ flags(table, width)).wrapping_sub(1);
        (length < VARIABLE - 1).then_some(length as usize)
    }

    /// The width of a table, if there is one.
    pub(crate) fn width(&self, table: TableId) -> Option<Width> {
        let word = self.word(table.number, Ordering::Relaxed);
        let is_there = self.table(table.number) == Some(table);
        is_there.then_some(if word & VARIABLE == 0 { Width::Fixed } else { Width::Variable })
    }

    /// The table that has the number now.
    pub(crate) fn table(&self, number: TableNumber) -> Option<TableId> {
        // Acquire: pairs with `set`.
        let word = self.word(number, Ordering::Acquire);
        let is_there = word as u32 != 0;
        is_there.then_some(TableId { number, incarnation: (word >> INCARNATION_SHIFT) as u32 })
    }

    /// Notes that the log may have a record of the table. Called while pinned, before the record's
    /// space is taken or under the same pin.
    #[inline]
    pub(crate) fn note_written(&self, table: TableNumber) {
        if let Some(page) = self.0[usize::from(table.0) / PAGE].get() {
            let written = &page.written[usize::from(table.0) % PAGE];
            // Mostly set before: then the line stays shared.
            if !written.load(Ordering::Relaxed) {
                // Relaxed: read after a barrier that waits for the pin.
                written.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether the log may have a record of the table, as of the last `epoch::barrier`.
    pub(crate) fn was_written(&self, table: TableNumber) -> bool {
        let page = self.0[usize::from(table.0) / PAGE].get();
        page.is_some_and(|page| page.written[usize::from(table.0) % PAGE].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16, incarnation: u32) -> TableId {
        TableId { number: TableNumber(number), incarnation }
    }

    #[test]
    fn lengths_are_there_once_set() {
        let lengths = Lengths::default();
        for number in [1, 2, 255, 256, u16::MAX] {
            let table = id(number, 0);
            for (width, other) in [(Width::Fixed, Width::Variable), (Width::Variable, Width::Fixed)]
            {
                for bytes in [0, 1, u32::from(number) * 8] {
                    assert_eq!((lengths.width(table), lengths.get(table, width)), (None, None));
                    lengths.set(table, width, bytes);
                    assert_eq!(lengths.get(table, width), Some(bytes as usize));
                    assert_eq!(lengths.get(table, other), None);
                    assert_eq!(lengths.width(table), Some(width));
                    lengths.clear(table.number);
                }
            }
            lengths.set(table, Width::Fixed, 8);
        }
        assert_eq!(lengths.get(id(3, 0), Width::Fixed), None);
        assert_eq!(lengths.get(id(3, 0), Width::Variable), None);
    }

    #[test]
    fn an_id_of_another_incarnation_is_refused() {
        let lengths = Lengths::default();
        for of in [0, 1, 7, u32::MAX] {
            for width in [Width::Fixed, Width::Variable] {
                for bytes in [0, 1, 4096] {
                    lengths.set(id(9, of), width, bytes);
                    assert_eq!(lengths.table(TableNumber(9)), Some(id(9, of)));
                    for other in [0, 1, 2, 6, 8, u32::MAX - 1, u32::MAX] {
                        let expected = (other == of).then_some(width);
                        assert_eq!(lengths.width(id(9, other)), expected);
                        let expected = (other == of).then_some(bytes as usize);
                        assert_eq!(lengths.get(id(9, other), width), expected, "{of}, {other}");
                    }
                    lengths.clear(TableNumber(9));
                    assert_eq!(
                        (lengths.table(TableNumber(9)), lengths.width(id(9, of))),
                        (None, None)
                    );
                }
            }
        }
    }

    #[test]
    fn a_new_table_has_no_record() {
        let lengths = Lengths::default();
        assert!(!lengths.was_written(TableNumber(300)));
        lengths.set(id(300, 0), Width::Fixed, 8);
        assert!(!lengths.was_written(TableNumber(300)));
        lengths.note_written(TableNumber(300));
        lengths.clear(TableNumber(300));
        assert!(lengths.was_written(TableNumber(300)), "its records are there after the drop");
        lengths.set(id(300, 1), Width::Fixed, 8);
        assert!(!lengths.was_written(TableNumber(300)));
    }
}
