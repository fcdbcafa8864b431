//! Methods that take, inspect and consume leases.

use std::sync::Arc;

use embank::{AheadQueue, Lease, Pending, Table};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::bank_cell::BankCell;
use super::handles::{AheadQueueId, LeaseId, OpenHandles, PendingId, TableHandle};
use crate::{errors, signals};

impl BankCell {
    /// Takes one lease on each table with the GIL released and keeps them. If one can't be taken,
    /// no lease is kept. `None` if a call returns `None`.
    ///
    /// `calls` must be in the order of their tables' ids. Every call that takes several leases
    /// takes them in this order, so two calls that wait at staleness bounds never wait for each
    /// other.
    pub(crate) fn take_leases<C>(
        &self,
        py: Python<'_>,
        calls: Vec<(TableHandle, C)>,
    ) -> PyResult<Option<Vec<LeaseId>>>
    where
        C: FnOnce(&Table) -> embank::Result<Option<Lease>> + Send,
    {
        let tables = self.pick(|open| {
            calls.iter().map(|(id, _)| open.table(*id)).collect::<PyResult<Vec<_>>>()
        })?;
        let kept = self.run(py, move || {
            // If a lease can't be taken, the leases taken before it are dropped. This lowers the
            // staleness clocks of their rows again.
            let leases = tables
                .iter()
                .zip(calls)
                .map(|(table, (_, call))| call(table))
                .collect::<embank::Result<Option<Vec<_>>>>()?;
            // If a signal handler has raised, the caller gets an exception in place of the leases,
            // so the leases end here.
            let Some(leases) = leases.filter(|_| !signals::has_raised()) else {
                return Ok(Some(None));
            };
            Ok(self.store(leases, |open, leases| {
                Some(leases.into_iter().map(|lease| open.leases.keep(lease)).collect())
            }))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Asks for a get ahead with the GIL released, and keeps it. `None` if the queue is closed.
    pub(crate) fn get_ahead<R: Send>(
        &self,
        py: Python<'_>,
        table: TableHandle,
        queue: AheadQueueId,
        ask: impl FnOnce(&Table, &AheadQueue) -> embank::Result<(Pending, R)> + Send,
    ) -> PyResult<Option<(PendingId, R)>> {
        let (table, queue) = self
            .pick(|open| Ok((open.table(table)?, open.ahead_queues.get(&queue).map(Arc::clone))))?;
        let kept = self.run(py, move || {
            let Some(queue) = queue else { return Ok(Some(None)) };
            let (pending, rest) = ask(&table, &queue)?;
            Ok(self.keep(pending).map(|id| Some((id, rest))))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Takes a get ahead, waits for it with `wait` and with the GIL released, and keeps its lease.
    /// `None` if a call has taken the get before.
    pub(crate) fn wait_for_lease<R: Send>(
        &self,
        py: Python<'_>,
        id: PendingId,
        wait: impl FnOnce(Pending) -> embank::Result<(Lease, R)> + Send,
    ) -> PyResult<Option<(LeaseId, R)>> {
        let pending = self.pick(|open| Ok(open.pending.take(&id)))?;
        let kept = self.run(py, move || {
            let waited = pending.map(wait).transpose()?;
            // If a signal handler has raised, the caller gets an exception, so the lease ends here.
            let Some((lease, rest)) = waited.filter(|_| !signals::has_raised()) else {
                return Ok(Some(None));
            };
            Ok(self.keep(lease).map(|id| Some((id, rest))))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Removes a lease from its registry and runs `call` on it with the GIL released. `call`
    /// consumes the lease.
    pub(crate) fn consume_lease<R: Send>(
        &self,
        py: Python<'_>,
        id: LeaseId,
        call: impl FnOnce(Lease) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        self.with_taken(py, id, call)?.ok_or_else(lease_consumed)
    }

    /// Runs `call` on a lease with the GIL released. The lease stays held. During the call other
    /// threads find it consumed.
    pub(crate) fn with_kept_lease<R: Send>(
        &self,
        py: Python<'_>,
        id: LeaseId,
        call: impl FnOnce(&Lease) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        self.consume_lease(py, id, |lease| {
            let outcome = call(&lease);
            // If the bank was closed during the call, `store` drops the lease. This lowers the
            // staleness clocks of its rows again.
            self.store(lease, |open, lease| open.leases.insert(id, lease));
            outcome
        })
    }

    /// Takes the leases of each table and runs `call` on them with the GIL released. Takes no lease
    /// if one was consumed before or belongs to another table.
    pub(crate) fn with_leases<R: Send>(
        &self,
        py: Python<'_>,
        of_tables: &[(TableHandle, Vec<LeaseId>)],
        call: impl FnOnce(Vec<Vec<Lease>>) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let leases = self.pick(|open| {
            for (table, ids) in of_tables {
                check_leases_of(open, *table, ids)?;
            }
            let mut take = |ids: &[LeaseId]| -> Vec<Lease> {
                ids.iter().filter_map(|id| open.leases.take(id)).collect()
            };
            Ok(of_tables.iter().map(|(_, ids)| take(ids)).collect::<Vec<_>>())
        })?;
        self.run(py, move || call(leases))
    }

    /// Fails unless the lease can still be consumed.
    pub(crate) fn check_lease(&self, id: LeaseId) -> PyResult<()> {
        self.look(|open| match open.map(|open| open.leases.get(&id)) {
            None => Err(errors::bank_closed()),
            Some(None) => Err(lease_consumed()),
            Some(Some(_)) => Ok(()),
        })?
    }

    /// The lease's state: "held", "expired", "ended", or "closed" with its bank.
    pub(crate) fn lease_state(&self, id: LeaseId) -> PyResult<&'static str> {
        self.look(|open| match open.map(|open| open.leases.get(&id)) {
            None => "closed",
            Some(None) => "ended",
            Some(Some(lease)) if lease.is_expired() => "expired",
            Some(Some(_)) => "held",
        })
    }

    /// Fails with the error that consuming the lease would return now.
    pub(crate) fn check_consumable(&self, py: Python<'_>, id: LeaseId) -> PyResult<()> {
        self.check_lease(id)?;
        let checked = self.look_at(id, Lease::check)?;
        checked.unwrap_or(Ok(())).map_err(|error| errors::to_python(py, &error))
    }

    /// True if the lease can still be consumed and has not expired.
    pub(crate) fn is_held(&self, id: LeaseId) -> bool {
        self.lease_state(id).is_ok_and(|state| state == "held")
    }

    /// Ends a lease without an update, if no call has ended it yet. Other Python threads can run
    /// meanwhile, because the call releases the GIL.
    pub(crate) fn release(&self, py: Python<'_>, id: LeaseId) -> PyResult<()> {
        let lease = match self.pick(|open| Ok(open.leases.take(&id))) {
            Ok(lease) => lease,
            // If the bank is closed, `close` has released the lease.
            Err(_) if self.is_closed()? => return Ok(()),
            Err(error) => return Err(error),
        };
        self.run(py, move || lease.map_or(Ok(()), Lease::release))
    }

    /// Records that another thread will end the lease.
    pub(crate) fn hand_over(&self, id: LeaseId) -> PyResult<()> {
        self.check_lease(id)?;
        // If a call has taken the lease, that call ends it.
        self.look_at(id, Lease::hand_over)?;
        Ok(())
    }
}

/// Fails unless each of `ids` occurs only once, can be consumed, and belongs to the table.
fn check_leases_of(open: &OpenHandles, table: TableHandle, ids: &[LeaseId]) -> PyResult<()> {
    for (place, id) in ids.iter().enumerate() {
        if ids[..place].contains(id) {
            return Err(lease_consumed());
        }
        let lease = open.leases.get(id).ok_or_else(lease_consumed)?;
        // After a roll back the bank knows the table by another id than `table.id`, so the bank's
        // id is compared.
        if open.tables.get(&table).is_none_or(|of| lease.table().id() != of.id()) {
            return Err(lease_of_another_table());
        }
    }
    Ok(())
}

pub(crate) fn lease_of_another_table() -> PyErr {
    PyValueError::new_err(
        "not every lease is one of this table: answer those of each table in a call of their own",
    )
}

fn lease_consumed() -> PyErr {
    PyValueError::new_err("this lease was already applied, put or released: get the rows again")
}
