//! Reads that are asked for one by one and handed over as they come.

use super::Read;
use crate::error::{Error, Result};

/// Whether a caller waits for reads.
///
/// While reads of the foreground are under way, those of the background leave most of the device's
/// queue to them.
///
/// ```
/// use embank_kv::device::Priority;
/// assert_eq!(Priority::default(), Priority::Foreground);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// A caller waits for them.
    #[default]
    Foreground,
    /// They are ahead of their use, or for housekeeping.
    Background,
}

/// A caller's reads, of which it need not know all at the start: what one brings may ask for
/// another.
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

    /// The next read: log offset and length, as for [`Read`](super::Read). `None` if there is
    /// nothing to ask for now; it is asked again after the next `done`.
    fn next(&mut self) -> Option<(u64, usize)>;

    /// The `number`th read has brought these bytes and is about to be handed to
    /// [`done`](Self::done), after others perhaps: the time to have the processor fetch what
    /// that will touch. A hint: a device may leave it out, or call it for a read that is not
    /// handed over after all, as another has failed.
    fn arrived(&mut self, _number: u64, _bytes: &[u8]) {}

    /// The `number`th read, counted from 0 in the order of `next`, has brought `bytes`.
    ///
    /// # Errors
    /// Whatever ends the stream.
    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()>;
}

/// Runs a stream burst by burst, each as long as `memory`; `order` may rearrange what is handed
/// over.
pub(crate) fn in_bursts(
    memory: &mut [u8],
    stream: &mut dyn ReadStream,
    read_many: impl Fn(&mut [Read<'_>]) -> Result<()>,
    order: impl Fn(&mut [usize]),
) -> Result<u64> {
    let mut first = 0;
    let mut deepest = 0;
    let mut asked = stream.next();
    // Ends: each burst hands over at least one read, and the stream ends.
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
