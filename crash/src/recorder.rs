//! Records the calls of this process on a directory, by replacing functions of the C library.
//!
//! **Problem.** The store writes its log through `Device` and everything else through `std::fs`. A
//! recorder inside the store would need an interface around both. It would miss each call that
//! bypasses the interface.
//!
//! **Approach.** This crate defines functions with names of the C library: `open64`, `write`,
//! `fsync`, `rename` and more. Rust's standard library then calls these functions, so the store
//! runs unchanged. Each function passes the call on to the kernel (`syscall`). During a
//! [`Recording`], a function that changes or syncs a file also adds the call to one [`Journal`], if
//! the file lies in the recorded directory. One lock covers the call and its entry, so the entries
//! have the order of the calls. `embank-bench` does not link this crate, because the recorder would
//! slow it down.
//!
//! **Completeness.** The recorder misses a call through a function that this crate does not
//! replace. So [`Recording::finish`] replays the journal and compares the result with the
//! directory, byte by byte. `finish` also fails after a call that the recorder cannot represent:
//! a rename across directories, or a call of `fallocate` that neither punches a hole nor allocates
//! blocks. The recorder does not see transfers by io_uring, but the store only reads that way.
//!
//! **Kills.** [`Recording::kill_in`] lets a given number of changing or syncing calls pass. Later
//! calls of this kind fail with `EIO` and do nothing, as if the process were gone. The files are
//! then as SIGKILL would leave them between two calls.
//!
//! **Faults.** [`Recording::plan`] makes one call go wrong, or one call and later ones. The call
//! fails or lies as on a bad disk. Read-only calls (module `looks`) can go wrong too.
//!
//! Source: ALICE (Pillai et al., OSDI 2014) records system calls and builds the states that a file
//! system may leave; CrashMonkey (Mohan et al., OSDI 2018) does so below the file system.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use parking_lot::{Mutex, MutexGuard};

use crate::disk::{Disk, Left};
use crate::journal::{Journal, Mark, Node, Op};

mod calls;
mod faults;
mod looks;

use faults::Faults;
pub use faults::{Call, Fault, Plan, Site};

/// True while calls are recorded. Relaxed: the lock of `STATE` protects the recorded data. Each
/// thread of the tested program starts after this flag is set, or works on another directory.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// True if a sync of an unrecorded file does nothing. Relaxed: the flag affects only the speed.
static SYNCS_SKIPPED: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<Option<State>> = Mutex::new(None);
/// A recording holds this lock while it is in progress, so the process has one recording at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The state of a recording and its directory.
#[derive(Debug)]
struct State {
    root: Vec<u8>,
    journal: Journal,
    names: HashMap<(Node, String), Node>,
    /// The last known place of each node: its directory and its name.
    places: Vec<(Node, String)>,
    is_dir: Vec<bool>,
    files: HashMap<i32, Node>,
    /// The number of changing or syncing calls that still pass before the simulated kill. `None` if
    /// no kill is planned.
    passes: Option<u64>,
    /// The last call that the recorder could not represent. `finish` reports it. `None` if the
    /// recorder could represent every call.
    not_understood: Option<String>,
    /// The counts of all calls and the planned fault. `None` while faults are not planned.
    faults: Option<Faults>,
}

impl State {
    /// Counts a call on a node. Returns the fault that strikes it, if any.
    fn meet(&mut self, call: Call, node: Node) -> Option<Fault> {
        self.faults.as_ref()?;
        let path = self.path(node);
        self.faults.as_mut()?.meet(call, &path)
    }

    /// Counts a call on a name, which need not exist. Returns the fault that strikes it, if any.
    fn meet_name(&mut self, call: Call, place: &(Node, String)) -> Option<Fault> {
        self.faults.as_ref()?;
        let above = self.path(place.0);
        let path = if above.is_empty() { place.1.clone() } else { format!("{above}/{}", place.1) };
        self.faults.as_mut()?.meet(call, &path)
    }

