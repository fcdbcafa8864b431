//! Handles: the targets of C pointers to opaque types.
//!
//! A handle points to a box that the caller owns. The box knows the process that made it. A child
//! made by `fork` shares the parent's open files, but only the thread that called `fork` runs in
//! it. In the child, every call on a handle of the parent fails. Freeing such a handle leaks its
//! content, because dropping the content would write to the parent's files and wait for threads
//! that do not exist.

use std::mem;
use std::process;

use embank::Home;

use crate::status::{Failure, embank_status};

/// The content of a handle.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    /// Number of the process that made the handle, for messages.
    process: u32,
    home: Home,
    /// Always present until the handle is dropped.
    content: Option<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { process: process::id(), home: Home::here(), content: Some(content) }
    }

    /// Returns the content. Fails in a forked child of the process that made the handle.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        if !self.home.is_here() {
            let here = process::id();
            return Err(Failure {
                status: embank_status::Forked,
                message: format!(
                    "this handle was made in process {} and does not survive the fork into process {here}: \
                     open the bank here, read-only while that process has it open for writing",
                    self.process
                ),
            });
        }
        Ok(self.content.as_ref().expect("it is there until the drop"))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        let content = self.content.take();
        if !self.home.is_here() {
            mem::forget(content);
        }
    }
}

/// Returns a reference to the handle that the caller passes. Fails if the pointer is null.
///
/// # Safety
/// `pointer` must be null or a handle of this type. The caller must not free it while the returned
/// reference is in use.
pub(crate) unsafe fn borrowed<'a, T>(
    what: &'static str,
    pointer: *const T,
) -> Result<&'a T, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: the pointer is not null, so by this function's `# Safety` it is a live handle. No
    // code makes a `&mut` to a handle's content, so a shared reference is allowed.
    Ok(unsafe { &*pointer })
}

/// Frees a handle. Does nothing if `pointer` is null.
///
/// # Safety
/// `pointer` must be null or a handle of this type. The caller must not use the handle afterwards.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if pointer.is_null() {
        return;
    }
    let _ = crate::status::call(|| {
        // SAFETY: the pointer is not null. `HandlePlace::hand_over` made it with `Box::into_raw`.
        // This function's `# Safety` forbids to free it twice.
        drop(unsafe { Box::from_raw(pointer) });
        Ok(())
    });
}
