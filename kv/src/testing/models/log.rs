//! Models of the log: appends that begin new pages, changes in place, readers, the writer thread,
//! and a checkpoint, which ends the tail's page.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{SMALL, explore, finds};
use crate::checkpoint::lineage::Lineage;
use crate::device::{AlignedBuffer, Device, DeviceOptions, Freed, MemoryDevice, PartFile, Read};
use crate::epoch::Gate;
use crate::error::{Error, Result};
use crate::log::page::{PageIdentity, check_image};
use crate::log::view::View;
use crate::log::{Extent, Log, TurnFor};
use crate::memory::budget::Budget;
use crate::record::address::{Address, TableNumber};
use crate::record::clock::{self, ClockWord};
use crate::record::layout::{RecordImage, RecordRef, record_bytes};
use crate::sync::{Planted, quietly, thread};

const TABLE: TableNumber = TableNumber(1);
const BANK: u64 = 0xB_A22;
const PAGE_BYTES: u64 = SMALL.page_bytes_min;
/// Length of a value in bytes. Two records of this length fill a page.
const VALUE_BYTES: usize = 184;
/// Number of pages that are filled before the threads begin. Memory holds 9 pages.
const PAGES_BEFORE: u64 = 7;

/// A log, the gate that pauses its threads, and its expected content.
struct Logged {
    log: Log,
    gate: Gate,
    device: Arc<FillingDisk>,
    /// For each record, the first word of its value by the record's address. The address is also
    /// the record's key. This is a mutex of the standard library, because the model checker must
    /// not switch threads here.
    truth: std::sync::Mutex<BTreeMap<u64, u64>>,
}

/// A disk that is full at first: it refuses a given number of writes.
#[derive(Debug)]
struct FillingDisk {
    inner: MemoryDevice,
    /// Number of writes that will still be refused. An atomic of the standard library: the model
    /// checker must not switch threads here.
    refusals: std::sync::atomic::AtomicU32,
}

impl Device for FillingDisk {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.inner.read_many(reads)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let left = self.refusals.load(SeqCst);
        if left > 0 {
            self.refusals.store(left - 1, SeqCst);
            let (path, _) = self.inner.locate(offset);
            return Err(Error::io("write", path, std::io::ErrorKind::StorageFull.into()));
        }
        self.inner.write(offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn truncate(&self, end: u64) -> Result<()> {
        self.inner.truncate(end)
    }

    fn free(&self, below: u64) -> Result<Freed> {
        self.inner.free(below)
    }

    fn part_files(&self) -> Result<Vec<PartFile>> {
        self.inner.part_files()
    }

    fn remove_part(&self, begin: u64) -> Result<()> {
        self.inner.remove_part(begin)
    }

    fn locate(&self, offset: u64) -> (std::path::PathBuf, u64) {
        self.inner.locate(offset)
    }
}

/// Repeats a call until it no longer fails because the disk is full.
fn when_there_is_room<R>(call: impl Fn() -> Result<R>) -> R {
    loop {
        match call() {
            Err(Error::DiskFull { .. }) => {}
            done => return done.unwrap(),
        }
    }
}

impl Logged {
    fn new() -> Arc<Logged> {
        Self::on_a_disk_that_refuses(0)
    }

    fn on_a_disk_that_refuses(writes: u32) -> Arc<Logged> {
        quietly(|| {
            let budget = Arc::new(Budget::new(SMALL.budget_bytes_min, PAGE_BYTES, SMALL).unwrap());
            // Charges all memory that the read cache may have. The log then gets its smallest
            // number of frames.
            assert!(budget.try_charge_cache(budget.cache_bytes_max()));
            assert_eq!(budget.frames_allowed(), 9);
            let device = Arc::new(FillingDisk {
                inner: MemoryDevice::new(&DeviceOptions::default()).unwrap(),
                refusals: writes.into(),
            });
            let extent = Extent { page_bits: PAGE_BYTES.ilog2(), begin: 0, tail_page: 0 };
            let on: Arc<dyn Device> = Arc::clone(&device) as _;
            let lineage = Lineage::new(BANK, PAGE_BYTES.ilog2(), Vec::new());
            let log =
                Log::new(budget, on, Arc::default(), lineage, extent, Arc::default()).unwrap();
            let logged =
                Logged { log, gate: Gate::default(), device, truth: std::sync::Mutex::default() };
            logged.append_all(2 * PAGES_BEFORE);
            Arc::new(logged)
        })
    }

