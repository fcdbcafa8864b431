//! What keeps log from being given back, by name: scans, and checkpoints with the processes that read them.
//!
//! Compaction moves current rows out of old log, and that log goes back once nothing holds it. So a holder keeps all log
//! from its beginning on, dead rows included.

use std::fmt;

use crate::engine::core::Core;
use crate::files::lock_holders::LockHolders;

/// Something that keeps log from being given back.
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
    /// The checkpoint; `None` for a scan of this store.
    pub checkpoint: Option<u64>,
    /// The processes that read the checkpoint. `None` if none does: it is one of those that the bank keeps.
    pub readers: Option<LockHolders>,
    /// Bytes of log from where it holds it to the log's end. Holders overlap: their bytes do not add up.
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

impl Core {
    /// What holds log, the largest holder first.
    pub(crate) fn space_holders(&self) -> Vec<SpaceHolder> {
        let (freed, end) = (self.space.freed(), self.log.tail_address());
        let bytes_from = |begin: u64| end.saturating_sub(begin.max(freed));
        let (checkpoints, scans) = {
            let pins = self.space.pins.lock();
            (pins.checkpoints().to_vec(), pins.scans().to_vec())
        };
        let of_scan =
            |begin| SpaceHolder { checkpoint: None, readers: None, bytes: bytes_from(begin) };
        let of_checkpoint = |(number, begin)| SpaceHolder {
            checkpoint: Some(number),
            readers: self.space.checkpoints.as_ref().and_then(|all| all.readers(number)),
            bytes: bytes_from(begin),
        };
        let scans = scans.into_iter().map(of_scan);
        let mut holders: Vec<SpaceHolder> =
            scans.chain(checkpoints.into_iter().map(of_checkpoint)).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders
    }
}

/// The end of an error's text: what holds the space, and what gives it back.
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
        text += "close what reads the checkpoint or have it refresh, ";
    }
    text + "compact and take a checkpoint to let go of older log, delete rows or drop tables, or raise the quota"
}
