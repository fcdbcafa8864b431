//! Reads the log's segment files with plain reads, which every file system supports. Never writes
//! to a segment file.

use crate::record::check;
use crate::record::check::Checked;
use crate::record::check::Site;
use crate::record::check::Unsound;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::lineage::Lineage;
use crate::checkpoint::manifest::Manifest;
use crate::device::placement::is_of_part;
use crate::device::segments::listing;
use crate::device::segments::names::{first_offset, segment_name};
use crate::error::{Error, Result};
use crate::files::directory::{Directory, Place};
use crate::log::page::{PAGE_HEADER_BYTES, PageIdentity, check_image};
use crate::record::address::Address;
use crate::record::layout::{HEADER_BYTES, RecordImage, Shape};

/// Largest number of segment files that are open at a time. At the limit, all open files are closed
/// before the next file is opened.
const OPEN_FILES_MAX: usize = 64;
/// Length of the first read of a record, in bytes. A longer record needs a second read; most
/// records are shorter.
const FIRST_BYTES: usize = 4096;

/// Total size of the log's segment files and of the cold tier's parts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogSize {
    /// Sum of the files' lengths.
    pub(super) file_bytes: u64,
    /// Bytes of disk that the files occupy. Less than `file_bytes` if the writer freed space inside
    /// a file.
    pub(super) disk_bytes: u64,
    pub(super) segments: u64,
    pub(super) parts: u64,
    /// Bytes of disk that the parts occupy.
    pub(super) part_disk_bytes: u64,
}

/// The log of one bank.
#[derive(Debug)]
pub(super) struct LogFiles {
    folder: Place,
    pub(super) segment_bytes: u64,
    pub(super) page_bytes: u64,
    lineage: Lineage,
    open: BTreeMap<u64, File>,
    /// The address range of each segment file, as begin and end. `None` if the folder can't be
    /// listed.
    there: Option<BTreeMap<u64, u64>>,
    /// Buffer for a record that `record` reads by its address.
    record: Vec<u8>,
}

/// A sound record, or a text that describes the damage at its address.
pub(super) type Looked<'a> = std::result::Result<RecordImage<'a>, String>;

/// A page of the log that was read. It may be sound or damaged.
#[derive(Debug)]
pub(super) struct PageRead {
    pub(super) start: u64,
    /// The page's bytes. Bytes that the file lacks are zero.
    pub(super) bytes: Vec<u8>,
    /// Number of bytes of the page that the file contained.
    pub(super) there: usize,
    /// Number of bytes in use, according to the page header. If the header is damaged, the length
    /// of the page.
    pub(super) used: usize,
    /// Part of the seed for the checksums of the page's records; see `PageIdentity::origin`.
    origin: u64,
    /// Describes the page's damage. `None` if the page is sound.
    pub(super) fault: Option<String>,
}

/// Returns the sizes of a bank's segment files and parts.
pub(super) fn log_size(bank: &Arc<Directory>) -> Result<LogSize> {
    let folder = bank.place("log");
    let mut size = LogSize::default();
    let names = match folder.names() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(size),
        names => names.map_err(|e| Error::io("list", &folder, e))?,
    };
    for name in names {
        let place = folder.join(name);
        let Some(first) = first_offset(place.name().file_name().unwrap_or_default()) else {
            continue;
        };
        // The file may be gone: another process that writes the bank may have removed it after the
        // listing.
        if let Some(found) = place.stat_if_there().map_err(|e| Error::io("stat", &place, e))? {
            let disk_bytes = found.st_blocks.cast_unsigned() * 512;
            if is_of_part(first) {
                size.parts += 1;
                size.part_disk_bytes += disk_bytes;
            } else {
                size.segments += 1;
                size.file_bytes += found.st_size.cast_unsigned();
                size.disk_bytes += disk_bytes;
            }
        }
    }
    Ok(size)
}

/// Returns the address range of each segment file in a folder, as begin and end. `None` if the
/// folder can't be listed.
fn files_there(folder: &Place) -> Option<BTreeMap<u64, u64>> {
    let mut there = BTreeMap::new();
    for name in folder.names().ok()? {
        let Some(first) = first_offset(&name) else { continue };
        there.insert(first, first.saturating_add(folder.join(&name).len().ok()?));
    }
    Some(there)
}

/// Lists the names in the folder `log` that have the form of a segment's, and that an opening
/// refuses because they can't belong to the log. `segment_bytes` is the bank's segment size.
pub(super) fn refused(bank: &Arc<Directory>, segment_bytes: u64) -> Vec<(PathBuf, String)> {
    let folder = bank.place("log");
    let names = folder.names().unwrap_or_default();
    match listing::list(names, |name| folder.join(name), segment_bytes) {
        Ok(listed) => {
            listed.into_iter().filter_map(|file| Some((file.place.path(), file.refused?))).collect()
        }
        Err((place, error)) => vec![(place.path(), error.to_string())],
    }
}

