//! Concurrency models of whole stores. Batches, index growth, page eviction, checkpoints and
//! compaction run at the same time.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::{SMALL, explore, finds};
use crate::checkpoint::Checkpoints;
use crate::device::{Device, DeviceOptions, MemoryDevice};
use crate::engine::space::options::CompactionOptions;
use crate::engine::waiters::ReleaseTicket;
use crate::files::directory::Directory;
use crate::hints::{Hints, RowHint, RowHints};
use crate::operation::{Access, Clock, Operation};
use crate::options::StoreOptions;
use crate::record::address::TableId;
use crate::store::Store;
use crate::sync::{CountingU64, Ordering, Planted, quietly, thread};

/// Length of a value of the table `rows` in bytes: one number.
const VALUE_BYTES: u32 = 8;
/// Length of a value of the table `filler` in bytes: nearly a page.
const FILLER_BYTES: u32 = 400;
/// Approximate number of pages that memory holds.
pub(super) const PAGES_IN_MEMORY: u64 = 19;

std::thread_local! {
    /// The directory of the models' banks. It is in `/dev/shm` if that exists, because each
    /// schedule makes files. The files of a failed schedule stay.
    static ROOT: tempfile::TempDir = {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        dir.expect("a temporary directory")
    };
}

struct Put(u64);
impl Operation for Put {
    const ACCESS: Access = Access::Put;
    fn update(&mut self, _: usize, value: &mut [u8]) {
        value[..8].copy_from_slice(&self.0.to_le_bytes());
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Puts a row without reading an older version in the cold tier.
struct PutBlind(u64);
impl Operation for PutBlind {
    const ACCESS: Access = Access::Put;
    const BLIND: bool = true;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        Put(self.0).update(i, value);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        Put(self.0).insert(i, value)
    }
}

/// Adds 1 to a row's value. Inserts the row if it does not exist.
struct Add;
impl Operation for Add {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, _: usize, value: &mut [u8]) {
        let (number, _) = value.split_first_chunk_mut::<8>().unwrap();
        *number = (u64::from_le_bytes(*number) + 1).to_le_bytes();
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Uses a row without changing its value.
struct Touch;
impl Operation for Touch {
    const ACCESS: Access = Access::Touch;
}

struct Get;
impl Operation for Get {
    const ACCESS: Access = Access::Get;
    fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
        true
    }
}

/// Gets a row and records where it lies as a hint.
struct GetHints(RowHints);
impl Operation for GetHints {
    const ACCESS: Access = Access::Get;
    fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
        true
    }
    fn settled(&mut self, i: usize, hint: RowHint) {
        self.0.note(i, hint);
    }
}

/// Reads a row's value as [`Peek`] does. Finds the row by the hint of an earlier get. The value
/// stays `None` if the store does not read the row.
struct PeekBy<'a> {
    hints: Hints<'a>,
    value: Option<u64>,
}
impl Operation for PeekBy<'_> {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, value: &[u8]) {
        let mut peek = Peek(0);
        peek.read(i, value);
        self.value = Some(peek.0);
    }
    fn hints(&self) -> Option<Hints<'_>> {
        Some(self.hints)
    }
}

/// Adds 1 to a row's value as [`Add`] does. Finds the row by the hint of an earlier get.
struct AddBy<'a>(Hints<'a>);
impl Operation for AddBy<'_> {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        Add.update(i, value);
    }
    fn hints(&self) -> Option<Hints<'_>> {
        Some(self.0)
    }
}

struct Peek(u64);
impl Operation for Peek {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, _: usize, value: &[u8]) {
        self.0 = u64::from_le_bytes(*value.first_chunk().unwrap());
    }
}

/// A store with its directory and device. Each row of the table `rows` is one number. Each row of
/// the table `filler` fills a page.
pub(super) struct Bank {
    pub(super) store: Store,
    pub(super) rows: TableId,
    filler: TableId,
    budget_bytes: u64,
    device: Arc<MemoryDevice>,
    dir: Arc<tempfile::TempDir>,
}

