//! Replacements of functions of the C library that open, change, sync or close files. Each does
//! what the replaced function does, and also informs the recorder.
//!
//! The code here touches files only through `syscall`. Any other call would reach these functions
//! again.

use std::ffi::CStr;
use std::sync::atomic::Ordering;

use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, off64_t, size_t, ssize_t};
use parking_lot::{MappedMutexGuard, MutexGuard};

use embank_kv::device::AlignedBuffer;

use super::{Call, Fault, RECORDING, STATE, SYNCS_SKIPPED, State, bytes_of};
use crate::journal::Op;

/// Returns the state of the recording in progress. `None` if there is no recording.
pub(super) fn state() -> Option<MappedMutexGuard<'static, State>> {
    if !RECORDING.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the pointer leads to this thread's own `errno`. The value is restored, because
    // waiting for the lock may change it. A caller of `readdir` reads `errno` to tell the
    // directory's end from an error.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let locked = STATE.lock();
    *errno = before;
    MutexGuard::try_map(locked, Option::as_mut).ok()
}

/// Returns the result of a call after a simulated kill: -1 with `EIO`.
fn gone() -> c_int {
    failed(libc::EIO)
}

/// Sets `errno` and returns -1, the result of a failed call.
pub(super) fn failed(errno: c_int) -> c_int {
    // SAFETY: the pointer leads to this thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Returns the result of a call whose fault is an error number. `None` for other faults.
pub(super) fn failed_by(fault: Option<Fault>) -> Option<c_int> {
    fault.and_then(Fault::errno).map(failed)
}

/// Returns the bytes of a path argument of a C library function.
///
/// # Safety
/// `path` must be a valid C string that stays valid for the call.
pub(super) unsafe fn path<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    bytes_of(unsafe { CStr::from_ptr(path) })
}

/// Opens a file as the kernel's `openat` does.
///
/// # Safety
/// The caller keeps the conditions of the C library's `openat`.
unsafe fn open_in(dir_fd: c_int, name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller passes a valid path. The kernel adds O_LARGEFILE on 64-bit systems.
    let open = || unsafe {
        libc::syscall(libc::SYS_openat, dir_fd, name, flags, c_long::from(mode)) as c_int
    };
    let Some(mut state) = state() else { return open() };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let bytes = unsafe { path(name) };
    let (there, place) = (state.node_of(dir_fd, bytes), state.place_of(dir_fd, bytes));
    let makes = there.is_none() && place.is_some() && flags & libc::O_CREAT != 0;
    let cuts = there.is_some() && flags & libc::O_TRUNC != 0;
    if (makes || cuts) && !state.pass() {
        return gone();
    }
    let fault = match (there, &place) {
        (Some(node), _) => state.meet(Call::Open, node),
        (None, Some(place)) => {
            state.meet_name(if makes { Call::Create } else { Call::Open }, place)
        }
        (None, None) => None,
    };
    if let Some(failed) = failed_by(fault) {
        return failed;
    }
    let fd = open();
    if fd < 0 {
        return fd;
    }
    let node = match (there, place) {
        (None, Some(place)) if makes => Some(state.make(place, false)),
        _ => there,
    };
    match node {
        Some(node) => state.files.insert(fd, node),
        None => state.files.remove(&fd),
    };
    if let Some(node) = there.filter(|_| cuts) {
        state.journal.ops.push(Op::SetLen { node, len: 0 });
    }
    fd
}

/// # Safety
/// The caller keeps the conditions of the C library's `open64`, which this function replaces. The C
/// function is variadic: the caller passes `mode` only if the call may create a file. x86-64 and
/// AArch64 Linux pass a variadic argument like any other argument. Without a caller's `mode`, the
/// parameter has no defined value, and the kernel does not use it.
#[unsafe(no_mangle)]
unsafe extern "C" fn open64(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { open_in(libc::AT_FDCWD, name, flags, mode) }
}

/// # Safety
/// The caller keeps the conditions in the `# Safety` section of [`open64`].
#[unsafe(no_mangle)]
unsafe extern "C" fn open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { open_in(libc::AT_FDCWD, name, flags, mode) }
}

