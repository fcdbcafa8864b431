//! Copies a checkpoint to another directory, which is then a bank.
//!
//! **Approach.** The files of a checkpoint never change. They are the log's segments below the
//! checkpoint's end, the parts of the cold tier, the images of the index, and the blob. The copier
//! therefore makes hard links to those files. The links cost no space until the bank removes its
//! own names of the files. Two files are not linked. The copier copies the segment in which the
//! checkpoint's log ends, because the bank continues to write that segment. It writes a new
//! manifest, because readers lock the manifest (`hold`), and each bank needs a manifest of its own.
//! If the file system can't link, for example to another drive, the copier copies all files.
//!
//! **What makes sharing safe.** A bank changes no file that has another name (`device::segments`).
//! The copier holds the checkpoint (`hold`), so the bank removes neither the checkpoint's directory
//! nor any part of its log.
//!
//! **Crashes.** The copier writes the file `BANK` last, and durably. A directory without this file
//! does not open as a bank.

use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_dir::create_dir_durably;
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::bank_file::{BankFile, LOCK_NAME, NEW_NAME};
use crate::checkpoint::bank_lock::BankLock;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::ImageEntry;
use crate::checkpoint::manifest::Manifest;
use crate::cold::head::part_address;
use crate::cold::list;
use crate::device::segments::names::segment_place;
use crate::error::{Error, Result};
use crate::files::checked_stream;
use crate::files::directory::{Directory, Place};
use crate::files::hidden_file::Interruptible;
use crate::history::parts::{check_part, open_to_read};
use crate::index::image;
use crate::log::page::check_image;
use crate::store::{Making, Store, hold_one};

/// Bytes of a part that are copied between two checks for an interruption.
const COPIED_AT_ONCE_BYTES: u64 = 16 << 20;

/// The result of [`Store::copy_checkpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// The checkpoint's number, which is the same in bank and copy.
    pub checkpoint: u64,
    /// Bytes of files that bank and copy share through hard links.
    pub linked_bytes: u64,
    /// Bytes that were written to the copy's own files.
    pub copied_bytes: u64,
}

impl Store {
    /// Copies checkpoint `checkpoint`, or the newest one, of the bank in `dir` to the directory
    /// `to`, which becomes a bank of its own. `to` must be missing or empty. The call works beside
    /// a process that writes the bank, and does not change the bank.
    ///
    /// On one file system, bank and copy share files through hard links. The copy then takes
    /// seconds, and little space beyond the last segment. It needs more space later, when the bank
    /// removes files that the copy still has, or the copy grows. Such a copy is no backup against a
    /// bad disk: damage to a shared file damages both. On another file system all files are copied.
    ///
    /// ```
    /// use embank_kv::{Store, StoreOptions};
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (bank, copy) = (dir.path().join("bank"), dir.path().join("copy"));
    /// let store = Store::open(&bank, &StoreOptions::default())?;
    /// store.checkpoint(b"step 1")?;
    ///
    /// Store::copy_checkpoint(&bank, None, &copy)?;
    /// let copy = Store::open(&copy, &StoreOptions::default())?;
    /// assert_eq!(copy.recovered().expect("a checkpoint").blob, b"step 1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// After an error, the call removes the files that it created.
    /// - `NotABank` or `NoSuchCheckpoint` for the bank in `dir`.
    /// - `UnusableOutput` if `to` is not empty.
    /// - `Locked` if another process creates a bank in `to`.
    /// - `Damaged` or `Truncated` if the manifest or a copied part does not verify.
    ///   [`verify`](crate::inspect::verify) checks linked files.
    /// - `DirectoryMoved` if `to` was moved during the call.
    /// - `Io` if a system call failed.
    pub fn copy_checkpoint(dir: &Path, checkpoint: Option<u64>, to: &Path) -> Result<Copied> {
        // Declared first, so dropped last. If a signal arrives, it ends the process only after the
        // created files were removed.
        let _interruptible = Interruptible::begin();
        let dir = &open_bank_dir(dir)?;
        let bank_file = BankFile::read_one(dir)?;
        let checkpoints = Checkpoints::look(dir)?;
        let (manifest, _hold) = hold_one(dir, &checkpoints, bank_file, checkpoint)?;
        // This check comes before anything is created, so a directory with other files stays
        // unchanged.
        if let Ok(found) = Directory::open(to) {
            check_empty(&found)?;
        }
        let making = Making::begin(to);
        let to = &create_dir_durably(to)?;
        let _lock = BankLock::take(to)?;
        check_empty(to)?;
        let making = making.locked(to);
        let mut copying = Copying {
            to,
            made: Copied { checkpoint: manifest.number, linked_bytes: 0, copied_bytes: 0 },
        };
        copying.log(dir, &manifest)?;
        copying.parts(dir, &checkpoints, &manifest)?;
        copying.checkpoint(&checkpoints, &manifest)?;
        to.check_in_place()?;
        Interruptible::check().map_err(|e| Error::io("copy", to.path(), e))?;
        BankFile { bank: manifest.bank, has_checkpoint: true }.write(to)?;
        making.done();
        Ok(copying.made)
    }
}

