//! Tests of the budget alone.

use super::*;

#[test]
fn pages_follow_from_the_budget() {
    assert_eq!(Budget::page_bytes_for(1 << 20), 16 << 10);
    assert_eq!(Budget::page_bytes_for(8 << 20), 128 << 10);
    assert_eq!(Budget::page_bytes_for(64 << 20), 512 << 10);
    assert_eq!(Budget::page_bytes_for(64 << 30), 4 << 20);
    assert_eq!(Budget::page_bytes_for(300 << 10), 8 << 10);
}

#[test]
fn the_index_takes_from_the_frames_and_leaves_them_a_quarter() {
    let budget = Budget::new(1 << 20, 16 << 10, Limits::PRODUCT).unwrap();
    let before = budget.frames_allowed();
    assert!(budget.try_charge_index(64 << 10));
    assert_eq!(budget.frames_allowed(), before - 4);
    while budget.try_charge_index(4096) {}
    assert!(budget.frames_allowed() * (16 << 10) >= 256 << 10);
    assert!(budget.index_bytes() <= budget.index_bytes_max());
}

/// Regression test: the index took memory that frames still used, so every batch waited until
/// frames were released. The index must get only free memory, and must then be refused until
/// the log releases frames.
#[test]
fn the_index_takes_what_is_free_and_no_more_until_frames_give_way() {
    for (total_bytes, page_bytes) in [(1 << 20, 16 << 10), (128 << 20, 8 << 10), (1 << 30, 4 << 20)]
    {
        let budget = Budget::new(total_bytes, page_bytes, Limits::PRODUCT).unwrap();
        let unit = if budget.huge_pages() { HUGE_PAGE_BYTES as u64 } else { 4096 };
        while budget.try_take_frame() {}
        let mut charged = 0;
        while budget.try_charge_index(unit) {
            charged += unit;
            assert!(budget.buffer_bytes() + charged + budget.frames() * page_bytes <= total_bytes);
        }
        assert!(charged >= page_bytes.max(2 * unit), "{charged} bytes were free");
        assert!(budget.is_over() && !budget.try_take_frame());
        while budget.is_over() {
            budget.give_back_frame();
        }
        assert!(budget.try_charge_index(unit));
    }
}

#[test]
fn parts_take_from_frames_and_cache_and_leave_the_log_its_frames() {
    let new = |total_bytes| Arc::new(Budget::new(total_bytes, 16 << 10, Limits::PRODUCT).unwrap());
    let budget = new(8 << 20);
    let frames = budget.frames_allowed();
    let cache = budget.cache_bytes_max();
    let charge = budget.charge_cold(1 << 20).unwrap();
    assert_eq!(budget.frames_allowed(), frames - 64);
    assert!(cache - budget.cache_bytes_max() >= (1 << 20) - (1 << 20) / 16 - (16 << 10));
    drop(charge);
    assert_eq!((budget.frames_allowed(), budget.cache_bytes_max()), (frames, cache));
    // Together, index and parts leave the log a quarter of the budget.
    while budget.try_charge_index(64 << 10) {}
    assert!(budget.cold_bytes_left() < 64 << 10);
    let error = budget.charge_cold(64 << 10).unwrap_err();
    let Error::BudgetTooSmall { needed_bytes, .. } = error else { panic!("{error}") };
    let larger = new(needed_bytes);
    for _ in 0..budget.index_bytes() / (64 << 10) {
        assert!(larger.try_charge_index(64 << 10));
    }
    drop(larger.charge_cold(64 << 10).unwrap());
    // Parts alone take at most half of it.
    let budget = new(8 << 20);
    assert_eq!(budget.cold_bytes_left(), 4 << 20);
    assert!(budget.charge_cold((4 << 20) + 1).is_err());
    let _all = budget.charge_cold(4 << 20).unwrap();
    assert_eq!(budget.cold_bytes_left(), 0);
}

#[test]
fn too_small_a_budget_is_refused_with_the_one_that_would_do() {
    let new = |total_bytes| Budget::new(total_bytes, 4 << 20, Limits::PRODUCT);
    let Err(Error::BudgetTooSmall { needed_bytes, .. }) = new(1 << 20) else { panic!("accepted") };
    assert!(new(needed_bytes).is_ok());
}
