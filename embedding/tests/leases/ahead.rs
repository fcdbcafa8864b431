//! Tests Gets ahead: their rows and clocks, their waits, and every way in which they end.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{TestBank, new_bank_with, push_to_disk, rows_of, small_options};
use embank::{
    Admission, AheadQueue, Bags, BankOptions, Error, Initializer, Lease, Optimizer, Pending,
    Pooling, Table, TableConfig,
};

fn config(bound: u32) -> TableConfig {
    TableConfig::new(1)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros)
        .staleness_bound(Some(bound))
}

fn new(bound: u32) -> (TestBank, Table, AheadQueue) {
    let test = new_bank_with(small_options());
    let table = test.bank.table("t", config(bound)).unwrap();
    let queue = test.bank.ahead_queue().unwrap();
    (test, table, queue)
}

fn ahead(table: &Table, keys: &[u64], queue: &AheadQueue) -> Pending {
    table.get_ahead(table.request(keys).unwrap(), queue).unwrap()
}

fn wait(pending: Pending) -> embank::Result<(Lease, Vec<f32>)> {
    let mut rows = vec![f32::NAN; pending.row_count() * pending.table().dim()];
    pending.wait(&mut rows).map(|lease| (lease, rows))
}

fn get(table: &Table, keys: &[u64]) -> Lease {
    table.get(keys, &mut vec![0.0; keys.len()]).unwrap()
}

/// Waits until `is_true`. Another thread makes it true without any call of this one.
fn until(is_true: impl Fn() -> bool) {
    while !is_true() {
        thread::yield_now();
    }
}

/// Waits until a Get of the table is waiting.
fn until_a_get_waits(table: &Table, waits_before: u64) {
    until(|| table.stats().waits > waits_before);
}

#[test]
fn a_get_ahead_returns_what_a_get_returns() {
    let test = new_bank_with(small_options());
    let optimizer = Optimizer::adagrad(0.5);
    let table = test.bank.table("t", TableConfig::new(3).optimizer(optimizer)).unwrap();
    let queue = test.bank.ahead_queue().unwrap();
    let batch: Vec<u64> = (0..3000).map(|i| i * i % 1000).collect();
    get(&test.bank.table("other", config(0)).unwrap(), &[1]).release().unwrap();
    let offsets = [0, 1000, 1000, 3000];
    let weights: Vec<f32> = (0..3000).map(|i| i as f32 / 7.0).collect();
    let bags = Bags { offsets: &offsets, pooling: Pooling::Sum, weights: Some(&weights) };
    for push in [false, true] {
        for kind in 0..4 {
            let request = || {
                let request = table.request(&batch).unwrap();
                match kind {
                    0 => request,
                    1 => request.distinct(),
                    2 => request.bags(bags),
                    _ => table.request(&batch[..20]).unwrap().earlier(&batch[..10]),
                }
            };
            if push {
                push_to_disk(&test.bank);
            }
            let pending = table.get_ahead(request(), &queue).unwrap();
            assert_eq!(pending.row_count(), request().row_count());
            let (lease, rows) = wait(pending).unwrap();
            assert_eq!(
                (lease.row_count() * 3, table.outstanding(batch[5]).unwrap()),
                (rows.len(), Some(1))
            );
            let mut expected = vec![f32::NAN; rows.len()];
            let other = table.get_rows(request(), &mut expected).unwrap();
            assert_eq!(rows, expected);
            assert_eq!(lease.unique(), other.unique());
            other.release().unwrap();
            lease.apply(&rows).unwrap();
            assert_eq!(table.outstanding(batch[5]).unwrap(), Some(0));
        }
    }
}

