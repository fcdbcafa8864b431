//! Takes a bank back to an older checkpoint for good.
//!
//! The rollback removes every newer checkpoint, the newest first. Each removal is durable before
//! the next one begins. After a crash, the bank is therefore at the newest checkpoint that is left,
//! and that checkpoint is complete. The rollback does not touch the log and the parts of the cold
//! tier. The next open cuts off the log beyond the checkpoint, as it does after a crash, and
//! removes the parts that no checkpoint names.

use std::path::Path;
use std::sync::Arc;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::bank_lock::BankLock;
use crate::checkpoint::hold::Unread;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::history::parts::{load_part, open_to_read};
use crate::store::{Store, check_bank_file, check_last_page};

impl Store {
    /// Takes the bank in `dir` back to its checkpoint `number`. No process may have the bank open.
    /// Removes all newer checkpoints for good. The next open is at checkpoint `number`. Returns the
    /// numbers of the removed checkpoints, the newest first. Checkpoints that are taken later get
    /// these numbers again.
    ///
    /// The call first checks that the checkpoint opens: it reads the manifest, the index, the blob,
    /// the log's last page, and the fences and filters of parts. It does not read the other pages
    /// of the log and the rows of parts; [`verify`](crate::inspect::verify) reads them. An error
    /// before the first removal changes nothing. After a crash or a later error, the bank is at
    /// some checkpoint from `number` on, and the call can be repeated.
    ///
    /// ```
    /// use embank_kv::{Store, StoreOptions};
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let store = Store::open(dir.path(), &StoreOptions::default())?;
    /// store.checkpoint(b"step 1")?;
    /// store.checkpoint(b"step 2")?;
    /// drop(store);
    ///
    /// assert_eq!(Store::roll_back(dir.path(), 1)?, [2]);
    /// let store = Store::open(dir.path(), &StoreOptions::default())?;
    /// assert_eq!(store.recovered().expect("a checkpoint").blob, b"step 1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `NotABank` or `NoSuchCheckpoint` for the bank in `dir`.
    /// - `Locked` if the bank is open for writing.
    /// - `BeingRead` if a process reads a newer checkpoint.
    /// - `Damaged` or `Truncated` if the checkpoint does not verify.
    /// - `NewerFormat` if a newer version of Embank wrote the checkpoint or a newer one.
    /// - `Io` if a system call failed.
    pub fn roll_back(dir: &Path, number: u64) -> Result<Vec<u64>> {
        let dir = &open_bank_dir(dir)?;
        let bank_file = BankFile::read_one(dir)?;
        let _lock = BankLock::take(dir)?;
        let checkpoints = Checkpoints::open(dir)?;
        let unread = lock_newer(dir, bank_file, &checkpoints, number)?;
        let mut gone = Vec::with_capacity(unread.len());
        for (newer, unread) in unread {
            checkpoints.check_in_place()?;
            match checkpoints.remove(newer, unread, &mut gone) {
                // The removal of the checkpoint is durable, and only its files remain. The next
                // open tries again to remove the files.
                Err(_) if gone.last() == Some(&newer) => {}
                removed => removed?,
            }
        }
        Ok(gone)
    }

    /// Makes the checks of [`roll_back`](Self::roll_back) before its first removal, and changes
    /// nothing. The bank may be open. A later roll back can still fail, for example if a reader
    /// opens a newer checkpoint meanwhile.
    ///
    /// # Errors
    /// Those of [`roll_back`](Self::roll_back), without `Locked`.
    pub fn check_roll_back(dir: &Path, number: u64) -> Result<()> {
        let dir = &open_bank_dir(dir)?;
        let bank_file = BankFile::read_one(dir)?;
        lock_newer(dir, bank_file, &Checkpoints::look(dir)?, number).map(drop)
    }
}

/// Checks that the bank can go back to checkpoint `number`. Returns the newer checkpoints, the
/// newest first, and keeps readers away from them.
fn lock_newer(
    dir: &Arc<Directory>,
    bank_file: BankFile,
    checkpoints: &Checkpoints,
    number: u64,
) -> Result<Vec<(u64, Unread)>> {
    let there = checkpoints.numbers_if_any()?;
    if !there.contains(&number) {
        return Err(Error::no_such_checkpoint(dir.path(), Some(number), there));
    }
    check_that_it_opens(dir, bank_file, checkpoints, number)?;
    let newer = there.iter().rev().copied().take_while(|&newer| newer > number);
    newer.clone().try_for_each(|newer| checkpoints.check_own(newer))?;
    // A checkpoint of a newer format may have files that this build does not know and would leave
    // behind. The list of parts has a version of its own. A damaged checkpoint may go.
    for newer in newer.clone() {
        let list = checkpoints.manifest(newer).and_then(|manifest| checkpoints.parts(&manifest));
        if let Err(error @ Error::NewerFormat { .. }) = list {
            return Err(error);
        }
    }
    // Locks all newer checkpoints before the caller removes the first one.
    let unread = newer.map(|newer| match checkpoints.unread(newer)? {
        Some(unread) => Ok((newer, unread)),
        None => {
            let path = checkpoints.path();
            let readers = checkpoints.readers(newer).unwrap_or_default();
            Err(Error::BeingRead { path, checkpoint: newer, readers })
        }
    });
    unread.collect()
}

fn check_that_it_opens(
    dir: &Arc<Directory>,
    bank_file: BankFile,
    checkpoints: &Checkpoints,
    number: u64,
) -> Result<()> {
    let manifest = checkpoints.manifest(number)?;
    check_bank_file(dir, bank_file, &manifest)?;
    let images = checkpoints.images(&manifest);
    let mut buckets = images.read()?;
    let mut entries = Vec::new();
    // The loop ends with the last bucket of the index.
    while buckets.next_bucket(&mut entries)?.is_some() {
        entries.clear();
    }
    checkpoints.blob(&manifest)?;
    let device = open_to_read(dir, &manifest)?;
    let site = manifest.part_site(&*device);
    let parts = checkpoints.parts(&manifest)?.parts;
    parts.iter().try_for_each(|part| load_part(part, site).map(drop))?;
    check_last_page(device.as_ref(), &manifest)
}
