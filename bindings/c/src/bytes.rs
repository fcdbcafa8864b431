//! Bytes and lists of names that a call returns.

use std::ffi::{CString, c_char, c_void};

use crate::handle;

/// Bytes that a call returns. Free with embank_bytes_free.
#[derive(Debug)]
pub struct embank_bytes {
    /// The bytes, followed by a NUL, so that C can use text as a string.
    terminated: Vec<u8>,
}

impl embank_bytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut terminated = Vec::with_capacity(bytes.len() + 1);
        terminated.extend_from_slice(bytes);
        terminated.push(0);
        Self { terminated }
    }
}

/// The bytes, followed by a NUL; NULL if `bytes` is NULL. Valid until embank_bytes_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bytes_data(bytes: *const embank_bytes) -> *const c_void {
    // SAFETY: by the rules of embank.h, `bytes` is null or a live handle.
    unsafe { bytes.as_ref() }.map_or(std::ptr::null(), |bytes| bytes.terminated.as_ptr().cast())
}

/// The number of bytes, without the NUL; 0 if `bytes` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bytes_size(bytes: *const embank_bytes) -> usize {
    // SAFETY: by the rules of embank.h, `bytes` is null or a live handle.
    unsafe { bytes.as_ref() }.map_or(0, |bytes| bytes.terminated.len() - 1)
}

/// Frees the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bytes_free(bytes: *mut embank_bytes) {
    // SAFETY: by the rules of embank.h, `bytes` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(bytes) };
}

/// Names that a call returns. Free with embank_names_free.
#[derive(Debug)]
pub struct embank_names {
    names: Vec<CString>,
}

impl embank_names {
    pub(crate) fn new(names: impl Iterator<Item = String>) -> Self {
        // A C string ends at its first NUL, so a name with a NUL in it is cut there.
        let names = names.map(|name| {
            let before = name.split('\0').next().unwrap_or_default().to_owned();
            CString::new(before).expect("there is no NUL before the first one")
        });
        Self { names: names.collect() }
    }
}

/// The number of names; 0 if `names` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_names_count(names: *const embank_names) -> usize {
    // SAFETY: by the rules of embank.h, `names` is null or a live handle.
    unsafe { names.as_ref() }.map_or(0, |names| names.names.len())
}

/// The name with the number `place`, counted from 0, as UTF-8. NULL if there is no such name. Valid
/// until embank_names_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_names_at(
    names: *const embank_names,
    place: usize,
) -> *const c_char {
    // SAFETY: by the rules of embank.h, `names` is null or a live handle.
    let names = unsafe { names.as_ref() };
    names.and_then(|names| names.names.get(place)).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Frees the names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_names_free(names: *mut embank_names) {
    // SAFETY: by the rules of embank.h, `names` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(names) };
}
