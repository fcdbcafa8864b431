//! The vocabularies of a bank: made, opened, listed, dropped.
//!
//! A vocabulary's own table is made last and its header row after that; it is dropped first. So a checkpoint that is
//! cut in the middle of either has tables that no header names, which the next open for writing drops.

use std::collections::BTreeMap;
use std::sync::Arc;

use embank_kv::{Store, TableId, TableInfo};

use crate::bank::{Bank, BankShared};
use crate::error::{Error, Result};
use crate::row::numbering::VocabularyIdentity;
use crate::vocabulary::Vocabulary;
use crate::vocabulary::config::{ValueKind, VocabularyConfig};
use crate::vocabulary::descriptor::{Founding, HEADER_BYTES, Header, Part, Role, role_of};
use crate::vocabulary::generation::{Generation, Tip, header_name};
use crate::vocabulary::hash::{EMPTY_FINGERPRINT, random};
use crate::vocabulary::shared::{VocabularyShared, read_header, write_header};

/// A vocabulary's name and what it is.
///
/// # Examples
/// See [`Bank::vocabularies`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyInfo {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub config: VocabularyConfig,
    /// Which numbering it is.
    pub identity: VocabularyIdentity,
    /// How many values have ids.
    pub len: u64,
    /// Whether it takes no new values.
    pub frozen: bool,
}

impl Bank {
    /// Opens the vocabulary `name`, or makes it. Names of vocabularies and tables don't get into each other's way,
    /// since tables have none that ends like those of a vocabulary's own tables ([`Bank::table`]). A new one is durable
    /// with the next checkpoint.
    ///
    /// # Errors
    /// [`Error::VocabularyMismatch`] if it has other settings, [`Error::InvalidVocabulary`], or a failure of the store,
    /// such as [`InvalidArgument`](embank_kv::Error::InvalidArgument) for strings that may become too long for the
    /// bank's pages.
    ///
    /// # Examples
    /// See [`Vocabulary`].
    pub fn vocabulary(&self, name: &str, config: VocabularyConfig) -> Result<Vocabulary> {
        self.vocabulary_with_seed(name, config, random())
    }

    pub(crate) fn vocabulary_with_seed(
        &self,
        name: &str,
        config: VocabularyConfig,
        seed: u64,
    ) -> Result<Vocabulary> {
        config.validate(name)?;
        let mut vocabularies = self.shared.vocabularies.lock();
        let shared = if let Some(shared) = vocabularies.get(name) {
            shared.founding.config.check_same(name, &config)?;
            Arc::clone(shared)
        } else {
            let founding = Founding { config, identity: random(), seed };
            let shared = Arc::new(create(&self.shared.store, name, founding)?);
            vocabularies.insert(name.to_owned(), Arc::clone(&shared));
            shared
        };
        Ok(Vocabulary { bank: Arc::clone(&self.shared), shared })
    }

    /// Opens the vocabulary `name` as it is.
    ///
    /// # Errors
    /// [`Error::NoSuchVocabulary`].
    pub fn open_vocabulary(&self, name: &str) -> Result<Vocabulary> {
        match self.shared.vocabularies.lock().get(name) {
            Some(shared) => {
                Ok(Vocabulary { bank: Arc::clone(&self.shared), shared: Arc::clone(shared) })
            }
            None => Err(Error::NoSuchVocabulary { vocabulary: name.to_owned() }),
        }
    }

    /// The bank's vocabularies, by name.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// bank.vocabulary("user", VocabularyConfig::u64())?;
    /// let of = &bank.vocabularies()[0];
    /// assert_eq!((&of.name[..], of.len, of.frozen), ("user", 0, false));
    /// assert!(bank.tables().is_empty());
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn vocabularies(&self) -> Vec<VocabularyInfo> {
        let vocabularies = self.shared.vocabularies.lock();
        let info = |shared: &Arc<VocabularyShared>| {
            let (generation, len) = shared.generation_and_len();
            VocabularyInfo {
                name: shared.name.clone(),
                config: shared.founding.config.clone(),
                identity: VocabularyIdentity { id: shared.founding.identity, generation },
                len,
                frozen: shared.is_frozen(),
            }
        };
        vocabularies.values().map(info).collect()
    }

