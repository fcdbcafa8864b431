//! A log in memory that behaves like a log in files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::placement::{COLD_BEGIN, Placement};
use super::{BLOCK_BYTES, Device, DeviceOptions, Freed, PartFile, Read, transfer};
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
    placement: Placement,
    /// The bytes of each file by its number. A value is as long as the file would be.
    files: RwLock<BTreeMap<u64, Vec<u8>>>,
}

impl MemoryDevice {
    /// Makes an empty device. Uses only the segment size of the options.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for options out of range.
    pub fn new(options: &DeviceOptions) -> Result<Self> {
        options.check()?;
        let placement = Placement { segment_size_bytes: options.segment_size_bytes };
        Ok(Self { placement, files: RwLock::default() })
    }

    fn number(&self, offset: u64) -> u64 {
        self.placement.number(offset)
    }

    /// Offset in the file. It fits `usize` because the file is in memory.
    fn within(&self, offset: u64) -> usize {
        self.placement.within(offset) as usize
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        for read in reads.iter() {
            transfer::check(read.offset, read.buffer, self.placement.segment_size_bytes)?;
        }
        let files = self.files.read();
        for read in reads {
            let start = self.within(read.offset);
            let bytes = files.get(&self.number(read.offset)).map_or(&[][..], Vec::as_slice);
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
        transfer::check(offset, bytes, self.placement.segment_size_bytes)?;
        let mut files = self.files.write();
        let file = files.entry(self.number(offset)).or_default();
        let start = self.within(offset);
        let end = start + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn truncate(&self, end: u64) -> Result<()> {
        let Some(end) = end.checked_next_multiple_of(BLOCK_BYTES as u64) else { return Ok(()) };
        let end = end.min(COLD_BEGIN);
        let mut files = self.files.write();
        let parts = files.split_off(&self.number(COLD_BEGIN));
        files.split_off(&end.div_ceil(self.placement.segment_size_bytes));
        if end < COLD_BEGIN
            && let Some(last) = files.get_mut(&self.number(end))
        {
            last.truncate(self.within(end));
        }
        files.extend(parts);
        Ok(())
    }

    fn free(&self, below: u64) -> Result<Freed> {
        debug_assert!(below <= COLD_BEGIN, "parts are removed by `remove_part`");
        let mut files = self.files.write();
        let kept = files.split_off(&self.number(below));
        let removed = std::mem::replace(&mut *files, kept);
        if let Some(first) = files.get_mut(&self.number(below)) {
            let end = self.within(below).min(first.len());
            first[..end].fill(0);
        }
        Ok(Freed { end: below, segments: removed.len() as u64 })
    }

    fn part_files(&self) -> Result<Vec<PartFile>> {
        let files = self.files.read();
        let parts = files.range(self.number(COLD_BEGIN)..);
        let found = parts.map(|(&number, bytes)| PartFile {
            begin: self.placement.first(number),
            bytes: bytes.len() as u64,
        });
        Ok(found.collect())
    }

    fn remove_part(&self, begin: u64) -> Result<()> {
        debug_assert!(begin >= COLD_BEGIN, "`begin` is the address of a part");
        self.files.write().remove(&self.number(begin));
        Ok(())
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        let first = self.placement.first(self.number(offset));
        (PathBuf::from(format!("<memory>/log/{first:016x}.seg")), self.within(offset) as u64)
    }
}
