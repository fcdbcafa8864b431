//! Models of a crew. Callers run jobs with helpers that come late, sleep and leave.

use std::sync::Arc;

use super::store::join;
use super::{explore, finds};
use crate::process::crew::{Crew, CrewTurn};
use crate::sync::{AtomicBool, AtomicU64, Ordering, Planted, thread};

const HELPERS: usize = 2;
const PARTS: u64 = 3;

fn crew() -> Crew {
    Crew::start(HELPERS, |number| number.to_string()).unwrap()
}

/// Runs a job of `PARTS` parts. Each part is done once, and no thread is in the job after its end.
fn run(turn: &mut CrewTurn<'_>) {
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let inside = AtomicU64::new(0);
    let ended = AtomicBool::new(false);
    turn.run(HELPERS, || {
        inside.fetch_add(1, Ordering::SeqCst);
        assert!(!ended.load(Ordering::SeqCst), "a helper has entered after the end");
        while next.fetch_add(1, Ordering::SeqCst) < PARTS {
            done.fetch_add(1, Ordering::SeqCst);
        }
        inside.fetch_sub(1, Ordering::SeqCst);
    });
    ended.store(true, Ordering::SeqCst);
    assert_eq!(inside.load(Ordering::SeqCst), 0, "a helper is at work after the end");
    assert_eq!(done.load(Ordering::SeqCst), PARTS);
}

/// One caller runs several jobs, and rouses the helpers before one of them. Then the crew ends.
fn rounds() {
    let crew = crew();
    run(&mut crew.turn().unwrap());
    crew.rouse(HELPERS);
    run(&mut crew.turn().unwrap());
    run(&mut crew.turn().unwrap());
}

/// A job that ends only when a helper has come, so a lost wake-up shows as a deadlock.
fn meeting() {
    let crew = crew();
    for _ in 0..2 {
        let others = AtomicU64::new(0);
        let caller = thread::current().id();
        crew.turn().unwrap().run(1, || {
            if thread::current().id() == caller {
                // The loop ends if a helper comes: the wait lets it run.
                for _ in 0..10_000 {
                    if others.load(Ordering::SeqCst) > 0 {
                        return;
                    }
                    thread::yield_now();
                }
                panic!("no helper has come");
            }
            others.fetch_add(1, Ordering::SeqCst);
        });
    }
}

/// Three callers want the crew again and again. Those that do not get it would work alone.
fn callers() {
    let crew = Arc::new(crew());
    let threads = [0, 1, 2].map(|_| {
        let crew = Arc::clone(&crew);
        thread::spawn(move || {
            for _ in 0..2 {
                if let Some(mut turn) = crew.turn() {
                    run(&mut turn);
                }
            }
        })
    });
    join(threads);
}

#[test]
fn every_round_does_its_parts_and_ends_alone() {
    explore("crew: rounds", rounds);
}

#[test]
fn a_published_job_reaches_a_helper() {
    explore("crew: meeting", meeting);
}

#[test]
fn callers_do_not_share_a_crew() {
    explore("crew: callers", callers);
}

#[test]
fn planted_a_crew_that_callers_share_is_found() {
    finds(Planted::CrewShared, callers);
}

#[test]
fn planted_an_entry_after_the_end_is_found() {
    finds(Planted::EnterClosed, rounds);
}

#[test]
fn planted_a_sleep_without_a_look_is_found() {
    finds(Planted::SleepUnchecked, meeting);
}

#[test]
fn planted_a_caller_that_is_not_woken_is_found() {
    finds(Planted::LeftUntold, rounds);
}
