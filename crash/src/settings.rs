//! The settings of a test's bank, drawn at random: budget, page and segment length, quota, and
//! whether the bank has a cold tier.

use std::path::Path;
use std::sync::Arc;

use embank_kv::device::{DeviceOptions, ThreadDevice};
use embank_kv::{CompactionOptions, Store, StoreOptions, TierLimits};
use fastrand::Rng;

/// The log segment size is small so that compaction frees whole segments.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 10;
/// A quota that no test reaches. With a quota, a bank gives back each page of log as soon as it
/// can, and allocates no blocks ahead.
const QUOTA_BYTES: u64 = 1 << 30;
/// The bank keeps several checkpoints, so that rollbacks have a choice.
const CHECKPOINTS_KEPT: usize = 3;

/// Draws limits of a cold tier that are so low that rows leave the log all the time. A sort buffer
/// has at least one page.
#[must_use]
pub fn low_limits(seed: u64) -> TierLimits {
    let mut random = Rng::with_seed(!seed);
    let mut one_of = |of: [u64; 3]| of[random.u64(..3) as usize];
    let sort_buffer_bytes = one_of([10, 12, 16]) << 10;
    TierLimits {
        log_bytes: one_of([16, 32, 64]) << 10,
        sort_buffer_bytes,
        base_part_bytes: one_of([4, 6, 8]) * sort_buffer_bytes,
        level_runs: one_of([3, 4, 5]) as usize,
    }
}

/// The settings of a bank.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The options with which the bank opens.
    pub options: StoreOptions,
    /// The limits of a bank with a cold tier. They are so low that rows leave the log all the time.
    /// `None` for a bank in one tier.
    pub tier: Option<TierLimits>,
}

impl Settings {
    /// Returns the settings of a bank in one tier.
    #[must_use]
    pub fn one_tier(background: bool) -> Self {
        let options = StoreOptions {
            memory_budget_bytes: 512 << 10,
            page_size_bytes: Some(8 << 10),
            segment_size_bytes: Some(SEGMENT_BYTES),
            checkpoints_kept: CHECKPOINTS_KEPT,
            compaction: CompactionOptions { background, ..CompactionOptions::default() },
            ..StoreOptions::default()
        };
        Settings { options, tier: None }
    }

    /// Draws the settings of the bank with this seed. Four consecutive seeds have each combination
    /// of compaction in the background or by calls, and of one or two tiers.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        let background = seed % 2 == 1;
        let mut random = Rng::with_seed(seed);
        let mut one_of = |of: &[u64]| of[random.u64(..of.len() as u64) as usize];
        let mut settings = Settings::one_tier(background);
        let options = &mut settings.options;
        options.segment_size_bytes = Some(one_of(&[1, 2, 4]) * SEGMENT_BYTES);
        options.disk_quota_bytes = (one_of(&[0, 1, 1, 1]) == 0).then_some(QUOTA_BYTES);
        options.checkpoints_kept = one_of(&[1, 3, 3, 4]) as usize;
        options.memory_budget_bytes = one_of(&[512, 768, 1024]) << 10;
        if seed / 2 % 2 == 1 {
            // A scan of a bank with parts needs more memory.
            let page_kib = one_of(&[8, 8, 8, 16]);
            options.memory_budget_bytes = (page_kib * one_of(&[128, 192, 256])) << 10;
            options.page_size_bytes = Some((page_kib as u32) << 10);
            settings.tier = Some(low_limits(seed));
        }
        settings
    }

    /// Returns these settings, with compaction by calls alone.
    #[must_use]
    pub fn in_foreground(&self) -> Self {
        let mut settings = self.clone();
        settings.options.compaction.background = false;
        settings
    }

    /// Opens a bank on a [`ThreadDevice`] with one thread. The recorder sees the calls of this
    /// device.
    ///
    /// # Errors
    /// Returns any error of the store.
    pub fn open(&self, dir: &Path) -> embank_kv::Result<Store> {
        let store = Store::open_on(dir, &self.options, |segment_size_bytes| {
            let options =
                DeviceOptions { segment_size_bytes, threads: 1, ..DeviceOptions::default() };
            Ok(Arc::new(ThreadDevice::open(dir, &options)?))
        })?;
        if let Some(limits) = self.tier {
            store.begin_second_tier(limits);
        }
        Ok(store)
    }
}
