//! Eviction: deletes rows by age, frequency or norm.

use std::cell::Cell;
use std::ffi::c_void;
use std::ops::ControlFlow;

use bytemuck::{Pod, Zeroable};
use embank::Eviction;

use crate::callbacks::{self, embank_on_keys, embank_on_progress};
use crate::sized::{self, Growing, Results, flag};
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

/// The conditions of an eviction. The eviction deletes a row if every condition that is set holds
/// for it. Call embank_eviction_init, then set at least one condition.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct embank_eviction {
    /// Set by embank_eviction_init.
    pub size: usize,
    /// Deletes rows whose last use is at least this long ago. The unit is the minute, or with
    /// EMBANK_TRACKING_SET_TIME the unit of embank_table_set_time. Only for tables that track uses.
    /// A negative number is no condition. Default: -1.
    pub unused_for: i64,
    /// Deletes rows with fewer uses than this. Only for tables that track uses. A negative number
    /// is no condition. Default: -1.
    pub used_fewer_than: i64,
    /// Deletes rows whose vector has an L2 norm below this. 0 is no condition. Default: 0.
    pub norm_below: f32,
    /// 0 or 1: with 1, the eviction counts rows and passes their keys to `gone`, but deletes no
    /// row. Default: 0.
    pub dry_run: u32,
    /// The callback that gets the keys of the deleted rows; with dry_run, of the rows that would be
    /// deleted. Default: NULL.
    pub gone: embank_on_keys,
    /// The callback that gets the progress. Default: NULL.
    pub progress: embank_on_progress,
    /// The first argument of both callbacks. Default: NULL.
    pub context: *mut c_void,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. The other fields are numbers, and
// pointers that may be null. The fields' sizes add up to SIZE_MIN, so there is no padding.
unsafe impl Growing for embank_eviction {
    const NAME: &'static str = "embank_eviction";
    const FILLED_BY: &'static str = "embank_eviction_init";
    const SIZE_MIN: usize = 56;

    fn defaults() -> Self {
        Self {
            size: size_of::<Self>(),
            unused_for: -1,
            used_fewer_than: -1,
            norm_below: 0.0,
            dry_run: 0,
            gone: None,
            progress: None,
            context: std::ptr::null_mut(),
        }
    }
}

impl embank_eviction {
    fn to_rust(self) -> Result<Eviction, Failure> {
        let mut eviction = Eviction::new().dry_run(flag("dry_run", self.dry_run)?);
        eviction.unused_for = condition("unused_for", self.unused_for)?;
        eviction.used_fewer_than = condition("used_fewer_than", self.used_fewer_than)?;
        eviction.norm_below = (self.norm_below != 0.0).then_some(self.norm_below);
        Ok(eviction)
    }
}

fn condition(what: &str, value: i64) -> Result<Option<u32>, Failure> {
    if value < 0 {
        return Ok(None);
    }
    u32::try_from(value).map(Some).map_err(|_| {
        Failure::invalid(format!("{what} is at most {}, found {value}; negative is none", u32::MAX))
    })
}

/// The result of an eviction.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_evicted {
    /// The size that the caller passed, sizeof(embank_evicted).
    pub size: usize,
    /// The checkpoint whose rows were examined.
    pub checkpoint: u64,
    /// The number of examined rows.
    pub examined: u64,
    /// The number of deleted rows; with dry_run, of the rows that would be deleted.
    pub rows: u64,
    /// The number of rows that stayed only because leases hold them.
    pub leased: u64,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_evicted {
    const NAME: &'static str = "embank_evicted";
    const FILLED_BY: &'static str = "embank_table_evict";
    const SIZE_MIN: usize = 40;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

/// Sets every field to its default, so that no condition is set. `size` is sizeof(embank_eviction).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_eviction_init(
    eviction: *mut embank_eviction,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `eviction` is null or valid until the call returns.
    call(|| unsafe { sized::write(eviction, size, &embank_eviction::defaults()) })
}

/// Deletes rows by age, frequency or norm, in memory and on disk, while training goes on. The call
/// examines the rows of the newest checkpoint, and deletes a row if every condition now holds for
/// it. Rows that were inserted after the checkpoint, and rows with outstanding leases, stay. The
/// next checkpoint makes the deletions durable. After EMBANK_STATUS_CANCELLED or another failure,
/// the rows that were already deleted stay deleted. `evicted` may be NULL; `evicted_size` is
/// sizeof(embank_evicted).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_evict(
    table: *const embank_table,
    eviction: *const embank_eviction,
    evicted: *mut embank_evicted,
    evicted_size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `eviction` and
    // `evicted` are each null or valid until the call returns. Its callbacks return.
    call(|| unsafe {
        let results = Results::new(evicted, evicted_size)?;
        let table = table_of(table)?;
        let wanted = sized::read(eviction)?;
        // The caller's callback for keys may ask to end the call, but the closure `gone` returns
        // nothing to `evict_with`. So `gone` notes the request in `ended`. `evict_with` calls
        // `progress` next, and `progress` then ends the call.
        let ended = Cell::new(ControlFlow::Continue(()));
        let gone = |keys: &[u64]| {
            ended.set(callbacks::hand_out(wanted.gone, wanted.context, keys));
        };
        let progress = |now| match ended.get() {
            ControlFlow::Continue(()) => callbacks::tell(wanted.progress, wanted.context, now),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        };
        let found = table.evict_with(&wanted.to_rust()?, gone, progress)?;
        results.set(&embank_evicted {
            size: evicted_size,
            checkpoint: found.checkpoint,
            examined: found.examined,
            rows: found.rows,
            leased: found.leased,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_none_until_they_are_set() {
        let none = embank_eviction::defaults();
        assert_eq!(none.size, embank_eviction::SIZE_MIN);
        assert_eq!(none.to_rust().unwrap(), Eviction::new());
        let all = embank_eviction {
            unused_for: 0,
            used_fewer_than: i64::from(u32::MAX),
            norm_below: 0.5,
            dry_run: 1,
            ..none
        };
        let expected = Eviction::new().unused_for(0).used_fewer_than(u32::MAX).norm_below(0.5);
        assert_eq!(all.to_rust().unwrap(), expected.dry_run(true));
        for bad in [
            embank_eviction { unused_for: 1 << 32, ..none },
            embank_eviction { used_fewer_than: i64::MAX, ..none },
            embank_eviction { dry_run: 2, ..none },
        ] {
            assert_eq!(bad.to_rust().unwrap_err().status, embank_status::InvalidArgument);
        }
    }
}
