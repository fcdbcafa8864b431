//! Runs a bank's life under the recorder: row changes of each kind, checkpoints, kills and reopens.
//! Keeps the state of each checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use embank_kv::Store;
use fastrand::Rng;

use crate::content::content;
use crate::journal::{Journal, Mark};
use crate::parts::Parts;
use crate::recorder::Recording;
use crate::rows::{self, Model};
use crate::settings::Settings;

/// The name of the bank's directory in the recorded directory.
pub const BANK: &str = "bank";
/// Every key of a life is below this.
pub const KEYS_END: u64 = 4000;
/// The tables that the life makes and drops: the name, the value length, and whether the length
/// varies.
const TABLES: [(&str, u32, bool); 4] =
    [("rows", 24, false), ("wide", 200, false), ("words", 300, true), ("brief", 8, false)];
/// A kill comes within this number of recorded calls after it was planned. In three of four kills
/// these calls belong to a checkpoint and to the compaction after it.
const KILL_CALLS: u64 = 40;
/// The seed of a bank in two tiers that compacts only when it is called.
const TWO_TIERS_SEED: u64 = 2;
/// A kill during a rollback comes within this number of calls.
const ROLL_BACK_CALLS: u64 = 25;

/// The state that a checkpoint stores. Each state of a life has its own serial number. The number
/// of a checkpoint is not unique: after a crash, the store may give it to another checkpoint.
#[derive(Debug, Clone)]
pub struct State {
    /// The serial number, with which the blob begins.
    pub serial: u64,
    /// The rows.
    pub model: Arc<Model>,
}

impl State {
    /// Returns the state of a new bank.
    pub(crate) fn empty() -> Self {
        State { serial: 0, model: Arc::default() }
    }

    /// Returns the blob of this state: its serial number and some further bytes.
    #[must_use]
    pub fn blob(&self) -> Vec<u8> {
        let long = self.serial.is_multiple_of(7);
        let bytes = content(self.serial, 1, if long { 70_000 } else { 40 });
        [&self.serial.to_le_bytes()[..], &bytes].concat()
    }
}

/// A recorded life.
#[derive(Debug)]
pub struct Life {
    /// The settings of the bank.
    pub settings: Settings,
    /// The calls on the recorded directory.
    pub journal: Journal,
    /// The states by serial number.
    pub states: Vec<State>,
    /// The number of completed checkpoints.
    pub checkpoints: u64,
    /// The number of steps that made the index grow.
    pub growth_steps: u64,
    /// The number of kills, without those during a rollback or an open.
    pub kills: u64,
    /// The number of kills inside `checkpoint`.
    pub kills_in_checkpoint: u64,
    /// The number of rollbacks to an older checkpoint.
    pub roll_backs: u64,
    /// The number of kills inside a rollback.
    pub kills_in_roll_back: u64,
    /// The parts of the cold tier that the life wrote and removed.
    pub parts: Parts,
}

/// Returns the serial number with which the blob of a store's checkpoint begins. Returns 0 for a
/// store without a checkpoint.
///
/// # Errors
/// Returns an error if the blob is too short.
pub fn serial_of(store: &Store) -> Result<u64> {
    let Some(recovered) = store.recovered() else { return Ok(0) };
    let first = recovered.blob.first_chunk().context("the blob is too short")?;
    Ok(u64::from_le_bytes(*first))
}

/// Runs `steps` steps of a life in the empty directory `dir`. `seed` decides the steps.
///
/// # Errors
/// Returns an error if an operation fails without a kill, if a kill leads to the wrong state, or if
/// the recorder missed a call.
pub fn live(dir: &Path, seed: u64, steps: u64) -> Result<Life> {
    let mut living = Living::start(dir, seed)?;
    living.may_be_killed = true;
    living.reopen()?;
    for step in 0..steps {
        living.step(step).with_context(|| format!("step {step} of the life of seed {seed}"))?;
    }
    living.end()
}

