//! The open segment files of a device.
//!
//! **Problem.** A log may have thousands of segment files, and a process may open some hundred
//! files, which other parts of the program need too.
//!
//! **Approach.** At most `limit` segment files are open. A thread takes a file for a transfer
//! ([`OpenFiles::take`]) and gives it back by dropping its [`Held`]. The file then stays open until
//! its place is needed. A file that was written and not synced stays open until its sync, because
//! the kernel reports a failed write-back to the handle of the write.
//!
//! **Progress.** A thread that holds no file waits until one is given back ([`Wait::Yes`]). A
//! thread that already holds files must not wait, because several such threads could wait for each
//! other. It gets [`Taken::Busy`], ends its transfers, and so gives files back. While a thread
//! waits, threads that hold files get no more. Unsynced files take at most a part of the places:
//! see [`Segments::write`](super::Segments::write).
//!
//! **Want of descriptors.** A file that no thread holds is spare. If an opening in this process
//! finds no free descriptor, all spare files are closed (`process::descriptors`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::segment::Segment;
use crate::error::{Error, Result};
use crate::files::directory::Place;
use crate::files::held_file::HeldFile;
use crate::process::descriptors::{self, Spare};
use crate::process::locks::{Condvar, Mutex, MutexGuard};

/// The smallest limit of open segment files. Up to four files may wait for a sync or be in one
/// (`Segments::write`), and one is left for reads.
pub(crate) const OPEN_FILES_MIN: usize = 5;

/// Tells whether a thread may wait for a free place or a free descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The thread holds no file.
    Yes,
    /// The thread holds files.
    No,
}

/// The result of [`OpenFiles::take`].
#[derive(Debug)]
pub(crate) enum Taken<'a> {
    Held(Held<'a>),
    /// The file does not exist.
    Missing,
    /// No place or no descriptor is free, and the thread may not wait.
    Busy,
}

/// A segment file that a thread uses. Dropping this gives the file back.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    of: &'a OpenFiles,
    /// `None` only during drop.
    segment: Option<Arc<Segment>>,
}

#[derive(Debug)]
struct Entry {
    segment: Arc<Segment>,
    /// Number of threads that hold the file.
    users: usize,
    /// Set by each use. The search for a file to close takes the first file whose flag is clear: a
    /// file that was not used since the last search. The search clears the flags that it passes.
    used: bool,
    /// True if the file was written since its last sync began.
    unsynced: bool,
}

impl Entry {
    fn is_spare(&self) -> bool {
        self.users == 0 && !self.unsynced
    }
}

/// No further file may be opened, because threads use all open files.
struct AllInUse;

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Entry>,
    /// Number of files that threads are opening now.
    opening: usize,
    /// Number of uses of files that are open and not in `files`, because they were removed or are
    /// being closed.
    removed_in_use: usize,
    /// Segments below this number are removed. Their files are not kept open.
    removed_below: u64,
    /// Number of threads that wait for a place.
    waiting: usize,
}

#[derive(Debug)]
pub(crate) struct OpenFiles {
    limit: usize,
    state: Mutex<State>,
    given_back: Condvar,
}

