//! Value lengths by table, looked up without a lock by every batch.

use std::sync::OnceLock;

use crate::address::TableId;
use crate::sync::{AtomicU32, Ordering};

const PAGE: usize = 256;

/// Pages of lengths, made as tables come: 65,536 of them would not suit a budget of 1 MiB. A length is
/// kept plus one; 0 is no table.
#[derive(Debug)]
pub(super) struct Lengths(Box<[OnceLock<Box<[AtomicU32; PAGE]>>; PAGE]>);

impl Default for Lengths {
    fn default() -> Self {
        Lengths(Box::new([const { OnceLock::new() }; PAGE]))
    }
}

impl Lengths {
    /// Sets a table's value length in bytes.
    pub(super) fn set(&self, table: TableId, value_bytes: u32) {
        let page = self.0[usize::from(table.0) / PAGE]
            .get_or_init(|| Box::new([const { AtomicU32::new(0) }; PAGE]));
        // Relaxed: the length is all there is; whoever has the table's number got it afterwards.
        page[usize::from(table.0) % PAGE].store(value_bytes + 1, Ordering::Relaxed);
    }

    /// Forgets a table.
    pub(super) fn clear(&self, table: TableId) {
        if let Some(page) = self.0[usize::from(table.0) / PAGE].get() {
            page[usize::from(table.0) % PAGE].store(0, Ordering::Relaxed);
        }
    }

    /// A table's value length in bytes, if there is such a table.
    #[inline]
    pub(super) fn get(&self, table: TableId) -> Option<usize> {
        let page = self.0[usize::from(table.0) / PAGE].get()?;
        let length = page[usize::from(table.0) % PAGE].load(Ordering::Relaxed);
        (length as usize).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_there_once_set() {
        let lengths = Lengths::default();
        for number in [1, 2, 255, 256, u16::MAX] {
            assert_eq!(lengths.get(TableId(number)), None);
            lengths.set(TableId(number), u32::from(number) * 8);
            assert_eq!(lengths.get(TableId(number)), Some(usize::from(number) * 8));
        }
        assert_eq!(lengths.get(TableId(3)), None);
        lengths.set(TableId(3), 0);
        assert_eq!(lengths.get(TableId(3)), Some(0));
        lengths.clear(TableId(3));
        assert_eq!(lengths.get(TableId(3)), None);
    }
}
