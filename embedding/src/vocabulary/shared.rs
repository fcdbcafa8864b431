//! What all handles of a vocabulary share, and how calls get at its tables.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use embank_kv::locks::{Mutex, RwLock};
use embank_kv::{Clock, Store, TableId};

use super::descriptor::{Founding, HEADER_BYTES, Header};
use super::numbering::{Numbering, Tip};
use super::rows::{PeekFixed, PutFixed};
use crate::error::Result;
use crate::row::numbering::VocabularyIdentity;

/// What all handles of a vocabulary share.
#[derive(Debug)]
pub(crate) struct VocabularyShared {
    pub(crate) name: String,
    pub(crate) founding: Founding,
    /// The table with the header.
    pub(crate) header: TableId,
    /// The tables in use. Read-locked by every call while it uses them. Write-locked by a
    /// renumbering, after it has become the writer, and by a refresh of a bank that is open to read
    /// only.
    pub(crate) numbering: RwLock<Numbering>,
    /// Values with ids. Changes with `writer` held; what lies below never changes within a
    /// numbering.
    len: AtomicU64,
    /// Values that callers know ids of: those with ids, and those that
    /// [`Vocabulary::give_out`](crate::Vocabulary::give_out) tells of. Tables take
    /// their ids as keys.
    pub(crate) given_out: AtomicU64,
    frozen: AtomicBool,
    /// Held while values are inserted or renumbered.
    pub(crate) writer: Mutex<Writer>,
    /// What the header of `writer` says of the values, for threads that must not wait for the
    /// writer. Held for an instant.
    published: Mutex<Published>,
    /// Read while counts are added; written while they are renumbered.
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

/// What an insertion must know.
#[derive(Debug)]
pub(crate) struct Writer {
    /// As it stands in the bank.
    pub(crate) header: Header,
    /// Where the next value goes. None while something may lie beyond the length: after an open
    /// and after a failed insertion.
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
        // Relaxed: a flag of its own. An insertion looks at the header under the lock.
        self.frozen.load(Ordering::Relaxed)
    }

    pub(crate) fn identity(&self) -> VocabularyIdentity {
        let numbering = self.numbering.read().number;
        VocabularyIdentity { id: self.founding.identity, generation: numbering }
    }

    /// The number of the numbering in use and the length that goes with it.
    pub(crate) fn numbering_and_len(&self) -> (u64, u64) {
        let numbering = self.numbering.read();
        (numbering.number, self.len())
    }

    /// The tables in use. Stay so as long as the caller is the writer.
    pub(crate) fn numbering(&self) -> Numbering {
        *self.numbering.read()
    }

    /// The header has been written, and the values that it counts before it.
    pub(crate) fn publish(&self, writer: &mut Writer, header: Header) {
        writer.header = header;
        *self.published.lock() = Published::of(&header);
        // Relaxed, and before the length: a lookup that sees the length, and returns an id below
        // it, comes after this.
        self.given_out.fetch_max(header.len, Ordering::Relaxed);
        self.len.store(header.len, Ordering::Release);
    }

    /// One more than the largest id that was given out.
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

    /// Exchanges the tables in use, once no call uses the old ones.
    pub(crate) fn exchange(&self, writer: &mut Writer, header: Header, numbering: Numbering) {
        let mut current = self.numbering.write();
        *current = numbering;
        writer.header = header;
        *self.published.lock() = Published::of(&header);
        // Relaxed, and before the length: as in `publish`.
        self.given_out.store(header.len, Ordering::Relaxed);
        // Stored under both locks, so a thread that reads the tables reads the length of these
        // tables.
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

/// The header row of the vocabulary whose own table this is, if it has been written.
pub(crate) fn read_header(store: &Store, table: TableId) -> Result<Option<[u8; HEADER_BYTES]>> {
    let mut bytes = [0; HEADER_BYTES];
    let mut peek = PeekFixed { bytes: &mut bytes, row_bytes: HEADER_BYTES };
    let outcome = store.execute(table, &[0], Clock::Keep, &mut peek)?;
    Ok(outcome.missing.is_empty().then_some(bytes))
}

/// Writes the header row: one row, so a checkpoint has the old one or the new one.
pub(crate) fn write_header(store: &Store, table: TableId, header: Header) -> embank_kv::Result<()> {
    let bytes = header.to_bytes();
    let mut put = PutFixed { bytes: &bytes, row_bytes: HEADER_BYTES };
    store.execute(table, &[0], Clock::Keep, &mut put).map(drop)
}
