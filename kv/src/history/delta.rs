//! Writes the difference between two checkpoints to a file (a delta), and applies such a file to a
//! copy of the bank.
//!
//! ```text
//! length of the head (4) | head (metadata, see `metadata`)
//! for each image of the index that the base lacks, oldest first, for the blob, and for the list of
//! parts if the bank has had parts:
//!   pieces, each of length (4) | bytes; the last piece has length 0
//! the files of the parts that the base lacks, in the order of the list
//! pages of the log, in order
//! ```
//!
//! The file is a checked stream, in which each chunk has a checksum (see `checked_stream`).
//!
//! **Approach.** Log pages below a checkpoint's end never change. The log of a later checkpoint has
//! more pages at its end, and lacks the pages that compaction has freed at its begin. The pages
//! that both logs have are equal. Parts of the cold tier never change either. A delta therefore
//! consists of the new pages and parts, the newer images of the index, the blob, the list of parts
//! and the manifest. Applying it recreates the later checkpoint, byte for byte.
//!
//! **Lineage.** Numbers do not identify checkpoints: a copy numbers its later checkpoints itself,
//! and a rollback reuses numbers. A delta therefore also contains the random id of the checkpoint
//! that it follows (its base). A bank accepts the delta only if its newest checkpoint has that id.
//!
//! **Crashes.** The pages are written beyond the end of the newest checkpoint's log, where no
//! checkpoint has data. The other parts are written to a partial checkpoint, which gets its final
//! name after all content is synced. A crash before this rename leaves the bank at its old
//! checkpoint.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::bank_lock::BankLock;
use crate::checkpoint::hold::Unread;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::ImageEntry;
use crate::checkpoint::manifest::{ColdEntry, Manifest, ManifestV6};
use crate::checkpoint::partial::PartialCheckpoint;
use crate::cold::head::{PartSite, part_address};
use crate::cold::list::{self, ListedPart, PartList};
use crate::device::{self, AlignedBuffer, Device, DeviceChoice, DeviceOptions, Read};
use crate::engine::cold::remove_unnamed;
use crate::error::{Error, Result};
use crate::files::checked_stream::{CheckedReader, CheckedWriter, StreamIdentity, StreamKind};
use crate::files::directory::{Directory, Place};
use crate::files::hidden_file::HiddenFile;
use crate::files::metadata::{self, DecodeError};
use crate::files::progress::Progress;
use crate::history::parts::check_part;
use crate::index::image;
use crate::limits::Limits;
use crate::log::page::check_image;
use crate::store::{Store, check_bank_file, hold_one, log_begins, part_lists};

const KIND: StreamKind = StreamKind { name: "delta", magic: *b"EMBKDELT", oldest: 2, newest: 3 };
/// Version of a delta between checkpoints of a bank that never had parts.
const VERSION_WITHOUT_PARTS: u32 = 2;
/// Bytes of log pages that one read call reads.
const BURST_BYTES: u64 = 8 << 20;
/// Bytes of a part that one call reads or writes.
const PART_PIECE_BYTES: u64 = 1 << 20;

/// The result of [`Store::export_delta`] or [`Store::apply_delta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delta {
    /// The checkpoint that the delta follows.
    pub from: u64,
    /// The checkpoint that the delta leads to.
    pub to: u64,
    /// Bytes of log pages in the delta.
    pub log_bytes: u64,
    /// Length of the delta's file in bytes.
    pub file_bytes: u64,
}

/// The head of a delta.
#[derive(Debug)]
struct Head {
    base: u64,
    base_id: u64,
    /// Number of index images that the base has too. They are the oldest ones, and the delta omits
    /// them.
    images_shared: u32,
    /// Number of the first log page in the delta.
    first_page: u64,
    manifest: Manifest,
}

/// The head of a delta of version 2. A `ColdEntry` follows it in version 3.
#[derive(Debug, metadata::Encode, metadata::Decode)]
struct HeadV2 {
    base: u64,
    base_id: u64,
    images_shared: u32,
    first_page: u64,
    manifest: ManifestV6,
}

