//! The counts and times of threads, and the latencies computed from them.
//!
//! With a schedule (`--target`), a call has two latencies. The service latency starts when the call
//! begins. The intended latency starts at the scheduled time, so it includes the wait for an
//! earlier slow call. A loop without a schedule shows a stall of a second as one slow call,
//! although hundreds of callers would have waited. Gil Tene calls this coordinated omission. YCSB
//! reports intended latencies with `measurement.interval=intended`.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::workload::Kind;

/// The latencies of one kind of call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) kind: Kind,
    /// The number of operations that were done.
    pub(crate) operations: u64,
    /// The number of calls that were timed.
    pub(crate) timed_calls: u64,
    /// Latencies from the actual start of a call.
    #[serde(flatten)]
    pub(crate) service: Percentiles,
    /// Latencies from the scheduled start of a call. `None` without a schedule.
    pub(crate) intended: Option<Percentiles>,
}

/// A distribution of latencies.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

impl Percentiles {
    fn of(nanos: &Histogram<u64>) -> Self {
        let us = |quantile: f64| nanos.value_at_quantile(quantile) as f64 * 1e-3;
        Percentiles {
            mean_us: nanos.mean() * 1e-3,
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: nanos.max() as f64 * 1e-3,
        }
    }
}

/// The calls and latencies of one thread.
pub(crate) struct Tally {
    pub(crate) operations: [u64; Kind::ALL.len()],
    pub(crate) scanned_rows: u64,
    /// The time in calls. With a schedule, the whole time of the thread.
    pub(crate) spent: Duration,
    /// The number of operations that were due but had not begun at the end.
    pub(crate) overdue: u64,
    /// Latencies of timed calls from their actual starts, in nanoseconds.
    service: [Histogram<u64>; Kind::ALL.len()],
    /// Latencies of timed calls from their scheduled starts, in nanoseconds. `None` without a
    /// schedule.
    intended: Option<[Histogram<u64>; Kind::ALL.len()]>,
}

/// Returns a histogram of nanoseconds with three digits. Calls longer than a day count as a day.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 86_400_000_000_000, 3).expect("the bounds are in order")
}

impl Tally {
    /// Returns a tally without calls. `scheduled` says if the calls will have scheduled starts.
    pub(crate) fn new(scheduled: bool) -> Self {
        Tally {
            operations: [0; Kind::ALL.len()],
            scanned_rows: 0,
            spent: Duration::ZERO,
            overdue: 0,
            service: std::array::from_fn(|_| histogram()),
            intended: scheduled.then(|| std::array::from_fn(|_| histogram())),
        }
    }

    /// Records the latency of a call from its start.
    pub(crate) fn record(&mut self, kind: Kind, service: Duration) {
        self.service[kind as usize].saturating_record(service.as_nanos() as u64);
    }

    /// Records the latency of a call from its scheduled start.
    pub(crate) fn record_intended(&mut self, kind: Kind, intended: Duration) {
        if let Some(histograms) = &mut self.intended {
            histograms[kind as usize].saturating_record(intended.as_nanos() as u64);
        }
    }

    /// Returns the number of operations of all kinds.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.iter().sum()
    }

    /// Returns the operations a second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations() as f64 / self.spent.as_secs_f64().max(1e-9)
    }
}

/// Combines the latencies of all threads for each kind of call that was made.
///
/// # Errors
/// Returns an error for histograms of different bounds, which never occurs here.
pub(crate) fn latencies(tallies: &[Tally]) -> Result<Vec<Latency>> {
    let mut latencies = Vec::new();
    for kind in Kind::ALL {
        let operations = tallies.iter().map(|tally| tally.operations[kind as usize]).sum();
        if operations == 0 {
            continue;
        }
        let (mut service, mut intended) = (histogram(), None);
        for tally in tallies {
            service.add(&tally.service[kind as usize])?;
            if let Some(histograms) = &tally.intended {
                intended.get_or_insert_with(histogram).add(&histograms[kind as usize])?;
            }
        }
        latencies.push(Latency {
            kind,
            operations,
            timed_calls: service.len(),
            service: Percentiles::of(&service),
            intended: intended.as_ref().map(Percentiles::of),
        });
    }
    Ok(latencies)
}
