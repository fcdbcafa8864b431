//! Lives of a bank into whose folders other programs put files, directories and links.
//!
//! **Approach.** A round makes a bank, a copy of it by `copy_checkpoint`, and a copy that consists
//! of hard links. Then it goes through steps. Each step drops names and modes into the bank's
//! folders (`litter`), in a closed bank before it is opened, or in an open bank between its
//! operations.
//!
//! **What must hold.**
//! 1. No acknowledged checkpoint is lost: when the strays are gone, the bank opens at the last
//!    checkpoint that `checkpoint` has returned, with every row.
//! 2. No byte of the two copies and of a user's files changes.
//! 3. If an opening fails, `verify` reports damage or fails too, and the error names a path in the
//!    bank. Errors about permissions are excepted: `verify` needs fewer permissions.
//! 4. An operation of an open bank succeeds, or fails with an error that names a path in the bank.

mod litter;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{Error, Store};
use fastrand::Rng;

use crate::content::content;
use crate::images::work_on;
use crate::rows::{self, Model};
use crate::settings::Settings;
use crate::strangers::files;
use crate::workload::KEYS_END;
use litter::{Litter, Sources};

/// Steps of a round.
const STEPS: u64 = 10;

/// Counts of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Rounds that were right.
    pub rounds: u64,
    /// Names and modes that were dropped into a bank.
    pub strays: u64,
    /// Openings that succeeded with strays in the bank's folders.
    pub opened: u64,
    /// Openings that were refused because of strays.
    pub refused: u64,
    /// Checkpoints that were acknowledged.
    pub checkpoints: u64,
    /// Operations of an open bank that failed because of strays.
    pub failed: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.strays += other.strays;
        self.opened += other.opened;
        self.refused += other.refused;
        self.checkpoints += other.checkpoints;
        self.failed += other.failed;
    }
}

/// Runs a round in the empty directory `dir`. If `live`, most strays come while the bank is open.
///
/// # Errors
/// Returns an error if something does not hold. The error lists the strays of the step.
pub fn round(dir: &Path, seed: u64, live: bool) -> Result<Tally> {
    let mut life = Life::begin(dir, seed)?;
    for step in 0..STEPS {
        let done = if live { life.live_step() } else { life.closed_step() };
        let dropped = std::mem::take(&mut life.dropped).join("\n  ");
        done.with_context(|| format!("round {seed}, step {step}, with\n  {dropped}"))?;
    }
    life.end().with_context(|| format!("the end of round {seed}"))?;
    Ok(Tally { rounds: 1, ..life.tally })
}

/// Copies a directory as `cp -al` does: the files of the copy are hard links.
pub(crate) fn link_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let into = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => link_all(&entry.path(), &into)?,
            false => fs::hard_link(entry.path(), &into)?,
        }
    }
    Ok(())
}

/// The content of a checkpoint.
#[derive(Debug, Clone)]
struct State {
    blob: Vec<u8>,
    model: Model,
}

struct Life {
    settings: Settings,
    bank: PathBuf,
    copy: PathBuf,
    linked: PathBuf,
    user: PathBuf,
    /// The files of `copy`, `linked` and `user`, which must not change.
    before: Vec<BTreeMap<PathBuf, Vec<u8>>>,
    /// The checkpoint that the copies have.
    copied: State,
    random: Rng,
    store: Option<Store>,
    /// The acknowledged checkpoints by number. The last one is the newest.
    acknowledged: BTreeMap<u64, State>,
    model: Model,
    litter: Litter,
    dropped: Vec<String>,
    blobs: u64,
    tally: Tally,
}

impl Life {
    fn begin(dir: &Path, seed: u64) -> Result<Self> {
        let path = |name: &str| dir.join(name);
        let mut life = Life {
            settings: Settings::one_tier(false),
            bank: path("bank"),
            copy: path("copy"),
            linked: path("linked"),
            user: path("user"),
            before: Vec::new(),
            copied: State { blob: Vec::new(), model: Model::new() },
            random: Rng::with_seed(seed),
            store: None,
            acknowledged: BTreeMap::new(),
            model: Model::new(),
            litter: Litter::default(),
            dropped: Vec::new(),
            blobs: 0,
            tally: Tally::default(),
        };
        life.store = Some(life.settings.open(&life.bank)?);
        for _ in 0..life.random.u64(1..=5) {
            life.work()?;
            life.checkpoint()?;
        }
        life.store = None;
        Store::copy_checkpoint(&life.bank, None, &life.copy)?;
        link_all(&life.bank, &life.linked)?;
        fs::create_dir(&life.user)?;
        for name in ["a", "b"] {
            fs::write(life.user.join(name), content(seed, 1, life.random.usize(..90_000)))?;
        }
        life.copied = life.newest()?.1;
        life.before = life.files_of_others()?;
        Ok(life)
    }