/// # Safety
/// The caller keeps the conditions in the `# Safety` section of [`open64`].
#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(
    dir_fd: c_int,
    name: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { open_in(dir_fd, name, flags, mode) }
}

/// # Safety
/// The caller keeps the conditions in the `# Safety` section of [`open64`].
#[unsafe(no_mangle)]
unsafe extern "C" fn openat(
    dir_fd: c_int,
    name: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { open_in(dir_fd, name, flags, mode) }
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    let mut state = state();
    if let Some(state) = &mut state {
        state.files.remove(&fd);
    }
    // SAFETY: the call uses no memory of this process. The caller owns the descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// # Safety
/// The caller keeps the conditions of the C library's `write`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let write =
        |count: size_t| unsafe { libc::syscall(libc::SYS_write, fd, bytes, count) as ssize_t };
    let Some(mut state) = state() else { return write(count) };
    let Some(node) = state.file(fd) else {
        drop(state);
        return write(count);
    };
    if !state.pass() {
        return gone() as ssize_t;
    }
    // SAFETY: the call uses no memory of this process.
    let offset = unsafe { libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) };
    let done = match state.meet(Call::Write, node) {
        None => write(count),
        Some(fault) => {
            // SAFETY: the caller passes `count` readable bytes.
            let content = unsafe { std::slice::from_raw_parts(bytes.cast(), count) };
            let done = badly_written(fd, content, offset, fault);
            if done > 0 {
                // SAFETY: the call uses no memory of this process.
                unsafe { libc::syscall(libc::SYS_lseek, fd, done, libc::SEEK_CUR) };
            }
            return done;
        }
    };
    if done > 0 {
        // SAFETY: the caller passes `count` readable bytes, and the kernel wrote `done` of them.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), done.cast_unsigned()) };
        state.wrote(node, offset.cast_unsigned(), bytes);
    }
    done
}

/// # Safety
/// The caller keeps the conditions of the C library's `pwrite64`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(
    fd: c_int,
    bytes: *const c_void,
    count: size_t,
    offset: off64_t,
) -> ssize_t {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let write =
        || unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes, count, offset) as ssize_t };
    let Some(mut state) = state() else { return write() };
    let Some(node) = state.file(fd) else {
        drop(state);
        return write();
    };
    if !state.pass() {
        return gone() as ssize_t;
    }
    if let Some(fault) = state.meet(Call::Write, node) {
        // SAFETY: the caller passes `count` readable bytes.
        let content = unsafe { std::slice::from_raw_parts(bytes.cast(), count) };
        return badly_written(fd, content, offset, fault);
    }
    let done = write();
    if done > 0 {
        // SAFETY: the caller passes `count` readable bytes, and the kernel wrote `done` of them.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), done.cast_unsigned()) };
        state.wrote(node, offset.cast_unsigned(), bytes);
    }
    done
}

/// Makes a write that meets a fault. This function does not add the write to the journal, because
/// runs with faults do not use the journal.
fn badly_written(fd: c_int, content: &[u8], offset: off64_t, fault: Fault) -> ssize_t {
    if let Some(errno) = fault.errno() {
        return failed(errno) as ssize_t;
    }
    let put = |bytes: &[u8], offset: off64_t| {
        // SAFETY: the kernel only reads the bytes of a live slice.
        unsafe {
            libc::syscall(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), offset) as ssize_t
        }
    };
    let elsewhere = misdirected(offset);
    match fault {
        Fault::Short => put(&content[..shortened(content.len())], offset),
        Fault::Misdirected => put(content, elsewhere),
        Fault::Flipped => {
            // Direct I/O requires an aligned buffer, so the copy is aligned too.
            let mut flipped = AlignedBuffer::zeroed(content.len().max(1).next_multiple_of(512));
            flipped[..content.len()].copy_from_slice(content);
            flip(&mut flipped[..content.len()]);
            put(&flipped[..content.len()], offset)
        }
        _ => content.len().cast_signed(),
    }
}

