//! Files under hidden names, which go when their writer ends early, also when a signal ends the process.
//!
//! **Problem.** A file that is being written has a hidden name until it is complete. Where SIGINT, SIGTERM or SIGHUP end
//! the process, no destructor runs, and the file stays for ever.
//!
//! **Approach.** The names of all hidden files stand in a fixed table of atomics. The first hidden file of a process
//! gives each of these signals whose action is the default a handler: it removes what the table names, and then lets
//! the signal have its default action. A signal that the program handles or ignores is left alone: the program goes on,
//! and destructors remove the files.
//!
//! What a handler can't remove, such as the directories of a copy, is made by an [`Interruptible`] call. The first signal
//! then only makes [`Interruptible::check`] fail; the call takes its work back, and the signal ends the process after
//! that. A second signal ends it at once.
//!
//! **Invariants.** The handler calls only async-signal-safe functions. A forked child inherits table and handler, and
//! leaves the files of its parent: an entry names its process. An entry that the handler reads while another thread
//! clears it names a file that is gone: its identifier is random, and no other file has it.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::process::new_id::new_id;

/// Hidden files at one time that a signal removes: some exports of several files each. Further ones stay after a signal.
const ENTRIES: usize = 64;
/// No file: the entry is free.
const FREE: u64 = 0;
/// No file: a thread is filling the entry.
const TAKEN: u64 = 1;
/// `.embank-`, 16 digits, `.partial`, and a NUL.
const NAME_BYTES: usize = 33;

struct Entry {
    /// The file's identifier, [`FREE`] or [`TAKEN`].
    id: AtomicU64,
    /// The descriptor of its directory.
    dir: AtomicI32,
    process: AtomicI32,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry { id: AtomicU64::new(FREE), dir: AtomicI32::new(-1), process: AtomicI32::new(0) }
}; ENTRIES];

/// Interruptible calls that are under way, in the process [`CALLER`].
static CALLS: AtomicI32 = AtomicI32::new(0);
static CALLER: AtomicI32 = AtomicI32::new(0);
/// The signal that ends the process after these calls; 0 for none.
static PENDING: AtomicI32 = AtomicI32::new(0);

/// A call that a signal ends by an error first, so that it can take its work back.
#[derive(Debug)]
pub(crate) struct Interruptible(());

impl Interruptible {
    /// Begins a call; it ends when this is dropped, after what it takes back.
    pub(crate) fn begin() -> Self {
        remove_at_signals();
        CALLER.store(process(), Ordering::SeqCst);
        CALLS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }

    /// Called between the steps of such a call.
    ///
    /// # Errors
    /// A signal is to end the process.
    pub(crate) fn check() -> io::Result<()> {
        match PENDING.load(Ordering::SeqCst) {
            0 => Ok(()),
            signal => Err(io::Error::other(format!("signal {signal} ends the process"))),
        }
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        if CALLS.fetch_sub(1, Ordering::SeqCst) == 1 {
            let signal = PENDING.swap(0, Ordering::SeqCst);
            if signal != 0 {
                end_by(signal);
            }
        }
    }
}

/// The name of a hidden file, short in any directory, and removed when this is dropped.
#[derive(Debug)]
pub(crate) struct HiddenFile {
    dir: Arc<OwnedFd>,
    id: u64,
    entry: Option<usize>,
}

impl HiddenFile {
    /// A name that no file has, in a directory. The caller makes the file, and gives it another name or lets it go.
    pub(crate) fn new(dir: &Arc<OwnedFd>) -> Self {
        remove_at_signals();
        let id = new_id().max(TAKEN + 1);
        let entry = TABLE.iter().position(|entry| {
            // Pairs with the store of FREE in `drop`: the entry's next owner fills it after its last one left it.
            entry.id.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        if let Some(entry) = entry.map(|entry| &TABLE[entry]) {
            entry.dir.store(dir.as_raw_fd(), Ordering::Relaxed);
            entry.process.store(process(), Ordering::Relaxed);
            // Pairs with the load in `on_signal`.
            entry.id.store(id, Ordering::Release);
        }
        Self { dir: Arc::clone(dir), id, entry }
    }

    /// Makes an empty file of that name.
    pub(crate) fn create(&self, mode: Mode) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.dir.as_fd(), self.name().as_c_str(), flags, mode)?)
    }

    pub(crate) fn name(&self) -> Name {
        Name::of(self.id)
    }
}