impl HeadV2 {
    fn with(self, cold: Option<ColdEntry>) -> Head {
        let HeadV2 { base, base_id, images_shared, first_page, manifest } = self;
        Head { base, base_id, images_shared, first_page, manifest: manifest.with(cold) }
    }
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let Head { base, base_id, images_shared, first_page, .. } = *self;
        let (manifest, cold) = self.manifest.clone().split();
        let first = HeadV2 { base, base_id, images_shared, first_page, manifest };
        match cold {
            None => metadata::encode(&first),
            Some(cold) => metadata::encode_as(metadata::VERSION_WITH_PARTS, &(first, cold)),
        }
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        const NEWEST: u32 = metadata::VERSION_WITH_PARTS;
        match metadata::version(bytes) {
            NEWEST => {
                let decoded = metadata::decode_up_to::<(HeadV2, ColdEntry)>(NEWEST, bytes);
                decoded.map(|(first, cold)| first.with(Some(cold)))
            }
            _ => {
                let decoded = metadata::decode_up_to::<HeadV2>(NEWEST, bytes);
                decoded.map(|first| first.with(None))
            }
        }
    }

    /// Returns the header fields of the delta's stream.
    fn identity(&self) -> StreamIdentity {
        let identity = self.manifest.identity().stream(KIND);
        match self.manifest.cold {
            None => StreamIdentity { version: VERSION_WITHOUT_PARTS, ..identity },
            Some(_) => identity,
        }
    }

    fn between(base: &Manifest, manifest: Manifest) -> Self {
        let shared = manifest.images.starts_with(&base.images);
        Head {
            base: base.number,
            base_id: base.id,
            images_shared: if shared { base.images.len() as u32 } else { 0 },
            first_page: base.log_end.max(manifest.log_begin) >> manifest.page_bits,
            manifest,
        }
    }

    fn images(&self) -> (&[ImageEntry], &[ImageEntry]) {
        self.manifest.images.split_at(self.images_shared as usize)
    }

    fn page_bytes(&self) -> u64 {
        1 << self.manifest.page_bits
    }

    /// Returns the log addresses of the delta's pages.
    fn pages(&self) -> std::ops::Range<u64> {
        self.first_page << self.manifest.page_bits..self.manifest.log_end
    }

    fn delta(&self, file_bytes: u64) -> Delta {
        let pages = self.pages();
        let log_bytes = pages.end - pages.start;
        Delta { from: self.base, to: self.manifest.number, log_bytes, file_bytes }
    }

    fn check_page(&self, start: u64, page: &[u8], place: (PathBuf, u64)) -> Result<()> {
        let identity = self.manifest.lineage().page(start >> self.manifest.page_bits);
        check_image(page, identity, || place).map(|_| ())
    }

    /// Returns the reason if a bank whose newest checkpoint is `newest` can't take the delta.
    /// `None` if the bank can take it.
    fn misfit(&self, newest: &Manifest) -> Option<String> {
        let to = &self.manifest;
        let base = self.base;
        let at = newest.number;
        if to.bank != newest.bank {
            return Some(format!(
                "it is of bank {:016x}, and this is bank {:016x}: give a copy of that one",
                to.bank, newest.bank
            ));
        }
        if to.id == newest.id {
            return Some(format!("the bank is at checkpoint {at}, to which it leads, already"));
        }
        if at < base {
            return Some(format!(
                "it follows checkpoint {base}, and the bank is at {at}: apply those in between first"
            ));
        }
        if at > base {
            return Some(format!(
                "it follows checkpoint {base}, and the bank is at {at}: it has been applied, or the bank has gone \
                 on by itself"
            ));
        }
        if newest.id != self.base_id {
            return Some(format!(
                "it follows checkpoint {base} of another lineage: id {:016x}, not {:016x}. The bank has gone on by \
                 itself, or was rolled back, since the copy was made; make a new copy",
                self.base_id, newest.id
            ));
        }
        None
    }

    /// True if the delta's contents are consistent with its base `newest`.
    fn is_sound(&self, newest: &Manifest) -> bool {
        let to = &self.manifest;
        let follows = to.is_sound(Limits::PRODUCT)
            && to.number > newest.number
            && (to.page_bits, to.segment_bytes) == (newest.page_bits, newest.segment_bytes)
            && to.hash_seed == newest.hash_seed
            && to.log_begin >= newest.log_begin
            && to.log_end >= newest.log_end
            && to.cold.is_some() >= newest.cold.is_some()
            && to.lineage().agrees(&newest.lineage(), to.pages().start..newest.pages().end);
        follows && {
            let expected = Head::between(newest, to.clone());
            (self.images_shared, self.first_page) == (expected.images_shared, expected.first_page)
        }
    }
}

