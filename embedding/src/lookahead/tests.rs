use embank_kv::{Promoted, RowMark, RunningTime};

use super::worker::Task;
use super::*;

#[test]
fn the_queue_takes_its_share_of_the_budget_at_most() {
    for budget in [0, 1, 1 << 20, 64 << 20, 1 << 40] {
        let taken = memory_bytes(capacity_for_budget(budget));
        assert!(taken <= budget / BUDGET_SHARE && taken <= MEMORY_BYTES_MAX, "{budget}");
    }
    assert!(capacity_for_budget(1 << 20) >= 512);
}

#[test]
fn the_budget_asked_for_leaves_the_store_what_it_needs() {
    for needed in [1, 31, 32, 1000, 524_288, 1 << 30, 1 << 40] {
        let budget = budget_for(needed);
        assert!(budget - memory_bytes(capacity_for_budget(budget)) >= needed, "{needed}");
        assert!(budget <= needed + needed / 31 + 1);
    }
}

/// Longer than any passing test takes.
const A_MINUTE: Duration = Duration::from_secs(60);

/// Makes a queue without a worker thread: the test does the worker's steps itself.
fn queue(dir: &std::path::Path) -> (Lookahead, TableId) {
    let store = Store::open(dir, &embank_kv::StoreOptions::default()).unwrap();
    let table = store.create_table("rows", 8, b"").unwrap();
    (Lookahead::new(Arc::new(store), 1 << 20, 10_000), table)
}

fn put(lookahead: &Lookahead, table: TableId, keys: &[u64]) -> Vec<(u64, RowMark)> {
    struct Zeros;
    impl embank_kv::Operation for Zeros {
        const ACCESS: embank_kv::Access = embank_kv::Access::Put;
        fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
            true
        }
    }
    let store = &lookahead.shared.store;
    let mut marks = Vec::new();
    store.execute(table, keys, embank_kv::Clock::Keep, &mut Zeros).unwrap();
    store.announce(table, keys, &mut Vec::new(), &mut marks).unwrap();
    marks
}

#[test]
fn what_is_cancelled_while_it_is_in_hand_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (lookahead, table) = queue(dir.path());
    let shared = &lookahead.shared;
    let marks = put(&lookahead, table, &[1, 2, 3]);
    for (cancelled, left) in [(&[][..], 3), (&[2][..], 2), (&[1, 2, 3][..], 0)] {
        shared.enqueue(table, 4096, &[1, 2, 3], &[], &mut LookaheadReceipt::default());
        let mut burst = Vec::new();
        assert!(matches!(shared.next_task(&mut burst), Some(Task::Burst(_))));
        let before = lookahead.cancelled_too_late();
        assert_eq!(lookahead.cancel_keys(table, cancelled), 0, "they are in hand");
        assert_eq!(lookahead.cancelled_too_late() - before, cancelled.len() as u64);
        shared.finish_burst(table, &burst, &marks, Ok(Promoted::default()));
        let below = shared.queue.state.lock().window.take_below(u64::MAX);
        assert_eq!(below.len(), left);
        assert!(below.iter().all(|row| !cancelled.contains(&row.key)));
    }
    // A cancelled key can be announced again.
    shared.enqueue(table, 4096, &[2], &[], &mut LookaheadReceipt::default());
    let mut burst = Vec::new();
    assert!(matches!(shared.next_task(&mut burst), Some(Task::Burst(_))));
    shared.finish_burst(table, &burst, &marks[1..2], Ok(Promoted::default()));
    assert_eq!(shared.queue.state.lock().window.take_below(u64::MAX).len(), 1);
    // Rows that the worker is copying do not return to the window after a cancel either.
    shared.queue.state.lock().window.remember(table, &marks);
    shared.queue.boundaries_moved();
    assert!(matches!(shared.next_task(&mut burst), Some(Task::Look)));
    shared.store.checkpoint(b"").unwrap();
    let kept = shared.counters.kept.get();
    lookahead.cancel();
    shared.look_after_the_oldest();
    assert_eq!(shared.counters.kept.get(), kept, "cancelled before they were taken");
    assert!(shared.queue.state.lock().window.is_empty());
}