impl Bank {
    fn open(dir: Arc<tempfile::TempDir>, device: Arc<MemoryDevice>, budget_bytes: u64) -> Bank {
        let options = StoreOptions {
            memory_budget_bytes: budget_bytes,
            page_size_bytes: Some(SMALL.page_bytes_min as u32),
            compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
            ..StoreOptions::default()
        };
        let on: Arc<dyn Device> = Arc::clone(&device) as _;
        let store = Store::open_with(dir.path(), &options, SMALL, |_, _| Ok(on)).unwrap();
        store.core().retention.retain_often_used();
        let table = |name, value_bytes| {
            let there = store.tables().into_iter().find(|table| table.name == name);
            there.map_or_else(|| store.create_table(name, value_bytes, b"").unwrap(), |it| it.id)
        };
        let rows = table("rows", VALUE_BYTES);
        let filler = table("filler", FILLER_BYTES);
        Bank { store, rows, filler, budget_bytes, device, dir }
    }

    /// Makes a bank and calls `begin` with it, before the threads of the model start.
    pub(super) fn new(begin: impl FnOnce(&Bank)) -> Arc<Bank> {
        Bank::with_budget(SMALL.budget_bytes_min, begin)
    }

    /// Makes a bank with this memory budget, as [`new`](Self::new) does.
    pub(super) fn with_budget(budget_bytes: u64, begin: impl FnOnce(&Bank)) -> Arc<Bank> {
        quietly(|| {
            let dir = ROOT.with(|root| tempfile::tempdir_in(root)).unwrap();
            let device = MemoryDevice::new(&DeviceOptions::default()).unwrap();
            let bank = Bank::open(Arc::new(dir), Arc::new(device), budget_bytes);
            begin(&bank);
            Arc::new(bank)
        })
    }

    /// Closes the bank and opens it again, which restores its newest checkpoint.
    pub(super) fn reopen(self: Arc<Self>) -> Bank {
        let Bank { store, budget_bytes, device, dir, .. } =
            Arc::into_inner(self).expect("its threads have ended");
        drop(store);
        Bank::open(dir, device, budget_bytes)
    }

    pub(super) fn put(&self, key: u64, value: u64) {
        self.store.execute(self.rows, &[key], Clock::Keep, &mut Put(value)).unwrap();
    }

    pub(super) fn put_blind(&self, key: u64, value: u64) {
        self.store.execute(self.rows, &[key], Clock::Keep, &mut PutBlind(value)).unwrap();
    }

    pub(super) fn add(&self, key: u64) {
        self.store.execute(self.rows, &[key], Clock::Keep, &mut Add).unwrap();
    }

    /// Gets a row for training. Returns false if more than `bound` gets already hold the row.
    pub(super) fn get(&self, key: u64, bound: u32) -> bool {
        let clock = Clock::Acquire { bound: Some(bound) };
        let outcome = self.store.execute(self.rows, &[key], clock, &mut Get).unwrap();
        outcome.blocked.is_empty()
    }

    /// Gets a row for training, as [`get`](Self::get) does. Returns a hint with the row's address,
    /// or `None` if more than `bound` gets already hold the row.
    fn get_hints(&self, key: u64, bound: u32) -> Option<RowHints> {
        let clock = Clock::Acquire { bound: Some(bound) };
        let mut get = GetHints(RowHints::none_of(1));
        let outcome = self.store.call_state().execute(self.rows, &[key], clock, &mut get).unwrap();
        outcome.blocked.is_empty().then_some(get.0)
    }

    /// Answers a get of the row and adds 1 to its value. Finds the row by the hints of the get. The
    /// call runs as a batch, because the short path for a single key ignores hints.
    fn train_by(&self, key: u64, hints: &RowHints) {
        let state = self.store.call_state();
        state.execute(self.rows, &[key], Clock::Release, &mut AddBy(hints.all())).unwrap();
    }

    /// Reads a row with the hints of a get.
    fn peek_by(&self, key: u64, hints: &RowHints) -> u64 {
        let mut peek = PeekBy { hints: hints.all(), value: None };
        self.store.call_state().execute(self.rows, &[key], Clock::Keep, &mut peek).unwrap();
        peek.value.expect("no thread deletes the row")
    }

    /// Answers a get of the row and adds 1 to its value.
    pub(super) fn train(&self, key: u64) {
        self.store.execute(self.rows, &[key], Clock::Release, &mut Add).unwrap();
    }