impl LogFiles {
    /// Opens the log that `manifest` describes.
    pub(super) fn new(bank: &Arc<Directory>, manifest: &Manifest) -> Self {
        let folder = bank.place("log");
        LogFiles {
            there: files_there(&folder),
            folder,
            segment_bytes: manifest.segment_bytes,
            page_bytes: 1 << manifest.page_bits,
            lineage: manifest.lineage(),
            open: BTreeMap::new(),
            record: Vec::new(),
        }
    }

    /// Adds older openings of the bank from the manifest `older` of an earlier checkpoint. Each
    /// opening has a random salt, which the checksums of its pages cover. With the salts of the
    /// older openings, the pages that they wrote can be checked.
    pub(super) fn extend_back(&mut self, older: &Manifest) {
        self.lineage.extend_back(&older.lineage());
    }

    /// Adds to the lineage which opening of the bank wrote each page between the addresses `from`
    /// and `end`, as the pages' headers say. The caller uses this for pages about which no readable
    /// manifest has this information.
    pub(super) fn trust_headers(&mut self, from: u64, end: u64) {
        let mut page = PageRead::new();
        let mut next = from;
        // The loop ends: each turn advances by at least one page.
        while next < end {
            let start = self.next_there(next).min(end);
            next = start.saturating_add(self.page_bytes);
            if start == end {
                break;
            }
            self.page(start, &mut page);
            let number = start / self.page_bytes;
            let mut salt = [0; 8];
            salt.copy_from_slice(&page.bytes[32..40]);
            let salt = u64::from_le_bytes(salt);
            let claimed = PageIdentity { salt, ..self.lineage.page(number) };
            // Each opening of the bank has a random salt. The checksum covers the salt, so a wrong
            // salt in the header makes the check fail.
            let sound = check_image(&page.bytes, claimed, || (PathBuf::new(), 0)).is_ok();
            if sound && claimed != self.lineage.page(number) {
                self.lineage = self.lineage.clone().then(number, salt);
            }
        }
    }

    /// Returns the address of the first page at or after `from` that is at least partly in a file.
    /// `u64::MAX` if there is no such page. With this address the caller skips all missing pages at
    /// once, because a damaged bank may lack very many pages.
    pub(super) fn next_there(&self, from: u64) -> u64 {
        let Some(there) = &self.there else { return from };
        if there.range(..=from).next_back().is_some_and(|(_, end)| *end > from) {
            return from;
        }
        let mut after = there.range(from..).filter(|(first, end)| end > first);
        after.next().map_or(u64::MAX, |(first, _)| first / self.page_bytes * self.page_bytes)
    }

    /// Returns the segment file of an address, and the offset in the file.
    pub(super) fn locate(&self, offset: u64) -> (PathBuf, u64) {
        let (place, within) = self.place(offset);
        (place.path(), within)
    }

    fn place(&self, offset: u64) -> (Place, u64) {
        let within = offset % self.segment_bytes;
        (self.folder.join(segment_name(offset - within)), within)
    }

    /// Reads bytes at address `offset` from one segment file. Returns the number of bytes read,
    /// which is smaller than the length of `into` if the file is too short or does not exist.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let (place, within) = self.place(offset);
        let number = offset / self.segment_bytes;
        if !self.open.contains_key(&number) {
            if self.open.len() >= OPEN_FILES_MAX {
                self.open.clear();
            }
            match place.open() {
                Ok(file) => self.open.insert(number, file),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
                Err(e) => return Err(Error::io("open", &place, e)),
            };
        }
        let file = &self.open[&number];
        let mut done = 0;
        while done < into.len() {
            match file.read_at(&mut into[done..], within + done as u64) {
                Ok(0) => break,
                Ok(moved) => done += moved,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", &place, e)),
            }
        }
        Ok(done)
    }

    /// Reads and checks the page at address `start`. If the disk can't read it, the page counts as
    /// damaged.
    pub(super) fn page(&mut self, start: u64, page: &mut PageRead) {
        page.start = start;
        page.bytes.resize(self.page_bytes as usize, 0);
        let mut bytes = std::mem::take(&mut page.bytes);
        let read = self.read(start, &mut bytes);
        page.bytes = bytes;
        let number = start / self.page_bytes;
        page.used = page.bytes.len();
        page.there = *read.as_ref().unwrap_or(&0);
        page.bytes[page.there..].fill(0);
        let identity = self.lineage.page(number);
        page.origin = identity.origin();
        page.fault = match read {
            Err(error) => Some(format!("page {number} can't be read: {error}")),
            Ok(0) => Some(format!("page {number} is not there: the file is cut short")),
            Ok(there) if there < page.bytes.len() => Some(format!(
                "page {number}: the file is cut short, {there} of {} bytes are there",
                page.bytes.len()
            )),
            Ok(_) => match check_image(&page.bytes, identity, || (PathBuf::new(), 0)) {
                Ok(used) => {
                    page.used = used as usize;
                    None
                }
                Err(Error::Damaged { what, .. }) => Some(what),
                Err(error) => Some(error.to_string()),
            },
        };
    }

    /// Reads and checks the record at any address of the log. The error describes the damage.
    pub(super) fn record(&mut self, address: u64) -> Looked<'_> {
        let room = (self.page_bytes - address % self.page_bytes) as usize;
        let mut record = std::mem::take(&mut self.record);
        let mut wanted = room.min(FIRST_BYTES);
        // The loop ends after at most two turns: the second turn reads the whole length that the
        // record's header gives.
        loop {
            record.resize(wanted, 0);
            let read = self.read(address, &mut record);
            let there = read.map_err(|error| error.to_string())?;
            record.truncate(there);
            if there >= HEADER_BYTES {
                let length = RecordImage::new(&record).shape().record_bytes();
                if length > there && length <= room && there == wanted {
                    wanted = length;
                    continue;
                }
            }
            break;
        }
        self.record = record;
        let origin = self.lineage.origin(Address::new(address));
        sound_record(&self.record, origin, address)
    }
}

