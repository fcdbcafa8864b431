//! Fleets that go back to an earlier set.

use std::fs;
use std::path::Path;

use embank::fleet::{SetRecord, Shard, shard_path};
use embank::{Bank, Error, StoreError};

use crate::fleet::{
    Fleet, SHARDS, checkpoint_alone, checkpoints, look, options, pinned, plan, plan_at, refusal,
    sets, settle,
};

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

/// Makes a fleet that keeps three sets: 1, 2 and 3, with these values.
fn three_sets(dir: &Path) -> Vec<SetRecord> {
    const KEPT: usize = 3;
    let mut shards = Vec::new();
    for number in 0..SHARDS {
        let bank = Bank::open(shard_path(dir, number), options()).unwrap();
        let shard = Shard::open(&bank, number, SHARDS, KEPT).unwrap();
        shards.push((bank, shard));
    }
    let plan = plan(&shards).unwrap();
    let shards = shards.into_iter().map(|shard| settle(shard, &plan, None).unwrap()).collect();
    let mut fleet = Fleet { shards, passed_over: Vec::new() };
    fleet.checkpoint(b"").unwrap();
    let take = |value| {
        fleet.put(value as f32);
        fleet.checkpoint(b"").unwrap()
    };
    (1..=3).map(take).collect()
}

#[test]
fn a_fleet_goes_back_to_an_earlier_set_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let taken = three_sets(dir.path());
    let mut fleet = Fleet::open_at(dir.path(), Some(2)).unwrap();
    assert_eq!((fleet.value(), fleet.recovered()), (Some(2.0), &taken[1]));
    assert!(fleet.passed_over.is_empty());
    for shard in 0..SHARDS {
        assert_eq!(sets(dir.path(), shard), ["0000000001", "0000000002"]);
        let newest = checkpoints(dir.path(), shard).pop();
        assert_eq!(newest, Some(taken[1].checkpoints[shard as usize].number));
    }
    fleet.put(9.0);
    let again = fleet.checkpoint(b"").unwrap();
    assert_eq!(again.number, 3);
    assert_ne!(again.id, taken[2].id);
    drop(fleet);
    let fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!((fleet.value(), fleet.recovered()), (Some(9.0), &again));
}

#[test]
fn an_unknown_set_names_those_that_are_kept_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    three_sets(dir.path());
    for unknown in [0, 4] {
        let text = Fleet::open_at(dir.path(), Some(unknown)).err().unwrap().to_string();
        let expected =
            format!("set must be a complete set of the fleet, one of [1, 2, 3], not {unknown}");
        assert!(text.contains(&expected), "{text}");
    }
    let text = Fleet::open_at(&dir.path().join("new"), Some(1)).err().unwrap().to_string();
    assert!(text.contains("one of [], not 1"), "{text}");
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(3.0));
}

/// A shard that was trained alone has another checkpoint of a later set's number. That set goes.
#[test]
fn going_back_is_the_cure_of_a_shard_that_was_trained_alone() {
    let dir = tempfile::tempdir().unwrap();
    let taken = three_sets(dir.path());
    let path = shard_path(dir.path(), 1);
    Bank::roll_back(&path, taken[1].checkpoints[1].number).unwrap();
    checkpoint_alone(&path);
    assert!(refusal(dir.path()).contains("go back to a set before set 3"));
    assert_eq!(Fleet::open_at(dir.path(), Some(2)).unwrap().value(), Some(2.0));
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(2.0));
}

/// How far a shard has come when the processes of a fleet that goes back end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reached {
    Nothing,
    /// The record and the pin of the set are there, and nothing of later sets is gone.
    Settled,
    /// A part of the later checkpoints is removed.
    RolledBackInPart,
    RolledBack,
    /// The records of later sets are removed too.
    Done,
}

/// Shards that have come to any combination of steps open at one set from the earlier one on.
/// Asking again for the earlier set leads there.
#[test]
fn a_crash_while_a_fleet_goes_back_leaves_one_set() {
    use Reached::{Done, Nothing, RolledBack, RolledBackInPart, Settled};
    const FIRST: [Reached; 5] = [Nothing, Settled, RolledBackInPart, RolledBack, Done];
    let made = tempfile::tempdir().unwrap();
    let taken = three_sets(made.path());
    let combinations = FIRST.iter().flat_map(|&first| {
        let pairs = [(Nothing, Nothing), (Nothing, Settled), (RolledBack, Nothing)];
        let more = [(Settled, Settled), (RolledBackInPart, Settled), (RolledBack, Done)];
        pairs.into_iter().chain(more).map(move |(second, third)| [first, second, third])
    });
    for reached in combinations {
        let dir = tempfile::tempdir().unwrap();
        copy(made.path(), dir.path());
        go_back_in_part(dir.path(), &taken, reached);
        let expected = match () {
            () if reached.contains(&RolledBack) || reached.contains(&Done) => 1,
            () if reached.contains(&RolledBackInPart) => 2,
            () => 3,
        };
        let fleet = Fleet::open(dir.path()).unwrap();
        assert_eq!(fleet.value(), Some(expected as f32), "{reached:?}");
        assert_eq!(fleet.recovered(), &taken[expected - 1], "{reached:?}");
        drop(fleet);
        for shard in 0..SHARDS {
            assert_eq!(pinned(dir.path(), shard), recorded(dir.path(), shard), "{reached:?}");
        }
        // `Fleet::open` keeps two sets.
        let earlier = (expected - 1).max(1);
        let fleet = Fleet::open_at(dir.path(), Some(earlier as u64)).unwrap();
        assert_eq!(fleet.value(), Some(earlier as f32), "{reached:?}");
    }
}