    /// Drops the vocabulary `name`: handles of it fail with [`Error::VocabularyDropped`] from now on. Tables that were
    /// made [for it](crate::TableConfig::vocabulary) stay, and can't be opened. Durable with the next checkpoint; its
    /// space comes back by compaction.
    ///
    /// # Errors
    /// [`Error::NoSuchVocabulary`], or [`Poisoned`](embank_kv::Error::Poisoned) after a failed write.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Error, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
    /// bank.drop_vocabulary("user")?;
    /// let refused = users.ids(&[900], &mut [0]);
    /// assert!(matches!(refused, Err(Error::VocabularyDropped { .. })));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn drop_vocabulary(&self, name: &str) -> Result<()> {
        let gone = || Error::NoSuchVocabulary { vocabulary: name.to_owned() };
        let store = &self.shared.store;
        if store.is_read_only() {
            return Err(embank_kv::Error::ReadOnly { path: store.path().into() }.into());
        }
        let shared = self.shared.vocabularies.lock().get(name).map(Arc::clone);
        let shared = shared.ok_or_else(gone)?;
        // Nobody makes tables of it meanwhile. Without the lock of all, which others would wait for: this may take as
        // long as a verification.
        let _writer = shared.writer.lock();
        let mut vocabularies = self.shared.vocabularies.lock();
        if !vocabularies.get(name).is_some_and(|now| Arc::ptr_eq(now, &shared)) {
            // Somebody else has dropped it meanwhile.
            return Err(gone());
        }
        store.drop_table(shared.header)?;
        let dropped = shared.generation().drop_tables(store);
        vocabularies.remove(name);
        drop(vocabularies);
        self.shared.refuse_other_numberings();
        Ok(dropped?)
    }
}

impl BankShared {
    /// Drops tables of this vocabulary that are not of the generation in use.
    pub(crate) fn drop_leftovers(&self, identity: u64, generation: u64) -> Result<()> {
        drop_parts(&self.store, identity, Some(generation))
    }

    /// In a bank that is open to read only and may have moved on: takes over a vocabulary's newer state. False if it
    /// is gone.
    pub(crate) fn reread(&self, shared: &VocabularyShared) -> Result<bool> {
        // It may be just that who moves it on is not done; and an older state must not come after a newer one.
        let _moving = self.moving.lock();
        let newer = read_vocabularies(&self.store)?;
        let newer = newer.get(&shared.name).filter(|newer| newer.header == shared.header);
        if let Some(newer) = newer {
            shared.move_on(newer);
        }
        Ok(newer.is_some())
    }

    /// After a refresh, while nobody else moves the bank on: takes over the vocabularies of the new checkpoint; handles
    /// stay those of theirs.
    pub(crate) fn refresh_vocabularies(&self, mut now: BTreeMap<String, Arc<VocabularyShared>>) {
        let mut vocabularies = self.vocabularies.lock();
        for (name, shared) in &mut now {
            if let Some(known) = vocabularies.get(name).filter(|of| of.header == shared.header) {
                known.move_on(shared);
                *shared = Arc::clone(known);
            }
        }
        *vocabularies = now;
    }
}

fn create(store: &Store, name: &str, founding: Founding) -> Result<VocabularyShared> {
    let identity = founding.identity;
    let header = Header { len: 0, fingerprint: EMPTY_FINGERPRINT, generation: 0, frozen: false };
    let make = || {
        let generation = Generation::create(store, name, &founding.config, identity, 0)?;
        let (bytes, descriptor) = (HEADER_BYTES as u32, founding.descriptor());
        let table = store.create_table(&header_name(name), bytes, &descriptor)?;
        if let Err(error) = write_header(store, table, header) {
            store.drop_table(table)?;
            return Err(error);
        }
        Ok((table, generation))
    };
    let made: embank_kv::Result<_> = make();
    if made.is_err() {
        // What is left the next open drops.
        let _ = drop_parts(store, identity, None);
    }
    let (table, generation) = made?;
    let tip = Some(Tip::empty());
    Ok(VocabularyShared::new(name, founding, table, (header, generation), tip))
}

/// Drops the tables of a vocabulary's generations but one.
fn drop_parts(store: &Store, identity: u64, kept: Option<u64>) -> Result<()> {
    for (table, role) in roles(store)? {
        match role {
            Role::Part { identity: of, generation, .. }
                if of == identity && Some(generation) != kept =>
            {
                store.drop_table(table.id)?;
            }
            Role::Part { .. } | Role::Header(_) => {}
        }
    }
    Ok(())
}

