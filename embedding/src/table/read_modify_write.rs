//! Read-modify-write: changes rows by a function of the caller.
//!
//! **Problem.** A caller that reads a row, computes and puts the result loses the updates that
//! other threads make in between. A lease with bound 0 prevents that, but costs two calls.
//!
//! **Approach.** The function runs in an operation of the store, so the result replaces exactly the
//! row that the function got. The function works on a copy of the row in f32. Only a result that
//! the table can hold replaces the row. A function that panics therefore leaves its row unchanged,
//! and the store releases the lock of the row's record as usual.

use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use embank_kv::{Access, Clock, Operation, Shortage};

use crate::error::{Error, Result};
use crate::row::layout::RowLayout;
use crate::row::layout::whole::Beyond;
use crate::table::Table;
use crate::table::operations::last_reports;
use crate::table::parts::Divisible;

impl Table {
    /// Changes rows by `function`, without a lease: a read-modify-write. Inserts missing rows with
    /// their initial values before the change, also keys that [`Admission`](crate::Admission) has
    /// not admitted. Changes each distinct key once, even if the key repeats, so that the result
    /// does not depend on an order of calls. A caller that needs the number of repetitions counts
    /// the keys first. Does not change staleness clocks.
    ///
    /// `function` gets the key, the row's vector of dim values, and the optimizer's state. The
    /// state has the order of [`DecodedRow::state`](crate::DecodedRow), without the count of steps,
    /// and is empty without an optimizer. Values are f32 whatever the table's dtype. The result is
    /// rounded to the dtype like an update ([`Rounding`](crate::Rounding)). A row that `function`
    /// does not change keeps its values. A row of FTRL is computed from its state at the next step,
    /// so a lasting change of such a row changes the state too.
    ///
    /// The result replaces exactly the row that `function` got, so no change by another call is
    /// lost. If the row's record moves during the call, the bank calls `function` again with the
    /// row's present values, and only the last result counts. The bank may call `function` on
    /// several threads at the same time, for different rows. So `function` should only compute from
    /// its arguments. It must be short, because calls for the row and checkpoints wait for it. It
    /// must not call this bank: such a call may wait forever.
    ///
    /// # Errors
    /// [`Error::KeyIsNoId`], before any row is changed. [`Error::UpdateRefused`] if `function`
    /// panics, or gives a value that the table can't hold or a state that can't serve the next step
    /// (a negative sum of squares, or another value of 2^50 or more), after all other rows are
    /// changed. A failure of the store, after which some rows may be changed. A call that repeats
    /// the batch would change those rows twice.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Initializer, Missing, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("seen", TableConfig::new(2).initializer(Initializer::Zeros))?;
    /// for _ in 0..3 {
    ///     table.update(&[7, 9], |key, row, _| {
    ///         row[0] += 1.0;
    ///         row[1] = row[1].max(key as f32);
    ///     })?;
    /// }
    /// let mut rows = [0.0; 4];
    /// table.peek(&[7, 9], &mut rows, Missing::Error)?;
    /// assert_eq!(rows, [3.0, 7.0, 3.0, 9.0]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn update(
        &self,
        keys: &[u64],
        function: impl Fn(u64, &mut [f32], &mut [f32]) + Sync,
    ) -> Result<()> {
        self.update_with(keys, |key, row, state| {
            function(key, row, state);
            ControlFlow::Continue(())
        })
    }

    /// Changes rows like [`update`](Self::update), with a function that can end the call. `Break`
    /// leaves its row unchanged, and makes no row for its key. Threads of the bank that share the
    /// batch may each still change one row after that.
    ///
    /// # Errors
    /// [`Error::Cancelled`] after a `Break`: some rows are changed. The errors of
    /// [`update`](Self::update).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use std::ops::ControlFlow;
    ///
    /// use embank::{Bank, BankOptions, Error, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1))?;
    /// table.put(&[1], &[-4.0])?;
    /// let ended = table.update_with(&[1], |_, row, _| match row[0] {
    ///     0.0.. => ControlFlow::Continue(row[0] = row[0].sqrt()),
    ///     _ => ControlFlow::Break(()),
    /// });
    /// assert!(matches!(ended, Err(Error::Cancelled)));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn update_with(
        &self,
        keys: &[u64],
        function: impl Fn(u64, &mut [f32], &mut [f32]) -> ControlFlow<()> + Sync,
    ) -> Result<()> {
        let unique = self.unique_keys(keys)?;
        let keys = unique.keys();
        self.check_ids(keys)?;
        let ended = AtomicBool::new(false);
        let mut update = UpdateRows {
            layout: self.shared.layout(),
            keys,
            function: &function,
            ended: &ended,
            shortage: Shortage::Whole,
            room: Vec::new(),
            noted: Vec::new(),
        };
        let outcome = self.execute_in_parts(keys, Clock::Keep, &mut update)?;
        let counters = &self.shared.counters;
        counters.disk_reads.add(outcome.disk_reads);
        counters.puts.add(1);
        counters.put_rows.add((keys.len() - outcome.missing.len()) as u64);
        // Relaxed: the threads that may have set the flag have finished their parts.
        if ended.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let reports = last_reports(&mut update.noted);
        let mut refused =
            reports.into_iter().filter_map(|(place, refusal)| Some((place, refusal?)));
        let Some((place, refusal)) = refused.next() else { return Ok(()) };
        Err(Error::UpdateRefused {
            table: self.name().to_owned(),
            key: keys[place as usize],
            why: self.why(refusal),
            rows: 1 + refused.count(),
        })
    }

    fn why(&self, refusal: Refusal) -> String {
        let config = self.config();
        match refusal {
            Refusal::Panicked(text) => format!("the function panicked: {text}"),
            Refusal::Beyond(Beyond::Vector { column, value }) => format!(
                "the function makes column {column} {value}, which {} can't hold as a finite value",
                config.dtype.name()
            ),
            Refusal::Beyond(Beyond::State { place, value }) => format!(
                "the function makes value {place} of the optimizer's state {value}, which {} can't hold as a finite \
                 value",
                config.state_dtype.name()
            ),
            Refusal::Beyond(Beyond::NoState { place, value }) => format!(
                "the function makes value {place} of the optimizer's state {value}, which can't serve the next step: sums of \
                 squares must not be negative, and other state must be below 2^50"
            ),
        }
    }
}