/// Opens a new bank and takes three checkpoints, with a kill after the given number of calls. Then
/// takes two more checkpoints.
///
/// # Errors
/// Fails as [`live`] does.
pub fn live_and_be_killed(dir: &Path, calls: u64) -> Result<Life> {
    let mut living = Living::start(dir, 0)?;
    living.recording.kill_in(Some(calls));
    let mut work = || {
        living.open()?;
        for _ in 0..3 {
            living.create_missing()?;
            living.put(100)?;
            living.checkpoint()?;
        }
        Ok::<_, anyhow::Error>(())
    };
    // The work may succeed although the kill has struck: if the removal of an old checkpoint fails,
    // the checkpoint still completes.
    let failed = work().is_err();
    living.kills = u64::from(failed || living.recording.is_killed());
    living.reopen()?;
    for _ in 0..2 {
        living.put(100)?;
        living.checkpoint()?;
    }
    living.end()
}

/// Compacts a bank in two tiers, with a kill after the given number of calls of the compaction.
/// Then opens the bank, compacts it again and takes another checkpoint.
///
/// # Errors
/// Fails as [`live`] does.
pub fn compact_and_be_killed(dir: &Path, calls: u64) -> Result<Life> {
    let mut living = Living::start(dir, TWO_TIERS_SEED)?;
    living.open()?;
    living.create_missing()?;
    for _ in 0..3 {
        (0..5).try_for_each(|_| living.put(300))?;
        living.delete()?;
        living.checkpoint()?;
        living.compact()?;
    }
    (0..12).try_for_each(|_| living.put(300))?;
    living.checkpoint()?;
    living.recording.kill_in(Some(calls));
    // The compaction may succeed although the kill has struck: if a part can't be removed, the next
    // checkpoint tries again.
    let failed = living.compact().is_err();
    living.kills = u64::from(failed || living.recording.is_killed());
    living.reopen()?;
    living.compact()?;
    living.put(100)?;
    living.checkpoint()?;
    living.end()
}

