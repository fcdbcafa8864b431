//! The trailer of a part: how many rows it has, and where its fences and filters lie.

use crate::cold::fence::GROUP_BLOCKS;
use crate::cold::filter::COLUMNS_MAX;
use crate::cold::head::{PAGE_BYTES, PartHead, VERSION, check_page, seal_page, u32_at, u64_at};
use crate::cold::keep::PartNeeds;
use crate::cold::writer::GROUP_BYTES;

/// How many rows a part has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All rows, tombstones included.
    pub(super) rows: u64,
    pub(super) tombstones: u64,
    pub(super) uncounted: u64,
    /// Bytes of all rows with their headers.
    pub(super) row_bytes: u64,
}

/// The trailer of a part.
///
/// ```text
/// bytes 0..8      magic "EMBKPEND"       8..12     version 1
/// bytes 12..16    CRC-32C of bytes 0..12 and 16..4096
/// bytes 16..24    bank id                24..32    salt
/// bytes 32..40    number of the part     40..48    rows
/// bytes 48..56    tombstones             56..64    rows with the mark uncounted
/// bytes 64..72    blocks                 72..80    long blocks
/// bytes 80..88    words of the filters   88..92    columns of the filters
/// bytes 92..96    CRC-32C in the header  96..104   offset of the sections in the part
/// bytes 104..112  length of the sections 112..116  CRC-32C of the sections
/// bytes 116..120  zero                   120..128  bytes of all rows
/// bytes 128..     zero
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) head_crc: u32,
    pub(super) number: u64,
    pub(super) bank: u64,
    pub(super) salt: u64,
    pub(super) counts: Counts,
    pub(super) columns: u32,
    pub(super) blocks: u64,
    pub(super) long_blocks: u64,
    pub(super) filter_words: u64,
    pub(super) sections: u64,
    pub(super) sections_bytes: u64,
    pub(super) sections_crc: u32,
}

const TRAILER_MAGIC: [u8; 8] = *b"EMBKPEND";

impl Trailer {
    pub(super) fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&TRAILER_MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let words = [
            (16, self.bank),
            (24, self.salt),
            (32, self.number),
            (40, self.counts.rows),
            (48, self.counts.tombstones),
            (56, self.counts.uncounted),
            (64, self.blocks),
            (72, self.long_blocks),
            (80, self.filter_words),
            (96, self.sections),
            (104, self.sections_bytes),
            (120, self.counts.row_bytes),
        ];
        for (at, word) in words {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        for (at, number) in [(88, self.columns), (92, self.head_crc), (112, self.sections_crc)] {
            page[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        seal_page(&mut page);
        page
    }

    pub(super) fn decode(page: &[u8]) -> std::result::Result<Self, String> {
        check_page(page, TRAILER_MAGIC)?;
        let (word, number) = (|at| u64_at(page, at), |at| u32_at(page, at));
        Ok(Trailer {
            bank: word(16),
            salt: word(24),
            number: word(32),
            counts: Counts {
                rows: word(40),
                tombstones: word(48),
                uncounted: word(56),
                row_bytes: word(120),
            },
            blocks: word(64),
            long_blocks: word(72),
            filter_words: word(80),
            columns: number(88),
            head_crc: number(92),
            sections: word(96),
            sections_bytes: word(104),
            sections_crc: number(112),
        })
    }

    pub(super) fn crc(&self) -> u32 {
        u32_at(&self.encode(), 12)
    }

    /// Returns the length of the part's file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.sections + self.sections_bytes.next_multiple_of(PAGE_BYTES as u64) + PAGE_BYTES as u64
    }

    /// Returns the sizes of the fences and filters of a part with this head.
    pub(super) fn needs(&self, head: &PartHead) -> PartNeeds {
        PartNeeds {
            kind: head.kind,
            block_bits: head.block_bits,
            columns: self.columns,
            filter_words: self.filter_words,
            blocks: self.blocks,
            long_blocks: self.long_blocks,
            units: (self.sections - PAGE_BYTES as u64) >> head.block_bits,
        }
    }

    /// Checks the trailer of a part with this head and length.
    pub(super) fn check(
        &self,
        head: &PartHead,
        file_bytes: u64,
    ) -> std::result::Result<(), String> {
        if (self.bank, self.salt, self.number) != (head.bank, head.salt, head.number) {
            return Err(format!(
                "here lies part {} with salt {:016x} of bank {:016x}, not part {} with salt {:016x} of bank {:016x}",
                self.number, self.salt, self.bank, head.number, head.salt, head.bank
            ));
        }
        if self.head_crc != head.crc() {
            return Err("the checkpoint's list of parts and the part disagree on its header".into());
        }
        let groups = self.blocks.div_ceil(GROUP_BLOCKS as u64);
        // All numbers are below the file's length, so no product overflows.
        let is_right =
            [self.blocks, self.long_blocks, self.filter_words, self.sections, self.sections_bytes]
                .iter()
                .all(|&number| number <= file_bytes)
                && self.columns <= COLUMNS_MAX
                && self.sections >= PAGE_BYTES as u64
                && self.sections.is_multiple_of(PAGE_BYTES as u64)
                && self.sections_bytes
                    == groups * GROUP_BYTES as u64 + (self.long_blocks + self.filter_words) * 8
                && self.file_bytes() == file_bytes
                && self.counts.rows >= self.blocks
                && self.counts.tombstones.max(self.counts.uncounted) <= self.counts.rows
                && self.counts.row_bytes <= self.sections;
        if is_right { Ok(()) } else { Err("its numbers contradict each other".into()) }
    }
}
