//! Handles: the targets of C pointers to opaque types.
//!
//! A handle is a box that the caller owns, with the id of the process that made it. A child made by
//! `fork` shares the parent's files but has no thread of the parent. In a child, every call on a
//! handle of the parent fails, and freeing the handle leaks its content. A drop would write to the
//! parent's files and wait for threads that do not exist.

use std::mem;
use std::process;

use crate::status::{Failure, embank_status};

/// The content of a handle.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    process: u32,
    /// Always present until the handle is dropped.
    content: Option<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { process: process::id(), content: Some(content) }
    }

    /// Returns the content. Fails in a forked child of the process that made the handle.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        let here = process::id();
        if here != self.process {
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
        if process::id() != self.process {
            mem::forget(content);
        }
    }
}

/// Returns a reference to the handle that the caller passes. Fails if the pointer is null.
///
/// # Safety
/// `pointer` must be null or a handle of this type that is not freed before the call returns.
pub(crate) unsafe fn borrowed<'a, T>(
    what: &'static str,
    pointer: *const T,
) -> Result<&'a T, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: not null, and `# Safety` obliges the caller to pass a handle that is not freed. No
    // code takes a `&mut` to a handle.
    Ok(unsafe { &*pointer })
}

/// Frees a handle. Null does nothing.
///
/// # Safety
/// `pointer` must be null or a handle of this type. The caller must not use the handle afterwards.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if pointer.is_null() {
        return;
    }
    let _ = crate::status::call(|| {
        // SAFETY: not null. `HandlePlace::hand_over` made the pointer with `Box::into_raw`, and
        // `# Safety` forbids a second call.
        drop(unsafe { Box::from_raw(pointer) });
        Ok(())
    });
}