    fn files_of_others(&self) -> Result<Vec<BTreeMap<PathBuf, Vec<u8>>>> {
        let others = [&self.copy, &self.linked, &self.user];
        others.into_iter().map(|dir| Ok(files(dir)?)).collect()
    }

    fn newest(&self) -> Result<(u64, State)> {
        let newest = self.acknowledged.last_key_value().context("no checkpoint yet")?;
        Ok((*newest.0, newest.1.clone()))
    }

    fn store(&self) -> Result<&Store> {
        self.store.as_ref().context("the store is closed")
    }

    fn drop_strays(&mut self) -> Result<()> {
        let others = [&self.copy, &self.linked, &self.user].map(PathBuf::as_path);
        let sources = Sources { bank: &self.bank, others };
        let dropped = self.litter.drop_some(&sources, &mut self.random)?;
        self.tally.strays += dropped.len() as u64;
        self.dropped.extend(dropped);
        Ok(())
    }

    /// Drops strays into the closed bank and opens it. Works with the bank, or rolls it back.
    fn closed_step(&mut self) -> Result<()> {
        self.drop_strays()?;
        if self.random.u64(..4) == 0 {
            self.roll_back()?;
        }
        if self.try_to_open()? {
            self.operate()?;
        }
        self.close_and_clean_up()
    }

    /// Drops strays into the open bank and works with it. Closes it in one of four steps.
    fn live_step(&mut self) -> Result<()> {
        if self.store.is_none() {
            self.open_clean()?;
        }
        for _ in 0..3 {
            self.drop_strays()?;
            if !self.operate()? {
                return self.close_and_clean_up();
            }
        }
        if self.random.u64(..4) == 0 {
            self.store = None;
            self.try_to_open()?;
            return self.close_and_clean_up();
        }
        self.check_others()
    }

    fn end(&mut self) -> Result<()> {
        self.close_and_clean_up()?;
        for copy in [&self.copy, &self.linked] {
            let report = verify(copy, &VerifyOptions::default(), &mut |_| {})?;
            ensure!(
                report.is_clean(),
                "the copy {} is damaged: {:?}",
                copy.display(),
                report.damage
            );
            let store = self.settings.open(copy).context("opening a copy")?;
            ensure!(
                store.recovered().is_some_and(|found| found.blob == self.copied.blob),
                "a copy"
            );
            rows::check(&store, &self.copied.model, KEYS_END).context("the rows of a copy")?;
        }
        Ok(())
    }

    /// Changes rows of all tables.
    fn work(&mut self) -> Result<()> {
        let store = self.store.as_ref().context("the store is closed")?;
        self.model = work_on(store, &self.model, KEYS_END, &mut self.random)?;
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.blobs += 1;
        let blob = content(self.blobs, 9, 50);
        let number = self.store()?.checkpoint(&blob)?;
        self.acknowledged.insert(number, State { blob, model: self.model.clone() });
        self.tally.checkpoints += 1;
        Ok(())
    }

    /// Runs operations of the open bank. Returns false if one failed with an allowed error.
    fn operate(&mut self) -> Result<bool> {
        let done = (|| -> Result<()> {
            self.work()?;
            match self.random.u64(..6) {
                0 => _ = self.store()?.compact()?,
                1 => {
                    let number = self.newest()?.0;
                    self.store()?.pin(number)?;
                    self.store()?.unpin(number)?;
                }
                2 => self.copy_by_links()?,
                _ => {}
            }
            self.checkpoint()
        })();
        let Err(error) = done else { return Ok(true) };
        self.tally.failed += 1;
        self.is_about_the_bank(&error)?;
        Ok(false)
    }

