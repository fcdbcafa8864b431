//! The state that all handles of a vocabulary share, and access to its tables.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use embank_kv::locks::{Mutex, RwLock};
use embank_kv::{Clock, Store, TableId};

use super::descriptor::{Founding, HEADER_BYTES, Header};
use super::numbering::{Numbering, Tip};
use super::rows::{PeekFixed, PutFixed};
use crate::error::Result;
use crate::row::numbering::VocabularyIdentity;

/// The state that all handles of a vocabulary share.
#[derive(Debug)]
pub(crate) struct VocabularyShared {
    pub(crate) name: String,
    pub(crate) founding: Founding,
    /// The table with the header.
    pub(crate) header: TableId,
    /// The tables in use. Every call locks this for reading while it uses the tables. A renumbering
    /// locks it for writing, after it has locked `writer`. A refresh of a read-only bank also locks
    /// it for writing.
    pub(crate) numbering: RwLock<Numbering>,
    /// The number of values with ids. Changes only while `writer` is held. The values at the places
    /// below `len` stay the same until a renumbering.
    len: AtomicU64,
    /// The number of values whose ids callers know: values with ids, and values announced by
    /// [`Vocabulary::give_out`](crate::Vocabulary::give_out). Tables accept the ids of these values
    /// as keys.
    pub(crate) given_out: AtomicU64,
    frozen: AtomicBool,
    /// A thread holds this lock while it inserts or renumbers values.
    pub(crate) writer: Mutex<Writer>,
    /// A copy of the header's facts about the values, for threads that must not wait for the
    /// writer. A thread holds this lock only while it reads or changes the copy.
    published: Mutex<Published>,
    /// A call locks this for reading while it adds counts. A renumbering locks it for writing while
    /// it moves the counts.
    pub(crate) counting: RwLock<()>,
}

/// The values that a vocabulary has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    pub(crate) len: u64,
    pub(crate) fingerprint: u64,
    pub(crate) numbering: u64,
}

impl Published {
    fn of(header: &Header) -> Self {
        Self { len: header.len, fingerprint: header.fingerprint, numbering: header.numbering }
    }
}

/// The state that an insertion starts from.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The header as the bank stores it.
    pub(crate) header: Header,
    /// The end of the numbering, where the next value goes. `None` while rows may lie beyond the
    /// length: after an open and after a failed insertion.
    pub(crate) tip: Option<Tip>,
}

impl VocabularyShared {
    pub(crate) fn new(
        name: &str,
        founding: Founding,
        table: TableId,
        header: Header,
        numbering: Numbering,
        tip: Option<Tip>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            founding,
            header: table,
            numbering: RwLock::new(numbering),
            len: AtomicU64::new(header.len),
            given_out: AtomicU64::new(header.len),
            frozen: AtomicBool::new(header.frozen),
            writer: Mutex::new(Writer { header, tip }),
            published: Mutex::new(Published::of(&header)),
            counting: RwLock::new(()),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        // Acquire: pairs with the Release of `publish`. A thread that sees the length finds the
        // values below it.
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        // Relaxed: the flag publishes no other data. An insertion checks the header under the lock.
        self.frozen.load(Ordering::Relaxed)
    }

    pub(crate) fn identity(&self) -> VocabularyIdentity {
        let numbering = self.numbering.read().number;
        VocabularyIdentity { id: self.founding.identity, generation: numbering }
    }

    /// Returns the number of the numbering in use, and the length of this numbering.
    pub(crate) fn numbering_and_len(&self) -> (u64, u64) {
        let numbering = self.numbering.read();
        (numbering.number, self.len())
    }

    /// Returns the tables in use. They stay in use while the caller holds `writer`.
    pub(crate) fn numbering(&self) -> Numbering {
        *self.numbering.read()
    }

    /// Publishes a header. The caller has written the header, and before it the values that the
    /// header counts.
    pub(crate) fn publish(&self, writer: &mut Writer, header: Header) {
        writer.header = header;
        *self.published.lock() = Published::of(&header);
        // Relaxed, and before the store of the length. A lookup returns an id only if it sees a
        // length above the id's place, so the lookup comes after this store.
        self.given_out.fetch_max(header.len, Ordering::Relaxed);
        self.len.store(header.len, Ordering::Release);
    }

    /// Returns the largest id that was given out, plus one.
    pub(crate) fn ids_end(&self) -> u64 {
        // Relaxed: pairs with the stores of `publish` and `Vocabulary::give_out`, which come before
        // the id that they count reaches a caller. A caller that has the id therefore loads
        // that count or a later one.
        self.founding.config.first_id + self.given_out.load(Ordering::Relaxed)
    }

    pub(crate) fn published(&self) -> Published {
        *self.published.lock()
    }

    pub(crate) fn note_frozen(&self, writer: &mut Writer, frozen: bool) {
        writer.header.frozen = frozen;
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Waits until no call uses the old tables, then replaces the tables in use.
    pub(crate) fn exchange(&self, writer: &mut Writer, header: Header, numbering: Numbering) {
        let mut current = self.numbering.write();
        *current = numbering;
        writer.header = header;
        *self.published.lock() = Published::of(&header);
        // Relaxed, and before the store of the length, for the reason that `publish` gives.
        self.given_out.store(header.len, Ordering::Relaxed);
        // The length is stored while both locks are held, so a thread that reads the tables reads
        // the length of these tables.
        self.len.store(header.len, Ordering::Release);
        self.frozen.store(header.frozen, Ordering::Relaxed);
    }

    /// Takes over the state of `newer`, the same vocabulary at a newer checkpoint.
    pub(crate) fn move_on(&self, newer: &Self) {
        let header = newer.writer.lock().header;
        let numbering = newer.numbering();
        let mut writer = self.writer.lock();
        self.exchange(&mut writer, header, numbering);
    }
}

/// Reads the header row in `table`. `None` if the row was not written.
pub(crate) fn read_header(store: &Store, table: TableId) -> Result<Option<[u8; HEADER_BYTES]>> {
    let mut bytes = [0; HEADER_BYTES];
    let mut peek = PeekFixed { bytes: &mut bytes, row_bytes: HEADER_BYTES };
    let outcome = store.execute(table, &[0], Clock::Keep, &mut peek)?;
    Ok(outcome.missing.is_empty().then_some(bytes))
}

/// Writes the header row. A checkpoint has either the old row or the new row, because the header is
/// a single row.
pub(crate) fn write_header(store: &Store, table: TableId, header: Header) -> embank_kv::Result<()> {
    let bytes = header.to_bytes();
    let mut put = PutFixed { bytes: &bytes, row_bytes: HEADER_BYTES };
    store.execute(table, &[0], Clock::Keep, &mut put).map(drop)
}