#[test]
fn bags_may_be_given_before_the_wait() {
    let (_test, table, queue) = new(3);
    table.put(&[7, 8], &[5.0, 6.0]).unwrap();
    let keys = [7, 8, 7];
    let bags = Bags { offsets: &[0, 2, 3], pooling: Pooling::Sum, weights: Some(&[1.0, 2.0, 3.0]) };
    for request in [table.request(&keys).unwrap(), table.request(&keys).unwrap().distinct()] {
        let pending = table.get_ahead(request, &queue).unwrap().bags(bags).unwrap();
        assert_eq!(pending.row_count(), 2);
        let (lease, rows) = wait(pending).unwrap();
        assert_eq!(rows, [17.0, 15.0]);
        // The gradient of key 7 is 1 * 0 + 3 * 1.
        assert_eq!(lease.sum_gradients(&[0.0, 1.0]).unwrap(), [3.0, 0.0]);
    }
    let pending = table.get_ahead(table.request(&keys).unwrap(), &queue).unwrap();
    until(|| pending.is_ready());
    let wrong = Bags { offsets: &[0, 2], ..bags };
    assert!(matches!(pending.bags(wrong), Err(Error::BadBags { .. })));
    assert_eq!(table.outstanding(7).unwrap(), Some(0));
}

#[test]
fn rows_have_the_updates_up_to_the_wait() {
    let (_test, table, queue) = new(1);
    let first = get(&table, &[7]);
    let pending = ahead(&table, &[7, 8], &queue);
    until(|| pending.is_ready());
    assert_eq!(table.outstanding(7).unwrap(), Some(2));
    first.apply(&[-3.0]).unwrap();
    table.put(&[8], &[5.0]).unwrap();
    let (lease, rows) = wait(pending).unwrap();
    assert_eq!(rows, [3.0, 5.0]);
    lease.apply(&[-1.0, -1.0]).unwrap();
    assert_eq!(rows_of(&table, &[7, 8]), [4.0, 6.0]);
}

#[test]
fn a_row_that_is_deleted_before_the_wait_has_its_initial_values() {
    let (_test, table, queue) = new(0);
    table.put(&[7, 8], &[5.0, 6.0]).unwrap();
    let pending = ahead(&table, &[7, 8, 7], &queue);
    until(|| pending.is_ready());
    table.delete(&[7]).unwrap();
    let (lease, rows) = wait(pending).unwrap();
    assert_eq!(rows, [0.0, 6.0, 0.0]);
    lease.apply(&[1.0; 3]).unwrap();
    assert_eq!(table.contains(&[7, 8]).unwrap(), [false, true]);
}

/// Shows that a Get waits for leases of its own program, in the order of the queue, without a
/// timeout and without an error, while no thread waits for it.
#[test]
fn gets_ahead_wait_for_the_leases_of_earlier_batches() {
    let test = new_bank_with(BankOptions { wait_timeout: Duration::ZERO, ..small_options() });
    let table = test.bank.table("t", config(0)).unwrap();
    let queue = test.bank.ahead_queue().unwrap();
    let in_hand = get(&table, &[7]);
    let waits = table.stats().waits;
    let next = ahead(&table, &[7, 8], &queue);
    let after_next = ahead(&table, &[8], &queue);
    until_a_get_waits(&table, waits);
    // A later Get of the queue does not pass, although its row is free.
    assert!(!next.is_ready() && !after_next.is_ready());
    assert_eq!(table.outstanding(8).unwrap_or_default().unwrap_or(0), 0);
    in_hand.apply(&[-1.0]).unwrap();
    until(|| next.is_ready());
    let (lease, rows) = wait(next).unwrap();
    assert_eq!(rows, [1.0, 0.0]);
    assert!(!after_next.is_ready());
    lease.apply(&[-1.0; 2]).unwrap();
    until(|| after_next.is_ready());
    let (lease, rows) = wait(after_next).unwrap();
    assert_eq!(rows, [1.0]);
    lease.release().unwrap();
    assert_eq!(table.stats().timeouts, 0);
}

