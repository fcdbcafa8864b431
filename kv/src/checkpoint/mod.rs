//! Writes checkpoints to disk, and finds the newest complete checkpoint.
//!
//! ```text
//! <bank>/checkpoints/0000000007/manifest           what the checkpoint is (metadata, see `metadata`)
//!                               index.0000000004   the index as of checkpoint 4 (see `index::image`)
//!                               index.0000000007   the index's changes since checkpoint 4
//!                               blob               the caller's own bytes (checked stream)
//!                               cold.0000000007    the parts of the cold tier (see `cold::list`),
//!                                                  if the bank has had parts
//! ```
//!
//! A checkpoint also needs images of the index that earlier checkpoints wrote. The store links
//! these files into the directory of the new checkpoint (hard links), so each directory has all
//! images of its checkpoint.
//!
//! The store writes a checkpoint in the directory `0000000007.partial`. It syncs the log first,
//! then every file, then the directory. It then gives the directory its final name, and syncs
//! `checkpoints`. A directory with a final name is therefore complete after any crash. If such a
//! directory does not verify, it is damaged, and opening the checkpoint fails. The store never
//! again writes to the log below a checkpoint's end. `removal` explains how a checkpoint is
//! removed.

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
use crate::checkpoint::partial::list_name;
use crate::cold::list::PartList;
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
/// Name of an empty file in a checkpoint's directory. While it exists, pruning keeps the
/// checkpoint.
const PINNED: &str = "pinned";
/// The checkpoints of a bank.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoints {
    /// The folder `checkpoints`. `None` if the caller only looks at the bank and the folder is
    /// missing.
    dir: Option<Arc<Directory>>,
    bank: Arc<Directory>,
    /// Limits for the values in manifests and images of the index.
    pub(crate) limits: Limits,
    /// Files that could not be removed. All clones share this list.
    pub(crate) left: Arc<Mutex<Leftovers>>,
}

const FOLDER: &str = "checkpoints";

impl Checkpoints {
    /// Opens or creates the folder of checkpoints in a bank's directory, and removes directories
    /// that a crash left unfinished.
    pub(crate) fn open(bank: &Arc<Directory>) -> Result<Self> {
        let failed = |e| Error::io("create", &bank.place(FOLDER), e);
        let dir = bank.make_subdirectory(FOLDER).map_err(failed)?;
        let checkpoints = Checkpoints::new(Some(dir), bank);
        // A process may have renamed checkpoints and been killed before it synced the folder. This
        // sync makes the present names durable. Without it, a crash could undo the renames. A
        // checkpoint at which the bank was opened could then be gone, or a checkpoint could get its
        // name back after its files and log were removed.
        checkpoints.sync()?;
        checkpoints.clear(&checkpoints.names()?);
        Ok(checkpoints)
    }

    /// Opens the folder of checkpoints of a bank that is not open for writing. Creates and removes
    /// nothing.
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

    /// Replaces the limits, which `open` and `look` set to [`Limits::PRODUCT`].
    #[must_use]
    pub(crate) fn within(self, limits: Limits) -> Self {
        Checkpoints { limits, ..self }
    }

