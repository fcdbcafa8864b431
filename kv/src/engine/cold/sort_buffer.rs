//! Collects the rows that leave the log, and sorts them for a run.
//!
//! The buffer holds whole records as they lie on disk, in the order of their addresses. A record's
//! offset in the buffer therefore also tells which of two records of a key is newer. A list of
//! hashes and offsets is sorted instead of the records, which are several times as long.

use crate::cold::row::{ColdRow, ROW_HEADER_BYTES, RowFlags};
use crate::record::layout::{HEADER_BYTES, RecordImage};
use crate::sync::{Planted, planted};

/// Bytes of the buffer for each row, in addition to its record.
const PLACE_BYTES: usize = size_of::<Place>();
/// Largest length of the buffer in bytes: an offset in units of 8 bytes takes 32 bits.
const BYTES_MAX: usize = 32 << 30;

/// A record in the buffer.
#[derive(Debug, Clone, Copy)]
struct Place {
    hash: u64,
    /// The record's offset in units of 8 bytes.
    offset: u32,
    uses: u8,
}

/// Rows that leave the log.
pub(crate) struct SortBuffer {
    /// The records, without the values of tombstones.
    images: Vec<u8>,
    places: Vec<Place>,
    bytes_max: usize,
}

/// Shows the sizes alone, because the rest has the keys of many rows.
impl std::fmt::Debug for SortBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SortBuffer").field("rows", &self.places.len()).finish_non_exhaustive()
    }
}

impl SortBuffer {
    /// Makes a buffer of `bytes_max` bytes. The system gives it memory only as it fills.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.min(BYTES_MAX);
        SortBuffer {
            images: Vec::with_capacity(bytes_max),
            places: Vec::with_capacity(bytes_max / (HEADER_BYTES + PLACE_BYTES)),
            bytes_max,
        }
    }

    /// Returns the bytes that are surely enough for the rows of a page.
    pub(crate) fn bytes_for_page(page_bytes: u64) -> u64 {
        // A record has at least a header.
        page_bytes + page_bytes / HEADER_BYTES as u64 * PLACE_BYTES as u64
    }

    /// True if the rows of another page have room beside `other_bytes` bytes.
    pub(crate) fn has_room(&self, page_bytes: u64, other_bytes: usize) -> bool {
        let used = self.images.len() + self.places.len() * PLACE_BYTES + other_bytes;
        used as u64 + Self::bytes_for_page(page_bytes) <= self.bytes_max as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.images.clear();
        self.places.clear();
    }

    /// Adds a row. Its address must be above the addresses of all rows before. `uses` is its use
    /// count.
    pub(crate) fn push(&mut self, hash: u64, image: RecordImage<'_>, uses: u32) {
        let value_bytes = match image.link().is_tombstone() {
            true => 0,
            false => image.padded_value().len(),
        };
        let offset = (self.images.len() / 8) as u32;
        self.places.push(Place { hash, offset, uses: uses.min(u8::MAX.into()) as u8 });
        self.images.extend_from_slice(&image.bytes()[..HEADER_BYTES + value_bytes]);
    }

    /// Sorts the rows by hash, table and key. Of the records of one key, the one with the highest
    /// address stays.
    pub(crate) fn sort(&mut self) {
        let images = &self.images;
        let of = |place: &Place| {
            let image = image_at(images, *place);
            (place.hash, image.shape().table(), image.key())
        };
        self.places.sort_unstable_by(|a, b| {
            let hash = a.hash.cmp(&b.hash);
            hash.then_with(|| of(a).cmp(&of(b))).then(b.offset.cmp(&a.offset))
        });
        self.places.dedup_by(|b, a| a.hash == b.hash && of(a) == of(b));
    }

    /// Returns the rows in their order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = ColdRow<'_>> {
        self.places.iter().map(|&place| {
            let image = image_at(&self.images, place);
            let tombstone = image.link().is_tombstone();
            let uncounted = image.link().is_uncounted() && !planted(Planted::CountsApart);
            ColdRow {
                table: image.shape().table(),
                key: image.key(),
                hash: place.hash,
                flags: RowFlags { tombstone, uncounted },
                unused_bytes: if tombstone { 0 } else { image.unused_bytes() as u8 },
                uses: place.uses,
                value: if tombstone { &[] } else { image.padded_value() },
            }
        })
    }

    /// Returns the mean length of a row in a part, in bytes. Rows that `sort` has left out count
    /// too.
    pub(crate) fn mean_row_bytes(&self) -> usize {
        let mean = self.images.len().checked_div(self.places.len()).unwrap_or(0);
        ROW_HEADER_BYTES + mean.saturating_sub(HEADER_BYTES)
    }

    /// Returns the hashes of the rows in their order.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|place| place.hash)
    }
}