impl Store {
    /// Writes the difference between checkpoints `from` and `to` (or the newest) of the bank in
    /// `dir` to `file`, which must not exist. The bank must still have both checkpoints (see
    /// `checkpoints_kept`). The call works beside a process that writes the bank, and does not
    /// change the bank.
    ///
    /// The file contains the log pages that were written between the two checkpoints, the changes
    /// of the index, and the blob of `to`. A copy of the bank
    /// ([`copy_checkpoint`](Self::copy_checkpoint)) whose newest checkpoint is `from` can apply it
    /// with [`apply_delta`](Self::apply_delta).
    ///
    /// ```
    /// use embank_kv::{Store, StoreOptions};
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (bank, copy, file) = (dir.path().join("bank"), dir.path().join("copy"), dir.path().join("1-to-2"));
    /// let store = Store::open(&bank, &StoreOptions::default())?;
    /// store.checkpoint(b"step 1")?;
    /// Store::copy_checkpoint(&bank, None, &copy)?;
    /// store.checkpoint(b"step 2")?;
    /// Store::export_delta(&bank, 1, None, &file, &mut |_| ())?;
    ///
    /// Store::apply_delta(&copy, &file, 2, &mut |_| ())?;
    /// let copy = Store::open(&copy, &StoreOptions::default())?;
    /// assert_eq!(copy.recovered().expect("a checkpoint").blob, b"step 2");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// After an error, no file is left.
    /// - `NotABank` or `NoSuchCheckpoint` for the bank in `dir`.
    /// - `InvalidArgument` if `from` is not older than `to`.
    /// - `UnusableOutput` if `file` exists.
    /// - `Damaged` or `Truncated` if a part of the bank does not verify. The call checks all parts
    ///   that it writes.
    /// - `DirectoryMoved` if the folder of `file` was moved during the call.
    /// - `Io` if a system call failed.
    pub fn export_delta(
        dir: &Path,
        from: u64,
        to: Option<u64>,
        file: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Delta> {
        let dir = &open_bank_dir(dir)?;
        let bank_file = BankFile::read_one(dir)?;
        let checkpoints = Checkpoints::look(dir)?;
        let (base, _base_hold) = hold_one(dir, &checkpoints, bank_file, Some(from))?;
        let (manifest, _hold) = hold_one(dir, &checkpoints, bank_file, to)?;
        if manifest.number <= from {
            return Err(Error::InvalidArgument(format!(
                "checkpoint {} does not come after {from}; a delta leads from an older one to a newer one",
                manifest.number
            )));
        }
        if file.exists() {
            let why = "is there already; give another name".to_owned();
            return Err(Error::UnusableOutput { path: file.to_owned(), why });
        }
        let head = Head::between(&base, manifest);
        let file = Place::of_path(file).map_err(|e| Error::io("make", file, e))?;
        let unfinished = Unfinished::new(&file).map_err(|e| Error::io("make", &file, e))?;
        let parts = (&head, &checkpoints.parts(&base)?);
        let file_bytes = export(dir, &checkpoints, parts, &unfinished.place, progress)?;
        let failed = |e| Error::io("make", &file, e);
        file.directory().check_in_place()?;
        // `hard_link` fails if another process has created the file since the check above.
        let linked = unfinished.place.hard_link(&file).or_else(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Err(e),
            _ => unfinished.place.rename(&file),
        });
        linked.map_err(failed)?;
        file.directory().sync().map_err(failed).inspect_err(|_| {
            // The name may not be durable. The file is removed, so that the caller can repeat the
            // call.
            let _ = file.remove_file();
        })?;
        Ok(head.delta(file_bytes))
    }

