//! The steps of the script by which a copy of the bank follows it: a delta is written, and applied.
//!
//! After an error the copy is at the checkpoint at which it was or, if the new one's name was all
//! that was not sure, at the one to which the delta leads: whole either way, and the next try gets
//! it there.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use embank_kv::{Error, Store};

use super::{KEYS_END, Script};
use crate::rows;
use crate::workload::State;

/// A copy of the bank that was made at one checkpoint and is to come to the next by a delta.
#[derive(Debug)]
pub struct Follower {
    /// Its directory.
    pub bank: PathBuf,
    /// The delta's file.
    pub delta: PathBuf,
    /// The number of the checkpoint at which it was made.
    number: u64,
    /// The serial number of that checkpoint's state.
    older: u64,
    /// That of the state to which the delta leads, once there is a delta.
    pub newer: Option<u64>,
}

impl Follower {
    /// Takes it, which is at state `at`, to where the delta leads, if there is a delta. If it is
    /// there, the delta must be refused for that.
    ///
    /// # Errors
    /// What the store reports.
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
    /// Copies the newest checkpoint, and has the copy follow from there.
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

    /// Writes what came since the follower was made.
    pub(super) fn export_delta(&mut self) -> Result<()> {
        let follower = self.follower.as_mut().context("no follower")?;
        if follower.delta.exists() {
            // What an earlier try has left, when it had its name and that was not durable.
            std::fs::remove_file(&follower.delta)?;
        }
        let (from, delta) = (follower.number, &follower.delta);
        Store::export_delta(&self.bank, from, None, delta, &mut |_| {})?;
        follower.newer = Some(self.sure);
        Ok(())
    }

    /// Takes the follower to the bank's newest checkpoint. After an error it is at either, whole.
    pub(super) fn apply_delta(&mut self) -> Result<()> {
        let at = self.check_follower()?;
        let follower = self.follower.as_ref().context("no follower")?;
        follower.catch_up(at)?;
        let serial = self.check_follower()?;
        ensure!(serial == self.sure, "the delta leads to state {serial}");
        Ok(())
    }

    /// Reads all of the follower, which must be at one of its two states. Returns the state's
    /// serial number.
    fn check_follower(&self) -> Result<u64> {
        let follower = self.follower.as_ref().context("no follower")?;
        let reader = Store::open_read_only(&follower.bank, &self.options, None)?;
        let read = reader.reading().context("no checkpoint is read")?;
        let state = self.admitted_of(follower, &read.blob)?;
        rows::check(&reader, &state.model, KEYS_END)?;
        Ok(state.serial)
    }

    /// The state of a follower whose checkpoint has `blob`, which must be one of its two.
    ///
    /// # Errors
    /// It is neither.
    pub fn admitted_of(&self, follower: &Follower, blob: &[u8]) -> Result<&State> {
        let Follower { older, newer, .. } = *follower;
        let mut states = [Some(older), newer].into_iter().flatten();
        let state = states.find_map(|serial| {
            self.states.get(serial as usize).filter(|state| state.blob() == blob)
        });
        state.with_context(|| format!("the copy is not at state {older} or {newer:?}"))
    }
}
