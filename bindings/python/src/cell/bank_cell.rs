//! The open bank behind the Python objects, and how it closes.
//!
//! A Rust bank closes when its last handle goes, and tables and leases are handles. In Python those
//! live until the garbage collector or a traceback lets them go, so `close()` must not wait for
//! them: the Python objects hold no handle but a share of one [`BankCell`], which owns them all. Closing
//! takes them out of the cell: leases first (their counts return, and a get that waits for one
//! wakes up), then tables, then the bank. What other threads are doing in the store right now
//! goes on to its end, because they cloned their handle; `close` waits for them, so the bank's
//! files are closed when it returns. That wait ends, because a get waits no longer than its timeout.
//!
//! Pipelines number in a bank's vocabularies with handles of their own, in threads of their own. The cell
//! has their slots, and closing comes to those first: it ends runs and feeds and drops the pipelines.
//!
//! Invariants: no handle is dropped while `state` is locked (a drop may write), and the GIL is never
//! taken while it is.
//!
//! A child made by `fork` shares the parent's files but has none of its threads. There the cell answers
//! every call with an error and lets its handles leak: dropping them would write to the parent's files
//! and wait for threads that do not exist. The process id is looked at before the lock, which another
//! thread may have held at the fork.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use embank::locks::{Condvar, Mutex};
use embank::{Admission, Bank, Lease, Prefetch, Scan, Table, TableId, Unsaved, Vocabulary};
use pyo3::prelude::*;

use crate::pipeline::slot::Slot;
use crate::{errors, signals};

/// Names a lease within its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(u64);

/// Names a prefetch within its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PrefetchId(u64);

/// Names a scan within its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ScanId(u64);

/// Names a vocabulary's handle within its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct VocabularyId(u64);

/// Names a pipeline's slot within its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PipelineId(u64);

/// Names a table within its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellTableId {
    /// Names it within its open bank: its name and its number may come to mean another.
    pub(crate) id: TableId,
    /// How often the bank was taken back when the object was made: an id may then come to mean
    /// another table.
    pub(crate) roll_backs: u32,
}

/// What a table object needs to know of its table.
#[derive(Debug)]
pub(crate) struct TableKey {
    pub(crate) id: CellTableId,
    pub(crate) name: Arc<str>,
    pub(crate) dim: usize,
    /// Whether some keys get no row at their first Get.
    pub(crate) is_gated: bool,
}

/// An open bank, or what is left of it.
#[derive(Debug)]
pub(crate) struct BankCell {
    path: PathBuf,
    process: u32,
    state: Mutex<State>,
    /// Told whenever `in_flight` reaches 1 or 0.
    idle: Condvar,
}

#[derive(Debug)]
struct State {
    open: Option<Open>,
    /// Calls that hold a clone of a handle.
    in_flight: usize,
    /// The bank was closed while a call had taken its handles, to open it again.
    closing: bool,
}

/// How many handles of each kind were made: their names are numbers that come once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Made {
    leases: u64,
    prefetches: u64,
    scans: u64,
    vocabularies: u64,
    pipelines: u64,
    pub(crate) roll_backs: u32,
}

/// Every handle of the bank that is not in use by a call right now. Dropped in this order.
#[derive(Debug)]
pub(crate) struct Open {
    leases: HashMap<LeaseId, Lease>,
    prefetches: HashMap<PrefetchId, Prefetch>,
    /// Each is used by one call at a time.
    scans: HashMap<ScanId, Arc<Mutex<Scan>>>,
    pub(crate) vocabularies: HashMap<VocabularyId, Vocabulary>,
    pub(crate) pipelines: HashMap<PipelineId, Arc<Slot>>,
    /// Those that were dropped too: their handles say so.
    pub(crate) tables: HashMap<CellTableId, Table>,
    pub(crate) bank: Bank,
    made: Made,
}

