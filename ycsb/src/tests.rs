//! Runs every workload on every built-in store. Also checks that a wrong answer ends a run.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use clap::ValueEnum;
use indicatif::ProgressBar;

use crate::content;
use crate::distribution::{Distribution, Skew};
use crate::engine::leases::Leases;
use crate::engine::{Engine, EngineKind, Named, Session, Settings};
use crate::keyspace::{KeyOrder, Keyspace};
use crate::measure::{self, Limit, Measured, Spec, Target};
use crate::worker::ScanLengths;
use crate::workload::{Kind, Mix, Workload};

fn settings(directory: &Path, rows: u64, value_bytes: usize, budget: u64) -> Settings {
    Settings {
        directory: directory.to_owned(),
        value_bytes,
        rows,
        key_order: KeyOrder::Hashed,
        load_threads: 1,
        memory_budget_bytes: budget,
        reopen: false,
        counts_writes: false,
        cold_tier: false,
    }
}

fn spec(workload: Workload, batch: usize, threads: usize, operations: u64) -> Spec {
    Spec {
        mix: workload.mix(),
        distribution: workload.distribution(),
        skew: Skew::default(),
        batch,
        threads,
        leases: Leases::of(None, threads),
        target_operations_per_s: None,
        warm_up: Limit { operations: Some(operations / 4), seconds: None },
        limit: Limit { operations: Some(operations), seconds: None },
        scan_rows_min: 1,
        scan_rows_max: 20,
        scan_lengths: ScanLengths::Uniform,
        latency_every: 1,
        seed: 7,
    }
}

/// Returns a measurement of single-row reads by one thread at full speed.
pub(crate) fn any_spec() -> Spec {
    spec(Workload::C, 1, 1, 1)
}

/// Loads, measures and checks every row. Returns the measurement and the sum of the versions that
/// the rows' values hold.
fn run(
    engine: &dyn Engine,
    keyspace: &Keyspace,
    value_bytes: usize,
    spec: &Spec,
) -> Result<(Measured, u64)> {
    let target = Target { engine, keyspace, value_bytes };
    let hidden = ProgressBar::hidden();
    measure::load(target, spec.threads, &hidden)?;
    let measured = measure::measure(target, spec, &hidden)?;
    Ok((measured, measure::check_all(target, &hidden)?))
}

fn operations_of(measured: &Measured, kind: Kind) -> u64 {
    let found = measured.latencies.iter().find(|latency| latency.kind == kind);
    found.map_or(0, |latency| latency.operations)
}

/// The engines of this build. A test with `--features peers` covers all engines.
const BUILT_IN: &[EngineKind] = &[
    EngineKind::Embank,
    EngineKind::EmbankGet,
    EngineKind::EmbankClock,
    EngineKind::EmbankLease,
    EngineKind::Map,
    #[cfg(feature = "rocksdb")]
    EngineKind::Rocksdb,
    #[cfg(feature = "lmdb")]
    EngineKind::Lmdb,
    #[cfg(feature = "redb")]
    EngineKind::Redb,
    #[cfg(feature = "fjall")]
    EngineKind::Fjall,
];

#[test]
fn every_workload_on_every_store() {
    for kind in BUILT_IN {
        for workload in Workload::value_variants() {
            for (batch, threads) in [(1, 1), (1, 2), (64, 1), (48, 2)] {
                let directory = tempfile::tempdir().unwrap();
                let settings = settings(directory.path(), 3_000, 24, 64 << 20);
                let engine = kind.open(&settings).unwrap();
                let keyspace = Keyspace::new(KeyOrder::Hashed, 3_000);
                let spec = spec(*workload, batch, threads, 2_000);
                let result = run(&*engine, &keyspace, 24, &spec);
                let what = format!("{kind:?} {workload:?} batch {batch} threads {threads}");
                if *workload == Workload::E && kind.no_scan().is_some() {
                    let error = format!("{:#}", result.unwrap_err());
                    assert!(error.contains("scans ranges of keys"), "{what}: {error}");
                    continue;
                }
                let (measured, versions) = result.unwrap_or_else(|e| panic!("{what}: {e:#}"));
                assert_eq!(measured.operations, 2_000, "{what}");
                let timed: u64 = measured.latencies.iter().map(|l| l.timed_calls).sum();
                assert!(timed >= 2_000 / batch as u64, "{what}: {timed} calls timed");
                if spec.mix.inserts() {
                    assert!(keyspace.rows() >= 3_000 + operations_of(&measured, Kind::Insert));
                }
                if spec.mix.update == 0.0 && (engine.atomic_rmw() || threads * batch == 1) {
                    let rmw = operations_of(&measured, Kind::Rmw);
                    // The versions also count the warm-up, which has 500 operations. `rmw` does
                    // not.
                    assert!(versions >= rmw && versions <= rmw + 500, "{what}: {versions}, {rmw}");
                }
            }
        }
    }
}

