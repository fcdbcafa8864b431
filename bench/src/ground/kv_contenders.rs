//! The store's operations as [`Contender`]s. A batch goes to [`Store::execute`] unchanged:
//! duplicate keys are not removed first.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use embank_kv::{
    Access, Clock, CompactionOptions, Hints, Operation, RowHint, RowHints, Store, StoreOptions,
    TableId,
};

use crate::ground::contenders::Flips;
use crate::ground::content;
use crate::ground::loading::for_all_rows;
use crate::ground::rounds::Contender;

/// A staleness bound that no measurement reaches. The store still checks it, as it checks the bound
/// of a table.
pub(crate) const BOUND: Clock = Clock::Acquire { bound: Some(1 << 20) };

/// A store with one table of `rows` rows.
#[derive(Debug)]
pub(crate) struct KvRows {
    pub(crate) store: Store,
    pub(crate) table: TableId,
    pub(crate) rows: u64,
    pub(crate) dim: usize,
}

impl KvRows {
    /// Makes a store in `path` and puts every row.
    ///
    /// # Errors
    /// Returns the store's error.
    pub(crate) fn load(path: &Path, rows: u64, dim: usize, budget_bytes: u64) -> Result<Self> {
        let compaction = CompactionOptions { background: true, ..CompactionOptions::default() };
        let options = StoreOptions {
            memory_budget_bytes: budget_bytes,
            compaction,
            ..StoreOptions::default()
        };
        Self::load_with(path, rows, dim, &options)
    }

    /// Makes a store with the given options, and puts every row.
    ///
    /// # Errors
    /// Returns the store's error.
    pub(crate) fn load_with(
        path: &Path,
        rows: u64,
        dim: usize,
        options: &StoreOptions,
    ) -> Result<Self> {
        let store = Store::open(path, options)?;
        let value_bytes = u32::try_from(dim * size_of::<f32>()).context("the rows are too long")?;
        let table = store.create_table("rows", value_bytes, &[])?;
        for_all_rows("loading a store", rows, dim, |keys, values| {
            content::fill(keys, dim, values);
            store.execute(
                table,
                keys,
                Clock::Keep,
                &mut WriteRows { rows: values, dim, hints: None },
            )?;
            Ok(())
        })?;
        Ok(Self { store, table, rows, dim })
    }

    /// Reads rows, all of which must be there.
    ///
    /// # Errors
    /// Fails if the store fails or a row is missing.
    pub(crate) fn read(&self, keys: &[u64], clock: Clock, rows: &mut [f32]) -> Result<()> {
        self.get(keys, clock, GetRows { rows, dim: self.dim, noted: None })
    }

    /// Reads rows like [`read`](Self::read), and returns where they are in the store.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    fn read_noting(&self, keys: &[u64], clock: Clock, rows: &mut [f32]) -> Result<RowHints> {
        let mut noted = RowHints::none_of(keys.len());
        self.get(keys, clock, GetRows { rows, dim: self.dim, noted: Some(&mut noted) })?;
        Ok(noted)
    }

    fn get(&self, keys: &[u64], clock: Clock, mut operation: GetRows<'_>) -> Result<()> {
        let outcome = self.store.execute(self.table, keys, clock, &mut operation)?;
        ensure!(outcome.missing.is_empty(), "wrong answer: {} rows missing", outcome.missing.len());
        ensure!(outcome.blocked.is_empty(), "{} rows are blocked", outcome.blocked.len());
        Ok(())
    }

    /// Peeks at rows, all of which must be there.
    ///
    /// # Errors
    /// Fails if the store fails or a row is missing.
    pub(crate) fn peek(&self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        let mut operation = PeekRows { rows, dim: self.dim };
        let outcome = self.store.execute(self.table, keys, Clock::Keep, &mut operation)?;
        ensure!(outcome.missing.is_empty(), "wrong answer: {} rows missing", outcome.missing.len());
        Ok(())
    }

    /// Writes rows.
    ///
    /// # Errors
    /// Returns the store's error.
    pub(crate) fn write(&self, keys: &[u64], clock: Clock, rows: &[f32]) -> Result<()> {
        self.put(keys, clock, WriteRows { rows, dim: self.dim, hints: None })
    }

    fn put(&self, keys: &[u64], clock: Clock, mut operation: WriteRows<'_>) -> Result<()> {
        self.store.execute(self.table, keys, clock, &mut operation)?;
        Ok(())
    }

    /// Peeks at every row and checks that it is as the puts left it. Without `flips`, either sign
    /// is right.
    ///
    /// # Errors
    /// Fails if an answer is wrong or the store fails.
    pub(crate) fn check_every_row(&self, flips: Option<&Flips>) -> Result<()> {
        for_all_rows("checking every row", self.rows, self.dim, |keys, rows| {
            self.peek(keys, rows)?;
            for (&key, row) in keys.iter().zip(rows.chunks_exact(self.dim)) {
                let negated = content::sign(key, row)?;
                if let Some(flips) = flips {
                    flips.check(key, negated)?;
                }
            }
            Ok(())
        })
    }
}

