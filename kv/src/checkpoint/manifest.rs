//! The manifest of a checkpoint, and the check that its parts are consistent.
//!
//! A manifest of format 6 is a [`ManifestV6`]. A checkpoint of a bank that has had parts of a cold
//! tier has a manifest of format 7: a `ManifestV6`, then a [`ColdEntry`]. So a bank without parts
//! stays readable by programs that know no cold tier.

use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::lineage;
use crate::checkpoint::lineage::Lineage;
use crate::checkpoint::lineage::Opening;
use crate::cold::head::PartSite;
use crate::device::Device;
use crate::files::checked_stream::StreamKind;
use crate::files::metadata::{self, DecodeError};
use crate::index::ADDRESS_LIMIT;
use crate::limits::Limits;
use crate::memory::budget::PAGE_BYTES_MAX;
use crate::operation::Width;
use crate::record::hash::KeyHash;
use crate::record::layout::record_bytes;

/// Message for a manifest with inconsistent parts.
pub(crate) const UNSOUND: &str = "its page size, log boundaries, images and tables do not fit";

/// A table's entry in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct TableEntry {
    pub(crate) number: u16,
    pub(crate) name: String,
    /// The length of every value, or the largest length if the width is variable.
    pub(crate) value_bytes: u32,
    pub(crate) variable: bool,
    pub(crate) descriptor: Vec<u8>,
    /// Number of rows, without deleted rows.
    pub(crate) rows: u64,
    /// Bytes of the records of these rows if the width is variable, else 0.
    pub(crate) record_bytes: u64,
    /// True if the table was dropped. The entry reserves the table's number while the log may still
    /// have records of the table.
    pub(crate) dropped: bool,
}

impl TableEntry {
    /// True if the table was dropped and the checkpoint's log has no record of it.
    pub(crate) fn is_gone(&self) -> bool {
        self.dropped && self.value_bytes == 0
    }

    pub(crate) fn width(&self) -> Width {
        if self.variable { Width::Variable } else { Width::Fixed }
    }

    /// Returns the bytes of the records of the table's rows.
    pub(crate) fn live_bytes(&self) -> u64 {
        let each = record_bytes(self.value_bytes as usize) as u64;
        match self.width() {
            Width::Fixed => self.rows.saturating_mul(each),
            Width::Variable => self.record_bytes,
        }
    }
}

/// The entry of a file that has an image of the whole index, or of the index's changes since an
/// earlier image.
#[derive(Debug, Clone, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct ImageEntry {
    /// The number of the checkpoint that the image was written for.
    pub(crate) checkpoint: u64,
    /// The id of the checkpoint that the image was written for. The value is 0 if a build of format
    /// 5 wrote the image.
    pub(crate) id: u64,
    pub(crate) file_bytes: u64,
}

impl ImageEntry {
    pub(crate) fn identity(&self, bank: u64) -> CheckpointIdentity {
        CheckpointIdentity { bank, checkpoint: self.checkpoint, id: self.id }
    }
}

/// What a manifest says about the cold tier.
#[derive(Debug, Clone, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct ColdEntry {
    /// Length of the list of parts, the file `cold.<n>`, in bytes.
    pub(crate) list_bytes: u64,
    /// Bytes of the files of all parts in the list.
    pub(crate) part_bytes: u64,
    /// For each table of the manifest, a bound on the number of its versions with the mark
    /// *uncounted*, and so on how far off its number of rows is. If it is 0, `TableEntry::rows` is
    /// exact.
    pub(crate) uncounted: Vec<u64>,
}

