//! Takes a bank back to a checkpoint while its Python objects are alive.
//!
//! The cell closes the store, removes the newer checkpoints, and opens the store again. Table and
//! vocabulary objects stay usable, because models refer to them. Leases, prefetches, scans and
//! pipelines end, because their rows may be gone.

use embank::{Bank, BankOptions, StoreError, Table, TableConfig, Vocabulary};
use pyo3::prelude::*;

use super::bank_cell::{BankCell, InFlight, detached};
use super::handles::{OpenHandles, TableHandle, VocabularyId};
use crate::errors;

/// A table whose Python objects stay usable.
struct KeptTable {
    id: TableHandle,
    number: u16,
    name: String,
    config: TableConfig,
}

/// A vocabulary whose Python objects stay usable.
struct KeptVocabulary {
    id: VocabularyId,
    name: String,
}

/// The tables and vocabularies whose Python objects stay usable.
struct Kept {
    tables: Vec<KeptTable>,
    vocabularies: Vec<KeptVocabulary>,
}

impl Kept {
    fn of(open: &OpenHandles) -> Self {
        // A table that was replaced is left out: the new table with its name and number is not the
        // table of the Python object.
        let tables = open.tables.iter().filter(|(_, table)| table.has_its_number());
        let kept_table = |(&id, table): (&TableHandle, &Table)| KeptTable {
            id,
            number: table.number(),
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

    /// Opens the tables and vocabularies and stores their handles in `open`. Objects of a table or
    /// vocabulary that the checkpoint does not have get no handle.
    fn open_in(self, open: &mut OpenHandles) {
        for KeptTable { id, number, name, config } in self.tables {
            // `Bank::table` would create a table that does not exist, so the existence is checked
            // first.
            let is_there = |of: Table| of.number() == number;
            let there = open.bank.open_table_unchecked(&name).is_ok_and(is_there);
            if !there {
                continue;
            }
            // A table that was opened without a check of its vocabulary is opened again without the
            // check.
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
    /// Takes the bank back to `checkpoint`, and returns the numbers of the removed checkpoints.
    /// `options` must be the options that the bank was opened with. If there is no such checkpoint,
    /// nothing changes. After any other error the bank is open at its newest checkpoint, unless it
    /// can't be opened.
    ///
    /// # Errors
    /// The errors of `Bank::roll_back` and `Bank::open`. Also fails if the bank is closed, or if
    /// this thread is inside a call on it.
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
        // The check comes before the bank is closed, so that a wrong number loses no change.
        let there: Vec<u64> =
            Bank::checkpoints(self.path())?.into_iter().map(|of| of.number).collect();
        if !there.contains(&checkpoint) {
            let path = self.path().to_owned();
            let number = Some(checkpoint);
            return Err(StoreError::NoSuchCheckpoint { path, number, kept: there }.into());
        }
        let Some(open) = self.take_open() else {
            let closed = "the bank is closed, or another thread takes it back to a checkpoint";
            return Err(StoreError::InvalidArgument(closed.to_owned()).into());
        };
        let reopening = InFlight::of(self);
        let kept = Kept::of(&open);
        let roll_backs = open.roll_backs + 1;
        open.close_dependents();
        open.end(|| self.wait_until_in_flight(1));
        let gone = Bank::roll_back(self.path(), checkpoint);
        // The bank is opened again also after an error, at its newest checkpoint.
        let reopened = Bank::open(self.path(), options.clone()).map(|bank| {
            let mut open = OpenHandles::new(bank, roll_backs);
            kept.open_in(&mut open);
            // If `close` ran in between, it found no handles to drop. The new handles are dropped
            // here instead.
            drop(self.put_open(open));
        });
        drop(reopening);
        let gone = gone?;
        reopened?;
        Ok(gone)
    }
}
