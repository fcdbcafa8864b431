//! Names the checkpoints and scans that keep disk space of the log from being freed, for messages
//! and statistics.

use std::fmt;

use crate::files::lock_holders::LockHolders;

/// A checkpoint or a scan that keeps disk space of the log from being freed.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
/// for holder in store.space_holders() {
///     println!("{holder}"); // checkpoint 3, which process 4711 (python eval.py) reads (52428800 bytes)
/// }
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceHolder {
    /// The checkpoint's number; `None` for a scan of this store.
    pub checkpoint: Option<u64>,
    /// The processes that read the checkpoint. `None` if no process reads the checkpoint, and the
    /// bank keeps it for another reason, for example as one of its newest checkpoints.
    pub readers: Option<LockHolders>,
    /// Bytes of log from the first byte that the checkpoint or scan needs to the log's end. These
    /// ranges overlap, so the bytes of two holders can't be added.
    pub bytes: u64,
}

impl fmt::Display for SpaceHolder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.checkpoint, &self.readers) {
            (None, _) => formatter.write_str("an open scan")?,
            (Some(number), None) => write!(formatter, "checkpoint {number}")?,
            (Some(number), Some(readers)) => {
                write!(formatter, "checkpoint {number}, which {readers} reads")?;
            }
        }
        write!(formatter, " ({} bytes)", self.bytes)
    }
}

/// Returns the end of an error message: which checkpoints and scans hold the space, and how to free
/// it.
pub(crate) fn advice(holders: &[SpaceHolder]) -> String {
    let mut text = String::new();
    for (place, holder) in holders.iter().enumerate() {
        text += if place == 0 { " by " } else { ", by " };
        text += &holder.to_string();
    }
    text += if holders.is_empty() { " by nothing else; " } else { "; " };
    if holders.iter().any(|holder| holder.checkpoint.is_none()) {
        text += "close the scan, ";
    }
    if holders.iter().any(|holder| holder.readers.is_some()) {
        text += "close the programs that read the checkpoint, or let them refresh, ";
    }
    text + "compact and take a checkpoint to free older log, delete rows or drop tables, or raise the quota"
}