fn unreadable(name: &str, reason: String) -> Error {
    Error::DamagedVocabulary { vocabulary: name.to_owned(), what: reason }
}

/// The tables of a store that belong to vocabularies.
fn roles(store: &Store) -> Result<Vec<(TableInfo, Role)>> {
    let mut roles = Vec::new();
    for table in store.tables() {
        match role_of(&table.descriptor) {
            None => {}
            Some(Ok(role)) => roles.push((table, role)),
            Some(Err(reason)) => return Err(unreadable(&table.name, reason)),
        }
    }
    Ok(roles)
}

/// The vocabularies of a store by name. Drops what no header names, if the store is open for writing.
pub(crate) fn read_vocabularies(store: &Store) -> Result<BTreeMap<String, Arc<VocabularyShared>>> {
    let roles = roles(store)?;
    let mut vocabularies = BTreeMap::new();
    let mut in_use: Vec<TableId> = Vec::new();
    for (table, role) in &roles {
        let Role::Header(founding) = role else { continue };
        let Some(name) = table.name.strip_suffix(&header_name("")) else {
            return Err(unreadable(
                &table.name,
                "its table's name is not a vocabulary's".to_owned(),
            ));
        };
        let parts = parts_of(&roles, founding.identity);
        let Some(bytes) = read_header(store, table.id)? else {
            // It was being made. But a header that was lost must not take the values with it.
            for (_, _, part) in parts {
                if store.rows(part.id)? > 0 {
                    return Err(unreadable(name, "its header is missing".to_owned()));
                }
            }
            continue;
        };
        let header = Header::from_bytes(&bytes).map_err(|reason| unreadable(name, reason))?;
        let part = |wanted| {
            let mut of = parts.iter().filter(|of| (of.0, of.1) == (wanted, header.generation));
            of.next().map(|of| of.2.id)
        };
        let missing =
            || unreadable(name, format!("a table of generation {} is missing", header.generation));
        let config = &founding.config;
        config.validate(name)?;
        let counts = config.counts.then(|| part(Part::Counts).ok_or_else(missing));
        let generation = Generation {
            number: header.generation,
            ids: part(Part::Ids).ok_or_else(missing)?,
            values: part(Part::Values).ok_or_else(missing)?,
            counts: counts.transpose()?,
            kind: config.kind,
        };
        check_widths(name, &generation, &roles)?;
        in_use.extend([table.id, generation.ids, generation.values]);
        in_use.extend(generation.counts);
        let shared =
            VocabularyShared::new(name, (**founding).clone(), table.id, (header, generation), None);
        vocabularies.insert(name.to_owned(), Arc::new(shared));
    }
    if !store.is_read_only() {
        // Only now: an error above leaves all as it is.
        for (table, _) in roles.iter().filter(|of| !in_use.contains(&of.0.id)) {
            store.drop_table(table.id)?;
        }
    }
    Ok(vocabularies)
}

fn parts_of(roles: &[(TableInfo, Role)], identity: u64) -> Vec<(Part, u64, &TableInfo)> {
    let mut parts = Vec::new();
    for (table, role) in roles {
        match role {
            Role::Part { part, identity: of, generation } if *of == identity => {
                parts.push((*part, *generation, table));
            }
            Role::Part { .. } | Role::Header(_) => {}
        }
    }
    parts
}

/// Refuses tables that are laid out otherwise than this program's.
fn check_widths(name: &str, generation: &Generation, roles: &[(TableInfo, Role)]) -> Result<()> {
    use crate::vocabulary::record::{BYTE_BLOCK_BYTES_MAX, NUMBER_BLOCK_BYTES};
    let value_bytes = |id| roles.iter().find(|of| of.0.id == id).map(|of| of.0.value_bytes);
    let blocks = match generation.kind {
        ValueKind::U64 => NUMBER_BLOCK_BYTES as u32,
        ValueKind::Bytes => BYTE_BLOCK_BYTES_MAX,
    };
    let ids_fit = generation.kind == ValueKind::Bytes || value_bytes(generation.ids) == Some(8);
    let counts = generation.counts.map_or(Some(NUMBER_BLOCK_BYTES as u32), value_bytes);
    let fits = ids_fit
        && value_bytes(generation.values) == Some(blocks)
        && counts == Some(NUMBER_BLOCK_BYTES as u32);
    if fits {
        return Ok(());
    }
    Err(unreadable(name, "its tables have values of other lengths than this program's".to_owned()))
}
