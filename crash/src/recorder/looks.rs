//! Replacements of read-only functions of the C library. The journal does not hold their calls, but
//! a planned fault may strike them.
//!
//! The code here touches files only through `syscall` or through the replaced C function. Any other
//! call would reach these functions again.

use std::ffi::CStr;
use std::sync::OnceLock;

use libc::{DIR, c_char, c_int, c_uint, c_void, dirent64, off64_t, size_t, ssize_t};

use super::calls::{failed, failed_by, flip, misdirected, path, shortened, state};
use super::{Call, Fault};

/// Makes a read that meets a fault.
///
/// # Safety
/// The caller keeps the conditions of the C library's `pread`.
unsafe fn badly_read(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off64_t,
    fault: Fault,
) -> ssize_t {
    if let Some(errno) = fault.errno() {
        return failed(errno) as ssize_t;
    }
    let (count, from) = match fault {
        Fault::Short => (shortened(count), offset),
        Fault::Misdirected => (count, misdirected(offset)),
        _ => (count, offset),
    };
    // SAFETY: the caller passes a buffer of the original `count` bytes, and `count` has not grown.
    let done = unsafe { libc::syscall(libc::SYS_pread64, fd, buffer, count, from) as ssize_t };
    if fault == Fault::Flipped && done > 0 {
        // SAFETY: the kernel has just stored `done` bytes in the buffer.
        flip(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), done.cast_unsigned()) });
    }
    done
}

/// # Safety
/// The caller keeps the conditions of the C library's `read`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    let fault = state().and_then(|mut state| {
        let node = state.file(fd)?;
        state.meet(Call::Read, node)
    });
    let Some(fault) = fault else {
        // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
        return unsafe { libc::syscall(libc::SYS_read, fd, buffer, count) as ssize_t };
    };
    // SAFETY: the call uses no memory of this process.
    let offset = unsafe { libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let done = unsafe { badly_read(fd, buffer, count, offset, fault) };
    if done > 0 {
        // SAFETY: the call uses no memory of this process.
        unsafe { libc::syscall(libc::SYS_lseek, fd, done, libc::SEEK_CUR) };
    }
    done
}

/// # Safety
/// The caller keeps the conditions of the C library's `pread64`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off64_t,
) -> ssize_t {
    let fault = state().and_then(|mut state| {
        let node = state.file(fd)?;
        state.meet(Call::Read, node)
    });
    let Some(fault) = fault else {
        // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
        return unsafe { libc::syscall(libc::SYS_pread64, fd, buffer, count, offset) as ssize_t };
    };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { badly_read(fd, buffer, count, offset, fault) }
}

#[unsafe(no_mangle)]
extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    // No fault strikes an unlock, because a failed one has no effect to test: the caller closes the
    // file next, which unlocks it too.
    let taken = operation & libc::LOCK_UN == 0;
    let failed = taken.then(state).flatten().and_then(|mut state| {
        let node = *state.files.get(&fd)?;
        failed_by(state.meet(Call::Lock, node))
    });
    // SAFETY: the call uses no memory of this process.
    failed.unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_flock, fd, operation) as c_int })
}

/// # Safety
/// The caller keeps the conditions of the C library's `statx`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    dir_fd: c_int,
    name: *const c_char,
    flags: c_int,
    mask: c_uint,
    found: *mut c_void,
) -> c_int {
    let failed = state().filter(|_| !name.is_null()).and_then(|mut state| {
        // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
        let name = unsafe { path(name) };
        let node = match name {
            [] => *state.files.get(&dir_fd)?,
            name => state.node_of(dir_fd, name)?,
        };
        failed_by(state.meet(Call::Stat, node))
    });
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    failed.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_statx, dir_fd, name, flags, mask, found) as c_int
    })
}

/// # Safety
/// The caller keeps the conditions of the C library's `fstatat64`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat64(
    dir_fd: c_int,
    name: *const c_char,
    found: *mut c_void,
    flags: c_int,
) -> c_int {
    let failed = state().and_then(|mut state| {
        // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
        let node = state.node_of(dir_fd, unsafe { path(name) })?;
        failed_by(state.meet(Call::Stat, node))
    });
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    failed.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_newfstatat, dir_fd, name, found, flags) as c_int
    })
}