    fn known(&self, address: Address) -> u64 {
        self.truth.lock().unwrap()[&address.raw()]
    }

    fn addresses(&self) -> Vec<Address> {
        self.truth.lock().unwrap().keys().map(|&raw| Address::new(raw)).collect()
    }

    /// # Safety
    /// The caller must keep the duties of `View::record`.
    unsafe fn record<'v>(&self, view: View<'v>, address: Address) -> RecordRef<'v> {
        // SAFETY: this function's caller keeps the duties of `View::record`.
        let record = unsafe { view.record(address) };
        assert_eq!(record.key(), address.raw(), "another record lies here");
        record
    }

    fn append(&self) -> Address {
        loop {
            let pin = self.gate.enter();
            match self.log.allocate(record_bytes(VALUE_BYTES)) {
                Ok(address) => {
                    // SAFETY: this thread is pinned, and allocated the record under this pin.
                    let record = unsafe { self.log.view().record(address) };
                    record.begin(TABLE, address.raw(), VALUE_BYTES);
                    record.store_value(&[0]);
                    record.finish(ClockWord::at_rest(0), false);
                    let before = self.truth.lock().unwrap().insert(address.raw(), 0);
                    assert_eq!(before, None, "the same space was given out twice");
                    return address;
                }
                Err(full) => {
                    drop(pin);
                    when_there_is_room(|| self.log.turn_page(full, TurnFor::Rows));
                }
            }
        }
    }

    fn append_all(&self, count: u64) {
        for _ in 0..count {
            self.append();
        }
    }

    /// Adds 1 to a record's value in place, if the record is in the mutable region.
    fn change(&self, address: Address) {
        let _pin = self.gate.enter();
        let view = self.log.view();
        if !view.mutable(address) {
            return;
        }
        // SAFETY: this thread is pinned, and a complete record is at this address above the head.
        let record = unsafe { self.record(view, address) };
        let locked =
            clock::lock(record.clock(), |_| true).ok().expect("no thread replaces records");
        let mut value = [0];
        record.load_value(&mut value);
        assert_eq!(value[0], self.known(address));
        clock::fence_before_change();
        record.store_value(&[value[0] + 1]);
        self.truth.lock().unwrap().insert(address.raw(), value[0] + 1);
        let word = locked.word();
        locked.unlock_changed(word);
    }

    /// Reads a record from memory or the device, and asserts its value.
    fn read(&self, address: Address) {
        let pin = self.gate.enter();
        let view = self.log.view();
        if view.in_memory(address) {
            let before = self.known(address);
            // SAFETY: this thread is pinned, and a complete record is at this address above the
            // head.
            let record = unsafe { self.record(view, address) };
            let mut value = [0];
            assert!(clock::read_unlocked(record.clock(), || record.load_value(&mut value)));
            assert!((before..=self.known(address)).contains(&value[0]));
            // The frame still has this record, because this thread is pinned.
            assert_eq!(record.key(), address.raw(), "the frame was given away");
            return;
        }
        drop(pin);
        self.assert_on_device(address, self.known(address));
    }

    fn assert_on_device(&self, address: Address, value: u64) {
        let page = address.raw() / PAGE_BYTES;
        let mut image = AlignedBuffer::zeroed(PAGE_BYTES as usize);
        let read = Read { offset: page * PAGE_BYTES, buffer: &mut image };
        self.device.read_many(&mut [read]).unwrap();
        let place = || self.device.locate(page * PAGE_BYTES);
        let used = check_image(&image, PageIdentity { page, bank: BANK, salt: 0 }, place).unwrap();
        let offset = address.raw() % PAGE_BYTES;
        assert!(offset < used, "the record lies beyond what the page uses");
        let record = RecordImage::new(&image[offset as usize..]);
        assert!(record.is(TABLE, address.raw()), "another record lies on the device");
        assert_eq!(
            record.padded_value()[..8],
            value.to_le_bytes(),
            "written before it was at rest"
        );
    }

    /// Does what a spill does with the log's oldest page, if the page is settled: copies it, and
    /// moves the log's beginning past it.
    fn spill(&self) {
        let begin = self.log.begin();
        if begin + PAGE_BYTES > self.log.settled() {
            return;
        }
        let mut image = AlignedBuffer::zeroed(PAGE_BYTES as usize);
        let used = self.log.copy_page(&mut image, begin, &self.gate).unwrap();
        let in_page = |address: &Address| (begin..begin + PAGE_BYTES).contains(&address.raw());
        for address in self.addresses().into_iter().filter(in_page) {
            let offset = (address.raw() - begin) as usize;
            assert!(offset < used, "the record lies beyond what the page uses");
            let record = RecordImage::new(&image[offset..used]);
            assert!(record.is(TABLE, address.raw()), "another record lies here");
            // No thread changes the record any more.
            assert_eq!(record.padded_value()[..8], self.known(address).to_le_bytes());
        }
        // A pause waits for this pin.
        let _pin = self.gate.enter();
        self.log.set_begin(begin + PAGE_BYTES);
    }

    /// Does what a checkpoint does with the log: cuts it, which begins a new page, and waits until
    /// all older pages are written. Asserts that the device then has the log's content at the cut.
    fn settle(&self) {
        let reserved = when_there_is_room(|| self.log.reserve_frame());
        let pause = self.gate.pause();
        let begin = self.log.begin();
        let end = self.log.cut(reserved).unwrap();
        let moment = self.truth.lock().unwrap().clone();
        drop(pause);
        when_there_is_room(|| self.log.await_flushed(end));
        quietly(|| {
            for (&raw, &value) in moment.range(begin..) {
                assert!(raw < end.raw(), "a record of before the cut lies behind it");
                self.assert_on_device(Address::new(raw), value);
            }
        });
    }

    /// Runs these threads next to a writer thread. Then writes the log and asserts that the device
    /// has all content of the log.
    fn beside_the_writer(self: Arc<Self>, threads: Vec<Box<dyn FnOnce(&Logged) + Send>>) {
        let writer = {
            let logged = Arc::clone(&self);
            thread::spawn(move || logged.log.run_writer(|| ()))
        };
        let run = |work: Box<dyn FnOnce(&Logged) + Send>| {
            let logged = Arc::clone(&self);
            thread::spawn(move || work(&logged))
        };
        let threads: Vec<_> = threads.into_iter().map(run).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.settle();
        self.log.check_poison().unwrap();
        self.log.shut_down();
        writer.join().unwrap();
    }
}

