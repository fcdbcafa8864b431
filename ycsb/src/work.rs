//! The operations of a run: their options and properties, and the measurements made from them.

use anyhow::{Result, ensure};
use clap::Args;

use crate::core_properties::{Core, SCAN_ROWS_MAX};
use crate::distribution::{Distribution, Skew};
use crate::engine::EngineKind;
use crate::engine::leases::Leases;
use crate::measure::{Limit, Spec};
use crate::quantity::{Bound, bound, count, seconds};
use crate::worker::ScanLengths;
use crate::workload::{Mix, Workload};

/// Largest number of threads of a load or a measurement. Most systems cannot start more.
pub(crate) const THREADS_MAX: usize = 1024;

/// The options for the operations. Some options take a list of values. The program makes one
/// measurement for each combination of the values.
#[derive(Debug, Clone, Args)]
pub(crate) struct Work {
    /// Core workloads, one letter each, separated by commas [default: c, or the properties' own
    /// mix]
    #[arg(long, value_enum, ignore_case = true, value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Share of reads; the five shares replace a core workload, and must add up to 1
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
    /// Request distributions [default: the workload's own (scrambled; D: latest)]
    #[arg(long, value_enum, value_delimiter = ',')]
    distribution: Vec<Distribution>,
    /// Exponent of Zipf's law [default: 0.99]
    #[arg(long)]
    zipf_theta: Option<f64>,
    /// Hotspot: share of the rows that is hot [default: 0.2]
    #[arg(long, value_name = "SHARE")]
    hot_rows: Option<f64>,
    /// Hotspot: share of the operations that goes to the hot rows [default: 0.8]
    #[arg(long, value_name = "SHARE")]
    hot_operations: Option<f64>,
    /// Operations of a call, all of one kind; YCSB's own program has 1
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Threads [default: 1]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Staleness bounds of embank-lease: numbers of gets, or `none`. A get waits while a row has
    /// more outstanding gets than the bound [default: none]
    #[arg(long, value_name = "GETS", value_delimiter = ',', value_parser = bound)]
    staleness_bound: Vec<Bound>,
    /// Leases that a thread of embank-lease holds open. Before a get that would take one more, the
    /// thread applies its oldest lease's gradients [default: bound / threads + 1, the most with
    /// which threads can't wait for each other for ever; without a bound 1]
    #[arg(long)]
    leases: Option<usize>,
    /// Operations a second, of all threads together. Each call then has a scheduled start.
    /// Latencies are also taken from the scheduled starts, so they include the wait behind a slow
    /// call. Without this option calls follow each other at full speed
    #[arg(long, value_name = "OPS", value_parser = count)]
    target: Option<u64>,
    /// Measure for this many seconds
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Measure this many operations; with --seconds, whichever comes first
    #[arg(long, value_parser = count)]
    operations: Option<u64>,
    /// Warm up for this many seconds before the measurement
    #[arg(long, value_parser = seconds)]
    warm_up_seconds: Option<f64>,
    /// Warm up with this many operations before the measurement
    #[arg(long, value_parser = count)]
    warm_up_operations: Option<u64>,
    /// The shortest scan [default: 1]
    #[arg(long, value_name = "ROWS")]
    scan_rows_min: Option<u64>,
    /// The longest scan [default: 100]
    #[arg(long, value_name = "ROWS")]
    scan_rows_max: Option<u64>,
    /// Lengths of scans [default: uniform]
    #[arg(long, value_enum)]
    scan_lengths: Option<ScanLengths>,
    /// Take the latency of one call in this many [default: 16 with batches below 16, else 1; 1 with
    /// --target or properties]
    #[arg(long, value_name = "CALLS")]
    latency_every: Option<u64>,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The default durations of a measurement and its warm-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) seconds: f64,
    pub(crate) warm_up_seconds: f64,
}

/// A measurement with its name.
#[derive(Debug, Clone)]
pub(crate) struct NamedSpec {
    pub(crate) name: String,
    pub(crate) spec: Spec,
}