#[test]
fn a_thread_that_would_wait_for_itself_is_told() {
    let (_test, table, queue) = new(0);
    let in_hand = get(&table, &[7]);
    match wait(ahead(&table, &[7], &queue)).unwrap_err() {
        Error::SelfBlocked { key, held, bound, .. } => assert_eq!((key, held, bound), (7, 1, 0)),
        other => panic!("{other}"),
    }
    in_hand.release().unwrap();

    // A pending Get belongs to the thread that asked for it.
    let pending = ahead(&table, &[7], &queue);
    until(|| pending.is_ready());
    let failed = table.get(&[7], &mut [0.0]);
    assert!(matches!(failed, Err(Error::SelfBlocked { held: 1, .. })), "{failed:?}");
    // The wait for a later Get of the queue fails too.
    let failed = wait(ahead(&table, &[7], &queue));
    assert!(matches!(failed, Err(Error::SelfBlocked { held: 1, .. })), "{failed:?}");
    // The thread that waits becomes the taker.
    thread::scope(|scope| {
        scope.spawn(|| {
            let (lease, _) = wait(pending).unwrap();
            let failed = table.get(&[7], &mut [0.0]);
            assert!(matches!(failed, Err(Error::SelfBlocked { held: 1, .. })), "{failed:?}");
            lease.release().unwrap();
        });
    });
    // No lease has changed hands, so this thread's Gets are still checked.
    let _in_hand = get(&table, &[7]);
    let failed = table.get(&[7], &mut [0.0]);
    assert!(matches!(failed, Err(Error::SelfBlocked { .. })), "{failed:?}");
}

#[test]
fn a_lease_that_is_handed_over_keeps_the_check() {
    let (_test, table, queue) = new(0);
    let (lease, _) = wait(ahead(&table, &[7], &queue)).unwrap();
    lease.hand_over();
    let waits = table.stats().waits;
    let next = ahead(&table, &[7], &queue);
    thread::scope(|scope| {
        scope.spawn(|| {
            until_a_get_waits(&table, waits);
            lease.apply(&[-1.0]).unwrap();
        });
        let (next, rows) = wait(next).unwrap();
        assert_eq!(rows, [1.0]);
        let failed = table.get(&[7], &mut [0.0]);
        assert!(matches!(failed, Err(Error::SelfBlocked { .. })), "{failed:?}");
        next.release().unwrap();
    });
}

#[test]
fn a_wait_ends_with_a_timeout() {
    let (_test, table, queue) = new(0);
    // The lease belongs to another thread.
    let held = thread::scope(|scope| scope.spawn(|| get(&table, &[7])).join().unwrap());
    let brief = table.request(&[7]).unwrap().within(Duration::from_millis(1));
    let blocked = table.get_ahead(brief, &queue).unwrap();
    let other = ahead(&table, &[8], &queue);
    // The wait for a later Get of the queue gives the earlier one its time limit.
    let (lease, _) = wait(other).unwrap();
    lease.release().unwrap();
    let failed = wait(blocked);
    assert!(matches!(failed, Err(Error::StalenessTimeout { key: 7, .. })), "{failed:?}");
    drop(held);
    wait(ahead(&table, &[7], &queue)).unwrap().0.release().unwrap();
}

#[test]
fn dropped_handles_leave_no_lease() {
    let (test, table, queue) = new(0);
    let in_hand = get(&table, &[7]);
    let waits = table.stats().waits;
    let ready = ahead(&table, &[1], &queue);
    until(|| ready.is_ready());
    let blocked = ahead(&table, &[2, 7], &queue);
    let queued = ahead(&table, &[3], &queue);
    until_a_get_waits(&table, waits);
    drop((ready, queued));
    drop(blocked);
    // The queue makes this Get after it has given the blocked one up.
    wait(ahead(&table, &[1, 2, 3], &queue)).unwrap().0.release().unwrap();
    assert_eq!(test.bank.outstanding_leases().len(), 1);
    in_hand.release().unwrap();
    assert!(test.bank.outstanding_leases().is_empty());
    for key in [1, 2, 3, 7] {
        assert_eq!(table.outstanding(key).unwrap(), Some(0), "key {key}");
    }
}

