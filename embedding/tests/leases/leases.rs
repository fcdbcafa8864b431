//! Tests leases that no thread ends: they expire, and the list of leases names the thread of each.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{new_bank, new_bank_with, push_to_disk, rows_of, small_options, table};
use embank::{Bank, BankOptions, Error, Initializer, Lease, Optimizer, Table, TableConfig};

const LONG: Duration = Duration::from_secs(60);

/// Options with which leases expire after 10 ms, and Gets wait longer than any test.
fn forgetful() -> BankOptions {
    let lease_timeout = Some(Duration::from_millis(10));
    BankOptions { wait_timeout: LONG, lease_timeout, ..small_options() }
}

/// Like `forgetful`, but leases expire later: even on a busy machine, a Get then begins before the
/// lease expires.
fn forgetful_after_a_get() -> BankOptions {
    BankOptions { lease_timeout: Some(Duration::from_millis(200)), ..forgetful() }
}

/// With this config, a row's value counts the gradients of -1 that were applied to it.
fn config() -> TableConfig {
    TableConfig::new(1).optimizer(Optimizer::sgd(1.0)).initializer(Initializer::Zeros)
}

fn get_distinct(table: &Table, keys: &[u64]) -> Lease {
    let request = table.request(keys).unwrap().distinct();
    let mut rows = vec![0.0; request.row_count()];
    table.get_rows(request, &mut rows).unwrap()
}

fn get(table: &Table, keys: &[u64]) -> Lease {
    table.get(keys, &mut vec![0.0; keys.len()]).unwrap()
}

#[test]
fn a_forgotten_lease_blocks_its_rows_until_it_expires() {
    let test = new_bank_with(forgetful_after_a_get());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    mem::forget(get(&table, &[1, 2]));
    get(&table, &[2, 3]).apply(&[-1.0, -1.0]).unwrap();
    assert_eq!(rows_of(&table, &[1, 2, 3]), [0.0, 1.0, 1.0]);
    for key in [1, 2, 3] {
        assert_eq!(table.outstanding(key).unwrap(), Some(0));
    }
    let stats = table.stats();
    assert_eq!((stats.leases_expired, stats.waits, stats.timeouts), (1, 1, 0));
    assert_eq!(test.bank.stats().leases_expired, 1);
    assert!(table.outstanding_leases().is_empty());
}

#[test]
fn without_a_bound_the_next_get_of_the_table_finds_it() {
    let test = new_bank_with(forgetful());
    let table = table(&test.bank, config());
    mem::forget(get(&table, &[1]));
    let deadline = Instant::now() + LONG;
    while table.stats().leases_expired == 0 {
        assert!(Instant::now() < deadline);
        get(&table, &[5]).release().unwrap();
    }
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
    assert_eq!(table.stats().waits, 0);
}

#[test]
fn an_update_that_comes_too_late_is_refused_and_changes_nothing() {
    type Get = fn(&Table, &[u64]) -> Lease;
    type Update = fn(Lease) -> embank::Result<()>;
    let updates: [(Get, Update); 4] = [
        (get, |lease| lease.apply(&[-1.0; 3])),
        (get_distinct, |lease| lease.apply(&[-1.0; 2])),
        (get, |lease| lease.put(&[1.0; 3])),
        (get_distinct, |lease| lease.put(&[1.0; 2])),
    ];
    let release = None;
    for update in updates.into_iter().map(Some).chain([release]) {
        let test = new_bank_with(forgetful());
        let table = table(&test.bank, config().staleness_bound(Some(0)));
        let take = update.map_or(get as Get, |(take, _)| take);
        let late = take(&table, &[1, 2, 1]);
        let next = get(&table, &[2]);
        assert!(late.is_expired());
        // The expiry already gave the counts back. Releasing the lease is no error.
        let Some((_, update)) = update else {
            late.release().unwrap();
            continue;
        };
        match update(late).unwrap_err() {
            Error::LeaseExpired { table: name, keys, age, timeout } => {
                assert_eq!((name.as_str(), keys), (table.name(), 2));
                assert!(age >= timeout && timeout == Duration::from_millis(10));
            }
            other => panic!("{other}"),
        }
        assert_eq!(table.outstanding(2).unwrap(), Some(1), "that of the next");
        assert_eq!(rows_of(&table, &[1, 2]), [0.0, 0.0]);
        next.release().unwrap();
        assert_eq!(table.outstanding(2).unwrap(), Some(0));
        assert_eq!(table.stats().release_failures, 0);
    }
}

