//! Fleets that go back to an earlier set.

use std::fs;
use std::path::Path;

use embank::Bank;
use embank::fleet::{SetRecord, Shard, shard_path};

use crate::fleet::{
    Fleet, SHARDS, checkpoint_alone, checkpoints, look, options, plan, plan_at, refusal, sets,
    settle,
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
    /// The record and the pin of the set, without the records of later sets.
    Settled,
    /// A part of the later checkpoints is removed.
    RolledBackInPart,
    RolledBack,
}

/// Shards that have come to any combination of steps open at one set from the earlier one on.
/// Asking again for the earlier set leads there.
#[test]
fn a_crash_while_a_fleet_goes_back_leaves_one_set() {
    use Reached::{Nothing, RolledBack, RolledBackInPart, Settled};
    const FIRST: [Reached; 4] = [Nothing, Settled, RolledBackInPart, RolledBack];
    let made = tempfile::tempdir().unwrap();
    let taken = three_sets(made.path());
    let combinations = FIRST.iter().flat_map(|&first| {
        let pairs = [(Nothing, Nothing), (Nothing, Settled), (RolledBack, Nothing)];
        let more = [(Settled, Settled), (RolledBackInPart, Settled), (RolledBack, RolledBack)];
        pairs.into_iter().chain(more).map(move |(second, third)| [first, second, third])
    });
    for reached in combinations {
        let dir = tempfile::tempdir().unwrap();
        copy(made.path(), dir.path());
        go_back_in_part(dir.path(), &taken, reached);
        let expected = match () {
            () if reached.iter().all(|of| *of != Nothing) || reached.contains(&RolledBack) => 1,
            () if reached.contains(&RolledBackInPart) => 2,
            () => 3,
        };
        let fleet = Fleet::open(dir.path()).unwrap();
        assert_eq!(fleet.value(), Some(expected as f32), "{reached:?}");
        assert_eq!(fleet.recovered(), &taken[expected - 1], "{reached:?}");
        drop(fleet);
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
            Reached::Nothing | Reached::Settled => {}
        }
    }
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
