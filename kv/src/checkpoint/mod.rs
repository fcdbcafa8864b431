//! Checkpoints on disk: writing one whole, finding the newest whole one.
//!
//! ```text
//! <bank>/checkpoints/0000000007/manifest           what the checkpoint is (metadata, see `metadata`)
//!                               index.0000000004   the index as of checkpoint 4 (see `index::image`)
//!                               index.0000000007   what of it has changed since
//!                               blob               the caller's own bytes (checked stream)
//! ```
//!
//! Images of the index that earlier checkpoints wrote are linked into the directory, so each has all that it needs.
//!
//! A checkpoint is written under `0000000007.partial`; every file and that directory are synced, after
//! the log itself; then the directory gets its final name and `checkpoints` is synced. So a directory
//! under a final name is complete, whatever the instant of a crash, and one that does not verify is
//! damage and an error. The log below a checkpoint's end is never written again. `removal` tells how a checkpoint is
//! taken away.

pub(crate) mod bank_dir;
pub(crate) mod bank_file;
pub(crate) mod bank_lock;
pub(crate) mod hold;
pub(crate) mod identity;
pub(crate) mod lineage;
pub(crate) mod recovered;
pub(crate) mod removal;

use crate::checkpoint::identity::CheckpointIdentity;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::checked_stream::{self, CheckedReader, CheckedWriter};
use crate::files::directory::{Directory, Place};
use crate::files::metadata;
use crate::index::ADDRESS_LIMIT;
use crate::index::image::{self, Images};
use crate::memory::budget::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::operation::Width;
use crate::record::layout::record_bytes;
use crate::sync::Mutex;
use lineage::{Lineage, Opening};
use removal::Leftovers;

pub(crate) const PARTIAL: &str = "partial";
const BLOB: &str = "blob";
const MANIFEST: &str = "manifest";
/// An empty file: the checkpoint stays until it is unpinned.
const PINNED: &str = "pinned";
/// Beyond every number that is ever given, and far from where numbers end.
const NUMBER_MAX: u64 = 1 << 62;

/// Of a manifest that is not sound.
pub(crate) const UNSOUND: &str = "its page size, log boundaries, images and tables do not fit";

/// Magic number and version of the stream of a checkpoint's blob.
pub(crate) const BLOB_KIND: ([u8; 8], u32) = (*b"EMBKBLOB", 2);

/// A table as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct TableEntry {
    pub(crate) number: u16,
    pub(crate) name: String,
    /// Length of every value; the longest one's where the width is variable.
    pub(crate) value_bytes: u32,
    pub(crate) variable: bool,
    pub(crate) descriptor: Vec<u8>,
    /// Rows that are there, deleted ones not counted.
    pub(crate) rows: u64,
    /// Bytes of those rows' records, where the width is variable; else 0.
    pub(crate) record_bytes: u64,
    /// Dropped: only its number is kept. No other table gets it while its records may still be
    /// there.
    pub(crate) dropped: bool,
}

impl TableEntry {
    /// True if the table was dropped and no record of it is left in the checkpoint's log.
    pub(crate) fn is_gone(&self) -> bool {
        self.dropped && self.value_bytes == 0
    }

    pub(crate) fn width(&self) -> Width {
        if self.variable { Width::Variable } else { Width::Fixed }
    }

    /// Bytes of its rows' records.
    pub(crate) fn live_bytes(&self) -> u64 {
        let each = record_bytes(self.value_bytes as usize) as u64;
        match self.width() {
            Width::Fixed => self.rows.saturating_mul(each),
            Width::Variable => self.record_bytes,
        }
    }
}

/// A part of a checkpoint's index.
#[derive(Debug, Clone, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct ImageEntry {
    /// The checkpoint that it was written for.
    pub(crate) checkpoint: u64,
    /// That checkpoint's id; 0 if a build of format 5 wrote the image.
    pub(crate) id: u64,
    pub(crate) file_bytes: u64,
}

impl ImageEntry {
    pub(crate) fn identity(&self, bank: u64) -> CheckpointIdentity {
        CheckpointIdentity { bank, checkpoint: self.checkpoint, id: self.id }
    }
}