impl OpenFiles {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let files =
            Arc::new(OpenFiles { limit, state: Mutex::default(), given_back: Condvar::new() });
        let spare: Arc<dyn Spare> = Arc::clone(&files) as _;
        descriptors::register(Arc::downgrade(&spare));
        files
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes segment `number` for a transfer. Opens it with `open` if it is not open. `open` gets
    /// the wait that it may make for a free descriptor, and returns `None` if there is no file.
    ///
    /// A wait for a place ends, because each thread that holds a file ends its transfer.
    pub(super) fn take(
        &self,
        number: u64,
        wait: Wait,
        open: impl FnOnce(Wait) -> Result<Option<(Place, HeldFile)>>,
    ) -> Result<Taken<'_>> {
        let mut state = self.state.lock();
        let victim = loop {
            // A thread that holds files leaves the next place to a thread that waits for one.
            if wait == Wait::No && state.waiting > 0 {
                return Ok(Taken::Busy);
            }
            if let Some(entry) = state.files.get_mut(&number) {
                entry.users += 1;
                entry.used = true;
                return Ok(Taken::Held(self.held(&entry.segment)));
            }
            match state.make_place(self.limit) {
                Ok(victim) => break victim,
                Err(AllInUse) if wait == Wait::No => return Ok(Taken::Busy),
                Err(AllInUse) => {}
            }
            state.waiting += 1;
            self.given_back.wait(&mut state);
            state.waiting -= 1;
        };
        state.opening += 1;
        drop(state);
        // Closed before the next file is opened, so that the process needs no further descriptor.
        drop(victim);
        let opened = open(wait);
        let mut state = self.state.lock();
        state.opening -= 1;
        let (place, file) = match opened {
            Ok(Some(opened)) => opened,
            missing => {
                self.tell_waiting(&state);
                return match missing {
                    Err(Error::TooManyOpenFiles { .. }) if wait == Wait::No => Ok(Taken::Busy),
                    missing => missing.map(|_| Taken::Missing),
                };
            }
        };
        let segment = Arc::new(Segment { number, place, file });
        if number < state.removed_below {
            state.removed_in_use += 1;
            return Ok(Taken::Held(self.held(&segment)));
        }
        let fresh =
            || Entry { segment: Arc::clone(&segment), users: 0, used: true, unsynced: false };
        let entry = state.files.entry(number).or_insert_with(fresh);
        entry.users += 1;
        let held = self.held(&entry.segment);
        if !Arc::ptr_eq(&entry.segment, &segment) {
            // Another thread has opened the file meanwhile. This thread's place is free once its
            // handle is closed.
            state.removed_in_use += 1;
            drop(state);
            drop(segment);
            state = self.state.lock();
            state.removed_in_use -= 1;
        }
        self.tell_waiting(&state);
        Ok(Taken::Held(held))
    }

    fn held(&self, segment: &Arc<Segment>) -> Held<'_> {
        Held { of: self, segment: Some(Arc::clone(segment)) }
    }

    fn tell_waiting(&self, state: &MutexGuard<'_, State>) {
        if state.waiting > 0 {
            self.given_back.notify_all();
        }
    }

    /// Notes that the file was written. Returns the number of files that wait for a sync.
    pub(super) fn note_written(&self, held: &Held<'_>) -> usize {
        let mut state = self.state.lock();
        if let Some(entry) = state.entry_of(held.segment()) {
            entry.unsynced = true;
        }
        state.files.values().filter(|entry| entry.unsynced).count()
    }

    /// Takes the files below segment `below` that wait for a sync. From here on they wait no more:
    /// a write that completes later makes its file wait again.
    pub(super) fn take_unsynced(&self, below: u64) -> Vec<Held<'_>> {
        let mut state = self.state.lock();
        let unsynced = state.files.range_mut(..below).filter(|(_, entry)| entry.unsynced);
        unsynced
            .map(|(_, entry)| {
                entry.unsynced = false;
                entry.users += 1;
                self.held(&entry.segment)
            })
            .collect()
    }

    /// Number of the last segment that waits for a sync.
    pub(super) fn last_unsynced(&self) -> Option<u64> {
        let state = self.state.lock();
        let mut unsynced = state.files.iter().rev().filter(|(_, entry)| entry.unsynced);
        unsynced.next().map(|(number, _)| *number)
    }

    /// Forgets a segment whose file is removed or replaced. Threads that hold the file keep it.
    pub(super) fn forget(&self, number: u64) {
        let mut state = self.state.lock();
        let Some(forgotten) = state.files.remove(&number) else { return };
        state.removed_in_use += forgotten.users + 1;
        drop(state);
        // Closed without the lock: the last handle of a removed file frees its blocks, which takes
        // time.
        drop(forgotten);
        let mut state = self.state.lock();
        state.removed_in_use -= 1;
        self.tell_waiting(&state);
    }

    /// Keeps no file of a segment below `number` open from now on.
    pub(super) fn remove_below(&self, number: u64) {
        let mut state = self.state.lock();
        state.removed_below = state.removed_below.max(number);
    }

    /// Number of open files.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.state.lock().count()
    }
}

impl State {
    fn count(&self) -> usize {
        self.files.len() + self.opening + self.removed_in_use
    }

    /// Makes a place for one more open file. Returns the file that the caller must close for that.
    /// `None` if a place is free.
    fn make_place(&mut self, limit: usize) -> std::result::Result<Option<Entry>, AllInUse> {
        if self.count() < limit {
            return Ok(None);
        }
        let unused = |entry: &mut Entry| entry.is_spare() && !std::mem::take(&mut entry.used);
        let mut files = self.files.iter_mut();
        let victim = files.find_map(|(number, entry)| unused(entry).then_some(*number));
        let victim = victim.or_else(|| {
            let mut spare = self.files.iter().filter(|(_, entry)| entry.is_spare());
            spare.next().map(|(number, _)| *number)
        });
        let closed = victim.and_then(|number| self.files.remove(&number));
        closed.map(Some).ok_or(AllInUse)
    }

    /// Returns the entry of an open file. `None` if the file is removed.
    fn entry_of(&mut self, segment: &Arc<Segment>) -> Option<&mut Entry> {
        let entry = self.files.get_mut(&segment.number)?;
        Arc::ptr_eq(&entry.segment, segment).then_some(entry)
    }
}

impl Spare for OpenFiles {
    fn close_spare(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let (spare, kept) =
            std::mem::take(&mut state.files).into_iter().partition(|(_, entry)| entry.is_spare());
        state.files = kept;
        let spare: BTreeMap<u64, Entry> = spare;
        // Closed while the lock is held, so that no thread uses the places before they are free.
        drop(spare);
        self.tell_waiting(&state);
    }
}

impl Held<'_> {
    fn segment(&self) -> &Arc<Segment> {
        self.segment.as_ref().expect("there until dropped")
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = Segment;
    fn deref(&self) -> &Segment {
        self.segment()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Some(segment) = self.segment.take() else { return };
        let mut state = self.of.state.lock();
        if let Some(entry) = state.entry_of(&segment) {
            entry.users -= 1;
            // Dropped while the lock is held. Otherwise another thread could close the file to make
            // a place, and this thread's handle would keep it open.
            drop(segment);
        } else {
            // Closed without the lock, as in `forget`.
            drop(state);
            drop(segment);
            state = self.of.state.lock();
            state.removed_in_use -= 1;
        }
        self.of.tell_waiting(&state);
    }
}