#[test]
fn whoever_cancels_all_excuses_what_is_in_hand_and_what_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (lookahead, table) = queue(dir.path());
    let shared = &lookahead.shared;
    let marks = put(&lookahead, table, &[1, 2, 3]);
    shared.enqueue(table, 4096, &[1, 2, 3], &[], &mut LookaheadReceipt::default());
    let mut burst = Vec::new();
    assert!(matches!(shared.next_task(&mut burst), Some(Task::Burst(_))));
    lookahead.cancel();
    assert_eq!(lookahead.cancelled_too_late(), 3, "in hand");
    shared.finish_burst(table, &burst, &marks, Ok(Promoted::default()));
    // Keeps two rows in memory without a read: they count as promoted, but not as moved.
    shared.store.checkpoint(b"").unwrap();
    let marks = [marks[0].1, marks[1].1];
    let mut kept = Vec::new();
    shared.store.promote_unused(table, &[1, 2], &marks, &mut kept).unwrap();
    assert_eq!((kept.len(), shared.counters.moved.get()), (2, 0));
    lookahead.cancel();
    assert_eq!(lookahead.cancelled_too_late(), 3 + 2);
    lookahead.forget(table);
    assert_eq!(lookahead.cancelled_too_late(), 3 + 2 + 2);
}

#[test]
fn what_is_announced_together_comes_in_one_burst() {
    let dir = tempfile::tempdir().unwrap();
    let (lookahead, table) = queue(dir.path());
    let shared = &lookahead.shared;
    let other = shared.store.create_table("others", 8, b"").unwrap();
    let announce = |table, fitting, keys: std::ops::Range<u64>| {
        let keys: Vec<u64> = keys.collect();
        shared.enqueue(table, fitting, &keys, &[], &mut LookaheadReceipt::default());
    };
    let bursts = || {
        let mut lengths = Vec::new();
        let mut expected = 0;
        while shared.queue.state.lock().pending.len() > 0 {
            let mut burst = Vec::new();
            let Some(Task::Burst(of)) = shared.next_task(&mut burst) else { unreachable!() };
            lengths.push((of == other, burst.len()));
            for key in &burst {
                assert!(*key >= expected, "in their order");
                expected = key + 1;
            }
            shared.finish_burst(of, &burst, &[], Ok(Promoted::default()));
        }
        lengths
    };
    // Small groups are joined until the burst has `BURST_KEYS_MIN` keys. The group that reaches
    // this number is the last of the burst.
    announce(table, 4096, 0..300);
    announce(table, 4096, 300..600);
    announce(table, 4096, 600..1200);
    announce(table, 4096, 1200..1800);
    assert_eq!(bursts(), [(false, 600), (false, 600), (false, 600)]);
    // A large group is one burst. A group that is too large is divided into equal bursts.
    announce(table, 9999, 0..3000);
    announce(table, 9999, 3000..8000);
    announce(table, 9999, 8000..8010);
    assert_eq!(bursts(), [(false, 3000), (false, 2500), (false, 2500), (false, 10)]);
    // The wider the rows, the fewer rows a burst may have. But even the widest rows come in bursts
    // of `BURST_KEYS_MIN` keys.
    assert_eq!((shared.fitting(64), shared.fitting(0)), (1024, 1 << 16));
    announce(table, 700, 0..2000);
    announce(table, 0, 2000..3024);
    let lengths: Vec<usize> = bursts().into_iter().map(|(_, length)| length).collect();
    assert_eq!(lengths, [667, 667, 666, 512, 512]);
    // A burst has rows of only one table.
    announce(table, 4096, 0..300);
    announce(other, 4096, 300..600);
    announce(table, 4096, 600..900);
    assert_eq!(bursts(), [(false, 300), (true, 300), (false, 300)]);
    // If the last rows of a group are cancelled or overtaken, the burst still ends with that group.
    announce(table, 4096, 0..700);
    announce(table, 4096, 700..1400);
    announce(table, 4096, 1400..2100);
    assert_eq!(lookahead.cancel_keys(table, &(650..700).collect::<Vec<_>>()), 50);
    lookahead.make_way(table, &(1300..1400).collect::<Vec<_>>());
    assert_eq!(bursts(), [(false, 650), (false, 600), (false, 700)]);
}

#[test]
fn what_a_get_overtakes_the_worker_passes_over() {
    let dir = tempfile::tempdir().unwrap();
    let (lookahead, table) = queue(dir.path());
    let shared = &lookahead.shared;
    let next = |burst: &mut Vec<u64>| matches!(shared.next_task(burst), Some(Task::Burst(_)));
    shared.enqueue(table, 4096, &[1, 2, 3, 4, 5, 6], &[], &mut LookaheadReceipt::default());
    lookahead.make_way(table, &[2, 3, 9]);
    // Announcing an overtaken key again makes the worker read it. The queue still has it only once.
    shared.enqueue(table, 4096, &[3], &[], &mut LookaheadReceipt::default());
    let mut burst = Vec::new();
    assert!(next(&mut burst));
    assert_eq!(burst, [1, 3, 4, 5, 6]);
    assert_eq!(shared.counters.late.get(), 1);
    // A Get that needs only one of five keys in the current burst does not wait for the burst.
    assert_eq!(lookahead.make_way_within(table, &[1, 7], A_MINUTE), None);
    shared.finish_burst(table, &burst, &[], Ok(Promoted::default()));
    assert!(lookahead.wait_idle(RunningTime::now()));
    assert_eq!(lookahead.make_way_within(table, &[1, 7], A_MINUTE), None, "nothing is pending");
    // If all keys are overtaken, no work is left.
    shared.enqueue(table, 4096, &[7, 8], &[], &mut LookaheadReceipt::default());
    lookahead.make_way(table, &[7, 8]);
    shared.pass_over(&mut shared.queue.state.lock());
    assert!(lookahead.wait_idle(RunningTime::now()));
    assert_eq!(shared.counters.late.get(), 3);
}

