//! Batches that are cut among the threads of a bank (`pool`).
//!
//! An operation that can be cut is divided into operations on neighbouring places. Each part has a
//! place of its own for what it finds; afterwards the operation takes that in, in the order of the
//! parts.

use std::ops::Range;

use embank_kv::{Clock, Operation, Outcome};

use crate::error::Result;
use crate::table::Table;

/// An operation whose batch can be cut.
pub(crate) trait Divisible: Operation {
    /// The operation on some of the places.
    type Part<'p>: Operation + Send
    where
        Self: 'p;
    /// What a part leaves behind.
    type Found: Send;

    /// The operations on `ranges` of places, which cover all of them in their order. Each begins at
    /// a multiple of 64. A part that has begun completes although the disk lacks room, if the
    /// operation must not be done in halves.
    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<Self::Part<'_>>;

    /// What is left of a part that has run.
    fn found(part: Self::Part<'_>) -> Self::Found;

    /// Takes in what the part from place `start` on has found.
    fn take_in(&mut self, start: usize, found: Self::Found);
}

/// A part on its way.
struct Running<'k, P> {
    keys: &'k [u64],
    part: P,
    executed: Option<Result<Outcome>>,
}

impl Table {
    /// As [`execute`](Self::execute), on all threads of the bank if the batch is large. If a part
    /// fails, the others go on to their end; the error is that of the first part that has one.
    pub(crate) fn execute_in_parts<O: Divisible>(
        &self,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        let context = self.context();
        // A part that waits for room waits in a thread that the program's check does not interrupt.
        // So the batch is not cut if writers have to wait now.
        let turn = context.pool.turn(keys.len()).filter(|_| !context.store.may_await_space());
        let Some(turn) = turn else { return self.execute(keys, clock, operation) };
        let ranges = turn.ranges(keys.len());
        let parts = operation.divide(&ranges);
        let mut running: Vec<_> = parts
            .into_iter()
            .zip(&ranges)
            .map(|(part, range)| Running { keys: &keys[range.clone()], part, executed: None })
            .collect();
        let state = context.store.call_state();
        turn.run(&mut running, |running| {
            let executed = self.execute_in(&state, running.keys, clock, &mut running.part);
            running.executed = Some(executed);
        });
        let done: Vec<_> =
            running.into_iter().map(|running| (running.executed, O::found(running.part))).collect();
        let mut whole = Ok(Outcome::default());
        for ((executed, found), range) in done.into_iter().zip(&ranges) {
            operation.take_in(range.start, found);
            let executed = executed.expect("each part has run");
            whole = match (whole, executed) {
                (Ok(whole), Ok(part)) => Ok(joined(whole, part, range.start as u32)),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        whole
    }
}

/// The outcome of the parts before the one from place `start` on, and of that one.
fn joined(mut whole: Outcome, part: Outcome, start: u32) -> Outcome {
    whole.missing.extend(part.missing.iter().map(|place| start + place));
    whole.blocked.extend(part.blocked.iter().map(|place| start + place));
    whole.disk_reads += part.disk_reads;
    whole
}