/// Copies a value out. Common lengths are constants, so that the compiler copies them with a few
/// wide moves, as in the bare loops.
#[inline(always)]
fn read_row(rows: &mut [f32], dim: usize, i: usize, value: &[u8]) {
    let row: &mut [u8] = bytemuck::cast_slice_mut(&mut rows[i * dim..][..dim]);
    match (row.len(), value.len()) {
        (8, 8) => row[..8].copy_from_slice(&value[..8]),
        (64, 64) => row[..64].copy_from_slice(&value[..64]),
        _ => row.copy_from_slice(value),
    }
}

/// Copies rows out of the store by a `Get`.
struct GetRows<'a> {
    rows: &'a mut [f32],
    dim: usize,
    /// Receives where the rows are, for a later put of the same keys.
    noted: Option<&'a mut RowHints>,
}

impl Operation for GetRows<'_> {
    const ACCESS: Access = Access::Get;

    #[inline]
    fn settled(&mut self, i: usize, hint: RowHint) {
        if let Some(noted) = &mut self.noted {
            noted.note(i, hint);
        }
    }

    #[inline]
    fn read(&mut self, i: usize, value: &[u8]) {
        read_row(self.rows, self.dim, i, value);
    }
}

/// Copies rows out of the store by a `Peek`.
struct PeekRows<'a> {
    rows: &'a mut [f32],
    dim: usize,
}

impl Operation for PeekRows<'_> {
    const ACCESS: Access = Access::Peek;

    #[inline]
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        Some(bytemuck::cast_slice_mut(&mut self.rows[i * self.dim..][..self.dim]))
    }
}

/// Copies rows into the store.
struct WriteRows<'a> {
    rows: &'a [f32],
    dim: usize,
    hints: Option<Hints<'a>>,
}

impl Operation for WriteRows<'_> {
    const ACCESS: Access = Access::Put;

    fn hints(&self) -> Option<Hints<'_>> {
        self.hints
    }

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let row: &[u8] = bytemuck::cast_slice(&self.rows[i * self.dim..][..self.dim]);
        match (value.len(), row.len()) {
            (8, 8) => value[..8].copy_from_slice(&row[..8]),
            (64, 64) => value[..64].copy_from_slice(&row[..64]),
            _ => value.copy_from_slice(row),
        }
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// One batch of gets.
#[derive(Debug)]
pub(crate) struct KvGet<'a> {
    pub(crate) name: String,
    pub(crate) rows: &'a KvRows,
}

impl Contender for KvGet<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows.rows)
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        self.rows.read(keys, Clock::Keep, rows)?;
        Ok(started.elapsed())
    }
}

/// One batch of peeks.
#[derive(Debug)]
pub(crate) struct KvPeek<'a> {
    pub(crate) rows: &'a KvRows,
}

impl Contender for KvPeek<'_> {
    fn name(&self) -> &str {
        "kv peek"
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        self.rows.peek(keys, rows)?;
        Ok(started.elapsed())
    }
}

/// A batch of gets, then a batch of puts of the negated rows. Negating them is not timed. The put
/// uses the hints of the get, as the lease of a table does.
#[derive(Debug)]
pub(crate) struct KvGetPut<'a> {
    pub(crate) name: String,
    pub(crate) rows: &'a KvRows,
    /// True if the get moves the staleness clock up and the put moves it down.
    pub(crate) clock: bool,
    /// The signs of the rows, shared by all contenders that put into them. `None` if several
    /// threads put into the same rows.
    pub(crate) flips: Option<&'a Mutex<Flips>>,
}

impl Contender for KvGetPut<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let (up, down) =
            if self.clock { (BOUND, Clock::Release) } else { (Clock::Keep, Clock::Keep) };
        let started = Instant::now();
        let noted = self.rows.read_noting(keys, up, rows)?;
        let getting = started.elapsed();
        rows.iter_mut().for_each(|cell| *cell = -*cell);
        let started = Instant::now();
        let hints = Some(noted.all());
        self.rows.put(keys, down, WriteRows { rows, dim: self.rows.dim, hints })?;
        Ok(getting + started.elapsed())
    }

    fn after_pass(&self, keys: &[Vec<u64>], batch: usize) {
        if let Some(flips) = self.flips {
            let mut flips = flips.lock().expect("a thread that panicked has ended the run");
            keys.iter().flat_map(|keys| keys.chunks_exact(batch)).for_each(|keys| flips.note(keys));
        }
    }
}
