//! Tests of the sets of a fleet: opening at the newest complete set after crashes at each step of
//! the set protocol, failed checkpoints, outdated sets, and shards that do not belong together.
//!
//! A test has all shards of a fleet in one process. A crash is the end of all handles at a step of
//! the protocol: what a shard has on disk then is what its calls have made durable. `embank-crash`
//! kills real processes.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use common::small_options;
use embank::fleet::{
    FleetId, FleetPlan, Routing, SetRecord, Shard, ShardIdentity, ShardView, Taken, list_sets,
    read_views, reshard, shard_path,
};
use embank::inspect::{CheckpointReader, TableSummary};
use embank::{
    Admission, Bank, BankOptions, ByteBuffer, Dtype, Error, Missing, Optimizer, Result, StoreError,
    TableConfig, Tracking, TransferProgress, VocabularyConfig,
};

const SHARDS: u32 = 3;
const KEYS: u64 = 64;

/// All shards of an open fleet.
struct Fleet {
    shards: Vec<(Bank, Shard)>,
    passed_over: Vec<String>,
}

fn options() -> BankOptions {
    BankOptions { checkpoints_kept: 1, ..small_options() }
}

/// Opens the banks and looks at them as shards.
fn look(dir: &Path, shards: u32) -> Result<Vec<(Bank, Shard)>> {
    let look = |number| {
        let bank = Bank::open(shard_path(dir, number), options())?;
        let shard = Shard::open(&bank, number, shards, 2)?;
        Ok((bank, shard))
    };
    (0..shards).map(look).collect()
}

fn plan(shards: &[(Bank, Shard)]) -> Result<FleetPlan> {
    // The views go through bytes, as between processes.
    let view = |(_, shard): &(Bank, Shard)| ShardView::from_bytes(&shard.view()?.to_bytes());
    FleetPlan::of(&shards.iter().map(view).collect::<Result<Vec<_>>>()?)
}

/// Settles one shard at the plan's set.
fn settle(
    (bank, mut shard): (Bank, Shard),
    plan: &FleetPlan,
    record: Option<&[u8]>,
) -> Result<(Bank, Shard)> {
    let Some(back) = shard.settle(&bank, plan, record)? else { return Ok((bank, shard)) };
    assert!(shard.take(&bank).is_err(), "the bank is ahead of the set");
    drop(bank);
    Bank::roll_back(shard.path(), back)?;
    let bank = Bank::open(shard.path(), options())?;
    assert_eq!(shard.settle(&bank, plan, record)?, None);
    Ok((bank, shard))
}

impl Fleet {
    fn open(dir: &Path) -> Result<Self> {
        let shards = look(dir, SHARDS)?;
        let plan = plan(&shards)?;
        let newest = plan.newest.as_ref();
        let record = newest.map(|set| shards[set.holder as usize].1.record(set.number));
        let record = record.transpose()?;
        let settle = |shard| settle(shard, &plan, record.as_deref());
        let shards = shards.into_iter().map(settle).collect::<Result<Vec<_>>>()?;
        let mut fleet = Fleet { shards, passed_over: plan.passed_over.clone() };
        if newest.is_none() {
            fleet.checkpoint(b"")?;
        }
        Ok(fleet)
    }

    /// Puts `value` into the row of each key, on the key's shard.
    fn put(&self, value: f32) {
        let routing = Routing::new("user", SHARDS).unwrap();
        for key in 0..KEYS {
            let (bank, _) = &self.shards[routing.shard_of(key) as usize];
            bank.table("user", TableConfig::new(1)).unwrap().put(&[key], &[value]).unwrap();
        }
    }

    /// Returns the one value that all rows have. `None` if there are no rows.
    fn value(&self) -> Option<f32> {
        let mut found = Vec::new();
        let mut rows = 0;
        for (number, (bank, _)) in (0..).zip(&self.shards) {
            let routing = Routing::new("user", SHARDS).unwrap();
            let Ok(table) = bank.open_table("user") else { continue };
            let keys: Vec<u64> = (0..KEYS).filter(|&key| routing.shard_of(key) == number).collect();
            let mut values = vec![0.0; keys.len()];
            table.peek(&keys, &mut values, Missing::Error).unwrap();
            rows += keys.len() as u64;
            found.extend(values);
        }
        assert!(rows == 0 || rows == KEYS, "{rows} rows");
        found.dedup();
        assert!(found.len() < 2, "the shards are at different sets: {found:?}");
        found.first().copied()
    }

    fn take(&mut self) -> Result<Vec<Taken>> {
        self.shards.iter_mut().map(|(bank, shard)| shard.take(bank)).collect()
    }

    fn commit(&mut self, number: usize, taken: &[Taken], blob: &[u8]) -> Result<SetRecord> {
        let (bank, shard) = &mut self.shards[number];
        shard.commit(bank, taken, blob)
    }

    fn checkpoint(&mut self, blob: &[u8]) -> Result<SetRecord> {
        let taken = self.take()?;
        let done: Vec<SetRecord> = (0..self.shards.len())
            .map(|number| self.commit(number, &taken, blob))
            .collect::<Result<_>>()?;
        assert!(done.iter().all(|record| *record == done[0]), "the same bytes on all shards");
        Ok(done[0].clone())
    }