    /// Counts a changing or syncing call. Returns false if the simulated kill comes before the
    /// call, which then must do nothing.
    fn pass(&mut self) -> bool {
        match &mut self.passes {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Returns the directory and the name to which a path leads. The path starts at the directory
    /// `from`. `None` if the recorder does not know a directory of the path.
    fn place(&self, from: Node, path: &[u8]) -> Option<(Node, String)> {
        let path = std::str::from_utf8(path).ok()?;
        let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
        let last = parts.next_back()?;
        let dir = parts.try_fold(from, |dir, part| self.names.get(&(dir, part.into())).copied())?;
        Some((dir, last.into()))
    }

    /// Returns the place (the directory and the name) of a path argument. A relative path starts at
    /// the open directory `dir_fd`. `None` if the place is outside the recorded directory.
    fn place_of(&self, dir_fd: i32, path: &[u8]) -> Option<(Node, String)> {
        if path.first() != Some(&b'/') {
            return self.place(*self.files.get(&dir_fd)?, path);
        }
        let below = path.strip_prefix(&self.root[..])?;
        if below.first() != Some(&b'/') {
            return None;
        }
        self.place(0, below)
    }

    /// Returns the node to which a path leads. `None` if the recorder knows no node there.
    fn node_of(&self, dir_fd: i32, path: &[u8]) -> Option<Node> {
        if path == self.root {
            return Some(0);
        }
        if path == b"." {
            return self.files.get(&dir_fd).copied();
        }
        self.names.get(&self.place_of(dir_fd, path)?).copied()
    }

    fn path(&self, node: Node) -> String {
        if node == 0 {
            return String::new();
        }
        let (dir, name) = &self.places[node];
        let above = self.path(*dir);
        if above.is_empty() { name.clone() } else { format!("{above}/{name}") }
    }

    fn make(&mut self, (dir, name): (Node, String), is_dir: bool) -> Node {
        let node = self.places.len();
        self.places.push((dir, name.clone()));
        self.is_dir.push(is_dir);
        self.names.insert((dir, name.clone()), node);
        self.journal.ops.push(Op::Make { dir, name, node, is_dir });
        node
    }

    fn file(&self, fd: i32) -> Option<Node> {
        self.files.get(&fd).copied().filter(|&node| !self.is_dir[node])
    }

    fn wrote(&mut self, node: Node, offset: u64, bytes: &[u8]) {
        self.journal.ops.push(Op::Write { node, offset, bytes: Arc::from(bytes) });
    }

    fn synced(&mut self, node: Node) {
        let path = self.path(node);
        self.journal.ops.push(Op::Sync { node, path });
    }

    fn unlinked(&mut self, (dir, name): (Node, String)) {
        self.names.remove(&(dir, name.clone()));
        self.journal.ops.push(Op::Unlink { dir, name });
    }

    fn renamed(&mut self, from: (Node, String), to: (Node, String)) {
        let Some(node) = self.names.remove(&from) else { return };
        if from.0 != to.0 {
            self.not_understood = Some(format!("a rename of {} across directories", from.1));
        }
        self.names.insert(to.clone(), node);
        self.places[node] = to.clone();
        self.journal.ops.push(Op::Rename { dir: from.0, from: from.1, to: to.1, node });
    }

    fn linked(&mut self, node: Node, (dir, name): (Node, String)) {
        self.names.insert((dir, name.clone()), node);
        self.journal.ops.push(Op::Link { dir, name, node });
    }

    /// Adds an existing directory and its contents to the journal, as if the program had just made
    /// and synced them.
    fn take_in(&mut self, node: Node, dir: &Path) -> Result<()> {
        let mut entries: Vec<_> = std::fs::read_dir(dir)?.collect::<std::io::Result<_>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name().into_string().ok().context("a name that is not UTF-8")?;
            let is_dir = entry.file_type()?.is_dir();
            let made = self.make((node, name), is_dir);
            if is_dir {
                self.take_in(made, &entry.path())?;
            } else {
                self.wrote(made, 0, &std::fs::read(entry.path())?);
                self.synced(made);
            }
        }
        self.synced(node);
        Ok(())
    }
}

/// Makes later syncs of unrecorded files do nothing. The tests throw these files away, so a power
/// cut need not spare them.
pub fn skip_syncs() {
    SYNCS_SKIPPED.store(true, Ordering::Relaxed);
}

/// A recording of a directory. It is in progress until it is finished or dropped. A process has one
/// recording at a time; `start` waits until the previous one has ended.
#[derive(Debug)]
pub struct Recording {
    root: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Recording {
    /// Begins to record the calls of this process below `root`, which must exist. The files that
    /// are there already count as synced.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn start(root: &Path) -> Result<Self> {
        let turn = TURN.lock();
        let root = root.canonicalize().with_context(|| format!("opening {}", root.display()))?;
        let mut state = State {
            root: root.as_os_str().as_bytes().to_vec(),
            journal: Journal::default(),
            names: HashMap::new(),
            places: vec![(0, String::new())],
            is_dir: vec![true],
            files: HashMap::new(),
            passes: None,
            not_understood: None,
            faults: None,
        };
        state.take_in(0, &root)?;
        *STATE.lock() = Some(state);
        RECORDING.store(true, Ordering::Relaxed);
        Ok(Recording { root, _turn: turn })
    }

