//! The printed report, and its figures for the JSON file.

use serde::Serialize;

use crate::engine::Named;
use crate::latency::{Latency, Percentiles};
use crate::measure::Measured;
use crate::output::Output;
use crate::process;

/// One figure, with the peer's figure that it is compared with.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// The name of the measurement, unique in its file.
    pub(crate) name: String,
    /// The median over the rounds.
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The peer store of the comparison.
    pub(crate) against: Option<String>,
    pub(crate) against_value: Option<f64>,
    /// `value / against_value`.
    pub(crate) ratio: Option<f64>,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// The median, the smallest and the largest of several values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Returns the spread of samples.
    ///
    /// # Panics
    /// Panics if there are no samples.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a spread needs a sample");
        samples.sort_by(f64::total_cmp);
        let (n, half) = (samples.len(), samples.len() / 2);
        let median =
            if n % 2 == 1 { samples[half] } else { (samples[half - 1] + samples[half]) / 2.0 };
        Spread { median, min: samples[0], max: samples[n - 1] }
    }
}

impl Row {
    /// Returns the figure of a rate that several rounds have measured.
    pub(crate) fn rate(name: String, spread: Spread) -> Self {
        Row {
            name,
            value: spread.median,
            unit: "operations/s",
            against: None,
            against_value: None,
            ratio: None,
            min: spread.min,
            max: spread.max,
        }
    }

    /// Returns this figure compared with the value of a peer.
    pub(crate) fn beside(mut self, peer: String, value: f64) -> Self {
        self.ratio = Some(self.value / value);
        (self.against, self.against_value) = (Some(peer), Some(value));
        self
    }

    /// Returns the rate and the 99th percentiles of a single run.
    pub(crate) fn of_run(name: &str, measured: &Measured) -> Vec<Self> {
        let single = |value| Spread { median: value, min: value, max: value };
        let mut rows = vec![Row::rate(name.to_owned(), single(measured.operations_per_s))];
        for latency in &measured.latencies {
            let mut p99 = |what: &str, percentiles: Option<Percentiles>| {
                rows.extend(percentiles.map(|percentiles| Row {
                    unit: "us",
                    ..Row::rate(
                        format!("{name}: {} {what}", latency.kind),
                        single(percentiles.p99_us),
                    )
                }));
            };
            p99("p99", Some(latency.service));
            p99("p99 from the intended start", latency.intended);
        }
        rows
    }
}

/// Returns the command line. Bytes of arguments that are not UTF-8 appear as replacement
/// characters.
pub(crate) fn command() -> String {
    let arguments = std::env::args_os();
    arguments.map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Prints the machine, the commit and the command of this run.
pub(crate) fn print_provenance(out: &mut Output) {
    writeln!(out, "machine   {}", process::machine());
    writeln!(out, "commit    {}", process::commit());
    writeln!(out, "command   {}", command());
}

/// Prints a store's settings.
pub(crate) fn print_configuration(
    out: &mut Output,
    engine: &str,
    configuration: &Named<String>,
    load_s: Option<f64>,
) {
    writeln!(out, "\n{engine}");
    for (name, setting) in configuration {
        writeln!(out, "  {name:22} {setting}");
    }
    if let Some(seconds) = load_s {
        writeln!(out, "  {:22} {seconds:.1} s", "loaded in");
    }
}

/// Prints one measurement with its latencies.
pub(crate) fn print_measured(out: &mut Output, name: &str, measured: &Measured) {
    writeln!(out, "\n{name}");
    writeln!(
        out,
        "  {} operations/s ({} in {:.1} s{}), background work done {:.1} s later",
        grouped(measured.operations_per_s),
        grouped(measured.operations as f64),
        measured.wall_s,
        if measured.scanned_rows > 0 {
            format!(", {} rows scanned", grouped(measured.scanned_rows as f64))
        } else {
            String::new()
        },
        measured.settle_s
    );
    writeln!(out, "  {}", usage(measured));
    let calls = measured.latencies.iter().map(|latency| (latency, latency.service));
    print_latencies(out, "us a call", calls);
    let intended = measured.latencies.iter().filter_map(|l| Some((l, l.intended?)));
    if intended.clone().next().is_some() {
        print_latencies(out, "us from the intended start of a call", intended);
        let overdue = measured.overdue_operations;
        if overdue > 0 {
            let overdue = grouped(overdue as f64);
            writeln!(
                out,
                "  behind the target: {overdue} operations were due at the end and had not begun"
            );
        }
    }
    let counters = measured.counters.iter().map(|(name, count)| format!("{name} {count}"));
    let counters = counters.collect::<Vec<_>>().join(", ");
    if !counters.is_empty() {
        writeln!(out, "  {counters}");
    }
}

/// Prints one table of latencies.
fn print_latencies<'a>(
    out: &mut Output,
    unit: &str,
    latencies: impl Iterator<Item = (&'a Latency, Percentiles)>,
) {
    writeln!(
        out,
        "  {:8}{:>10}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}  {unit}",
        "kind", "calls", "mean", "p50", "p95", "p99", "p99.9", "max"
    );
    for (latency, times) in latencies {
        writeln!(
            out,
            "  {:8}{:>10}{:>11.2}{:>11.2}{:>11.2}{:>11.2}{:>11.2}{:>11.2}",
            latency.kind,
            latency.timed_calls,
            times.mean_us,
            times.p50_us,
            times.p95_us,
            times.p99_us,
            times.p999_us,
            times.max_us
        );
    }
}

/// Returns the storage traffic and the memory of a measurement as text. For a store with leases,
/// the text also has the number of gets that waited for the staleness bound and their mean wait.
pub(crate) fn usage(measured: &Measured) -> String {
    let mib = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |b| (b >> 20).to_string());
    let usage = &measured.usage;
    let text = format!(
        "storage: {} MiB read, {} MiB written; memory: {} MiB own, {} MiB of mapped files",
        mib(usage.storage_read_bytes),
        mib(usage.storage_write_bytes),
        mib(usage.memory_own_bytes),
        mib(usage.memory_files_bytes)
    );
    let count = |name| measured.counters.iter().find(|(n, _)| n == name).map(|(_, count)| *count);
    match (count("gets"), count("waits"), count("wait_us")) {
        (Some(gets), Some(waits), Some(us)) => format!(
            "{text}; {:.2}% of {} gets waited for the bound, {:.0} us each",
            100.0 * waits as f64 / gets.max(1) as f64,
            grouped(gets as f64),
            us as f64 / waits.max(1) as f64
        ),
        _ => text,
    }
}

/// Returns a number with commas between thousands.
pub(crate) fn grouped(number: f64) -> String {
    let digits = (number.round() as u64).to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_thousands() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(0.0), "0");
    }
}