    /// Makes a copy of the open bank by hard links. It has the newest checkpoint, whatever the bank
    /// and the copy do afterwards.
    fn copy_by_links(&mut self) -> Result<()> {
        let State { blob, model } = self.newest()?.1;
        let copy = self.bank.with_file_name("linked-live");
        self.litter.take_back()?;
        link_all(&self.bank, &copy).context("copying by hard links")?;
        self.work()?;
        self.checkpoint()?;
        let store = self.settings.open(&copy).context("opening a copy of hard links")?;
        ensure!(store.recovered().is_some_and(|found| found.blob == blob), "a copy of hard links");
        rows::check(&store, &model, KEYS_END)?;
        let model = work_on(&store, &model, KEYS_END, &mut self.random)?;
        store.checkpoint(b"the copy")?;
        rows::check(&store, &model, KEYS_END)?;
        drop(store);
        rows::check(self.store()?, &self.model, KEYS_END)?;
        fs::remove_dir_all(&copy).context("removing the copy of hard links")
    }

    /// Fails unless an error names a path in the bank.
    fn is_about_the_bank(&self, error: &anyhow::Error) -> Result<()> {
        let Some(found) = error.downcast_ref::<Error>() else { bail!("{error:#}") };
        let names_it = found.to_string().contains(&*self.bank.to_string_lossy());
        ensure!(names_it, "the error names no path of the bank: {found}");
        Ok(())
    }

    /// Tries to open the bank with the strays in its folders. Returns false if the opening fails
    /// with an allowed error.
    fn try_to_open(&mut self) -> Result<bool> {
        let report = verify(&self.bank, &VerifyOptions::default(), &mut |_| {});
        let is_clean = report.as_ref().is_ok_and(|report| report.is_clean());
        match self.settings.open(&self.bank) {
            Ok(store) => {
                self.tally.opened += 1;
                self.is_at_newest(store)?;
                Ok(true)
            }
            Err(error) => {
                self.tally.refused += 1;
                let is_forbidden = error.to_string().contains("Permission denied");
                ensure!(
                    !is_clean || is_forbidden,
                    "verify finds nothing, and an opening fails: {error}"
                );
                self.is_about_the_bank(&error.into())?;
                Ok(false)
            }
        }
    }

    fn is_at_newest(&mut self, store: Store) -> Result<()> {
        let (number, state) = self.newest()?;
        let at = store.recovered().map(|found| found.checkpoint);
        ensure!(at == Some(number), "the bank opens at {at:?}, not at checkpoint {number}");
        let same = store.recovered().is_some_and(|found| found.blob == state.blob);
        ensure!(same, "the blob of checkpoint {number} differs");
        rows::check(&store, &state.model, KEYS_END)?;
        self.model = state.model;
        self.store = Some(store);
        Ok(())
    }

    /// Closes the bank, takes the strays back, and opens the bank. Now it must be right.
    fn close_and_clean_up(&mut self) -> Result<()> {
        self.store = None;
        self.litter.take_back().context("taking the strays back")?;
        self.open_clean()?;
        self.store = None;
        let report = verify(&self.bank, &VerifyOptions::default(), &mut |_| {})?;
        ensure!(report.is_clean(), "damage without strays: {:?}", report.damage);
        self.check_others()
    }

    fn open_clean(&mut self) -> Result<()> {
        let store = self.settings.open(&self.bank).context("opening without strays")?;
        self.is_at_newest(store).context("opening without strays")
    }

    fn check_others(&self) -> Result<()> {
        for (before, after) in self.before.iter().zip(self.files_of_others()?) {
            for (path, bytes) in before {
                let same = after.get(path) == Some(bytes);
                ensure!(same, "{} of another bank or a user has changed", path.display());
            }
            ensure!(after.len() == before.len(), "files were added beside those of others");
        }
        Ok(())
    }

    /// Rolls the closed bank back to a random older checkpoint. After an error the bank may be at
    /// any checkpoint from that one on.
    fn roll_back(&mut self) -> Result<()> {
        let older: Vec<u64> = self.acknowledged.keys().rev().skip(1).take(2).copied().collect();
        let Some(&number) = older.last() else { return Ok(()) };
        match Store::roll_back(&self.bank, number) {
            Ok(gone) => {
                for number in gone {
                    self.acknowledged.remove(&number);
                }
                Ok(())
            }
            Err(Error::NoSuchCheckpoint { .. }) => Ok(()),
            Err(error) => {
                self.tally.failed += 1;
                self.is_about_the_bank(&error.into())?;
                self.litter.take_back()?;
                let store = self.settings.open(&self.bank).context("after a roll back")?;
                let at = store.recovered().map_or(0, |found| found.checkpoint);
                ensure!(at >= number, "a failed roll back to {number} led to {at}");
                self.acknowledged.split_off(&(at + 1));
                Ok(())
            }
        }
    }
}