fn image_at(images: &[u8], place: Place) -> RecordImage<'_> {
    RecordImage::new(&images[place.offset as usize * 8..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::address::{Address, TableNumber};
    use crate::record::clock::ClockWord;
    use crate::record::layout::{RecordRef, record_bytes};
    use crate::sync::AtomicU64;

    /// Returns the record of a key whose value has `words` words of the number `number`.
    fn image(table: u16, key: u64, words: usize, number: u64, tombstone: bool) -> Vec<u8> {
        let bytes = record_bytes(words * 8);
        let memory: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the memory has room for the record, and no other thread uses it.
        let record = unsafe { RecordRef::new(memory.as_ptr(), Address::new(64)) };
        record.begin(TableNumber(table), key, words * 8);
        record.store_value(&vec![number; words]);
        record.finish(ClockWord::at_rest(0), tombstone);
        let mut image = vec![0; bytes];
        record.write_image(7, &mut image);
        image
    }

    fn listed(buffer: &SortBuffer) -> Vec<(u64, u16, u64, Option<u64>)> {
        let number = |row: &ColdRow<'_>| {
            (!row.flags.tombstone)
                .then(|| u64::from_le_bytes(row.value.first_chunk().copied().unwrap_or_default()))
        };
        buffer.rows().map(|row| (row.hash, row.table.0, row.key, number(&row))).collect()
    }

    #[test]
    fn rows_come_in_order_and_the_newest_of_a_key_wins() {
        let mut buffer = SortBuffer::new(4096);
        let mut push = |hash, table, key, number, gone| {
            buffer.push(hash, RecordImage::new(&image(table, key, 2, number, gone)), 300);
        };
        push(9, 1, 90, 1, false);
        push(5, 2, 50, 2, false);
        push(5, 1, 51, 3, false);
        push(9, 1, 90, 4, true);
        push(5, 2, 50, 5, false);
        push(1, 1, 10, 6, false);
        push(5, 1, 52, 7, false);
        buffer.sort();
        let expected = [
            (1, 1, 10, Some(6)),
            (5, 1, 51, Some(3)),
            (5, 1, 52, Some(7)),
            (5, 2, 50, Some(5)),
            (9, 1, 90, None),
        ];
        assert_eq!(listed(&buffer), expected);
        assert!(buffer.rows().all(|row| row.uses == 255));
        let lengths: Vec<_> = buffer.rows().map(|row| row.value.len()).collect();
        assert_eq!(lengths, [16, 16, 16, 16, 0], "a tombstone has no value");
        assert_eq!(buffer.hashes().collect::<Vec<_>>(), [1, 5, 5, 5, 9]);
        buffer.clear();
        assert!(buffer.is_empty() && buffer.rows().next().is_none());
    }

    #[test]
    fn a_page_of_the_shortest_records_fits_where_there_is_room() {
        let page_bytes = 512;
        let bytes = SortBuffer::bytes_for_page(page_bytes) as usize;
        let mut buffer = SortBuffer::new(bytes);
        assert!(buffer.has_room(page_bytes, 0) && !buffer.has_room(page_bytes, 1));
        let room = (buffer.images.capacity(), buffer.places.capacity());
        for key in 0..page_bytes / HEADER_BYTES as u64 {
            buffer.push(key, RecordImage::new(&image(1, key, 0, 0, true)), 0);
        }
        assert_eq!((buffer.images.capacity(), buffer.places.capacity()), room, "it has not grown");
        assert!(!buffer.has_room(page_bytes, 0));
    }
}
