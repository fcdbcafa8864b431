//! Reads that a caller asks for one by one, and gets in the order in which they complete.

use super::Read;
use crate::error::{Error, Result};

/// Whether a caller waits for a read.
///
/// While foreground reads are under way, background reads leave most of the device's queue to them.
///
/// ```
/// use embank_kv::device::Priority;
/// assert_eq!(Priority::default(), Priority::Foreground);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// A caller waits for the read.
    #[default]
    Foreground,
    /// No caller waits: the read is for a later use, or for housekeeping.
    Background,
}

/// The reads of a caller. The caller need not know all of them at the start: the bytes of one read
/// may lead to the next.
///
/// ```
/// use embank_kv::device::{AlignedBuffer, Device, DeviceOptions, MemoryDevice, ReadStream};
/// # use embank_kv::Result;
/// struct FirstBlocks(u64);
/// impl ReadStream for FirstBlocks {
///     fn next(&mut self) -> Option<(u64, usize)> {
///         self.0 += 512;
///         (self.0 <= 2048).then_some((self.0 - 512, 512))
///     }
///     fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
///         println!("block {number} begins with {}", bytes[0]);
///         Ok(())
///     }
/// }
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// device.write(0, &AlignedBuffer::zeroed(2048))?;
/// device.read_stream(&mut AlignedBuffer::zeroed(1024), &mut FirstBlocks(0))?;
/// # Ok::<(), embank_kv::Error>(())
/// ```
pub trait ReadStream {
    /// Whether a caller waits for these reads. The device asks once, at the start.
    fn priority(&self) -> Priority {
        Priority::Foreground
    }

    /// The next read: log offset and length, as for [`Read`](super::Read). `None` if there is no
    /// read to ask for now. The device asks again after the next `done`.
    fn next(&mut self) -> Option<(u64, usize)>;

    /// The `number`th read has brought these bytes and will be passed to [`done`](Self::done),
    /// perhaps after other reads. The stream can prefetch here what `done` will touch. A hint: a
    /// device may not call it, or may call it for a read that is not passed on because another one
    /// has failed.
    fn arrived(&mut self, _number: u64, _bytes: &[u8]) {}

    /// The `number`th read, counted from 0 in the order of `next`, has brought `bytes`.
    ///
    /// # Errors
    /// An error ends the stream.
    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()>;
}

/// Runs a stream in bursts, each as long as `memory`. `order` may rearrange the reads that have
/// arrived.
pub(crate) fn in_bursts(
    memory: &mut [u8],
    stream: &mut dyn ReadStream,
    read_many: impl Fn(&mut [Read<'_>]) -> Result<()>,
    order: impl Fn(&mut [usize]),
) -> Result<u64> {
    let mut first = 0;
    let mut deepest = 0;
    let mut asked = stream.next();
    // Ends: each burst passes on at least one read, and the stream ends.
    while asked.is_some() {
        let mut reads = Vec::new();
        let mut rest = &mut memory[..];
        while let Some((offset, len)) = asked {
            let Some((buffer, more)) = rest.split_at_mut_checked(len) else { break };
            rest = more;
            reads.push(Read { offset, buffer });
            asked = stream.next();
        }
        if reads.is_empty() {
            return Err(too_long(asked, memory.len()));
        }
        read_many(&mut reads)?;
        let mut places: Vec<usize> = (0..reads.len()).collect();
        order(&mut places);
        for place in places {
            stream.done(first + place as u64, reads[place].buffer)?;
        }
        first += reads.len() as u64;
        deepest = deepest.max(reads.len() as u64);
        asked = asked.or_else(|| stream.next());
    }
    Ok(deepest)
}

#[cold]
pub(crate) fn too_long(asked: Option<(u64, usize)>, memory_bytes: usize) -> Error {
    let (offset, len) = asked.unwrap_or_default();
    Error::InvalidArgument(format!(
        "a read of {len} bytes at log offset {offset} does not fit the {memory_bytes} bytes of memory that \
         were given for it; give more memory"
    ))
}
