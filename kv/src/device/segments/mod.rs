//! Maps the log's address space to segment files, and the parts of the cold tier to files.
//!
//! Log offset `o` is in the file `log/<first offset, 16 hex digits>.seg`. All segments have one
//! fixed size, a power of two, so the log's beginning can be removed in whole files. Each part has
//! one file, with a name of the same form (see `placement`). `truncate` and `free` change segments
//! alone. A file is opened
//! when it is first needed, with `O_DIRECT` if the file system allows it, and stays open until its
//! place is needed (`open_files`). If too many files wait for a sync, the next write syncs all but
//! the last. Before the log begins a segment without a free descriptor, the device syncs the
//! earlier segments, which then need no open file.
//!
//! Durability depends on these rules:
//! - A write marks its file as unsynced after it has completed and before it returns, so a later
//!   sync finds the file. An unsynced file keeps the handle of the write, because the kernel
//!   reports a failed write-back to that handle.
//! - A write that creates a file sets `folder_unsynced` before the write returns.
//! - One sync runs at a time. Otherwise a sync could find nothing to do and return while another
//!   sync is still at work.
//! - A file with a second name also belongs to a copy of the bank (see `history::copy`), and must
//!   not change. The device punches no hole into such a file. The log continues in its last
//!   segment. If that segment has a second name, is a symbolic link, or if this user may not write
//!   to it, an opening of the bank (`truncate`) replaces it by a copy. The store writes to no
//!   earlier segment. While a copier makes second names, it holds its checkpoint, so the bank
//!   neither removes the segments that the copier needs nor punches holes into them. A reader of an
//!   older checkpoint may have the replaced file open, so a read-only store opens a new device for
//!   each checkpoint (`store::reading`).
//! - The first write to a segment decides which file the device writes (`written`): a new file, or
//!   an existing file with one name. A file that another program put there under another's name is
//!   replaced, not written. Later the name must lead to the same file.
//! - Each write and each sync first compares the descriptor with the file that was opened
//!   (`HeldFile`).
//! - After a failed sync the kernel may have marked the lost pages clean. A second sync would then
//!   report success (the "fsyncgate" of PostgreSQL, 2018). `sync_failure` therefore keeps the
//!   failure, and each later sync returns it.

mod growth;
pub(crate) mod listing;
pub(crate) mod names;
pub(crate) mod open_files;
mod own;
pub(crate) mod segment;
#[cfg(test)]
mod tests;

use crate::device::segments::growth::{Changing, Growth};
use crate::device::segments::names::FOLDER;
use crate::device::segments::names::is_unfinished;
use crate::device::segments::names::segment_name;
use crate::device::segments::open_files::{Held, OPEN_FILES_MIN, OpenFiles, Purpose, Taken, Wait};
use crate::device::segments::own::{
    is_another_users, is_own, is_shared, make_own, remove_or_empty,
};
use crate::device::segments::segment::Segment;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::process::descriptors;
use crate::process::locks::Mutex;

use crate::device::placement::{COLD_BEGIN, Placement, is_of_part};
use crate::device::segments::listing::Listed;
use crate::device::transfer::{self};
use crate::device::{BLOCK_BYTES, DeviceOptions, Freed, PartFile, Read, open_file};
use crate::error::{Error, Result};
use crate::files::directory::{Directory, FileIdentity, Place};
use crate::files::held_file::HeldFile;
use crate::sync::{AtomicBool, Ordering};

/// Default size of a segment file: 256 MiB. On a file system without holes, the device returns
/// space only in whole files.
pub const SEGMENT_SIZE_BYTES_DEFAULT: u64 = 256 << 20;

/// Limit of the files that wait for a sync. Each occupies a descriptor. After direct writes a sync
/// of 16 files is quick, because the blocks are on the drive. Without direct writes only one file
/// may wait.
const UNSYNCED_FILES_MAX: usize = 16;

/// The segment files at the log's beginning that `free` has removed, or has tried to remove.
#[derive(Debug, Default)]
struct FreedFiles {
    /// Number of the first segment that may exist. Segments in `left` may exist too.
    first: u64,
    /// Segments before `first` that could not be removed, and the reason.
    left: BTreeMap<u64, String>,
    /// Messages about unfinished files that could not be removed.
    unfinished: Vec<String>,
}

