//! The width and value length of each table. Every batch reads them without a lock, at its
//! beginning and after each pin.
//!
//! One word describes a table:
//!
//! | bits | content |
//! |---|---|
//! | 0 to 30 | one plus the length of the table's values in bytes (the largest length if it varies); 0 if no table has the number |
//! | 31 | set if the width is variable |
//! | 32 to 63 | the incarnation of the table number, see [`TableId`] |

use std::sync::OnceLock;

use super::{Tables, no_such_table};
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::address::{TableId, TableNumber};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 256;

/// The bit of a table's word that is set if the table has variable width.
const VARIABLE: u64 = 1 << 31;
const INCARNATION_SHIFT: u32 = 32;

/// The words of 256 table numbers.
#[derive(Debug)]
pub(super) struct Page {
    words: [AtomicU64; PAGE],
    /// For each table number, true if the log may have a record of the table.
    written: [AtomicBool; PAGE],
}

/// The words of all table numbers, in pages. A page is allocated with its first table, because all
/// 65,536 words would be too large for a memory budget of 1 MiB.
pub(super) type Pages = Box<[OnceLock<Box<Page>>; PAGE]>;

pub(super) fn no_pages() -> Pages {
    Box::new([const { OnceLock::new() }; PAGE])
}

fn flags(table: TableId, width: Width) -> u64 {
    let variable = if width == Width::Variable { VARIABLE } else { 0 };
    u64::from(table.incarnation) << INCARNATION_SHIFT | variable
}

impl Tables {
    /// Sets a table's width and value length in bytes (the largest length if the lengths vary).
    /// Must be called before the log has a record of the table.
    pub(super) fn set_length(&self, table: TableId, width: Width, value_bytes: u32) {
        debug_assert!(u64::from(value_bytes) < VARIABLE - 1);
        let page = self.pages[usize::from(table.number.0) / PAGE].get_or_init(|| {
            Box::new(Page {
                words: [const { AtomicU64::new(0) }; PAGE],
                written: [const { AtomicBool::new(false) }; PAGE],
            })
        });
        let place = usize::from(table.number.0) % PAGE;
        // Relaxed: a thread uses the table only after it has received the table's id. No thread
        // receives the id before this function returns.
        page.written[place].store(false, Ordering::Relaxed);
        let word = flags(table, width) | (u64::from(value_bytes) + 1);
        // Release: pairs with the load in `of`. A thread that gets the table's id from `of` also
        // sees the log's beginning that the creation of the table saw.
        page.words[place].store(word, Ordering::Release);
    }

