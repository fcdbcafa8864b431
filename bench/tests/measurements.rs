//! Runs the measurements that no other test runs, over tiny data. A measurement checks its answers,
//! so a run that succeeds has found no wrong one. The figures themselves mean nothing here.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Measurements that run elsewhere or cannot run in a test, each with the reason.
const ELSEWHERE: [(&str, &str); 10] = [
    ("damage", "a test of its module runs it"),
    ("footprint", "a test of its module runs it"),
    ("growth", "a test of its module runs it"),
    ("in-memory", "a test of its module runs it"),
    ("out-of-core", "it builds the peers of embank-ycsb; the tests of embank-ycsb run `compare`"),
    ("roofline", "a test of its module runs it"),
    ("serving", "tests/serving.rs runs it"),
    ("single-op", "a test of its module runs it"),
    ("soak", "a test of its module runs it"),
    ("staleness-cost", "a test of its module runs it"),
];

/// The names and the options of the measurements that run here. The part `rocksdb` of `cold` builds
/// the peers of embank-ycsb, whose tests run `written`. `pipeline vocabulary` has a test in
/// its module. `pipeline explain` fails if the machine has other work, so no test can run it.
const HERE: [(&str, &str); 17] = [
    ("scaling", "--rows 20000 --dims 16 --batch 256 --rounds 1"),
    ("checkpoint", "--bank 8 --dims 16 --zipf 0.99 --batch 64 --seconds 0.02 --count 1"),
    ("checksum-cost", "--data 48 --dims 128 --seconds 0.02 --count 1"),
    ("recovery", "--rows 20000 --checkpoints 2 --changed 0.01 --count 1"),
    ("cache-policy", "--rows 20000 --share 0.25 --peeks 20000"),
    (
        "cold",
        "--part processor --run-keys 5000 --base-keys 9000 --lookups 20000 --sort-mib 1 --merge-mib 4 --count 1",
    ),
    (
        "mechanisms",
        "--budget 2 --sizes 1 --turns 1 --seconds 0.02 --models clicks,serving --only window",
    ),
    ("pipeline images", "--pictures 20 --count 1"),
    ("pipeline cache", "--pictures 12 --count 1"),
    ("pipeline device", "--pictures 40 --count 1 --delay 0.1"),
    ("pipeline resume", "--rows 20000 --batch-rows 100 --shuffle-rows 500 --moduli 5000 --count 1"),
    ("pipeline utf8", "--rows 3000 --count 1 --moduli 5000 --python-rows 0 --portable"),
    ("pipeline binary", "--rows 3000 --count 1 --moduli 5000 --python-rows 0"),
    ("pipeline buffers", "--rows 3000 --count 1 --moduli 5000 --python-rows 0 --batch-rows 32,64"),
    ("pipeline parts", "--rows 9000 --count 1 --moduli 5000"),
    ("pipeline threads", "--rows 3000 --count 1 --moduli 5000 --python-rows 0"),
    ("pipeline generate", "--rows 100"),
];

fn bench(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank-bench"));
    // The tests read the help, which must have no colours.
    command.current_dir(directory).args(arguments).env_remove("CLICOLOR_FORCE");
    command
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

#[test]
fn every_measurement_over_tiny_data_succeeds_with_figures() {
    for (name, options) in HERE {
        let directory = tempfile::tempdir().unwrap();
        let mut words: Vec<&str> = name.split(' ').chain(options.split_whitespace()).collect();
        let generates = name.ends_with("generate");
        words.extend(if generates { &["rows"][..] } else { &["--json", "rows"] });
        let output = bench(directory.path(), &words).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output));
        let written = std::fs::read_to_string(directory.path().join("rows")).unwrap();
        if generates {
            assert_eq!(written.lines().count(), 100);
            continue;
        }
        let rows: Vec<Value> = serde_json::from_str(&written).unwrap();
        assert!(!rows.is_empty(), "{name}");
        assert!(rows.iter().all(|row| row["name"].is_string()), "{name}: {written}");
    }
}

/// `bench/python/store/overhead.py` starts this one, and asks for batches over standard input.
#[test]
fn batch_get_times_each_batch_that_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let words = "batch-get --rows 1000 --batch 64 --batches 4 --memory-budget-bytes 8388608 --directory bank";
    let mut asked = bench(directory.path(), &words.split(' ').collect::<Vec<_>>());
    let mut child = asked.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"get 3\npeek 2\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let told = String::from_utf8(output.stdout).unwrap();
    let counts: Vec<usize> = told.lines().skip(1).map(|l| l.split(' ').count()).collect();
    assert!(told.starts_with("ready\n") && counts == [3, 2], "{told}");
}

/// A new measurement has a run in [`HERE`], or a reason in [`ELSEWHERE`].
#[test]
fn every_measurement_has_a_run_or_a_reason() {
    let help = bench(Path::new("."), &["--help"]).output().unwrap();
    let help = text(&help);
    let (_, commands) = help.split_once("Commands:\n").expect("the help lists the commands");
    let names = commands.lines().take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let listed: BTreeSet<&str> = names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    let here = HERE.iter().filter_map(|(name, _)| name.split(' ').next());
    let known: BTreeSet<&str> =
        here.chain(ELSEWHERE.iter().map(|(name, _)| *name)).chain(["batch-get"]).collect();
    assert_eq!(listed, known);
}
