//! Structs that may grow: options, settings and statistics.
//!
//! The caller's header may be older or newer than the library, and its struct shorter or longer.
//! Fields are only added at the end, so both sides agree on the bytes of the shorter struct:
//!
//! - Fields that a shorter struct does not have get their defaults.
//! - If the caller's struct is longer, the bytes that this library does not know must be zeros. The
//!   `..._init` function writes these zeros. Any other byte shows that the caller set a field which
//!   this library would ignore. (Linux treats the structs of its newer system calls in this way.)

use std::ptr;

use crate::memory::Lent;
use crate::status::Failure;

/// A struct whose first field is its size in bytes, as the caller's header declares it. This module
/// copies such structs as bytes. It cannot require `Pod` for that, because some of them hold
/// pointers to text and functions.
///
/// # Safety
/// The struct must be `repr(C)`, begin with a `usize`, and have no padding. Fields must be
/// numbers, or pointers that may be null, so that no bytes from C make a field invalid.
pub(crate) unsafe trait Growing: Copy {
    /// The struct's name in messages.
    const NAME: &'static str;
    /// The function that fills the struct, and to which the caller passes the struct's size.
    const FILLED_BY: &'static str;
    /// The struct's size in the first version. `check_size` refuses smaller sizes.
    const SIZE_MIN: usize;

    /// The struct with every field at its default. The size field is ignored.
    fn defaults() -> Self;
}

/// The largest size of a struct that `check_size` accepts, in bytes. A larger number shows that the
/// struct was not initialised.
const SIZE_MAX: usize = 4096;

fn check_size<T: Growing>(size: usize) -> Result<(), Failure> {
    const { assert!(T::SIZE_MIN <= size_of::<T>()) };
    // A C compiler makes a struct's size a multiple of its alignment. Any other size would end
    // inside a field.
    if (T::SIZE_MIN..=SIZE_MAX).contains(&size) && size.is_multiple_of(align_of::<T>()) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "an {} can't have {size} bytes; call {}(..., &it, sizeof it) before its fields are looked at or set",
        T::NAME,
        T::FILLED_BY
    )))
}

/// Fills the caller's struct of `size` bytes with `value`, and its first field with `size`.
///
/// # Safety
/// `pointer` must be null or valid for writing `size` bytes.
pub(crate) unsafe fn write<T: Growing>(
    pointer: *mut T,
    size: usize,
    value: &T,
) -> Result<(), Failure> {
    check_size::<T>(size)?;
    check_pointer(pointer)?;
    // SAFETY: by this function's `# Safety`, `pointer` is valid for writing `size` bytes; it is not
    // null. `value` belongs to the library, so no reference overlaps the caller's struct.
    let theirs = unsafe { Lent::new_mut(T::NAME, pointer.cast::<u8>(), size)?.write() };
    let known = size.min(size_of::<T>());
    // SAFETY: `value` and `theirs` have `known` bytes or more. They do not overlap, because
    // `theirs` is the only reference to the caller's memory.
    unsafe { ptr::copy_nonoverlapping((&raw const *value).cast(), theirs.as_mut_ptr(), known) };
    theirs[known..].fill(0);
    theirs[..size_of::<usize>()].copy_from_slice(&size.to_ne_bytes());
    Ok(())
}

/// The caller's struct for the results of a call. `new` checks it before the call changes anything.
/// The pointer is null if the caller wants no results.
#[derive(Debug)]
pub(crate) struct Results<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Growing> Results<T> {
    pub(crate) fn new(pointer: *mut T, size: usize) -> Result<Self, Failure> {
        if !pointer.is_null() {
            check_size::<T>(size)?;
            check_pointer(pointer)?;
        }
        Ok(Self { pointer, size })
    }

    /// Fills the caller's struct. Does nothing if the pointer is null.
    ///
    /// # Safety
    /// The pointer that `new` got must be null or valid for writing `size` bytes.
    pub(crate) unsafe fn set(&self, value: &T) -> Result<(), Failure> {
        if self.pointer.is_null() {
            return Ok(());
        }
        // SAFETY: the pointer is not null. By this function's `# Safety`, it is valid for writing
        // `size` bytes.
        unsafe { write(self.pointer, self.size, value) }
    }
}