    /// Removes a table. Batches on the table fail at their next pin.
    pub(super) fn clear_length(&self, table: TableNumber) {
        if let Some(page) = self.pages[usize::from(table.0) / PAGE].get() {
            // Relaxed: every pin after the next `epoch::barrier` sees this store. A number is
            // reused only after such a barrier (`numbers`).
            page.words[usize::from(table.0) % PAGE].store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word(&self, table: TableNumber, ordering: Ordering) -> u64 {
        let page = self.pages[usize::from(table.0) / PAGE].get();
        page.map_or(0, |page| page.words[usize::from(table.0) % PAGE].load(ordering))
    }

    /// Returns the length in bytes of a table's values; the largest length if the lengths vary.
    /// `None` if the table is missing or has another width.
    #[inline]
    pub(crate) fn value_bytes_if(&self, table: TableId, width: Width) -> Option<usize> {
        // One comparison checks everything: if the width or the incarnation differs, the length
        // becomes too large. Relaxed: the caller got the table's id after the store in
        // `set_length`.
        let length =
            (self.word(table.number, Ordering::Relaxed) ^ flags(table, width)).wrapping_sub(1);
        (length < VARIABLE - 1).then_some(length as usize)
    }

    /// Returns the length in bytes of a table's values; the largest length if the lengths vary.
    /// Fails if the table is missing or has another width.
    #[inline]
    pub(crate) fn value_bytes(&self, table: TableId, width: Width) -> Result<usize> {
        self.value_bytes_if(table, width).ok_or_else(|| self.not_of_width(table, width))
    }

    #[cold]
    fn not_of_width(&self, table: TableId, width: Width) -> Error {
        if let Err(error) = self.width(table) {
            return error;
        }
        let (has, takes) = match width {
            Width::Fixed => ("variable", Width::Variable),
            Width::Variable => ("fixed", Width::Fixed),
        };
        let of = format!("table {:?}", self.name(table));
        let why =
            format!("has values of {has} width: it takes operations whose WIDTH is {takes:?}");
        Error::WrongKind { of, why }
    }

    pub(crate) fn width(&self, table: TableId) -> Result<Width> {
        let word = self.word(table.number, Ordering::Relaxed);
        if self.of(table.number) != Some(table) {
            return Err(no_such_table(table));
        }
        Ok(if word & VARIABLE == 0 { Width::Fixed } else { Width::Variable })
    }

    /// Returns the table that has this number now. `None` if no table has it: the table was
    /// dropped, or was made after the checkpoint at which the store was opened.
    pub(crate) fn of(&self, number: TableNumber) -> Option<TableId> {
        // Acquire: pairs with the Release store in `set_length`.
        let word = self.word(number, Ordering::Acquire);
        let is_there = word as u32 != 0;
        is_there.then_some(TableId { number, incarnation: (word >> INCARNATION_SHIFT) as u32 })
    }

    /// Notes that the log may have a record of the table. Must be called under the pin under which
    /// the record is allocated, or under an earlier pin.
    #[inline]
    pub(crate) fn note_written(&self, table: TableId) {
        if let Some(page) = self.pages[usize::from(table.number.0) / PAGE].get() {
            let written = &page.written[usize::from(table.number.0) % PAGE];
            // The flag is usually set already. Then it is only read, and the cache line stays
            // shared between processors.
            if !written.load(Ordering::Relaxed) {
                // Relaxed: `was_written` is called after a barrier that waits for this pin.
                written.store(true, Ordering::Relaxed);
            }
        }
    }

    /// True if the log may have a record of the table. The answer includes all records that were
    /// allocated under pins that ended before the last `epoch::barrier`.
    pub(super) fn was_written(&self, table: TableNumber) -> bool {
        let page = self.pages[usize::from(table.0) / PAGE].get();
        page.is_some_and(|page| page.written[usize::from(table.0) % PAGE].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::TableList;
    use super::*;
    use crate::sync::RwLock;

    fn tables() -> Tables {
        let list = RwLock::new(TableList::new(Vec::new()));
        Tables { list, pages: no_pages(), record_bytes_max: 4096 }
    }

    fn width_of(tables: &Tables, table: TableId) -> Option<Width> {
        tables.width(table).ok()
    }

    fn id(number: u16, incarnation: u32) -> TableId {
        TableId { number: TableNumber(number), incarnation }
    }

    #[test]
    fn lengths_are_there_once_set() {
        let tables = tables();
        for number in [1, 2, 255, 256, u16::MAX] {
            let table = id(number, 0);
            for (width, other) in [(Width::Fixed, Width::Variable), (Width::Variable, Width::Fixed)]
            {
                for bytes in [0, 1, u32::from(number) * 8] {
                    assert_eq!(
                        (width_of(&tables, table), tables.value_bytes_if(table, width)),
                        (None, None)
                    );
                    tables.set_length(table, width, bytes);
                    assert_eq!(tables.value_bytes_if(table, width), Some(bytes as usize));
                    assert_eq!(tables.value_bytes_if(table, other), None);
                    assert_eq!(width_of(&tables, table), Some(width));
                    tables.clear_length(table.number);
                }
            }
            tables.set_length(table, Width::Fixed, 8);
        }
        assert_eq!(tables.value_bytes_if(id(3, 0), Width::Fixed), None);
        assert_eq!(tables.value_bytes_if(id(3, 0), Width::Variable), None);
    }

    #[test]
    fn an_id_of_another_incarnation_is_refused() {
        let tables = tables();
        for of in [0, 1, 7, u32::MAX] {
            for width in [Width::Fixed, Width::Variable] {
                for bytes in [0, 1, 4096] {
                    tables.set_length(id(9, of), width, bytes);
                    assert_eq!(tables.of(TableNumber(9)), Some(id(9, of)));
                    for other in [0, 1, 2, 6, 8, u32::MAX - 1, u32::MAX] {
                        let expected = (other == of).then_some(width);
                        assert_eq!(width_of(&tables, id(9, other)), expected);
                        let expected = (other == of).then_some(bytes as usize);
                        assert_eq!(
                            tables.value_bytes_if(id(9, other), width),
                            expected,
                            "{of}, {other}"
                        );
                    }
                    tables.clear_length(TableNumber(9));
                    assert_eq!(
                        (tables.of(TableNumber(9)), width_of(&tables, id(9, of))),
                        (None, None)
                    );
                }
            }
        }
    }

    #[test]
    fn a_new_table_has_no_record() {
        let tables = tables();
        assert!(!tables.was_written(TableNumber(300)));
        tables.set_length(id(300, 0), Width::Fixed, 8);
        assert!(!tables.was_written(TableNumber(300)));
        tables.note_written(id(300, 0));
        tables.clear_length(TableNumber(300));
        assert!(tables.was_written(TableNumber(300)), "its records are there after the drop");
        tables.set_length(id(300, 1), Width::Fixed, 8);
        assert!(!tables.was_written(TableNumber(300)));
    }
}