impl Open {
    pub(crate) fn new(bank: Bank, made: Made) -> Self {
        Self {
            leases: HashMap::new(),
            prefetches: HashMap::new(),
            scans: HashMap::new(),
            vocabularies: HashMap::new(),
            pipelines: HashMap::new(),
            tables: HashMap::new(),
            bank,
            made,
        }
    }

    pub(crate) fn counts(&self) -> Made {
        self.made
    }

    fn keep_lease(&mut self, lease: Lease) -> LeaseId {
        let id = LeaseId(self.made.leases);
        self.made.leases += 1;
        self.leases.insert(id, lease);
        id
    }

    /// Drops all handles and the bank, and returns what that loses. `until_alone` returns when no call has a handle.
    pub(crate) fn end(self, until_alone: impl FnOnce()) -> Option<Unsaved> {
        let bank = self.bank.clone();
        drop(self);
        until_alone();
        bank.unsaved()
    }

    fn table(&self, id: CellTableId) -> PyResult<Table> {
        self.tables.get(&id).cloned().ok_or_else(errors::not_in_checkpoint)
    }
}

impl BankCell {
    pub(crate) fn new(bank: Bank) -> Self {
        let path = bank.path().to_owned();
        let open = Open::new(bank, Made::default());
        Self {
            path,
            process: process::id(),
            state: Mutex::new(State { open: Some(open), in_flight: 0, closing: false }),
            idle: Condvar::new(),
        }
    }

    /// The bank's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether calls would find it closed.
    pub(crate) fn is_closed(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(self.state.lock().open.is_none())
    }