    fn recovered(&self) -> &SetRecord {
        let first = self.shards[0].1.recovered().unwrap();
        assert!(self.shards.iter().all(|(_, shard)| shard.recovered() == Some(first)));
        first
    }
}

fn checkpoints(dir: &Path, shard: u32) -> Vec<u64> {
    let found = Bank::checkpoints(shard_path(dir, shard)).unwrap();
    found.iter().map(|checkpoint| checkpoint.number).collect()
}

fn sets(dir: &Path, shard: u32) -> Vec<String> {
    let folder = fs::read_dir(shard_path(dir, shard).join("sets")).unwrap();
    let mut names: Vec<String> =
        folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Moves a shard's directory away, so that its bank refuses to write; `put_back` moves it back.
fn take_away(dir: &Path, shard: u32) {
    fs::rename(shard_path(dir, shard), dir.join("away")).unwrap();
}

fn put_back(dir: &Path, shard: u32) {
    fs::rename(dir.join("away"), shard_path(dir, shard)).unwrap();
}

#[test]
fn a_new_fleet_opens_again_at_its_newest_set() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::open(dir.path()).unwrap();
    drop(fleet);
    fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!((fleet.recovered().number, fleet.value()), (0, None));
    fleet.put(1.0);
    let set = fleet.checkpoint(b"step 1").unwrap();
    assert_eq!(set.number, 1);
    fleet.put(2.0);
    drop(fleet);
    fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!((fleet.recovered(), fleet.value()), (&set, Some(1.0)));
    let identity = ShardIdentity::read(&shard_path(dir.path(), 1)).unwrap().unwrap();
    assert_eq!((identity.fleet, identity.shard, identity.shards), (set.fleet, 1, SHARDS));
}

/// The protocol's steps are: a checkpoint on each shard, then a record on each shard. The test
/// stops after each step, in the process that takes a set after another process has stopped there.
#[test]
fn a_crash_at_each_step_leaves_the_newest_complete_set() {
    let dir = tempfile::tempdir().unwrap();
    drop(Fleet::open(dir.path()).unwrap());
    let mut expected = None;
    let mut next = 1.0;
    for _ in 0..2 {
        for step in 0..=2 * SHARDS as usize {
            let mut fleet = Fleet::open(dir.path()).unwrap();
            assert_eq!(fleet.value(), expected, "before step {step}");
            fleet.put(next);
            let shards = SHARDS as usize;
            let taken: Vec<Taken> = (0..shards.min(step))
                .map(|number| {
                    let (bank, shard) = &mut fleet.shards[number];
                    shard.take(bank).unwrap()
                })
                .collect();
            for number in 0..step.saturating_sub(shards) {
                fleet.commit(number, &taken, b"blob").unwrap();
                expected = Some(next);
            }
            next += 1.0;
        }
    }
    let fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!((fleet.value(), fleet.recovered().number), (expected, 6));
}

/// Opening is a protocol too: the test stops after each shard's part of it.
#[test]
fn a_crash_while_the_shards_settle_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    for settled in 0..=SHARDS as usize {
        let mut fleet = Fleet::open(dir.path()).unwrap();
        let before = fleet.shards[0].1.newest_set().unwrap();
        fleet.put(settled as f32);
        let taken = fleet.take().unwrap();
        // The last shard alone has the record, so the others lack it.
        fleet.commit(SHARDS as usize - 1, &taken, b"").unwrap();
        drop(fleet);
        let shards = look(dir.path(), SHARDS).unwrap();
        let plan = plan(&shards).unwrap();
        let newest = plan.newest.clone().unwrap();
        assert_eq!((newest.number, newest.holder), (before + 1, SHARDS - 1));
        assert_eq!(newest.lacking, (0..SHARDS - 1).collect::<Vec<_>>());
        let record = shards[newest.holder as usize].1.record(newest.number).unwrap();
        for shard in shards.into_iter().take(settled) {
            settle(shard, &plan, Some(&record)).unwrap();
        }
        // The shards that lacked the record have it before their next checkpoint.
        let mut fleet = Fleet::open(dir.path()).unwrap();
        fleet.put(99.0);
        fleet.take().unwrap();
        drop(fleet);
        let fleet = Fleet::open(dir.path()).unwrap();
        assert_eq!(fleet.value(), Some(settled as f32));
        assert_eq!(fleet.recovered().number, before + 1);
    }
}

#[test]
fn a_shard_that_lacks_the_record_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::open(dir.path()).unwrap();
    let taken = fleet.take().unwrap();
    fleet.commit(0, &taken, b"").unwrap();
    drop(fleet);
    let mut shards = look(dir.path(), SHARDS).unwrap();
    let plan = plan(&shards).unwrap();
    let older = shards[0].1.record(0).unwrap();
    let (bank, lacking) = &mut shards[1];
    for record in [None, Some(&older[..]), Some(b"no record")] {
        let error = lacking.settle(bank, &plan, record).unwrap_err().to_string();
        assert!(error.contains("record"), "{error}");
    }
    assert!(lacking.take(bank).is_err(), "the shard has not settled");
}

