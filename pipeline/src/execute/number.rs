//! Gives ids to the new values of a chunk when the chunk is committed.

use embank::locks::Mutex;
use embank::{Error as BankError, Values as VocabularyValues};

use super::work::Work;
use crate::batch::{Batch, Values};
use crate::error::{Error, Result};
use crate::operators::{LookUp, Shown};
use crate::plan::Plan;
use crate::vocabulary::{
    BankIds, DirectTable, MemoryNumbering, Numbering, OnUnseen, RunIds, RunNumbering, UnseenValues,
    UnseenWord, check_id,
};

/// Number of slots that are loaded into the cache together. It is larger than the number of cache
/// misses that the processor handles at a time, and small enough that the slots stay in the cache.
const TOUCHED: usize = 64;

/// The chunk that is being committed, with the plan and the vocabularies of its run.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) plan: &'a Plan,
    /// How this run sees each vocabulary.
    pub(super) numberings: &'a [RunNumbering],
    /// True if the run only gives ids and counts values, and makes no output.
    pub(super) generates: bool,
    /// The name of the chunk's input.
    pub(super) input: &'a str,
    /// Rows of the run before this chunk.
    pub(super) rows_before: u64,
}

/// Gives ids to the values that had none, and writes the ids into the batch.
///
/// # Errors
/// [`Error::UnknownValue`], [`Error::ValueTooLong`], [`Error::IdTooLarge`] and [`Error::Bank`]. In
/// an evaluation also [`Error::VocabularyRenumbered`].
pub(super) fn number(
    turn: Turn<'_>,
    numberings: &Mutex<Vec<Numbering>>,
    work: &mut Work,
) -> Result<()> {
    let plan = turn.plan;
    let mut numberings = numberings.lock();
    for (vocabulary, run) in turn.numberings.iter().enumerate() {
        let numbering = &mut numberings[vocabulary];
        let name = &plan.vocabularies[vocabulary].name;
        run.check_numbering(name, numbering)?;
        let all = plan.look_ups.iter().enumerate();
        let mine = all.filter(|(_, look_up)| look_up.vocabulary == vocabulary);
        let columns = mine.map(|(place, look_up)| NumberedColumn { place, look_up }).collect();
        let one = OneVocabulary { turn, run, name, columns };
        match (&run.ids, numbering.memory_mut()) {
            (RunIds::Direct { table, .. }, Some(memory)) => {
                one.number_in_memory(table, memory, work)?;
            }
            (RunIds::Bank(ids), None) => one.number_in_bank(ids, work)?,
            _ => unreachable!("a run looks up where the pipeline numbers"),
        }
    }
    Ok(())
}

/// Numbers the values of one vocabulary.
struct OneVocabulary<'a> {
    turn: Turn<'a>,
    run: &'a RunNumbering,
    name: &'a str,
    /// The columns that use this vocabulary.
    columns: Vec<NumberedColumn<'a>>,
}

#[derive(Clone, Copy)]
struct NumberedColumn<'a> {
    /// Index of the column's look-up in the plan's look-ups.
    place: usize,
    look_up: &'a LookUp,
}

/// A value without an id in one of the columns that share a vocabulary. The derived order compares
/// row, then column, then place in the list. Values get their ids in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Appearance {
    row: u32,
    /// Index in [`OneVocabulary::columns`].
    column: usize,
    /// Index in the column's list.
    at: usize,
}

