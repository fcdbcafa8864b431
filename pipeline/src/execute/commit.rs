//! What happens to a chunk when all before it are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use embank::locks::Mutex;
use embank::{Error as BankError, Values as VocabularyValues};

use super::worker::Shared;
use super::{BadRows, Consumer};
use crate::batch::{Batch, Values};
use crate::decode::{BLOCK_ROWS, BadList, BadRow, Fault, REPORTED_BAD_ROWS};
use crate::error::{BadRowReport, Error, Result};
use crate::input::{Claim, shown};
use crate::operators::{LookUp, Shown};
use crate::trace::{Stage, Stopwatch};
use crate::vocabulary::{
    DirectTable, Growing, Ids, Pending, RunNumbering, Unknown, Unseen, check_id,
};

/// Slots that are brought into the cache together: more than the processor has misses under way, few enough to stay.
const TOUCHED: usize = 64;

/// Rows before which the share of bad ones says nothing.
const ROWS_BEFORE_SHARE: u64 = 10_000;

/// What a thread has made of a chunk.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) batch: Batch,
    /// For each look-up of the plan, in the order of the rows.
    pub(super) pending: Vec<Vec<Pending>>,
    /// The same where values are looked up in a bank.
    pub(super) unknown: Vec<Unknown>,
    pub(super) bad: BadList,
    pub(super) lines: usize,
    /// Room for look-ups to work in.
    pub(super) found: Box<[u32; BLOCK_ROWS]>,
}

impl Work {
    pub(super) fn new(shared: &Shared<'_, '_>) -> Self {
        let batch = Batch::new(Arc::clone(shared.infos));
        let pending = vec![Vec::new(); shared.plan.look_ups.len()];
        let unknown = shared.plan.look_ups.iter().map(|_| Unknown::default()).collect();
        let found = Box::new([0; BLOCK_ROWS]);
        Self { batch, pending, unknown, bad: BadList::default(), lines: 0, found }
    }

    pub(super) fn clear(&mut self) {
        self.pending.iter_mut().for_each(Vec::clear);
        self.unknown.iter_mut().for_each(Unknown::clear);
        self.bad.clear();
        self.lines = 0;
    }
}

/// What a run does besides.
pub(super) struct How {
    /// Whether a bank has all values of a batch before the consumer has it.
    pub(super) saves: bool,
    /// Whether new values get ids.
    pub(super) learns: bool,
    pub(super) trace: bool,
    /// Ends it when it is true.
    pub(super) stop: Arc<AtomicBool>,
}

