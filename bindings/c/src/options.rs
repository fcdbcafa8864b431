//! The options of opening a bank, their defaults and limits.

use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use embank::{BankOptions, ColdTier, CompactionOptions, DeviceChoice};

use crate::sized::{self, Growing, flag};
use crate::status::{Failure, call, embank_status};

/// The system interface with which a bank reads and writes its log.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_device {
    /// io_uring if the kernel grants it, otherwise threads.
    Auto = 0,
    /// io_uring; opening fails if the kernel refuses it.
    IoUring = 1,
    /// A pool of threads.
    Threads = 2,
}

/// When rows move to the cold tier: files of sorted rows, which take about 1 byte of memory for
/// each row, where a row of the log takes 15 bytes of index. A bank with a cold tier keeps it, and
/// programs older than format 7 can't open it. A bank with a cold tier that is opened without
/// EMBANK_COLD_TIER_AUTO and with background_compaction = 0 has no thread that moves rows: its log
/// grows until embank_bank_compact. So a resumed run needs EMBANK_COLD_TIER_AUTO again.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_cold_tier {
    /// If the index would take more than a quarter of the memory budget. A thread of the bank then
    /// moves rows, also with background_compaction = 0.
    Auto = 0,
    /// As EMBANK_COLD_TIER_AUTO, but with background_compaction = 0 rows move only in
    /// embank_bank_compact.
    OnCompact = 1,
    /// Never. For a bank that has a cold tier already, this is the same as
    /// EMBANK_COLD_TIER_ON_COMPACT.
    Never = 2,
}

/// The options of opening a bank. Call embank_bank_options_init, then change fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_bank_options {
    /// Set by embank_bank_options_init.
    pub size: usize,
    /// The memory budget in bytes, for rows, index, buffers and the lookahead queue together.
    pub memory_budget_bytes: u64,
    /// The number of newest checkpoints that the bank keeps. Default: 2.
    pub checkpoints_kept: u64,
    /// The longest time that a get waits at a staleness bound, in milliseconds. A suspension of the
    /// process counts as 100 ms at most. Default: 60,000.
    pub wait_timeout_ms: u64,
    /// The largest age of a lease, in milliseconds. An older lease expires at the next get of its
    /// table, whatever rows that get takes. The staleness clocks then no longer count the lease.
    /// Applying or putting it returns EMBANK_STATUS_LEASE_EXPIRED. Releasing or freeing it succeeds
    /// and does not change a row. A suspension of the process, and a time in which no thread calls
    /// a get, count as 100 ms at most. 0 means that no lease expires. Default: 0.
    pub lease_timeout_ms: u64,
    /// The largest number of keys in the lookahead queue. 0 turns lookahead off; a negative number
    /// means the keys that fit 1/32 of the memory budget. Default: -1.
    pub lookahead_queue_keys: i64,
    /// The largest size on disk of the log and of the cold tier's files together, in bytes. 0 means
    /// no quota. Default: 0.
    pub disk_quota_bytes: u64,
    /// The largest number of bytes that background compaction reads and writes in a second. 0 means
    /// no limit. Default: 0.
    pub compaction_throttle_bytes_per_s: u64,
    /// Background compaction starts when the log is this many times as long as its current rows.
    /// From 1.1 to 10. Default: 1.4.
    pub space_amplification_target: f64,
    /// One of embank_device. Default: EMBANK_DEVICE_AUTO.
    pub device: u32,
    /// 0 or 1: with 1, a thread frees disk space in the background. With 0, only
    /// embank_bank_compact frees space, except with EMBANK_COLD_TIER_AUTO (see cold_tier).
    /// Default: 0.
    pub background_compaction: u32,
    /// 0 or 1: with 1, opening creates the bank if there is none. With 0, opening returns
    /// EMBANK_STATUS_INVALID_ARGUMENT for a path without a bank, such as a mistyped path or a file
    /// system that is not mounted. Default: 1.
    pub create: u32,
    /// The number of threads that share a large batch, including the thread of the caller. With 1,
    /// no batch is shared. The results have the same bits with any number of threads. 0 means one
    /// thread for each processor that the process may use, at most 16. Default: 0.
    pub threads: u32,
    /// One of embank_cold_tier. Default: EMBANK_COLD_TIER_NEVER.
    pub cold_tier: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_bank_options {
    const NAME: &'static str = "embank_bank_options";
    const FILLED_BY: &'static str = "embank_bank_options_init";
    const SIZE_MIN: usize = 80;

    fn defaults() -> Self {
        let BankOptions {
            memory_budget_bytes,
            create,
            device: _,
            checkpoints_kept,
            lookahead_queue_keys: _,
            wait_timeout,
            lease_timeout: _,
            compaction,
            cold_tier: _,
            disk_quota_bytes: _,
            threads: _,
        } = BankOptions::default();
        Self {
            size: size_of::<Self>(),
            memory_budget_bytes,
            checkpoints_kept: checkpoints_kept as u64,
            wait_timeout_ms: wait_timeout.as_millis() as u64,
            lease_timeout_ms: 0,
            lookahead_queue_keys: -1,
            disk_quota_bytes: 0,
            compaction_throttle_bytes_per_s: 0,
            space_amplification_target: compaction.space_amplification_target,
            device: embank_device::Auto as u32,
            background_compaction: u32::from(compaction.background),
            create: u32::from(create),
            threads: 0,
            cold_tier: embank_cold_tier::Never as u32,
            reserved: 0,
        }
    }
}