#[test]
fn gets_of_a_queue_that_has_ended_say_so() {
    let (test, table, queue) = new(0);
    let in_hand = get(&table, &[7]);
    let waits = table.stats().waits;
    let ready = ahead(&table, &[1], &queue);
    let blocked = ahead(&table, &[7], &queue);
    let queued = ahead(&table, &[2], &queue);
    until_a_get_waits(&table, waits);
    drop(queue);
    for ended in [blocked, queued] {
        let failed = wait(ended).unwrap_err();
        assert!(matches!(failed, Error::AheadEnded { .. }), "{failed}");
        assert!(failed.to_string().contains("\"t\""), "{failed}");
    }
    wait(ready).unwrap().0.release().unwrap();
    in_hand.release().unwrap();
    assert!(test.bank.outstanding_leases().is_empty());
}

#[test]
fn errors_of_a_get_reach_its_handle_alone() {
    let (test, table, queue) = new(0);
    let bags = Bags { offsets: &[0, 9], pooling: Pooling::Sum, weights: None };
    let refused = table.get_ahead(table.request(&[1]).unwrap().bags(bags), &queue);
    assert!(matches!(refused, Err(Error::BadBags { .. })), "{refused:?}");
    let short = ahead(&table, &[1, 2], &queue).wait(&mut [0.0]);
    assert!(matches!(short, Err(Error::ShapeMismatch { .. })), "{short:?}");
    // The queue makes this Get after it has given the other one up.
    wait(ahead(&table, &[3], &queue)).unwrap().0.release().unwrap();
    assert!(test.bank.outstanding_leases().is_empty());

    let other = test.bank.table("other", config(0)).unwrap();
    test.bank.drop_table("t").unwrap();
    let dropped = wait(ahead(&table, &[1], &queue));
    assert!(matches!(dropped, Err(Error::TableDropped { .. })), "{dropped:?}");
    wait(ahead(&other, &[1], &queue)).unwrap().0.release().unwrap();
}

#[test]
fn a_lease_that_has_expired_is_not_returned() {
    let timeout = Duration::from_millis(1);
    let options = BankOptions { lease_timeout: Some(timeout), ..small_options() };
    let test = new_bank_with(options);
    let table = test.bank.table("t", config(1)).unwrap();
    let queue = test.bank.ahead_queue().unwrap();
    let pending = ahead(&table, &[7], &queue);
    until(|| pending.is_ready());
    // Each Get looks for old leases.
    until(|| {
        get(&table, &[8]).release().unwrap();
        table.outstanding(7).unwrap() == Some(0)
    });
    let failed = wait(pending);
    assert!(matches!(failed, Err(Error::LeaseExpired { .. })), "{failed:?}");
    assert!(table.stats().leases_expired > 0);
}

#[test]
fn a_queue_of_another_bank_is_refused() {
    let (_test, table, _queue) = new(0);
    let (_other, _, queue) = new(0);
    let refused = table.get_ahead(table.request(&[1]).unwrap(), &queue);
    assert!(refused.unwrap_err().to_string().contains("the queue of gets ahead"));
}

/// Shows that a key that admission refused reads as its initial value, and that its gradient
/// changes nothing.
#[test]
fn a_key_that_is_not_admitted_reads_as_its_initial_value() {
    let test = new_bank_with(small_options());
    let config =
        config(1).admission(Admission::AfterGets(2)).initializer(Initializer::Constant(4.0));
    let table = test.bank.table("t", config).unwrap();
    let queue = test.bank.ahead_queue().unwrap();
    for (admitted, expected) in [(false, 4.0), (true, 4.0), (true, 5.0)] {
        let (lease, rows) = wait(ahead(&table, &[7], &queue)).unwrap();
        assert_eq!((rows, table.contains(&[7]).unwrap()), (vec![expected], vec![admitted]));
        lease.apply(&[-1.0]).unwrap();
    }
}

