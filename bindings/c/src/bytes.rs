//! Bytes and lists of names that a call hands out.

use std::ffi::{CString, c_char, c_void};

use crate::handle;

/// Bytes that a call hands out. Free with embank_bytes_free.
#[derive(Debug)]
pub struct embank_bytes {
    /// A NUL behind the last byte, so that text is a C string.
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

/// The bytes, with a NUL behind them; valid until they are freed. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bytes_data(bytes: *const embank_bytes) -> *const c_void {
    // SAFETY: by the header's rules.
    unsafe { bytes.as_ref() }.map_or(std::ptr::null(), |bytes| bytes.terminated.as_ptr().cast())
}

/// How many bytes there are, without the NUL. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bytes_size(bytes: *const embank_bytes) -> usize {
    // SAFETY: by the header's rules.
    unsafe { bytes.as_ref() }.map_or(0, |bytes| bytes.terminated.len() - 1)
}

/// Frees the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bytes_free(bytes: *mut embank_bytes) {
    // SAFETY: by the header's rules.
    unsafe { handle::free(bytes) };
}

/// Names that a call hands out. Free with embank_names_free.
#[derive(Debug)]
pub struct embank_names {
    names: Vec<CString>,
}

impl embank_names {
    pub(crate) fn new(names: impl Iterator<Item = String>) -> Self {
        // The store lets no name in that a C string could not hold in full, save for a NUL, where it ends early.
        let names = names.map(|name| {
            let before = name.split('\0').next().unwrap_or_default().to_owned();
            CString::new(before).expect("there is no NUL before the first one")
        });
        Self { names: names.collect() }
    }
}

/// How many names there are. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_names_count(names: *const embank_names) -> usize {
    // SAFETY: by the header's rules.
    unsafe { names.as_ref() }.map_or(0, |names| names.names.len())
}

/// The name at `place`, from 0, as UTF-8; valid until the names are freed. NULL where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_names_at(
    names: *const embank_names,
    place: usize,
) -> *const c_char {
    // SAFETY: by the header's rules.
    let names = unsafe { names.as_ref() };
    names.and_then(|names| names.names.get(place)).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Frees the names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_names_free(names: *mut embank_names) {
    // SAFETY: by the header's rules.
    unsafe { handle::free(names) };
}
