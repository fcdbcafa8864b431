//! Look-ups in a bank.

use embank::{ByteValues, UNKNOWN_ID, Values, Vocabulary};

use super::run::{BankIds, OnUnseen, RunNumbering};
use super::unseen::UnseenValues;

use crate::decode::{BLOCK_ROWS, Block, Slot};
use crate::error::{Error, Result};
use crate::operators::LookUp;

/// Room for look-ups in a bank to work in.
#[derive(Debug, Default)]
pub(crate) struct BankLookUp {
    ids: Vec<u64>,
    numbers: Vec<u64>,
    offsets: Vec<u32>,
    known: Vec<u64>,
}

impl BankLookUp {
    /// Looks up a block's values. Those that have no id for this run get the id that `numbering`
    /// has for them, or are put on the list, their rows counted from `first_row`. Counts those
    /// that have an id, if the run counts.
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
            // The same number in 32 and in 64 bits is one value.
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
        };
        vocabulary.ids(values, &mut self.ids)?;
        for (place, id) in self.ids.iter_mut().enumerate() {
            // `UNKNOWN_ID` is the largest number.
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

    /// Puts ids into the block's columns. Those that are not known yet are written over when they
    /// are.
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

/// Refuses ids that an output can't show.
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