/// The description of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) number: u64,
    /// A random number that identifies the checkpoint (see `store::state`). `number` does not
    /// identify it: a rollback reuses numbers, and a copy of the bank numbers its later checkpoints
    /// itself.
    pub(crate) id: u64,
    pub(crate) bank: u64,
    pub(crate) page_bits: u32,
    pub(crate) segment_bytes: u64,
    /// The seed of the key hash that the index uses, see `hash`. The seed is 0 in banks of format
    /// 5.
    pub(crate) hash_seed: u64,
    /// The log's first address. The bank keeps no record below this address.
    pub(crate) log_begin: u64,
    /// The log's end, a page boundary. Records at or above this address do not belong to the
    /// checkpoint.
    pub(crate) log_end: u64,
    /// The openings of the bank that wrote the pages, see `lineage`.
    pub(crate) openings: Vec<Opening>,
    /// The index: one whole image, then the images of later changes, oldest first.
    pub(crate) images: Vec<ImageEntry>,
    /// The id in the blob's header: this checkpoint's id, or 0 if a build of format 5 wrote the
    /// blob.
    pub(crate) blob_id: u64,
    pub(crate) blob_bytes: u64,
    /// The time of the checkpoint, in seconds since 1970.
    pub(crate) unix_s: u64,
    pub(crate) tables: Vec<TableEntry>,
    /// The cold tier. `None` if the bank never had a part.
    pub(crate) cold: Option<ColdEntry>,
}

/// A manifest of format 6, and the first part of a manifest of format 7.
#[derive(Debug, Clone, metadata::Encode, metadata::Decode)]
pub(crate) struct ManifestV6 {
    number: u64,
    id: u64,
    bank: u64,
    page_bits: u32,
    segment_bytes: u64,
    hash_seed: u64,
    log_begin: u64,
    log_end: u64,
    openings: Vec<Opening>,
    images: Vec<ImageEntry>,
    blob_id: u64,
    blob_bytes: u64,
    unix_s: u64,
    tables: Vec<TableEntry>,
}

impl ManifestV6 {
    /// Returns the manifest with what it says about the cold tier.
    pub(crate) fn with(self, cold: Option<ColdEntry>) -> Manifest {
        Manifest {
            number: self.number,
            id: self.id,
            bank: self.bank,
            page_bits: self.page_bits,
            segment_bytes: self.segment_bytes,
            hash_seed: self.hash_seed,
            log_begin: self.log_begin,
            log_end: self.log_end,
            openings: self.openings,
            images: self.images,
            blob_id: self.blob_id,
            blob_bytes: self.blob_bytes,
            unix_s: self.unix_s,
            tables: self.tables,
            cold,
        }
    }
}

/// A manifest of format 5.
#[derive(metadata::Encode, metadata::Decode)]
struct ManifestV5 {
    number: u64,
    id: u64,
    bank: u64,
    page_bits: u32,
    segment_bytes: u64,
    log_begin: u64,
    log_end: u64,
    images: Vec<(u64, u64)>,
    blob_bytes: u64,
    unix_s: u64,
    tables: Vec<TableEntry>,
}

impl From<ManifestV5> for Manifest {
    fn from(old: ManifestV5) -> Self {
        let image = |(checkpoint, file_bytes)| ImageEntry { checkpoint, id: 0, file_bytes };
        Manifest {
            number: old.number,
            id: old.id,
            bank: old.bank,
            page_bits: old.page_bits,
            segment_bytes: old.segment_bytes,
            hash_seed: 0,
            log_begin: old.log_begin,
            log_end: old.log_end,
            openings: Vec::new(),
            images: old.images.into_iter().map(image).collect(),
            blob_id: 0,
            blob_bytes: old.blob_bytes,
            unix_s: old.unix_s,
            tables: old.tables,
            cold: None,
        }
    }
}

impl Manifest {
    /// Returns the manifest's first part, and what it says about the cold tier.
    pub(crate) fn split(self) -> (ManifestV6, Option<ColdEntry>) {
        let first = ManifestV6 {
            number: self.number,
            id: self.id,
            bank: self.bank,
            page_bits: self.page_bits,
            segment_bytes: self.segment_bytes,
            hash_seed: self.hash_seed,
            log_begin: self.log_begin,
            log_end: self.log_end,
            openings: self.openings,
            images: self.images,
            blob_id: self.blob_id,
            blob_bytes: self.blob_bytes,
            unix_s: self.unix_s,
            tables: self.tables,
        };
        (first, self.cold)
    }

