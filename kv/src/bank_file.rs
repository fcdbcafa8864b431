//! The file that makes a directory a bank.
//!
//! `<bank>/BANK` (metadata, see `metadata`) is made with the bank, and made anew when its first
//! checkpoint is complete. So a directory of other files is not taken for a new bank, and a bank whose
//! checkpoints were lost is not taken for one that never had any, whose log may be discarded.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::checkpoint::sync_dir;
use crate::error::{Error, Result};
use crate::metadata;

const NAME: &str = "BANK";
pub(crate) const NEW_NAME: &str = "BANK.new";
/// The lock file, which is there before the bank is.
pub(crate) const LOCK_NAME: &str = "LOCK";

/// The file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, metadata::Encode, metadata::Decode)]
pub(crate) struct BankFile {
    pub(crate) bank: u64,
    /// Whether a checkpoint of the bank was ever completed.
    pub(crate) has_checkpoint: bool,
}

impl BankFile {
    /// Whether a directory is a bank.
    pub(crate) fn is_in(dir: &Path) -> bool {
        dir.join(NAME).exists()
    }

    /// The bank file of a directory; none if the directory is empty but for a lock.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(NAME);
        match fs::read(&path) {
            Ok(bytes) => metadata::decode(&bytes).map(Some).map_err(|what| Error::Damaged {
                path,
                offset: 0,
                what,
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Self::refuse_other_files(dir)?;
                Ok(None)
            }
            Err(e) => Err(Error::io("read", path, e)),
        }
    }

    /// The bank file of a directory that must be a bank.
    pub(crate) fn read_one(dir: &Path) -> Result<Self> {
        let not_a_bank = || {
            let what = format!("{} is not a bank: it has no file {NAME}", dir.display());
            Error::InvalidArgument(what)
        };
        if Self::is_in(dir) { Self::read(dir)?.ok_or_else(not_a_bank) } else { Err(not_a_bank()) }
    }

    fn refuse_other_files(dir: &Path) -> Result<()> {
        for entry in fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))? {
            let name = entry.map_err(|e| Error::io("list", dir, e))?.file_name();
            if name != LOCK_NAME && name != NEW_NAME {
                return Err(Error::InvalidArgument(format!(
                    "{} is not a bank: it has no file BANK and holds {name:?}; give an empty or a new \
                     directory to make a bank",
                    dir.display()
                )));
            }
        }
        Ok(())
    }

    /// Makes a directory no bank any more, durably, if it was one.
    pub(crate) fn remove(dir: &Path) -> Result<()> {
        for path in [dir.join(NAME), dir.join(NEW_NAME)] {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", path, e));
                }
                _ => {}
            }
        }
        sync_dir(dir)
    }

    /// Puts the file in place, durably: whole or not at all.
    pub(crate) fn write(self, dir: &Path) -> Result<()> {
        let (new, path): (PathBuf, PathBuf) = (dir.join(NEW_NAME), dir.join(NAME));
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(&metadata::encode(&self))?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|e| Error::io("write", &path, e))?;
        sync_dir(dir)
    }
}