#[test]
fn an_old_lease_that_nobody_missed_can_be_applied() {
    let options = BankOptions { lease_timeout: Some(Duration::from_nanos(1)), ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    for _ in 0..20 {
        let lease = get(&table, &[1]);
        lease.apply(&[-1.0]).unwrap();
    }
    assert_eq!(rows_of(&table, &[1]), [20.0]);
}

#[test]
fn a_lease_expires_that_is_stuck_in_another_thread_with_rows_on_disk() {
    let test = new_bank_with(forgetful());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let (stuck, release) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let lease = get(&table, &[1, 2, 3]);
        let worker = scope.spawn(move || {
            // Waits until the other Gets are done.
            assert!(release.recv().is_err());
            lease.apply(&[-1.0; 3])
        });
        push_to_disk(&test.bank);
        assert_eq!(table.outstanding(1).unwrap(), Some(1), "counts go to disk and back");
        get(&table, &[3, 1]).apply(&[-1.0, -1.0]).unwrap();
        drop(stuck);
        assert!(matches!(worker.join().unwrap(), Err(Error::LeaseExpired { .. })));
    });
    assert_eq!(rows_of(&table, &[1, 2, 3]), [1.0, 0.0, 1.0]);
    for key in [1, 2, 3] {
        assert_eq!(table.outstanding(key).unwrap(), Some(0));
    }
}

/// Shows that a lease that expires during its update gives each count back once. Each gradient is
/// applied once or refused.
#[test]
fn an_expiring_lease_and_its_owner_give_the_counts_back_once() {
    let options = BankOptions { lease_timeout: Some(Duration::from_micros(30)), ..forgetful() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let applied = [AtomicU64::new(0), AtomicU64::new(0)];
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (table, applied, refused) = (&table, &applied, &refused);
            scope.spawn(move || {
                for round in 0..400_u64 {
                    let keys = if thread % 2 == 0 { [0, 1] } else { [1, 0] };
                    let lease = get(table, &keys);
                    match (thread + round) % 7 {
                        0 => mem::forget(lease),
                        1 => drop(lease),
                        _ => match lease.apply(&[-1.0, -1.0]) {
                            Ok(()) => applied.iter().for_each(|count| {
                                count.fetch_add(1, Ordering::Relaxed);
                            }),
                            Err(Error::LeaseExpired { .. }) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(other) => panic!("{other}"),
                        },
                    }
                }
            });
        }
    });
    // This Get waits until the last forgotten lease has expired.
    get(&table, &[0, 1]).release().unwrap();
    let rows = rows_of(&table, &[0, 1]);
    let applied = applied.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(rows, applied.map(|count| count as f32));
    for key in [0, 1] {
        assert_eq!(table.outstanding(key).unwrap(), Some(0));
    }
    let stats = table.stats();
    assert!(stats.leases_expired >= 4 * 400 / 7 && stats.release_failures == 0, "{stats:?}");
    assert!(table.outstanding_leases().is_empty());
}

#[test]
fn a_timeout_names_the_oldest_lease_that_holds_the_row() {
    let options = BankOptions { wait_timeout: Duration::from_millis(20), ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(1)));
    let elsewhere = get(&table, &[9]);
    let worker = std::thread::Builder::new().name("worker 3".to_owned());
    let taking = table.clone();
    let first = worker.spawn(move || get(&taking, &[7, 8])).unwrap().join().unwrap();
    let second = get(&table, &[7]);
    let error = table.get(&[7], &mut [0.0]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("worker 3") && text.contains("2 keys"), "{text}");
    let Error::StalenessTimeout { oldest: Some(oldest), .. } = error else { panic!("{error}") };
    assert!(oldest.keys == 2 && oldest.age >= Duration::from_millis(20), "{oldest}");
    drop((elsewhere, first, second));
}