/// Returns the length of a shortened transfer: half of `len`. If `len` is a multiple of a block,
/// the half is rounded up to whole blocks.
pub(super) fn shortened(len: usize) -> usize {
    const BLOCK: usize = 512;
    match len {
        0..2 => len,
        len if len.is_multiple_of(BLOCK) => (len / BLOCK).div_ceil(2) * BLOCK,
        len => len / 2,
    }
}

/// Returns the offset of a misdirected transfer. It lies two pages of the tested bank before the
/// right offset, or two pages after it near the file's start.
pub(super) fn misdirected(offset: off64_t) -> off64_t {
    const AWAY: off64_t = 16 << 10;
    if offset >= AWAY { offset - AWAY } else { offset + AWAY }
}

/// Flips one bit of the middle byte.
pub(super) fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 1 << (middle % 8);
    }
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(fd: c_int, len: off64_t) -> c_int {
    // SAFETY: the call uses no memory of this process.
    let cut = || unsafe { libc::syscall(libc::SYS_ftruncate, fd, len) as c_int };
    let Some(mut state) = state() else { return cut() };
    let Some(node) = state.file(fd) else { return cut() };
    if !state.pass() {
        return gone();
    }
    if let Some(failed) = failed_by(state.meet(Call::SetLen, node)) {
        return failed;
    }
    let done = cut();
    if done == 0 {
        state.journal.ops.push(Op::SetLen { node, len: len.cast_unsigned() });
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off64_t, len: off64_t) -> c_int {
    // SAFETY: the call uses no memory of this process.
    let allocate = || unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, len) as c_int };
    let Some(mut state) = state() else { return allocate() };
    let Some(node) = state.file(fd) else { return allocate() };
    if !state.pass() {
        return gone();
    }
    let is_punch = mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let call = if is_punch { Call::Punch } else { Call::Allocate };
    if let Some(failed) = failed_by(state.meet(call, node)) {
        return failed;
    }
    let len_before = len_of(fd);
    let done = allocate();
    if done == 0 {
        let (start, bytes) = (offset.cast_unsigned(), len.cast_unsigned());
        match mode {
            _ if is_punch => state.journal.ops.push(Op::Punch { node, offset: start, len: bytes }),
            // The content changes only where the file gets longer.
            0 if offset + len > len_before => {
                state.journal.ops.push(Op::SetLen { node, len: start + bytes });
            }
            0 => {}
            _ => state.not_understood = Some(format!("fallocate in mode {mode}")),
        }
    }
    done
}

/// Returns the length of an open file. The file offset does not change.
fn len_of(fd: c_int) -> off64_t {
    // SAFETY: all fields of `stat64` are integers, so zeros are a valid value. The call writes one
    // `stat64`.
    unsafe {
        let mut found: libc::stat64 = std::mem::zeroed();
        let nothing = c"".as_ptr();
        libc::syscall(libc::SYS_newfstatat, fd, nothing, &raw mut found, libc::AT_EMPTY_PATH);
        found.st_size
    }
}

/// Does the work of `fsync` and `fdatasync`. If the file is recorded, the kernel does not sync it;
/// only the journal notes the sync.
fn sync(fd: c_int, call: c_long) -> c_int {
    if let Some(mut state) = state()
        && let Some(&node) = state.files.get(&fd)
    {
        if !state.pass() {
            return gone();
        }
        if let Some(failed) = failed_by(state.meet(Call::Sync, node)) {
            return failed;
        }
        state.synced(node);
        return 0;
    }
    if SYNCS_SKIPPED.load(Ordering::Relaxed) {
        return 0;
    }
    // SAFETY: the call uses no memory of this process.
    unsafe { libc::syscall(call, fd) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd, libc::SYS_fsync)
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd, libc::SYS_fdatasync)
}

