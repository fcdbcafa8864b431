//! Streams of reads: a caller requests reads one by one, and gets them in the order in which they
//! complete.

use super::Read;
use crate::error::{Error, Result};

/// Tells whether a caller waits for a read.
///
/// While foreground reads run, background reads leave most of the device's queue to them.
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
    /// No caller waits: the read is for later use or for housekeeping.
    Background,
}

/// A sequence of reads of a caller. The caller need not know all reads at the start: the bytes of
/// one read may determine the next.
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
    /// Tells whether a caller waits for these reads. The device calls it once, at the start.
    fn priority(&self) -> Priority {
        Priority::Foreground
    }

    /// Returns the log offset and the length of the next read, with the limits of
    /// [`Read`](super::Read). `None` if there is no read to request now. The device then calls
    /// `next` again after the next `done`.
    fn next(&mut self) -> Option<(u64, usize)>;

    /// Called when the bytes of the `number`th read have arrived, before [`done`](Self::done). The
    /// stream can prefetch the memory that `done` will use. This is only a hint, and some devices
    /// never call it. If another read fails, `done` may not follow.
    fn arrived(&mut self, _number: u64, _bytes: &[u8]) {}

    /// Called with the bytes of the `number`th read. Reads are numbered from 0 in the order of
    /// `next`.
    ///
    /// # Errors
    /// An error ends the stream.
    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()>;
}

/// Runs a stream in bursts that each fill `memory`. `order` may change the order in which completed
/// reads are passed to the stream.
pub(crate) fn in_bursts(
    memory: &mut [u8],
    stream: &mut dyn ReadStream,
    read_many: impl Fn(&mut [Read<'_>]) -> Result<()>,
    order: impl Fn(&mut [usize]),
) -> Result<u64> {
    let mut first = 0;
    let mut deepest = 0;
    let mut asked = stream.next();
    // The loop ends: each burst passes at least one read to the stream, and the stream ends.
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
