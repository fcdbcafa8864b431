//! Counts Gets of keys that have no row yet, for admission.
//!
//! **Problem.** TFRA and PAI keep such counts in memory, exactly or in a Bloom filter. The counts
//! must fit in memory, and a restart loses them. The number of counts grows without limit, because
//! many keys come once and never again.
//!
//! **Approach.** A count is a row of 8 bytes in a separate table of the store. The store can
//! therefore move counts to disk when memory is full, and includes them in checkpoints, copies and
//! deltas. The bank's list of tables leaves out the tables of counts.
//!
//! Counts have two *generations*, each in its own table. A Get of a key without a row increments
//! its count in the newer generation. If only the older generation has a count of the key, the Get
//! first moves that count to the newer generation. The newer generation is full when it has as many
//! counts as the main table has rows, and at least 65,536. Then the table drops the older
//! generation; the newer generation becomes the older one, and an empty newer generation begins. A
//! table therefore has at most about twice that number of counts. A count is lost only if, since
//! the last Get of its key, at least that number of other keys was counted. Dropping a table needs
//! no scan, and compaction frees its space.
//!
//! Three other events delete a count: its key gets a row, the caller deletes its key, or an
//! eviction by age finds that its last Get is too old. Each count therefore stores the time of its
//! last Get.
//!
//! **Several threads.** A call that counts locks the generations for reading. A call that begins a
//! new generation locks them for writing. If two Gets count a key at the same time, one Get may
//! miss the count that the other Get moves from the older generation. The key then gets its row one
//! Get later.

use std::collections::HashMap;

use embank_kv::locks::{RwLock, RwLockReadGuard};
use embank_kv::{Access, Clock, Operation, TableId};

use crate::error::{Result, StoreError};
use crate::row::tracking::minutes_now;
use crate::table::Table;
use crate::table::count_tables::{Generations, create_generation};
use crate::table::eviction::Evicted;
use crate::table::gate::Gate;

/// Least number of counts at which a generation is full. This many counts take only 2.5 MiB of log,
/// so even a table with few rows may count this many keys.
const COUNTS_MIN: u64 = 65_536;

impl Table {
    /// Counts one Get of each of `keys`, which have no row. Returns the new counts.
    pub(crate) fn count_gets(
        &self,
        counts: &RwLock<Generations>,
        keys: &[u64],
    ) -> Result<Vec<u32>> {
        let in_terms = |error| self.in_terms_of_the_table(error);
        let store = &self.context().store;
        let generations = counts.read();
        let mut before = HashMap::new();
        if let Some(older) = generations.older {
            let mut found = ReadCounts { found: vec![None; keys.len()] };
            store.execute(older, keys, Clock::Keep, &mut found).map_err(in_terms)?;
            let counted = keys.iter().zip(found.found);
            before.extend(counted.filter_map(|(&key, count)| Some((key, count?))));
        }
        let mut count = CountGets {
            keys,
            before: &before,
            now: vec![0; keys.len()],
            time: self.time_of_counts(),
        };
        store.execute(generations.newer, keys, Clock::Keep, &mut count).map_err(in_terms)?;
        let now = count.now;
        if let Some(older) = generations.older
            && !before.is_empty()
        {
            // The newer generation already has the counts, so a failure before the deletion loses
            // no count.
            let moved: Vec<u64> = before.into_keys().collect();
            store.delete(older, &moved).map_err(in_terms)?;
        }
        let is_full = store.rows(generations.newer).map_err(in_terms)? >= self.counts_max()?;
        drop(generations);
        if is_full {
            self.turn_generations(counts)?;
        }
        Ok(now)
    }

    /// Returns the number of counts at which a generation is full.
    fn counts_max(&self) -> Result<u64> {
        let rows = self.context().store.rows(self.shared.id);
        Ok(rows.map_err(|error| self.in_terms_of_the_table(error))?.max(COUNTS_MIN))
    }