    /// Takes the bank in `dir` to the checkpoint that the delta in `file` leads to. No process may
    /// have the bank open for writing. The bank must be a copy whose newest checkpoint is the one
    /// that the delta follows. The call keeps the newest `checkpoints_kept` checkpoints. It keeps
    /// fewer if the delta reuses the number of a dropped table that older checkpoints still have. A
    /// process that has the bank open read-only stays at its checkpoint until it calls
    /// [`refresh`](Self::refresh). The new checkpoint is durable on return. After an error or a
    /// crash, the bank is at its old checkpoint, with one exception. The last step makes the new
    /// checkpoint's name durable. If this step fails, the bank may be at either checkpoint, and
    /// both are complete.
    ///
    /// # Errors
    /// - `DeltaMismatch` if the bank has no checkpoint, or if the delta follows another checkpoint,
    ///   is from another bank or lineage, or was applied before.
    /// - `InvalidOption` if `checkpoints_kept` is 0.
    /// - `NotABank` if `dir` is not a bank.
    /// - `CheckpointInUse` if a checkpoint that must be removed is pinned or being read.
    /// - `Locked` if the bank is open for writing.
    /// - `Damaged` or `Truncated` for a delta that does not verify.
    /// - `Io` if a system call failed.
    pub fn apply_delta(
        dir: &Path,
        file: &Path,
        checkpoints_kept: usize,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Delta> {
        if checkpoints_kept == 0 {
            return Err(Error::option("checkpoints_kept", "must be at least 1"));
        }
        let dir = &open_bank_dir(dir)?;
        let bank_file = BankFile::read_one(dir)?;
        let _lock = BankLock::take(dir)?;
        let checkpoints = Checkpoints::open(dir)?;
        let Some(newest) = checkpoints.numbers()?.last().copied() else {
            let what = format!("{} has no checkpoint for a delta to follow", dir.path().display());
            return Err(Error::DeltaMismatch { path: file.to_owned(), what });
        };
        let newest = checkpoints.manifest(newest)?;
        check_bank_file(dir, bank_file, &newest)?;
        checkpoints.check_names(Some(newest.number), newest.bank)?;
        let (mut input, head, file_bytes) = open(file)?;
        if let Some(what) = head.misfit(&newest) {
            return Err(Error::DeltaMismatch { path: file.to_owned(), what });
        }
        if !head.is_sound(&newest) {
            let what =
                "its log, images and page size do not follow those of the bank; export it anew"
                    .into();
            return Err(input.damaged(0, what));
        }
        let outdated = with_reused_numbers(&checkpoints, &newest, &head.manifest)?;
        let device = log_of(dir, &newest, false)?;
        device.truncate(newest.log_end)?;
        // A part of the delta may have the number of a part that a crash has left.
        remove_unnamed(&part_lists(&checkpoints)?, newest.segment_bytes, &*device)?;
        let partial = checkpoints.begin(head.manifest.number)?;
        import(&mut input, &head, &partial, &newest, device.as_ref(), progress)?;
        remove(&checkpoints, &outdated)?;
        partial.complete(&head.manifest)?;
        checkpoints.sync()?;
        // The delta is applied at this point. If removing old checkpoints fails, the next open,
        // checkpoint or delta tries again.
        let newest = head.manifest.number;
        let _ = give_back(&checkpoints, checkpoints_kept, newest, device.as_ref());
        Ok(head.delta(file_bytes))
    }
}

/// Returns the older checkpoints that still have a table whose number belongs to a new table in
/// `to`. The bank that exported the delta removed these checkpoints before it reused the number,
/// but this bank may still have them. A reader that moved from such a checkpoint to `to` would
/// mistake the new table for the old one.
///
/// # Errors
/// `CheckpointInUse` if such a checkpoint is pinned or being read.
fn with_reused_numbers(
    checkpoints: &Checkpoints,
    newest: &Manifest,
    to: &Manifest,
) -> Result<Vec<u64>> {
    let pairs = newest.tables.iter().zip(&to.tables);
    let reused: Vec<usize> = pairs
        .enumerate()
        .filter(|(_, (before, after))| before.is_gone() && !after.is_gone())
        .map(|(place, _)| place)
        .collect();
    let mut outdated = Vec::new();
    if reused.is_empty() {
        return Ok(outdated);
    }
    for number in checkpoints.numbers_with_manifest()? {
        if number == newest.number {
            continue;
        }
        let has_one = match checkpoints.manifest(number) {
            Ok(older) => {
                let tables = reused.iter().filter_map(|&place| older.tables.get(place));
                tables.into_iter().any(|table| !table.is_gone())
            }
            Err(error @ (Error::Io { .. } | Error::TooManyOpenFiles { .. })) => return Err(error),
            // A damaged checkpoint may have one of the tables.
            Err(_) => true,
        };
        if has_one {
            removable(checkpoints, number)?;
            outdated.push(number);
        }
    }
    Ok(outdated)
}

/// # Errors
/// `CheckpointInUse` if the checkpoint is pinned or being read.
fn removable(checkpoints: &Checkpoints, number: u64) -> Result<Unread> {
    let unread = if checkpoints.is_pinned(number)? { None } else { checkpoints.unread(number)? };
    unread.ok_or_else(|| Error::CheckpointInUse {
        path: checkpoints.path().to_owned(),
        checkpoint: number,
        why: "the delta has a new table under the number of one of its tables",
    })
}

fn remove(checkpoints: &Checkpoints, numbers: &[u64]) -> Result<()> {
    for &number in numbers {
        checkpoints.remove(number, removable(checkpoints, number)?, &mut Vec::new())?;
    }
    Ok(())
}

/// Removes checkpoints except the newest `kept`, of which `newest` is the last. Frees the log below
/// the oldest remaining one, and the parts that no remaining one names.
fn give_back(
    checkpoints: &Checkpoints,
    kept: usize,
    newest: u64,
    device: &dyn Device,
) -> Result<()> {
    checkpoints.prune(kept, newest, &mut Vec::new())?;
    let begins = log_begins(checkpoints)?.into_iter().map(|(_, begin)| begin);
    device.free(begins.min().unwrap_or(0))?;
    let segment_bytes = checkpoints.manifest(newest)?.segment_bytes;
    remove_unnamed(&part_lists(checkpoints)?, segment_bytes, device).map(drop)
}

fn log_of(dir: &Arc<Directory>, manifest: &Manifest, read_only: bool) -> Result<Arc<dyn Device>> {
    let segment_size_bytes = manifest.segment_bytes;
    let options = DeviceOptions { segment_size_bytes, read_only, ..DeviceOptions::default() };
    device::open_in(dir, DeviceChoice::Auto, &options)
}

/// A file that is being written under a hidden name. Dropping it removes the file, and so does a
/// signal that ends the process.
struct Unfinished {
    place: Place,
    _hidden: HiddenFile,
}

impl Unfinished {
    fn new(file: &Place) -> io::Result<Self> {
        let hidden = HiddenFile::new(&Arc::new(file.directory().share()?));
        let name = OsStr::from_bytes(hidden.name().as_c_str().to_bytes()).to_owned();
        Ok(Unfinished { place: file.directory().place(name), _hidden: hidden })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Removes the file through the handle of its directory, because the path may lead elsewhere
        // now. If the removal fails, `HiddenFile` removes the file.
        let _ = self.place.remove_file();
    }
}

/// Writes a delta and returns its length. Makes the content durable, but not the file's name.
/// `base_parts` is the base's list of parts.
fn export(
    dir: &Arc<Directory>,
    checkpoints: &Checkpoints,
    (head, base_parts): (&Head, &PartList),
    path: &Place,
    progress: &mut dyn FnMut(Progress),
) -> Result<u64> {
    let Manifest { bank, number, .. } = head.manifest;
    let mut out = CheckedWriter::create(path, head.identity())?;
    let encoded = head.encode();
    out.write(&(encoded.len() as u32).to_le_bytes())?;
    out.write(&encoded)?;
    for entry in head.images().1 {
        let identity = entry.identity(bank).stream(image::KIND);
        let path = checkpoints.image_path(number, entry.checkpoint);
        export_stream(CheckedReader::open(&path, identity)?, &mut out)?;
    }
    let blob = checkpoints.blob_path(number);
    let identity = head.manifest.blob_identity().stream(BLOB_KIND);
    export_stream(CheckedReader::open(&blob, identity)?, &mut out)?;
    let parts = checkpoints.parts(&head.manifest)?;
    if head.manifest.cold.is_some() {
        let list = checkpoints.list_path(number);
        let identity = head.manifest.identity().stream(list::KIND);
        export_stream(CheckedReader::open(&list, identity)?, &mut out)?;
    }
    let device = log_of(dir, &head.manifest, true)?;
    let parts = parts.parts_beyond(base_parts);
    let mut progress = Passed::new(head, &parts, progress);
    for part in parts {
        export_part(part, head.manifest.part_site(&*device), &mut out, &mut progress)?;
    }
    let pages = head.pages();
    let page_bytes = head.page_bytes();
    let mut buffers: Vec<AlignedBuffer> = (0..(BURST_BYTES / page_bytes).max(1))
        .map(|_| AlignedBuffer::zeroed(page_bytes as usize))
        .collect();
    let burst_bytes = page_bytes * buffers.len() as u64;
    for burst in pages.clone().step_by(burst_bytes as usize) {
        let starts = (burst..pages.end).step_by(page_bytes as usize);
        let mut reads: Vec<Read<'_>> = Vec::with_capacity(buffers.len());
        for (offset, buffer) in starts.clone().zip(&mut buffers) {
            reads.push(Read { offset, buffer });
        }
        device.read_many(&mut reads)?;
        for (start, page) in starts.zip(&buffers) {
            head.check_page(start, page, device.locate(start))?;
            out.write(page)?;
            progress.add(page_bytes);
        }
    }
    let (file, bytes) = out.finish()?;
    file.sync_all().map_err(|e| Error::io("sync", path, e))?;
    Ok(bytes)
}

/// The progress of an export or an import: the bytes of parts and pages.
struct Passed<'a> {
    progress: &'a mut dyn FnMut(Progress),
    state: Progress,
}