#[test]
fn no_addition_is_lost_where_a_read_modify_write_is_one_step() {
    for kind in BUILT_IN {
        let directory = tempfile::tempdir().unwrap();
        let engine = kind.open(&settings(directory.path(), 50, 64, 64 << 20)).unwrap();
        if !engine.atomic_rmw() {
            continue;
        }
        let keyspace = Keyspace::new(KeyOrder::Ordered, 50);
        let mut spec = spec(Workload::F, 16, 2, 20_000);
        spec.warm_up = Limit::default();
        spec.mix = Mix { rmw: 1.0, ..Mix::default() };
        let (_, versions) = run(&*engine, &keyspace, 64, &spec).unwrap();
        assert_eq!(versions, 20_000, "{kind:?}");
    }
}

#[test]
fn embank_with_a_budget_below_its_data() {
    let kinds = [
        EngineKind::Embank,
        EngineKind::EmbankGet,
        EngineKind::EmbankClock,
        EngineKind::EmbankLease,
    ];
    for kind in kinds {
        for workload in [Workload::A, Workload::C, Workload::D, Workload::F] {
            let directory = tempfile::tempdir().unwrap();
            // The store gets 1 MiB for 20,000 rows of 160 bytes and their index, so most rows lie
            // on disk.
            let settings = settings(directory.path(), 20_000, 128, 1 << 20);
            let engine = kind.open(&settings).unwrap();
            let keyspace = Keyspace::new(KeyOrder::Hashed, 20_000);
            let mut spec = spec(workload, 256, 2, 10_000);
            spec.distribution = Distribution::Uniform;
            let (measured, _) = run(&*engine, &keyspace, 128, &spec).unwrap();
            let disk = measured.counters.iter().find(|(name, _)| name == "hits_disk").unwrap();
            assert!(disk.1 > 1_000, "{kind:?} {workload:?}: {} rows came from disk", disk.1);
        }
    }
}

#[test]
fn embank_opens_again_what_was_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(directory.path(), 5_000, 64, 4 << 20);
    let keyspace = Keyspace::new(KeyOrder::Hashed, 5_000);
    let hidden = ProgressBar::hidden();
    {
        let engine = EngineKind::Embank.open(&settings).unwrap();
        let target = Target { engine: &*engine, keyspace: &keyspace, value_bytes: 64 };
        measure::load(target, 1, &hidden).unwrap();
        engine.persist().unwrap();
    }
    settings.reopen = true;
    let engine = EngineKind::Embank.open(&settings).unwrap();
    let target = Target { engine: &*engine, keyspace: &keyspace, value_bytes: 64 };
    assert_eq!(measure::check_all(target, &hidden).unwrap(), 0);
    assert!(EngineKind::Map.open(&settings).is_err(), "the map has nothing to reopen");
}

/// Returns a counter of a measurement.
fn counter(measured: &Measured, name: &str) -> u64 {
    measured.counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name}")).1
}

