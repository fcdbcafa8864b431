//! Calls on kept checkpoints: list, pin, roll back, copy, and export as deltas. Most of these calls
//! take the path of a bank, which need not be open.

use std::path::Path;

use embank_kv::inspect::{self, CheckpointSummary};
use embank_kv::{Copied, Delta, Store};

use crate::bank::Bank;
use crate::error::Result;
use crate::fleet::refuse_shard;

impl Bank {
    /// Lists the kept checkpoints of the bank in `path` whose metadata can be read, oldest first.
    /// Changes nothing and takes no lock, so another process may have the bank open.
    ///
    /// # Errors
    /// [`NotABank`](crate::StoreError::NotABank), or a failed read.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("bank");
    /// use embank::{Bank, BankOptions};
    ///
    /// let bank = Bank::open(&path, BankOptions::default())?;
    /// bank.checkpoint(b"step 1")?;
    /// bank.checkpoint(b"step 2")?;
    /// let numbers: Vec<u64> = Bank::checkpoints(&path)?.iter().map(|of| of.number).collect();
    /// assert_eq!(numbers, [1, 2]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn checkpoints(path: impl AsRef<Path>) -> Result<Vec<CheckpointSummary>> {
        Ok(inspect::summary(path.as_ref())?.checkpoints)
    }

    /// Pins a checkpoint. The bank then keeps it until it is [unpinned](Self::unpin), in addition
    /// to the newest [`checkpoints_kept`](crate::BankOptions::checkpoints_kept) ones. The pin
    /// outlasts a reopen. A program may pin the checkpoint of its best epoch, for example. While a
    /// checkpoint is pinned, the disk space of its rows is not freed.
    ///
    /// # Errors
    /// [`NoSuchCheckpoint`](crate::StoreError::NoSuchCheckpoint),
    /// [`ReadOnly`](crate::StoreError::ReadOnly), or a failed write.
    /// [`Error::ShardMismatch`](crate::Error::ShardMismatch) if the bank is a shard of a
    /// [fleet](crate::fleet), whose sets are kept by pins.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("bank");
    /// use embank::{Bank, BankOptions};
    ///
    /// let bank = Bank::open(&path, BankOptions { checkpoints_kept: 1, ..Default::default() })?;
    /// let best = bank.checkpoint(b"epoch 1")?;
    /// bank.pin(best)?;
    /// bank.checkpoint(b"epoch 2")?;
    /// bank.checkpoint(b"epoch 3")?;
    /// let there: Vec<u64> = Bank::checkpoints(&path)?.iter().map(|of| of.number).collect();
    /// assert_eq!(there, [best, 3]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn pin(&self, checkpoint: u64) -> Result<()> {
        self.refuse_shard()?;
        self.pin_of_shard(checkpoint)
    }

    /// Pins the checkpoint of a set.
    pub(crate) fn pin_of_shard(&self, checkpoint: u64) -> Result<()> {
        Ok(self.context().store.pin(checkpoint)?)
    }

    /// Undoes a [pin](Self::pin). If the checkpoint is older than the newest `checkpoints_kept`,
    /// the next checkpoint removes it.
    ///
    /// # Errors
    /// The errors of [`pin`](Self::pin).
    pub fn unpin(&self, checkpoint: u64) -> Result<()> {
        self.refuse_shard()?;
        self.unpin_of_shard(checkpoint)
    }

    /// Undoes the pin of a set's checkpoint.
    pub(crate) fn unpin_of_shard(&self, checkpoint: u64) -> Result<()> {
        Ok(self.context().store.unpin(checkpoint)?)
    }

    /// Takes the bank in `path` back to an older checkpoint permanently. No process may have the
    /// bank open for writing. Returns the numbers of the newer checkpoints, which are removed.
    ///
    /// A shard of a [fleet](crate::fleet) goes back only when the fleet opens
    /// ([`FleetPlan::at`](crate::fleet::FleetPlan::at)). If one shard goes back alone, the fleet
    /// opens at a set that all shards have.
    ///
    /// # Errors
    /// The bank or checkpoint does not exist, the bank is open, a process reads a newer checkpoint,
    /// or the checkpoint is damaged.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("bank");
    /// use embank::{Bank, BankOptions};
    ///
    /// let bank = Bank::open(&path, BankOptions::default())?;
    /// bank.checkpoint(b"step 1")?;
    /// bank.checkpoint(b"step 2")?;
    /// drop(bank);
    /// assert_eq!(Bank::roll_back(&path, 1)?, [2]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn roll_back(path: impl AsRef<Path>, checkpoint: u64) -> Result<Vec<u64>> {
        Ok(Store::roll_back(path.as_ref(), checkpoint)?)
    }

    /// Copies a checkpoint of the bank in `path` to the directory `to`, which becomes an
    /// independent bank. `None` copies the newest checkpoint. Another process may have the bank
    /// open. Within one file system, both banks share files that never change.
    ///
    /// # Errors
    /// The bank or checkpoint does not exist, `to` is not empty, or a read or write failed.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, copy) = (dir.path().join("bank"), dir.path().join("copy"));
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(&path, BankOptions::default())?;
    /// bank.table("user", TableConfig::new(2))?.put(&[1], &[0.5, 1.5])?;
    /// bank.checkpoint(b"step 1")?;
    /// Bank::copy_checkpoint(&path, None, &copy)?;
    /// assert_eq!(Bank::open(&copy, BankOptions::default())?.tables()[0].name, "user");
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn copy_checkpoint(
        path: impl AsRef<Path>,
        checkpoint: Option<u64>,
        to: impl AsRef<Path>,
    ) -> Result<Copied> {
        Ok(Store::copy_checkpoint(path.as_ref(), checkpoint, to.as_ref())?)
    }

    /// Writes the changes from checkpoint `from` to checkpoint `to` of the bank in `path` into a
    /// file (a delta). `None` for `to` means the newest checkpoint.
    /// [`apply_delta`](Self::apply_delta) brings a copy whose newest checkpoint is `from` to
    /// checkpoint `to`. Another process may have the bank open.
    ///
    /// # Errors
    /// The bank or checkpoint does not exist, the file already exists, data is damaged, or a read
    /// or write failed.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, copy) = (dir.path().join("bank"), dir.path().join("copy"));
    /// # let file = dir.path().join("1-to-2.delta");
    /// use embank::{Bank, BankOptions};
    ///
    /// let bank = Bank::open(&path, BankOptions::default())?;
    /// bank.checkpoint(b"step 1")?;
    /// Bank::copy_checkpoint(&path, None, &copy)?;
    /// bank.checkpoint(b"step 2")?;
    /// Bank::export_delta(&path, 1, None, &file)?;
    /// assert_eq!(Bank::apply_delta(&copy, &file, 2)?.to, 2);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn export_delta(
        path: impl AsRef<Path>,
        from: u64,
        to: Option<u64>,
        file: impl AsRef<Path>,
    ) -> Result<Delta> {
        Ok(Store::export_delta(path.as_ref(), from, to, file.as_ref(), &mut |_| ())?)
    }

    /// Applies the delta in `file` to the bank in `path`, which is a copy of another bank. The copy
    /// is then at the checkpoint at which the delta ends. No process may have the copy open for
    /// writing. Keeps the newest `checkpoints_kept` checkpoints.
    ///
    /// # Errors
    /// [`DeltaMismatch`](crate::StoreError::DeltaMismatch) if the delta does not follow the bank's
    /// newest checkpoint. [`Error::ShardMismatch`](crate::Error::ShardMismatch) if the bank is a
    /// shard of a [fleet](crate::fleet). The call also fails if the bank is open, if the delta is
    /// damaged, or if a read or write fails. After an error the bank stays at its checkpoint. Only
    /// if the last sync failed, it may be at the new checkpoint.
    ///
    /// # Examples
    /// See [`export_delta`](Self::export_delta).
    pub fn apply_delta(
        path: impl AsRef<Path>,
        file: impl AsRef<Path>,
        checkpoints_kept: usize,
    ) -> Result<Delta> {
        refuse_shard(path.as_ref())?;
        Ok(Store::apply_delta(path.as_ref(), file.as_ref(), checkpoints_kept, &mut |_| ())?)
    }
}