    /// Returns the content of the file `manifest`: of format 6, or 7 if the bank has had parts.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self.clone().split() {
            (first, None) => metadata::encode(&first),
            (first, Some(cold)) => {
                metadata::encode_as(metadata::VERSION_WITH_PARTS, &(first, cold))
            }
        }
    }

    /// Returns the identity of the checkpoint, which the headers of its files have.
    pub(crate) fn identity(&self) -> CheckpointIdentity {
        CheckpointIdentity { bank: self.bank, checkpoint: self.number, id: self.id }
    }

    /// Returns where the checkpoint's parts lie on `device`.
    pub(crate) fn part_site<'d>(&self, device: &'d dyn Device) -> PartSite<'d> {
        PartSite {
            device,
            segment_size_bytes: self.segment_bytes,
            key_hash: KeyHash::new(self.hash_seed),
        }
    }

    /// Returns the identity in the header of the checkpoint's blob.
    pub(crate) fn blob_identity(&self) -> CheckpointIdentity {
        CheckpointIdentity { bank: self.bank, checkpoint: self.number, id: self.blob_id }
    }

    /// Returns the lineage, which names the opening that wrote each page of the log.
    pub(crate) fn lineage(&self) -> Lineage {
        Lineage::new(self.bank, self.page_bits, self.openings.clone())
    }

    /// Returns the numbers of the log's pages.
    pub(crate) fn pages(&self) -> std::ops::Range<u64> {
        self.log_begin >> self.page_bits..self.log_end >> self.page_bits
    }

    /// Decodes the manifest of checkpoint `number` and checks its values.
    ///
    /// A correct checksum shows that the bytes are as written, but not that the writer was correct.
    /// This function therefore checks all values that later code relies on.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub(crate) fn decode(
        bytes: &[u8],
        number: u64,
        limits: Limits,
    ) -> std::result::Result<Self, DecodeError> {
        let manifest = Self::decode_any(bytes)?;
        if manifest.number != number {
            return Err(format!("it belongs to checkpoint {}", manifest.number).into());
        }
        if !manifest.is_sound(limits) {
            return Err(UNSOUND.into());
        }
        Ok(manifest)
    }

    fn decode_any(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        const NEWEST: u32 = metadata::VERSION_WITH_PARTS;
        match metadata::version(bytes) {
            5 => metadata::decode::<ManifestV5>(bytes).map(Self::from),
            NEWEST => {
                let decoded = metadata::decode_up_to::<(ManifestV6, ColdEntry)>(NEWEST, bytes);
                decoded.map(|(first, cold)| first.with(Some(cold)))
            }
            _ => {
                let decoded = metadata::decode_up_to::<ManifestV6>(NEWEST, bytes);
                decoded.map(|first| first.with(None))
            }
        }
    }

    /// Returns the number of the checkpoint that an undamaged manifest of the bank `bank`
    /// describes. `None` if the bytes are no such manifest.
    ///
    /// # Errors
    /// [`DecodeError::Newer`].
    pub(crate) fn number_in(
        bytes: &[u8],
        bank: u64,
    ) -> std::result::Result<Option<u64>, DecodeError> {
        match Self::decode_any(bytes) {
            Ok(found) => Ok((found.bank == bank).then_some(found.number)),
            Err(DecodeError::Damaged(_)) => Ok(None),
            Err(newer) => Err(newer),
        }
    }

    /// True if the parts of the manifest are consistent.
    pub(crate) fn is_sound(&self, limits: Limits) -> bool {
        self.log_fits(limits) && self.images_fit() && self.tables_fit() && self.cold_fits()
    }

    fn log_fits(&self, limits: Limits) -> bool {
        (limits.page_bytes_min.ilog2()..=PAGE_BYTES_MAX.ilog2()).contains(&self.page_bits)
            && self.segment_bytes.is_power_of_two()
            && self.segment_bytes >= 1 << self.page_bits
            && self.log_end.is_multiple_of(1 << self.page_bits)
            && self.log_begin.is_multiple_of(1 << self.page_bits)
            && self.log_begin <= self.log_end
            && self.log_end < ADDRESS_LIMIT
            && self.log_end >> self.page_bits < u64::from(u32::MAX)
            && lineage::is_sound(&self.openings, self.pages().end)
    }

    fn images_fit(&self) -> bool {
        let mut images = self.images.iter().map(|image| image.checkpoint);
        self.number <= NUMBER_MAX
            && images.clone().is_sorted_by(|a, b| a < b)
            && images.next_back() == Some(self.number)
    }

    /// True if tables have consecutive numbers and their rows fit in the log.
    fn tables_fit(&self) -> bool {
        let numbered = self
            .tables
            .iter()
            .zip(1_u32..)
            .all(|(table, number)| u32::from(table.number) == number);
        let live_bytes =
            self.tables_there().map(TableEntry::live_bytes).fold(0, u64::saturating_add);
        let log_bytes = self.log_end - self.log_begin;
        let part_bytes = self.cold.as_ref().map_or(0, |cold| cold.part_bytes);
        // A row at rest has a header of half the length of a record's.
        let row_bytes = log_bytes.saturating_add(part_bytes.saturating_mul(2));
        numbered && live_bytes <= row_bytes && self.rows() <= row_bytes
    }

    /// True if the entry of the cold tier has a count for each table, and its lengths are those of
    /// files.
    fn cold_fits(&self) -> bool {
        self.cold.as_ref().is_none_or(|cold| {
            cold.uncounted.len() == self.tables.len()
                && cold.list_bytes <= COLD_LIST_BYTES_MAX
                && cold.part_bytes <= PART_BYTES_MAX
        })
    }

    /// Returns the tables that were not dropped. The row counts of dropped tables are meaningless:
    /// in some banks, these counts went below zero.
    fn tables_there(&self) -> impl Iterator<Item = &TableEntry> {
        self.tables.iter().filter(|table| !table.dropped)
    }

    /// Returns the number of rows of all tables.
    pub(crate) fn rows(&self) -> u64 {
        self.tables_there().map(|table| table.rows).fold(0, u64::saturating_add)
    }
}

