use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::{Extent, Log, TurnFor};
use crate::checkpoint::lineage::Lineage;
use crate::device::{AlignedBuffer, DeviceOptions, MemoryDevice, Read};
use crate::epoch::Gate;
use crate::error::Error;
use crate::limits::Limits;
use crate::log::page::PAGE_HEADER_BYTES;
use crate::memory::budget::{Budget, SCAN_PAGES};
use crate::record::address::TableNumber;
use crate::record::clock::ClockWord;
use crate::record::layout::RecordImage;

const BUDGET_BYTES: u64 = 4 << 20;

/// Returns a new log with room for some 100 pages.
fn new_log(budget: &Arc<Budget>) -> Log {
    let page_bits = budget.page_bytes().ilog2();
    let device = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let extent = Extent { page_bits, begin: 0, tail_page: 0 };
    let lineage = Lineage::new(1, page_bits, Vec::new());
    Log::new(Arc::clone(budget), device, Arc::default(), lineage, extent, Arc::default()).unwrap()
}

fn new_budget() -> Arc<Budget> {
    let page_bytes = Budget::page_bytes_for(BUDGET_BYTES);
    Arc::new(Budget::new(BUDGET_BYTES, page_bytes, Limits::PRODUCT).unwrap())
}

#[test]
fn what_a_scan_gives_back_wakes_who_waits_for_a_frame() {
    let budget = new_budget();
    let page_bytes = budget.page_bytes();
    let log = new_log(&budget);
    let lent = SCAN_PAGES * page_bytes;
    budget.lend(2 * lent).unwrap();
    let fill = || {
        let full = log.allocate(log.page_bytes() as usize).unwrap_err();
        log.turn_page(full, TurnFor::Rows)
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

/// Runs `work` beside the writer thread of a log that spills 4 pages at a time from memory.
fn beside_a_writer(work: impl FnOnce(&Log, &Gate)) {
    let log = new_log(&new_budget());
    let gate = Gate::default();
    log.spill_from_memory(4);
    std::thread::scope(|s| {
        s.spawn(|| log.run_writer(|| {}));
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&log, &gate)));
        log.shut_down();
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Fills `pages` pages with a record for each page, whose key is the page's number.
fn fill(log: &Log, gate: &Gate, pages: u64) {
    for _ in 0..pages {
        let pinned = gate.enter();
        let record =
            log.begin_record(log.view(), TableNumber(1), log.tail_address() >> log.page_bits, 8);
        record.unwrap().finish(ClockWord::at_rest(0), false);
        let full = log.allocate(log.page_bytes() as usize).unwrap_err();
        drop(pinned);
        log.turn_page(full, TurnFor::Rows).unwrap();
    }
}

/// True if the device has the page.
fn is_written(log: &Log, page: u64) -> bool {
    let mut bytes = AlignedBuffer::zeroed(log.page_bytes() as usize);
    let offset = page << log.page_bits;
    let read = log.device.read_many(&mut [Read { offset, buffer: &mut bytes }]);
    read.is_ok() && bytes[..4] != [0; 4]
}

/// Passes the settled pages as a spill does, once they are longer than a spill.
fn spill(log: &Log, gate: &Gate) {
    let mut page = AlignedBuffer::zeroed(log.page_bytes() as usize);
    while log.settled() >= log.begin() + 4 * log.page_bytes() {
        for start in (0..4).map(|i| log.begin() + i * log.page_bytes()) {
            let used = log.copy_page(&mut page, start, gate).unwrap();
            let record = RecordImage::new(&page[PAGE_HEADER_BYTES as usize..used]);
            assert_eq!(record.key(), start >> log.page_bits);
        }
        log.set_begin(log.begin() + 4 * log.page_bytes());
    }
}

#[test]
fn pages_that_a_spill_passes_in_memory_are_never_written() {
    beside_a_writer(|log, gate| {
        let frames = log.budget.frames_allowed();
        for _ in 0..6 * frames {
            fill(log, gate, 1);
            spill(log, gate);
        }
        // Pages are written only if the writer thread settles too late for a spill.
        let begin = log.begin() >> log.page_bits;
        let written = (0..begin).filter(|&page| is_written(log, page)).count() as u64;
        assert!(begin > 4 * frames && written < begin, "{written} of {begin} pages");
    });
}

#[test]
fn a_checkpoint_gets_its_pages_although_a_spill_has_passed_them() {
    beside_a_writer(|log, gate| {
        for _ in 0..5 {
            fill(log, gate, 2 * log.budget.frames_allowed());
            spill(log, gate);
            fill(log, gate, log.budget.frames_allowed() / 2);
            let begin = log.begin() >> log.page_bits;
            let reserved = log.reserve_frame().unwrap();
            let pause = gate.pause();
            let end = log.cut(reserved).unwrap();
            drop(pause);
            spill(log, gate);
            log.await_flushed(end).unwrap();
            let end = end.raw() >> log.page_bits;
            assert!(begin < end);
            let missing: Vec<u64> = (begin..end).filter(|&page| !is_written(log, page)).collect();
            assert!(missing.is_empty(), "{missing:?} of {begin}..{end}");
        }
    });
}

#[test]
fn pages_without_a_spill_are_written_before_they_leave_memory() {
    beside_a_writer(|log, gate| {
        fill(log, gate, 3 * log.budget.frames_allowed());
        let head = log.view().head >> log.page_bits;
        assert!(head > 0 && (0..head).all(|page| is_written(log, page)));
    });
}
