//! Checkpoints on disk: writing one whole, finding the newest whole one.
//!
//! ```text
//! <bank>/checkpoints/0000000007/manifest           what the checkpoint is (metadata, see `metadata`)
//!                               index.0000000004   the index as of checkpoint 4 (see `index::image`)
//!                               index.0000000007   what of it has changed since
//!                               blob               the caller's own bytes (checked stream)
//! ```
//!
//! Images of the index that earlier checkpoints wrote are linked into the directory, so each has
//! all that it needs.
//!
//! A checkpoint is written under `0000000007.partial`; every file and that directory are synced,
//! after the log itself; then the directory gets its final name and `checkpoints` is synced. So a
//! directory under a final name is complete, whatever the instant of a crash, and one that does not
//! verify is damage and an error. The log below a checkpoint's end is never written again.
//! `removal` tells how a checkpoint is taken away.

pub(crate) mod bank_dir;
pub(crate) mod bank_file;
pub(crate) mod bank_lock;
pub(crate) mod hold;
pub(crate) mod identity;
pub(crate) mod lineage;
pub(crate) mod manifest;
pub(crate) mod partial;
pub(crate) mod recovered;
pub(crate) mod removal;

use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::partial::BLOB;
use crate::checkpoint::partial::MANIFEST;
use crate::checkpoint::partial::PartialCheckpoint;
use crate::checkpoint::partial::image_name;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::checked_stream::CheckedReader;
use crate::files::directory::{Directory, Place};
use crate::index::image::Images;
use crate::limits::Limits;
use crate::sync::Mutex;
use removal::Leftovers;

pub(crate) const PARTIAL: &str = "partial";
/// An empty file: the checkpoint stays until it is unpinned.
const PINNED: &str = "pinned";
/// The checkpoints of a bank.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoints {
    /// The folder `checkpoints`; `None` if only looked for and not there.
    dir: Option<Arc<Directory>>,
    bank: Arc<Directory>,
    /// Limits that manifests and images of the index must keep to.
    pub(crate) limits: Limits,
    /// What could not be cleared away, by all clones of these.
    pub(crate) left: Arc<Mutex<Leftovers>>,
}

const FOLDER: &str = "checkpoints";

impl Checkpoints {
    /// The checkpoints in a bank's directory; clears away what a crash left half-written.
    pub(crate) fn open(bank: &Arc<Directory>) -> Result<Self> {
        let failed = |e| Error::io("create", &bank.place(FOLDER), e);
        let dir = bank.make_subdirectory(FOLDER).map_err(failed)?;
        let checkpoints = Checkpoints::new(Some(dir), bank);
        // A process that was killed may have renamed checkpoints and not synced that. One that has
        // its final name must be there for good when the bank is opened at it; one that has
        // lost it must not come back when its files and its log are gone.
        checkpoints.sync()?;
        checkpoints.clear(&checkpoints.names()?);
        Ok(checkpoints)
    }

    /// The checkpoints in the directory of a bank that is not open for writing: makes nothing,
    /// clears nothing away.
    pub(crate) fn look(bank: &Arc<Directory>) -> Result<Self> {
        let dir = match bank.subdirectory(FOLDER) {
            Ok(dir) => Some(dir),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io("open", &bank.place(FOLDER), e)),
        };
        Ok(Checkpoints::new(dir, bank))
    }

    fn new(dir: Option<Arc<Directory>>, bank: &Arc<Directory>) -> Self {
        let bank = Arc::clone(bank);
        Checkpoints { dir, bank, limits: Limits::PRODUCT, left: Arc::default() }
    }

    /// Returns these checkpoints as those of a bank with `limits`. Both constructors take
    /// [`Limits::PRODUCT`].
    #[must_use]
    pub(crate) fn within(self, limits: Limits) -> Self {
        Checkpoints { limits, ..self }
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

    /// As `numbers`; empty if there is no folder of checkpoints.
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

    /// Refuses to go on where the path of the bank, or of the folder of its checkpoints, leads
    /// elsewhere by now.
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
        Images::open(files, manifest.log_begin, manifest.log_end, self.limits)
    }

    /// Begins to write a checkpoint.
    pub(crate) fn begin(&self, number: u64) -> Result<PartialCheckpoint<'_>> {
        let mut attempt = 0;
        // Ends: with a directory, an error, or the last name.
        let dir = loop {
            let dir = self.partial_of(number, attempt);
            let made = match dir.create_dir() {
                // An attempt that failed may not have been able to clear away what it had written.
                // What can't be cleared away keeps its name.
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
        Manifest::decode(&bytes, number, self.limits).map_err(damaged)
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

    /// Undoes a pin. The next pruning removes the checkpoint if it is beyond those that are kept.
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