    /// Answers a get of the row without changing its value.
    pub(super) fn release(&self, key: u64) {
        self.store.execute(self.rows, &[key], Clock::Release, &mut Touch).unwrap();
    }

    pub(super) fn clock_of(&self, key: u64) -> Option<u32> {
        self.store.clock_of(self.rows, key).unwrap()
    }

    pub(super) fn release_ticket(&self, key: u64) -> ReleaseTicket<'_> {
        self.store.release_ticket(self.rows, key)
    }

    pub(super) fn wait_released(&self, ticket: ReleaseTicket<'_>) -> bool {
        self.store.wait_released(ticket, Instant::now())
    }

    pub(super) fn wake_waiters(&self) {
        self.store.wake_waiters();
    }

    pub(super) fn peek(&self, key: u64) -> Option<u64> {
        let mut peek = Peek(0);
        let outcome = self.store.execute(self.rows, &[key], Clock::Keep, &mut peek).unwrap();
        outcome.missing.is_empty().then_some(peek.0)
    }

    /// Puts a row of the table `filler` for each key. Each row fills a page.
    pub(super) fn fill(&self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            self.store.execute(self.filler, &[key], Clock::Keep, &mut Put(key)).unwrap();
        }
    }

    pub(super) fn assert_filled(&self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            let mut peek = Peek(u64::MAX);
            self.store.execute(self.filler, &[key], Clock::Keep, &mut peek).unwrap();
            assert_eq!(peek.0, key, "a row of a page was lost");
        }
    }

    /// Number of rows of both tables.
    pub(super) fn row_count(&self) -> u64 {
        self.store.stats().live_rows
    }
}

pub(super) fn spawn(
    bank: &Arc<Bank>,
    work: impl FnOnce(&Bank) + Send + 'static,
) -> thread::JoinHandle<()> {
    let bank = Arc::clone(bank);
    thread::spawn(move || work(&bank))
}

pub(super) fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Rows are changed, inserted and deleted while a checkpoint is taken. The model then opens the
/// checkpoint.
fn checkpoint_among_writers() {
    const FIRST: u64 = 1;
    const SECOND: u64 = 2;
    const SEEN: u64 = 3;
    const NEW: std::ops::Range<u64> = 10..16;
    const GOING: std::ops::Range<u64> = 20..23;
    let bank = Bank::new(|bank| {
        [FIRST, SECOND, SEEN].into_iter().chain(GOING).for_each(|key| bank.put(key, 0));
    });
    let threads = [
        spawn(&bank, |bank| {
            for value in 1..=3 {
                bank.put(FIRST, value);
                bank.put(SECOND, value);
            }
        }),
        spawn(&bank, |bank| {
            for key in NEW {
                bank.put(key, key);
            }
            bank.put(SEEN, bank.peek(FIRST).unwrap());
        }),
        spawn(&bank, |bank| {
            for key in GOING {
                assert_eq!(bank.store.delete(bank.rows, &[key]).unwrap(), 1);
            }
        }),
    ];
    bank.store.checkpoint(b"").unwrap();
    join(threads);
    quietly(|| {
        let bank = bank.reopen();
        let [first, second, seen] = [FIRST, SECOND, SEEN].map(|key| bank.peek(key).unwrap());
        assert!(second <= first && first <= second + 1, "two moments: {first} and {second}");
        assert!(seen <= first, "an effect without its cause: {seen} and {first}");
        let new: Vec<_> = NEW.map_while(|key| bank.peek(key)).collect();
        assert!(new.iter().copied().eq(NEW.take(new.len())));
        assert!(NEW.skip(new.len()).all(|key| bank.peek(key).is_none()), "two moments");
        assert!(seen == 0 || new.len() == NEW.count());
        let gone = GOING.take_while(|&key| bank.peek(key).is_none()).count();
        assert!(GOING.skip(gone).all(|key| bank.peek(key) == Some(0)), "two moments");
        let rows = 3 + new.len() + GOING.count() - gone;
        assert_eq!(bank.row_count(), rows as u64);
    });
}