impl embank_bank_options {
    pub(crate) fn to_rust(self) -> Result<BankOptions, Failure> {
        const AUTO: u32 = embank_device::Auto as u32;
        const IO_URING: u32 = embank_device::IoUring as u32;
        const THREADS: u32 = embank_device::Threads as u32;
        const COLD_AUTO: u32 = embank_cold_tier::Auto as u32;
        const COLD_ON_COMPACT: u32 = embank_cold_tier::OnCompact as u32;
        const COLD_NEVER: u32 = embank_cold_tier::Never as u32;
        if self.reserved != 0 {
            return Err(Failure::invalid("reserved must be 0".to_owned()));
        }
        let some_unless_0 = |value: u64| (value != 0).then_some(value);
        Ok(BankOptions {
            memory_budget_bytes: self.memory_budget_bytes,
            create: flag("create", self.create)?,
            device: match self.device {
                AUTO => DeviceChoice::Auto,
                IO_URING => DeviceChoice::IoUring,
                THREADS => DeviceChoice::Threads,
                other => {
                    return Err(Failure::invalid(format!("there is no embank_device {other}")));
                }
            },
            checkpoints_kept: usize::try_from(self.checkpoints_kept).unwrap_or(usize::MAX),
            lookahead_queue_keys: usize::try_from(self.lookahead_queue_keys).ok(),
            wait_timeout: Duration::from_millis(self.wait_timeout_ms),
            lease_timeout: some_unless_0(self.lease_timeout_ms).map(Duration::from_millis),
            compaction: CompactionOptions {
                background: flag("background_compaction", self.background_compaction)?,
                space_amplification_target: self.space_amplification_target,
                throttle_bytes_per_s: some_unless_0(self.compaction_throttle_bytes_per_s),
            },
            cold_tier: match self.cold_tier {
                COLD_AUTO => ColdTier::Auto,
                COLD_ON_COMPACT => ColdTier::OnCompact,
                COLD_NEVER => ColdTier::Never,
                other => {
                    return Err(Failure::invalid(format!("there is no embank_cold_tier {other}")));
                }
            },
            disk_quota_bytes: some_unless_0(self.disk_quota_bytes),
            threads: match self.threads {
                0 => BankOptions::default().threads,
                threads => threads as usize,
            },
        })
    }
}

/// Sets every option to its default. `size` is sizeof(embank_bank_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_options_init(
    options: *mut embank_bank_options,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `options` is null or valid until the call returns.
    call(|| unsafe { sized::write(options, size, &embank_bank_options::defaults()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let options = embank_bank_options::defaults().to_rust().unwrap();
        assert_eq!(options, BankOptions::default());
    }
}