/// Largest checkpoint number that a manifest may have: the name of a checkpoint's directory has ten
/// digits. A bank that takes a checkpoint every second reaches it after 317 years.
pub(crate) const NUMBER_MAX: u64 = 9_999_999_999;

/// Largest length of a list of parts in bytes, for three million parts.
const COLD_LIST_BYTES_MAX: u64 = 256 << 20;

/// Largest total size of a checkpoint's parts in bytes: 256 TiB, half of the log's address space.
const PART_BYTES_MAX: u64 = 1 << 48;

/// The kind of stream of a checkpoint's blob.
pub(crate) const BLOB_KIND: StreamKind =
    StreamKind { name: "blob", magic: *b"EMBKBLOB", oldest: 1, newest: 2 };

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: u64) -> TableEntry {
        TableEntry {
            number: 1,
            name: "rows".into(),
            value_bytes: 24,
            variable: false,
            descriptor: Vec::new(),
            rows,
            record_bytes: 0,
            dropped: false,
        }
    }

    fn manifest() -> Manifest {
        Manifest {
            number: 7,
            id: 1,
            bank: 5,
            page_bits: 13,
            segment_bytes: 1 << 20,
            hash_seed: 3,
            log_begin: 0,
            log_end: 1 << 16,
            openings: vec![Opening { first_page: 0, salt: 4 }],
            images: vec![ImageEntry { checkpoint: 7, id: 1, file_bytes: 3000 }],
            blob_id: 1,
            blob_bytes: 0,
            unix_s: 0,
            tables: vec![table(100)],
            cold: None,
        }
    }

    fn cold() -> Option<ColdEntry> {
        Some(ColdEntry { list_bytes: 200, part_bytes: 1 << 20, uncounted: vec![3] })
    }

    /// Shows that a bank without parts has manifests of format 6, byte for byte.
    #[test]
    fn only_a_bank_with_parts_has_format_7() {
        let first = manifest().split().0;
        assert_eq!(manifest().encode(), metadata::encode(&first));
        assert_eq!(metadata::version(&manifest().encode()), 6);
        let with = Manifest { cold: cold(), ..manifest() };
        assert_eq!(metadata::version(&with.encode()), 7);
        for manifest in [manifest(), with] {
            assert_eq!(Manifest::decode(&manifest.encode(), 7, Limits::PRODUCT), Ok(manifest));
        }
    }

    /// Shows that `decode` refuses values that would make later sums and products overflow.
    #[test]
    fn numbers_beyond_their_bounds_are_refused() {
        let decode = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            Manifest::decode(&manifest.encode(), manifest.number, Limits::PRODUCT)
        };
        decode(&|_| {}).unwrap();
        decode(&|manifest| manifest.unix_s = u64::MAX).unwrap();
        // In some existing banks, batches that ran while a table was dropped decremented the
        // table's counts below 0.
        let counts = |manifest: &mut Manifest, dropped| {
            let below = TableEntry { rows: 7_u64.wrapping_neg(), dropped, ..table(0) };
            let shrunk =
                TableEntry { number: 2, variable: true, record_bytes: u64::MAX, ..below.clone() };
            manifest.tables = vec![below, shrunk, TableEntry { number: 3, ..table(100) }];
        };
        assert_eq!(decode(&|manifest| counts(manifest, true)).unwrap().rows(), 100);
        decode(&|manifest| counts(manifest, false)).unwrap_err();
        // With parts, there may be more rows than the log has room for.
        decode(&|manifest| {
            manifest.cold = cold();
            manifest.tables = vec![table((1 << 20) / 32)];
        })
        .unwrap();
        let changes: [&dyn Fn(&mut Manifest); 18] = [
            &|manifest| {
                manifest.cold = cold();
                manifest.tables = vec![table((1 << 20) / 24)];
            },
            &|manifest| {
                manifest.cold = cold().map(|cold| ColdEntry { part_bytes: 1 << 49, ..cold });
            },
            &|manifest| {
                manifest.cold = cold().map(|cold| ColdEntry { list_bytes: 1 << 40, ..cold });
            },
            &|manifest| {
                manifest.cold = cold().map(|cold| ColdEntry { uncounted: Vec::new(), ..cold });
            },
            &|manifest| manifest.tables = vec![table(u64::MAX)],
            &|manifest| manifest.tables = vec![table((1 << 16) / 56 + 1)],
            &|manifest| manifest.tables[0].number = 0,
            &|manifest| manifest.tables.push(table(1)),
            &|manifest| {
                manifest.tables[0] =
                    TableEntry { variable: true, record_bytes: 1 << 17, ..table(1) };
            },
            &|manifest| manifest.segment_bytes = 0,
            &|manifest| manifest.segment_bytes = 4096,
            &|manifest| manifest.segment_bytes = 3 << 20,
            &|manifest| manifest.log_begin = 1 << 17,
            &|manifest| manifest.log_end = u64::MAX << 13,
            &|manifest| {
                manifest.number = u64::MAX;
                manifest.images[0].checkpoint = u64::MAX;
            },
            &|manifest| manifest.images[0].checkpoint = 6,
            &|manifest| manifest.openings.push(Opening { first_page: 0, salt: 5 }),
            &|manifest| manifest.openings.push(Opening { first_page: 8, salt: 5 }),
        ];
        for (i, change) in changes.into_iter().enumerate() {
            assert!(decode(change).is_err(), "change {i}");
        }
    }
}