/// The segment files of one log, and the files of the parts beside it.
#[derive(Debug)]
pub(super) struct Segments {
    bank: Arc<Directory>,
    /// The directory `log`.
    folder: Arc<Directory>,
    placement: Placement,
    read_only: bool,
    direct: bool,
    block_bytes: usize,
    direct_refused: Option<String>,
    open: Arc<OpenFiles>,
    /// The files that this device has written, by segment number.
    written: Mutex<BTreeMap<u64, FileIdentity>>,
    folder_unsynced: AtomicBool,
    /// True if the device may allocate blocks beyond the log's end.
    allocates_ahead: bool,
    growth: Growth,
    /// Locked while space is returned to the file system.
    freed: Mutex<FreedFiles>,
    /// The first failed sync. Locked during each sync.
    sync_failure: Mutex<Option<String>>,
}

impl Segments {
    /// Opens the segment files of the bank in `dir`. Creates their folder if it does not exist,
    /// durably.
    pub(super) fn open(dir: &Arc<Directory>, options: &DeviceOptions) -> Result<Self> {
        options.check()?;
        let opened = if options.read_only {
            dir.subdirectory(FOLDER)
        } else {
            dir.make_subdirectory(FOLDER)
        };
        let folder = opened.map_err(|e| Error::io("open", &dir.place(FOLDER), e))?;
        let files = descriptors::segment_files_max(options.open_files_max, options.rings_max);
        let mut segments = Self {
            bank: Arc::clone(dir),
            folder,
            read_only: options.read_only,
            placement: Placement { segment_size_bytes: options.segment_size_bytes },
            direct: false,
            block_bytes: BLOCK_BYTES,
            direct_refused: None,
            open: OpenFiles::new(files.max(OPEN_FILES_MIN)),
            written: Mutex::default(),
            folder_unsynced: AtomicBool::new(false),
            allocates_ahead: options.allocates_ahead,
            growth: Growth::default(),
            freed: Mutex::default(),
            sync_failure: Mutex::default(),
        };
        let on_disk = segments.on_disk()?;
        let mut of_log = on_disk.iter().filter(|file| !is_of_part(file.first));
        let first = of_log.clone().next();
        segments.freed.lock().first = first.map_or(0, |file| segments.number(file.first));
        let probed = if options.read_only {
            // No writer removes the last segment.
            let last = of_log.next_back().or(on_disk.last());
            open_file::probe_direct_reads(last.map(|file| &file.place))
        } else {
            open_file::probe_direct(&segments.folder)
        };
        match probed {
            Ok(block_bytes) => {
                segments.direct = true;
                segments.block_bytes = block_bytes;
            }
            Err(refused) => segments.direct_refused = Some(refused),
        }
        Ok(segments)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// True if a file contains log offset `offset`.
    pub(super) fn holds(&self, segment: &Segment, offset: u64) -> bool {
        segment.number == self.number(offset)
    }

    pub(super) fn segment_size_bytes(&self) -> u64 {
        self.placement.segment_size_bytes
    }

    /// See [`Device::block_bytes`](crate::device::Device::block_bytes).
    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    pub(super) fn direct_refused(&self) -> Option<&str> {
        self.direct_refused.as_deref()
    }

    /// Returns the file that contains log offset `offset`, and the offset in that file.
    pub(super) fn locate(&self, offset: u64) -> (PathBuf, u64) {
        (self.place(self.number(offset)).path(), self.within(offset))
    }

    /// Checks every read, before any read starts.
    pub(super) fn check_all(&self, reads: &[Read<'_>]) -> Result<()> {
        let check =
            |read: &Read<'_>| transfer::check(read.offset, read.buffer, self.segment_size_bytes());
        reads.iter().try_for_each(check)
    }

    /// Does one read. The caller holds no segment.
    pub(super) fn read(&self, read: &mut Read<'_>) -> Result<()> {
        let segment = self.for_reading(read.offset, read.buffer.len())?;
        segment.read_exact(self.within(read.offset), read.buffer)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable("write")?;
        transfer::check(offset, bytes, self.segment_size_bytes())?;
        let segment = self.for_writing(self.number(offset), self.within(offset))?;
        if is_of_part(offset) {
            // No thread reads a part before it is complete, so its writes need no allocation.
            segment.write_all(self.within(offset), bytes)?;
        } else {
            let growth = self.growth.change();
            self.allocate(&growth, &segment, offset, bytes.len() as u64);
            segment.write_all(self.within(offset), bytes)?;
            growth.note_written(offset + bytes.len() as u64);
        }
        let unsynced = self.open.note_written(&segment);
        drop(segment);
        // While another thread syncs, that thread frees places, and this write returns at once.
        // Only if more than `at_most` files wait, this write waits for the other sync.
        let (wanted, at_most) = self.unsynced_max();
        if unsynced <= wanted {
            Ok(())
        } else if unsynced > at_most {
            self.sync_all_but_last(&mut self.sync_failure.lock())
        } else {
            let free = self.sync_failure.try_lock();
            free.map_or(Ok(()), |mut failure| self.sync_all_but_last(&mut failure))
        }
    }

    /// Allocates blocks for a write of `bytes` bytes at log offset `offset` and for writes after
    /// it, unless an earlier allocation covers the write. See `growth`.
    fn allocate(&self, growth: &Changing<'_>, segment: &Segment, offset: u64, bytes: u64) {
        let within = self.within(offset);
        let room = if self.direct && self.allocates_ahead { self.room_bytes() } else { None };
        let rest = self.segment_size_bytes() - within;
        let Some(wanted) = growth.wanted(offset, bytes, rest, room.unwrap_or(0)) else { return };
        // `write_all` reports a descriptor that fails this check.
        if segment.file.check().is_err() {
            return;
        }
        // After a failure, the writes up to the next sync or the next segment allocate for
        // themselves.
        let is_allocated = open_file::allocate(segment.file(), within, wanted);
        growth.note_allocated(offset, offset + if is_allocated { wanted } else { rest });
    }

    /// Cuts the last file where the log ends. Leaves the file as it is in these cases, because the
    /// bytes beyond the log's end do no harm, and the next opening for writing cuts the file: the
    /// file system has no room for the change, all open files are in use, or the file is not this
    /// bank's alone.
    pub(super) fn cut(&self) -> Result<()> {
        let growth = self.growth.change();
        let Some((written, allocated)) = growth.surplus() else { return Ok(()) };
        let number = self.number(allocated - 1);
        let Taken::Held(segment) = self.take(number, Wait::No, Purpose::Change)? else {
            return Ok(());
        };
        let len = written.saturating_sub(self.placement.first(number));
        let is_written = self.written.lock().get(&number) == Some(&segment.file.identity());
        let cut = || {
            segment.file.check()?;
            if is_written && is_own(segment.file())? {
                segment.file().set_len(len)?;
                growth.note_cut();
            }
            Ok(())
        };
        match cut().map_err(|e| Error::io("truncate", &segment.place, e)) {
            Err(error) if error.want().is_none() => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns two numbers of files that wait for a sync: beyond the first number a write syncs if
    /// no other thread does, and beyond the second number it waits for that thread. So at most
    /// twice the second number of files, and two more, wait for a sync or are in one. This leaves
    /// at least one of [`OPEN_FILES_MIN`] files, and most of many files, for reads.
    fn unsynced_max(&self) -> (usize, usize) {
        let most = if self.direct { UNSYNCED_FILES_MAX } else { 1 };
        let limit = self.open.limit();
        ((limit / 16).clamp(1, most), (limit / 8).clamp(1, 2 * most))
    }

    /// Syncs all files except the last segment and the last part, which are being written.
    fn sync_all_but_last(&self, failure: &mut Option<String>) -> Result<()> {
        let parts = self.number(COLD_BEGIN);
        let written = [self.open.last_unsynced(0..parts), self.open.last_unsynced(parts..u64::MAX)];
        self.sync_files(|number| !written.contains(&Some(number)), failure)
    }

    /// Syncs the files whose numbers `wanted` accepts.
    fn sync_files(&self, wanted: impl Fn(u64) -> bool, failure: &mut Option<String>) -> Result<()> {
        self.check_sync(failure)?;
        let synced = sync_all(&self.open.take_unsynced(wanted));
        synced.inspect_err(|error| *failure = Some(error.to_string()))
    }

    pub(super) fn sync(&self) -> Result<()> {
        let mut failure = self.sync_failure.lock();
        self.check_sync(&failure)?;
        self.cut()?;
        self.sync_unsynced().inspect_err(|error| *failure = Some(error.to_string()))
    }

    fn check_sync(&self, failure: &Option<String>) -> Result<()> {
        let Some(earlier) = failure else { return Ok(()) };
        let source = io::Error::other(format!(
            "an earlier sync failed ({earlier}), so what was written before it may be lost; \
             reopen the bank at its last checkpoint"
        ));
        Err(Error::io("sync", self.folder.path(), source))
    }

    fn sync_unsynced(&self) -> Result<()> {
        sync_all(&self.open.take_unsynced(|_| true))?;
        // SeqCst: pairs with the store in `for_writing`.
        if self.folder_unsynced.swap(false, Ordering::SeqCst) {
            self.sync_folder()?;
        }
        Ok(())
    }

    /// Removes whole segments after `end`, from the last one on, so that a crash leaves no gap in
    /// the log. Then cuts the segment that contains `end`. Does not change files that belong to a
    /// copy of the bank.
    pub(super) fn truncate(&self, end: u64) -> Result<()> {
        self.check_writable("truncate")?;
        self.check_in_place()?;
        let Some(end) = end.checked_next_multiple_of(BLOCK_BYTES as u64) else { return Ok(()) };
        let end = end.min(COLD_BEGIN);
        self.growth.change().begin_anew();
        let mut freed = self.freed.lock();
        freed.first = freed.first.min(self.number(end));
        drop(freed);
        let unfinished = self.remove_unfinished()?;
        self.freed.lock().unfinished = unfinished;
        let of_log = self.on_disk()?.into_iter().filter(|file| !is_of_part(file.first));
        for file in of_log.rev() {
            let Listed { place, first, len, .. } = file;
            let number = self.number(first);
            let is_last = (first + 1..first + self.segment_size_bytes()).contains(&end);
            let is_copied = is_last && (is_shared(&place)? || is_another_users(&place));
            if first >= end || is_copied {
                self.open.forget(number);
                self.written.lock().remove(&number);
            }
            if first >= end {
                remove_or_empty(&place).map_err(|e| Error::io("remove", &place, e))?;
            } else if is_copied {
                make_own(&place, end - first).map_err(|e| Error::io("copy", &place, e))?;
            } else if first + len > end {
                let file = place.open_with(OFlags::RDWR | OFlags::NOFOLLOW);
                let file = file.map_err(|e| Error::io("open", &place, e))?;
                file.set_len(end - first).map_err(|e| Error::io("truncate", &place, e))?;
                file.sync_all().map_err(|e| Error::io("sync", &place, e))?;
            }
        }
        self.sync_folder()
    }

    /// Removes whole segments below `below`, from the first one on. Punches a hole into the next
    /// segment, up to `below`. A reader that has a removed file open can still read that file. If a
    /// file can't be removed, the call notes it in `freed.left` and continues.
    pub(super) fn free(&self, below: u64) -> Result<Freed> {
        self.check_writable("free")?;
        self.check_in_place()?;
        let mut state = self.freed.lock();
        let last = self.number(below);
        let mut freed = Freed { end: below, segments: 0 };
        let again: Vec<u64> = state.left.range(..last).map(|(number, _)| *number).collect();
        let next = state.first..last.max(state.first);
        self.open.remove_below(last);
        for number in again.into_iter().chain(next) {
            let place = self.place(number);
            self.open.forget(number);
            self.written.lock().remove(&number);
            match place.remove_file() {
                Ok(()) => {
                    freed.segments += 1;
                    state.left.remove(&number);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    state.left.remove(&number);
                }
                Err(error) => {
                    let error = Error::io("remove", &place, error);
                    state.left.insert(number, error.to_string());
                }
            }
        }
        state.first = state.first.max(last);
        let rest = self.within(below);
        if rest > 0 && !self.punch(last, rest) {
            // Without holes, the space is returned later with the whole file.
            freed.end = below - rest;
        }
        Ok(freed)
    }

    /// Returns the files of the parts.
    pub(super) fn part_files(&self) -> Result<Vec<PartFile>> {
        let parts = self.on_disk()?.into_iter().filter(|file| is_of_part(file.first));
        Ok(parts.map(|Listed { first, len, .. }| PartFile { begin: first, bytes: len }).collect())
    }

    /// Removes the file of the part at log offset `begin`. A reader that has the file open can
    /// still read it.
    pub(super) fn remove_part(&self, begin: u64) -> Result<()> {
        debug_assert!(is_of_part(begin), "`begin` is the address of a part");
        self.check_writable("remove")?;
        self.check_in_place()?;
        let number = self.number(begin);
        let place = self.place(number);
        self.open.forget(number);
        self.written.lock().remove(&number);
        place.remove_file_if_there().map_err(|e| Error::io("remove", &place, e))
    }

    /// Returns the space of a segment's first bytes to the file system. False if that is not
    /// possible.
    fn punch(&self, number: u64, bytes: u64) -> bool {
        match self.take(number, Wait::Yes, Purpose::Change) {
            Ok(Taken::Held(segment)) => {
                segment.file.check().is_ok()
                    && is_own(segment.file()).unwrap_or(false)
                    && open_file::punch(segment.file(), bytes)
            }
            Ok(Taken::Missing) => true,
            Ok(Taken::Busy) | Err(_) => false,
        }
    }

    /// Describes each file that could not be removed.
    pub(super) fn not_removed(&self) -> Vec<String> {
        let freed = self.freed.lock();
        freed.left.values().chain(&freed.unfinished).cloned().collect()
    }

    /// See [`Device::room_bytes`](crate::device::Device::room_bytes).
    pub(super) fn room_bytes(&self) -> Option<u64> {
        self.folder.room_bytes()
    }

    fn check_writable(&self, operation: &'static str) -> Result<()> {
        if self.read_only {
            let refused = io::Error::from(io::ErrorKind::PermissionDenied);
            return Err(Error::io(operation, self.folder.path(), refused));
        }
        Ok(())
    }

    /// Fails if the path of the bank or of its log leads to another directory now. Called before a
    /// file is created or removed.
    fn check_in_place(&self) -> Result<()> {
        self.bank.check_in_place()?;
        self.folder.check_in_place()
    }

    fn sync_folder(&self) -> Result<()> {
        self.folder.sync().map_err(|e| Error::io("sync", self.folder.path(), e))
    }

    fn number(&self, offset: u64) -> u64 {
        self.placement.number(offset)
    }

    /// Returns the offset of log offset `offset` in its file.
    pub(super) fn within(&self, offset: u64) -> u64 {
        self.placement.within(offset)
    }

    fn place(&self, number: u64) -> Place {
        self.folder.place(segment_name(self.placement.first(number)))
    }

    /// Fails for a read of bytes that are allocated and not written.
    pub(super) fn check_written(&self, offset: u64, len: usize) -> Result<()> {
        match self.growth.written_of(offset, len as u64) {
            Some(found) => Err(self.truncated(offset, len, found)),
            None => Ok(()),
        }
    }

    fn truncated(&self, offset: u64, len: usize, found: u64) -> Error {
        let (path, offset) = self.locate(offset);
        Error::Truncated { path, offset, expected: len as u64, found }
    }

    /// Takes the segment for a read of `len` bytes at log offset `offset`. The caller holds no
    /// segment.
    pub(super) fn for_reading(&self, offset: u64, len: usize) -> Result<Held<'_>> {
        self.check_written(offset, len)?;
        let taken = self.try_for_reading(offset, len, Wait::Yes)?;
        Ok(taken.expect("a thread that may wait gets its file"))
    }

    /// Does what [`for_reading`](Self::for_reading) does. `None` if the caller may not wait, and no
    /// file can be opened now.
    pub(super) fn try_for_reading(
        &self,
        offset: u64,
        len: usize,
        wait: Wait,
    ) -> Result<Option<Held<'_>>> {
        match self.take(self.number(offset), wait, Purpose::Read)? {
            Taken::Held(segment) => Ok(Some(segment)),
            Taken::Busy => Ok(None),
            Taken::Missing => Err(self.truncated(offset, len, 0)),
        }
    }

    /// Takes an existing segment.
    fn take(&self, number: u64, wait: Wait, purpose: Purpose) -> Result<Taken<'_>> {
        self.open.take(number, wait, purpose, |wait| {
            let place = self.place(number);
            match open_file::existing(&place, self.direct, self.read_only, wait) {
                Ok(file) => Ok(Some((place, file))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Error::io("open", &place, error)),
            }
        })
    }

    /// Takes a segment for a write at offset `within` of its file. Creates the file if it does not
    /// exist.
    fn for_writing(&self, number: u64, within: u64) -> Result<Held<'_>> {
        let take = |wait| {
            self.open.take(number, wait, Purpose::Change, |wait| self.open_or_create(number, wait))
        };
        // The loop ends: another round follows only if another thread has created the file, or has
        // removed the file that it found.
        loop {
            let mut taken = take(Wait::No)?;
            if matches!(taken, Taken::Busy) {
                // All open files are in use, or no descriptor is free. After a sync of the other
                // files, those can be closed. Without this sync the wait might not end.
                self.sync_files(|other| other != number, &mut self.sync_failure.lock())?;
                taken = take(Wait::Yes)?;
            }
            if let Taken::Held(segment) = taken {
                return self.owned(segment, within);
            }
        }
    }

