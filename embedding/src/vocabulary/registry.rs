//! The vocabularies of an open bank, by name. This module makes, finds and drops the vocabularies'
//! tables in the store.
//!
//! A new vocabulary's tables are made first, then the table of its header, then the header row. A
//! checkpoint that is cut meanwhile may therefore contain tables that no header names. The next
//! open for writing drops them. A drop removes all tables in one step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use embank_kv::locks::{Mutex, MutexGuard};
use embank_kv::{Store, TableId, TableInfo};

use super::config::ValueKind;
use super::descriptor::{Founding, HEADER_BYTES, Header, Part, Role, role_of};
use super::hash::EMPTY_FINGERPRINT;
use super::numbering::{Numbering, Tip, header_name};
use super::record::{BYTE_BLOCK_BYTES_MAX, NUMBER_BLOCK_BYTES};
use super::shared::{VocabularyShared, read_header, write_header};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::row::numbering::TableVocabulary;

/// Vocabularies by name.
pub(crate) type VocabularyMap = BTreeMap<String, Arc<VocabularyShared>>;

/// Checks whether the vocabularies of the bank's tables still have the numberings that the tables
/// were made for.
type OnRenumbered = Box<dyn Fn(&Vocabularies) + Send + Sync>;

/// The vocabularies of an open bank. Every handle of the bank, of a table and of a vocabulary has a
/// reference.
pub(crate) struct Vocabularies {
    pub(crate) context: Context,
    /// Lock order: the bank's tables before `by_name`.
    by_name: Mutex<VocabularyMap>,
    /// Held while a read-only bank moves to another checkpoint, or while a thread reads the
    /// vocabularies again. A thread that holds it sees the state of one checkpoint. Locked before
    /// the bank's tables, `by_name` and a vocabulary's `numbering`.
    pub(crate) moving: Mutex<()>,
    /// The bank sets this function, because vocabularies do not know tables.
    on_renumbered: OnceLock<OnRenumbered>,
}

impl fmt::Debug for Vocabularies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Vocabularies")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Vocabularies {
    pub(crate) fn new(context: Context, by_name: VocabularyMap) -> Self {
        let by_name = Mutex::new(by_name);
        let moving = Mutex::new(());
        Self { context, by_name, moving, on_renumbered: OnceLock::new() }
    }

    /// Sets the function that is called after vocabularies may have changed. The open of the bank
    /// calls this once.
    pub(crate) fn when_renumbered(&self, call: OnRenumbered) {
        let _ = self.on_renumbered.set(call);
    }

    /// Marks the handles of tables that were made for another numbering, so that their calls fail.
    /// Called after vocabularies may have changed.
    pub(crate) fn refuse_other_numberings(&self) {
        if let Some(call) = self.on_renumbered.get() {
            call(self);
        }
    }

    /// The vocabularies, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, VocabularyMap> {
        self.by_name.lock()
    }

    /// Returns the vocabulary `name`. `None` if the bank has no vocabulary of this name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<VocabularyShared>> {
        self.by_name.lock().get(name).cloned()
    }

    /// Returns the vocabulary of `table`. If the table exists already, the vocabulary must have the
    /// numbering that the table was made for.
    ///
    /// # Errors
    /// [`Error::NoSuchVocabulary`] if the bank has no such vocabulary and no table was made for it.
    /// [`Error::OtherVocabulary`] if the vocabulary is not the one that the table was made for.
    pub(crate) fn check(
        &self,
        table: &str,
        wanted: &TableVocabulary,
    ) -> Result<Arc<VocabularyShared>> {
        let shared = self.get(&wanted.name);
        let there = shared.as_ref().map(|shared| shared.identity());
        if let Some(shared) = shared
            && wanted.identity.is_none_or(|wanted| Some(wanted) == there)
        {
            return Ok(shared);
        }
        let (there, made_for) = match (there, wanted.identity) {
            (None, None) => {
                return Err(Error::NoSuchVocabulary { vocabulary: wanted.name.clone() });
            }
            both => both,
        };
        let found = match (there, made_for) {
            (Some(there), Some(wanted)) if there.id == wanted.id => {
                let now = there.renumberings();
                let then = wanted.renumberings();
                if now == then {
                    "it was renumbered otherwise, after the bank was taken back to a checkpoint"
                        .to_owned()
                } else {
                    format!(
                        "it was renumbered since, by keep_frequent or a pipeline's `min_count` (renumberings: {now}, and \
                         {then} when the table was made)"
                    )
                }
            }
            (Some(_), _) => "the vocabulary of that name is another one".to_owned(),
            (None, _) => "the bank has none of that name".to_owned(),
        };
        Err(Error::OtherVocabulary {
            table: table.to_owned(),
            vocabulary: wanted.name.clone(),
            found,
        })
    }

    /// Drops tables of this vocabulary that do not belong to the numbering in use.
    pub(crate) fn drop_leftovers(&self, identity: u64, numbering: u64) -> Result<()> {
        drop_parts(&self.context.store, identity, Some(numbering))
    }

    /// Reads a vocabulary's state again. Used in a read-only bank that may have moved to another
    /// checkpoint. Returns false if the vocabulary is gone. The caller holds `moving`. Otherwise
    /// another thread could move the vocabulary to a newer state, and this thread could then
    /// replace the newer state by an older one.
    pub(crate) fn reread(
        &self,
        shared: &VocabularyShared,
        _moving: &MutexGuard<'_, ()>,
    ) -> Result<bool> {
        let newer = read_vocabularies(&self.context.store)?;
        let newer = newer.get(&shared.name).filter(|newer| newer.header == shared.header);
        if let Some(newer) = newer {
            shared.move_on(newer);
        }
        Ok(newer.is_some())
    }

    /// Adopts the vocabularies of the new checkpoint after a refresh. No other thread may move the
    /// bank meanwhile. Handles stay valid.
    pub(crate) fn refresh(&self, mut now: BTreeMap<String, Arc<VocabularyShared>>) {
        let mut vocabularies = self.by_name.lock();
        for (name, shared) in &mut now {
            if let Some(known) = vocabularies.get(name).filter(|of| of.header == shared.header) {
                known.move_on(shared);
                *shared = Arc::clone(known);
            }
        }
        *vocabularies = now;
    }
}