fn check_empty(dir: &Directory) -> Result<()> {
    for name in dir.names().map_err(|e| Error::io("list", dir.path(), e))? {
        if name != LOCK_NAME && name != NEW_NAME {
            let why = format!("holds {name:?}: give a directory that is empty or not there yet");
            return Err(Error::UnusableOutput { path: dir.path().to_owned(), why });
        }
    }
    Ok(())
}

/// A copy in progress.
struct Copying<'a> {
    to: &'a Arc<Directory>,
    made: Copied,
}

impl Copying<'_> {
    fn log(&mut self, dir: &Arc<Directory>, manifest: &Manifest) -> Result<()> {
        let folder = self.to.place("log");
        folder.create_dir().map_err(|e| Error::io("create", &folder, e))?;
        let Manifest { segment_bytes, log_begin, log_end, .. } = *manifest;
        let mut first = log_begin - log_begin % segment_bytes;
        // The loop ends with the last segment of the log.
        while first < log_end {
            Interruptible::check().map_err(|e| Error::io("copy", &folder, e))?;
            let from = segment_place(dir, first);
            let into = segment_place(self.to, first);
            let end = first + segment_bytes;
            if end > log_end || !self.link(&from, &into)? {
                self.copy_pages(
                    manifest,
                    first,
                    (&from, &into),
                    log_begin.max(first)..log_end.min(end),
                )?;
            }
            first = end;
        }
        folder.sync().map_err(|e| Error::io("sync", &folder, e))
    }

    fn parts(&mut self, dir: &Arc<Directory>, of: &Checkpoints, manifest: &Manifest) -> Result<()> {
        let list = of.parts(manifest)?;
        let folder = self.to.place("log");
        let mut copied = Vec::new();
        for part in &list.parts {
            let begin = part_address(part.head.number, manifest.segment_bytes);
            let (from, into) = (segment_place(dir, begin), segment_place(self.to, begin));
            if !self.link(&from, &into)? {
                self.copy_file(&from, &into)?;
                copied.push(part);
            }
        }
        folder.sync().map_err(|e| Error::io("sync", &folder, e))?;
        if copied.is_empty() {
            return Ok(());
        }
        let device = open_to_read(self.to, manifest)?;
        copied.into_iter().try_for_each(|part| {
            Interruptible::check().map_err(|e| Error::io("copy", self.to.path(), e))?;
            check_part(part, manifest.part_site(&*device))
        })
    }

    /// Copies a whole file. Makes the content durable, but not the file's name.
    fn copy_file(&mut self, from: &Place, into: &Place) -> Result<()> {
        let mut source = from.open().map_err(|e| Error::io("open", from, e))?;
        let mut copy = into.create_new().map_err(|e| Error::io("create", into, e))?;
        // The loop ends with the file.
        loop {
            Interruptible::check().map_err(|e| Error::io("copy", from, e))?;
            let piece = io::copy(&mut (&mut source).take(COPIED_AT_ONCE_BYTES), &mut copy);
            let bytes = piece.map_err(|e| Error::io("copy", from, e))?;
            self.made.copied_bytes += bytes;
            if bytes < COPIED_AT_ONCE_BYTES {
                break;
            }
        }
        copy.sync_all().map_err(|e| Error::io("sync", into, e))
    }

    fn checkpoint(&mut self, of: &Checkpoints, manifest: &Manifest) -> Result<()> {
        let checkpoints = Checkpoints::open(self.to)?;
        let partial = checkpoints.begin(manifest.number)?;
        let blob = (of.blob_path(manifest.number), manifest.blob_identity().stream(BLOB_KIND));
        let image = |image: &ImageEntry| {
            let identity = image.identity(manifest.bank).stream(image::KIND);
            (of.image_path(manifest.number, image.checkpoint), identity)
        };
        let list = manifest
            .cold
            .as_ref()
            .map(|_| (of.list_path(manifest.number), manifest.identity().stream(list::KIND)));
        for (from, identity) in manifest.images.iter().map(image).chain([blob]).chain(list) {
            let into = partial.path_of(&from);
            if !self.link(&from, &into)? {
                self.made.copied_bytes += checked_stream::copy(&from, &into, identity)?;
            }
        }
        partial.complete(manifest)?;
        checkpoints.sync()
    }

    /// Gives `from`, a file that never changes, the second name `into`. Returns false if the file
    /// system can't link.
    fn link(&mut self, from: &Place, into: &Place) -> Result<bool> {
        if from.hard_link(into).is_err() {
            return Ok(false);
        }
        // The content was synced when the checkpoint was taken. Some file systems also need a sync
        // for the new name.
        let file = into.open().and_then(|file| file.sync_all().map(|()| file));
        let found =
            file.and_then(|file| file.metadata()).map_err(|e| Error::io("sync", into, e))?;
        if found.nlink() < 2 {
            // The file system does not report the number of names. Neither bank could then tell
            // that the file is shared. The caller therefore copies the file.
            into.remove_file().map_err(|e| Error::io("remove", into, e))?;
            return Ok(false);
        }
        self.made.linked_bytes += found.len();
        Ok(true)
    }

    /// Copies the pages at the log offsets `pages` from one segment file to a new one. `first` is
    /// the log offset of both files' first byte. Checks each page. Makes the content durable, but
    /// not the file's name.
    fn copy_pages(
        &mut self,
        manifest: &Manifest,
        first: u64,
        (from, into): (&Place, &Place),
        pages: std::ops::Range<u64>,
    ) -> Result<()> {
        let source = from.open().map_err(|e| Error::io("open", from, e))?;
        let copy = into.create_new().map_err(|e| Error::io("create", into, e))?;
        let mut page = vec![0; 1 << manifest.page_bits];
        let lineage = manifest.lineage();
        for start in pages.step_by(page.len()) {
            Interruptible::check().map_err(|e| Error::io("copy", from, e))?;
            let offset = start - first;
            source.read_exact_at(&mut page, offset).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => Error::Truncated {
                    path: from.path(),
                    offset,
                    expected: page.len() as u64,
                    found: source.metadata().map_or(0, |file| file.len().saturating_sub(offset)),
                },
                _ => Error::io("read", from, e),
            })?;
            let identity = lineage.page(start >> manifest.page_bits);
            check_image(&page, identity, || (from.path(), offset))?;
            copy.write_all_at(&page, offset).map_err(|e| Error::io("write", into, e))?;
            self.made.copied_bytes += page.len() as u64;
        }
        copy.sync_all().map_err(|e| Error::io("sync", into, e))
    }
}
