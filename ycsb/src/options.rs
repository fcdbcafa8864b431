//! Options that the subcommands share, and what follows from them.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::content::VALUE_BYTES_MIN;
use crate::distribution::{Distribution, Skew};
use crate::engine::{EngineKind, Settings};
use crate::keyspace::KeyOrder;
use crate::measure::{Limit, Spec};
use crate::workload::{Mix, Workload};

/// The rows.
#[derive(Debug, Clone, Args)]
pub(crate) struct Data {
    /// Rows to load: a number, or one with k, M or G (thousands)
    #[arg(long, default_value = "1M", value_parser = count)]
    pub(crate) rows: u64,
    /// Bytes of a value
    #[arg(long, default_value = "64", value_parser = bytes)]
    pub(crate) value_size: u64,
    /// Memory that every store may use, all its caches and buffers together: bytes, or with K, M, G, KiB,
    /// MiB, GiB (of 1,024) or kB, MB, GB (of 1,000)
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    pub(crate) memory_budget: u64,
    /// Where the stores lie
    #[arg(long, value_name = "DIR", default_value = "target/ycsb")]
    pub(crate) directory: PathBuf,
    /// How a row's number becomes its key
    #[arg(long, value_enum, default_value = "hashed")]
    pub(crate) key_order: KeyOrder,
    /// Threads that load
    #[arg(long, default_value_t = 1)]
    pub(crate) load_threads: usize,
    /// Measure Embank with its staleness clocks: `embank` stands for `embank-clock`
    #[arg(long)]
    pub(crate) embank_clock: bool,
}

impl Data {
    /// What an engine is opened with in `directory`.
    ///
    /// # Errors
    /// Sizes that make no sense.
    pub(crate) fn settings(&self, directory: PathBuf) -> Result<Settings> {
        let value_bytes = usize::try_from(self.value_size).context("--value-size is too large")?;
        ensure!(
            value_bytes >= VALUE_BYTES_MIN,
            "--value-size {value_bytes}: a value that can be checked has {VALUE_BYTES_MIN} bytes or more"
        );
        ensure!(
            self.rows > 0 && self.load_threads > 0,
            "--rows and --load-threads must be positive"
        );
        Ok(Settings {
            directory,
            value_bytes,
            rows: self.rows,
            memory_budget_bytes: self.memory_budget,
            reopen: false,
        })
    }

    /// The engine that a name stands for.
    pub(crate) fn engine(&self, kind: EngineKind) -> EngineKind {
        if self.embank_clock && kind == EngineKind::Embank { EngineKind::EmbankClock } else { kind }
    }
}

/// The operations. Lists make one measurement for each combination.
#[derive(Debug, Clone, Args)]
pub(crate) struct Work {
    /// Core workloads, one letter each, separated by commas
    #[arg(long, value_enum, ignore_case = true, value_delimiter = ',', default_value = "c")]
    workload: Vec<Workload>,
    /// Share of reads, for a mix of your own in place of a core workload; the five add up to 1
    #[arg(long, value_name = "SHARE", conflicts_with = "workload")]
    read: Option<f64>,
    /// Share of updates
    #[arg(long, value_name = "SHARE", conflicts_with = "workload")]
    update: Option<f64>,
    /// Share of inserts
    #[arg(long, value_name = "SHARE", conflicts_with = "workload")]
    insert: Option<f64>,
    /// Share of scans
    #[arg(long, value_name = "SHARE", conflicts_with = "workload")]
    scan: Option<f64>,
    /// Share of read-modify-writes
    #[arg(long, value_name = "SHARE", conflicts_with = "workload")]
    rmw: Option<f64>,
    /// Request distributions; default: the workload's own (scrambled; D: latest)
    #[arg(long, value_enum, value_delimiter = ',')]
    distribution: Vec<Distribution>,
    /// Exponent of Zipf's law
    #[arg(long, default_value_t = Skew::default().theta)]
    zipf_theta: f64,
    /// Hotspot: share of the rows that is hot
    #[arg(long, value_name = "SHARE", default_value_t = Skew::default().hot_rows)]
    hot_rows: f64,
    /// Hotspot: share of the operations that goes to the hot rows
    #[arg(long, value_name = "SHARE", default_value_t = Skew::default().hot_operations)]
    hot_operations: f64,
    /// Operations of a call, all of one kind; 1 is the YCSB of old
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Threads
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Measure for so long
    #[arg(long)]
    seconds: Option<f64>,
    /// Measure so many operations; with --seconds, whichever comes first
    #[arg(long, value_parser = count)]
    operations: Option<u64>,
    /// Warm up for so long before
    #[arg(long)]
    warm_up_seconds: Option<f64>,
    /// Warm up with so many operations before
    #[arg(long, value_parser = count)]
    warm_up_operations: Option<u64>,
    /// The longest scan; lengths are uniform from 1
    #[arg(long, value_name = "ROWS", default_value_t = 100)]
    scan_rows_max: u64,
    /// Time every which call on its own; default: 16 with batches below 16, else 1
    #[arg(long, value_name = "CALLS")]
    latency_every: Option<u64>,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// How long is measured where nobody says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) seconds: f64,
    pub(crate) warm_up_seconds: f64,
}

