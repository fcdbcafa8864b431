//! The file `BANK`, which marks a directory as a bank.
//!
//! The store writes `<bank>/BANK` (metadata, see `metadata`) when it creates the bank, and again
//! after the first checkpoint. With this file, the store never mistakes a directory with other
//! files for a new bank. The file also says whether the bank ever had a checkpoint. If a bank never
//! had one, the store may discard its log. If a bank has lost its checkpoints, the store must keep
//! the log.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::files::held_file::HeldFile;
use crate::files::metadata;

const NAME: &str = "BANK";
pub(crate) const NEW_NAME: &str = "BANK.new";
/// Name of the lock file. The store creates this file before the other files of a bank.
pub(crate) const LOCK_NAME: &str = "LOCK";

/// The content of the file `BANK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct BankFile {
    pub(crate) bank: u64,
    /// True if a checkpoint of the bank was ever completed.
    pub(crate) has_checkpoint: bool,
}

impl BankFile {
    /// True if the directory is a bank.
    pub(crate) fn is_in(dir: &Path) -> bool {
        dir.join(NAME).exists()
    }

    /// Reads the bank file of a directory. `None` if the directory has at most a lock file and an
    /// unfinished bank file. Fails if the directory has other files but no bank file.
    pub(crate) fn read(dir: &Arc<Directory>) -> Result<Option<Self>> {
        let place = dir.place(NAME);
        match place.read() {
            Ok(bytes) => {
                metadata::decode(&bytes).map(Some).map_err(|error| error.of_file(place.path()))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Self::refuse_other_files(dir)?;
                Ok(None)
            }
            Err(e) => Err(Error::io("read", &place, e)),
        }
    }

    /// Reads the bank file of an existing bank. Fails if the directory is not a bank.
    pub(crate) fn read_one(dir: &Arc<Directory>) -> Result<Self> {
        let not_a_bank = || Error::NotABank {
            path: dir.path().to_owned(),
            why: format!("it has no file {NAME}"),
        };
        match dir.place(NAME).stat_if_there() {
            Ok(Some(_)) => Self::read(dir)?.ok_or_else(not_a_bank),
            Ok(None) => Err(not_a_bank()),
            Err(e) => Err(Error::io("stat", &dir.place(NAME), e)),
        }
    }

    fn refuse_other_files(dir: &Directory) -> Result<()> {
        for name in dir.names().map_err(|e| Error::io("list", dir.path(), e))? {
            if name != LOCK_NAME && name != NEW_NAME {
                let why = format!(
                    "it has no file {NAME} and holds {name:?}; give an empty or a new directory to make a bank"
                );
                return Err(Error::NotABank { path: dir.path().to_owned(), why });
            }
        }
        Ok(())
    }

    /// Removes the bank file durably, if there is one. The directory is then no bank.
    pub(crate) fn remove(dir: &Arc<Directory>) -> Result<()> {
        for place in [dir.place(NAME), dir.place(NEW_NAME)] {
            place.remove_file_if_there().map_err(|e| Error::io("remove", &place, e))?;
        }
        dir.sync().map_err(|e| Error::io("sync", dir.path(), e))
    }

    /// Writes the file durably. A crash leaves either the old file or the new one.
    pub(crate) fn write(self, dir: &Arc<Directory>) -> Result<()> {
        let new = dir.place(NEW_NAME);
        let place = dir.place(NAME);
        let write = || -> io::Result<()> {
            // A crash may have left an unfinished file.
            new.remove_file_if_there()?;
            let file = HeldFile::new(new.create_new()?)?;
            file.file().write_all(&metadata::encode(&self))?;
            file.sync_all()?;
            new.rename(&place)
        };
        write().map_err(|e| Error::io("write", &place, e))?;
        dir.sync().map_err(|e| Error::io("sync", dir.path(), e))
    }
}
