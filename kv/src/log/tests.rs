use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::{Extent, Log};
use crate::checkpoint::lineage::Lineage;
use crate::device::{DeviceOptions, MemoryDevice};
use crate::error::Error;
use crate::limits::Limits;
use crate::memory::budget::{Budget, SCAN_PAGES};

const BUDGET_BYTES: u64 = 4 << 20;

#[test]
fn what_a_scan_gives_back_wakes_who_waits_for_a_frame() {
    let page_bytes = Budget::page_bytes_for(BUDGET_BYTES);
    let budget = Arc::new(Budget::new(BUDGET_BYTES, page_bytes, Limits::PRODUCT).unwrap());
    let device = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let extent = Extent { page_bits: page_bytes.ilog2(), begin: 0, tail_page: 0 };
    let lineage = Lineage::new(1, page_bytes.ilog2(), Vec::new());
    let log =
        Log::new(Arc::clone(&budget), device, Arc::default(), lineage, extent, Arc::default())
            .unwrap();
    let lent = SCAN_PAGES * page_bytes;
    budget.lend(2 * lent).unwrap();
    let fill = || {
        let full = log.allocate(log.page_bytes() as usize).unwrap_err();
        log.turn_page(full, crate::log::TurnFor::Rows)
    };
    while log.frame_bytes() / page_bytes < budget.frames_allowed() {
        fill().unwrap();
    }
    let (tell, told) = channel();
    std::thread::scope(|s| {
        // This thread takes the place of a busy writer thread. The wait ends when the other thread
        // waits for a frame.
        let mut state = log.state.lock();
        s.spawn(|| tell.send(fill()));
        log.writer_wake.wait(&mut state);
        drop(state);
        // The end of a scan makes these two calls.
        budget.take_back(2 * lent);
        log.allowance_changed();
        let turned = told.recv_timeout(Duration::from_secs(60));
        log.poison(&Error::Poisoned { reason: "the test ends".into() });
        turned.expect("whoever waits is woken").unwrap();
    });
}
