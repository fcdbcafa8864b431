//! Memory of the caller: buffers, text and places for results. The constructors check that pointers
//! are aligned, that they are not null where null is not allowed, and that lengths fit the address
//! space.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use bytemuck::Pod;

use crate::status::Failure;

/// A buffer that the caller lends to the library until the call returns.
#[derive(Debug)]
pub(crate) struct Lent<T> {
    what: &'static str,
    pointer: *mut T,
    len: usize,
}

impl<T: Pod> Lent<T> {
    /// Checks the pointer and the length of a buffer that the call only reads.
    pub(crate) fn new(what: &'static str, pointer: *const T, len: usize) -> Result<Self, Failure> {
        Self::new_mut(what, pointer.cast_mut(), len)
    }

    /// Checks the pointer and the length of a buffer that the call may write.
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

    /// Fails if the two buffers overlap. At least one of them is a buffer that the call writes.
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
        // SAFETY: `new` checked that the pointer is not null, is aligned, and has a size within the
        // address space. By this function's `# Safety`, the buffer stays valid and unchanged. Any
        // bits are a valid `T`, because `T` is `Pod`.
        unsafe { slice::from_raw_parts(self.pointer, self.len) }
    }

    /// Returns the content of a buffer to write.
    ///
    /// # Safety
    /// The buffer must stay valid during the call, and no other code may read or write it. `self`
    /// must come from `new_mut`, and must overlap no other buffer of the call. The caller must call
    /// `write` only once.
    pub(crate) unsafe fn write<'a>(&self) -> &'a mut [T] {
        // SAFETY: `new_mut` checked that the pointer is not null, is aligned, and has a size within
        // the address space. By this function's `# Safety`, no other reference to the buffer
        // exists. The caller's memory may be uninitialised in C, but the compiler of this crate
        // cannot see that. Any bits are a valid `T`, because `T` is `Pod`.
        unsafe { slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

/// The caller's memory for one result.
#[derive(Debug)]
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Checks the pointer. Fails if it is null or misaligned.
    pub(crate) fn required(what: &'static str, pointer: *mut T) -> Result<Self, Failure> {
        if pointer.is_null() {
            return Err(Failure::invalid(format!("the place for the {what} is NULL")));
        }
        Self::optional(what, pointer)
    }

    /// Checks the pointer. Fails if it is misaligned. Accepts null; `set` then drops the result.
    pub(crate) fn optional(what: &'static str, pointer: *mut T) -> Result<Self, Failure> {
        if !pointer.is_aligned() {
            return Err(Failure::invalid(format!("the place for the {what} is misaligned")));
        }
        Ok(Self(pointer))
    }

    /// Writes the result.
    ///
    /// # Safety
    /// The pointer must be null, or valid for writing until the call returns.
    pub(crate) unsafe fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the pointer is not null, and the constructors checked its alignment. By this
            // function's `# Safety`, it is valid for writing.
            unsafe { self.0.write(value) };
        }
    }
}

/// The caller's memory for a handle that the call returns.
#[derive(Debug)]
pub(crate) struct HandlePlace<T>(Place<*mut T>);

impl<T> HandlePlace<T> {
    /// Checks the pointer, and sets the caller's handle to null until
    /// [`hand_over`](Self::hand_over). An exported function must do this before anything else in it
    /// can fail, because the header promises a null handle after every failure.
    ///
    /// # Safety
    /// The pointer must be null, or valid for writing until the call returns.
    pub(crate) unsafe fn cleared(
        what: &'static str,
        pointer: *mut *mut T,
    ) -> Result<Self, Failure> {
        let place = Place::required(what, pointer)?;
        // SAFETY: the pointer is not null. By this function's `# Safety`, it is valid for writing.
        unsafe { place.set(std::ptr::null_mut()) };
        Ok(Self(place))
    }

    /// Clears the caller's handle as [`cleared`](Self::cleared) does. Returns `None` if the pointer
    /// is null, because the caller then does not want the handle.
    ///
    /// # Safety
    /// The pointer must be null, or valid for writing until the call returns.
    pub(crate) unsafe fn cleared_optional(
        what: &'static str,
        pointer: *mut *mut T,
    ) -> Result<Option<Self>, Failure> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: the pointer is not null. By this function's `# Safety`, it is valid for writing.
        unsafe { Self::cleared(what, pointer) }.map(Some)
    }

    /// Makes a handle of `content` and gives it to the caller, which then owns it.
    ///
    /// # Safety
    /// The pointer that the constructor got must still be valid for writing.
    pub(crate) unsafe fn hand_over(&self, content: T) {
        // SAFETY: by this function's `# Safety`, the caller's memory is still valid for writing.
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
    // SAFETY: by this function's `# Safety`, `pointer` is null or text that ends with a NUL.
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
/// `pointer` must be null or text that ends with a NUL and stays valid during the call.
pub(crate) unsafe fn path<'a>(
    what: &'static str,
    pointer: *const c_char,
) -> Result<&'a Path, Failure> {
    // SAFETY: by this function's `# Safety`, `pointer` is null or text that ends with a NUL.
    let bytes = unsafe { c_string(what, pointer) }?.to_bytes();
    if bytes.is_empty() {
        return Err(Failure::invalid(format!("the {what} is empty")));
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// # Safety
/// `pointer` must be null or text that ends with a NUL and stays valid during the call.
unsafe fn c_string<'a>(what: &'static str, pointer: *const c_char) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: the pointer is not null. By this function's `# Safety`, it is text that ends with a
    // NUL and stays valid during the call.
    Ok(unsafe { CStr::from_ptr(pointer) })
}