/// Reads the caller's struct. Fields that the caller's struct does not have get their defaults.
///
/// # Safety
/// `pointer` must be null or point to a struct whose first field is the struct's size in bytes.
pub(crate) unsafe fn read<T: Growing>(pointer: *const T) -> Result<T, Failure> {
    check_pointer(pointer)?;
    // SAFETY: `check_pointer` found that the pointer is not null and is aligned for `T`. The first
    // field of `T` is a `usize`, as `Growing` demands.
    let size = unsafe { pointer.cast::<usize>().read() };
    check_size::<T>(size)?;
    // SAFETY: by this function's `# Safety`, the struct has the `size` bytes that its first field
    // says.
    let theirs = unsafe { Lent::new(T::NAME, pointer.cast::<u8>(), size)?.read() };
    let known = size.min(size_of::<T>());
    if theirs[known..].iter().any(|&byte| byte != 0) {
        return Err(Failure::invalid(format!(
            "the {} sets fields that this library ({}) does not know; use the one that came with the header",
            T::NAME,
            env!("CARGO_PKG_VERSION")
        )));
    }
    let mut ours = T::defaults();
    // SAFETY: `theirs` and `ours` have `known` bytes or more and do not overlap, because `ours` is
    // a local variable. Implementations of `Growing` promise that any bytes are valid fields.
    unsafe { ptr::copy_nonoverlapping(theirs.as_ptr(), (&raw mut ours).cast(), known) };
    Ok(ours)
}

/// Reads the caller's struct, or returns the defaults if `pointer` is null.
///
/// # Safety
/// `pointer` must be null or point to a struct whose first field is the struct's size in bytes.
pub(crate) unsafe fn read_or_defaults<T: Growing>(pointer: *const T) -> Result<T, Failure> {
    if pointer.is_null() {
        return Ok(T::defaults());
    }
    // SAFETY: the pointer is not null. By this function's `# Safety`, the struct's first field is
    // its size.
    unsafe { read(pointer) }
}

fn check_pointer<T: Growing>(pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("the {} is NULL", T::NAME)));
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid(format!("the {} is misaligned", T::NAME)));
    }
    Ok(())
}

/// True if the caller's flag is 1. Fails for a number other than 0 and 1, because it shows that the
/// struct was not initialised.
pub(crate) fn flag(what: &str, value: u32) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::invalid(format!("{what} must be 0 or 1, found {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::{Pod, Zeroable};

    #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
    #[repr(C)]
    struct Options {
        size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no
    // padding, and any bits are valid.
    unsafe impl Growing for Options {
        const NAME: &'static str = "options";
        const FILLED_BY: &'static str = "options_init";
        const SIZE_MIN: usize = 16;

        fn defaults() -> Self {
            Options { size: 0, old: 1, new: 2 }
        }
    }

    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct Newer {
        known: Options,
        newest: u64,
    }

    fn read_newer(newer: &Newer) -> Result<Options, Failure> {
        // SAFETY: the caller's struct has the size that its first field says.
        unsafe { read::<Options>((&raw const *newer).cast()) }
    }

    #[test]
    fn a_shorter_struct_gets_defaults_and_keeps_what_lies_behind_it() {
        let mut memory = [7_u64; 3];
        // SAFETY: 16 bytes are written, and `memory` has 24.
        unsafe { write(memory.as_mut_ptr().cast::<Options>(), 16, &Options::defaults()) }.unwrap();
        assert_eq!(memory, [16, 1, 7]);
        memory[1] = 5;
        // SAFETY: the size field says 16, and `memory` has 24 bytes.
        let options = unsafe { read::<Options>(memory.as_ptr().cast()) }.unwrap();
        assert_eq!(options, Options { size: 16, old: 5, new: 2 });
    }

    #[test]
    fn a_longer_struct_is_taken_unless_it_sets_what_is_not_known() {
        let mut newer: Newer = Newer::zeroed();
        let size = size_of::<Newer>();
        // SAFETY: `size` is the size of the struct `newer`.
        unsafe { write((&raw mut newer).cast::<Options>(), size, &Options::defaults()) }.unwrap();
        assert_eq!(read_newer(&newer).unwrap(), Options { size, old: 1, new: 2 });
        newer.newest = 1;
        assert!(read_newer(&newer).unwrap_err().message.contains("does not know"));
    }

    #[test]
    fn a_struct_that_nobody_initialised_is_refused() {
        for size in [0, 15, 17, SIZE_MAX + 1, usize::MAX] {
            let options = Options { size, ..Options::defaults() };
            // SAFETY: `read` refuses the size before it reads a byte behind the size field.
            let failure = unsafe { read(&raw const options) }.unwrap_err();
            assert!(failure.message.contains("options_init"), "{}", failure.message);
        }
        // SAFETY: `read` refuses null before it reads a byte.
        assert!(unsafe { read(std::ptr::null::<Options>()) }.is_err());
    }
}
