//! Finds out which processes hold a lock on a file, for error messages.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::process;

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
        // Outside Linux the file `/proc/locks` does not exist. The list of processes is then empty.
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let mut processes: Vec<u32> = locks.lines().filter_map(|line| holder(line, file)).collect();
        processes.sort_unstable();
        processes.dedup();
        let named = |process| LockHolder { process, command: command_of(process) };
        LockHolders(processes.into_iter().map(named).collect())
    }
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

    #[test]
    fn reads_lines_of_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let file = file.metadata().unwrap();
        let major = libc::major(file.dev() as _);
        let minor = libc::minor(file.dev() as _);
        let line = |kind: &str, inode| {
            format!("1: {kind}  ADVISORY  WRITE 4711 {major:02x}:{minor:02x}:{inode} 0 EOF")
        };
        assert_eq!(holder(&line("FLOCK", file.ino()), &file), Some(4711));
        assert_eq!(holder(&line("-> FLOCK", file.ino()), &file), None);
        assert_eq!(holder(&line("POSIX", file.ino()), &file), None);
        assert_eq!(holder(&line("FLOCK", file.ino() + 1), &file), None);
        assert_eq!(holder("", &file), None);
    }
}
