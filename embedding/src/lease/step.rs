//! One step of training: the gradients of all tables of a backward pass.
//!
//! **Problem.** A backward pass gives gradients for several tables. If those of the last table are
//! refused after the rows of the first table have changed, the batch is half applied. A program
//! that skips the batch then trains on a state that no batch made.
//!
//! **Approach.** Before the first row changes, the step checks for all tables what can be known
//! without their rows: shapes, optimizers, finite sums, leases that have expired. Then the tables
//! take their steps one after the other. A failure of the store, or a lease that expires in
//! between, can still end the step. [`Error::StepIncomplete`] names the tables whose rows have
//! changed. A row that would overflow is left out, and the step continues; [`Error::RowOverflow`]
//! names it at the end.

use std::collections::HashSet;
use std::sync::Arc;

use embank_kv::{Clock, Shortage};

use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::lease::Lease;
use crate::registry::LeasedRows;
use crate::table::Table;
use crate::table::bags::Bags;
use crate::table::gradients::BatchGradients;

/// What the gradients of a part of a step are for.
#[derive(Debug, Clone, Copy)]
pub enum GradientPer<'g> {
    /// One for each of the part's `keys`, of which a key may come more than once.
    Key,
    /// One for each place of the batch of the only lease. `keys` is ignored.
    Place,
    /// One for each of these bags, which are those of the only lease's Get. `keys` is ignored.
    Bag(Bags<'g>),
}

/// A table's part of a step: gradients for rows that leases hold. See [`Lease::apply_many`].
#[derive(Debug)]
pub struct TableGradients<'g> {
    /// Leases of one table, at least one.
    pub leases: Vec<Lease>,
    /// The keys that have a gradient, with [`GradientPer::Key`].
    pub keys: &'g [u64],
    /// One gradient of dim values for each key, place or bag. Those of equal keys are summed in
    /// this order.
    pub gradients: &'g [f32],
    /// What each gradient is for.
    pub per: GradientPer<'g>,
}

/// A part of a step whose gradients were checked.
struct Checked<'g> {
    leases: Vec<Lease>,
    /// `None`: the distinct keys of the only lease.
    unique: Option<UniqueKeys>,
    gradients: BatchGradients<'g>,
}

impl Lease {
    /// Applies one gradient through several leases of one table: one step of the optimizer for each
    /// of `keys`, also if several of the leases hold its row. As [`apply_many`](Self::apply_many)
    /// with one part.
    ///
    /// # Errors
    /// As [`apply_many`](Self::apply_many).
    ///
    /// # Panics
    /// If the leases are of several tables.
    pub fn apply_together(leases: Vec<Self>, keys: &[u64], gradients: &[f32]) -> Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        Self::apply_many(vec![TableGradients { leases, keys, gradients, per: GradientPer::Key }])
    }

    /// Applies the gradients of several tables as one step: if a part is refused, no row of any
    /// table changes.
    ///
    /// If one of the leases of a table has expired, no row changes. A row gets its gradient if one
    /// of the leases still holds it, so a row that was deleted since the Gets gets none. The counts
    /// come down once the rows have changed.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch), [`BadBags`](Error::BadBags),
    /// [`NoOptimizer`](Error::NoOptimizer), [`NonFiniteGradient`](Error::NonFiniteGradient) and
    /// [`LeaseExpired`](Error::LeaseExpired) before any row is
    /// changed; [`RowOverflow`](Error::RowOverflow) after all other rows are;
    /// [`StepIncomplete`](Error::StepIncomplete) with the tables that have moved before one failed.
    /// The counts of all leases are given back in each case.
    ///
    /// # Panics
    /// If a part has no lease, leases of several tables, or several leases with gradients for each
    /// place or bag.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, GradientPer, Lease, Optimizer, TableConfig, TableGradients};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let config = TableConfig::new(1).optimizer(Optimizer::adagrad(0.5));
    /// let (users, items) = (bank.table("user", config.clone())?, bank.table("item", config)?);
    /// let mut rows = [0.0; 2];
    /// let of_users = vec![users.get(&[4, 9], &mut rows)?, users.get(&[4], &mut rows[..1])?];
    /// let of_items = vec![items.get(&[1], &mut rows[..1])?];
    /// let per = GradientPer::Key;
    /// let refused = Lease::apply_many(vec![
    ///     TableGradients { leases: of_users, keys: &[4, 9], gradients: &[2.0, 1.0], per },
    ///     TableGradients { leases: of_items, keys: &[1], gradients: &[f32::NAN], per },
    /// ]);
    /// assert!(refused.is_err());
    /// assert_eq!(users.stats().apply_rows, 0); // no table has moved
    /// assert_eq!(users.outstanding(4)?, Some(0)); // and the leases are given back
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn apply_many(parts: Vec<TableGradients<'_>>) -> Result<()> {
        let checked = parts.into_iter().map(TableGradients::check).collect::<Result<Vec<_>>>()?;
        let mut moved = Vec::with_capacity(checked.len());
        let mut overflow = None;
        for part in checked {
            let table = part.leases[0].table.name().to_owned();
            match part.apply() {
                Ok(()) => {}
                Err(error @ Error::RowOverflow { .. }) => overflow = overflow.or(Some(error)),
                Err(error) if moved.is_empty() => return Err(error),
                Err(error) => {
                    return Err(Error::StepIncomplete { moved, table, source: Box::new(error) });
                }
            }
            moved.push(table);
        }
        overflow.map_or(Ok(()), Err)
    }
}

