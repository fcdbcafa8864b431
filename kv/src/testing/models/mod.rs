//! The store's concurrency under a model checker.
//!
//! **Approach.** A model is a few threads with a few operations each, on the code that the store
//! runs with. Built with `--cfg embank_shuttle`, all atomics, locks and threads of that code are
//! those of `sync::modelled`. The checker, shuttle, runs one thread at a time, and chooses at each
//! operation which thread runs next. A schedule is one sequence of such choices. Each model runs
//! through many schedules. Half of them are drawn at random. The other half come from PCT
//! (Burckhardt et al., ASPLOS 2010). PCT lets one thread run as long as it can and changes the
//! thread at a few random steps.
//!
//! The constants of the product have the values of other builds. The models open their stores
//! within their own limits ([`SMALL`]: pages of 512 bytes, an index of one bucket), so that a few
//! steps turn a page or split a bucket.
//!
//! **A model that can't fail proves nothing.** Each model is therefore also run with planted bugs
//! (`sync::Planted`), and must find each of them.
//!
//! **What models can't find.** All operations happen in one sequence, so a model finds no bug of a
//! weaker memory order. This includes the argument of `epoch::slots` about `membarrier`: its slots
//! and eras run here, but its fences have no effect. A device in memory replaces real devices, so
//! their behaviour is not tested either.
//!
//! `docs/testing.md` has the commands. `EMBANK_MODEL_SCHEDULES` sets the number of schedules of
//! each model. `EMBANK_MODEL_SEED` sets the first seed: the seed that a failed schedule prints
//! repeats that schedule.

#![expect(clippy::unwrap_used, reason = "tests")]

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

/// Limits within which a few steps turn a page or split a bucket. The row cache is off: setting up
/// its 4,096 slots would take more steps than the rest of a model.
const SMALL: Limits =
    Limits { page_bytes_min: 512, budget_bytes_min: 20 << 10, initial_level: 0, row_cache: false };

/// Default number of schedules of each model.
const SCHEDULES_DEFAULT: usize = 400;
/// Number of schedules with one seed and one scheduler.
const SCHEDULES_PER_TURN: usize = 100;
/// Limit of the schedules in which a planted bug must be found.
const SCHEDULES_TO_FIND: usize = 20_000;
/// Limit of the steps of one schedule. No correct schedule needs this many, so a longer one never
/// ends.
const STEPS_MAX: usize = 300_000;
/// Depths of PCT: it changes the running thread at one step less than this number.
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

/// Writes a line to standard error without the capture of the test harness. The capture thus hides
/// only the many panics of planted bugs.
fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs a model through the schedules of one turn. The seed selects random schedules or PCT.
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

/// Runs a model through as many schedules as the environment asks for. The model must not fail in
/// any of them.
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

/// Runs a model with a planted bug. The model must fail in some schedule. Without the bug it must
/// not fail in the first turns.
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
