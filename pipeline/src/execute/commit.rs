//! What happens to a chunk when all before it are done.

use std::sync::Arc;

use super::worker::Shared;
use super::{BadRows, Consumer, REPORTED_BAD_ROWS};
use crate::batch::{Batch, Values};
use crate::decode::{BLOCK_ROWS, BadRow, Fault};
use crate::error::{BadRowReport, Error, Result};
use crate::input::{Claim, shown};
use crate::trace::{Stage, Stopwatch};
use crate::vocabulary::{Growing, Pending};

/// Slots that are brought into the cache together: more than the processor has misses under way, few enough to stay.
const TOUCHED: usize = 64;

/// What a thread has made of a chunk.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) batch: Batch,
    /// For each look-up of the plan, in the order of the rows.
    pub(super) pending: Vec<Vec<Pending>>,
    /// In the order of the lines, one a line.
    pub(super) bad: Vec<BadRow>,
    pub(super) lines: usize,
    /// Room for look-ups to work in.
    pub(super) found: Box<[u32; BLOCK_ROWS]>,
}

impl Work {
    pub(super) fn new(shared: &Shared<'_, '_>) -> Self {
        let batch = Batch::new(Arc::clone(shared.infos));
        let pending = vec![Vec::new(); shared.plan.look_ups.len()];
        Self { batch, pending, bad: Vec::new(), lines: 0, found: Box::new([0; BLOCK_ROWS]) }
    }

    pub(super) fn clear(&mut self) {
        self.pending.iter_mut().for_each(Vec::clear);
        self.bad.clear();
        self.lines = 0;
    }
}

/// What only the thread has that commits.
pub(super) struct Committer<'a> {
    growing: &'a mut [Growing],
    policy: BadRows,
    consumer: &'a mut dyn Consumer,
    pub(super) rows: u64,
    pub(super) bad_rows: u64,
    pub(super) reported: Vec<BadRowReport>,
    /// The input that the turn has come to, and its lines so far.
    input: (usize, u64),
    /// Its own stages, and in the end those of all threads.
    pub(super) stopwatch: Stopwatch,
    /// Why the run has ended before its time.
    pub(super) failure: Option<Error>,
}

impl<'a> Committer<'a> {
    pub(super) fn new(
        growing: &'a mut [Growing],
        policy: BadRows,
        consumer: &'a mut dyn Consumer,
        trace: bool,
    ) -> Self {
        Self {
            growing,
            policy,
            consumer,
            rows: 0,
            bad_rows: 0,
            reported: Vec::new(),
            input: (0, 0),
            stopwatch: Stopwatch::new(trace),
            failure: None,
        }
    }

    /// Commits a chunk, all before it being committed; false if the run must end.
    pub(super) fn commit(
        &mut self,
        shared: &Shared<'_, '_>,
        claim: &Claim,
        outcome: Result<Work>,
    ) -> bool {
        self.stopwatch.start();
        let committed = outcome.and_then(|mut work| {
            self.commit_work(shared, claim, &mut work)?;
            shared.pool.lock().push(work);
            Ok(())
        });
        match committed {
            Ok(()) => true,
            Err(error) => {
                self.failure = Some(error);
                false
            }
        }
    }

    fn commit_work(
        &mut self,
        shared: &Shared<'_, '_>,
        claim: &Claim,
        work: &mut Work,
    ) -> Result<()> {
        if self.input.0 != claim.input {
            self.input = (claim.input, 0);
        }
        for bad in &work.bad {
            let report = || {
                let name = shared.chunks.name(claim.input);
                report(bad, name, self.input.1, &shared.plan.field_names)
            };
            match self.policy {
                BadRows::Fail => return Err(Error::BadRow(report())),
                BadRows::Skip if self.reported.len() < REPORTED_BAD_ROWS => {
                    self.reported.push(report());
                }
                BadRows::Skip => {}
            }
            self.bad_rows += 1;
        }
        self.input.1 += work.lines as u64;
        self.number(shared, work);
        self.stopwatch.lap(Stage::Number);
        let batch = &mut work.batch;
        batch.first_row = self.rows;
        batch.input_bytes = claim.input_bytes;
        self.rows += batch.rows as u64;
        if batch.rows > 0 {
            self.consumer.consume(batch).map_err(Error::Consumer)?;
            self.stopwatch.lap(Stage::Consume);
        }
        Ok(())
    }

    /// Gives ids to the values that had none, and writes them where they show.
    fn number(&mut self, shared: &Shared<'_, '_>, work: &mut Work) {
        let look_ups = &shared.plan.look_ups;
        for vocabulary in 0..shared.tables.len() {
            let mine = || look_ups.iter().enumerate().filter(|(_, l)| l.vocabulary == vocabulary);
            let table = &shared.tables[vocabulary];
            let growing = &mut self.growing[vocabulary];
            if mine().count() == 1 {
                for (place, look_up) in mine() {
                    for some in work.pending[place].chunks(TOUCHED) {
                        table.touch(some);
                        for pending in some {
                            let id = table.id_or_insert(pending.value, growing);
                            show(&mut work.batch, &look_up.shown, pending.row, id);
                        }
                    }
                }
                continue;
            }
            // Columns that share a vocabulary: the first appearance is in the first row, in its first such column.
            let mut all: Vec<(Pending, usize)> = Vec::new();
            for (place, _) in mine() {
                all.extend(work.pending[place].iter().map(|&pending| (pending, place)));
            }
            all.sort_by_key(|&(pending, place)| (pending.row, place));
            for (pending, place) in all {
                let id = table.id_or_insert(pending.value, growing);
                show(&mut work.batch, &look_ups[place].shown, pending.row, id);
            }
        }
    }
}

/// Writes an id into the matrices that show it.
#[inline]
fn show(batch: &mut Batch, shown: &[(usize, usize)], row: u32, id: u32) {
    for &(output, column) in shown {
        let at = row as usize * batch.infos[output].columns.len() + column;
        match &mut batch.matrices[output] {
            Values::Words(values) => values[at] = id,
            Values::Wides(values) => values[at] = u64::from(id),
        }
    }
}

#[cold]
fn report(bad: &BadRow, input: &str, lines_before: u64, fields: &[String]) -> BadRowReport {
    let (column, what) = match &bad.fault {
        Fault::Fields { found, expected } => {
            (None, format!("has {found} fields, and the pipeline's rows have {expected}"))
        }
        Fault::Field { field, column, why, snippet } => {
            let value = shown(snippet);
            (Some(*column as u64 + 1), format!("field {:?}, {value:?}, {why}", fields[*field]))
        }
    };
    let line = lines_before + bad.line as u64 + 1;
    BadRowReport { input: input.to_owned(), line, column, what }
}