#[test]
fn the_leases_that_are_out_are_listed_by_age() {
    let test = new_bank();
    let first = table(&test.bank, config());
    let second = test.bank.table("second", config()).unwrap();
    let leases = (get(&first, &[1]), get(&second, &[1, 2]), get(&first, &[1, 2, 3, 1]));
    let listed = |bank: &Bank| {
        let list = bank.outstanding_leases();
        assert!(list.is_sorted_by(|a, b| a.age >= b.age));
        list.into_iter().map(|lease| (lease.table, lease.keys)).collect::<Vec<_>>()
    };
    let entry = |table: &str, keys| (table.to_owned(), keys);
    assert_eq!(listed(&test.bank), [entry("t", 1), entry("second", 2), entry("t", 3)]);
    assert_eq!(first.outstanding_leases().len(), 2);
    leases.1.apply(&[0.0, 0.0]).unwrap();
    drop(leases.0);
    assert_eq!(listed(&test.bank), [entry("t", 3)]);
    drop(leases.2);
    assert_eq!(listed(&test.bank), []);
}

#[test]
fn a_timeout_of_zero_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = BankOptions { lease_timeout: Some(Duration::ZERO), ..small_options() };
    let error = Bank::open(dir.path().join("bank"), options).unwrap_err();
    assert!(error.to_string().contains("lease_timeout"), "{error}");
}

#[test]
fn the_histogram_has_the_clock_that_each_get_saw() {
    let test = new_bank();
    let table = table(&test.bank, config());
    let mut leases: Vec<Lease> = (0..20).map(|_| get(&table, &[1, 1, 2])).collect();
    push_to_disk(&test.bank);
    leases.push(get(&table, &[2, 3]));
    let staleness = table.stats().staleness;
    let mut expected: Vec<_> = (0..=16).map(|clock| (clock, 2)).collect();
    expected[0].1 += 1;
    expected.push((32, 3 * 2 + 1)); // 17 to 19 of both rows, and 20 from disk
    assert_eq!(staleness.buckets().collect::<Vec<_>>(), expected);
    assert_eq!(staleness.rows(), table.stats().get_rows);
    assert_eq!((staleness.quantile(0.5), staleness.max()), (Some(9), Some(32)));
    let name = table.name().to_owned();
    drop(leases);
    let before = test.bank.stats().staleness;
    test.bank.drop_table(&name).unwrap();
    assert_eq!(test.bank.stats().staleness, before);
}

#[test]
fn a_get_that_had_to_wait_is_counted_once_as_it_came_through() {
    let test = new_bank_with(forgetful_after_a_get());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    mem::forget(get(&table, &[1]));
    get(&table, &[1, 2, 3]).release().unwrap();
    assert_eq!(table.stats().waits, 1);
    assert_eq!(table.stats().staleness.buckets().collect::<Vec<_>>(), [(0, 4)]);
}