/// Two threads add to the same rows, in memory and on disk. A third thread fills pages.
fn adding_while_pages_leave() {
    const FILLED: u64 = PAGES_IN_MEMORY - 2;
    let bank = Bank::new(|bank| {
        (0..3).for_each(|key| bank.put(key, 0));
        bank.fill(0..FILLED);
    });
    let threads = [
        spawn(&bank, |bank| [0, 1, 5].into_iter().for_each(|key| bank.add(key))),
        spawn(&bank, |bank| [1, 5, 0].into_iter().for_each(|key| bank.add(key))),
        spawn(&bank, |bank| {
            bank.fill(FILLED..FILLED + 4);
            assert!(bank.peek(2).is_some_and(|value| value == 0));
        }),
    ];
    join(threads);
    quietly(|| {
        for (key, value) in [(0, 2), (1, 2), (2, 0), (5, 2)] {
            assert_eq!(bank.peek(key), Some(value), "key {key}");
        }
        assert_eq!(bank.row_count(), 4 + FILLED + 4);
        bank.store.checkpoint(b"").unwrap();
        let bank = bank.reopen();
        for (key, value) in [(0, 2), (1, 2), (2, 0), (5, 2)] {
            assert_eq!(bank.peek(key), Some(value), "key {key}");
        }
        bank.assert_filled(0..FILLED + 4);
    });
}

/// One trainer at a time may hold a row. This holds while the row is in memory, while its page is
/// written, and when it is on disk.
fn training_while_pages_leave() {
    const FILLED: u64 = PAGES_IN_MEMORY - 2;
    const TRAINERS: u64 = 2;
    let bank = Bank::new(|bank| bank.fill(0..FILLED));
    let having = Arc::new(CountingU64::new(0));
    let trainers = [(); TRAINERS as usize].map(|()| {
        let having = Arc::clone(&having);
        spawn(&bank, move |bank| {
            // The loop ends: the holder releases the row. The ticket is taken before the second
            // try, so the wait sees a release after that try.
            while !bank.get(0, 0) {
                let ticket = bank.store.release_ticket(bank.rows, 0);
                if bank.get(0, 0) {
                    break;
                }
                assert!(bank.store.wait_released(ticket, Instant::now()));
            }
            assert_eq!(having.fetch_add(1, Ordering::SeqCst), 0, "two have the row");
            bank.fill([100 + FILLED]);
            having.fetch_sub(1, Ordering::SeqCst);
            bank.train(0);
        })
    });
    join(trainers.into_iter().chain([spawn(&bank, |bank| bank.fill(FILLED..FILLED + 3))]));
    quietly(|| {
        assert_eq!(bank.peek(0), Some(TRAINERS));
        assert_eq!(bank.store.clock_of(bank.rows, 0).unwrap(), Some(0));
        assert_eq!(bank.row_count(), FILLED + 3 + 2);
    });
}

/// Trainers get rows and update them by hints, the addresses that the gets returned. Meanwhile the
/// rows' pages become read-only, are written and leave memory. A change of a row in a written page
/// would be lost with the page.
fn training_by_hints_while_pages_leave() {
    const ROWS: u64 = 3;
    const FILLED: u64 = PAGES_IN_MEMORY - 7;
    let bank = Bank::new(|bank| {
        (0..ROWS).for_each(|key| {
            bank.put(key, 0);
            bank.fill([key]);
        });
        bank.fill(ROWS..FILLED);
    });
    let trainer = |fills: u64| {
        spawn(&bank, move |bank| {
            let hints: Vec<_> = (0..ROWS).map(|key| bank.get_hints(key, 1).unwrap()).collect();
            bank.fill([100 + fills, 200 + fills]);
            (0..ROWS).zip(&hints).for_each(|(key, hints)| bank.train_by(key, hints));
            // The hint may lead to a record that was replaced before this thread's update.
            assert!(bank.peek_by(0, &hints[0]) > 0, "the peek reads an old record");
        })
    };
    let threads =
        [trainer(0), trainer(1), spawn(&bank, |bank| bank.fill(FILLED..PAGES_IN_MEMORY + 2))];
    join(threads);
    quietly(|| {
        for key in 0..ROWS {
            assert_eq!(bank.peek(key), Some(2), "key {key}");
            assert_eq!(bank.clock_of(key), Some(0), "key {key}");
        }
        bank.store.checkpoint(b"").unwrap();
        let bank = bank.reopen();
        (0..ROWS).for_each(|key| assert_eq!(bank.peek(key), Some(2), "key {key}"));
    });
}