impl PageRead {
    pub(super) fn new() -> Self {
        PageRead { start: 0, bytes: Vec::new(), there: 0, used: 0, origin: 0, fault: None }
    }

    /// Returns the record at an offset of the page. The page may be damaged. The error describes
    /// the damage of the record.
    pub(super) fn record(&self, offset: usize) -> Looked<'_> {
        let bytes = &self.bytes[offset..self.used.max(offset)];
        sound_record(bytes, self.origin, self.start + offset as u64)
    }

    /// Calls `visit` with the offset and content of each sound record of the page.
    ///
    /// In a page without a fault, each record begins where the last record ends. A damaged record
    /// in such a page is reported to `visit` and ends the search.
    ///
    /// In a page with a fault, every offset that is a multiple of 8 is tried. Bytes that are not a
    /// record fail the check, because a record's checksum also covers its address. To save time,
    /// the checksum is computed only if `known` returns true for the table and length in the
    /// supposed header.
    pub(super) fn records(
        &self,
        known: impl Fn(Shape) -> bool,
        mut visit: impl FnMut(usize, Looked<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut at = PAGE_HEADER_BYTES as usize;
        // The loop ends: each turn advances by at least 8 bytes.
        while at + HEADER_BYTES <= self.used {
            if self.fault.is_some() {
                let plausible = known(RecordImage::new(&self.bytes[at..]).shape());
                match plausible.then(|| self.record(at)) {
                    Some(Ok(record)) => {
                        visit(at, Ok(record))?;
                        at += record.shape().record_bytes();
                    }
                    _ => at += 8,
                }
                continue;
            }
            match self.record(at) {
                Ok(record) => {
                    visit(at, Ok(record))?;
                    at += record.shape().record_bytes();
                }
                Err(what) => return visit(at, Err(what)),
            }
        }
        Ok(())
    }
}

/// Checks the record at the start of `bytes`. The error describes the damage.
fn sound_record(bytes: &[u8], origin: u64, address: u64) -> Looked<'_> {
    let address = Address::new(address);
    let room_bytes = bytes.len();
    match check::check(bytes, Site { address, origin, room_bytes, record_bytes_max: room_bytes }) {
        Ok(Checked::Sound(image)) => Ok(image),
        Ok(Checked::Needs(_)) => unreachable!("the record has no room beyond these bytes"),
        Err(Unsound::NoRoom) => Err("no record lies there".into()),
        Err(Unsound::TooLong) => Err("a record runs past its page".into()),
        Err(Unsound::Checksum { stored, computed }) => {
            Err(format!("a record's checksum is {computed:#010x}, not {stored:#010x}"))
        }
    }
}

/// Visits the sound records of a page in address order. The fuzz targets use it.
#[cfg(any(test, fuzzing))]
pub(crate) fn walk_page(
    identity: PageIdentity,
    bytes: Vec<u8>,
    known: impl Fn(Shape) -> bool,
    mut visit: impl FnMut(usize, RecordImage<'_>),
) {
    let start = identity.page * bytes.len() as u64;
    let checked = check_image(&bytes, identity, || (PathBuf::new(), 0));
    let (used, fault) = match checked {
        Ok(used) => (used as usize, None),
        Err(error) => (bytes.len(), Some(error.to_string())),
    };
    let origin = identity.origin();
    let page = PageRead { start, there: bytes.len(), bytes, used, origin, fault };
    let walked = page.records(known, |offset, record| {
        record.into_iter().for_each(|record| visit(offset, record));
        Ok(())
    });
    walked.expect("the visitor does not fail");
}