impl<'a> Passed<'a> {
    fn new(head: &Head, parts: &[&ListedPart], progress: &'a mut dyn FnMut(Progress)) -> Self {
        let pages = head.pages();
        let part_bytes: u64 = parts.iter().map(|part| part.file_bytes).sum();
        let total_bytes = pages.end - pages.start + part_bytes;
        Passed { progress, state: Progress { done_bytes: 0, total_bytes } }
    }

    fn add(&mut self, bytes: u64) {
        self.state.done_bytes += bytes;
        (self.progress)(self.state);
    }
}

/// Checks a part, then writes its file.
fn export_part(
    part: &ListedPart,
    site: PartSite<'_>,
    out: &mut CheckedWriter,
    progress: &mut Passed<'_>,
) -> Result<()> {
    check_part(part, site)?;
    let begin = part_address(part.head.number, site.segment_size_bytes);
    let mut buffer = AlignedBuffer::zeroed(PART_PIECE_BYTES as usize);
    for at in (0..part.file_bytes).step_by(PART_PIECE_BYTES as usize) {
        let bytes = PART_PIECE_BYTES.min(part.file_bytes - at);
        let piece = &mut buffer[..bytes as usize];
        site.device.read_many(&mut [Read { offset: begin + at, buffer: piece }])?;
        out.write(&buffer[..bytes as usize])?;
        progress.add(bytes);
    }
    Ok(())
}

