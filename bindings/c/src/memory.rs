//! Memory of the caller: buffers, text and places for results. Constructors check that pointers are
//! aligned and not null, and that lengths fit the address space.

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

    /// Returns the content of a buffer to read.
    ///
    /// # Safety
    /// The buffer must stay valid during the call, and no other code may write to it.
    pub(crate) unsafe fn read<'a>(&self) -> &'a [T] {
        // SAFETY: `new` checked null, alignment and size. `# Safety` obliges the caller to keep the
        // buffer valid. Any bits are a `T`, because `T` is `Pod`.
        unsafe { slice::from_raw_parts(self.pointer, self.len) }
    }

    /// Returns the content of a buffer to write.
    ///
    /// # Safety
    /// The buffer must stay valid during the call, and no other code may read or write it. It must
    /// come from `new_mut` and overlap no other buffer of the call. `write` must be called once.
    pub(crate) unsafe fn write<'a>(&self) -> &'a mut [T] {
        // SAFETY: `new_mut` checked null, alignment and size. `# Safety` excludes other references.
        // Memory from outside the Rust program holds some bits, and any bits are a `T`.
        unsafe { slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

/// The caller's memory for one result.
#[derive(Debug)]
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Fails if the caller passes null.
    pub(crate) fn required(what: &'static str, pointer: *mut T) -> Result<Self, Failure> {
        if pointer.is_null() {
            return Err(Failure::invalid(format!("the place for the {what} is NULL")));
        }
        Self::optional(what, pointer)
    }

    /// Accepts null: `set` then drops the result.
    pub(crate) fn optional(what: &'static str, pointer: *mut T) -> Result<Self, Failure> {
        if !pointer.is_aligned() {
            return Err(Failure::invalid(format!("the place for the {what} is misaligned")));
        }
        Ok(Self(pointer))
    }

    /// Writes the result.
    ///
    /// # Safety
    /// The pointer must be null or valid for writing.
    pub(crate) unsafe fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the pointer is not null, and the constructors checked its alignment. `#
            // Safety` obliges the caller to pass writable memory.
            unsafe { self.0.write(value) };
        }
    }
}

/// The caller's memory for a handle that the call returns.
#[derive(Debug)]
pub(crate) struct HandlePlace<T>(Place<*mut T>);

impl<T> HandlePlace<T> {
    /// Sets the caller's handle to null until [`hand_over`](Self::hand_over). Must be called before
    /// the call can fail, because the header promises a null handle after every failure.
    ///
    /// # Safety
    /// The pointer must be null or valid for writing.
    pub(crate) unsafe fn cleared(
        what: &'static str,
        pointer: *mut *mut T,
    ) -> Result<Self, Failure> {
        let place = Place::required(what, pointer)?;
        // SAFETY: not null, and `# Safety` obliges the caller to pass a writable place.
        unsafe { place.set(std::ptr::null_mut()) };
        Ok(Self(place))
    }

    /// Clears the caller's handle as [`cleared`](Self::cleared) does. `None` if the pointer is
    /// null, because the caller does not want the handle.
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
        // SAFETY: not null, and `# Safety` obliges the caller to pass a writable place.
        unsafe { Self::cleared(what, pointer) }.map(Some)
    }

    /// Makes the caller the owner of `content`.
    ///
    /// # Safety
    /// As [`cleared`](Self::cleared).
    pub(crate) unsafe fn hand_over(&self, content: T) {
        // SAFETY: the place is still writable, as `# Safety` demands.
        unsafe { self.0.set(Box::into_raw(Box::new(content))) };
    }
}

/// Returns the caller's text. Fails if it is null or not UTF-8.
///
/// # Safety
/// `pointer` must be null or text that ends with a NUL and stays valid during the call.
pub(crate) unsafe fn text<'a>(
    what: &'static str,
    pointer: *const c_char,
) -> Result<&'a str, Failure> {
    // SAFETY: `# Safety` obliges the caller to pass null or NUL-terminated text.
    let bytes = unsafe { c_string(what, pointer) }?.to_bytes();
    std::str::from_utf8(bytes).map_err(|error| {
        Failure::invalid(format!(
            "the {what} {:?} is not UTF-8: {error}",
            String::from_utf8_lossy(bytes)
        ))
    })
}

/// Returns the caller's path, which is bytes of any encoding. Fails if it is null or empty.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(
    what: &'static str,
    pointer: *const c_char,
) -> Result<&'a Path, Failure> {
    // SAFETY: `# Safety` obliges the caller to pass null or NUL-terminated text.
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
    // SAFETY: not null. `# Safety` obliges the caller to pass text that ends with a NUL and stays
    // valid during the call.
    Ok(unsafe { CStr::from_ptr(pointer) })
}