/// What a checkpoint is.
#[derive(Debug, Clone, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct Manifest {
    pub(crate) number: u64,
    /// A number that no other checkpoint has (see `store::state`): numbers are given anew after a roll back, and a copy of
    /// the bank goes on counting by itself.
    pub(crate) id: u64,
    pub(crate) bank: u64,
    pub(crate) page_bits: u32,
    pub(crate) segment_bytes: u64,
    /// Mixed into the hash of keys, which the index goes by: see `hash`. 0 in banks of format 5.
    pub(crate) hash_seed: u64,
    /// Where the log begins: nothing below is kept.
    pub(crate) log_begin: u64,
    /// Where the log ends, a page boundary: nothing at or above belongs to this checkpoint.
    pub(crate) log_end: u64,
    /// Which opening of the bank wrote which pages: see `lineage`.
    pub(crate) openings: Vec<Opening>,
    /// The index: a whole image and the changes that followed, oldest first.
    pub(crate) images: Vec<ImageEntry>,
    /// The id that the blob carries: this checkpoint's; 0 if a build of format 5 wrote it.
    pub(crate) blob_id: u64,
    pub(crate) blob_bytes: u64,
    /// When it was taken, in seconds since 1970.
    pub(crate) unix_s: u64,
    pub(crate) tables: Vec<TableEntry>,
}

/// A manifest as a build of format 5 wrote it.
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
        }
    }
}

impl Manifest {
    /// The identity of the checkpoint's blob.
    pub(crate) fn blob_identity(&self) -> CheckpointIdentity {
        CheckpointIdentity { bank: self.bank, checkpoint: self.number, id: self.blob_id }
    }

    /// Which opening wrote each page of the log.
    pub(crate) fn lineage(&self) -> Lineage {
        Lineage::new(self.bank, self.page_bits, self.openings.clone())
    }

    /// The pages of the log.
    pub(crate) fn pages(&self) -> std::ops::Range<u64> {
        self.log_begin >> self.page_bits..self.log_end >> self.page_bits
    }

    /// The manifest of checkpoint `number` from its file.
    ///
    /// A right checksum says that the bytes are those that were written, not that a sane program wrote them: all
    /// that others reckon with is held against its bounds here, once.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn decode(bytes: &[u8], number: u64) -> std::result::Result<Self, String> {
        let manifest: Manifest = match metadata::is_version_5(bytes) {
            true => metadata::decode::<ManifestV5>(bytes)?.into(),
            false => metadata::decode(bytes)?,
        };
        if manifest.number != number {
            return Err(format!("it belongs to checkpoint {}", manifest.number));
        }
        if !manifest.is_sound() {
            return Err(UNSOUND.into());
        }
        Ok(manifest)
    }

    /// Whether its parts can belong together.
    pub(crate) fn is_sound(&self) -> bool {
        self.log_fits() && self.images_fit() && self.tables_fit()
    }

    fn log_fits(&self) -> bool {
        (PAGE_BYTES_MIN.ilog2()..=PAGE_BYTES_MAX.ilog2()).contains(&self.page_bits)
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

    /// Tables are numbered in order, and their rows lie in the log.
    fn tables_fit(&self) -> bool {
        let numbered = self
            .tables
            .iter()
            .zip(1_u32..)
            .all(|(table, number)| u32::from(table.number) == number);
        let live_bytes =
            self.tables_there().map(TableEntry::live_bytes).fold(0, u64::saturating_add);
        let log_bytes = self.log_end - self.log_begin;
        numbered && live_bytes <= log_bytes && self.rows() <= log_bytes
    }

    /// The tables that were not dropped. The counts of others mean nothing: in some banks they went below zero.
    fn tables_there(&self) -> impl Iterator<Item = &TableEntry> {
        self.tables.iter().filter(|table| !table.dropped)
    }

    /// Rows of all tables.
    pub(crate) fn rows(&self) -> u64 {
        self.tables_there().map(|table| table.rows).fold(0, u64::saturating_add)
    }
}