/// What only the thread has that commits.
pub(super) struct Committer<'a> {
    /// Locked while a chunk's values are numbered, and not while the consumer has the batch: evaluations wait for it.
    growing: &'a Mutex<Vec<Growing>>,
    policy: BadRows,
    /// The share of bad rows that are left out at most.
    bad_rows_max: f64,
    /// None where nothing comes out.
    consumer: Option<&'a mut dyn Consumer>,
    saves: bool,
    learns: bool,
    stop: Arc<AtomicBool>,
    pub(super) rows: u64,
    pub(super) bad_rows: u64,
    /// Lines that those span.
    pub(super) bad_lines: u64,
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
        growing: &'a Mutex<Vec<Growing>>,
        (policy, bad_rows_max): (BadRows, f64),
        consumer: Option<&'a mut dyn Consumer>,
        how: How,
    ) -> Self {
        let How { saves, learns, trace, stop } = how;
        Self {
            growing,
            policy,
            bad_rows_max,
            consumer,
            saves,
            learns,
            stop,
            rows: 0,
            bad_rows: 0,
            bad_lines: 0,
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
        claim: &Claim<'_>,
        outcome: Result<Work>,
    ) -> bool {
        self.stopwatch.start();
        self.come_to(claim.input);
        let committed = outcome.and_then(|mut work| {
            self.commit_work(shared, claim, &mut work)?;
            // A consumer may have left another batch in the place of ours.
            if !Arc::ptr_eq(&work.batch.infos, shared.infos) {
                work.batch = Batch::new(Arc::clone(shared.infos));
            }
            shared.pool.lock().push(work);
            Ok(())
        });
        match committed {
            Ok(()) => true,
            Err(mut error) => {
                if let Error::LineTooLong { line, .. } = &mut error {
                    // Who found it knows the chunk's own lines.
                    *line += self.input.1;
                }
                self.failure = Some(error);
                false
            }
        }
    }

    fn come_to(&mut self, input: usize) {
        if self.input.0 != input {
            self.input = (input, 0);
        }
    }

    fn commit_work(
        &mut self,
        shared: &Shared<'_, '_>,
        claim: &Claim<'_>,
        work: &mut Work,
    ) -> Result<()> {
        // Relaxed: it is only to be seen some time.
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        for bad in work.bad.first() {
            let report = || {
                let name = shared.chunks.name(claim.input);
                report(bad, name, self.input.1, &claim.plan.field_names)
            };
            match self.policy {
                BadRows::Fail => return Err(Error::BadRow(report())),
                BadRows::Skip if self.reported.len() < REPORTED_BAD_ROWS => {
                    self.reported.push(report());
                }
                BadRows::Skip => break,
            }
        }
        self.bad_rows += work.bad.count() as u64;
        self.bad_lines += work.bad.lines() as u64;
        self.check_share(work.batch.rows as u64)?;
        self.input.1 += work.lines as u64;
        self.number(shared, claim, work)?;
        if self.saves {
            self.growing.lock().iter_mut().try_for_each(Growing::save)?;
        } else if self.learns {
            self.growing.lock().iter().for_each(Growing::give_out);
        }
        self.stopwatch.lap(Stage::Number);
        let batch = &mut work.batch;
        batch.first_row = self.rows;
        batch.input_bytes = claim.input_bytes;
        self.rows += batch.rows as u64;
        if let Some(consumer) = self.consumer.as_mut().filter(|_| batch.rows > 0) {
            consumer.consume(batch).map_err(Error::Consumer)?;
            self.stopwatch.lap(Stage::Consume);
        }
        Ok(())
    }

    /// Ends a run that leaves out too much, `rows` more being good.
    fn check_share(&self, rows: u64) -> Result<()> {
        let lines = self.rows + rows + self.bad_lines;
        let most = self.bad_rows_max * lines as f64;
        if self.policy == BadRows::Fail
            || lines < ROWS_BEFORE_SHARE
            || self.bad_lines as f64 <= most
        {
            return Ok(());
        }
        let (bad_lines, limit, first) = (self.bad_lines, self.bad_rows_max, self.reported.clone());
        Err(Error::TooManyBadRows { bad_lines, lines, limit, first })
    }

    /// Gives ids to the values that had none, and writes them where they show.
    fn number(
        &mut self,
        shared: &Shared<'_, '_>,
        claim: &Claim<'_>,
        work: &mut Work,
    ) -> Result<()> {
        let rows_before = self.rows;
        let met =
            |row: u32| (shared.chunks.name(claim.input).to_owned(), rows_before + u64::from(row));
        let look_ups = &shared.plan.look_ups;
        let mut growing = self.growing.lock();
        for (vocabulary, numbering) in shared.numberings.iter().enumerate() {
            let mine = look_ups.iter().enumerate().filter(|(_, l)| l.vocabulary == vocabulary);
            let mine: Vec<(usize, &LookUp)> = mine.collect();
            let growing = &mut growing[vocabulary];
            let name = &shared.plan.vocabularies[vocabulary].name;
            numbering.check_numbering(name, growing)?;
            let how = OneVocabulary { numbering, generates: shared.generates, name };
            match &numbering.ids {
                Ids::Direct { table, .. } => {
                    number_directly(table, growing, &how, &met, &mine, work)?;
                }
                Ids::Bank { vocabulary, .. } => {
                    number_in_bank(vocabulary, &how, &met, &mine, work)?;
                }
            }
        }
        Ok(())
    }
}

/// How the values of one vocabulary are numbered.
struct OneVocabulary<'a> {
    numbering: &'a RunNumbering,
    generates: bool,
    name: &'a str,
}

fn number_directly(
    table: &DirectTable,
    growing: &mut Growing,
    how: &OneVocabulary<'_>,
    met: &impl Fn(u32) -> (String, u64),
    look_ups: &[(usize, &LookUp)],
    work: &mut Work,
) -> Result<()> {
    let Work { batch, pending, .. } = work;
    let mut number = |look_up: &LookUp, pending: &Pending| {
        let refused = |frozen| {
            let value = pending.value.to_string();
            unknown_value(how.name, look_up, value, met(pending.row), frozen)
        };
        let id = match how.numbering.unseen {
            Unseen::Number => {
                let id = growing.number(table, pending.value, || refused(true))?;
                u64::from(id)
            }
            Unseen::Id(id) => id,
            Unseen::Refuse => return Err(refused(growing.is_frozen())),
        };
        if !how.generates {
            show(batch, &look_up.shown, pending.row, id);
        }
        Ok(())
    };
    if let &[(place, look_up)] = look_ups {
        for some in pending[place].chunks(TOUCHED) {
            table.touch(some);
            for pending in some {
                number(look_up, pending)?;
            }
        }
        return Ok(());
    }
    // Columns that share a vocabulary: the first appearance is in the first row, in its first such column.
    let mut all: Vec<(Pending, usize)> = Vec::new();
    for (number, &(place, _)) in look_ups.iter().enumerate() {
        all.extend(pending[place].iter().map(|&pending| (pending, number)));
    }
    all.sort_by_key(|&(pending, number)| (pending.row, number));
    all.iter().try_for_each(|(pending, of)| number(look_ups[*of].1, pending))
}