    /// Drops the older generation and begins a new one, unless another thread has already done so.
    #[cold]
    fn turn_generations(&self, counts: &RwLock<Generations>) -> Result<()> {
        let store = &self.context().store;
        // While this lock is held, the table can't be dropped.
        let _side_tables = self.context().side_tables.lock();
        if store.rows(self.shared.id).is_err() {
            return Ok(());
        }
        let counts_max = self.counts_max()?;
        let mut generations = counts.write();
        if store.rows(generations.newer)? < counts_max {
            return Ok(());
        }
        let number = generations.number + 1;
        let newer = create_generation(store, self.name(), number)?;
        let dropped = generations.older;
        *generations = Generations { newer, older: Some(generations.newer), number };
        let Some(older) = dropped else { return Ok(()) };
        // If this drop fails, or if the bank opens at a checkpoint from before this drop, the next
        // open drops the older generation.
        store.drop_table(older)?;
        Ok(())
    }

    /// Returns the time to store with a count: the table's time, or the system clock in minutes if
    /// the table tracks no uses.
    fn time_of_counts(&self) -> u32 {
        match self.shared.layout().tracker() {
            Some(tracker) => tracker.now(),
            None => minutes_now(),
        }
    }

    /// Forgets the counts of keys whose last Get is at least `unused_for` ago. The unit is the
    /// table's unit of time, or minutes if the table tracks no uses. At its next Get, a forgotten
    /// key gets the count 1. Examines the counts in the newest checkpoint. An
    /// [`evict`](Self::evict) with `unused_for` and without `norm_below` also forgets counts. With
    /// `dry_run`, forgets nothing and only returns the numbers. Returns the number of counts that
    /// were examined, and the number that were forgotten.
    ///
    /// The number of counts has a limit even without this call. A count is lost once enough other
    /// keys were counted since its last Get: as many as the table has rows, and at least 65,536.
    ///
    /// # Errors
    /// The errors of [`evict`](Self::evict).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Admission, Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("item", TableConfig::new(1).admission(Admission::AfterGets(2)))?;
    /// table.get(&[7], &mut [0.0])?.release()?;
    /// bank.checkpoint(b"")?;
    /// assert_eq!(table.forget_counts(60, false)?.counts, 0); // counted within the last hour
    /// assert_eq!(table.forget_counts(0, false)?.counts, 1);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn forget_counts(&self, unused_for: u32, dry_run: bool) -> Result<Evicted> {
        let mut evicted = Evicted { checkpoint: self.scan()?.checkpoint(), ..Evicted::default() };
        let Some(Gate::Counts { counts, .. }) = &self.shared.gate else { return Ok(evicted) };
        if let Some(tracker) = self.shared.layout().tracker() {
            tracker.refresh();
        }
        let oldest_kept = OldestKept { now: self.time_of_counts(), unused_for };
        let generations = *counts.read();
        for generation in generations.tables() {
            let in_generation = InGeneration { counts, generation, oldest_kept, dry_run };
            match self.forget_counts_in(&in_generation, &mut evicted) {
                // This generation began after the checkpoint.
                Err(StoreError::NoSuchTable(_)) => {}
                done => done?,
            }
        }
        Ok(evicted)
    }

    fn forget_counts_in(
        &self,
        of: &InGeneration<'_>,
        evicted: &mut Evicted,
    ) -> embank_kv::Result<()> {
        let store = &self.context().store;
        let InGeneration { generation, oldest_kept, dry_run, .. } = *of;
        let Some(begun) = of.held() else { return Ok(()) };
        let mut scan = store.scan_shared(generation)?;
        drop(begun);
        let mut keys = Vec::with_capacity(COUNTS_AT_ONCE);
        // The loop ends when the scan has no more rows.
        loop {
            let row = scan.next_row()?;
            let ended = row.is_none();
            evicted.examined += u64::from(!ended);
            if let Some(row) = row
                && oldest_kept.forgets(row.value)
            {
                keys.push(row.key);
            }
            if keys.len() == COUNTS_AT_ONCE || ended {
                let Some(_held) = of.held() else { return Ok(()) };
                // The present count decides, not the count in the checkpoint. A key therefore keeps
                // its count if a Get counted it after the checkpoint.
                evicted.counts += if dry_run {
                    let mut found = FindOldCounts { oldest_kept, old: 0 };
                    store.execute(generation, &keys, Clock::Keep, &mut found)?;
                    found.old
                } else {
                    store.delete_if(generation, &keys, |_, value, _| oldest_kept.forgets(value))?
                };
                keys.clear();
            }
            if ended {
                return Ok(());
            }
        }
    }

    /// Deletes the counts of `keys`, because these keys now have a row, or because the caller
    /// deletes them.
    pub(crate) fn delete_counts(&self, keys: &[u64]) -> Result<()> {
        let Some(Gate::Counts { counts, .. }) = &self.shared.gate else { return Ok(()) };
        // While this lock is held, no new generation begins. Otherwise this call could miss a
        // count, because it would not look in the generation that has it.
        let generations = counts.read();
        for generation in generations.tables() {
            let forgotten = self.context().store.delete(generation, keys);
            forgotten.map_err(|error| self.in_terms_of_the_table(error))?;
        }
        Ok(())
    }
}