#[test]
fn a_set_that_fails_three_times_leaves_the_old_set_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::open(dir.path()).unwrap();
    fleet.put(1.0);
    let good = fleet.checkpoint(b"good").unwrap();
    for attempt in 0..3 {
        fleet.put(2.0 + attempt as f32);
        take_away(dir.path(), 1);
        let taken: Vec<Result<Taken>> =
            fleet.shards.iter_mut().map(|(bank, shard)| shard.take(bank)).collect();
        put_back(dir.path(), 1);
        assert_eq!(taken.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        fleet.shards.iter_mut().for_each(|(_, shard)| shard.abandon());
    }
    // Each failed set's checkpoint was dropped by the next one.
    let held = |shard| good.checkpoints[shard as usize].number;
    for shard in [0, 2] {
        let there = checkpoints(dir.path(), shard);
        assert!(there.contains(&held(shard)), "{there:?}");
        assert_eq!(there.iter().filter(|&&number| number > held(shard)).count(), 1, "{there:?}");
    }
    assert_eq!(checkpoints(dir.path(), 1).last(), Some(&held(1)));
    drop(fleet);
    let mut fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!((fleet.value(), fleet.recovered()), (Some(1.0), &good));
    assert!(fleet.passed_over.is_empty());
    fleet.put(9.0);
    assert_eq!(fleet.checkpoint(b"").unwrap().number, good.number + 1);
    drop(fleet);
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(9.0));
}

#[test]
fn a_shard_that_could_not_write_its_record_writes_it_before_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::open(dir.path()).unwrap();
    fleet.put(1.0);
    let taken = fleet.take().unwrap();
    let set = fleet.commit(0, &taken, b"").unwrap();
    take_away(dir.path(), 1);
    fleet.commit(1, &taken, b"").unwrap_err();
    put_back(dir.path(), 1);
    fleet.commit(2, &taken, b"").unwrap();
    assert_eq!(sets(dir.path(), 1), ["0000000000"]);
    // The next set ends before any record of it.
    fleet.put(2.0);
    assert_eq!(fleet.take().unwrap()[0].set, set.number + 1);
    assert_eq!(sets(dir.path(), 1), ["0000000000", "0000000001"]);
    drop(fleet);
    let fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!((fleet.value(), fleet.recovered()), (Some(1.0), &set));
}

#[test]
fn the_newest_sets_stay_and_older_ones_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::open(dir.path()).unwrap();
    let mut taken = Vec::new();
    for step in 1..=5 {
        fleet.put(step as f32);
        taken.push(fleet.checkpoint(b"").unwrap());
    }
    for shard in 0..SHARDS {
        assert_eq!(sets(dir.path(), shard), ["0000000004", "0000000005"]);
        let there = checkpoints(dir.path(), shard);
        // The checkpoint of set 3 has lost its pin, and the next checkpoint removes it.
        let of = |set: usize| taken[set - 1].checkpoints[shard as usize].number;
        assert_eq!(there, [of(3), of(4), of(5)]);
    }
    drop(fleet);
    // A record whose checkpoint is gone leads nowhere, and goes when the shard opens.
    let bank = Bank::open(shard_path(dir.path(), 1), options()).unwrap();
    bank.unpin(taken[3].checkpoints[1].number).unwrap();
    bank.pin(taken[4].checkpoints[1].number).unwrap();
    bank.checkpoint(b"").unwrap();
    drop(bank);
    let fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!(fleet.value(), Some(5.0));
    assert_eq!(sets(dir.path(), 1), ["0000000005"]);
}

#[test]
fn a_shard_that_was_taken_back_takes_all_shards_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::open(dir.path()).unwrap();
    fleet.put(1.0);
    let old = fleet.checkpoint(b"old").unwrap();
    fleet.put(2.0);
    let new = fleet.checkpoint(b"new").unwrap();
    drop(fleet);
    Bank::roll_back(shard_path(dir.path(), 2), old.checkpoints[2].number).unwrap();
    let fleet = Fleet::open(dir.path()).unwrap();
    let number = new.checkpoints[2].number;
    assert_eq!(fleet.passed_over, [format!("set 2: shard 2 lacks checkpoint {number}")]);
    assert_eq!((fleet.value(), fleet.recovered()), (Some(1.0), &old));
    assert_eq!(sets(dir.path(), 0).last().unwrap(), "0000000001");
    // The numbers of the removed sets and checkpoints are used again, for other content.
    let mut fleet = fleet;
    fleet.put(3.0);
    assert_eq!(fleet.checkpoint(b"").unwrap().number, 2);
    drop(fleet);
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(3.0));
}

fn refusal(dir: &Path) -> String {
    let error = Fleet::open(dir).err().unwrap();
    error.to_string()
}

fn two_sets(dir: &Path) -> Fleet {
    let mut fleet = Fleet::open(dir).unwrap();
    for step in 1..=2 {
        fleet.put(step as f32);
        fleet.checkpoint(b"").unwrap();
    }
    fleet
}

