//! Records every event of a run with several threads, and checks afterwards that the record keeps
//! the staleness bound.
//!
//! A Get raises its rows' clocks at some moment between its begin and its end. The counts are given
//! back at some moment during the call that ends the lease, or during a call that expires it. A
//! lease is certainly outstanding from the end of its Get until its end begins. Let `b` be the
//! largest bound in force during a Get. At some moment of the Get, at most `b` other leases were
//! outstanding. So at most `b` leases may have been certainly outstanding during the whole Get. The
//! clock that the Get saw (in the histogram) may never exceed `b`.
//!
//! An expiring lease counts as ending when it reaches the lease timeout, the earliest time at which
//! it may expire.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{new_bank_with, push_to_disk, small_options};
use embank::{BankOptions, Error, Initializer, Optimizer, Table, TableConfig};
use embank_kv::locks::Mutex;
use fastrand::Rng;

const THREADS: u64 = 4;
const KEYS: u64 = 24;
const BATCH: usize = 6;
const ROUNDS_MIN: u64 = 250;
const CHECKPOINTS_MIN: u32 = 4;
/// Longest time that the trainers run to reach `CHECKPOINTS_MIN` checkpoints.
const PATIENCE: Duration = Duration::from_secs(120);
const LEASE_TIMEOUT: Duration = Duration::from_millis(3);
const BOUND_MAX: u32 = 2;

/// A Get that returned a lease. All threads read times from one clock.
#[derive(Debug)]
struct Got {
    keys: Vec<u64>,
    begun: u64,
    ended: u64,
    /// The largest bound in force during the Get.
    bound: u32,
    /// The earliest time at which this lease may have given its counts back.
    answered: u64,
}

struct Recorder {
    started: Instant,
    /// Every change of the bound, with the earliest time at which the new bound was in force.
    bounds: Mutex<Vec<(u64, u32)>>,
}

impl Recorder {
    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Returns the largest bound that may have been in force between two times.
    fn largest_bound(&self, begun: u64, ended: u64) -> u32 {
        let bounds = self.bounds.lock();
        let before = bounds.iter().rposition(|&(since, _)| since <= begun).unwrap_or(0);
        // A change is recorded before it takes effect. At `begun`, the bound before the last
        // recorded one may therefore still be in force.
        let first = before.saturating_sub(1);
        let within = bounds[first..].iter().take_while(|&&(since, _)| since <= ended);
        within.map(|&(_, bound)| bound).max().unwrap()
    }
}

fn train(
    table: &Table,
    recorder: &Recorder,
    seed: u64,
    steps: &[AtomicU64],
    enough: impl Fn() -> bool,
) -> Vec<Got> {
    let mut dice = Rng::with_seed(seed);
    let mut record = Vec::new();
    let mut rows = [0.0; BATCH];
    // The loop ends: `enough` returns true at the deadline.
    for round in 0_u64.. {
        if round >= ROUNDS_MIN && enough() {
            break;
        }
        let keys: Vec<u64> = (0..BATCH).map(|_| dice.u64(..KEYS)).collect();
        let begun = recorder.now();
        let request = table.request(&keys).unwrap().distinct();
        let rows = &mut rows[..request.row_count()];
        let lease = match table.get_rows(request, rows) {
            Ok(lease) => lease,
            Err(Error::StalenessTimeout { .. }) => continue,
            Err(other) => panic!("seed {seed}: {other}"),
        };
        let ended = recorder.now();
        let unique = lease.unique().keys().to_vec();
        let bound = recorder.largest_bound(begun, ended);
        // The lease was registered during the Get, and its age begins then.
        let of_age = begun + LEASE_TIMEOUT.as_nanos() as u64;
        let answered = match dice.u64(..20) {
            0 => {
                std::mem::forget(lease);
                of_age
            }
            1..4 => {
                let now = recorder.now();
                drop(lease);
                now
            }
            4 => {
                // This lease is kept longer than other threads wait for a row, and in some rounds
                // beyond the lease timeout.
                let until = recorder.now() + dice.u64(..2 * LEASE_TIMEOUT.as_nanos() as u64);
                while recorder.now() < until {
                    std::thread::yield_now();
                }
                apply(lease, recorder, steps)
            }
            _ => apply(lease, recorder, steps),
        };
        let answered = answered.min(of_age).max(ended);
        record.push(Got { keys: unique, begun, ended, bound, answered });
    }
    record
}

