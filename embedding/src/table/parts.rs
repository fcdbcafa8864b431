//! Divides a batch among the threads of a bank (`pool`).
//!
//! A divisible operation is split into operations on consecutive ranges of places. Each part
//! collects its findings separately. Afterwards the whole operation takes over the findings of all
//! parts, in the order of the parts.

use std::ops::Range;

use embank_kv::{Clock, Operation, Outcome, check_batch};

use crate::error::Result;
use crate::table::Table;

/// An operation that can be divided by places.
pub(crate) trait Divisible: Operation {
    /// The operation on one range of places.
    type Part<'p>: Operation + Send
    where
        Self: 'p;
    /// The findings of a part.
    type Found: Send;

    /// Divides the operation into one part per range. The ranges are consecutive and cover all
    /// places; each begins at a multiple of 64. If the operation must not stop halfway, each part
    /// completes even if the disk is full.
    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<Self::Part<'_>>;

    /// Returns the findings of a part that has run.
    fn found(part: Self::Part<'_>) -> Self::Found;

    /// Takes over the findings of the part that begins at place `start`.
    fn take_in(&mut self, start: usize, found: Self::Found);
}

/// A part that is executed, with its result.
struct Running<'k, P> {
    keys: &'k [u64],
    part: P,
    executed: Option<Result<Outcome>>,
}

impl Table {
    /// Executes like [`execute`](Self::execute), and divides a large batch among all threads of the
    /// bank. If a part fails, the other parts still complete. The call returns the error of the
    /// first part that failed.
    pub(crate) fn execute_in_parts<O: Divisible>(
        &self,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        // A part may have fewer keys than the limit although the batch has more.
        check_batch(keys.len())?;
        let context = self.context();
        // A batch may have to wait for disk space. A thread of the pool can't run the program's
        // check for interrupts during that wait. Therefore a batch is not divided while it may have
        // to wait for space.
        let turn = context.pool.turn(keys.len()).filter(|_| !context.store.may_await_space());
        let Some(mut turn) = turn else { return self.execute(keys, clock, operation) };
        let ranges = match context.store.has_rows_on_disk() {
            true => turn.long_ranges(keys.len()),
            false => turn.ranges(keys.len()),
        };
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

/// Joins the outcome of the earlier parts with the outcome of the part that begins at place
/// `start`.
fn joined(mut whole: Outcome, part: Outcome, start: u32) -> Outcome {
    whole.missing.extend(part.missing.iter().map(|place| start + place));
    whole.blocked.extend(part.blocked.iter().map(|place| start + place));
    whole.disk_reads += part.disk_reads;
    whole
}