    /// Returns the names in the folder.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        let listed = match &self.dir {
            Some(dir) => dir.names(),
            None => Err(io::Error::from(ErrorKind::NotFound)),
        };
        listed.map_err(|e| Error::io("list", self.path(), e))
    }

    /// Returns the numbers of the completed checkpoints, oldest first. Another program may have
    /// made a file or directory with a checkpoint's name: the list has its number, too.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        self.numbers_in(&self.names()?)
    }

    /// Returns the numbers of the checkpoints that have a manifest, oldest first. Other checkpoints
    /// can't be opened: they are damaged, or another program made them.
    pub(crate) fn numbers_with_manifest(&self) -> Result<Vec<u64>> {
        let numbers = self.numbers()?.into_iter();
        Ok(numbers.filter(|&number| self.has_manifest(number)).collect())
    }

    /// Returns the numbers of the completed checkpoints, oldest first. The list is empty if the
    /// folder is missing.
    pub(crate) fn numbers_if_any(&self) -> Result<Vec<u64>> {
        if self.is_there() { self.numbers() } else { Ok(Vec::new()) }
    }

    /// True if the folder of checkpoints exists.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.is_some()
    }

    /// Returns the path of the folder, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.dir {
            Some(dir) => dir.path().to_owned(),
            None => self.bank.path().join(FOLDER),
        }
    }

    /// Returns the place of a name in the folder.
    pub(crate) fn place(&self, name: impl AsRef<Path>) -> Place {
        match &self.dir {
            Some(dir) => dir.place(name),
            None => self.bank.place(FOLDER).join(name),
        }
    }

    /// Fails if the path of the bank, or of its folder of checkpoints, now leads to another
    /// directory.
    ///
    /// # Errors
    /// `DirectoryMoved` if a path leads elsewhere. `Io` if the path can't be examined.
    pub(crate) fn check_in_place(&self) -> Result<()> {
        self.bank.check_in_place()?;
        self.dir.as_ref().map_or(Ok(()), |dir| dir.check_in_place())
    }

    pub(crate) fn dir_of(&self, number: u64) -> Place {
        self.place(format!("{number:010}"))
    }

    /// Returns the place of an image of the index in the directory of checkpoint `number`.
    pub(crate) fn image_path(&self, number: u64, image: u64) -> Place {
        self.dir_of(number).join(image_name(image))
    }

    /// Returns the place of a checkpoint's blob.
    pub(crate) fn blob_path(&self, number: u64) -> Place {
        self.dir_of(number).join(BLOB)
    }

    /// Returns the place of a checkpoint's manifest.
    pub(crate) fn manifest_path(&self, number: u64) -> Place {
        self.dir_of(number).join(MANIFEST)
    }

    /// Returns the place of a checkpoint's list of parts.
    pub(crate) fn list_path(&self, number: u64) -> Place {
        self.dir_of(number).join(list_name(number))
    }

    /// Reads and checks a checkpoint's list of parts. It is empty if the bank never had a part:
    /// then an older program may have written the whole log.
    pub(crate) fn parts(&self, manifest: &Manifest) -> Result<PartList> {
        let Some(cold) = &manifest.cold else {
            return Ok(PartList { clean_from: manifest.log_end, ..PartList::default() });
        };
        let place = self.list_path(manifest.number);
        let file_bytes = place.len().map_err(|e| Error::io("stat", &place, e))?;
        if file_bytes != cold.list_bytes {
            let what = format!("{file_bytes} bytes, not {}", cold.list_bytes);
            return Err(Error::Damaged { path: place.path(), offset: 0, what });
        }
        let list = PartList::read(&place, manifest.identity(), file_bytes, manifest.segment_bytes)?;
        if list.part_bytes() != cold.part_bytes {
            let what =
                format!("its parts have {} bytes, not {}", list.part_bytes(), cold.part_bytes);
            return Err(Error::Damaged { path: place.path(), offset: 0, what });
        }
        Ok(list)
    }

    /// Returns the images of a checkpoint's index. The caller keeps the checkpoint from being
    /// removed, or calls [`Images::keep_open`] in time.
    pub(crate) fn images(&self, manifest: &Manifest) -> Images {
        let files = manifest.images.iter().map(|image| {
            (self.image_path(manifest.number, image.checkpoint), image.identity(manifest.bank))
        });
        Images::new(files, manifest.log_begin, manifest.log_end, self.limits)
    }

    /// Creates the directory in which a checkpoint will be written.
    pub(crate) fn begin(&self, number: u64) -> Result<PartialCheckpoint<'_>> {
        let mut attempt = 0;
        // The loop ends with a directory, with an error, or after `PARTIAL_NAMES` names.
        let dir = loop {
            let dir = self.partial_of(number, attempt);
            let made = match dir.create_dir() {
                // An earlier attempt that failed may have left its directory. If that directory
                // can't be removed, it keeps its name, and this loop tries the next name.
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

    /// Makes the names in the folder durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let synced = self.dir.as_ref().map_or(Ok(()), |dir| dir.sync());
        synced.map_err(|e| Error::io("sync", self.path(), e))
    }

    /// Reads and checks a checkpoint's manifest.
    pub(crate) fn manifest(&self, number: u64) -> Result<Manifest> {
        let place = self.manifest_path(number);
        let bytes = place.read().map_err(|e| match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => self.no_checkpoint(number),
            _ => Error::io("read", &place, e),
        })?;
        let manifest = Manifest::decode(&bytes, number, self.limits);
        manifest.map_err(|error| error.of_file(place.path()))
    }

    /// Reads and checks a checkpoint's blob, the bytes that the caller stored with it.
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

    /// Pins a checkpoint durably: creates an empty file in its directory that keeps it from being
    /// pruned.
    pub(crate) fn pin(&self, number: u64) -> Result<()> {
        let mark = self.pin_path(number);
        match mark.create_new() {
            Ok(_) => {}
            // The code below syncs the directory also in this case, because an earlier call may
            // have failed before its sync.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io("create", &mark, e)),
        }
        let dir = self.dir_of(number);
        dir.sync().map_err(|e| Error::io("sync", &dir, e))
    }

    /// Unpins a checkpoint. The next pruning may then remove it.
    pub(crate) fn unpin(&self, number: u64) -> Result<()> {
        let mark = self.pin_path(number);
        let dir = self.dir_of(number);
        mark.remove_file_if_there().map_err(|e| Error::io("remove", &mark, e))?;
        dir.sync().map_err(|e| Error::io("sync", &dir, e))
    }

    /// True if the checkpoint is pinned.
    pub(crate) fn is_pinned(&self, number: u64) -> Result<bool> {
        let mark = self.pin_path(number);
        let found = mark.stat_if_there().map_err(|e| Error::io("stat", &mark, e))?;
        Ok(found.is_some())
    }

    fn pin_path(&self, number: u64) -> Place {
        self.dir_of(number).join(PINNED)
    }
}