/// The arguments for forgetting old counts in one generation.
struct InGeneration<'a> {
    counts: &'a RwLock<Generations>,
    generation: TableId,
    oldest_kept: OldestKept,
    dry_run: bool,
}

impl InGeneration<'_> {
    /// Locks the generations, so that no thread drops this generation. Returns `None` if this
    /// generation was already dropped.
    fn held(&self) -> Option<RwLockReadGuard<'_, Generations>> {
        let generations = self.counts.read();
        let is_there = generations.tables().any(|table| table == self.generation);
        is_there.then_some(generations)
    }
}

/// Number of counts that one call of the store deletes.
const COUNTS_AT_ONCE: usize = 4096;

/// Returns the time of the last Get that a count stores; 0 if an older version of Embank wrote the
/// count without a time.
fn time_of_count(time: &[u8]) -> u32 {
    u32::from_le_bytes([time[0], time[1], time[2], time[3]])
}

/// Says which counts are old enough to be forgotten.
#[derive(Debug, Clone, Copy)]
struct OldestKept {
    now: u32,
    unused_for: u32,
}

impl OldestKept {
    fn forgets(self, count: &[u8]) -> bool {
        self.now.saturating_sub(time_of_count(&count[4..])) >= self.unused_for
    }
}

/// Counts a Get of each key and stores its time. A count is a u32, followed by the time of the last
/// Get as a u32.
#[derive(Debug)]
struct CountGets<'a> {
    keys: &'a [u64],
    /// Counts found in the older generation.
    before: &'a HashMap<u64, u32>,
    now: Vec<u32>,
    time: u32,
}

impl CountGets<'_> {
    fn note(&mut self, i: usize, before: u32, value: &mut [u8]) {
        let (count, time) = value.split_at_mut(4);
        self.now[i] = before.saturating_add(1);
        count.copy_from_slice(&self.now[i].to_le_bytes());
        let last = time_of_count(time).max(self.time);
        time.copy_from_slice(&last.to_le_bytes());
    }
}

impl Operation for CountGets<'_> {
    const ACCESS: Access = Access::Update;

    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.note(i, count_in(value), value);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        let before = self.before.get(&self.keys[i]).copied().unwrap_or(0);
        self.note(i, before, value);
        true
    }
}

fn count_in(value: &[u8]) -> u32 {
    u32::from_le_bytes([value[0], value[1], value[2], value[3]])
}

#[derive(Debug)]
struct ReadCounts {
    found: Vec<Option<u32>>,
}

impl Operation for ReadCounts {
    const ACCESS: Access = Access::Peek;

    fn read(&mut self, i: usize, value: &[u8]) {
        self.found[i] = Some(count_in(value));
    }
}

#[derive(Debug)]
struct FindOldCounts {
    oldest_kept: OldestKept,
    old: u64,
}

impl Operation for FindOldCounts {
    const ACCESS: Access = Access::Peek;

    fn read(&mut self, _: usize, value: &[u8]) {
        self.old += u64::from(self.oldest_kept.forgets(value));
    }
}