fn number_in_bank(
    vocabulary: &embank::Vocabulary,
    how: &OneVocabulary<'_>,
    met: &impl Fn(u32) -> (String, u64),
    look_ups: &[(usize, &LookUp)],
    work: &mut Work,
) -> Result<()> {
    let Work { batch, unknown, .. } = work;
    // In the order of the rows, within a row in that of the columns.
    let mut order: Vec<(u32, usize, usize)> = Vec::new();
    for (number, &(place, _)) in look_ups.iter().enumerate() {
        let rows = unknown[place].rows.iter().enumerate();
        order.extend(rows.map(|(at, &row)| (row, number, at)));
    }
    if order.is_empty() {
        return Ok(());
    }
    let mut ids = vec![0; order.len()];
    let mut all = Unknown::default();
    let values = if let &[(place, _)] = look_ups {
        unknown[place].values()
    } else {
        order.sort_unstable();
        for &(_, number, at) in &order {
            all.push_of(&unknown[look_ups[number].0], at);
        }
        all.values()
    };
    let refused = |place: usize, value: String, frozen: bool| {
        let (row, number, _) = order[place];
        unknown_value(how.name, look_ups[number].1, value, met(row), frozen)
    };
    if how.numbering.unseen != Unseen::Number {
        // Only what is refused is on the list.
        return Err(refused(0, values.show(0), vocabulary.is_frozen()));
    }
    match vocabulary.ids_or_insert(values, &mut ids) {
        Ok(_) => {}
        Err(BankError::UnknownValue { value, position, .. }) => {
            return Err(refused(position, value, true));
        }
        Err(error) => {
            return Err(in_terms_of_the_rows(error, values, |place| met(order[place].0)));
        }
    }
    if how.numbering.counts {
        vocabulary.count(&ids)?;
    }
    if how.generates {
        return Ok(());
    }
    for (&(row, number, _), &id) in order.iter().zip(&ids) {
        let look_up = look_ups[number].1;
        check_id(vocabulary, look_up, Some(id))?;
        show(batch, &look_up.shown, row, id);
    }
    Ok(())
}

#[cold]
fn unknown_value(
    name: &str,
    look_up: &LookUp,
    value: String,
    (input, row): (String, u64),
    frozen: bool,
) -> Error {
    let (name, column) = (name.to_owned(), look_up.column.clone());
    Error::UnknownValue { name, column, value, input, row, frozen }
}

/// A vocabulary's error about a value of a batch, as one about the value's row. `met` tells by the value's place in the
/// batch where that is.
#[cold]
fn in_terms_of_the_rows(
    error: BankError,
    values: VocabularyValues<'_>,
    met: impl Fn(usize) -> (String, u64),
) -> Error {
    match error {
        BankError::ValueTooLong { vocabulary, value, found, longest } => {
            let VocabularyValues::Bytes(strings) = values else {
                unreachable!("numbers have one length")
            };
            // The one that it was about: those that are known are short enough.
            let place = strings.iter().position(|string| string.len() > longest as usize);
            let (input, row) = met(place.unwrap_or(0));
            Error::ValueTooLong { name: vocabulary, value, found, longest, input, row }
        }
        other => other.into(),
    }
}

/// Writes an id into the matrices that show it.
#[inline]
fn show(batch: &mut Batch, shown: &[Shown], row: u32, id: u64) {
    for &Shown { output, column } in shown {
        let at = row as usize * batch.infos[output].columns.len() + column;
        match &mut batch.matrices[output] {
            Values::Words(values) => values[at] = id as u32,
            Values::Wides(values) => values[at] = id,
        }
    }
}

#[cold]
fn report(bad: &BadRow, input: &str, lines_before: u64, fields: &[String]) -> BadRowReport {
    let (column, what) = match &bad.fault {
        Fault::Fields { found, expected } => {
            (None, format!("has {found} fields, and the pipeline's rows have {expected}"))
        }
        #[cfg(feature = "parquet")]
        Fault::Value { field, why, snippet } => {
            (None, format!("field {:?}, {:?}, {why}", fields[*field], shown(snippet)))
        }
        Fault::Field { field, column, why, snippet } => {
            let value = shown(snippet);
            (Some(*column as u64 + 1), format!("field {:?}, {value:?}, {why}", fields[*field]))
        }
    };
    let line = lines_before + bad.line as u64 + 1;
    let lines = bad.lines as u64;
    BadRowReport { input: input.to_owned(), line, lines, column, what }
}
