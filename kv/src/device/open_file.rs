//! Opens segment files, with direct transfers if the file system allows them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, SeekFrom};

use super::segments::open_files::Wait;
use super::{AlignedBuffer, BLOCK_BYTES, BLOCK_BYTES_MAX};
use crate::files::directory::{Directory, Place};
use crate::files::held_file::HeldFile;
use crate::process::new_id::new_id;

#[cfg(target_os = "linux")]
const DIRECT: OFlags = OFlags::DIRECT;
#[cfg(not(target_os = "linux"))]
const DIRECT: OFlags = OFlags::empty();

/// Opens an existing segment file. Opens it for writing only if `read_only` is false, this user may
/// write to it, and its name is no symbolic link. A handle that can only read does no harm, because
/// the store writes only to the log's last segment. If that segment can't be opened for writing,
/// the opening of the bank replaces it by a copy that this user owns.
pub(super) fn existing(
    place: &Place,
    direct: bool,
    read_only: bool,
    wait: Wait,
) -> io::Result<HeldFile> {
    let open = |access: OFlags| match wait {
        Wait::Yes => place.open_with(access | flags(direct)),
        Wait::No => place.open_now(access | flags(direct)),
    };
    let opened = match read_only {
        true => open(OFlags::RDONLY),
        false => open(OFlags::RDWR | OFlags::NOFOLLOW).or_else(|refused| {
            let is_link = refused.raw_os_error() == Some(libc::ELOOP);
            let may_read = is_link || refused.kind() == io::ErrorKind::PermissionDenied;
            // An opening of another kind of file, such as a FIFO, might never return.
            match may_read && place.is_file() {
                true => open(OFlags::RDONLY),
                false => Err(refused),
            }
        }),
    };
    opened.inspect(leave_access_time_alone).and_then(HeldFile::new)
}

/// Creates a segment file. Fails if it exists.
pub(super) fn create(place: &Place, direct: bool) -> io::Result<HeldFile> {
    let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let created = place.open_with(new | flags(direct)).inspect(leave_access_time_alone);
    created.and_then(HeldFile::new)
}

/// Tells the kernel not to update the file's access time. Without this flag the kernel checks that
/// time at each read. The call has no effect if another user owns the file.
#[cfg(target_os = "linux")]
fn leave_access_time_alone(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: the calls read and set flags of an open file. They use no memory of this process.
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

/// Returns the block size of direct transfers in `folder`: the smallest one that the file system
/// allows. Returns the reason if it refuses direct transfers. Only the error `EINVAL` counts as a
/// refusal: the file system has no direct transfers of this block size.
///
/// Other failures say nothing about direct transfers. For example, a bank on a full disk must open.
/// The function then returns the largest block size, with which every drive works, and a later read
/// or write reports the failure.
pub(super) fn probe_direct(folder: &Arc<Directory>) -> Result<usize, String> {
    let tried = block_size_of(|block_bytes| {
        // The name is random, so no other file has it.
        let place = folder.place(format!("probe-{:016x}.tmp", new_id()));
        let tried = try_direct(&place, block_bytes);
        // An error is ignored: the file may not exist.
        let _ = place.remove_file();
        tried
    });
    tried.map_err(|error| refused(folder.path(), error))
}

/// Does what [`probe_direct`] does, for a store that must not create a file: tries to read the
/// segment file `place`.
pub(super) fn probe_direct_reads(place: Option<&Place>) -> Result<usize, String> {
    let Some(place) = place else {
        return Err("there was no segment file yet to try direct reads on".to_owned());
    };
    let tried = block_size_of(|block_bytes| try_direct_read(place, block_bytes));
    tried.map_err(|error| refused(&place.path(), error))
}

/// Returns the smallest block size with which `transfer` works. Returns the largest block size
/// after an error that says nothing about block sizes.
fn block_size_of(transfer: impl Fn(usize) -> io::Result<()>) -> Result<usize, Option<io::Error>> {
    if DIRECT.is_empty() {
        return Err(None);
    }
    let is_refusal = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    match transfer(BLOCK_BYTES) {
        Ok(()) => return Ok(BLOCK_BYTES),
        Err(error) if !is_refusal(&error) => return Ok(BLOCK_BYTES_MAX),
        Err(_) => {}
    }
    match transfer(BLOCK_BYTES_MAX) {
        Err(error) if is_refusal(&error) => Err(Some(error)),
        _ => Ok(BLOCK_BYTES_MAX),
    }
}

fn refused(path: &Path, error: Option<io::Error>) -> String {
    let Some(error) = error else { return "this system has no O_DIRECT".to_owned() };
    format!(
        "the file system under {} refuses O_DIRECT in blocks of {BLOCK_BYTES_MAX} bytes: {error}",
        path.display()
    )
}

/// Returns the space of a file's first `bytes` bytes to the file system. The bytes then read as
/// zeros, and the file keeps its length. False if the file system can't free a part of a file.
#[cfg(target_os = "linux")]
pub(super) fn punch(file: &File, bytes: u64) -> bool {
    use std::os::fd::AsRawFd;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let Ok(bytes) = libc::off_t::try_from(bytes) else { return false };
    // SAFETY: a system call on an open file that uses no memory of this process.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, bytes) == 0 }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn punch(_file: &File, _bytes: u64) -> bool {
    false
}

/// Gives a part of a file its blocks and, if the part reaches beyond the file's end, its length.
/// New blocks read as zeros.
///
/// Returns false after a failure, and then the file has the length that it had. The write that
/// follows reports a lack of room. A file system that can't allocate blocks in advance gives them
/// to the write.
#[cfg(target_os = "linux")]
pub(super) fn allocate(file: &File, offset: u64, bytes: u64) -> bool {
    use std::os::fd::AsRawFd;
    let (Ok(offset), Ok(bytes)) = (libc::off_t::try_from(offset), libc::off_t::try_from(bytes))
    else {
        return false;
    };
    // Beyond the process's limit of file sizes, the call would raise SIGXFSZ before the write does.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < (offset + bytes) as u64) {
        return false;
    }
    let Ok(len_before) = file.metadata().map(|metadata| metadata.len()) else { return false };
    // SAFETY: a system call on an open file that uses no memory of this process.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, bytes) } == 0 {
        return true;
    }
    // ext4 keeps the blocks that it found before the failure. If this call fails too, the next sync
    // cuts the file.
    if file.metadata().is_ok_and(|metadata| metadata.len() > len_before) {
        let _ = file.set_len(len_before);
    }
    false
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allocate(_file: &File, _offset: u64, _bytes: u64) -> bool {
    false
}