pub(crate) fn create(store: &Store, name: &str, founding: Founding) -> Result<VocabularyShared> {
    let identity = founding.identity;
    let header = Header { len: 0, fingerprint: EMPTY_FINGERPRINT, numbering: 0, frozen: false };
    let make = || {
        let numbering = Numbering::create(store, name, &founding.config, identity, 0)?;
        let bytes = HEADER_BYTES as u32;
        let descriptor = founding.descriptor();
        let table = store.create_table(&header_name(name), bytes, &descriptor)?;
        if let Err(error) = write_header(store, table, header) {
            store.drop_table(table)?;
            return Err(error);
        }
        Ok((table, numbering))
    };
    let made: embank_kv::Result<_> = make();
    if made.is_err() {
        // If this fails, the next open drops the tables that remain.
        let _ = drop_parts(store, identity, None);
    }
    let (table, numbering) = made?;
    let tip = Some(Tip::empty());
    Ok(VocabularyShared::new(name, founding, table, header, numbering, tip))
}

/// Drops the tables of a vocabulary's numberings. Keeps the tables of the numbering `kept`.
fn drop_parts(store: &Store, identity: u64, kept: Option<u64>) -> Result<()> {
    let roles = roles(store)?;
    let parts = parts_by_identity(&roles);
    let parts = parts.get(&identity).map_or(&[][..], Vec::as_slice);
    let left = parts.iter().filter(|of| Some(of.numbering) != kept).map(|of| of.table.id);
    Ok(store.drop_tables(&left.collect::<Vec<_>>())?)
}

fn unreadable(name: &str, reason: String) -> Error {
    Error::DamagedVocabulary { vocabulary: name.to_owned(), what: reason }
}

/// Returns the tables of a store that belong to vocabularies.
fn roles(store: &Store) -> Result<Vec<(TableInfo, Role)>> {
    let mut roles = Vec::new();
    for table in store.tables() {
        match role_of(&table.descriptor) {
            None => {}
            Some(Ok(role)) => roles.push((table, role)),
            Some(Err(reason)) => {
                return Err(Error::UnreadableTable { table: table.name, reason });
            }
        }
    }
    Ok(roles)
}

