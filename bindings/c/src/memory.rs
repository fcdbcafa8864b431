//! Memory of the caller: buffers, text and places for results, checked as far as possible.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use bytemuck::Pod;

use crate::status::Failure;

/// A buffer that the caller lends during the call.
#[derive(Debug)]
pub(crate) struct Lent<T> {
    what: &'static str,
    pointer: *mut T,
    len: usize,
}

impl<T: Pod> Lent<T> {
    /// A buffer to read.
    pub(crate) fn new(what: &'static str, pointer: *const T, len: usize) -> Result<Self, Failure> {
        Self::new_mut(what, pointer.cast_mut(), len)
    }

    /// A buffer to write.
    pub(crate) fn new_mut(
        what: &'static str,
        pointer: *mut T,
        len: usize,
    ) -> Result<Self, Failure> {
        if len == 0 {
            return Ok(Self { what, pointer: std::ptr::dangling_mut(), len });
        }
        if pointer.is_null() {
            return Err(Failure::invalid(format!("{what} is NULL, with a length of {len}")));
        }
        if !pointer.is_aligned() {
            return Err(Failure::invalid(format!(
                "{what} is at address {:#x}, which is no multiple of {}",
                pointer.addr(),
                align_of::<T>()
            )));
        }
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
        if bytes.is_none_or(|bytes| pointer.addr().checked_add(bytes).is_none()) {
            return Err(Failure::invalid(format!("{what} can't have a length of {len}")));
        }
        Ok(Self { what, pointer, len })
    }

    /// Fails if a buffer to write overlaps another buffer of the call.
    pub(crate) fn check_apart<U: Pod>(&self, other: &Lent<U>) -> Result<(), Failure> {
        let start = self.pointer.addr();
        let end = self.pointer.addr() + self.len * size_of::<T>();
        let other_start = other.pointer.addr();
        let other_end = other.pointer.addr() + other.len * size_of::<U>();
        if self.len > 0 && other.len > 0 && start < other_end && other_start < end {
            let what = self.what;
            let other = other.what;
            return Err(Failure::invalid(format!("{what} and {other} overlap")));
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The content of a buffer to read.
    ///
    /// # Safety
    /// By the header's rules: the buffer stays valid during the call, and no other code writes to
    /// it.
    pub(crate) unsafe fn read<'a>(&self) -> &'a [T] {
        // SAFETY: `new` checked null, alignment and size; the header's rules cover the rest. Any
        // bits are a `T`.
        unsafe { slice::from_raw_parts(self.pointer, self.len) }
    }

    /// The content of a buffer to write.
    ///
    /// # Safety
    /// By the header's rules: the buffer stays valid during the call, and no other code reads or
    /// writes it. It was made by `new_mut`, is requested once, and was checked for overlaps with
    /// the call's other buffers.
    pub(crate) unsafe fn write<'a>(&self) -> &'a mut [T] {
        // SAFETY: as in `read`, and no other reference to the buffer is alive. Uninitialised memory
        // of the caller is no problem: it comes from outside the Rust program, so it holds some
        // bits.
        unsafe { slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

/// A place for one result.
#[derive(Debug)]
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// A place that the call needs.
    pub(crate) fn required(what: &'static str, pointer: *mut T) -> Result<Self, Failure> {
        if pointer.is_null() {
            return Err(Failure::invalid(format!("the place for the {what} is NULL")));
        }
        Self::optional(what, pointer)
    }

    /// A place that may be null: then the result is dropped.
    pub(crate) fn optional(what: &'static str, pointer: *mut T) -> Result<Self, Failure> {
        if !pointer.is_aligned() {
            return Err(Failure::invalid(format!("the place for the {what} is misaligned")));
        }
        Ok(Self(pointer))
    }

    /// Writes the result.
    ///
    /// # Safety
    /// By the header's rules: the pointer is null or valid for writing.
    pub(crate) unsafe fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null and aligned, as the constructors checked; the header's rules cover
            // the rest.
            unsafe { self.0.write(value) };
        }
    }
}

/// A place for a handle.
#[derive(Debug)]
pub(crate) struct HandlePlace<T>(Place<*mut T>);

impl<T> HandlePlace<T> {
    /// Sets the caller's handle to null until [`hand_over`](Self::hand_over). Must be called before
    /// the call can fail, because the header promises a null handle after every failure.
    ///
    /// # Safety
    /// By the header's rules: the pointer is null or valid for writing.
    pub(crate) unsafe fn cleared(
        what: &'static str,
        pointer: *mut *mut T,
    ) -> Result<Self, Failure> {
        let place = Place::required(what, pointer)?;
        // SAFETY: the duty of this function's `# Safety` covers the call.
        unsafe { place.set(std::ptr::null_mut()) };
        Ok(Self(place))
    }

    /// As [`cleared`](Self::cleared). `None` if the pointer is null: then the handle is not wanted.
    ///
    /// # Safety
    /// As [`cleared`](Self::cleared).
    pub(crate) unsafe fn cleared_optional(
        what: &'static str,
        pointer: *mut *mut T,
    ) -> Result<Option<Self>, Failure> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: the duty of this function's `# Safety` covers the call.
        unsafe { Self::cleared(what, pointer) }.map(Some)
    }

    /// Makes the caller the owner of `content`.
    ///
    /// # Safety
    /// As [`cleared`](Self::cleared).
    pub(crate) unsafe fn hand_over(&self, content: T) {
        // SAFETY: the duty of this function's `# Safety` covers the call.
        unsafe { self.0.set(Box::into_raw(Box::new(content))) };
    }
}

/// The caller's text, which must be UTF-8.
///
/// # Safety
/// By the header's rules: `pointer` is null or text that ends with a NUL and stays valid during the
/// call.
pub(crate) unsafe fn text<'a>(
    what: &'static str,
    pointer: *const c_char,
) -> Result<&'a str, Failure> {
    // SAFETY: the duty of this function's `# Safety` covers the call.
    let bytes = unsafe { c_string(what, pointer) }?.to_bytes();
    std::str::from_utf8(bytes).map_err(|error| {
        Failure::invalid(format!(
            "the {what} {:?} is not UTF-8: {error}",
            String::from_utf8_lossy(bytes)
        ))
    })
}

/// The caller's path, in the bytes of the system.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(
    what: &'static str,
    pointer: *const c_char,
) -> Result<&'a Path, Failure> {
    // SAFETY: the duty of this function's `# Safety` covers the call.
    let bytes = unsafe { c_string(what, pointer) }?.to_bytes();
    if bytes.is_empty() {
        return Err(Failure::invalid(format!("the {what} is empty")));
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// # Safety
/// As [`text`].
unsafe fn c_string<'a>(what: &'static str, pointer: *const c_char) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: not null; by the header's rules it ends with a NUL and stays valid during the call.
    Ok(unsafe { CStr::from_ptr(pointer) })
}