/// Lets the shards of a fleet with three sets go back to set 1, each as far as `reached` says.
fn go_back_in_part(dir: &Path, taken: &[SetRecord], reached: [Reached; SHARDS as usize]) {
    let shards = look(dir, SHARDS).unwrap();
    let back = plan_at(&shards, Some(1)).unwrap();
    for (number, ((bank, mut shard), reached)) in shards.into_iter().zip(reached).enumerate() {
        if reached == Reached::Nothing {
            continue;
        }
        let checkpoint = shard.settle(&bank, &back, None).unwrap().unwrap();
        assert_eq!(checkpoint, taken[0].checkpoints[number].number);
        drop(bank);
        match reached {
            Reached::RolledBackInPart => {
                Bank::roll_back(shard.path(), taken[1].checkpoints[number].number).unwrap();
            }
            Reached::RolledBack => drop(Bank::roll_back(shard.path(), checkpoint).unwrap()),
            Reached::Done => {
                Bank::roll_back(shard.path(), checkpoint).unwrap();
                let bank = Bank::open(shard.path(), options()).unwrap();
                assert_eq!(shard.settle(&bank, &back, None).unwrap(), None);
            }
            Reached::Nothing | Reached::Settled => {}
        }
    }
}

/// Returns the checkpoints of a shard that its records name.
fn recorded(dir: &Path, shard: u32) -> Vec<u64> {
    let bank = Bank::open(shard_path(dir, shard), options()).unwrap();
    let sets = Shard::open(&bank, shard, SHARDS, 3).unwrap().sets().unwrap();
    sets.iter().map(|set| set.checkpoints[shard as usize].number).collect()
}

/// Asserts that the fleet can't go back to set 1, and that it then still has all three sets.
fn can_not_go_back(dir: &Path, expected: &str) {
    let before = (0..SHARDS).map(|shard| (sets(dir, shard), pinned(dir, shard)));
    let before: Vec<_> = before.collect();
    let text = Fleet::open_at(dir, Some(1)).err().unwrap().to_string();
    assert!(text.contains(expected), "{text}");
    let after = (0..SHARDS).map(|shard| (sets(dir, shard), pinned(dir, shard)));
    assert!(after.eq(before), "nothing changes");
}

/// The other shards would remove their checkpoints of later sets, and no set would be complete.
#[test]
fn a_damaged_checkpoint_of_one_shard_loses_no_later_set() {
    let dir = tempfile::tempdir().unwrap();
    let taken = three_sets(dir.path());
    let number = taken[0].checkpoints[1].number;
    let blob = shard_path(dir.path(), 1).join(format!("checkpoints/{number:010}/blob"));
    let mut bytes = fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&blob, bytes).unwrap();
    can_not_go_back(dir.path(), "blob");
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(3.0));
}

#[test]
fn a_reader_of_some_or_all_shards_loses_no_later_set() {
    for read in [vec![2], vec![0, 1, 2]] {
        let dir = tempfile::tempdir().unwrap();
        three_sets(dir.path());
        let reader =
            |&shard: &u32| Bank::open_read_only(shard_path(dir.path(), shard), options(), None);
        let readers: Vec<Bank> = read.iter().map(|of| reader(of).unwrap()).collect();
        can_not_go_back(dir.path(), "is being read");
        drop(readers);
        assert_eq!(Fleet::open_at(dir.path(), Some(2)).unwrap().value(), Some(2.0));
    }
}

/// A reader may begin after the checks of all shards. The roll back then fails before its first
/// removal.
#[test]
fn a_roll_back_that_fails_leaves_the_records_of_later_sets() {
    let dir = tempfile::tempdir().unwrap();
    let taken = three_sets(dir.path());
    let shards = look(dir.path(), SHARDS).unwrap();
    let back = plan_at(&shards, Some(1)).unwrap();
    let readers: Vec<Bank> = (0..SHARDS)
        .map(|of| Bank::open_read_only(shard_path(dir.path(), of), options(), None).unwrap())
        .collect();
    for (number, (bank, mut shard)) in shards.into_iter().enumerate() {
        let checkpoint = shard.settle(&bank, &back, None).unwrap().unwrap();
        assert_eq!(checkpoint, taken[0].checkpoints[number].number);
        drop(bank);
        let error = Bank::roll_back(shard.path(), checkpoint).unwrap_err();
        assert!(matches!(error, Error::Store(StoreError::BeingRead { .. })), "{error}");
    }
    drop(readers);
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(3.0));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}
