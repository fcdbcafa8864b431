//! Judges the bank that a fault leaves. Either the bank opens at its newest checkpoint, or an error
//! says what is wrong.

use anyhow::{Context, Result, ensure};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{Error, Store};
use fastrand::Rng;

use super::script::follower::Follower;
use super::script::{KEYS_END, Script, bank_in};
use super::{Call, Fault, Plan, Site};
use crate::images::work_on;
use crate::recorder::Recording;
use crate::rows::{self, Model};
use crate::settings::Settings;
use crate::workload::serial_of;

/// The outcome of a planned fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The run never made the planned call.
    NotReached,
    /// No operation reported the fault, and the bank is right.
    Harmless,
    /// An operation failed, and its second try succeeded.
    Failed,
    /// An operation failed and the script ended, because the store refuses writes or the fault
    /// lasts.
    Stopped,
    /// The bank lost data, and every call that needs the lost data reports it.
    Damaged,
}

/// Judges the bank that a script and its fault have left.
///
/// # Errors
/// Fails with a description of what is wrong.
pub fn judge(recording: &Recording, script: &Script<'_>, plan: Plan) -> Result<Outcome> {
    let struck = recording.has_struck();
    let Plan { site, fault, .. } = plan;
    // The store tries again. Only the script itself lists directories with `opendir`.
    let is_tried = fault == Fault::NoHandle && site.call != Call::List;
    let unnoticed = is_tried || matches!(fault, Fault::Interrupted | Fault::Short);
    ensure!(!unnoticed || script.errors.is_empty(), "it is no failure: {:?}", script.errors);
    if fault == Fault::Full && script.sure > 0 {
        // A bank on a full disk must still open.
        match settings_of(script).open(&bank_in(recording.root())) {
            Ok(store) => drop(script.admitted(serial_of(&store)?)?),
            // Before `open` cuts a segment that a copy of the bank shares, it copies the segment.
            // The full disk has no room for that.
            Err(Error::Io { operation: "copy", .. }) => {}
            Err(error) => return Err(error).context("on a full disk"),
        }
    }
    recording.plan(None);
    let fails = matches!(fault, Fault::Broken | Fault::NoRoom);
    // If a page of the log finds no room, it stays in memory. The fault does not last, so the next
    // attempt of the store's writer thread finds room.
    let is_tried_again = fault == Fault::NoRoom
        && site.file == "segment"
        && matches!(site.call, Call::Write | Call::Create);
    let fails = fails && !is_tried_again;
    let noticed = !script.errors.is_empty() || script.overtaken || script.out_of_room;
    // A spill or merge of the compaction thread that fails is tried again after a checkpoint.
    let is_quiet = script.mode.background && site.file == "part" && site.call != Call::Sync;
    ensure!(
        !(fails && struck && must_be_noticed(site) && !is_quiet) || noticed,
        "it fails without a word"
    );
    if (fault.is_silent() && site.call == Call::Write) || script.copied_wrong {
        let outcome = check_what_is_left(recording, script)?;
        if let Some(follower) = &script.follower {
            let checked = check_what_is_left_of(recording, script, follower);
            checked.context("the copy that follows")?;
        }
        return Ok(if struck { outcome } else { Outcome::NotReached });
    }
    check_that_it_is_whole(recording, script)?;
    if let Some(follower) = &script.follower {
        check_that_it_follows(script, follower).context("the copy that follows")?;
    }
    Ok(match (struck, script.errors.is_empty(), fault.lasts() || script.has_stopped()) {
        (false, ..) => Outcome::NotReached,
        (_, true, _) => Outcome::Harmless,
        (_, false, false) => Outcome::Failed,
        (_, false, true) => Outcome::Stopped,
    })
}

/// True if the store loses data when a call of this site fails, so that an operation must report
/// the failure. Other calls are only useful: they remove unneeded files, make links that save a
/// copy, or ask what the file system can do. If one of these fails, the store repeats it or goes on
/// without its effect.
fn must_be_noticed(Site { call, file }: Site) -> bool {
    match call {
        Call::Create | Call::Write => file != "probe",
        // If the sync of a linked index image fails, the store writes a whole image instead. It
        // syncs the names of the checkpoints again after the next removal of a checkpoint.
        Call::Sync => !matches!(file, "index image" | "checkpoints directory"),
        Call::Read => matches!(file, "BANK" | "blob" | "delta" | "index image"),
        // A checkpoint directory that cannot be renamed away stays until the next checkpoint.
        Call::Rename => file != "checkpoint's directory",
        Call::Lock => file == "LOCK",
        Call::MakeDir | Call::SetLen => true,
        _ => false,
    }
}

/// Returns the settings with which the bank is opened after the script.
fn settings_of(script: &Script<'_>) -> Settings {
    script.mode.in_foreground().settings()
}

/// Checks that the bank opens at its newest checkpoint, that every byte is right, and that the bank
/// takes writes.
fn check_that_it_is_whole(recording: &Recording, script: &Script<'_>) -> Result<()> {
    let bank = bank_in(recording.root());
    if script.sure > 0 {
        let report = verify(&bank, &VerifyOptions::default(), &mut |_| {}).context("verifying")?;
        ensure!(report.is_clean(), "verify finds {}", report.damage[0]);
    }
    let store = settings_of(script).open(&bank).context("opening")?;
    let state = script.admitted(serial_of(&store)?)?;
    rows::check(&store, &state.model, KEYS_END)?;
    go_on(store, &settings_of(script), &state.model, recording)
}