/// Two threads fill pages while a third thread changes records in place.
fn pages_turned_and_written() {
    let logged = Logged::new();
    let places = logged.addresses();
    let appends = |count| move |logged: &Logged| logged.append_all(count);
    logged.beside_the_writer(vec![
        Box::new(appends(5)),
        Box::new(appends(4)),
        Box::new(move |logged| {
            // Records in three kinds of pages: the page that the writer closes next, a page that it
            // closes later, and a page that stays open.
            for place in [0, 2, 4, 12] {
                logged.change(places[place]);
            }
        }),
    ]);
}

/// A checkpoint cuts the log while other threads append records and change them in place.
fn cut_and_written() {
    let logged = Logged::new();
    let last = *logged.addresses().last().unwrap();
    logged.beside_the_writer(vec![
        Box::new(Logged::settle),
        Box::new(|logged| {
            for _ in 0..3 {
                let new = logged.append();
                logged.change(new);
            }
        }),
        Box::new(move |logged| {
            logged.change(last);
            logged.change(last);
        }),
    ]);
}

/// Two threads fill pages and a checkpoint waits for its pages, while the disk is full at first.
fn filled_and_written() {
    let logged = Logged::on_a_disk_that_refuses(3);
    let appends = |count| move |logged: &Logged| logged.append_all(count);
    logged.beside_the_writer(vec![
        Box::new(appends(5)),
        Box::new(appends(4)),
        Box::new(|logged| {
            // An update calls `try_to_write` before it changes its first row.
            let _ = logged.log.try_to_write();
            logged.settle();
        }),
    ]);
}

