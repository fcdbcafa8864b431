//! The fixed sequence of operations on a bank during which one system call goes wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use embank_kv::inspect::{Damage, SalvageOptions, VerifyOptions, salvage, verify};
use embank_kv::{CompactionOptions, DeviceChoice, Error, Store, StoreOptions, TierLimits};

use self::follower::Follower;
use super::{Call, Fault, Plan, Site};
use crate::content::content;
use crate::recorder::Recording;
use crate::rows::{self, Model};
use crate::settings::Settings;
use crate::strangers::{exchange, files};
use crate::workload::{BANK, State, checkpoints_of, serial_of};

pub mod follower;

/// Every key of the script is below this.
pub const KEYS_END: u64 = 1500;
const TABLES: [(&str, u32, bool); 3] =
    [("rows", 24, false), ("wide", 120, false), ("words", 200, true)];

/// The kind of bank that the script runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode {
    /// True if the bank compacts in the background too. The order of calls then also depends on the
    /// timing of the threads.
    pub background: bool,
    /// True if the bank has two tiers. The script then also calls compaction after every second
    /// checkpoint, so that rows leave the log and parts are merged.
    pub two_tiers: bool,
}

impl Mode {
    /// Returns the settings with which the script opens the bank.
    #[must_use]
    pub fn settings(self) -> Settings {
        let background = self.background;
        let options = StoreOptions {
            // A scan of a bank with parts needs more memory.
            memory_budget_bytes: if self.two_tiers { 1 << 20 } else { 256 << 10 },
            page_size_bytes: Some(8 << 10),
            segment_size_bytes: Some(64 << 10),
            device: DeviceChoice::Threads,
            compaction: CompactionOptions { background, ..CompactionOptions::default() },
            ..StoreOptions::default()
        };
        let limits = TierLimits {
            log_bytes: 64 << 10,
            sort_buffer_bytes: 64 << 10,
            base_part_bytes: 300 << 10,
            level_runs: 3,
        };
        Settings { options, tier: self.two_tiers.then_some(limits) }
    }

    /// Returns this kind of bank, with compaction by calls alone.
    #[must_use]
    pub fn in_foreground(self) -> Self {
        Mode { background: false, ..self }
    }
}

/// The progress of the script, and the states that the bank may have.
#[derive(Debug)]
pub struct Script<'a> {
    recording: &'a Recording,
    plan: Option<Plan>,
    /// The kind of bank.
    pub mode: Mode,
    settings: Settings,
    bank: PathBuf,
    store: Option<Store>,
    model: Model,
    /// The states by serial number.
    pub states: Vec<State>,
    /// The serial number of the newest state that is certainly durable.
    pub sure: u64,
    /// The serial numbers of other states at which the bank may open.
    pub maybe: Vec<u64>,
    /// The serial numbers of all completed checkpoints, except those that were rolled back.
    completed: Vec<u64>,
    /// The copy of the bank that deltas update.
    pub follower: Option<Follower>,
    /// The number of the checkpoint to which the script has begun to roll the bank back. `None`
    /// before the rollback.
    going_back_to: Option<u64>,
    /// The failed steps with their error messages.
    pub errors: Vec<(&'static str, String)>,
    /// The step in which the fault struck. `None` if it did not strike.
    pub struck_in: Option<&'static str>,
    /// True if the store must refuse writes until it is opened again.
    closed_for_good: bool,
    stopped: bool,
    /// True if the script closed the store before a step could report the fault.
    pub overtaken: bool,
    /// True if a read returned wrong bytes and the store wrote them to a copy of a segment.
    pub copied_wrong: bool,
    /// True if a call of compaction said that the disk has no room.
    pub out_of_room: bool,
}

/// Tells the script to continue or to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Step,
    Stop,
}