/// Shows that a lease on a deleted row gives back no count for it. If the row was made again, its
/// count belongs to another lease.
#[test]
fn a_lease_on_a_deleted_row_does_not_take_the_count_of_the_row_made_anew() {
    type End = fn(Lease, &Table);
    let ends: [(End, f32); 5] = [
        (|lease, _| drop(lease), 0.0),
        (|lease, _| lease.release().unwrap(), 0.0),
        (|lease, _| lease.apply(&[-4.0, -4.0]).unwrap(), 0.0),
        (|lease, _| lease.put(&[9.0, 9.0]).unwrap(), 9.0),
        (
            |lease, table| {
                mem::forget(lease);
                let deadline = Instant::now() + LONG;
                while table.stats().leases_expired == 0 {
                    assert!(Instant::now() < deadline);
                    get(table, &[99]).release().unwrap();
                }
            },
            0.0,
        ),
    ];
    for (number, (end, value)) in ends.into_iter().enumerate() {
        for on_disk in [false, true] {
            let lease_timeout = (number == 4).then_some(Duration::from_millis(50));
            let wait_timeout = Duration::from_millis(5);
            let test =
                new_bank_with(BankOptions { lease_timeout, wait_timeout, ..small_options() });
            let table = table(&test.bank, config().staleness_bound(Some(0)));
            let old = get(&table, &[5, 6]);
            if on_disk {
                push_to_disk(&test.bank);
            }
            assert_eq!(table.delete(&[5, 7]).unwrap(), 1);
            assert_eq!(table.outstanding_leases()[0].keys, 1);
            let new = get(&table, &[5]);
            end(old, &table);
            assert_eq!(table.outstanding(6).unwrap(), Some(0), "{number}: of its other row");
            if new.is_expired() {
                // The new lease expired early, because the machine is slow.
                continue;
            }
            assert_eq!(table.outstanding(5).unwrap(), Some(1), "{number}: that of the new lease");
            match table.get(&[5], &mut [0.0]) {
                Err(
                    Error::StalenessTimeout { outstanding: 1, .. }
                    | Error::SelfBlocked { held: 1, .. },
                ) => {}
                // The new lease expired early, because the machine is slow.
                Ok(_) if new.is_expired() => continue,
                other => panic!("{number}: {other:?}"),
            }
            assert_eq!(rows_of(&table, &[5]), [value], "{number}");
            new.release().unwrap();
            assert_eq!(table.outstanding(5).unwrap(), Some(0));
        }
    }
}

