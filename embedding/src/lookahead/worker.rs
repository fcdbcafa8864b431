//! The worker: the thread that reads rows in advance.

use std::sync::atomic::Ordering;
use std::time::Instant;

use embank_kv::{Promoted, RowMark, TableId};

use crate::error::StoreError;
use crate::lookahead::queue::{Job, QueueState, Shared};
use crate::lookahead::requests::{BURST_KEYS_MAX, BURST_KEYS_MIN, number};

/// Number of rows that a prefetch may read in one turn. After a burst with more rows, the prefetch
/// may read as many rows as the burst had.
const PREFETCH_KEYS: usize = 1024;

/// The worker's next task.
pub(crate) enum Task {
    /// Bring the rows of a burst of this table into memory.
    Burst(TableId),
    /// Copy rows of the window that are about to leave memory.
    Look,
    /// Read some rows into a caller's buffer.
    Prefetch(Box<dyn Job>),
}

impl Shared {
    /// The worker's loop. It runs until the bank closes.
    pub(crate) fn work(&self) {
        let mut burst = Vec::with_capacity(BURST_KEYS_MIN + BURST_KEYS_MAX);
        /// If the worker panics, this guard wakes the threads that wait for the worker.
        struct GiveUpAtTheEnd<'a>(&'a Shared);
        impl Drop for GiveUpAtTheEnd<'_> {
            fn drop(&mut self) {
                self.0.give_up_pending();
            }
        }
        let _give_up_at_the_end = GiveUpAtTheEnd(self);
        let mut marks = Vec::new();
        let mut burst_keys = 0;
        let count_since = |began: &mut Instant| {
            self.counters.reading_us.add(began.elapsed().as_micros() as u64);
            *began = Instant::now();
        };
        while let Some(task) = self.next_task(&mut burst) {
            let mut began = Instant::now();
            match task {
                Task::Burst(table) => {
                    marks.clear();
                    burst_keys = burst.len();
                    let promoted = self.store.promote_marking(table, &burst, &mut marks);
                    // The time is added before waiting threads learn that the burst has ended.
                    count_since(&mut began);
                    self.finish_burst(table, &burst, &marks, promoted);
                }
                Task::Look => self.look_after_the_oldest(),
                Task::Prefetch(mut job) => {
                    let keys_max = std::mem::take(&mut burst_keys).max(PREFETCH_KEYS);
                    if !job.advance(&self.store, keys_max) {
                        self.queue.state.lock().prefetches.push_back(job);
                    }
                }
            }
            count_since(&mut began);
        }
    }

    /// Copies announced rows to the log's tail if they are about to leave memory and were not used.
    pub(crate) fn look_after_the_oldest(&self) {
        // Each row leaves the window here, and returns fewer than `LAPS_MAX` times.
        let (read_only, head) = self.store.boundaries();
        let due = self.queue.state.lock().window.take_below(read_only);
        for rows in due.chunk_by(|a, b| a.table == b.table) {
            // Skips rows that are already on disk: the worker would have to read them, and they may
            // have been used already.
            let rows: Vec<_> = rows.iter().filter(|row| row.mark.address() >= head).collect();
            let Some(first) = rows.first() else { continue };
            let keys: Vec<u64> = rows.iter().map(|row| row.key).collect();
            let marks: Vec<RowMark> = rows.iter().map(|row| row.mark).collect();
            let mut moved = Vec::new();
            let kept = self.store.promote_unused(first.table, &keys, &marks, &mut moved);
            self.counters.kept.add(moved.len() as u64);
            let mut state = self.queue.state.lock();
            for (place, mark) in moved {
                if state.is_wanted(first.table, rows[place].key) {
                    state.window.remember_again(rows[place], mark);
                }
            }
            match kept {
                // If there is no room for the rows, they leave memory, and a Get reads them later.
                Ok(())
                | Err(
                    StoreError::NoSuchTable(_)
                    | StoreError::QuotaExceeded { .. }
                    | StoreError::DiskFull { .. }
                    | StoreError::TooManyOpenFiles { .. }
                    | StoreError::Interrupted { .. },
                ) => {}
                Err(failure) => {
                    state.failure.get_or_insert(failure);
                }
            }
        }
        let mut state = self.queue.state.lock();
        state.looking = false;
        if state.is_idle() {
            self.idle.notify_all();
        }
    }

    /// Returns the next task. For a burst, fills `burst` with keys of one table. Waits while there
    /// is no work. `None` if the worker must stop.
    pub(crate) fn next_task(&self, burst: &mut Vec<u64>) -> Option<Task> {
        burst.clear();
        let mut state = self.queue.state.lock();
        state.working = false;
        state.cancelled.clear();
        loop {
            if state.stopping {
                return None;
            }
            // Copying rows of the window has priority. It needs no disk read, and avoids later
            // reads of rows that would leave memory.
            if std::mem::take(&mut state.look) {
                state.looking = true;
                state.working = true;
                return Some(Task::Look);
            }
            // Removes overtaken rows from the queue's front first. If the queue is then not empty,
            // it has a burst. So a queue of overtaken rows can't take the turn of a prefetch.
            self.pass_over(&mut state);
            // Bursts and prefetches take turns, and several prefetches take turns among themselves.
            let turn = std::mem::take(&mut state.burst_was_last) || state.requests.len() == 0;
            if let Some(job) = if turn { state.prefetches.pop_front() } else { None } {
                return Some(Task::Prefetch(job));
            }
            if let Some(table) = self.take_burst(&mut state, burst) {
                state.burst_was_last = true;
                state.working = true;
                return Some(Task::Burst(table));
            }
            // The queue is empty here, and no burst is running. Relaxed: `make_way` reads the flag,
            // and may miss the change without harm.
            self.has_requests.store(false, Ordering::Relaxed);
            self.queue.work.wait(&mut state);
        }
    }

    /// Removes overtaken rows from the queue's front and counts them as late.
    pub(crate) fn pass_over(&self, state: &mut QueueState) {
        let passed = state.requests.pass_over(&mut state.pending);
        self.counters.late.add(passed);
        if passed > 0 && state.is_idle() {
            self.idle.notify_all();
        }
    }

    /// Takes a burst from the queue's front and makes it the current one. Returns its table.
    pub(crate) fn take_burst(
        &self,
        state: &mut QueueState,
        burst: &mut Vec<u64>,
    ) -> Option<TableId> {
        let (table, passed) = state.requests.take_burst(&mut state.pending, burst)?;
        self.counters.late.add(passed);
        state.in_hand.extend_from_slice(burst);
        state.in_hand.sort_unstable();
        state.in_hand_of = Some(table);
        Some(table)
    }

    pub(crate) fn finish_burst(
        &self,
        table: TableId,
        burst: &[u64],
        marks: &[(u64, RowMark)],
        promoted: embank_kv::Result<Promoted>,
    ) {
        let counters = &self.counters;
        let mut state = self.queue.state.lock();
        match promoted {
            Ok(promoted) => {
                counters.moved.add(promoted.moved);
                counters.late.add(promoted.resident + promoted.overtaken);
                counters.missing.add(promoted.missing);
            }
            // A dropped table is not a failure.
            Err(StoreError::NoSuchTable(_)) => counters.cancelled.add(burst.len() as u64),
            // The next Get of these rows reports the error.
            Err(
                StoreError::QuotaExceeded { .. }
                | StoreError::DiskFull { .. }
                | StoreError::TooManyOpenFiles { .. }
                | StoreError::Interrupted { .. },
            ) => {
                counters.failed.add(burst.len() as u64);
            }
            Err(failure) => {
                counters.failed.add(burst.len() as u64);
                state.failure.get_or_insert(failure);
            }
        }
        for &key in burst {
            state.pending.remove(number(table), key);
        }
        let wanted: Vec<_> =
            marks.iter().copied().filter(|&(key, _)| state.is_wanted(table, key)).collect();
        state.window.remember(table, &wanted);
        self.end_burst(&mut state);
        if state.is_idle() {
            self.idle.notify_all();
        }
    }
}