/// Every batch has the row of the only key, so the bound decides which thread may go on. The sum of
/// the versions shows that each lease's gradients were applied once.
#[test]
fn threads_that_hold_leases_of_one_row_wait_for_the_bound_and_end() {
    for (bound, threads) in [(Some(0), 2), (Some(1), 4), (Some(4), 2), (Some(16), 4), (None, 2)] {
        let directory = tempfile::tempdir().unwrap();
        let engine = EngineKind::EmbankLease.open(&settings(directory.path(), 1, 16, 8 << 20));
        let engine = engine.unwrap();
        let keyspace = Keyspace::new(KeyOrder::Ordered, 1);
        let mut spec = spec(Workload::F, 8, threads, 4_000);
        spec.warm_up = Limit::default();
        spec.mix = Mix { read: 0.25, rmw: 0.75, ..Mix::default() };
        spec.leases = Leases::of(bound, threads);
        let (measured, versions) = run(&*engine, &keyspace, 16, &spec).unwrap();
        let what = format!("bound {bound:?}, {threads} threads");
        assert_eq!(versions, operations_of(&measured, Kind::Rmw), "{what}");
        assert_eq!(counter(&measured, "gets"), 500, "{what}");
        if bound.is_none() {
            assert_eq!(counter(&measured, "waits"), 0, "{what}");
        }
    }
}

#[test]
fn a_session_applies_its_oldest_lease_before_the_get_that_would_be_one_too_many() {
    let directory = tempfile::tempdir().unwrap();
    let engine = EngineKind::EmbankLease.open(&settings(directory.path(), 1, 16, 8 << 20)).unwrap();
    let keyspace = Keyspace::new(KeyOrder::Ordered, 1);
    let target = Target { engine: &*engine, keyspace: &keyspace, value_bytes: 16 };
    measure::load(target, 1, &ProgressBar::hidden()).unwrap();
    engine.set_leases(Leases { staleness_bound: None, per_thread: 3 });
    let mut session = engine.session().unwrap();
    let key = [keyspace.key(0)];
    let version = || measure::check_all(target, &ProgressBar::hidden()).unwrap();
    for _ in 0..3 {
        session.read_modify_write(&key, &mut [0; 16]).unwrap();
    }
    assert_eq!(version(), 0, "three leases are open");
    session.read_modify_write(&key, &mut [0; 16]).unwrap();
    assert_eq!(version(), 1, "the fourth get applied the oldest lease");
    session.finish().unwrap();
    assert_eq!(version(), 4);
}

#[test]
fn a_get_waits_while_another_thread_holds_as_many_leases_as_the_bound_permits() {
    let directory = tempfile::tempdir().unwrap();
    let engine = EngineKind::EmbankLease.open(&settings(directory.path(), 1, 16, 8 << 20)).unwrap();
    let engine = &*engine;
    let keyspace = Keyspace::new(KeyOrder::Ordered, 1);
    let target = Target { engine, keyspace: &keyspace, value_bytes: 16 };
    measure::load(target, 1, &ProgressBar::hidden()).unwrap();
    engine.set_leases(Leases::of(Some(0), 2));
    let key = [keyspace.key(0)];
    let mut session = engine.session().unwrap();
    session.read_modify_write(&key, &mut [0; 16]).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut other = engine.session().unwrap();
            other.read_modify_write(&key, &mut [0; 16]).unwrap();
            other.finish().unwrap();
        });
        let waits = || engine.counters().into_iter().find(|(name, _)| name == "waits").unwrap().1;
        // The loop ends, because the get either waits or ends.
        while waits() == 0 && !other.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(waits(), 1, "the get did not wait for the lease");
        session.finish().unwrap();
    });
    assert_eq!(measure::check_all(target, &ProgressBar::hidden()).unwrap(), 2);
}

#[test]
fn a_time_limit_ends_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let engine = EngineKind::Map.open(&settings(directory.path(), 100, 8, 0)).unwrap();
    let mut spec = spec(Workload::C, 1, 1, 1);
    spec.limit = Limit { seconds: Some(0.05), operations: None };
    let (measured, _) = run(&*engine, &Keyspace::new(KeyOrder::Hashed, 100), 8, &spec).unwrap();
    assert!(measured.wall_s >= 0.05 && measured.operations > 100, "{measured:?}");
}