/// The writer thread finds the disk full, and `try_to_write` makes it try again. No frame is freed
/// meanwhile, so a freed frame cannot wake the writer.
fn tried_again() {
    let logged = Logged::on_a_disk_that_refuses(1);
    logged.beside_the_writer(vec![
        Box::new(|logged| {
            logged.log.settle_oldest();
        }),
        Box::new(|logged| when_there_is_room(|| logged.log.try_to_write())),
    ]);
}

/// Pages go to the cold tier while they are in memory, beside a checkpoint and a thread that
/// changes records in place.
fn spilled_and_cut() {
    let logged = Logged::new();
    logged.log.spill_from_memory(1);
    assert!(logged.log.bytes_before_spill().is_some());
    let places = logged.addresses();
    logged.beside_the_writer(vec![
        Box::new(|logged| logged.append_all(7)),
        Box::new(|logged| (0..4).for_each(|_| logged.spill())),
        Box::new(Logged::settle),
        Box::new(move |logged| [0, 2].into_iter().for_each(|place| logged.change(places[place]))),
    ]);
}

/// Pages go to the cold tier while the disk is full at first, so the page that could not be written
/// may never be written.
fn filled_and_spilled() {
    let logged = Logged::on_a_disk_that_refuses(3);
    logged.log.spill_from_memory(1);
    logged.beside_the_writer(vec![
        Box::new(|logged| logged.append_all(7)),
        Box::new(|logged| (0..4).for_each(|_| logged.spill())),
        Box::new(|logged| when_there_is_room(|| logged.log.try_to_write())),
        Box::new(Logged::settle),
    ]);
}

/// Pages leave memory while other threads read their records.
fn evicted_and_read() {
    let logged = Logged::new();
    let places = logged.addresses();
    let reads = |place: Address| move |logged: &Logged| (0..2).for_each(|_| logged.read(place));
    logged.beside_the_writer(vec![
        Box::new(|logged| logged.append_all(9)),
        Box::new(reads(places[0])),
        Box::new(reads(places[2])),
    ]);
}

#[test]
fn pages_are_written_whole_and_at_rest() {
    explore("pages turned and written", pages_turned_and_written);
}

#[test]
fn a_cut_holds_what_was_there() {
    explore("cut and written", cut_and_written);
}

#[test]
fn no_frame_is_given_away_under_a_reader() {
    explore("evicted and read", evicted_and_read);
}

#[test]
fn a_checkpoint_has_its_pages_beside_spills() {
    explore("spilled and cut", spilled_and_cut);
}

#[test]
fn planted_a_page_of_a_checkpoint_that_is_left_out_is_found() {
    finds(Planted::CutUnwritten, spilled_and_cut);
}

#[test]
fn planted_a_spill_of_pages_that_still_change_is_found() {
    finds(Planted::MoveAtOnce, spilled_and_cut);
}

#[test]
fn a_full_disk_keeps_no_call_waiting() {
    explore("filled and written", filled_and_written);
    explore("tried again", tried_again);
    explore("filled and spilled", filled_and_spilled);
}

#[test]
fn planted_room_that_is_not_told_is_found() {
    finds(Planted::RoomUntold, tried_again);
}

#[test]
fn planted_a_page_that_is_turned_twice_is_found() {
    finds(Planted::TurnTwice, pages_turned_and_written);
}

#[test]
fn planted_a_writer_that_does_not_wait_is_found() {
    finds(Planted::MoveAtOnce, pages_turned_and_written);
}

#[test]
fn planted_an_eviction_that_does_not_wait_is_found() {
    finds(Planted::MoveAtOnce, evicted_and_read);
}

#[test]
fn planted_a_written_page_that_is_not_told_is_found() {
    finds(Planted::FlushUntold, cut_and_written);
}

#[test]
fn planted_a_pause_that_does_not_wait_is_found() {
    finds(Planted::PauseAtOnce, cut_and_written);
}
