//! Kinds and value lengths of tables, looked up without a lock by every batch.

use std::sync::OnceLock;

use crate::address::TableId;
use crate::operation::Width;
use crate::sync::{AtomicU32, Ordering};

const PAGE: usize = 256;

/// Set in the word of a table of variable width.
const VARIABLE: u32 = 1 << 31;

/// Pages of words, made as tables come: 65,536 of them would not suit a budget of 1 MiB. A word is the length
/// plus one, with a bit for the width; 0 is no table.
#[derive(Debug)]
pub(super) struct Lengths(Box<[OnceLock<Box<[AtomicU32; PAGE]>>; PAGE]>);

impl Default for Lengths {
    fn default() -> Self {
        Lengths(Box::new([const { OnceLock::new() }; PAGE]))
    }
}

impl Lengths {
    /// Sets a table's width and the length of its values in bytes, their maximum where that varies.
    pub(super) fn set(&self, table: TableId, width: Width, value_bytes: u32) {
        debug_assert!(value_bytes < VARIABLE - 1);
        let flag = if width == Width::Variable { VARIABLE } else { 0 };
        let page = self.0[usize::from(table.0) / PAGE]
            .get_or_init(|| Box::new([const { AtomicU32::new(0) }; PAGE]));
        // Relaxed: the length is all there is; whoever has the table's number got it afterwards.
        page[usize::from(table.0) % PAGE].store(flag | (value_bytes + 1), Ordering::Relaxed);
    }

    /// Forgets a table.
    pub(super) fn clear(&self, table: TableId) {
        if let Some(page) = self.0[usize::from(table.0) / PAGE].get() {
            page[usize::from(table.0) % PAGE].store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word(&self, table: TableId) -> u32 {
        let page = self.0[usize::from(table.0) / PAGE].get();
        page.map_or(0, |page| page[usize::from(table.0) % PAGE].load(Ordering::Relaxed))
    }

    /// The value length in bytes of a table of this width, if there is such a table.
    #[inline]
    pub(super) fn get(&self, table: TableId, width: Width) -> Option<usize> {
        let flag = if width == Width::Variable { VARIABLE } else { 0 };
        // One comparison tells both: what is not of this width becomes large.
        let length = (self.word(table) ^ flag).wrapping_sub(1);
        (length < VARIABLE - 1).then_some(length as usize)
    }

    /// The width of a table, if there is one.
    pub(super) fn width(&self, table: TableId) -> Option<Width> {
        match self.word(table) {
            0 => None,
            VARIABLE.. => Some(Width::Variable),
            _ => Some(Width::Fixed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_there_once_set() {
        let lengths = Lengths::default();
        for number in [1, 2, 255, 256, u16::MAX] {
            let table = TableId(number);
            for (width, other) in [(Width::Fixed, Width::Variable), (Width::Variable, Width::Fixed)]
            {
                for bytes in [0, 1, u32::from(number) * 8] {
                    assert_eq!((lengths.width(table), lengths.get(table, width)), (None, None));
                    lengths.set(table, width, bytes);
                    assert_eq!(lengths.get(table, width), Some(bytes as usize));
                    assert_eq!(lengths.get(table, other), None);
                    assert_eq!(lengths.width(table), Some(width));
                    lengths.clear(table);
                }
            }
            lengths.set(table, Width::Fixed, 8);
        }
        assert_eq!(lengths.get(TableId(3), Width::Fixed), None);
        assert_eq!(lengths.get(TableId(3), Width::Variable), None);
    }
}