/// Checks that the copy is whole at its older or newer checkpoint, and that the delta takes the
/// copy to the newer checkpoint.
fn check_that_it_follows(script: &Script<'_>, follower: &Follower) -> Result<()> {
    let check = || -> Result<u64> {
        let report = verify(&follower.bank, &VerifyOptions::default(), &mut |_| {})?;
        ensure!(report.is_clean(), "verify finds {}", report.damage[0]);
        let store = settings_of(script).open(&follower.bank).context("opening")?;
        let state = script.admitted_of(follower, blob_of(&store)?)?;
        rows::check(&store, &state.model, KEYS_END)?;
        Ok(state.serial)
    };
    follower.catch_up(check()?).context("catching up")?;
    let serial = check().context("caught up")?;
    let there = follower.newer.is_none_or(|newer| newer == serial);
    ensure!(there, "the delta leads to state {serial}");
    Ok(())
}

fn blob_of(store: &Store) -> Result<&[u8]> {
    Ok(&store.recovered().context("a copy without a checkpoint")?.blob)
}

/// Changes rows of an open, whole bank, takes a checkpoint, and opens the bank again.
fn go_on(store: Store, settings: &Settings, model: &Model, recording: &Recording) -> Result<()> {
    let model = work_on(&store, model, KEYS_END, &mut Rng::with_seed(1)).context("working on")?;
    store.checkpoint(b"afterwards").context("taking a checkpoint")?;
    drop(store);
    let store = settings.open(&bank_in(recording.root())).context("opening again")?;
    ensure!(store.recovered().is_some_and(|found| found.blob == b"afterwards"), "the blob");
    rows::check(&store, &model, KEYS_END).context("opened again")
}

/// Checks that every readable row of the bank is right. If a row cannot be read or the bank cannot
/// be opened, `verify` must report damage.
fn check_what_is_left(recording: &Recording, script: &Script<'_>) -> Result<Outcome> {
    let bank = bank_in(recording.root());
    let whole =
        verify(&bank, &VerifyOptions::default(), &mut |_| {}).is_ok_and(|report| report.is_clean());
    let store = match settings_of(script).open(&bank) {
        Ok(store) => store,
        Err(error) => {
            check_named(recording, &error)?;
            ensure!(!whole || script.sure == 0, "verify finds nothing, and opening says: {error}");
            return Ok(Outcome::Damaged);
        }
    };
    let state = script.admitted(serial_of(&store)?)?;
    let lost = rows_lost(recording, &store, &state.model)?;
    if whole {
        ensure!(lost == 0, "verify finds nothing, and {lost} rows can't be read");
        go_on(store, &settings_of(script), &state.model, recording)?;
    }
    let harmless = whole && script.errors.is_empty();
    Ok(if harmless { Outcome::Harmless } else { Outcome::Damaged })
}

/// Checks a copy of the bank as [`check_what_is_left`] does. If the copy is whole, applying the
/// delta must give right rows or a clear error.
fn check_what_is_left_of(
    recording: &Recording,
    script: &Script<'_>,
    follower: &Follower,
) -> Result<()> {
    let look = || -> Result<Option<u64>> {
        let report = verify(&follower.bank, &VerifyOptions::default(), &mut |_| {});
        let whole = report.is_ok_and(|report| report.is_clean());
        let store = match settings_of(script).open(&follower.bank) {
            Ok(store) => store,
            Err(error) => {
                check_named(recording, &error)?;
                ensure!(!whole, "verify finds nothing, and opening says: {error}");
                return Ok(None);
            }
        };
        let state = script.admitted_of(follower, blob_of(&store)?)?;
        let lost = rows_lost(recording, &store, &state.model)?;
        ensure!(!whole || lost == 0, "verify finds nothing, and {lost} rows can't be read");
        Ok(whole.then_some(state.serial))
    };
    let Some(serial) = look()? else { return Ok(()) };
    if let Err(error) = follower.catch_up(serial) {
        check_named(recording, error.downcast_ref().context("no error of the store")?)?;
        ensure!(look()?.is_some(), "a delta that fails damages the copy: {error}");
    } else {
        look()?;
    }
    Ok(())
}

/// Returns the number of rows that cannot be read. The other rows must be right.
fn rows_lost(recording: &Recording, store: &Store, model: &Model) -> Result<u64> {
    let mut lost = 0;
    for (name, expected) in model {
        let table = rows::table(store, name)?;
        for key in 0..KEYS_END {
            match rows::peek(store, &table, &[key]) {
                Ok(row) => ensure!(
                    row[0].as_ref() == expected.rows.get(&key),
                    "table {name}, key {key}: a wrong row, or a missing one, is no error"
                ),
                Err(error) => {
                    check_named(recording, &error)?;
                    lost += 1;
                }
            }
        }
    }
    Ok(lost)
}

/// Checks that an error names a path in the recorded directory.
fn check_named(recording: &Recording, error: &Error) -> Result<()> {
    let text = error.to_string();
    let named = text.contains(&*recording.root().to_string_lossy());
    ensure!(named, "an error that names no file: {text}");
    Ok(())
}