/// Returns the numbers of a bank's checkpoints, oldest first.
pub(crate) fn checkpoints_of(bank: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(bank.join("checkpoints"))? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

struct Living {
    recording: Recording,
    bank: std::path::PathBuf,
    random: Rng,
    settings: Settings,
    store: Option<Store>,
    model: Model,
    states: Vec<State>,
    /// The serial number of the newest durable state.
    sure: u64,
    /// The serial number of a checkpoint that was begun and may or may not be complete.
    begun: Option<u64>,
    /// The serial numbers of the states at which an unfinished rollback may have left the bank.
    going_back: Vec<u64>,
    /// The serial number of the newest state for each checkpoint number.
    serials: BTreeMap<u64, u64>,
    /// True if a kill is planned, so that operations may fail.
    may_be_killed: bool,
    version: u64,
    checkpoints: u64,
    growth_steps: u64,
    kills: u64,
    kills_in_checkpoint: u64,
    roll_backs: u64,
    kills_in_roll_back: u64,
}

impl Living {
    fn start(dir: &Path, seed: u64) -> Result<Self> {
        let recording = Recording::start(dir)?;
        Ok(Living {
            bank: recording.root().join(BANK),
            recording,
            random: Rng::with_seed(seed),
            // Of a life that compacts in the background, the order of calls also depends on the
            // timing of the threads.
            settings: Settings::drawn(seed),
            store: None,
            model: Model::new(),
            states: vec![State::empty()],
            sure: 0,
            begun: None,
            going_back: Vec::new(),
            serials: BTreeMap::new(),
            may_be_killed: false,
            version: 0,
            checkpoints: 0,
            growth_steps: 0,
            kills: 0,
            kills_in_checkpoint: 0,
            roll_backs: 0,
            kills_in_roll_back: 0,
        })
    }

    fn end(mut self) -> Result<Life> {
        self.close();
        let journal = self.recording.finish()?;
        Ok(Life {
            settings: self.settings,
            parts: Parts::of_journal(&journal),
            journal,
            states: self.states,
            growth_steps: self.growth_steps,
            checkpoints: self.checkpoints,
            kills: self.kills,
            kills_in_checkpoint: self.kills_in_checkpoint,
            roll_backs: self.roll_backs,
            kills_in_roll_back: self.kills_in_roll_back,
        })
    }

    fn step(&mut self, step: u64) -> Result<()> {
        if self.is_cold() && self.random.u64(..8) == 0 {
            let done = self.compact();
            return self.survive(done);
        }
        let done = match (step, self.random.u64(..100)) {
            // Early steps put many rows, so that later checkpoints write only the changed part of
            // the index.
            (0..4, _) => self.create_missing().and_then(|()| self.put(500)),
            (4, _) | (_, 0..24) => self.checkpoint(),
            (_, 24..36) => return self.kill(),
            // This rollback completes, because no kill is planned for it.
            (40, _) => return self.roll_back(false),
            (_, 36..38) => return self.roll_back(true),
            (_, 38..39) => return self.reopen(),
            (_, 39..47) => self.compact(),
            (_, 47..50) => self.drop_table(),
            (_, 50..53) => self.create_missing(),
            (_, 53..60) => self.delete(),
            (_, 60..66) => self.get(),
            (_, 66..70) => self.promote(),
            (_, 70..76) => self.put(400),
            _ => self.put(30),
        };
        self.survive(done)
    }

    /// Opens the bank again if a kill made the operation fail. Returns any other error.
    fn survive(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(_) if self.may_be_killed => self.reopen(),
            done => done,
        }
    }

    fn close(&mut self) {
        if let Some(store) = self.store.take() {
            self.growth_steps += store.stats().growth_steps;
        }
    }

    /// True if the bank has a cold tier.
    fn is_cold(&self) -> bool {
        self.settings.tier.is_some()
    }

    fn store(&self) -> Result<&Store> {
        self.store.as_ref().context("the store is closed")
    }

    fn open(&mut self) -> Result<()> {
        self.recording.mark(Mark::Opening);
        let store = self.settings.open(&self.bank)?;
        let serial = serial_of(&store)?;
        ensure!(
            serial == self.sure || Some(serial) == self.begun || self.going_back.contains(&serial),
            "opened at state {serial}, not {} or {:?} or one of {:?}",
            self.sure,
            self.begun,
            self.going_back
        );
        self.recording.mark(Mark::Opened { serial });
        let state = &self.states[serial as usize];
        if serial > 0 {
            ensure!(store.recovered().is_some_and(|found| found.blob == state.blob()), "the blob");
        }
        rows::check(&store, &state.model, KEYS_END)?;
        (self.sure, self.begun) = (serial, None);
        self.going_back.clear();
        self.serials.extend(store.recovered().map(|found| (found.checkpoint, serial)));
        self.model = Model::clone(&state.model);
        self.store = Some(store);
        Ok(())
    }

    /// Plans a kill within the next calls, most often in a checkpoint, and opens the bank again. A
    /// kill may strike this open too.
    fn kill(&mut self) -> Result<()> {
        self.kills += 1;
        self.may_be_killed = true;
        self.recording.kill_in(Some(self.random.u64(..KILL_CALLS)));
        let done = match self.random.u64(..4) {
            0 if self.is_cold() => self.compact().and_then(|()| self.checkpoint()),
            0 => self.put(300).and_then(|()| self.compact()),
            _ => self.checkpoint().and_then(|()| self.compact()),
        };
        self.kills_in_checkpoint += u64::from(self.begun.is_some());
        // The program counts as killed here, even if it made too few calls for the planned kill.
        drop(done);
        self.reopen()
    }

    fn reopen(&mut self) -> Result<()> {
        // After a kill every call of this close fails, because a killed process makes no changes.
        self.close();
        if self.may_be_killed && self.random.u64(..2) == 0 {
            self.recording.kill_in(Some(self.random.u64(..20)));
            if self.open().is_ok() {
                self.close();
            }
        }
        self.recording.kill_in(None);
        self.may_be_killed = false;
        self.open()
    }

    /// Rolls the bank back to an older checkpoint, if it has one. If `may_be_killed`, a kill is
    /// planned for half of the rollbacks.
    fn roll_back(&mut self, may_be_killed: bool) -> Result<()> {
        self.close();
        let numbers = checkpoints_of(&self.bank)?;
        let [older @ .., _] = &numbers[..] else { return self.reopen() };
        if older.is_empty() {
            return self.reopen();
        }
        let number = older[self.random.u64(..older.len() as u64) as usize];
        self.going_back = self.serials.range(number..).map(|(_, serial)| *serial).collect();
        if may_be_killed && self.random.u64(..2) == 0 {
            self.may_be_killed = true;
            self.recording.kill_in(Some(self.random.u64(..ROLL_BACK_CALLS)));
        }
        self.recording.mark(Mark::RollingBack);
        self.roll_backs += 1;
        match Store::roll_back(&self.bank, number) {
            Ok(_) => {
                let serial = self.serials[&number];
                self.recording.mark(Mark::RolledBack { serial });
                self.sure = serial;
                self.going_back.clear();
                self.serials.split_off(&(number + 1));
            }
            Err(_) if self.may_be_killed => self.kills_in_roll_back += 1,
            Err(error) => return Err(error.into()),
        }
        self.reopen()
    }

    fn checkpoint(&mut self) -> Result<()> {
        let state = State { serial: self.states.len() as u64, model: Arc::new(self.model.clone()) };
        let (serial, blob) = (state.serial, state.blob());
        self.states.push(state);
        self.begun = Some(serial);
        self.recording.mark(Mark::Begun { serial });
        let number = self.store()?.checkpoint(&blob)?;
        ensure!(number > 0, "checkpoints are counted from 1");
        self.recording.mark(Mark::Done { serial });
        self.recording.mark(Mark::Working);
        self.checkpoints += 1;
        (self.sure, self.begun) = (serial, None);
        self.serials.insert(number, serial);
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        self.recording.mark(Mark::Compacting);
        self.store()?.compact()?;
        self.recording.mark(Mark::Working);
        Ok(())
    }

    fn create_missing(&mut self) -> Result<()> {
        for (name, value_bytes, variable) in TABLES {
            if !self.model.contains_key(name) {
                let store = self.store.as_ref().context("the store is closed")?;
                rows::create(store, &mut self.model, name, value_bytes, variable)?;
            }
        }
        Ok(())
    }

    /// Returns a random table of the bank. `None` if it has no table.
    fn some_table(&mut self) -> Option<String> {
        let count = self.model.len() as u64;
        let chosen = self.random.u64(..count.max(1)) as usize;
        self.model.keys().nth(chosen).cloned()
    }

    /// Returns a random range of keys.
    fn some_keys(&mut self, count_max: u64) -> Vec<u64> {
        let count = 1 + self.random.u64(..count_max);
        // Each put raises the version, and with it the largest key. So the index grows.
        let end = (1000 + self.version * 40).min(KEYS_END);
        let first = self.random.u64(..end - count.min(end - 1));
        (first..first + count).filter(|&key| key < KEYS_END).collect()
    }

    fn put(&mut self, count_max: u64) -> Result<()> {
        let Some(name) = self.some_table() else { return self.create_missing() };
        let keys = self.some_keys(count_max);
        self.version += 1;
        let Some(model) = self.model.get_mut(&name) else { bail!("no table {name}") };
        let bytes = |key: u64| match (model.variable, model.value_bytes as usize) {
            (true, longest) => (content(key, self.version, 1)[0] as usize * 7) % (longest + 1),
            (false, bytes) => bytes,
        };
        let values: Vec<_> =
            keys.iter().map(|&key| content(key, self.version, bytes(key))).collect();
        let store = self.store.as_ref().context("the store is closed")?;
        rows::put(store, &rows::table(store, &name)?, &keys, &values)?;
        model.rows.extend(keys.into_iter().zip(values));
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let Some(name) = self.some_table() else { return Ok(()) };
        let keys = self.some_keys(150);
        let store = self.store()?;
        store.delete(rows::table(store, &name)?.id, &keys)?;
        if let Some(model) = self.model.get_mut(&name) {
            keys.iter().for_each(|key| {
                model.rows.remove(key);
            });
        }
        Ok(())
    }

    fn get(&mut self) -> Result<()> {
        let Some(name) = self.some_table() else { return Ok(()) };
        let keys = self.some_keys(200);
        let store = self.store()?;
        let found = rows::get(store, &rows::table(store, &name)?, &keys)?;
        let model = &self.model[&name].rows;
        let same = keys.iter().zip(&found).all(|(key, row)| row.as_ref() == model.get(key));
        ensure!(same, "a get of table {name} differs");
        Ok(())
    }

    fn promote(&mut self) -> Result<()> {
        let Some(name) = self.some_table() else { return Ok(()) };
        let keys = self.some_keys(200);
        let store = self.store()?;
        store.promote(rows::table(store, &name)?.id, &keys)?;
        Ok(())
    }

    fn drop_table(&mut self) -> Result<()> {
        let Some(name) = self.some_table() else { return Ok(()) };
        let store = self.store()?;
        store.drop_table(rows::table(store, &name)?.id)?;
        self.model.remove(&name);
        Ok(())
    }
}