/// Rows change while a second checkpoint is taken. That checkpoint saves only the index changes
/// since the first checkpoint.
fn second_checkpoint_among_writers() {
    const KEYS: u64 = 100;
    let bank = Bank::new(|bank| {
        (0..KEYS).for_each(|key| bank.put(key, 0));
        bank.store.checkpoint(b"").unwrap();
        bank.put(0, 1);
    });
    let threads = [
        spawn(&bank, |bank| (1..4).for_each(|key| bank.put(key, 1))),
        spawn(&bank, |bank| {
            (KEYS..KEYS + 3).for_each(|key| bank.put(key, 1));
            bank.put(1, 2);
        }),
    ];
    bank.store.checkpoint(b"").unwrap();
    join(threads);
    quietly(|| {
        let bank = bank.reopen();
        assert_eq!(bank.peek(0), Some(1));
        let put: Vec<_> = (1..4).map(|key| bank.peek(key).unwrap()).collect();
        assert!(put.is_sorted_by(|a, b| a.min(&1) >= b.min(&1)), "two moments: {put:?}");
        let new = (KEYS..KEYS + 3).take_while(|&key| bank.peek(key).is_some()).count() as u64;
        assert!((KEYS + new..KEYS + 3).all(|key| bank.peek(key).is_none()), "two moments");
        assert!(put[0] < 2 || new == 3, "an effect without its cause");
        assert!((4..KEYS).all(|key| bank.peek(key) == Some(0)), "a row was lost");
        assert_eq!(bank.row_count(), KEYS + new);
    });
}

/// A table is dropped while a checkpoint is taken. The id of the checkpoint must agree with the
/// tables that it has.
fn checkpoint_beside_a_drop() {
    let bank = Bank::new(|_| {});
    let filler = bank.filler;
    let made = bank.store.state_id();
    let dropping = spawn(&bank, move |bank| bank.store.drop_table(filler).unwrap());
    let number = bank.store.checkpoint(b"").unwrap();
    join([dropping]);
    let dropped = bank.store.state_id();
    quietly(|| {
        let dir = Directory::open(bank.dir.path()).unwrap();
        let kept = Checkpoints::look(&dir).unwrap().within(SMALL);
        let id = kept.manifest(number).unwrap().id;
        let bank = bank.reopen();
        // A table that is missing is made again, with another id.
        let is_there = bank.filler == filler;
        assert!(id != made.checkpoint_id(number) || is_there, "the id says that it is there");
        assert!(id != dropped.checkpoint_id(number) || !is_there, "the id says that it is gone");
    });
}

/// Compaction moves rows while other threads add to them, delete them and insert them again.
fn compacting_among_writers() {
    const FILLED: u64 = PAGES_IN_MEMORY;
    let bank = Bank::new(|bank| {
        (0..4).for_each(|key| bank.put(key, 0));
        bank.fill([0, 1]);
        assert_eq!(bank.store.delete(bank.rows, &[3]).unwrap(), 1);
        bank.fill(2..FILLED);
    });
    let threads = [
        spawn(&bank, |bank| {
            bank.store.compact().unwrap();
        }),
        spawn(&bank, |bank| {
            bank.add(0);
            assert_eq!(bank.store.delete(bank.rows, &[1]).unwrap(), 1);
            bank.add(1);
        }),
        spawn(&bank, |bank| {
            bank.add(3);
            bank.add(0);
            assert_eq!(bank.peek(2), Some(0));
        }),
    ];
    join(threads);
    quietly(|| {
        for (key, value) in [(0, 2), (1, 1), (2, 0), (3, 1)] {
            assert_eq!(bank.peek(key), Some(value), "key {key}");
        }
        assert_eq!(bank.row_count(), 4 + FILLED);
        bank.assert_filled(0..FILLED);
    });
}

/// Number of rows that retention copied to the tail in `retaining_while_pages_leave`, in all
/// schedules.
static RETAINED: CountingU64 = CountingU64::new(0);