/// The checkpoints of a bank.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoints {
    /// The folder `checkpoints`; `None` if only looked for and not there.
    dir: Option<Arc<Directory>>,
    bank: Arc<Directory>,
    /// What could not be cleared away, by all clones of these.
    pub(crate) left: Arc<Mutex<Leftovers>>,
}

/// A checkpoint that is being written. Dropped unfinished, it is removed.
pub(crate) struct PartialCheckpoint<'a> {
    of: &'a Checkpoints,
    number: u64,
    dir: Place,
    finished: bool,
}

const FOLDER: &str = "checkpoints";

fn image_name(checkpoint: u64) -> String {
    format!("index.{checkpoint:010}")
}

impl Checkpoints {
    /// The checkpoints in a bank's directory; clears away what a crash left half-written.
    pub(crate) fn open(bank: &Arc<Directory>) -> Result<Self> {
        let failed = |e| Error::io("create", &bank.place(FOLDER), e);
        let dir = bank.make_subdirectory(FOLDER).map_err(failed)?;
        let checkpoints =
            Checkpoints { dir: Some(dir), bank: Arc::clone(bank), left: Arc::default() };
        // A process that was killed may have renamed checkpoints and not synced that. One that has its final name must
        // be there for good when the bank is opened at it; one that has lost it must not come back when its files
        // and its log are gone.
        checkpoints.sync()?;
        checkpoints.clear(&checkpoints.names()?);
        Ok(checkpoints)
    }

