//! Finds out which processes hold a lock on a file, for error messages.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process;

/// Number of times that the list of locks is read until it has an entry for the file.
const READS_MAX: usize = 16;
/// Bytes of the list of locks that are read with one system call. The kernel gives a page at most.
const READ_BYTES: usize = 64 << 10;
/// Length in characters at which a command line is cut in a message.
const COMMAND_CHARS_MAX: usize = 120;

/// A process that holds a lock on a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The process id.
    pub process: u32,
    /// The command line of the process, cut after 120 characters. Empty if the command line can't
    /// be read. This is so, for example, if the process has ended and one of its children keeps the
    /// lock.
    pub command: String,
}

/// The processes that hold a lock. Displayed as "process 4711 (python train.py)".
///
/// The list is empty if `/proc/locks` has no entry for the file. There are three such cases. The
/// system is not Linux. The process that holds the lock is in another container or on another host.
/// The file system reports another device number in `/proc/locks` than in a file's metadata, as
/// btrfs does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockHolders(pub Vec<LockHolder>);

impl LockHolders {
    /// Finds the processes that hold a lock (`flock`) on a file.
    pub(crate) fn of(file: &Metadata) -> Self {
        Self::in_lists(file, || locks().unwrap_or_default())
    }

    /// Finds the holders in the lists that `list` returns. The kernel may leave a lock out if other
    /// locks come and go between the system calls that read the list. Some process holds the lock,
    /// so a list without an entry for the file is read again.
    fn in_lists(file: &Metadata, mut list: impl FnMut() -> String) -> Self {
        let find = || {
            let mut processes: Vec<u32> =
                list().lines().filter_map(|line| holder(line, file)).collect();
            processes.sort_unstable();
            processes.dedup();
            processes
        };
        let found = std::iter::repeat_with(find).take(READS_MAX).find(|found| !found.is_empty());
        let named = |process| LockHolder { process, command: command_of(process) };
        LockHolders(found.unwrap_or_default().into_iter().map(named).collect())
    }
}

/// Reads the list of all locks. Outside Linux there is none. The buffer is long, because each
/// further call may leave locks out.
fn locks() -> std::io::Result<String> {
    let mut file = File::open("/proc/locks")?;
    let mut bytes = vec![0; READ_BYTES];
    let mut filled = 0;
    // The loop ends with the list.
    loop {
        match file.read(&mut bytes[filled..])? {
            0 => break,
            more => filled += more,
        }
        bytes.resize(filled + READ_BYTES, 0);
    }
    bytes.truncate(filled);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl fmt::Display for LockHolders {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return formatter.write_str("another process, or in this one");
        }
        for (place, LockHolder { process, command }) in self.0.iter().enumerate() {
            if place > 0 {
                formatter.write_str(", ")?;
            }
            if *process == process::id() {
                write!(formatter, "this process ({process}) already")?;
            } else if command.is_empty() {
                write!(formatter, "process {process}, or one that it started")?;
            } else {
                write!(formatter, "process {process} ({command})")?;
            }
        }
        Ok(())
    }
}

/// Parses a line of `/proc/locks`. Returns the process id if the line describes a `flock` on the
/// file. In the line `1: FLOCK ADVISORY WRITE 4711 fe:00:5423379 0 EOF`, the process is 4711, the
/// device is `fe:00` and the inode is 5423379.
fn holder(line: &str, file: &Metadata) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    // For a process that waits for the lock, this word is "->".
    if words.next()? != "FLOCK" {
        return None;
    }
    let process = words.nth(2)?;
    let mut place = words.next()?.split(':');
    let device = |part: Option<&str>| u32::from_str_radix(part?, 16).ok();
    let major = device(place.next())?;
    let minor = device(place.next())?;
    let inode: u64 = place.next()?.parse().ok()?;
    let is_its = inode == file.ino() && libc::makedev(major as _, minor as _) == file.dev() as _;
    is_its.then(|| process.parse().ok()).flatten()
}

fn command_of(process: u32) -> String {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    let line = words.join(" ");
    let line = line.trim();
    match line.char_indices().nth(COMMAND_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_is_known() {
        let holder = |process, command: &str| LockHolder { process, command: command.to_owned() };
        let shown = |holders: &[LockHolder]| LockHolders(holders.to_vec()).to_string();
        assert_eq!(shown(&[]), "another process, or in this one");
        let other = process::id() + 1;
        assert_eq!(
            shown(&[holder(other, "python train.py"), holder(process::id(), "x")]),
            format!("process {other} (python train.py), this process ({}) already", process::id())
        );
        assert_eq!(shown(&[holder(other, "")]), format!("process {other}, or one that it started"));
    }

    /// Returns a line of the kernel about a lock on the device of `file`.
    fn line_of(file: &Metadata, kind: &str, inode: u64) -> String {
        let major = libc::major(file.dev() as _);
        let minor = libc::minor(file.dev() as _);
        format!("1: {kind}  ADVISORY  WRITE 4711 {major:02x}:{minor:02x}:{inode} 0 EOF")
    }

    /// Regression test: while other processes took and released locks, an error named no process.
    #[test]
    fn a_list_that_lacks_the_lock_is_read_again() {
        let file = tempfile::tempfile().unwrap().metadata().unwrap();
        let mut reads = 0;
        let found = LockHolders::in_lists(&file, || {
            reads += 1;
            line_of(&file, "FLOCK", file.ino() + u64::from(reads < 3))
        });
        assert_eq!((found.0[0].process, reads), (4711, 3));
        let mut reads = 0;
        let found = LockHolders::in_lists(&file, || {
            reads += 1;
            String::new()
        });
        assert_eq!((found, reads), (LockHolders::default(), READS_MAX));
    }

    #[test]
    fn reads_lines_of_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let file = file.metadata().unwrap();
        let line = |kind: &str, inode| line_of(&file, kind, inode);
        assert_eq!(holder(&line("FLOCK", file.ino()), &file), Some(4711));
        assert_eq!(holder(&line("-> FLOCK", file.ino()), &file), None);
        assert_eq!(holder(&line("POSIX", file.ino()), &file), None);
        assert_eq!(holder(&line("FLOCK", file.ino() + 1), &file), None);
        assert_eq!(holder("", &file), None);
    }
}
