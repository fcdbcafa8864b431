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
//! waits, threads that hold files for reading get no more.
//!
//! A thread that reads may wait for the writer while it holds files: a row that was read needs a
//! page, which must first be written. So the writer must not wait for readers. Readers hold at most
//! all places but one. Before the writer waits, it syncs the earlier segments
//! ([`Segments::write`](super::Segments::write)), so only files of readers keep their places.
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

/// What a file is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    /// A write, a sync, or freeing space. Such a transfer waits for no other thread.
    Change,
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
    purpose: Purpose,
}

#[derive(Debug)]
struct Entry {
    segment: Arc<Segment>,
    /// Number of threads that hold the file.
    users: usize,
    /// Number of these threads that read it.
    readers: usize,
    /// Set by each use. The search for a file to close takes the first file whose flag is clear: a
    /// file that was not used since the last search. The search clears the flags that it passes.
    used: bool,
    /// True if the file was written since its last sync began.
    unsynced: bool,
}

impl Entry {
    fn of(segment: &Arc<Segment>) -> Self {
        let segment = Arc::clone(segment);
        Entry { segment, users: 0, readers: 0, used: true, unsynced: false }
    }

    fn is_spare(&self) -> bool {
        self.users == 0 && !self.unsynced
    }
}

/// No further file may be opened, because threads use all open files.
struct AllInUse;

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Entry>,
    /// Files that were removed while threads held them.
    removed: Vec<Entry>,
    /// Number of files that threads are opening now.
    opening: usize,
    /// Number of files that threads are closing now.
    closing: usize,
    /// Number of files that threads read, or are opening to read.
    reading: usize,
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
    pub(super) fn take(
        &self,
        number: u64,
        wait: Wait,
        purpose: Purpose,
        open: impl FnOnce(Wait) -> Result<Option<(Place, HeldFile)>>,
    ) -> Result<Taken<'_>> {
        let reads = purpose == Purpose::Read;
        let mut state = self.state.lock();
        // A wait of the writer ends, because readers leave a place for it. A wait of a reader ends,
        // because each thread that holds a file ends its transfer; the writer helps it.
        let victim = loop {
            // A thread that holds files leaves the next place to a thread that waits for one.
            if reads && wait == Wait::No && state.waiting > 0 {
                return Ok(Taken::Busy);
            }
            let found = state.files.get(&number);
            let is_read = found.is_some_and(|entry| entry.readers > 0);
            if is_read || !reads || state.reading + 1 < self.limit {
                if found.is_some() {
                    return Ok(Taken::Held(self.hold(&mut state, number, purpose)));
                }
                if let Ok(victim) = state.make_place(self.limit) {
                    break victim;
                }
            }
            if wait == Wait::No {
                return Ok(Taken::Busy);
            }
            state.waiting += 1;
            self.given_back.wait(&mut state);
            state.waiting -= 1;
        };
        state.opening += 1;
        state.reading += usize::from(reads);
        drop(state);
        // Closed before the next file is opened, so that the process needs no further descriptor.
        drop(victim);
        let opened = open(wait);
        let mut state = self.state.lock();
        // `hold` counts the reader again.
        state.reading -= usize::from(reads);
        let (place, file) = match opened {
            Ok(Some(opened)) => opened,
            missing => {
                state.opening -= 1;
                self.tell_waiting(&state);
                return match missing {
                    Err(Error::TooManyOpenFiles { .. }) if wait == Wait::No => Ok(Taken::Busy),
                    missing => missing.map(|_| Taken::Missing),
                };
            }
        };
        let segment = Arc::new(Segment { number, place, file });
        if number < state.removed_below {
            state.opening -= 1;
            let mut entry = Entry::of(&segment);
            let held = self.hold_entry(&mut entry, &mut state.reading, purpose);
            state.removed.push(entry);
            return Ok(Taken::Held(held));
        }
        let is_second = state.files.contains_key(&number);
        if !is_second {
            state.files.insert(number, Entry::of(&segment));
        }
        let held = self.hold(&mut state, number, purpose);
        if is_second {
            // Another thread has opened the file meanwhile. The place is free once this thread's
            // handle is closed.
            drop(state);
            drop(segment);
            state = self.state.lock();
        }
        state.opening -= 1;
        self.tell_waiting(&state);
        Ok(Taken::Held(held))
    }

    /// Holds an open file.
    fn hold(&self, state: &mut State, number: u64, purpose: Purpose) -> Held<'_> {
        let State { files, reading, .. } = state;
        let entry = files.get_mut(&number).expect("the caller has found the file");
        self.hold_entry(entry, reading, purpose)
    }

    fn hold_entry(&self, entry: &mut Entry, reading: &mut usize, purpose: Purpose) -> Held<'_> {
        entry.users += 1;
        entry.used = true;
        if purpose == Purpose::Read {
            *reading += usize::from(entry.readers == 0);
            entry.readers += 1;
        }
        Held { of: self, segment: Some(Arc::clone(&entry.segment)), purpose }
    }

    fn tell_waiting(&self, state: &MutexGuard<'_, State>) {
        if state.waiting > 0 {
            self.given_back.notify_all();
        }
    }

    /// Notes that the file was written. Returns the number of files that wait for a sync.
    pub(super) fn note_written(&self, held: &Held<'_>) -> usize {
        let mut state = self.state.lock();
        if let Some(entry) = entry_of(&mut state.files, held.segment()) {
            entry.unsynced = true;
        }
        state.files.values().filter(|entry| entry.unsynced).count()
    }

    /// Takes the files that wait for a sync and whose numbers `wanted` accepts. From here on they
    /// wait no more: a write that completes later makes its file wait again.
    pub(super) fn take_unsynced(&self, wanted: impl Fn(u64) -> bool) -> Vec<Held<'_>> {
        let mut state = self.state.lock();
        let State { files, reading, .. } = &mut *state;
        let unsynced = files.iter_mut().filter(|(_, entry)| entry.unsynced);
        unsynced
            .filter(|(number, _)| wanted(**number))
            .map(|(_, entry)| {
                entry.unsynced = false;
                self.hold_entry(entry, reading, Purpose::Change)
            })
            .collect()
    }

    /// Number of the last file among `numbers` that waits for a sync.
    pub(super) fn last_unsynced(&self, numbers: std::ops::Range<u64>) -> Option<u64> {
        let state = self.state.lock();
        let files = state.files.range(numbers);
        let mut unsynced = files.rev().filter(|(_, entry)| entry.unsynced);
        unsynced.next().map(|(number, _)| *number)
    }

    /// Forgets a segment whose file is removed or replaced. Threads that hold the file keep it.
    pub(super) fn forget(&self, number: u64) {
        let mut state = self.state.lock();
        match state.files.remove(&number) {
            Some(forgotten) if forgotten.users > 0 => state.removed.push(forgotten),
            Some(forgotten) => self.close(state, forgotten),
            None => {}
        }
    }

    /// Closes a file without the lock: the last handle of a removed file frees its blocks, which
    /// takes time.
    fn close(&self, mut state: MutexGuard<'_, State>, file: Entry) {
        state.closing += 1;
        drop(state);
        drop(file);
        let mut state = self.state.lock();
        state.closing -= 1;
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
        self.files.len() + self.removed.len() + self.opening + self.closing
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
}

/// Returns the entry of an open file. `None` if the file is removed.
fn entry_of<'a>(
    files: &'a mut BTreeMap<u64, Entry>,
    segment: &Arc<Segment>,
) -> Option<&'a mut Entry> {
    let entry = files.get_mut(&segment.number)?;
    Arc::ptr_eq(&entry.segment, segment).then_some(entry)
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
        let State { files, removed, reading, .. } = &mut *state;
        let at = removed.iter().position(|entry| Arc::ptr_eq(&entry.segment, &segment));
        let entry = match at {
            Some(at) => &mut removed[at],
            None => entry_of(files, &segment).expect("a held file has an entry"),
        };
        // Dropped while the lock is held. Otherwise another thread could close the file to make a
        // place, and this thread's handle would keep it open.
        drop(segment);
        entry.users -= 1;
        if self.purpose == Purpose::Read {
            entry.readers -= 1;
            *reading -= usize::from(entry.readers == 0);
        }
        match at {
            Some(at) if entry.users == 0 => {
                let file = removed.swap_remove(at);
                self.of.close(state, file);
            }
            _ => self.of.tell_waiting(&state),
        }
    }
}