    /// The checkpoints in the directory of a bank that is not open for writing: makes nothing, clears nothing away.
    pub(crate) fn look(bank: &Arc<Directory>) -> Result<Self> {
        let dir = match bank.subdirectory(FOLDER) {
            Ok(dir) => Some(dir),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io("open", &bank.place(FOLDER), e)),
        };
        Ok(Checkpoints { dir, bank: Arc::clone(bank), left: Arc::default() })
    }

    /// The names in the folder.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        let listed = match &self.dir {
            Some(dir) => dir.names(),
            None => Err(io::Error::from(ErrorKind::NotFound)),
        };
        listed.map_err(|e| Error::io("list", self.path(), e))
    }

    /// The numbers of the completed checkpoints, oldest first.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        Ok(removal::numbers_of(&self.names()?))
    }

    /// The same; none where there is no folder for them.
    pub(crate) fn numbers_if_any(&self) -> Result<Vec<u64>> {
        if self.is_there() { self.numbers() } else { Ok(Vec::new()) }
    }

    /// Whether there is a folder for checkpoints.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.is_some()
    }

    /// The folder of the checkpoints, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.dir {
            Some(dir) => dir.path().to_owned(),
            None => self.bank.path().join(FOLDER),
        }
    }

    /// A name in the folder of the checkpoints.
    pub(crate) fn place(&self, name: impl AsRef<Path>) -> Place {
        match &self.dir {
            Some(dir) => dir.place(name),
            None => self.bank.place(FOLDER).join(name),
        }
    }

    /// Refuses to go on where the path of the bank, or of the folder of its checkpoints, leads elsewhere by now.
    ///
    /// # Errors
    /// `DirectoryMoved`; `Io` if it can't be told.
    pub(crate) fn check_in_place(&self) -> Result<()> {
        self.bank.check_in_place()?;
        self.dir.as_ref().map_or(Ok(()), |dir| dir.check_in_place())
    }

    pub(crate) fn dir_of(&self, number: u64) -> Place {
        self.place(format!("{number:010}"))
    }

    /// The file of an image of the index in a checkpoint's directory.
    pub(crate) fn image_path(&self, number: u64, image: u64) -> Place {
        self.dir_of(number).join(image_name(image))
    }

    /// The file of a checkpoint's blob.
    pub(crate) fn blob_path(&self, number: u64) -> Place {
        self.dir_of(number).join(BLOB)
    }

    /// The file of a checkpoint's manifest.
    pub(crate) fn manifest_path(&self, number: u64) -> Place {
        self.dir_of(number).join(MANIFEST)
    }

    /// The images of a checkpoint's index.
    pub(crate) fn images(&self, manifest: &Manifest) -> Result<Images> {
        let files = manifest.images.iter().map(|image| {
            (self.image_path(manifest.number, image.checkpoint), image.identity(manifest.bank))
        });
        Images::open(files, manifest.log_begin, manifest.log_end)
    }

    /// Begins to write a checkpoint.
    pub(crate) fn begin(&self, number: u64) -> Result<PartialCheckpoint<'_>> {
        let mut attempt = 0;
        // Ends: with a directory, an error, or the last name.
        let dir = loop {
            let dir = self.partial_of(number, attempt);
            let made = match dir.create_dir() {
                // An attempt that failed may not have been able to clear away what it had written. What can't be cleared
                // away keeps its name.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    match dir.remove_dir_all() {
                        Err(_) if attempt + 1 < removal::PARTIAL_NAMES => {
                            attempt += 1;
                            continue;
                        }
                        Err(error) => Err(Error::io("remove", &self.partial_of(number, 0), error)),
                        Ok(()) => dir.create_dir().map_err(|e| Error::io("create", &dir, e)),
                    }
                }
                made => made.map_err(|e| Error::io("create", &dir, e)),
            };
            made?;
            break dir;
        };
        Ok(PartialCheckpoint { of: self, number, dir, finished: false })
    }

    /// Makes the checkpoints' names durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let synced = self.dir.as_ref().map_or(Ok(()), |dir| dir.sync());
        synced.map_err(|e| Error::io("sync", self.path(), e))
    }

    /// A checkpoint's manifest, checked.
    pub(crate) fn manifest(&self, number: u64) -> Result<Manifest> {
        let place = self.manifest_path(number);
        let bytes = place.read().map_err(|e| Error::io("read", &place, e))?;
        let damaged = |what: String| Error::Damaged { path: place.path(), offset: 0, what };
        Manifest::decode(&bytes, number).map_err(damaged)
    }

    /// The caller's bytes, checked.
    pub(crate) fn blob(&self, manifest: &Manifest) -> Result<Vec<u8>> {
        let path = self.blob_path(manifest.number);
        let mut reader = CheckedReader::open(&path, manifest.blob_identity().stream(BLOB_KIND))?;
        let blob = reader.read_to_end(manifest.blob_bytes as usize)?;
        if blob.len() as u64 != manifest.blob_bytes {
            let what = format!("{} bytes, not {}", blob.len(), manifest.blob_bytes);
            return Err(reader.damaged(0, what));
        }
        reader.finish()?;
        Ok(blob)
    }

    /// Has a checkpoint stay, durably, whatever is pruned: an empty file in its directory says so.
    pub(crate) fn pin(&self, number: u64) -> Result<()> {
        let mark = self.pin_path(number);
        match mark.create_new() {
            Ok(_) => {}
            // Synced again: an earlier attempt may have failed in between.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io("create", &mark, e)),
        }
        let dir = self.dir_of(number);
        dir.sync().map_err(|e| Error::io("sync", &dir, e))
    }

    /// Lets a checkpoint go with the next pruning that finds it old.
    pub(crate) fn unpin(&self, number: u64) -> Result<()> {
        let mark = self.pin_path(number);
        let dir = self.dir_of(number);
        mark.remove_file_if_there().map_err(|e| Error::io("remove", &mark, e))?;
        dir.sync().map_err(|e| Error::io("sync", &dir, e))
    }

    /// Whether a checkpoint is pinned.
    pub(crate) fn is_pinned(&self, number: u64) -> Result<bool> {
        let mark = self.pin_path(number);
        let found = mark.stat_if_there().map_err(|e| Error::io("stat", &mark, e))?;
        Ok(found.is_some())
    }

    fn pin_path(&self, number: u64) -> Place {
        self.dir_of(number).join(PINNED)
    }
}