/// A measurement and what it is called.
#[derive(Debug, Clone)]
pub(crate) struct NamedSpec {
    pub(crate) name: String,
    pub(crate) spec: Spec,
}

impl Work {
    /// One measurement for each combination of the lists.
    ///
    /// # Errors
    /// Numbers that make no sense.
    pub(crate) fn specs(&self, times: Times) -> Result<Vec<NamedSpec>> {
        ensure!(
            self.zipf_theta > 0.0 && (self.zipf_theta - 1.0).abs() > 1e-6,
            "--zipf-theta {}: the method needs a positive exponent other than 1; 0.9999 is as near as it \
             gets",
            self.zipf_theta
        );
        for share in [self.hot_rows, self.hot_operations] {
            ensure!((0.0..=1.0).contains(&share), "{share} is no share: it is not from 0 to 1");
        }
        ensure!(self.scan_rows_max > 0, "--scan-rows-max must be positive");
        ensure!(self.latency_every != Some(0), "--latency-every must be positive");
        let (limit, warm_up) = self.limits(times);
        let mut specs = Vec::new();
        for (mix_name, mix, own) in self.mixes()? {
            let own = vec![own];
            let distributions =
                if self.distribution.is_empty() { &own } else { &self.distribution };
            for &distribution in distributions {
                for &batch in &self.batch {
                    for &threads in &self.threads {
                        ensure!(batch > 0 && threads > 0, "--batch and --threads must be positive");
                        let plural = if threads == 1 { "" } else { "s" };
                        let skew = match distribution {
                            Distribution::Uniform => String::new(),
                            Distribution::Hotspot => {
                                format!(" {}/{}", self.hot_operations, self.hot_rows)
                            }
                            _ => format!(" {}", self.zipf_theta),
                        };
                        let distribution_name = format!("{distribution:?}{skew}").to_lowercase();
                        specs.push(NamedSpec {
                            name: format!(
                                "{mix_name}, {distribution_name}, batch {batch}, {threads} \
                                 thread{plural}"
                            ),
                            spec: Spec {
                                mix,
                                distribution,
                                skew: Skew {
                                    theta: self.zipf_theta,
                                    hot_rows: self.hot_rows,
                                    hot_operations: self.hot_operations,
                                },
                                batch,
                                threads,
                                warm_up,
                                limit,
                                scan_rows_max: self.scan_rows_max,
                                latency_every: self.latency_every.unwrap_or(if batch < 16 {
                                    16
                                } else {
                                    1
                                }),
                                seed: self.seed,
                            },
                        });
                    }
                }
            }
        }
        Ok(specs)
    }