/// Regression test: the worker gave a prefetch's turn to the queue when the queue held only
/// overtaken rows, so the prefetch waited forever.
#[test]
fn a_prefetch_does_not_wait_for_what_was_overtaken() {
    let dir = tempfile::tempdir().unwrap();
    let bank = crate::Bank::open(dir.path(), crate::BankOptions::default()).unwrap();
    let table = bank.table("rows", crate::TableConfig::new(2)).unwrap();
    let lookahead = &table.context().lookahead;
    let id = table.shared.id;
    // The test puts the keys into the queue directly, so no worker is started.
    lookahead.shared.enqueue(id, 4096, &[1], &[], &mut LookaheadReceipt::default());
    let loan = table.context().store.lend_memory(8).unwrap();
    let (prefetch, job) =
        crate::table::prefetch::Prefetch::new(table.clone(), UniqueKeys::new(&[1]).unwrap(), loan);
    lookahead.shared.queue.state.lock().prefetches.push_back(Box::new(job));
    lookahead.make_way(id, &[1]);
    assert!(matches!(lookahead.shared.next_task(&mut Vec::new()), Some(Task::Prefetch(_))));
    drop(prefetch);
}

#[test]
fn a_get_overtakes() {
    let dir = tempfile::tempdir().unwrap();
    let bank = crate::Bank::open(dir.path(), crate::BankOptions::default()).unwrap();
    let table = bank.table("rows", crate::TableConfig::new(2)).unwrap();
    let shared = &table.context().lookahead.shared;
    let id = table.shared.id;
    shared.enqueue(id, 4096, &[1, 2, 3], &[], &mut LookaheadReceipt::default());
    drop(table.get(&[3, 2, 2, 4], &mut [0.0; 8]).unwrap());
    let mut burst = Vec::new();
    assert!(matches!(shared.next_task(&mut burst), Some(Task::Burst(_))));
    assert_eq!((burst, shared.counters.late.get()), (vec![1], 2));
}

#[test]
fn a_get_waits_for_the_burst_that_brings_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (lookahead, table) = queue(dir.path());
    let shared = &lookahead.shared;
    for gone in [false, true] {
        shared.enqueue(table, 4096, &[1, 2, 3], &[], &mut LookaheadReceipt::default());
        let mut burst = Vec::new();
        assert!(matches!(shared.next_task(&mut burst), Some(Task::Burst(_))));
        std::thread::scope(|scope| {
            let get = scope.spawn(|| lookahead.make_way_within(table, &[3, 4], A_MINUTE));
            while shared.queue.state.lock().awaiting == 0 && !get.is_finished() {
                std::thread::yield_now();
            }
            match gone {
                false => shared.finish_burst(table, &burst, &[], Ok(Promoted::default())),
                true => shared.give_up_pending(),
            }
            assert_eq!(get.join().unwrap(), Some(true), "it waited, and was woken in time");
        });
        assert!(lookahead.wait_idle(RunningTime::now()));
    }
    // The wait for a burst that never ends is bounded.
    shared.enqueue(table, 4096, &[1], &[], &mut LookaheadReceipt::default());
    assert!(matches!(shared.next_task(&mut Vec::new()), Some(Task::Burst(_))));
    let waited = lookahead.make_way_within(table, &[1], Duration::from_millis(1));
    assert_eq!(waited, Some(false));
}

#[test]
fn nobody_waits_for_a_worker_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (lookahead, table) = queue(dir.path());
    let shared = &lookahead.shared;
    let marks = put(&lookahead, table, &[1, 2, 3]);
    shared.enqueue(table, 4096, &[], &marks, &mut LookaheadReceipt::default());
    shared.queue.boundaries_moved();
    assert!(!lookahead.wait_idle(RunningTime::now()));
    shared.give_up_pending();
    shared.queue.boundaries_moved();
    assert!(lookahead.wait_idle(RunningTime::now()));
}