/// Reads the vocabularies of a store by name. If the store is open for writing, also drops the
/// vocabulary tables that no vocabulary's header names. Such tables are left if a vocabulary was
/// being made or dropped when the checkpoint was taken. Tables of rows are not touched.
pub(crate) fn read_vocabularies(store: &Store) -> Result<BTreeMap<String, Arc<VocabularyShared>>> {
    let roles = roles(store)?;
    let mut vocabularies = BTreeMap::new();
    let parts = parts_by_identity(&roles);
    let mut in_use = HashSet::new();
    for (table, role) in &roles {
        let Role::Header(founding) = role else { continue };
        let Some(name) = table.name.strip_suffix(&header_name("")) else {
            return Err(unreadable(
                &table.name,
                "its table's name is not a vocabulary's".to_owned(),
            ));
        };
        let parts = parts.get(&founding.identity).map_or(&[][..], Vec::as_slice);
        let Some(bytes) = read_header(store, table.id)? else {
            // Without a header the vocabulary was not made completely, and its tables are dropped.
            // But if these tables have rows, the header was lost. The open then fails, so that the
            // values are not dropped.
            for part in parts {
                if store.rows(part.table.id)? > 0 {
                    return Err(unreadable(name, "its header is missing".to_owned()));
                }
            }
            continue;
        };
        let header = Header::from_bytes(&bytes).map_err(|reason| unreadable(name, reason))?;
        let part = |wanted| {
            let is_it = |of: &&PartTable<'_>| (of.part, of.numbering) == (wanted, header.numbering);
            parts.iter().find(is_it).map(|of| of.table).ok_or_else(|| {
                unreadable(name, format!("a table of numbering {} is missing", header.numbering))
            })
        };
        let config = &founding.config;
        config.validate(name)?;
        let counts = config.counts.then(|| part(Part::Counts)).transpose()?;
        let (ids, values) = (part(Part::Ids)?, part(Part::Values)?);
        check_widths(name, config.kind, ids, values, counts)?;
        let numbering = Numbering {
            number: header.numbering,
            ids: ids.id,
            values: values.id,
            counts: counts.map(|counts| counts.id),
            kind: config.kind,
        };
        in_use.extend([table.id, numbering.ids, numbering.values]);
        in_use.extend(numbering.counts);
        let shared =
            VocabularyShared::new(name, (**founding).clone(), table.id, header, numbering, None);
        vocabularies.insert(name.to_owned(), Arc::new(shared));
    }
    if !store.is_read_only() {
        // Tables are dropped only here, so an error above leaves all tables in place.
        let ids = roles.iter().map(|(table, _)| table.id);
        let left: Vec<TableId> = ids.filter(|id| !in_use.contains(id)).collect();
        store.drop_tables(&left)?;
    }
    Ok(vocabularies)
}

/// A table of one of a vocabulary's numberings.
struct PartTable<'t> {
    part: Part,
    numbering: u64,
    table: &'t TableInfo,
}

/// Returns the tables of the numberings of each vocabulary, by the vocabulary's identity.
fn parts_by_identity(roles: &[(TableInfo, Role)]) -> HashMap<u64, Vec<PartTable<'_>>> {
    let mut parts = HashMap::<u64, Vec<PartTable<'_>>>::new();
    for (table, role) in roles {
        if let &Role::Part { part, identity, numbering } = role {
            parts.entry(identity).or_default().push(PartTable { part, numbering, table });
        }
    }
    parts
}

/// Fails if a table's row width differs from the width that this program writes.
fn check_widths(
    name: &str,
    kind: ValueKind,
    ids: &TableInfo,
    values: &TableInfo,
    counts: Option<&TableInfo>,
) -> Result<()> {
    let blocks = match kind {
        ValueKind::U64 => NUMBER_BLOCK_BYTES as u32,
        ValueKind::Bytes => BYTE_BLOCK_BYTES_MAX,
    };
    let fits = (kind == ValueKind::Bytes || ids.value_bytes == 8)
        && values.value_bytes == blocks
        && counts.is_none_or(|counts| counts.value_bytes == NUMBER_BLOCK_BYTES as u32);
    if fits {
        return Ok(());
    }
    Err(unreadable(name, "its tables have values of other lengths than this program's".to_owned()))
}
