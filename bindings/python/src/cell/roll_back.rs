//! Going back to a checkpoint with the bank's Python objects alive.
//!
//! The store is closed, its newer checkpoints are removed, and it is opened again in the same cell.
//! Tables and vocabularies keep their objects, for models refer to them; leases, prefetches, scans
//! and pipelines end, for they are of rows that are gone.

use embank::{Bank, BankOptions, Error, Table, TableConfig, Vocabulary};
use pyo3::prelude::*;

use super::bank_cell::{BankCell, InFlight, detached};
use super::handles::{CellTableId, OpenHandles, VocabularyId};
use crate::errors;

/// A table whose objects go on.
struct KeptTable {
    id: CellTableId,
    name: String,
    config: TableConfig,
}

/// A vocabulary whose objects go on.
struct KeptVocabulary {
    id: VocabularyId,
    name: String,
}

/// What the objects that go on stand for.
struct Kept {
    tables: Vec<KeptTable>,
    vocabularies: Vec<KeptVocabulary>,
}

impl Kept {
    fn of(open: &OpenHandles) -> Self {
        // Another table of the name and number is not the object's.
        let tables = open.tables.iter().filter(|(_, table)| table.has_its_number());
        let kept_table = |(&id, table): (&CellTableId, &Table)| KeptTable {
            id,
            name: table.name().to_owned(),
            config: table.config(),
        };
        let kept_vocabulary = |(&id, vocabulary): (&VocabularyId, &Vocabulary)| KeptVocabulary {
            id,
            name: vocabulary.name().to_owned(),
        };
        Self {
            tables: tables.map(kept_table).collect(),
            vocabularies: open.vocabularies.iter().map(kept_vocabulary).collect(),
        }
    }

    /// Gives the objects their handles in `open`. Those that the checkpoint does not have stay
    /// without one.
    fn open_in(self, open: &mut OpenHandles) {
        for KeptTable { id, name, config } in self.tables {
            // Not by `Bank::table` at once: that would make a table that is not there.
            let is_there = |of: Table| of.number() == id.id.number();
            let there = open.bank.open_table_unchecked(&name).is_ok_and(is_there);
            if !there {
                continue;
            }
            // A table that was opened unchecked stays so.
            let checked = open.bank.table(&name, config);
            let table = checked.or_else(|_| open.bank.open_table_unchecked(&name));
            if let Ok(table) = table {
                open.tables.insert(id, table);
            }
        }
        for KeptVocabulary { id, name } in self.vocabularies {
            if let Ok(vocabulary) = open.bank.open_vocabulary(&name) {
                open.vocabularies.insert(id, vocabulary);
            }
        }
    }
}

impl BankCell {
    /// Takes the bank back to `checkpoint`; returns the numbers of the checkpoints that are gone.
    /// `options` are those that it was opened with. A number of no checkpoint changes nothing.
    /// After another error the bank is open at its newest checkpoint, unless it can't be opened.
    ///
    /// # Errors
    /// As `Bank::roll_back` and `Bank::open`; the bank is closed; a call of this thread on the bank
    /// is under way.
    pub(crate) fn roll_back(
        &self,
        py: Python<'_>,
        options: &BankOptions,
        checkpoint: u64,
    ) -> PyResult<Vec<u64>> {
        if self.is_closed()? {
            return Err(errors::bank_closed());
        }
        self.check_closable()?;
        let mut outcome = Ok(Vec::new());
        detached(|| outcome = self.roll_back_detached(options, checkpoint));
        outcome.map_err(|error| errors::to_python(py, &error))
    }

    fn roll_back_detached(
        &self,
        options: &BankOptions,
        checkpoint: u64,
    ) -> embank::Result<Vec<u64>> {
        // Before anything is closed: a wrong number must lose nothing.
        let there: Vec<u64> =
            Bank::checkpoints(self.path())?.into_iter().map(|of| of.number).collect();
        if !there.contains(&checkpoint) {
            let path = self.path().to_owned();
            return Err(Error::NoSuchCheckpoint { path, number: Some(checkpoint), kept: there });
        }
        let Some(open) = self.take_open() else {
            let closed = "the bank is closed, or another thread takes it back to a checkpoint";
            return Err(Error::InvalidArgument(closed.to_owned()));
        };
        let reopening = InFlight::of(self);
        let kept = Kept::of(&open);
        let roll_backs = open.roll_backs + 1;
        open.close_dependents();
        open.end(|| self.wait_until_in_flight(1));
        let gone = Bank::roll_back(self.path(), checkpoint);
        // Also after an error: the bank is at its newest checkpoint then.
        let reopened = Bank::open(self.path(), options.clone()).map(|bank| {
            let mut open = OpenHandles::new(bank, roll_backs);
            kept.open_in(&mut open);
            // Closed meanwhile: they are dropped as by `close`.
            drop(self.put_open(open));
        });
        drop(reopening);
        let gone = gone?;
        reopened?;
        Ok(gone)
    }
}