    /// Returns the canonical path of the recorded directory. The recorder recognizes an absolute
    /// path only if it begins with this path.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Adds a mark of the program's position to the journal.
    pub fn mark(&self, mark: Mark) {
        if let Some(state) = &mut *STATE.lock() {
            state.journal.ops.push(Op::Mark(mark));
        }
    }

    /// Lets `calls` further changing or syncing calls pass. Later calls of this kind fail and
    /// change nothing. `None` lets all calls pass again.
    pub fn kill_in(&self, calls: Option<u64>) {
        if let Some(state) = &mut *STATE.lock() {
            state.passes = calls;
        }
    }

    /// Starts to count the calls of each site from zero. The call that `plan` names goes wrong. If
    /// `plan` is `None`, no call goes wrong.
    pub fn plan(&self, plan: Option<Plan>) {
        if let Some(state) = &mut *STATE.lock() {
            state.faults = Some(Faults::new(plan));
        }
    }

    /// Returns the number of calls of each site since [`plan`](Self::plan).
    #[must_use]
    pub fn calls(&self) -> BTreeMap<Site, u64> {
        let state = STATE.lock();
        let faults = state.as_ref().and_then(|state| state.faults.as_ref());
        faults.map_or_else(BTreeMap::new, |faults| faults.calls.clone())
    }

    /// Returns true if the planned fault has struck.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        let state = STATE.lock();
        state.as_ref().and_then(|state| state.faults.as_ref()).is_some_and(|faults| faults.struck)
    }

    /// Returns true if calls fail because of [`kill_in`](Self::kill_in).
    #[must_use]
    pub fn is_killed(&self) -> bool {
        STATE.lock().as_ref().is_some_and(|state| state.passes == Some(0))
    }

    /// Ends the recording and returns its journal.
    ///
    /// # Errors
    /// Returns an error if the recorder could not represent a call, or if the directory differs
    /// from the replayed journal.
    pub fn finish(self) -> Result<Journal> {
        RECORDING.store(false, Ordering::Relaxed);
        let state = STATE.lock().take().context("the recording has ended already")?;
        ensure!(state.not_understood.is_none(), "can't record {:?}", state.not_understood);
        let journal = state.journal;
        let whole =
            Disk::after_cut(&journal, &journal.sure_from(), journal.ops.len(), Left::Everything);
        let difference = whole.difference(&self.root).context("reading the recorded directory")?;
        ensure!(difference.is_none(), "a call went unseen: {}", difference.unwrap_or_default());
        Ok(journal)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.store(false, Ordering::Relaxed);
        STATE.lock().take();
    }
}

/// Returns the bytes of a path without the final zero.
fn bytes_of(path: &CStr) -> &[u8] {
    OsStr::from_bytes(path.to_bytes()).as_bytes()
}
