//! When and how fast compaction frees disk space.

use crate::error::{Error, Result};

/// When and how fast compaction frees disk space.
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
    /// True if a thread compacts in the background. Default: false. Then only
    /// [`Store::compact`](crate::Store::compact) compacts.
    pub background: bool,
    /// Length of the log, divided by the size of its rows, at which the thread starts to compact.
    /// From 1.1 to 10, default 1.4. A lower target saves space and writes more. If rewrites are
    /// spread evenly, a target of 1.4 makes compaction write about one byte for each byte that
    /// callers write. A target of 1.2 makes it write two. Skewed rewrites with a part of the rows
    /// in memory make it write more: the log's length includes the rows in memory, so little of
    /// the log on disk may be superseded.
    pub space_amplification_target: f64,
    /// Largest number of bytes that the thread reads and writes in a second. Default: `None`, no
    /// limit. With a throttle and without a quota, writers never wait for compaction, so the log
    /// may exceed the target.
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
