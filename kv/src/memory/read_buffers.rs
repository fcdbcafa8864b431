//! The pool of buffers into which batches read rows from disk. The pool has few buffers, because
//! the memory budget counts them. A batch takes a buffer from the pool for its reads and returns it
//! afterwards.

use std::ops::{Deref, DerefMut};

use crate::device::{AlignedBuffer, BLOCK_BYTES_MAX};
use crate::record::layout::{VALUE_BYTES_MAX, record_bytes};
use crate::sync::{Condvar, Mutex};

/// The pool of read buffers. A buffer is allocated when it is first needed.
#[derive(Debug)]
pub(crate) struct Buffers {
    bytes_each: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<AlignedBuffer>,
    not_made: usize,
}

impl Buffers {
    /// Makes a pool of `total_bytes` bytes. The pool has four buffers if it has 1 MiB or more, two
    /// if it has 64 KiB or more, and one otherwise. With several buffers, several threads can read
    /// at the same time. Each buffer has room for the longest record of a page. If pages are too
    /// long for this number of buffers, the pool has fewer.
    pub(crate) fn new(total_bytes: usize, page_bytes: usize) -> Self {
        let (bytes_each, count) = Self::shares(total_bytes, page_bytes);
        Buffers {
            bytes_each,
            state: Mutex::new(State { idle: Vec::new(), not_made: count }),
            returned: Condvar::new(),
        }
    }

    /// Returns the length of one buffer of a pool of `total_bytes` bytes.
    pub(crate) fn bytes_each_of(total_bytes: usize, page_bytes: usize) -> usize {
        Self::shares(total_bytes, page_bytes).0
    }

    /// Returns the length of a buffer, and the number of buffers.
    fn shares(total_bytes: usize, page_bytes: usize) -> (usize, usize) {
        let wanted = match total_bytes {
            0x10_0000.. => 4,
            0x1_0000.. => 2,
            _ => 1,
        };
        let longest = page_bytes.min(record_bytes(VALUE_BYTES_MAX)) + 2 * BLOCK_BYTES_MAX;
        let count = wanted.min(total_bytes / longest).max(1);
        (total_bytes / count / 4096 * 4096, count)
    }

    /// Returns the length of one buffer in bytes.
    pub(crate) fn bytes_each(&self) -> usize {
        self.bytes_each
    }

    /// Takes a buffer. Waits if no buffer is free. The caller must not be pinned, because a thread
    /// that has a buffer may wait for pinned threads before it returns the buffer. The caller must
    /// not hold another buffer, because all buffers could then be held by threads that wait here.
    pub(crate) fn take(&self) -> Buffer<'_> {
        let mut state = self.state.lock();
        loop {
            if let Some(buffer) = state.idle.pop() {
                return Buffer { pool: self, buffer: Some(buffer) };
            }
            if state.not_made > 0 {
                state.not_made -= 1;
                drop(state);
                let buffer = AlignedBuffer::for_streams(self.bytes_each);
                return Buffer { pool: self, buffer: Some(buffer) };
            }
            self.returned.wait(&mut state);
        }
    }
}

/// A buffer of the pool, returned to it when dropped.
pub(crate) struct Buffer<'a> {
    pool: &'a Buffers,
    buffer: Option<AlignedBuffer>,
}

impl Buffer<'_> {
    /// Returns the buffer as a type that a device can stream into.
    pub(crate) fn memory(&mut self) -> &mut AlignedBuffer {
        self.buffer.as_mut().expect("there until dropped")
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().expect("there until dropped")
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().expect("there until dropped")
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.state.lock().idle.push(buffer);
            self.pool.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn buffers_stay_within_the_total_and_are_whole_blocks() {
        for total_bytes in [16 << 10, 60 << 10, 64 << 10, 300 << 10, 1 << 20, 8 << 20] {
            let buffers = Buffers::new(total_bytes, 8 << 10);
            let count = buffers.state.lock().not_made;
            assert!(buffers.bytes_each() >= 16 << 10);
            assert!(count * buffers.bytes_each() <= total_bytes);
            assert!(buffers.bytes_each().is_multiple_of(4096));
            assert_eq!(buffers.take().len(), buffers.bytes_each());
        }
    }

    #[test]
    fn each_buffer_has_room_for_a_record_as_long_as_a_page() {
        for (total_bytes, page_bytes, count) in [
            (1 << 20, 128 << 10, 4),
            (1 << 20, 256 << 10, 3),
            (1 << 20, 512 << 10, 1),
            (4 << 20, 4 << 20, 4),
        ] {
            let buffers = Buffers::new(total_bytes, page_bytes);
            assert_eq!(buffers.state.lock().not_made, count, "{total_bytes}, {page_bytes}");
            let longest = page_bytes.min(record_bytes(VALUE_BYTES_MAX));
            assert!(buffers.bytes_each() >= longest + 2 * BLOCK_BYTES_MAX);
        }
    }

    #[test]
    fn a_buffer_is_used_again() {
        let buffers = Buffers::new(128 << 10, 8 << 10);
        let place = buffers.take().as_ptr();
        assert_eq!(buffers.take().as_ptr(), place);
    }

    #[test]
    fn who_comes_too_late_waits_until_a_buffer_goes_back() {
        let buffers = Buffers::new(16 << 10, 8 << 10);
        let mut only = buffers.take();
        only[0] = 7;
        let (waits, waiting) = mpsc::channel();
        std::thread::scope(|s| {
            let late = s.spawn(|| {
                waits.send(()).unwrap();
                buffers.take()[0]
            });
            waiting.recv().unwrap();
            only[0] = 8;
            drop(only);
            assert_eq!(late.join().unwrap(), 8);
        });
    }
}
