//! What threads counted and timed, and the latencies that follow.
//!
//! A call has two latencies where calls begin by a schedule (`--target`). The service latency is
//! from the call's own start. The intended latency is from the start that the schedule intended: a
//! call that is late because the one before was slow counts its waiting, as a caller of the store
//! would. Without it a stall of a second shows as one slow call in a closed loop, though hundreds
//! of callers would have waited (Gil Tene's coordinated omission; YCSB's `measurement.
//! interval=intended`).

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::workload::Kind;

/// Latencies of one kind of call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) kind: Kind,
    /// Operations done.
    pub(crate) operations: u64,
    /// Calls that were timed.
    pub(crate) timed_calls: u64,
    /// From the call's own start.
    #[serde(flatten)]
    pub(crate) service: Percentiles,
    /// From the start that the schedule intended; `None` without a schedule.
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

/// What a thread did.
pub(crate) struct Tally {
    pub(crate) operations: [u64; Kind::ALL.len()],
    pub(crate) scanned_rows: u64,
    /// Time in calls; with a schedule, the whole time.
    pub(crate) spent: Duration,
    /// Operations that were due when the time was over, and had not begun.
    pub(crate) overdue: u64,
    /// Nanoseconds of the calls that were timed.
    service: [Histogram<u64>; Kind::ALL.len()],
    /// Nanoseconds from their intended starts; `None` without a schedule.
    intended: Option<[Histogram<u64>; Kind::ALL.len()]>,
}

/// Three digits up to a day, in nanoseconds; longer calls count as a day.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 86_400_000_000_000, 3).expect("the bounds are in order")
}

impl Tally {
    /// Nothing yet.
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

    /// Counts a call's time from its own start.
    pub(crate) fn record(&mut self, kind: Kind, service: Duration) {
        self.service[kind as usize].saturating_record(service.as_nanos() as u64);
    }

    /// Counts a call's time from the start that the schedule intended.
    pub(crate) fn record_intended(&mut self, kind: Kind, intended: Duration) {
        if let Some(histograms) = &mut self.intended {
            histograms[kind as usize].saturating_record(intended.as_nanos() as u64);
        }
    }

    /// Operations of all kinds.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.iter().sum()
    }

    /// Operations a second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations() as f64 / self.spent.as_secs_f64().max(1e-9)
    }
}

/// Latencies of all threads, for each kind that was done.
///
/// # Errors
/// Histograms of other bounds, which there are not.
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
