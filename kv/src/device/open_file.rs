//! Opens segment files, with direct transfers if the file system allows them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{AlignedBuffer, BLOCK_BYTES};
use crate::files::directory::{Directory, Place};
use crate::process::new_id::new_id;

#[cfg(target_os = "linux")]
const DIRECT: OFlags = OFlags::DIRECT;
#[cfg(not(target_os = "linux"))]
const DIRECT: OFlags = OFlags::empty();

/// Opens an existing segment file to read. Opens it to write too, unless `read_only` or another
/// user owns the file. Only the last segment of a log is written, and opening a bank makes that
/// segment this user's own.
pub(super) fn existing(place: &Place, direct: bool, read_only: bool) -> io::Result<File> {
    let open = |access: OFlags| place.open_with(access | flags(direct));
    let opened = match read_only {
        true => open(OFlags::RDONLY),
        false => open(OFlags::RDWR).or_else(|refused| match refused.kind() {
            io::ErrorKind::PermissionDenied => open(OFlags::RDONLY),
            _ => Err(refused),
        }),
    };
    opened.inspect(leave_access_time_alone)
}

/// Creates a segment file. Fails if there is one.
pub(super) fn create(place: &Place, direct: bool) -> io::Result<File> {
    let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    place.open_with(new | flags(direct)).inspect(leave_access_time_alone)
}

/// Tells the kernel not to update the time of the file's last access, which it otherwise checks at
/// each read. Only the owner of the file may do that; others go without.
#[cfg(target_os = "linux")]
fn leave_access_time_alone(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: reads and sets the flags of an open file; no memory of this process is touched.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NOATIME);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn leave_access_time_alone(_file: &File) {}

fn flags(direct: bool) -> OFlags {
    if direct { DIRECT } else { OFlags::empty() }
}

/// Tries direct transfers of single blocks in `folder`. Returns the reason if the file system
/// refuses them: `EINVAL` means that it has no direct transfers, or needs a coarser alignment than
/// [`BLOCK_BYTES`].
///
/// Other failures say nothing about direct transfers, for example a full disk, on which a bank must
/// still open. Direct transfers are assumed then, and a later read or write reports the failure.
pub(super) fn probe_direct(folder: &Arc<Directory>) -> Option<String> {
    if DIRECT.is_empty() {
        return Some("this system has no O_DIRECT".to_owned());
    }
    // No file has this name.
    let place = folder.place(format!("probe-{:016x}.tmp", new_id()));
    let tried = try_direct(&place);
    // The file may not exist.
    let _ = place.remove_file();
    match tried {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(format!(
            "the file system under {} refuses O_DIRECT in blocks of {BLOCK_BYTES} bytes: {error}",
            folder.path().display()
        )),
        _ => None,
    }
}

/// As [`probe_direct`], for a store that may make no file: tries to read the segment file `place`.
pub(super) fn probe_direct_reads(place: Option<&Place>) -> Option<String> {
    let Some(place) = place else {
        return Some("there was no segment file yet to try direct reads on".to_owned());
    };
    let mut block = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
    let tried = existing(place, true, true)
        .and_then(|file| file.read_at(&mut block[BLOCK_BYTES..], BLOCK_BYTES as u64));
    match tried {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(format!(
            "the file system of {} refuses O_DIRECT in blocks of {BLOCK_BYTES} bytes: {error}",
            place.path().display()
        )),
        _ if DIRECT.is_empty() => Some("this system has no O_DIRECT".to_owned()),
        _ => None,
    }
}

/// Gives the space of a file's first `bytes` back to the file system. They then read as zeros, and
/// the file keeps its length. False if the file system can't do it.
#[cfg(target_os = "linux")]
pub(super) fn punch(file: &File, bytes: u64) -> bool {
    use std::os::fd::AsRawFd;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let Ok(bytes) = libc::off_t::try_from(bytes) else { return false };
    // SAFETY: a system call on an open file, which touches no memory of this process.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, bytes) == 0 }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn punch(_file: &File, _bytes: u64) -> bool {
    false
}

fn try_direct(place: &Place) -> io::Result<()> {
    let file = place.open_with(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | DIRECT)?;
    let mut block = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
    // The second half of a page, at the file's second block: aligned to a block, and to no larger
    // power of two.
    file.write_all_at(&block[BLOCK_BYTES..], BLOCK_BYTES as u64)?;
    file.read_exact_at(&mut block[BLOCK_BYTES..], BLOCK_BYTES as u64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn flags(file: &File) -> i32 {
        // SAFETY: reads the flags of an open file.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
    }

    #[test]
    fn reads_leave_the_access_time_alone_and_transfers_stay_direct() {
        let dir = tempfile::tempdir().unwrap();
        let held = Directory::open(dir.path()).unwrap();
        let path = held.place("segment");
        let direct = probe_direct(&held).is_none();
        let created = create(&path, direct).unwrap();
        let opened = [false, true].map(|read_only| existing(&path, direct, read_only).unwrap());
        for file in opened.iter().chain([&created]) {
            let flags = flags(file);
            assert_eq!(flags & libc::O_NOATIME, libc::O_NOATIME);
            assert_eq!(flags & libc::O_DIRECT != 0, direct);
        }
    }
}