    fn limits(&self, times: Times) -> (Limit, Limit) {
        let or = |limit: Limit, seconds: f64| match limit {
            Limit { seconds: None, operations: None } => {
                Limit { seconds: Some(seconds), operations: None }
            }
            given => given,
        };
        let limit = Limit { seconds: self.seconds, operations: self.operations };
        let warm_up = Limit { seconds: self.warm_up_seconds, operations: self.warm_up_operations };
        (or(limit, times.seconds), or(warm_up, times.warm_up_seconds))
    }

    /// Name, shares and distribution of each mix.
    fn mixes(&self) -> Result<Vec<(String, Mix, Distribution)>> {
        let own = [self.read, self.update, self.insert, self.scan, self.rmw];
        if own.iter().any(Option::is_some) {
            let [read, update, insert, scan, rmw] = own.map(|share| share.unwrap_or(0.0));
            let mix = Mix { read, update, insert, scan, rmw };
            mix.check()?;
            return Ok(vec![(mix.to_string(), mix, Distribution::Scrambled)]);
        }
        let core = |workload: &Workload| {
            let mix = workload.mix();
            (format!("{workload:?} ({mix})"), mix, workload.distribution())
        };
        Ok(self.workload.iter().map(core).collect())
    }
}

/// A number with an optional k, M or G of 1,000.
fn count(text: &str) -> Result<u64> {
    scaled(text, |suffix| match suffix {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        _ => None,
    })
}

/// Bytes with an optional suffix.
fn bytes(text: &str) -> Result<u64> {
    scaled(text, |suffix| match suffix {
        "" | "B" => Some(1),
        "K" | "KiB" => Some(1 << 10),
        "M" | "MiB" => Some(1 << 20),
        "G" | "GiB" => Some(1 << 30),
        "kB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        _ => None,
    })
}

fn scaled(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Result<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = (&text[..split], text[split..].trim());
    let Some(unit) = unit(suffix) else { bail!("{suffix:?} is no known unit") };
    match number.parse::<u64>() {
        Ok(number) => number.checked_mul(unit).context("too large"),
        Err(_) => {
            let number: f64 = number.parse().with_context(|| format!("{number:?} is no number"))?;
            Ok((number * unit as f64) as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        work: Work,
    }

    fn specs(args: &[&str]) -> Result<Vec<NamedSpec>> {
        let args = ["test"].iter().chain(args);
        let times = Times { seconds: 3.0, warm_up_seconds: 1.0 };
        Command::try_parse_from(args)?.work.specs(times)
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(count("10M").unwrap(), 10_000_000);
        assert_eq!(count("1.5k").unwrap(), 1_500);
        assert_eq!(bytes("64").unwrap(), 64);
        assert_eq!(bytes("0.5GiB").unwrap(), 512 << 20);
        assert_eq!(bytes("16 MB").unwrap(), 16_000_000);
        for wrong in ["", "M", "1T", "-5", "1.2.3", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_make_combinations() {
        let all = specs(&["--workload", "a,d", "--batch", "1,4096", "--threads", "1,2"]).unwrap();
        assert_eq!(all.len(), 8);
        assert_eq!(all[0].spec.latency_every, 16);
        assert_eq!(all[2].spec.latency_every, 1);
        assert_eq!(all[7].spec.distribution, Distribution::Latest);
        assert_eq!(all[7].name, "D (read 95%, insert 5%), latest 0.99, batch 4096, 2 threads");
        assert_eq!(all[0].spec.limit, Limit { seconds: Some(3.0), operations: None });
    }

    #[test]
    fn a_mix_of_ones_own_takes_the_workloads_place() {
        let own = specs(&["--read", "0.25", "--rmw", "0.75", "--operations", "2k"]).unwrap();
        assert_eq!(own[0].spec.mix.rmw, 0.75);
        assert_eq!(own[0].spec.limit, Limit { seconds: None, operations: Some(2_000) });
        assert!(specs(&["--read", "0.25"]).is_err(), "the shares do not add up");
        assert!(specs(&["--read", "1", "--workload", "a"]).is_err(), "two mixes");
        assert!(specs(&["--zipf-theta", "1"]).is_err());
    }
}