impl Drop for HiddenFile {
    fn drop(&mut self) {
        // It is gone if it has its own name now. A failure leaves a file that says by its name what it is.
        let _ = rustix::fs::unlinkat(self.dir.as_fd(), self.name().as_c_str(), AtFlags::empty());
        if let Some(entry) = self.entry {
            // Pairs with the exchange in `new`.
            TABLE[entry].id.store(FREE, Ordering::Release);
        }
    }
}

/// A hidden name as the system takes it, made without memory from the heap.
pub(crate) struct Name([u8; NAME_BYTES]);

impl Name {
    fn of(id: u64) -> Self {
        let mut name = *b".embank-0000000000000000.partial\0";
        for (place, digit) in name[8..24].iter_mut().enumerate() {
            let value = (id >> (60 - 4 * place)) & 0xF;
            *digit = b"0123456789abcdef"[value as usize];
        }
        Self(name)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("the last byte is NUL")
    }
}

fn process() -> c_int {
    // SAFETY: it has no duties.
    unsafe { libc::getpid() }
}

/// Lets signals that would end the process remove hidden files first.
fn remove_at_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both actions are this frame's own, zeros are a valid `sigaction` with an empty mask, and the handler
        // calls only async-signal-safe functions.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0
                || action.sa_sigaction != libc::SIG_DFL
            {
                continue;
            }
            let mut own: libc::sigaction = std::mem::zeroed();
            own.sa_sigaction = on_signal as *const () as usize;
            libc::sigaction(signal, &raw const own, std::ptr::null_mut());
        }
    }
}

/// Lets interruptible calls of this process end first, if it is the first signal; else ends the process.
extern "C" fn on_signal(signal: c_int) {
    let is_called = CALLS.load(Ordering::SeqCst) > 0 && CALLER.load(Ordering::SeqCst) == process();
    if is_called && PENDING.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    {
        return;
    }
    end_by(signal);
}

/// Removes the hidden files of this process, and lets the signal end it. Calls only async-signal-safe functions.
fn end_by(signal: c_int) {
    let process = process();
    for entry in &TABLE {
        // Pairs with the store in `HiddenFile::new`: the entry's other words are this file's.
        let id = entry.id.load(Ordering::Acquire);
        if id > TAKEN && entry.process.load(Ordering::Relaxed) == process {
            let name = Name::of(id);
            let dir = entry.dir.load(Ordering::Relaxed);
            // SAFETY: the name ends with a NUL; a descriptor that was closed meanwhile makes the call fail, or look in
            // a directory that has no file of this random name.
            unsafe { libc::unlinkat(dir, name.0.as_ptr().cast::<c_char>(), 0) };
        }
    }
    // SAFETY: both are async-signal-safe. In a handler the signal is blocked until that returns, and ends the process
    // then.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::{Store, StoreOptions};

    const PLACE: &str = "EMBANK_TEST_COPY";

    /// The process that the next test starts. It ends by the signal that it sends itself.
    #[test]
    #[ignore = "run by a_copy_that_a_signal_ends_is_taken_back"]
    fn copies_a_bank_with_a_signal_pending() {
        let Some(place) = std::env::var_os(PLACE) else { return };
        // SAFETY: no handler is set. A shell may have started this with signals that are ignored.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
        let bank = Path::new(&place).join("bank");
        let copy = Path::new(&place).join("copy");
        let outer = Interruptible::begin();
        // SAFETY: it has no duties.
        unsafe { libc::raise(libc::SIGTERM) };
        let error = Store::copy_checkpoint(&bank, None, &copy).unwrap_err().to_string();
        assert!(error.contains("signal 15 ends the process"), "{error}");
        assert!(!copy.exists());
        println!("taken back");
        drop(outer);
        unreachable!("the signal ended the process");
    }

    /// A copy that was ended stood in the way of the next one.
    #[test]
    fn a_copy_that_a_signal_ends_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("bank"), &StoreOptions::default()).unwrap();
        store.checkpoint(b"step 1").unwrap();
        drop(store);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["copies_a_bank_with_a_signal_pending", "--ignored", "--nocapture"])
            .env(PLACE, dir.path())
            .output()
            .unwrap();
        let told = [&child.stdout[..], &child.stderr].concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains("taken back"), "{told}");
        assert_eq!(child.status.signal(), Some(libc::SIGTERM), "{told}");
        Store::copy_checkpoint(&dir.path().join("bank"), None, &dir.path().join("copy")).unwrap();
    }
}