/// Applies a gradient of -1 to each row and counts it, unless the lease has expired. Returns the
/// time before the call.
fn apply(lease: embank::Lease, recorder: &Recorder, steps: &[AtomicU64]) -> u64 {
    let now = recorder.now();
    let keys = lease.unique().keys().to_vec();
    match lease.apply(&vec![-1.0; keys.len()]) {
        Ok(()) => keys.iter().for_each(|&key| {
            steps[key as usize].fetch_add(1, Ordering::Relaxed);
        }),
        Err(Error::LeaseExpired { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    now
}

/// Returns the first Get that breaks the bound: during all of it, one of its rows had more
/// outstanding leases than the bound allows.
fn first_excess(record: &[Got]) -> Option<String> {
    let mut by_key: HashMap<u64, Vec<&Got>> = HashMap::new();
    for got in record {
        got.keys.iter().for_each(|&key| by_key.entry(key).or_default().push(got));
    }
    for (key, gets) in by_key {
        for &got in &gets {
            let throughout = |other: &&&Got| {
                !std::ptr::eq(**other, got)
                    && other.ended <= got.begun
                    && other.answered >= got.ended
            };
            let others = gets.iter().filter(throughout).count();
            if others > got.bound as usize {
                return Some(format!("key {key}: {others} others throughout {got:?}"));
            }
        }
    }
    None
}

#[test]
fn no_get_returns_beyond_the_bound_at_any_linearisation() {
    let options = BankOptions {
        wait_timeout: Duration::from_secs(20),
        lease_timeout: Some(LEASE_TIMEOUT),
        ..small_options()
    };
    let test = new_bank_with(options);
    let config = TableConfig::new(1)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros)
        .staleness_bound(Some(BOUND_MAX));
    let table = test.bank.table("t", config).unwrap();
    // The rows begin on disk, because a fast machine may later keep these few rows in memory.
    table.put(&(0..KEYS).collect::<Vec<_>>(), &[0.0; KEYS as usize]).unwrap();
    push_to_disk(&test.bank);
    // Another thread rewrites the rows of this table all the time, which pushes the other rows to
    // disk.
    let filler = test.bank.table("wide", TableConfig::new(256)).unwrap();
    let seed = u64::from(std::process::id()) << 20 | 1;
    println!("seed {seed}");
    let recorder = Recorder { started: Instant::now(), bounds: Mutex::new(vec![(0, BOUND_MAX)]) };
    let steps: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let checkpoints = &AtomicU32::new(0);
    let record: Vec<Got> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let rows = vec![1.0; 64 * 256];
            let mut first = 0;
            while !done.load(Ordering::Relaxed) {
                let keys: Vec<u64> = (first..first + 64).collect();
                filler.put(&keys, &rows).unwrap();
                first = (first + 64) % (64 * 256);
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                test.bank.checkpoint(b"").unwrap();
                checkpoints.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let mut dice = Rng::with_seed(seed ^ 77);
            while !done.load(Ordering::Relaxed) {
                let bound = dice.u64(..u64::from(BOUND_MAX) + 1) as u32;
                recorder.bounds.lock().push((recorder.now(), bound));
                table.set_staleness_bound(Some(bound));
                (0..100).for_each(|_| std::thread::yield_now());
            }
        });
        let trainers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (table, recorder, steps) = (&table, &recorder, &steps);
                let enough = || {
                    checkpoints.load(Ordering::Relaxed) >= CHECKPOINTS_MIN
                        || recorder.started.elapsed() > PATIENCE
                };
                scope.spawn(move || train(table, recorder, seed + thread, steps, enough))
            })
            .collect();
        let record = trainers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        record
    });
    assert_eq!(first_excess(&record), None, "seed {seed}");
    let stats = table.stats();
    assert!(stats.staleness.max() <= Some(BOUND_MAX), "{:?}", stats.staleness);
    assert_eq!(stats.staleness.rows(), stats.get_rows);
    // Without waits and expired leases, the test would check nothing.
    assert!(stats.waits > 0 && stats.leases_expired > 0, "{stats:?}");
    let checkpoints = checkpoints.load(Ordering::Relaxed);
    assert!(stats.disk_reads > 0 && checkpoints >= CHECKPOINTS_MIN, "{checkpoints}, {stats:?}");
    // With bound 0, this Get waits until the last forgotten leases have expired.
    table.set_staleness_bound(Some(0));
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut rows = vec![0.0; KEYS as usize];
    table.get(&keys, &mut rows).unwrap().release().unwrap();
    for (key, row) in keys.into_iter().zip(rows) {
        assert_eq!(table.outstanding(key).unwrap(), Some(0), "seed {seed}, key {key}");
        let applied = steps[key as usize].load(Ordering::Relaxed);
        assert_eq!(row, applied as f32, "seed {seed}, key {key}");
    }
    assert_eq!(stats.release_failures, 0);
    assert!(table.outstanding_leases().is_empty());
}

#[test]
fn the_check_finds_an_excess() {
    let got = |begun, ended, bound, answered| Got { keys: vec![5], begun, ended, bound, answered };
    let fine = [got(0, 10, 0, 20), got(5, 25, 0, 30), got(12, 40, 1, 50)];
    assert_eq!(first_excess(&fine), None);
    assert!(first_excess(&[got(0, 10, 0, 20), got(11, 19, 0, 30)]).is_some());
}
