//! Lists what keeps old log on disk: scans, and checkpoints with the processes that read them.
//!
//! Compaction moves current rows out of old log. That part of the log is given back to the file
//! system once no holder needs it. A holder needs all log from one address on: the beginning of the
//! log of its checkpoint. So it also keeps the dead records after that address.

use crate::stats::space_holder::SpaceHolder;

use crate::engine::core::Core;

impl Core {
    /// Returns the holders of log. The holder of the most bytes comes first.
    pub(crate) fn space_holders(&self) -> Vec<SpaceHolder> {
        let freed = self.space.freed();
        let end = self.log.tail_address();
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