impl<'g> TableGradients<'g> {
    /// Sums the gradients of equal keys, and refuses those that must not reach a row.
    fn check(self) -> Result<Checked<'g>> {
        let Self { leases, keys, gradients, per } = self;
        let [first, others @ ..] = &leases[..] else { panic!("a part of a step has no lease") };
        let table = &first.table;
        assert!(
            others.iter().all(|lease| Arc::ptr_eq(&lease.table.shared, &table.shared)),
            "leases that are answered together are of one table"
        );
        for lease in &leases {
            lease.check()?;
        }
        let bags = match per {
            GradientPer::Key => None,
            GradientPer::Place => Some(None),
            GradientPer::Bag(bags) => Some(Some(bags)),
        };
        if let Some(bags) = bags {
            assert!(others.is_empty(), "gradients for each place or bag go with one lease");
            let gradients = first.checked_gradients(bags.as_ref(), gradients)?;
            return Ok(Checked { leases, unique: None, gradients });
        }
        table.check_shape("gradients", keys.len(), gradients.len())?;
        // The distinct keys of one lease, in its order, need no sums.
        let is_whole = others.is_empty() && first.unique().keys() == keys;
        let unique = (!is_whole).then(|| UniqueKeys::new(keys));
        let gradients = match &unique {
            None => table.distinct_gradients(keys, gradients)?,
            Some(unique) => table.batch_gradients(unique, None, gradients)?,
        };
        Ok(Checked { leases, unique, gradients })
    }
}

impl Checked<'_> {
    /// Takes the step.
    fn apply(self) -> Result<()> {
        let Self { leases, unique, gradients } = self;
        let first = &leases[0];
        let Some(unique) = unique else { return first.apply_checked(&gradients) };
        let table: &Table = &first.table;
        // One entry for all leases: a thread must not enter the turnstile twice.
        let entered = first.enter();
        let held: Vec<_> = leases.iter().map(|lease| lease.entry.what().held(&entered)).collect();
        let held_keys: HashSet<u64> = held.iter().flat_map(|held| held.keys()).copied().collect();
        let rows = unique.keys().iter().copied().zip(0_u32..);
        let (keys, numbers): (Vec<u64>, Vec<u32>) =
            rows.filter(|(key, _)| held_keys.contains(key)).unzip();
        let rows = gradients.rows(Some(&numbers));
        let mut apply = table.prepare_apply(&keys, rows, gradients.magnitudes, false);
        // The leases are claimed by now, and other tables may have taken their step.
        apply.shortage = Shortage::GoesOn;
        let release = |some: &[LeasedRows<'_>]| {
            some.iter().for_each(|held| table.release_held(held, &entered));
        };
        for (at, lease) in leases.iter().enumerate() {
            lease.begin_answer().inspect_err(|_| release(&held[..at]))?;
        }
        let applied = table.execute_update(&keys, Clock::Keep, &mut apply);
        release(&held);
        applied
    }
}
