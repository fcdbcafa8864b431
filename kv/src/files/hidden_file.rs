//! Files that have a hidden name until they are complete. An incomplete file is removed if its
//! writer fails or a signal ends the process.
//!
//! **Problem.** A file has a hidden name while it is written. If SIGINT, SIGTERM or SIGHUP ends the
//! process, no destructor runs. The incomplete file would then stay on disk.
//!
//! **Approach.** A fixed table of atomics lists the hidden files. Before a process makes a hidden
//! file, it installs a handler for each of these three signals. The handler removes the listed
//! files, and then raises the signal again with its default action, which ends the process. If the
//! program already handles or ignores a signal, no handler is installed for that signal. The
//! program then continues, and destructors remove the files.
//!
//! The handler can only remove files. A call that also makes directories, such as the copy of a
//! checkpoint, is an [`Interruptible`] call. While such a call runs, the first signal only makes
//! [`Interruptible::check`] fail. The call then removes the files and directories that it made, and
//! the signal ends the process. A second signal ends the process at once.
//!
//! **Invariants.** The handler calls only async-signal-safe functions. Each entry has a process id,
//! so a forked child does not remove its parent's files. The handler may read an entry that another
//! thread is clearing. This is harmless: the other thread has removed the file already, and no
//! other file has the same random name.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::process::new_id::new_id;

/// Largest number of hidden files that the signal handler can remove. An export has one hidden
/// file, so 64 is enough for many exports at a time. Further hidden files stay on disk after a
/// signal.
const ENTRIES: usize = 64;
/// Value of `Entry::id` for a free entry.
const FREE: u64 = 0;
/// Value of `Entry::id` while a thread fills the entry.
const TAKEN: u64 = 1;
/// Length of a hidden name in bytes: `.embank-`, 16 digits, `.partial`, and a NUL.
const NAME_BYTES: usize = 33;

struct Entry {
    /// The number in the file's hidden name, [`FREE`] or [`TAKEN`].
    id: AtomicU64,
    /// Descriptor of the file's directory.
    dir: AtomicI32,
    process: AtomicI32,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry { id: AtomicU64::new(FREE), dir: AtomicI32::new(-1), process: AtomicI32::new(0) }
}; ENTRIES];

/// Number of [`Interruptible`] calls that run in the process with the id [`CALLER`].
static CALLS: AtomicI32 = AtomicI32::new(0);
static CALLER: AtomicI32 = AtomicI32::new(0);
/// Number of the signal that will end the process when the last [`Interruptible`] call has ended. 0
/// if no signal arrived.
static PENDING: AtomicI32 = AtomicI32::new(0);

/// A running call that a signal makes fail. Before the signal ends the process, the call removes
/// the files and directories that it made.
#[derive(Debug)]
pub(crate) struct Interruptible(());

impl Interruptible {
    /// Begins a call. Dropping the value ends the call. If the call fails, the caller must remove
    /// the files and directories that it made before it drops the value.
    pub(crate) fn begin() -> Self {
        remove_at_signals();
        CALLER.store(process(), Ordering::SeqCst);
        CALLS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }

    /// Called between the steps of an interruptible call. Checks whether a signal arrived.
    ///
    /// # Errors
    /// An error if a signal arrived.
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

/// A hidden name of 32 bytes in a directory. Dropping the value removes the file of that name.
#[derive(Debug)]
pub(crate) struct HiddenFile {
    dir: Arc<OwnedFd>,
    id: u64,
    entry: Option<usize>,
}

impl HiddenFile {
    /// Chooses a random name. The caller creates the file, and may rename it later.
    pub(crate) fn new(dir: &Arc<OwnedFd>) -> Self {
        remove_at_signals();
        let id = new_id().max(TAKEN + 1);
        let entry = TABLE.iter().position(|entry| {
            // Acquire: pairs with the store of `FREE` in `drop`. The entry's last owner has
            // finished with the entry before this thread fills it.
            entry.id.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        if let Some(entry) = entry.map(|entry| &TABLE[entry]) {
            entry.dir.store(dir.as_raw_fd(), Ordering::Relaxed);
            entry.process.store(process(), Ordering::Relaxed);
            // Release: pairs with the load of `id` in `end_by`. A handler that loads this id also
            // reads this directory and process.
            entry.id.store(id, Ordering::Release);
        }
        Self { dir: Arc::clone(dir), id, entry }
    }

    /// Creates an empty file with this name.
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
        // An error is ignored. If the file got its final name, the hidden name no longer exists. If
        // the removal fails, the file stays under a name that contains "partial".
        let _ = rustix::fs::unlinkat(self.dir.as_fd(), self.name().as_c_str(), AtFlags::empty());
        if let Some(entry) = self.entry {
            // Release: pairs with the exchange in `new`, in which another thread takes the entry.
            TABLE[entry].id.store(FREE, Ordering::Release);
        }
    }
}

/// A hidden name as a C string. It uses no heap memory, so a signal handler can make it.
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
    // SAFETY: `getpid` has no preconditions.
    unsafe { libc::getpid() }
}

/// Installs a handler that removes hidden files for SIGINT, SIGTERM and SIGHUP. Skips a signal that
/// the program handles or ignores.
fn remove_at_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both actions are local variables. Zeros are a valid `sigaction` with an empty
        // mask. The handler calls only async-signal-safe functions.
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

/// Handles a signal. If this process runs interruptible calls, the first signal makes them fail. A
/// second signal, or a signal without such a call, ends the process.
extern "C" fn on_signal(signal: c_int) {
    let is_called = CALLS.load(Ordering::SeqCst) > 0 && CALLER.load(Ordering::SeqCst) == process();
    if is_called && PENDING.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    {
        return;
    }
    end_by(signal);
}

/// Removes the hidden files of this process and ends it by the signal. Calls only async-signal-safe
/// functions.
fn end_by(signal: c_int) {
    let process = process();
    for entry in &TABLE {
        // Acquire: pairs with the store of `id` in `HiddenFile::new`. The entry's directory and
        // process then belong to the file with this id.
        let id = entry.id.load(Ordering::Acquire);
        if id > TAKEN && entry.process.load(Ordering::Relaxed) == process {
            let name = Name::of(id);
            let dir = entry.dir.load(Ordering::Relaxed);
            // SAFETY: the name ends with a NUL. If another thread has closed the descriptor, the
            // call fails or searches a directory without a file of this random name.
            unsafe { libc::unlinkat(dir, name.0.as_ptr().cast::<c_char>(), 0) };
        }
    }
    // SAFETY: both functions are async-signal-safe. The signal is blocked while its handler runs.
    // It ends the process when the handler returns.
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

    /// Runs in a child process of the next test. The child sends itself a signal, which ends the
    /// process.
    #[test]
    #[ignore = "run by a_copy_that_a_signal_ends_is_taken_back"]
    fn copies_a_bank_with_a_signal_pending() {
        let Some(place) = std::env::var_os(PLACE) else { return };
        // SAFETY: the call sets the default action and no handler. It is needed because a shell may
        // have started this process with ignored signals.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
        let bank = Path::new(&place).join("bank");
        let copy = Path::new(&place).join("copy");
        let outer = Interruptible::begin();
        // SAFETY: `raise` has no preconditions.
        unsafe { libc::raise(libc::SIGTERM) };
        let error = Store::copy_checkpoint(&bank, None, &copy).unwrap_err().to_string();
        assert!(error.contains("signal 15 ends the process"), "{error}");
        assert!(!copy.exists());
        println!("taken back");
        drop(outer);
        unreachable!("the signal ended the process");
    }

    /// Regression test: an interrupted copy left its directory, so the next copy failed.
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