    /// Returns the segment if its file is the one that this device has written, or belongs to this
    /// bank alone and fits. Otherwise replaces the file by a copy of its first `within` bytes.
    fn owned<'a>(&'a self, segment: Held<'a>, within: u64) -> Result<Held<'a>> {
        let number = segment.number;
        let place = segment.place.clone();
        match self.written.lock().get(&number) {
            Some(written) if *written == segment.file.identity() => return Ok(segment),
            Some(_) => return Err(replaced(&place)),
            None => {}
        }
        let is_own = is_own(segment.file()).and_then(|own| Ok(own && self.fits(&segment)?));
        if is_own.map_err(|e| Error::io("stat", &place, e))? && !is_shared(&place)? {
            self.begin_to_write(number, &segment.file);
            return Ok(segment);
        }
        drop(segment);
        self.check_in_place()?;
        make_own(&place, within).map_err(|e| Error::io("copy", &place, e))?;
        self.open.forget(number);
        let Taken::Held(own) = self.take(number, Wait::Yes, Purpose::Change)? else {
            return Err(replaced(&place));
        };
        self.begin_to_write(number, &own.file);
        Ok(own)
    }

    /// False if a file is longer than a segment, or if a part would be written over an older file.
    /// Another program has made the file, or it belongs to a part that could not be removed.
    fn fits(&self, segment: &Segment) -> io::Result<bool> {
        let first = self.placement.first(segment.number);
        let most = if is_of_part(first) { 0 } else { self.segment_size_bytes() };
        Ok(segment.file().metadata()?.len() <= most)
    }