/// Retention copies often used rows to the tail before their page leaves memory. Meanwhile other
/// threads add to them, delete them and insert them again.
fn retaining_while_pages_leave() {
    const FILLED: u64 = PAGES_IN_MEMORY - 3;
    let bank = Bank::new(|bank| {
        (0..3).for_each(|key| bank.put(key, 0));
        (0..3).for_each(|_| (0..3).for_each(|key| bank.add(key)));
        bank.fill(0..FILLED);
        assert!(bank.get(1, 0));
    });
    let threads = [
        spawn(&bank, |bank| bank.fill(FILLED..FILLED + 4)),
        spawn(&bank, |bank| {
            bank.add(0);
            bank.fill(FILLED + 4..FILLED + 6);
            bank.train(1);
        }),
        spawn(&bank, |bank| {
            assert_eq!(bank.store.delete(bank.rows, &[2]).unwrap(), 1);
            bank.fill([FILLED + 6]);
            bank.add(2);
        }),
    ];
    join(threads);
    quietly(|| {
        for (key, value) in [(0, 4), (1, 4), (2, 1)] {
            assert_eq!(bank.peek(key), Some(value), "key {key}");
            assert_eq!(bank.clock_of(key), Some(0), "key {key}");
        }
        assert_eq!(bank.row_count(), 3 + FILLED + 7);
        bank.assert_filled(0..FILLED + 7);
        RETAINED.fetch_add(bank.store.stats().retained, Ordering::Relaxed);
    });
}

#[test]
fn no_row_is_lost_that_is_retained() {
    explore("retaining while pages leave", retaining_while_pages_leave);
    assert!(RETAINED.load(Ordering::Relaxed) > 0, "nothing was retained, so nothing was seen");
}

#[test]
fn a_checkpoint_is_one_moment() {
    explore("checkpoint among writers", checkpoint_among_writers);
}

#[test]
fn no_addition_is_lost_while_pages_leave() {
    explore("adding while pages leave", adding_while_pages_leave);
}

#[test]
fn no_two_have_a_row() {
    explore("training while pages leave", training_while_pages_leave);
}

#[test]
fn a_second_checkpoint_is_one_moment() {
    explore("second checkpoint among writers", second_checkpoint_among_writers);
}

#[test]
fn the_id_of_a_checkpoint_says_which_tables_it_has() {
    explore("checkpoint beside a drop", checkpoint_beside_a_drop);
}

#[test]
fn no_row_is_lost_by_compaction() {
    explore("compacting among writers", compacting_among_writers);
}

#[test]
fn no_update_by_hints_is_lost() {
    explore("training by hints while pages leave", training_by_hints_while_pages_leave);
}

#[test]
fn planted_a_pause_that_does_not_wait_is_found() {
    finds(Planted::PauseAtOnce, checkpoint_among_writers);
}

#[test]
fn planted_a_change_that_is_not_saved_is_found() {
    finds(Planted::ChangeUnsaved, checkpoint_among_writers);
    finds(Planted::ChangeUnsaved, second_checkpoint_among_writers);
}

#[test]
fn planted_a_bucket_that_is_copied_twice_is_found() {
    finds(Planted::CopyUnchecked, checkpoint_among_writers);
    finds(Planted::CopyUnchecked, second_checkpoint_among_writers);
}

#[test]
fn planted_an_eviction_that_does_not_wait_is_found() {
    finds(Planted::MoveAtOnce, adding_while_pages_leave);
}

#[test]
fn planted_an_insert_that_does_not_look_again_is_found() {
    finds(Planted::InsertUnchecked, adding_while_pages_leave);
}

#[test]
fn planted_a_beginning_that_moves_too_early_is_found() {
    finds(Planted::BeginEarly, compacting_among_writers);
}

#[test]
fn planted_a_release_that_does_not_count_is_found() {
    finds(Planted::ReleaseUncounted, training_while_pages_leave);
}

#[test]
fn planted_a_hint_that_is_not_checked_is_found() {
    finds(Planted::HintUnchecked, training_by_hints_while_pages_leave);
}

#[test]
fn planted_a_drop_that_is_counted_late_is_found() {
    finds(Planted::DropCountedLate, checkpoint_beside_a_drop);
}
