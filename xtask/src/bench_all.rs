//! `bench all`: runs every measurement, one after the other, on an otherwise idle machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::command;

/// Options of `bench all`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the results, one JSON file for each measurement
    #[arg(long, value_name = "DIR", default_value = "target/bench-all")]
    out: PathBuf,
    /// Rough answers: about half an hour in place of a night
    #[arg(long)]
    quick: bool,
}

/// Every measurement, as the words after `cargo xtask bench`.
const MEASUREMENTS: [&[&str]; 55] = [
    &["roofline"],
    &["in-memory"],
    &["single-op"],
    &["scaling"],
    &["out-of-core"],
    &["cold", "--part", "processor"],
    &["footprint"],
    &["growth"],
    &["checkpoint"],
    &["checksum-cost"],
    &["recovery"],
    &["serving"],
    &["cache-policy"],
    &["damage"],
    &["staleness-cost"],
    &["mechanisms"],
    &["crash-images"],
    &["faults"],
    &["store-kills"],
    &["fleet-kills"],
    &["strangers"],
    &["open-files"],
    &["quality"],
    &["memory"],
    &["kills"],
    &["pipeline", "utf8"],
    &["pipeline", "binary"],
    &["pipeline", "threads"],
    &["pipeline", "buffers"],
    &["pipeline", "arrays"],
    &["pipeline", "explain"],
    &["pipeline", "images"],
    &["pipeline", "pictures"],
    &["pipeline", "device"],
    &["pipeline", "cache"],
    &["pipeline", "resume"],
    &["pipeline", "parts"],
    &["pipeline", "vocabulary"],
    &["pipeline", "peers"],
    &["pipeline", "feed"],
    &["pipeline", "cluster"],
    &["training", "speed"],
    &["training", "staleness"],
    &["training", "lookahead"],
    &["training", "pipelined"],
    &["training", "optimizers"],
    &["training", "dtypes"],
    &["training", "python"],
    &["training", "in-memory"],
    &["training", "clicks"],
    &["training", "busy"],
    &["training", "distributed"],
    &["training", "rank-kills"],
    &["training", "forecast"],
    &["soak"],
];

/// Runs every measurement and prints which succeeded. A measurement that fails does not stop the
/// others. The exit code is a failure if a measurement failed or missed a target.
///
/// # Errors
/// Returns an error if the folder of the results cannot be made.
pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let out = root.join(&args.out);
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    let program = env::current_exe().context("finding this program")?;
    let mut summary = String::new();
    let mut failed = 0;
    for (number, words) in MEASUREMENTS.iter().enumerate() {
        let name = words.join("-");
        println!("\n== [{}/{}] {name}", number + 1, MEASUREMENTS.len());
        let mut measurement = Command::new(&program);
        measurement.current_dir(root).arg("bench").args(*words);
        measurement.arg("--json").arg(out.join(format!("{name}.json")));
        if args.quick {
            measurement.arg("--quick");
        }
        let began = Instant::now();
        let verdict = match command::shown(&mut measurement) {
            Ok(()) => "ok",
            Err(error) => {
                println!("{error:#}");
                failed += 1;
                "failed"
            }
        };
        summary
            .push_str(&format!("{name:24} {verdict:8} {:>7.0} s\n", began.elapsed().as_secs_f64()));
    }
    println!("\n{summary}\nresults: {}", out.display());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Measurement;
    use clap::Subcommand as _;

    #[test]
    fn every_measurement_is_run_once() {
        let known = Measurement::augment_subcommands(clap::Command::new("bench"));
        for found in known.get_subcommands() {
            let name = found.get_name();
            let runs = MEASUREMENTS.iter().filter(|words| words[0] == name).count();
            match name {
                "all" | "report" => assert_eq!(runs, 0, "{name}"),
                "pipeline" | "training" => assert!(runs > 1, "{name}"),
                _ => assert_eq!(runs, 1, "{name}"),
            }
        }
        for words in MEASUREMENTS {
            assert!(known.find_subcommand(words[0]).is_some(), "{words:?}");
        }
    }
}