/// The reason why a row keeps its values.
#[derive(Debug)]
enum Refusal {
    /// The function panicked with this text.
    Panicked(String),
    /// The table can't hold the function's result.
    Beyond(Beyond),
}

/// Calls the caller's function for each row.
struct UpdateRows<'a, F> {
    layout: &'a RowLayout,
    keys: &'a [u64],
    function: &'a F,
    /// True once the function has ended the call.
    ended: &'a AtomicBool,
    shortage: Shortage,
    /// Scratch memory for a row before and after the function.
    room: Vec<f32>,
    /// The results of all calls of the function, beginning with the first refused one. If a row
    /// moved, its place has several results, and the last one counts.
    noted: Vec<(u32, Option<Refusal>)>,
}

impl<F> UpdateRows<'_, F>
where
    F: Fn(u64, &mut [f32], &mut [f32]) -> ControlFlow<()>,
{
    fn has_ended(&self) -> bool {
        // Relaxed: no other data depends on the flag. A thread that does not see it yet changes one
        // more row.
        self.ended.load(Ordering::Relaxed)
    }

    /// Calls the function for the row of `key`.
    fn change(&mut self, key: u64, value: &mut [u8]) -> std::result::Result<(), Refusal> {
        let layout = self.layout;
        let values = layout.whole_len();
        self.room.resize(2 * values, 0.0);
        let (before, after) = self.room.split_at_mut(values);
        layout.read_whole(value, before);
        after.copy_from_slice(before);
        let (vector, state) = after.split_at_mut(layout.dim);
        // Unwind safe: the function changes only `after`, which is not used after a panic.
        match catch_unwind(AssertUnwindSafe(|| (self.function)(key, vector, state))) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => {
                self.ended.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Err(panic) => return Err(Refusal::Panicked(text_of(&*panic))),
        }
        layout.write_whole(key, value, before, after).map_err(Refusal::Beyond)?;
        layout.note_use(value);
        Ok(())
    }
}

impl<F> Operation for UpdateRows<'_, F>
where
    F: Fn(u64, &mut [f32], &mut [f32]) -> ControlFlow<()>,
{
    const ACCESS: Access = Access::Update;

    fn shortage(&self) -> Shortage {
        self.shortage
    }

    fn update(&mut self, i: usize, value: &mut [u8]) {
        if self.has_ended() {
            return;
        }
        let refusal = self.change(self.keys[i], value).err();
        if refusal.is_some() || !self.noted.is_empty() {
            self.noted.push((i as u32, refusal));
        }
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        if self.has_ended() {
            return false;
        }
        self.room.resize(self.layout.dim, 0.0);
        self.layout.begin(self.keys[i], value, &mut self.room);
        self.update(i, value);
        // A function that ends the call leaves no new row. Another thread may have ended it
        // meanwhile, and then a row that this thread has made is left out too.
        !self.has_ended()
    }
}

impl<F> Divisible for UpdateRows<'_, F>
where
    F: Fn(u64, &mut [f32], &mut [f32]) -> ControlFlow<()> + Sync,
{
    type Part<'p>
        = UpdateRows<'p, F>
    where
        Self: 'p;
    type Found = Vec<(u32, Option<Refusal>)>;

    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<UpdateRows<'_, F>> {
        let part = |range: &Range<usize>| UpdateRows {
            layout: self.layout,
            keys: &self.keys[range.clone()],
            function: self.function,
            ended: self.ended,
            // Other parts may already have changed rows, so this part must not stop halfway.
            shortage: Shortage::GoesOn,
            room: Vec::new(),
            noted: Vec::new(),
        };
        ranges.iter().map(part).collect()
    }

    fn found(mut part: UpdateRows<'_, F>) -> Self::Found {
        last_reports(&mut part.noted)
    }

    fn take_in(&mut self, start: usize, found: Self::Found) {
        self.noted
            .extend(found.into_iter().map(|(place, refusal)| (start as u32 + place, refusal)));
    }
}

/// Returns the text of a panic.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("its payload is not text").to_owned()
}