/// Runs the script below the recorded directory, which must be empty.
///
/// # Errors
/// Returns an error in these cases: rows differ, an error names no file, no fault explains an
/// error, or the store accepts writes that it must refuse.
pub fn run(recording: &Recording, plan: Option<Plan>, mode: Mode) -> Result<Script<'_>> {
    let mut script = Script {
        recording,
        plan,
        mode,
        settings: mode.settings(),
        bank: recording.root().join(BANK),
        store: None,
        model: Model::new(),
        states: vec![State::empty()],
        sure: 0,
        maybe: Vec::new(),
        completed: Vec::new(),
        follower: None,
        going_back_to: None,
        errors: Vec::new(),
        struck_in: None,
        closed_for_good: false,
        stopped: false,
        overtaken: false,
        copied_wrong: false,
        out_of_room: false,
    };
    recording.plan(plan);
    script.live()?;
    if script.closed_for_good && script.store.is_some() {
        script.overtaken = true;
        script.check_that_writes_are_refused()?;
    }
    script.close();
    Ok(script)
}

impl Script<'_> {
    /// Runs the steps in order until one fails for good.
    fn live(&mut self) -> Result<()> {
        type Act<'a> = fn(&mut Script<'a>) -> Result<()>;
        let steps: [(&'static str, Act<'_>); 35] = [
            ("open", Self::open),
            ("put", |s| s.create().and_then(|()| s.put(1, 0, 900))),
            ("checkpoint", Self::checkpoint),
            ("put", |s| s.put(2, 100, 130)),
            ("delete", Self::delete),
            ("get", Self::get),
            ("promote", Self::promote),
            ("checkpoint", Self::checkpoint),
            ("put", |s| s.put(3, 300, 340)),
            ("checkpoint", Self::checkpoint),
            ("exchange", Self::exchange),
            ("verify", Self::verify),
            ("put", |s| s.put(4, 0, 1100)),
            ("compact", Self::compact),
            ("checkpoint", Self::checkpoint),
            ("check", Self::check),
            ("scan", Self::scan),
            ("read only", Self::read_only),
            ("put", |s| s.put(9, 0, 1200)),
            ("reopen", Self::open),
            ("put", |s| s.put(5, 800, 1400)),
            ("checkpoint", Self::checkpoint),
            ("copy", Self::copy),
            ("roll back", Self::roll_back),
            ("reopen", Self::open),
            ("put", |s| s.put(6, 50, 500)),
            ("checkpoint", Self::checkpoint),
            ("copy", Self::follow),
            ("compact", Self::compact),
            ("checkpoint", Self::checkpoint),
            ("export delta", Self::export_delta),
            ("apply delta", Self::apply_delta),
            ("check", Self::check),
            ("salvage", Self::salvage),
            ("scan", Self::scan),
        ];
        let compact: (&'static str, Act<'_>) = ("compact", Self::compact);
        let mut checkpoints = 0;
        for step in steps {
            checkpoints += u64::from(step.0 == "checkpoint");
            let follows = self.mode.two_tiers && step.0 == "checkpoint" && checkpoints % 2 == 1;
            let follows = follows.then_some(compact);
            for (name, act) in [step].into_iter().chain(follows) {
                if self.step(name, act)? == Next::Stop {
                    self.stopped = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// True if the script ended before its last step.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    fn step(&mut self, name: &'static str, act: fn(&mut Self) -> Result<()>) -> Result<Next> {
        let done = act(self);
        if self.struck_in.is_none() && self.recording.has_struck() {
            self.struck_in = Some(name);
            self.closed_for_good = self.must_close();
        }
        let Err(error) = done else {
            let ended = name == "checkpoint" && self.closed_for_good;
            ensure!(!ended, "a checkpoint completes after the log could not be written");
            return Ok(Next::Step);
        };
        self.note(name, error)?;
        let fault = self.plan.map(|plan| (plan.site.call, plan.fault));
        let passes = fault.is_some_and(|(call, fault)| {
            !(fault.lasts() || fault.is_silent() && call == Call::Write)
        });
        if !passes || self.is_closed() {
            return Ok(Next::Stop);
        }
        match act(self) {
            Ok(()) => Ok(Next::Step),
            Err(error) => {
                let what = format!("{name} failed, the cause is over, and it fails again");
                self.note(name, error).context(what.clone())?;
                // Before `open` cuts a segment that a copy of the bank shares, it copies the
                // segment. If the fault made `open` read wrong bytes, they are in the copy of the
                // segment, and a later step may meet that damage.
                self.copied_wrong = self.struck_in == Some("reopen") && self.reads_lie();
                if self.copied_wrong {
                    return Ok(Next::Stop);
                }
                // After the first failure the store may still take writes, because the failure may
                // come from an inner operation. After the second one it must refuse writes.
                ensure!(self.is_closed(), "{what}: {:?}", self.errors);
                Ok(Next::Stop)
            }
        }
    }

    /// Records the error of a step. It must be an error of the store that names a file and has a
    /// cause.
    fn note(&mut self, name: &'static str, error: anyhow::Error) -> Result<()> {
        let Some(of_store) = error.downcast_ref::<Error>() else {
            return Err(error.context(format!("wrong in {name}")));
        };
        let text = of_store.to_string();
        ensure!(self.struck_in.is_some(), "{name} fails for no reason: {text}");
        let root = self.recording.root().to_string_lossy().into_owned();
        ensure!(text.contains(&root), "{name} fails with an error that names no file: {text}");
        ensure!(!text.contains("panicked"), "{name} fails with {text}");
        self.errors.push((name, text));
        Ok(())
    }

    /// True if a write or sync of the open store's log has failed, so that the store must refuse
    /// writes.
    fn must_close(&self) -> bool {
        let Some(Plan { site, fault, .. }) = self.plan else { return false };
        // A page that finds no room stays in memory, so the store goes on. After a failed sync the
        // store cannot go on, because written pages may be lost.
        let fails = fault == Fault::Broken || fault == Fault::NoRoom && site.call == Call::Sync;
        let step = self.struck_in.unwrap_or_default();
        let by_others = matches!(
            step,
            "open" | "reopen" | "copy" | "export delta" | "apply delta" | "roll back" | "salvage"
        );
        fails
            && !by_others
            && matches!(
                (site.call, site.file),
                (Call::Write | Call::Create | Call::Sync, "segment")
                    | (Call::Sync, "log directory" | "part")
            )
    }

    fn reads_lie(&self) -> bool {
        self.plan.is_some_and(|Plan { site, fault, .. }| {
            fault.is_silent() && site == Site { call: Call::Read, file: "segment" }
        })
    }

    fn is_closed(&self) -> bool {
        let Some(store) = &self.store else { return false };
        let Some(table) = store.tables().into_iter().next() else { return false };
        // The key has no row, so an accepted delete changes nothing.
        matches!(store.delete(table.id, &[KEYS_END + 1]), Err(Error::Poisoned { .. }))
    }

    fn check_that_writes_are_refused(&mut self) -> Result<()> {
        ensure!(self.is_closed(), "the log could not be written, and the store takes puts");
        let store = self.store()?;
        let refused = store.checkpoint(b"bad");
        ensure!(
            matches!(refused, Err(Error::Poisoned { .. })),
            "the log could not be written, and a checkpoint gives {refused:?}"
        );
        Ok(())
    }

    fn store(&self) -> Result<&Store> {
        self.store.as_ref().context("the store is closed")
    }

    /// Closes the store. The store's writer thread runs until the store is dropped, so a fault may
    /// strike after the last step. Such a fault can lose only rows that no completed call has made
    /// durable.
    fn close(&mut self) {
        self.store = None;
        if self.struck_in.is_none() && self.recording.has_struck() {
            self.struck_in = Some("close");
            self.overtaken = true;
        }
    }

    fn open(&mut self) -> Result<()> {
        self.close();
        self.overtaken |= std::mem::take(&mut self.closed_for_good);
        let store = self.settings.open(&self.bank)?;
        self.take(store)
    }

    /// Takes over a store that was just opened. The store must be at state `sure` or at a state of
    /// `maybe`.
    fn take(&mut self, store: Store) -> Result<()> {
        let serial = serial_of(&store)?;
        let state = self.admitted(serial)?;
        self.model = Model::clone(&state.model);
        rows::check(&store, &self.model, KEYS_END)?;
        (self.sure, self.maybe) = (serial, Vec::new());
        self.store = Some(store);
        Ok(())
    }

    /// Returns the state with a serial number.
    ///
    /// # Errors
    /// Fails if `serial` is neither `sure` nor in `maybe`: the bank may not open at that state.
    pub fn admitted(&self, serial: u64) -> Result<&State> {
        ensure!(
            serial == self.sure || self.maybe.contains(&serial),
            "the bank is at state {serial}, not at {} or one of {:?}",
            self.sure,
            self.maybe
        );
        self.states.get(serial as usize).context("a state that never was")
    }

    fn create(&mut self) -> Result<()> {
        for (name, value_bytes, variable) in TABLES {
            if !self.model.contains_key(name) {
                let store = self.store.as_ref().context("the store is closed")?;
                rows::create(store, &mut self.model, name, value_bytes, variable)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, version: u64, first: u64, end: u64) -> Result<()> {
        let keys: Vec<u64> = (first..end).collect();
        for (name, value_bytes, variable) in TABLES {
            let bytes = |key: u64| match variable {
                true => content(key, version, 1)[0] as usize % (value_bytes as usize + 1),
                false => value_bytes as usize,
            };
            let values: Vec<_> =
                keys.iter().map(|&key| content(key, version, bytes(key))).collect();
            let store = self.store.as_ref().context("the store is closed")?;
            rows::put(store, &rows::table(store, name)?, &keys, &values)?;
            let model = self.model.get_mut(name).context("a table of the model")?;
            model.rows.extend(keys.iter().copied().zip(values));
        }
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let keys: Vec<u64> = (500..560).collect();
        let store = self.store()?;
        store.delete(rows::table(store, "wide")?.id, &keys)?;
        let model = self.model.get_mut("wide").context("a table of the model")?;
        model.rows.retain(|key, _| !keys.contains(key));
        Ok(())
    }

    fn get(&mut self) -> Result<()> {
        let keys: Vec<u64> = (0..200).collect();
        let store = self.store()?;
        let found = rows::get(store, &rows::table(store, "rows")?, &keys)?;
        let model = &self.model["rows"].rows;
        let same = keys.iter().zip(&found).all(|(key, row)| row.as_ref() == model.get(key));
        ensure!(same, "a get differs");
        Ok(())
    }

    fn promote(&mut self) -> Result<()> {
        let keys: Vec<u64> = (200..300).collect();
        let store = self.store()?;
        store.promote(rows::table(store, "words")?.id, &keys)?;
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        let state = State { serial: self.states.len() as u64, model: Arc::new(self.model.clone()) };
        let (serial, blob) = (state.serial, state.blob());
        self.states.push(state);
        // A failed checkpoint may still have its final name, because the rename may come before the
        // failed call.
        self.maybe.push(serial);
        self.store()?.checkpoint(&blob)?;
        self.completed.push(serial);
        (self.sure, self.maybe) = (serial, Vec::new());
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        let done = self.store()?.compact()?;
        self.out_of_room |= done.out_of_room;
        Ok(())
    }

    /// Exchanges the bank's directory for another one, and back. In between, a checkpoint must fail
    /// and write nothing to the other directory.
    fn exchange(&mut self) -> Result<()> {
        if self.settings.options.compaction.background {
            // Background compaction may begin a new segment during the exchange. That fails, and
            // the store then refuses writes for good.
            return Ok(());
        }
        // The other directory lies outside the recorded one. The test makes it, so the recorder
        // must not count these calls, and no fault may strike them.
        let other = self.recording.root().with_extension("other");
        std::fs::create_dir_all(other.join("checkpoints"))?;
        exchange(&self.bank, &other)?;
        let refused = self.store()?.checkpoint(b"elsewhere");
        exchange(&self.bank, &other)?;
        let touched = !files(&other)?.is_empty();
        std::fs::remove_dir_all(&other)?;
        ensure!(!touched, "a bank writes to the directory that took its place");
        match refused {
            Err(Error::DirectoryMoved { replaced: true, .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(number) => {
                bail!("checkpoint {number} goes to the directory that took the bank's place")
            }
        }
    }

    fn check(&mut self) -> Result<()> {
        rows::check(self.store()?, &self.model, KEYS_END)
    }

    /// Runs `verify` on the open bank, which must find no damage.
    fn verify(&mut self) -> Result<()> {
        let report = verify(&self.bank, &VerifyOptions::default(), &mut |_| {})?;
        if report.is_clean() {
            return Ok(());
        }
        let found = anyhow!("verify finds {}", report.damage[0]);
        // Once the fault has struck, `verify` may report damage. The report then counts as this
        // step's error.
        if self.recording.has_struck() {
            self.noted_by_verify(&report.damage[0])
        } else {
            Err(found)
        }
    }

    /// Reports damage that `verify` found as an error of the store.
    fn noted_by_verify(&self, damage: &Damage) -> Result<()> {
        Err(Error::Damaged {
            path: damage.path.clone(),
            offset: damage.offset,
            what: damage.what.clone(),
        }
        .into())
    }

    fn scan(&mut self) -> Result<()> {
        rows::check_by_scan(self.store()?, &self.states[self.sure as usize].model)
    }

    /// Reads the bank through a read-only store while its writer is open.
    fn read_only(&mut self) -> Result<()> {
        let reader = Store::open_read_only(&self.bank, &self.settings.options, None)?;
        rows::check(&reader, &self.states[self.sure as usize].model, KEYS_END)?;
        reader.refresh()?;
        Ok(())
    }

    /// Copies the newest checkpoint and opens the copy.
    fn copy(&mut self) -> Result<()> {
        self.copy_to("copy").map(|_| ())
    }

    /// Copies the newest checkpoint to the directory `name` beside the bank, and checks the rows of
    /// the copy. Returns the checkpoint's number.
    fn copy_to(&self, name: &str) -> Result<u64> {
        let copy = self.bank.with_file_name(name);
        if copy.join("BANK").exists() {
            // An earlier try made this copy and failed to read it.
            std::fs::remove_dir_all(&copy)?;
        }
        // `copy_checkpoint` accepts the remains of an earlier try that failed.
        let copied = Store::copy_checkpoint(&self.bank, None, &copy)?;
        let reader = Store::open_read_only(&copy, &self.settings.options, None)?;
        rows::check(&reader, &self.states[self.sure as usize].model, KEYS_END)?;
        Ok(copied.checkpoint)
    }

    /// Rolls the bank back to the older of its two newest checkpoints.
    fn roll_back(&mut self) -> Result<()> {
        self.close();
        let listed = checkpoints_of(&self.bank);
        // The script itself lists the directory, and the fault may strike this call. The error then
        // counts as one of the store.
        let numbers = listed.map_err(|error| Error::Io {
            operation: "list",
            path: self.bank.clone(),
            source: std::io::Error::other(error),
        })?;
        let &[.., older, _] = &self.completed[..] else { bail!("no older checkpoint") };
        // An earlier try that failed may have removed the newest checkpoint already.
        let number = match (self.going_back_to, &numbers[..]) {
            (Some(number), _) | (None, &[.., number, _]) => number,
            _ => bail!("no older checkpoint"),
        };
        self.going_back_to = Some(number);
        self.maybe.push(older);
        Store::roll_back(&self.bank, number)?;
        self.completed.pop();
        (self.sure, self.maybe) = (older, Vec::new());
        Ok(())
    }

    /// Salvages the bank into another bank and checks the rows of that bank.
    fn salvage(&mut self) -> Result<()> {
        let salvaged = self.bank.with_file_name("salvaged");
        if salvaged.exists() {
            std::fs::remove_dir_all(&salvaged)?;
        }
        let options = SalvageOptions { memory_budget_bytes: Some(1 << 20) };
        let report = salvage(&self.bank, &salvaged, &options, &mut |_| {})?;
        if let Some(damage) = report.damage.first() {
            ensure!(self.recording.has_struck(), "salvage finds {damage}");
            return self.noted_by_verify(damage);
        }
        if !report.is_complete() {
            // The report says which blob or record could not be read.
            let what = format!("salvage brings back less: {report:?}");
            ensure!(self.recording.has_struck(), what);
            return Err(Error::Damaged { path: self.bank.clone(), offset: 0, what }.into());
        }
        let reader = Store::open_read_only(&salvaged, &self.settings.options, None)?;
        rows::check(&reader, &self.states[self.sure as usize].model, KEYS_END)
    }
}

/// Returns the path of the script's bank below `root`.
#[must_use]
pub fn bank_in(root: &Path) -> PathBuf {
    root.join(BANK)
}
