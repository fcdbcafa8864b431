//! Runs the script once for each planned fault.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use super::judge::{Outcome, judge};
use super::script;
use super::{Fault, Mode, Plan, Site};
use crate::recorder::Recording;

/// Longest time of a run of the script, in seconds. A run takes about 0.1 s. If a run takes longer
/// than this limit, `check` takes it to hang and aborts the process.
const RUN_S_MAX: u64 = 120;

/// The number of runs for each outcome of each site and fault.
pub type Tally = BTreeMap<(Site, Fault), BTreeMap<Outcome, u64>>;

/// Runs the script without a fault and returns the number of calls of each site.
///
/// # Errors
/// Fails if the script fails.
pub fn count(dir: &Path, mode: Mode) -> Result<BTreeMap<Site, u64>> {
    let home = tempfile::tempdir_in(dir)?;
    let recording = Recording::start(home.path())?;
    let script = script::run(&recording, None, mode).context("without a fault")?;
    ensure!(script.errors.is_empty(), "without a fault: {:?}", script.errors);
    Ok(recording.calls())
}

/// Returns `count` plans, or all possible plans if these are fewer. The first and the last call of
/// each site always meet each possible fault, even if these plans alone are more than `count`. The
/// further plans are chosen at random.
#[must_use]
pub fn plans(calls: &BTreeMap<Site, u64>, count: usize, random: &mut Rng) -> Vec<Plan> {
    let (mut forced, mut others) = (Vec::new(), Vec::new());
    for (&site, &calls) in calls {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.can_strike(site.call)) {
            for number in 0..calls {
                let chosen = number == 0 || number == calls - 1;
                let plans = if chosen { &mut forced } else { &mut others };
                plans.push(Plan { site, number, fault });
            }
        }
    }
    random.shuffle(&mut others);
    others.truncate(count.saturating_sub(forced.len()));
    forced.extend(others);
    forced
}

/// Runs the script with one fault below `dir` and judges it.
///
/// # Errors
/// Fails with a description of what is wrong.
pub fn check(dir: &Path, plan: Plan, mode: Mode) -> Result<Outcome> {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Relaxed: `check` reads the count after it has joined the threads of the run.
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(info);
        }));
    });
    // A fault that takes all descriptors lasts, so a wait for a free one would only take time.
    embank_kv::wait_for_descriptors(Duration::ZERO);
    let panics = PANICS.load(Ordering::Relaxed);
    let (done, waits) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if waits.recv_timeout(Duration::from_secs(RUN_S_MAX))
            == Err(mpsc::RecvTimeoutError::Timeout)
        {
            eprintln!("{plan}: still running after {RUN_S_MAX} seconds");
            std::process::abort();
        }
    });
    let home = tempfile::tempdir_in(dir)?;
    let checked = {
        let recording = Recording::start(home.path())?;
        script::run(&recording, Some(plan), mode)
            .and_then(|script| judge(&recording, &script, plan))
    };
    drop(done);
    ensure!(watch.join().is_ok(), "the watch ended");
    ensure!(PANICS.load(Ordering::Relaxed) == panics, "{plan}: a thread panicked");
    checked.with_context(|| plan.to_string())
}
