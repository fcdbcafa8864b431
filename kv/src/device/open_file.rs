//! Opening segment files, past the page cache where the file system takes it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::{AlignedBuffer, BLOCK_BYTES};

#[cfg(target_os = "linux")]
const DIRECT: i32 = libc::O_DIRECT;
#[cfg(not(target_os = "linux"))]
const DIRECT: i32 = 0;

/// Opens a segment file that is there, to read, and to write unless `read_only`.
pub(super) fn existing(path: &Path, direct: bool, read_only: bool) -> io::Result<File> {
    options(direct).write(!read_only).open(path).inspect(leave_access_time_alone)
}

/// Creates a segment file that must not be there.
pub(super) fn create(path: &Path, direct: bool) -> io::Result<File> {
    options(direct).create_new(true).open(path).inspect(leave_access_time_alone)
}

/// Has reads leave the time of the file's last access, which the kernel else looks at for each of them. That is the
/// owner's to ask for; others do without.
#[cfg(target_os = "linux")]
fn leave_access_time_alone(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: asks for the flags of an open file and sets them; no memory of this process is touched.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NOATIME);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn leave_access_time_alone(_file: &File) {}

fn options(direct: bool) -> OpenOptions {
    let mut options = File::options();
    // The standard library adds O_CLOEXEC.
    options.read(true).write(true).custom_flags(if direct { DIRECT } else { 0 });
    options
}

/// Tries direct transfers of single blocks in `folder`; the reason if the file system refuses them
/// (`EINVAL`: it has none, or wants a coarser alignment than [`BLOCK_BYTES`]).
///
/// Other failures are no answer, such as a full disk, on which a bank must still open; direct transfers
/// are then assumed, and a read or write reports what is wrong.
pub(super) fn probe_direct(folder: &Path) -> Option<String> {
    if DIRECT == 0 {
        return Some("this system has no O_DIRECT".to_owned());
    }
    let path = folder.join(format!("probe-{}.tmp", std::process::id()));
    let tried = try_direct(&path);
    // It may never have come into being.
    let _ = fs::remove_file(&path);
    match tried {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(format!(
            "the file system under {} refuses O_DIRECT in blocks of {BLOCK_BYTES} bytes: {error}",
            folder.display()
        )),
        _ => None,
    }
}

/// As [`probe_direct`], for whoever may not make a file: tries to read the segment file `path`.
pub(super) fn probe_direct_reads(path: Option<&Path>) -> Option<String> {
    let Some(path) = path else {
        return Some("there was no segment file yet to try direct reads on".to_owned());
    };
    let mut block = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
    let tried = existing(path, DIRECT != 0, true)
        .and_then(|file| file.read_at(&mut block[BLOCK_BYTES..], BLOCK_BYTES as u64));
    match tried {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(format!(
            "the file system of {} refuses O_DIRECT in blocks of {BLOCK_BYTES} bytes: {error}",
            path.display()
        )),
        _ if DIRECT == 0 => Some("this system has no O_DIRECT".to_owned()),
        _ => None,
    }
}

/// Gives the space of a file's first `bytes` back to the file system; they read as zeros then, and the
/// file's length stays. False where that can't be done.
#[cfg(target_os = "linux")]
pub(super) fn punch(file: &File, bytes: u64) -> bool {
    use std::os::fd::AsRawFd;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let Ok(bytes) = libc::off_t::try_from(bytes) else { return false };
    // SAFETY: a system call on an open file; it touches no memory of this process.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, bytes) == 0 }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn punch(_file: &File, _bytes: u64) -> bool {
    false
}

fn try_direct(path: &Path) -> io::Result<()> {
    let file = options(true).create(true).truncate(true).open(path)?;
    let mut block = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
    // The second half of a page, at the file's second block: aligned to a block and to nothing more.
    file.write_all_at(&block[BLOCK_BYTES..], BLOCK_BYTES as u64)?;
    file.read_exact_at(&mut block[BLOCK_BYTES..], BLOCK_BYTES as u64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn flags(file: &File) -> i32 {
        // SAFETY: asks an open file for its flags.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
    }

    #[test]
    fn reads_leave_the_access_time_alone_and_transfers_stay_direct() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let direct = probe_direct(dir.path()).is_none();
        let created = create(&path, direct).unwrap();
        let opened = [false, true].map(|read_only| existing(&path, direct, read_only).unwrap());
        for file in opened.iter().chain([&created]) {
            let flags = flags(file);
            assert_eq!(flags & libc::O_NOATIME, libc::O_NOATIME);
            assert_eq!(flags & libc::O_DIRECT != 0, direct);
        }
    }
}