fn try_direct(place: &Place, block_bytes: usize) -> io::Result<()> {
    let file = place.open_with(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | DIRECT)?;
    let mut block = AlignedBuffer::zeroed(2 * block_bytes);
    // The memory and the file offset are aligned to one block and to nothing larger, so a file
    // system that needs a larger alignment refuses the transfers.
    file.write_all_at(&block[block_bytes..], block_bytes as u64)?;
    file.read_exact_at(&mut block[block_bytes..], block_bytes as u64)
}

/// Reads a block of an existing file. The read must reach the drive: Linux checks the alignment of
/// a direct read only where the file has blocks, and not in a hole.
fn try_direct_read(place: &Place, block_bytes: usize) -> io::Result<()> {
    let file = existing(place, true, true, Wait::Yes)?;
    // Fails with `ENXIO` if the file is empty or one hole.
    let data = rustix::fs::seek(file.file(), SeekFrom::Data(0))?;
    let block_start = data.next_multiple_of(BLOCK_BYTES_MAX as u64) + block_bytes as u64;
    let mut block = AlignedBuffer::zeroed(2 * block_bytes);
    file.file().read_at(&mut block[block_bytes..], block_start).map(|_| ())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn flags(file: &File) -> i32 {
        // SAFETY: the call only reads the flags of an open file.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
    }

    #[test]
    fn allocated_bytes_are_zeros_and_change_no_other_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        std::fs::write(&path, [7; 4096]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        if !allocate(&file, 0, 16384) {
            return eprintln!("left out: the file system can't allocate blocks");
        }
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes, [[7; 4096], [0; 4096], [0; 4096], [0; 4096]].concat());
    }

    #[test]
    fn reads_leave_the_access_time_alone_and_transfers_stay_direct() {
        let dir = tempfile::tempdir().unwrap();
        let held = Directory::open(dir.path()).unwrap();
        let path = held.place("segment");
        let direct = probe_direct(&held).is_ok();
        let created = create(&path, direct).unwrap();
        let opened =
            [false, true].map(|read_only| existing(&path, direct, read_only, Wait::Yes).unwrap());
        for file in opened.iter().chain([&created]) {
            let flags = flags(file.file());
            assert_eq!(flags & libc::O_NOATIME, libc::O_NOATIME);
            assert_eq!(flags & libc::O_DIRECT != 0, direct);
        }
    }
}