/// Makes a directory as the kernel's `mkdirat` does.
///
/// # Safety
/// The caller keeps the conditions of the C library's `mkdirat`.
unsafe fn make_in(dir_fd: c_int, name: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let make =
        || unsafe { libc::syscall(libc::SYS_mkdirat, dir_fd, name, c_long::from(mode)) as c_int };
    let Some(mut state) = state() else { return make() };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let Some(place) = state.place_of(dir_fd, unsafe { path(name) }) else { return make() };
    if !state.pass() {
        return gone();
    }
    // If the directory exists, the kernel reports that before it needs the disk. So no fault
    // strikes such a call.
    let is_new = !state.names.contains_key(&place);
    if is_new && let Some(failed) = failed_by(state.meet_name(Call::MakeDir, &place)) {
        return failed;
    }
    let done = make();
    if done == 0 {
        state.make(place, true);
    }
    done
}

/// # Safety
/// The caller keeps the conditions of the C library's `mkdir`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(name: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { make_in(libc::AT_FDCWD, name, mode) }
}

/// # Safety
/// The caller keeps the conditions of the C library's `mkdirat`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn mkdirat(dir_fd: c_int, name: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { make_in(dir_fd, name, mode) }
}

/// Removes a name as the kernel's `unlinkat` does.
///
/// # Safety
/// The caller keeps the conditions of the C library's `unlinkat`.
unsafe fn unlink_in(dir_fd: c_int, name: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let unlink = || unsafe { libc::syscall(libc::SYS_unlinkat, dir_fd, name, flags) as c_int };
    let Some(mut state) = state() else { return unlink() };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let Some(place) = state.place_of(dir_fd, unsafe { path(name) }) else { return unlink() };
    if !state.pass() {
        return gone();
    }
    let call = if flags & libc::AT_REMOVEDIR == 0 { Call::Remove } else { Call::RemoveDir };
    if let Some(failed) = failed_by(state.meet_name(call, &place)) {
        return failed;
    }
    let done = unlink();
    if done == 0 {
        state.unlinked(place);
    }
    done
}

/// # Safety
/// The caller keeps the conditions of the C library's `unlinkat`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(dir_fd: c_int, name: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { unlink_in(dir_fd, name, flags) }
}

/// # Safety
/// The caller keeps the conditions of the C library's `unlink`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(name: *const c_char) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { unlink_in(libc::AT_FDCWD, name, 0) }
}

/// # Safety
/// The caller keeps the conditions of the C library's `rmdir`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(name: *const c_char) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { unlink_in(libc::AT_FDCWD, name, libc::AT_REMOVEDIR) }
}

/// Renames a file as the kernel's `renameat` does.
///
/// # Safety
/// The caller keeps the conditions of the C library's `renameat`.
unsafe fn rename_in(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
) -> c_int {
    let no_flags: c_uint = 0;
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let rename = || unsafe {
        libc::syscall(libc::SYS_renameat2, from_dir, from, to_dir, to, no_flags) as c_int
    };
    let Some(mut state) = state() else { return rename() };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let places =
        unsafe { (state.place_of(from_dir, path(from)), state.place_of(to_dir, path(to))) };
    let (Some(from), Some(to)) = places else { return rename() };
    if !state.pass() {
        return gone();
    }
    if let Some(failed) = failed_by(state.meet_name(Call::Rename, &from)) {
        return failed;
    }
    let done = rename();
    if done == 0 {
        state.renamed(from, to);
    }
    done
}

/// # Safety
/// The caller keeps the conditions of the C library's `rename`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { rename_in(libc::AT_FDCWD, from, libc::AT_FDCWD, to) }
}

/// # Safety
/// The caller keeps the conditions of the C library's `renameat`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { rename_in(from_dir, from, to_dir, to) }
}

/// # Safety
/// The caller keeps the conditions of the C library's `linkat`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    old_dir: c_int,
    old: *const c_char,
    new_dir: c_int,
    new: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let link =
        || unsafe { libc::syscall(libc::SYS_linkat, old_dir, old, new_dir, new, flags) as c_int };
    let Some(mut state) = state() else { return link() };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let ends = unsafe { (state.node_of(old_dir, path(old)), state.place_of(new_dir, path(new))) };
    let (Some(node), Some(place)) = ends else { return link() };
    if !state.pass() {
        return gone();
    }
    if let Some(failed) = failed_by(state.meet_name(Call::Link, &place)) {
        return failed;
    }
    let done = link();
    if done == 0 {
        state.linked(node, place);
    }
    done
}
