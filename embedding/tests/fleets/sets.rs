//! Sets of a fleet: crashes at each step of the set protocol, failed checkpoints, outdated sets.

use std::fs;

use embank::Result;
use embank::fleet::{ShardIdentity, ShardView, Taken, list_sets, shard_path};

use crate::fleet::{
    Fleet, SHARDS, checkpoint_alone, checkpoints, look, pinned, plan, put_back, sets, settle,
    store, take_away, two_sets,
};

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

/// Nothing would end a pin that no record leads to.
#[test]
fn a_checkpoint_without_a_record_is_not_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::open(dir.path()).unwrap();
    fleet.put(1.0);
    let before = pinned(dir.path(), 1);
    assert_eq!(before.len(), 1);
    let taken = fleet.take().unwrap();
    // A file can't take the name of a folder that is not empty.
    let in_the_way = shard_path(dir.path(), 1).join("sets").join("0000000001");
    fs::create_dir_all(in_the_way.join("folder")).unwrap();
    fleet.commit(1, &taken, b"").unwrap_err();
    assert_eq!(pinned(dir.path(), 1), before);
    fs::remove_dir_all(&in_the_way).unwrap();
    fleet.commit(0, &taken, b"").unwrap();
    drop(fleet);
    assert_eq!(Fleet::open(dir.path()).unwrap().value(), Some(1.0));
    assert_eq!(pinned(dir.path(), 1).len(), 2);
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
    let store = store(&shard_path(dir.path(), 1));
    store.unpin(taken[3].checkpoints[1].number).unwrap();
    drop(store);
    checkpoint_alone(&shard_path(dir.path(), 1));
    let fleet = Fleet::open(dir.path()).unwrap();
    assert_eq!(fleet.value(), Some(5.0));
    assert_eq!(sets(dir.path(), 1), ["0000000005"]);
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