impl OneVocabulary<'_> {
    fn number_in_memory(
        &self,
        table: &DirectTable,
        memory: &mut MemoryNumbering,
        work: &mut Work,
    ) -> Result<()> {
        let Work { batch, unseen, .. } = work;
        if let &[NumberedColumn { place, look_up }] = self.columns.as_slice() {
            for some in unseen[place].words().chunks(TOUCHED) {
                table.touch(some);
                for &word in some {
                    self.number_word(table, memory, look_up, word, batch)?;
                }
            }
            return Ok(());
        }
        // Several columns share the vocabulary. The values get ids row by row, and within a row in
        // the order of the columns.
        let mut all: Vec<Appearance> = Vec::new();
        for (column, &NumberedColumn { place, .. }) in self.columns.iter().enumerate() {
            let words = unseen[place].words().iter().enumerate();
            all.extend(words.map(|(at, word)| Appearance { row: word.row, column, at }));
        }
        all.sort_unstable();
        for Appearance { column, at, .. } in all {
            let NumberedColumn { place, look_up } = self.columns[column];
            let word = unseen[place].words()[at];
            self.number_word(table, memory, look_up, word, batch)?;
        }
        Ok(())
    }

    #[inline]
    fn number_word(
        &self,
        table: &DirectTable,
        memory: &mut MemoryNumbering,
        look_up: &LookUp,
        word: UnseenWord,
        batch: &mut Batch,
    ) -> Result<()> {
        let refused =
            |frozen| self.unknown_value(look_up, word.value.to_string(), word.row, frozen);
        let id = match self.run.on_unseen {
            OnUnseen::Number => u64::from(memory.number(table, word.value, || refused(true))?),
            OnUnseen::Id(id) => id,
            OnUnseen::Refuse => return Err(refused(memory.is_frozen())),
        };
        if !self.turn.generates {
            show(batch, &look_up.shown, word.row, id);
        }
        Ok(())
    }

    fn number_in_bank(&self, bank: &BankIds, work: &mut Work) -> Result<()> {
        let Work { batch, unseen, .. } = work;
        let mut order: Vec<Appearance> = Vec::new();
        for (column, &NumberedColumn { place, .. }) in self.columns.iter().enumerate() {
            let rows = unseen[place].values().rows.iter().enumerate();
            order.extend(rows.map(|(at, &row)| Appearance { row, column, at }));
        }
        if order.is_empty() {
            return Ok(());
        }
        let mut all = UnseenValues::default();
        let values = if let &[NumberedColumn { place, .. }] = self.columns.as_slice() {
            unseen[place].values().values()
        } else {
            order.sort_unstable();
            for &Appearance { column, at, .. } in &order {
                all.push_of(unseen[self.columns[column].place].values(), at);
            }
            all.values()
        };
        let ids = self.insert(bank, values, &order)?;
        if self.turn.generates {
            return Ok(());
        }
        for (&Appearance { row, column, .. }, &id) in order.iter().zip(&ids) {
            let look_up = self.columns[column].look_up;
            check_id(&bank.vocabulary, look_up, Some(id))?;
            show(batch, &look_up.shown, row, id);
        }
        Ok(())
    }

    /// Returns the bank's ids of `values`, which must be in the order of `order`. Inserts the
    /// values that the bank lacks.
    fn insert(
        &self,
        bank: &BankIds,
        values: VocabularyValues<'_>,
        order: &[Appearance],
    ) -> Result<Vec<u64>> {
        let refused = |place: usize, value: String, frozen: bool| {
            let Appearance { row, column, .. } = order[place];
            self.unknown_value(self.columns[column].look_up, value, row, frozen)
        };
        if self.run.on_unseen != OnUnseen::Number {
            // With `OnUnseen::Refuse`, the first of `values` ends the run. With `OnUnseen::Id`,
            // every value has an id, so this function is not called.
            return Err(refused(0, values.show(0), bank.vocabulary.is_frozen()));
        }
        let mut ids = vec![0; order.len()];
        match bank.vocabulary.ids_or_insert(values, &mut ids) {
            Ok(_) => {}
            Err(BankError::UnknownValue { value, position, .. }) => {
                return Err(refused(position, value, true));
            }
            Err(error) => return Err(self.in_terms_of_the_rows(error, values, order)),
        }
        if self.run.counts {
            bank.vocabulary.count(&ids)?;
        }
        Ok(ids)
    }

    #[cold]
    fn unknown_value(&self, look_up: &LookUp, value: String, row: u32, frozen: bool) -> Error {
        Error::UnknownValue {
            name: self.name.to_owned(),
            column: look_up.column.clone(),
            value,
            input: self.turn.input.to_owned(),
            row: self.turn.rows_before + u64::from(row),
            frozen,
        }
    }

    /// Turns a vocabulary's error about a value into an error about the value's row.
    #[cold]
    fn in_terms_of_the_rows(
        &self,
        error: BankError,
        values: VocabularyValues<'_>,
        order: &[Appearance],
    ) -> Error {
        match error {
            BankError::ValueTooLong { vocabulary, value, found, longest } => {
                let VocabularyValues::Bytes(strings) = values else {
                    unreachable!("numbers have one length")
                };
                // Finds the value of the error: the first value that is too long. All values that
                // the vocabulary has are short enough, so this value is a new one.
                let place = strings.iter().position(|string| string.len() > longest as usize);
                let row = order[place.unwrap_or(0)].row;
                Error::ValueTooLong {
                    name: vocabulary,
                    value,
                    found,
                    longest,
                    input: self.turn.input.to_owned(),
                    row: self.turn.rows_before + u64::from(row),
                }
            }
            other => other.into(),
        }
    }
}

/// Writes an id into the matrices that show it.
#[inline]
fn show(batch: &mut Batch, shown: &[Shown], row: u32, id: u64) {
    for &Shown { output, column } in shown {
        let at = row as usize * batch.infos[output].row_values() + column;
        match &mut *batch.matrices[output] {
            Values::Words(values) => values[at] = id as u32,
            Values::Wides(values) => values[at] = id,
            Values::Bytes(_) => unreachable!("arrays are no ids"),
        }
    }
}