impl Work {
    /// Returns one measurement for each combination of the lists.
    ///
    /// # Errors
    /// Returns an error for invalid numbers.
    pub(crate) fn specs(&self, times: Times, core: &Core) -> Result<Vec<NamedSpec>> {
        let target = self.target.or(core.target);
        ensure!(target != Some(0), "--target must be positive");
        let (limit, warm_up) = self.limits(times, core)?;
        let common = Spec {
            mix: Mix::default(),
            distribution: Distribution::Uniform,
            skew: self.skew(core)?,
            batch: 0,
            threads: 0,
            leases: Leases::of(None, 1),
            target_operations_per_s: target,
            warm_up,
            limit,
            scan_rows_min: self.scan_rows_min.or(core.scan_rows_min).unwrap_or(1),
            scan_rows_max: self.scan_rows_max.or(core.scan_rows_max).unwrap_or(if core.given {
                SCAN_ROWS_MAX
            } else {
                100
            }),
            scan_lengths: self.scan_lengths.or(core.scan_lengths).unwrap_or(ScanLengths::Uniform),
            latency_every: 0,
            seed: self.seed,
        };
        ensure!(
            1 <= common.scan_rows_min && common.scan_rows_min <= common.scan_rows_max,
            "scans of {} to {} rows: --scan-rows-min must be 1 or more, and at most --scan-rows-max",
            common.scan_rows_min,
            common.scan_rows_max
        );
        ensure!(self.latency_every != Some(0), "--latency-every must be positive");
        let core_threads = [core.threads.unwrap_or(1)];
        let threads = if self.threads.is_empty() { &core_threads[..] } else { &self.threads };
        let bounds = if self.staleness_bound.is_empty() {
            &[Bound(None)][..]
        } else {
            &self.staleness_bound
        };
        let mut specs = Vec::new();
        for (mix_name, mix, own) in self.mixes(core)? {
            let own = [own];
            let distributions =
                if self.distribution.is_empty() { &own[..] } else { &self.distribution };
            for &distribution in distributions {
                for &batch in &self.batch {
                    for &threads in threads {
                        for &Bound(bound) in bounds {
                            let latency_every = self.latency_every(core, target, batch);
                            let spec = Spec {
                                mix,
                                distribution,
                                batch,
                                threads,
                                leases: self.leases_of(bound, threads),
                                latency_every,
                                ..common.clone()
                            };
                            specs.push(self.named(&mix_name, spec)?);
                        }
                    }
                }
            }
        }
        Ok(specs)
    }

    /// True if an option concerns leases. Only a store with leases can honour it.
    pub(crate) fn names_leases(&self) -> bool {
        !self.staleness_bound.is_empty() || self.leases.is_some()
    }

    /// Checks that a store has leases if an option concerns leases.
    ///
    /// # Errors
    /// Returns an error that names the option and the stores.
    pub(crate) fn ensure_leases(&self, kinds: &[EngineKind]) -> Result<()> {
        let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
        ensure!(
            !self.names_leases() || kinds.iter().any(|kind| kind.takes_leases()),
            "--staleness-bound and --leases concern the store embank-lease; {} has no leases and never waits \
             for a bound",
            names.join(", ")
        );
        Ok(())
    }

    fn leases_of(&self, bound: Option<u32>, threads: usize) -> Leases {
        let known = Leases::of(bound, threads.max(1));
        Leases { per_thread: self.leases.unwrap_or(known.per_thread), ..known }
    }

    fn latency_every(&self, core: &Core, target: Option<u64>, batch: usize) -> u64 {
        let all = core.given || target.is_some() || batch >= 16;
        self.latency_every.unwrap_or(if all { 1 } else { 16 })
    }

    fn skew(&self, core: &Core) -> Result<Skew> {
        let known = Skew::default();
        let skew = Skew {
            theta: self.zipf_theta.or(core.theta).unwrap_or(known.theta),
            hot_rows: self.hot_rows.or(core.hot_rows).unwrap_or(known.hot_rows),
            hot_operations: self
                .hot_operations
                .or(core.hot_operations)
                .unwrap_or(known.hot_operations),
        };
        ensure!(
            skew.theta.is_finite() && skew.theta > 0.0 && (skew.theta - 1.0).abs() > 1e-6,
            "--zipf-theta {}: the method needs a positive exponent other than 1; 0.9999 is as near as it \
             gets",
            skew.theta
        );
        for share in [skew.hot_rows, skew.hot_operations] {
            ensure!((0.0..=1.0).contains(&share), "{share} is no share: it is not from 0 to 1");
        }
        Ok(skew)
    }

    /// Returns the limits of the measurement and of its warm-up.
    fn limits(&self, times: Times, core: &Core) -> Result<(Limit, Limit)> {
        let seconds = self.seconds.or(core.seconds);
        let operations = self.operations.or(core.operations);
        ensure!(seconds != Some(0.0), "--seconds must be positive");
        ensure!(
            operations != Some(0) || seconds.is_some(),
            "0 operations (operationcount) is a run without end in YCSB; name --seconds or maxexecutiontime"
        );
        let or = |limit: Limit, seconds: f64| match limit {
            Limit { seconds: None, operations: None } => {
                Limit { seconds: Some(seconds), operations: None }
            }
            given => given,
        };
        let limit = Limit { seconds, operations: operations.filter(|&operations| operations > 0) };
        let warm_up = Limit { seconds: self.warm_up_seconds, operations: self.warm_up_operations };
        let warm_up = if core.given { warm_up } else { or(warm_up, times.warm_up_seconds) };
        Ok((or(limit, times.seconds), warm_up))
    }

    /// Returns the name, shares and distribution of each mix. The options decide the mixes. Without
    /// options the properties decide. Without either, the mix is that of workload C.
    fn mixes(&self, core: &Core) -> Result<Vec<(String, Mix, Distribution)>> {
        let own = [self.read, self.update, self.insert, self.scan, self.rmw];
        if own.iter().any(Option::is_some) {
            let [read, update, insert, scan, rmw] = own.map(|share| share.unwrap_or(0.0));
            let mix = Mix { read, update, insert, scan, rmw };
            mix.check()?;
            let distribution = core.distribution.unwrap_or(Distribution::Scrambled);
            return Ok(vec![(mix.to_string(), mix, distribution)]);
        }
        if let (true, Some(mix)) = (self.workload.is_empty(), core.mix) {
            let distribution = core.distribution.unwrap_or(Distribution::Uniform);
            return Ok(vec![(mix.to_string(), mix, distribution)]);
        }
        let named = |workload: &Workload| {
            let mix = workload.mix();
            let distribution = core.distribution.unwrap_or(workload.distribution());
            (format!("{workload:?} ({mix})"), mix, distribution)
        };
        let workloads = if self.workload.is_empty() { &[Workload::C][..] } else { &self.workload };
        Ok(workloads.iter().map(named).collect())
    }

