//! The log's segment files, read and never written: plain reads, so that any file system will do.

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
use crate::error::{Error, Result};
use crate::files::directory::{Directory, Place};
use crate::log::page::{PAGE_HEADER_BYTES, PageIdentity, check_image};
use crate::record::address::Address;
use crate::record::layout::{HEADER_BYTES, RecordImage, Shape};

/// Handles that stay open.
const OPEN_FILES_MAX: usize = 64;
/// What is read of a record at first; most fit.
const FIRST_BYTES: usize = 4096;

/// What the log's files take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogSize {
    /// Their lengths together.
    pub(super) file_bytes: u64,
    /// What the file system has given them: less than that where space was given back within a file.
    pub(super) disk_bytes: u64,
    pub(super) segments: u64,
}

/// The log of one bank.
#[derive(Debug)]
pub(super) struct LogFiles {
    folder: Place,
    pub(super) segment_bytes: u64,
    pub(super) page_bytes: u64,
    lineage: Lineage,
    open: BTreeMap<u64, File>,
    /// Where the files that are there begin and end in the log; none if that can't be told.
    there: Option<BTreeMap<u64, u64>>,
    /// What a record outside of the present page is read into.
    record: Vec<u8>,
}

/// A record that is sound, or what is wrong with what lies in its place.
pub(super) type Looked<'a> = std::result::Result<RecordImage<'a>, String>;

/// A page as it was found.
#[derive(Debug)]
pub(super) struct PageRead {
    pub(super) start: u64,
    /// Zeros where the file has nothing.
    pub(super) bytes: Vec<u8>,
    /// How much of it was there.
    pub(super) there: usize,
    /// Bytes in use, as its header says; all of them where the header can't be trusted.
    pub(super) used: usize,
    /// The seed of its records' checksums.
    origin: u64,
    /// What is wrong with it.
    pub(super) fault: Option<String>,
}

/// The sizes of a bank's segment files.
pub(super) fn log_size(bank: &Arc<Directory>) -> Result<LogSize> {
    let folder = bank.place("log");
    let mut size = LogSize::default();
    let names = match folder.names() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(size),
        names => names.map_err(|e| Error::io("list", &folder, e))?,
    };
    for name in names {
        let place = folder.join(name);
        if place.name().extension().is_none_or(|extension| extension != "seg") {
            continue;
        }
        // One that is gone by now was given back by a writer.
        if let Some(found) = place.stat_if_there().map_err(|e| Error::io("stat", &place, e))? {
            size.file_bytes += found.st_size.cast_unsigned();
            size.disk_bytes += found.st_blocks.cast_unsigned() * 512;
            size.segments += 1;
        }
    }
    Ok(size)
}

/// Where in the log the segment files of a folder begin and end.
fn files_there(folder: &Place) -> Option<BTreeMap<u64, u64>> {
    let mut there = BTreeMap::new();
    for name in folder.names().ok()? {
        let first = name.to_str().and_then(|name| name.strip_suffix(".seg"));
        let Some(first) = first.and_then(|first| u64::from_str_radix(first, 16).ok()) else {
            continue;
        };
        there.insert(first, first.saturating_add(folder.join(&name).len().ok()?));
    }
    Some(there)
}

impl LogFiles {
    /// The log that a checkpoint's manifest describes.
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

    /// Adds what `older`, the manifest of an earlier checkpoint, says of pages that this log does not begin with.
    pub(super) fn extend_back(&mut self, older: &Manifest) {
        self.lineage.extend_back(&older.lineage());
    }

    /// Goes by the pages' own headers from log offset `from` up to `end`, which no manifest that can be read names.
    pub(super) fn trust_headers(&mut self, from: u64, end: u64) {
        let mut page = PageRead::new();
        let mut next = from;
        // Ends: each turn goes on by a page at least.
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
            // A sound page: its checksum covers the salt.
            let sound = check_image(&page.bytes, claimed, || (PathBuf::new(), 0)).is_ok();
            if sound && claimed != self.lineage.page(number) {
                self.lineage = self.lineage.clone().then(number, salt);
            }
        }
    }

    /// The page at `from`, or the first one after it of which a file has a part; the end of all addresses if there
    /// is none. A manifest can name far more pages than there are: nobody goes through those one by one.
    pub(super) fn next_there(&self, from: u64) -> u64 {
        let Some(there) = &self.there else { return from };
        if there.range(..=from).next_back().is_some_and(|(_, end)| *end > from) {
            return from;
        }
        let mut after = there.range(from..).filter(|(first, end)| end > first);
        after.next().map_or(u64::MAX, |(first, _)| first / self.page_bytes * self.page_bytes)
    }

    /// The file of a log offset, and the place in it.
    pub(super) fn locate(&self, offset: u64) -> (PathBuf, u64) {
        let (place, within) = self.place(offset);
        (place.path(), within)
    }

    fn place(&self, offset: u64) -> (Place, u64) {
        let within = offset % self.segment_bytes;
        (self.folder.join(format!("{:016x}.seg", offset - within)), within)
    }

    /// Reads within one segment; returns how many bytes were there.
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

    /// Reads the page that begins at `start` and checks it. A part of the disk that can't be read is a fault of
    /// the page like any other.
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

    /// The record at an address anywhere in the log, or what is wrong with it.
    pub(super) fn record(&mut self, address: u64) -> Looked<'_> {
        let room = (self.page_bytes - address % self.page_bytes) as usize;
        let mut record = std::mem::take(&mut self.record);
        let mut wanted = room.min(FIRST_BYTES);
        // Ends: the second turn reads all that the record's length asks for.
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

    /// The record at an offset in the page, whether the page is good or not, or what is wrong with it.
    pub(super) fn record(&self, offset: usize) -> Looked<'_> {
        let bytes = &self.bytes[offset..self.used.max(offset)];
        sound_record(bytes, self.origin, self.start + offset as u64)
    }

    /// Calls `visit` for each sound record. In a good page they lie back to back, and one that is not sound is
    /// reported and the last. In a damaged page the next one is looked for wherever it may begin: its checksum
    /// covers origin and address, so nothing else is taken for it. `known` says of which tables and lengths
    /// records can be: only of those are checksums taken.
    pub(super) fn records(
        &self,
        known: impl Fn(Shape) -> bool,
        mut visit: impl FnMut(usize, Looked<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut at = PAGE_HEADER_BYTES as usize;
        // Ends: each turn goes on by 8 bytes at least.
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

/// The record that `bytes` begin with, if its checksum is right.
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

/// Goes through the sound records of a page, good or damaged, as they lie in it: for the fuzz targets.
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