/// Shows that a pipeline that always has leases on a row does not pass a reservation of this row:
/// a Get that needs many rows at bound 0 succeeds while a pipeline runs.
#[test]
fn a_pipeline_does_not_overtake_another_trainer_for_ever() {
    let (test, table, queue) = new(1);
    let all: Vec<u64> = (0..8).collect();
    // The other trainer may end before the pipeline makes its first step, and a Get that is
    // cancelled inserts no rows.
    drop(get(&table, &all));
    let (done, most) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = ahead(&table, &all[..5], &queue);
            // The loop ends when the other trainer has made its Gets.
            while done.load(Ordering::Relaxed) == 0 {
                let (lease, _) = wait(next).unwrap();
                next = ahead(&table, &all[..5], &queue);
                lease.apply(&[-1.0; 5]).unwrap();
                most.fetch_add(1, Ordering::Relaxed);
            }
            drop(next);
        });
        scope.spawn(|| {
            for _ in 0..5 {
                get(&table, &all[3..]).apply(&[-1.0; 5]).unwrap();
            }
            done.store(1, Ordering::Relaxed);
        });
    });
    // Waits for the end of the Get that was cancelled.
    drop(queue);
    assert!(test.bank.outstanding_leases().is_empty());
    let steps = most.load(Ordering::Relaxed) as f32;
    assert_eq!(
        rows_of(&table, &all),
        [steps, steps, steps, steps + 5.0, steps + 5.0, 5.0, 5.0, 5.0]
    );
}

/// Shows that sums are exact, and that no row is ever above its bound, with two pipelines over two
/// tables and rows on disk.
#[test]
fn pipelines_on_two_tables_lose_no_update() {
    const STEPS: u64 = 300;
    let test = new_bank_with(small_options());
    let tables = ["a", "b"].map(|name| test.bank.table(name, config(2)).unwrap());
    let batch_of = |pipeline: u64, step: u64| -> Vec<u64> {
        (0..60).map(|i| (i * i * (step + 1) + pipeline * 7) % 97 * 50).collect()
    };
    let tables = &tables;
    thread::scope(|scope| {
        for pipeline in 0..2 {
            let bank = &test.bank;
            scope.spawn(move || {
                let queue = bank.ahead_queue().unwrap();
                let ask = |step| {
                    let batch = batch_of(pipeline, step);
                    tables.each_ref().map(|table| ahead(table, &batch, &queue))
                };
                let mut pending: std::collections::VecDeque<_> = (0..2).map(ask).collect();
                for step in 0..STEPS {
                    let leases = pending.pop_front().unwrap().map(|one| wait(one).unwrap().0);
                    if step + 2 < STEPS {
                        pending.push_back(ask(step + 2));
                    }
                    if step == 100 && pipeline == 0 {
                        push_to_disk(bank);
                    }
                    leases.into_iter().for_each(|lease| lease.apply(&[-1.0; 60]).unwrap());
                }
            });
        }
    });
    let mut counts = vec![0.0; 97 * 50];
    for (pipeline, step) in (0..2).flat_map(|pipeline| (0..STEPS).map(move |step| (pipeline, step)))
    {
        batch_of(pipeline, step).iter().for_each(|&key| counts[key as usize] += 1.0);
    }
    for table in tables {
        let keys: Vec<u64> =
            (0..97).map(|i| i * 50).filter(|&key| counts[key as usize] > 0.0).collect();
        let expected: Vec<f32> = keys.iter().map(|&key| counts[key as usize]).collect();
        assert_eq!(rows_of(table, &keys), expected);
        let stalest = table.stats().staleness.max().unwrap();
        assert!(stalest <= 2, "{stalest}");
    }
    assert!(test.bank.outstanding_leases().is_empty());
}