impl PartialCheckpoint<'_> {
    /// Where the image of the index goes that checkpoint `image` wrote.
    pub(crate) fn image_path(&self, image: u64) -> Place {
        self.dir.join(image_name(image))
    }

    /// Where the blob goes.
    pub(crate) fn blob_path(&self) -> Place {
        self.dir.join(BLOB)
    }

    /// Where a file of another checkpoint goes in this one.
    pub(crate) fn path_of(&self, other: &Place) -> Place {
        self.dir.join(other.name().file_name().unwrap_or_default())
    }

    /// Links the images of checkpoint `number` into this one, which adds to them. False if the file system can't;
    /// then some may be there.
    pub(crate) fn link_images(&self, number: u64, images: &[ImageEntry]) -> bool {
        images.iter().all(|image| {
            let from = self.of.image_path(number, image.checkpoint);
            let to = self.image_path(image.checkpoint);
            // The content was synced with its own checkpoint; not every file system counts a new name to it.
            from.hard_link(&to).and_then(|()| to.sync()).is_ok()
        })
    }

    /// Links the images of checkpoint `of` into this one, or copies them where the file system can't.
    pub(crate) fn take_images(&self, of: &Manifest, images: &[ImageEntry]) -> Result<()> {
        if self.link_images(of.number, images) {
            return Ok(());
        }
        self.unlink_images(images)?;
        for image in images {
            let identity = image.identity(of.bank).stream(image::KIND);
            let from = self.of.image_path(of.number, image.checkpoint);
            checked_stream::copy(&from, &self.image_path(image.checkpoint), identity)?;
        }
        Ok(())
    }

    /// Takes links away again.
    pub(crate) fn unlink_images(&self, images: &[ImageEntry]) -> Result<()> {
        for image in images {
            let place = self.image_path(image.checkpoint);
            place.remove_file_if_there().map_err(|e| Error::io("remove", &place, e))?;
        }
        Ok(())
    }

    /// Writes the caller's bytes, durably.
    pub(crate) fn write_blob(&self, of: CheckpointIdentity, blob: &[u8]) -> Result<()> {
        let path = self.blob_path();
        let mut writer = CheckedWriter::create(&path, of.stream(BLOB_KIND))?;
        writer.write(blob)?;
        let (file, _) = writer.finish()?;
        file.sync_all().map_err(|e| Error::io("sync", &path, e))
    }

    /// Writes the manifest and gives the checkpoint its name: from then on it is the newest one. The
    /// name is durable when `Checkpoints::sync` has returned.
    pub(crate) fn complete(mut self, manifest: &Manifest) -> Result<()> {
        use std::io::Write;
        let place = self.dir.join(MANIFEST);
        let write = || -> io::Result<()> {
            let mut file = place.create_new()?;
            file.write_all(&metadata::encode(manifest))?;
            file.sync_all()
        };
        write().map_err(|e| Error::io("write", &place, e))?;
        self.dir.sync().map_err(|e| Error::io("sync", &self.dir, e))?;
        self.of.check_in_place()?;
        // With the mark of a removed checkpoint of this number, the new one would count as gone.
        self.of.unmark(self.number)?;
        let last = self.of.dir_of(self.number);
        self.dir.rename(&last).map_err(|e| Error::io("rename", &self.dir, e))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for PartialCheckpoint<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // A failure here leaves a partial directory, which the next open clears away.
            let _ = self.dir.remove_dir_all();
        }
    }
}

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
        }
    }

    /// What others add up and multiply was taken from the file as it was: a panic, or a number that had wrapped.
    #[test]
    fn numbers_beyond_their_bounds_are_refused() {
        let decode = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            Manifest::decode(&metadata::encode(&manifest), manifest.number)
        };
        decode(&|_| {}).unwrap();
        decode(&|manifest| manifest.unix_s = u64::MAX).unwrap();
        // There are banks whose batches took from the counts of a table that had been dropped beside them.
        let counts = |manifest: &mut Manifest, dropped| {
            let below = TableEntry { rows: 7_u64.wrapping_neg(), dropped, ..table(0) };
            let shrunk =
                TableEntry { number: 2, variable: true, record_bytes: u64::MAX, ..below.clone() };
            manifest.tables = vec![below, shrunk, TableEntry { number: 3, ..table(100) }];
        };
        assert_eq!(decode(&|manifest| counts(manifest, true)).unwrap().rows(), 100);
        decode(&|manifest| counts(manifest, false)).unwrap_err();
        let changes: [&dyn Fn(&mut Manifest); 14] = [
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
