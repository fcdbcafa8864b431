//! Shards that do not belong together, damaged files of a fleet, and what the opening says.

use std::fs;
use std::path::Path;

use embank::fleet::{FleetId, FleetPlan, Shard, refuse_shard, shard_path};
use embank::{Bank, Error, StoreError, TableConfig};

use crate::fleet::{
    Fleet, SHARDS, checkpoint_alone, checkpoints, look, options, plan, refusal, sets, store,
    two_sets,
};

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
    store(&path).pin(back).unwrap();
    checkpoint_alone(&path);
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

/// The fleet's next opening would lose the checkpoint without a word.
#[test]
fn a_shard_takes_no_checkpoint_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = shard_path(dir.path(), 1);
    let fleet = two_sets(dir.path());
    let text = fleet.shards[1].0.checkpoint(b"alone").unwrap_err().to_string();
    assert!(text.contains("shard-00001: found shard 1 of 3 of fleet"), "{text}");
    assert!(text.contains("open the whole fleet"), "{text}");
    let newest = *checkpoints(dir.path(), 1).last().unwrap();
    fleet.shards[1].0.unpin(newest).unwrap_err();
    fleet.shards[1].0.pin(newest).unwrap_err();
    drop(fleet);
    let before = checkpoints(dir.path(), 1);
    let bank = Bank::open(&path, options()).unwrap();
    bank.checkpoint(b"alone").unwrap_err();
    // Without its pin, the newest set would go with the next checkpoint.
    let error = bank.unpin(newest).unwrap_err();
    assert!(matches!(error, Error::ShardMismatch { .. }), "{error}");
    drop(bank);
    assert!(
        Bank::apply_delta(&path, dir.path().join("delta"), 2)
            .is_err_and(|error| matches!(error, Error::ShardMismatch { .. }))
    );
    assert_eq!(checkpoints(dir.path(), 1), before);
    // A copy of a shard is a bank of its own.
    let copy = dir.path().join("copy");
    Bank::copy_checkpoint(&path, None, &copy).unwrap();
    refuse_shard(&copy).unwrap();
    Bank::open(&copy, options()).unwrap().checkpoint(b"alone").unwrap();
}

/// A checkpoint may run when other threads have all file descriptors, so it opens no file `SHARD`.
#[test]
fn an_open_bank_does_not_read_the_file_of_a_shard() {
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), options()).unwrap();
    fs::write(dir.path().join("SHARD"), "no file of a shard").unwrap();
    bank.checkpoint(b"").unwrap();
    drop(bank);
    let text = Bank::open(dir.path(), options()).unwrap_err().to_string();
    assert!(text.contains("/SHARD") && text.contains("restore the file"), "{text}");
}

#[test]
fn ids_of_fleets_differ() {
    assert_ne!(FleetId::random(), FleetId::random());
    assert_eq!(FleetId([0xAB; 16]).to_string(), "ab".repeat(16));
}