/// The fault of a broken store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// The store answers right.
    None,
    /// The store returns the value of the previous row in the batch.
    Neighbour,
    /// The store returns zeros.
    Zeros,
    /// The store returns a value with the tail of another version.
    Torn,
    /// The store returns an error that is not an expected answer.
    Fails,
    /// The store answers right, but one call takes 300 ms.
    Stalls,
    /// A scan returns rows out of order.
    Unordered,
    /// A scan begins at another key.
    Elsewhere,
}

/// A store that computes its rows. From the 500th call on, it answers with its fault.
struct Broken {
    fault: Fault,
    calls: AtomicU64,
}

impl Engine for Broken {
    fn describe(&self) -> Named<String> {
        Vec::new()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(BrokenSession(self)))
    }

    fn persist(&self) -> Result<()> {
        Ok(())
    }
}

struct BrokenSession<'a>(&'a Broken);

impl BrokenSession<'_> {
    fn fault(&self) -> Fault {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed);
        if self.0.fault == Fault::Stalls && call == 500 {
            // The sleep is the stall that the test measures.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        if call >= 500 { self.0.fault } else { Fault::None }
    }
}

impl Session for BrokenSession<'_> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let fault = self.fault();
        let value_bytes = values.len() / keys.len();
        for (&key, value) in keys.iter().zip(values.chunks_exact_mut(value_bytes)) {
            content::fill(if fault == Fault::Neighbour { key ^ 1 } else { key }, 0, value);
            match fault {
                Fault::Zeros => value.fill(0),
                Fault::Torn => value[0] ^= 1,
                Fault::Fails => anyhow::bail!("the disk is on fire"),
                _ => {}
            }
        }
        Ok(())
    }

    fn update(&mut self, _keys: &[u64], _values: &[u8]) -> Result<()> {
        Ok(())
    }

    fn insert(&mut self, _keys: &[u64], _values: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read_modify_write(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        self.read(keys, values)
    }

    fn scan(
        &mut self,
        start: u64,
        limit: usize,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let fault = self.fault();
        let mut value = [0; 24];
        for place in 0..limit as u64 {
            let key = match fault {
                Fault::Unordered if place > 0 => start.wrapping_sub(place),
                Fault::Elsewhere => start.wrapping_add(place + 1),
                _ => start.wrapping_add(place),
            };
            content::fill(key, 0, &mut value);
            each(key, &value)?;
        }
        Ok(())
    }
}

fn run_broken(fault: Fault, mix: Mix, threads: usize) -> Result<(Measured, u64)> {
    let engine = Broken { fault, calls: AtomicU64::new(0) };
    let mut spec = spec(Workload::C, 8, threads, 20_000);
    spec.mix = mix;
    run(&engine, &Keyspace::new(KeyOrder::Ordered, 1_000), 24, &spec)
}

#[test]
fn a_wrong_answer_ends_the_run() {
    let reads = Mix { read: 0.5, update: 0.5, ..Mix::default() };
    run_broken(Fault::None, reads, 2).unwrap();
    for fault in [Fault::Neighbour, Fault::Zeros, Fault::Torn] {
        for threads in [1, 3] {
            let error = format!("{:#}", run_broken(fault, reads, threads).unwrap_err());
            assert!(error.contains("wrong answer"), "{fault:?}: {error}");
        }
    }
    let error = format!("{:#}", run_broken(Fault::Fails, reads, 2).unwrap_err());
    assert!(error.contains("on fire"), "{error}");
}

/// With a schedule, a stall shows in the latency of every call that waited behind it. Without a
/// schedule, it shows in one call (coordinated omission).
#[test]
fn a_stall_shows_in_the_intended_latencies_of_all_calls_behind_it() {
    let engine = Broken { fault: Fault::Stalls, calls: AtomicU64::new(0) };
    let mut spec = spec(Workload::C, 1, 1, 1_000);
    spec.warm_up = Limit::default();
    spec.target_operations_per_s = Some(1_000);
    let keyspace = Keyspace::new(KeyOrder::Ordered, 1_000);
    let (measured, _) = run(&engine, &keyspace, 24, &spec).unwrap();
    let reads = &measured.latencies[0];
    let intended = reads.intended.unwrap();
    assert!(reads.service.max_us >= 3e5 && intended.max_us >= 3e5, "{reads:?}");
    // 300 calls were due during the stall. The 50 that waited longest waited for at least a quarter
    // of a second.
    assert!(intended.p95_us >= 2e5, "{reads:?}");
    assert!(reads.service.p95_us < intended.p95_us / 4.0, "{reads:?}");
    assert!(measured.operations_per_s <= 1_000.1, "{measured:?}");
    assert_eq!(measured.overdue_operations, 0, "it caught up");
}