#[test]
fn a_shard_of_another_time_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = two_sets(dir.path());
    let (bank, _) = &fleet.shards[0];
    // A shard trains alone from an older set, and so takes another checkpoint of the same number.
    let back = fleet.shards[0].1.sets().unwrap()[0].checkpoints[0].number;
    let path = bank.path().to_owned();
    fleet.shards.clear();
    Bank::roll_back(&path, back).unwrap();
    let bank = Bank::open(&path, options()).unwrap();
    bank.pin(back).unwrap();
    bank.checkpoint(b"alone").unwrap();
    drop(bank);
    let text = refusal(dir.path());
    assert!(text.contains("shard-00000: found checkpoint") && text.contains("set 2"), "{text}");
    assert!(text.contains("restore the shard's directory"), "{text}");
}

#[test]
fn shards_of_two_fleets_and_a_lost_directory_are_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(two_sets(dir.path()));
    drop(two_sets(other.path()));
    let (own, foreign) = (shard_path(dir.path(), 1), shard_path(other.path(), 1));
    fs::rename(&own, dir.path().join("away")).unwrap();
    let text = refusal(dir.path());
    assert!(text.contains("shard-00001: found no file SHARD"), "{text}");
    fs::remove_dir_all(&own).unwrap();
    fs::rename(&foreign, &own).unwrap();
    let text = refusal(dir.path());
    assert!(text.contains("shard-00001: found a shard of fleet"), "{text}");
    fs::rename(&own, &foreign).unwrap();
    fs::rename(dir.path().join("away"), &own).unwrap();
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(2.0));
}

#[test]
fn a_record_of_another_fleet_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(two_sets(dir.path()));
    drop(two_sets(other.path()));
    let record = |dir: &Path| shard_path(dir, 1).join("sets/0000000002");
    fs::copy(record(other.path()), record(dir.path())).unwrap();
    let text = refusal(dir.path());
    assert!(text.contains("sets/0000000002") && text.contains("two fleets are mixed"), "{text}");
}

#[test]
fn a_damaged_record_names_the_cure_which_works() {
    let dir = tempfile::tempdir().unwrap();
    drop(two_sets(dir.path()));
    let record = |shard| shard_path(dir.path(), shard).join("sets/0000000002");
    let mut bytes = fs::read(record(1)).unwrap();
    bytes[40] ^= 1;
    fs::write(record(1), bytes).unwrap();
    let text = refusal(dir.path());
    assert!(text.contains("sets/0000000002") && text.contains("copy it from another"), "{text}");
    // Without its record, nothing would unpin the checkpoint of the set.
    assert!(!text.contains("remove"), "{text}");
    fs::copy(record(0), record(1)).unwrap();
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(2.0));
    assert_eq!(fs::read(record(1)).unwrap(), fs::read(record(0)).unwrap());
}

/// If an unreadable checkpoint counted as absent, the opening would go back to the set before it,
/// and remove the newest set's checkpoints on all shards.
#[test]
fn a_checkpoint_that_cannot_be_read_stops_the_opening_and_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = two_sets(dir.path());
    let of_set = fleet.shards[0].1.sets().unwrap().pop().unwrap().checkpoints[0].number;
    fleet.put(3.0);
    // Shard 0 is ahead: the checkpoint of the newest set is not its newest one.
    let (bank, shard) = &mut fleet.shards[0];
    shard.take(bank).unwrap();
    drop(fleet);
    let listed = || -> Vec<(Vec<String>, Vec<String>)> {
        let names = |shard| {
            let folder = fs::read_dir(shard_path(dir.path(), shard).join("checkpoints")).unwrap();
            let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        (0..SHARDS).map(|shard| (names(shard), sets(dir.path(), shard))).collect()
    };
    let before = listed();
    let checkpoint = shard_path(dir.path(), 0).join(format!("checkpoints/{of_set:010}"));
    let (manifest, aside) = (checkpoint.join("manifest"), dir.path().join("aside"));
    let damage = || fs::write(&manifest, "damage").unwrap();
    // A directory can't be read as a file: the read fails, and the file itself is good.
    let fail_reads = || fs::create_dir(&manifest).unwrap();
    for spoil in [&damage as &dyn Fn(), &fail_reads] {
        fs::rename(&manifest, &aside).unwrap();
        spoil();
        let text = refusal(dir.path());
        assert!(text.contains(manifest.to_str().unwrap()), "{text}");
        assert!(text.contains("nothing was removed"), "{text}");
        assert_eq!(listed(), before);
        match manifest.is_dir() {
            true => fs::remove_dir(&manifest).unwrap(),
            false => fs::remove_file(&manifest).unwrap(),
        }
        fs::rename(&aside, &manifest).unwrap();
    }
    // The shard checks again before it changes anything: the damage may come after its view.
    let mut shards = look(dir.path(), SHARDS).unwrap();
    let plan = plan(&shards).unwrap();
    fs::rename(&manifest, &aside).unwrap();
    let (bank, shard) = &mut shards[0];
    let text = shard.settle(bank, &plan, None).unwrap_err().to_string();
    assert!(text.contains("nothing was removed"), "{text}");
    assert_eq!(listed(), before);
    fs::rename(&aside, &manifest).unwrap();
    // The bank is ahead, even if the checkpoint that it opened at is not seen any more.
    let newest = Bank::checkpoints(shard_path(dir.path(), 0)).unwrap().pop().unwrap().number;
    let opened_at = checkpoint.with_file_name(format!("{newest:010}"));
    fs::rename(&opened_at, &aside).unwrap();
    assert_eq!(shard.settle(bank, &plan, None).unwrap(), Some(of_set));
    fs::rename(&aside, &opened_at).unwrap();
    drop(shards);
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(2.0));
}

