//! Tests of the store's concurrent code under a model checker.
//!
//! **Approach.** A model consists of a few threads that run a few operations of the product's code.
//! With `--cfg embank_shuttle`, that code uses the atomics, locks and threads of `sync::modelled`.
//! The checker, shuttle, runs one thread at a time. At each operation it chooses the thread that
//! runs next. A sequence of such choices is a schedule. Each model runs in many schedules. Half of
//! them are random. The other half come from PCT (Burckhardt et al., ASPLOS 2010), which runs one
//! thread as long as possible and changes to another thread at a few random steps.
//!
//! The product's constants keep their values. The models open their stores with small limits
//! ([`SMALL`]: pages of 512 bytes, an index of one bucket). A few steps then fill a page or split a
//! bucket.
//!
//! **A model that can't fail proves nothing.** Each model therefore also runs with planted bugs
//! (`sync::Planted`), and must find each of them.
//!
//! **What models can't find.** All operations run in one sequence, so a model finds no bug that
//! needs a weak memory order. For example, `epoch::slots` uses `membarrier`, and its fences have no
//! effect here. Files and drives are not tested either, because a device in memory replaces them.
//!
//! `docs/testing.md` has the commands. `EMBANK_MODEL_SCHEDULES` sets the number of schedules of
//! each model. `EMBANK_MODEL_SEED` sets the first seed. A failed schedule prints its seed, and that
//! seed repeats the schedule.

#![expect(clippy::unwrap_used, reason = "tests")]

mod cold;
mod crew;
mod index;
mod leases;
mod log;
mod records;
mod store;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::limits::Limits;
use crate::sync::{Planted, plant};

/// Limits with which a few steps fill a page or split a bucket. There is no read cache, because
/// setting up its 4,096 slots would take more steps than the rest of a model.
const SMALL: Limits =
    Limits { page_bytes_min: 512, budget_bytes_min: 20 << 10, initial_level: 0, read_cache: false };

/// Default number of schedules of each model.
const SCHEDULES_DEFAULT: usize = 400;
/// Number of schedules in a turn. A turn has one seed and one scheduler.
const SCHEDULES_PER_TURN: usize = 100;
/// A planted bug must be found within this number of schedules.
const SCHEDULES_TO_FIND: usize = 20_000;
/// Limit of the steps of one schedule. Correct schedules are shorter. A schedule that reaches the
/// limit fails, because it may be endless.
const STEPS_MAX: usize = 300_000;
/// The depths for PCT. At depth d, PCT changes the running thread at d - 1 random steps.
const DEPTHS: [usize; 3] = [2, 3, 5];
const STACK_BYTES: usize = 512 << 10;

fn from_environment(name: &str, default: impl FnOnce() -> u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")),
        Err(_) => default(),
    }
}

fn first_seed() -> u64 {
    from_environment("EMBANK_MODEL_SEED", || {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0) >> 32
    })
}

/// Writes a line to standard error. The test harness does not capture it, unlike the many panics of
/// planted bugs.
fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs a model in the schedules of one turn. Even seeds give random schedules, odd seeds give PCT.
fn run_turn(seed: u64, schedules: usize, model: fn()) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    if seed.is_multiple_of(2) {
        Runner::new(RandomScheduler::new_from_seed(seed, schedules), config).run(model);
    } else {
        let depth = DEPTHS[seed as usize / 2 % DEPTHS.len()];
        Runner::new(PctScheduler::new_from_seed(seed, depth, schedules), config).run(model);
    }
}

/// Runs a concurrency model under `EMBANK_MODEL_SCHEDULES` orders of its threads' steps. It must
/// not fail in any of them.
fn explore(name: &str, model: fn()) {
    let wanted = from_environment("EMBANK_MODEL_SCHEDULES", || SCHEDULES_DEFAULT as u64) as usize;
    let seed = first_seed();
    let began = Instant::now();
    for turn in 0..wanted.div_ceil(SCHEDULES_PER_TURN) as u64 {
        let run = AssertUnwindSafe(|| run_turn(seed.wrapping_add(turn), SCHEDULES_PER_TURN, model));
        if let Err(panic) = catch_unwind(run) {
            let from = seed.wrapping_add(turn);
            eprintln!(
                "model {name}: failed in the turn of seed {from} (from seed {seed}, turn {turn})"
            );
            std::panic::resume_unwind(panic);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let schedules = wanted.next_multiple_of(SCHEDULES_PER_TURN);
    report(&format!("model {name}: {schedules} schedules in {seconds:.1} s, from seed {seed}"));
}

/// Runs a model with a planted bug until it fails. Panics if it does not fail. In the first two
/// turns the model also runs without the bug, and must not fail.
fn finds(bug: Planted, model: fn()) {
    let seed = first_seed();
    let began = Instant::now();
    for turn in 0..(SCHEDULES_TO_FIND / SCHEDULES_PER_TURN) as u64 {
        if turn < 2 {
            run_turn(seed.wrapping_add(turn), SCHEDULES_PER_TURN, model);
        }
        plant(Some(bug));
        let run = AssertUnwindSafe(|| run_turn(seed.wrapping_add(turn), SCHEDULES_PER_TURN, model));
        let found = catch_unwind(run);
        plant(None);
        if let Err(panic) = found {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("?");
            let seconds = began.elapsed().as_secs_f64();
            let turn = turn + 1;
            report(&format!(
                "planted {bug:?}: found in turn {turn} of {SCHEDULES_PER_TURN} schedules, {seconds:.1} s, \
                 from seed {seed}: {text}"
            ));
            return;
        }
    }
    panic!("{bug:?} was planted and not found in {SCHEDULES_TO_FIND} schedules from seed {seed}");
}