#[test]
fn operations_that_were_due_and_did_not_begin_are_counted() {
    let engine = Broken { fault: Fault::Stalls, calls: AtomicU64::new(0) };
    let mut spec = spec(Workload::C, 1, 1, 1);
    spec.warm_up = Limit::default();
    spec.target_operations_per_s = Some(2_000);
    spec.limit = Limit { seconds: Some(0.4), operations: None };
    let keyspace = Keyspace::new(KeyOrder::Ordered, 1_000);
    let (measured, _) = run(&engine, &keyspace, 24, &spec).unwrap();
    // The 501st call begins after 250 ms and ends after 550 ms, when the time is over.
    assert!(measured.operations <= 501, "{measured:?}");
    assert_eq!(measured.operations + measured.overdue_operations, 800, "{measured:?}");
}

#[test]
fn a_schedule_ends_when_a_thread_fails() {
    let engine = Broken { fault: Fault::Fails, calls: AtomicU64::new(500) };
    let mut spec = spec(Workload::C, 1, 2, 1_000_000);
    spec.warm_up = Limit::default();
    spec.target_operations_per_s = Some(1);
    let keyspace = Keyspace::new(KeyOrder::Ordered, 1_000);
    let target = Target { engine: &engine, keyspace: &keyspace, value_bytes: 24 };
    let error = measure::measure(target, &spec, &ProgressBar::hidden()).unwrap_err();
    assert!(format!("{error:#}").contains("on fire"), "{error:#}");
}

#[test]
fn scans_have_lengths_between_the_least_and_the_most() {
    for lengths in [ScanLengths::Uniform, ScanLengths::Zipfian] {
        let engine = Broken { fault: Fault::None, calls: AtomicU64::new(0) };
        let mut spec = spec(Workload::E, 1, 1, 3_000);
        spec.mix = Mix { scan: 1.0, ..Mix::default() };
        (spec.scan_rows_min, spec.scan_rows_max, spec.scan_lengths) = (5, 14, lengths);
        let keyspace = Keyspace::new(KeyOrder::Ordered, 1_000);
        let (measured, _) = run(&engine, &keyspace, 24, &spec).unwrap();
        let mean = measured.scanned_rows as f64 / 3_000.0;
        // The mean of uniform lengths is 9.5. Under Zipf's law over ten lengths, with the shortest
        // most frequent, it is 7.4.
        let expected = if lengths == ScanLengths::Uniform { 9.5 } else { 7.4 };
        assert!((mean - expected).abs() < 0.4, "{lengths:?}: {mean}");
    }
}

#[test]
fn a_wrong_scan_ends_the_run() {
    let scans = Mix { scan: 1.0, ..Mix::default() };
    run_broken(Fault::None, scans, 1).unwrap();
    for fault in [Fault::Unordered, Fault::Elsewhere] {
        let error = format!("{:#}", run_broken(fault, scans, 1).unwrap_err());
        assert!(error.contains("wrong answer"), "{fault:?}: {error}");
    }
}

#[test]
fn a_missing_row_ends_the_run() {
    for kind in BUILT_IN {
        let directory = tempfile::tempdir().unwrap();
        let engine = kind.open(&settings(directory.path(), 100, 24, 64 << 20)).unwrap();
        let keyspace = Keyspace::new(KeyOrder::Hashed, 100);
        let target = Target { engine: &*engine, keyspace: &keyspace, value_bytes: 24 };
        // Nothing was loaded.
        let spec = spec(Workload::C, 8, 1, 100);
        let error = measure::measure(target, &spec, &ProgressBar::hidden()).unwrap_err();
        assert!(format!("{error:#}").contains("is missing"), "{kind:?}: {error:#}");
    }
}