    /// Checks the numbers of a measurement and names it.
    fn named(&self, mix_name: &str, spec: Spec) -> Result<NamedSpec> {
        let Spec { batch, threads, skew, distribution, .. } = spec;
        ensure!(batch > 0 && threads > 0, "--batch and --threads must be positive");
        ensure!(
            threads <= THREADS_MAX,
            "--threads {threads}: at most {THREADS_MAX} can be started"
        );
        spec.leases.check(threads)?;
        let plural = if threads == 1 { "" } else { "s" };
        let skew = match distribution {
            Distribution::Uniform => String::new(),
            Distribution::Hotspot => format!(" {}/{}", skew.hot_operations, skew.hot_rows),
            _ => format!(" {}", skew.theta),
        };
        let distribution = format!("{distribution:?}{skew}").to_lowercase();
        let target = spec.target_operations_per_s;
        let target =
            target.map_or(String::new(), |target| format!(", target {target} operations/s"));
        let leases = if self.names_leases() { format!(", {}", spec.leases) } else { String::new() };
        let name = format!(
            "{mix_name}, {distribution}, batch {batch}, {threads} thread{plural}{leases}{target}"
        );
        Ok(NamedSpec { name, spec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::PropertyArgs;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        properties: PropertyArgs,
        #[command(flatten)]
        work: Work,
    }

    fn specs(args: &[&str]) -> Result<Vec<NamedSpec>> {
        let args = ["test"].iter().chain(args);
        let times = Times { seconds: 3.0, warm_up_seconds: 1.0 };
        let command = Command::try_parse_from(args)?;
        command.work.specs(times, &Core::read(&command.properties)?)
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
    fn bounds_make_combinations_with_their_leases() {
        let args = ["--staleness-bound", "none,0,4", "--batch", "1,64", "--threads", "2"];
        let all = specs(&args).unwrap();
        assert_eq!(all.len(), 6);
        let suffix = |at: usize| all[at].name.rsplit_once("2 threads, ").unwrap().1.to_owned();
        assert_eq!(suffix(0), "no bound, 1 lease a thread");
        assert_eq!(suffix(1), "bound 0, 1 lease a thread");
        assert_eq!(suffix(5), "bound 4, 3 leases a thread");
        let own = specs(&["--staleness-bound", "none,8", "--threads", "2", "--leases", "5"]);
        assert!(own.unwrap().iter().all(|named| named.spec.leases.per_thread == 5));
        let plain = &specs(&["--threads", "2"]).unwrap()[0];
        assert!(plain.name.ends_with("2 threads"), "{}", plain.name);
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

    #[test]
    fn options_win_over_properties_and_ycsb_fills_what_neither_names() {
        let only = &specs(&["-p", "threadcount=3"]).unwrap()[0];
        assert_eq!(only.name, "read 95%, update 5%, uniform, batch 1, 3 threads");
        assert_eq!((only.spec.warm_up, only.spec.latency_every), (Limit::default(), 1));
        assert_eq!(only.spec.scan_rows_max, 1_000);
        let args = ["-p", "threadcount=3", "-p", "requestdistribution=latest", "-p", "target=9"];
        let args = [&args[..], &["-p", "readproportion=1", "-p", "operationcount=5"]].concat();
        let options = ["--threads", "2", "--workload", "a", "--operations", "7"];
        let won = &specs(&[&args[..], &options].concat()).unwrap()[0];
        let name =
            "A (read 50%, update 50%), latest 0.99, batch 1, 2 threads, target 9 operations/s";
        assert_eq!(won.name, name);
        assert_eq!(won.spec.limit.operations, Some(7));
        assert!(specs(&["-p", "operationcount=0"]).is_err(), "a run without end");
        assert!(specs(&["--warm-up-seconds", "0"]).is_ok(), "no warm-up");
        let ends = &specs(&["-p", "operationcount=0", "--seconds", "1"]).unwrap()[0];
        assert_eq!(ends.spec.limit, Limit { seconds: Some(1.0), operations: None });
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for args in [
            ["--target", "0"],
            ["--threads", "2000"],
            ["--batch", "0"],
            ["--seconds", "nan"],
            ["--seconds", "0"],
            ["--operations", "0"],
            ["--zipf-theta", "inf"],
            ["--scan-rows-min", "101"],
            ["--leases", "0"],
            ["--staleness-bound", "-1"],
            ["--staleness-bound", "4294967296"],
        ] {
            assert!(specs(&args).is_err(), "{args:?}");
        }
    }
}
