//! The steps of the script that write a delta of the bank and apply it to a copy. A delta is a file
//! with the changes between two checkpoints, the older and the newer one.
//!
//! If applying fails, the copy is whole at the older or at the newer checkpoint. It is at the newer
//! checkpoint if only the sync of that checkpoint's name failed. The next try brings the copy to
//! the newer checkpoint.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use embank_kv::{Error, Store};

use super::{KEYS_END, Script};
use crate::rows;
use crate::workload::State;

/// A copy of the bank at one checkpoint, which a delta takes to the next checkpoint.
#[derive(Debug)]
pub struct Follower {
    /// The directory of the copy.
    pub bank: PathBuf,
    /// The delta's file.
    pub delta: PathBuf,
    /// The number of the checkpoint that was copied.
    number: u64,
    /// The serial number of the state in the copied checkpoint.
    older: u64,
    /// The serial number of the state to which the delta leads. `None` before a delta is written.
    pub newer: Option<u64>,
}

impl Follower {
    /// Applies the delta, if there is one, to the copy. `at` is the serial number of the copy's
    /// state. If the copy already is at the state to which the delta leads, the store must refuse
    /// the delta for that reason.
    ///
    /// # Errors
    /// Returns any error of the store.
    pub fn catch_up(&self, at: u64) -> Result<()> {
        let Some(newer) = self.newer else { return Ok(()) };
        let applied = Store::apply_delta(&self.bank, &self.delta, 1, &mut |_| {});
        match applied {
            Err(Error::DeltaMismatch { what, .. }) if at == newer && what.contains("already") => {}
            Ok(delta) => {
                ensure!(at != newer, "a delta is applied twice");
                ensure!(delta.from == self.number, "the delta follows {}", delta.from);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl Script<'_> {
    /// Copies the newest checkpoint into the follower.
    pub(super) fn follow(&mut self) -> Result<()> {
        let number = self.copy_to("follower")?;
        self.follower = Some(Follower {
            bank: self.bank.with_file_name("follower"),
            delta: self.bank.with_file_name("next.delta"),
            number,
            older: self.sure,
            newer: None,
        });
        Ok(())
    }

    /// Writes the delta from the follower's checkpoint to the newest one.
    pub(super) fn export_delta(&mut self) -> Result<()> {
        let follower = self.follower.as_mut().context("no follower")?;
        if follower.delta.exists() {
            // An earlier try failed: it gave this file its name, and could not make the name
            // durable.
            std::fs::remove_file(&follower.delta)?;
        }
        let (from, delta) = (follower.number, &follower.delta);
        Store::export_delta(&self.bank, from, None, delta, &mut |_| {})?;
        follower.newer = Some(self.sure);
        Ok(())
    }

    /// Takes the follower to the bank's newest checkpoint. After an error the follower is whole at
    /// its older or newer state.
    pub(super) fn apply_delta(&mut self) -> Result<()> {
        let at = self.check_follower()?;
        let follower = self.follower.as_ref().context("no follower")?;
        follower.catch_up(at)?;
        let serial = self.check_follower()?;
        ensure!(serial == self.sure, "the delta leads to state {serial}");
        Ok(())
    }

    /// Checks every row of the follower, which must be at one of its two states. Returns the
    /// state's serial number.
    fn check_follower(&self) -> Result<u64> {
        let follower = self.follower.as_ref().context("no follower")?;
        let reader = Store::open_read_only(&follower.bank, &self.settings.options, None)?;
        let read = reader.reading().context("no checkpoint is read")?;
        let state = self.admitted_of(follower, &read.blob)?;
        rows::check(&reader, &state.model, KEYS_END)?;
        Ok(state.serial)
    }

    /// Returns the state of a follower whose checkpoint has `blob`. It must be one of the
    /// follower's two states.
    ///
    /// # Errors
    /// Fails if neither state has this blob.
    pub fn admitted_of(&self, follower: &Follower, blob: &[u8]) -> Result<&State> {
        let Follower { older, newer, .. } = *follower;
        let mut states = [Some(older), newer].into_iter().flatten();
        let state = states.find_map(|serial| {
            self.states.get(serial as usize).filter(|state| state.blob() == blob)
        });
        state.with_context(|| format!("the copy is not at state {older} or {newer:?}"))
    }
}