/// Writes the content of a stream in pieces with lengths.
fn export_stream(mut input: CheckedReader, out: &mut CheckedWriter) -> Result<()> {
    while let Some(piece) = input.read_some()? {
        out.write(&(piece.len() as u32).to_le_bytes())?;
        out.write(piece)?;
    }
    input.finish()?;
    out.write(&0_u32.to_le_bytes())
}

/// Opens a delta and reads its head. The last part of the result is the file's length.
fn open(path: &Path) -> Result<(CheckedReader, Head, u64)> {
    let place = Place::of_path_to_open(path).map_err(|e| Error::io("open", path, e))?;
    let file = place.open().map_err(|e| Error::io("open", path, e))?;
    let file_bytes = file.metadata().map_err(|e| Error::io("stat", path, e))?.len();
    let (mut input, identity) = CheckedReader::from_file_of_any(file, &place, KIND)?;
    let mut length = [0; 4];
    input.read(&mut length)?;
    let length = u32::from_le_bytes(length);
    if u64::from(length) > file_bytes {
        return Err(input.damaged(0, format!("its head claims {length} bytes")));
    }
    let mut head = vec![0; length as usize];
    input.read(&mut head)?;
    let head = Head::decode(&head).map_err(|error| error.of_file(place.path()))?;
    let stream = head.identity();
    let named = (stream.owner, stream.checkpoint, stream.version);
    if named != (identity.owner, identity.checkpoint, identity.version) {
        return Err(input.damaged(0, "its head is another delta's".into()));
    }
    Ok((input, head, file_bytes))
}