/// Makes a fleet of one shard with one set, and returns its plan and the bytes of its record.
fn fleet_of_one(dir: &Path) -> (FleetPlan, Vec<u8>) {
    let mut shards = look(dir, 1).unwrap();
    let new = plan(&shards).unwrap();
    let (bank, shard) = &mut shards[0];
    assert_eq!(shard.settle(bank, &new, None).unwrap(), None);
    let taken = shard.take(bank).unwrap();
    shard.commit(bank, &[taken], b"").unwrap();
    let record = shard.record(0).unwrap();
    (plan(&shards).unwrap(), record)
}

#[test]
fn a_plan_or_a_record_of_another_fleet_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    drop(two_sets(&path("three")));
    drop(two_sets(&path("other")));
    let (of_one, record_of_one) = fleet_of_one(&path("one"));
    let shards = look(&path("other"), SHARDS).unwrap();
    let (of_other, record_of_other) = (plan(&shards).unwrap(), shards[0].1.record(2).unwrap());
    drop(shards);
    let mut shards = look(&path("three"), SHARDS).unwrap();
    let own = plan(&shards).unwrap();
    let (bank, shard) = &mut shards[2];
    for (plan, record) in [(&of_one, &record_of_one), (&of_other, &record_of_other)] {
        let text = shard.settle(bank, plan, Some(record)).unwrap_err().to_string();
        assert!(text.contains("shard-00002"), "{text}");
    }
    fs::remove_file(shard_path(&path("three"), 2).join("sets/0000000002")).unwrap();
    for record in [&record_of_one, &record_of_other] {
        let text = shard.settle(bank, &own, Some(record)).unwrap_err().to_string();
        assert!(text.contains("the record of set 2"), "{text}");
    }
    assert_eq!(sets(&path("three"), 2), ["0000000001"]);
    // A new shard takes its fleet from the plan, but not another number of shards.
    let mut new = look(&path("new"), SHARDS).unwrap();
    let (bank, shard) = &mut new[2];
    let text = shard.settle(bank, &of_one, Some(&record_of_one)).unwrap_err().to_string();
    assert!(text.contains("with 1 shards") && text.contains("with 3 shards"), "{text}");
    assert!(!shard_path(&path("new"), 2).join("SHARD").exists(), "nothing has changed");
    // The next set would let go of a foreign record, which has no checkpoint of shard 2.
    let record = shards[0].1.record(2).unwrap();
    let (bank, shard) = &mut shards[2];
    assert_eq!(shard.settle(bank, &own, Some(&record)).unwrap(), None);
    let foreign = shard_path(&path("three"), 2).join("sets/0000000000");
    fs::write(foreign, &record_of_one).unwrap();
    let (bank, shard) = &mut shards[2];
    let text = shard.settle(bank, &own, None).unwrap_err().to_string();
    assert!(text.contains("two fleets are mixed"), "{text}");
}

#[test]
fn another_number_of_shards_is_refused_and_names_reshard() {
    let dir = tempfile::tempdir().unwrap();
    drop(two_sets(dir.path()));
    let error = look(dir.path(), SHARDS + 1).err().unwrap().to_string();
    assert!(error.contains("found shard 0 of 3, expected shard 0 of 4"), "{error}");
    assert!(error.contains("embank reshard DIR NEW --shards 4"), "{error}");
}

#[test]
fn a_bank_that_is_no_shard_is_not_made_one() {
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(shard_path(dir.path(), 0), options()).unwrap();
    bank.table("user", TableConfig::new(1)).unwrap();
    let error = Shard::open(&bank, 0, 1, 2).unwrap_err().to_string();
    assert!(error.contains("a bank with tables and no file SHARD"), "{error}");
}

#[test]
fn two_processes_do_not_open_one_shard_and_a_copy_is_no_shard() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = two_sets(dir.path());
    let error = look(dir.path(), SHARDS).err().unwrap();
    assert!(matches!(error, Error::Store(StoreError::Locked { .. })), "{error}");
    let copy = dir.path().join("copy");
    Bank::copy_checkpoint(shard_path(dir.path(), 0), None, &copy).unwrap();
    let copy = Bank::open(copy, options()).unwrap();
    let error = Shard::open(&copy, 0, SHARDS, 2).unwrap_err().to_string();
    assert!(error.contains("no file SHARD"), "{error}");
    drop(fleet);
}

