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
    /// [`Store::compact`](crate::Store::compact) compacts, except in a bank with two tiers
    /// ([`ColdTier::Auto`]).
    pub background: bool,
    /// Length of the log, divided by the size of its rows, at which the thread starts to compact.
    /// From 1.1 to 10, default 1.4. A lower target saves space and writes more. If rewrites are
    /// spread evenly, a target of 1.4 makes compaction write about one byte for each byte that
    /// callers write. A target of 1.2 makes it write two. Skewed rewrites with a part of the rows
    /// in memory make it write more: the log's length includes the rows in memory, so little of
    /// the log on disk may be superseded. In a bank with two tiers, the target has no effect.
    pub space_amplification_target: f64,
    /// Largest number of bytes that the thread reads and writes in a second. Default: `None`, no
    /// limit. With a throttle and without a quota, writers never wait for compaction, so the log
    /// may exceed the target.
    pub throttle_bytes_per_s: Option<u64>,
}

/// When rows leave the log for the *cold tier*: files of sorted rows, which need no index entry.
///
/// A bank begins with one tier, the log. Its index takes 14 to 15 bytes of memory for each row,
/// wherever the row lies. In a bank with two tiers, rows that no batch has used for long lie in the
/// cold tier, which takes about 1 byte of memory for each row. A bank with a cold tier keeps it,
/// and programs older than format 7 can't open it.
///
/// A bank with a cold tier that is opened without `Auto` and without
/// [`background`](CompactionOptions::background) compaction has no thread that moves rows: its log
/// grows until [`Store::compact`](crate::Store::compact). So a program that opens the bank again
/// must give the option again.
///
/// ```
/// use embank_kv::{ColdTier, StoreOptions};
/// assert_eq!(StoreOptions::default().cold_tier, ColdTier::Never);
/// ```
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum ColdTier {
    /// The bank gets its cold tier when three things meet: the index has or needs more than a
    /// quarter of the memory budget, a part of the log is only on disk, and the budget is at least
    /// 1 MiB. From then on, a thread moves rows there and merges its files, also without
    /// [`background`](CompactionOptions::background) compaction. If the index of a bank in one tier
    /// does not fit the budget, the opening moves all rows of the log there.
    Auto,
    /// The bank gets its cold tier as with `Auto`. Without `background` compaction, rows move and
    /// files merge only in [`Store::compact`](crate::Store::compact) and in such an opening, and
    /// the bank starts no thread for it.
    OnCompact,
    /// The bank gets no cold tier. If it has one already, this is the same as `OnCompact`: an
    /// opening moves the log's rows if their index takes more than three eighths of the budget.
    #[default]
    Never,
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
