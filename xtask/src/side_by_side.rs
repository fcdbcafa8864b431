//! Runs programs side by side, [`LANES`] at a time.
//!
//! Most tests sometimes wait for the drive or for another process. A second program uses the
//! processor in that time. A program's output is kept until the program ends. If the program
//! failed, the whole output is shown, and otherwise only what was left out.

use std::collections::VecDeque;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The number of programs that run at a time. Each test program starts one thread for each core.
/// With more programs, tests with a time limit would exceed it on a small machine.
const LANES: usize = 2;

/// A program to run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// The result of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) took: Duration,
    pub(crate) passed: bool,
}

/// Starts the programs in the order of `runs`. Returns their results in the order in which they
/// end.
pub(crate) fn run_all(runs: Vec<Run>) -> Vec<Ended> {
    let waiting = Mutex::new(VecDeque::from(runs));
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                // The loop ends because each turn takes a program out of the queue.
                loop {
                    let Some(run) = locked(&waiting).pop_front() else { break };
                    println!("           begins: {}", run.name);
                    let (ended, printed) = end(run);
                    println!("{printed}");
                    locked(&all).push(ended);
                }
            });
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one program. Returns its result, and the text to print about it.
fn end(Run { name, mut command }: Run) -> (Ended, String) {
    let started = Instant::now();
    let result = command.stdin(Stdio::null()).output();
    let took = started.elapsed();
    let (passed, mut printed) = match result {
        Ok(output) if output.status.success() => (true, left_out(&output)),
        Ok(output) => (false, format!("{}\n{}\n", text(&output), output.status)),
        Err(error) => (false, format!("it can't be started: {error}\n")),
    };
    let verdict = if passed { "passed" } else { "FAILED" };
    printed += &format!("{:>8.1} s {verdict}: {name}", took.as_secs_f64());
    (Ended { name, took, passed }, printed)
}

/// Returns the lines in which `pytest -rs` says why it left tests out.
fn left_out(output: &Output) -> String {
    let text = text(output);
    let lines = text.lines().filter(|line| line.starts_with("SKIPPED"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn text(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    format!("{stdout}{}", String::from_utf8_lossy(&output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Run { name: name.to_owned(), command }
    }

    #[test]
    fn every_run_ends_whatever_becomes_of_others() {
        let names = ["one", "two", "three", "four", "five"];
        let mut runs: Vec<Run> = names.iter().map(|name| shell(name, "exit 0")).collect();
        runs[1] = shell("two", "exit 7");
        runs[3].command = Command::new("/no/such/program");
        let mut all = run_all(runs);
        all.sort_by_key(|ended| names.iter().position(|name| *name == ended.name));
        let passed: Vec<bool> = all.iter().map(|ended| ended.passed).collect();
        assert_eq!(passed, [true, false, true, false, true]);
    }

    #[test]
    fn a_failure_shows_what_the_program_printed() {
        let (ended, printed) = end(shell("broken", "echo out; echo err >&2; exit 3"));
        assert!(!ended.passed);
        assert!(printed.starts_with("out\nerr\n") && printed.contains('3'), "{printed}");
        assert!(printed.ends_with("s FAILED: broken"), "{printed}");
    }

    #[test]
    fn a_success_shows_only_what_was_left_out() {
        let (ended, printed) = end(shell("fine", "echo 3 passed; echo 'SKIPPED [1] no polars'"));
        assert!(ended.passed);
        assert!(printed.starts_with("SKIPPED [1] no polars\n"), "{printed}");
        assert!(!printed.contains("3 passed"), "{printed}");
    }

    #[test]
    fn two_programs_run_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let (mine, yours) = (folder.path().join("a"), folder.path().join("b"));
        // Each program waits for the file that the other makes.
        let meets = |mine: &std::path::Path, yours: &std::path::Path| {
            let (mine, yours) = (mine.display(), yours.display());
            format!(
                "touch {mine}; for i in $(seq 3000); do test -e {yours} && exit 0; sleep 0.01; done; exit 1"
            )
        };
        let runs = vec![shell("a", &meets(&mine, &yours)), shell("b", &meets(&yours, &mine))];
        assert!(run_all(runs).iter().all(|ended| ended.passed));
    }
}
