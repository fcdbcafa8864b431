//! Fleets that go back to an earlier set.

use embank::Bank;
use embank::fleet::shard_path;

use crate::fleet::{Fleet, sets};

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
