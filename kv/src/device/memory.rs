//! A log in memory that behaves like a log in files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{BLOCK_BYTES, Device, DeviceOptions, Freed, Read, transfer};
use crate::error::{Error, Result};
use crate::sync::RwLock;

/// The device of [`DeviceChoice::Memory`](super::DeviceChoice::Memory), for tests, for Miri and for
/// programs that need no durability. Nothing is durable. The memory budget does not include this
/// memory.
///
/// ```
/// use embank_kv::device::{AlignedBuffer, Device, DeviceOptions, MemoryDevice};
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// device.write(0, &AlignedBuffer::zeroed(512))?;
/// assert_eq!(device.name(), "memory");
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryDevice {
    segment_size_bytes: u64,
    /// Each segment's bytes by segment number. A value is as long as the segment's file would be.
    segments: RwLock<BTreeMap<u64, Vec<u8>>>,
}

impl MemoryDevice {
    /// Makes an empty device. Uses only the segment size of the options.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for options out of range.
    pub fn new(options: &DeviceOptions) -> Result<Self> {
        options.check()?;
        Ok(Self { segment_size_bytes: options.segment_size_bytes, segments: RwLock::default() })
    }

    fn number(&self, offset: u64) -> u64 {
        offset / self.segment_size_bytes
    }

    /// Offset in the segment. It fits `usize` because the segment is in memory.
    fn within(&self, offset: u64) -> usize {
        (offset % self.segment_size_bytes) as usize
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        for read in reads.iter() {
            transfer::check(read.offset, read.buffer, self.segment_size_bytes)?;
        }
        let segments = self.segments.read();
        for read in reads {
            let start = self.within(read.offset);
            let bytes = segments.get(&self.number(read.offset)).map_or(&[][..], Vec::as_slice);
            let Some(source) = bytes.get(start..start + read.buffer.len()) else {
                let (path, offset) = self.locate(read.offset);
                return Err(Error::Truncated {
                    path,
                    offset,
                    expected: read.buffer.len() as u64,
                    found: bytes.len().saturating_sub(start) as u64,
                });
            };
            read.buffer.copy_from_slice(source);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        transfer::check(offset, bytes, self.segment_size_bytes)?;
        let mut segments = self.segments.write();
        let segment = segments.entry(self.number(offset)).or_default();
        let start = self.within(offset);
        let end = start + bytes.len();
        if segment.len() < end {
            segment.resize(end, 0);
        }
        segment[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn truncate(&self, end: u64) -> Result<()> {
        let Some(end) = end.checked_next_multiple_of(BLOCK_BYTES as u64) else { return Ok(()) };
        let mut segments = self.segments.write();
        segments.split_off(&end.div_ceil(self.segment_size_bytes));
        if let Some(last) = segments.get_mut(&self.number(end)) {
            last.truncate(self.within(end));
        }
        Ok(())
    }

    fn free(&self, below: u64) -> Result<Freed> {
        let mut segments = self.segments.write();
        let kept = segments.split_off(&self.number(below));
        let removed = std::mem::replace(&mut *segments, kept);
        if let Some(first) = segments.get_mut(&self.number(below)) {
            let end = self.within(below).min(first.len());
            first[..end].fill(0);
        }
        Ok(Freed { end: below, segments: removed.len() as u64 })
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        let first = self.number(offset) * self.segment_size_bytes;
        (PathBuf::from(format!("<memory>/log/{first:016x}.seg")), self.within(offset) as u64)
    }
}