/// Shows that deletions do not change the clocks of other leases' rows. Rows are deleted while
/// leases on them are applied, released, forgotten and expired. A thread that holds a row's only
/// lease must find the row's clock at 1 until the row is deleted.
#[test]
fn deletions_leave_the_clocks_of_others_alone() {
    const KEYS: u64 = 4;
    let test =
        new_bank_with(BankOptions { lease_timeout: Some(Duration::from_millis(2)), ..forgetful() });
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let deletions: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (running, checked) = (AtomicU64::new(3), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (table, deletions, running, checked) = (&table, &deletions, &running, &checked);
            scope.spawn(move || {
                for round in 0..1500_u64 {
                    let key = (round * 7 + thread) % KEYS;
                    let begun = |key: u64| deletions[key as usize].load(Ordering::SeqCst);
                    let before = begun(key);
                    let lease = get(table, &[key, 100 + thread]);
                    let outstanding = table.outstanding(key).unwrap();
                    // True if no deletion of the key began or ended from before the Get until now.
                    let undisturbed = before % 2 == 0 && begun(key) == before;
                    if undisturbed && !lease.is_expired() {
                        assert_eq!(outstanding, Some(1), "thread {thread}, round {round}");
                        checked.fetch_add(1, Ordering::Relaxed);
                    }
                    match (round + thread) % 5 {
                        0 if round % 50 == 0 => mem::forget(lease),
                        1 => match lease.apply(&[-1.0, -1.0]) {
                            Ok(()) | Err(Error::LeaseExpired { .. }) => {}
                            Err(other) => panic!("{other}"),
                        },
                        _ => drop(lease),
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut key = 0;
        while running.load(Ordering::SeqCst) > 0 {
            deletions[key].fetch_add(1, Ordering::SeqCst);
            table.delete(&[key as u64]).unwrap();
            deletions[key].fetch_add(1, Ordering::SeqCst);
            key = (key + 1) % KEYS as usize;
            std::thread::yield_now();
        }
    });
    assert!(checked.load(Ordering::Relaxed) > 0);
    let deadline = Instant::now() + LONG;
    while !table.outstanding_leases().is_empty() {
        assert!(Instant::now() < deadline);
        get(&table, &[99]).release().unwrap();
    }
    for key in (0..KEYS).chain(100..103) {
        assert_eq!(table.outstanding(key).unwrap().unwrap_or(0), 0, "{key}");
    }
}

/// Shows that with the longest timeouts no lease expires, and that a waiting thread sleeps.
#[test]
fn a_timeout_without_end_is_one() {
    for lease_timeout in [
        Duration::MAX,
        Duration::from_secs(i64::MAX as u64),
        Duration::from_secs(u64::from(u32::MAX)),
    ] {
        let wait_timeout = Duration::from_millis(200);
        let options =
            BankOptions { lease_timeout: Some(lease_timeout), wait_timeout, ..small_options() };
        let test = new_bank_with(options);
        let table = table(&test.bank, config().staleness_bound(Some(0)));
        let lease = get(&table, &[1]);
        let before = cpu_ticks();
        assert!(table.get(&[1], &mut [0.0]).is_err());
        // The wait takes 200 ms, which is 20 ticks. A thread that sleeps uses almost no processor
        // time.
        assert!(cpu_ticks() - before < 10);
        assert!(!lease.is_expired());
        lease.apply(&[-1.0]).unwrap();
    }
}

/// Returns the processor time of this thread, in hundredths of a second.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Shows that the counters of the histogram never fall, even while threads count and tables are
/// dropped. Prometheus requires this of counters.
#[test]
fn the_histogram_never_falls_while_it_is_read() {
    let test = new_bank();
    let keys: Vec<u64> = (0..64).collect();
    let table = table(&test.bank, config());
    let hold = get(&table, &keys);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop(get(&table, &keys));
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(get(&test.bank.table("short-lived", config()).unwrap(), &keys));
                test.bank.drop_table("short-lived").unwrap();
            }
        });
        let mut last = std::collections::BTreeMap::new();
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            let now: std::collections::BTreeMap<_, _> =
                test.bank.stats().staleness.buckets().collect();
            let fell = last.iter().find(|&(staleness, rows)| now.get(staleness) < Some(rows));
            if let Some((staleness, rows)) = fell {
                done.store(true, Ordering::Relaxed);
                panic!("rows at {staleness} fell from {rows} to {:?}", now.get(staleness));
            }
            last = now;
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(hold);
}

/// Shows that a lease gives back the counts of all readable rows if one of its rows can't be read.
#[test]
fn a_row_that_can_not_be_read_keeps_no_other_blocked() {
    const DIM: usize = 16;
    for expires in [false, true] {
        let lease_timeout = expires.then_some(Duration::from_millis(10));
        let test = new_bank_with(BankOptions { lease_timeout, ..small_options() });
        let table = table(&test.bank, TableConfig::new(DIM as u32).staleness_bound(Some(0)));
        let keys: Vec<u64> = (0..50).collect();
        let row = |key: u64| vec![1000.5 + key as f32; DIM];
        table.put(&keys, &keys.iter().flat_map(|&key| row(key)).collect::<Vec<_>>()).unwrap();
        let lease = table.get(&keys, &mut [0.0; 50 * DIM]).unwrap();
        push_to_disk(&test.bank);
        let damaged = 17;
        let written: Vec<u8> = row(damaged).iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(crate::common::damage_files_with(test.dir.path(), &written) > 0);
        if expires {
            mem::forget(lease);
            let deadline = Instant::now() + LONG;
            while table.stats().leases_expired == 0 {
                assert!(Instant::now() < deadline);
                table.get(&[99], &mut [0.0; DIM]).unwrap().release().unwrap();
            }
        } else {
            assert!(lease.release().is_err());
        }
        for &key in keys.iter().filter(|&&key| key != damaged) {
            assert_eq!(table.outstanding(key).unwrap(), Some(0), "{key}");
        }
        assert!(table.outstanding(damaged).is_err());
        assert_eq!(table.stats().release_failures, u64::from(expires));
    }
}