#[test]
fn calls_out_of_order_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = two_sets(dir.path());
    let (bank, shard) = &mut fleet.shards[0];
    assert!(shard.commit(bank, &[], b"").is_err(), "no take");
    let taken = fleet.take().unwrap();
    let (bank, shard) = &mut fleet.shards[0];
    assert!(shard.take(bank).is_err(), "the outcome of the first take is not known");
    for wrong in [&taken[..2], &[taken[0], taken[1], taken[1]], &[taken[1], taken[1], taken[2]]] {
        let error = shard.commit(bank, wrong, b"").unwrap_err().to_string();
        assert!(error.contains("all 3 shards for set 3"), "{error}");
    }
    let mut reversed = taken.clone();
    reversed.reverse();
    shard.commit(bank, &reversed, b"").unwrap();
    assert!(Taken::from_bytes(&taken[0].to_bytes()).is_ok_and(|read| read == taken[0]));
}

#[test]
fn sets_are_listed_from_the_directories() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = two_sets(dir.path());
    let view = |shard| ShardView::read(&shard_path(dir.path(), shard), shard, SHARDS).unwrap();
    let views: Vec<ShardView> = (0..SHARDS).map(view).collect();
    let listed = list_sets(&views).unwrap();
    assert_eq!(listed.iter().map(|set| set.number).collect::<Vec<_>>(), [1, 2]);
    assert!(listed.iter().all(|set| set.incomplete.is_none()));
    drop(fleet);
}

#[test]
fn ids_of_fleets_differ() {
    assert_ne!(FleetId::random(), FleetId::random());
    assert_eq!(FleetId([0xAB; 16]).to_string(), "ab".repeat(16));
}

/// The rows of a fleet's newest set: the bytes of each row by table and key.
type Rows = BTreeMap<(String, u64), Vec<u8>>;

/// Reads the rows of a fleet's newest set. Of a vocabulary, which every shard has, takes the rows
/// of shard 0. Of the numbers of Gets before admission by chance, takes the largest.
fn rows_of_set(dir: &Path, shards: u32) -> (SetRecord, Rows) {
    let views = read_views(dir).unwrap().into_iter().collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(views.len(), shards as usize);
    let newest = FleetPlan::of(&views).unwrap().newest.unwrap();
    let mut rows = Rows::new();
    for (shard, held) in (0..).zip(&newest.checkpoints) {
        for ((name, key), value) in rows_of_checkpoint(&shard_path(dir, shard), held.number) {
            if name.starts_with('(') || name.contains("(vocabulary") && shard > 0 {
                continue;
            }
            let largest = name.starts_with("chance (");
            let there = rows.entry((name, key)).or_insert_with(|| value.clone());
            let number = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().unwrap());
            if largest && number(&value) > number(there) {
                *there = value;
            } else {
                assert!(largest || *there == value, "a row is on two shards");
            }
        }
    }
    let bank = Bank::open(shard_path(dir, 0), options()).unwrap();
    let record = Shard::open(&bank, 0, shards, 2).unwrap().sets().unwrap().pop().unwrap();
    (record, rows)
}

fn rows_of_checkpoint(bank: &Path, checkpoint: u64) -> Rows {
    let mut rows = Rows::new();
    let mut reader = CheckpointReader::open(bank, checkpoint).unwrap();
    let names: HashMap<u16, String> =
        reader.tables().iter().map(|table| (table.number, table.name.clone())).collect();
    let damage = reader.for_each_row(&mut |table, key, value| {
        let before = rows.insert((names[&table].clone(), key), value.to_vec());
        assert_eq!(before, None, "{} key {key}", names[&table]);
        true
    });
    assert_eq!(damage.unwrap(), []);
    rows
}

/// Returns the times of the tables in a checkpoint, by name.
fn times_of(bank: &Path, checkpoint: u64) -> BTreeMap<String, u8> {
    let reader = CheckpointReader::open(bank, checkpoint).unwrap();
    let rows = rows_of_checkpoint(bank, checkpoint);
    let named = |number: u64| {
        let is_it = |table: &&TableSummary| u64::from(table.number) == number;
        reader.tables().iter().find(is_it).unwrap().name.clone()
    };
    let times = rows.iter().filter(|((name, _), _)| name == "(times of tables)");
    times.map(|((_, number), time)| (named(*number), time[0])).collect()
}

/// The settings of the tables of a fleet with all kinds of rows.
fn all_tables() -> Vec<(&'static str, TableConfig)> {
    vec![
        ("plain", TableConfig::new(3)),
        (
            "trained",
            TableConfig::new(4)
                .dtype(Dtype::Int8)
                .optimizer(Optimizer::adam(0.1))
                .tracking(Tracking::SetTime),
        ),
        (
            "admitted",
            TableConfig::new(2)
                .optimizer(Optimizer::adagrad(0.1))
                .admission(Admission::AfterGets(3))
                .tracking(Tracking::SetTime),
        ),
        ("chance", TableConfig::new(2).admission(Admission::Probability(0.5))),
        ("placed", TableConfig::new(2).optimizer(Optimizer::sgd(0.5)).shard(Some(3))),
        ("of words", TableConfig::new(2).vocabulary("words")),
    ]
}