    /// Notes a file that this device writes from now on. The next sync makes its name durable.
    fn begin_to_write(&self, number: u64, file: &HeldFile) {
        // SeqCst: pairs with the swap in `sync_unsynced`.
        self.folder_unsynced.store(true, Ordering::SeqCst);
        self.written.lock().insert(number, file.identity());
    }

    /// Opens or creates the file of a segment. `None` if another thread creates it now.
    fn open_or_create(&self, number: u64, wait: Wait) -> Result<Option<(Place, HeldFile)>> {
        let place = self.place(number);
        match open_file::existing(&place, self.direct, self.read_only, wait) {
            Ok(file) => return Ok(Some((place, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("open", &place, error)),
        }
        self.check_in_place()?;
        match open_file::create(&place, self.direct) {
            Ok(file) => {
                self.begin_to_write(number, &file);
                Ok(Some((place, file)))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(Error::io("create", &place, error)),
        }
    }

    /// Removes the unfinished files that a crash during `make_own` left. Returns a description of
    /// each file that can't be removed.
    fn remove_unfinished(&self) -> Result<Vec<String>> {
        let unfinished = self.names()?.into_iter().filter(|name| is_unfinished(name));
        let left = unfinished.filter_map(|name| {
            let place = self.folder.place(name);
            let removed = place.remove_file_if_there();
            removed.err().map(|e| Error::io("remove", &place, e).to_string())
        });
        Ok(left.collect())
    }

    fn names(&self) -> Result<Vec<OsString>> {
        self.folder.names().map_err(|e| Error::io("list", self.folder.path(), e))
    }

    /// Returns the segment files, and then the files of parts, in ascending order. Ignores files
    /// with other names.
    fn on_disk(&self) -> Result<Vec<Listed>> {
        let place = |name| self.folder.place(name);
        let listed = listing::list(self.names()?, place, self.segment_size_bytes());
        let listed = listed.map_err(|(place, e)| Error::io("stat", &place, e))?;
        match listed.iter().find_map(|file| Some((file, file.refused.as_ref()?))) {
            Some((file, refused)) => {
                let problem = format!(
                    "must be that of the files of the log, not {}: {} {refused}, or open the bank with the segment \
                     size that it was created with",
                    self.segment_size_bytes(),
                    file.place.path().display(),
                );
                Err(Error::option("segment_size_bytes", problem))
            }
            None => Ok(listed),
        }
    }
}

/// Returns the error for a segment file that another file has replaced while the device wrote it.
fn replaced(place: &Place) -> Error {
    let source = io::Error::other(
        "another file has taken the name of a segment since the bank wrote it; put the segment back",
    );
    Error::io("write", place, source)
}

fn sync_all(segments: &[Held<'_>]) -> Result<()> {
    for segment in segments {
        segment.file.sync_data().map_err(|e| Error::io("sync", &segment.place, e))?;
    }
    Ok(())
}
