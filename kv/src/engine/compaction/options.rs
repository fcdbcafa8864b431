//! How space is given back.

use crate::error::{Error, Result};

/// How space is given back.
///
/// ```
/// use embank_kv::CompactionOptions;
/// let gentle = CompactionOptions {
///     background: true,
///     throttle_bytes_per_s: Some(20 << 20),
///     ..Default::default()
/// };
/// assert_eq!(gentle.space_amplification_target, 1.4);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionOptions {
    /// Whether a thread compacts in the background. Default false: only
    /// [`Store::compact`](crate::Store::compact) does.
    pub background: bool,
    /// The thread starts to compact when the log is longer than its rows by this factor: 1.1 to
    /// 10, default 1.4. A lower target saves space and writes more. With rewrites spread
    /// evenly, compaction writes about one byte for each byte of the callers at 1.4, and two
    /// bytes at 1.2.
    pub space_amplification_target: f64,
    /// Most bytes that the thread reads and writes in a second. Default: `None`, no limit. With a
    /// throttle, writers never wait for compaction unless there is a quota, so the log may exceed
    /// the target.
    pub throttle_bytes_per_s: Option<u64>,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        CompactionOptions {
            background: false,
            space_amplification_target: 1.4,
            throttle_bytes_per_s: None,
        }
    }
}

impl CompactionOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let target = self.space_amplification_target;
        if !(1.1..=10.0).contains(&target) {
            return Err(Error::option(
                "space_amplification_target",
                format!("must be from 1.1 to 10, not {target}"),
            ));
        }
        if self.throttle_bytes_per_s == Some(0) {
            return Err(Error::option(
                "throttle_bytes_per_s",
                "must be 1 or more: 0 would stop compaction, for which there is `background: false`",
            ));
        }
        Ok(())
    }
}