/// Makes a fleet of four shards with rows of all kinds, and takes a set.
fn fleet_of_all_kinds(dir: &Path) {
    const FOUR: u32 = 4;
    let mut shards = look(dir, FOUR).unwrap();
    let plan = plan(&shards).unwrap();
    shards = shards.into_iter().map(|shard| settle(shard, &plan, None).unwrap()).collect();
    for (number, (bank, _)) in (0..).zip(&shards) {
        let words = bank.vocabulary("words", VocabularyConfig::bytes().counts(true)).unwrap();
        let values = ByteBuffer::from_iter((0..50_u8).map(|i| vec![i; 3 + usize::from(i)]));
        words.ids_or_insert(&values, &mut [0; 50]).unwrap();
        bank.vocabulary("numbers", VocabularyConfig::u64()).unwrap();
        for (name, config) in all_tables() {
            let placed = config.shard;
            let table = bank.table(name, config.clone()).unwrap();
            let routing = Routing::new(name, FOUR).unwrap();
            let is_own = |&key: &u64| placed.unwrap_or_else(|| routing.shard_of(key)) == number;
            let own: Vec<u64> = (0..50).filter(is_own).collect();
            if config.tracking == Tracking::SetTime {
                table.set_time(100 + number).unwrap();
            }
            let mut rows = vec![0.0; own.len() * table.dim()];
            // Two gets: keys that need three of them have counts and no row.
            for _ in 0..2 {
                drop(table.get(&own, &mut rows).unwrap());
            }
            let trained: Vec<u64> = own.iter().copied().filter(|key| key % 2 == 0).collect();
            let mut rows = vec![0.0; trained.len() * table.dim()];
            let lease = table.get(&trained, &mut rows).unwrap();
            match config.optimizer {
                Optimizer::None => lease.put(&rows).unwrap(),
                _ => lease.apply(&rows.iter().map(|x| x + 0.5).collect::<Vec<_>>()).unwrap(),
            }
        }
    }
    let taken: Vec<Taken> =
        shards.iter_mut().map(|(bank, shard)| shard.take(bank).unwrap()).collect();
    for (bank, shard) in &mut shards {
        shard.commit(bank, &taken, b"step 7").unwrap();
    }
}

fn reshard_to(dir: &Path, new: &Path, shards: u32) -> Vec<u64> {
    let made = reshard(dir, new, shards, Some(u64::from(shards) << 21), &mut |progress| {
        assert!(progress.rows_done <= progress.rows_total);
        ControlFlow::Continue(())
    });
    let made = made.unwrap();
    assert_eq!(made.rows.len(), shards as usize);
    made.rows
}

#[test]
fn four_shards_become_three_and_four_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fleet_of_all_kinds(&path("four"));
    reshard_to(&path("four"), &path("three"), 3);
    let rows = reshard_to(&path("three"), &path("again"), 4);
    assert!(rows.iter().all(|&rows| rows > 0), "{rows:?}");
    let (old, before) = rows_of_set(&path("four"), 4);
    let (new, between) = rows_of_set(&path("three"), 3);
    let (again, after) = rows_of_set(&path("again"), 4);
    assert_eq!((old.number, old.id, &old.blob), (again.number, again.id, &again.blob));
    assert_ne!(old.fleet, again.fleet);
    assert_ne!(new.fleet, old.fleet);
    assert!(before.keys().any(|(name, _)| name == "admitted (counts before admission)"));
    let kinds: BTreeSet<&str> = before.keys().map(|(name, _)| name.as_str()).collect();
    assert!(kinds.len() >= 10, "{kinds:?}");
    assert_eq!(before, between);
    assert_eq!(before, after);
    for shard in 0..3 {
        let bank = Bank::open(shard_path(&path("three"), shard), options()).unwrap();
        for (name, config) in all_tables() {
            let config = config.clone().shard(config.shard.map(|shard| shard % 3));
            let table = bank.table(name, config).unwrap();
            let placed = table.config().shard;
            assert!(placed.is_none_or(|at| at == shard || table.rows().unwrap() == 0), "{name}");
        }
        assert_eq!(bank.open_vocabulary("words").unwrap().len(), 50);
        let at = new.checkpoints[shard as usize].number;
        let times = times_of(&shard_path(&path("three"), shard), at);
        // The largest of the times 100 to 103 that the four shards had.
        assert_eq!(times, [("admitted".to_owned(), 103), ("trained".to_owned(), 103)].into());
    }
}

