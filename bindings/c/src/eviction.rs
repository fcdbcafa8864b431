//! Rows that go by age, frequency or norm.

use std::cell::Cell;
use std::ffi::c_void;
use std::ops::ControlFlow;

use bytemuck::{Pod, Zeroable};
use embank::Eviction;

use crate::callbacks::{self, embank_on_keys, embank_on_progress};
use crate::sized::{self, Growing, Results, flag};
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

/// Which rows are to go: those for which every condition that is set holds. Call embank_eviction_init, then set one at
/// least.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct embank_eviction {
    /// Set by embank_eviction_init.
    pub size: usize,
    /// Rows whose last use lies so far back or further: in minutes, or in the unit of embank_table_set_time, which is
    /// to be called first, for the time is 0 after an open. For tables that track it. Negative means any age.
    /// Default: -1.
    pub unused_for: i64,
    /// Rows with fewer uses than this. For tables that track it. Negative means any number. Default: -1.
    pub used_fewer_than: i64,
    /// Rows whose vector has an L2 norm below this. 0 means any norm. Default: 0.
    pub norm_below: f32,
    /// 0 or 1: only counts, and hands out keys. Default: 0.
    pub dry_run: u32,
    /// Gets the keys that went, or would. Default: NULL.
    pub gone: embank_on_keys,
    /// Gets told how far it is. Default: NULL.
    pub progress: embank_on_progress,
    /// What both get. Default: NULL.
    pub context: *mut c_void,
}

// SAFETY: its size comes first, and then numbers and pointers that may be null; the sizes add up to SIZE_MIN.
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

/// What an eviction did, or would have.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_evicted {
    /// sizeof(embank_evicted), as it was passed.
    pub size: usize,
    /// The checkpoint whose rows were gone through.
    pub checkpoint: u64,
    /// How many those were.
    pub examined: u64,
    /// Rows that went, or would.
    pub rows: u64,
    /// Rows that would have gone but for leases on them.
    pub leased: u64,
}

// SAFETY: `Pod`, and its size comes first.
unsafe impl Growing for embank_evicted {
    const NAME: &'static str = "embank_evicted";
    const FILLED_BY: &'static str = "embank_table_evict";
    const SIZE_MIN: usize = 40;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

/// Sets every field to its default: no condition. `size` is sizeof(embank_eviction).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_eviction_init(
    eviction: *mut embank_eviction,
    size: usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe { sized::write(eviction, size, &embank_eviction::defaults()) })
}

/// Deletes rows by age, frequency or norm, in memory and on disk, while training goes on: of those that the newest
/// checkpoint holds, the ones for which every condition holds now. Rows that were made after it, and rows with
/// outstanding leases, stay. Durable with the next checkpoint. After EMBANK_STATUS_CANCELLED and other failures, what
/// went is gone. `evicted` may be NULL; `evicted_size` is sizeof(embank_evicted).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_evict(
    table: *const embank_table,
    eviction: *const embank_eviction,
    evicted: *mut embank_evicted,
    evicted_size: usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let results = Results::new(evicted, evicted_size)?;
        let table = table_of(table)?;
        let wanted = sized::read(eviction)?;
        // Rust asks for no answer to the keys, and tells the progress right after them.
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
