//! Values that are looked up in a bank, and those among them that it does not have yet.

use embank::{ByteBuffer, ByteValues, UNKNOWN_ID, Values, Vocabulary};

use crate::decode::{BLOCK_ROWS, Block, Slot};
use crate::error::{Error, Result};
use crate::operators::LookUp;
use crate::vocabulary::Unseen;

/// A chunk's values without an id, with the rows of the batch that have them, in their order.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    pub(crate) rows: Vec<u32>,
    numbers: Vec<u64>,
    strings: ByteBuffer,
}

impl Unknown {
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.numbers.clear();
        self.strings.clear();
    }

    /// The values; of one kind, so the other has none.
    pub(crate) fn values(&self) -> Values<'_> {
        if self.numbers.is_empty() {
            Values::from(&self.strings)
        } else {
            Values::from(&self.numbers)
        }
    }

    /// Appends a value of another list, for `row`.
    pub(crate) fn push_of(&mut self, other: &Self, place: usize) {
        self.rows.push(other.rows[place]);
        match other.values() {
            Values::U64(numbers) => self.numbers.push(numbers[place]),
            Values::Bytes(strings) => self.strings.push(strings.get(place)),
        }
    }
}

/// Room for look-ups in a bank to work in.
#[derive(Debug, Default)]
pub(crate) struct BankLookUp {
    ids: Vec<u64>,
    numbers: Vec<u64>,
    offsets: Vec<u32>,
    known: Vec<u64>,
}

impl BankLookUp {
    /// Looks up a block's values. Those that have no id below `limit` get that of `unseen`, or are put on the list, their
    /// rows counted from `first_row`. `counts`: counts those that have an id.
    pub(crate) fn run(
        &mut self,
        (vocabulary, limit): (&Vocabulary, u64),
        (unseen, counts): (Unseen, bool),
        look_up: &LookUp,
        block: &mut Block,
        first_row: u32,
        pending: &mut Unknown,
    ) -> Result<()> {
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
            if *id < limit {
                continue;
            }
            if let Unseen::Id(unknown) = unseen {
                *id = unknown;
                continue;
            }
            *id = UNKNOWN_ID;
            pending.rows.push(first_row + place as u32);
            match values {
                Values::U64(numbers) => pending.numbers.push(numbers[place]),
                Values::Bytes(strings) => pending.strings.push(strings.get(place)),
            }
        }
        if counts {
            self.known.clear();
            self.known.extend(self.ids.iter().filter(|&&id| id != UNKNOWN_ID));
            vocabulary.count(&self.known)?;
        }
        self.put_down(vocabulary, look_up, block)
    }

    /// Puts ids into the block's columns. Those that are not known yet are written over when they are.
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
            let (name, limit) = (vocabulary.name().to_owned(), look_up.id_max);
            Err(Error::IdTooLarge { name, id, limit })
        }
        _ => Ok(()),
    }
}