#[test]
fn a_resharded_fleet_trains_on() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut fleet = Fleet::open(dir.path()).unwrap();
    fleet.put(1.0);
    let set = fleet.checkpoint(b"blob").unwrap();
    // Another process trains the old fleet meanwhile.
    reshard_to(dir.path(), &new.path().join("two"), 2);
    drop(fleet);
    reshard_to(&new.path().join("two"), &new.path().join("three"), SHARDS);
    let mut fleet = Fleet::open(&new.path().join("three")).unwrap();
    assert_eq!((fleet.value(), fleet.recovered().number), (Some(1.0), set.number));
    assert_eq!((fleet.recovered().id, &fleet.recovered().blob), (set.id, &set.blob));
    fleet.put(2.0);
    assert_eq!(fleet.checkpoint(b"").unwrap().number, set.number + 1);
    drop(fleet);
    assert_eq!(Fleet::open(&new.path().join("three")).unwrap().value(), Some(2.0));
}

#[test]
fn an_interrupted_reshard_is_no_fleet() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(Fleet::open(dir.path()).unwrap());
    let go_on = &mut |_: TransferProgress| ControlFlow::Continue(());
    // Ends at the report with `rows` rows. The first report comes before the first row, and the
    // last one after all rows and before the files of the fleet.
    let interrupt =
        |new: &Path, rows: u64| {
            let result =
                reshard(dir.path(), new, SHARDS, Some(6 << 20), &mut |progress| match progress
                    .rows_done
                    == rows
                {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                });
            assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
            refusal(new)
        };
    let text = interrupt(&new.path().join("without tables"), 0);
    assert!(text.contains("a bank with a checkpoint and no file SHARD"), "{text}");
    drop(two_sets(dir.path()));
    for rows in [0, KEYS] {
        let new = new.path().join(rows.to_string());
        let text = interrupt(&new, rows);
        assert!(text.contains("a bank with tables and no file SHARD"), "{text}");
        assert!(text.contains("interrupted `embank reshard`"), "{text}");
        let text = reshard(dir.path(), &new, 2, None, go_on).unwrap_err().to_string();
        assert!(text.contains("interrupted `embank reshard`"), "{text}");
        fs::remove_dir_all(&new).unwrap();
        reshard(dir.path(), &new, SHARDS, Some(6 << 20), go_on).unwrap();
        // The last file is the SHARD of the last bank.
        let last = shard_path(&new, SHARDS - 1).join("SHARD");
        fs::rename(&last, dir.path().join("SHARD")).unwrap();
        let text = refusal(&new);
        assert!(text.contains("a bank with tables and no file SHARD"), "{text}");
        fs::rename(dir.path().join("SHARD"), &last).unwrap();
        assert_eq!(Fleet::open(&new).unwrap().value(), Some(2.0));
    }
    let other = new.path().join("other");
    let text = reshard(dir.path(), &other, 2, Some(1000), go_on).unwrap_err().to_string();
    assert!(text.starts_with("memory must be") && text.contains("each of 2 new banks"), "{text}");
}

/// With another first id, the rows of the tables by id belong to other values.
#[test]
fn vocabularies_with_other_settings_are_not_resharded() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut fleet = two_sets(dir.path());
    for (number, (bank, _)) in (0..).zip(&fleet.shards) {
        let config = VocabularyConfig::u64().first_id(number / 2);
        bank.vocabulary("ids", config).unwrap().ids_or_insert(&[7][..], &mut [0]).unwrap();
    }
    fleet.checkpoint(b"").unwrap();
    let result = reshard(dir.path(), new.path(), 2, None, &mut |_| ControlFlow::Continue(()));
    let text = result.unwrap_err().to_string();
    assert!(text.contains("shard-00002") && text.contains("first_id: 1"), "{text}");
}

#[test]
fn a_fleet_that_is_not_whole_is_not_resharded() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let refused = |dir: &Path| {
        let result = reshard(dir, new.path(), 2, None, &mut |_| ControlFlow::Continue(()));
        assert_eq!(fs::read_dir(new.path()).unwrap().count(), 0, "nothing was made");
        result.unwrap_err().to_string()
    };
    assert!(refused(dir.path()).contains("expected a fleet"));
    let mut fleet = two_sets(dir.path());
    let (bank, _) = &fleet.shards[2];
    bank.table("alone", TableConfig::new(1)).unwrap();
    fleet.checkpoint(b"").unwrap();
    let text = refused(dir.path());
    assert!(text.contains("shard-00002") && text.contains("shard 0 does not have"), "{text}");
    for (bank, _) in &fleet.shards[..2] {
        bank.table("alone", TableConfig::new(2)).unwrap();
    }
    fleet.checkpoint(b"").unwrap();
    let text = refused(dir.path());
    assert!(text.contains("shard-00002") && text.contains("dim 1"), "{text}");
    for (number, (bank, _)) in (0..).zip(&fleet.shards) {
        bank.drop_table("alone").unwrap();
        let numbers = bank.vocabulary("numbers", VocabularyConfig::u64()).unwrap();
        numbers.ids_or_insert(&[number / 2][..], &mut [0]).unwrap();
    }
    fleet.checkpoint(b"").unwrap();
    let text = refused(dir.path());
    assert!(text.contains("numbers (vocabulary)") && text.contains("shard-00002"), "{text}");
    drop(fleet);
    take_away(dir.path(), 1);
    assert!(refused(dir.path()).contains("shard-00001: found no directory"));
}