/// Reads a delta into a partial checkpoint and the log. Makes all content durable, but not the
/// checkpoint's name.
fn import(
    input: &mut CheckedReader,
    head: &Head,
    partial: &PartialCheckpoint<'_>,
    newest: &Manifest,
    device: &dyn Device,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let (shared, new) = head.images();
    partial.take_images(newest, shared)?;
    let Manifest { bank, blob_bytes, .. } = head.manifest;
    for entry in new {
        let path = partial.image_path(entry.checkpoint);
        let out = CheckedWriter::create(&path, entry.identity(bank).stream(image::KIND))?;
        let bytes = import_stream(input, out, &path)?.1;
        if bytes != entry.file_bytes {
            let what = format!("an image of the index is {bytes} bytes, not {}", entry.file_bytes);
            return Err(input.damaged(0, what));
        }
    }
    let path = partial.blob_path();
    let out = CheckedWriter::create(&path, head.manifest.blob_identity().stream(BLOB_KIND))?;
    let bytes = import_stream(input, out, &path)?.0;
    if bytes != blob_bytes {
        return Err(input.damaged(0, format!("the blob is {bytes} bytes, not {blob_bytes}")));
    }
    let list = import_list(input, head, partial)?;
    let base_parts = partial.of.parts(newest)?;
    if !list.agrees(&base_parts) {
        return Err(
            input.damaged(0, "it has another part under the number of one of the bank's".into())
        );
    }
    let parts = list.parts_beyond(&base_parts);
    let mut progress = Passed::new(head, &parts, progress);
    for part in parts {
        import_part(input, part, head.manifest.part_site(device), &mut progress)?;
    }
    let pages = head.pages();
    let page_bytes = head.page_bytes();
    let mut page = AlignedBuffer::zeroed(page_bytes as usize);
    for start in pages.clone().step_by(page_bytes as usize) {
        input.read(&mut page)?;
        head.check_page(start, &page, input.place())?;
        device.write(start, &page)?;
        progress.add(page_bytes);
    }
    input.finish()?;
    device.sync()
}

/// Reads the list of parts into the partial checkpoint, and returns it.
fn import_list(
    input: &mut CheckedReader,
    head: &Head,
    partial: &PartialCheckpoint<'_>,
) -> Result<PartList> {
    let Some(cold) = &head.manifest.cold else { return Ok(PartList::default()) };
    let identity = head.manifest.identity();
    let path = partial.list_path();
    let out = CheckedWriter::create(&path, identity.stream(list::KIND))?;
    let bytes = import_stream(input, out, &path)?.1;
    let list = PartList::read(&path, identity, bytes, head.manifest.segment_bytes);
    let list = list.map_err(|error| input.damaged(0, format!("its list of parts: {error}")))?;
    if (bytes, list.part_bytes()) != (cold.list_bytes, cold.part_bytes) {
        let what =
            format!("its list of parts is not the one that its manifest names: {bytes} bytes");
        return Err(input.damaged(0, what));
    }
    Ok(list)
}

/// Writes a part of the delta to the device, and checks it there.
fn import_part(
    input: &mut CheckedReader,
    part: &ListedPart,
    site: PartSite<'_>,
    progress: &mut Passed<'_>,
) -> Result<()> {
    let begin = part_address(part.head.number, site.segment_size_bytes);
    let mut buffer = AlignedBuffer::zeroed(PART_PIECE_BYTES as usize);
    for at in (0..part.file_bytes).step_by(PART_PIECE_BYTES as usize) {
        let bytes = PART_PIECE_BYTES.min(part.file_bytes - at);
        let piece = &mut buffer[..bytes as usize];
        input.read(piece)?;
        site.device.write(begin + at, piece)?;
        progress.add(bytes);
    }
    check_part(part, site)
}

/// Reads the pieces of one stream into a file. Makes the content durable, but not the file's name.
/// Returns the lengths of the content and of the file.
fn import_stream(
    input: &mut CheckedReader,
    mut out: CheckedWriter,
    path: &Place,
) -> Result<(u64, u64)> {
    let mut bytes = 0;
    let mut piece = Vec::new();
    // The loop ends at a piece of length 0, or with an error at the end of the delta.
    loop {
        let mut length = [0; 4];
        input.read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > crate::files::checked_stream::CHUNK_BYTES {
            return Err(input.damaged(0, format!("a piece claims {length} bytes")));
        }
        if length == 0 {
            break;
        }
        piece.resize(length, 0);
        input.read(&mut piece)?;
        out.write(&piece)?;
        bytes += length as u64;
    }
    let (file, file_bytes) = out.finish()?;
    file.sync_all().map_err(|e| Error::io("sync", path, e))?;
    Ok((bytes, file_bytes))
}