    /// Runs `call` on the bank with the GIL released.
    pub(crate) fn with_bank<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        self.run(py, move || call(&bank))
    }

    /// Opens a table with the GIL released and keeps its handle.
    pub(crate) fn open_table(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> embank::Result<Table> + Send,
    ) -> PyResult<TableKey> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        let kept = self.run(py, move || {
            let table = call(&bank)?;
            let (id, name, dim) = (table.id(), table.name().into(), table.dim());
            let is_gated = table.config().admission != Admission::Always;
            Ok(self.keep(table, |open, table| {
                let id = CellTableId { id, roll_backs: open.made.roll_backs };
                open.tables.insert(id, table);
                TableKey { id, name, dim, is_gated }
            }))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Whether two objects are of one table. Two of one number are not if one of the tables was
    /// dropped.
    pub(crate) fn is_one_table(&self, one: CellTableId, other: CellTableId) -> PyResult<bool> {
        if one.id.number() != other.id.number() {
            return Ok(false);
        }
        self.check_process()?;
        let state = self.state.lock();
        let tables = &state.open.as_ref().ok_or_else(errors::bank_closed)?.tables;
        let id = |of| tables.get(&of).map(Table::id);
        Ok(id(one).is_some_and(|id_of_one| Some(id_of_one) == id(other)))
    }

    /// Runs `call` on a table from [`open_table`](Self::open_table) with the GIL released.
    pub(crate) fn with_table<R: Send>(
        &self,
        py: Python<'_>,
        id: CellTableId,
        call: impl FnOnce(&Table) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let table = self.pick(|open| open.table(id))?;
        self.run(py, move || call(&table))
    }

    /// Takes a lease with the GIL released and keeps it.
    pub(crate) fn take_lease(
        &self,
        py: Python<'_>,
        table: CellTableId,
        call: impl FnOnce(&Table) -> embank::Result<Option<Lease>> + Send,
    ) -> PyResult<Option<LeaseId>> {
        let table = self.pick(|open| open.table(table))?;
        let kept = self.run(py, move || {
            let lease = call(&table)?;
            // The caller of a call that raises gets no lease, so the lease ends here.
            let lease = lease.filter(|_| !signals::has_raised());
            Ok(lease.map(|lease| self.keep(lease, Open::keep_lease)))
        })?;
        kept.map(|kept| kept.ok_or_else(errors::bank_closed)).transpose()
    }

    /// Takes one lease on each table with the GIL released, all or none, and keeps them.
    ///
    /// `calls` come in the order of their tables' ids: everybody who takes several at once takes
    /// them in that
    /// order, so two who wait at staleness bounds never wait for each other.
    pub(crate) fn take_leases<C>(
        &self,
        py: Python<'_>,
        calls: Vec<(CellTableId, C)>,
    ) -> PyResult<Vec<LeaseId>>
    where
        C: FnOnce(&Table) -> embank::Result<Lease> + Send,
    {
        let tables = self.pick(|open| {
            calls.iter().map(|(id, _)| open.table(*id)).collect::<PyResult<Vec<_>>>()
        })?;
        let kept = self.run(py, move || {
            // Those before one that fails are dropped, which gives their counts back.
            let leases = tables
                .iter()
                .zip(calls)
                .map(|(table, (_, call))| call(table))
                .collect::<embank::Result<Vec<_>>>()?;
            if signals::has_raised() {
                return Ok(Some(Vec::new()));
            }
            Ok(self.keep(leases, |open, leases| {
                leases.into_iter().map(|lease| open.keep_lease(lease)).collect()
            }))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Runs `call` on a lease, which it consumes, with the GIL released.
    pub(crate) fn with_lease<R: Send>(
        &self,
        py: Python<'_>,
        id: LeaseId,
        call: impl FnOnce(Lease) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let lease = self.pick(|open| open.leases.remove(&id).ok_or_else(lease_consumed))?;
        self.run(py, move || call(lease))
    }

    /// Runs `call` on a lease, which stays held, with the GIL released. For other threads it is consumed meanwhile.
    pub(crate) fn with_kept_lease<R: Send>(
        &self,
        py: Python<'_>,
        id: LeaseId,
        call: impl FnOnce(&Lease) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let lease = self.pick(|open| open.leases.remove(&id).ok_or_else(lease_consumed))?;
        self.run(py, move || {
            let outcome = call(&lease);
            // A bank that is being closed keeps no lease: it is dropped, which gives its counts back.
            let _ = self.keep(lease, |open, lease| open.leases.insert(id, lease));
            outcome
        })
    }

    /// Runs `call` on the leases of each table, which it consumes, with the GIL released; on none if one was consumed
    /// before or is another table's.
    pub(crate) fn with_leases<R: Send>(
        &self,
        py: Python<'_>,
        of_tables: &[(CellTableId, Vec<LeaseId>)],
        call: impl FnOnce(Vec<Vec<Lease>>) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let leases = self.pick(|open| {
            for (table, ids) in of_tables {
                for (place, id) in ids.iter().enumerate() {
                    if ids[..place].contains(id) {
                        return Err(lease_consumed());
                    }
                    let lease = open.leases.get(id).ok_or_else(lease_consumed)?;
                    // Not the id's own: after a roll back the bank knows the table by another one.
                    if open.tables.get(table).is_none_or(|of| lease.table().id() != of.id()) {
                        return Err(lease_of_another_table());
                    }
                }
            }
            let mut take = |ids: &[LeaseId]| -> Vec<Lease> {
                ids.iter().filter_map(|id| open.leases.remove(id)).collect()
            };
            Ok(of_tables.iter().map(|(_, ids)| take(ids)).collect::<Vec<_>>())
        })?;
        self.run(py, move || call(leases))
    }

    /// Begins a prefetch with the GIL released and keeps it.
    pub(crate) fn begin_prefetch(
        &self,
        py: Python<'_>,
        table: CellTableId,
        call: impl FnOnce(&Table) -> embank::Result<Prefetch> + Send,
    ) -> PyResult<PrefetchId> {
        let table = self.pick(|open| open.table(table))?;
        let kept = self.run(py, move || {
            let prefetch = call(&table)?;
            Ok(self.keep(prefetch, |open, prefetch| {
                let id = PrefetchId(open.made.prefetches);
                open.made.prefetches += 1;
                open.prefetches.insert(id, prefetch);
                id
            }))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Runs `call` on a prefetch, which it consumes, with the GIL released.
    pub(crate) fn with_prefetch<R: Send>(
        &self,
        py: Python<'_>,
        id: PrefetchId,
        call: impl FnOnce(Prefetch) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let prefetch = self.pick(|open| open.prefetches.remove(&id).ok_or_else(prefetch_gone))?;
        self.run(py, move || call(prefetch))
    }

    /// Whether a prefetch would not wait.
    pub(crate) fn is_prefetched(&self, id: PrefetchId) -> bool {
        self.check_process().is_ok()
            && self
                .state
                .lock()
                .open
                .as_ref()
                .is_some_and(|open| open.prefetches.get(&id).is_some_and(Prefetch::is_ready))
    }

    /// Drops a prefetch, if it is there still. Never fails, for the garbage collector calls it too.
    pub(crate) fn cancel_prefetch(&self, id: PrefetchId) {
        self.forget(|open| open.prefetches.remove(&id));
    }

    /// Begins a scan with the GIL released, keeps it, and returns its checkpoint and number of rows too.
    pub(crate) fn begin_scan(
        &self,
        py: Python<'_>,
        table: CellTableId,
    ) -> PyResult<(ScanId, u64, u64)> {
        let table = self.pick(|open| open.table(table))?;
        let kept = self.run(py, move || {
            let scan = table.scan()?;
            let (checkpoint, rows) = (scan.checkpoint(), scan.rows());
            Ok(self.keep(scan, |open, scan| {
                let id = ScanId(open.made.scans);
                open.made.scans += 1;
                open.scans.insert(id, Arc::new(Mutex::new(scan)));
                (id, checkpoint, rows)
            }))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Runs `call` on a scan with the GIL released; none if the scan has ended.
    pub(crate) fn with_scan<R: Send>(
        &self,
        py: Python<'_>,
        id: ScanId,
        call: impl FnOnce(&mut Scan) -> embank::Result<R> + Send,
    ) -> PyResult<Option<R>> {
        let scan = self.pick(|open| Ok(open.scans.get(&id).cloned()))?;
        self.run(py, move || scan.map(|scan| call(&mut scan.lock())).transpose())
    }

    /// Ends a scan, if it has not ended: what it was lent goes back. Never fails, for the garbage
    /// collector calls it too.
    pub(crate) fn end_scan(&self, id: ScanId) {
        self.forget(|open| open.scans.remove(&id));
    }

    /// Opens a vocabulary with the GIL released and keeps its handle.
    pub(crate) fn open_vocabulary(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> embank::Result<Vocabulary> + Send,
    ) -> PyResult<VocabularyId> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        let kept = self.run(py, move || {
            let vocabulary = call(&bank)?;
            Ok(self.keep(vocabulary, |open, vocabulary| {
                let id = VocabularyId(open.made.vocabularies);
                open.made.vocabularies += 1;
                open.vocabularies.insert(id, vocabulary);
                id
            }))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Runs `call` on a vocabulary from [`open_vocabulary`](Self::open_vocabulary) with the GIL released.
    pub(crate) fn with_vocabulary<R: Send>(
        &self,
        py: Python<'_>,
        id: VocabularyId,
        call: impl FnOnce(&Vocabulary) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let vocabulary = self.pick(|open| {
            open.vocabularies.get(&id).cloned().ok_or_else(errors::not_in_checkpoint)
        })?;
        self.run(py, move || call(&vocabulary))
    }

    /// Lets a vocabulary's handle go, for its object has gone. Never fails.
    pub(crate) fn forget_vocabulary(&self, id: VocabularyId) {
        self.forget(|open| open.vocabularies.remove(&id));
    }

    /// Takes a handle out of the cell and drops it, as a call that `close` waits for.
    fn forget<H: Send>(&self, take: impl FnOnce(&mut Open) -> Option<H>) {
        if self.check_process().is_err() {
            return;
        }
        let handle = {
            let mut state = self.state.lock();
            let handle = state.open.as_mut().and_then(take);
            state.in_flight += usize::from(handle.is_some());
            handle
        };
        if let Some(handle) = handle {
            let call = InFlight(self);
            detached(move || drop(handle));
            drop(call);
        }
    }

    /// Makes a pipeline with the GIL released and keeps its slot. An error of the pipeline is the inner one.
    pub(crate) fn open_pipeline<E: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> Result<Arc<Slot>, E> + Send,
    ) -> PyResult<Result<(PipelineId, Arc<Slot>), E>> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        let made = self.run(py, move || {
            let slot = match call(&bank) {
                Ok(slot) => slot,
                Err(error) => return Ok(Some(Err(error))),
            };
            Ok(self.keep(slot, |open, slot| {
                let id = PipelineId(open.made.pipelines);
                open.made.pipelines += 1;
                open.pipelines.insert(id, Arc::clone(&slot));
                Ok((id, slot))
            }))
        })?;
        made.ok_or_else(errors::bank_closed)
    }

    /// Saves what the pipelines have numbered and the bank lacks, with the GIL released.
    pub(crate) fn save_pipelines(&self, py: Python<'_>) -> PyResult<()> {
        let slots: Vec<_> = self.pick(|open| Ok(open.pipelines.values().cloned().collect()))?;
        let in_flight = InFlight(self);
        let saved = slots.iter().try_for_each(|slot| slot.save(py));
        drop(slots);
        drop(in_flight);
        saved
    }

    /// Lets a pipeline go, for its objects have gone. Never fails.
    pub(crate) fn forget_pipeline(&self, id: PipelineId) {
        // Empties the slot, of which the caller still has a share, before the call is over.
        self.forget(|open| open.pipelines.remove(&id).map(ClosedOnDrop));
    }

    /// Runs what looks for signals, whose handlers may call [`close`](Self::close): that would wait for this thread.
    pub(crate) fn as_call_of_this_thread<R>(&self, call: impl FnOnce() -> R) -> R {
        calls_of_this_thread(|cells| cells.push(self.address()));
        let _pop = PopCall;
        call()
    }

    /// Fails unless the lease can still be consumed.
    pub(crate) fn check_lease(&self, id: LeaseId) -> PyResult<()> {
        self.check_process()?;
        match &self.state.lock().open {
            None => Err(errors::bank_closed()),
            Some(open) if open.leases.contains_key(&id) => Ok(()),
            Some(_) => Err(lease_consumed()),
        }
    }

    /// What has become of the lease: "held", "expired", "ended", or "closed" with its bank.
    pub(crate) fn lease_state(&self, id: LeaseId) -> PyResult<&'static str> {
        self.check_process()?;
        let state = self.state.lock();
        Ok(match state.open.as_ref().map(|open| open.leases.get(&id)) {
            None => "closed",
            Some(None) => "ended",
            Some(Some(lease)) if lease.is_expired() => "expired",
            Some(Some(_)) => "held",
        })
    }

    /// Fails with what consuming the lease would fail with now.
    pub(crate) fn check_consumable(&self, py: Python<'_>, id: LeaseId) -> PyResult<()> {
        self.check_lease(id)?;
        let state = self.state.lock();
        let checked = state.open.as_ref().and_then(|open| open.leases.get(&id)).map(Lease::check);
        drop(state);
        checked.unwrap_or(Ok(())).map_err(|error| errors::to_python(py, &error))
    }

    /// Whether the lease can still be consumed and has not expired.
    pub(crate) fn is_held(&self, id: LeaseId) -> bool {
        self.lease_state(id).is_ok_and(|state| state == "held")
    }

    /// Gives a lease's counts back with the GIL released, if it is still held.
    pub(crate) fn release(&self, py: Python<'_>, id: LeaseId) -> PyResult<()> {
        let lease = match self.pick(|open| Ok(open.leases.remove(&id))) {
            Ok(lease) => lease,
            // `close` has given it back.
            Err(_) if self.is_closed()? => return Ok(()),
            Err(error) => return Err(error),
        };
        self.run(py, move || lease.map_or(Ok(()), Lease::release))
    }

    /// As [`release`](Self::release), for when nobody is there to be told of an error: the store
    /// counts those.
    pub(crate) fn let_go(&self, id: LeaseId) {
        self.forget(|open| open.leases.remove(&id));
    }

    /// Says that another thread ends the lease.
    pub(crate) fn hand_over(&self, id: LeaseId) -> PyResult<()> {
        self.check_lease(id)?;
        // A call that consumes it meanwhile ends it.
        if let Some(lease) = self.state.lock().open.as_ref().and_then(|open| open.leases.get(&id)) {
            lease.hand_over();
        }
        Ok(())
    }

    /// Fails inside a call of this thread on the bank, as a progress function is: `close` would wait for that call, and
    /// so for itself.
    pub(crate) fn check_closable(&self) -> PyResult<()> {
        if calls_of_this_thread(|cells| cells.contains(&self.address())) == Some(true) {
            return Err(errors::closed_within_call());
        }
        Ok(())
    }

    /// Closes the bank, waits for calls of other threads to come back, and returns what was lost. Nothing is lost, as
    /// far as this call says, if another one has closed it.
    ///
    /// # Errors
    /// As [`check_closable`](Self::check_closable).
    pub(crate) fn close(&self) -> PyResult<Option<Unsaved>> {
        if self.check_process().is_err() {
            return Ok(None);
        }
        self.check_closable()?;
        let mut unsaved = None;
        detached(|| {
            let taken = self.take_open();
            self.state.lock().closing = true;
            if let Some(open) = taken {
                let closing = InFlight(self);
                open.pipelines.values().for_each(|slot| slot.close());
                // The last calls still change rows.
                unsaved = open.end(|| self.wait_until_in_flight(1));
                drop(closing);
            }
            self.wait_until_in_flight(0);
        });
        Ok(unsaved)
    }

    /// Takes all handles, as a call that is in flight from now on. Who closes the bank at the same time waits for it.
    pub(crate) fn take_open(&self) -> Option<Open> {
        let mut state = self.state.lock();
        state.in_flight += usize::from(state.open.is_some());
        state.open.take()
    }

    /// Opens the cell again, for the call that has taken its handles. Returns them if the bank was closed meanwhile.
    pub(crate) fn put_open(&self, open: Open) -> Option<Open> {
        let mut state = self.state.lock();
        if state.closing {
            return Some(open);
        }
        state.open = Some(open);
        None
    }

    /// Waits until no more calls than these are in flight.
    pub(crate) fn wait_until_in_flight(&self, calls: usize) {
        let mut state = self.state.lock();
        while state.in_flight > calls {
            self.idle.wait(&mut state);
        }
    }

    /// Tells it from other cells while it is borrowed.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Stores a handle that a call in flight came by, or drops it if the bank was closed meanwhile.
    fn keep<H, R>(&self, handle: H, store: impl FnOnce(&mut Open, H) -> R) -> Option<R> {
        let mut state = self.state.lock();
        match &mut state.open {
            Some(open) => Some(store(open, handle)),
            None => {
                drop(state);
                drop(handle);
                None
            }
        }
    }

    /// Clones or takes a handle, and counts its use as in flight until `run` is through with it.
    fn pick<H>(&self, handle: impl FnOnce(&mut Open) -> PyResult<H>) -> PyResult<H> {
        self.check_process()?;
        let mut state = self.state.lock();
        let handle = handle(state.open.as_mut().ok_or_else(errors::bank_closed)?)?;
        state.in_flight += 1;
        Ok(handle)
    }

    /// Runs `call`, which owns a handle from `pick` and drops it.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce() -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let in_flight = InFlight(self);
        // The drop of a handle can't raise, and may have left an exception here.
        drop(signals::raised_in_passing());
        // The store keeps its own invariants through a panic; nothing of this crate is half done.
        let outcome = py.detach(|| {
            calls_of_this_thread(|cells| cells.push(self.address()));
            let outcome = catch_unwind(AssertUnwindSafe(call));
            calls_of_this_thread(Vec::pop);
            drop(in_flight);
            outcome.map(|done| {
                // A call that its wait ended takes what was raised along (`errors::to_python`).
                let value = done.map_err(Failed::Call)?;
                // The value ends here, without the interpreter's lock.
                signals::raised_in_passing().map_or(Ok(value), |raised| Err(Failed::Raised(raised)))
            })
        });
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Failed::Raised(raised))) => Err(raised),
            Ok(Err(Failed::Call(error))) => Err(errors::to_python(py, &error)),
            Err(panic) => Err(errors::from_panic(panic.as_ref())),
        }
    }

    fn check_process(&self) -> PyResult<()> {
        let here = process::id();
        if here == self.process { Ok(()) } else { Err(errors::forked(self.process, here)) }
    }
}

impl Drop for BankCell {
    fn drop(&mut self) {
        let open = self.state.get_mut().open.take();
        if process::id() != self.process {
            mem::forget(open);
            return;
        }
        let mut unsaved = None;
        detached(|| unsaved = open.and_then(|open| open.end(|| ())));
        if let Some(unsaved) = unsaved {
            // Not where the interpreter has ended: then no one can be warned.
            let _ = Python::try_attach(|py| {
                // A garbage collector may come while an error is on its way.
                let pending = PyErr::take(py);
                if let Err(error) = errors::warn_unsaved(py, &self.path, unsaved) {
                    error.write_unraisable(py, None);
                }
                if let Some(pending) = pending {
                    pending.restore(py);
                }
            });
        }
    }
}

thread_local! {
    /// The cells that this thread is in a call of, the innermost last: a call may tell a Python function of its
    /// progress, which makes calls of its own.
    static CALLS_OF_THIS_THREAD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The calls that this thread is in; `None` in a thread that is ending, which keeps no list of them any more.
fn calls_of_this_thread<R>(work: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    CALLS_OF_THIS_THREAD.try_with(|calls| work(&mut calls.borrow_mut())).ok()
}

struct ClosedOnDrop(Arc<Slot>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Ends the innermost call of this thread.
struct PopCall;

impl Drop for PopCall {
    fn drop(&mut self) {
        calls_of_this_thread(Vec::pop);
    }
}

/// Why a call has no value for its caller.
enum Failed {
    Call(embank::Error),
    /// It has done its work. A signal handler raised while it waited.
    Raised(PyErr),
}

/// One call in the store; ends when dropped.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a BankCell);

impl<'a> InFlight<'a> {
    /// For a call that is counted already.
    pub(crate) fn of(cell: &'a BankCell) -> Self {
        Self(cell)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight -= 1;
        // The last one, or the last one but the call that closes the bank.
        if state.in_flight <= 1 {
            self.0.idle.notify_all();
        }
    }
}

/// Runs `work` with the GIL released where there is one to release: a drop can come at any time, the
/// interpreter's end included.
pub(crate) fn detached(work: impl FnOnce() + Send) {
    let mut work = Some(work);
    let ran = Python::try_attach(|py| {
        let work = work.take();
        py.detach(|| work.map(|work| work()));
    });
    if ran.is_none()
        && let Some(work) = work
    {
        work();
    }
}

fn prefetch_gone() -> PyErr {
    pyo3::exceptions::PyValueError::new_err(
        "this prefetch was cancelled, or has failed: prefetch the rows again, or peek at them",
    )
}

pub(crate) fn lease_of_another_table() -> PyErr {
    pyo3::exceptions::PyValueError::new_err(
        "not every lease is one of this table: answer those of each table in a call of their own",
    )
}

fn lease_consumed() -> PyErr {
    pyo3::exceptions::PyValueError::new_err(
        "this lease was already applied, put or released: get the rows again",
    )
}