/// # Safety
/// The caller keeps the conditions of the C library's `fstat64`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(fd: c_int, found: *mut c_void) -> c_int {
    let failed = state().and_then(|mut state| {
        let node = *state.files.get(&fd)?;
        failed_by(state.meet(Call::Stat, node))
    });
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    failed.unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fstat, fd, found) as c_int })
}

/// Returns the address of the C library's function `name`, which this crate replaces. `found` keeps
/// the address for later calls.
fn behind(name: &'static CStr, found: &'static OnceLock<usize>) -> usize {
    // SAFETY: `dlsym` gets a valid C string.
    *found.get_or_init(|| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize)
}

/// # Safety
/// The caller keeps the conditions of the C library's `opendir`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(name: *const c_char) -> *mut DIR {
    static BEHIND: OnceLock<usize> = OnceLock::new();
    // SAFETY: `dlsym` found the C library's `opendir`, which has this signature.
    let open: unsafe extern "C" fn(*const c_char) -> *mut DIR =
        unsafe { std::mem::transmute(behind(c"opendir", &BEHIND)) };
    let Some(mut state) = state() else {
        // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
        return unsafe { open(name) };
    };
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let node = state.node_of(libc::AT_FDCWD, unsafe { path(name) });
    if node.is_some_and(|node| failed_by(state.meet(Call::List, node)).is_some()) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    let dir = unsafe { open(name) };
    if !dir.is_null() {
        // SAFETY: `dir` is the directory stream that was just opened.
        let fd = unsafe { libc::dirfd(dir) };
        match node {
            Some(node) => state.files.insert(fd, node),
            None => state.files.remove(&fd),
        };
    }
    dir
}

/// # Safety
/// The caller keeps the conditions of the C library's `readdir64`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64(dir: *mut DIR) -> *mut dirent64 {
    static BEHIND: OnceLock<usize> = OnceLock::new();
    // SAFETY: `dlsym` found the C library's `readdir64`, which has this signature.
    let next: unsafe extern "C" fn(*mut DIR) -> *mut dirent64 =
        unsafe { std::mem::transmute(behind(c"readdir64", &BEHIND)) };
    let failed = state().and_then(|mut state| {
        // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
        let node = *state.files.get(&unsafe { libc::dirfd(dir) })?;
        failed_by(state.meet(Call::ListNext, node))
    });
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    if failed.is_some() { std::ptr::null_mut() } else { unsafe { next(dir) } }
}

/// # Safety
/// The caller keeps the conditions of the C library's `closedir`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(dir: *mut DIR) -> c_int {
    static BEHIND: OnceLock<usize> = OnceLock::new();
    // SAFETY: `dlsym` found the C library's `closedir`, which has this signature.
    let close: unsafe extern "C" fn(*mut DIR) -> c_int =
        unsafe { std::mem::transmute(behind(c"closedir", &BEHIND)) };
    let mut state = state();
    if let Some(state) = &mut state {
        // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
        state.files.remove(&unsafe { libc::dirfd(dir) });
    }
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unsafe { close(dir) }
}

/// Returns the result of a copying call that the kernel lacks: -1 with `ENOSYS`. `None` if there is
/// no recording. The recorder would miss a copy inside the kernel. After `ENOSYS` the caller copies
/// with reads and writes, which the recorder sees.
fn unknown() -> Option<ssize_t> {
    state().map(|_| failed(libc::ENOSYS) as ssize_t)
}

/// # Safety
/// The caller keeps the conditions of the C library's `copy_file_range`, which this function
/// replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unknown().unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_copy_file_range, from, from_offset, to, to_offset, count, flags)
            as ssize_t
    })
}

/// # Safety
/// The caller keeps the conditions of the C library's `sendfile64`, which this function replaces.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off64_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller keeps the conditions in this function's `# Safety` section.
    unknown().unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t
    })
}
