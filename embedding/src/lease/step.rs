//! One step of training: applies the gradients of all tables of a backward pass.
//!
//! **Problem.** A backward pass returns gradients for several tables. If the last table rejects its
//! gradients after the first table's rows have changed, the batch is half applied. A program that
//! skips the batch then trains on a state that no batch produced.
//!
//! **Approach.** Before the first row changes, the step checks everything that needs no rows, for
//! all tables: shapes, optimizers, finite sums, expired leases. Then the tables take their steps
//! one after the other. A failure of the store, or a lease that expires in between, can still end
//! the step. [`Error::StepIncomplete`] then names the tables whose rows have changed. If a row
//! would overflow, the step leaves it out and continues. [`Error::RowOverflow`] names that row at
//! the end. If the step ends early, its error also has that of the row.

use std::collections::HashSet;

use embank_kv::{Clock, Shortage};

use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::lease::Lease;
use crate::registry::LeasedRows;
use crate::table::Table;
use crate::table::gradients::BatchGradients;

/// One table's part of a step: gradients for rows that leases hold. See [`Lease::apply_many`].
#[derive(Debug)]
pub struct TableGradients<'g> {
    /// One or more leases of the same table.
    pub leases: Vec<Lease>,
    /// The keys of the gradients, which may repeat. `None` if the gradients are those of the only
    /// lease's rows, as for [`Lease::apply`].
    pub keys: Option<&'g [u64]>,
    /// One gradient of dim values per key or row. The gradients of a repeated key are summed in
    /// this order.
    pub gradients: &'g [f32],
}

/// A part of a step after its gradients were checked.
struct Checked<'g> {
    leases: &'g [Lease],
    /// Keys of the gradients. `None` if the gradients are for the only lease's distinct keys.
    unique: Option<UniqueKeys>,
    gradients: BatchGradients<'g>,
}

impl Lease {
    /// Applies gradients through several leases of one table. The optimizer takes one step for each
    /// distinct key of `keys`, even if several leases hold the key's row. Works like
    /// [`apply_many`](Self::apply_many) with one part.
    ///
    /// # Errors
    /// The errors of [`apply_many`](Self::apply_many).
    ///
    /// # Panics
    /// If the leases belong to different tables.
    pub fn apply_together(leases: Vec<Self>, keys: &[u64], gradients: &[f32]) -> Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        Self::apply_many(vec![TableGradients { leases, keys: Some(keys), gradients }])
    }

    /// Applies the gradients of several tables as one step: if the check of any part fails, no row
    /// of any table changes.
    ///
    /// If any lease has expired, no row changes. A row receives its gradient if at least one lease
    /// still holds it. A row that was deleted since the Gets receives no gradient. The leases end
    /// after the rows have changed.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch), [`NoOptimizer`](Error::NoOptimizer),
    /// [`NonFiniteGradient`](Error::NonFiniteGradient) and [`LeaseExpired`](Error::LeaseExpired),
    /// before any row is changed.
    /// [`RowOverflow`](Error::RowOverflow), after all other rows are changed.
    /// [`StepIncomplete`](Error::StepIncomplete) if a table fails after other tables have changed;
    /// the error names the changed tables. After any error all leases have ended.
    ///
    /// # Panics
    /// If a part has no lease, leases of several tables, or several leases without `keys`.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Lease, Optimizer, TableConfig, TableGradients};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let config = TableConfig::new(1).optimizer(Optimizer::adagrad(0.5));
    /// let (users, items) = (bank.table("user", config.clone())?, bank.table("item", config)?);
    /// let mut rows = [0.0; 2];
    /// let of_users = vec![users.get(&[4, 9], &mut rows)?, users.get(&[4], &mut rows[..1])?];
    /// let of_items = vec![items.get(&[1], &mut rows[..1])?];
    /// let refused = Lease::apply_many(vec![
    ///     TableGradients { leases: of_users, keys: Some(&[4, 9]), gradients: &[2.0, 1.0] },
    ///     TableGradients { leases: of_items, keys: None, gradients: &[f32::NAN] },
    /// ]);
    /// assert!(refused.is_err());
    /// assert_eq!(users.stats().apply_rows, 0); // no table has moved
    /// assert_eq!(users.outstanding(4)?, Some(0)); // and the leases are given back
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn apply_many(parts: Vec<TableGradients<'_>>) -> Result<()> {
        let checked = parts.iter().map(TableGradients::check).collect::<Result<Vec<_>>>()?;
        let mut moved = Vec::with_capacity(checked.len());
        let mut overflow = None;
        for part in checked {
            let table = part.leases[0].table.name().to_owned();
            match part.apply() {
                Ok(()) => {}
                Err(error @ Error::RowOverflow { .. }) => overflow = overflow.or(Some(error)),
                Err(error) if moved.is_empty() => return Err(error),
                Err(error) => {
                    let source = Box::new(error);
                    let overflow = overflow.map(Box::new);
                    return Err(Error::StepIncomplete { moved, table, source, overflow });
                }
            }
            moved.push(table);
        }
        overflow.map_or(Ok(()), Err)
    }
}

impl TableGradients<'_> {
    /// Sums the gradients of repeated keys. Fails if a gradient or a sum is not finite.
    fn check(&self) -> Result<Checked<'_>> {
        let Self { leases, keys, gradients } = self;
        let [first, others @ ..] = &leases[..] else { panic!("a part of a step has no lease") };
        let table = &first.table;
        assert!(
            others.iter().all(|lease| lease.table.is_same(table)),
            "leases that are answered together are of one table"
        );
        for lease in leases {
            lease.check()?;
        }
        let Some(keys) = *keys else {
            assert!(others.is_empty(), "the gradients of several leases come with their keys");
            let gradients = first.checked_gradients(gradients)?;
            return Ok(Checked { leases, unique: None, gradients });
        };
        table.check_shape("gradients", keys.len(), gradients.len())?;
        // If the keys are one lease's distinct keys in order, no sums are needed.
        let is_whole = others.is_empty() && first.unique().keys() == keys;
        let unique = (!is_whole).then(|| table.unique_keys(keys)).transpose()?;
        let gradients = match &unique {
            None => table.distinct_gradients(keys, gradients)?,
            Some(unique) => table.batch_gradients(unique, None, gradients)?,
        };
        Ok(Checked { leases, unique, gradients })
    }
}

impl Checked<'_> {
    /// Applies the part's gradients to its table.
    fn apply(self) -> Result<()> {
        let Self { leases, unique, gradients } = self;
        let [first, ..] = leases else { return Ok(()) };
        let Some(unique) = unique else { return first.apply_checked(&gradients) };
        let table: &Table = &first.table;
        // A thread must not enter a table's turnstile twice, so it enters once for all leases of
        // the part.
        let entered = first.enter();
        let held: Vec<_> = leases.iter().map(|lease| lease.entry.what().held(&entered)).collect();
        let held_keys: HashSet<u64> = held.iter().flat_map(|held| held.keys()).copied().collect();
        let rows = unique.keys().iter().copied().zip(0_u32..);
        let (keys, numbers): (Vec<u64>, Vec<u32>) =
            rows.filter(|(key, _)| held_keys.contains(key)).unzip();
        let rows = gradients.rows(Some(&numbers));
        let mut apply = table.prepare_apply(&keys, rows, gradients.magnitudes, false);
        // This call must not stop halfway. Its leases are already claimed, so the caller can't
        // repeat it, and other tables may already have taken their step.
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
