//! The values of a chunk on their way through a decoder.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::Values;

/// Values of a column, with room for their arrays and an outcome for each.
///
/// A run makes a unit of the rows of a chunk and [submits](super::DecodeChannel::submit) it. The
/// decoder writes the array of each [waiting](Self::waiting) row and calls [`finish`](Self::finish)
/// or [`fail`](Self::fail) for it. Then it gives the unit back
/// ([`drain`](super::DecodeChannel::drain)). The run uses the memory of a unit again.
///
/// # Examples
/// See [`Decoder`](super::Decoder).
#[derive(Debug)]
pub struct DecodeUnit {
    /// The number of this use of the unit. No other use of a unit in this process has it.
    ticket: u64,
    values: Vec<u8>,
    /// For each value, the place after its last byte.
    ends: Vec<usize>,
    room: Values,
    /// Bytes of an array.
    array_bytes: usize,
    outcomes: Vec<Outcome>,
}

/// What has become of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The decoder has not said anything of the row.
    Waiting,
    Finished,
    /// The row is bad. The text follows the field's name.
    Failed(String),
}

impl DecodeUnit {
    /// Makes a unit without rows and without room.
    pub(crate) fn new() -> Self {
        Self {
            ticket: 0,
            values: Vec::new(),
            ends: Vec::new(),
            room: Values::Bytes(Vec::new()),
            array_bytes: 0,
            outcomes: Vec::new(),
        }
    }

    /// Drops the rows of the use before, and takes `room` for arrays of `array_bytes` bytes.
    pub(crate) fn begin(&mut self, room: Values, array_bytes: usize) {
        static TICKETS: AtomicU64 = AtomicU64::new(1);
        // Relaxed: the numbers must differ, and order no other memory.
        self.ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        self.values.clear();
        self.ends.clear();
        self.outcomes.clear();
        self.room = room;
        self.array_bytes = array_bytes;
    }

    /// Appends a row whose value waits for the decoder.
    pub(crate) fn push(&mut self, value: &[u8]) {
        self.values.extend_from_slice(value);
        self.ends.push(self.values.len());
        self.outcomes.push(Outcome::Waiting);
    }

    /// The room for the array of the row that is appended next.
    pub(crate) fn next_array(&mut self) -> &mut [u8] {
        let row = self.rows();
        &mut self.room.bytes_mut()[row * self.array_bytes..][..self.array_bytes]
    }

    /// Appends a row whose array is complete.
    pub(crate) fn push_finished(&mut self) {
        self.ends.push(self.values.len());
        self.outcomes.push(Outcome::Finished);
    }

    /// The array of a row.
    pub(crate) fn array(&mut self, row: usize) -> &[u8] {
        &self.room.bytes_mut()[row * self.array_bytes..][..self.array_bytes]
    }

    /// Appends a row without a value, which is bad. The text follows the field's name.
    pub(crate) fn push_failed(&mut self, why: String) {
        self.ends.push(self.values.len());
        self.outcomes.push(Outcome::Failed(why));
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Bytes of all values.
    pub(crate) fn value_bytes(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn outcome(&self, row: usize) -> &Outcome {
        &self.outcomes[row]
    }

    /// Takes the room with the arrays out.
    pub(crate) fn take_room(&mut self) -> Values {
        self.room.take()
    }

    /// Moves the array of row `from` to row `to`.
    pub(crate) fn move_array(&mut self, from: usize, to: usize) {
        let bytes = self.array_bytes;
        self.room.bytes_mut().copy_within(from * bytes..(from + 1) * bytes, to * bytes);
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.ends.len()
    }

    /// The rows that wait for the decoder, in ascending order. A row does not wait if its file
    /// could not be read, or if a cache has its array.
    pub fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.rows()).filter(|&row| self.is_waiting(row))
    }

    /// True if the row waits for the decoder.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn is_waiting(&self, row: usize) -> bool {
        self.outcomes[row] == Outcome::Waiting
    }

    /// The bytes to decode of a row. A missing value has none.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn value(&self, row: usize) -> &[u8] {
        let begin = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.values[begin..self.ends[row]]
    }

    /// The bytes to decode of a row, and the array to write, in the machine's byte order. What the
    /// array has before is not defined.
    ///
    /// # Panics
    /// If the row does not [wait](Self::is_waiting).
    #[must_use]
    pub fn value_and_array(&mut self, row: usize) -> (&[u8], &mut [u8]) {
        assert!(self.is_waiting(row), "row {row} does not wait for a decoder");
        let begin = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        let value = &self.values[begin..self.ends[row]];
        (value, &mut self.room.bytes_mut()[row * self.array_bytes..][..self.array_bytes])
    }

    /// All values one after the other, for each the place after its last byte, and all arrays one
    /// after the other. For devices that take a unit as a whole. The array of a row that does not
    /// [wait](Self::is_waiting) must keep its values.
    #[must_use]
    pub fn parts_mut(&mut self) -> (&[u8], &[usize], &mut [u8]) {
        let bytes = self.ends.len() * self.array_bytes;
        (&self.values, &self.ends, &mut self.room.bytes_mut()[..bytes])
    }

    /// Says that the row's array is complete. Does nothing if the row does not wait.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn finish(&mut self, row: usize) {
        if self.is_waiting(row) {
            self.outcomes[row] = Outcome::Finished;
        }
    }

    /// Says that the row's value can't be decoded, which makes the row bad. `why` follows the
    /// field's name in reports, such as `is no picture`. Does nothing if the row does not wait.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn fail(&mut self, row: usize, why: impl Into<String>) {
        if self.is_waiting(row) {
            self.outcomes[row] = Outcome::Failed(why.into());
        }
    }
}
