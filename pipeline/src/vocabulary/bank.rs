//! Looks values up in a bank's vocabulary.

use embank::{ByteValues, UNKNOWN_ID, Values, Vocabulary};

use super::run::{BankIds, OnUnseen, RunNumbering};
use super::unseen::UnseenValues;

use crate::decode::{BLOCK_ROWS, Block, Slot};
use crate::error::{Error, Result};
use crate::operators::LookUp;

/// Buffers for look-ups in a bank, reused from block to block.
#[derive(Debug, Default)]
pub(crate) struct BankLookUp {
    ids: Vec<u64>,
    numbers: Vec<u64>,
    offsets: Vec<u32>,
    known: Vec<u64>,
}

impl BankLookUp {
    /// Looks up the values of a block. If a value has no id that this run knows, it gets
    /// `numbering`'s id for unknown values. Without such an id, the value goes into `unseen`, with
    /// a row that counts from `first_row`. If the run counts, also counts the values that have an
    /// id.
    pub(crate) fn run(
        &mut self,
        ids: &BankIds,
        numbering: &RunNumbering,
        look_up: &LookUp,
        block: &mut Block,
        first_row: u32,
        unseen: &mut UnseenValues,
    ) -> Result<()> {
        let vocabulary = &ids.vocabulary;
        let rows = block.rows;
        debug_assert!(rows <= BLOCK_ROWS, "a block's rows");
        self.ids.resize(rows, 0);
        if let Slot::Word(column) = look_up.from {
            self.numbers.clear();
            // Signed 32-bit numbers are extended with their sign. A number then is one value,
            // whether it has 32 or 64 bits.
            let signed = |word: u32| i64::from(word.cast_signed()).cast_unsigned();
            let words = block.word(column).iter();
            if look_up.signed {
                self.numbers.extend(words.map(|&word| signed(word)));
            } else {
                self.numbers.extend(words.map(|&word| u64::from(word)));
            }
        }
        let values = match look_up.from {
            Slot::Word(_) => Values::from(&self.numbers),
            Slot::Wide(column) => Values::from(block.wide(column)),
            Slot::Bytes(column) => {
                let column = &block.bytes[column];
                self.offsets.clear();
                self.offsets.push(0);
                self.offsets.extend_from_slice(&column.ends[..rows]);
                ByteValues::new(&self.offsets, &column.bytes)?.into()
            }
            Slot::Array(_) => unreachable!("a vocabulary has no arrays"),
        };
        vocabulary.ids(values, &mut self.ids)?;
        for (place, id) in self.ids.iter_mut().enumerate() {
            // A value without an id has `UNKNOWN_ID`, the largest `u64`, which is never below
            // `ids.limit`.
            if *id < ids.limit {
                continue;
            }
            if let OnUnseen::Id(unknown) = numbering.on_unseen {
                *id = unknown;
                continue;
            }
            *id = UNKNOWN_ID;
            unseen.push(first_row + place as u32, values, place);
        }
        if numbering.counts {
            self.known.clear();
            self.known.extend(self.ids.iter().filter(|&&id| id != UNKNOWN_ID));
            vocabulary.count(&self.known)?;
        }
        self.put_down(vocabulary, look_up, block)
    }

    /// Writes the ids into the block's columns. A value without an id becomes `UNKNOWN_ID`, which
    /// the commit of the chunk overwrites in the batch.
    fn put_down(&self, vocabulary: &Vocabulary, look_up: &LookUp, block: &mut Block) -> Result<()> {
        let known = self.ids.iter().filter(|&&id| id != UNKNOWN_ID);
        check_id(vocabulary, look_up, known.copied().max())?;
        let Slot::Wide(column) = look_up.ids else {
            unreachable!("ids of a bank have 64 bits");
        };
        block.wide_mut(column).copy_from_slice(&self.ids);
        if let Some(column) = look_up.narrow {
            for (word, &id) in block.word_mut(column).iter_mut().zip(&self.ids) {
                *word = id as u32;
            }
        }
        Ok(())
    }
}

/// Fails if the largest id does not fit in an output that shows it.
pub(crate) fn check_id(
    vocabulary: &Vocabulary,
    look_up: &LookUp,
    largest: Option<u64>,
) -> Result<()> {
    match largest {
        Some(id) if id > look_up.id_max => {
            Err(Error::IdTooLarge { name: vocabulary.name().to_owned(), id, limit: look_up.id_max })
        }
        _ => Ok(()),
    }
}
